"""The first offset at or after a time: Kafka's rule, compared with a simple model, and the number of requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.limits import Limits
from sparklog.log.read import time_lookup
from sparklog.log.read.time_lookup import first_records
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED, TimestampOffset
from sparklog.log.topic.root import RootView
from sparklog.log.topic.topic import Topic
from sparklog.testing.world import START_MS
from tests.log.rewriting import prepared, resolve, rewrite
from tests.support.counted_root import KINDS, CountedRoot
from tests.support.records import random_rows, small


@pytest.fixture(params=KINDS)
def counted_root(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path / "root")


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def timed(times: Sequence[int]) -> pa.Table:
    return pa.table({"value": [b"v%d" % i for i in range(len(times))], "timestamp": pa.array(times, pa.int64())})


def model(times: Sequence[int], target: int, start: int = 0, end: int | None = None) -> TimestampOffset | None:
    """Apply Kafka's rule record by record."""
    stop = len(times) if end is None else end
    found = next((offset for offset in range(start, stop) if times[offset] >= target), None)
    return None if found is None else TimestampOffset(found, times[found])


def test_a_time_lookup_returns_the_first_record_in_offset_order(counted_root: CountedRoot) -> None:
    times = [5, 7, 3, 9, 9, 4, 12, 1]
    topic = counted_root.topic(1)
    topic.append(timed(times[:4]), options=small(batch_bytes=100))
    topic.append(timed(times[4:]), options=small(batch_bytes=100))
    for target in range(-2, 15):
        assert topic.offset_for_timestamp(target) == {0: model(times, target)}


@given(
    batches=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), min_size=1, max_size=6),
    log_start=st.integers(0, 40),
    target=st.integers(0, 32),
    batch_bytes=st.integers(70, 200),
)
@settings(max_examples=80, deadline=None)
def test_lookups_agree_with_the_model(batches: list[list[int]], log_start: int, target: int, batch_bytes: int) -> None:
    counted_root = CountedRoot("memory", Path("unused"))
    topic = counted_root.topic(1)
    times = [time for batch in batches for time in batch]
    for batch in batches:
        topic.append(timed(batch), options=small(batch_bytes=batch_bytes))
    start = min(log_start, len(times))
    topic.delete_records({0: start})
    assert topic.offset_for_timestamp(target, 0) == {0: model(times, target, start)}


@pytest.fixture
def large(memory: CountedRoot) -> tuple[Topic, list[int]]:
    """Return slices of 3 MiB whose timestamps increase in jumps and sometimes decrease, followed by a small slice."""
    memory.store.limits = Limits(span_bytes=512 << 10)
    topic = memory.topic(1)
    times = [START_MS + (i // 50) * 1000 - (i % 7) * 300 for i in range(6000)]
    table = random_rows(6000, value_bytes=1000).set_column(2, "timestamp", pa.array(times, pa.int64()))
    topic.append(table, options=small(batch_bytes=20_000, buffer_bytes=3 << 20))
    topic.append(timed([times[-1] + 5000]))
    return topic, [*times, times[-1] + 5000]


def test_a_lookup_makes_at_most_two_range_requests(memory: CountedRoot, large: tuple[Topic, list[int]]) -> None:
    topic, times = large
    snapshot_version = topic.log.snapshot().version
    for target in (0, times[1], times[2999] + 1, times[3000], times[4321], max(times), max(times) + 1):
        memory.store.reset()
        answer = topic.offset_for_timestamp(target, 0)[0]
        assert answer == model(times, target)
        data_reads = [key for verb, key in memory.store.keys if "/append/" in key]
        assert len(data_reads) <= 2
        assert memory.store.bytes_read < 1_000_000
    assert topic.log.snapshot().version == snapshot_version


def test_a_log_start_inside_a_large_slice_is_respected(large: tuple[Topic, list[int]]) -> None:
    topic, times = large
    for start in (1, 1000, 2999, 4500):
        topic.delete_records({0: start})
        for target in (0, times[start] - 5000, times[start], times[start] + 1, times[4000]):
            assert topic.offset_for_timestamp(target, 0) == {0: model(times, target, start)}


def test_first_records_returns_offset_and_timestamp(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(2)
    topic.append(timed([5, 7, 3]).append_column("partition", pa.array([0, 0, 0], pa.int32())))
    topic.append(timed([9, 4]).append_column("partition", pa.array([0, 0], pa.int32())))
    times = [5, 7, 3, 9, 4]
    for offset, time in enumerate(times):
        found = first_records(topic.log.read_snapshot(), {0: offset, 1: 0}, newer=topic.log.read_snapshot)
        assert found == {0: TimestampOffset(offset, time), 1: None}
    assert first_records(topic.log.read_snapshot(), {0: 5, 1: 7}, newer=topic.log.read_snapshot) == {0: None, 1: None}
    topic.delete_records({0: 2})
    assert first_records(topic.log.read_snapshot(), {0: 0}, newer=topic.log.read_snapshot) == {0: TimestampOffset(2, 3)}
    with pytest.raises(NotFound, match="has partitions 0 to 1"):
        first_records(topic.log.read_snapshot(), {2: 0}, newer=topic.log.read_snapshot)


def test_first_records_makes_at_most_two_range_requests(memory: CountedRoot, large: tuple[Topic, list[int]]) -> None:
    topic, times = large
    snapshot = topic.log.read_snapshot()
    for offset in range(0, len(times), 97):
        memory.store.reset()
        assert first_records(snapshot, {0: offset}, newer=topic.log.read_snapshot) == {
            0: TimestampOffset(offset, times[offset])
        }
        assert len([key for verb, key in memory.store.keys if "/append/" in key]) <= 2


def test_append_time_is_looked_up_without_reading_records(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"message.timestamp.type": "LogAppendTime"})
    for i in range(3):
        memory.world.now_ms = START_MS + i * 1000
        topic.append(random_rows(10, first=i * 10))
    times = [START_MS + i // 10 * 1000 for i in range(30)]
    memory.store.reset()
    for target in (0, START_MS, START_MS + 1, START_MS + 1000, START_MS + 2000, START_MS + 2001):
        assert topic.offset_for_timestamp(target) == {0: model(times, target)}
    topic.delete_records({0: 15})
    assert topic.offset_for_timestamp(0) == {0: TimestampOffset(15, START_MS + 1000)}
    assert not [key for verb, key in memory.store.keys if "/append/" in key]


def test_a_time_lookup_ends_at_the_isolation_bound_and_counts_aborted_records(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(timed([10, 20]))
    prepared(memory, topic, timed([30, 40]), "app", 1)
    topic.append(timed([50, 60]))
    prepared(memory, topic, timed([70]), "app", 2)
    view = RootView(memory.root)
    view.refresh(["t"])
    assert view.offsets_for_timestamps("t", {0: 20}, READ_COMMITTED) == {0: TimestampOffset(1, 20)}
    assert view.offsets_for_timestamps("t", {0: 21}, READ_COMMITTED) == {0: None}
    assert view.offsets_for_timestamps("t", {0: 21}, READ_UNCOMMITTED) == {0: TimestampOffset(2, 30)}
    resolve(memory, topic, "app", 1, committed=False)
    view.refresh(["t"])
    assert view.offsets_for_timestamps("t", {0: 21}, READ_COMMITTED) == {0: TimestampOffset(2, 30)}
    assert view.offsets_for_timestamps("t", {0: 61}, READ_COMMITTED) == {0: None}
    assert view.offsets_for_timestamps("t", {0: 61}, READ_UNCOMMITTED) == {0: TimestampOffset(6, 70)}


def test_a_read_plans_again_if_a_file_was_rewritten(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(timed([1, 2, 3, 4]))
    view = RootView(memory.root)
    view.refresh(["t"])
    before = view.offsets_for_timestamps("t", {0: 3, 1: 3})
    rewrite(memory, topic, "append/00000000000000000001-merged.slices")
    assert view.offsets_for_timestamps("t", {0: 3, 1: 3}) == before
    assert any(answer is not None for answer in before.values())


@pytest.mark.usefixtures("records_in_files")
def test_lost_and_damaged_files_are_corrupt(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(timed([1, 2, 3, 4]), options=small())
    (key,) = memory.append_files()
    data = memory.inner.get(key)
    memory.inner.replace(key, data[:70] + bytes([data[70] ^ 1]) + data[71:])  # type: ignore[attr-defined]
    with pytest.raises(Corrupt) as caught:
        topic.offset_for_timestamp(2)
    assert (caught.value.file, caught.value.position, caught.value.offset) == (key, 0, 0)
    memory.inner.delete(key)
    with pytest.raises(Corrupt, match="does not exist"):
        topic.offset_for_timestamp(2)


def test_invalid_time_lookups_are_rejected(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(timed([1]))
    with pytest.raises(NotFound, match="partitions 0 to 1"):
        topic.offset_for_timestamp(0, 2)
    with pytest.raises(BadRequest, match="isolation"):
        topic.offset_for_timestamp(0, 0, "any")
    with pytest.raises(NotFound, match="offsets 0 to"):
        topic.record_at(0, 5)


@pytest.mark.usefixtures("records_in_files")
def test_record_at_returns_the_record_at_an_offset(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    topic.append(random_rows(100), options=small(batch_bytes=500))
    whole = topic.scan().to_table()
    for offset in (0, 37, 99):
        counted_root.store.reset()
        record = topic.record_at(0, offset)
        assert pa.Table.from_batches([record]) == whole.slice(offset, 1)
        assert sum("/append/" in key for verb, key in counted_root.store.keys) == 1


@pytest.mark.parametrize("small", [-1, time_lookup.SMALL_BYTES])
def test_first_records_do_not_depend_on_reading_together_or_separately(
    memory: CountedRoot, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(time_lookup, "MAX_SINGLE_LOOKUPS", 0)
    monkeypatch.setattr(time_lookup, "SMALL_BYTES", small)
    topic = memory.topic(3)
    for times in ([5, 7, 3], [9], [4, 12]):
        table = timed(times * 2)
        partitions = pa.array([0] * len(times) + [2] * len(times), pa.int32())
        topic.append(table.append_column("partition", partitions))
    topic.delete_records({2: 2})
    root = memory.root
    read = partial(first_records, RootView(root).snapshot(topic.name), newer=root.engine.log(topic.name).read_snapshot)
    times = [5, 7, 3, 9, 4, 12]
    for low in range(7):
        first = None if low == 6 else TimestampOffset(low, times[low])
        third = first if first is None or low > 2 else TimestampOffset(2, 3)
        assert read({0: low, 1: 0, 2: low}) == {0: first, 1: None, 2: third}
