"""A count from metadata equals the result of a scan, or reports that it is an upper bound."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import sparklog
from sparklog.log.read.counting import count_of
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED, Bounds
from sparklog.log.topic.topic import Topic
from tests.log.read.test_scan_imported import batch_of
from tests.log.rewriting import appended_by_hand
from tests.support.counted_root import CountedRoot

KAFKA = Path(__file__).parents[3] / "examples" / "data" / "kafka-log-dir"


def check(topic: Topic) -> bool:
    """Compare the count with a scan. Return True if the count was exact."""
    counted, table = topic.count(), topic.scan(columns=["timestamp"]).to_table()
    assert counted.records == table.num_rows if counted.is_exact else counted.records >= table.num_rows
    if table.num_rows:
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        assert counted.earliest_ms is not None
        assert counted.latest_ms is not None
        assert counted.earliest_ms <= min(times)
        assert max(times) <= counted.latest_ms
    return counted.is_exact


def test_deleted_and_aborted_records_are_not_counted(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    topic = root.create_topic("orders", configs={"retention.ms": -1})
    assert topic.count().records == 0
    assert topic.count().earliest_ms is None
    topic.append(pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"], "timestamp": [5, 7, 6]}))
    assert (topic.count().records, topic.count().earliest_ms, topic.count().latest_ms) == (3, 5, 7)
    topic.delete_records({0: 1})
    assert topic.count().records == 2
    assert check(topic)
    producer = sparklog.transactional(root, "id")
    transaction = producer.begin()
    transaction.append("orders", pa.table({"value": ["4", "5"]}))
    transaction.abort()
    assert topic.count().records == 2
    assert check(topic)


def test_count_of_a_compacted_topic_counts_the_remaining_records(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}
    topic = root.create_topic("ages", configs=configs)
    for age in range(3):
        topic.append(pa.table({"key": ["a", "b"], "value": [f"{age}", f"{age}"]}))
    sparklog.compact(root, roll=True)
    assert check(topic)
    assert topic.count().records < 6


def test_counts_of_imported_topics_report_if_they_are_not_exact(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    sparklog.import_kafka(root, KAFKA, configs={"retention.ms": -1})
    for name in root.topics():
        check(root.topic(name))


def test_a_count_is_not_exact_if_an_abort_marker_follows_the_range(tmp_path: Path) -> None:
    counted_root = CountedRoot("memory", tmp_path)
    topic = counted_root.topic()
    for flags in (SliceFlag.KAFKA_PRODUCERS, SliceFlag.KAFKA_PRODUCERS | SliceFlag.KAFKA_ABORTED, SliceFlag.NONE):
        appended_by_hand(counted_root, topic, [batch_of(0, [0, 1], 1)], int(flags))
    snapshot = topic.log.snapshot()
    for start, end, isolation, is_exact in (
        (0, 2, READ_COMMITTED, False),
        (0, 6, READ_COMMITTED, False),
        (4, 6, READ_COMMITTED, True),
        (0, 2, READ_UNCOMMITTED, True),
    ):
        counted = count_of(snapshot, {0: Bounds(start, 6, end, end)}, isolation)
        assert (counted.records, counted.is_exact) == (end - start, is_exact)
