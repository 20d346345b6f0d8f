"""Entering sealed segments by the index files that lie beside them, as Kafka does, but without trusting them.

An `.index` or `.timeindex` has no checksum, and a stale one would silently hide records (kafka-format.md 3.3). So what
it says is proven by the log before it is believed: an entry's position must hold a batch whose CRC is right and whose
last offset is the entry's, and the batch that a time entry names must have the entry's time. Otherwise, and where an
index is missing or out of order, the segment is read from its start. Where to stop reading is only a guess at how much
to ask for at once: a wrong one costs a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparklog.errors import Corrupt, NotFound
from sparklog.format import offset_index, time_index
from sparklog.format.offset_index import OffsetIndex
from sparklog.format.time_index import TimeIndex
from sparklog.log.read.read_plan import PlannedSlice
from sparklog.storage.store import Store


_SUFFIX = ".log"
_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where to begin in a segment, and what must be found there; `position` 0 is its start and needs no proof.

    `last_offset`: of the batch at `position`. `until`: the byte at which what is wanted probably ends.
    `(stamped, stamp)`: a batch that ends at this offset has this greatest time (ms); (-1, -1): nothing is claimed.
    """

    position: int
    last_offset: int
    until: int
    stamped: int = -1
    stamp: int = -1


def read_offset_index(store: Store, found: PlannedSlice) -> OffsetIndex | None:
    """The `.index` of a sealed segment, in one request; None if there is none that could be right."""
    return _read(store, found, ".index", offset_index.parse)


def read_time_index(store: Store, found: PlannedSlice) -> TimeIndex | None:
    """The `.timeindex` of a sealed segment, in one request; None if there is none that could be right."""
    return _read(store, found, ".timeindex", time_index.parse)


def _read(store: Store, found: PlannedSlice, suffix: str, parse: Callable[[bytes, int], _Index]) -> _Index | None:
    whole = found.position == 0 and found.size == found.file_size and found.shift == 0
    if found.footer_length or not whole or not found.file.endswith(_SUFFIX):
        return None
    try:
        # Entries are smaller than batches: an index that is larger than its log is none.
        data = store.get(found.file.removesuffix(_SUFFIX) + suffix, 0, found.size)
        return parse(data, found.base)
    except (NotFound, Corrupt):
        return None


def entrance_for_offsets(index: OffsetIndex, found: PlannedSlice, start: int, end: int) -> Entrance:
    """Where to read offsets `[start, end)`: the last indexed batch that ends at or before `start`."""
    last_offset, position = index.lookup(start)
    return Entrance(*_inside(found, position, last_offset), _until(index, found, end - 1))


def entrance_for_timestamp(
    index: OffsetIndex | None, times: TimeIndex | None, found: PlannedSlice, target: int, start: int
) -> Entrance:
    """Where the first record at or above offset `start` with a time of at least `target` (ms) is looked for.

    Kafka's way: no record before the time index's greatest entry <= `target` is later than that entry.
    """
    if index is None:
        return Entrance(0, -1, found.size)
    stamp, stamped = (-1, -1) if times is None else times.lookup(target)
    last_offset, position = index.lookup(max(stamped, start))
    until = found.size
    if times is not None:
        following = int(times.timestamps.searchsorted(target, side="right"))
        if following < len(times):
            until = _until(index, found, max(start, int(times.offsets[following])))
    claimed = stamp >= 0 and stamped >= start
    place = _inside(found, position, last_offset)
    return Entrance(*place, until, stamped, stamp) if claimed else Entrance(*place, until)


def _inside(found: PlannedSlice, position: int, last_offset: int) -> tuple[int, int]:
    return (position, last_offset) if 0 < position < found.size else (0, -1)


def _until(index: OffsetIndex, found: PlannedSlice, offset: int) -> int:
    """Where the batch that holds `offset` has surely ended: behind the first indexed one that ends at or beyond it."""
    beyond = int(index.offsets.searchsorted(offset, side="left")) + 1
    return min(int(index.positions[beyond]), found.size) if beyond < len(index) else found.size
