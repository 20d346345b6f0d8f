"""Imported Kafka topics through Spark: both isolation levels, batches and streams, with an open transaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparklog
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.kafka.importing.run import import_log_dir
from sparklog.log.topic.root import Root
from sparklog.maintenance.work_items import InProcess, Settings
from tests.datasource.streams import finish, source
from tests.datasource.test_spark_kafka import ISOLATION, Record, expected, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXTURE = "transactions"
TOPICS = "txn-a,txn-b"


def imported(fixtures: Path, folder: Path) -> Root:
    root = sparklog.open(str(folder), create=True)
    import_log_dir(root, fixtures / FIXTURE / "data")
    return root


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_batch_reads_what_kafkas_consumer_reads(
    spark: SparkSession, fixtures: Path, tmp_path: Path, isolation: str
) -> None:
    root = imported(fixtures, tmp_path / "root")
    reader = spark.read.format("sparklog").option("includeHeaders", True).option("kafka.isolation.level", isolation)
    wanted = expected(fixtures / FIXTURE, isolation)
    topics = ",".join(sorted(root.topics()))
    assert records(reader.option("subscribe", topics).load(root.location)) == wanted
    # If a read is split into many parts, most markers are after the part with the records of their transaction.
    assert records(reader.option("subscribe", topics).option("minPartitions", 40).load(root.location)) == wanted
    assert not any(
        report.failures for report in compact_root(root, Settings(2**42), InProcess(), CompactOptions(roll=True))
    )
    assert records(reader.option("subscribe", topics).load(root.location)) == wanted


def test_a_stream_stops_at_the_last_stable_offset_and_skips_nothing(
    spark: SparkSession, fixtures: Path, tmp_path: Path
) -> None:
    root = imported(fixtures, tmp_path / "root")
    got: dict[str, list[Record]] = {}

    def run() -> None:
        def take(batch: object, number: int) -> None:
            for partition, found in records(batch).items():  # type: ignore[arg-type]
                got.setdefault(partition, []).extend(found)

        options = {"subscribe": TOPICS, "includeHeaders": True, "maxOffsetsPerTrigger": 100}
        stream = source(spark, root.location, **options).writeStream.foreachBatch(take)
        finish(stream.option("checkpointLocation", str(tmp_path / "checkpoint")))

    def of_topics(found: dict[str, list[Record]]) -> dict[str, list[Record]]:
        return {name: own for name, own in found.items() if name.rsplit("-", 1)[0] in TOPICS.split(",")}

    run()
    committed = of_topics(expected(fixtures / FIXTURE, "read_committed"))
    assert got == committed
    held = [name for name in TOPICS.split(",") if root.topic(name).log.state().kafka_open]
    assert held
    for name in held:
        assert root.topic(name).end_kafka_transactions(commit=True)
    run()
    every = of_topics(expected(fixtures / FIXTURE, "read_uncommitted"))
    for partition, found in got.items():
        assert found[: len(committed[partition])] == committed[partition]
        assert len({record[0] for record in found}) == len(found)
        assert set(found) <= set(every[partition])
        topic, number = partition.rsplit("-", 1)
        table = root.topic(topic).scan(partitions=[int(number)], columns=["offset"]).to_table()
        assert [record[0] for record in found] == table["offset"].to_pylist()
    assert sum(map(len, got.values())) > sum(map(len, committed.values()))
