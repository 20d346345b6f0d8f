"""Kafka's tools and another parser read the segments of a root: imported, sealed and compacted segments.

DumpLogSegments is run as rarely as possible, with all segments of a test in one run.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record._crecords.default_records import DefaultRecordBatch as AioBatch
from kafka.record.default_records import DefaultRecordBatch as PyBatch

from sparklog.format.batch_scan import scan_headers
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage.local import LocalStore
from sparklog.testing.world import START_MS, World
from tests.fixture_data import copied, expected_dump, expected_records
from tests.kafka_tools import Dumped, KafkaTools, without_emptied, without_gaps
from tests.log.rewriting import prepared, resolve
from tests.support.counted_root import CountedRoot

DAY_MS = 86_400_000
ENDS = ("before", "after")
PEERS = {"aiokafka": AioBatch, "kafka-python": PyBatch}
COMPACTED = (
    *("compact-delete", "compact-delete-bytes", "compressed", "incremental", "keyless-then-compacted"),
    *("log-append-time", "max-lag", "min-lag", "plain", "producer-state", "ratio-too-low", "small-map"),
    *("tombstones-day", "tombstones-long", "tombstones-zero", "transactions", "transactions-tv0"),
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A record that another parser read from a `.log`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    control: bool


def parsed(log: Path, peer: Any) -> list[Parsed]:
    """Return all records of a segment, including markers. The other parser verifies the checksum of each batch."""
    found = []
    data = log.read_bytes()
    headers = scan_headers(data)
    for position, size in zip(headers.position.tolist(), headers.size.tolist(), strict=True):
        each = peer(data[position : position + size])
        assert each.validate_crc(), (log, position)
        found += [
            Parsed(r.offset, r.timestamp, r.key, r.value, tuple(r.headers), bool(each.is_control_batch)) for r in each
        ]
    return found


def sealed_logs(topic: Topic, partition: int) -> list[Path]:
    """Return the sealed segments that the topic references, in offset order."""
    slices = topic.log.snapshot().slices.select(partition)
    folder = Path(topic.store.location) / topic.name
    return [folder / slices.path(row) for row in range(len(slices)) if slices.sealed()[row]]


def all_logs(folder: Path) -> list[Path]:
    """Return all sealed segments below a root, including segments that were replaced by a later run."""
    return sorted(folder.glob("**/sealed/*/*/*.log"))


def scanned(topic: Topic, partition: int) -> list[Parsed]:
    """Return the result of a scan of the sealed offsets."""
    slices = topic.log.snapshot().slices.select(partition)
    end = int(slices.end[slices.sealed()].max())
    table = topic.scan(partitions=[partition], end=end, isolation_level=READ_UNCOMMITTED).to_table()
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    rows = table.drop_columns(["timestamp"]).to_pylist()
    return [
        Parsed(
            row["offset"],
            time,
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
            False,
        )
        for row, time in zip(rows, times, strict=True)
    ]


def check_records(topic: Topic, dumped: Dumped, peer: Any) -> int:
    """Assert that a scan, another parser and Kafka's dump return the same records of the sealed segments. Return their
    number.
    """
    records = 0
    for partition in range(topic.log.state().partitions):
        logs = sealed_logs(topic, partition)
        if not logs:
            continue
        seen = [(log, record) for log in logs for record in parsed(log, peer)]
        start = topic.log.state().log_start[partition]
        assert scanned(topic, partition) == [r for _, r in seen if not r.control and r.offset >= start]
        for log in logs:
            assert [
                (r.offset, r.timestamp, r.key_size, r.value_size, r.header_keys, r.control) for r in dumped.records(log)
            ] == [
                (r.offset, r.timestamp, size(r.key), size(r.value), ",".join(name for name, _ in r.headers), r.control)
                for of, r in seen
                if of == log
            ], log
        records += len(seen)
    return records


def joined(files: Sequence[Path]) -> bytes:
    """Return the contents of the existing files, concatenated."""
    return b"".join(file.read_bytes() for file in files if file.exists())


def size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def compacted(topic: Topic, now_ms: int, **options: bool) -> None:
    """Run compaction on a topic, and assert that nothing fails."""
    from sparklog.compaction.run import CompactOptions
    from tests.support.compaction import compact_topic

    report = compact_topic(topic, Settings(now_ms=now_ms), InProcess(), CompactOptions(**options))
    assert not report.failures, report.failures


# -- the checks themselves


def test_dumps_are_those_of_the_fixtures(fixtures: Path, kafka_tools: KafkaTools) -> None:
    folder = fixtures / "segments/data/seg-small-0"
    files = sorted(file for file in folder.iterdir() if file.suffix in (".log", ".index", ".timeindex"))
    printed = kafka_tools.dump(files, "--deep-iteration", "--print-data-log")
    assert not printed.errors
    for file in files:
        expected = [
            line
            for line in expected_dump(fixtures / "segments", "seg-small-0", file.name).splitlines()
            if line and not line.startswith("Dumping ")
        ]
        found = [line.replace(str(file), f"data/seg-small-0/{file.name}") for line in printed.files[str(file)]]
        assert found == expected, file
    logs = [file for file in files if file.suffix == ".log"]
    records = [record for log in logs for record in printed.records(log)]
    kafka = expected_records(fixtures / "segments", "seg-small-0")
    assert [(r.offset, r.timestamp, r.key_size, r.value_size) for r in records] == [
        (r.offset, r.timestamp, size(r.key), size(r.value)) for r in kafka
    ]


@pytest.mark.slow
def test_kafkas_tool_reports_damage(fixtures: Path, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    good = copied(fixtures / "damaged/good/data/damaged-0", tmp_path / "good")
    logs = sorted(good.glob("*.log"))
    assert kafka_tools.complaints(logs) == []
    wrong: list[tuple[Path, Path]] = []

    def damaged(suffix: str, change: Callable[[bytes], bytes]) -> Path:
        folder = copied(good, tmp_path / f"wrong{len(wrong)}")
        log = folder / logs[1].name
        file = log.with_suffix(suffix)
        file.write_bytes(change(file.read_bytes()))
        wrong.append((log, file))
        return log

    damaged(".log", lambda data: data[:-3])
    damaged(".timeindex", lambda data: data[:7] + bytes([data[7] ^ 1]) + data[8:])
    damaged(".timeindex", lambda data: data[:8] + struct.pack(">i", 2) + data[12:])
    damaged(".txnindex", lambda data: data[:-1])
    said = "\n".join(kafka_tools.complaints([log for log, _ in wrong], emptied=True))
    for number, (_, file) in enumerate(wrong):
        assert f"wrong{number}/{file.name}" in said or file.suffix == ".timeindex", said
    assert "Found timestamp mismatch" in said
    assert "Indexed offset: 62, found log offset: 65" in said
    # These errors stop the tool.
    flipped = damaged(".log", lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:])
    assert any("Failed to decompress" in line for line in kafka_tools.complaints([flipped]))
    cut = damaged(".index", lambda data: data[:-1])
    assert any("is corrupt, found 79 bytes" in line for line in kafka_tools.complaints([cut]))
    (good / logs[0].with_suffix(".index").name).unlink()
    assert kafka_tools.complaints(logs[:1]) == [f"{logs[0].with_suffix('.index')} is missing"]


def test_harmless_messages_are_distinguished() -> None:
    mismatch = "Found timestamp mismatch in :x"
    emptied, real = "  Index timestamp: 7, log timestamp: -1", "  Index timestamp: 7, log timestamp: 6"
    assert without_emptied([mismatch, emptied, emptied]) == []
    assert without_emptied([mismatch, emptied, "other"]) == ["other"]
    assert without_emptied([mismatch, emptied, real]) == [mismatch, real]
    assert without_emptied([mismatch, emptied, mismatch, real]) == [mismatch, real]
    assert without_gaps(["Non-consecutive offsets in x", "  1 is followed by 3", "other"]) == ["other"]
    assert without_gaps(["  1 is followed by 3"]) == ["  1 is followed by 3"]


# -- imported segments that sparklog compacted


def stages_of(fixture: Path) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Return each stage, its configs and the clock of the next pass (one day later for the last stage)."""
    facts = json.loads((fixture / "fixture.json").read_text())
    for each, after in zip(facts["stages"], [*facts["stages"][1:], None], strict=True):
        clock = after["clockMs"] if after else each["clockMs"] + 2 * DAY_MS
        yield each["stage"], facts["configs"], clock


def imported(folder: Path, fixture: Path, stage: str, configs: dict[str, Any]) -> list[Topic]:
    root = World(LocalStore(str(folder), durable=False), seed=1).root()
    return [
        root.topic(name)
        for name in import_log_dir(root, fixture / stage, ImportOptions(configs=configs, force=True)).names
    ]


def test_imported_segments_are_accepted(fixtures: Path, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    topics = [
        topic
        for name in COMPACTED
        for stage, configs, _ in stages_of(fixtures / "compaction" / name)
        if stage in ENDS
        for topic in imported(tmp_path / f"{name}-{stage}", fixtures / "compaction" / name, stage, configs)
    ]
    for name in ("indexes-missing", "indexes-wrong"):
        topics += imported(tmp_path / name, fixtures / "damaged" / name, "data", {"index.interval.bytes": 512})
    logs = all_logs(tmp_path)
    assert len(logs) > 100
    checked = kafka_tools.checked(logs, emptied=True)
    assert checked.complaints == []
    assert sum(check_records(topic, checked.dumped, AioBatch) for topic in topics) > 5_000


def test_sealed_broker_data_is_accepted(fixtures: Path, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    topics = []
    for name in ("codecs", "segments", "timestamps", "transactions", "transactions-tv0"):
        configs = {"segment.bytes": 4000, "index.interval.bytes": 300}
        for topic in imported(tmp_path / name, fixtures / name, "data", configs):
            compacted(topic, topic.root.env.wall_ms(), roll=True)
            topics.append(topic)
            for partition in range(topic.log.state().partitions):
                kafka = expected_records(fixtures / name, f"{topic.name}-{partition}")
                table = topic.scan(partitions=[partition], isolation_level=READ_UNCOMMITTED).to_table()
                assert table["offset"].to_pylist() == [record.offset for record in kafka]
                assert table["value"].to_pylist() == [record.value for record in kafka]
                if partition in {each.partition for each in topic.log.state().kafka_open}:
                    continue  # Transactions that Kafka left open are not closed yet.
                assert topic.log.snapshot().slices.select(partition).sealed().all()
                # Segments may be cut at other offsets, but the aborted transactions are the same as in Kafka.
                left = fixtures / name / "data" / f"{topic.name}-{partition}"
                aborted = [log.with_suffix(".txnindex") for log in sealed_logs(topic, partition)]
                assert joined(aborted) == joined(sorted(left.glob("*.txnindex")))
    logs = [
        log for topic in topics for number in range(topic.log.state().partitions) for log in sealed_logs(topic, number)
    ]
    assert any(log.with_suffix(".txnindex").exists() for log in logs)
    checked = kafka_tools.checked(logs)
    assert checked.complaints == []
    assert sum(check_records(topic, checked.dumped, AioBatch) for topic in topics) > 3_000


@pytest.mark.parametrize(
    ("roll", "peer"), [(False, "aiokafka"), pytest.param(True, "kafka-python", marks=pytest.mark.slow)]
)
def test_compacted_fixtures_are_accepted(
    fixtures: Path, kafka_tools: KafkaTools, tmp_path: Path, roll: bool, peer: str
) -> None:
    topics = []
    for name in (*COMPACTED, "old-formats"):
        for stage, configs, clock in stages_of(fixtures / "compaction" / name):
            if roll and stage not in ENDS:
                continue
            (topic,) = imported(tmp_path / f"{name}-{stage}", fixtures / "compaction" / name, stage, configs)
            compacted(topic, clock, roll=roll)
            topics.append(topic)
    logs = [log for topic in topics for log in sealed_logs(topic, 0)]
    assert len({log.parent for log in logs}) > len(topics), "nothing was compacted"
    checked = kafka_tools.checked(logs, emptied=True)
    assert checked.complaints == []
    assert sum(check_records(topic, checked.dumped, PEERS[peer]) for topic in topics) > 1_000


# -- native topics


def some_rows(n: int, seed: int, *, keys: int = 40, nulls: bool = True, tombstones: float = 0.1) -> pa.Table:
    """Return rows with repeated keys, null keys if allowed, tombstones, headers, and timestamps that go back."""
    chance = random.Random(seed)
    key = [None if nulls and chance.random() < 0.1 else b"key-%d" % chance.randrange(keys) for _ in range(n)]
    value = [
        None if k is not None and chance.random() < tombstones else chance.randbytes(chance.randrange(200)) for k in key
    ]
    headers = [
        None if chance.random() < 0.7 else [{"key": "h", "value": b"x"}, {"key": "h2", "value": None}] for _ in key
    ]
    times = [START_MS + seed * 1000 + chance.randrange(2000) for _ in key]
    return pa.table(
        {
            "key": pa.array(key, pa.binary()),
            "value": pa.array(value, pa.binary()),
            "headers": pa.array(headers, pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))),
            "timestamp": pa.array(times, pa.int64()),
        }
    )


def fill(topic: Topic, appends: Sequence[int], *, keys: int = 40, nulls: bool = True) -> None:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for seed in appends:
        options = WriteOptions(codec=codecs[seed % len(codecs)], batch_bytes=1500)
        topic.append(some_rows(120, seed, keys=keys, nulls=nulls), options=options)


def test_sealed_segments_of_native_topics_are_accepted(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    small = {"segment.bytes": 20_000, "index.interval.bytes": 500}
    sealed = []
    for name, configs in (
        ("plain", small),
        ("stamped", {**small, "message.timestamp.type": "LogAppendTime"}),
        ("index-full", {"segment.index.bytes": 60, "index.interval.bytes": 0}),
        ("one", {}),
    ):
        topic = counted_root.topic(3, configs, name)
        fill(topic, range(10))
        sealed.append(topic)
    with_aborts = counted_root.topic(2, small, "aborts")
    for number in range(6):
        fill(with_aborts, [number])
        prepared(counted_root, with_aborts, some_rows(50, 100 + number), "tx", number)
        resolve(counted_root, with_aborts, "tx", number, committed=number % 2 == 0)
    before = [topic.scan(isolation_level=READ_UNCOMMITTED).to_table().num_rows for topic in sealed]
    sealed.append(with_aborts)
    for topic in sealed:
        compacted(topic, counted_root.world.now_ms, seal_only=True, roll=True)
    assert [topic.scan(isolation_level=READ_UNCOMMITTED).to_table().num_rows for topic in sealed[:-1]] == before
    logs = all_logs(tmp_path)
    assert len(logs) > 30
    checked = kafka_tools.checked(logs)
    assert checked.complaints == []
    for topic in sealed:
        assert all(path.startswith("sealed/") for path in topic.log.snapshot().slices.paths())
        assert check_records(topic, checked.dumped, AioBatch) == check_records(topic, checked.dumped, PyBatch) > 500


def test_compacted_segments_of_native_topics_are_accepted(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    topics = []
    for name, stamped in (("created", "CreateTime"), ("stamped", "LogAppendTime")):
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": 15_000,
            "index.interval.bytes": 300,
            "min.cleanable.dirty.ratio": 0,
            "delete.retention.ms": DAY_MS,
            "message.timestamp.type": stamped,
        }
        topics.append(counted_root.topic(2, configs, name))
    now = counted_root.world.now_ms
    for topic in topics:
        for run in range(3):
            fill(topic, range(10 * run, 10 * run + 8), keys=300, nulls=False)
            compacted(topic, now + run * 2 * DAY_MS, roll=run < 2)
        assert topic.scan().to_table().num_rows < 3 * 8 * 120
    logs = all_logs(tmp_path)
    assert len({log.parent for log in logs}) > 8
    checked = kafka_tools.checked(logs)
    assert checked.complaints == []
    for topic in topics:
        assert check_records(topic, checked.dumped, AioBatch) == check_records(topic, checked.dumped, PyBatch) > 50
