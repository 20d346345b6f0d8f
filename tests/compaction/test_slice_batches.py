"""Many slices in one buffer: each batch gets the values of its slice, and errors report the position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparklog.compaction.seal_work import patch_batches, scan_slices
from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT, BatchHeader
from sparklog.log.read.planned_slices import PlannedSlice


def batch(base: int, offsets: int, attributes: int = 0) -> bytes:
    return BatchHeader(base, offsets - 1, offsets, 100, 150, attributes).pack(b"payload")


def row_of(base: int, end: int, position: int = 0, **changes: int) -> PlannedSlice:
    """Return a slice of a separate file, whose batch offsets start at 0."""
    path = f"append/{base}"
    numbers = (position, 0, base, end, base, 0, 0, 0, 0, 0, -1, 9, 1, 0, 0)
    row = PlannedSlice(*numbers, "t", 0, path, f"t/{path}", None)
    return replace(row, **changes)


def joined(*slices: bytes) -> tuple[bytearray, np.ndarray]:
    starts = np.cumsum([0, *map(len, slices[:-1])])
    return bytearray(b"".join(slices)), starts.astype(np.int64)


ROWS = [
    row_of(100, 105, leader_epoch=3),
    row_of(105, 107, leader_epoch=-1),
    row_of(110, 111, leader_epoch=4, append_time=900),
    row_of(111, 113, leader_epoch=3),
]
DATA = [
    batch(0, 2) + batch(3, 2),
    batch(0, 2, LOG_APPEND_TIME_BIT),
    batch(0, 1, LOG_APPEND_TIME_BIT),
    batch(0, 1) + batch(1, 1),
]


def test_each_batch_gets_the_values_of_its_slice() -> None:
    data, starts = joined(*DATA)
    headers, row = scan_slices(data, ROWS, starts)
    assert row.tolist() == [0, 0, 1, 2, 3, 3]
    patched = patch_batches(data, headers, ROWS, row, np.zeros(4, np.int64))
    found = scan_headers(data)
    assert found.base_offset.tolist() == [100, 103, 105, 110, 111, 112]
    assert found.leader_epoch.tolist() == [3, 3, -1, 4, 3, 3]
    assert found.max_timestamp.tolist() == [150, 150, 150, 900, 150, 150]
    assert len(crc_failures(data, found)) == 0
    for name in ("base_offset", "leader_epoch", "max_timestamp", "crc", "position"):
        assert getattr(patched, name).tolist() == getattr(found, name).tolist()


def test_offsets_are_relative_to_the_given_bases() -> None:
    data, starts = joined(*DATA)
    headers, row = scan_slices(data, ROWS, starts)
    patch_batches(data, headers, ROWS, row, np.array([100, 100, 110, 110]))
    assert scan_headers(data).base_offset.tolist() == [0, 3, 5, 0, 1, 2]


def test_one_slice_is_patched_like_many_slices() -> None:
    for row, given in zip(ROWS, DATA, strict=True):
        alone, several = bytearray(given), bytearray(given * 2)
        headers, index = scan_slices(alone, [row], np.zeros(1, np.int64))
        patch_batches(alone, headers, [row], index, np.array([7]))
        twin = replace(row, base=row.end, end=2 * row.end - row.base, shift=row.end)
        headers, index = scan_slices(several, [row, twin], np.array([0, len(given)]))
        patch_batches(several, headers, [row, twin], index, np.array([7, row.end - row.base + 7]))
        assert alone * 2 == several


def test_slices_of_several_partitions() -> None:
    """Offsets restart at the next partition, but not within a slice."""
    rows = [row_of(100, 105), row_of(105, 107), row_of(3, 8), row_of(50, 52)]
    data, starts = joined(batch(0, 5), batch(0, 2), batch(0, 2) + batch(3, 2), batch(0, 2))
    headers, row = scan_slices(data, rows, starts)
    assert row.tolist() == [0, 1, 2, 2, 3]
    patch_batches(data, headers, rows, row, np.array([100, 100, 3, 3]))
    assert scan_headers(data).base_offset.tolist() == [0, 5, 0, 3, 47]
    data, starts = joined(batch(0, 5), batch(0, 2), batch(0, 2) + batch(1, 2), batch(0, 2))
    with pytest.raises(Corrupt, match="within offsets 5 to 8, found offsets 4 to 6"):
        scan_slices(data, rows, starts)


def test_as_many_times_as_slices() -> None:
    count = 5000
    rows = [row_of(i, i + 1, append_time=10_000 + i * 7, leader_epoch=i % 5 - 1) for i in range(count)]
    data, starts = joined(*[batch(0, 1, LOG_APPEND_TIME_BIT)] * count)
    headers, row = scan_slices(data, rows, starts)
    patch_batches(data, headers, rows, row, np.zeros(count, np.int64))
    found = scan_headers(data)
    assert found.max_timestamp.tolist() == [10_000 + i * 7 for i in range(count)]
    assert found.leader_epoch.tolist() == [i % 5 - 1 for i in range(count)]
    assert found.base_offset.tolist() == list(range(count))
    assert len(crc_failures(data, found)) == 0


def test_the_first_window_and_a_later_one() -> None:
    """A window in the middle of a slice does not start at the first byte of the slice."""
    row = row_of(100, 105, position=5000)
    data = bytearray(batch(3, 2))
    headers, index = scan_slices(data, [row], np.array([-68]), after=102)
    assert (headers.base_offset.tolist(), index.tolist()) == ([3], [0])
    with pytest.raises(Corrupt, match="within offsets 104 to 105") as caught:
        scan_slices(data, [row], np.array([-68]), after=104)
    assert (caught.value.file, caught.value.position, caught.value.offset) == ("t/append/100", 5068, 104)


@pytest.mark.parametrize(
    ("wrong", "place", "offset"),
    [
        (batch(0, 2) + batch(3, 3), 68, 102),
        (batch(0, 2) + batch(1, 2), 68, 102),
        (batch(-1, 2) + batch(3, 2), 0, 100),
        (batch(0, 0) + batch(3, 2), 0, 100),
    ],
)
def test_batches_beyond_their_slice_or_out_of_order(wrong: bytes, place: int, offset: int) -> None:
    before, after = row_of(90, 100), row_of(105, 107, position=20)
    data, starts = joined(batch(0, 10), wrong, batch(0, 2))
    with pytest.raises(Corrupt, match="restore the file") as caught:
        scan_slices(data, [before, row_of(100, 105, position=40), after], starts)
    assert (caught.value.file, caught.value.position, caught.value.offset) == ("t/append/100", 40 + place, offset)


@pytest.mark.parametrize(
    "wrong",
    [batch(0, 5)[:-1], batch(0, 5) + b"\0", batch(0, 5) + bytes(40), batch(0, 2) + batch(2, 3)[:30], bytes(100)],
    ids=["cut", "a byte more", "zeros behind", "second cut", "zeros"],
)
@pytest.mark.parametrize("last", [True, False])
def test_slices_with_incomplete_batches_are_corrupt(wrong: bytes, last: bool) -> None:
    rows = [row_of(90, 100), row_of(100, 105, position=40), row_of(105, 107)][: 2 if last else 3]
    data, starts = joined(*[batch(0, 10), wrong, batch(0, 2)][: len(rows)])
    with pytest.raises(Corrupt) as caught:
        scan_slices(data, rows, starts)
    assert caught.value.file == "t/append/100"


def test_a_batch_with_an_old_magic_is_not_patched() -> None:
    """The checksum does not cover the magic byte, and messages of formats v0 and v1 have other fields at these
    positions.
    """
    data, starts = joined(*DATA)
    data[len(DATA[0]) + 16] = 1
    with pytest.raises(Corrupt) as caught:
        scan_slices(data, ROWS, starts)
    assert caught.value.file == ROWS[1].file
