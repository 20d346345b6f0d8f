"""Read the valid batches of a corrupt slice, and report or skip its corrupt batches.

A slice's CRC-32C shows that some byte of it is wrong, but not which one. Batches have checksums of their own, so a
reader gets the valid batches in order, up to the first corrupt one in the requested offsets. Work that rewrites slices
(sealing, merging, cleaning, exporting) rejects a corrupt slice, so that it does not lose records.

If every batch is valid, the wrong byte is one that batch checksums do not cover: a base offset or a leader epoch. If
the batches fill the offsets of the slice without a gap, their base offsets are correct, and they are read. Otherwise a
base offset may be wrong, and no batch of the slice can be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_after, crc_failures, header_rules
from sparklog.format.batch_walk import BatchFile, Damage, Window, checked_batches
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import BatchHeaders, BytesLike
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.skipped import OnSkipped, Skipped

GO_ON = "restore the file, or read on after it with corruptRecords=skip"
READ_BYTES = 1 << 20
"""Bytes to read at a time from a slice that is not in memory."""


class SliceReader(BatchFile):
    """A slice in memory or in a file, read with `read`; positions are relative to its first byte."""

    def __init__(self, planned: PlannedSlice, read: Callable[[int, int], BytesLike]) -> None:
        self.planned = planned
        self.path = planned.file
        self.size = planned.size
        self._read = read

    def read(self, position: int, length: int) -> BytesLike:
        length = min(length, self.size - position)
        return self._read(position, length) if length > 0 else b""


@dataclass(frozen=True, slots=True)
class _Missing:
    """A corrupt range: its damage, the position after it, and the offset after it as in the batch headers."""

    damage: Damage
    until: int
    end: int


def are_sound(data: BytesLike, headers: BatchHeaders, planned: PlannedSlice, expected: int) -> bool:
    """Return True if the next batches of a slice are valid; `expected`: the lowest offset that they may have."""
    if any(broken.any() for broken, _ in header_rules(headers, max(planned.shift, 0))):
        return False
    base, end = headers.base_offset + planned.shift, headers.next_offset + planned.shift
    ordered = base[0] >= expected and end[-1] <= planned.end and bool((base[1:] >= end[:-1]).all())
    return ordered and not len(crc_failures(data, headers))


class SoundPrefix:
    """Yields the windows of a slice up to the first one with an invalid batch.

    * `low`, `reached`: the position and the offset after the last window that was yielded
    * `stopped`: True if the next window cannot be read or has an invalid batch
    * `checked`: False to raise errors and not to validate batches
    * `whole`: True if the windows cover the entire slice; then `crc` is the CRC-32C of the windows so far, and
      `is_dense` is True if their batches fill the slice's offsets without a gap
    """

    def __init__(self, planned: PlannedSlice, low: int, *, checked: bool, whole: bool) -> None:
        self.low, self.reached = low, planned.base
        self.crc = 0
        self._whole = whole
        self.stopped = False
        self._planned = planned
        self._checked = checked
        self._filled = 0

    @property
    def is_dense(self) -> bool:
        return self._filled == self._planned.end - self._planned.base

    def of(self, windows: Iterator[tuple[memoryview, BatchHeaders]]) -> Iterator[tuple[memoryview, BatchHeaders]]:
        while True:
            try:
                window = next(windows, None)
            except Corrupt:
                if not self._checked:
                    raise
                self.stopped = True
                return
            if window is None:
                return
            data, headers = window
            if self._checked:
                if not are_sound(data, headers, self._planned, self.reached):
                    self.stopped = True
                    return
                self.reached = int(headers.next_offset[-1]) + self._planned.shift
                self._filled += int((headers.last_offset_delta + 1).sum())
            if self._whole:
                self.crc = crc_after(data, headers, self.crc) if self._checked else crc32c(data, self.crc)
            self.low += len(data)
            yield window


def sound_batches(
    file: SliceReader, start: int, end: int, *, low: int = 0, expected: int | None = None, on_skipped: OnSkipped | None
) -> Iterator[Window]:
    """Yield windows of the valid batches with an offset in `[start, end)`, from position `low` of the slice on.

    `expected`: the lowest offset that the next batch may have; None: the slice's base offset. `on_skipped` is called
    with each skipped range; None: raise `Corrupt` at the first corrupt batch that may have offsets of the range.
    """
    planned = file.planned
    for event in _events(file, low, planned.base if expected is None else expected, end):
        if isinstance(event, Window):
            yield from _wanted(event, planned, start, end)
        else:
            _report(event, planned, start, end, on_skipped)


def sound_batches_of_whole(file: SliceReader, start: int, end: int, on_skipped: OnSkipped | None) -> Iterator[Window]:
    """Like `sound_batches`, for a slice in memory whose CRC-32C is wrong."""
    planned = file.planned
    events = list(_events(file, 0, planned.base, planned.end))
    windows = [event for event in events if isinstance(event, Window)]
    all_sound = len(windows) == len(events)
    filled = sum(int((window.headers.last_offset_delta + 1).sum()) for window in windows)
    if all_sound and filled != planned.end - planned.base:
        if on_skipped is None:
            raise unexplained(planned)
        reason = unexplained(planned).message
        on_skipped(skipped(planned, planned.position, planned.size, max(start, planned.base), end, reason))
        return
    for event in events:
        if isinstance(event, Window):
            yield from _wanted(event, planned, start, end)
        else:
            _report(event, planned, start, end, on_skipped)
    if all_sound and on_skipped is None:
        raise unexplained(planned)


def unexplained(planned: PlannedSlice) -> Corrupt:
    """Return the error for a slice with a wrong CRC-32C although all of its batches are valid."""
    return Corrupt(
        "the slice's CRC-32C does not match its bytes, though all of its batches are sound: restore the file",
        file=planned.file,
        position=planned.position,
        offset=planned.base,
    )


def _events(file: SliceReader, low: int, expected: int, end: int) -> Iterator[Window | _Missing]:
    """Yield windows of valid batches and the corrupt ranges between them, in file order."""
    planned = file.planned
    limit = planned.end - planned.shift
    last = None if end >= planned.end else end - planned.shift
    for found in checked_batches(file, low, expected - planned.shift, end=last, limit=limit):
        if isinstance(found, Window):
            yield found
        else:
            yield _Missing(found, found.until, limit if found.next_offset is None else found.next_offset)


def _wanted(window: Window, planned: PlannedSlice, start: int, end: int) -> Iterator[Window]:
    headers = window.headers
    rows = np.flatnonzero((headers.next_offset > start - planned.shift) & (headers.base_offset < end - planned.shift))
    if not len(rows):
        return
    inside = headers[int(rows[0]) : int(rows[-1]) + 1]
    low, high = int(inside.position[0]), int(inside.position[-1] + inside.size[-1])
    moved = replace(inside, position=inside.position - low)
    yield Window(memoryview(window.data)[low:high], window.start + low, moved, window.file)


def _report(missing: _Missing, planned: PlannedSlice, start: int, end: int, on_skipped: OnSkipped | None) -> None:
    damage = missing.damage
    first, last = max(damage.offset + planned.shift, start), min(missing.end + planned.shift, end)
    if first >= last:
        return
    position = planned.position + damage.position
    if on_skipped is None:
        reason = f"expected whole record batches: {damage.reason}" if damage.structural else damage.reason
        raise Corrupt(f"{reason}; {GO_ON}", file=planned.file, position=position, offset=damage.offset + planned.shift)
    on_skipped(skipped(planned, position, missing.until - damage.position, first, last, damage.reason))


def skipped(planned: PlannedSlice, position: int, nbytes: int, start: int, end: int, reason: str) -> Skipped:
    return Skipped(planned.topic, planned.partition, planned.file, position, nbytes, start, end, reason)
