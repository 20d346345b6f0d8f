"""Producers and transactions from a replay equal the contents of Kafka's snapshots and `.txnindex` files."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from sparklog.compaction.producer_state import PartitionProducers, ReplayedProducer, active, replay, run_boundaries
from sparklog.errors import Corrupt, NotFound
from sparklog.format.control import end_txn_marker
from sparklog.format.producer_snapshot import parse_snapshot
from sparklog.limits import DEFAULTS, Limits
from sparklog.log.read.planned_slices import PlannedSlices
from sparklog.storage.memory import MemoryStore
from tests.compaction.fixture_stages import Stage, StageSegment, partition_files, stages, stored
from tests.compaction.histories import History
from tests.compaction.plain_cleaner import Aborted, PlainBatch, PlainRecord, emptied, last_stable, replayed
from tests.fixture_data import expected_offsets

DAY_MS = 86_400_000
WITH_PRODUCERS = ("producer-state", "transactions", "transactions-tv0")
Entry = tuple[int, int, int, int]


def all_stages() -> list[Stage]:
    return [stage for name in WITH_PRODUCERS for stage in stages(name)]


def replay_files(files: tuple[StageSegment, ...], log_end: int, *, indexes: bool = True) -> PartitionProducers:
    store = MemoryStore(lambda: 0)
    parts = [(each.base, each.data, each.transaction_index if indexes else b"") for each in files]
    return replay(store, stored(store, parts), log_end)


def replay_parts(
    parts: list[tuple[int, list[bytes], list[Aborted]]],
    *,
    log_end: int = 1000,
    shift: int = 0,
    limits: Limits = DEFAULTS,
) -> PartitionProducers:
    store = MemoryStore(lambda: 0)
    store.limits = limits
    sources = stored(store, [(base, b"".join(data), index_of(aborted)) for base, data, aborted in parts], shift=shift)
    return replay(store, sources, log_end)


def index_of(aborted: list[Aborted]) -> bytes:
    return b"".join(struct.pack(">hqqqq", 0, e.producer_id, e.first, e.last, e.last_stable) for e in aborted)


def rows(found: PartitionProducers) -> list[Entry]:
    aborted = found.aborted
    columns = (aborted.producer_ids, aborted.first_offsets, aborted.last_offsets, aborted.last_stable_offsets)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def snapshot(path: Path) -> dict[int, ReplayedProducer]:
    """Return a `.snapshot` file according to the byte table in docs/reference/kafka-format.md."""
    data = path.read_bytes()
    (entries,) = struct.unpack_from(">i", data, 6)
    found = {}
    for at in range(10, 10 + 46 * entries, 46):
        producer_id, epoch, _, last, _, timestamp, _, open_since = struct.unpack_from(">qhiqiqiq", data, at)
        found[producer_id] = ReplayedProducer(epoch, last, timestamp, open_since)
    return found


@pytest.mark.parametrize("stage", all_stages(), ids=lambda each: f"{each.fixture}/{each.name}")
def test_the_replay_agrees_with_kafkas_snapshot(stage: Stage) -> None:
    found = replay_files(stage.files, stage.log_end)
    path = stage.files[0].path.with_name(f"{stage.log_end:020d}.snapshot")
    assert active(found.producers, stage.now_ms, DAY_MS) == snapshot(path)
    assert found.last_stable == stage.last_stable


@pytest.mark.parametrize("stage", all_stages(), ids=lambda each: f"{each.fixture}/{each.name}")
def test_aborted_transactions_are_those_of_kafkas_index_files(stage: Stage) -> None:
    found = replay_files(stage.files, stage.log_end)
    told = b"".join(each.transaction_index for each in stage.files)
    held = {each.base for each in stage.files if each.data}
    assert all(each.base in held for each in stage.files if each.transaction_index)
    assert found.aborted.to_bytes() == told
    if stage.name == "before":
        assert replay_files(stage.files, stage.log_end, indexes=False).aborted.to_bytes() == told


@pytest.mark.parametrize("partition", ["txn-a-0", "txn-a-1", "txn-b-0", "txn-b-1"])
@pytest.mark.parametrize("fixture", ["transactions", "transactions-tv0"])
def test_a_brokers_transactions(fixtures: Path, fixture: str, partition: str) -> None:
    folder = fixtures / fixture / "data" / partition
    files = partition_files(folder)
    told = expected_offsets(fixtures / fixture)[partition]
    found = replay_files(files, told["logEndOffset"], indexes=False)
    assert found.aborted.to_bytes() == b"".join(each.transaction_index for each in files)
    assert found.last_stable == told["lastStableOffset"]
    assert found.producers == snapshot(sorted(folder.glob("*.snapshot"))[-1])


@pytest.mark.parametrize("partition", ["txn-a-0", "txn-a-1", "txn-b-0", "txn-b-1"])
@pytest.mark.parametrize("fixture", ["transactions", "transactions-tv0"])
def test_the_entries_of_a_snapshot_are_kafkas(fixtures: Path, fixture: str, partition: str) -> None:
    """This includes sequences, offset deltas and coordinator epochs."""
    folder = fixtures / fixture / "data" / partition
    found = replay_files(partition_files(folder), expected_offsets(fixtures / fixture)[partition]["logEndOffset"])
    told = parse_snapshot(sorted(folder.glob("*.snapshot"))[-1].read_bytes())
    assert len(told) > 1
    entries = [producer.entry(producer_id) for producer_id, producer in found.producers.items()]
    assert sorted(entries, key=repr) == sorted(told, key=repr)


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_equal_the_plain_model(seed: int) -> None:
    history = History(random.Random(seed), segment_bytes=2000)
    history.write(150)
    log = history.log
    parts = [(each.base, [batch.to_bytes() for batch in each.batches], []) for each in log.segments]
    found = replay_parts(parts, log_end=log.log_end, limits=Limits(span_bytes=300))
    assert found.last_stable == last_stable(log)
    assert rows(found) == [
        (e.producer_id, e.first, e.last, e.last_stable) for segment in log.segments for e in segment.aborted
    ]
    assert found.producers == {
        key: ReplayedProducer(
            each.epoch, each.last_data_offset, each.timestamp, -1 if each.open_since is None else each.open_since
        )
        for key, each in replayed(log).items()
    }


# --- rule by rule ----------------------------------------------------------------------------------------------------


def data(
    base: int, last: int, producer_id: int = 7, epoch: int = 0, *, transactional: bool = True, timestamp: int = 50
) -> PlainBatch:
    records = (PlainRecord(base, timestamp, b"k", b"v"),)
    return PlainBatch(
        base, last, timestamp, records, transactional=transactional, producer_id=producer_id, producer_epoch=epoch
    )


def batch(*args: int, **named: int) -> bytes:
    return data(*args, **named).to_bytes()  # type: ignore[arg-type]


def end(offset: int, producer_id: int = 7, epoch: int = 0, *, commit: bool = False, timestamp: int = 60) -> bytes:
    return end_txn_marker(
        commit=commit,
        offset=offset,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=0,
    )


def emptied_marker(offset: int, producer_id: int, epoch: int) -> bytes:
    whole = PlainBatch(
        offset, offset, 60, (), transactional=True, control=True, producer_id=producer_id, producer_epoch=epoch
    )
    return emptied(whole).to_bytes()


def test_a_new_epoch_resets_the_data_of_the_old_epoch() -> None:
    same = replay_parts([(0, [batch(0, 4, 7, 3), end(5, 7, 3)], [])])
    assert same.producers == {7: ReplayedProducer(3, 4, 60, -1)}
    raised = replay_parts([(0, [batch(0, 4, 7, 3), end(5, 7, 4)], [])])
    assert raised.producers == {7: ReplayedProducer(4, -1, 60, -1)}
    again = replay_parts([(0, [batch(0, 4, 7, 3), end(5, 7, 4), batch(6, 6, 7, 4)], [])])
    assert again.producers == {7: ReplayedProducer(4, 6, 50, 6)}


def test_an_emptied_marker_keeps_its_producer_known() -> None:
    found = replay_parts([(0, [batch(0, 4, 7, 3), emptied_marker(5, 7, 4), emptied_marker(6, 8, 1)], [])])
    assert found.producers == {7: ReplayedProducer(4, -1, 60, -1), 8: ReplayedProducer(1, -1, 60, -1)}
    assert rows(found) == []


def test_an_emptied_data_batch_begins_a_transaction() -> None:
    found = replay_parts([(0, [emptied(data(0, 4)).to_bytes(), end(5)], [])])
    assert rows(found) == [(7, 0, 5, 6)]


def test_only_transactional_data_begins_a_transaction() -> None:
    found = replay_parts([(0, [batch(0, 4, transactional=False), end(5), batch(6, 9, 8)], [])], log_end=10)
    assert rows(found) == []
    assert found.last_stable == 6
    assert found.producers[8].open_since == 6


def test_the_last_stable_offset_of_an_entry_is_where_the_earliest_other_transaction_begins() -> None:
    found = replay_parts([(0, [batch(0, 0, 1), batch(1, 1, 2), end(2, 1), batch(3, 3, 1), end(4, 2)], [])])
    assert rows(found) == [(1, 0, 2, 1), (2, 1, 4, 3)]
    assert found.last_stable == 3


def test_other_control_records_and_batches_without_a_producer_change_nothing() -> None:
    other = PlainBatch(2, 2, 60, (PlainRecord(2, 60, b"\0\0\0\2", b""),), control=True, producer_id=7)
    plain = PlainBatch(3, 3, 60, (PlainRecord(3, 60, b"k", b"v"),))
    found = replay_parts([(0, [batch(0, 1), other.to_bytes(), plain.to_bytes()], [])])
    assert found.producers == {7: ReplayedProducer(0, 1, 50, 0)}


@pytest.mark.parametrize(("log_start", "open_since"), [(4, 0), (5, -1)])
def test_a_transaction_without_a_batch_from_the_log_start_on_is_not_open(log_start: int, open_since: int) -> None:
    """A pass may have dropped the marker while a record of the transaction remained. The transaction would block
    cleaning forever.
    """
    store = MemoryStore(lambda: 0)
    parts = [(0, batch(0, 4, 7, 3) + batch(5, 9, 8, transactional=False), b""), (10, b"", b"")]
    found = replay(store, stored(store, parts), 10, log_start)
    assert found.producers[7] == ReplayedProducer(3, 4, 50, open_since)
    assert found.last_stable == (10 if open_since == -1 else 0)


def test_batches_of_the_active_part_are_shifted() -> None:
    found = replay_parts([(0, [batch(0, 4)], []), (5, [end(0), batch(1, 2, 8)], [])], log_end=8, shift=5)
    assert rows(found) == [(7, 0, 5, 6)]
    assert found.producers[8] == ReplayedProducer(0, 7, 50, 6)
    assert found.last_stable == 6


def test_an_index_file_contains_the_start_of_a_transaction_with_deleted_data() -> None:
    parts = [(10, [batch(14, 15), end(16)], [Aborted(7, 3, 16, 12)]), (17, [], [])]
    assert rows(replay_parts(parts)) == [(7, 3, 16, 12)]
    # All data of the transaction was deleted, but the entry is still the same as Kafka's.
    parts = [(10, [end(16)], [Aborted(7, 3, 16, 12)]), (17, [], [])]
    assert rows(replay_parts(parts)) == [(7, 3, 16, 12)]


def test_an_index_file_with_a_late_start_does_not_shorten_a_transaction() -> None:
    parts = [(10, [batch(14, 14), batch(15, 15), end(16)], [Aborted(7, 15, 16, 16)]), (17, [], [])]
    assert rows(replay_parts(parts)) == [(7, 14, 16, 17)]


@pytest.mark.parametrize(
    "wrong",
    [
        [Aborted(8, 10, 16, 17)],
        [Aborted(7, 10, 15, 17)],
        [Aborted(7, 10, 16, 17), Aborted(7, 18, 19, 20)],
        [Aborted(7, 11, 16, 17)],
        [Aborted(7, 17, 16, 17)],
    ],
    ids=[
        "another producer",
        "another marker",
        "one entry too many",
        "covers an earlier commit",
        "ends before it begins",
    ],
)
def test_an_index_file_that_contradicts_the_markers_is_ignored(wrong: list[Aborted]) -> None:
    committed = [batch(10, 10), end(11, commit=True)]
    aborted = [batch(14, 15), end(16), batch(17, 18), end(19, commit=True)]
    found = replay_parts([(10, committed + aborted, wrong), (20, [], [])])
    assert rows(found) == [(7, 14, 16, 17)]


def test_a_damaged_index_file_is_ignored() -> None:
    store = MemoryStore(lambda: 0)
    log = b"".join((batch(14, 15), end(16)))
    for index in (b"", b"x" * 34, b"x" * 33):
        sources = stored(store, [(10, log, index), (17, b"", b"")])
        assert rows(replay(store, sources, 17)) == [(7, 14, 16, 17)]
        store = MemoryStore(lambda: 0)


def changed(sources: PlannedSlices, **columns: int) -> PlannedSlices:
    changes = {name: np.full(len(sources), value, np.int64) for name, value in columns.items()}
    return replace(sources, columns={**sources.columns, **changes})


def test_slices_without_kafkas_producers_are_not_read() -> None:
    store = MemoryStore(lambda: 0)
    sources = stored(store, [(0, batch(0, 4), b""), (5, b"", b"")])
    assert replay(store, sources, 5).last_stable == 0
    for left_out in (changed(sources, flags=0), changed(sources, status=3)):
        found = replay(MemoryStore(lambda: 0), left_out, 5)
        assert (found.last_stable, found.producers, len(found.aborted)) == (5, {}, 0)


@pytest.mark.parametrize("span", [8 << 20, 200], ids=["whole", "in windows"])
def test_a_damaged_slice_is_reported(span: int) -> None:
    store = MemoryStore(lambda: 0)
    store.limits = Limits(span_bytes=span)
    parts = [batch(0, 4), batch(5, 9), batch(10, 14), end(15)]
    sources = stored(store, [(0, b"".join(parts), b""), (16, b"", b"")])
    file = sources.row(0).file
    bad = bytearray(b"".join(parts))
    bad[len(parts[0]) + 65] ^= 1
    store.replace(file, bytes(bad))
    with pytest.raises(Corrupt) as caught:
        replay(store, sources, 16)
    assert caught.value.file == file
    assert caught.value.position == (len(parts[0]) if span > 200 else 0)


def test_a_missing_file_is_reported() -> None:
    store = MemoryStore(lambda: 0)
    sources = stored(store, [(0, batch(0, 4), b""), (5, b"", b"")])
    store.delete(sources.row(0).file)
    with pytest.raises(NotFound, match=sources.row(0).file):
        replay(store, sources, 5)


def test_a_producer_expires_once_its_time_is_reached_unless_its_transaction_is_open() -> None:
    producers = {
        1: ReplayedProducer(0, 5, 100, -1),
        2: ReplayedProducer(0, 5, 101, -1),
        3: ReplayedProducer(0, 5, 0, 5),
        4: ReplayedProducer(0, 5, -1, -1),
    }
    assert set(active(producers, 1100, 1000)) == {2, 3}
    assert set(active(producers, 1099, 1000)) == {1, 2, 3}


def test_run_boundaries_are_the_ends_of_runs_of_each_producer() -> None:
    rng = random.Random(1)
    for _ in range(200):
        many = rng.randrange(0, 12)
        ids = [rng.choice((-1, 5, 6)) for _ in range(many)]
        kinds = [rng.choice((0, 1, 2)) for _ in range(many)]
        expected = [False] * many
        for producer in set(ids):
            mine = [i for i in range(many) if ids[i] == producer]
            for _, run in groupby(mine, key=lambda i: kinds[i]):
                members = list(run)
                expected[members[0]] = expected[members[-1]] = True
        assert run_boundaries(np.array(ids, np.int64), np.array(kinds, np.int64)).tolist() == expected
