"""Sealing: unsealed slices become Kafka segments, and readers of the topic see no difference."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as PyBatch

from sparklog.compaction.seal_plan import plan_sealing
from sparklog.compaction.seal_work import SealWork
from sparklog.errors import Conflict, Corrupt, SparklogError
from sparklog.format import transaction_index
from sparklog.format.append_file import WrittenSlice
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT, NO_TIMESTAMP, BatchHeader
from sparklog.limits import Limits
from sparklog.log.journal.names import append_path
from sparklog.log.state.commit import ALTER, SEAL
from sparklog.log.state.commit_intents import Draft
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_output import AppendOutput
from sparklog.maintenance.work_items import InProcess, Progress, Settings, WorkResult
from sparklog.testing.world import START_MS
from tests.log.read.test_scan_imported import batch_of
from tests.log.rewriting import appended_by_hand, prepared, resolve
from tests.support.counted_root import KINDS, CountedRoot
from tests.support.records import random_rows, small
from tests.support.seeds import examples
from tests.test_architecture import HEAVY, loaded_by

PEERS = {"aiokafka": AioBatch, "kafka-python": PyBatch}


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def plan(counted_root: CountedRoot, topic: Topic, now_ms: int | None = None, **options: bool) -> list[SealWork]:
    now = counted_root.world.now_ms if now_ms is None else now_ms
    return plan_sealing(
        counted_root.store, topic.log.snapshot(), Settings(now), env=counted_root.world.env(), **options
    )


def seal(counted_root: CountedRoot, topic: Topic, now_ms: int | None = None, **options: bool) -> list[WorkResult]:
    """Plan, run and commit, and assert that all work items succeed."""
    found = []
    for work, done in InProcess().run(plan(counted_root, topic, now_ms, **options)):
        if isinstance(done, SparklogError):
            raise done
        outcome = topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites, done.files))
        assert outcome.commit is not None
        assert not outcome.dropped
        found.append(done)
    return found


def shape(topic: Topic, partition: int = 0) -> list[tuple[int, int, bool]]:
    """Return (base, end, sealed) of each slice."""
    found = topic.log.snapshot().slices.select(partition)
    return list(zip(found.base.tolist(), found.end.tolist(), found.sealed().tolist(), strict=True))


def sealed_files(counted_root: CountedRoot, suffix: str = "") -> dict[str, bytes]:
    """Return the contents of all files in directories of sealed segments, by file name."""
    keys = [item.key for item in counted_root.inner.list("t/sealed/")]
    return {key.rsplit("/", 1)[1]: counted_root.inner.get(key) for key in keys if key.endswith(suffix)}


def peers_records(counted_root: CountedRoot, topic: Topic, partition: int = 0) -> dict[str, list[tuple[Any, ...]]]:
    """Return the (offset, timestamp, timestamp type, key, value, headers) of all segments from each other parser, with
    verified CRCs.
    """
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in PEERS}
    slices = topic.log.snapshot().slices.select(partition)
    for row in range(len(slices)):
        assert slices.sealed()[row]
        data = counted_root.inner.get(f"t/{slices.path(row)}")
        headers = scan_headers(data)
        for position, size in zip(headers.position.tolist(), headers.size.tolist(), strict=True):
            for name, peer in PEERS.items():
                batch = peer(data[position : position + size])
                assert batch.validate_crc()
                if not batch.is_control_batch:
                    found[name] += [
                        (r.offset, r.timestamp, r.timestamp_type, r.key, r.value, list(r.headers) or None)
                        for r in batch
                    ]
    return found


def scanned(topic: Topic, partition: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    """Return the same for a scan of the topic."""
    table = topic.scan(partitions=[partition], **options).to_table()
    table = table.set_column(
        table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(pa.int64())
    )
    return [
        (
            row["offset"],
            row["timestamp"],
            row["timestampType"],
            row["key"],
            row["value"],
            None if row["headers"] is None else [(each["key"], each["value"]) for each in row["headers"]],
        )
        for row in table.to_pylist()
    ]


def appended(topic: Topic, count: int, each: int = 10, **options: Any) -> None:
    for i in range(count):
        topic.append(random_rows(each, first=i * each, seed=i), options=small(**options))


@pytest.mark.parametrize("kind", KINDS)
def test_sealed_records_equal_the_appended_records(kind: str, tmp_path: Path) -> None:
    counted_root = CountedRoot(kind, tmp_path)
    topic = counted_root.topic(3, {"segment.bytes": 3000, "index.interval.bytes": 200})
    appended(topic, 20, 30, batch_bytes=400)
    before = [scanned(topic, partition) for partition in range(3)]
    assert sum(map(len, before)) == 600
    done = seal(counted_root, topic, roll=True)
    for partition in range(3):
        assert scanned(topic, partition) == before[partition]
        assert peers_records(counted_root, topic, partition) == dict.fromkeys(PEERS, before[partition])
        assert len(shape(topic, partition)) > 3
    (reports,) = [each.reports for each in done]
    assert [(report.action, report.topic, report.partition) for report in reports] == [
        ("seal", "t", p) for p in range(3)
    ]
    assert sum(report.records_before for report in reports) == sum(report.records_after for report in reports) == 600
    assert all(report.bytes_before == report.bytes_after > 0 for report in reports)
    assert plan(counted_root, topic, roll=True) == []


@pytest.mark.parametrize(
    ("folder", "configs"),
    [
        ("segments/data/seg-small-0", {"segment.bytes": 16384, "index.interval.bytes": 1024}),
        ("segments/data/seg-small-1", {"segment.bytes": 16384, "index.interval.bytes": 1024}),
        ("segments/data/seg-ms-0", {"segment.ms": 600_000, "index.interval.bytes": 100}),
        ("segments/data/seg-index-full-0", {"segment.index.bytes": 120, "index.interval.bytes": 0}),
        ("retention/ms/before/expiring-0", {"segment.bytes": 4096, "index.interval.bytes": 512}),
    ],
)
def test_sealing_kafkas_batches_yields_kafkas_files(
    memory: CountedRoot, fixtures: Path, folder: str, configs: dict[str, object]
) -> None:
    """Each of Kafka's batches is appended in a separate commit, without its offsets and leader epochs."""
    topic = memory.topic(1, configs)
    logs = sorted((fixtures / folder).glob("*.log"))
    for log in logs:
        data = log.read_bytes()
        headers = scan_headers(data)
        for position, size in zip(headers.position.tolist(), headers.size.tolist(), strict=True):
            batch = data[position : position + size]
            appended_by_hand(memory, topic, [bytes(8) + batch[8:12] + b"\xff" * 4 + batch[16:]])
    seal(memory, topic, now_ms=0, roll=True)
    assert sealed_files(memory) == {
        log.stem + suffix: log.with_suffix(suffix).read_bytes()
        for log in logs
        for suffix in (".log", ".index", ".timeindex")
    }


def test_the_active_segment_is_not_sealed(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"segment.bytes": 1500, "segment.ms": 1000})
    for i in range(5):
        topic.append(random_rows(10, first=i, seed=i), options=small())
    slices = topic.log.snapshot().slices.select(0)
    assert 1500 // 3 < slices.size.min() <= slices.size.max() < 1500 // 2
    newest = int(slices.max_ts[4])
    assert plan(memory, topic, now_ms=newest) != []
    seal(memory, topic, now_ms=newest)
    assert shape(topic) == [(0, 20, True), (20, 40, True), (40, 50, False)]
    assert plan(memory, topic, now_ms=newest + 1000) == []
    (work,) = plan(memory, topic, now_ms=newest + 1001)
    assert (work.op, work.topic, work.topic_id, work.partitions) == (SEAL, "t", topic.log.state().topic_id, (0,))
    assert work.title == "seal t-0"
    assert work.nbytes == int(slices.size[4])
    seal(memory, topic, now_ms=newest + 1001)
    assert shape(topic) == [(0, 20, True), (20, 40, True), (40, 50, True)]


def test_segment_ms_follows_the_records_times(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"segment.ms": 100})
    for stamp in (1000, 1100, 1101, 500, 1202):
        topic.append(pa.table({"value": ["x"], "timestamp": pa.array([stamp], pa.int64())}), options=small())
    seal(memory, topic, now_ms=1202)
    assert shape(topic) == [(0, 2, True), (2, 4, True), (4, 5, False)]


def test_jitter_spreads_the_age_at_which_partitions_are_sealed(memory: CountedRoot) -> None:
    topic = memory.topic(40, {"segment.ms": 1000, "segment.jitter.ms": 1000})
    table = pa.table(
        {"value": ["x"] * 40, "timestamp": pa.array([0] * 40, pa.int64()), "partition": pa.array(range(40), pa.int32())}
    )
    topic.append(table, options=small())
    due = [sum(len(work.partitions) for work in plan(memory, topic, now_ms=now)) for now in (0, 250, 500, 750, 1001)]
    assert due[0] == 0
    assert due[4] == 40
    assert due == sorted(due)
    assert 4 < due[1] < due[2] < due[3] < 36


def test_a_slice_larger_than_a_segment_is_cut_between_batches(memory: CountedRoot) -> None:
    memory.store.limits = Limits(span_bytes=4000)
    topic = memory.topic(1, {"segment.bytes": 2000})
    topic.append(random_rows(400), options=small(batch_bytes=500))
    appended(topic, 2)
    before = scanned(topic)
    (work,) = plan(memory, topic, roll=True)
    told: list[tuple[int, int]] = []
    work.run(lambda records, nbytes: told.append((records, nbytes)))
    assert (sum(records for records, _ in told), sum(nbytes for _, nbytes in told)) == (420, work.nbytes)
    for key in [item.key for item in memory.inner.list("t/sealed/")]:
        memory.inner.delete(key)
    seal(memory, topic, roll=True)
    logs = sealed_files(memory, ".log")
    assert len(logs) > 10
    assert all(1000 < len(data) <= 2000 for data in list(logs.values())[:-2])
    assert peers_records(memory, topic) == dict.fromkeys(PEERS, before)
    assert scanned(topic) == before
    bases = [base for base, _, _ in shape(topic)]
    assert list(logs) == [f"{base:020}.log" for base in bases]
    assert sum(topic.log.snapshot().slices.select(0).records.tolist()) == 420


def test_small_and_large_slices_keep_their_order(memory: CountedRoot) -> None:
    memory.store.limits = Limits(held_bytes=8000)
    topic = memory.topic(1, {"segment.bytes": 100_000})
    for i, n in enumerate((3, 100, 3, 3, 100, 100, 3)):
        topic.append(random_rows(n, first=i * 100, seed=i), options=small(batch_bytes=900))
    before = scanned(topic)
    seal(memory, topic, roll=True)
    assert len(shape(topic)) == 1
    assert scanned(topic) == before
    assert peers_records(memory, topic) == dict.fromkeys(PEERS, before)


def test_offsets_too_far_apart_for_one_segment(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    far = 2**31 - 10
    appended_by_hand(memory, topic, [batch_of(0, [0], far - 1)])
    appended_by_hand(memory, topic, [batch_of(0, [0], 9), batch_of(10, [1], 4)])
    appended_by_hand(memory, topic, [batch_of(0, [2], 5), batch_of(6, [0], far), batch_of(7 + far, [0], 0)])
    kept = topic.scan(columns=["offset"]).to_table()["offset"].to_pylist()
    seal(memory, topic, roll=True)
    assert [base for base, _, _ in shape(topic)] == [0, far, far + 15]
    assert topic.scan(columns=["offset"]).to_table()["offset"].to_pylist() == kept
    assert len(kept) == 6


def test_a_batch_alone_reaches_over_31_bits(memory: CountedRoot) -> None:
    """Two segments are written from one slice, because the plan cuts at the ends of slices, and the writer where
    offsets no longer fit.
    """
    topic = memory.topic(1)
    appended_by_hand(memory, topic, [batch_of(0, [0], 9), batch_of(10, [3], 2**31 - 2), batch_of(2**31 + 9, [0], 1)])
    seal(memory, topic, roll=True)
    assert shape(topic) == [(0, 10, True), (10, 2**31 + 9, True), (2**31 + 9, 2**31 + 11, True)]
    assert topic.scan(columns=["offset"]).to_table()["offset"].to_pylist() == [0, 13, 2**31 + 9]


def test_append_times_are_patched_in(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"message.timestamp.type": "LogAppendTime"})
    for i in range(3):
        memory.world.now_ms = START_MS + 1000 * i
        appended(topic, 1, 20, batch_bytes=300)
    before = scanned(topic)
    assert {row[1] for row in before} == {START_MS, START_MS + 1000, START_MS + 2000}
    seal(memory, topic, roll=True)
    assert scanned(topic) == before
    assert peers_records(memory, topic) == dict.fromkeys(PEERS, before)
    slices = topic.log.snapshot().slices.select(0)
    assert slices.flags.tolist() == [int(SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES)]
    assert (slices.append_time.tolist(), slices.max_ts.tolist()) == ([-1], [START_MS + 2000])
    (data,) = sealed_files(memory, ".log").values()
    headers = scan_headers(data)
    assert (headers.attributes & LOG_APPEND_TIME_BIT).all()
    assert headers.max_timestamp.tolist() == sorted(headers.max_timestamp.tolist())
    assert len(crc_failures(data, headers)) == 0
    # The timestamps of later appends are again the commit times.
    memory.world.now_ms = START_MS + 9000
    appended(topic, 1, 1)
    assert scanned(topic)[:-1] == before
    assert scanned(topic)[-1][1] == START_MS + 9000


@dataclass(frozen=True)
class LeaderEpoch:
    """Raises the leader epoch, as if another writer had taken over the topic."""

    epoch: int
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft:
        return Draft(ALTER, leader_epoch=self.epoch)


def test_leader_epochs_are_patched_in(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for epoch in (0, 4, 4, 9):
        topic.log.commit(LeaderEpoch(epoch))
        appended(topic, 1)
    seal(memory, topic, roll=True)
    (data,) = sealed_files(memory, ".log").values()
    assert scan_headers(data).leader_epoch.tolist() == [0, 4, 4, 9]
    assert topic.log.snapshot().slices.select(0).leader_epoch.tolist() == [-1]


def test_aborted_slices_are_dropped_and_leave_a_gap(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for number, committed in ((1, True), (2, False), (3, False), (4, True)):
        prepared(memory, topic, random_rows(5, first=number * 5), "tx", number)
        resolve(memory, topic, "tx", number, committed=committed)
    before = scanned(topic)
    assert [row[0] for row in before] == [*range(5), *range(15, 20)]
    (done,) = seal(memory, topic, roll=True)
    assert scanned(topic) == before
    assert scanned(topic, isolation_level="read_uncommitted") == before
    assert peers_records(memory, topic) == dict.fromkeys(PEERS, before)
    assert shape(topic) == [(0, 20, True)]
    (report,) = done.reports
    assert (report.records_before, report.records_after) == (20, 10)
    assert report.bytes_after < report.bytes_before
    assert len(done.rewrites[0].inputs) == 4


def test_an_aborted_segment_is_dropped(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"segment.bytes": 14})
    for number, committed in ((1, False), (2, True), (3, False)):
        prepared(memory, topic, random_rows(5, first=number * 5), "tx", number)
        resolve(memory, topic, "tx", number, committed=committed)
    before = scanned(topic)
    seal(memory, topic, roll=True)
    assert shape(topic) == [(5, 10, True)]
    assert scanned(topic) == before
    assert topic.log.state().log_end.tolist() == [15]
    appended(topic, 1, 1)
    assert [row[0] for row in scanned(topic)] == [*range(5, 10), 15]


def test_an_open_transaction_delays_sealing(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"segment.bytes": 1500})
    appended(topic, 3)
    prepared(memory, topic, random_rows(10), "tx", 1)
    appended(topic, 3)
    assert [end for _, end, _ in shape(topic)] == [10, 20, 30, 40, 50, 60, 70]
    seal(memory, topic)
    assert shape(topic)[:2] == [(0, 20, True), (20, 30, False)], (
        "the second segment would reach above the stable offset"
    )
    assert plan(memory, topic) == plan(memory, topic, roll=True) == []
    resolve(memory, topic, "tx", 1, committed=True)
    seal(memory, topic)
    assert shape(topic) == [(0, 20, True), (20, 40, True), (40, 60, True), (60, 70, False)]


def test_the_stable_offset_itself_is_not_sealed(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"segment.bytes": 14})
    appended(topic, 1)
    prepared(memory, topic, random_rows(1), "tx", 1)
    appended(topic, 1)
    seal(memory, topic)
    assert shape(topic) == [(0, 10, True), (10, 11, False), (11, 21, False)]


def test_roll_seals_up_to_the_last_stable_offset(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    appended(topic, 3)
    prepared(memory, topic, random_rows(10), "tx", 1)
    appended(topic, 1)
    assert plan(memory, topic) == []
    seal(memory, topic, roll=True)
    assert shape(topic) == [(0, 30, True), (30, 40, False), (40, 50, False)]
    assert plan(memory, topic, roll=True) == []
    resolve(memory, topic, "tx", 1, committed=False)
    seal(memory, topic, roll=True)
    assert shape(topic) == [(0, 30, True), (30, 50, True)]


def test_a_log_start_inside_a_slice(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    appended(topic, 3)
    topic.delete_records({0: 14})
    before = scanned(topic)
    assert [row[0] for row in before] == list(range(14, 30))
    seal(memory, topic, roll=True)
    assert shape(topic) == [(10, 30, True)]
    assert scanned(topic) == before


@pytest.mark.usefixtures("records_in_files")
def test_damage_is_reported_and_nothing_is_sealed(memory: CountedRoot) -> None:
    topic = memory.topic(2, {"segment.bytes": 1500})
    for i in range(4):
        for partition in range(2):
            table = random_rows(10, first=i * 10).append_column("partition", pa.array([partition] * 10, pa.int32()))
            topic.append(table, options=small())
    state = shape(topic, 0), shape(topic, 1), topic.log.state().version
    key = memory.append_files()[2]
    whole = memory.inner.get(key)
    data = bytearray(whole)
    data[300] ^= 4
    memory.inner.replace(key, bytes(data))  # type: ignore[attr-defined]
    with pytest.raises(Corrupt) as caught:
        seal(memory, topic, roll=True)
    assert caught.value.file == key
    assert caught.value.offset is not None
    assert caught.value.position is not None
    assert (shape(topic, 0), shape(topic, 1), topic.log.state().version) == state
    memory.inner.replace(key, whole)  # type: ignore[attr-defined]
    seal(memory, topic, roll=True)
    assert all(sealed for p in range(2) for _, _, sealed in shape(topic, p))


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize(
    ("at", "bit", "placed"),
    [
        pytest.param(6, 0x10, True, id="base offset"),
        pytest.param(7, 0x10, True, id="base offset goes back"),
        pytest.param(25, 0x10, True, id="last offset delta"),
        pytest.param(13, 0x10, False, id="leader epoch"),
    ],
)
def test_damage_that_no_batch_checksum_covers_is_found_in_windows(
    memory: CountedRoot, at: int, bit: int, placed: bool
) -> None:
    memory.store.limits = Limits(span_bytes=1000)
    topic = memory.topic(1)
    topic.append(random_rows(10), options=small(batch_bytes=500))
    topic.append(random_rows(100), options=small(batch_bytes=500))
    key = memory.append_files()[1]
    data = bytearray(memory.inner.get(key))
    headers = scan_headers(data, whole=False)
    later = next(i for i in range(4, len(headers)) if headers.base_offset[i] & 0x10)
    counted_root = int(headers.position[later])
    data[counted_root + at] ^= bit
    memory.inner.replace(key, bytes(data))  # type: ignore[attr-defined]
    with pytest.raises(Corrupt) as caught:
        seal(memory, topic, roll=True)
    assert caught.value.file == key
    assert caught.value.position == (counted_root if placed else 0)
    assert sealed_files(memory) == {}


@pytest.mark.usefixtures("records_in_files")
def test_a_concurrently_replaced_file_is_a_conflict(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    appended(topic, 2)
    (work,) = plan(memory, topic, roll=True)
    seal(memory, topic, roll=True)
    stale = work.run()
    outcome = topic.log.commit(RewriteIntent(work.op, work.topic_id, stale.rewrites, stale.files))
    assert [edit.start for edit in outcome.dropped] == [0]
    memory.inner.delete(memory.append_files()[0])
    with pytest.raises(Conflict, match=r"t-0 with offset 0 no longer exists.*run the compaction again"):
        work.run()


def test_a_conflicting_segment_does_not_affect_the_others(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"segment.bytes": 1500})
    appended(topic, 7)
    before = scanned(topic)
    (work,) = plan(memory, topic)
    done = work.run()
    assert [(rewrite.edit.start, rewrite.edit.end) for rewrite in done.rewrites] == [(0, 20), (20, 40), (40, 60)]
    topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites[1:2], done.files[1:2]))
    again = work.run()
    outcome = topic.log.commit(RewriteIntent(work.op, work.topic_id, again.rewrites, again.files))
    assert [edit.start for edit in outcome.dropped] == [20]
    assert shape(topic) == [(0, 20, True), (20, 40, True), (40, 60, True), (60, 70, False)]
    assert scanned(topic) == before


def test_unsealed_slices_between_segments_are_closed(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"segment.bytes": 1500})
    appended(topic, 7)
    (work,) = plan(memory, topic)
    done = work.run()
    topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites[::2], done.files[::2]))
    assert [sealed for _, _, sealed in shape(topic)] == [True, False, False, True, False]
    seal(memory, topic)
    assert shape(topic) == [(0, 20, True), (20, 40, True), (40, 60, True), (60, 70, False)]


def test_the_flags_of_a_slice_are_preserved(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(5, keys=None), options=small())
    topic.append(random_rows(5, first=5), options=small())
    before = topic.log.snapshot().slices.select(0)
    seal(memory, topic, roll=True)
    after = topic.log.snapshot().slices.select(0)
    assert after.flags.tolist() == [int(SliceFlag.HAS_NULL_KEYS)]
    assert after.min_ts.tolist() == [int(before.min_ts.min())]
    assert after.max_ts.tolist() == [int(before.max_ts.max())]
    assert after.records.tolist() == [10]


def test_each_segment_has_the_flags_of_its_slices(memory: CountedRoot) -> None:
    """The indexes are full immediately, so every batch is a segment, although slices are written together."""
    topic = memory.topic(1, {"segment.index.bytes": 16, "index.interval.bytes": 0})
    for i, keys in enumerate((None, 5, None)):
        topic.append(random_rows(4, first=i * 4, keys=keys), options=small())
    before = topic.log.snapshot().slices.select(0)
    seal(memory, topic, roll=True)
    after = topic.log.snapshot().slices.select(0)
    assert len(after) == 3
    for name in ("base", "end", "size", "records", "min_ts", "max_ts", "flags"):
        assert getattr(after, name).tolist() == getattr(before, name).tolist(), name


def timeless(memory: CountedRoot, topic: Topic, modified_ms: int) -> None:
    """Return a slice whose records have no timestamps, as created by an import. It has the time of the file."""
    data = BatchHeader(0, 1, 2, NO_TIMESTAMP, NO_TIMESTAMP).pack(b"whatever")
    path = append_path(topic.log.state().version, memory.world.env().new_id())
    output = AppendOutput(memory.inner, "t", path)
    output.write(data)
    output.end_slice(
        WrittenSlice(
            partition=0,
            nbytes=len(data),
            offsets=2,
            records=2,
            min_ts=NO_TIMESTAMP,
            max_ts=modified_ms,
            crc=crc32c(data),
            flags=0,
        )
    )
    topic.log.commit_append([output.close()], topic.log.append_target())


def test_records_without_timestamps_keep_the_time_of_their_file(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    timeless(memory, topic, 5000)
    timeless(memory, topic, 4000)
    seal(memory, topic, roll=True)
    timeless(memory, topic, 6000)
    topic.append(pa.table({"value": ["x"], "timestamp": pa.array([700], pa.int64())}), options=small())
    seal(memory, topic, roll=True)
    found = topic.log.snapshot().slices.select(0)
    assert list(zip(found.min_ts.tolist(), found.max_ts.tolist(), strict=True)) == [(-1, 5000), (700, 700)]


def test_kafkas_transactions_and_native_appends(memory: CountedRoot, fixtures: Path) -> None:
    topic = memory.topic(1, {"segment.bytes": 2000})
    appended(topic, 4)
    logs = sorted((fixtures / "transactions/data/txn-a-0").glob("*.log"))
    data = b"".join(log.read_bytes() for log in logs)
    appended_by_hand(memory, topic, [data], int(SliceFlag.KAFKA_PRODUCERS))
    appended(topic, 6)
    (work,) = plan(memory, topic, roll=True)
    assert len(work.parts[0].segments) > 3
    seal(memory, topic, roll=True)
    after = topic.log.snapshot().slices.select(0)
    shifted = 40
    (kafkas,) = (log.with_suffix(".txnindex") for log in logs if log.with_suffix(".txnindex").exists())
    expected = transaction_index.parse(kafkas.read_bytes(), 0)
    found = [
        transaction_index.parse(bytes_, int(name[:20]))
        for name, bytes_ in sorted(sealed_files(memory, ".txnindex").items())
    ]
    assert transaction_index.concatenate(found).last_offsets.tolist() == (expected.last_offsets + shifted).tolist()
    assert transaction_index.concatenate(found).first_offsets.tolist() == (expected.first_offsets + shifted).tolist()
    assert 0 < np.count_nonzero(after.flags & int(SliceFlag.KAFKA_PRODUCERS)) < len(after)


@pytest.mark.parametrize("partition", ["txn-a-0", "txn-b-0"])
def test_kafkas_transactions_get_kafkas_transaction_index(memory: CountedRoot, fixtures: Path, partition: str) -> None:
    """The partition is a single imported slice, and sealing cuts it into the same segments as Kafka's."""
    config = {"txn-a-0": {}, "txn-b-0": {"segment.bytes": 6000, "index.interval.bytes": 500}}[partition]
    topic = memory.topic(1, config)
    logs = sorted((fixtures / "transactions" / "data" / partition).glob("*.log"))
    appended_by_hand(memory, topic, [log.read_bytes() for log in logs], int(SliceFlag.KAFKA_PRODUCERS))
    records = int(topic.log.snapshot().slices.select(0).records.sum())
    seal(memory, topic, roll=True)
    found = sealed_files(memory)
    assert int(topic.log.snapshot().slices.select(0).records.sum()) == records
    assert found == {
        log.stem + suffix: log.with_suffix(suffix).read_bytes()
        for log in logs
        for suffix in (".log", ".index", ".timeindex", ".txnindex")
        if log.with_suffix(suffix).exists()
    }
    assert any(name.endswith(".txnindex") for name in found)
    slices = topic.log.snapshot().slices.select(0)
    aborted = [f"{base:020}.txnindex" in found for base in slices.base.tolist()]
    flags = [int(SliceFlag.KAFKA_PRODUCERS | (SliceFlag.KAFKA_ABORTED if each else 0)) for each in aborted]
    assert slices.flags.tolist() == flags


def test_sealing_batches_of_kafka_producers_reads_only_the_slices_to_seal(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for _ in range(3):
        appended_by_hand(memory, topic, [batch_of(0, [0, 1], 1)], int(SliceFlag.KAFKA_PRODUCERS))
        (work,) = plan(memory, topic, roll=True)
        before = memory.store.bytes_read
        work.run()
        assert memory.store.bytes_read - before == work.nbytes
        seal(memory, topic, roll=True)
    assert shape(topic) == [(0, 2, True), (2, 4, True), (4, 6, True)]
    assert topic.log.snapshot().slices.select(0).flags.tolist() == [int(SliceFlag.KAFKA_PRODUCERS)] * 3


def test_slices_of_many_partitions_are_fetched_together(memory: CountedRoot) -> None:
    topic = memory.topic(8)
    for i in range(10):
        partition = pa.array([n % 8 for n in range(100)], pa.int32())
        topic.append(random_rows(100, first=i * 100).append_column("partition", partition), options=small())
    before = [scanned(topic, partition) for partition in range(8)]
    (work,) = plan(memory, topic, roll=True)
    assert work.title == "seal t-0 to 7 (8 partitions)"
    memory.store.reset()
    told: list[tuple[int, int]] = []
    done = work.run(lambda records, nbytes: told.append((records, nbytes)))
    memory.store.expect_at_most(get=10, writer=24)
    assert sum(records for records, _ in told) == 1000
    assert sum(nbytes for _, nbytes in told) == work.nbytes
    topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites, done.files))
    assert [scanned(topic, partition) for partition in range(8)] == before


def test_work_is_packed_up_to_a_size(memory: CountedRoot) -> None:
    topic = memory.topic(6, {"segment.bytes": 500})
    appended(topic, 6, 60)
    before = [scanned(topic, partition) for partition in range(6)]
    memory.store.limits = Limits(seal_bytes=4000, seal_partitions=2)
    works = plan(memory, topic, roll=True)
    assert len(works) > 5
    assert all(work.nbytes <= 4000 and len(work.partitions) <= 2 for work in works)
    assert {partition for work in works for partition in work.partitions} == set(range(6))
    seal(memory, topic, roll=True)
    assert [scanned(topic, partition) for partition in range(6)] == before
    assert all(sealed for p in range(6) for _, _, sealed in shape(topic, p))


def test_work_items_limit_partitions_segments_and_slices(memory: CountedRoot) -> None:
    topic = memory.topic(5)
    partition = pa.array(range(5), pa.int32())
    topic.append(random_rows(5).append_column("partition", partition), options=small())
    memory.store.limits = Limits(seal_partitions=2)
    assert [work.partitions for work in plan(memory, topic, roll=True)] == [(0, 1), (2, 3), (4,)]
    memory.store.limits = Limits(seal_segments=3)
    assert [work.partitions for work in plan(memory, topic, roll=True)] == [(0, 1, 2), (3, 4)]
    topic.append(random_rows(5).append_column("partition", partition), options=small())
    memory.store.limits = Limits(seal_segments=3, seal_slices=5)
    assert [work.partitions for work in plan(memory, topic, roll=True)] == [(0, 1), (2, 3), (4,)]


def test_run_defaults_apply_if_the_topic_sets_no_config(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    appended(topic, 3)
    given = Settings(memory.world.now_ms, {"segment.bytes": "14", "index.interval.bytes": "0"})
    (work,) = plan_sealing(memory.store, topic.log.snapshot(), given, env=memory.world.env())
    assert (len(work.parts[0].segments), work.configs.index_interval_bytes) == (2, 0)


def test_work_runs_in_another_process(tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    topic = counted_root.topic(2)
    appended(topic, 3)
    before = scanned(topic)
    now = Settings(counted_root.world.now_ms)
    for work in plan_sealing(counted_root.inner, topic.log.snapshot(), now, roll=True):
        done = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(work)).run()))
        topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites, done.files))
    assert scanned(topic) == before
    assert plan(counted_root, topic, roll=True) == []


def test_an_error_leaves_no_half_written_segment(tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    counted_root.store.limits = Limits(held_bytes=100)
    topic = counted_root.topic(1)
    appended(topic, 2)
    (work,) = plan(counted_root, topic, roll=True)

    written = []

    def stop(records: int, nbytes: int) -> None:
        written.extend(path for path in (tmp_path / "t/sealed").rglob("*") if path.is_file())
        raise RuntimeError("stopped")

    interrupted: Progress = stop
    with pytest.raises(RuntimeError, match="stopped"):
        work.run(interrupted)
    assert len(written) == 1
    assert [path for path in (tmp_path / "t/sealed").rglob("*") if path.is_file()] == []


def test_planning_imports_no_heavy_modules() -> None:
    assert not loaded_by("sparklog.compaction.seal_plan")["sparklog.compaction.seal_plan"] & set(HEAVY)


@dataclass(frozen=True)
class Step:
    """An append of the random history. `kind` is plain, committed, aborted or open."""

    kind: str
    records: int
    stamp: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["plain", "plain", "plain", "committed", "aborted"]),
        st.integers(1, 40),
        st.integers(0, 3000),
    ),
    min_size=1,
    max_size=10,
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "segment.bytes": st.integers(14, 6000),
        "segment.ms": st.integers(1, 2000),
        "segment.jitter.ms": st.integers(0, 2000),
        "segment.index.bytes": st.integers(4, 60),
        "index.interval.bytes": st.integers(0, 800),
        "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
    },
)


def play(counted_root: CountedRoot, topic: Topic, steps: list[Step], rng: random.Random) -> Iterator[int]:
    for number, step in enumerate(steps):
        counted_root.world.now_ms += rng.choice([0, 1, 500])
        table = random_rows(step.records, first=step.stamp, seed=number, keys=rng.choice([5, None]))
        if step.kind == "plain":
            codec = rng.choice(["none", "zstd", "lz4", "snappy", "gzip"])
            topic.append(table, options=small(codec, batch_bytes=rng.choice([200, 100_000])))
        else:
            prepared(counted_root, topic, table, "tx", number)
            resolve(counted_root, topic, "tx", number, committed=step.kind == "committed")
        yield number


@given(STEPS, CONFIGS, st.integers(0, 2**32), st.booleans())
@examples(20, 60)
def test_random_appends_read_the_same_after_sealing(
    steps: list[Step], configs: dict[str, object], seed: int, roll: bool
) -> None:
    rng = random.Random(seed)
    counted_root = CountedRoot("memory", Path())
    topic = counted_root.topic(2, configs)
    for _ in play(counted_root, topic, steps, rng):
        if rng.random() < 0.2:
            seal(counted_root, topic)
    before = [scanned(topic, partition) for partition in range(2)]
    # As in Kafka, a lookup includes aborted records while they exist.
    targets = [] if any(step.kind == "aborted" for step in steps) else range(START_MS, START_MS + 3040, 400)
    times = [topic.offset_for_timestamp(target) for target in targets]
    seal(counted_root, topic, roll=roll)
    for partition in range(2):
        assert scanned(topic, partition) == before[partition]
    assert [topic.offset_for_timestamp(target) for target in targets] == times
    if roll:
        for partition in range(2):
            assert peers_records(counted_root, topic, partition) == dict.fromkeys(PEERS, before[partition])
    version = topic.log.state().version
    assert seal(counted_root, topic, roll=roll) == []
    assert topic.log.state().version == version
    fresh = counted_root.reopened()
    assert [scanned(fresh, partition) for partition in range(2)] == before
