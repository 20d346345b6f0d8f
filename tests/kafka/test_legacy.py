"""Test logs that begin with messages of formats v0 and v1: in place and imported, complete, partial, damaged,
maintained.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparklog
from sparklog.compaction.run import CompactOptions
from sparklog.errors import Corrupt
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.files import file_path
from sparklog.kafka.in_place.segment_file import SegmentFile, seek
from sparklog.limits import Limits
from sparklog.log.read.skipped import Skipped
from sparklog.log.read.time_lookup import offsets_of_max_timestamp
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.world import World
from tests.fixture_data import ExpectedRecord, copied, expected_offsets, expected_records, split_partition
from tests.format.old_messages import message, messages, wrapper
from tests.kafka.logs import HOUR_MS, batch, offsets, read, records, segment, without_epochs, write_partition
from tests.support.compaction import compact_topic
from tests.support.seeds import thinned

PARTITIONS = [
    ("legacy/builder-v0", "built-0"),
    ("legacy/builder-v1", "built-0"),
    ("legacy/builder-v1-append-time", "built-0"),
    ("legacy/builder-gaps", "built-0"),
    ("legacy/builder-mixed", "built-0"),
    ("legacy/broker-2.8.2", "old-mixed-0"),
    ("legacy/broker-2.8.2", "old-v0-2"),
    ("legacy/broker-2.8.2", "old-v1-3"),
]


def scanned(topic: Topic, partition: int = 0, start: int | None = None, end: int | None = None) -> list[ExpectedRecord]:
    wanted = {name: offset for name, offset in (("start", start), ("end", end)) if offset is not None}
    scan = topic.scan(partitions=[partition], isolation_level=READ_UNCOMMITTED, columns=COLUMNS, **wanted)
    return [record for found in scan for record in records(found)]


def expected(fixtures: Path, fixture: str, name: str) -> list[ExpectedRecord]:
    return without_epochs(expected_records(fixtures / fixture, name))


# ---------------------------------------------------------------- parts


@pytest.mark.sweep
@pytest.mark.parametrize("step", thinned(5))
@pytest.mark.parametrize(("fixture", "name"), PARTITIONS)
def test_any_range_of_offsets(fixtures: Path, root: Root, fixture: str, name: str, step: int) -> None:
    root.store.limits = Limits(span_bytes=700, index_min_bytes=100)
    topic, number = split_partition(name)
    view = KafkaView(fixtures / fixture / "data")
    import_log_dir(root, fixtures / fixture / "data", ImportOptions(topics=[topic]))
    everything = expected(fixtures, fixture, name)
    bounds = view.bounds(topic)[number]
    chance = random.Random(7)
    for _ in range(0, 25, step):
        start, end = sorted(chance.choices(range(bounds.log_start, bounds.log_end + 1), k=2))
        right = [record for record in everything if start <= record.offset < end]
        size = chance.choice((1, 1000, 1 << 20))
        assert read(view, topic, number, READ_COMMITTED, start, end, size) == right, (start, end)
        if start < end:
            assert scanned(root.topic(topic), number, start, end) == right, (start, end)


@pytest.mark.parametrize("column", ["offset", "timestampType", "timestamp", "key"])
def test_single_column_equals_column_of_full_read(fixtures: Path, root: Root, column: str) -> None:
    import_log_dir(root, fixtures / "legacy/builder-mixed/data")
    topic = root.topic("built")
    whole = topic.scan(columns=COLUMNS).to_table()
    assert topic.scan(columns=[column]).to_table()[column].to_pylist() == whole[column].to_pylist()
    assert set(whole["timestampType"].to_pylist()) == {-1, 0, 1}


def test_index_is_used_for_old_messages(fixtures: Path) -> None:
    folder = fixtures / "legacy/builder-v1/data/built-0"
    used = 0
    for log in sorted(folder.glob("*.log")):
        with SegmentFile(file_path(log)) as file:
            used += seek(file, int(log.stem), 10**6) > 0
    assert used


def test_lookups_by_timestamp_match_kafka_after_import(fixtures: Path, root: Root) -> None:
    fixture = fixtures / "legacy/builder-v1-append-time"
    import_log_dir(root, fixture / "data")
    asked = 0
    for name, facts in expected_offsets(fixture).items():
        topic, number = split_partition(name)
        for question in facts["offsetsForTimes"]:
            answer = root.topic(topic).offset_for_timestamp(question["target"], number, READ_UNCOMMITTED)[number]
            kafka = question[READ_UNCOMMITTED]
            found = (-1, -1) if answer is None else (answer.offset, answer.timestamp)
            assert found == (kafka["offset"], kafka["timestamp"])
            asked += 1
    assert asked


@pytest.mark.parametrize("fixture", sorted({fixture for fixture, _ in PARTITIONS}))
def test_maximum_timestamps_match_kafka(fixtures: Path, fixture: str) -> None:
    view = KafkaView(fixtures / fixture / "data")
    facts = expected_offsets(fixtures / fixture)
    assert facts
    for name, told in facts.items():
        topic, number = split_partition(name)
        answer = offsets_of_max_timestamp(view, topic)[number]
        kafka = told["maxTimestamp"][READ_UNCOMMITTED]
        assert (-1 if answer is None else answer.offset) == kafka["offset"], name
        assert (-1 if answer is None else answer.timestamp) == kafka["timestamp"], name


def test_messages_larger_than_every_window(root: Root, tmp_path: Path) -> None:
    """The values are incompressible, so the stored bytes exceed a window."""
    noise = random.Random(1).randbytes(700_000)
    rows = [(i, HOUR_MS + i, b"k%d" % i, noise[i * 100_000 :][:100_000]) for i in range(7)]
    data = wrapper(6, "snappy", messages(rows), timestamp=HOUR_MS + 6)
    data += message(7, b"k7", noise * 3, timestamp=HOUR_MS + 7) + message(8, b"k8", b"v", magic=0)
    write_partition(tmp_path, "t-0", {0: data, 9: batch(9, [b"new"])})
    values = [value for _, _, _, value in rows] + [noise * 3, b"v", b"new"]
    view = KafkaView(tmp_path)
    assert view.bounds("t")[0].log_end == 10
    assert [record.value for record in read(view, "t")] == values
    assert offsets(read(view, "t", start=3, end=8)) == [3, 4, 5, 6, 7]
    import_log_dir(root, tmp_path)
    assert [record.value for record in scanned(root.topic("t"))] == values


def test_filters_find_all_records_of_a_compressed_message(tmp_path: Path) -> None:
    rows = [(i, HOUR_MS, b"k%d" % i, b"v%d" % i) for i in range(10)]
    write_partition(tmp_path, "t-0", {0: wrapper(9, "gzip", messages(rows), timestamp=HOUR_MS)})
    dataset: Any = sparklog.datasets(tmp_path)["t"]
    assert dataset.to_table(filter=pc.field("partition") == 0)["offset"].to_pylist() == list(range(10))
    assert dataset.to_table(filter=pc.field("value") == b"v4")["offset"].to_pylist() == [4]
    assert dataset.to_table(filter=pc.field("offset") == 4)["value"].to_pylist() == [b"v4"]


# ---------------------------------------------------------------- the end of the log


OLD = message(0, b"a", b"1", timestamp=HOUR_MS) + wrapper(
    2, "gzip", messages([(0, HOUR_MS, b"b", b"2"), (1, HOUR_MS, b"a", b"3")]), timestamp=HOUR_MS
)


@pytest.mark.parametrize(
    "tail",
    [
        message(3, b"c", b"4", crc=1),
        wrapper(4, "gzip", messages([(0, 1, b"c", b"4"), (1, 1, b"d", b"5")]), crc=1),
        message(3, b"c", b"4")[:-1],
        bytes(100),
        message(3, b"c", b"4")[:17],
    ],
    ids=["checksum", "wrapper's checksum", "cut off", "zeros", "a few bytes"],
)
def test_incomplete_tail_is_ignored(root: Root, tmp_path: Path, tail: bytes) -> None:
    write_partition(tmp_path, "t-0", {0: OLD + tail})
    view = KafkaView(tmp_path)
    assert view.bounds("t")[0].log_end == 3
    assert offsets(read(view, "t")) == [0, 1, 2]
    import_log_dir(root, tmp_path)
    topic = root.topic("t")
    assert topic.log.state().log_end.tolist() == [3]
    assert offsets(scanned(topic)) == [0, 1, 2]
    topic.append(pa.table({"value": [b"new"]}))
    assert offsets(scanned(topic)) == [0, 1, 2, 3]
    assert topic.log.snapshot().slices.all().sealed().tolist() == [True, False]


def test_batches_appended_to_old_messages_are_read(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {0: OLD})
    view = KafkaView(tmp_path)
    assert view.bounds("t")[0].log_end == 3
    with segment(folder, 0).open("ab") as out:
        out.write(message(3, b"c", b"4", magic=0) + batch(4, [b"5"]))
    view.refresh(["t"])
    assert view.bounds("t")[0].log_end == 5
    assert [record.timestamp_type for record in read(view, "t")] == [0, 0, 0, -1, 0]


# ---------------------------------------------------------------- damage


DAMAGE = {
    "flipped bit": (message(3, b"c", b"4", crc=8), "CRC-32 does not match"),
    "flipped bit in a wrapper": (wrapper(3, "lz4", message(0, b"c", b"4"), crc=8), "CRC-32 does not match"),
    "compressed twice": (
        wrapper(3, "gzip", wrapper(0, "gzip", message(0, b"c", b"4"))),
        "contains another compressed message",
    ),
    "null value": (message(3, b"c", None, attributes=1), "has no value"),
    "zstd": (wrapper(3, "zstd", message(0, b"c", b"4")), "has codec 4"),
    "offset too small": (wrapper(3, "snappy", message(4, b"c", b"4")), "has offset 3, which is below 4"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_reports_its_position(root: Root, tmp_path: Path, name: str) -> None:
    broken, text = DAMAGE[name]
    folder = write_partition(tmp_path, "t-0", {0: OLD + broken + message(4, b"d", b"5"), 5: batch(5, [b"6"])})
    view = KafkaView(tmp_path)
    for attempt in (lambda: read(view, "t"), lambda: import_log_dir(root, tmp_path)):
        with pytest.raises(Corrupt, match=text) as caught:
            attempt()
        error = caught.value
        assert (error.file, error.position, error.offset) == (str(segment(folder, 0)), len(OLD), 3)
    assert root.topics() == []
    assert offsets(read(view, "t", start=0, end=3)) == [0, 1, 2]
    assert offsets(read(view, "t", start=4, end=6)) == [4, 5]


@pytest.mark.parametrize("name", DAMAGE)
def test_skip_loses_only_the_damaged_message(root: Root, tmp_path: Path, name: str) -> None:
    broken, text = DAMAGE[name]
    write_partition(tmp_path, "t-0", {0: OLD + broken + message(4, b"d", b"5"), 5: batch(5, [b"6"])})
    said: list[Skipped] = []
    view = KafkaView(tmp_path, corrupt_records="skip", on_skipped=said.append)
    (part,) = view.plan([OffsetRange("t", 0, 0, 6)], READ_UNCOMMITTED)
    assert [record.offset for piece in part.read(COLUMNS) for record in records(piece)] == [0, 1, 2, 4, 5]
    assert [(skipped.position, skipped.nbytes, skipped.start, skipped.end) for skipped in said] == [
        (len(OLD), len(broken), 3, 4)
    ]
    if "CRC" in text:
        import_log_dir(root, tmp_path, ImportOptions(corrupt_records="skip"))
        assert offsets(scanned(root.topic("t"))) == [0, 1, 2, 4, 5]


def test_truncated_old_messages_in_a_closed_segment(root: Root, tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {0: OLD + message(3, b"c", b"4")[:-1], 5: batch(5, [b"6"])})
    for attempt in (lambda: read(KafkaView(tmp_path), "t"), lambda: import_log_dir(root, tmp_path)):
        with pytest.raises(Corrupt) as caught:
            attempt()
        assert (caught.value.file, caught.value.position) == (str(segment(folder, 0)), len(OLD))


def test_flipped_bits_after_the_import(fixtures: Path, root: Root) -> None:
    import_log_dir(root, fixtures / "legacy/builder-v1/data")
    topic = root.topic("built")
    whole = {(record.offset, record.key, record.value) for record in scanned(topic)}
    chance = random.Random(5)
    files = sorted(info.key for info in root.store.list("built/sealed/") if info.key.endswith(".log"))
    for _ in range(40):
        key = chance.choice(files)
        data = root.store.get(key)
        broken = bytearray(data)
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        root.store.replace(key, bytes(broken))  # type: ignore[attr-defined]
        with pytest.raises(Corrupt) as caught:
            scanned(topic)
        assert caught.value.file == key
        root.store.replace(key, data)  # type: ignore[attr-defined]
    assert {(record.offset, record.key, record.value) for record in scanned(topic)} == whole


def test_random_damage_in_place_is_corrupt_or_harmless(fixtures: Path, tmp_path: Path) -> None:
    source = copied(fixtures / "legacy/builder-mixed/data", tmp_path / "data") / "built-0"
    right = {(record.key, record.value) for record in expected(fixtures, "legacy/builder-mixed", "built-0")}
    logs = sorted(source.glob("*.log"))
    chance = random.Random(11)
    corrupt = 0
    for _ in range(100):
        log = chance.choice(logs)
        data = log.read_bytes()
        broken = bytearray(data)
        for _ in range(chance.choice((1, 1, 4))):
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        log.write_bytes(bytes(broken))
        try:
            assert {(record.key, record.value) for record in read(KafkaView(source.parent), "built")} <= right
        except Corrupt as error:
            corrupt += error.file is not None
        log.write_bytes(data)
    assert corrupt > 60


# ---------------------------------------------------------------- maintenance


@pytest.mark.parametrize(("fixture", "name"), PARTITIONS)
def test_merging_and_sealing_preserve_every_record(fixtures: Path, root: Root, fixture: str, name: str) -> None:
    topic_name, number = split_partition(name)
    import_log_dir(root, fixtures / fixture / "data", ImportOptions(topics=[topic_name]))
    topic = root.topic(topic_name)
    partitions = topic.log.state().partitions
    for i in range(20):
        row = {"value": [b"%d" % i] * partitions, "partition": pa.array(range(partitions), pa.int32())}
        topic.append(pa.table({**row, "timestamp": pa.array([HOUR_MS] * partitions, pa.int64())}))
    before = scanned(topic, number)
    assert before[:-20] == expected(fixtures, fixture, name)
    compact_topic(topic, Settings(now_ms=HOUR_MS), InProcess())
    compact_topic(topic, Settings(now_ms=HOUR_MS), InProcess(), CompactOptions(roll=True))
    assert topic.log.snapshot().slices.all().sealed().all()
    assert scanned(topic, number) == before


def test_compaction_keeps_the_latest_old_message_of_each_key(root: Root, tmp_path: Path) -> None:
    """A retained message of v0 has CreateTime and no timestamp, as written by Kafka 4.1."""
    first = message(0, b"a", b"1", magic=0) + message(1, b"b", b"2", magic=0) + message(2, b"c", None, magic=0)
    second = wrapper(5, "gzip", messages([(0, 5, b"a", b"3"), (2, 9, b"d", b"4")]), timestamp=9)
    write_partition(tmp_path, "t-0", {0: first, 3: second, 6: batch(6, [b"x"])})
    import_log_dir(root, tmp_path, ImportOptions(configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}))
    topic = root.topic("t")
    compact_topic(topic, Settings(now_ms=HOUR_MS), InProcess())
    found = [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in scanned(topic)]
    assert found == [
        (1, -1, 0, b"b", b"2"),
        (2, -1, 0, b"c", None),
        (3, 5, 0, b"a", b"3"),
        (5, 9, 0, b"d", b"4"),
        (6, HOUR_MS, 0, None, b"x"),
    ]
    assert topic.log.state().first_dirty_offset.tolist() == [6]


@pytest.mark.parametrize("older_ms", [0, 999, 1000])
def test_old_tombstones_expire_by_file_time(tmp_path: Path, older_ms: int) -> None:
    """Kafka's rule for formats without delete horizons compares with the file time of the last clean segment."""
    world = World()
    root = world.root()
    folder = write_partition(
        tmp_path,
        "t-0",
        {
            0: message(0, b"a", None, timestamp=1),
            1: message(1, b"b", b"2", timestamp=1),
            2: message(2, b"c", b"3"),
            3: b"",
        },
    )
    (folder.parent / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 1000}
    import_log_dir(root, tmp_path, ImportOptions(configs=configs))
    topic = root.topic("t")
    for info in list(root.store.list("t/sealed/")):
        if info.key.endswith("01.log"):
            data = root.store.get(info.key)
            world.now_ms += older_ms
            root.store.delete(info.key)
            root.store.create(info.key, data)
    compact_topic(topic, Settings(now_ms=world.now_ms), InProcess())
    assert topic.log.state().first_dirty_offset.tolist() == [3]
    assert offsets(scanned(topic)) == ([1, 2] if older_ms >= 1000 else [0, 1, 2])
