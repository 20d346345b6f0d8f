"""The entrance to a sealed segment, by the indexes next to it.

Sealed segments have no footer. They are entered by the `.index` and `.timeindex` next to them, as Kafka does, but these
have no checksum, and a stale one would hide records (docs/reference/kafka-format.md). So an entry is proven by the log
before it is believed: at its position is a batch whose CRC is right and whose last offset is the entry's, and the
batch that a time entry names has the entry's time. Otherwise, and where an index is missing, unreadable or out of
order, the segment is read from its start. The end of a read is only a guess at how much to ask for: a wrong one costs a
request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparklog.errors import Corrupt
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.log.read.helper_files import Unreadable, read_helper_file
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.storage.store import Store

_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


@dataclass(frozen=True, slots=True)
class Entrance:
    """A place to begin at in a segment, and the batch that proves it: it is at `position` and ends at `last_offset`."""

    position: int
    last_offset: int
    until: int  # the byte at which what is wanted probably ends
    stamped: int = -1  # a batch that ends at this offset has
    stamp: int = -1  # this greatest time (ms); (-1, -1): nothing is claimed


def read_offset_index(store: Store, planned: PlannedSlice) -> OffsetIndex | None:
    return _read_index(store, planned, ".index", OffsetIndex.parse)


def read_time_index(store: Store, planned: PlannedSlice) -> TimeIndex | None:
    return _read_index(store, planned, ".timeindex", TimeIndex.parse)


def _read_index(
    store: Store, planned: PlannedSlice, suffix: str, parse: Callable[[bytes, int], _Index]
) -> _Index | None:
    """Return an index of a sealed segment, in one request; None if there is none that could be right."""
    whole = planned.position == 0 and planned.size == planned.file_size and planned.shift == 0
    if planned.footer_length or not whole or not planned.file.endswith(".log"):
        return None
    try:
        # Entries are smaller than batches: an index that is larger than its log is none.
        data = read_helper_file(store, planned.file.removesuffix(".log") + suffix, planned.size)
        return None if data is None else parse(data, planned.base)
    except (Unreadable, Corrupt):
        return None


def entrance_for_offsets(index: OffsetIndex, planned: PlannedSlice, start: int, end: int) -> Entrance:
    """Return the place to read offsets `[start, end)` from: the last indexed batch that ends at or before `start`."""
    last_offset, position = index.lookup(start)
    return Entrance(position, last_offset, _until(index, planned, end - 1))


def entrance_for_timestamp(
    index: OffsetIndex | None, times: TimeIndex | None, planned: PlannedSlice, target: int, start: int
) -> Entrance:
    """Return the place to look for the first record at or above `start` with a time of `target` (ms) or later."""
    if index is None:
        return Entrance(0, -1, planned.size)
    stamp, stamped = (-1, -1) if times is None else times.lookup(target)
    last_offset, position = index.lookup(max(stamped, start))
    until = planned.size
    if times is not None:
        following = int(times.timestamps.searchsorted(target, side="right"))
        if following < len(times):
            until = _until(index, planned, max(start, int(times.offsets[following])))
    claim = (stamped, stamp) if stamp >= 0 and stamped >= start else (-1, -1)
    return Entrance(position, last_offset, until, *claim)


def _until(index: OffsetIndex, planned: PlannedSlice, offset: int) -> int:
    """Return where the batch of `offset` has surely ended: after the first indexed one that ends at or beyond it."""
    beyond = int(index.offsets.searchsorted(offset, side="left")) + 1
    return min(int(index.positions[beyond]), planned.size) if beyond < len(index) else planned.size
