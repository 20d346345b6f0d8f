"""Actions on entire batches, compared with Kafka's passes, and with the plain model on random histories.

A filtered pass is simulated batch by batch: the filter decides on entire batches, the plain model on their records.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from sparklog.compaction.producer_state import (
    BatchActions,
    BatchFilter,
    PartitionProducers,
    ReplayedProducer,
    aborted_batches,
    replay,
)
from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.batch_scan import scan_headers
from sparklog.format.batch_walk import Window
from sparklog.format.control import end_txn_marker
from sparklog.format.record_batch import BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.storage.memory import MemoryStore
from tests.compaction.fixture_stages import OLD_FORMATS, Pass, all_passes, stored
from tests.compaction.histories import START_MS, History
from tests.compaction.plain_cleaner import (
    Aborted,
    PlainBatch,
    PlainConfigs,
    PlainLog,
    PlainRecord,
    PlainSegment,
    Round,
    Told,
    Tracker,
    build_map,
    choose,
    clean,
    decoded,
    emptied,
)
from tests.support.seeds import first_of

DAY_MS = 86_400_000


def state_of(log: PlainLog) -> PartitionProducers | None:
    """Return the state that a task reads from files in a store, or None if Kafka producers wrote no slice."""
    store = MemoryStore(lambda: 0)
    files = [
        (each.base, b"".join(batch.to_bytes() for batch in each.batches), index_bytes(each.aborted))
        for each in log.segments
    ]
    sources = stored(store, files)
    return replay(store, sources, log.log_end) if sources.flags.any() else None


def entries(aborted: list[Aborted]) -> AbortedTransactions:
    rows = np.array([(e.producer_id, e.first, e.last, e.last_stable) for e in aborted], np.int64).reshape(-1, 4)
    return AbortedTransactions(*rows.T)


def index_bytes(aborted: list[Aborted]) -> bytes:
    return entries(aborted).to_bytes()


def judged(
    log: PlainLog, configs: PlainConfigs, now_ms: int, rng: random.Random
) -> tuple[list[PlainBatch], list[Aborted]]:
    """Return all batches of the log after a pass, and the `.txnindex` entries of the cleaned part."""
    told = choose(log, configs, now_ms)
    offsets, latest = build_map(log, configs, told.first_dirty, told.first_uncleanable)
    records = Round(log, configs, now_ms, offsets, latest, Told(True))
    state = state_of(log)
    batch_filter = BatchFilter(
        state,
        now_ms=now_ms,
        expiration_ms=configs.producer_id_expiration_ms,
        first_uncleanable=told.first_uncleanable,
    )
    left: list[PlainBatch] = []
    staying: list[Aborted] = []
    for segment in log.segments:
        if segment.base > latest:
            left += segment.batches
            continue
        at = 0
        while at < len(segment.batches):
            window = segment.batches[at : at + rng.choice((1, 2, 5, 100))]
            at += len(window)
            data = b"".join(batch.to_bytes() for batch in window)
            actions = batch_filter.actions(Window(data, 0, scan_headers(data), "x.log"))
            for i, batch in enumerate(window):
                kept = applied(records, batch, actions, i, now_ms + configs.delete_retention_ms)
                left += [] if kept is None else [kept]
            columns = (
                actions.aborted.producer_ids,
                actions.aborted.first_offsets,
                actions.aborted.last_offsets,
                actions.aborted.last_stable_offsets,
            )
            staying += [Aborted(*row) for row in zip(*(each.tolist() for each in columns), strict=True)]
    return left, staying


def applied(records: Round, batch: PlainBatch, actions: BatchActions, i: int, horizon: int) -> PlainBatch | None:
    """Return batch i after the actions."""
    if actions.discard_data[i] or actions.drop_control[i]:
        survivors: tuple[PlainRecord, ...] = ()
    elif batch.control:
        survivors = batch.records
    else:
        survivors = tuple(record for record in batch.records if records.keeps(record, batch))
    if not survivors:
        return emptied(batch) if actions.retain_empty[i] else None
    tombstone = batch.horizon is None and any(record.value is None for record in survivors)
    stamped = horizon if tombstone or actions.stamp_control[i] else batch.horizon
    newest = batch.max_timestamp if batch.log_append_time else max(record.timestamp for record in survivors)
    return replace(batch, records=survivors, horizon=stamped, max_timestamp=newest)


def batches_of(log: PlainLog) -> list[PlainBatch]:
    return [batch for segment in log.segments for batch in segment.batches]


CHOSEN = [
    each
    for each in all_passes()
    if each.after.cleaner["chosen"] and not each.after.cleaner["deletedSegments"] and each.before.fixture != OLD_FORMATS
]


@pytest.mark.parametrize("one", CHOSEN, ids=lambda each: each.name)
def test_a_filtered_pass_leaves_the_batches_that_kafka_left(one: Pass) -> None:
    left, staying = judged(one.before.plain, one.plain_configs, one.now_ms, random.Random(1))
    after = one.after.plain
    assert left == batches_of(after)
    cleaned = [each for each in after.segments if each.base < one.after.cleaner["endOffset"]]
    assert staying == [entry for each in cleaned for entry in each.aborted]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", first_of(range(40), 12))
def test_filtered_passes_over_random_histories_equal_the_plain_model(seed: int) -> None:
    rng = random.Random(seed)
    history = History(rng, keys=rng.choice((3, 20)), keyless=rng.choice((0.0, 0.2)), tombstones=rng.choice((0.0, 0.3)))
    log, passes = history.log, 0
    for _ in range(6):
        history.write(rng.choice((5, 30)))
        if rng.random() < 0.5:
            history.end_transactions()
        history.roll()
        history.now_ms += rng.choice((0, 2000, 30_000, 300_000))
        configs = PlainConfigs(
            segment_bytes=rng.choice((600, 5000)),
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=rng.choice((0, 10_000)),
            producer_id_expiration_ms=100_000,
            offset_map_slots=rng.choice((4, 10, 1000)),
            keep_empty_segments=rng.random() < 0.5,
        )
        if not choose(log, configs, history.now_ms).chosen:
            continue
        passes += 1
        left, staying = judged(log, configs, history.now_ms, rng)
        told = clean(log, configs, now_ms=history.now_ms)
        assert left == batches_of(log)
        assert staying == [entry for each in log.segments if each.base < told.end for entry in each.aborted]
    assert passes


@pytest.mark.parametrize("seed", range(10))
def test_the_filter_finds_the_same_aborted_data_as_kafka(seed: int) -> None:
    history = History(random.Random(seed))
    history.write(200)
    history.end_transactions()
    batches = batches_of(history.log)
    tracker = Tracker()
    tracker.add(entry for segment in history.log.segments for entry in segment.aborted)
    expected = [tracker.control(batch) and False if batch.control else tracker.data(batch) for batch in batches]
    state = state_of(history.log)
    data = b"".join(batch.to_bytes() for batch in batches)
    headers = scan_headers(data)
    assert aborted_batches(state, headers).tolist() == expected
    assert any(expected)
    # Windows can be passed in any order, because the filter has no state.
    late = np.arange(len(headers))[::-1]
    assert aborted_batches(state, headers[late]).tolist() == expected[::-1]


# --- rule by rule ----------------------------------------------------------------------------------------------------


def data_batch(base: int, last: int, producer_id: int = -1, epoch: int = 0, *, transactional: bool = True) -> bytes:
    records = (PlainRecord(base, START_MS, b"k", b"v"),)
    return PlainBatch(
        base, last, START_MS, records, transactional=transactional, producer_id=producer_id, producer_epoch=epoch
    ).to_bytes()


def marker(offset: int, producer_id: int, *, commit: bool, epoch: int = 0, horizon: int | None = None) -> bytes:
    whole = end_txn_marker(
        commit=commit,
        offset=offset,
        timestamp=START_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=0,
    )
    return replace(next(decoded(whole)), horizon=horizon, raw=None).to_bytes()


def actions(
    parts: list[bytes],
    *,
    aborted: list[Aborted] | None = None,
    producers: dict[int, ReplayedProducer] | None = None,
    now_ms: int = START_MS,
    first_uncleanable: int = 1000,
) -> tuple[BatchActions, BatchHeaders]:
    state = PartitionProducers(1000, entries(aborted or []), producers or {})
    batch_filter = BatchFilter(state, now_ms=now_ms, expiration_ms=DAY_MS, first_uncleanable=first_uncleanable)
    data = b"".join(parts)
    headers = scan_headers(data)
    return batch_filter.actions(Window(data, 0, headers, "x.log")), headers


def test_a_marker_is_kept_while_its_data_is_read() -> None:
    abort = Aborted(7, 0, 2, 3)
    found, _ = actions(
        [data_batch(0, 0, 7), data_batch(1, 1, 8), marker(2, 7, commit=False), marker(3, 8, commit=True)],
        aborted=[abort],
    )
    assert found.discard_data.tolist() == [True, False, False, False]
    assert not found.stamp_control.any()
    assert not found.drop_control.any()
    assert found.aborted.last_offsets.tolist() == [2]


def test_nontransactional_data_is_never_aborted() -> None:
    parts = [data_batch(0, 0, 7), data_batch(1, 1, 7, transactional=False), marker(2, 7, commit=False)]
    found, _ = actions(parts, aborted=[Aborted(7, 0, 2, 3)])
    assert found.discard_data.tolist() == [True, False, False]


def test_a_marker_without_data_gets_a_horizon_and_is_dropped_after_it() -> None:
    fresh = [marker(2, 7, commit=False), marker(3, 8, commit=True)]
    found, _ = actions(fresh, aborted=[Aborted(7, 0, 2, 3)])
    assert found.stamp_control.tolist() == [True, True]
    assert not found.drop_control.any()
    assert len(found.aborted) == 0
    for at, gone in ((START_MS - 1, False), (START_MS, True)):
        stamped = [marker(2, 7, commit=False, horizon=START_MS), marker(3, 8, commit=True, horizon=START_MS)]
        found, _ = actions(stamped, now_ms=at)
        assert found.drop_control.tolist() == [gone, gone]
        assert not found.stamp_control.any()


def test_a_marker_with_a_horizon_is_kept_if_its_data_is_read() -> None:
    found, _ = actions([data_batch(0, 0, 8), marker(1, 8, commit=True, horizon=1)])
    assert not found.drop_control.any()


def test_an_emptied_data_batch_keeps_its_marker() -> None:
    empty = emptied(next(decoded(data_batch(0, 3, 7)))).to_bytes()
    found, _ = actions([empty, marker(4, 7, commit=False)], aborted=[Aborted(7, 0, 4, 5)])
    assert found.discard_data.tolist() == [True, False]
    assert not found.stamp_control.any()
    assert found.aborted.last_offsets.tolist() == [4]


def test_the_second_of_two_markers_has_no_data() -> None:
    found, _ = actions([data_batch(0, 0, 8), marker(1, 8, commit=True), marker(2, 8, commit=True)])
    assert found.stamp_control.tolist() == [False, False, True]


def test_other_control_batches_are_never_touched() -> None:
    leader_change = PlainRecord(0, START_MS, b"\x00\x00\x00\x02", b"\x00\x00")
    batch = PlainBatch(0, 0, START_MS, (leader_change,), control=True)
    in_between = replace(batch, base=2, last=2, producer_id=7, transactional=True)
    parts = [batch.to_bytes(), replace(batch, base=1, last=1, horizon=1).to_bytes(), in_between.to_bytes()]
    found, _ = actions(parts, aborted=[Aborted(7, 0, 9, 10)])
    assert not (found.stamp_control | found.drop_control | found.discard_data).any()


def test_an_empty_marker_gets_no_horizon_and_is_not_a_marker() -> None:
    empty = emptied(next(decoded(marker(1, 8, commit=True)))).to_bytes()
    found, _ = actions([data_batch(0, 0, 8), empty, marker(2, 8, commit=True)])
    assert not found.stamp_control.any()
    assert found.retain_empty.tolist() == [False, False, False]


def test_the_last_data_batch_of_a_live_producer_is_retained() -> None:
    parts = [data_batch(0, 4, 7), data_batch(5, 9, 7), data_batch(10, 14, 8), data_batch(15, 19)]
    live = {7: ReplayedProducer(0, 9, START_MS, -1), 8: ReplayedProducer(0, 99, START_MS, -1)}
    assert actions(parts, producers=live)[0].retain_empty.tolist() == [False, True, False, False]
    gone = actions(parts, producers=live, now_ms=START_MS + DAY_MS)[0]
    assert not gone.retain_empty.any()
    still = {7: ReplayedProducer(0, 9, START_MS, 5)}
    assert actions(parts, producers=still, now_ms=START_MS + DAY_MS)[0].retain_empty.tolist()[1]


def test_without_data_the_markers_of_the_producers_epoch_are_retained() -> None:
    parts = [marker(0, 7, commit=True, epoch=3), marker(1, 7, commit=True, epoch=4), data_batch(2, 2, 7, 4)]
    parts += [marker(3, 6, commit=True, epoch=4), marker(4, 8, commit=True, epoch=4)]
    found, _ = actions(parts, producers={7: ReplayedProducer(4, -1, START_MS, -1)})
    assert found.retain_empty.tolist() == [False, True, False, False, False]


def test_the_last_batch_of_the_cleanable_range_is_retained() -> None:
    found, _ = actions([data_batch(0, 4), data_batch(5, 9), data_batch(10, 11)], first_uncleanable=10)
    assert found.retain_empty.tolist() == [False, True, False]


def test_without_producers_only_the_last_batch_is_retained() -> None:
    data = data_batch(0, 4, transactional=False) + data_batch(5, 9, transactional=False)
    batch_filter = BatchFilter(None, now_ms=0, expiration_ms=DAY_MS, first_uncleanable=10)
    found = batch_filter.actions(Window(data, 0, scan_headers(data), "x.log"))
    assert found.retain_empty.tolist() == [False, True]
    assert not (found.discard_data | found.drop_control | found.stamp_control).any()
    assert len(found.aborted) == 0


@pytest.mark.parametrize("wrong", [data_batch(3, 3, 7, transactional=False), marker(3, 7, commit=True)])
def test_unexpected_producers_are_an_error(wrong: bytes) -> None:
    data = data_batch(0, 2, transactional=False) + wrong
    headers = scan_headers(data)
    with pytest.raises(Corrupt, match="but the log does not list any for the slice") as caught:
        BatchFilter(None, now_ms=0, expiration_ms=DAY_MS, first_uncleanable=10).actions(
            Window(data, 0, headers, "x.log")
        )
    assert caught.value.offset == 3
    with pytest.raises(Corrupt, match="but the log does not list any for the slice"):
        aborted_batches(None, headers)


def test_an_unreadable_marker_is_reported() -> None:
    whole = bytearray(marker(3, 7, commit=True))
    whole[66:68] = b"\xff\xff"  # a negative version
    batch_filter = BatchFilter(
        PartitionProducers(9, transaction_index.none(), {}), now_ms=0, expiration_ms=DAY_MS, first_uncleanable=10
    )
    with pytest.raises(Corrupt, match="version") as caught:
        batch_filter.actions(Window(whole, 50, scan_headers(whole), "x.log"))
    assert (caught.value.file, caught.value.position, caught.value.offset) == ("x.log", 50, 3)


def test_an_empty_window_has_no_actions() -> None:
    found, _ = actions([])
    assert len(found.retain_empty) == 0


def test_plain_segments_need_no_state() -> None:
    log = PlainLog([PlainSegment(0, [next(decoded(data_batch(0, 0, transactional=False)))])], 0, 1)
    assert state_of(log) is None
