"""Tables of Spark's catalog: `CREATE TABLE t USING sparklog OPTIONS (path '/data/log', subscribe 'orders')`.

Spark tells a Python data source the options of a table once, at CREATE, where it asks for the columns. A SELECT or an
INSERT gets none of them (but those of its own WITH), only the columns that the catalog has kept. So the options travel
in the metadata of the first column. A table whose columns are written out, or come from AS SELECT, has no such column:
Spark asks for none, and the source never learns where the table is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
    "No path: Spark drops LOCATION and OPTIONS of a table that has columns or AS SELECT, so create the table without "
    "them, `CREATE TABLE t USING sparklog OPTIONS (path '/data/log', subscribe 'orders')`; in a program give the path, "
    "as in load('/data/log')"
)
_ENDPOINT = re.compile(r"(=https?:)/(?!/)")
_PROVIDER = "provider"
_OPTION = "option."
_METADATA = "sparklog.options"


def of_create(options_of_spark: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of CREATE TABLE, without the catalog's own properties; None if there is no such statement.

    The catalog sends each option twice, the second time as `option.NAME`; what comes once is a property of the table.
    """
    properties = {name.lower(): value for name, value in options_of_spark.items()}
    if _PROVIDER not in properties:
        return None
    options = {name.removeprefix(_OPTION): value for name, value in properties.items() if name.startswith(_OPTION)}
    path = properties.get("path", properties.get("location"))
    if path is None:
        return options
    # Spark takes it for a path of Hadoop's, and makes one slash of two: in the URL of an endpoint, too.
    return {**options, "path": _ENDPOINT.sub(r"\1//", path) if is_url(path) else path}


def of_columns(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table by its columns, and those of this statement, which beat them; else an empty one."""
    # Of columns that are selected from a table, and go elsewhere, the metadata means nothing.
    if not schema.fields or set(schema.fieldNames()) < set(COLUMNS) - {"headers"}:
        return {}
    kept = schema.fields[0].metadata.get(_METADATA)
    return {} if kept is None else {**json.loads(kept), **{name.lower(): value for name, value in given.items()}}


def with_both_sides(options: Mapping[str, str]) -> dict[str, str]:
    """Return options in which the one topic that is read is written, too, or the other way round."""
    both = dict(options)
    if "topic" in both and not both.keys() & {"subscribe", "subscribepattern", "assign"}:
        both["subscribe"] = both["topic"]
    elif "topic" not in both and "," not in both.get("subscribe", ","):
        both["topic"] = both["subscribe"].strip()
    return both


def columns_with_options(include_headers: bool, options: Mapping[str, str]) -> StructType:
    """Return the columns of a new table, which keep its options.

    Those without effect are left out: passwords for brokers would be shown with the schema. The types are made one by
    one, as Spark's parser of types is not at hand in a worker.
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
    names = [name for name in COLUMNS if name != "headers" or include_headers]
    schema = types.StructType([types.StructField(name, kinds[SPARK_TYPES[name]]) for name in names])
    used = {
        name: value
        for name, value in options.items()
        if name.startswith(TOPIC_CONFIG) or is_setting(name) or find_option(name) is not None
    }
    schema.fields[0].metadata = {_METADATA: json.dumps(used, sort_keys=True)}
    return schema


def check_create(options: Options, location: Location) -> None:
    """Raises BadRequest for a table of no topic, or of some columns only: it keeps its options with all of them."""
    if options.read.columns is not None:
        raise BadRequest("A table has all columns: leave out the option 'columns', and name them in the SELECT")
    if location.kind == ROOT and options.read.subscription is None:
        raise BadRequest(
            f"The path {location.path} is a root: name the table's topics with OPTIONS (subscribe 'orders'), or give a "
            "topic's folder"
        )
