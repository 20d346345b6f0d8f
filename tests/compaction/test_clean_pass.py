"""The cleaning pass: comparison with the plain model on random logs, and additional guarantees."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.compaction import cleaner
from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.compaction.clean_work import CleanResult, CleanWork
from sparklog.compaction.run import CompactOptions
from sparklog.compaction.seal_plan import plan_sealing
from sparklog.errors import Conflict, Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.key_hash import HashKey
from sparklog.format.record_batch import BatchHeaders, BytesLike, Payloads
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.limits import DEFAULTS
from sparklog.log.journal.names import file_key
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage.local import LocalStore
from sparklog.testing.world import START_MS
from tests.compaction.histories import History
from tests.compaction.plain_cleaner import (
    Aborted,
    PlainBatch,
    PlainConfigs,
    PlainLog,
    PlainRecord,
    PlainSegment,
    Told,
    aborted_entries,
    clean,
    decoded,
)
from tests.format.old_messages import LOG_APPEND_TIME, message, messages, wrapper
from tests.support.compaction import compact_topic
from tests.support.counted_root import CountedRoot
from tests.support.records import small
from tests.support.seeds import first_of

NOW_MS = START_MS + 10_000_000
STAMPED_MS = 1_700_000_000_000
STAMPED = [
    bytes.fromhex(
        "00000000000000050000003effffffff02f53d47e20040000000000000018bcfe56be8ffffffffffffffff"
        "ffffffffffffffffffffffffffff000000011800d1afabfef9620002620100"
    ),
    bytes.fromhex(
        "00000000000000060000003affffffff0280ccdaf5000000000000ffffffffffffffffffffffffffffffff"
        "ffffffffffffffffffffffffffff00000001100000000265027800"
    ),
    bytes.fromhex(
        "00000000000000140000003effffffff02bce748270048000000000000018bcfe56be80000000000000fa0"
        "ffffffffffffffffffffffffffff0000000118008ff1aafef96200027a0100"
    ),
]
"""The output of Kafka's `MemoryRecords.filterTo` at that time: a tombstone of v0, a message of v0, and a tombstone of
v1.
"""
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "index.interval.bytes": 200}


# --- random logs against the plain model -----------------------------------------------------------------------------


def written(log: PlainLog, folder: Path) -> Path:
    """Write a log directory that contains the log as its only topic `t`."""
    partition = folder / "t-0"
    partition.mkdir(parents=True)
    for segment in log.segments:
        data = b"".join(batch.to_bytes() for batch in segment.batches)
        (partition / f"{segment.base:020d}.log").write_bytes(data)
        entries = [np.array([0], ">i2").tobytes() + _entry(each) for each in segment.aborted]
        if entries:
            (partition / f"{segment.base:020d}.txnindex").write_bytes(b"".join(entries))
    (folder / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {log.first_dirty_offset}\n")
    (folder / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {log.log_start}\n")
    return folder


def _entry(entry: Aborted) -> bytes:
    return np.array([entry.producer_id, entry.first, entry.last, entry.last_stable], ">i8").tobytes()


def topic_of(counted_root: CountedRoot, log: PlainLog, configs: PlainConfigs, folder: Path) -> Topic:
    texts = {
        "cleanup.policy": "compact",
        "segment.bytes": configs.segment_bytes,
        "segment.index.bytes": configs.segment_index_bytes,
        "index.interval.bytes": configs.index_interval_bytes,
        "min.cleanable.dirty.ratio": configs.min_cleanable_dirty_ratio,
        "min.compaction.lag.ms": configs.min_compaction_lag_ms,
        "delete.retention.ms": configs.delete_retention_ms,
    }
    import_log_dir(counted_root.root, written(log, folder), ImportOptions(configs=texts))
    return counted_root.root.topic("t")


def committed(topic: Topic, work: CleanWork) -> CleanResult:
    done = work.run()
    if done.rewrites:
        outcome = topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites, done.files))
        assert outcome.commit is not None
        assert not outcome.dropped
    return done


def state(topic: Topic) -> list[tuple[int, list[PlainBatch], list[Aborted]]]:
    """Return (base, batches, entries of the `.txnindex`) of all sealed segments."""
    slices = topic.log.snapshot().slices.all()
    found = []
    for row in np.flatnonzero(slices.sealed()).tolist():
        key = file_key("t", slices.path(row))
        index = key.removesuffix(".log") + ".txnindex"
        entries = aborted_entries(topic.store.get(index)) if topic.store.stat(index) is not None else []
        found.append((int(slices.base[row]), list(decoded(topic.store.get(key))), entries))
    return found


def random_configs(rng: random.Random) -> PlainConfigs:
    return PlainConfigs(
        segment_bytes=rng.choice((400, 900, 3000)),
        index_interval_bytes=200,
        min_cleanable_dirty_ratio=rng.choice((0.0, 0.0, 0.3)),
        min_compaction_lag_ms=rng.choice((0, 0, 400)),
        delete_retention_ms=rng.choice((0, 300, 5000)),
        producer_id_expiration_ms=86_400_000,
        offset_map_slots=rng.choice((2, 4, 9, 1000, 1000)),
        keep_empty_segments=False,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("seed", first_of(range(24), 8))
def test_random_logs_are_cleaned_by_the_rules(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    configs = random_configs(rng)
    codecs = rng.choice(((0,), (0, 2, 4), (1, 3)))
    history = History(rng, 600, keyless=rng.choice((0.0, 0.2)), codecs=codecs, append_time=rng.choice((0.0, 0.3)))
    if seed % 3 == 0:
        history.writers = history.writers[:1]
    passes = 0
    for round_ in range(6):
        history.write(rng.randrange(4, 40))
        if rng.random() < 0.3:
            history.end_transactions()
        history.roll()
        if seed % 2 and rng.random() < 0.5:
            history.delete_records()
        history.now_ms += rng.choice((0, 200, 1000, 6000, 90_000_000 if seed % 4 == 0 else 0))
        counted_root = CountedRoot("memory", tmp_path, seed=round_ + 1)
        topic = topic_of(counted_root, history.log, configs, tmp_path / f"round-{round_}")
        settings = Settings(history.now_ms, producer_expiration_ms=configs.producer_id_expiration_ms)
        works = plan_cleaning(topic.store, topic.log.snapshot(), settings, slots=configs.offset_map_slots)
        done = committed(topic, works[0]) if works else CleanResult((), (), ())
        told = clean(history.log, configs, now_ms=history.now_ms)
        history.drop_segments()
        assert bool(done.rewrites) == told.chosen
        passes += told.chosen
        if told.chosen:
            assert_told(topic, done, told)
        assert_state(topic, history.log)
    # In odd seeds, the log start moves, and may leave nothing to clean.
    assert passes > 1 or seed % 2


def assert_told(topic: Topic, done: CleanResult, told: Told) -> None:
    assert done.cleaned is not None
    assert topic.log.state().first_dirty_offset.tolist() == [told.end]
    plan, counts = done.cleaned.plan, done.cleaned.counts
    assert (plan.first_dirty, plan.first_uncleanable, plan.ratio) == (
        told.first_dirty,
        told.first_uncleanable,
        told.ratio,
    )
    assert counts.messages_written == told.messages_written
    assert counts.messages_read == told.messages_read
    assert counts.keyless_dropped == told.keyless


def assert_state(topic: Topic, log: PlainLog) -> None:
    """Compare segments, their batches and `.txnindex` entries, uncompressed bytes, and the fields of the slices."""
    closed = [segment for segment in log.segments[:-1] if segment.batches]
    found = state(topic)
    assert [base for base, _, _ in found] == [segment.base for segment in closed]
    slices = topic.log.snapshot().slices.all()
    for row, ((_, batches, entries), segment) in enumerate(zip(found, closed, strict=True)):
        assert batches == segment.batches
        for mine, other in zip(batches, segment.batches, strict=True):
            assert mine.codec or mine.raw == other.to_bytes()
        # Below the log start, an import again finds transactions whose markers Kafka's cleaner had dropped.
        assert [each for each in entries if each.last >= log.log_start] == [
            each for each in segment.aborted if each.last >= log.log_start
        ]
        data = [batch for batch in batches if not batch.control]
        assert slices.end[row] == batches[-1].last + 1
        assert slices.records[row] == sum(len(batch.records) for batch in data)
        assert slices.max_ts[row] == segment.largest_ts
        flags = SliceFlag(int(slices.flags[row]))
        assert (SliceFlag.HAS_NULL_KEYS in flags) == any(r.key is None for batch in data for r in batch.records)
        assert (SliceFlag.KAFKA_PRODUCERS in flags) == any(batch.producer_id >= 0 for batch in batches)
        assert (SliceFlag.LOG_APPEND_TIME in flags) == any(batch.log_append_time for batch in batches)
        times = [r.timestamp for batch in data for r in batch.records]
        times += [batch.max_timestamp for batch in batches if batch.control or not batch.records]
        assert slices.min_ts[row] == min(times)


# --- sparklog's own topics -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    key: bytes | None
    value: bytes | None


def append(
    topic: Topic, rows: list[Row], *, batch_bytes: int = 400, codec: str = "none", stamp: int = START_MS
) -> None:
    table = pa.table(
        {
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "timestamp": pa.array(np.arange(len(rows)) + stamp, pa.int64()),
        }
    )
    topic.append(table, options=small(codec, batch_bytes=batch_bytes))


def seal(topic: Topic) -> None:
    for work in plan_sealing(topic.store, topic.log.snapshot(), Settings(NOW_MS), roll=True):
        done = work.run()
        assert topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites, done.files)).commit is not None


def plan(topic: Topic, *, slots: int | None = None, now_ms: int = NOW_MS) -> list[CleanWork]:
    return plan_cleaning(topic.store, topic.log.snapshot(), Settings(now_ms), slots=slots)


def keyed(n: int, keys: int, *, seed: int = 1, tombstones: float = 0.1) -> list[Row]:
    rng = random.Random(seed)
    return [
        Row(b"k%d" % rng.randrange(keys), None if rng.random() < tombstones else b"%d-" % i + rng.randbytes(20))
        for i in range(n)
    ]


def contents(topic: Topic) -> list[tuple[int, bytes, bytes | None]]:
    table = topic.scan().to_table()
    return list(zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True))


def updated(counted_root: CountedRoot, parts: int = 4, **configs: object) -> Topic:
    """A topic with 200 updates of 40 keys in each of several sealed segments."""
    topic = counted_root.topic(1, {**COMPACTED, **configs})
    for part in range(parts):
        append(topic, keyed(200, 40, seed=part))
        seal(topic)
    return topic


@pytest.fixture
def counted_root(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def test_the_last_value_of_each_key_keeps_its_offset(counted_root: CountedRoot) -> None:
    topic = updated(counted_root)
    before = contents(topic)
    latest = {key: (offset, key, value) for offset, key, value in before}
    done = committed(topic, plan(topic)[0])
    assert contents(topic) == sorted(latest.values())
    (report,) = done.reports
    assert (report.records_before, report.records_after) == (len(before), len(latest))
    kept = sum(value is None for _, _, value in latest.values())
    assert report.tombstones_kept == kept
    assert report.tombstones_dropped == sum(value is None for _, _, value in before) - kept > 0
    assert report.bytes_before > report.bytes_after == int(topic.log.snapshot().slices.all().size.sum())
    assert report.dirty_ratio == 1.0
    assert not done.more


def test_tombstones_are_removed_in_two_phases(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1, {**COMPACTED, "delete.retention.ms": 1000})
    append(topic, [Row(b"a", b"1"), Row(b"b", b"1"), Row(b"a", None)])
    seal(topic)
    committed(topic, plan(topic)[0])
    assert contents(topic) == [(1, b"b", b"1"), (2, b"a", None)]
    for now_ms, left in ((NOW_MS + 999, [(1, b"b", b"1"), (2, b"a", None)]), (NOW_MS + 1000, [(1, b"b", b"1")])):
        append(topic, [Row(b"c%d" % now_ms, b"")])
        seal(topic)
        committed(topic, plan(topic, now_ms=now_ms)[0])
        assert contents(topic)[: len(left)] == left
        assert [key for _, key, _ in contents(topic)].count(b"a") == len(left) - 1


def test_tombstones_of_formats_v0_and_v1_are_removed_in_two_phases(counted_root: CountedRoot, tmp_path: Path) -> None:
    partition = tmp_path / "log" / "t-0"
    partition.mkdir(parents=True)
    old = [
        message(4, b"c", b"1", magic=0),
        message(5, b"b", None, magic=0),
        message(6, b"e", b"x", magic=0),
        wrapper(13, "gzip", messages([(0, 1000, b"a", b"1"), (1, 2000, b"d", None), (3, 3000, b"c", b"3")])),
        message(18, b"a", b"2", timestamp=3000),
        message(20, b"z", None, timestamp=4000, attributes=LOG_APPEND_TIME),
    ]
    (partition / f"{0:020d}.log").write_bytes(b"".join(old))
    (partition / f"{21:020d}.log").write_bytes(message(21, b"w", b"1"))
    import_log_dir(
        counted_root.root, tmp_path / "log", ImportOptions(configs={**COMPACTED, "delete.retention.ms": 1000})
    )
    topic = counted_root.root.topic("t")
    committed(topic, plan(topic, now_ms=STAMPED_MS)[0])
    slices = topic.log.snapshot().slices.all()
    data = topic.store.get(file_key("t", slices.path(0)))
    batches = list(decoded(data))
    assert [batches[at].raw for at in (0, 1, 4)] == STAMPED
    assert batches[2].horizon == STAMPED_MS + 1000
    assert [(record.offset, record.value) for record in batches[2].records] == [(11, None), (13, b"3")]
    append(topic, [Row(b"y", b"1")])
    seal(topic)
    committed(topic, plan(topic, now_ms=STAMPED_MS + 999)[0])
    assert [key for _, key, value in contents(topic) if value is None] == [b"b", b"d", b"z"]
    append(topic, [Row(b"x", b"1")])
    seal(topic)
    committed(topic, plan(topic, now_ms=STAMPED_MS + 1000)[0])
    assert [key for _, key, _ in contents(topic)] == [b"e", b"c", b"a", b"w", b"y", b"x"]


def test_a_delete_horizon_beyond_all_time_is_the_end_of_time(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1, {**COMPACTED, "delete.retention.ms": 2**63 - 1})
    append(topic, [Row(b"a", b"1"), Row(b"a", None)])
    seal(topic)
    committed(topic, plan(topic)[0])
    ((_, batches, _),) = state(topic)
    assert [batch.horizon for batch in batches] == [2**63 - 1]
    assert contents(topic) == [(1, b"a", None)]


def test_a_second_run_finds_nothing_to_do(counted_root: CountedRoot) -> None:
    topic = updated(counted_root)
    committed(topic, plan(topic)[0])
    version = topic.log.state().version
    assert plan(topic) == []
    assert topic.log.state().version == version


def test_one_of_two_concurrent_passes_is_committed(counted_root: CountedRoot) -> None:
    topic = updated(counted_root)
    (work,) = plan(topic)
    first, second = work.run(), work.run()
    assert {file.path for file in first.files}.isdisjoint(file.path for file in second.files)
    strip = [[replace(file, path="") for file in done.files] for done in (first, second)]
    assert strip[0] == strip[1]
    intents = [RewriteIntent(work.op, work.topic_id, done.rewrites, done.files) for done in (first, second)]
    assert topic.log.commit(intents[0]).commit is not None
    after = contents(topic)
    outcome = topic.log.commit(intents[1])
    assert outcome.commit is None
    assert len(outcome.dropped) == 1
    assert contents(topic) == after


def test_small_maps_need_several_passes_for_the_same_result(tmp_path: Path) -> None:
    ends = []
    for slots in (None, 12, 25):
        topic = updated(CountedRoot("memory", tmp_path))
        passes = 0
        while works := plan(topic, slots=slots):
            done = committed(topic, works[0])
            passes += 1
            assert done.more == (int(topic.log.state().first_dirty_offset[0]) < 800)
        assert passes == 1 if slots is None else passes > 3
        ends.append(contents(topic))
    assert ends[0] == ends[1] == ends[2]


def test_records_beyond_the_map_are_not_cleaned(counted_root: CountedRoot) -> None:
    topic = updated(counted_root)
    before = {batch.base: batch for _, batches, _ in state(topic) for batch in batches}
    records = contents(topic)
    done = committed(topic, plan(topic, slots=20)[0])
    assert done.cleaned is not None
    end = done.cleaned.end_offset
    assert 0 < end < 200
    assert [row for row in contents(topic) if row[0] >= end] == [row for row in records if row[0] >= end]
    untouched = [batch for _, batches, _ in state(topic) for batch in batches if batch.base >= 200]
    assert [batch.raw for batch in untouched] == [batch.raw for batch in before.values() if batch.base >= 200]


def test_each_pass_uses_a_new_hash_key(counted_root: CountedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = updated(counted_root)
    (work,) = plan(topic)
    used: list[set[tuple[int, int]]] = []
    real = cleaner.key_hashes

    def spy(data: object, start: object, length: object, key: HashKey) -> object:
        used[-1].add((key.low, key.high))
        return real(data, start, length, key)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaner, "key_hashes", spy)
    for _ in range(3):
        used.append(set())
        work.run()
    assert [len(each) for each in used] == [1, 1, 1]
    assert len(set.union(*used)) == 3


@pytest.mark.parametrize("tombstone", [False, True])
def test_batches_without_retained_records_are_opened_once(
    counted_root: CountedRoot, monkeypatch: pytest.MonkeyPatch, tombstone: bool
) -> None:
    topic = counted_root.topic(1, COMPACTED)
    for value in (b"1", b"2", None if tombstone else b"3", b"4"):
        append(topic, [Row(b"a", value), Row(b"b", b"x")])
    seal(topic)
    opened, real = list[int](), cleaner.payloads

    def noted(data: BytesLike, headers: BatchHeaders, **how: Any) -> Payloads:
        opened.extend(headers.base_offset.tolist())
        return real(data, headers, **how)

    monkeypatch.setattr(cleaner, "payloads", noted)
    done = committed(topic, plan(topic)[0])
    assert opened == [0, 2, 4, 6, *((0, 2, 4, 6) if tombstone else (6,))], "a tombstone that goes is counted"
    (report,) = done.reports
    assert (report.records_before, report.records_after, report.tombstones_dropped) == (8, 2, int(tombstone))
    assert done.cleaned is not None
    assert (done.cleaned.counts.messages_read, done.cleaned.counts.messages_written) == (8, 2)
    append(topic, [Row(b"a", b"5")])
    seal(topic)
    committed(topic, plan(topic)[0])
    assert contents(topic) == [(7, b"b", b"x"), (8, b"a", b"5")]


def test_keyless_records_are_dropped_and_counted(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1, {"index.interval.bytes": 200})
    append(topic, [Row(None, b"x"), Row(b"a", b"1"), Row(None, None), Row(b"a", b"2")])
    seal(topic)
    assert plan(topic) == []
    settings = Settings(NOW_MS, defaults={"cleanup.policy": "compact"})
    (work,) = plan_cleaning(topic.store, topic.log.snapshot(), settings)
    done = committed(topic, work)
    assert contents(topic) == [(3, b"a", b"2")]
    assert done.reports[0].keyless_dropped == 2
    assert done.reports[0].tombstones_dropped == 1
    assert topic.log.snapshot().slices.all().flags.tolist() == [0]


# --- damage, races, bounds -------------------------------------------------------------------------------------------


def sealed_keys(topic: Topic) -> list[str]:
    slices = topic.log.snapshot().slices.all()
    return [file_key(topic.name, slices.path(row)) for row in np.flatnonzero(slices.sealed()).tolist()]


def in_a_record(data: bytes) -> int:
    headers = scan_headers(data)
    return int(headers.position[len(headers) // 2]) + 90


def in_a_base_offset(data: bytes) -> int:
    headers = scan_headers(data)
    return int(headers.position[len(headers) // 2]) + 5


def in_a_leader_epoch(data: bytes) -> int:
    headers = scan_headers(data)
    return int(headers.position[len(headers) // 2]) + 15


def in_a_length(data: bytes) -> int:
    headers = scan_headers(data)
    return int(headers.position[len(headers) // 2]) + 8


@pytest.mark.parametrize("where", [in_a_record, in_a_base_offset, in_a_leader_epoch, in_a_length])
@pytest.mark.parametrize("part", ["clean", "dirty"])
def test_damage_is_reported_and_nothing_is_committed(
    counted_root: CountedRoot, where: Callable[[bytes], int], part: str
) -> None:
    topic = updated(counted_root, parts=2)
    committed(topic, plan(topic)[0])
    for seed in (7, 8, 9):
        append(topic, keyed(200, 40, seed=seed))
        seal(topic)
    keys = sealed_keys(topic)
    assert len(keys) >= 4
    key = keys[1 if part == "clean" else 3]
    data = bytearray(counted_root.inner.get(key))
    at = where(bytes(data))
    headers = scan_headers(bytes(data))
    data[at] ^= 1
    counted_root.inner.replace(key, bytes(data))  # type: ignore[attr-defined]
    (work,) = plan(topic)
    before, version = topic.log.snapshot().slices.all().base.tolist(), topic.log.state().version
    with pytest.raises(Corrupt) as caught:
        work.run()
    assert caught.value.file == key
    assert caught.value.position is not None
    if where is not in_a_leader_epoch:
        # The error contains the batch or the position in the batch. For a byte that no CRC-32C covers, it contains only
        # the segment.
        batch = len(headers) // 2
        assert headers.position[batch] <= caught.value.position < headers.position[batch] + headers.size[batch]
    assert topic.log.state().version == version
    assert topic.log.snapshot().slices.all().base.tolist() == before


def test_a_deleted_segment_requires_a_new_plan(counted_root: CountedRoot) -> None:
    topic = updated(counted_root)
    (work,) = plan(topic)
    counted_root.inner.delete(sealed_keys(topic)[2])
    with pytest.raises(Conflict, match="run the compaction again"):
        work.run()


def test_a_failing_store_leaves_no_half_segment(counted_root: CountedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = updated(counted_root)
    (work,) = plan(topic)
    before = {item.key for item in counted_root.inner.list("t/")}
    real = cleaner.filter_batches
    calls = iter(range(100))

    def failing(*arguments: object, **options: object) -> object:
        if next(calls) == 2:
            raise OSError("the disk is on fire")
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaner, "filter_batches", failing)
    with pytest.raises(OSError, match="fire"):
        work.run()
    left = {item.key for item in counted_root.inner.list("t/")} - before
    assert not any(key.endswith(".log") and key[:-3] + "index" not in left for key in left)


def test_progress_counts_read_bytes(counted_root: CountedRoot) -> None:
    topic = updated(counted_root)
    size = int(topic.log.snapshot().slices.all().size.sum())
    seen: list[tuple[int, int]] = []
    done = plan(topic)[0].run(lambda records, nbytes: seen.append((records, nbytes)))
    assert sum(nbytes for _, nbytes in seen) == 2 * size
    assert sum(records for records, _ in seen) == 2 * done.reports[0].records_before


def test_a_work_item_can_be_pickled(tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    topic = updated(counted_root)
    (work,) = plan_cleaning(counted_root.inner, topic.log.snapshot(), Settings(NOW_MS))
    assert (work.op, work.title, work.partitions) == ("compact", "compact t-0", (0,))
    assert work.nbytes == int(topic.log.snapshot().slices.all().size.sum())
    done = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(work)).run()))
    assert [replace(file, path="") for file in done.files] == [replace(file, path="") for file in work.run().files]


def test_the_dirtiest_partition_comes_first(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(3, {**COMPACTED, "min.cleanable.dirty.ratio": 0.1})
    for turn, keys in enumerate((range(60), range(60), range(20), range(5))):
        append(topic, [Row(b"k%d" % key, b"%d" % turn * 30) for key in keys])
        seal(topic)
        if turn == 1:
            for work in plan(topic):
                committed(topic, work)
    works = plan(topic)
    ratios = [work.ratio for work in works]
    assert len(works) > 1
    assert ratios == sorted(ratios, reverse=True)
    assert len(set(ratios)) > 1


def test_only_compacted_topics_are_cleaned(counted_root: CountedRoot) -> None:
    topic = updated(counted_root)
    topic.alter(configs={"cleanup.policy": "delete"})
    assert plan(topic) == []


def test_segments_below_the_log_start_are_not_referenced(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1, {**COMPACTED, "cleanup.policy": "compact,delete", "segment.bytes": 300})
    append(topic, [Row(b"only-%d" % i, b"x") for i in range(8)])
    append(topic, [Row(b"a", b"1"), Row(b"b", b"1")])
    seal(topic)
    append(topic, [Row(b"a", b"2"), Row(b"b", b"2")])
    seal(topic)
    assert topic.log.snapshot().slices.all().base.tolist() == [0, 10]
    topic.delete_records({0: 8})
    done = committed(topic, plan(topic)[0])
    assert [file.base for file in done.files] == [(10,)]
    assert topic.log.snapshot().slices.all().base.tolist() == [10]
    assert contents(topic) == [(10, b"a", b"2"), (11, b"b", b"2")]
    assert topic.log.state().first_dirty_offset.tolist() == [12]


def test_a_log_without_keys_becomes_an_empty_batch(counted_root: CountedRoot) -> None:
    """The last batch of the range is kept as an empty batch, so that the log end can be determined from the batches."""
    topic = counted_root.topic(1, {"index.interval.bytes": 200})
    for _ in range(3):
        append(topic, [Row(None, b"x"), Row(None, b"y")])
    seal(topic)
    settings = Settings(NOW_MS, defaults={"cleanup.policy": "compact"})
    (work,) = plan_cleaning(topic.store, topic.log.snapshot(), settings)
    committed(topic, work)
    assert contents(topic) == []
    ((base, batches, _),) = state(topic)
    assert (base, [(batch.base, batch.last, batch.records) for batch in batches]) == (0, [(4, 5, ())])
    slices = topic.log.snapshot().slices.all()
    assert (slices.base.tolist(), slices.end.tolist(), slices.records.tolist()) == ([0], [6], [0])
    assert topic.log.state().first_dirty_offset.tolist() == [6]


def test_a_full_index_starts_a_new_segment(counted_root: CountedRoot) -> None:
    topic = updated(counted_root, parts=1, **{"segment.index.bytes": 10_000})
    many = len(contents(topic))
    topic.alter(configs={"segment.index.bytes": 36})
    latest = {row[1]: row for row in contents(topic)}
    committed(topic, plan(topic)[0])
    slices = topic.log.snapshot().slices.all()
    assert len(slices) > 1
    for row in range(len(slices)):
        stem = file_key("t", slices.path(row)).removesuffix(".log")
        assert len(counted_root.inner.get(f"{stem}.index")) <= 36
        assert len(counted_root.inner.get(f"{stem}.timeindex")) <= 36
    assert contents(topic) == sorted(latest.values())
    assert len(contents(topic)) < many


def test_append_times_are_preserved(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1, {**COMPACTED, "message.timestamp.type": "LogAppendTime"})
    append(topic, [Row(b"a", b"1"), Row(b"b", b"1")])
    counted_root.world.now_ms += 5000
    append(topic, [Row(b"a", b"2"), Row(b"a", b"3")])
    seal(topic)
    stamps = dict(zip(*times(topic), strict=True))
    committed(topic, plan(topic)[0])
    offsets, after = times(topic)
    assert offsets == [1, 3]
    assert after == [stamps[1], stamps[3]]
    slices = topic.log.snapshot().slices.all()
    assert slices.flags.tolist() == [int(SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES)]
    assert (slices.min_ts.tolist(), slices.max_ts.tolist()) == ([min(after)], [max(after)])


def times(topic: Topic) -> tuple[list[int], list[int]]:
    table = topic.scan().to_table()
    return table["offset"].to_pylist(), table["timestamp"].cast(pa.int64()).to_pylist()


def test_large_batches_are_opened_one_by_one(counted_root: CountedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = counted_root.topic(1, COMPACTED)
    append(topic, keyed(2000, 300), codec="lz4", batch_bytes=3000)
    seal(topic)
    latest = {row[1]: row for row in contents(topic)}
    with monkeypatch.context() as context:
        context.setattr("sparklog.format.payloads.CALL_LIMIT", 8000)
        committed(topic, plan(topic)[0])
    assert contents(topic) == sorted(latest.values())


class Watched:
    """A store that records the largest read."""

    def __init__(self, inner: LocalStore) -> None:
        self.inner = inner
        self.largest = 0

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = self.inner.get(key, start, length)
        self.largest = max(self.largest, len(data))
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_memory_is_limited_to_a_few_windows(codec: str, tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    topic = counted_root.topic(1, COMPACTED)
    value = b"x" * 4000 if codec != "none" else random.Random(1).randbytes(4000)
    for part in range(4):
        append(
            topic, [Row(b"%d" % (i % 3000), value) for i in range(part, part + 4000)], batch_bytes=500_000, codec=codec
        )
    seal(topic)
    store = Watched(counted_root.inner)  # type: ignore[arg-type]
    (work,) = plan_cleaning(store, topic.log.snapshot(), Settings(NOW_MS))  # type: ignore[arg-type]
    work.run()
    tracemalloc.start()
    try:
        done = work.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.reports[0].records_before == 16_000
    assert done.reports[0].records_after == 3000
    assert store.largest <= DEFAULTS.span_bytes
    # 64 MB of records are processed, but memory contains only a window, its records and its output.
    assert peak < 5 * DEFAULTS.span_bytes


def test_a_checkpoint_beyond_the_log_end_does_not_restore_deleted_keys(tmp_path: Path) -> None:
    """Kafka then treats the whole log as dirty. If it were treated as clean, the tombstone would be dropped, but not
    the records that it deletes.
    """

    def one(offset: int, value: bytes | None) -> PlainBatch:
        record = PlainRecord(offset, START_MS, b"k", value)
        return PlainBatch(base=offset, last=offset, max_timestamp=START_MS, records=(record,))

    log = PlainLog(
        [PlainSegment(0, [one(0, b"v"), one(1, None)]), PlainSegment(2, [])],
        log_start=0,
        log_end=2,
        first_dirty_offset=3,
    )
    counted_root = CountedRoot("memory", tmp_path)
    topic = topic_of(
        counted_root, log, PlainConfigs(min_cleanable_dirty_ratio=0.0, delete_retention_ms=0), tmp_path / "kafka"
    )
    for n in range(3):
        topic.append(pa.table({"key": [b"other"], "value": [b"%d" % n]}))
        assert not compact_topic(topic, Settings(NOW_MS + n), InProcess(), CompactOptions(roll=True)).failures
        assert b"v" not in topic.scan().to_table()["value"].to_pylist()
    assert topic.scan().to_table()["key"].to_pylist() == [b"other"]


def test_a_missing_segment_does_not_block_other_partitions(tmp_path: Path) -> None:
    """If `max.compaction.lag.ms` is set, the plan reads each segment."""
    counted_root = CountedRoot("memory", tmp_path)
    topic = counted_root.topic(2, {**COMPACTED, "max.compaction.lag.ms": 1000})
    topic.append(pa.table({"key": [b"a"] * 4, "value": [b"x"] * 4, "partition": pa.array([0, 1] * 2, pa.int32())}))
    compact_topic(topic, Settings(NOW_MS), InProcess(), CompactOptions(seal_only=True, roll=True))
    missing = file_key("t", topic.log.snapshot().slices.select(0).path(0))
    counted_root.inner.delete(missing)
    report = compact_topic(topic, Settings(NOW_MS), InProcess())
    assert [(piece.action, piece.partition) for piece in report.work] == [("compact", 1)]
    assert [failure.partitions for failure in report.failures] == [(0,)]
    assert missing in report.failures[0].message
