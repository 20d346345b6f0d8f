"""Spark with Delta, and options and checks that `to_delta` and `from_delta` share.

Delta is a jar. spark-submit takes it with --packages. A job that is a command of its own, where no session has been
asked for jars, takes the one of the installed `delta-spark` (`sparklog[delta]`), by Spark's Ivy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType
from typer import Option

from sparklog.datasource.writer import QUERY_ID
from sparklog.errors import BadRequest, NotFound, did_you_mean

DELTA_VERSION = "4.4.0"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, whose packages hold."""
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"

TableOption = Annotated[str, Option(metavar="PATH", help="Folder or URL of the Delta table.")]
CheckpointOption = Annotated[str, Option(help="The query's checkpoint: with it nothing is lost or written twice.")]
FollowOption = Annotated[bool, Option("--follow", help="Go on with what comes later.")]
IntervalOption = Annotated[
    str | None, Option(metavar="TIME", help="With --follow: a micro-batch each '30 seconds'.", show_default="at once")
]


def coordinates(spark_version: str, *, avro: bool = False) -> list[str]:
    """Return the packages that fit a release of Spark: Delta, and Spark's own for Avro if it is needed."""
    line = ".".join(spark_version.split(".")[:2])
    try:
        release = version("delta-spark")
    except PackageNotFoundError:
        release = DELTA_VERSION
    # The first release of a line runs with all of it, and repositories that lack the newest have it.
    return [f"io.delta:delta-spark_{line}_2.13:{release}"] + [f"org.apache.spark:spark-avro_2.13:{line}.0"] * avro


def settings(environ: Mapping[str, str], spark_version: str, *, avro: bool = False) -> dict[str, str]:
    """Return the settings of a session with Delta; of packages, where Python starts Spark and nobody names any."""
    given = environ.get(ARGUMENTS, "")
    if SUBMITTED in environ or "--packages" in given or "--jars" in given or not _installed():
        return SETTINGS
    return SETTINGS | {"spark.jars.packages": ",".join(coordinates(spark_version, avro=avro))}


def _installed() -> bool:
    try:
        version("delta-spark")
    except PackageNotFoundError:
        return False
    return True


def check_delta(spark: SparkSession, *, avro: bool = False) -> None:
    """Raise BadRequest if the session lacks the jars."""
    jvm: Any = spark.sparkContext._jvm
    needed = {"Delta": jvm.io.delta.tables.DeltaTable}
    if avro:
        needed["Avro"] = jvm.org.apache.spark.sql.avro.functions
    for name, entry in needed.items():
        if isinstance(entry, JavaPackage):
            packages = ",".join(coordinates(spark.version, avro=avro))
            raise BadRequest(
                f"Spark has no {name}: start this job with spark-submit --packages {packages}, or install "
                "sparklog[delta] and run it as a command of sparklog"
            )


def check_local_table(path: str, environ: Mapping[str, str]) -> None:
    """Raise NotFound for a table that is not on this machine, before Spark starts; a cluster may have it elsewhere."""
    has_scheme = ":" in path.partition("/")[0]
    here = not has_scheme and SUBMITTED not in environ and "HADOOP_CONF_DIR" not in environ
    if here and not Path(path).is_dir():
        raise NotFound(f"there is no Delta table at {path}: look at --table")


def is_delta(spark: SparkSession, path: str) -> bool:
    jvm: Any = spark.sparkContext._jvm
    return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, path))


def check_new_folder(spark: SparkSession, path: str) -> None:
    """Refuse to make a table among files of others, which a VACUUM of the table would delete."""
    place = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    present = files.listStatus(place) if files.exists(place) else []
    if len(present):
        raise BadRequest(
            f"there is no Delta table at {path}, but files such as {present[0].getPath().getName()}: "
            f"name a new folder, or make a table of them first (CONVERT TO DELTA parquet.{quoted(path)})"
        )


def table_name(path: str) -> str:
    """Return a table's path as SQL names it."""
    return f"delta.{quoted(path)}"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def query_id(batch: DataFrame) -> str:
    """Return the id of the streaming query that a micro-batch is of; its checkpoint keeps it."""
    return str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID))


def check_interval(interval: str | None, follow: bool) -> None:
    if interval is None:
        return
    if not follow:
        raise BadRequest("--interval is of --follow: without it the job ends when it has written what is there")
    if re.fullmatch(r"\d+ (millisecond|second|minute|hour)s?", interval) is None:
        raise BadRequest(f"--interval expects a number and a unit such as '30 seconds', found '{interval}'")


def begin(writer: DataStreamWriter, follow: bool, interval: str | None) -> StreamingQuery:
    """Start a query that ends with what is there, or goes on."""
    if not follow:
        return writer.trigger(availableNow=True).start()
    return (writer if interval is None else writer.trigger(processingTime=interval)).start()


def check_columns(wanted: tuple[str, ...], schema: StructType, place: str) -> None:
    """Raise BadRequest if a column is not there, by its very name."""
    for name in wanted:
        if name not in schema.names:
            near = next((each for each in schema.names if each.lower() == name.lower()), None)
            hint = did_you_mean(name, schema.names) if near is None else f"; did you mean '{near}'?"
            raise BadRequest(f"there is no column '{name}' in {place}{hint}; it has {', '.join(schema.names)}")


def missing_columns(table: StructType, rows: StructType, *, grow: bool) -> list[str]:
    """Return the columns of the rows that a table lacks or has otherwise; without `grow` the first is a BadRequest."""
    types = {field.name.lower(): field.dataType.simpleString() for field in table}
    missing = []
    for field in rows:
        have, expected = field.dataType.simpleString(), types.get(field.name.lower())
        if have == expected:
            continue
        missing.append(field.name)
        if grow:
            continue
        if expected is None:
            raise BadRequest(f"the table has no column '{field.name}' ({have}): --grow-schema adds it")
        raise BadRequest(f"column '{field.name}' is {expected} in the table and {have} in the rows: change --schema")
    return missing
