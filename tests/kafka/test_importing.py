"""Test importing Kafka log directories: all records of every fixture are imported, and match Kafka's consumer."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.format.checkpoint_files import CLEANER_OFFSETS_FILE, offsets_to_bytes, parse_offsets
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT, BatchHeader
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView, is_internal
from sparklog.kafka.in_place.directory import SegmentName
from sparklog.kafka.in_place.files import file_path
from sparklog.limits import Limits
from sparklog.log.read import slice_files
from sparklog.log.state.commit import IMPORT
from sparklog.log.state.commit_intents import Draft, ImportedPartition, ImportIntent
from sparklog.log.state.invariants import check_state
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import World
from sparklog.tools.verification.run import verify_root
from tests.fixture_data import (
    copied,
    expected_offsets,
    expected_records,
    fixture_tree,
    partitions,
    split_partition,
)
from tests.kafka.logs import (
    FIRST,
    HOUR_MS,
    SECOND,
    batch,
    marker,
    read_topic,
    segment,
    without_epochs,
    write_partition,
)
from tests.support.seeds import thinned

STARTS = "log-start-offset-checkpoint"


def stages() -> list[tuple[str, str]]:
    """Return all complete log directories."""
    tree = fixture_tree()
    found = []
    for file in sorted(tree.glob("**/fixture.json")):
        name = file.parent.relative_to(tree).as_posix()
        if name.startswith(("damaged/", "partitioner")):
            continue
        found += [(name, stage.name) for stage in sorted(file.parent.iterdir()) if stage.is_dir()]
    return [(name, stage) for name, stage in found if stage != "expected"]


STAGES = stages()
STEPS_OF = ("plain", "compressed", "old-formats", "producer-state", "transactions")
"""Compacted logs that each run tests before, between and after passes of the cleaner. Others are tested after the last
pass.
"""


def tried() -> list[Any]:
    """Return `STAGES` as parameters: those that each run tests, and those of the slow run."""
    found = []
    for fixture, stage in STAGES:
        room, _, log = fixture.partition("/")
        usual = room != "compaction" or stage == "after" or log in STEPS_OF
        found.append(pytest.param(fixture, stage, marks=() if usual else pytest.mark.slow))
    return found


TRIED = tried()
DAMAGED_TAILS = ("garbage-appended", "zeros-appended", "last-batch-cut", "length-field-huge", "empty-segment-last")


def stage_facts(fixture: Path, stage: str) -> dict[str, Any]:
    """Return the entry of a stage in fixture.json, which is empty for fixtures without stages."""
    facts = json.loads((fixture / "fixture.json").read_text())
    found = [each for each in facts.get("stages", []) if isinstance(each, dict) and each["stage"] == stage]
    return found[0] if found else {}


def files_of(root: Root, topic: Topic, partition: int = 0) -> dict[str, bytes]:
    """Return the files in the sealed directory of a partition, by name."""
    prefix = f"{topic.name}/sealed/{partition}/"
    return {info.key.rsplit("/", 1)[1]: root.store.get(info.key) for info in root.store.list(prefix)}


def nothing_left(root: Root) -> bool:
    """Check that there is no topic and no data.

    The log of a topic that was created remains, as for every deleted topic.
    """
    data = [info.key for info in root.store.list("") if not info.key.startswith("_") and "/_log/" not in info.key]
    return not data and not root.topics()


def test_all_fixtures_are_imported() -> None:
    assert len(STAGES) > 100
    assert {name.partition("/")[0] for name, _ in STAGES} >= {
        "codecs",
        "compaction",
        "legacy",
        "retention",
        "transactions",
    }


@pytest.mark.parametrize(("fixture", "stage"), TRIED)
def test_imported_records_match_kafkas_consumer(fixtures: Path, root: Root, fixture: str, stage: str) -> None:
    folder = fixtures / fixture / stage
    names = [name for name in partitions(folder) if not is_internal(split_partition(name)[0])]
    assert import_log_dir(root, folder).names == sorted({split_partition(name)[0] for name in names})
    expected = stage if stage != "data-after-clean-shutdown" else "data"
    bounds = expected_offsets(fixtures / fixture, expected)
    cleaned = parse_offsets(read_bytes(folder / CLEANER_OFFSETS_FILE))
    for name in names:
        topic_name, number = split_partition(name)
        topic = root.topic(topic_name)
        state = topic.log.state()
        assert read_topic(topic, number) == without_epochs(
            expected_records(fixtures / fixture, name, READ_UNCOMMITTED, expected)
        ), name
        assert state.log_start[number] == bounds[name]["logStartOffset"]
        assert state.log_end[number] == bounds[name]["logEndOffset"]
        assert state.first_dirty_offset[number] == cleaned.get((topic_name, number), 0)
        snapshot = topic.log.snapshot()
        check_state(snapshot.state, snapshot.slices)
    assert {name for name in root.topics() if is_internal(name)} == set()


@pytest.mark.parametrize(("fixture", "stage"), TRIED)
def test_segments_are_imported_unchanged(fixtures: Path, root: Root, fixture: str, stage: str) -> None:
    folder = fixtures / fixture / stage
    import_log_dir(root, folder)
    for name in partitions(folder):
        topic_name, number = split_partition(name)
        if is_internal(topic_name):
            continue
        topic = root.topic(topic_name)
        slices = topic.log.snapshot().slices.select(number)
        log_start = topic.log.state().log_start[number]
        logs = sorted((folder / name).glob("*.log"))
        left = [log for log, after in zip(logs, [*logs[1:], None], strict=True) if keeps(log, after, log_start)]
        assert slices.base.tolist() == [int(log.stem) for log in left]
        closed = [log != logs[-1] or of_old_format(log) for log in left]
        assert slices.sealed().tolist() == closed
        sealed = files_of(root, topic, number)
        for row, log in enumerate(left):
            key = f"{topic_name}/{slices.path(row)}"
            assert root.store.get(key, 0, int(slices.size[row])) == log.read_bytes()[: int(slices.size[row])]
            if closed[row]:
                for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                    found = sealed.pop(log.stem + suffix, None)
                    # Kafka 2.8.2 indexed the last message of an append of several messages. Such an index is rebuilt.
                    if "index" not in suffix or fixture != "legacy/broker-2.8.2":
                        assert found == optional_bytes(log.with_suffix(suffix)), (log, suffix)
        assert not sealed


def of_old_format(log: Path) -> bool:
    """Return True if the segment begins with a message of format v0 or v1."""
    return log.read_bytes()[16:17] in (b"\0", b"\1")


def keeps(log: Path, after: Path | None, log_start: int) -> bool:
    """Return True if the import creates a slice for this segment.

    No fixture has a segment that ends below the log start.
    """
    zeros_only = not log.read_bytes().strip(b"\0")
    return not zeros_only and (after is None or int(after.stem) > log_start)


def read_bytes(file: Path) -> bytes:
    return optional_bytes(file) or b""


def optional_bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize(
    ("fixture", "stage"), [each for each in TRIED if each.values[0].startswith(("compaction/", "ret"))]
)
def test_segments_have_kafkas_expiry_times(fixtures: Path, root: Root, fixture: str, stage: str) -> None:
    (name,) = import_log_dir(root, fixtures / fixture / stage).names
    slices = root.topic(name).log.snapshot().slices.select(0)
    facts = stage_facts(fixtures / fixture, stage)
    largest = {segment["baseOffset"]: segment["largestTimestamp"] for segment in facts["segments"] if segment["size"]}
    first = int(slices.base[0]) if len(slices) else None
    assert dict(zip(slices.base.tolist(), slices.max_ts.tolist(), strict=True)) == {
        base: time for base, time in largest.items() if first is not None and base >= first
    }


@pytest.mark.parametrize(
    ("fixture", "stage"),
    [
        ("timestamps", "data"),
        ("segments", "data"),
        ("transactions", "data"),
        ("compaction/transactions", "pass-2"),
        ("compaction/log-append-time", "after"),
        ("retention/delete-records", "start-moved"),
        ("legacy/builder-v1", "data"),
        ("legacy/builder-v1-append-time", "data"),
        ("legacy/builder-gaps", "data"),
        ("legacy/builder-mixed", "data"),
        ("compaction/old-formats", "before"),
    ],
)
def test_lookups_by_timestamp_match_reads_in_place(fixtures: Path, root: Root, fixture: str, stage: str) -> None:
    view = KafkaView(fixtures / fixture / stage)
    import_log_dir(root, fixtures / fixture / stage)
    asked = 0
    for name, facts in expected_offsets(fixtures / fixture, stage).items():
        topic, number = split_partition(name)
        if is_internal(topic):
            continue
        for target in [question["target"] for question in facts["offsetsForTimes"]]:
            answer = root.topic(topic).offset_for_timestamp(target, number, READ_UNCOMMITTED)
            assert answer == view.offsets_for_timestamps(topic, {number: target}), (name, target)
            asked += 1
    assert asked


# ---------------------------------------------------------------- indexes


def imported_damaged(root: Root, fixtures: Path, name: str, folder: Path | None = None) -> dict[str, bytes]:
    configs = json.loads((fixtures / "damaged" / name / "fixture.json").read_text())["configs"]
    import_log_dir(root, folder or fixtures / "damaged" / name / "data", ImportOptions(configs=configs, force=True))
    return files_of(root, root.topic("damaged"))


@pytest.mark.parametrize("name", ["indexes-missing", "indexes-wrong"])
def test_missing_or_wrong_indexes_are_rebuilt_like_kafka(fixtures: Path, root: Root, tmp_path: Path, name: str) -> None:
    folder = copied(fixtures / "damaged" / name / "data", tmp_path / "data")
    for index in folder.glob("*/*.index"):
        if not index.stat().st_size:
            index.unlink()  # DumpLogSegments created this file when it searched for the index of a time index.
    found = imported_damaged(root, fixtures, name, folder)
    good = fixtures / "damaged/good/data/damaged-0"
    closed = sorted(good.glob("*.log"))[:-1]
    expected = {
        file.name: file.read_bytes()
        for log in closed
        for suffix in (".log", ".index", ".timeindex", ".txnindex")
        if (file := log.with_suffix(suffix)).exists()
    }
    assert any(file.endswith(".txnindex") for file in expected)
    assert any(file.endswith(".timeindex") and data for file, data in expected.items())
    assert found == expected


def test_index_of_another_segment_is_not_copied(fixtures: Path, root: Root, tmp_path: Path) -> None:
    good = fixtures / "segments/data/seg-small-0"
    folder = copied(good, tmp_path / "seg-small-0")
    first, second = sorted(folder.glob("*.log"))[:2]
    for suffix in (".index", ".timeindex"):
        first.with_suffix(suffix).write_bytes(second.with_suffix(suffix).read_bytes())
    import_log_dir(root, tmp_path, ImportOptions(configs={"index.interval.bytes": 1024}))
    found = files_of(root, root.topic("seg-small"))
    for suffix in (".index", ".timeindex"):
        assert found[first.stem + suffix] == good.joinpath(first.stem + suffix).read_bytes()


def test_unused_index_entries_are_not_copied(fixtures: Path, root: Root, tmp_path: Path) -> None:
    folder = copied(fixtures / "segments/data/seg-small-0", tmp_path / "seg-small-0")
    first = sorted(folder.glob("*.log"))[0]
    kept = {}
    for suffix, slot in ((".index", 8), (".timeindex", 12)):
        kept[suffix] = first.with_suffix(suffix).read_bytes()
        first.with_suffix(suffix).write_bytes(kept[suffix] + bytes(5 * slot))
    import_log_dir(root, tmp_path)
    found = files_of(root, root.topic("seg-small"))
    assert {suffix: found[first.stem + suffix] for suffix in kept} == kept


def test_incomplete_time_index_is_rebuilt(fixtures: Path, root: Root, tmp_path: Path) -> None:
    """If the time index is missing, Kafka opens the segment with an empty index and uses the time of the file."""
    good = fixtures / "segments/data/seg-small-0"
    folder = copied(good, tmp_path / "seg-small-0")
    first = sorted(folder.glob("*.log"))[0]
    first.with_suffix(".timeindex").write_bytes(b"")
    import_log_dir(root, tmp_path, ImportOptions(configs={"index.interval.bytes": 1024}))
    found = files_of(root, root.topic("seg-small"))[f"{first.stem}.timeindex"]
    assert found == good.joinpath(f"{first.stem}.timeindex").read_bytes()
    assert found


@pytest.mark.parametrize("data", [b"", bytes(80)])
def test_index_that_does_not_cover_its_segment_is_rebuilt(root: Root, tmp_path: Path, data: bytes) -> None:
    """An empty index passes Kafka's sanity check, and then Kafka reads the segment from its start."""
    batches = [batch(n, [b"v" * 9000]) for n in range(300)]
    folder = write_partition(tmp_path, "t-0", {0: b"".join(batches), 300: batch(300, [b"v"])})
    (folder / f"{0:020d}.index").write_bytes(data)
    import_log_dir(root, tmp_path)
    assert len(files_of(root, root.topic("t"))[f"{0:020d}.index"]) == 8 * 299


# ---------------------------------------------------------------- ends of logs


@pytest.mark.parametrize("name", DAMAGED_TAILS)
def test_tail_that_is_not_a_batch_is_skipped(fixtures: Path, root: Root, name: str) -> None:
    imported_damaged(root, fixtures, name)
    fixture = fixtures / "damaged" / name
    expected = without_epochs(expected_records(fixture, "damaged-0", READ_UNCOMMITTED, "recovered"))
    topic = root.topic("damaged")
    assert read_topic(topic) == expected
    assert topic.log.state().log_end[0] == expected_offsets(fixture, "recovered")["damaged-0"]["logEndOffset"]


def test_log_of_killed_broker_is_imported_as_after_recovery(fixtures: Path, root: Root) -> None:
    fixture = fixtures / "damaged/killed-broker"
    import_log_dir(root, fixture / "data")
    expected = without_epochs(expected_records(fixture, "prealloc-0", READ_UNCOMMITTED, "recovered"))
    assert read_topic(root.topic("prealloc")) == expected
    assert expected


def test_last_batch_with_wrong_checksum_is_not_imported(root: Root, tmp_path: Path) -> None:
    torn = bytearray(batch(6, [b"g", b"h"]))
    torn[-1] ^= 1
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND + bytes(torn)})
    import_log_dir(root, tmp_path)
    topic = root.topic("t")
    assert [record.value for record in read_topic(topic)] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert topic.log.state().log_end[0] == 6


def test_log_ends_at_its_empty_active_segment(root: Root, tmp_path: Path) -> None:
    """The cleaner has removed the last records, and all records of a segment in the middle."""
    write_partition(tmp_path, "t-0", {0: FIRST, 3: b"", 10: b""})
    write_partition(tmp_path, "t-1", {0: b"", 7: b""})
    write_partition(tmp_path, "t-2", {0: b""})
    (tmp_path / CLEANER_OFFSETS_FILE).write_bytes(offsets_to_bytes({("t", 0): 10, ("t", 1): 7}))
    import_log_dir(root, tmp_path)
    topic = World(root.store, seed=3).root().topic("t")
    state = topic.log.state()
    assert state.log_start.tolist() == [0, 0, 0]
    assert state.log_end.tolist() == [10, 7, 0]
    assert state.first_dirty_offset.tolist() == [10, 7, 0]
    assert topic.log.snapshot().slices.all().end.tolist() == [3]
    assert topic.scan(partitions=[1], start=5).to_table().num_rows == 0
    topic.append(pa.table({"value": [b"new"] * 3, "partition": pa.array([0, 1, 2], pa.int32())}))
    assert [record.offset for number in range(3) for record in read_topic(topic, number)] == [0, 1, 2, 10, 7, 0]


def test_log_start_beyond_the_files_leaves_an_empty_log(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    (tmp_path / STARTS).write_bytes(offsets_to_bytes({("t", 0): 50}))
    import_log_dir(root, tmp_path)
    state = root.topic("t").log.state()
    assert (state.log_start[0], state.log_end[0]) == (50, 50)
    assert [info.key for info in root.store.list("t/") if "/_log/" not in info.key] == []


def test_log_start_inside_a_segment_is_preserved(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND, 9: batch(9, [b"x"])})
    for start, bases, values in (
        (2, [0, 3, 9], b"cdefx"),
        (4, [3, 9], b"efx"),
        (7, [9], b"x"),
        (9, [9], b"x"),
    ):
        (tmp_path / STARTS).write_bytes(offsets_to_bytes({("t", 0): start}))
        import_log_dir(root, tmp_path)
        topic = root.topic("t")
        assert topic.log.snapshot().slices.all().base.tolist() == bases
        assert b"".join(record.value or b"" for record in read_topic(topic)) == values
        assert topic.log.state().log_start[0] == start
        topic.delete()


def test_later_appends_have_the_next_leader_epoch(fixtures: Path, root: Root, tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n4 3\n")
    import_log_dir(root, tmp_path)
    topic = root.topic("t")
    assert topic.log.state().leader_epoch == 5
    topic.append(pa.table({"value": [b"new"]}))
    slices = topic.log.snapshot().slices.all()
    assert slices.leader_epoch.tolist() == [-1, -1, 5]
    assert [record.offset for record in read_topic(topic)] == list(range(7))


# ---------------------------------------------------------------- facts in slices


def test_slices_describe_their_batches(root: Root, tmp_path: Path) -> None:
    stamped = BatchHeader(12, 0, 1, HOUR_MS, HOUR_MS + 5, LOG_APPEND_TIME_BIT, leader_epoch=0).pack(
        b"\x0e\0\0\0\2k\1\0"
    )
    keyed = BatchHeader(13, 0, 1, -1, -1, leader_epoch=0).pack(b"\x0e\0\0\0\2k\1\0")
    folder = write_partition(
        tmp_path,
        "t-0",
        {
            0: batch(0, [b"a"], producer=7) + batch(1, [b"b"]),
            10: marker(10, 7, commit=True),
            12: stamped,
            13: keyed,
            14: keyed[:7] + b"\x0e" + keyed[8:],
        },
    )
    os.utime(segment(folder, 13), ns=(0, 77_000_000))
    os.utime(segment(folder, 14), ns=(0, 88_000_000))
    import_log_dir(root, tmp_path)
    slices = root.topic("t").log.snapshot().slices.all()
    nulls, producers = int(SliceFlag.HAS_NULL_KEYS), int(SliceFlag.KAFKA_PRODUCERS)
    times = int(SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES)
    assert slices.flags.tolist() == [nulls | producers, producers, times, 0, 0]
    assert slices.records.tolist() == [2, 0, 1, 1, 1]
    assert slices.min_ts.tolist() == [HOUR_MS, HOUR_MS, HOUR_MS + 5, -1, -1]
    assert slices.max_ts.tolist() == [HOUR_MS, HOUR_MS, HOUR_MS + 5, 77, 88]
    assert slices.end.tolist() == [2, 11, 13, 14, 15]
    for column, value in (("shift", 0), ("append_time", -1), ("leader_epoch", -1), ("position", 0)):
        assert set(getattr(slices, column).tolist()) == {value}
    assert [record.offset for record in read_topic(root.topic("t"))] == [0, 1, 12, 13, 14]


def test_large_active_segment_is_read_with_its_footer_index(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, each = 5_000_000_000, 40
    batches = [batch(base + each * i, [b"%049d" % i] * each, timestamp=HOUR_MS + i) for i in range(700)]
    write_partition(tmp_path, "t-0", {base: b"".join(batches)})
    import_log_dir(root, tmp_path)
    topic = root.topic("t")
    slices = topic.log.snapshot().slices.all()
    assert int(slices.size[0]) > 1_500_000
    asked: list[int] = []
    whole = slice_files.read_range

    def counted(store: Store, file: str, start: int, size: int) -> bytes:
        asked.append(size)
        return whole(store, file, start, size)

    monkeypatch.setattr(slice_files, "read_range", counted)
    assert topic.record_at(0, base + 26_001)["value"].to_pylist() == [b"%049d" % 650]
    assert max(asked) < 600_000
    found = topic.offset_for_timestamp(HOUR_MS + 650)[0]
    assert found is not None
    assert found.offset == base + 26_000


# ---------------------------------------------------------------- selection and invalid input


def test_topics_are_selected_by_name(fixtures: Path, root: Root) -> None:
    folder = fixtures / "segments/data"
    assert import_log_dir(root, folder, ImportOptions(topics=["seg-one", "seg-empty"])).names == [
        "seg-empty",
        "seg-one",
    ]
    assert root.topics() == ["seg-empty", "seg-one"]
    with pytest.raises(NotFound, match=r"topic 'seg-smal' does not exist .* did you mean 'seg-small'"):
        import_log_dir(root, folder, ImportOptions(topics=["seg-smal"]))
    assert import_log_dir(root, fixtures / "transactions/data", ImportOptions(topics=["__consumer_offsets"])).names == [
        "__consumer_offsets"
    ]
    assert root.topic("__consumer_offsets").log.state().partitions == 2


def test_internal_topics_must_be_named(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "__consumer_offsets-0", {0: FIRST})
    with pytest.raises(NotFound, match=r"only internal Kafka topics: specify topics to import from __consumer_offsets"):
        import_log_dir(root, tmp_path)
    assert nothing_left(root)


def test_configs_are_set(fixtures: Path, root: Root) -> None:
    configs: Mapping[str, object] = {"internal.segment.bytes": "4096", "cleanup.policy": "compact"}
    import_log_dir(root, fixtures / "compaction/keyless-then-compacted/before", ImportOptions(configs=configs))
    state = root.topic("compacted").log.state()
    assert dict(state.configs.explicit) == {"cleanup.policy": "compact", "segment.bytes": "4096"}
    assert state.configs.segment_bytes == 4096


def test_many_partitions_become_several_commits(fixtures: Path, root: Root) -> None:
    root.store.limits = Limits(import_commit_slices=1)
    import_log_dir(root, fixtures / "codecs/data", ImportOptions(topics=["codec-none"]))
    topic = root.topic("codec-none")
    assert topic.log.state().version == 4
    for number in range(4):
        assert read_topic(topic, number) == without_epochs(
            expected_records(fixtures / "codecs", f"codec-none-{number}", READ_UNCOMMITTED)
        )


def test_path_that_is_not_a_log_dir_is_rejected(fixtures: Path, root: Root, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"not a Kafka log directory: expected partition directories such as orders-0"):
        import_log_dir(root, tmp_path)
    with pytest.raises(NotFound, match=r"nowhere does not exist: expected a directory of a broker's log.dirs"):
        import_log_dir(root, tmp_path / "nowhere")
    sparklog.open(tmp_path / "root", create=True)
    with pytest.raises(BadRequest, match="root is already a sparklog root"):
        import_log_dir(root, tmp_path / "root")
    with pytest.raises(BadRequest, match=r"a partition directory: import its log directory, .*segments/data$"):
        import_log_dir(root, fixtures / "segments/data/seg-one-0")
    assert nothing_left(root)


def test_missing_partitions_are_reported(root: Root, tmp_path: Path) -> None:
    for name in ("t-0", "t-3", "t-4000000000"):
        write_partition(tmp_path, name, {0: FIRST})
    with pytest.raises(BadRequest, match=r"expected partitions 0 to 4000000000 of t .* found no t-1: "):
        import_log_dir(root, tmp_path)
    assert nothing_left(root)


def test_existing_topic_is_not_changed(fixtures: Path, root: Root) -> None:
    root.create_topic("seg-one").append(pa.table({"value": [b"mine"]}))
    with pytest.raises(Conflict, match="topic 'seg-one' exists"):
        import_log_dir(root, fixtures / "segments/data")
    assert [record.value for record in read_topic(root.topic("seg-one"))] == [b"mine"]
    assert root.topics() == ["seg-one"]


def test_deleted_topic_can_be_imported_again(fixtures: Path, root: Root) -> None:
    for _ in range(2):
        import_log_dir(root, fixtures / "segments/data", ImportOptions(topics=["seg-one"]))
        topic = root.topic("seg-one")
        assert len(read_topic(topic)) == 9
        topic.delete()
    assert topic.log.refresh().topic_state.version == 5


def test_invalid_configs_are_rejected_first(fixtures: Path, root: Root) -> None:
    for configs, message in (
        ({"retention.mss": 1}, "unknown topic config 'retention.mss'"),
        ({"internal.segment.bytes": "few"}, "segment.bytes must be an integer"),
        ({"file.delete.delay.ms": 0}, "one hour"),
    ):
        with pytest.raises(BadRequest, match=message):
            import_log_dir(root, fixtures / "segments/data", ImportOptions(configs=configs))
    assert nothing_left(root)


def test_damage_is_reported_and_nothing_is_imported(fixtures: Path, root: Root) -> None:
    folder = fixtures / "damaged/bit-flipped/data"
    with pytest.raises(Corrupt, match="CRC-32C does not match") as caught:
        import_log_dir(root, folder)
    assert caught.value.file == str(segment(folder / "damaged-0", 197))
    assert (caught.value.position, caught.value.offset) == (3395, 226)
    assert nothing_left(root)


@pytest.mark.parametrize(
    ("segments", "base", "position", "offset", "message"),
    [
        ({0: FIRST + b"\0" * 30, 3: SECOND}, 0, len(FIRST), 3, "to the end of a closed segment: only zeros follow"),
        (
            {0: FIRST[:-3], 3: SECOND},
            0,
            len(batch(0, [b"a", b"b"])),
            2,
            "to the end of a closed segment: the batch has",
        ),
        ({0: FIRST + FIRST, 3: SECOND}, 0, len(FIRST), 3, "at offset 3 or above, found offset 0"),
        ({0: FIRST, 4: SECOND}, 4, 0, 4, "at offset 4 or above, found offset 3"),
        ({0: FIRST, 2: SECOND}, 0, 77, 2, "expected offsets below 2, where the next segment begins, found 2"),
    ],
)
def test_contradictory_log_is_corrupt(
    root: Root,
    tmp_path: Path,
    segments: dict[int, bytes],
    base: int,
    position: int,
    offset: int,
    message: str,
) -> None:
    folder = write_partition(tmp_path, "t-0", segments)
    with pytest.raises(Corrupt, match=message) as caught:
        import_log_dir(root, tmp_path)
    error = caught.value
    assert (error.file, error.position, error.offset) == (str(segment(folder, base)), position, offset)
    assert nothing_left(root)


def test_failed_topic_is_not_created_and_others_remain(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "a-0", {0: FIRST})
    write_partition(tmp_path, "b-0", {0: FIRST, 3: SECOND})
    write_partition(tmp_path, "b-1", {0: FIRST + b"\0" * 30, 3: SECOND})
    with pytest.raises(Corrupt):
        import_log_dir(root, tmp_path)
    assert root.topics() == ["a"]
    assert [info.key for info in root.store.list("b/") if "/_log/" not in info.key] == []


def test_segment_deleted_during_the_import_is_reported(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_partition(tmp_path, "t-0", {0: FIRST})
    gone = SegmentName(3, file_path(segment(folder, 3)), 1)
    monkeypatch.setattr(
        "sparklog.kafka.importing.partition.list_segments",
        lambda folder, env: (SegmentName(0, file_path(segment(tmp_path / "t-0", 0)), 1), gone),
    )
    with pytest.raises(Unavailable, match=r"00000000000000000003\.log was replaced or deleted .* stop the broker"):
        import_log_dir(root, tmp_path)
    assert nothing_left(root)


@pytest.mark.sweep
@pytest.mark.parametrize("step", thinned(3))
@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.CRASH_AFTER])
def test_import_killed_at_any_step_commits_nothing_partially(
    root: Root, tmp_path: Path, kind: FaultKind, step: int
) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND})
    write_partition(tmp_path, "t-1", {0: FIRST, 3: b""})
    whole = {0: [0, 1, 2, 3, 4, 5], 1: [0, 1, 2]}
    failed = 0
    for number in range(0, 200, step):
        calls = []

        def decide(call: Call, number: int = number, calls: list[Call] = calls) -> Fault | None:
            calls.append(call)
            return Fault(kind) if call.number == number else None

        with contextlib.suppress(SparklogError, Crash):
            import_log_dir(World(FaultyStore(root.store, decide), seed=number).root(), tmp_path)
        after = World(root.store, seed=number + 1000).root()
        found = {}
        if after.topics():
            topic = after.topic("t")
            found = {n: [record.offset for record in read_topic(topic, n)] for n in (0, 1)}
            assert found in (whole, {0: [], 1: []}), (number, calls[-1])
            topic.delete()
        failed += found != whole
        if len(calls) <= number:
            break
        import_log_dir(after, tmp_path)
        assert {n: [record.offset for record in read_topic(after.topic("t"), n)] for n in (0, 1)} == whole
        after.topic("t").delete()
    assert number < 200 - step
    assert failed > 20 // step


@pytest.mark.parametrize("kind", [FaultKind.TWICE, FaultKind.FALSE_EXISTS])
def test_indexes_are_written_despite_lost_responses(kind: FaultKind, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 9: b""})
    world = World()
    seen: set[str] = set()

    def decide(call: Call) -> Fault | None:
        first = call.verb == "create" and "/sealed/" in call.key and call.key not in seen
        seen.add(call.key)
        return Fault(kind) if first else None

    import_log_dir(world.root(FaultyStore(world.store, decide, world.sleep)), tmp_path)
    names = {info.key.rpartition(".")[2] for info in world.store.list("t/sealed/")}
    assert names == {"log", "index", "timeindex"}
    assert verify_root(world.store, env=world.env()).sound


# ---------------------------------------------------------------- the commit


def test_import_is_one_commit_with_the_log_end(root: Root, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: FIRST, 9: b""})
    import_log_dir(root, tmp_path)
    state = root.topic("t").log.state()
    part = ImportedPartition(0, 4, 20, 30, 2, ())
    topic = root.create_topic("u")
    draft = ImportIntent(topic.log.state().topic_id, (part,)).draft("u", topic.log.state(), topic.log.state(), None)
    assert isinstance(draft, Draft)
    assert (draft.op, draft.leader_epoch, dict(draft.log_starts)) == (IMPORT, 3, {0: 4})
    after = topic.log.commit(ImportIntent(topic.log.state().topic_id, (part,))).state
    assert (after.log_start[0], after.log_end[0], after.first_dirty_offset[0]) == (4, 20, 0)
    assert (state.version, state.log_end[0]) == (1, 9)


def test_corrupt_unprotected_fields_do_not_stop_the_import(root: Root, tmp_path: Path) -> None:
    """The checksum of a batch does not cover its leader epoch, and a cleaner checkpoint has no checksum."""
    damaged = bytearray(FIRST)
    damaged[12:16] = b"\x7f\xff\xff\xff"
    write_partition(tmp_path, "t-0", {0: bytes(damaged), 3: SECOND})
    for cleaned, expected in ((-5, 0), (2**40, 0), (6, 6)):
        (tmp_path / CLEANER_OFFSETS_FILE).write_bytes(offsets_to_bytes({("t", 0): cleaned}))
        import_log_dir(root, tmp_path)
        state = root.topic("t").log.state()
        assert (state.leader_epoch, state.first_dirty_offset[0]) == (2**31 - 1, expected)
        root.topic("t").delete()


def test_partitions_written_during_the_import_are_rejected(root: Root) -> None:
    topic = root.create_topic("t", partitions=2)
    before = topic.log.state()
    topic.append(pa.table({"value": [b"x"], "partition": pa.array([1], pa.int32())}))
    intent = ImportIntent(
        before.topic_id, (ImportedPartition(0, 0, 5, None, 0, ()), ImportedPartition(1, 0, 5, None, 0, ()))
    )
    with pytest.raises(Conflict, match="expected an empty partition, found log end offset 1"):
        topic.log.commit(intent, before)
    assert topic.log.state().log_end.tolist() == [0, 1]


def test_damaged_transaction_index_never_exposes_aborted_records(fixtures: Path) -> None:
    """The index has no checksum. An entry with another producer id would expose the records of the transaction."""
    world = World()
    made, store = world.root(), world.store
    import_log_dir(made, fixtures / "transactions/data", ImportOptions(topics=("txn-b",)))
    before = made.topic("txn-b").scan().to_table()
    indexes = [info.key for info in store.list("txn-b/sealed/") if info.key.endswith(".txnindex")]
    assert len(indexes) > 3
    for key in indexes:
        data = store.get(key)
        for place in range(0, len(data), 3):
            damaged = MemoryStore(world.clock)
            damaged.restore(store.snapshot())
            damaged.replace(key, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with contextlib.suppress(Corrupt):
                assert open_root(damaged, env=world.env()).topic("txn-b").scan().to_table() == before
