"""Topics and Delta tables: `to-delta` and `from-delta` against Spark's Kafka connector, in one session, in turns.

    python benchmarks/bench_delta.py [--records 1000000] [--rounds 3]

Needs pyspark 4.2, Java, and a network once, for the jars. The broker is a real one on this machine. Each run is a
query with a trigger of what there is, from its start to its end. Tables are there before, as they are in use: Delta
reads the state of a table for each transaction, here with two tasks in place of 50. Into a table: records as they are,
JSON parsed into columns, and an upsert of JSON by key (a tenth as many keys as records), which the other side does by
foreachBatch and the same MERGE. Out of a table: its change data feed as JSON by key. The other side writes it to Kafka
as it comes: neither exactly once nor with the last change of a key and version alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from spark_session import Timing, benchmark_session, timed

from sparklog.jobs import delta, from_delta, to_delta
from sparklog.jobs.to_delta import rows
from tests.datasource.live_delta import delta_jars
from tests.datasource.live_kafka import connector_jars
from tests.kafka_broker import SERVER_JVM, Broker
from tests.kafka_tools import Missing

DDL = "id BIGINT, name STRING, amount DOUBLE, at BIGINT"
PAYLOADS = {
    "raw": ["--no-headers"],
    "json": ["--payload", "json", "--schema", DDL],
    "upsert": ["--payload", "json", "--schema", DDL, "--mode", "upsert", "--key-columns", "id"],
}
RAW = ["key", "value", "topic", "partition", "offset", "timestamp"]


@dataclass(frozen=True)
class Sides:
    """Two sides, `sparklog` and `kafka`: `run` writes rows by one of them, under a number; `expected`: so many rows."""

    run: Callable[[str, int], DataFrame]
    expected: int

    def timed(self, side: str, number: int) -> Timing:
        """Run one side, and count its rows when the time is taken."""
        written: list[DataFrame] = []
        timing = timed(lambda: written.append(self.run(side, number)))
        count = written[0].count()
        if count != self.expected:
            raise SystemExit(f"{side} wrote {count} rows in place of {self.expected}: nothing was measured")
        return timing


def main() -> None:
    """Fill both logs, then run each pair once to warm up and `--rounds` times in turns."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--records", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    chosen = arguments.parse_args()
    try:
        jars = ",".join(map(str, {jar.name: jar for jar in (*delta_jars(), *connector_jars())}.values()))
    except Missing as missing:
        raise SystemExit(f"{missing}: scripts/spark_version.sh makes an environment with that Spark") from None
    with tempfile.TemporaryDirectory(prefix="sparklog-delta-") as name:
        folder = Path(name)
        with Broker(folder / "broker", jvm=SERVER_JVM) as broker:
            small = {"spark.databricks.delta.snapshotPartitions": "2"}
            spark = benchmark_session(**{"spark.jars": jars, **delta.SETTINGS, **small})
            fill(spark, folder, broker.address, chosen.records)
            for payload in PAYLOADS:
                compare(into_table(spark, folder, broker.address, payload, chosen.records), payload, chosen)
            compare(out_of_table(spark, folder, broker.address, chosen.records), "changes", chosen)
            spark.stop()


def fill(spark: SparkSession, folder: Path, servers: str, count: int) -> None:
    """Write the same records to a topic of four partitions on each side."""
    events = spark.range(count).selectExpr(
        f"CAST(CAST(id % {count // 10} AS STRING) AS BINARY) AS key",
        f"CAST(to_json(named_struct('id', id % {count // 10}, 'name', 'customer ' || id, "
        "'amount', id / 7, 'at', 1700000000000 + id)) AS BINARY) AS value",
    )
    keyed = events.selectExpr("key", "value", "CAST(CAST(CAST(key AS STRING) AS BIGINT) % 4 AS INT) AS partition")
    log = keyed.write.format("sparklog").mode("append").option("topic", "orders").option("num.partitions", 4)
    log.save(str(folder / "log"))
    create_topic(spark, servers, "orders")
    sink = keyed.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "orders")
    sink.option("kafka.compression.type", "lz4").mode("append").save()


def create_topic(spark: SparkSession, servers: str, name: str, partitions: int = 4) -> None:
    """Create a topic on the broker, in the session's JVM: a run takes no time to start another."""
    java = spark.sparkContext._jvm.java.util
    admin = spark.sparkContext._jvm.org.apache.kafka.clients.admin
    properties, topics = java.Properties(), java.ArrayList()
    properties.setProperty("bootstrap.servers", servers)
    topics.add(admin.NewTopic(name, java.Optional.of(partitions), java.Optional.empty()))
    client = admin.AdminClient.create(properties)
    client.createTopics(topics).all().get()
    client.close()


def into_table(spark: SparkSession, folder: Path, servers: str, payload: str, count: int) -> Sides:
    """A topic into a Delta table: all of it, in one run."""

    def run(side: str, number: int) -> DataFrame:
        place = folder / f"{payload}-{side}-{number}"
        given = ["--root", str(folder / "log"), "--topic", "orders", "--table", str(place / "table")]
        given += ["--checkpoint", str(place / "checkpoint"), *PAYLOADS[payload]]
        chosen = to_delta.arguments(given)
        query = to_delta.start(spark, chosen) if side == "sparklog" else from_kafka(spark, servers, chosen)
        query.awaitTermination()
        return spark.read.format("delta").load(chosen.table)

    return Sides(run, count // 10 if payload == "upsert" else count)


def out_of_table(spark: SparkSession, folder: Path, servers: str, count: int) -> Sides:
    """The change data feed of a table, which begins with the rows it has, into a topic."""
    table = str(folder / "changes")
    name = delta.table_name(table)
    spark.sql(f"CREATE TABLE {name} ({DDL}) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    rows_of = "id", "'customer ' || id AS name", "id / 7D AS amount", "1700000000000 + id AS at"
    spark.range(count).selectExpr(*rows_of).write.format("delta").mode("append").save(table)

    def run(side: str, number: int) -> DataFrame:
        topic, checkpoint = f"changes-{side}-{number}", str(folder / f"changes-{side}-{number}")
        if side == "sparklog":
            given = ["--table", table, "--root", str(folder / "log"), "--topic", topic, "--checkpoint", checkpoint]
            chosen = from_delta.arguments([*given, "--key-columns", "id", "--num-partitions", "4"])
            from_delta.start(spark, chosen).awaitTermination()
            return spark.read.format("sparklog").load(f"{folder}/log/{topic}")
        create_topic(spark, servers, topic)
        changes = spark.readStream.format("delta").option("readChangeFeed", True).load(table)
        row = "to_json(struct(id, name, amount, at))"
        kept = changes.filter("_change_type <> 'update_preimage'").selectExpr(
            "CAST(id AS STRING) AS key", f"CASE WHEN _change_type <> 'delete' THEN {row} END AS value"
        )
        writer = kept.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
        writer = writer.option("kafka.compression.type", "lz4").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        return reader.load()

    return Sides(run, count)


def compare(sides: Sides, title: str, chosen: argparse.Namespace) -> None:
    """Run both sides once to warm up, then `--rounds` times in turns, and print the medians."""
    timings: dict[str, list[Timing]] = {"sparklog": [], "kafka": []}
    for number in range(chosen.rounds + 1):
        for side in sorted(timings, reverse=number % 2 == 1):
            timing = sides.timed(side, number)
            if number:
                timings[side].append(timing)
    for side, each in timings.items():
        wall, cpu = (statistics.median(getattr(timing, name) for timing in each) for name in ("wall", "cpu"))
        each_us = cpu / chosen.records * 1e6
        rate = chosen.records / wall / 1e6
        print(f"{title:<8}{side:<10}{wall:6.2f} s {rate:6.2f} M records/s {each_us:6.2f} us CPU", flush=True)


def from_kafka(spark: SparkSession, servers: str, chosen: to_delta.ToDelta) -> Any:
    """As the guides of Spark and Delta have it."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
    records = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 1_000_000).load()
    if chosen.mode == "append":
        parsed = records.selectExpr(f"from_json(CAST(value AS STRING), '{DDL}') AS row").select("row.*")
        table_rows = records.select(*RAW) if chosen.payload == "raw" else parsed
        to_delta.prepare(spark, chosen, table_rows.schema)
        writer = table_rows.writeStream.format("delta").option("path", chosen.table)
    else:
        made = rows(records, chosen.rows, chosen.topic)
        to_delta.prepare(spark, chosen, made.select("row.*").schema)

        def merge(batch: DataFrame, number: int) -> None:
            to_delta.upsert(chosen, batch, delta.query_id(batch), number)

        writer = made.writeStream.foreachBatch(merge)
    return writer.option("checkpointLocation", chosen.checkpoint).trigger(availableNow=True).start()


if __name__ == "__main__":
    main()
