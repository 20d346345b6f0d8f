"""Kafka directories that Spark reads in place have the same records as Kafka's consumer returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.datasource.schema import MAX_MS, MIN_MS
from tests.datasource.standard_error import StandardError
from tests.datasource.streams import WAIT_SECONDS, copy, failure, needs_read_limits, source
from tests.fixture_data import expected_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Record = tuple[Any, ...]
FIXTURES = ("codecs", "timestamps", "segments", "preallocated-running", "transactions", "transactions-tv0")
ISOLATION = ("read_committed", "read_uncommitted")


def records(df: DataFrame) -> dict[str, list[Record]]:
    """Return the records of each partition in offset order, with timestamps in microseconds (Python's datetime ends in
    the year 9999).
    """
    rows = df.selectExpr(
        "topic",
        "partition",
        "offset",
        "unix_micros(timestamp) AS micros",
        "timestampType",
        "key",
        "value",
        "headers",
    ).toArrow()
    found: dict[str, list[Record]] = {}
    for row in rows.to_pylist():
        headers = tuple((h["key"], h["value"]) for h in row["headers"] or ())
        record = (row["offset"], row["micros"], row["timestampType"], row["key"], row["value"], headers)
        found.setdefault(f"{row['topic']}-{row['partition']}", []).append(record)
    for partition in found.values():
        partition.sort(key=lambda record: record[0])
    return found


def expected(fixture: Path, isolation: str) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for folder in sorted(path.name for path in (fixture / "data").iterdir() if path.is_dir()):
        if folder.startswith("__"):
            continue
        lines = [
            (
                record.offset,
                min(max(record.timestamp, MIN_MS), MAX_MS) * 1000,
                record.timestamp_type,
                record.key,
                record.value,
                record.headers,
            )
            for record in expected_records(fixture, folder, isolation)
        ]
        if lines:
            found[folder] = lines
    return found


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("name", FIXTURES)
def test_a_log_dir_reads_as_kafka_reads_it(spark: SparkSession, fixtures: Path, name: str, isolation: str) -> None:
    reader = spark.read.format("sparklog").option("includeHeaders", True).option("kafka.isolation.level", isolation)
    found = records(reader.load(f"{fixtures}/{name}/data"))
    wanted = expected(fixtures / name, isolation)
    assert found.keys() == wanted.keys()
    for partition, lines in wanted.items():
        assert found[partition] == lines, partition


def test_committed_is_the_default_and_leaves_aborted_records_out(spark: SparkSession, fixtures: Path) -> None:
    path = f"{fixtures}/transactions/data"
    default = spark.read.format("sparklog").load(path).count()
    everything = spark.read.format("sparklog").option("kafka.isolation.level", "read_uncommitted").load(path).count()
    assert default == sum(map(len, expected(fixtures / "transactions", "read_committed").values()))
    assert everything == sum(map(len, expected(fixtures / "transactions", "read_uncommitted").values()))
    assert 0 < default < everything


def test_one_partition_folder_and_internal_topics(spark: SparkSession, fixtures: Path) -> None:
    data = fixtures / "transactions" / "data"
    one = spark.read.format("sparklog").load(f"{data}/txn-a-1")
    assert {(row.topic, row.partition) for row in one.select("topic", "partition").distinct().collect()} == {
        ("txn-a", 1)
    }
    internal = spark.read.format("sparklog").option("subscribe", "__consumer_offsets").load(str(data))
    assert internal.count() > 0


@needs_read_limits
def test_a_stream_over_a_log_dir_reads_the_same_once(spark: SparkSession, fixtures: Path, tmp_path: Path) -> None:
    path = str(fixtures / "segments" / "data")
    stream = spark.readStream.format("sparklog").option("startingOffsets", "earliest").option("includeHeaders", True)
    query = (
        stream.option("maxOffsetsPerTrigger", 400)
        .load(path)
        .writeStream.format("memory")
        .queryName("segments_stream")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_SECONDS)
    assert records(spark.table("segments_stream")) == expected(fixtures / "segments", "read_committed")
    assert len(query.recentProgress) > 1


# -- damage


def undamaged(fixtures: Path) -> list[int]:
    return [record.offset for record in expected_records(fixtures / "damaged/good", "damaged-0", "read_committed")]


def test_a_batch_at_damage(spark: SparkSession, fixtures: Path, standard_error: StandardError) -> None:
    path = str(fixtures / "damaged/bit-flipped/data")

    def read(policy: str, **options: Any) -> list[int]:
        df = spark.read.format("sparklog").options(corruptRecords=policy, **options).load(path)
        return sorted(row.offset for row in df.select("offset").collect())

    good = undamaged(fixtures)
    with pytest.raises(Exception, match=r"SPARKLOG_CORRUPT.*position 3395, offset 226"):
        read("fail")
    assert read("skip", minPartitions=4) == [offset for offset in good if not 226 <= offset < 232]
    assert standard_error.shows("skipped corrupt offsets 226 to 231 of damaged-0: the batch's CRC-32C does not match")
    assert read("truncate") == [offset for offset in good if offset < 226]
    assert standard_error.shows("skipped corrupt offsets 226 and later of damaged-0")


@needs_read_limits
def test_a_stream_continues_after_skipped_damage(
    spark: SparkSession, fixtures: Path, tmp_path: Path, standard_error: StandardError
) -> None:
    path = fixtures / "damaged/bit-flipped/data"
    failed = failure(copy(source(spark, path), tmp_path / "none", tmp_path / "c0"))
    assert "SPARKLOG_CORRUPT" in failed
    skipping = source(spark, path, corruptRecords="skip", maxOffsetsPerTrigger=100)
    query = (
        skipping.writeStream.format("memory")
        .queryName("damaged_stream")
        .option("checkpointLocation", str(tmp_path / "c1"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_SECONDS)
    found = sorted(row.offset for row in spark.table("damaged_stream").collect())
    assert found == [offset for offset in undamaged(fixtures) if not 226 <= offset < 232]
    assert standard_error.shows("skipped corrupt offsets 226 to 231 of damaged-0")
