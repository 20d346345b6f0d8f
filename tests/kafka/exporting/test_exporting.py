"""Test exports of sparklog topics: topics in all states, partial exports, earlier versions and invalid requests."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound, Unavailable
from sparklog.format.batch_scan import scan_headers
from sparklog.format.checkpoint_files import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_STARTS_FILE,
    LeaderEpoch,
    parse_leader_epochs,
    parse_offsets,
    parse_partition_metadata,
)
from sparklog.format.filter_batches import rewrite_headers
from sparklog.format.producer_snapshot import parse_snapshot
from sparklog.kafka.exporting import ExportedTopic, export_topics
from sparklog.kafka.exporting.partition_files import leader_epochs
from sparklog.kafka.exporting.plan import properties_file
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.kafka.importing.run import import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.testing.world import START_MS, World
from sparklog.transactions.completion import resolve_topic
from tests.compaction.test_kafka_tools import PEERS, fill, parsed, some_rows
from tests.fixture_data import ExpectedRecord
from tests.format.old_messages import message
from tests.kafka.logs import batch, marker, read, records, write_partition
from tests.kafka_tools import KafkaTools
from tests.log.rewriting import prepared, resolve
from tests.support.compaction import compact_topic
from tests.support.counted_root import CountedRoot
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

DAY_MS = 86_400_000
SMALL = {"segment.bytes": 20_000, "index.interval.bytes": 500}


@pytest.fixture
def counted_root(tmp_path: Path) -> CountedRoot:
    return CountedRoot("local", tmp_path / "root")


def compacted(topic: Topic, now_ms: int, **options: bool) -> None:
    assert not compact_topic(topic, Settings(now_ms=now_ms), InProcess(), CompactOptions(**options)).failures


def export(topic: Topic, path: Path, **options: Any) -> ExportedTopic:
    (found,) = export_topics(topic.root, path, [topic.name], ExportOptions(durable=False, **options))
    return found


def scanned(topic: Topic, partition: int = 0, **options: Any) -> list[ExpectedRecord]:
    scan = topic.scan(partitions=[partition], columns=COLUMNS, **options)
    return [record for found in scan for record in records(found)]


def logs_in(path: Path) -> list[Path]:
    return sorted(path.glob("*/*.log"))


def many_states(counted_root: CountedRoot) -> dict[str, Topic]:
    """Create topics that are appended, sealed, compacted or empty, with LogAppendTime, transactions and moved log
    starts.
    """
    compact = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": DAY_MS}
    topics = {
        "appended": counted_root.topic(3, SMALL, "appended"),
        "one": counted_root.topic(2, {}, "one"),
        "stamped": counted_root.topic(2, {**SMALL, "message.timestamp.type": "LogAppendTime"}, "stamped"),
        "sealed": counted_root.topic(2, SMALL, "sealed"),
        "index-full": counted_root.topic(1, {"segment.index.bytes": 60, "index.interval.bytes": 0}, "index-full"),
        "compacted": counted_root.topic(2, compact, "compacted"),
        "aborts": counted_root.topic(2, SMALL, "aborts"),
        "moved": counted_root.topic(2, SMALL, "moved"),
        "gone": counted_root.topic(1, SMALL, "gone"),
        "empty": counted_root.topic(2, {}, "empty"),
    }
    for name in ("appended", "one", "stamped", "sealed", "index-full", "moved", "gone"):
        fill(topics[name], range(10))
    compacted(topics["stamped"], counted_root.world.now_ms)
    compacted(topics["sealed"], counted_root.world.now_ms, seal_only=True, roll=True)
    for run in range(3):
        fill(topics["compacted"], range(10 * run, 10 * run + 8), keys=300, nulls=False)
        compacted(topics["compacted"], counted_root.world.now_ms + run * 2 * DAY_MS, roll=run < 2)
    for number in range(6):
        prepared(counted_root, topics["aborts"], some_rows(50, 100 + number), "tx", number)
        resolve(counted_root, topics["aborts"], "tx", number, committed=number % 2 == 1)
        fill(topics["aborts"], [number] if number < 5 else [])
    prepared(counted_root, topics["aborts"], some_rows(50, 200), "open", 1)
    fill(topics["aborts"], [7])
    topics["moved"].delete_records({0: 333, 1: 5})
    topics["gone"].delete_records({0: -1})
    return topics


@dataclass(frozen=True)
class Exported:
    """Topics by name, and the result of their export in a directory."""

    topics: dict[str, Topic]
    folder: Path
    found: list[ExportedTopic]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Export topics in all states. Tests must not change these topics."""
    folder = tmp_path_factory.mktemp("exported")
    counted_root = CountedRoot("local", folder / "root")
    topics = many_states(counted_root)
    found = export_topics(counted_root.root, folder / "out", list(topics), ExportOptions(durable=False))
    return Exported(topics, folder / "out", list(found))


def test_exported_topics_in_all_states_have_the_same_records(exported: Exported, kafka_tools: KafkaTools) -> None:
    topics, out = exported.topics, exported.folder
    view = KafkaView(out)
    total = 0
    for found, topic in zip(exported.found, topics.values(), strict=True):
        state = topic.log.state()
        assert (found.topic, found.topic_id) == (topic.name, view.topic_id(topic.name))
        assert found.topic_id == state.topic_id
        for part in found.partitions:
            number = part.partition
            stable = int(state.last_stable()[number])
            bounds = view.bounds(topic.name)[number]
            assert (
                (bounds.log_start, bounds.log_end)
                == (part.log_start, part.log_end)
                == (state.log_start[number], stable)
            )
            assert bounds.last_stable == part.last_stable == stable
            expected = scanned(topic, number)
            for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
                assert read(view, topic.name, number, isolation) == expected, (topic.name, number)
            folder = out / f"{topic.name}-{number}"
            own = sorted(folder.glob("*.log"))
            assert part.segments == len(own)
            assert part.nbytes == sum(log.stat().st_size for log in own)
            for peer in PEERS.values():
                seen = [each for log in own for each in parsed(log, peer) if each.offset >= part.log_start]
                assert [(each.offset, each.timestamp, each.value) for each in seen] == [
                    (each.offset, each.timestamp, each.value) for each in expected
                ]
            assert [parse_snapshot(file.read_bytes()) for file in folder.glob("*.snapshot")] == [[]] * bool(
                stable > part.log_start
            )
            total += len(expected)
    assert total > 5000
    assert topics["aborts"].log.state().log_end[0] > topics["aborts"].log.state().last_stable()[0]
    assert kafka_tools.complaints(logs_in(out), emptied=True) == []


def test_checkpoints_of_topics_in_all_states(exported: Exported) -> None:
    topics, out = exported.topics, exported.folder
    heads = {name: topic.log.state() for name, topic in topics.items()}
    ends = {(n, p): int(state.last_stable()[p]) for n, state in heads.items() for p in range(state.partitions)}
    assert parse_offsets((out / HIGH_WATERMARKS_FILE).read_bytes()) == ends
    cleaned = parse_offsets((out / CLEANER_OFFSETS_FILE).read_bytes())
    assert cleaned == {("compacted", p): int(heads["compacted"].first_dirty_offset[p]) for p in (0, 1)}
    assert all(cleaned.values())
    assert parse_offsets((out / LOG_STARTS_FILE).read_bytes())["moved", 0] == 333
    for folder in (path for path in out.iterdir() if path.is_dir()):
        name = folder.name.rsplit("-", 1)[0]
        assert parse_partition_metadata((folder / "partition.metadata").read_bytes()) == heads[name].topic_id
        bases = sorted(int(log.stem) for log in folder.glob("*.log"))
        epochs = parse_leader_epochs((folder / LEADER_EPOCHS_FILE).read_bytes())
        start = int(heads[name].log_start[int(folder.name.rsplit("-", 1)[1])])
        assert bases[0] <= start
        assert [entry.start_offset for entry in epochs[:1]] in ([], [start])
        assert {path.suffix for path in folder.iterdir()} <= {
            *(".log", ".index", ".timeindex", ".snapshot", ".metadata", ""),
        }


# --- configs ---------------------------------------------------------------------------------------------------------


def test_root_defaults_apply_to_segments(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1)
    for seed in range(3):
        topic.append(some_rows(1, seed))
    assert export(topic, tmp_path / "before").partitions[0].segments == 1
    counted_root.root.alter_defaults({"log.segment.bytes": 100})
    found = export(topic, tmp_path / "out")
    assert found.partitions[0].segments == 3
    assert found.configs == {}


def test_topic_compacted_by_root_defaults_has_a_cleaner_checkpoint(counted_root: CountedRoot, tmp_path: Path) -> None:
    counted_root.root.alter_defaults({"log.cleanup.policy": "compact", "log.cleaner.min.cleanable.ratio": 0})
    topic = counted_root.topic(1)
    fill(topic, range(3), nulls=False)
    settings = Settings(now_ms=counted_root.world.now_ms).of_root(counted_root.root)
    assert not compact_topic(topic, settings, InProcess(), CompactOptions(roll=True)).failures
    export(topic, tmp_path / "out")
    cleaned = int(topic.log.state().first_dirty_offset[0])
    assert cleaned > 0
    assert parse_offsets((tmp_path / "out" / CLEANER_OFFSETS_FILE).read_bytes()) == {("t", 0): cleaned}


# --- parts of a topic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["appended", "sealed", "one-slice"])
def test_offset_ranges(counted_root: CountedRoot, tmp_path: Path, kind: str, kafka_tools: KafkaTools) -> None:
    """The records begin at the exact start offset. The end is the end of the batch that contains the last offset."""
    topic = counted_root.topic(1, SMALL if kind != "one-slice" else {})
    if kind == "one-slice":
        topic.append(some_rows(20_000, 1), options=WriteOptions(codec="none", batch_bytes=3000))
        assert int(topic.log.snapshot().slices.all().size[0]) > 1 << 20
    else:
        fill(topic, range(10))
    if kind == "sealed":
        compacted(topic, counted_root.world.now_ms, seal_only=True, roll=True)
    everything = scanned(topic)
    first = int(topic.log.state().log_end[0])
    chance = random.Random(7)
    for number in range(8):
        start, end = sorted(chance.randrange(first + 1) for _ in range(2))
        out = tmp_path / f"out{number}"
        (part,) = export(topic, out, starts={0: start}, ends={0: end}).partitions
        view = KafkaView(out)
        bounds = view.bounds(topic.name)[0]
        assert (part.log_start, part.log_end, part.last_stable) == (start, bounds.log_end, bounds.log_end)
        assert bounds.log_start == start
        assert end <= bounds.log_end <= max(end + 150, end)
        assert read(view, topic.name) == [r for r in everything if start <= r.offset < part.log_end]
    assert kafka_tools.complaints(sorted(tmp_path.glob("out*/*/*.log"))) == []


def test_end_offset_inside_a_batch_includes_the_batch(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1, {})
    topic.append(some_rows(100, 1), options=WriteOptions(codec="none", batch_bytes=100_000))
    (part,) = export(topic, tmp_path / "out", ends={0: 50}).partitions
    assert (part.log_end, len(read(KafkaView(tmp_path / "out"), "t"))) == (100, 100)
    assert not list((tmp_path / "out").glob("*/*.snapshot"))


def test_selected_partitions(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(4, SMALL)
    fill(topic, range(3))
    found = export(topic, tmp_path / "out", partitions=[3, 1], starts={1: 10})
    assert [(part.partition, part.log_start) for part in found.partitions] == [(1, 10), (3, 0)]
    assert sorted(path.name for path in (tmp_path / "out").glob("t-*")) == ["t-1", "t-3"]
    assert found.partition_count == 4


def test_earlier_versions_and_times(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1, SMALL)
    seen = {}
    for number in range(6):
        counted_root.world.now_ms += 1000
        fill(topic, [number])
        seen[topic.log.state().version] = (counted_root.world.now_ms, scanned(topic))
    compacted(topic, counted_root.world.now_ms, roll=True)
    for version, (time_ms, expected) in seen.items():
        for options in ({"version": version}, {"time_ms": time_ms}, {"time_ms": time_ms + 999}):
            out = tmp_path / f"{version}-{options}"
            found = export(topic, out, **options)
            assert found.version == version or time_ms == counted_root.world.now_ms
            assert read(KafkaView(out), "t") == expected
    topic.delete()
    (found,) = export_topics(
        counted_root.root, tmp_path / "deleted", ["t"], ExportOptions(version=version, durable=False)
    )
    assert read(KafkaView(tmp_path / "deleted"), "t") == expected


def test_versions_and_times_that_do_not_exist_are_rejected(counted_root: CountedRoot, tmp_path: Path) -> None:
    created = counted_root.world.now_ms
    topic = counted_root.topic(1)
    fill(topic, [1])
    topic.delete()
    gone = topic.log.refresh().topic_state.version
    for options, error, words in (
        ({"version": gone + 1}, BadRequest, f"versions up to {gone}"),
        ({"version": gone}, BadRequest, "was deleted at version"),
        ({"time_ms": created - 1}, NotFound, "created later"),
        ({"time_ms": created, "version": 1}, BadRequest, "found both"),
    ):
        with pytest.raises(error, match=words):
            export_topics(counted_root.root, tmp_path / "out", ["t"], ExportOptions(**options))  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="does not exist"):
        export_topics(counted_root.root, tmp_path / "out", ["other"], ExportOptions(version=1))
    assert not (tmp_path / "out").exists()


# --- links -----------------------------------------------------------------------------------------------------------


def test_sealed_segments_are_hard_links_except_the_active_segment(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1, SMALL)
    fill(topic, range(10))
    compacted(topic, counted_root.world.now_ms, seal_only=True, roll=True)
    topic = open_root(str(tmp_path / "root"), env=counted_root.world.env()).topic("t")
    (part,) = export(topic, tmp_path / "linked", link=True).partitions
    (copy,) = export(topic, tmp_path / "copied").partitions
    assert (part.linked, copy.linked) == (part.nbytes, 0)
    assert part.nbytes == copy.nbytes > 0
    *closed, active = sorted((tmp_path / "linked" / "t-0").glob("*.log"))
    assert {log.stat().st_nlink for log in closed} == {2}
    assert (active.stat().st_nlink, active.stat().st_size) == (1, 0)
    assert int(active.stem) == topic.log.state().log_end[0]
    others = [path for path in (tmp_path / "linked" / "t-0").iterdir() if path.suffix != ".log"]
    assert {path.stat().st_nlink for path in others} == {1}
    for log in closed:
        assert log.read_bytes() == (tmp_path / "copied" / "t-0" / log.name).read_bytes()


def test_files_are_copied_if_links_are_not_possible(tmp_path: Path) -> None:
    topic = World().root().create_topic("t", configs=SMALL)
    fill(topic, range(5))
    compacted(topic, START_MS, seal_only=True, roll=True)
    (part,) = export(topic, tmp_path / "out", link=True).partitions
    assert part.linked == 0
    assert read(KafkaView(tmp_path / "out"), "t") == scanned(topic)


# --- the log start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_first_segment_is_named_by_the_log_start(
    counted_root: CountedRoot, tmp_path: Path, sealed: bool, kafka_tools: KafkaTools
) -> None:
    """If the first segment is empty, Kafka finds no record by its timestamp."""
    topic = counted_root.topic(1, SMALL)
    prepared(counted_root, topic, some_rows(100, 1), "tx", 1)
    resolve(counted_root, topic, "tx", 1, committed=False)
    fill(topic, range(8))
    if sealed:
        compacted(topic, counted_root.world.now_ms, seal_only=True, roll=True)
        topic = open_root(str(tmp_path / "root"), env=counted_root.world.env()).topic("t")
    (part,) = export(topic, tmp_path / "out", link=True).partitions
    assert (part.log_start, part.linked > 0) == (0, sealed)
    first, *others = logs_in(tmp_path / "out")
    assert (int(first.stem), int(scan_headers(first.read_bytes()).base_offset[0])) == (0, 100)
    assert len(first.with_suffix(".index").read_bytes()) > 8
    assert all(log.stat().st_size for log in others[:-1])
    assert kafka_tools.complaints([first, *others]) == []
    assert read(KafkaView(tmp_path / "out"), "t") == scanned(topic)


def test_empty_segment_at_the_log_start_is_older_than_all_records(counted_root: CountedRoot, tmp_path: Path) -> None:
    far = 1 << 32
    write_partition(tmp_path / "log", "t-0", {0: batch(0, [b"a"]), far: batch(far, [b"b"]), far + 1: b""})
    import_log_dir(counted_root.root, tmp_path / "log")
    topic = counted_root.root.topic("t")
    topic.delete_records({0: 5})
    (part,) = export(topic, tmp_path / "out").partitions
    assert (part.log_start, part.log_end) == (5, far + 1)
    first, second, *_ = logs_in(tmp_path / "out")
    assert (int(first.stem), first.stat().st_size, int(second.stem)) == (5, 0, far)
    assert first.stat().st_mtime < 0


# --- leader epochs ---------------------------------------------------------------------------------------------------


def led(data: bytes, epoch: int) -> bytes:
    """Return batches with a leader epoch."""
    found = bytearray(data)
    rewrite_headers(found, scan_headers(found), leader_epoch=epoch)
    return bytes(found)


def from_another_cluster(counted_root: CountedRoot, log_dir: Path) -> Topic:
    """Import a topic with old messages, which have no epoch, followed by batches of epochs 4 and 7."""
    old = message(0, b"k", b"v") + message(1, b"k", b"w")
    segments = {0: old + led(batch(2, [b"a", b"b"]), 4), 4: led(batch(4, [b"c"]), 4) + led(batch(5, [b"d"]), 7)}
    write_partition(log_dir, "t-0", {**segments, 6: led(batch(6, [b"e"]), 7)})
    root = open_root(str(log_dir.parent / "root"), create=True, env=counted_root.world.env())
    import_log_dir(root, log_dir)
    return root.topic("t")


def epochs_in(out: Path) -> list[LeaderEpoch]:
    return parse_leader_epochs((out / "t-0" / LEADER_EPOCHS_FILE).read_bytes())


@pytest.mark.parametrize("link", [False, True])
def test_leader_epochs_are_reset_to_0(counted_root: CountedRoot, tmp_path: Path, link: bool) -> None:
    topic = from_another_cluster(counted_root, tmp_path / "log")
    before = {path: path.read_bytes() for path in (tmp_path / "root").rglob("*.log")}
    (part,) = export(topic, tmp_path / "out", link=link).partitions
    assert part.linked == 0
    assert {path: path.read_bytes() for path in before} == before
    logs = logs_in(tmp_path / "out")
    assert [int(log.stem) for log in logs] == [0, 4, 6]
    for log in logs:
        kafkas = (tmp_path / "log" / "t-0" / log.name).read_bytes()
        new = scan_headers(kafkas)[~scan_headers(kafkas).is_legacy]
        expected = bytearray(kafkas)
        rewrite_headers(expected, new, leader_epoch=0)
        assert log.read_bytes() == bytes(expected) != kafkas
    # Old messages have no epoch, and entries begin at the log start if batches are known from there on.
    assert epochs_in(tmp_path / "out") == [LeaderEpoch(0, 2)]
    assert read(KafkaView(tmp_path / "out"), "t") == scanned(topic)


def test_leader_epochs_are_preserved_if_requested(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = from_another_cluster(counted_root, tmp_path / "log")
    (part,) = export(topic, tmp_path / "out", link=True, keep_leader_epochs=True).partitions
    assert part.linked > 0
    for log in logs_in(tmp_path / "out"):
        assert log.read_bytes() == (tmp_path / "log" / "t-0" / log.name).read_bytes()
    assert epochs_in(tmp_path / "out") == [LeaderEpoch(4, 2), LeaderEpoch(7, 5)]


# --- Kafka's transactions --------------------------------------------------------------------------------------------


def test_range_that_ends_in_a_kafka_transaction_has_its_last_stable_offset(
    counted_root: CountedRoot, tmp_path: Path
) -> None:
    batches = [batch(0, [b"a"]), batch(1, [b"b"], producer=7), batch(2, [b"c"]), marker(3, 7, commit=False)]
    write_partition(tmp_path / "kafka", "t-0", {0: b"".join(batches)})
    import_log_dir(counted_root.root, tmp_path / "kafka")
    topic = counted_root.root.topic("t")
    (whole,) = export(topic, tmp_path / "whole").partitions
    assert (whole.last_stable, whole.log_end) == (4, 4)
    assert [r.value for r in read(KafkaView(tmp_path / "whole"), "t", isolation=READ_COMMITTED)] == [b"a", b"c"]
    (part,) = export(topic, tmp_path / "part", ends={0: 3}).partitions
    assert (part.last_stable, part.log_end) == (1, 3)
    assert KafkaView(tmp_path / "part").bounds("t")[0].last_stable == 1


# --- invalid requests ------------------------------------------------------------------------------------------------


def nothing_new(folder: Path, *known: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(known)


def test_invalid_target_directories_are_rejected(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1)
    fill(topic, [1])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    (tmp_path / "file").touch()
    for path, error, words in (
        (tmp_path / "full", Conflict, "is not empty"),
        (tmp_path / "file", BadRequest, "is a file"),
        (tmp_path / "root" / "out", BadRequest, "inside the root"),
        (tmp_path, BadRequest, "or contains it"),
    ):
        with pytest.raises(error, match=words):
            open_and_export(tmp_path / "root", path)
    assert nothing_new(tmp_path, "root", "full", "file")
    assert nothing_new(tmp_path / "full", "something")
    (tmp_path / "empty").mkdir()
    export(topic, tmp_path / "empty")
    assert (tmp_path / "empty" / "t-0").is_dir()


def open_and_export(root: Path, path: Path) -> None:
    export_topics(open_root(str(root)), path, ["t"], ExportOptions(durable=False))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"partitions": [2]}, NotFound, "partitions 0 to 1, found partition 2"),
        ({"starts": {9: 0}}, NotFound, "partitions 0 to 1, found partition 9"),
        ({"partitions": [0], "ends": {1: 5}}, NotFound, "partition 1 has a start or end offset"),
        ({"starts": {0: 61}, "ends": {0: 60}}, NotFound, "offsets 61 to 60 of t-0 are out of range"),
        ({"ends": {0: 10**6}}, NotFound, "expected a range within 0 to"),
        ({"topic_id": "short"}, BadRequest, "kafka-topics.sh --describe"),
        ({"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}, BadRequest, "22 characters"),
    ],
)
def test_invalid_requests_are_rejected(
    counted_root: CountedRoot, tmp_path: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    topic = counted_root.topic(2)
    fill(topic, range(2))
    with pytest.raises(error, match=words):
        export(topic, tmp_path / "out", **options)
    assert nothing_new(tmp_path, "root")


def test_offsets_above_the_last_stable_offset_are_rejected(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1)
    prepared(counted_root, topic, some_rows(10, 1), "tx", 1)
    with pytest.raises(NotFound, match=r"\(the log end is 10, but a transaction is open\)"):
        export(topic, tmp_path / "out", ends={0: 10})
    (part,) = export(topic, tmp_path / "out").partitions
    assert (part.log_start, part.log_end, part.segments) == (0, 0, 1)


def test_transactions_are_exported_atomically(tmp_path: Path) -> None:
    world = TopicsWorld(partitions=2)
    world.topic("c").append(rows("below", partition=1))
    blocker = world.producer("blocker").begin()
    blocker.append("a", rows("open", partition=0))
    blocker._prepare_topics()
    with world.producer().begin() as transaction:
        for name, partition in (("a", 0), ("a", 1), ("b", 0), ("c", 1)):
            transaction.append(name, rows(name, partition=partition))
    for name in "bc":
        resolve_topic(world.topic(name))

    def exported(out: str, *topics: str) -> dict[str, list[int]]:
        found = export_topics(world.root(), tmp_path / out, topics, ExportOptions(durable=False))
        return {each.topic: [part.log_end for part in each.partitions] for each in found}

    assert exported("open", "a", "b", "c") == {"a": [0, 0], "b": [0, 0], "c": [0, 1]}
    assert exported("one", "a") == {"a": [0, 0]}
    blocker.commit()
    assert exported("decided", "a", "b", "c") == {"a": [2, 1], "b": [1, 0], "c": [0, 2]}


def test_duplicate_topics_are_rejected(counted_root: CountedRoot, tmp_path: Path) -> None:
    counted_root.topic(1)
    for names in ([], ["t", "t"]):
        with pytest.raises(BadRequest, match="different topics"):
            export_topics(counted_root.root, tmp_path / "out", names)
    with pytest.raises(BadRequest, match="expected one topic"):
        export_topics(counted_root.root, tmp_path / "out", ["t", "u"], ExportOptions(topic_id="kphX_vFrTMuzYXwDXyxQYA"))


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("sealed", [False, True])
def test_damage_leaves_no_files(counted_root: CountedRoot, tmp_path: Path, sealed: bool) -> None:
    topic = counted_root.topic(1, SMALL)
    fill(topic, range(5))
    if sealed:
        compacted(topic, counted_root.world.now_ms, seal_only=True, roll=True)
    path = sorted((tmp_path / "root" / "t" / ("sealed" if sealed else "append")).rglob("*.log" if sealed else "*"))[1]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(Corrupt) as raised:
        export(topic, tmp_path / "out")
    assert raised.value.file is not None
    assert raised.value.file.endswith(path.name)
    path.unlink()
    with pytest.raises(Conflict, match=r"(compaction|export) again"):
        export(topic, tmp_path / "out")
    assert nothing_new(tmp_path, "root")


def test_directory_filled_during_the_export_is_not_changed(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1)
    fill(topic, [1])

    def somebody(records: int, nbytes: int) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "theirs").touch()

    with pytest.raises(Conflict, match="is not empty"):
        export_topics(counted_root.root, tmp_path / "out", [topic.name], ExportOptions(durable=False), somebody)
    assert nothing_new(tmp_path, "root", "out")
    assert nothing_new(tmp_path / "out", "theirs")


@pytest.mark.usefixtures("records_in_files")
def test_store_failure_leaves_no_files(tmp_path: Path) -> None:
    world = World()
    store = world.store
    fill(world.root().create_topic("t"), range(3))

    def fault(call: Call) -> Fault | None:
        return Fault(FaultKind.ERROR_BEFORE) if call.key.startswith("t/append/") else None

    topic = open_root(FaultyStore(store, fault)).topic("t")
    with pytest.raises(Unavailable):
        export(topic, tmp_path / "out")
    assert nothing_new(tmp_path)


# --- parts of exports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noted", "log_start", "expected"),
    [
        ([], 0, []),
        ([(5, -1)], 0, []),
        ([(0, -1), (7, 3)], 0, [(3, 7)]),
        ([(5, 0), (7, 0), (9, 4)], 0, [(0, 0), (4, 9)]),
        ([(9, 4), (5, 0)], 5, [(0, 5), (4, 9)]),
        ([(5, 0), (9, 4), (12, 7)], 10, [(4, 10), (7, 12)]),
        ([(5, 3), (9, 2), (12, 4)], 0, [(2, 0), (4, 12)]),
    ],
)
def test_leader_epochs(noted: list[tuple[int, int]], log_start: int, expected: list[tuple[int, int]]) -> None:
    assert leader_epochs(noted, log_start) == [LeaderEpoch(epoch, start) for epoch, start in expected]


def test_start_and_end_times(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(3, SMALL, "orders")
    for seed in range(6):
        topic.append(some_rows(90, seed), options=WriteOptions(batch_bytes=2000))
        if seed == 2:
            compacted(topic, counted_root.world.now_ms, seal_only=True, roll=True)
    start_ms, end_ms = START_MS + 2500, START_MS + 4500
    found = export(topic, tmp_path / "out", start_ms=start_ms, end_ms=end_ms)
    view = KafkaView(tmp_path / "out")
    for part in found.partitions:
        everything = scanned(topic, part.partition)
        first = next(r.offset for r in everything if r.timestamp >= start_ms)
        behind = next(r.offset for r in everything if r.timestamp >= end_ms)
        assert 0 < part.log_start == first < behind <= part.log_end < len(everything)
        assert read(view, "orders", part.partition) == everything[first : part.log_end]
    (late,) = export_topics(
        counted_root.root, tmp_path / "late", ["orders"], ExportOptions(start_ms=START_MS + 10**6, durable=False)
    )
    assert [part.log_start for part in late.partitions] == topic.log.state().log_end.tolist()
    (only,) = export_topics(
        counted_root.root, tmp_path / "only", ["orders"], ExportOptions(partitions=[1], end_ms=0, durable=False)
    )
    assert [(part.partition, part.log_start, part.log_end) for part in only.partitions] == [(1, 0, 0)]
    for wrong in ({"starts": {0: 1}, "start_ms": 5}, {"ends": {0: 1}, "end_ms": 5}, {"start_ms": 5, "end_ms": 4}):
        with pytest.raises(BadRequest, match="export"):
            export(topic, tmp_path / "wrong", **wrong)
    assert not (tmp_path / "wrong").exists()


def test_start_time_after_the_last_stable_offset_exports_no_records(counted_root: CountedRoot, tmp_path: Path) -> None:
    topic = counted_root.topic(1, SMALL, "orders")
    topic.append(some_rows(10, 0))
    prepared(counted_root, topic, some_rows(10, 5), "tx", 0)
    (part,) = export(topic, tmp_path / "out", start_ms=START_MS + 5000).partitions
    assert (part.log_start, part.log_end) == (10, 10)


def test_properties_file_lists_rejected_configs() -> None:
    configs = TopicConfigs.of(
        {"segment.bytes": 2000, "retention.ms": -1, "message.format.version": "2.8", "cleanup.policy": "compact"}
    )
    assert properties_file("orders", 3, configs).decode() == (
        "# kafka-topics.sh --create --topic orders --partitions 3"
        " --config cleanup.policy=compact --config retention.ms=-1\n"
        "# kafka-configs.sh --alter --entity-type topics --entity-name orders --add-config-file orders.properties\n"
        "# message.format.version=2.8  (removed in Kafka 4.0)\n"
        "# segment.bytes=2000  (Kafka requires at least 1048576)\n"
        "cleanup.policy=compact\n"
        "retention.ms=-1\n"
    )


def test_topics_with_the_longest_names_round_trip(counted_root: CountedRoot, tmp_path: Path) -> None:
    names = ["a" * 248 + last for last in "xy"]
    for at, name in enumerate(names):
        fill(counted_root.topic(12, {"retention.ms": 1000 + at}, name), range(3))
    export_topics(counted_root.root, tmp_path / "out", names, ExportOptions(durable=False))
    files = sorted((tmp_path / "out").glob("*.properties"))
    for at, (file, name) in enumerate(zip(sorted(files, key=lambda each: each.read_text()), names, strict=True)):
        text = file.read_text()
        assert f"--entity-name {name} --add-config-file {file.name}\n" in text
        assert text.endswith(f"retention.ms={1000 + at}\n")
    again = open_root(tmp_path / "again", create=True)
    import_log_dir(again, tmp_path / "out")
    for name in names:
        for partition in range(12):
            assert scanned(again.topic(name), partition) == scanned(counted_root.root.topic(name), partition)
