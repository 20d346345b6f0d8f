"""Find the position in a sealed segment where a read starts, using the segment's index files.

Sealed segments have no footer. As in Kafka, reads start at a position from their `.index` and `.timeindex`. These have
no checksum, and a stale index would hide records (docs/reference/kafka-format.md), so an entry is verified in the log:

1. The batch at its position has a valid CRC, and its last offset is that of the entry.
2. The batch that a time entry refers to has the timestamp of the entry.

If an entry is wrong, or an index is missing, unreadable or out of order, the segment is read from its start. The end
position is only an estimate of how much to read; a wrong estimate costs a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparklog.errors import Corrupt
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.log.read.auxiliary_files import Unreadable, read_auxiliary_file
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.storage.store import Store

_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


@dataclass(frozen=True, slots=True)
class SeekPosition:
    """A start position in a segment. A batch that ends at `last_offset` must start there."""

    position: int
    last_offset: int
    until: int  # estimated end position
    indexed_offset: int = -1  # a batch that ends at this offset must have
    indexed_timestamp: int = -1  # this maximum timestamp (ms); (-1, -1): not checked


def read_offset_index(store: Store, planned: PlannedSlice) -> OffsetIndex | None:
    return _read_index(store, planned, ".index", OffsetIndex.parse)


def read_time_index(store: Store, planned: PlannedSlice) -> TimeIndex | None:
    return _read_index(store, planned, ".timeindex", TimeIndex.parse)


def _read_index(
    store: Store, planned: PlannedSlice, suffix: str, parse: Callable[[bytes, int], _Index]
) -> _Index | None:
    """Return an index of a sealed segment, in one request; None if it is missing or cannot be valid."""
    whole = planned.position == 0 and planned.size == planned.file_size and planned.shift == 0
    if planned.footer_length or not whole or not planned.file.endswith(".log"):
        return None
    try:
        # An index larger than its log is invalid, because entries are smaller than batches.
        data = read_auxiliary_file(store, planned.file.removesuffix(".log") + suffix, planned.size)
        return None if data is None else parse(data, planned.base)
    except (Unreadable, Corrupt):
        return None


def seek_position_for_offsets(index: OffsetIndex, planned: PlannedSlice, start: int, end: int) -> SeekPosition:
    """Return where to read offsets `[start, end)`: after the last indexed batch that ends at or before `start`."""
    last_offset, position = index.lookup(start)
    return SeekPosition(position, last_offset, _until(index, planned, end - 1))


def seek_position_for_timestamp(
    index: OffsetIndex | None, times: TimeIndex | None, planned: PlannedSlice, target: int, start: int
) -> SeekPosition:
    """Return where to search for the first record at or above `start` with a timestamp >= `target` (ms)."""
    if index is None:
        return SeekPosition(0, -1, planned.size)
    indexed_timestamp, indexed_offset = (-1, -1) if times is None else times.lookup(target)
    last_offset, position = index.lookup(max(indexed_offset, start))
    until = planned.size
    if times is not None:
        following = int(times.timestamps.searchsorted(target, side="right"))
        if following < len(times):
            until = _until(index, planned, max(start, int(times.offsets[following])))
    claim = (indexed_offset, indexed_timestamp) if indexed_timestamp >= 0 and indexed_offset >= start else (-1, -1)
    return SeekPosition(position, last_offset, until, *claim)


def _until(index: OffsetIndex, planned: PlannedSlice, offset: int) -> int:
    """Return a position after the batch of `offset`: the end of the first indexed batch that ends at or after it."""
    beyond = int(index.offsets.searchsorted(offset, side="left")) + 1
    return min(int(index.positions[beyond]), planned.size) if beyond < len(index) else planned.size
