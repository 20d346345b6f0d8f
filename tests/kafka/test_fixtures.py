"""Test that reads of Kafka directories in place match Kafka's consumer and admin client."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.kafka.in_place import KafkaView, is_internal
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange, TimestampOffset
from tests.fixture_data import expected_offsets, expected_records, partitions, split_partition
from tests.kafka.logs import read, without_epochs

ISOLATION = (READ_UNCOMMITTED, READ_COMMITTED)
FIXTURES = ("codecs", "timestamps", "segments", "preallocated-running", "transactions", "transactions-tv0")
LEGACY = (
    *("legacy/builder-v0", "legacy/builder-v1", "legacy/builder-v1-append-time", "legacy/builder-gaps"),
    *("legacy/builder-mixed", "legacy/broker-2.8.2"),
)
STAGES = [(name, "data") for name in (*FIXTURES, *LEGACY)]
# Cleaned and expired logs: offset gaps, empty segments and batches, markers without data, and moved log starts.
CLEANED = [
    ("compaction/plain", "after"),
    ("compaction/compressed", "after"),
    ("compaction/incremental", "pass-2"),
    ("compaction/log-append-time", "after"),
    ("compaction/old-formats", "before"),
    ("compaction/old-formats", "appended"),
    ("compaction/producer-state", "pass-1"),
    ("compaction/producer-state", "appended"),
    ("compaction/small-map", "pass-2"),
    ("compaction/tombstones-day", "pass-2"),
    ("compaction/transactions", "pass-2"),
    ("compaction/transactions", "pass-3"),
    ("compaction/transactions", "after"),
    ("compaction/transactions-tv0", "pass-3"),
    ("compaction-by-broker", "after"),
    ("retention/delete-records", "start-moved"),
    ("retention/ms", "after"),
    ("retention/ms-all", "after"),
    ("retention/high-watermark", "before"),
]
# Kafka searches only the first segment that may contain a result, and finds none: the segment is empty, so its
# modification time applies, or its late records are below the log start. The rule has a result: target -> (offset,
# timestamp).
KAFKA_HAS_NONE = {
    ("compaction/plain", "after", "compacted-0"): {0: (400, 1704153607357)},
    ("compaction/compressed", "after", "compacted-0"): {1704153601841: (295, 1704153605750)},
    ("compaction/producer-state", "pass-1", "compacted-0"): {0: (236, 1704153604427)},
    ("compaction/producer-state", "appended", "compacted-0"): {0: (236, 1704153604427)},
    ("retention/delete-records", "start-moved", "expiring-0"): {0: (132, 1704178802483)},
}
# As above, for every target: a cleaner that used the wall clock has removed all records of the first segment, or the
# first segment has format v0, which has no timestamps. In both cases, the modification time applies.
KAFKA_HAS_NONE_AT_ALL = {
    ("compaction-by-broker", "after", "clean-plain-0"),
    ("compaction/old-formats", "before", "compacted-0"),
    ("compaction/old-formats", "appended", "compacted-0"),
    ("legacy/builder-gaps", "data", "built-0"),
    ("legacy/builder-mixed", "data", "built-0"),
    ("legacy/broker-2.8.2", "data", "old-mixed-0"),
}


@pytest.mark.parametrize(("fixture", "stage"), STAGES + CLEANED)
def test_records_match_kafkas_consumer(fixtures: Path, fixture: str, stage: str) -> None:
    view = KafkaView(fixtures / fixture / stage)
    assert view.topics() == sorted({split_partition(name)[0] for name in partitions(fixtures / fixture / stage)})
    names = expected_offsets(fixtures / fixture, stage)
    assert names
    for name in names:
        topic, number = split_partition(name)
        for isolation in ISOLATION:
            expected = without_epochs(expected_records(fixtures / fixture, name, isolation, stage))
            assert read(view, topic, number, isolation) == expected, (name, isolation)


@pytest.mark.parametrize(("fixture", "stage"), STAGES + CLEANED)
def test_bounds_match_kafka(fixtures: Path, fixture: str, stage: str) -> None:
    view = KafkaView(fixtures / fixture / stage)
    expected = expected_offsets(fixtures / fixture, stage)
    assert expected
    for name, offsets in expected.items():
        topic, number = split_partition(name)
        bounds = view.bounds(topic)[number]
        assert bounds.log_start == offsets["logStartOffset"], name
        assert bounds.log_end == offsets["logEndOffset"], name
        assert bounds.last_stable == offsets["lastStableOffset"], name
        assert bounds.high_watermark == offsets["highWatermark"], name


@pytest.mark.parametrize(("fixture", "stage"), STAGES + CLEANED)
def test_offsets_for_timestamps_match_kafka(fixtures: Path, fixture: str, stage: str) -> None:
    view = KafkaView(fixtures / fixture / stage)
    asked = 0
    for name, offsets in expected_offsets(fixtures / fixture, stage).items():
        topic, number = split_partition(name)
        richer = KAFKA_HAS_NONE.get((fixture, stage, name), {})
        for question in offsets["offsetsForTimes"]:
            target = question["target"]
            for isolation in ISOLATION:
                answer = view.offsets_for_timestamps(topic, {number: target}, isolation)[number]
                kafka = question[isolation]
                expected = None if kafka["offset"] < 0 else TimestampOffset(kafka["offset"], kafka["timestamp"])
                if target in richer:
                    assert expected is None
                    expected = TimestampOffset(*richer[target])
                elif (fixture, stage, name) in KAFKA_HAS_NONE_AT_ALL and expected is None:
                    expected = by_the_rule(view, topic, number, isolation, target)
                assert answer == expected, (name, target, isolation)
                asked += 1
    assert asked


def by_the_rule(view: KafkaView, topic: str, number: int, isolation: str, target: int) -> TimestampOffset | None:
    """Return the result of the rule by brute force, for a partition without markers."""
    late = (record for record in read(view, topic, number, isolation) if record.timestamp >= target)
    found = next(late, None)
    return None if found is None else TimestampOffset(found.offset, found.timestamp)


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize(
    ("fixture", "name"),
    [
        ("segments", "seg-small-0"),
        ("transactions", "txn-b-0"),
        ("codecs", "codec-zstd-0"),
        ("timestamps", "time-append-0"),
    ],
)
def test_any_range_of_offsets_reads_the_same_records(fixtures: Path, fixture: str, name: str, isolation: str) -> None:
    topic, number = split_partition(name)
    view = KafkaView(fixtures / fixture / "data")
    everything = without_epochs(expected_records(fixtures / fixture, name, isolation))
    bounds = view.bounds(topic)[number]
    chance = random.Random(7)
    for _ in range(25):
        start, end = sorted(chance.choices(range(bounds.log_start, bounds.end(isolation) + 1), k=2))
        found = read(view, topic, number, isolation, start, end, batch_bytes=chance.choice((1, 1000, 1 << 20)))
        assert found == [record for record in everything if start <= record.offset < end], (start, end)


def test_partition_dir_is_a_topic_with_one_partition(fixtures: Path) -> None:
    view = KafkaView(fixtures / "transactions/data/txn-b-1")
    assert view.topics() == ["txn-b"]
    assert list(view.bounds("txn-b")) == [1]
    expected = without_epochs(expected_records(fixtures / "transactions", "txn-b-1", READ_COMMITTED))
    assert read(view, "txn-b", 1, READ_COMMITTED) == expected


def test_partition_dir_uses_log_start_of_parent_directory(fixtures: Path) -> None:
    folder = fixtures / "retention/delete-records/start-moved"
    whole, single = KafkaView(folder), KafkaView(folder / "expiring-0")
    assert whole.bounds("expiring") == single.bounds("expiring")
    assert whole.bounds("expiring")[0].log_start == 132


def test_internal_topics_are_listed_and_recognized(fixtures: Path) -> None:
    names = KafkaView(fixtures / "transactions/data").topics()
    assert [name for name in names if not is_internal(name)] == ["txn-a", "txn-b"]
    assert [name for name in names if is_internal(name)] == ["__consumer_offsets", "__transaction_state"]


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_alone_has_its_exact_type(fixtures: Path, column: str) -> None:
    view = KafkaView(fixtures / "codecs/data")
    whole = OffsetRange("codec-gzip", 1, 0, view.bounds("codec-gzip")[1].log_end)
    (part,) = view.plan([whole], READ_COMMITTED)
    table = pa.Table.from_batches(part.read([column]))
    everything = pa.Table.from_batches(part.read(COLUMNS))
    assert table.schema == pa.schema([RECORD_SCHEMA.field(column)])
    assert table.column(0).equals(everything.column(column))
    assert everything.schema == RECORD_SCHEMA


def test_columns_are_returned_in_requested_order(fixtures: Path) -> None:
    view = KafkaView(fixtures / "segments/data")
    (part,) = view.plan([OffsetRange("seg-one", 0, 0, 9)], READ_COMMITTED)
    (batch,) = part.read(["offset", "topic", "key"])
    assert batch.schema.names == ["offset", "topic", "key"]
    assert batch.column("offset").to_pylist() == list(range(9))


def test_batches_have_about_the_requested_size(fixtures: Path) -> None:
    view = KafkaView(fixtures / "codecs/data")
    end = view.bounds("codec-none")[0].log_end
    (part,) = view.plan([OffsetRange("codec-none", 0, 0, end)], READ_COMMITTED)
    whole = list(part.read(COLUMNS))
    small = list(part.read(COLUMNS, batch_bytes=20_000))
    assert len(whole) == 1
    assert len(small) >= 5
    assert pa.Table.from_batches(small).combine_chunks() == pa.Table.from_batches(whole).combine_chunks()


def test_estimated_bytes_add_up(fixtures: Path) -> None:
    view = KafkaView(fixtures / "segments/data")
    end = view.bounds("seg-small")[0].log_end
    stored = sum(file.stat().st_size for file in (fixtures / "segments/data/seg-small-0").glob("*.log"))
    ranges = [OffsetRange("seg-small", 0, *ends) for ends in ((0, end), (0, end // 2), (end // 2, end))]
    whole, first, second = (each.nbytes for each in view.stored(ranges))
    assert whole == stored
    assert first + second == whole
    assert 0.3 * whole < first < 0.7 * whole


def test_topic_ids_come_from_partition_metadata(fixtures: Path) -> None:
    view = KafkaView(fixtures / "segments/data")
    text = (fixtures / "segments/data/seg-small-1/partition.metadata").read_text()
    assert text.endswith(f"topic_id: {view.topic_id('seg-small')}")
    assert view.topic_id("seg-small") != view.topic_id("seg-one")
