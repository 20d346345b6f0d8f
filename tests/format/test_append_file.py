"""Test the footers of append files: encoding, decoding, lookups and corruption."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import BadRequest, Corrupt, SparklogError
from sparklog.format import append_file
from sparklog.format.append_file import (
    HEADER,
    INDEX_BYTES,
    SLICE_BYTES,
    TRAILER,
    TRAILER_BYTES,
    Footer,
    SliceIndex,
    WrittenSlice,
    build_index,
    decode_footer,
    encode_footer,
    footer_length,
)
from sparklog.format.transaction_index import AbortedTransactions


def int64s(*values: int) -> append_file.Int64s:
    return np.asarray(values, np.int64)


def footer_of(*slices: tuple[int, int, SliceIndex | None]) -> bytes:
    """Return a footer of slices (partition, bytes, index). Other fields are derived from the position in the list."""
    return encode_footer(
        [
            WrittenSlice(
                partition=partition,
                nbytes=nbytes,
                offsets=1000 + i,
                records=900 + i,
                min_ts=-1,
                max_ts=5 + i,
                crc=0xFFFFFFFF - i,
                flags=i % 8,
                index=index,
            )
            for i, (partition, nbytes, index) in enumerate(slices)
        ]
    )


def index_of(entries: int) -> SliceIndex:
    steps = np.arange(entries, dtype=np.int64)
    return SliceIndex(steps * 300_000, steps * 10, np.where(steps == 0, -1, 1_000 + steps))


def test_footer_round_trip() -> None:
    data = footer_of((0, 100, None), (7, 2 << 20, index_of(5)), (0, 61, None), (2**31 - 1, 3 << 20, index_of(1)))
    footer = decode_footer(data, file_size=100 + (5 << 20) + 61 + len(data))
    assert [s.partition for s in footer.slices] == [0, 7, 0, 2**31 - 1]
    assert [s.position for s in footer.slices] == [0, 100, 100 + (2 << 20), 161 + (2 << 20)]
    assert [s.crc for s in footer.slices] == [0xFFFFFFFF - i for i in range(4)]
    assert [(s.offsets, s.records, s.min_ts, s.max_ts, s.flags) for s in footer.slices] == [
        (1000 + i, 900 + i, -1, 5 + i, i) for i in range(4)
    ]
    assert [None if s.index is None else len(s.index) for s in footer.slices] == [None, 5, None, 1]
    index = footer.slices[1].index
    assert index is not None
    assert index.position.tolist() == [0, 300_000, 600_000, 900_000, 1_200_000]
    assert index.max_ts.tolist() == [-1, 1001, 1002, 1003, 1004]
    assert footer.footer_length == len(data) == 16 + 4 * SLICE_BYTES + 6 * INDEX_BYTES + TRAILER_BYTES
    assert footer.at(100) is footer.slices[1]
    assert footer.at(101) is None
    assert footer_length(data[-TRAILER_BYTES:]) == len(data)


def test_index_contains_first_batch_and_one_per_interval() -> None:
    position = int64s(0, 40, 100, 130, 260, 270, 1000)
    index = build_index(
        position, np.arange(7, dtype=np.int64) * 3, int64s(5, 9, 1, 2, 3, 12, 4), 1100, interval=100, min_bytes=50
    )
    assert index is not None
    assert index.position.tolist() == [0, 100, 260, 1000]
    assert index.offset.tolist() == [0, 6, 12, 18]
    assert index.max_ts.tolist() == [-1, 9, 9, 12]


def test_small_slice_has_no_index() -> None:
    args = (int64s(0, 500_000), int64s(0, 1), int64s(1, 2))
    assert build_index(*args, append_file.INDEX_MIN_BYTES) is None
    assert build_index(*args, append_file.INDEX_MIN_BYTES + 1) is not None


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    stamps=st.data(),
    interval=st.integers(1, 200),
)
@settings(max_examples=150, deadline=None)
def test_index_lookup_returns_the_last_entry_before_the_target(
    sizes: list[int], stamps: st.DataObject, interval: int
) -> None:
    times = np.asarray(stamps.draw(st.lists(st.integers(0, 30), min_size=len(sizes), max_size=len(sizes))), np.int64)
    position = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    offset = np.arange(len(sizes), dtype=np.int64) * 2
    index = build_index(position, offset, times, int(sum(sizes)), interval=interval, min_bytes=0)
    assert index is not None
    batch_of_entry = np.searchsorted(position, index.position)
    for i in range(len(sizes)):
        entry = index.entry_for_offset(int(offset[i]))
        following = batch_of_entry[entry + 1] if entry + 1 < len(index) else len(sizes)
        assert batch_of_entry[entry] <= i < following
    for target in range(32):
        found = np.nonzero(times >= target)[0]
        entry = index.entry_for_timestamp(target)
        following = batch_of_entry[entry + 1] if entry + 1 < len(index) else len(sizes)
        if len(found):
            assert batch_of_entry[entry] <= found[0] < following


def test_flipped_byte_in_footer_is_detected() -> None:
    data = footer_of((3, 2 << 20, index_of(3)), (4, 10, None))
    size = (2 << 20) + 10 + len(data)
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 0x10
        with pytest.raises(Corrupt):
            decode_footer(bytes(damaged), file_size=size)


def resealed(data: bytes) -> bytes:
    """Return the footer with a correct checksum, as a faulty writer (not a faulty disk) would produce it."""
    from crc32c import crc32c

    body = data[:-TRAILER_BYTES]
    return body + TRAILER.pack(crc32c(body), len(data), append_file.MAGIC)


@pytest.mark.parametrize(
    ("field", "value"),
    [("nbytes", -1), ("nbytes", 2**62), ("entries", 0), ("entries", 2), ("entries", 2**32 - 1)],
)
def test_contradictory_footer_with_valid_checksum_is_rejected(field: str, value: int) -> None:
    data = bytearray(footer_of((3, 2 << 20, index_of(3)), (4, 10, None)))
    table = np.frombuffer(data, append_file.SLICE_DTYPE, 2, append_file.HEADER_BYTES)
    table[field][0] = value
    with pytest.raises(Corrupt):
        decode_footer(resealed(bytes(data)), file_size=(2 << 20) + 10 + len(data))


@pytest.mark.parametrize(("field", "value"), [("position", 2 << 20), ("offset", 20), ("max_ts", 2**40), ("offset", -1)])
def test_unordered_index_is_rejected(field: str, value: int) -> None:
    data = bytearray(footer_of((3, 2 << 20, index_of(3))))
    rows = np.frombuffer(data, append_file.INDEX_DTYPE, 3, append_file.HEADER_BYTES + SLICE_BYTES)
    rows[field][1 if value > 0 else 0] = value
    with pytest.raises(Corrupt):
        decode_footer(resealed(bytes(data)), file_size=(2 << 20) + len(data))


def test_excessive_counts_are_rejected_before_allocation() -> None:
    body = HEADER.pack(append_file.MAGIC, 1, 2**32 - 1, 2**32 - 1)
    with pytest.raises(Corrupt, match="do not fill"):
        decode_footer(resealed(body + bytes(TRAILER_BYTES)), file_size=1 << 30)


def test_newer_format_version_is_rejected() -> None:
    data = bytearray(footer_of((0, 10, None)))
    data[4:8] = (3).to_bytes(4, "big")
    with pytest.raises(BadRequest, match="format version 3"):
        decode_footer(resealed(bytes(data)), file_size=10 + len(data))


@given(st.binary(max_size=300), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_arbitrary_bytes_decode_or_raise_corrupt(data: bytes, size: int) -> None:
    outcome: object
    try:
        outcome = decode_footer(data, file_size=size, file="f")
    except SparklogError as error:
        outcome = error
    assert isinstance(outcome, Footer | Corrupt | BadRequest)


def test_empty_file_has_empty_footer() -> None:
    data = footer_of()
    assert decode_footer(data, file_size=len(data)).slices == ()


def aborted(*entries: tuple[int, int, int]) -> AbortedTransactions:
    columns = np.array(entries, np.int64).reshape(-1, 3).T
    return AbortedTransactions(*columns, np.full(len(entries), -1, np.int64))


def with_aborted() -> tuple[bytes, int]:
    """Return a footer of three slices, two with ABORT markers, and the total size of the slices."""
    same = dict.fromkeys(("partition", "offsets", "records", "min_ts", "max_ts", "crc", "flags"), 70)
    slices = [
        WrittenSlice(nbytes=10, aborted=aborted((9, 2**40, 5)), **same),
        WrittenSlice(nbytes=2 << 20, index=index_of(3), **same),
        WrittenSlice(nbytes=30, aborted=aborted((1, 2, 3), (2**62, 0, 6)), **same),
    ]
    return encode_footer(slices), sum(each.nbytes for each in slices)


def test_aborted_transactions_round_trip_with_their_slices() -> None:
    data, nbytes = with_aborted()
    footer = decode_footer(data, file_size=nbytes + len(data))
    assert [
        list(
            zip(
                each.aborted.producer_ids.tolist(),
                each.aborted.first_offsets.tolist(),
                each.aborted.last_offsets.tolist(),
                each.aborted.last_stable_offsets.tolist(),
                strict=True,
            )
        )
        for each in footer.slices
    ] == [[(9, 2**40, 5, -1)], [], [(1, 2, 3, -1), (2**62, 0, 6, -1)]]
    index = footer.slices[1].index
    assert index is not None
    assert index.position.tolist() == [0, 300_000, 600_000]


def test_footer_without_aborted_transactions_has_version_1() -> None:
    plain = footer_of((0, 10, None), (1, 20, None))
    assert plain[:8] == append_file.MAGIC + (1).to_bytes(4, "big")
    assert with_aborted()[0][:8] == append_file.MAGIC + (2).to_bytes(4, "big")
    assert all(len(each.aborted) == 0 for each in decode_footer(plain, file_size=30 + len(plain)).slices)


def test_damaged_aborted_transactions_are_detected() -> None:
    data, nbytes = with_aborted()
    size = nbytes + len(data)
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 0x10
        with pytest.raises(Corrupt):
            decode_footer(bytes(damaged), file_size=size)
    for at, value, said in (
        (16, 4, "do not fill"),
        (-TRAILER_BYTES - 28, 3, "refers to another slice"),
    ):
        wrong = bytearray(data)
        wrong[at : at + 4] = value.to_bytes(4, "big")
        with pytest.raises(Corrupt, match=said):
            decode_footer(resealed(bytes(wrong)), file_size=size)
