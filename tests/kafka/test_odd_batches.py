"""Test the batches of `odd_batches` with every way to read batches. All match Kafka, or state why they do not."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.decode import decode
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.segment_recovery import SKIP
from sparklog.log.journal.clocks import Env
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.root import Root, RootView
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.serve.batch_checks import checked_batch
from sparklog.serve.codes import CodeError
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.serve.stored_batches import StoredBatches
from sparklog.storage import open_store
from sparklog.testing.world import World
from sparklog.tools.inspection.dump import DumpOptions, dump
from sparklog.tools.inspection.dump_batches import LogOptions
from sparklog.tools.inspection.dump_source import DumpFile
from sparklog.tools.verification.findings import INDEX
from sparklog.tools.verification.kafka_directory import verify_log_dir
from sparklog.tools.verification.run import verify_root
from tests.fixture_data import ExpectedRecord
from tests.kafka.logs import HOUR_MS, batch, read, read_topic, write_partition
from tests.kafka.odd_batches import CASES, HEADERS, LEGACY, OddBatch
from tests.support.compaction import compact_topic

SOUND = {name: case for name, case in CASES.items() if case.is_read}
BAD = {name: case for name, case in CASES.items() if not case.is_read}
TOPICS = {name: f"t{number}" for number, name in enumerate(CASES)}
ENV = Env(lambda: 2 * HOUR_MS, lambda: 0, lambda seconds: None, random.Random(1))


def written(folder: Path, cases: Iterable[str]) -> Path:
    """Write a directory with a topic for each case: the odd batch, followed by a valid batch."""
    for name in cases:
        case = CASES[name]
        write_partition(folder, f"{TOPICS[name]}-0", {0: case.data + batch(case.end, [b"after"])})
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("sound"), SOUND)


@pytest.fixture(scope="module")
def root(sound: Path) -> Root:
    """Import all valid cases."""
    root = World(now_ms=2 * HOUR_MS).root()
    import_log_dir(root, sound)
    return root


def expected(case: OddBatch) -> list[int]:
    return [*case.kafka, case.end]


def offsets(records: Iterable[ExpectedRecord]) -> list[int]:
    return [record.offset for record in records]


def test_every_difference_from_kafka_has_a_reason() -> None:
    for name, case in CASES.items():
        assert (case.here is None) == (not case.why), name
        assert case.here is None or case.is_read == case.fails, name
    assert len(BAD) > 30
    assert len(SOUND) > 80


def test_odd_batches_match_kafka_in_place_and_imported(sound: Path, root: Root) -> None:
    view = KafkaView(sound)
    for name, case in SOUND.items():
        in_place = read(view, TOPICS[name])
        assert offsets(in_place) == expected(case), name
        assert read_topic(root.topic(TOPICS[name])) == in_place, name
        if name not in HEADERS and name not in LEGACY:
            assert {record.value for record in in_place[:-1]} == {b"v" * 50}, name


def damage(folder: Path) -> list[str]:
    """Return the findings of verify, without missing indexes, which are expected."""
    return [str(finding) for finding in verify_log_dir(folder, env=ENV).findings if finding.kind != INDEX]


def test_verify_accepts_odd_batches(sound: Path, root: Root) -> None:
    assert not damage(sound)
    assert not list(map(str, verify_root(root.store).findings))


def test_dump_log_prints_records_of_odd_batches(sound: Path) -> None:
    for name, case in SOUND.items():
        lines = [line.text for line in dump([dumped(sound, name)], DumpOptions(LogOptions(deep=True)))]
        assert sum(line.startswith("| offset:") for line in lines) == len(expected(case)), name


def dumped(folder: Path, name: str) -> DumpFile:
    path = folder / f"{TOPICS[name]}-0" / f"{0:020}.log"
    return DumpFile(open_store(path.parent), path.name, str(path), str(path))


def fetched(root: Root, topic: str) -> bytes:
    log = ServedLog(RootView(root), root, None)
    seen = log.poll([topic])[topic]
    place = FetchPosition(topic, seen.topic_id, 0, READ_UNCOMMITTED, 0)
    return b"".join(StoredBatches(log).read(place, seen.ends[0].log_end, 1 << 24, at_least_one=True).buffers)


def test_fetch_returns_odd_batches_unchanged(root: Root) -> None:
    for name, case in SOUND.items():
        assert fetched(root, TOPICS[name]) == case.data + batch(case.end, [b"after"]), name


def test_sealing_and_cleaning_read_odd_batches(sound: Path) -> None:
    """The cleaner retains the last record of each key, so it rewrites half of each compressed batch."""
    root = World(now_ms=2 * HOUR_MS).root()
    names = [name for name in SOUND if name not in HEADERS and name not in LEGACY]
    import_log_dir(root, sound, ImportOptions(configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}))
    for name in names[:: max(1, len(names) // 12)]:
        topic = root.topic(TOPICS[name])
        compact_topic(topic, Settings(now_ms=2 * HOUR_MS), InProcess(), CompactOptions(roll=True))
        compact_topic(topic, Settings(now_ms=2 * HOUR_MS), InProcess(), CompactOptions(roll=True))
        assert offsets(read_topic(topic)) == [3, 4, 5], name


def test_produce_accepts_readable_odd_batches() -> None:
    configs = TopicConfigs({"message.timestamp.type": "LogAppendTime"})
    for name, case in CASES.items():
        if name in HEADERS or name in LEGACY:
            continue
        try:
            checked_batch(memoryview(case.data), 9, configs, 2 * HOUR_MS)
        except CodeError:
            assert not case.is_read, name
        else:
            assert case.is_read, name


@pytest.mark.parametrize("name", BAD)
def test_only_unreadable_odd_batches_are_corrupt(tmp_path: Path, name: str) -> None:
    case, topic = BAD[name], TOPICS[name]
    folder = written(tmp_path, [name])
    with pytest.raises(Corrupt):
        read(KafkaView(folder), topic)
    assert offsets(read(KafkaView(folder), topic, start=case.end)) == [case.end]
    with pytest.raises(Corrupt):
        import_log_dir(World().root(), folder)
    assert damage(folder)
    with pytest.raises(Corrupt):
        list(dump([dumped(folder, name)], DumpOptions(LogOptions(deep=True))))
    assert offsets(read(KafkaView(folder, corrupt_records=SKIP), topic)) == [case.end]
    root, said = World().root(), list[Skipped]()
    import_log_dir(root, folder, ImportOptions(corrupt_records=SKIP), on_skipped=said.append)
    assert said
    assert offsets(read_topic(root.topic(topic))) == [case.end]
    data = fetched(root, topic)
    assert decode(data, scan_headers(data)).offset.tolist()[-1] == case.end
