"""Find the position in a sealed segment at which a read starts, using the segment's index files.

Sealed segments have no footer. As in Kafka, their `.index` and `.timeindex` provide the start position of a read. Index
files have no checksum, and a stale index could hide records (docs/reference/kafka-format.md). Therefore the index entry
is verified against the log:

1. The batch at the position of the entry must have a valid CRC and the last offset of the entry.
2. The batch that a time index entry refers to must have the timestamp of the entry.

If the entry is wrong, or the index is missing, unreadable or unsorted, the segment is read from its start. The end
position is only an estimate. If it is wrong, the read needs one more request.
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
    """A start position in a segment. The batch at this position must end at `last_offset`."""

    position: int
    last_offset: int
    until: int  # estimated end position
    indexed_offset: int = -1  # last offset of the batch that must have `indexed_timestamp`
    indexed_timestamp: int = -1  # maximum timestamp of this batch in ms; not checked if both values are -1


def read_offset_index(store: Store, planned: PlannedSlice) -> OffsetIndex | None:
    return _read_index(store, planned, ".index", OffsetIndex.parse)


def read_time_index(store: Store, planned: PlannedSlice) -> TimeIndex | None:
    return _read_index(store, planned, ".timeindex", TimeIndex.parse)


def _read_index(
    store: Store, planned: PlannedSlice, suffix: str, parse: Callable[[bytes, int], _Index]
) -> _Index | None:
    """Read an index of a sealed segment with one request. Return None if the index is missing or invalid."""
    whole = planned.position == 0 and planned.size == planned.file_size and planned.shift == 0
    if planned.footer_length or not whole or not planned.file.endswith(".log"):
        return None
    try:
        # An index that is larger than its log is invalid, because entries are smaller than batches.
        data = read_auxiliary_file(store, planned.file.removesuffix(".log") + suffix, planned.size)
        return None if data is None else parse(data, planned.base)
    except (Unreadable, Corrupt):
        return None


def seek_position_for_offsets(index: OffsetIndex, planned: PlannedSlice, start: int, end: int) -> SeekPosition:
    """Return the position at which to start reading offsets `[start, end)`. The last indexed batch that ends at or
    before `start` is at this position.
    """
    last_offset, position = index.lookup(start)
    return SeekPosition(position, last_offset, _until(index, planned, end - 1))


def seek_position_for_timestamp(
    index: OffsetIndex | None, times: TimeIndex | None, planned: PlannedSlice, target: int, start: int
) -> SeekPosition:
    """Return the position at which to start searching for the first record at or above `start` with a timestamp >=
    `target` (ms).
    """
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
    """Return a position at or after the end of the batch that contains `offset`. If the index has no such position,
    return the end of the file.
    """
    beyond = int(index.offsets.searchsorted(offset, side="left")) + 1
    return min(int(index.positions[beyond]), planned.size) if beyond < len(index) else planned.size
