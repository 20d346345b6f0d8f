"""Merging: the output has the same records in fewer slices. Also tests files that must not be merged, and concurrent
changes.
"""

from __future__ import annotations

import pickle
import random
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.compaction import merge_work
from sparklog.compaction.merge_plan import plan_merges
from sparklog.compaction.merge_work import MergeWork
from sparklog.errors import Conflict, Corrupt, Unavailable
from sparklog.format.append_file import WrittenSlice, decode_footer
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.encode import EncodeOptions, encode
from sparklog.format.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeaders
from sparklog.limits import DEFAULTS, Limits
from sparklog.log.journal.names import append_path, file_key
from sparklog.log.read.planned_slices import PlannedSlices
from sparklog.log.state.append_offsets import AppendIntent
from sparklog.log.state.commit_intents import Draft, Nothing
from sparklog.log.state.commit_log import CommitResult
from sparklog.log.state.invariants import check_state
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_output import AppendOutput
from sparklog.maintenance.work_items import Settings, WorkResult
from sparklog.storage.store import Store
from sparklog.testing.world import START_MS
from tests.log.read.test_scan_imported import batch_of
from tests.log.rewriting import appended_by_hand, prepared, resolve, sealed
from tests.support.compaction import merge_tier
from tests.support.counted_root import KINDS, CountedRoot
from tests.support.records import random_rows, small
from tests.support.seeds import examples


@pytest.fixture(params=KINDS)
def counted_root(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path / "root")


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def plan(counted_root: CountedRoot, topic: Topic) -> list[MergeWork]:
    return plan_merges(counted_root.store, topic.log.snapshot(), Settings(START_MS), env=counted_root.world.env())


def publish(topic: Topic, work: MergeWork, done: WorkResult) -> CommitResult:
    outcome = topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites, done.files))
    check_state(*state(topic))
    return outcome


def state(topic: Topic) -> tuple[TopicState, SliceTable]:
    snapshot = topic.log.snapshot()
    return snapshot.state, snapshot.slices


def merge(counted_root: CountedRoot, topic: Topic) -> list[MergeWork]:
    """Plan, run and commit the merges."""
    works = plan(counted_root, topic)
    for work in works:
        work = replace(work, env=counted_root.world.env())
        assert not publish(topic, work, work.run()).dropped
    return works


def whole(topic: Topic, isolation: str = READ_UNCOMMITTED) -> pa.Table:
    read = topic.scan(isolation_level=isolation).to_table()
    return read.sort_by([("partition", "ascending"), ("offset", "ascending")])


def layout(topic: Topic) -> list[tuple[int, int, int, int]]:
    """Return the partition, base, end and tier of each slice."""
    found = topic.log.snapshot().slices.all()
    tiers = [merge_tier(flags) for flags in found.flags.tolist()]
    return list(zip(found.partition.tolist(), found.base.tolist(), found.end.tolist(), tiers, strict=True))


def batches(counted_root: CountedRoot, topic: Topic, row: int) -> BatchHeaders:
    """Return the headers of the batches of a slice, and verify their bytes."""
    found = topic.log.snapshot().slices.all()
    data = counted_root.inner.get(file_key(topic.name, found.path(row)), int(found.position[row]), int(found.size[row]))
    headers = scan_headers(data)
    assert not len(crc_failures(data, headers))
    return headers


# -- results


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_many_small_slices_become_one_per_partition(counted_root: CountedRoot, codec: str) -> None:
    topic = counted_root.topic(4)
    for i in range(20):
        topic.append(random_rows(120, first=i * 120, seed=i), options=small(codec, batch_bytes=900, file_bytes=4000))
    expected, before = whole(topic), topic.log.snapshot().slices.all()
    (work,) = merge(counted_root, topic)
    after = topic.log.snapshot().slices.all()
    assert layout(topic) == [(p, 0, int(topic.log.state().log_end[p]), 1) for p in range(4)]
    assert whole(topic) == expected
    assert work.partitions == (0, 1, 2, 3)
    assert work.nbytes == int(before.size.sum()) == int(after.size.sum())
    assert after.records.sum() == before.records.sum() == 20 * 120
    # The previous files are no longer referenced.
    assert len(topic.log.snapshot().slices.paths()) == 1
    for p in range(4):
        old = before[before.partition_rows(p)]
        assert (after.min_ts[p], after.max_ts[p]) == (old.min_ts.min(), old.max_ts.max())
        headers = batches(counted_root, topic, p)
        assert len(headers) >= 20
        assert headers.base_offset[0] == 0
        assert (headers.base_offset[1:] == headers.next_offset[:-1]).all()
        assert set(headers.leader_epoch.tolist()) == {topic.log.state().leader_epoch}
    assert plan(counted_root, topic) == []


def test_the_footer_agrees_with_the_commit(memory: CountedRoot) -> None:
    topic = memory.topic(3)
    for i in range(5):
        topic.append(random_rows(200, first=i * 200, seed=i))
    merge(memory, topic)
    found = topic.log.snapshot().slices.all()
    key = file_key("t", found.path(0))
    data = memory.inner.get(key)
    footer = decode_footer(data[-int(found.footer_length[0]) :], file_size=len(data))
    assert [entry.position for entry in footer.slices] == found.position.tolist()
    for entry, row in zip(footer.slices, range(3), strict=True):
        assert (entry.partition, entry.nbytes, entry.crc) == (row, found.size[row], found.crc[row])
        assert (entry.records, entry.flags) == (found.records[row], found.flags[row])
        assert (entry.min_ts, entry.max_ts) == (found.min_ts[row], found.max_ts[row])


def test_append_times_are_patched_in(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(2, {"message.timestamp.type": "LogAppendTime"})
    start = counted_root.world.now_ms
    for i in range(6):
        counted_root.world.now_ms = start + 1000 * i
        topic.append(random_rows(40, first=i * 40, seed=i), options=small("zstd", batch_bytes=400))
    # Half of the slices have record timestamps, so a merged slice contains both kinds.
    topic.alter(configs={"message.timestamp.type": "CreateTime"})
    for i in range(2):
        topic.append(random_rows(40, first=i * 40, seed=40 + i))
    expected = whole(topic)
    targets = [start, start + 1500, start + 3000, start + 5000, start + 5001]
    answers = [topic.offset_for_timestamp(target, isolation_level=READ_UNCOMMITTED) for target in targets]
    merge(counted_root, topic)
    assert whole(topic) == expected
    assert expected["timestampType"].to_pylist().count(1) == 240
    assert [topic.offset_for_timestamp(target, isolation_level=READ_UNCOMMITTED) for target in targets] == answers
    found = topic.log.snapshot().slices.all()
    both = int(SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES)
    assert [flags & both for flags in found.flags.tolist()] == [both, both]
    assert found.append_time.tolist() == [-1, -1]
    times = {batches(counted_root, topic, row).max_timestamp[0] for row in range(2)}
    assert times <= {start + 1000 * i for i in range(6)}


@dataclass(frozen=True)
class InEpoch(AppendIntent):
    """Appends with another leader epoch of the log, as after an import."""

    epoch: int = 0

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        found = AppendIntent.draft(self, topic, state, origin, table)
        assert isinstance(found, Draft)
        return replace(found, leader_epoch=self.epoch)


def test_each_batch_keeps_its_leader_epoch(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    epochs = [0, 0, 3, 3, 7, 12]
    for i, epoch in enumerate(epochs):
        target = topic.log.append_target()
        output = AppendOutput(memory.inner, "t", append_path(target.read_version, f"by-hand-{i}"))
        table = random_rows(10, first=i * 10)
        made = encode(
            table["key"], table["value"], None, np.arange(10, dtype=np.int64), options=EncodeOptions(codec="none")
        )
        output.write(*made.buffers)
        output.end_slice(
            WrittenSlice(
                partition=0, nbytes=made.nbytes, offsets=10, records=10, min_ts=0, max_ts=9, crc=made.crc, flags=0
            )
        )
        topic.log.commit(InEpoch(target.topic_id, (output.close(),), now_ms=0, epoch=epoch))
    expected = whole(topic)
    merge(memory, topic)
    assert batches(memory, topic, 0).leader_epoch.tolist() == epochs
    assert topic.log.snapshot().slices.all().leader_epoch.tolist() == [-1]
    assert whole(topic) == expected


def test_gaps_markers_and_flags_are_carried_over(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    marker = batch_of(2, [0], 0, attributes=CONTROL_BIT | TRANSACTIONAL_BIT)
    appended_by_hand(memory, topic, [batch_of(1, [0], 0), marker, batch_of(30, [0, 4], 9)], SliceFlag.KAFKA_PRODUCERS)
    topic.append(random_rows(10, keys=None))
    appended_by_hand(memory, topic, [batch_of(5, [0, 3], 5)])
    expected = whole(topic)
    merge(memory, topic)
    assert whole(topic) == expected
    found = topic.log.snapshot().slices.all()
    flags = int(found.flags[0])
    assert flags & SliceFlag.KAFKA_PRODUCERS
    assert flags & SliceFlag.HAS_NULL_KEYS
    assert not flags & SliceFlag.TIMES_IN_BATCHES
    assert (found.base[0], found.end[0], found.records[0]) == (0, topic.log.state().log_end[0], 3 + 10 + 2)
    assert batches(memory, topic, 0).is_control.sum() == 1
    for start in range(0, int(found.end[0]), 7):
        read = topic.scan(start=start, isolation_level=READ_UNCOMMITTED).to_table()
        assert read == expected.filter(pa.compute.greater_equal(expected["offset"], start))


def test_slices_without_timestamps_keep_their_write_time(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for _ in range(2):
        target = topic.log.append_target()
        data = batch_of(0, [0], 0, max_ts=-1)
        output = AppendOutput(memory.inner, "t", append_path(target.read_version, memory.world.env().new_id()))
        output.write(data)
        output.end_slice(
            WrittenSlice(
                partition=0, nbytes=len(data), offsets=1, records=1, min_ts=-1, max_ts=77, crc=merge_crc(data), flags=0
            )
        )
        topic.log.commit_append([output.close()], target)
    merge(memory, topic)
    found = topic.log.snapshot().slices.all()
    assert (found.min_ts.tolist(), found.max_ts.tolist(), found.records.tolist()) == ([-1], [77], [2])


def merge_crc(data: bytes) -> int:
    from crc32c import crc32c

    return int(crc32c(data))


def test_large_slices_get_files_of_their_own(counted_root: CountedRoot) -> None:
    counted_root.store.limits = Limits(own_file_bytes=20_000)
    topic = counted_root.topic(3)
    for i in range(6):
        table = random_rows(60, first=i * 60, value_bytes=100)
        partition = pa.array([0 if j % 10 else 1 + j % 2 for j in range(60)], pa.int32())
        topic.append(table.append_column("partition", partition))
    expected = whole(topic)
    merge(counted_root, topic)
    found = topic.log.snapshot().slices.all()
    paths = [found.path(row) for row in range(len(found))]
    assert found.size[0] >= 20_000 > found.size[1:].max()
    assert (len(found), len(set(paths)), paths.count(paths[0])) == (2, 2, 1)
    assert whole(topic) == expected


@pytest.mark.parametrize(("load", "request_bytes"), [(1, 1), (3_000, 1_000), (40_000, 300), (1 << 20, 1 << 20)])
def test_loads_and_windows_of_any_size_give_the_same(memory: CountedRoot, load: int, request_bytes: int) -> None:
    topic = memory.topic(3, {"message.timestamp.type": "LogAppendTime"})
    for i in range(7):
        memory.world.now_ms = START_MS + i
        topic.append(random_rows(90, first=i * 90, seed=i), options=small(batch_bytes=700))
    expected = whole(topic)
    (work,) = plan(memory, topic)
    memory.store.limits = Limits(load_bytes=load, request_bytes=request_bytes, own_file_bytes=9_000, span_bytes=900)
    memory.store.reset()
    publish(topic, work, work.run())
    memory.store.limits = DEFAULTS
    assert len(layout(topic)) == 3
    assert whole(topic) == expected


def test_adjacent_slices_are_one_request(memory: CountedRoot) -> None:
    topic = memory.topic(16)
    for i in range(9):
        topic.append(random_rows(800, keys=1000, first=i * 800, seed=i))
    (work,) = plan(memory, topic)
    memory.store.reset()
    done = work.run()
    memory.store.expect_at_most(get_append=9, writer=1)
    assert [len(file) for file in done.files] == [16]
    commit = publish(topic, work, done).commit
    assert commit is not None
    # The commit lists each file once, regardless of the number of partitions with slices in the file.
    assert [len(item.base) for item in commit.remove] == [16] * 9


class Distant:
    """A store that reports parallel reads. `together` small reads must be in flight before any response is returned."""

    parallel_reads = 8

    def __init__(self, inner: Store, together: int, small: int) -> None:
        self.inner = inner
        self.limits = inner.limits
        self.small = small
        self.arrived = threading.Barrier(together, timeout=300)
        self.lock = threading.Lock()
        self.under_way: list[int] = []
        self.seen: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, key: str, start: int, length: int) -> bytes:
        with self.lock:
            self.under_way.append(length)
            self.seen.append(sorted(self.under_way))
        if length <= self.small:
            self.arrived.wait()
        data = self.inner.get(key, start, length)
        with self.lock:
            self.under_way.remove(length)
        return data

    def read(self, key: str, start: int, length: int) -> memoryview:
        return memoryview(self.get(key, start, length))


def test_small_reads_are_concurrent_on_remote_stores(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for i in range(8):
        topic.append(random_rows(10 if i % 4 else 60, first=i * 100, seed=i), options=small(batch_bytes=400))
    expected = whole(topic)
    (work,) = plan(memory, topic)
    sizes = sorted(work.sources[0].size.tolist())
    memory.store.limits = Limits(request_bytes=16 * sizes[5])
    distant = Distant(memory.inner, together=6, small=sizes[5])
    work = replace(work, store=distant)  # type: ignore[arg-type]
    publish(topic, work, work.run())
    assert whole(topic) == expected
    assert distant.seen[5] == sizes[:6]
    # Larger reads are sequential, so that the memory is not larger than for other stores.
    assert sorted(distant.seen[6:]) == [[size] for size in sizes[6:]]


def test_a_merged_slice_is_read_from_an_index_position(memory: CountedRoot) -> None:
    memory.store.limits = Limits(span_bytes=512 << 10)
    topic = memory.topic(1)
    for i in range(5):
        topic.append(random_rows(600, first=i * 600, value_bytes=1000, seed=i), options=small(batch_bytes=20_000))
    expected = whole(topic)
    merge(memory, topic)
    assert len(layout(topic)) == 1
    times = expected["timestamp"].cast(pa.int64()).to_pylist()
    for offset in (0, 599, 1700, 2999):
        memory.store.reset()
        assert pa.Table.from_batches([topic.record_at(0, offset)]) == expected.slice(offset, 1)
        found = topic.offset_for_timestamp(times[offset])[0]
        assert found is not None
        assert (found.offset, found.timestamp) == (offset, times[offset])
        assert memory.store.bytes_read < 1_300_000


def test_work_can_be_pickled_and_run_twice(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    for i in range(4):
        topic.append(random_rows(30, first=i * 30, seed=i))
    (work,) = plan_merges(memory.inner, topic.log.snapshot(), Settings(START_MS))
    first, second = work.run(), work.run()
    assert first.rewrites == second.rewrites
    assert first.files[0].path != second.files[0].path
    assert (first.files[0].crc, first.files[0].base) == (second.files[0].crc, second.files[0].base)
    local = replace(work, store=None, env=merge_work.SYSTEM)  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(local))
    assert [source.inputs() for source in copy.sources] == [source.inputs() for source in work.sources]
    assert (copy.title, copy.op) == ("merge t-0 to 1", "merge")
    expected = whole(topic)
    publish(topic, work, first)
    # The inputs of the other attempt were replaced.
    assert len(publish(topic, work, second).dropped) == 2
    assert whole(topic) == expected


def test_progress_and_reports(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    for i in range(4):
        topic.append(random_rows(30, first=i * 30, seed=i))
    (work,) = plan(memory, topic)
    told: list[tuple[int, int]] = []
    done = work.run(lambda records, nbytes: told.append((records, nbytes)))
    assert (sum(records for records, _ in told), sum(nbytes for _, nbytes in told)) == (120, work.nbytes)
    assert [(report.action, report.partition) for report in done.reports] == [("merge", 0), ("merge", 1)]
    assert sum(report.records_after for report in done.reports) == 120
    assert sum(report.bytes_before for report in done.reports) == work.nbytes


def test_the_overhead_of_a_work_item_depends_only_on_its_partitions(
    memory: CountedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic with thousands of partitions is a single work item, so no work per partition may depend on the number of
    partitions.
    """
    partitions, summed = 200, 0
    topic = memory.topic(partitions)
    for _ in range(2):
        partition = pa.array(range(partitions), pa.int32())
        topic.append(random_rows(partitions).append_column("partition", partition), options=small())

    def nbytes(source: PlannedSlices) -> int:
        nonlocal summed
        summed += 1
        return int(source.size.sum())

    monkeypatch.setattr(PlannedSlices, "nbytes", property(nbytes))
    (work,) = plan(memory, topic)
    summed = 0
    assert len(work.run().reports) == partitions
    assert summed <= 4 * partitions


def test_a_file_that_cannot_be_finished_is_discarded(memory: CountedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.store.limits = Limits(own_file_bytes=1000)
    left: list[AppendOutput] = []

    class Full(AppendOutput):
        def __init__(self, *where: Any) -> None:
            super().__init__(*where)
            left.append(self)

        def close(self) -> FileSlices:
            raise Unavailable("no space left")

        def discard(self) -> None:
            super().discard()
            left.remove(self)

    topic = memory.topic(1)
    for i in range(3):
        topic.append(random_rows(30, first=i * 30, seed=i))
    (work,) = plan(memory, topic)
    monkeypatch.setattr(merge_work, "AppendOutput", Full)
    with pytest.raises(Unavailable, match="no space left"):
        work.run()
    assert not left


def test_a_failed_work_item_leaves_no_files(memory: CountedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, each hourly run would add the files that it wrote before the damage, which the vacuum removes only a
    day later.
    """
    memory.store.limits = Limits(own_file_bytes=1000)
    topic = memory.topic(2)
    for i in range(3):
        topic.append(random_rows(60, first=i * 60, seed=i))
    files = memory.append_files()
    (work,) = plan(memory, topic)
    closed: list[str] = []

    class SecondFails(AppendOutput):
        def close(self) -> FileSlices:
            if closed:
                raise Unavailable("no space left")
            closed.append(self.path)
            return super().close()

    monkeypatch.setattr(merge_work, "AppendOutput", SecondFails)
    with pytest.raises(Unavailable, match="no space left"):
        work.run()
    assert closed
    assert memory.append_files() == files


# -- plans


def test_a_single_file_is_not_merged(memory: CountedRoot) -> None:
    topic = memory.topic(4)
    assert plan(memory, topic) == []
    topic.append(random_rows(200))
    assert plan(memory, topic) == []
    topic.append(random_rows(200, first=200))
    assert len(plan(memory, topic)) == 1


def test_eight_generations_become_one_of_the_next_tier_in_the_same_run(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    seen = []
    for run in range(20):
        for i in range(2):
            topic.append(random_rows(10, first=run * 20 + i * 10, seed=run))
        merge(memory, topic)
        seen.append([tier for *_, tier in layout(topic)])
    assert seen[:7] == [[1] * n for n in range(1, 8)]
    assert seen[7] == [2]
    assert seen[8] == [2, 1]
    assert seen[15] == [2, 2]
    for _ in range(7 * 8 - 20 + 8):
        topic.append(random_rows(10))
        topic.append(random_rows(10))
        merge(memory, topic)
    assert [tier for *_, tier in layout(topic)] == [3]
    assert whole(topic)["offset"].to_pylist() == list(range(64 * 20))


def test_a_slice_that_is_large_enough_is_not_merged_again(memory: CountedRoot) -> None:
    memory.store.limits = Limits(own_file_bytes=4_000)
    topic = memory.topic(1, {"segment.bytes": 80_000})
    for run in range(8):
        for i in range(2):
            topic.append(random_rows(150 if run < 7 else 10, first=i * 150, seed=run))
        merge(memory, topic)
    sizes = topic.log.snapshot().slices.all().size
    assert (sizes[:7] >= 80_000 // 8).all()
    assert [tier for *_, tier in layout(topic)] == [1] * 8


def test_an_output_is_never_larger_than_a_segment(memory: CountedRoot) -> None:
    topic = memory.topic(2, {"segment.bytes": 9_000})
    for i in range(12):
        topic.append(random_rows(100, first=i * 100, seed=i))
    before = topic.log.snapshot().slices.all()
    expected = whole(topic)
    merge(memory, topic)
    after = topic.log.snapshot().slices.all()
    assert after.size.max() <= 9_000
    assert len(after) < len(before) // 2
    # The number of work items is minimal: no two adjacent work items would fit into one.
    for p in range(2):
        sizes = after.size[after.partition_rows(p)]
        assert (sizes[1:] + sizes[:-1] > 9_000).all()
    assert whole(topic) == expected


def test_work_is_cut_by_bytes_and_by_slices(memory: CountedRoot) -> None:
    topic = memory.topic(8)
    for i in range(6):
        topic.append(random_rows(400, keys=1000, first=i * 400, seed=i))
    total = int(topic.log.snapshot().slices.all().size.sum())
    expected = whole(topic)
    memory.store.limits = Limits(merge_slices=13)
    assert [len(work.partitions) for work in plan(memory, topic)] == [2, 2, 2, 2]
    memory.store.limits = Limits(merge_bytes=total // 3)
    works = plan(memory, topic)
    assert len(works) > 2
    assert [work.nbytes for work in works] == sorted((work.nbytes for work in works), reverse=True)
    assert sorted(p for work in works for p in work.partitions) == list(range(8))
    assert len({id(source.paths) for source in works[0].sources}) == 1
    merge(memory, topic)
    assert whole(topic) == expected
    assert len(layout(topic)) == 8
    # Several files of one run are one generation.
    generations = {int(version) for version in topic.log.snapshot().slices.all().read_version.tolist()}
    assert len(generations) <= len(works)


# -- transactions


def test_files_with_open_slices_are_not_touched(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    for i in range(3):
        topic.append(random_rows(40, first=i * 40, seed=i))
    prepared(memory, topic, random_rows(40, seed=50), "app", 1)
    for i in range(3):
        topic.append(random_rows(40, first=500 + i * 40, seed=i))
    open_and_later = {file for file in memory.append_files() if file.rpartition("/")[2] >= "00000000000000000003-"}
    expected = whole(topic)
    merge(memory, topic)
    assert whole(topic) == expected
    assert {file_key("t", path) for path in topic.log.snapshot().slices.paths()} >= open_and_later
    assert plan(memory, topic) == []
    assert len(layout(topic)) == 2 + 2 * 4
    resolve(memory, topic, "app", 1, committed=True)
    merge(memory, topic)
    assert [tier for *_, tier in layout(topic)] == [1, 1, 1, 1]
    assert whole(topic) == expected


def test_aborted_slices_are_dropped(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(random_rows(40))
    prepared(memory, topic, random_rows(40, seed=50), "app", 1)
    topic.append(random_rows(40, first=40))
    resolve(memory, topic, "app", 1, committed=False)
    expected = whole(topic, "read_committed")
    assert whole(topic).num_rows == 120
    (work,) = plan(memory, topic)
    done = work.run()
    publish(topic, work, done)
    assert whole(topic) == expected == whole(topic, "read_committed")
    assert sum(report.records_before - report.records_after for report in done.reports) == 40
    found = topic.log.snapshot().slices.all()
    assert [end for _, _, end, _ in layout(topic)] == topic.log.state().log_end.tolist()
    assert (found.records < found.end - found.base).all()


def test_a_lone_aborted_file_leaves_nothing(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(random_rows(20))
    topic.append(random_rows(20, first=20))
    merge(memory, topic)
    prepared(memory, topic, random_rows(40, seed=50), "app", 1)
    resolve(memory, topic, "app", 1, committed=False)
    expected = whole(topic, "read_committed")
    (work,) = plan(memory, topic)
    memory.store.reset()
    done = work.run()
    assert (len(done.rewrites), done.files) == (2, ())
    assert not memory.store.counts["writer"]
    publish(topic, work, done)
    assert whole(topic) == expected
    topic.append(random_rows(10, first=900))
    assert topic.log.state().log_end.sum() == 90


# -- concurrent changes and damage


def test_an_append_between_plan_and_commit_is_preserved(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    for i in range(4):
        topic.append(random_rows(40, first=i * 40, seed=i))
    (work,) = plan(memory, topic)
    done = work.run()
    topic.append(random_rows(40, first=900))
    topic.delete_records({0: 15})
    expected = whole(topic)
    assert not publish(topic, work, done).dropped
    assert whole(topic) == expected
    assert sorted(tier for *_, tier in layout(topic)) == [0, 0, 1, 1]


def test_a_merge_whose_input_was_sealed_is_dropped(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    for i in range(4):
        topic.append(random_rows(40, first=i * 40, seed=i))
    expected = whole(topic)
    (work,) = plan(memory, topic)
    done = work.run()
    sealed(memory, topic)
    outcome = publish(topic, work, done)
    assert [edit.partition for edit in outcome.dropped] == [0]
    assert whole(topic) == expected
    assert sorted((p, tier) for p, _, _, tier in layout(topic)) == [(0, 0), (1, 1)]
    assert plan(memory, topic) == []


@pytest.mark.usefixtures("records_in_files")
def test_the_rest_of_a_partly_sealed_file_is_merged(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(random_rows(40))
    sealed(memory, topic)
    # There is only one file, but half of it is unused, so merging frees space.
    assert len(plan(memory, topic)) == 1
    for i in range(2):
        topic.append(random_rows(40, first=100 + i * 40, seed=i))
    expected = whole(topic)
    merge(memory, topic)
    assert whole(topic) == expected
    assert [(p, base, tier) for p, base, _, tier in layout(topic)] == [
        (0, 0, 0),
        (0, layout(topic)[0][2], 1),
        (1, 0, 1),
    ]
    assert len(topic.log.snapshot().slices.paths()) == 2


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("spot", [30, 2_000])
@pytest.mark.parametrize("at_once", [1, 16])
def test_only_the_damaged_slice_is_reported(memory: CountedRoot, spot: int, at_once: int) -> None:
    memory.inner.parallel_reads = at_once  # type: ignore[attr-defined]
    topic = memory.topic(3)
    for i in range(4):
        topic.append(random_rows(90, first=i * 90, seed=i), options=small(batch_bytes=500))
    key = memory.append_files()[2]
    data = bytearray(memory.inner.get(key))
    data[spot] ^= 1
    memory.inner.replace(key, bytes(data))  # type: ignore[attr-defined]
    found = topic.log.snapshot().slices.all()
    (row,) = [
        row
        for row in range(len(found))
        if file_key("t", found.path(row)) == key and 0 <= spot - found.position[row] < found.size[row]
    ]
    files = memory.append_files()
    (work,) = plan(memory, topic)
    with pytest.raises(Corrupt) as caught:
        work.run()
    assert caught.value.file == key
    assert caught.value.position is not None
    assert 0 <= spot - caught.value.position < found.size[row]
    assert caught.value.offset is not None
    assert memory.append_files() == files
    assert sorted({tier for *_, tier in layout(topic)}) == [0]


@pytest.mark.usefixtures("records_in_files")
def test_a_large_damaged_slice_is_reported(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for i in range(2):
        topic.append(random_rows(400, first=i * 400, seed=i), options=small(batch_bytes=500))
    key = memory.append_files()[1]
    data = bytearray(memory.inner.get(key))
    data[9_000] ^= 1
    memory.inner.replace(key, bytes(data))  # type: ignore[attr-defined]
    memory.store.limits = Limits(load_bytes=1_000, request_bytes=1_000, span_bytes=1_000)
    (work,) = plan(memory, topic)
    files = memory.append_files()
    with pytest.raises(Corrupt) as caught:
        work.run()
    assert caught.value.file == key
    assert memory.append_files() == files


@pytest.mark.parametrize("request_bytes", [16 << 20, 1])
def test_batches_out_of_order_are_corrupt(memory: CountedRoot, request_bytes: int) -> None:
    """Also if each batch is in a separate window."""
    span_bytes = min(request_bytes, DEFAULTS.span_bytes)
    memory.store.limits = Limits(request_bytes=request_bytes, span_bytes=span_bytes)
    topic = memory.topic(1)
    topic.append(random_rows(3))
    appended_by_hand(memory, topic, [batch_of(3, [0], 2), batch_of(0, [0], 2), batch_of(6, [0], 3)])
    (work,) = plan(memory, topic)
    with pytest.raises(Corrupt, match="within offsets 9 to 13, found offsets 3 to 6: restore the file") as caught:
        work.run()
    assert (caught.value.offset, caught.value.position) == (9, len(batch_of(3, [0], 2)))


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("at_once", [1, 16])
def test_a_deleted_file_requires_a_new_plan(memory: CountedRoot, at_once: int) -> None:
    memory.inner.parallel_reads = at_once  # type: ignore[attr-defined]
    topic = memory.topic(2)
    for i in range(3):
        topic.append(random_rows(40, first=i * 40))
    (work,) = plan(memory, topic)
    memory.inner.delete(memory.append_files()[1])
    with pytest.raises(Conflict, match="run the compaction again"):
        work.run()


# -- random histories


@given(data=st.data())
@examples(13, 40)
def test_any_history_reads_the_same_after_merging(data: st.DataObject) -> None:
    counted_root = CountedRoot("memory", Path("unused"))
    append_time = data.draw(st.booleans())
    topic = counted_root.topic(2, {"message.timestamp.type": "LogAppendTime"} if append_time else None)
    source = random.Random(data.draw(st.integers(0, 1000)))
    number = 0
    pending: list[int] = []
    for step in range(data.draw(st.integers(4, 24))):
        action = source.choice(["append", "append", "append", "prepare", "resolve", "merge", "delete", "seal"])
        counted_root.world.now_ms += source.randrange(2000)
        if action == "append":
            topic.append(
                random_rows(source.randrange(1, 30), first=step * 100, seed=step), options=small(batch_bytes=200)
            )
        elif action == "prepare":
            number += 1
            prepared(counted_root, topic, random_rows(source.randrange(1, 20), seed=step), "app", number)
            pending.append(number)
        elif action == "resolve" and pending:
            resolve(counted_root, topic, "app", pending.pop(0), committed=source.random() < 0.5)
        elif action == "delete":
            state = topic.log.state()
            stable = state.last_stable().tolist()
            topic.delete_records({0: source.randrange(int(state.log_start[0]), stable[0] + 1)})
        elif action == "merge":
            expected, committed = whole(topic), whole(topic, "read_committed")
            merge(counted_root, topic)
            after = whole(topic)
            # No new records, and all committed or open records.
            assert set(after["offset"].to_pylist()) <= set(expected["offset"].to_pylist())
            assert whole(topic, "read_committed") == committed
            assert after.num_rows >= committed.num_rows
    committed = whole(topic, "read_committed")
    merge(counted_root, topic)
    assert whole(topic, "read_committed") == committed
