"""Slices that appends never write: gaps, control batches, changed timestamps, sealed segments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import Corrupt, NotFound
from sparklog.format.decode import RecordColumns
from sparklog.format.record_batch import CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, BatchHeader
from sparklog.limits import Limits
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import TimestampOffset
from sparklog.testing.world import START_MS
from tests.format.plain_encoder import encode_batch
from tests.log.rewriting import appended_by_hand, sealed
from tests.support.counted_root import CountedRoot
from tests.support.records import random_rows, small


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def batch_of(base: int, deltas: list[int], last_delta: int, *, attributes: int = 0, max_ts: int | None = None) -> bytes:
    """Return a batch with records at these offsets, with timestamps of 1000 + offset and the offset in the value."""
    offset = np.asarray(deltas, np.int64) + base
    columns = RecordColumns(
        offset, offset + 1000, pa.array([b"k"] * len(deltas)), pa.array([b"v%d" % each for each in offset.tolist()])
    )
    largest = int(columns.timestamp.max()) if max_ts is None else max_ts
    return encode_batch(
        columns,
        BatchHeader(base, last_delta, len(deltas), int(columns.timestamp[0]), largest, attributes),
    )


def test_gaps_within_and_between_batches(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(pa.table({"value": [b"x"] * 5, "timestamp": pa.array([1] * 5, pa.int64())}))
    appended_by_hand(memory, topic, [batch_of(2, [0, 3], 5), batch_of(10, [1, 2, 6], 9), batch_of(30, [0], 0)])
    kept = [7, 10, 16, 17, 21, 35]
    assert topic.log.state().log_end.tolist() == [36]
    assert topic.scan(columns=["offset"]).to_table()["offset"].to_pylist() == [0, 1, 2, 3, 4, *kept]
    for start in range(5, 36):
        read = topic.scan(start=start, columns=["offset", "value"]).to_table().to_pylist()
        assert [row["offset"] for row in read] == [offset for offset in kept if offset >= start]
        assert [row["value"] for row in read] == [b"v%d" % (offset - 5) for offset in kept if offset >= start]
        assert topic.scan(start=start, end=start + 1).to_table().num_rows == (start in kept)
        if start not in kept:
            with pytest.raises(NotFound, match=f"offset {start} of .* does not contain a record"):
                topic.record_at(0, start)
    for target in range(1000, 1032):
        expected = next((TimestampOffset(o, 1000 + o - 5) for o in kept if 1000 + o - 5 >= target), None)
        assert topic.offset_for_timestamp(target) == {0: expected}


def test_a_log_start_in_a_gap(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    appended_by_hand(memory, topic, [batch_of(0, [0, 9], 9), batch_of(10, [5], 9)])
    topic.delete_records({0: 4})
    assert topic.scan(columns=["offset"]).to_table()["offset"].to_pylist() == [9, 15]
    assert topic.offset_for_timestamp(0) == {0: TimestampOffset(9, 1009)}


def test_control_batches_are_not_records(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    marker = batch_of(2, [0], 0, attributes=CONTROL_BIT | TRANSACTIONAL_BIT)
    appended_by_hand(memory, topic, [batch_of(0, [0, 1], 1), marker, batch_of(3, [0], 0)])
    assert topic.scan().to_table()["offset"].to_pylist() == [0, 1, 3]
    assert topic.scan(columns=["offset"]).to_table()["offset"].to_pylist() == [0, 1, 3]
    # Kafka includes markers in a lookup.
    assert topic.offset_for_timestamp(1002) == {0: TimestampOffset(2, 1002)}


def test_append_times_that_are_written_into_batches_are_returned(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"message.timestamp.type": "LogAppendTime"})
    flags = SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES
    patched = [
        batch_of(0, [0, 1], 1, attributes=LOG_APPEND_TIME_BIT, max_ts=5000),
        batch_of(2, [0], 0, attributes=LOG_APPEND_TIME_BIT, max_ts=6000),
    ]
    appended_by_hand(memory, topic, patched, int(flags))
    topic.append(pa.table({"value": ["new"]}))
    read = topic.scan(columns=["timestamp", "timestampType"]).to_table()
    assert read["timestamp"].cast(pa.int64()).to_pylist() == [5000, 5000, 6000, START_MS]
    assert read["timestampType"].to_pylist() == [1] * 4
    assert topic.offset_for_timestamp(5001) == {0: TimestampOffset(2, 6000)}


def test_append_times_of_many_small_slices_are_kept_apart(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"message.timestamp.type": "LogAppendTime"})
    expected = []
    for i in range(5):
        memory.world.now_ms = START_MS + 10 * i
        topic.append(random_rows(3, first=i * 3))
        expected += [memory.world.now_ms] * 3
    (batch,) = topic.scan(columns=["timestamp"])
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == expected


def test_sealed_segments_are_read_in_place(memory: CountedRoot) -> None:
    memory.store.limits = Limits(span_bytes=200_000)
    topic = memory.topic(1)
    for first in range(0, 2000, 500):
        topic.append(random_rows(500, first=first, value_bytes=1000), options=small(batch_bytes=20_000))
    expected = topic.scan().to_table()
    scan = topic.scan(start=700, end=1900)
    key = sealed(memory, topic)
    for old in memory.append_files():
        memory.inner.delete(old)
    assert topic.scan().to_table() == expected
    assert scan.to_table() == expected.slice(700, 1200)
    for offset in (0, 777, 1999):
        assert topic.record_at(0, offset)["value"].to_pylist() == [expected["value"][offset].as_py()]
        target = expected["timestamp"].cast(pa.int64())[offset].as_py()
        assert topic.offset_for_timestamp(target) == {0: TimestampOffset(offset, target)}
    data = bytearray(memory.inner.get(key))
    data[len(data) // 2] ^= 1
    memory.inner.replace(key, bytes(data))  # type: ignore[attr-defined]
    with pytest.raises(Corrupt) as caught:
        topic.scan().to_table()
    assert caught.value.file == key
    assert caught.value.offset is not None


def test_decreasing_offsets_are_corrupt(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    appended_by_hand(memory, topic, [batch_of(3, [0], 2), batch_of(0, [0], 2), batch_of(6, [0], 3)])
    with pytest.raises(Corrupt, match="do not match the slice") as caught:
        topic.scan().to_table()
    assert caught.value.offset == 0
