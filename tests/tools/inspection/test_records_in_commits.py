"""Inspection, hot keys and the report have the same results for inline records and for records in files."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.log.journal.names import is_commit
from sparklog.log.topic.root import RootView
from sparklog.maintenance.work_items import Settings
from sparklog.testing.world import START_MS, World
from sparklog.tools.inspection.inspect import Inspected, inspect_topic
from sparklog.tools.report.gather import gather
from sparklog.tools.report.report_data import TopicFacts
from sparklog.transactions.producer import transactional

FORMS = {"in commits": 16384, "in files": 0}


def records(first: int, count: int) -> pa.Table:
    """Return records; every third has the hot key."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [b"hot" if number % 3 == 0 else b"key-%d" % number for number in numbers],
            "value": [b"value %d" % number for number in numbers],
            "timestamp": pa.array([START_MS + number * 1000 for number in numbers], pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def world() -> World:
    """A topic of each form, with appends, an open transaction and an aborted one."""
    world = World()
    root = world.root()
    for name, inline in FORMS.items():
        topic = name.replace(" ", "-")
        root.create_topic(topic, partitions=3, configs={"inline.records.bytes": inline})
        for number in range(6):
            root.topic(topic).append(records(30 * number, 30))
        aborted = transactional(root, f"aborted-{topic}").begin()
        aborted.append(topic, records(1000, 9))
        aborted.prepare()
        aborted.abort()
        open_one = transactional(root, f"open-{topic}").begin()
        open_one.append(topic, records(2000, 9))
        open_one.prepare()
    return world


def test_hot_keys_and_batches_include_inline_records(world: World) -> None:
    both: list[Inspected] = [inspect_topic(RootView(world.root()), name.replace(" ", "-")) for name in FORMS]
    commits, files = ([is_commit(name) for name in found.batches["file"].to_pylist()] for found in both)
    # The records of a transaction that was prepared without a writer are in a file.
    assert sum(commits) >= 6 * 3
    assert not any(files)
    for table, unlike in (
        ("keys", {"topic"}),
        ("batches", {"topic", "file", "position", "transaction"}),
        ("gaps", {"topic"}),
    ):
        one, other = (getattr(found, table) for found in both)
        columns = [name for name in one.column_names if name not in unlike]
        assert [name for name in columns if one[name] != other[name]] == [], table
    (hottest,) = both[0].keys.sort_by([("records", "descending")]).slice(0, 1).to_pylist()
    assert (hottest["key"], hottest["records"]) == (b"hot", 60 + 6)


def test_report_includes_inline_records(world: World) -> None:
    report = gather(RootView(world.root()), Settings(world.now_ms))

    def facts(name: str) -> TopicFacts:
        (topic,) = [topic for topic in report.topics if topic.topic == name.replace(" ", "-")]
        return topic

    one, other = map(facts, FORMS)
    assert one.records == other.records == 6 * 30 + 18
    assert (one.bytes, one.oldest_ms, one.newest_ms) == (other.bytes, other.oldest_ms, other.newest_ms)
    assert one.bytes_by_hour == other.bytes_by_hour
    assert sum(one.bytes_by_hour) > 0
    assert one.unreferenced_bytes == other.unreferenced_bytes == 0
    assert one.partitions == other.partitions
