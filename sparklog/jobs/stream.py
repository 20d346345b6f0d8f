"""Stream the topics of a Kafka directory, or of a sparklog root, into a sparklog root, exactly once.

    spark-submit jobs/stream.py --source /var/lib/kafka/data --subscribe orders,clicks \
        --root /data/log --checkpoint /data/checkpoints/archive

Run again with the same checkpoint it goes on where it was: nothing is lost, nothing is written twice. Records keep key,
value, headers and timestamp (else the time of writing). A topic keeps its name unless `--topic` sends
all records to one. Without `--follow` the job ends when it has written what was there as it began.

Exit codes: 0 done, 1 the query failed (the reason on stderr), 2 wrong usage, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from typer import BadParameter, Option

import sparklog
from sparklog.cli.options import RootOption
from sparklog.jobs.program import DONE, parse
from sparklog.jobs.streaming import known_timestamp, print_end, streaming_job, streaming_session

COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True)
class Copy:
    """Options of the job.

    `subscribe`: the option that picks topics (`subscribe`, `subscribePattern`) and its value; None: all of the path.
    `topic` None keeps the topics' names. `group`: the consumer group of a root that commits the query's offsets.
    """

    source: str
    root: str
    checkpoint: str
    subscribe: tuple[str, str] | None = None
    topic: str | None = None
    partitions: int = 1
    max_offsets_per_trigger: int | None = None
    follow: bool = False
    group: str | None = None


def start(spark: SparkSession, copy: Copy) -> StreamingQuery:
    """Start the query."""
    reader = spark.readStream.format("sparklog").option("startingOffsets", "earliest").option("includeHeaders", True)
    if copy.subscribe is not None:
        reader = reader.option(*copy.subscribe)
    if copy.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", copy.max_offsets_per_trigger)
    if copy.group is not None:
        reader = reader.option("kafka.group.id", copy.group)
    columns = COLUMNS if copy.topic is not None else (*COLUMNS, "topic")
    records = reader.load(copy.source).select(*columns).withColumn("timestamp", known_timestamp())
    writer = records.writeStream.format("sparklog")
    if copy.topic is not None:
        writer = writer.option("topic", copy.topic)
    writer = writer.option("num.partitions", copy.partitions).option("checkpointLocation", copy.checkpoint)
    return (writer if copy.follow else writer.trigger(availableNow=True)).start(copy.root)


def _options(
    source: Annotated[str, Option("--source", help="Kafka log directory, its partition folder, root or topic folder.")],
    root: RootOption,
    checkpoint: Annotated[
        str, Option("--checkpoint", help="The query's checkpoint: with it nothing is lost or written twice.")
    ],
    subscribe: Annotated[str | None, Option("--subscribe", help="Topics, with commas between them.")] = None,
    subscribe_pattern: Annotated[
        str | None, Option("--subscribe-pattern", help="Regular expression of topics.")
    ] = None,
    topic: Annotated[
        str | None, Option("--topic", help="One topic for all records; else each keeps its topic.")
    ] = None,
    num_partitions: Annotated[int, Option("--num-partitions", help="Of topics that do not exist yet.")] = 1,
    max_offsets_per_trigger: Annotated[
        int | None, Option("--max-offsets-per-trigger", help="Records of one micro-batch at most.")
    ] = None,
    group: Annotated[
        str | None, Option("--group", help="Consumer group that commits the query's offsets; of a root.")
    ] = None,
    follow: Annotated[bool, Option("--follow", help="Go on with what comes later.")] = False,
) -> Copy:
    if subscribe is not None and subscribe_pattern is not None:
        raise BadParameter("give one of --subscribe and --subscribe-pattern")
    topics = None if subscribe is None else ("subscribe", subscribe)
    if subscribe_pattern is not None:
        topics = ("subscribePattern", subscribe_pattern)
    return Copy(source, root, checkpoint, topics, topic, num_partitions, max_offsets_per_trigger, follow, group)


def arguments(given: Sequence[str]) -> Copy:
    """Read the command line; leaves with 2 where it is wrong."""
    return parse("stream", _options, given, __doc__)


@streaming_job("stream")
def run(spark: SparkSession, copy: Copy) -> int:
    """Run to the end and return the exit code."""
    sparklog.register(spark)
    query = start(spark, copy)
    query.awaitTermination()
    print_end(query, copy.root)
    return DONE


def main(given: Sequence[str]) -> int:
    """Run the job with these arguments and return its exit code."""
    copy = arguments(given)
    with streaming_session("sparklog stream") as spark:
        return run(spark, copy)
