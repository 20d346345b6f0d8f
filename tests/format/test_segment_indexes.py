"""Test `.index`, `.timeindex` and `.txnindex` files: Kafka's bytes, its lookup rules and its rules for entries."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import transaction_index
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.format.transaction_index import AbortedTransactions, AbortMarker, matches_markers, merge_markers
from tests.fixture_data import expected_dump
from tests.support.seeds import examples

Batch = tuple[int, int, int]
Entry = tuple[int, int, int, int]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def batches_of(log: bytes) -> list[Batch]:
    """Return (position, last offset, maxTimestamp) of each batch of magic 2, without using the code under test."""
    found, position = [], 0
    while position + 61 <= len(log):
        base, length = struct.unpack_from(">qi", log, position)
        if length <= 0:
            break
        (last_delta,) = struct.unpack_from(">i", log, position + 23)
        (max_timestamp,) = struct.unpack_from(">q", log, position + 35)
        found.append((position, base + last_delta, max_timestamp))
        position += 12 + length
    return found


# An example that was run with Kafka's classes: interval 200, batches of 135 bytes with two records, from offset 1000
# on.
POSITIONS = ints(0, 135, 270, 405, 540, 675)
LAST_OFFSETS = ints(1001, 1003, 1005, 1007, 1009, 1011)
MAX_TIMESTAMPS = ints(5001, 6001, 4001, 7001, 7001, 6501)


def test_built_index_equals_kafkas_bytes() -> None:
    offsets = OffsetIndex.build(1000, POSITIONS, LAST_OFFSETS, 200)
    times = TimeIndex.build(1000, POSITIONS, LAST_OFFSETS, MAX_TIMESTAMPS, 200)
    assert offsets.to_bytes().hex() == "000000050000010e000000090000021c"
    assert times.to_bytes().hex() == "000000000000177100000003" + "0000000000001b5900000007"


def test_entries_round_trip() -> None:
    offsets = OffsetIndex.parse(bytes.fromhex("000000050000010e000000090000021c"), 1000)
    times = TimeIndex.parse(bytes.fromhex("0000000000001771000000030000000000001b5900000007"), 1000)
    assert list(zip(offsets.offsets, offsets.positions, strict=True)) == [(1005, 270), (1009, 540)]
    assert list(zip(times.timestamps, times.offsets, strict=True)) == [(6001, 1003), (7001, 1007)]


@pytest.mark.parametrize(
    ("target", "entry"),
    [(999, (1000, 0)), (1004, (1000, 0)), (1005, (1005, 270)), (1008, (1005, 270)), (5000, (1009, 540))],
)
def test_offset_lookup_returns_greatest_entry_not_above(target: int, entry: tuple[int, int]) -> None:
    assert OffsetIndex.build(1000, POSITIONS, LAST_OFFSETS, 200).lookup(target) == entry


@pytest.mark.parametrize(
    ("target", "entry"), [(6000, (-1, 1000)), (6001, (6001, 1003)), (7000, (6001, 1003)), (9999, (7001, 1007))]
)
def test_time_lookup_returns_greatest_entry_not_above(target: int, entry: tuple[int, int]) -> None:
    assert TimeIndex.build(1000, POSITIONS, LAST_OFFSETS, MAX_TIMESTAMPS, 200).lookup(target) == entry


def test_active_segment_has_no_closing_time_entry() -> None:
    times = TimeIndex.build(1000, POSITIONS[:5], LAST_OFFSETS[:5], ints(1, 2, 3, 4, 9), 400, closed=False)
    assert list(zip(times.timestamps, times.offsets, strict=True)) == [(4, 1007)]
    closed = TimeIndex.build(1000, POSITIONS[:5], LAST_OFFSETS[:5], ints(1, 2, 3, 4, 9), 400)
    assert list(zip(closed.timestamps, closed.offsets, strict=True)) == [(4, 1007), (9, 1009)]


def test_records_without_timestamps_leave_the_time_index_empty() -> None:
    assert TimeIndex.build(0, POSITIONS, LAST_OFFSETS, np.full(6, -1, np.int64), 0).to_bytes() == b""
    assert TimeIndex.build(0, ints(), ints(), ints(), 0).to_bytes() == b""
    assert OffsetIndex.build(0, ints(), ints(), 0).to_bytes() == b""


def test_preallocated_files_end_at_their_zeros() -> None:
    assert OffsetIndex.parse(bytes.fromhex("000000050000010e") + bytes(1016), 1000).positions.tolist() == [270]
    assert TimeIndex.parse(bytes.fromhex("000000000000177100000003") + bytes(1008), 1000).timestamps.tolist() == [6001]
    assert len(TimeIndex.parse(bytes(1020), 0)) == 0
    assert TimeIndex.parse(bytes(12), 7).offsets.tolist() == [7], "one closing entry: timestamp 0 at the base offset"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(7), id="length"),
        pytest.param(struct.pack(">iiii", 5, 100, 5, 200), id="equal offsets"),
        pytest.param(struct.pack(">iiii", 5, 100, 6, 100), id="equal positions"),
        pytest.param(struct.pack(">ii", -5, 100), id="below the base"),
        pytest.param(struct.pack(">ii", 5, -100), id="negative position"),
    ],
)
def test_invalid_offset_index_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"run sparklog repair.*file a.index"):
        OffsetIndex.parse(data, 0, file="a.index")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(13), id="length"),
        pytest.param(struct.pack(">qiqi", 5, 1, 5, 2), id="equal timestamps"),
        pytest.param(struct.pack(">qiqi", 5, 3, 6, 2), id="falling offsets"),
        pytest.param(struct.pack(">qi", -5, 3), id="negative timestamp"),
    ],
)
def test_invalid_time_index_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"run sparklog repair.*file a.timeindex"):
        TimeIndex.parse(data, 0, file="a.timeindex")


def test_offsets_beyond_31_bits_are_rejected() -> None:
    edge = OffsetIndex(10, ints(10 + 2**31 - 1), ints(100))
    assert OffsetIndex.parse(edge.to_bytes(), 10).offsets.tolist() == [10 + 2**31 - 1]
    with pytest.raises(BadRequest, match="roll the segment earlier"):
        OffsetIndex(10, ints(10 + 2**31), ints(100)).to_bytes()
    with pytest.raises(BadRequest, match="roll the segment earlier"):
        TimeIndex(10, ints(1), ints(9)).to_bytes()


def test_capacity_follows_segment_index_bytes() -> None:
    assert OffsetIndex.max_entries(120) == 15
    assert TimeIndex.max_entries(120) == 9


ABORTED = "0000" + "000000000000004d" + "00000000000003e8" + "00000000000003f2" + "00000000000003ed"


def test_transaction_index_round_trip() -> None:
    found = transaction_index.parse(bytes.fromhex(ABORTED), 1000)
    entry = (found.producer_ids[0], found.first_offsets[0], found.last_offsets[0], found.last_stable_offsets[0])
    assert entry == (77, 1000, 1010, 1005)
    assert found.to_bytes().hex() == ABORTED


@pytest.mark.parametrize(
    ("data", "base"),
    [
        (bytes.fromhex(ABORTED)[:-1], 0),
        (bytes.fromhex("0001" + ABORTED[4:]), 0),
        (bytes.fromhex(ABORTED), 1011),
        (bytes.fromhex(ABORTED * 2), 0),
    ],
)
def test_invalid_transaction_index_is_corrupt(data: bytes, base: int) -> None:
    with pytest.raises(Corrupt, match="run sparklog repair"):
        transaction_index.parse(data, base)


def test_covers_returns_aborted_batches() -> None:
    aborted = transaction_index.AbortedTransactions(ints(1, 2, 1), ints(0, 1, 10), ints(2, 4, 12), ints(1, 3, 13))
    producers, offsets = ints(1, 2, 1, 2, 1, 1, 3), ints(0, 1, 3, 3, 9, 10, 11)
    assert aborted.covers(producers, offsets).tolist() == [True, True, False, True, False, True, False]
    assert aborted.overlapping(3, 10).producer_ids.tolist() == [2]
    assert aborted.overlapping(5, 11).producer_ids.tolist() == [1]
    joined = transaction_index.concatenate([aborted, transaction_index.none()])
    assert joined.to_bytes() == aborted.to_bytes()
    assert len(transaction_index.concatenate([])) == 0


# Topics of the fixtures with their index.interval.bytes, which were written by a broker that was not restarted.
BUILT_BY_RULE = [
    ("segments", "seg-small-0", 1024),
    ("segments", "seg-small-1", 1024),
    ("segments", "seg-ms-0", 100),
    ("segments", "seg-index-full-0", 0),
    ("segments", "seg-one-0", 4096),
    ("segments", "seg-empty-0", 4096),
    ("transactions", "txn-b-0", 500),
    ("transactions", "txn-a-0", 4096),
    ("transactions-tv0", "txn-b-0", 500),
]


@pytest.mark.parametrize(("fixture", "partition", "interval"), BUILT_BY_RULE)
def test_indexes_built_from_kafkas_log_match_kafka(fixtures: Path, fixture: str, partition: str, interval: int) -> None:
    logs = sorted((fixtures / fixture / "data" / partition).glob("*.log"))
    assert logs
    for log in logs:
        found = batches_of(log.read_bytes())
        base = int(log.stem)
        positions, last, stamps = (ints(*(batch[i] for batch in found)) for i in range(3))
        offsets = OffsetIndex.build(base, positions, last, interval)
        times = TimeIndex.build(base, positions, last, stamps, interval)
        assert offsets.to_bytes() == log.with_suffix(".index").read_bytes(), log.name
        assert times.to_bytes() == log.with_suffix(".timeindex").read_bytes(), log.name


def test_indexes_of_intact_fixtures_round_trip(fixtures: Path) -> None:
    checked = 0
    for fixture in ("codecs", "timestamps", "segments", "transactions", "transactions-tv0", "retention/ms"):
        for file in (fixtures / fixture).glob("*/*/*index"):
            data, base = file.read_bytes(), int(file.stem)
            if file.suffix == ".index":
                again = OffsetIndex.parse(data, base, file=str(file)).to_bytes()
            elif file.suffix == ".timeindex":
                again = TimeIndex.parse(data, base, file=str(file)).to_bytes()
            else:
                again = transaction_index.parse(data, base, file=str(file)).to_bytes()
            assert again == data, file
            checked += 1
    assert checked > 100


def dumped(text: str) -> list[list[int]]:
    """Return the numbers of each line `name: number name: number …` of a dump."""
    return [[int(number) for number in re.findall(r": (-?\d+)", line)] for line in text.splitlines() if ": " in line]


@pytest.mark.parametrize(("fixture", "partition", "interval"), BUILT_BY_RULE)
def test_entries_match_kafkas_dump(fixtures: Path, fixture: str, partition: str, interval: int) -> None:
    folder = fixtures / fixture / "data" / partition
    bases = [int(log.stem) for log in folder.glob("*.log")]
    assert bases
    for base in bases:
        name = f"{base:020}"
        offsets = OffsetIndex.parse((folder / f"{name}.index").read_bytes(), base)
        found = np.column_stack([offsets.offsets, offsets.positions]).tolist()
        assert found == dumped(expected_dump(fixtures / fixture, partition, f"{name}.index"))
        times = TimeIndex.parse((folder / f"{name}.timeindex").read_bytes(), base)
        found = np.column_stack([times.timestamps, times.offsets]).tolist()
        assert found == dumped(expected_dump(fixtures / fixture, partition, f"{name}.timeindex"))


def test_aborted_transactions_match_kafkas_dump(fixtures: Path) -> None:
    files = sorted(fixtures.glob("transactions*/data/txn-*/*.txnindex"))
    assert len(files) > 10
    for file in files:
        found = transaction_index.parse(file.read_bytes(), int(file.stem))
        table = [found.producer_ids, found.first_offsets, found.last_offsets, found.last_stable_offsets]
        text = expected_dump(file.parents[2], file.parent.name, file.name)
        assert [[0, *row] for row in np.column_stack(table).tolist()] == dumped(text), file


@given(st.data())
@examples(50, 150)
def test_covers_matches_each_entry(data: st.DataObject) -> None:
    """The transactions of a producer do not overlap. Batches are in any order, as if they came from several slices."""
    rows: list[tuple[int, int, int]] = []
    for producer in range(4):
        edges = sorted(data.draw(st.sets(st.integers(0, 60), max_size=8)))
        rows += [(producer, first, last) for first, last in zip(edges[::2], edges[1::2], strict=False)]
    rows.sort(key=lambda row: row[2])
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    entries = AbortedTransactions(*columns, columns[2] + 1)
    batches = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 70)), max_size=20))
    producers, offsets = (np.array([each[i] for each in batches], np.int64) for i in (0, 1))
    expected = [any(p == own and first <= o <= last for own, first, last in rows) for p, o in batches]
    assert entries.covers(producers, offsets).tolist() == expected


MARKERS = [AbortMarker(1, 10, 20, 21, -1), AbortMarker(2, -1, 22, 23, 15), AbortMarker(1, 25, 30, 26, 20)]


def entries_of(*rows: Entry) -> AbortedTransactions:
    return AbortedTransactions(*np.array(rows, np.int64).reshape(-1, 4).T)


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ([], True),
        ([(1, 5, 20, 21), (2, 16, 22, 23)], True),
        ([(1, 10, 21, 22)], False),
        ([(3, 10, 20, 21)], False),
        ([(2, 15, 22, 23)], False),
        ([(1, 10, 20, 21), (1, 19, 30, 31)], False),
    ],
)
def test_index_is_used_if_each_entry_has_a_marker(rows: list[tuple[int, int, int, int]], right: bool) -> None:
    assert matches_markers(entries_of(*rows), MARKERS) == right


def test_index_and_markers_are_merged_by_marker() -> None:
    found = merge_markers([entries_of((1, 5, 20, 7), (2, 16, 22, 8))], MARKERS)
    assert found.first_offsets.tolist() == [5, 16, 25]
    assert found.last_offsets.tolist() == [20, 22, 30]
    assert found.last_stable_offsets.tolist() == [7, 8, 26]
    assert merge_markers([], MARKERS).last_offsets.tolist() == [20, 30]
    assert len(merge_markers([], [])) == 0
