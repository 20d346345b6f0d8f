"""Test imports that continue, after the log has grown or after an import was killed, and imports that
cannot continue.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt, SparklogError
from sparklog.format.checkpoint_files import CLEANER_OFFSETS_FILE, offsets_to_bytes
from sparklog.kafka.importing import partition
from sparklog.kafka.importing import run as importing
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place.segment_file import SegmentFile
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.journal.documents import document_of
from sparklog.log.state.commit import IMPORT
from sparklog.log.state.invariants import check_state
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import Settings
from sparklog.retention.vacuum import vacuum
from sparklog.storage.local import LocalStore
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import World
from tests.fixture_data import partitions, split_partition
from tests.kafka.logs import FIRST, SECOND, batch, marker, read_topic, segment, write_partition
from tests.kafka.logs import read as read_in_place
from tests.support.seeds import thinned
from tests.support.small_limits import small_limits

STARTS = "log-start-offset-checkpoint"
LEVELS = (READ_UNCOMMITTED, READ_COMMITTED)


def fresh(number: int = 1) -> Root:
    return World(seed=number).root()


def state(topic: Topic, partition: int = 0) -> tuple[object, ...]:
    """Return all records and bounds that readers see of a partition, and its open transactions."""
    state = topic.log.state()
    opened = tuple(each for each in state.kafka_open if each.partition == partition)
    bounds = (state.log_start[partition], state.log_end[partition], state.last_stable()[partition])
    return (*map(int, bounds), opened, *(read_topic(topic, partition, level) for level in LEVELS))


def metadata(folder: Path, topic_id: str = "DYgfIwO1zvCu-XXovTnyZg") -> None:
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")


# ---------------------------------------------------------------- logs that grow


def transactional_log() -> list[bytes]:
    """Return batches of three producers with interleaved transactions, one of which is left open."""
    parts: list[bytes] = []
    at = 0

    def add(data: bytes, count: int = 1) -> None:
        nonlocal at
        parts.append(data)
        at += count

    def data(producer: int = -1, count: int = 2) -> None:
        add(batch(at, [b"%d-%d" % (at, i) for i in range(count)], producer=producer), count)

    def end(producer: int, *, commit: bool) -> None:
        add(marker(at, producer, commit=commit))

    data(), data(7), data(8), data(), end(7, commit=True)
    data(7), end(8, commit=False), data(9), end(7, commit=False), data(8), data(7)
    end(9, commit=True), data(9, 3), end(8, commit=True), data(), end(7, commit=True), data(8), end(9, commit=False)
    return parts


BATCHES = transactional_log()


def offsets_before(count: int) -> int:
    """Return the offset after the first `count` batches."""
    return sum(int.from_bytes(each[23:27], "big") + 1 for each in BATCHES[:count])


def write_log(place: Path, count: int, per_segment: int) -> None:
    """Write the first batches as t-0, in segments of this many batches. The last segment is active."""
    folder = place / "t-0"
    shutil.rmtree(folder, ignore_errors=True)
    segments = {
        offsets_before(first): b"".join(BATCHES[first : min(first + per_segment, count)])
        for first in range(0, max(count, 1), per_segment)
    }
    metadata(write_partition(place, "t-0", segments))


@pytest.mark.parametrize("per_segment", [1, 3, 100])
def test_incremental_import_equals_a_single_import(tmp_path: Path, per_segment: int) -> None:
    whole = {}
    for count in range(1, len(BATCHES) + 1):
        write_log(tmp_path, count, per_segment)
        place = fresh(count)
        import_log_dir(place, tmp_path)
        whole[count] = state(place.topic("t"))
    for step in (1, 4, 7):
        root = fresh()
        for count in range(step, len(BATCHES) + 1, step):
            write_log(tmp_path, count, per_segment)
            found = import_log_dir(root, tmp_path).topics[0]
            topic = root.topic("t")
            assert state(topic) == whole[count], (step, count)
            assert found.created == (count == step)
            assert found.partitions[0].since == offsets_before(count - step)
            snapshot = topic.log.snapshot()
            check_state(snapshot.state, snapshot.slices)
        version = root.topic("t").log.state().version
        assert import_log_dir(root, tmp_path).topics[0].partitions[0].records == 0
        assert root.topic("t").log.state().version == version


FIXTURES = [
    ("compaction/incremental", ["before", "pass-1", "appended", "pass-2", "appended-2", "after"]),
    ("compaction/transactions", ["before", "pass-1", "appended", "pass-2", "appended-2", "pass-3", "after"]),
    ("compaction/transactions-tv0", ["before", "appended", "appended-2", "appended-3", "appended-4", "after"]),
    ("compaction/producer-state", ["before", "pass-1", "appended", "pass-2", "appended-2", "after"]),
    ("compaction/old-formats", ["before", "pass-1", "appended", "after"]),
    ("compaction/small-map", ["before", "pass-1", "pass-4", "after"]),
    ("compaction/compact-delete", ["before", "pass-1", "after"]),
    ("compaction-by-broker", ["before", "after"]),
    ("retention/delete-records", ["before", "start-moved", "after"]),
    ("retention/ms-all", ["before", "after", "appended"]),
    ("retention/bytes", ["before", "after"]),
    ("preallocated-running", ["data", "data-after-clean-shutdown"]),
]


@pytest.mark.parametrize(("fixture", "stages"), FIXTURES)
def test_log_changes_between_two_imports(fixtures: Path, root: Root, fixture: str, stages: Sequence[str]) -> None:
    """The log is appended to, compacted and expired, and its log start moves. Only the offsets matter."""
    ends: dict[tuple[str, int], int] = {}
    for stage in stages:
        folder = fixtures / fixture / stage
        import_log_dir(root, folder)
        view = KafkaView(folder)
        for name in partitions(folder):
            topic_name, number = split_partition(name)
            topic, bounds = root.topic(topic_name), view.bounds(topic_name)[number]
            state = topic.log.state()
            assert (state.log_start[number], state.log_end[number]) == (bounds.log_start, bounds.log_end), (name, stage)
            assert state.last_stable()[number] == bounds.last_stable
            for level in LEVELS:
                expected = read_in_place(view, topic_name, number, level)
                found = read_topic(topic, number, level)
                since = ends.get((topic_name, number), 0)
                new = [record for record in found if record.offset >= since]
                assert new == [record for record in expected if record.offset >= since], (name, stage)
                # Records that the cleaner removed in Kafka still exist in the root, and records that it retained are
                # the same.
                assert set(map(repr, expected)) <= set(map(repr, found))
            ends[topic_name, number] = bounds.log_end
            snapshot = topic.log.snapshot()
            check_state(snapshot.state, snapshot.slices)


def test_log_start_follows_kafkas(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    metadata(tmp_path / "t-0")
    import_log_dir(root, tmp_path)
    (tmp_path / STARTS).write_bytes(offsets_to_bytes({("t", 0): 4}))
    import_log_dir(root, tmp_path)
    topic = root.topic("t")
    assert topic.log.state().log_start[0] == 4
    assert [record.value for record in read_topic(topic)] == [b"e", b"f"]
    # All imported records have expired in Kafka, and so have some later records.
    shutil.rmtree(tmp_path / "t-0")
    metadata(write_partition(tmp_path, "t-0", {20: batch(20, [b"x"]), 21: b""}))
    (tmp_path / STARTS).unlink()
    import_log_dir(root, tmp_path)
    assert (topic.log.state().log_start[0], topic.log.state().log_end[0]) == (20, 21)
    assert [record.value for record in read_topic(topic)] == [b"x"]


def test_open_transaction_deleted_by_retention_is_dropped(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: batch(0, [b"a"], producer=7)})
    metadata(tmp_path / "t-0")
    import_log_dir(root, tmp_path)
    assert [each.first for each in root.topic("t").log.state().kafka_open] == [0]
    shutil.rmtree(tmp_path / "t-0")
    metadata(write_partition(tmp_path, "t-0", {9: batch(9, [b"x"]) + batch(10, [b"y"], producer=7)}))
    import_log_dir(root, tmp_path)
    assert [(each.first, each.end) for each in root.topic("t").log.state().kafka_open] == [(10, 11)]
    assert [record.value for record in read_topic(root.topic("t"), isolation=READ_COMMITTED)] == [b"x"]


def test_new_partitions_and_configs_are_imported(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST})
    import_log_dir(root, tmp_path, ImportOptions(configs={"retention.ms": -1}))
    write_partition(tmp_path, "t-1", {0: FIRST})
    import_log_dir(root, tmp_path)
    topic = root.topic("t")
    assert topic.log.state().log_end.tolist() == [3, 3]
    assert topic.log.state().configs.retention_ms == -1
    import_log_dir(root, tmp_path, ImportOptions(configs={"retention.ms": 5}))
    assert topic.log.state().configs.retention_ms == 5


def test_incomplete_tail_is_imported_later(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND[:-5]})
    assert import_log_dir(root, tmp_path, on_skipped=lambda _: None).topics[0].partitions[0].skipped == 1
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    found = import_log_dir(root, tmp_path).topics[0].partitions[0]
    assert (found.since, found.records, found.skipped) == (3, 3, 0)
    assert [record.offset for record in read_topic(root.topic("t"))] == list(range(6))


def test_new_records_are_dirty(root: Root, tmp_path: Path) -> None:
    """Records that were compacted in Kafka since are not compacted in the root.

    A clean offset would retain old values forever.
    """
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    (tmp_path / CLEANER_OFFSETS_FILE).write_bytes(offsets_to_bytes({("t", 0): 3}))
    import_log_dir(root, tmp_path)
    write_partition(tmp_path, "t-0", {6: batch(6, [b"x"])})
    (tmp_path / CLEANER_OFFSETS_FILE).write_bytes(offsets_to_bytes({("t", 0): 6}))
    import_log_dir(root, tmp_path)
    assert root.topic("t").log.state().first_dirty_offset.tolist() == [3]


# ---------------------------------------------------------------- imports that cannot continue


def refused(root: Root, place: Path, error: type[SparklogError], words: str, **options: Any) -> None:
    """Check that the import raises an error of one line, and that nothing changes."""
    before = sorted((info.key, info.size) for info in root.store.list(""))
    with pytest.raises(error, match=words) as caught:
        import_log_dir(root, place, ImportOptions(**options))
    assert "\n" not in str(caught.value)
    assert sorted((info.key, info.size) for info in root.store.list("")) == before


def test_recreated_topic_is_rejected(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    metadata(tmp_path / "t-0")
    root.create_topic("t")
    refused(root, tmp_path, Conflict, "topic 't' exists in memory:test and was not imported")
    root.delete_topic("t")
    import_log_dir(root, tmp_path)
    metadata(tmp_path / "t-0", "AAAAAAAAAAAAAAAAAAAAAQ")
    refused(
        root,
        tmp_path,
        Conflict,
        "imported from a topic with id DYgf.*, but the topic in the log directory has id AAAA.*, because the"
        " topic was recreated",
    )


def test_directories_of_two_topics_are_rejected(root: Root, tmp_path: Path) -> None:
    for number, topic_id in enumerate(("DYgfIwO1zvCu-XXovTnyZg", "AAAAAAAAAAAAAAAAAAAAAQ")):
        metadata(write_partition(tmp_path, f"t-{number}", {0: FIRST}), topic_id)
    refused(
        root,
        tmp_path,
        BadRequest,
        "topics with different ids, AAAA.* and DYgf.*: keep only the directories of one topic",
    )


def test_topic_that_was_written_to_is_rejected(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST})
    write_partition(tmp_path, "u-0", {0: FIRST})
    import_log_dir(root, tmp_path)
    root.topic("u").append(pa.table({"value": [b"mine"]}))
    write_partition(tmp_path, "t-0", {3: SECOND})
    refused(root, tmp_path, Conflict, "'u' .* written to since .*: partition 0 ends at 4, but the import ended at 3")
    assert root.topic("t").log.state().log_end[0] == 3
    import_log_dir(root, tmp_path, ImportOptions(topics=["t"]))
    assert root.topic("t").log.state().log_end[0] == 6


def test_topic_with_fewer_partitions_in_kafka_is_rejected(root: Root, tmp_path: Path) -> None:
    for number in range(2):
        write_partition(tmp_path, f"t-{number}", {0: FIRST})
    import_log_dir(root, tmp_path)
    shutil.rmtree(tmp_path / "t-1")
    refused(root, tmp_path, Conflict, "has 2 partitions, but the log directory has only 1")


@pytest.mark.parametrize("known", [True, False])
def test_truncated_log_is_rejected(root: Root, tmp_path: Path, known: bool) -> None:
    folder = write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    if known:
        metadata(folder)
    import_log_dir(root, tmp_path)
    segment(folder, 3).write_bytes(b"")
    refused(root, tmp_path, Conflict, "t-0 ends at 3, but was imported up to 6: the log was truncated")
    other = batch(3, [b"d", b"e", b"F"])
    segment(folder, 3).write_bytes(other + batch(6, [b"g"]))
    refused(root, tmp_path, Conflict, "last imported batch of t-0, up to offset 5, differs from the batch")


def test_last_batch_rewritten_by_another_leader_is_rejected(root: Root, tmp_path: Path) -> None:
    """The checksum is the same, but the records before the batch have another order."""
    write_partition(tmp_path, "t-0", {0: FIRST + batch(3, [b"x"]) + batch(4, [b"y"]) + batch(5, [b"z"])})
    import_log_dir(root, tmp_path)
    again = bytearray(batch(3, [b"y"]) + batch(4, [b"x"]) + batch(5, [b"z"]))
    for at in range(0, len(again), len(again) // 3):
        again[at + 12 : at + 16] = (1).to_bytes(4, "big")
    write_partition(tmp_path, "t-0", {0: FIRST + again})
    with pytest.raises(Conflict, match="up to offset 5, differs from the batch in the log directory"):
        import_log_dir(root, tmp_path)
    assert [record.value for record in read_topic(root.topic("t"))[3:]] == [b"x", b"y", b"z"]


def test_truncation_hidden_by_compaction_is_detected_by_leader_epochs(root: Root, tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    metadata(folder)
    import_log_dir(root, tmp_path)
    segment(folder, 3).write_bytes(batch(6, [b"g"]))
    (tmp_path / CLEANER_OFFSETS_FILE).write_bytes(offsets_to_bytes({("t", 0): 6}))
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 4\n")
    refused(root, tmp_path, Conflict, "differs from the batch in the log directory")
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 6\n")
    import_log_dir(root, tmp_path)
    assert [record.offset for record in read_topic(root.topic("t"))] == [0, 1, 2, 3, 4, 5, 6]


def test_invalid_options_are_rejected(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST})
    refused(root, tmp_path, BadRequest, "expected link to be one of auto, never, found .soft.", link="soft")
    refused(root, tmp_path, BadRequest, "open transactions to be one of keep, abort, refuse", open_transactions="?")


# ---------------------------------------------------------------- imports that are killed


@dataclass
class Steps:
    """Inject a fault at one call, and count the calls."""

    kind: FaultKind
    at: int
    calls: int = 0

    def __call__(self, call: Call) -> Fault | None:
        self.calls += 1
        return Fault(self.kind) if call.number == self.at else None


def three_topics(place: Path) -> None:
    write_partition(place, "t-0", {0: FIRST, 3: SECOND, 6: batch(6, [b"g"], producer=7), 7: batch(7, [b"h"])})
    write_partition(place, "t-1", {0: FIRST, 3: b""})
    write_partition(place, "u-0", {0: batch(0, [b"x"], producer=5), 1: marker(1, 5, commit=False) + batch(2, [b"y"])})
    for name in ("t-0", "t-1"):
        metadata(place / name)


PLACES = (("t", 0), ("t", 1), ("u", 0))


@pytest.fixture
def small_pieces() -> Iterator[None]:
    """Commit after each segment."""
    with small_limits(import_piece_bytes=1, import_commit_bytes=1):
        yield


def seen(root: Root) -> Iterator[tuple[str, int, list[int]]]:
    """Return the records of each partition that exists."""
    for name in root.topics():
        topic = root.topic(name)
        for number in range(topic.log.state().partitions):
            yield name, number, [record.offset for record in read_topic(topic, number, READ_COMMITTED)]


@pytest.mark.sweep
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("step", thinned(4))
@pytest.mark.parametrize(
    "kind",
    [
        *(FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER)),
    ],
)
def test_next_import_completes_an_import_killed_at_any_request(tmp_path: Path, kind: FaultKind, step: int) -> None:
    three_topics(tmp_path)
    whole = fresh()
    import_log_dir(whole, tmp_path)
    expected = {place: state(whole.topic(place[0]), place[1]) for place in PLACES}
    offsets = {(name, number): found for name, number, found in seen(whole)}
    again = 0
    for at in range(0, 1000, step):
        world = World(seed=at)
        store = world.store
        world.root()
        steps = Steps(kind, at)
        with contextlib.suppress(SparklogError, Crash):
            import_log_dir(World(FaultyStore(store, steps), seed=at).root(), tmp_path)
        after = World(store, seed=at + 1000).root()
        for name, number, found in seen(after):
            assert found == offsets[name, number][: len(found)], (at, name, number)
        data = {info.key for info in store.list("") if info.key.endswith((".log", ".slices"))}
        named = {
            f"{name}/{path}" for name in after.topics() for path in after.topic(name).log.snapshot().slices.paths()
        }
        import_log_dir(after, tmp_path)
        for place in PLACES:
            assert state(after.topic(place[0]), place[1]) == expected[place], (at, place)
        # Committed files were not copied again, and all unreferenced files are in the directory of a topic.
        since = {info.key for info in store.list("") if info.key.endswith((".log", ".slices"))}
        assert data <= since
        assert len(since - data) == 7 - len(named), at
        assert {key.split("/")[0] for key in since} == {"t", "u"}
        again += 0 < len(named) < 7
        if steps.calls <= at:
            break
    assert at < 1000 - step
    assert again > 10 // step


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("at", range(6, 60, 6))
def test_vacuum_deletes_files_of_a_killed_import(tmp_path: Path, at: int) -> None:
    three_topics(tmp_path)
    world = World()
    store = world.store
    world.root()
    with contextlib.suppress(Crash):
        import_log_dir(world.root(FaultyStore(store, Steps(FaultKind.CRASH_AFTER, at))), tmp_path)
    root = world.root()
    import_log_dir(root, tmp_path)
    for name in ("t", "u"):
        topic = root.topic(name)
        topic.alter(configs={"retention.ms": -1})
        world.now_ms += 3 * 86_400_000
        topic.alter(configs={"retention.ms": 10**15})
        world.now_ms += 3 * 86_400_000
        assert not vacuum(topic, Settings(world.now_ms)).failures
        left = {info.key for info in store.list(f"{name}/") if info.key.endswith((".log", ".slices"))}
        assert left == {f"{name}/{path}" for path in topic.log.snapshot().slices.paths()}


@pytest.mark.usefixtures("small_pieces")
def test_chunks_are_committed_as_they_are_copied(root: Root, tmp_path: Path) -> None:
    three_topics(tmp_path)
    said: list[tuple[str, int, int, int]] = []
    report = import_log_dir(root, tmp_path, on_progress=lambda *done: said.append(done))
    topic = root.topic("t")
    assert topic.log.state().version == 5
    assert [each.first for each in topic.log.state().kafka_open] == [6]
    assert report.names == ["t", "u"]
    first = report.topics[0].partitions[0]
    assert (first.records, first.log_end, first.linked, first.open) == (8, 8, 0, 1)
    assert sum(records for name, number, records, _ in said if (name, number) == ("t", 0)) == 8
    assert sum(nbytes for name, number, _, nbytes in said if (name, number) == ("t", 0)) == first.copied
    assert first.copied == sum(file.stat().st_size for file in (tmp_path / "t-0").glob("*.log"))


@pytest.mark.usefixtures("small_pieces")
def test_damage_does_not_undo_earlier_commits(root: Root, tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND + b"\0" * 30, 6: batch(6, [b"g"])})
    with pytest.raises(Corrupt):
        import_log_dir(root, tmp_path)
    assert [record.offset for record in read_topic(root.topic("t"))] == [0, 1, 2]
    segment(folder, 3).write_bytes(SECOND)
    import_log_dir(root, tmp_path)
    assert [record.offset for record in read_topic(root.topic("t"))] == list(range(7))


@pytest.mark.usefixtures("small_pieces")
def test_refuse_imports_all_or_nothing(root: Root, tmp_path: Path) -> None:
    three_topics(tmp_path)
    with pytest.raises(Conflict, match=r"topic t has 1 open transaction \(first: .* from offset 6\)"):
        import_log_dir(root, tmp_path, ImportOptions(topics=["t"], open_transactions="refuse"))
    assert root.topics() == []
    write_partition(tmp_path, "t-0", {8: marker(8, 7, commit=True)})
    import_log_dir(root, tmp_path, ImportOptions(topics=["t"], open_transactions="refuse"))
    assert len(read_topic(root.topic("t"))) == 8


def test_concurrent_imports_copy_records_once(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST})
    import_log_dir(root, tmp_path)
    write_partition(tmp_path, "t-0", {3: SECOND})
    other = World(root.store, seed=7).root()
    whole = partition.copy_segment

    def overtaken(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(partition, "copy_segment", whole)
        import_log_dir(other, tmp_path)
        return whole(*args, **options)

    monkeypatch.setattr(partition, "copy_segment", overtaken)
    import_log_dir(root, tmp_path)
    assert [record.offset for record in read_topic(root.topic("t"))] == list(range(6))


def test_failed_import_preserves_commits_of_a_concurrent_import(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed import had created the topic, but had not committed any records."""
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND + b"\0" * 30, 6: batch(6, [b"g"])})
    other = World(root.store, seed=9).root()
    begun = importing.copy_partition

    def copy(*args: Any) -> Iterator[Any]:
        monkeypatch.setattr(importing, "copy_partition", begun)
        import_log_dir(other, tmp_path, ImportOptions(corrupt_records="skip"))
        yield from begun(*args)

    monkeypatch.setattr(importing, "copy_partition", copy)
    with pytest.raises(Corrupt):
        import_log_dir(root, tmp_path)
    assert [record.offset for record in read_topic(other.topic("t"))] == list(range(7))
    assert {info.key for info in root.store.list("t/") if info.key.endswith((".log", ".slices"))} == {
        f"t/{path}" for path in other.topic("t").log.snapshot().slices.paths()
    }


def test_dry_run_reports_the_import(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    found = import_log_dir(None, tmp_path, dry_run=True).topics[0]
    assert (found.created, found.partitions[0].log_end) == (True, 6)
    assert found.partitions[0].copied == len(FIRST) + len(SECOND)
    before = [info.key for info in root.store.list("")]
    assert import_log_dir(root, tmp_path, dry_run=True).topics[0] == found
    assert [info.key for info in root.store.list("")] == before
    import_log_dir(root, tmp_path)
    write_partition(tmp_path, "t-0", {6: batch(6, [b"x"])})
    again = import_log_dir(root, tmp_path, dry_run=True).topics[0]
    assert (again.created, again.partitions[0].since, again.partitions[0].log_end) == (False, 6, 7)
    assert again.partitions[0].copied == len(batch(6, [b"x"]))
    assert root.topic("t").log.state().log_end[0] == 6
    with pytest.raises(BadRequest, match="expected a root to import into"):
        import_log_dir(None, tmp_path)


def test_commit_contains_kafkas_topic_id(root: Root, fixtures: Path) -> None:
    import_log_dir(root, fixtures / "compaction/incremental/before")
    source = root.topic("compacted").log.state().kafka_source
    assert source is not None
    assert source.topic_id == "DYgfIwO1zvCu-XXovTnyZg"
    commit = json.loads(document_of(root.store.get("compacted/_log/00000000000000000001.json")))
    assert commit["op"] == IMPORT
    assert commit["kafkaSource"]["end"] == [root.topic("compacted").log.state().log_end[0]]


# ---------------------------------------------------------------- links


@pytest.fixture
def on_disk(tmp_path: Path) -> Root:
    return World(LocalStore(tmp_path / "root", durable=False), seed=1).root()


def linked_bases(folder: Path) -> list[int]:
    """Return the base offsets of the segments that have a second name."""
    return [int(file.stem) for file in sorted(folder.glob("*.log")) if file.stat().st_nlink == 2]


def test_closed_segments_below_the_high_watermark_are_linked(on_disk: Root, tmp_path: Path) -> None:
    place = tmp_path / "kafka"
    parts = {0: FIRST, 3: SECOND, 6: batch(6, [b"g"]), 7: batch(7, [b"h"])}
    for name in ("t-0", "u-0"):
        write_partition(place, name, parts)
    # The broker may still truncate the log above this offset.
    (place / "replication-offset-checkpoint").write_bytes(offsets_to_bytes({("t", 0): 6}))
    report = import_log_dir(on_disk, place)
    assert linked_bases(place / "t-0") == [0, 3]
    assert linked_bases(place / "u-0") == []
    part = report.topics[0].partitions[0]
    assert (part.linked, part.copied) == (len(FIRST) + len(SECOND), len(parts[6]) + len(parts[7]))
    assert [record.offset for record in read_topic(on_disk.topic("t"))] == list(range(8))
    # A broker deletes files by name, and appends only to the last segment.
    shutil.rmtree(place)
    on_disk.topic("t").log.refresh()
    assert [record.offset for record in read_topic(on_disk.topic("t"))] == list(range(8))


@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("copied", [False, True])
def test_unclean_election_corrupts_links_but_not_copies(
    on_disk: Root, tmp_path: Path, written: int, copied: bool
) -> None:
    """The broker truncates the log below its high watermark, where segments are linked, and writes the batches of the
    leader.
    """
    parts = [batch(at, [b"%d" % at]) for at in range(3)]
    folder = write_partition(tmp_path / "kafka", "t-0", {0: b"".join(parts), 3: batch(3, [b"3"]), 4: b""})
    (tmp_path / "kafka" / "replication-offset-checkpoint").write_bytes(offsets_to_bytes({("t", 0): 4}))
    import_log_dir(on_disk, tmp_path / "kafka", ImportOptions(link="never" if copied else "auto"))
    before = None if not copied else read_topic(on_disk.topic("t"))
    for base in (3, 4):
        (folder / f"{base:020}.log").unlink()
    with (folder / f"{0:020}.log").open("r+b") as file:
        file.truncate(len(parts[0]))
        file.seek(0, 2)
        file.write(b"".join([batch(1, [b"x"]), batch(2, [b"y"])][:written]))
    if copied:
        assert read_topic(on_disk.topic("t")) == before
    else:
        with pytest.raises(Corrupt):
            read_topic(on_disk.topic("t"))
    with pytest.raises(Conflict, match="the log was truncated"):
        import_log_dir(on_disk, tmp_path / "kafka")


def test_damaged_segments_are_not_linked(on_disk: Root, tmp_path: Path) -> None:
    place = tmp_path / "kafka"
    folder = write_partition(place, "t-0", {0: FIRST + b"\0" * 30, 3: SECOND, 6: b""})
    with pytest.raises(Corrupt):
        import_log_dir(on_disk, place)
    assert linked_bases(folder) == []
    for policy, bases, ends in (("skip", [], 6), ("truncate", [], 3)):
        import_log_dir(on_disk, place, ImportOptions(corrupt_records=policy), on_skipped=lambda _: None)
        assert linked_bases(folder) == bases
        assert on_disk.topic("t").log.state().log_end[0] == ends
        on_disk.delete_topic("t")


def test_segments_that_cannot_be_linked_are_copied(
    on_disk: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kafka"
    folder = write_partition(place, "t-0", {0: FIRST, 3: SECOND})
    other = tmp_path / "other"
    other.write_bytes(FIRST)
    monkeypatch.setattr(SegmentFile, "__init__", _of_another_inode(SegmentFile.__init__))
    report = import_log_dir(on_disk, place)
    assert linked_bases(folder) == []
    assert report.topics[0].partitions[0].linked == 0
    assert len(read_topic(on_disk.topic("t"))) == 6


def _of_another_inode(whole: Any) -> Any:
    """Simulate that the file was replaced after it was opened and before it was linked."""

    def opened(self: SegmentFile, path: str) -> None:
        whole(self, path)
        self.inode += 1

    return opened
