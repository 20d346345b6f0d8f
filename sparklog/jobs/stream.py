"""Stream the topics of a Kafka directory, or of a sparklog root, into a sparklog root, exactly once.

    spark-submit jobs/stream.py --source /var/lib/kafka/data --subscribe orders,clicks \
        --root /data/log --checkpoint /data/checkpoints/archive

Run again with the same checkpoint it goes on where it was: nothing is lost, nothing is written twice. Records keep key,
value, headers and timestamp (else the time of writing). A topic keeps its name unless `--topic` sends
all records to one. Without `--follow` the job ends when it has written what was there as it began.

Exit codes: 0 done, 1 the query failed (the reason on stderr), 2 wrong usage, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit, timestamp_millis, when
from pyspark.sql.streaming import StreamingQuery

import sparklog
from sparklog.maintenance.arguments import DONE, FAILED, INTERRUPTED
from sparklog.maintenance.progress import say

COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True)
class Copy:
    """What to stream where.

    `subscribe`: the option that picks topics (`subscribe`, `subscribePattern`) and its value; None: the path says all.
    `topic` None keeps the topics' names. `group`: the consumer group of a root that is told how far it is.
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
    # -1 is Kafka's "no time": such a record gets the time of its writing.
    timed = when(col("timestamp") >= timestamp_millis(lit(0)), col("timestamp"))
    records = reader.load(copy.source).select(*columns).withColumn("timestamp", timed)
    writer = records.writeStream.format("sparklog")
    if copy.topic is not None:
        writer = writer.option("topic", copy.topic)
    writer = writer.option("num.partitions", copy.partitions).option("checkpointLocation", copy.checkpoint)
    return (writer if copy.follow else writer.trigger(availableNow=True)).start(copy.root)


def arguments(given: Sequence[str]) -> Copy:
    """Read the command line; exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="sparklog stream", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--source", required=True, help="Kafka log directory, its partition folder, root or topic folder"
    )
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument("--subscribe", help="topics, with commas between them")
    topics.add_argument("--subscribe-pattern", help="regular expression of topics")
    parser.add_argument("--root", default=os.environ.get("SPARKLOG_ROOT"), help="where to; else SPARKLOG_ROOT")
    parser.add_argument("--checkpoint", required=True, help="the query's checkpoint: what makes it exactly once")
    parser.add_argument("--topic", help="one topic for all records; else each keeps its topic")
    parser.add_argument("--num-partitions", type=int, default=1, help="of topics that do not exist yet")
    parser.add_argument("--max-offsets-per-trigger", type=int, help="records of one micro-batch at most")
    parser.add_argument("--group", help="consumer group that shows how far this is, where the source is a root")
    parser.add_argument("--follow", action="store_true", help="go on with what comes later")
    chosen = parser.parse_args(given)
    if chosen.root is None:
        parser.error("give --root, or set SPARKLOG_ROOT")
    subscribe = None
    if chosen.subscribe is not None:
        subscribe = ("subscribe", chosen.subscribe)
    elif chosen.subscribe_pattern is not None:
        subscribe = ("subscribePattern", chosen.subscribe_pattern)
    return Copy(
        chosen.source,
        chosen.root,
        chosen.checkpoint,
        subscribe,
        chosen.topic,
        chosen.num_partitions,
        chosen.max_offsets_per_trigger,
        chosen.follow,
        chosen.group,
    )


def run(spark: SparkSession, copy: Copy) -> int:
    """Run to the end; the exit code."""
    sparklog.register(spark)
    try:
        query = start(spark, copy)
        query.awaitTermination()
    except PySparkException as error:
        say(f"sparklog stream: {str(error).splitlines()[0]}")
        return FAILED
    last = query.lastProgress
    print(f"written to {copy.root}" + (f", up to micro-batch {last['batchId']}" if last else ": nothing new"))
    return DONE


def main(given: Sequence[str] | None = None) -> int:
    """Run the job with the arguments given, else those of the command line; the exit code."""
    copy = arguments(sys.argv[1:] if given is None else given)
    builder = SparkSession.builder.appName("sparklog stream")
    builder = builder.config("spark.sql.execution.arrow.maxBytesPerBatch", "2147483647")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    spark = builder.getOrCreate()
    try:
        return run(spark, copy)
    except KeyboardInterrupt:
        say("sparklog stream: interrupted; the next run with this checkpoint goes on where it was")
        return INTERRUPTED
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
