"""Read the valid batches of a corrupt slice, and report or skip its corrupt batches.

The CRC-32C of a slice shows that the slice is corrupt, but not which byte is wrong. Batches have their own checksums.
Therefore, a reader returns the valid batches in order, up to the first corrupt batch in the requested offsets.
Operations that rewrite slices (sealing, merging, cleaning, exporting) reject a corrupt slice, so that they do not lose
records.

If every batch is valid, the wrong byte is in a field that batch checksums do not cover: a base offset or a leader
epoch. If the batches cover the offsets of the slice without a gap, their base offsets are correct, and the batches are
read. If there is a gap, a base offset may be wrong, and no batch of the slice can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_after
from sparklog.format.batch_walk import Damage, Window, checked_batches
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.read.slice_files import SliceFile

SKIP_ADVICE = "restore the file, or skip corrupt records with corruptRecords=skip"


def valid_batches(
    file: SliceFile,
    start: int,
    end: int,
    *,
    low: int | None = None,
    on_skipped: OnSkipped | None,
    advice: str = SKIP_ADVICE,
) -> Iterator[Window]:
    """Yield windows of the valid batches with offsets in `[start, end)`.

    Reading starts at position `low`, or at the start of the slice if `low` is None. `on_skipped` is called with each
    skipped range. If `on_skipped` is None, `Corrupt` with `advice` is raised at the first corrupt batch that may have
    offsets in the range. If the entire slice is read, its CRC-32C is wrong, and all of its batches are valid, `Corrupt`
    is raised at the end of the slice.
    """
    planned = file.planned
    low = planned.position if low is None else low
    whole = low == planned.position and file.size == low + planned.size
    crc = filled = 0
    last = None if end >= planned.end else end - planned.shift
    for found in checked_batches(file, low, planned.base - planned.shift, end=last, limit=planned.end - planned.shift):
        if isinstance(found, Damage):
            whole = False
            _report(found, planned, start, end, on_skipped, advice)
            continue
        if not len(found.headers):
            return
        window, error = found.trimmed(), None
        if whole:
            crc = crc_after(window.data, window.headers, crc)
            filled += int((window.headers.last_offset_delta + 1).sum())
            error = unexplained(planned) if window.end == file.size and crc != planned.crc else None
        if error is not None and filled != planned.end - planned.base:
            if on_skipped is None:
                raise error
            on_skipped(skipped(planned, window.start, len(window.data), max(start, planned.base), end, error.message))
            return
        yield from _in_range(window, planned, start, end)
        if error is not None and on_skipped is None:
            raise error


def unexplained(planned: PlannedSlice) -> Corrupt:
    """Return the error for a slice whose CRC-32C is wrong although all of its batches are valid."""
    return Corrupt(
        "the slice's CRC-32C does not match its bytes, although all of its batches are valid: restore the file",
        file=planned.file,
        position=planned.position,
        offset=planned.base,
    )


def _in_range(window: Window, planned: PlannedSlice, start: int, end: int) -> Iterator[Window]:
    headers = window.headers
    rows = np.flatnonzero((headers.next_offset > start - planned.shift) & (headers.base_offset < end - planned.shift))
    if len(rows):
        inside = int(rows[-1]) + 1 - int(rows[0]) < len(headers)
        yield window.select(slice(int(rows[0]), int(rows[-1]) + 1)).trimmed() if inside else window


def _report(
    damage: Damage, planned: PlannedSlice, start: int, end: int, on_skipped: OnSkipped | None, advice: str
) -> None:
    following = planned.end if damage.next_offset is None else damage.next_offset + planned.shift
    first, last = max(damage.offset + planned.shift, start), min(following, end)
    if first >= last:
        return
    if on_skipped is None:
        reason = f"expected complete record batches: {damage.reason}" if damage.is_structural else damage.reason
        file, offset = planned.file, damage.offset + planned.shift
        raise Corrupt(f"{reason}; {advice}", file=file, position=damage.position, offset=offset)
    on_skipped(skipped(planned, damage.position, damage.until - damage.position, first, last, damage.reason))


def skipped(planned: PlannedSlice, position: int, nbytes: int, start: int, end: int, reason: str) -> Skipped:
    return Skipped(planned.topic, planned.partition, planned.file, position, nbytes, start, end, reason)
