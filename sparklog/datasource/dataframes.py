"""`sparklog.read` and `sparklog.read_stream`: the DataFrame of a topic.

Both functions set options of the data source. They check the options in the program, so that an error is raised by the
call. Spark passes the options of `load` to a Python process, and reports an error of a stream when the query starts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparklog.arguments import NAME, NAMES, PATH, checked
from sparklog.common.settings import ValueType, is_integer, is_text
from sparklog.datasource.session import SESSION, check_pyspark, is_connect, is_planned_here, register
from sparklog.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTION = ValueType(
    "a string, an integer or a boolean", lambda value: is_text(value) or is_integer(value) or isinstance(value, bool)
)


@checked(path=PATH, topic=NAME.or_none(), columns=NAMES.or_none())
def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Read records into a DataFrame.

    The result is the same as with `spark.read.format("sparklog")` and these options. The options are checked before
    Spark starts a job. As with `register`, the format is registered in the session if Spark does not find it or would
    plan it with another Python.

    Args:
        spark: The session.
        path: A root, the directory of a topic, or a Kafka log directory.
        topic: The topic to read, as the option `subscribe`. It is not required if the path is the directory of a topic.
        columns: The columns of the DataFrame, in this order. Other columns are not decoded or passed to Spark. By
            default, all columns except `headers`.
        options: Options of the data source for batch reads, by name. A name with dots is passed as
            `**{"kafka.isolation.level": "read_uncommitted"}`. An option whose value is None is not set.

    Returns:
        A DataFrame. All actions on it read the same offsets.

    Raises:
        BadRequest: If an option is unknown, invalid or not for batch reads, if a column does not exist, if PySpark is
            not installed, or if `register` fails.

    Example:
        values = sparklog.read(spark, "/data/log", topic="orders", columns=["key", "value"])
        assert values.columns == ["key", "value"]
    """
    check_pyspark("sparklog.read")
    return _load(spark, path, topic, columns, options, is_stream=False)


@checked(path=PATH, topic=NAME.or_none(), columns=NAMES.or_none())
def read_stream(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Read records into a streaming DataFrame.

    The result is the same as with `spark.readStream.format("sparklog")` and these options. The options are checked
    before the query starts. As with `register`, the format is registered in the session if Spark does not find it or
    would plan it with another Python.

    Args:
        spark: The session.
        path: A root, the directory of a topic, or a Kafka log directory.
        topic: The topic to read, as the option `subscribe`. It is not required if the path is the directory of a topic.
        columns: The columns of the DataFrame, in this order. Other columns are not decoded or passed to Spark. By
            default, all columns except `headers`.
        options: Options of the data source for streams, by name, such as `startingOffsets="earliest"`. An option
            whose value is None is not set.

    Returns:
        A streaming DataFrame.

    Raises:
        BadRequest: If an option is unknown, invalid or not for streams, if a column does not exist, if PySpark is not
            installed, or if `register` fails.

    Example:
        tail = sparklog.read_stream(spark, "/data/log", topic="orders", columns=["value"], startingOffsets="earliest")
        assert tail.isStreaming
    """
    check_pyspark("sparklog.read_stream")
    return _load(spark, path, topic, columns, options, is_stream=True)


def _load(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None,
    columns: Sequence[str] | None,
    options: dict[str, Any],
    *,
    is_stream: bool,
) -> DataFrame:
    SESSION.check("spark", spark)
    given = {name: _text(name, value) for name, value in options.items() if value is not None}
    if topic is not None:
        for name in given:
            if name.lower() in ("subscribe", "subscribepattern", "assign"):
                raise BadRequest(f"Set either 'topic' or '{name}', not both")
        given["subscribe"] = topic
    if columns is not None:
        from sparklog.datasource.schema import check_listed

        given["columns"] = ",".join(check_listed(tuple(columns)))
    given_path = os.fspath(path)
    if not is_connect(spark):  # Files in options are on the host of the Spark Connect server.
        _check_options({**given, "path": given_path}, is_stream=is_stream)
        if not is_planned_here(spark):
            register(spark)
    reader = spark.readStream if is_stream else spark.read
    frame: DataFrame = reader.format("sparklog").options(**given).load(given_path)
    return frame


def _text(name: str, value: object) -> str:
    if not _OPTION.accepts(value):
        from sparklog.datasource.option_table import find_option

        find_option(name)  # If the name is unknown, raise the error for the name.
        raise _OPTION.invalid(f"Option '{name}'", value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_options(given: dict[str, str], *, is_stream: bool) -> None:
    from sparklog.datasource.options import parse_options
    from sparklog.datasource.table_view import check_table, reject_table

    options = parse_options(given)
    options.check_read()
    if is_stream:
        options.check_stream_read()
        reject_table(options)
    else:
        options.check_batch_read()
        check_table(options)
