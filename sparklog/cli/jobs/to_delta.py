"""Write a topic into a Delta table, exactly once: each record as a row, or the latest record of each key.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/to_delta.py --root /data/log --topic orders \
        --table /data/tables/orders --checkpoint /data/checkpoints/orders --payload json \
        --schema 'id BIGINT, amount DOUBLE' --mode upsert --key-columns id --bad-records quarantine

An upsert deletes the row of a key whose record has no value. Without `--follow` the job ends when it has written what
was there as it began. Exit codes: see `sparklog.cli.jobs.common`.

Each write to a table carries the query's id and the number of its micro-batch as Delta's txnAppId and txnVersion, so
that a batch which is done again after a kill changes nothing. Bad records are written first: if the schema changes
between two tries, a record may come into both tables, but never into none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructField, StructType

import sparklog
from sparklog.cli.jobs import delta
from sparklog.cli.jobs.common import parse
from sparklog.cli.jobs.delta import CheckpointOption, FollowOption, IntervalOption, TableOption
from sparklog.cli.jobs.delta_rows import METADATA, Payload, framed_schema, rows
from sparklog.cli.jobs.stream import check_source, follow_to_end, streaming_job
from sparklog.cli.options import SourceOption, whole_number
from sparklog.cli.parameters import Option
from sparklog.cli.terminal import read_text
from sparklog.errors import BadRequest
from sparklog.output import log
from sparklog.parsing import INT32_MAX, is_digits

TXN_APP_ID, TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
ROWS, DELETED = "sparklog_rows", "_sparklog_deleted"


@dataclass
class ToDelta(delta.DeltaQuery):
    """Options of the job."""

    topic: Annotated[str, Option(help="The topic to read.")]
    root: SourceOption
    table: TableOption
    checkpoint: CheckpointOption
    mode: Annotated[
        Literal["append", "upsert"], Option(help="A row for each record, or for each key its latest one.")
    ] = "append"
    payload: Annotated[
        Literal["raw", "json", "avro"], Option(help="Values as bytes in the columns of a record, or parsed.")
    ] = "raw"
    schema: Annotated[
        str | None,
        Option(metavar="DDL|[ID=]FILE", help="Columns of json; the Avro schema, with its ID in a registry's frame."),
    ] = None
    key_column_list: Annotated[
        str | None,
        Option("--key-columns", metavar="A[,B]", help="Columns that the key holds: its text, or a JSON object."),
    ] = None
    metadata: Annotated[bool, Option(help=f"Add {', '.join(METADATA)} to parsed columns.")] = False
    headers: Annotated[bool, Option(help="Keep the headers of raw records.")] = True
    bad_records: Annotated[
        Literal["fail", "quarantine"], Option(help="Records that do not fit: fail, or write them to PATH_quarantine.")
    ] = "fail"
    grow_schema: Annotated[bool, Option(help="Add columns that the table lacks.")] = False
    starting_offsets: Annotated[
        str, Option(metavar="OFFSETS", help='Of a new checkpoint: earliest, latest or {"topic":{"0":23}}.')
    ] = "earliest"
    max_offsets_per_trigger: Annotated[int, whole_number(low=1, text="About so many records in one micro-batch.")] = (
        1_000_000
    )
    no_fail_on_data_loss: Annotated[bool, Option(help="Go on where records are gone that were not written yet.")] = (
        False
    )
    follow: FollowOption = False
    interval: IntervalOption = None
    rows: Payload = field(init=False)

    def __post_init__(self) -> None:
        self.check_interval()
        keys = self.key_columns()
        upsert = self.mode == "upsert"
        if self.payload == "raw":
            if self.schema is not None or keys or self.metadata:
                raise BadRequest("--schema, --key-columns and --metadata are of --payload json and avro")
            self.rows = Payload("raw", upsert, keys=("key",), headers=self.headers)
            return
        if self.schema is None:
            raise BadRequest(f"--payload {self.payload} needs --schema: {_SCHEMA_OF[self.payload]}")
        if upsert and not keys:
            raise BadRequest("--mode upsert needs --key-columns: the columns that the record's key holds")
        schema, schema_id = self.schema, None
        if self.payload == "avro":
            schema, schema_id = _read_schema(self.schema)
            framed_schema(schema, schema_id)
        self.rows = Payload(self.payload, upsert, schema, schema_id, keys, self.metadata)

    @property
    def quarantine(self) -> str:
        return f"{self.table.rstrip('/')}_quarantine"


_SCHEMA_OF = {"json": "columns such as 'id BIGINT, name STRING'", "avro": "the file of the Avro schema"}


def _read_schema(text: str) -> tuple[str, int | None]:
    number, equals, file = text.partition("=")
    framed = bool(equals) and is_digits(number) and int(number) <= INT32_MAX
    return read_text(Path(file if framed else text), "--schema"), int(number) if framed else None


def prepare(spark: SparkSession, job: ToDelta, schema: StructType) -> None:
    """Create the table, or add the columns that it lacks. Raises BadRequest if the rows or the folder do not fit."""
    if delta.is_delta(spark, job.table):
        table = spark.read.format("delta").load(job.table).schema
        missing = delta.missing_columns(table, schema, grow=job.grow_schema)
        if not missing:
            return
        log(f"{job.table} grows by {', '.join(missing)}")
    else:
        delta.check_new_folder(spark, job.table)
    columns = StructType([StructField(field.name, field.dataType) for field in schema])
    empty = spark.createDataFrame([], columns).write.format("delta").mode("append")
    empty.option("mergeSchema", True).save(job.table)


def start(spark: SparkSession, job: ToDelta) -> StreamingQuery:
    reader = spark.readStream.format("sparklog").options(
        subscribe=job.topic,
        startingOffsets=job.starting_offsets,
        includeHeaders=job.payload == "raw" and job.headers,
        maxOffsetsPerTrigger=job.max_offsets_per_trigger,
        failOnDataLoss=not job.no_fail_on_data_loss,
    )
    made = rows(reader.load(job.root), job.rows)
    prepare(spark, job, made.select("row.*").schema)
    return job.begin(made, partial(write, job))


def write(job: ToDelta, made: DataFrame, batch: int) -> None:
    """Write a micro-batch: bad records first, then the rows of the others."""
    application = delta.query_id(made)
    if job.bad_records == "fail":
        write_rows(job, made.withColumn("row", _or_fail(made)), application, batch)
        return
    # It is read twice.
    made.persist()
    try:
        write_bad(job, made.filter("reason IS NOT NULL"), application, batch)
        write_rows(job, made.filter("reason IS NULL"), application, batch)
    finally:
        made.unpersist()


def _or_fail(made: DataFrame) -> Column:
    """Return the row of a record; a task fails that meets a reason, with the record's place.

    No filter: Spark would parse each record for it, and again for the row.
    """
    position = [F.col("record").getField(name) for name in ("topic", "partition", "offset")]
    text = F.format_string(
        "%s-%d offset %d: %s; --bad-records quarantine goes on without it", *position, F.col("reason")
    )
    failure = F.raise_error(text).cast(made.schema["row"].dataType)
    return F.when(F.col("reason").isNotNull(), failure).otherwise(F.col("row"))


def write_bad(job: ToDelta, bad: DataFrame, application: str, batch: int) -> None:
    if not bad.isEmpty():
        append(bad.select("record.*", "reason"), job.quarantine, application, batch)


def write_rows(job: ToDelta, made: DataFrame, application: str, batch: int) -> None:
    if job.rows.upsert:
        upsert(job, made, application, batch)
    else:
        append(made.select("row.*"), job.table, application, batch)


def append(table_rows: DataFrame, path: str, application: str, batch: int) -> None:
    writer = table_rows.write.format("delta").mode("append")
    writer.options(txnAppId=application, txnVersion=batch).save(path)


def upsert(job: ToDelta, made: DataFrame, application: str, batch: int) -> None:
    """Merge the latest record of each key: one partition holds a key, and its offsets are the order."""
    keys = [F.col("row").getField(name) for name in job.rows.keys]
    newest = Window.partitionBy(*keys).orderBy(F.desc("record.offset"), F.desc("record.partition"))
    latest = made.withColumn("age", F.row_number().over(newest)).filter("age = 1")
    latest = latest.select("row.*", F.col("deleted").alias(DELETED))
    names = [delta.quoted(name) for name in latest.columns[:-1]]
    latest.createOrReplaceTempView(ROWS)
    session = latest.sparkSession
    session.conf.set(TXN_APP_ID, application)
    session.conf.set(TXN_VERSION, str(batch))
    try:
        session.sql(merge(delta.table_name(job.table), names, [delta.quoted(name) for name in job.rows.keys]))
    finally:
        session.conf.unset(TXN_APP_ID)
        session.conf.unset(TXN_VERSION)
        session.catalog.dropTempView(ROWS)


def merge(table: str, names: Sequence[str], keys: Sequence[str]) -> str:
    """Return the statement that brings rows, or their deletion, into a table; its other columns stay."""
    same = " AND ".join(f"t.{key} = s.{key}" for key in keys)
    changed = ", ".join(f"t.{name} = s.{name}" for name in names)
    return (
        f"MERGE INTO {table} AS t USING {ROWS} AS s ON {same} "
        f"WHEN MATCHED AND s.{DELETED} THEN DELETE WHEN MATCHED THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )


arguments = partial(parse, "to-delta", ToDelta, __doc__)


@streaming_job("to-delta")
def run(spark: SparkSession, job: ToDelta) -> int:
    delta.check_delta(spark, avro=job.payload == "avro")
    sparklog.register(spark)
    return follow_to_end(start(spark, job), job.table)


@streaming_job("to-delta")
def main(words: Sequence[str]) -> int:
    job = arguments(words)
    check_source(job.root, subscribe=job.topic, startingoffsets=job.starting_offsets)
    with delta.delta_session("sparklog to-delta", avro=job.payload == "avro") as spark:
        return run(spark, job)
