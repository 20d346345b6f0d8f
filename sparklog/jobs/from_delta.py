r"""Write the changes of a Delta table, from its change data feed, into a compacted topic, exactly once.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/from_delta.py --table /data/tables/orders \
        --root /data/log --topic orders --key-columns id --checkpoint /data/checkpoints/orders-out

An inserted or updated row becomes a record, and a deleted row becomes a tombstone. If the checkpoint is new, the job
starts with the current rows of the table, or with the changes in the version `--starting-version`. The topic is created
with `cleanup.policy=compact`. Without `--follow`, the job ends when it has written the changes that existed at its
start. See `sparklog.jobs.common` for exit codes.

A version of the table results in at most one record per key. If an update changes the key, the old key is deleted. If a
row is deleted and inserted in the same version, the inserted row is written. All changes of a key are written to one
partition by one task, in the order of the versions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import BinaryType, StructType

import sparklog
from sparklog.common.parsing import is_digits
from sparklog.console.options import RootOption, integer_option
from sparklog.console.parameters import Option
from sparklog.errors import BadRequest, NotFound
from sparklog.jobs import delta
from sparklog.jobs.common import parse
from sparklog.jobs.delta import CheckpointOption, FollowOption, IntervalOption, TableOption
from sparklog.jobs.stream import check_target, follow_to_end, streaming_job
from sparklog.log.journal.names import check_topic_name

CHANGES = ("_change_type", "_commit_version", "_commit_timestamp")
FEED = "delta.enableChangeDataFeed"
# Include microseconds, which Spark's default format omits.
TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


@dataclass
class FromDelta(delta.DeltaQuery):
    """Options of the job."""

    table: TableOption
    root: RootOption
    topic: Annotated[str, Option(help="Topic to write to.")]
    checkpoint: CheckpointOption
    key_column_list: Annotated[
        str,
        Option(
            "--key-columns",
            metavar="A[,B]",
            help="Columns that form the record key. A single column is written as text, several columns as a"
            " JSON object.",
        ),
    ]
    payload: Annotated[
        Literal["json", "raw"],
        Option(help="Record value to write: the row as a JSON object (json), or the column 'value' of the row (raw)."),
    ] = "json"
    starting_version: Annotated[
        str | None,
        Option(
            metavar="N|latest",
            help="Table version to start from if the checkpoint is new.",
            show_default="the current rows",
        ),
    ] = None
    num_partitions: Annotated[
        int | None,
        integer_option(low=1, text="Number of partitions of the topic if the topic is created.", default="the root's"),
    ] = None
    follow: FollowOption = False
    interval: IntervalOption = None
    keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        check_topic_name(self.topic)
        self.check_interval()
        self.keys = self.key_columns()
        if not self.keys:
            raise BadRequest("--key-columns must not be empty")
        version = self.starting_version
        if version is not None and version != "latest" and not is_digits(version):
            raise BadRequest(f"--starting-version must be a version of the table or latest, found '{version}'")


def check_table(spark: SparkSession, job: FromDelta) -> None:
    """Raise `NotFound` or `BadRequest` if the table cannot be read."""
    if not delta.is_delta(spark, job.table):
        raise NotFound(f"there is no Delta table at {job.table}; check --table")
    name = delta.table_name(job.table)
    (detail,) = spark.sql(f"DESCRIBE DETAIL {name}").select("properties").collect()
    if detail["properties"].get(FEED) != "true":
        raise BadRequest(
            f"the table at {job.table} does not have a change data feed; run ALTER TABLE {name} SET TBLPROPERTIES "
            f"({FEED} = true) to record later changes"
        )
    schema = spark.read.format("delta").load(job.table).schema
    delta.check_columns((*job.keys, *(["value"] if job.payload == "raw" else [])), schema, "the table")


def start(spark: SparkSession, job: FromDelta) -> StreamingQuery:
    reader = spark.readStream.format("delta").option("readChangeFeed", True)
    if job.starting_version is not None:
        reader = reader.option("startingVersion", job.starting_version)
    return job.begin(reader.load(job.table), partial(write, job))


def write(job: FromDelta, changes: DataFrame, batch: int) -> None:
    """Append the records of a micro-batch, unless an earlier attempt has appended them."""
    writer = records(changes, job).write.format("sparklog").mode("append")
    writer = writer.options(txnAppId=delta.query_id(changes), txnVersion=batch, topic=job.topic)
    if job.num_partitions is not None:
        writer = writer.option("num.partitions", job.num_partitions)
    writer.option("topic.cleanup.policy", "compact").save(job.root)


def records(changes: DataFrame, job: FromDelta) -> DataFrame:
    """Return key, value and timestamp of one record per key and version of the table.

    The changes of a key are shuffled to one task and sorted by version. The last change of a version is used. Deletions
    are sorted before other changes of the version.
    """
    row = F.struct(*(F.col(delta.quoted(name)) for name in changes.columns if name not in CHANGES))
    names = [f"key{number}" for number in range(len(job.keys))]
    keyed = changes.select(
        row.alias("row"),
        *(F.col(delta.quoted(name)).alias(alias) for name, alias in zip(job.keys, names, strict=True)),
        F.col("_commit_version").alias("version"),
        F.col("_commit_timestamp").alias("timestamp"),
        F.col("_change_type").isin("insert", "update_postimage").alias("stays"),
    )
    history = Window.partitionBy(*names).orderBy("version", "stays")
    ranked = keyed.select(
        "*", F.lead("version").over(history).alias("next_version"), F.lead("stays").over(history).alias("next_stays")
    )
    last = ~F.coalesce(F.col("version") == F.col("next_version"), F.lit(False))
    keys = [F.col(name) for name in names]
    ordered = ranked.filter(_or_fail(keys, job)).filter(last).sortWithinPartitions(*names, "version")
    value = F.to_json("row", TIMES) if job.payload == "json" else F.col("row").getField("value")
    return ordered.select(
        key_of(keys, keyed.schema, job).alias("key"),
        F.when(F.col("stays"), value.cast("binary")).alias("value"),
        "timestamp",
    )


def key_of(keys: Sequence[Column], schema: StructType, job: FromDelta) -> Column:
    """Return the bytes of the record key."""
    if len(keys) > 1:
        named = (key.alias(name) for key, name in zip(keys, job.keys, strict=True))
        return F.to_json(F.struct(*named), TIMES).cast("binary")
    return keys[0] if schema["key0"].dataType == BinaryType() else keys[0].cast("string").cast("binary")


def _or_fail(keys: Sequence[Column], job: FromDelta) -> Column:
    """Return true if the key columns identify a single row per version. Otherwise fail the task."""
    # The names become part of a format string.
    names, version = ", ".join(job.keys).replace("%", "%%"), F.col("version")
    null = F.format_string(f"{names} is null in a row of version %d, but a record must have a key", version)
    shown = F.concat_ws(", ", *(key.cast("string") for key in keys))
    text = f"{names} %s identifies two rows of version %d; choose --key-columns that uniquely identify each row"
    both = F.col("stays") & F.col("next_stays") & (version == F.col("next_version"))
    return (
        F.when(delta.any_null(keys), F.raise_error(null).cast("boolean"))
        .when(both, F.raise_error(F.format_string(text, shown, version)).cast("boolean"))
        .otherwise(F.lit(True))
    )


arguments = partial(parse, "from-delta", FromDelta, __doc__)


@streaming_job("from-delta")
def run(spark: SparkSession, job: FromDelta) -> int:
    delta.check_delta(spark)
    sparklog.register(spark)
    job.table = delta.absolute(spark, job.table)
    check_table(spark, job)
    return follow_to_end("from-delta", partial(start, spark, job), job.root)


@streaming_job("from-delta")
def main(words: Sequence[str]) -> int:
    job = arguments(words)
    check_target(job.root)
    delta.check_local_table(job.table, os.environ)
    with delta.delta_session("sparklog from-delta") as spark:
        return run(spark, job)
