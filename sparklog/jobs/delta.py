"""Spark sessions with Delta, and the options and checks that are common to `to_delta` and `from_delta`.

Delta is a jar, which is passed to spark-submit with --packages. If a job is started as a command without an option for
jars, it uses the version of the installed package `delta-spark` (the extra `delta`), and Spark downloads the jar with
Ivy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from operator import or_
from pathlib import Path
from typing import Annotated, Any

import pyspark
from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructField, StructType

from sparklog.common.lazy import install_command
from sparklog.console.options import comma_separated
from sparklog.console.parameters import Option
from sparklog.datasource.writer import QUERY_ID
from sparklog.errors import BadRequest, NotFound, did_you_mean
from sparklog.jobs.stream import streaming_session
from sparklog.maintenance.spark_runner import SUBMITTED

DELTA_VERSION = "4.4.0"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"

TableOption = Annotated[str, Option(metavar="PATH", help="Directory or URL of the Delta table.")]
CheckpointOption = Annotated[
    str, Option(help="Checkpoint location of the query. A query that restarts from it writes each record exactly once.")
]
FollowOption = Annotated[bool, Option("--follow", help="Keep copying new records until stopped.")]
IntervalOption = Annotated[
    str | None,
    Option(
        metavar="TIME",
        needs="--follow",
        why="without --follow, the job ends when it has written the existing records",
        help="Time between micro-batches, such as '30 seconds'. Requires --follow.",
        show_default="immediately",
    ),
]


def coordinates(spark_version: str, *, avro: bool = False) -> list[str]:
    """Return the packages for a Spark version: Delta and, if `avro` is True, Spark's Avro package."""
    line = ".".join(spark_version.split(".")[:2])
    release = _installed() or DELTA_VERSION
    # The .0 release of a Spark line is compatible with later releases, and is also available in repositories that do
    # not contain the latest release.
    return [f"io.delta:delta-spark_{line}_2.13:{release}"] + [f"org.apache.spark:spark-avro_2.13:{line}.0"] * avro


def settings(environ: Mapping[str, str], spark_version: str, *, avro: bool = False) -> dict[str, str]:
    """Return the settings of a session with Delta. If Python starts Spark and no option specifies packages, the
    settings include the packages. With spark-submit, the session uses the packages in the spark-submit command.
    """
    arguments = environ.get(ARGUMENTS, "")
    if SUBMITTED in environ or "--packages" in arguments or "--jars" in arguments or not _installed():
        return SETTINGS
    return SETTINGS | {"spark.jars.packages": ",".join(coordinates(spark_version, avro=avro))}


def _installed() -> str | None:
    try:
        return version("delta-spark")
    except PackageNotFoundError:
        return None


def check_delta(spark: SparkSession, *, avro: bool = False) -> None:
    """Raise `BadRequest` if the jars are not on the class path of the session."""
    jvm: Any = spark.sparkContext._jvm
    needed = {"Delta": jvm.io.delta.tables.DeltaTable}
    if avro:
        needed["Avro"] = jvm.org.apache.spark.sql.avro.functions
    for name, entry in needed.items():
        if isinstance(entry, JavaPackage):
            packages = ",".join(coordinates(spark.version, avro=avro))
            raise BadRequest(
                f"Spark does not have the {name} package; start this job with spark-submit --packages {packages}, or "
                f"run {install_command('delta')} and start the job with the sparklog command"
            )


def check_local_table(path: str, environ: Mapping[str, str]) -> None:
    """Raise `NotFound` before Spark starts if a local table is missing. On clusters, the path is not checked."""
    has_scheme = ":" in path.partition("/")[0]
    is_here = not has_scheme and SUBMITTED not in environ and "HADOOP_CONF_DIR" not in environ
    if is_here and not Path(path).is_dir():
        raise NotFound(f"there is no Delta table at {path}; check --table")


@contextmanager
def delta_session(name: str, *, avro: bool = False) -> Iterator[SparkSession]:
    # Otherwise, Spark would log the stack trace of a failed query, although the job's last line contains the reason.
    with streaming_session(name, "FATAL", settings(os.environ, pyspark.__version__, avro=avro)) as spark:
        yield spark


def is_delta(spark: SparkSession, path: str) -> bool:
    jvm: Any = spark.sparkContext._jvm
    return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, path))


def properties(spark: SparkSession, path: str) -> Mapping[str, str]:
    """Return the properties of a table."""
    details = spark.sql(f"DESCRIBE DETAIL {table_name(path)}").select("properties").head()
    return {} if details is None else dict(details["properties"])


def absolute(spark: SparkSession, path: str) -> str:
    """Return an absolute path for SQL. A relative path is resolved on Spark's default file system."""
    if ":" in path or path.startswith("/"):
        return path
    folder, files = _folder(spark, path)
    qualified = str(files.makeQualified(folder).toString())
    return qualified.removeprefix("file:") if qualified.startswith("file:/") else qualified


def create_table(spark: SparkSession, path: str, schema: StructType) -> None:
    """Create an empty table by writing only its log. Raises `BadRequest` if the directory contains other files.

    Other files are rejected because a VACUUM of the table would delete them. If an earlier creation was interrupted,
    its files are deleted first. These are a log without versions and, from earlier releases, Parquet files without
    rows.
    """
    folder, files = _folder(spark, path)
    present = list(files.listStatus(folder)) if files.exists(folder) else []
    for status in present:
        if not _is_remainder(spark, files, status):
            raise BadRequest(
                f"{path} is not a Delta table, but contains files such as {status.getPath().getName()}; "
                f"use a new directory, or convert the files to a table first (CONVERT TO DELTA parquet.{quoted(path)})"
            )
    for status in present:
        files.delete(status.getPath(), True)
    jvm: Any = spark.sparkContext._jvm
    columns = StructType([StructField(field.name, field.dataType) for field in schema])
    builder = jvm.io.delta.tables.DeltaTable.createIfNotExists(spark._jsparkSession).location(path)
    builder.addColumns(spark._jsparkSession.parseDataType(columns.json())).execute()


def _folder(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return the Hadoop path and its Hadoop file system."""
    jvm: Any = spark.sparkContext._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    return folder, folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def _is_remainder(spark: SparkSession, files: Any, status: Any) -> bool:
    """Return True if a file remains from an interrupted creation, which is a log without versions or a Parquet file
    without rows.
    """
    path = status.getPath()
    if path.getName() == "_delta_log":
        entries = files.listFiles(path, True)
        while entries.hasNext():
            # An interrupted write of a version leaves a hidden temporary file.
            if not str(entries.next().getPath().getName()).startswith("."):
                return False
        return True
    if status.isDirectory() or not path.getName().endswith(".parquet"):
        return False
    try:
        return bool(spark.read.parquet(path.toString()).isEmpty())
    except (PySparkException, Py4JError):  # Py4JError is raised for a damaged Parquet file.
        return False


def table_name(path: str) -> str:
    """Return the SQL name of the table at a path."""
    return f"delta.{quoted(path)}"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def query_id(batch: DataFrame) -> str:
    """Return the id of the streaming query of a micro-batch. The id is stored in the checkpoint of the query."""
    return str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID))


class DeltaQuery:
    """The streaming query of a job. Subclasses declare the options, in the order in which `--help` lists them."""

    table: str
    checkpoint: str
    key_column_list: str | None
    follow: bool
    interval: str | None

    def check_interval(self) -> None:
        if self.interval is None:
            return
        if re.fullmatch(r"\d+ (millisecond|second|minute|hour)s?", self.interval) is None:
            raise BadRequest(f"--interval expects a number and a unit such as '30 seconds', found '{self.interval}'")

    def key_columns(self) -> tuple[str, ...]:
        return comma_separated([self.key_column_list or ""])

    def begin(self, rows: DataFrame, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Start the query that writes each micro-batch. If `follow` is False, the query ends after the existing
        records.
        """
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", self.checkpoint)
        if not self.follow:
            return writer.trigger(availableNow=True).start()
        return (writer if self.interval is None else writer.trigger(processingTime=self.interval)).start()


def any_null(columns: Iterable[Column]) -> Column:
    """Return a column that is true if any of the given columns is null."""
    return reduce(or_, (column.isNull() for column in columns), F.lit(False))


def check_columns(columns: tuple[str, ...], schema: StructType, owner: str) -> None:
    """Raise `BadRequest` if a column is missing. Column names are case-sensitive."""
    for name in columns:
        if name not in schema.names:
            near = next((other for other in schema.names if other.lower() == name.lower()), None)
            hint = did_you_mean(name, schema.names) if near is None else f"; did you mean '{near}'?"
            raise BadRequest(f"there is no column '{name}' in {owner}{hint}; the columns are {', '.join(schema.names)}")


def missing_columns(table: StructType, rows: StructType, *, grow: bool) -> list[str]:
    """Return the columns that are missing in the table or have a different type in the table. If `grow` is False, raise
    `BadRequest`.
    """
    types = {field.name.lower(): field.dataType.simpleString() for field in table}
    missing = []
    for field in rows:
        actual, expected = field.dataType.simpleString(), types.get(field.name.lower())
        if actual == expected:
            continue
        missing.append(field.name)
        if grow:
            continue
        if expected is None:
            raise BadRequest(f"the table has no column '{field.name}' ({actual}); use --grow-schema to add it")
        raise BadRequest(f"column '{field.name}' is {expected} in the table and {actual} in the rows; change --schema")
    return missing
