"""Tables of Kafka's files, compared with the output of DumpLogSegments and of Kafka's consumer."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparklog.errors import BadRequest, NotFound
from sparklog.kafka.in_place.view import KafkaView
from sparklog.tools.inspection.inspect import Inspected, inspect_file, inspect_topic
from tests.fixture_data import ExpectedRecord, copied, expected_dump, expected_records, partitions, split_partition

BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) .*?producerId: (-?\d+) "
    r"producerEpoch: (-?\d+) partitionLeaderEpoch: (-?\d+) isTransactional: (\w+) isControl: (\w+) .*?"
    r"position: (\d+) (\w+): (-?\d+) size: (\d+) magic: (\d) compresscodec: (\w+)"
)


def dumped(fixture: Path, folder: Path, name: str, stage: str) -> list[tuple[Any, ...]]:
    """Return the batches of one file as printed by Kafka's tool."""
    found = []
    for match in BATCH.finditer(expected_dump(fixture, folder.name, name, stage)):
        numbers = {place: match.group(place) for place in range(1, 16)}
        integers = tuple(int(numbers[place]) for place in (1, 2, 3, 4, 5, 6, 7, 10, 12, 13, 14))
        found.append((*integers, numbers[11], numbers[15], numbers[8] == "true", numbers[9] == "true"))
    return found


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    # Python supports timestamps to the year 9999, and Kafka supports later ones.
    times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    for name in times:
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    names = ("base_offset", "last_offset", "records", "base_sequence", "producer_id", "producer_epoch")
    names += ("leader_epoch", "position", "max_timestamp", "size", "magic", "timestamp_type", "codec", "transactional")
    return [
        (*(row[name] if row[name] is not None else -1 for name in names), row["control"] is not None)
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize(
    ("fixture", "stage"),
    [
        ("codecs", "data"),
        ("timestamps", "data"),
        ("segments", "data"),
        ("transactions", "data"),
        ("compaction/transactions", "after"),
        ("compaction/tombstones-day", "after"),
    ],
)
def test_batches_equal_those_of_kafkas_dump(fixtures: Path, fixture: str, stage: str) -> None:
    log_dir = fixtures / fixture / stage
    view = KafkaView(log_dir)
    batches = 0
    for name in partitions(log_dir):
        if name.startswith("__"):
            continue
        topic, partition = split_partition(name)
        found = inspect_topic(view, topic, [partition]).batches
        for file in sorted((log_dir / name).glob("*.log")):
            here = found.filter(pc.equal(found["file"], file.name))
            assert rows(here) == dumped(fixtures / fixture, log_dir / name, file.name, stage)
            batches += len(here)
        assert found["damage"].null_count == len(found)
    assert batches > 3


def judged(records: list[ExpectedRecord]) -> dict[str, Any]:
    """Return the expected statistics of these records, computed record by record."""
    newest, late, latest_by, keys, keys_new = -1, 0, 0, set(), 0
    for record in records:
        late += record.timestamp < newest
        latest_by = max(latest_by, newest - record.timestamp)
        newest = max(newest, record.timestamp)
        keys_new += record.key is not None and record.key not in keys
        keys.add(record.key)
    return {
        "keys_null": sum(record.key is None for record in records),
        "tombstones": sum(record.value is None for record in records),
        "key_bytes": sum(len(record.key or b"") for record in records),
        "late_records": late,
        "latest_by_ms": latest_by,
        "keys_new": keys_new,
        "min_timestamp": min(record.timestamp for record in records),
    }


@pytest.mark.parametrize("fixture", ["codecs", "timestamps", "segments"])
def test_record_statistics_equal_those_of_kafkas_consumer(fixtures: Path, fixture: str) -> None:
    view = KafkaView(fixtures / fixture / "data")
    compared = 0
    for name in partitions(fixtures / fixture / "data"):
        records = expected_records(fixtures / fixture, name)
        if name.startswith("__") or not records:
            continue
        topic, partition = split_partition(name)
        found = inspect_topic(view, topic, [partition]).batches
        sums = {each: pc.sum(found[each]).as_py() for each in ("keys_null", "tombstones", "key_bytes", "late_records")}
        sums["latest_by_ms"] = pc.max(found["latest_by_ms"]).as_py()
        sums["keys_new"] = pc.sum(found["keys_new"]).as_py()
        sums["min_timestamp"] = pc.min(found["min_timestamp"].cast(pa.int64())).as_py()
        expected = judged(records)
        if expected["min_timestamp"] < 0:
            expected["min_timestamp"] = sums["min_timestamp"]
        assert sums == expected, name
        assert pc.sum(found["keys_latest"]).as_py() == expected["keys_new"]
        compared += len(records)
    assert compared > 300


def test_records_by_key_equal_those_of_kafkas_consumer(fixtures: Path) -> None:
    for name in ("codec-zstd-2", "codec-none-2"):
        topic, partition = split_partition(name)
        table = inspect_topic(KafkaView(fixtures / "codecs" / "data"), topic, [partition]).keys
        keyed = [record.key for record in expected_records(fixtures / "codecs", name) if record.key is not None]
        assert dict(zip(table["key"].to_pylist(), table["records"].to_pylist(), strict=True)) == Counter(keyed)
        assert table["bytes"].to_pylist() == sorted(table["bytes"].to_pylist(), reverse=True)
        assert set(table["partition"].to_pylist()) == {partition}


def test_distinct_keys_of_a_batch_and_uncompressed_bytes(fixtures: Path) -> None:
    view = KafkaView(fixtures / "codecs" / "data")
    records = {record.offset: record for record in expected_records(fixtures / "codecs", "codec-zstd-2")}
    for row in inspect_topic(view, "codec-zstd", [2]).batches.to_pylist():
        mine = [records[offset] for offset in range(row["base_offset"], row["last_offset"] + 1)]
        assert row["keys_distinct"] == len({record.key for record in mine} - {None})
        least = sum(len(record.key or b"") + len(record.value or b"") for record in mine)
        assert least < row["uncompressed_bytes"]
        assert row["ratio"] == pytest.approx(row["uncompressed_bytes"] / (row["size"] - 61))
    plain = inspect_topic(view, "codec-none", [2]).batches
    assert plain["uncompressed_bytes"].to_pylist() == pc.subtract(plain["size"], 61).to_pylist()
    assert set(plain["ratio"].to_pylist()) == {1.0}


@pytest.mark.parametrize("name", ["txn-a-0", "txn-a-1", "txn-b-0", "txn-b-1"])
def test_outcomes_of_transactions_equal_those_of_kafkas_consumer(fixtures: Path, name: str) -> None:
    topic, partition = split_partition(name)
    found = inspect_topic(KafkaView(fixtures / "transactions" / "data"), topic, [partition])
    committed = {record.offset for record in expected_records(fixtures / "transactions", name, "read_committed")}
    everything = {record.offset for record in expected_records(fixtures / "transactions", name)}
    stable = found.bounds["last_stable"][0].as_py()
    outcomes = set()
    for row in found.batches.to_pylist():
        offsets = set(range(row["base_offset"], row["last_offset"] + 1)) & everything
        outcomes.add(row["outcome"])
        if row["outcome"] == "aborted" or (row["outcome"] == "open" and offsets):
            assert not offsets & committed
        elif row["outcome"] != "marker" and row["last_offset"] < stable:
            assert offsets <= committed
    assert {"plain", "committed", "marker"} <= outcomes | {"plain"}
    ranges = found.transactions.to_pylist()
    data = found.batches.filter(
        pc.and_(found.batches["transactional"], pc.not_equal(found.batches["outcome"], "marker"))
    )
    assert sum(row["batches"] for row in ranges) == len(data)
    assert sum(row["records"] for row in ranges) == pc.sum(data["records"]).as_py()
    first_open = min((row["first_offset"] for row in ranges if row["outcome"] == "open"), default=None)
    assert first_open is None or first_open == stable


def test_gaps_are_the_missing_offsets_of_a_cleaned_log(fixtures: Path) -> None:
    name = partitions(fixtures / "compaction" / "tombstones-day" / "after")[0]
    topic, partition = split_partition(name)
    found = inspect_topic(KafkaView(fixtures / "compaction" / "tombstones-day" / "after"), topic, [partition])
    offsets = {
        record.offset for record in expected_records(fixtures / "compaction" / "tombstones-day", name, stage="after")
    }
    batches = found.batches.to_pylist()
    covered = range(found.bounds["log_start"][0].as_py(), batches[-1]["last_offset"] + 1)
    assert len(found.gaps) > 3
    assert pc.sum(found.gaps["missing"]).as_py() == len(covered) - len(offsets)
    assert pc.sum(found.batches["records"]).as_py() == len(offsets)
    for row in found.gaps.to_pylist():
        lacking = [offset for offset in range(row["start"], row["end"]) if offset not in offsets]
        assert row["missing"] == len(lacking)
        assert (row["where"] == "between batches") == (len(lacking) == row["end"] - row["start"])


def test_index_density_matches_the_files(fixtures: Path) -> None:
    found = inspect_topic(KafkaView(fixtures / "segments" / "data"), "seg-small", [0])
    folder = fixtures / "segments" / "data" / "seg-small-0"
    entries = 0
    for row in found.files.to_pylist():
        index = expected_dump(fixtures / "segments", "seg-small-0", row["file"].replace(".log", ".index"))
        lines = [line for line in index.splitlines() if line.startswith("offset: ") and "position: 0" not in line]
        assert row["index_entries"] == len(lines)
        assert row["bytes"] == (folder / row["file"]).stat().st_size
        assert row["bytes_per_entry"] == (row["bytes"] / len(lines) if lines else None)
        entries += len(lines)
    index = found.index.filter(pc.equal(found.index["index"], ".index"))
    assert len(index) == entries > 0
    positions = set(zip(found.batches["file"].to_pylist(), found.batches["position"].to_pylist(), strict=True))
    assert set(zip(index["file"].to_pylist(), index["position"].to_pylist(), strict=True)) <= positions


def test_old_message_formats_are_counted_as_batches(fixtures: Path) -> None:
    log_dir = next((fixtures / "legacy" / "builder-mixed").glob("*/*-0")).parent
    name = partitions(log_dir)[0]
    found = inspect_topic(KafkaView(log_dir), split_partition(name)[0])
    assert {0, 1, 2} >= set(found.batches["magic"].to_pylist()) != {2}
    assert found.batches["damage"].null_count == len(found.batches)


def test_damaged_batches_are_listed_without_statistics(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "codecs" / "data" / "codec-zstd-2", tmp_path / "codec-zstd-2")
    file = folder / "00000000000000000000.log"
    sound = inspect_file(file)
    middle = len(sound.batches) // 2
    data = bytearray(file.read_bytes())
    data[sound.batches["position"][middle].as_py() + 70] ^= 1
    file.write_bytes(data)
    found = inspect_file(file)
    assert "CRC-32C" in found.batches["damage"][middle].as_py()
    assert found.batches["damage"].null_count == len(sound.batches) - 1
    for name in ("uncompressed_bytes", "ratio", "keys_distinct", "keys_null", "tombstones", "min_timestamp"):
        assert found.batches[name][middle].as_py() is None
    others = [row for row in range(len(sound.batches)) if row != middle]
    assert found.batches["uncompressed_bytes"].take(others) == sound.batches["uncompressed_bytes"].take(others)
    data[sound.batches["position"][middle].as_py() + 8] = 0xFF
    file.write_bytes(data)
    cut = inspect_file(file)
    assert len(cut.batches) == middle


def test_one_file_uses_the_directory_for_transactions(fixtures: Path) -> None:
    folder = fixtures / "transactions" / "data" / "txn-b-0"
    whole = inspect_topic(KafkaView(folder.parent), "txn-b", [0])
    for file in sorted(folder.glob("*.log")):
        one: Inspected = inspect_file(file)
        mine = whole.batches.filter(pc.equal(whole.batches["file"], file.name))
        assert one.batches["outcome"].to_pylist() == mine["outcome"].to_pylist()
        assert one.batches["base_offset"].to_pylist() == mine["base_offset"].to_pylist()
        assert one.files["bytes"].to_pylist() == [file.stat().st_size]


def test_invalid_locations_are_rejected(fixtures: Path, tmp_path: Path) -> None:
    view = KafkaView(fixtures / "codecs" / "data")
    with pytest.raises(NotFound, match=r"topic codec-none in .* has no partition 9"):
        inspect_topic(view, "codec-none", [9])
    with pytest.raises(NotFound, match="topic 'codec-nine' does not exist"):
        inspect_topic(view, "codec-nine")
    with pytest.raises(NotFound, match=r"none\.log does not exist"):
        inspect_file(tmp_path / "none.log")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadRequest, match=r"expected a segment such as 0+\.log"):
        inspect_file(tmp_path / "notes.txt")
    assert len(inspect_topic(view, "codec-none", []).batches) == 0
