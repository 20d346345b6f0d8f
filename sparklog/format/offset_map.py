"""A map of keys to numbers: for the cleaner, of each key in the dirty part of a log, the highest offset.

It is Kafka's OffsetMap. What finds the latest record of each key (`sparklog.log.read.latest_by_key`) uses it, too.

Keys are not kept, only a 128-bit keyed hash of each (see `sparklog.format.key_hash`). Linear probing from
`(upper half of the first hash word) * slots >> 32` on, over one array of slots of three int64:

| word | meaning                                                                                             |
|-----:|-----------------------------------------------------------------------------------------------------|
|    0 | first half of the key's hash                                                                        |
|    1 | second half                                                                                         |
|    2 | offset + 1; 0 in an empty slot, so that a new map is zeros and memory that no key needs is not used |

Kafka's slots have the same 24 bytes, so a buffer holds as many keys here as there. Kafka stops filling a map when
`slots * load factor` of them are used and another record with a key comes, be it a key that the map knows: where a pass
ends, and with that the new cleaner checkpoint, follows from it.

A table of some hundred megabytes misses every cache, so what a look-up costs is the way to memory: asking for the slot
of the key some places on while working on this one hides most of it. A map for a number of keys that is only bounded
begins with a small table, because most logs have far fewer keys than records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest
from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    INT,
    INT64,
    INT64_IN,
    VOID,
    address,
    helper,
    load_i64,
    prefetch,
    store_i64,
)

SLOT_BYTES = 24
MAX_SLOTS = 2**31 - 1
_LEAST_SLOTS = 1024
_FIRST_SHARE = 16
"""The first table of a map has this share of the slots that may be needed."""
_GROWTH = 4
_CALL_KEYS = 1 << 30
AHEAD = 16
"""Keys between asking for a slot and using it: enough for memory to answer, few enough for the cache to keep them."""

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@helper
def first_slot(hash_at: int, slots: int) -> int:
    upper: int = (load_i64(hash_at) >> 32) & 0xFFFFFFFF
    return (upper * slots) >> 32


@kernel(INT(INT64, INT64_IN, INT64_IN, INT, INT))
def put_keys(table: Any, hashes: Any, offsets: Any, entries: int, limit: int) -> int:
    """Set the offset of each key until one comes while there are `limit` entries.

    `table` int64[3 * slots], `hashes` int64[2 * n], `offsets` int64[n]. Returns how many were taken in the lower and
    how many entries are new in the upper 32 bits.
    """
    slots = len(table) // 3
    count = len(offsets)
    start, hash_at, offset_at = address(table), address(hashes), address(offsets)
    table_end = start + SLOT_BYTES * slots
    taken, added = 0, 0
    for row in range(count):
        if entries + added >= limit:
            break
        if row + AHEAD < count:
            prefetch(start + SLOT_BYTES * first_slot(hash_at + 16 * (row + AHEAD), slots) + 8)
        low, high = load_i64(hash_at + 16 * row), load_i64(hash_at + 16 * row + 8)
        slot = start + SLOT_BYTES * first_slot(hash_at + 16 * row, slots)
        while True:
            if load_i64(slot + 16) == 0:
                store_i64(slot, low)
                store_i64(slot + 8, high)
                added += 1
                break
            if load_i64(slot) == low and load_i64(slot + 8) == high:
                break
            slot += SLOT_BYTES
            if slot == table_end:
                slot = start
        store_i64(slot + 16, load_i64(offset_at + 8 * row) + 1)
        taken += 1
    return taken | added << 32


@kernel(VOID(INT64_IN, INT64_IN, INT64))
def get_keys(table: Any, hashes: Any, offsets: Any) -> None:
    """Look up each key: its offset, or -1. `table` int64[3 * slots], `hashes` int64[2 * n], `offsets` int64[n]."""
    slots = len(table) // 3
    count = len(offsets)
    start, hash_at, offset_at = address(table), address(hashes), address(offsets)
    table_end = start + SLOT_BYTES * slots
    for row in range(count):
        if row + AHEAD < count:
            prefetch(start + SLOT_BYTES * first_slot(hash_at + 16 * (row + AHEAD), slots) + 8)
        low, high = load_i64(hash_at + 16 * row), load_i64(hash_at + 16 * row + 8)
        slot = start + SLOT_BYTES * first_slot(hash_at + 16 * row, slots)
        stored = load_i64(slot + 16)
        while stored != 0 and (load_i64(slot) != low or load_i64(slot + 8) != high):
            slot += SLOT_BYTES
            if slot == table_end:
                slot = start
            stored = load_i64(slot + 16)
        store_i64(offset_at + 8 * row, stored - 1)


@kernel(VOID(INT64_IN, INT64))
def move_keys(table: Any, larger: Any) -> None:
    """Put the keys of a table into a larger one without keys: the order of their slots is the same, so both are read
    from front to back."""
    slots = len(larger) // 3
    source, start = address(table), address(larger)
    table_end = start + SLOT_BYTES * slots
    for _ in range(len(table) // 3):
        stored = load_i64(source + 16)
        if stored != 0:
            slot = start + SLOT_BYTES * first_slot(source, slots)
            while load_i64(slot + 16) != 0:
                slot += SLOT_BYTES
                if slot == table_end:
                    slot = start
            store_i64(slot, load_i64(source))
            store_i64(slot + 8, load_i64(source + 8))
            store_i64(slot + 16, stored)
        source += SLOT_BYTES


def slots_of(nbytes: int) -> int:
    """Return the number of slots of a buffer of this many bytes (`log.cleaner.dedupe.buffer.size`)."""
    return min(nbytes // SLOT_BYTES, MAX_SLOTS)


class OffsetMap:
    """Keyed hash -> offset. `slots` times `load_factor` keys fit.

    `expected`: no more keys than this are to come, so that a small log does not take the memory of a large map; if
    more come after all, the map is full earlier. Its table grows with the keys, and for that moment takes a quarter
    more. `BadRequest` if not even one key fits.
    """

    def __init__(self, slots: int, load_factor: float = 0.9, expected: int | None = None) -> None:
        if not 0 < load_factor <= 1:
            raise BadRequest(f"log.cleaner.io.buffer.load.factor must be above 0 and at most 1, found {load_factor}")
        slots = min(slots, MAX_SLOTS)
        limit = int(slots * load_factor)
        if limit < 1:
            raise BadRequest(
                f"log.cleaner.dedupe.buffer.size must hold at least one key, found {slots} slots of {SLOT_BYTES} bytes "
                f"of which {load_factor:g} may be used; raise it"
            )
        room = slots if expected is None else min(slots, max(2 * expected, _LEAST_SLOTS))
        self.slots = slots
        self._load_factor = load_factor
        self.limit = limit if room == slots else min(limit, room - 1)
        # One slot always stays empty: it ends the probe for a key that is absent.
        self._most = max(room, self.limit + 1)
        first = self._most if expected is None else min(self._most, max(-(-self._most // _FIRST_SHARE), _LEAST_SLOTS))
        self._table: Int64s = np.zeros(3 * first, np.int64)
        self._entries = 0
        self.latest_offset = -1
        """Highest offset up to which the log is in the map; `advance` moves it over what holds no keys."""

    def __len__(self) -> int:
        return self._entries

    @property
    def utilization(self) -> float:
        return self._entries / self.slots

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def put(self, hashes: Hashes, offsets: Int64s) -> int:
        """Set keys' offsets in order, a later one replacing an earlier one: uint64[n, 2], int64[n], not negative.

        Returns how many were taken: fewer than n if the map was full when the next one came. `BadRequest` for arrays
        that do not belong together.
        """
        words, offsets = _words(hashes), np.ascontiguousarray(offsets, np.int64)
        if len(words) != 2 * len(offsets):
            raise BadRequest(
                f"expected one hash of two words for each of {len(offsets)} offsets, found {len(words)} words"
            )
        taken = 0
        while taken < len(offsets):
            if self._comfortable <= self._entries < self.limit:
                self._grow()
            some = offsets[taken : taken + _CALL_KEYS]
            some_words = words[2 * taken : 2 * (taken + len(some))]
            answer = put_keys(self._table, some_words, some, self._entries, self._comfortable)
            self._entries += answer >> 32
            taken += answer & 0xFFFFFFFF
            if self._entries >= self.limit:
                break
        if taken:
            self.advance(int(offsets[taken - 1]))
        return taken

    @property
    def _comfortable(self) -> int:
        """Keys up to which the table stays as it is."""
        slots = len(self._table) // 3
        return self.limit if slots == self._most else min(self.limit, slots // 2)

    def _grow(self) -> None:
        larger = np.zeros(min(_GROWTH * len(self._table), 3 * self._most), np.int64)
        move_keys(self._table, larger)
        self._table = larger

    def grown(self, more: int) -> OffsetMap:
        """Return a map of twice the slots or more, with the same keys and room for `more` of them."""
        least = int((self._entries + more) / self._load_factor) + 1
        larger = OffsetMap(max(2 * self.slots, least), self._load_factor)
        move_keys(self._table, larger._table)
        larger._entries, larger.latest_offset = self._entries, self.latest_offset
        return larger

    def advance(self, offset: int) -> None:
        """All offsets up to this one have been looked at."""
        self.latest_offset = max(self.latest_offset, offset)

    def get(self, hashes: Hashes) -> Int64s:
        """The offset of each key, -1 where it is absent: uint64[n, 2] -> int64[n]."""
        offsets = np.empty(len(hashes), np.int64)
        get_keys(self._table, _words(hashes), offsets)
        return offsets

    def offsets(self) -> Int64s:
        """Return the offsets of all keys, ascending."""
        stored = self._table[2::3]
        offsets: Int64s = stored[stored != 0] - 1
        offsets.sort()
        return offsets


def _words(hashes: Hashes) -> Int64s:
    return np.ascontiguousarray(hashes, np.uint64).view(np.int64).reshape(-1)
