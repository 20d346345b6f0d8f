r"""Write a topic into a Delta table, exactly once: one row per record, or the latest record of each key.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/to_delta.py --root /data/log --topic orders \
        --table /data/tables/orders --checkpoint /data/checkpoints/orders --payload json \
        --schema 'id BIGINT, amount DOUBLE' --mode upsert --key-columns id --bad-records quarantine

With `--mode upsert`, a tombstone deletes the row of its key. Without `--follow`, the job ends when it has written the
records that existed at its start. See `sparklog.jobs.common` for exit codes.

Each write to a table uses the id of the query and the number of the micro-batch as Delta's txnAppId and txnVersion, so
a micro-batch that is repeated after a failure has no effect. Bad records are written first. If the schema changes
between two attempts, a record may therefore be written to both tables, but is never lost.

Rows of raw, JSON and Avro values are built by Spark functions and not by Python code. A record whose key or value does
not match the schema becomes a row with a reason. Python tasks convert values of other formats, and values with schemas
in a registry, with the engine of `sparklog.tables`. The values may have any version of the schema.

Avro with a schema file is decoded by Spark's `from_avro`, which requires another package and is many times faster than
Avro in Python. `from_avro` ignores bytes after a value, and returns the same row for a corrupt value as for a
value with null fields. Therefore values are decoded as a record with three fields: the five bytes of a schema registry
(if present), the value, and four bytes that are appended to the value. Avro stores fields consecutively, so the four
bytes are decoded correctly only if the value is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import sparklog
from sparklog.console.parameters import Option
from sparklog.errors import BadRequest
from sparklog.jobs import delta
from sparklog.jobs.common import parse
from sparklog.jobs.decoded_rows import decode_batches, row_type
from sparklog.jobs.delta import CheckpointOption, IntervalOption, TableOption, any_null, check_columns
from sparklog.jobs.stream import QueryStatus, check_source, streaming_job, to_end
from sparklog.jobs.table_options import RowsJob
from sparklog.log.topic.root import RootView
from sparklog.maintenance.table_runs import CopiedRecords, TableRunRecorder
from sparklog.opening import open_view, resolve
from sparklog.output import log
from sparklog.tables.rows import NO_KEY, TOMBSTONE, UNTYPED, RowDecoder, RowOptions, check_names, row_decoder
from sparklog.tables.watermark import NEXT_OFFSETS

RECORD = ("topic", "partition", "offset", "timestamp", "key", "value")
POSITION = RECORD[:4]
METADATA = tuple(f"_{name}" for name in POSITION)
CORRUPT = "_sparklog_corrupt"
FRAME, END = "frame", b"\xf5log"
UPDATE_SECONDS = 10.0
"""The time between updates of the number of copied records. Spark retains the progress of the last 100 micro-batches.
"""


def has_spark_functions(options: RowOptions) -> bool:
    """Return True if Spark functions convert the records, and False if Python tasks do."""
    is_file = isinstance(options.schema, (str, dict))
    return options.payload in ("raw", "json") or (options.payload == "avro" and is_file)


def rows(records: DataFrame, options: RowOptions, topic: str) -> DataFrame:
    """Return the columns `record`, `row` and `deleted` for each record. The column `reason` contains the reason why a
    record cannot be converted to a row, or null.
    """
    if not has_spark_functions(options):
        return _decoded(records, row_decoder(options, topic))
    parsed, wrong = {"raw": _raw, "json": _json, "avro": _avro}[options.payload](records, options)
    columns = [field for field in parsed.schema["parsed"].dataType if field.name != CORRUPT]
    fields = {field.name: F.col("parsed").getField(field.name) for field in columns}
    if options.payload != "raw":
        keys, wrong_key = _key_columns(StructType(columns), options)
        key_only = {name: keys[name] for name in keys if name not in fields}
        others = [*key_only, *(METADATA if options.metadata else ())]
        columns += [StructField(name, StringType()) for name in others]
        check_names(list(_with_names(StructType(columns))))
        fields = {**key_only, **fields, **keys}
        wrong = F.coalesce(wrong_key, wrong)
    if options.metadata:
        fields |= {column: F.col(name) for column, name in zip(METADATA, POSITION, strict=True)}
    if options.upsert:
        wrong = F.when(F.col("key").isNull(), NO_KEY).otherwise(wrong)
    return parsed.select(
        F.struct(*RECORD).alias("record"),
        F.struct(*(column.alias(name) for name, column in fields.items())).alias("row"),
        (F.col("value").isNull() if options.upsert else F.lit(False)).alias("deleted"),
        wrong.alias("reason"),
    )


def _with_names(kind: DataType) -> pa.DataType:
    """Return an Arrow type whose fields have the same names. All values that are not nested are strings."""
    if isinstance(kind, StructType):
        return pa.struct([pa.field(item.name, _with_names(item.dataType)) for item in kind])
    if isinstance(kind, ArrayType):
        return pa.list_(_with_names(kind.elementType))
    if isinstance(kind, MapType):
        return pa.map_(_with_names(kind.keyType), _with_names(kind.valueType))
    return pa.string()


def _decoded(records: DataFrame, decoder: RowDecoder) -> DataFrame:
    read = records.select(*dict.fromkeys((*RECORD, *decoder.columns)))
    schema = StructType(
        [
            StructField("record", StructType([read.schema[name] for name in RECORD])),
            StructField("row", from_arrow_type(row_type(decoder))),
            StructField("deleted", BooleanType()),
            StructField("reason", StringType()),
        ]
    )
    return read.mapInArrow(partial(decode_batches, decoder, RECORD), schema)


def _raw(records: DataFrame, options: RowOptions) -> tuple[DataFrame, Column]:
    names = ("key", "value", *(("headers",) if options.headers else ()), *POSITION)
    return records.withColumn("parsed", F.struct(*names)), F.lit(None).cast("string")


def _json(records: DataFrame, options: RowOptions) -> tuple[DataFrame, Column]:
    schema, text = ddl_schema(options.schema), F.col("value").cast("string")
    wide = StructType([StructField(field.name, field.dataType) for field in schema])
    parsed_value = F.from_json(text, wide.add(CORRUPT, StringType()), {"columnNameOfCorruptRecord": CORRUPT})
    parsed = F.col("parsed")
    mismatch = F.concat_ws(
        ", ",
        *(
            F.when(
                F.get_json_object(text, f"$['{field.name}']").isNotNull() & parsed.getField(field.name).isNull(),
                f"{field.name} {field.dataType.simpleString()}",
            )
            for field in schema
        ),
    )
    wrong = (
        _no_value(options)
        .when(~F.is_valid_utf8(text), "the value is not UTF-8")
        .when(parsed.isNull(), "the value is not a JSON object")
        .when(
            parsed.getField(CORRUPT).isNotNull(),
            F.when(mismatch == "", "the value is not a JSON object").otherwise(
                F.concat(F.lit("the value does not match "), mismatch)
            ),
        )
    )
    for column in schema:
        # Key columns are taken from the record key instead of the record value.
        if not column.nullable and column.name not in options.key_columns:
            wrong = wrong.when(parsed.getField(column.name).isNull(), f"column {column.name} is null")
    return records.withColumn("parsed", parsed_value), wrong


def _avro(records: DataFrame, options: RowOptions) -> tuple[DataFrame, Column]:
    from pyspark.sql.avro.functions import from_avro

    schema, schema_id = _avro_schema(options)
    framed = F.concat(F.col("value"), F.lit(END))
    decoded = from_avro(framed, framed_schema(schema, schema_id), {"mode": "PERMISSIVE"})
    wrong = _no_value(options)
    is_complete = F.col("framed").getField("end") == F.lit(END)
    if schema_id is not None:
        frame = b"\0" + schema_id.to_bytes(4, "big")
        other = F.concat(
            F.lit("the value does not start with the schema registry header of schema "), F.lit(str(schema_id))
        )
        wrong = wrong.when(~F.startswith(F.col("value"), F.lit(frame)), other)
    wrong = wrong.when(~F.coalesce(is_complete, F.lit(False)), "the value does not match the Avro schema")
    read = records.withColumn("framed", decoded).withColumn("parsed", F.col("framed").getField("value"))
    return read, wrong


def _avro_schema(options: RowOptions) -> tuple[str, int | None]:
    """Return the Avro schema and, if the values have the frame of a schema registry, the id in the frame."""
    if isinstance(options.schema, str):
        return options.schema, None
    ((schema_id, schema),) = options.schema.items()
    return schema, schema_id


def _no_value(options: RowOptions) -> Column:
    return F.when(F.col("value").isNull(), F.lit(None if options.upsert else TOMBSTONE).cast("string"))


def _key_columns(schema: StructType, options: RowOptions) -> tuple[dict[str, Column], Column]:
    """Return the columns of the record key. If the key does not contain the columns, also return the reason."""
    nothing = F.lit(None).cast("string")
    if not options.key_columns:
        return {}, nothing
    types = key_types(schema, options.key_columns)
    key, text = F.col("key"), F.col("key").cast("string")
    if len(options.key_columns) > 1:
        parsed_key = F.from_json(text, StructType([StructField(name, kind) for name, kind in types.items()]))
        keys = {name: parsed_key.getField(name) for name in types}
        mismatch = f"the key is not a JSON object with {', '.join(types)}"
    else:
        ((name, kind),) = types.items()
        keys = {name: key if kind == BinaryType() else text.try_cast(kind)}
        mismatch = f"the key does not match {name} {kind.simpleString()}"
    lacking = any_null(keys.values())
    invalid = lacking if BinaryType() in types.values() else ~F.is_valid_utf8(text) | lacking
    return keys, F.when(key.isNotNull() & invalid, mismatch)


def key_types(schema: StructType, keys: tuple[str, ...]) -> Mapping[str, DataType]:
    """Return the types of the key columns in the schema. A single column that is not in the schema is a string."""
    lower = {name.lower() for name in schema.names}
    if len(keys) > 1 or keys[0].lower() in lower:
        check_columns(keys, schema, "the schema")
        return {name: schema[name].dataType for name in keys}
    return {keys[0]: StringType()}


def ddl_schema(ddl: str) -> StructType:
    try:
        schema = StructType.fromDDL(ddl)
        reason = f"'{ddl}' is a single type"
    except (PySparkException, ValueError, TypeError) as error:
        schema, reason = None, " ".join(str(error).split("==")[0].split())
    if not isinstance(schema, StructType):
        raise BadRequest(f"--schema must be a list of columns such as 'id BIGINT, name STRING': {reason}")
    return schema


def framed_schema(schema: str, schema_id: int | None) -> str:
    """Return the schema of a record that contains the frame, a value of `schema`, and the appended bytes."""
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise BadRequest(f"the Avro schema is not valid JSON: {error}") from None
    if not isinstance(value, dict) or value.get("type") != "record":
        raise BadRequest("the Avro schema must be a record schema, because its fields become columns")
    fields = [{"name": "value", "type": value}, {"name": "end", "type": _fixed("SparklogEnd", len(END))}]
    if schema_id is not None:
        fields.insert(0, {"name": FRAME, "type": _fixed("SparklogFrame", 5)})
    return json.dumps({"type": "record", "name": "SparklogFramed", "fields": fields})


def _fixed(name: str, size: int) -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size}


TXN_APP_ID, TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
ROWS, DELETED = "sparklog_rows", "_sparklog_deleted"


@dataclass(kw_only=True)
class ToDelta(RowsJob, delta.DeltaQuery):
    """Options of the job.

    Attributes:
        rows: the conversion of records to rows.
    """

    table: TableOption
    checkpoint: CheckpointOption
    metadata: Annotated[
        bool,
        Option(
            help=f"Add the columns {', '.join(METADATA)} to parsed rows. If Python tasks decode the values, _partition"
            " has the name _partition_id."
        ),
    ] = False
    starting_offsets: Annotated[
        str,
        Option(
            metavar="OFFSETS",
            help='Offsets to start at if the checkpoint is new: earliest, latest, or JSON such as {"topic":{"0":23}}.',
        ),
    ] = "earliest"
    interval: IntervalOption = None
    rows: RowOptions = field(init=False)

    def __post_init__(self) -> None:
        self.check_interval()
        if self.payload == "raw" and self.metadata:
            raise BadRequest("--metadata cannot be used with --payload raw, whose rows contain these columns")
        self.rows = self.row_options(metadata=self.metadata)
        if self.needs_spark_avro:
            framed_schema(*_avro_schema(self.rows))

    @property
    def needs_spark_avro(self) -> bool:
        return self.payload == "avro" and has_spark_functions(self.rows)

    @property
    def quarantine(self) -> str:
        return f"{self.table.rstrip('/')}_quarantine"

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row in upsert mode."""
        return self.rows.key_columns or ("key",)


def prepare(spark: SparkSession, job: ToDelta, schema: StructType) -> None:
    """Create the table or add missing columns. Raises `BadRequest` if the rows or the directory are not suitable."""
    if delta.is_delta(spark, job.table):
        if NEXT_OFFSETS in delta.properties(spark, job.table):
            raise BadRequest(
                f"table {job.table} contains the offsets up to which it was written by to-delta without --checkpoint: "
                "omit --checkpoint, or use another table"
            )
        table = spark.read.format("delta").load(job.table).schema
        missing = delta.missing_columns(table, schema, grow=job.grow_schema)
        if not missing:
            return
        log(f"adding columns to {job.table}: {', '.join(missing)}")
        columns = StructType([StructField(field.name, field.dataType) for field in schema])
        empty = spark.createDataFrame([], columns).write.format("delta").mode("append")
        empty.option("mergeSchema", True).save(job.table)
    else:
        delta.create_table(spark, job.table, schema)


def start(spark: SparkSession, job: ToDelta) -> StreamingQuery:
    reader = spark.readStream.format("sparklog").options(
        subscribe=job.topic,
        startingOffsets=job.starting_offsets,
        includeHeaders=job.payload in UNTYPED and job.headers,
        maxOffsetsPerTrigger=job.max_offsets_per_trigger,
        failOnDataLoss=not job.no_fail_on_data_loss,
    )
    records = rows(reader.load(job.root), job.rows, job.topic)
    prepare(spark, job, records.select("row.*").schema)
    return job.begin(records, partial(write, job))


def write(job: ToDelta, records: DataFrame, batch: int) -> None:
    """Write a micro-batch: first the bad records, then the rows of the other records."""
    application = delta.query_id(records)
    if job.bad_records == "fail":
        write_rows(job, records.withColumn("row", _or_fail(records)), application, batch)
        return
    if job.bad_records == "skip":
        write_rows(job, records.filter("reason IS NULL"), application, batch)
        return
    # The rows are read twice.
    records.persist()
    try:
        write_bad(job, records.filter("reason IS NOT NULL"), application, batch)
        write_rows(job, records.filter("reason IS NULL"), application, batch)
    finally:
        records.unpersist()


def _or_fail(records: DataFrame) -> Column:
    """Return the row of a record, or fail the task with the position and the reason of a bad record.

    A filter is not used, because Spark would parse each record twice: once for the filter and once for the row.
    """
    position = [F.col("record").getField(name) for name in ("topic", "partition", "offset")]
    text = F.format_string(
        "%s-%d offset %d: %s; use --bad-records quarantine to continue without it", *position, F.col("reason")
    )
    failure = F.raise_error(text).cast(records.schema["row"].dataType)
    return F.when(F.col("reason").isNotNull(), failure).otherwise(F.col("row"))


def write_bad(job: ToDelta, bad: DataFrame, application: str, batch: int) -> None:
    if not bad.isEmpty():
        append(bad.select("record.*", "reason"), job.quarantine, application, batch)


def write_rows(job: ToDelta, records: DataFrame, application: str, batch: int) -> None:
    if job.rows.upsert:
        upsert(job, records, application, batch)
    else:
        append(records.select("row.*"), job.table, application, batch)


def append(table_rows: DataFrame, path: str, application: str, batch: int) -> None:
    writer = table_rows.write.format("delta").mode("append")
    writer.options(txnAppId=application, txnVersion=batch).save(path)


def upsert(job: ToDelta, records: DataFrame, application: str, batch: int) -> None:
    """Merge the latest record of each key. All records of a key are in one partition, ordered by offset."""
    keys = [F.col("row").getField(name) for name in job.keys]
    latest_first = Window.partitionBy(*keys).orderBy(F.desc("record.offset"), F.desc("record.partition"))
    latest = records.withColumn("age", F.row_number().over(latest_first)).filter("age = 1")
    latest = latest.select("row.*", F.col("deleted").alias(DELETED))
    names = [delta.quoted(name) for name in latest.columns[:-1]]
    latest.createOrReplaceTempView(ROWS)
    session = latest.sparkSession
    session.conf.set(TXN_APP_ID, application)
    session.conf.set(TXN_VERSION, str(batch))
    try:
        session.sql(merge(delta.table_name(job.table), names, [delta.quoted(name) for name in job.keys]))
    finally:
        session.conf.unset(TXN_APP_ID)
        session.conf.unset(TXN_VERSION)
        session.catalog.dropTempView(ROWS)


def merge(table: str, names: Sequence[str], keys: Sequence[str]) -> str:
    """Return the statement that merges rows and deletions into a table. Other columns of the table do not change."""
    same = " AND ".join(f"t.{key} = s.{key}" for key in keys)
    changed = ", ".join(f"t.{name} = s.{name}" for name in names)
    return (
        f"MERGE INTO {table} AS t USING {ROWS} AS s ON {same} "
        f"WHEN MATCHED AND s.{DELETED} THEN DELETE WHEN MATCHED THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )


_ADVICE = {
    f"--{name}": f"--{name} cannot be used with --checkpoint, which runs the job on Spark"
    for name in ("storage-option", "partition-by", "max-files-per-partition", "new-topic", "json")
}
arguments = partial(parse, "to-delta", ToDelta, __doc__, advice=_ADVICE)


@streaming_job("to-delta")
def run(spark: SparkSession, job: ToDelta) -> int:
    delta.check_delta(spark, avro=job.needs_spark_avro)
    sparklog.register(spark)
    job.table = delta.absolute(spark, job.table)
    view = open_view(resolve(job.root), tailing=False)
    root = view.root if isinstance(view, RootView) else None
    statuses: list[QueryStatus] = []

    def copied() -> CopiedRecords:
        return statuses[0].copied() if statuses else CopiedRecords()

    def wait(status: QueryStatus, query: StreamingQuery) -> None:
        statuses.append(status)
        while not status.wait(query, UPDATE_SECONDS):
            status.update(query)
            if job.follow:
                recorder.update()

    with TableRunRecorder(root, job.topic, "to-delta", job.table, copied) as recorder:
        return to_end("to-delta", partial(start, spark, job), job.table, wait)


@streaming_job("to-delta")
def main(words: Sequence[str]) -> int:
    job = arguments(words)
    check_source(job.root, subscribe=job.topic, startingoffsets=job.starting_offsets)
    with delta.delta_session("sparklog to-delta", avro=job.needs_spark_avro) as spark:
        return run(spark, job)
