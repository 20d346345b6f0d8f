"""Tables in Spark's catalog: `CREATE TABLE t USING sparklog OPTIONS (path '/data/log', subscribe 'orders')`.

Spark passes the options of a table to a Python data source only once, when CREATE requests the columns. A SELECT or an
INSERT only passes the options of its own WITH clause, and the columns that are stored in the catalog. Therefore, the
options are stored in the metadata of the first column. If the statement lists the columns, or contains AS SELECT, Spark
does not request the columns, so the data source cannot determine the location of the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from sparklog.datasource.option_table import TOPIC_CONFIG, find_option
from sparklog.datasource.schema import COLUMNS, SPARK_TYPES
from sparklog.errors import BadRequest
from sparklog.opening import ROOT, Location
from sparklog.storage.cloud_settings import is_setting
from sparklog.storage.locations import is_url

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from sparklog.datasource.options import Options

NO_OPTIONS = (
    "No path is set: Spark ignores LOCATION and OPTIONS of a table that is created with columns or AS SELECT, so "
    "create the table without them (`CREATE TABLE t USING sparklog OPTIONS (path '/data/log', subscribe 'orders')`); "
    "in a program, pass the path, for example load('/data/log')"
)
_ENDPOINT_URL = re.compile(r"(=https?:)/(?!/)")
_PROVIDER = "provider"
_OPTION = "option."
_METADATA = "sparklog.options"


def of_create(options_of_spark: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of CREATE TABLE without the catalog's properties, or None for any other statement.

    The catalog passes each option twice, the second time as `option.NAME`, and each table property once.
    """
    properties = {name.lower(): value for name, value in options_of_spark.items()}
    if _PROVIDER not in properties:
        return None
    options = {name.removeprefix(_OPTION): value for name, value in properties.items() if name.startswith(_OPTION)}
    path = properties.get("path", properties.get("location"))
    if path is None:
        return options
    # Spark treats the value as a Hadoop path and merges double slashes, including the slashes in the URL of an
    # endpoint.
    return {**options, "path": _ENDPOINT_URL.sub(r"\1//", path) if is_url(path) else path}


def of_columns(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that are stored in the columns of a table, overridden by the options of this statement. Return
    an empty mapping if the columns do not contain options.
    """
    # Columns that were selected from a table still contain the metadata when they are written to another location.
    # Ignore this metadata.
    if not schema.fields or set(schema.fieldNames()) < set(COLUMNS) - {"headers"}:
        return {}
    stored = schema.fields[0].metadata.get(_METADATA)
    return {} if stored is None else {**json.loads(stored), **{name.lower(): value for name, value in given.items()}}


def complete_topic_options(options: Mapping[str, str]) -> dict[str, str]:
    """If the topic is specified only for reads or only for writes, use the same topic for both."""
    both = dict(options)
    if "topic" in both and not both.keys() & {"subscribe", "subscribepattern", "assign"}:
        both["subscribe"] = both["topic"]
    elif "topic" not in both and "," not in both.get("subscribe", ","):
        both["topic"] = both["subscribe"].strip()
    return both


def columns_with_options(
    names: Sequence[str], options: Mapping[str, str], decoded: Mapping[str, DataType] = MappingProxyType({})
) -> StructType:
    """Return the columns of a new table, with the options of the table in the metadata.

    Options without effect are omitted, because they may contain broker passwords, which would be visible in the schema.
    """
    schema = columns_of_types(names, decoded)
    used = {
        name: text
        for name, text in options.items()
        if name.startswith(TOPIC_CONFIG) or is_setting(name) or find_option(name) is not None
    }
    schema.fields[0].metadata = {_METADATA: json.dumps(used, sort_keys=True)}
    return schema


def columns_of_types(names: Sequence[str], decoded: Mapping[str, DataType]) -> StructType:
    """Return columns with their types. `decoded` contains the types of decoded columns.

    The types are constructed one by one, because a worker does not have a parser for Spark types.
    """
    from pyspark.sql import types

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    kinds: dict[str, DataType] = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        SPARK_TYPES["headers"]: types.ArrayType(header),
    }
    return types.StructType([types.StructField(name, decoded.get(name, kinds[SPARK_TYPES[name]])) for name in names])


def check_create(options: Options, location: Location) -> None:
    """Raise BadRequest if a table does not have topics, or if columns are selected, because a table must have all
    columns.
    """
    if options.read.columns is not None:
        raise BadRequest(
            "A table always has all columns: remove the option 'columns', and select the columns in the query"
        )
    if location.kind == ROOT and options.read.subscription is None:
        raise BadRequest(
            f"The path {location.path} is a root: set the topics of the table with OPTIONS (subscribe 'orders'), or "
            "use the path of a topic directory"
        )
