"""The batches of many slices in one buffer: found, checked, and given the headers that the log has for them.

What a batch could not know when it was written, its slice carries: how far its offsets are shifted, its leader epoch
and, under LogAppendTime, its time. Rewriting puts that into the batches, for all slices of a buffer at once: there may
be a hundred thousand small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.record_batch import HEADER_BYTES, BatchHeaders, scan_headers
from sparklog.format.rewrite_headers import rewrite_headers
from sparklog.log.source_slices import SourceSlice

__all__ = ["patch_batches", "scan_slices"]

Int64s = npt.NDArray[np.int64]


def scan_slices(
    data: bytearray, rows: Sequence[SourceSlice], starts: Int64s, after: int = 0
) -> tuple[BatchHeaders, Int64s]:
    """Headers of all batches in `data`, as they were written, and for each the index of its slice in `rows`.

    `starts`: where each slice's first byte lies in `data`, rising; negative for the only slice of a window that begins
    further on in it. `after`: no batch may begin below this offset. Checksums have been looked at before, or will be;
    what they leave open is checked here: `Corrupt` unless every slice begins with a batch, ends with one, and offsets
    rise within it.
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
    shift = _column(rows, "shift")[row_of]
    base, end = headers.base_offset + shift, headers.next_offset + shift
    least = np.maximum(_column(rows, "base")[row_of], np.concatenate(([after], end[:-1])))
    wrong = np.flatnonzero((base < least) | (end <= base) | (end > _column(rows, "end")[row_of]))
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
    return headers, row_of


def patch_batches(
    data: bytearray, headers: BatchHeaders, rows: Sequence[SourceSlice], row_of: Int64s, bases: Int64s
) -> BatchHeaders:
    """Write into the batches of `data` what `rows` say of them; their headers after it.

    Base offsets then count from `bases` (one for each row; zeros: offsets of the log). Leader epochs and append times
    are written where the slices carry them, and the CRCs follow.
    """
    if len(rows) == 1:
        (row,) = rows
        return rewrite_headers(
            data,
            headers,
            offset_shift=row.shift - int(bases[0]),
            leader_epoch=row.leader_epoch if row.leader_epoch >= 0 else None,
            append_time=row.append_time if row.append_time >= 0 else None,
        )
    shift = (_column(rows, "shift") - bases)[row_of]
    after = replace(headers, base_offset=headers.base_offset + shift)
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), HEADER_BYTES, writeable=True)
    windows[after.position, :8] = after.base_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
    # Slices of one commit, and all slices without append times, share what else is written.
    kinds: dict[tuple[int, int], list[int]] = {}
    for i, row in enumerate(rows):
        kinds.setdefault((row.leader_epoch, row.append_time), []).append(i)
    first = np.searchsorted(row_of, np.arange(len(rows) + 1))
    newest, epochs, crcs = after.max_timestamp.copy(), after.leader_epoch.copy(), after.crc.copy()
    for (epoch, time), members in kinds.items():
        if epoch < 0 and time < 0:
            continue
        beside = len(members) == members[-1] - members[0] + 1
        low, high = int(first[members[0]]), int(first[members[-1] + 1])
        chosen = slice(low, high) if beside else np.flatnonzero(np.isin(row_of, members))
        done = rewrite_headers(
            data,
            after[chosen],
            leader_epoch=epoch if epoch >= 0 else None,
            append_time=time if time >= 0 else None,
        )
        newest[chosen], epochs[chosen], crcs[chosen] = done.max_timestamp, done.leader_epoch, done.crc
    return replace(after, max_timestamp=newest, leader_epoch=epochs, crc=crcs)


def _column(rows: Sequence[SourceSlice], name: str) -> Int64s:
    return np.array([getattr(row, name) for row in rows], np.int64)
