"""Tour of sparklog: scan a Kafka log directory in place, stream it into a topic exactly once, and tail the topic.

    make demo

All files are written to `.demo/`, which is deleted first, so you can run the demo repeatedly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, lit

import sparklog
from sparklog.jobs import stream

REPOSITORY = Path(__file__).resolve().parents[1]
KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"
LOG_SETTINGS = REPOSITORY / "examples" / "log4j2.properties"
DEMO = REPOSITORY / ".demo"
ROOT = DEMO / "root"
SOURCE_TOPICS = "txn-a,txn-b"
TOPIC = "archive"


def say(number: int, text: str) -> None:
    print(f"\n\033[1m{number}. {text}\033[0m" if sys.stdout.isatty() else f"\n{number}. {text}", flush=True)


def start_spark() -> SparkSession:
    """Start a small local Spark session."""
    return (
        sparklog.configure(SparkSession.builder.master("local[2]"))
        .appName("sparklog demo")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", f'"-Dlog4j2.configurationFile={LOG_SETTINGS}"')
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def scan_kafka(spark: SparkSession) -> DataFrame:
    """Return the files of a broker as a DataFrame. Nothing is copied, and nothing is written to the directory."""
    return spark.read.format("sparklog").option("subscribe", SOURCE_TOPICS).load(str(KAFKA))


def stream_into_topic(spark: SparkSession) -> int:
    """Run the job `jobs/stream.py` until the topic contains all records. Return the number of written records."""
    checkpoint = str(DEMO / "checkpoints" / "archive")
    copy = stream.Copy(str(KAFKA), str(ROOT), checkpoint, SOURCE_TOPICS, topic=TOPIC, num_partitions=4)
    copy.max_offsets_per_trigger = 100
    query = stream.start(spark, copy)
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def tail_and_count(spark: SparkSession, expected: int) -> list[tuple[int, int]]:
    """Tail the topic with a second query. Return the counts per partition after all records are counted."""
    counts: dict[int, int] = {}
    complete = threading.Event()

    def show(batch: DataFrame, batch_id: int) -> None:
        for row in batch.collect():
            counts[row["partition"]] = row["records"]
        print(f"   micro-batch {batch_id}: {sum(counts.values())} records counted so far", flush=True)
        if sum(counts.values()) >= expected:
            complete.set()

    tail = (
        spark.readStream.format("sparklog")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 60)
        .load(str(ROOT / TOPIC))
    )
    query = (
        tail.groupBy("partition")
        .agg(count(lit(1)).alias("records"))
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(DEMO / "checkpoints" / "counts"))
        .foreachBatch(show)
        .start()
    )
    while not complete.wait(0.2):
        if not query.isActive:
            raise SystemExit(f"the counting query ended early: {query.exception()}")
    query.stop()
    return sorted(counts.items())


def run_command(*arguments: str) -> None:
    """Print a command and its output."""
    print("   $ sparklog", " ".join(arguments), flush=True)
    environment = {**os.environ, "SPARKLOG_ROOT": str(ROOT)}
    command = [sys.executable, "-m", "sparklog", *arguments]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for line in (done.stdout + done.stderr).splitlines():
        print("  ", line)


def main() -> None:
    """Run the tour. Raise an error if a result is unexpected."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    shutil.rmtree(DEMO, ignore_errors=True)
    print("Starting Spark ...", flush=True)
    spark = start_spark()

    say(1, f"Scan a Kafka log directory in place: {KAFKA.relative_to(REPOSITORY)}")
    records = scan_kafka(spark)
    records.groupBy("topic", "partition").agg(count(lit(1)).alias("records")).orderBy("topic", "partition").show()
    text = [col(name).cast("string") for name in ("key", "value")]
    records.orderBy("topic", "partition", "offset").select("topic", "partition", "offset", *text).show(5, truncate=40)
    total = records.count()
    everything = (
        spark.read.format("sparklog")
        .option("subscribe", SOURCE_TOPICS)
        .option("kafka.isolation.level", "read_uncommitted")
        .load(str(KAFKA))
        .count()
    )
    print(f"   {total} committed records; {everything - total} of aborted or open transactions are not returned")

    say(2, f"Stream it into the sparklog topic '{TOPIC}', exactly once")
    first, second = stream_into_topic(spark), stream_into_topic(spark)
    written = spark.read.format("sparklog").load(str(ROOT / TOPIC)).count()
    print(f"   first run: {first} records; run again with the same checkpoint: {second}; in the topic: {written}")
    if not first == written == total or second:
        raise SystemExit(f"expected {total} records once, found {written}")

    say(3, "Follow the topic with a second query that counts")
    for partition, records_there in tail_and_count(spark, total):
        print(f"   partition {partition}: {records_there} records")
    spark.stop()

    say(4, "Read the same topic from the command line, without Spark")
    run_command("topics", "describe", TOPIC)
    run_command("consume", TOPIC, "--max-messages", "3", "--print-key", "--print-partition", "--print-offset")
    run_command("offsets", TOPIC)
    print(f"\nDone. The topic is in {ROOT.relative_to(REPOSITORY)}. To explore it, run")
    print(f"   {os.path.relpath(Path(sys.executable).parent, REPOSITORY)}/sparklog --help")


if __name__ == "__main__":
    main()
