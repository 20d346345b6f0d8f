"""Test imports and exports of Kafka log directories against Kafka's bytes, and against Kafka's consumer and tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparklog.format import transaction_index
from sparklog.format.checkpoint_files import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_STARTS_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
    parse_leader_epochs,
    parse_offsets,
)
from sparklog.format.producer_snapshot import ProducerEntry, parse_snapshot
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.kafka.exporting import ExportedTopic, export_topics
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView, is_internal
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import Root
from sparklog.testing.world import World
from tests.fixture_data import expected_offsets, expected_records, fixture_tree, partitions, split_partition
from tests.kafka.logs import read, without_epochs
from tests.kafka.test_importing import STAGES, TRIED, keeps
from tests.kafka_tools import KafkaTools

CONVERTED = ("compaction/old-formats", "legacy/broker-2.8.2")
DAMAGED_INDEXES = ("indexes-missing", "indexes-wrong")
# Kafka's cleaner expired these producers, or their batches were removed, so only Kafka's snapshot contains them.
REMEMBERED = ("compaction", "retention")


def imported_from(folder: Path) -> Root:
    """Return a root with the topics of a log directory, with the configs that the broker used."""
    facts = json.loads((folder.parent / "fixture.json").read_text())
    configs = {k: v for k, v in (facts.get("configs") or {}).items() if k != "cleanup.policy"}
    if folder.parent.parent.name == "compaction":
        configs["cleanup.policy"] = facts["configs"].get("cleanup.policy", "compact")
    root = World().root()
    import_log_dir(root, folder, ImportOptions(configs=configs, force=True))
    return root


def exported(root: Root, folder: Path) -> list[ExportedTopic]:
    return export_topics(root, folder, root.topics(), ExportOptions(durable=False))


@dataclass(frozen=True)
class Trip:
    """The log directory `source` of a fixture, the root that it was imported into, and the export `target`."""

    fixture: str
    stage: str
    source: Path
    root: Root
    target: Path
    topics: list[ExportedTopic]


@pytest.fixture(
    scope="module",
    params=[pytest.param(each.values, id="-".join(each.values), marks=each.marks) for each in TRIED],
)
def trip(request: pytest.FixtureRequest, fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trip]:
    """Import and export a log directory. All tests of the directory share the result, so they must not write to it."""
    fixture, stage = request.param
    folder = tmp_path_factory.mktemp("trip")
    root, target = imported_from(fixtures / fixture / stage), folder / "out"
    yield Trip(fixture, stage, fixtures / fixture / stage, root, target, exported(root, target))
    shutil.rmtree(folder)


def names_in(folder: Path) -> list[str]:
    return [name for name in partitions(folder) if not is_internal(split_partition(name)[0])]


@pytest.mark.sweep
def test_round_trip_matches_kafkas_consumer(fixtures: Path, trip: Trip) -> None:
    fixture, stage = trip.fixture, trip.stage
    view = KafkaView(trip.target)
    told = stage if stage != "data-after-clean-shutdown" else "data"
    expected = expected_offsets(fixtures / fixture, told)
    said = {(topic.topic, part.partition): part for topic in trip.topics for part in topic.partitions}
    assert partitions(trip.target) == names_in(fixtures / fixture / stage)
    for name in names_in(fixtures / fixture / stage):
        topic, number = split_partition(name)
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            records = without_epochs(expected_records(fixtures / fixture, name, isolation, told))
            assert read(view, topic, number, isolation) == records, (name, isolation)
        bounds, part, kafka = view.bounds(topic)[number], said[topic, number], expected[name]
        assert bounds.log_start == part.log_start == kafka["logStartOffset"]
        assert bounds.log_end == part.log_end == kafka["logEndOffset"]
        assert bounds.last_stable == part.last_stable == kafka["lastStableOffset"]
        written = next(each.topic_id for each in trip.topics if each.topic == topic)
        metadata = (fixtures / fixture / stage / name / PARTITION_METADATA_FILE).exists()
        assert view.topic_id(topic) == written
        assert (KafkaView(fixtures / fixture / stage).topic_id(topic) == written) == metadata


def test_exported_files_equal_kafkas_files(trip: Trip) -> None:
    fixture, source, target = trip.fixture, trip.source, trip.target
    for name in names_in(source):
        topic, number = split_partition(name)
        log_start = int(trip.root.topic(topic).log.state().log_start[number])
        logs = sorted((source / name).glob("*.log"))
        kept = [
            (log, after) for log, after in zip(logs, [*logs[1:], None], strict=True) if keeps(log, after, log_start)
        ]
        for log, after in kept:
            # The first segment is named by the log start, even if its first records were removed by the cleaner.
            base = min(int(log.stem), log_start) if log == kept[0][0] else int(log.stem)
            same_segment(log, target / name / f"{base:020d}.log", active=after is None)
        mine = parse_leader_epochs((target / name / LEADER_EPOCHS_FILE).read_bytes())
        epochs = source / name / LEADER_EPOCHS_FILE
        kafkas = parse_leader_epochs(epochs.read_bytes() if epochs.exists() else b"")
        # Kafka's file contains more: epochs without batches, and the start of epochs whose first batches were removed.
        known = {entry.epoch: entry.start_offset for entry in kafkas}
        assert (
            mine or fixture.startswith("legacy/") or not any(log.read_bytes() for log in (target / name).glob("*.log"))
        )
        for entry in mine:
            # Kafka's cleaner assigns an epoch to old messages that it converts. A broker's recovery would also add this
            # epoch.
            assert entry.start_offset >= max(log_start, known[entry.epoch] if fixture not in CONVERTED else 0)


def same_segment(kafkas: Path, copy: Path, *, active: bool) -> None:
    """Compare bytes. Zeros after the last batch and indexes that the import rebuilds may differ."""
    log = copy.read_bytes()
    data = kafkas.read_bytes()
    assert data[: len(log)] == log
    assert log == data or (active and not data[len(log) :].strip(b"\0"))
    if not log:
        return
    if "broker-2.8.2" in kafkas.parts:
        # Kafka 2.8.2 indexed the last batch of an append of several batches.
        return
    told, mine = transactions(kafkas), transactions(copy)
    if active:
        # The import does not store an index of the active segment. If the first batches of a transaction were removed
        # by the cleaner, only the later part of the transaction is known.
        assert (mine.producer_ids.tolist(), mine.last_offsets.tolist()) == (
            told.producer_ids.tolist(),
            told.last_offsets.tolist(),
        )
        assert (mine.first_offsets >= told.first_offsets).all()
        return
    assert mine.to_bytes() == told.to_bytes()
    if copy.stem != kafkas.stem:
        assert absolute_indexes(copy) == absolute_indexes(kafkas)
        return
    for suffix in (".index", ".timeindex"):
        assert copy.with_suffix(suffix).read_bytes() == kafkas.with_suffix(suffix).read_bytes(), copy


def absolute_indexes(log: Path) -> list[list[int]]:
    """Return the absolute offsets, positions and times of both indexes, regardless of the segment's name."""
    base = int(log.stem)
    by_offset = OffsetIndex.parse(log.with_suffix(".index").read_bytes(), base)
    by_time = TimeIndex.parse(log.with_suffix(".timeindex").read_bytes(), base)
    return [each.tolist() for each in (by_offset.offsets, by_offset.positions, by_time.timestamps, by_time.offsets)]


def transactions(log: Path) -> transaction_index.AbortedTransactions:
    file = log.with_suffix(".txnindex")
    return transaction_index.parse(file.read_bytes() if file.exists() else b"", int(log.stem))


def test_exported_checkpoints_and_snapshots_equal_kafkas(fixtures: Path, trip: Trip) -> None:
    fixture, stage, source, target = trip.fixture, trip.stage, trip.source, trip.target
    told = stage if stage != "data-after-clean-shutdown" else "data"
    expected = expected_offsets(fixtures / fixture, told)
    ends = {split_partition(name): expected[name]["logEndOffset"] for name in names_in(source)}
    for name in (HIGH_WATERMARKS_FILE, RECOVERY_POINTS_FILE):
        assert parse_offsets((target / name).read_bytes()) == ends
    starts = parse_offsets((target / LOG_STARTS_FILE).read_bytes())
    for name in names_in(source):
        first = min(int(log.stem) for log in (target / name).glob("*.log"))
        start = expected[name]["logStartOffset"]
        assert starts.get(split_partition(name), first) == start
        assert (split_partition(name) in starts) == (start > first)
        kafkas = sorted((source / name).glob("*.snapshot"))
        mine = sorted((target / name).glob("*.snapshot"))
        if mine and kafkas and kafkas[-1].name == mine[-1].name and not fixture.startswith(REMEMBERED):
            assert entries(mine[-1]) == entries(kafkas[-1])
    cleaned = source / CLEANER_OFFSETS_FILE
    if cleaned.exists() and fixture.startswith("compaction/"):
        assert parse_offsets((target / CLEANER_OFFSETS_FILE).read_bytes()) == {
            key: offset for key, offset in parse_offsets(cleaned.read_bytes()).items() if offset and key in ends
        }


def entries(path: Path) -> list[ProducerEntry]:
    return sorted(parse_snapshot(path.read_bytes()), key=lambda entry: entry.producer_id)


def test_dump_log_segments_accepts_exported_files(fixtures: Path, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    chosen = [each for each in STAGES if each[1] in ("data", "before", "after", "pass-2", "start-moved")]
    logs: list[Path] = []
    for fixture, stage in [*chosen, *((f"damaged/{name}", "data") for name in DAMAGED_INDEXES)]:
        folder = tmp_path / fixture.replace("/", "_") / stage
        folder.parent.mkdir(exist_ok=True)
        exported(imported_from(fixture_tree() / fixture / stage), folder)
        logs += folder.glob("*/*.log")
    assert len(logs) > 300
    assert kafka_tools.complaints(sorted(logs), emptied=True) == []


@pytest.mark.parametrize(
    "fixture", ["legacy/builder-v0", "legacy/builder-mixed", "legacy/builder-gaps", "transactions"]
)
def test_partial_export_ends_with_complete_batches(fixtures: Path, tmp_path: Path, fixture: str) -> None:
    root = imported_from(fixtures / fixture / "data")
    cut = 0
    for name in names_in(fixtures / fixture / "data"):
        topic, number = split_partition(name)
        records = without_epochs(expected_records(fixtures / fixture, name, READ_UNCOMMITTED))
        log_end = expected_offsets(fixtures / fixture)[name]["logEndOffset"]
        log_start = expected_offsets(fixtures / fixture)[name]["logStartOffset"]
        for end in range(log_start, log_end, max((log_end - log_start) // 6, 1)):
            out = tmp_path / f"{name}-{end}"
            (found,) = export_topics(
                root, out, [topic], ExportOptions(partitions=[number], ends={number: end}, durable=False)
            )
            (part,) = found.partitions
            view = KafkaView(out)
            bounds = view.bounds(topic)[number]
            assert (bounds.log_end, bounds.last_stable) == (part.log_end, part.last_stable)
            assert end <= part.log_end <= log_end
            assert read(view, topic, number) == [record for record in records if record.offset < part.log_end]
            cut += part.log_end > end
    assert cut
