"""Kafka's transactions in imported topics: both isolation levels, before and after merging, sealing and cleaning."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import BadRequest, Conflict, Corrupt
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView, is_internal
from sparklog.limits import Limits
from sparklog.log.journal.names import file_key
from sparklog.log.read.topic_scan import Tail
from sparklog.log.state.invariants import check_state
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from tests.compaction.fixture_stages import PARTITION, Pass, passes
from tests.compaction.histories import History
from tests.compaction.plain_cleaner import PlainBatch, decoded
from tests.compaction.test_fixture_passes import PASSES, cleaned_once, imported
from tests.compaction.transaction_model import Seen, Visible, visible
from tests.fixture_data import (
    expected_offsets,
    expected_records,
    fixture_tree,
    partitions,
    split_partition,
)
from tests.kafka.logs import batch, marker, read_topic, without_epochs, write_partition
from tests.support.compaction import compact_topic, merge_tier
from tests.support.counted_root import CountedRoot
from tests.support.seeds import first_of

LEVELS = (READ_COMMITTED, READ_UNCOMMITTED)
NAMES = ("transactions", "transactions-tv0", "compaction-by-broker")
AGED = 10 * 365 * 86_400_000
"""A time that is later than any record by more than `segment.ms`."""


def stages() -> list[tuple[str, str]]:
    """Return all stages of the fixtures with transactions, and all stages of the cleaner."""
    tree = fixture_tree()
    names = [*NAMES, *(f"compaction/{path.name}" for path in sorted((tree / "compaction").iterdir()))]
    return [
        (name, stage.name)
        for name in names
        for stage in sorted((tree / name).iterdir())
        if stage.is_dir() and stage.name != "expected"
    ]


@pytest.fixture
def counted_root(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def seen(topic: Topic, isolation: str, partition: int = 0, **options: int) -> list[Seen]:
    found = topic.scan(partitions=[partition], isolation_level=isolation, columns=("offset", "key", "value"), **options)
    return [(row["offset"], row["key"], row["value"]) for row in found.to_table().to_pylist()]


def own_partitions(folder: Path) -> list[tuple[str, str, int]]:
    """Return (directory name, topic, partition) of all partitions, except partitions of Kafka's internal topics."""
    named = [(name, *split_partition(name)) for name in partitions(folder)]
    return [each for each in named if not is_internal(each[1])]


def sealed_by_now(topic: Topic) -> None:
    """Seal and merge as much as possible, and check that the topic is intact."""
    report = compact_topic(topic, Settings(topic.root.env.wall_ms() + AGED), InProcess(), CompactOptions(roll=True))
    assert not report.failures
    snapshot = topic.log.snapshot()
    check_state(snapshot.state, snapshot.slices)


# -- fixtures


@pytest.mark.parametrize(("fixture", "stage"), stages())
def test_imported_fixtures_read_as_kafkas_consumer_reads_them(
    fixtures: Path, counted_root: CountedRoot, fixture: str, stage: str
) -> None:
    folder = fixtures / fixture / stage
    import_log_dir(counted_root.root, folder)
    facts = expected_offsets(fixtures / fixture, stage)
    for sealed in (False, True):
        for name, topic_name, number in own_partitions(folder):
            topic = counted_root.root.topic(topic_name)
            if sealed:
                sealed_by_now(topic)
            assert int(topic.log.state().last_stable()[number]) == facts[name]["lastStableOffset"]
            for isolation in LEVELS:
                expected = without_epochs(expected_records(fixtures / fixture, name, isolation, stage))
                assert read_topic(topic, number, isolation) == expected, (name, isolation, sealed)


@pytest.mark.parametrize("fixture", ["transactions", "transactions-tv0"])
def test_the_fixtures_contain_the_required_cases(fixtures: Path, fixture: str) -> None:
    facts = expected_offsets(fixtures / fixture)
    held = [name for name, own in facts.items() if own["lastStableOffset"] < own["highWatermark"]]
    assert {"txn-a-0", "txn-b-1"} <= set(held)
    committed, every = (expected_records(fixtures / fixture, "txn-a-0", level) for level in LEVELS)
    stable = facts["txn-a-0"]["lastStableOffset"]
    assert len([record for record in every if record.offset < stable]) > len(committed) > 0


@pytest.mark.parametrize("name", sorted(PASSES))
def test_cleaned_logs_read_like_logs_cleaned_by_kafka(fixtures: Path, counted_root: CountedRoot, name: str) -> None:
    each: Pass = PASSES[name]
    topic = imported(counted_root, each.before)
    cleaned_once(topic, each)
    folder = fixtures / "compaction" / each.before.fixture
    log_start = each.after.log_start
    for isolation in LEVELS:
        expected = without_epochs(expected_records(folder, PARTITION, isolation, each.after.name))
        found = read_topic(topic, 0, isolation)
        assert [record for record in found if record.offset >= log_start] == expected, isolation


@pytest.mark.parametrize(("fixture", "stage"), [each for each in stages() if each[0] in NAMES])
def test_offsets_by_time_agree_with_kafka(fixtures: Path, counted_root: CountedRoot, fixture: str, stage: str) -> None:
    folder = fixtures / fixture / stage
    import_log_dir(counted_root.root, folder)
    view, own = KafkaView(folder), RootView(counted_root.root)
    asked = 0
    for sealed in (False, True):
        for name, topic_name, number in own_partitions(folder):
            if sealed:
                sealed_by_now(counted_root.root.topic(topic_name))
            own.refresh([topic_name])
            for question in expected_offsets(fixtures / fixture, stage)[name]["offsetsForTimes"]:
                for isolation in LEVELS:
                    target = {number: question["target"]}
                    (answer,) = own.offsets_for_timestamps(topic_name, target, isolation).values()
                    assert {number: answer} == view.offsets_for_timestamps(topic_name, target, isolation)
                    told = question[isolation]
                    # Kafka finds no record if an empty segment precedes (see the README of the fixtures).
                    if told.get("offset", -1) >= 0:
                        assert (answer.offset, answer.timestamp) == (told["offset"], told["timestamp"])
                        asked += 1
    assert asked


# -- random logs


def log_dir(history: History, folder: Path, shift: int = 0) -> Path:
    """Write the history as a log directory of topic t with one partition."""
    write_partition(
        folder, "t-0", {each.base: b"".join(b.raw or b"" for b in each.batches) for each in history.log.segments}
    )
    for each in history.log.segments:
        if each.aborted and history.rng.random() < 0.5:
            entries = b"".join(
                b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (a.producer_id, a.first, a.last, a.last_stable))
                for a in each.aborted
            )
            (folder / "t-0" / f"{each.base:020}.txnindex").write_bytes(entries)
    return folder


def model_of(history: History) -> Visible:
    batches: list[PlainBatch] = [batch for each in history.log.segments for batch in each.batches]
    return visible(batches, history.log.log_end)


def check(topic: Topic, expected: Visible, rng: random.Random) -> None:
    """Check the whole log and some ranges, whose markers may be after the range."""
    assert int(topic.log.state().last_stable()[0]) == expected.last_stable
    assert seen(topic, READ_UNCOMMITTED) == expected.uncommitted
    assert seen(topic, READ_COMMITTED) == expected.committed
    for _ in range(5):
        low, high = sorted(rng.randrange(expected.last_stable + 1) for _ in range(2))
        found = seen(topic, READ_COMMITTED, start=low, end=high)
        assert found == [each for each in expected.committed if low <= each[0] < high]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", first_of(range(25), 4))
def test_random_logs_at_every_step(counted_root: CountedRoot, tmp_path: Path, seed: int) -> None:
    if seed % 2:
        # Read in windows, starting at index positions.
        counted_root.store.limits = Limits(span_bytes=400, index_min_bytes=500)
    rng = random.Random(seed)
    history = History(rng, segment_bytes=rng.choice((300, 900, 4000)), codecs=(0, 4) if seed % 3 else (0,))
    history.write(rng.choice((10, 60, 150)))
    if seed % 4 == 0:
        history.end_transactions()
    import_log_dir(
        counted_root.root,
        log_dir(history, tmp_path / "kafka"),
        ImportOptions(configs={"segment.bytes": 3000}, force=True),
    )
    topic = counted_root.root.topic("t")
    expected = model_of(history)
    check(topic, expected, rng)
    sealed_by_now(topic)
    check(topic, expected, rng)
    left = topic.log.state().kafka_open
    assert bool(left) == (expected.last_stable < history.log.log_end)
    if left:
        # End the transactions one by one, as Kafka's coordinator would.
        for each in left:
            kind = rng.choice((True, False))
            assert topic.end_kafka_transactions(producers=[each.producer], commit=kind) == (each,)
            writer = next(w for w in history.writers if w.producer_id == each.producer)
            history.end_transaction(writer, int(kind))
            expected = model_of(history)
            check(topic, expected, rng)
    appended = topic.append(pa.table({"key": [b"new"], "value": [b"native"]}))
    native = (appended.base[0], b"new", b"native")
    expected = Visible([*expected.uncommitted, native], [*expected.committed, native], appended.end[0])
    check(topic, expected, rng)
    compact_topic(topic, Settings(0), InProcess())
    check(topic, expected, rng)
    sealed_by_now(topic)
    assert topic.log.snapshot().slices.all().sealed().all()
    check(topic, expected, rng)


@pytest.mark.parametrize("seed", first_of(range(10), 4))
def test_cleaning_hides_aborted_records_and_keeps_the_latest(
    counted_root: CountedRoot, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(100 + seed)
    history = History(rng, tombstones=0.0)
    history.write(120)
    configs = {"segment.bytes": 900, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    import_log_dir(counted_root.root, log_dir(history, tmp_path / "kafka"), ImportOptions(configs=configs, force=True))
    topic = counted_root.root.topic("t")
    before = model_of(history)
    for later in (1, 2):
        report = compact_topic(
            topic, Settings(history.now_ms + later * AGED), InProcess(), CompactOptions(roll=later == 2)
        )
        assert not report.failures
        found = seen(topic, READ_COMMITTED)
        assert set(found) <= set(before.committed)
        latest = {key: offset for offset, key, _ in before.committed}
        assert latest == {key: offset for offset, key, _ in found}
        assert int(topic.log.state().last_stable()[0]) == before.last_stable
        assert [each for each in seen(topic, READ_UNCOMMITTED) if each[0] >= before.last_stable] == [
            each for each in before.uncommitted if each[0] >= before.last_stable
        ]


def test_merged_slices_contain_their_aborted_transactions(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = opened(counted_root, tmp_path)
    topic.append(pa.table({"value": [b"new"] * 3, "partition": pa.array([0, 1, 2], pa.int32())}))
    compact_topic(topic, Settings(0), InProcess())
    slices = topic.log.snapshot().slices.select(0)
    assert slices.sealed().tolist() == [True, False]
    assert merge_tier(int(slices.flags[1])) > 0
    assert int(slices.flags[1]) & SliceFlag.KAFKA_ABORTED
    assert [values(topic, partition) for partition in range(3)] == [[b"a", b"c", b"new"], [b"new"], [b"g", b"new"]]
    sealed_by_now(topic)
    assert [values(topic, partition) for partition in range(3)] == [[b"a", b"c", b"new"], [b"new"], [b"g", b"new"]]


# -- open transactions

OPEN = {
    0: batch(0, [b"a"]) + batch(1, [b"b"], producer=7) + batch(2, [b"c"]),
    3: batch(3, [b"d"], producer=8) + marker(4, 8, commit=False) + batch(5, [b"e"], producer=9),
}


def opened(counted_root: CountedRoot, tmp_path: Path, **options: str) -> Topic:
    write_partition(tmp_path / "kafka", "t-0", OPEN)
    write_partition(tmp_path / "kafka", "t-1", {0: batch(0, [b"f"], producer=7)})
    write_partition(tmp_path / "kafka", "t-2", {0: batch(0, [b"g"])})
    import_log_dir(counted_root.root, tmp_path / "kafka", ImportOptions(**options))
    return counted_root.root.topic("t")


def values(topic: Topic, partition: int = 0, isolation: str = READ_COMMITTED) -> list[bytes | None]:
    return [value for _, _, value in seen(topic, isolation, partition)]


def test_open_transactions_hold_back_readers_until_they_are_ended(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = opened(counted_root, tmp_path)
    assert topic.log.state().last_stable().tolist() == [1, 0, 1]
    assert values(topic) == [b"a"]
    assert values(topic, isolation=READ_UNCOMMITTED) == [b"a", b"b", b"c", b"d", b"e"]
    described = topic.describe().kafka_open
    assert [(each.partition, each.producer, each.first) for each in described] == [(0, 7, 1), (0, 9, 5), (1, 7, 0)]
    assert topic.end_kafka_transactions(producers=[7]) == (described[0], described[2])
    assert topic.log.state().last_stable().tolist() == [5, 2, 1]
    assert (values(topic), values(topic, 1)) == ([b"a", b"c"], [])
    assert topic.end_kafka_transactions(commit=True) == (described[1],)
    assert topic.end_kafka_transactions() == ()
    assert values(topic) == [b"a", b"c", b"e"]
    assert topic.log.state().last_stable().tolist() == topic.log.state().log_end.tolist() == [8, 2, 1]


def test_the_markers_are_those_of_kafkas_coordinator(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = opened(counted_root, tmp_path)
    topic.end_kafka_transactions()
    slices = topic.log.snapshot().slices.select(0)
    data = topic.store.get(file_key("t", slices.path(2)), int(slices.position[2]), int(slices.size[2]))
    found = list(decoded(data))
    assert [(each.base, each.producer_id, each.producer_epoch, each.control) for each in found] == [
        (0, 7, 1, True),
        (1, 9, 1, True),
    ]
    assert int(slices.flags[2]) == SliceFlag.KAFKA_PRODUCERS | SliceFlag.KAFKA_ABORTED


def test_an_append_first_ends_open_transactions(
    counted_root: CountedRoot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = opened(counted_root, tmp_path)
    assert topic.append(pa.table({"value": ["new"], "partition": pa.array([0], pa.int32())})).base == {0: 8}
    assert [values(topic, partition) for partition in range(3)] == [[b"a", b"c", b"new"], [], [b"g"]]
    assert "aborted the open Kafka transaction of producer 9 in partition 0, from offset 5" in caplog.text
    assert topic.log.state().kafka_open == ()
    version = topic.log.state().version
    topic.append(pa.table({"value": ["more"]}))
    assert topic.log.state().version == version + 1


def test_the_import_can_abort_or_reject_open_transactions(counted_root: CountedRoot, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=r"topic t has 3 open transactions \(first: the open Kafka"):
        opened(counted_root, tmp_path, open_transactions="refuse")
    assert [item.key for item in counted_root.inner.list("t/") if "/_log/" not in item.key] == []
    assert counted_root.root.topics() == []
    with pytest.raises(BadRequest, match="one of keep, abort, refuse, found 'drop'"):
        opened(counted_root, tmp_path, open_transactions="drop")
    topic = opened(counted_root, tmp_path, open_transactions="abort")
    assert topic.log.state().kafka_open == ()
    assert values(topic) == [b"a", b"c"]


def test_open_transactions_survive_a_checkpoint(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = opened(counted_root, tmp_path)
    topic.log.refresh()
    topic.log.write_checkpoint()
    again = counted_root.reopened()
    assert again.log.state().kafka_open == topic.log.state().kafka_open
    assert again.log.state() == topic.log.state()
    topic.delete_records({0: 4})
    assert topic.log.state().last_stable().tolist() == [4, 0, 1]
    topic.delete_records({0: 6, 1: 1})
    assert topic.log.state().kafka_open == ()
    assert topic.log.state().last_stable().tolist() == [6, 1, 1]


def test_concurrent_ends_write_one_marker(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic, other = opened(counted_root, tmp_path), counted_root.reopened()
    hit: list[Callable[[], object]] = [lambda: other.end_kafka_transactions(producers=[9])]
    real = topic.log.commit

    def late(intent: object, origin: object = None) -> object:
        if hit:
            hit.pop()()
        return real(intent, origin)  # type: ignore[arg-type]

    topic.log.commit = late  # type: ignore[method-assign,assignment]
    assert [each.producer for each in topic.end_kafka_transactions()] == [7, 7]
    assert topic.log.state().log_end.tolist() == [8, 2, 1]
    assert values(topic) == [b"a", b"c"]


def test_a_tail_stops_at_the_last_stable_offset(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = opened(counted_root, tmp_path)
    tail = Tail(RootView(counted_root.root), "t", READ_COMMITTED, partition=0)
    tail.open()
    tail.start_at_log_start()

    def polled() -> list[bytes]:
        tail.refresh()
        return [value for found in tail.poll(("value",)) for value in found["value"].to_pylist()]

    assert polled() == [b"a"]
    assert polled() == []
    assert tail.positions == {0: 1}
    topic.end_kafka_transactions(producers=[7], commit=True)
    # The records are read after the commit. Records that another transaction still holds back are read later.
    assert polled() == [b"b", b"c"]
    topic.append(pa.table({"value": ["new"], "partition": pa.array([0], pa.int32())}))
    assert polled() == [b"new"]


# -- requests and damage


def long_log(counted_root: CountedRoot, tmp_path: Path, segments: int = 60) -> Topic:
    """Return a log in which each segment has a committed and an aborted record with their markers. The last segment is
    active.
    """
    logs = {}
    for base in range(0, 4 * segments, 4):
        logs[base] = (
            batch(base, [b"c%d" % base], producer=1)
            + batch(base + 1, [b"a%d" % base], producer=2)
            + marker(base + 2, 2, commit=False)
            + marker(base + 3, 1, commit=True)
        )
    write_partition(tmp_path / "kafka", "t-0", logs)
    import_log_dir(counted_root.root, tmp_path / "kafka")
    return counted_root.root.topic("t")


def test_a_plan_reads_each_object_once(counted_root: CountedRoot, tmp_path: Path) -> None:
    long_log(counted_root, tmp_path)
    view = RootView(counted_root.root)
    view.refresh(["t"])
    counted_root.store.reset()
    view.plan([OffsetRange("t", 0, 0, 240)], READ_UNCOMMITTED)
    assert not counted_root.store.keys
    (part,) = view.plan([OffsetRange("t", 0, 120, 124)], READ_COMMITTED)
    # Three index files of each segment are read, because their checksum covers all of them.
    assert len(counted_root.store.keys) == 3 * 16
    assert [value for found in part.read(("value",)) for value in found["value"].to_pylist()] == [b"c120"]
    counted_root.store.reset()
    view.plan([OffsetRange("t", 0, at, at + 4) for at in range(0, 240, 4)], READ_COMMITTED)
    assert len(counted_root.store.keys) == 3 * (59 - 16) + 1, "the active segment has a footer"
    counted_root.store.reset()
    parts = view.plan([OffsetRange("t", 0, 0, 240)], READ_COMMITTED)
    assert not counted_root.store.keys
    found = [value for each in parts for read in each.read(("value",)) for value in read["value"].to_pylist()]
    assert found == [b"c%d" % base for base in range(0, 240, 4)]


def test_other_topics_require_no_requests(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(4)
    topic.append(pa.table({"value": [b"x"] * 20}))
    view = RootView(counted_root.root)
    view.refresh(["t"])
    counted_root.store.reset()
    ranges = [OffsetRange("t", p, b.log_start, b.end(READ_COMMITTED)) for p, b in view.bounds("t").items()]
    view.plan(ranges, READ_COMMITTED)
    assert not counted_root.store.keys


@pytest.mark.parametrize("kind", ["missing", "cut", "of another segment"])
def test_a_damaged_transaction_index_does_not_expose_aborted_records(
    counted_root: CountedRoot, tmp_path: Path, kind: str
) -> None:
    topic = long_log(counted_root, tmp_path, 4)
    first, second = sorted(item.key for item in counted_root.inner.list("t/sealed/") if item.key.endswith(".txnindex"))[
        :2
    ]
    if kind == "missing":
        counted_root.inner.delete(first)
    else:
        data = counted_root.inner.get(first)[:-1] if kind == "cut" else counted_root.inner.get(second)
        counted_root.inner.replace(first, data)  # type: ignore[attr-defined]
    with pytest.raises(Corrupt) as caught:
        topic.scan().to_table()
    assert caught.value.file in (first, first.replace(".txnindex", ".log"))
    assert len(seen(topic, READ_UNCOMMITTED)) == 8


def test_a_wrong_transaction_index_of_kafka_is_ignored(counted_root: CountedRoot, tmp_path: Path) -> None:
    logs = {0: batch(0, [b"a"], producer=1) + marker(1, 1, commit=True), 2: batch(2, [b"b"])}
    folder = write_partition(tmp_path / "kafka", "t-0", logs)
    entry = b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (1, 0, 1, 2))
    (folder / f"{0:020}.txnindex").write_bytes(entry)
    import_log_dir(counted_root.root, tmp_path / "kafka")
    assert values(counted_root.root.topic("t")) == [b"a", b"b"]


def test_a_replanned_read_skips_aborted_records(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = long_log(counted_root, tmp_path, 8)
    scan = topic.scan(columns=("value",))
    expected = scan.to_table()
    old = {item.key for item in counted_root.inner.list("t/")}
    snapshot = topic.log.snapshot()
    # The whole log is rolled into larger segments, and the files of the plan are deleted.
    topic.alter(configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}, force=True)
    topic.log.commit(rewritten(topic))
    for key in old - {item.key for item in counted_root.inner.list("t/") if "/_log/" in item.key}:
        counted_root.inner.delete(key)
    assert topic.log.snapshot().version > snapshot.version
    assert scan.to_table() == expected


def rewritten(topic: Topic) -> RewriteIntent:
    """Return every slice in one segment, as written by a cleaner that retains all records."""
    from sparklog.compaction.segment_writer import SegmentWriter
    from sparklog.format.batch_scan import scan_headers
    from sparklog.format.transaction_index import concatenate, parse
    from sparklog.log.read.planned_slices import planned_slices
    from sparklog.log.state.commit import COMPACT, Edit
    from sparklog.log.state.rewrites import Rewrite

    snapshot = topic.log.snapshot()
    state, sources = snapshot.state, planned_slices("t", 0, snapshot.slices.select(0))
    writer = SegmentWriter(topic.store, "t", 0, state.version, "run", state.configs)
    writer.begin(0)
    indexes = []
    for row in sources.rows():
        data = topic.store.get(row.file, row.position, row.size)
        writer.append(data, scan_headers(data), records=row.records, min_ts=row.min_ts, flags=row.flags)
        if row.sealed:
            indexes.append(parse(topic.store.get(row.file.replace(".log", ".txnindex")), row.base))
    last = int(sources.end[-1])
    indexes.append(
        type(indexes[0])(
            *(indexes[0].producer_ids[:1], indexes[0].first_offsets[:1] + last - 4),
            *(indexes[0].last_offsets[:1] + last - 4, indexes[0].last_stable_offsets[:1] + last - 4),
        )
    )
    writer.aborted(concatenate(indexes))
    files = writer.close()
    return RewriteIntent(COMPACT, state.topic_id, (Rewrite(Edit(0, 0, last), sources.inputs()),), files)


def test_passes_of_transactions_are_among_those_read() -> None:
    assert len(passes("transactions")) + len(passes("transactions-tv0")) >= 8
