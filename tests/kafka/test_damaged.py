"""Test reads of damaged directories: they return correct records or an error with the position, and never trust
indexes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import sparklog
from sparklog.errors import Corrupt
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.files import file_path
from sparklog.kafka.in_place.segment_file import SegmentFile, seek
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from tests.fixture_data import copied, expected_offsets, expected_records
from tests.kafka.logs import batch, marker, offsets, read, segment, without_epochs, write_partition

ISOLATION = (READ_UNCOMMITTED, READ_COMMITTED)
# Damage that does not affect a reader that does not trust indexes.
HARMLESS = ("good", "indexes-missing", "indexes-wrong", "snapshots-damaged", "garbage-appended", "zeros-appended")
# Kafka's recovery and this reader agree that the log ends before the first incomplete batch.
CUT = ("last-batch-cut", "length-field-huge", "empty-segment-last")


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("name", HARMLESS)
def test_damaged_index_files_do_not_affect_reads(fixtures: Path, name: str, isolation: str) -> None:
    good = fixtures / "damaged/good"
    expected = without_epochs(expected_records(good, "damaged-0", isolation))
    assert expected
    assert read(KafkaView(fixtures / "damaged" / name / "data"), "damaged", isolation=isolation) == expected


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("name", HARMLESS)
def test_reads_find_records_despite_wrong_indexes(fixtures: Path, name: str, isolation: str) -> None:
    expected = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0", isolation))
    view = KafkaView(fixtures / "damaged" / name / "data")
    for start in range(0, view.bounds("damaged")[0].end(isolation), 23):
        wanted = [record for record in expected if start <= record.offset < start + 5]
        end = min(start + 5, view.bounds("damaged")[0].end(isolation))
        assert read(view, "damaged", isolation=isolation, start=start, end=end) == wanted


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("name", CUT)
def test_unclean_tail_ends_where_kafkas_recovery_truncates(fixtures: Path, name: str, isolation: str) -> None:
    fixture = fixtures / "damaged" / name
    view = KafkaView(fixture / "data")
    expected = without_epochs(expected_records(fixture, "damaged-0", isolation, "recovered"))
    assert read(view, "damaged", isolation=isolation) == expected
    bounds, kafka = view.bounds("damaged")[0], expected_offsets(fixture, "recovered")["damaged-0"]
    assert (bounds.log_start, bounds.log_end) == (kafka["logStartOffset"], kafka["logEndOffset"])
    assert bounds.last_stable == kafka["lastStableOffset"]


@pytest.mark.parametrize("isolation", ISOLATION)
def test_directory_of_killed_broker_reads_as_after_recovery(fixtures: Path, isolation: str) -> None:
    fixture = fixtures / "damaged/killed-broker"
    expected = without_epochs(expected_records(fixture, "prealloc-0", isolation, "recovered"))
    assert expected
    assert read(KafkaView(fixture / "data"), "prealloc", isolation=isolation) == expected


def test_flipped_bit_is_corrupt_and_other_batches_are_readable(fixtures: Path) -> None:
    view = KafkaView(fixtures / "damaged/bit-flipped/data")
    good = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0"))
    with pytest.raises(Corrupt) as caught:
        read(view, "damaged")
    error = caught.value
    assert error.file == str(segment(fixtures / "damaged/bit-flipped/data/damaged-0", 197))
    assert error.position is not None
    assert error.offset is not None
    assert error.position <= 4014
    assert read(view, "damaged", end=error.offset) == [record for record in good if record.offset < error.offset]
    assert read(view, "damaged", start=256) == [record for record in good if record.offset >= 256]


def test_missing_segments_are_a_gap(fixtures: Path) -> None:
    good = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0"))
    for name in ("segment-missing", "empty-segment-middle"):
        found = read(KafkaView(fixtures / "damaged" / name / "data"), "damaged")
        missing = set(offsets(good)) - set(offsets(found))
        assert found == [record for record in good if record.offset not in missing]
        assert missing
        assert max(missing) - min(missing) < 80, name


def test_filter_does_not_hide_damage(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: batch(0, [b"a"]) + b"x" * 100, 5: batch(5, [b"f"])})
    dataset: Any = sparklog.datasets(tmp_path)["t"]
    assert dataset.to_table(filter=pc.field("offset") == 5)["value"].to_pylist() == [b"f"]
    with pytest.raises(Corrupt, match="expected batches up to offset 3"):
        dataset.to_table(filter=pc.field("offset") == 3)


def test_filter_of_an_empty_partition_finds_nothing(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: batch(0, [b"a"])})
    write_partition(tmp_path, "t-1", {5: b""})
    dataset: Any = sparklog.datasets(tmp_path)["t"]
    assert dataset.to_table(filter=pc.field("offset") >= 0)["partition"].to_pylist() == [0]


def test_random_damage_returns_records_or_raises_corrupt(fixtures: Path, tmp_path: Path) -> None:
    source = copied(fixtures / "damaged/good/data", tmp_path / "data") / "damaged-0"
    view_path = source.parent
    expected = {
        record.offset: record for record in without_epochs(expected_records(fixtures / "damaged/good", "damaged-0"))
    }
    logs = sorted(source.glob("*.log"))
    chance = random.Random(11)
    errors: list[Corrupt] = []
    right = 0
    for _ in range(150):
        log = chance.choice(logs)
        data = log.read_bytes()
        log.write_bytes(damaged(data, chance))
        try:
            view = KafkaView(view_path)
            for isolation in ISOLATION:
                for record in read(view, "damaged", isolation=isolation):
                    # The checksum does not cover the base offset and the leader epoch, so a flipped offset is not
                    # detected.
                    original = expected.get(record.offset)
                    right += original is not None and original.value == record.value
        except Corrupt as error:
            errors.append(error)
        log.write_bytes(data)
    assert all(error.file is not None and error.file.startswith(str(source)) for error in errors)
    assert len(errors) > 30
    assert right > 2_000


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return the data with one or four flipped bits, and sometimes with a truncated end."""
    broken = bytearray(data)
    for _ in range(chance.choice((1, 1, 4))):
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
    if chance.random() < 0.2:
        del broken[chance.randrange(len(broken)) :]
    return bytes(broken)


# ---------------------------------------------------------------- transactions whose markers or indexes are damaged


def test_committed_records_do_not_depend_on_transaction_indexes(fixtures: Path, tmp_path: Path) -> None:
    for fixture in ("transactions", "transactions-tv0"):
        folder = copied(fixtures / fixture / "data", tmp_path / fixture)
        indexes = list(folder.glob("txn-*/*.txnindex"))
        assert indexes
        for file in indexes[::2]:
            file.unlink()
        for file in indexes[1::2]:
            file.write_bytes(b"x" * 17)
        for name in ("txn-a-0", "txn-b-0", "txn-b-1"):
            expected = without_epochs(expected_records(fixtures / fixture, name, READ_COMMITTED))
            topic, number = name.rsplit("-", 1)
            assert read(KafkaView(folder), topic, int(number), READ_COMMITTED) == expected


def test_damaged_marker_makes_its_transaction_unknown(tmp_path: Path) -> None:
    def log(markers: bytes) -> bytes:
        return batch(0, [b"a"]) + batch(1, [b"b"], producer=7) + markers + batch(3, [b"d"]) + batch(4, [b"e"])

    broken = bytearray(marker(2, 7, commit=False))
    broken[-11] ^= 1  # This is the type of the marker. A flipped bit would turn ABORT into COMMIT.
    folder = write_partition(tmp_path, "t-0", {0: log(bytes(broken)), 5: batch(5, [b"f"])})
    view = KafkaView(tmp_path)
    with pytest.raises(Corrupt, match="CRC-32C"):
        read(view, "t")  # Kafka's consumer also checks batches that contain no records for it.
    assert offsets(read(view, "t", isolation=READ_COMMITTED, start=3)) == [3, 4, 5]
    with pytest.raises(Corrupt, match="transaction of producer 7 is damaged, so its result is unknown") as caught:
        read(view, "t", isolation=READ_COMMITTED)
    assert (caught.value.file, caught.value.offset) == (str(segment(folder, 0)), 2)
    segment(folder, 0).with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 1, 2, 3))
    indexed = KafkaView(tmp_path)
    assert offsets(read(indexed, "t", isolation=READ_COMMITTED, end=2)) == [0]


def test_index_entry_of_an_earlier_transaction_does_not_end_an_unknown_one(tmp_path: Path) -> None:
    broken = bytearray(marker(3, 7, commit=False))
    broken[-11] ^= 1
    log = batch(0, [b"a"], producer=7) + marker(1, 7, commit=False) + batch(2, [b"b"], producer=7) + bytes(broken)
    folder = write_partition(tmp_path, "t-0", {0: log, 4: batch(4, [b"c"])})
    segment(folder, 0).with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 1, 2))
    with pytest.raises(Corrupt, match="its result is unknown"):
        read(KafkaView(tmp_path), "t", isolation=READ_COMMITTED, end=3)


def interleaved(base: int) -> bytes:
    """Return batches in which producer 7 commits a transaction and aborts the next one, and producer 5 commits."""
    first = batch(base, [b"a"], producer=7) + marker(base + 1, 7, commit=True)
    second = batch(base + 2, [b"b"], producer=7) + batch(base + 3, [b"c"], producer=5)
    return first + second + marker(base + 4, 7, commit=False) + marker(base + 5, 5, commit=True)


WRONG_ENTRIES = {
    "includes an earlier marker": (7, 0, 4),
    "ends at a marker of another producer": (5, 3, 4),
    "ends at a COMMIT marker": (5, 3, 5),
    "contains only a committed transaction": (7, 0, 1),
}


@pytest.mark.parametrize("entry", [*WRONG_ENTRIES.values(), (5, 3, 3)], ids=[*WRONG_ENTRIES, "ends without a marker"])
@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_wrong_entry_of_a_transaction_index_hides_no_records(tmp_path: Path, entry: Sequence[int], policy: str) -> None:
    folder = write_partition(tmp_path, "t-0", {0: interleaved(0), 6: batch(6, [b"d"])})
    segment(folder, 0).with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, *entry, entry[-1] + 1))
    view = KafkaView(tmp_path, corrupt_records=policy)
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 3, 6]


@pytest.mark.parametrize("entry", WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
def test_wrong_entry_hides_no_records_after_damage(tmp_path: Path, entry: Sequence[int]) -> None:
    broken = bytearray(marker(0, 9, commit=True))
    broken[-11] ^= 1
    folder = write_partition(tmp_path, "t-0", {0: bytes(broken) + interleaved(1), 7: batch(7, [b"d"])})
    producer, first, last = entry
    index = struct.pack(">hqqqq", 0, producer, first + 1, last + 1, last + 2)
    segment(folder, 0).with_suffix(".txnindex").write_bytes(index)
    assert offsets(read(KafkaView(tmp_path), "t", isolation=READ_COMMITTED, start=1)) == [1, 4, 7]


def test_transaction_index_is_used_if_a_marker_has_a_wrong_offset(tmp_path: Path) -> None:
    log = batch(0, [b"a"]) + batch(1, [b"b"], producer=7) + marker(0, 7, commit=False)
    folder = write_partition(tmp_path, "t-0", {0: log, 3: batch(3, [b"c"])})
    segment(folder, 0).with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 1, 2, 3))
    view = KafkaView(tmp_path)
    assert view.bounds("t")[0].last_stable == 4
    found = view.partition_states("t")[0].aborted(1, 2)
    assert (found.producer_ids.tolist(), found.first_offsets.tolist(), found.last_offsets.tolist()) == ([7], [1], [2])


def test_unreadable_bytes_make_open_transactions_unknown(tmp_path: Path) -> None:
    whole = batch(0, [b"a"], producer=7) + marker(1, 7, commit=True)
    write_partition(tmp_path, "t-0", {0: whole[:-5], 2: batch(2, [b"c"])})
    view = KafkaView(tmp_path)
    assert view.bounds("t")[0].last_stable == 3
    assert offsets(read(view, "t", end=1)) == [0]
    with pytest.raises(Corrupt, match="its result is unknown"):
        read(view, "t", isolation=READ_COMMITTED, end=1)
    assert offsets(read(view, "t", isolation=READ_COMMITTED, start=2)) == [2]


# ---------------------------------------------------------------- indexes


def test_only_a_valid_index_is_used(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "segments/data/seg-small-0", tmp_path / "seg-small-0")
    log, index = segment(folder, 0), segment(folder, 0).with_suffix(".index")
    entries = list(struct.iter_unpack(">ii", index.read_bytes()))
    assert entries
    last, position = entries[-1]
    sound = index.read_bytes()
    with SegmentFile(file_path(log)) as file:
        assert seek(file, 0, last + 1) == position
        assert seek(file, 0, entries[0][0] - 1) == 0
        for wrong in (
            sound[:-4] + struct.pack(">i", position + 7),
            sound[:-4] + struct.pack(">i", 2**31 - 1),
            sound[:-8] + struct.pack(">ii", last + 1, position),
            sound + b"\0",
            b"",
        ):
            index.write_bytes(wrong)
            assert seek(file, 0, last + 1) == 0, wrong[-8:]
    index.unlink()
    with SegmentFile(file_path(log)) as file:
        assert seek(file, 0, last + 1) == 0


def test_index_entry_of_damaged_batch_is_not_used(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "segments/data/seg-small-0", tmp_path / "seg-small-0")
    log = segment(folder, 0)
    last, position = list(struct.iter_unpack(">ii", log.with_suffix(".index").read_bytes()))[-1]
    data = bytearray(log.read_bytes())
    data[position + 80] ^= 1
    log.write_bytes(data)
    with SegmentFile(file_path(log)) as file:
        assert seek(file, 0, last + 1) == 0


def test_zeros_inside_a_log_are_corrupt(tmp_path: Path) -> None:
    """A preallocated file is truncated before the next segment begins, so these zeros have overwritten records."""
    whole = batch(0, [b"a"]) + batch(1, [b"b"])
    zeroed = whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)
    write_partition(tmp_path, "t-0", {0: zeroed, 2: batch(2, [b"c"])})
    with pytest.raises(Corrupt, match=r"00000000000000000000\.log") as raised:
        read(KafkaView(tmp_path), "t")
    assert raised.value.position == len(whole) // 2
    assert raised.value.offset == 1


def test_unknown_magic_inside_a_log_is_corrupt(tmp_path: Path) -> None:
    wrong = bytearray(batch(1, [b"b"]))
    wrong[16] = 5
    folder = write_partition(tmp_path, "t-0", {0: batch(0, [b"a"]) + bytes(wrong), 2: batch(2, [b"c"])})
    with pytest.raises(Corrupt, match="magic is 5") as caught:
        read(KafkaView(tmp_path), "t")
    assert (caught.value.file, caught.value.position) == (str(segment(folder, 0)), len(batch(0, [b"a"])))
