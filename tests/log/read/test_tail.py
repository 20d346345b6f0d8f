"""Tails of a topic: their start positions, their records, and deleted records or topics."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from sparklog.errors import Conflict, NotFound
from sparklog.log.read.topic_scan import Tail
from sparklog.log.state.view import READ_COMMITTED
from sparklog.log.topic.root import Root, RootView, open_root
from sparklog.storage.memory import MemoryStore


@pytest.fixture
def root() -> Root:
    return open_root(MemoryStore(lambda: time.time_ns() // 1_000_000), create=True)


def tailed(root: Root, partition: int | None = None, warnings: list[str] | None = None) -> Tail:
    """Return an open tail of topic `t`."""
    tail = Tail(RootView(root), "t", READ_COMMITTED, partition, (warnings if warnings is not None else []).append)
    tail.open()
    return tail


def append(root: Root, *values: bytes, partition: int = 0) -> None:
    columns = {"value": pa.array(values, pa.binary()), "partition": pa.array([partition] * len(values), pa.int32())}
    root.topic("t").append(pa.table(columns))


def values(tail: Tail) -> list[bytes]:
    return [value for batch in tail.poll(("value",)) for value in batch.column(0).to_pylist()]


def test_tail_starts_at_the_log_start_or_the_log_end(root: Root) -> None:
    root.create_topic("t", partitions=2)
    append(root, b"a", b"b")
    first, last = tailed(root), tailed(root)
    first.start_at_log_start()
    last.start_at_end()
    assert (values(first), values(last)) == ([b"a", b"b"], [])
    assert first.at_end()
    append(root, b"c", partition=1)
    for tail in (first, last):
        tail.refresh()
        assert not tail.at_end()
        assert values(tail) == [b"c"]
        assert tail.at_end()


def test_tail_starts_at_an_offset_or_a_time(root: Root) -> None:
    root.create_topic("t")
    times = pa.array([10, 20, 30], pa.int64())
    root.topic("t").append(pa.table({"value": [b"a", b"b", b"c"], "timestamp": times}))
    tail = tailed(root)
    tail.start_at_offset(1)
    assert values(tail) == [b"b", b"c"]
    tail.start_at_time(21)
    assert values(tail) == [b"c"]
    tail.start_at_time(31)
    assert values(tail) == []
    with pytest.raises(NotFound, match="offset 4 of t-0 is out of range: expected 0 to 3"):
        tail.start_at_offset(4)


def test_tail_follows_a_single_partition(root: Root) -> None:
    root.create_topic("t", partitions=2)
    append(root, b"a", partition=0)
    append(root, b"b", partition=1)
    tail = tailed(root, partition=1)
    tail.start_at_log_start()
    assert values(tail) == [b"b"]
    with pytest.raises(NotFound, match="topic t has no partition 2; the last partition is 1"):
        tailed(root, partition=2)


def test_an_added_partition_is_read_from_its_start(root: Root) -> None:
    topic = root.create_topic("t")
    tail = tailed(root)
    tail.start_at_end()
    topic.alter(partitions=2)
    append(root, b"new", partition=1)
    tail.refresh()
    assert values(tail) == [b"new"]


def test_tail_skips_records_deleted_before_they_were_read(root: Root) -> None:
    topic = root.create_topic("t")
    append(root, b"a", b"b", b"c")
    warnings: list[str] = []
    tail = tailed(root, warnings=warnings)
    tail.start_at_log_start()
    topic.delete_records({0: 2})
    tail.refresh()
    assert values(tail) == [b"c"]
    assert warnings == ["offsets 0 to 1 of t-0 were deleted: skipping them"]


def test_a_tail_rejects_a_recreated_topic(root: Root) -> None:
    root.create_topic("t")
    tail = tailed(root)
    tail.start_at_end()
    root.delete_topic("t")
    root.create_topic("t")
    with pytest.raises(Conflict, match="deleted and recreated"):
        tail.refresh()
