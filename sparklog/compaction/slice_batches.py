"""The batches of many slices in one buffer: found, checked, and given the headers that the log has for them.

What a batch could not know when it was written, its slice carries: how far its offsets are shifted, its leader epoch
and, under LogAppendTime, its time. Rewriting puts that into the batches, for all slices of a buffer at once: there may
be a hundred thousand small ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.record_batch import BatchHeaders, BytesLike
from sparklog.format.rewrite_headers import rewrite_headers
from sparklog.log.read.source_slices import SourceSlice


Int64s = npt.NDArray[np.int64]


def scan_slices(
    data: BytesLike, rows: Sequence[SourceSlice], starts: Int64s, after: int = 0
) -> tuple[BatchHeaders, Int64s]:
    """Headers of all batches in `data`, as they were written, and for each the index of its slice in `rows`.

    `starts`: where each slice's first byte lies in `data`, rising; negative for the only slice of a window that begins
    further on in it. `after`: the first batch may not begin below this offset. Slices may be of several partitions.
    Checksums have been looked at before, or will be; what they leave open is checked here: `Corrupt` unless every slice
    begins with a batch, ends with one, and offsets rise within it.
    """
    headers = scan_headers(data, whole=False)
    row_of = np.searchsorted(starts, headers.position, side="right") - 1
    crossed = np.flatnonzero((starts > 0) & (starts < headers.end) & ~np.isin(starts, headers.position))
    if len(crossed) or headers.stop != "end":
        # A batch that reaches into the next slice is wrong itself.
        bad = int(crossed[0] if len(crossed) else np.searchsorted(starts, headers.end, side="right")) - 1
        raise Corrupt(
            f"expected whole record batches in a slice: {headers.reason or 'the last one reaches beyond it'}",
            file=rows[bad].file,
            position=rows[bad].position,
        )
    check_offsets(headers, rows, row_of, starts, after)
    return headers, row_of


def check_offsets(
    headers: BatchHeaders, rows: Sequence[SourceSlice], row_of: Int64s, starts: Int64s, after: int = 0
) -> None:
    """`Corrupt` unless the batches of each slice lie within its offsets, in order: a part of `scan_slices`."""
    shift = _column(rows, "shift")[row_of]
    base, end = headers.base_offset + shift, headers.next_offset + shift
    least = _column(rows, "base")[row_of]
    least[:1] = np.maximum(least[:1], after)
    # Slices of one partition do not overlap, so order within each is order in the log.
    least[1:] = np.where(row_of[1:] == row_of[:-1], np.maximum(least[1:], end[:-1]), least[1:])
    outside = (base < least) | (end <= base) | (end > _column(rows, "end")[row_of])
    # Messages of formats v0 and v1 are in sealed segments alone: here a magic byte has changed.
    wrong = np.flatnonzero(outside | headers.is_legacy)
    if len(wrong):
        at = int(wrong[0])
        row = rows[int(row_of[at])]
        raise Corrupt(
            f"expected a batch within offsets {int(least[at])} to {row.end}, found one of {int(base[at])} to "
            f"{int(end[at])}: restore the file",
            file=row.file,
            position=row.position + int(headers.position[at] - starts[row_of[at]]),
            offset=int(least[at]),
        )


def check_batches(data: BytesLike, headers: BatchHeaders, row: SourceSlice, start: int) -> None:
    """`Corrupt` unless the CRC-32C of each of these batches of one slice is right; `start` as in `scan_slices`."""
    wrong = crc_failures(data, headers)
    if len(wrong):
        at = int(wrong[0])
        raise Corrupt(
            "the batch's CRC-32C does not match its bytes: restore the file",
            file=row.file,
            position=row.position + int(headers.position[at]) - start,
            offset=int(headers.base_offset[at]) + row.shift,
        )


def patch_batches(
    data: BytesLike, headers: BatchHeaders, rows: Sequence[SourceSlice], row_of: Int64s, bases: Int64s
) -> BatchHeaders:
    """Write into the batches of `data` what `rows` say of them; their headers after it.

    Base offsets then count from `bases` (one for each row; zeros: offsets of the log). Leader epochs and append times
    are written where the slices carry them, and the CRCs follow.
    """
    return rewrite_headers(
        data,
        headers,
        offset_shift=(_column(rows, "shift") - bases)[row_of],
        leader_epoch=_column(rows, "leader_epoch")[row_of],
        append_time=_column(rows, "append_time")[row_of],
    )


def _column(rows: Sequence[SourceSlice], name: str) -> Int64s:
    return np.array([getattr(row, name) for row in rows], np.int64)
