"""A hash map from keys to offsets.

The log cleaner uses it to find the highest offset of each key in the dirty part of a log.

It corresponds to Kafka's OffsetMap. `sparklog.log.read.latest_by_key` uses it to find the latest record of each key.

The map stores a 128-bit keyed hash of each key (see `sparklog.format.key_hash`), not the key. It uses linear probing,
starting at slot `(upper half of the first hash word) * slots >> 32`, in one array of slots. A slot consists of three
int64:

| word | meaning                                                                                             |
|-----:|-----------------------------------------------------------------------------------------------------|
|    0 | first half of the key's hash                                                                        |
|    1 | second half                                                                                         |
|    2 | offset + 1; 0 in an empty slot, so that a new map is all zeros and unused pages take no memory      |

A slot in Kafka also has 24 bytes, so a buffer of the same size contains the same number of keys. Like Kafka, filling
stops when `slots * load factor` slots are used and another record with a key follows, even if the map already contains
that key. This determines where a cleaning pass ends, and therefore the new cleaner checkpoint.

In a table of a few hundred megabytes, nearly every lookup misses the CPU caches and waits for memory. Prefetching the
slot of a later key hides most of this latency. If only an upper bound of the number of keys is known, the map starts
with a small table, because most logs have far fewer keys than records.
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
_MIN_SLOTS = 1024
_FIRST_SHARE = 16
"""Divisor for the size of the first table: the first table of a growing map has 1/16 of the slots that may be needed.
"""
_GROWTH = 4
_CALL_KEYS = 1 << 30
AHEAD = 16
"""Number of keys to prefetch ahead. It is large enough to hide the memory latency, and small enough to stay in the
cache.
"""

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@helper
def first_slot(hash_at: int, slots: int) -> int:
    upper: int = (load_i64(hash_at) >> 32) & 0xFFFFFFFF
    return (upper * slots) >> 32


@kernel(INT(INT64, INT64_IN, INT64_IN, INT, INT))
def put_keys(table: Any, hashes: Any, offsets: Any, entries: int, limit: int) -> int:
    """Set the offset of each key. Stop at the first key after the map has reached `limit` entries.

    `table` int64[3 * slots], `hashes` int64[2 * n], `offsets` int64[n]. Returns the number of keys that were set in the
    lower 32 bits, and the number of new entries in the upper 32 bits.
    """
    slots = len(table) // 3
    count = len(offsets)
    start, hash_at, offset_at = address(table), address(hashes), address(offsets)
    table_end = start + SLOT_BYTES * slots
    set_keys, added = 0, 0
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
        set_keys += 1
    return set_keys | added << 32


@kernel(VOID(INT64_IN, INT64_IN, INT64))
def get_keys(table: Any, hashes: Any, offsets: Any) -> None:
    """Write the offset of each key to `offsets`, or -1 if the key is absent.

    `table` int64[3 * slots], `hashes` int64[2 * n], `offsets` int64[n].
    """
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
    """Move the keys of a table to a larger, empty table.

    Keys have the same order in both tables, so both tables are traversed sequentially.
    """
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


def slot_count(nbytes: int) -> int:
    """Return the number of slots in a buffer of `nbytes` bytes (`log.cleaner.dedupe.buffer.size`)."""
    return min(nbytes // SLOT_BYTES, MAX_SLOTS)


class OffsetMap:
    """A map from keyed hashes to offsets, for at most `slots * load_factor` keys.

    `expected` is the maximum expected number of keys, if it is known. It avoids allocating a large map for a small log.
    If there are more keys than expected, the map becomes full earlier. The table grows with the number of keys. While
    the table is copied, a quarter more memory is needed. Raises `BadRequest` if the map is too small for a single key.
    """

    def __init__(self, slots: int, load_factor: float = 0.9, expected: int | None = None) -> None:
        if not 0 < load_factor <= 1:
            raise BadRequest(f"log.cleaner.io.buffer.load.factor must be above 0 and at most 1, found {load_factor}")
        slots = min(slots, MAX_SLOTS)
        limit = int(slots * load_factor)
        if limit < 1:
            raise BadRequest(
                f"log.cleaner.dedupe.buffer.size must have space for at least one key, found {slots} slots of"
                f" {SLOT_BYTES} bytes of which {load_factor:g} may be used; increase the size"
            )
        capacity = slots if expected is None else min(slots, max(2 * expected, _MIN_SLOTS))
        self.slots = slots
        self._load_factor = load_factor
        self.limit = limit if capacity == slots else min(limit, capacity - 1)
        # At least one slot must be empty, because an empty slot ends the probe for an absent key.
        self._max_slots = max(capacity, self.limit + 1)
        first = self._max_slots
        if expected is not None:
            first = min(first, max(-(-first // _FIRST_SHARE), _MIN_SLOTS))
        self._table: Int64s = np.zeros(3 * first, np.int64)
        self._entries = 0
        self.latest_offset = -1
        """The offset up to which the log has been added to the map. `advance` increases it for records without keys."""

    def __len__(self) -> int:
        return self._entries

    @property
    def utilization(self) -> float:
        return self._entries / self.slots

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def put(self, hashes: Hashes, offsets: Int64s) -> int:
        """Set the offsets of keys, in order. A later offset of a key replaces an earlier offset.

        `hashes` is uint64[n, 2], and `offsets` is int64[n], not negative. Returns the number of keys that were set. The
        number is below n if the map was full before the next key. Raises `BadRequest` if the arrays differ in length.
        """
        words, offsets = _words(hashes), np.ascontiguousarray(offsets, np.int64)
        if len(words) != 2 * len(offsets):
            raise BadRequest(
                f"expected one hash of two words for each of {len(offsets)} offsets, found {len(words)} words"
            )
        stored = 0
        while stored < len(offsets):
            if self._growth_limit <= self._entries < self.limit:
                self._grow()
            some = offsets[stored : stored + _CALL_KEYS]
            some_words = words[2 * stored : 2 * (stored + len(some))]
            counts = put_keys(self._table, some_words, some, self._entries, self._growth_limit)
            self._entries += counts >> 32
            stored += counts & 0xFFFFFFFF
            if self._entries >= self.limit:
                break
        if stored:
            self.advance(int(offsets[stored - 1]))
        return stored

    @property
    def _growth_limit(self) -> int:
        """The number of keys above which the table grows. If the table has its maximum size, the map is full at this
        number.
        """
        slots = len(self._table) // 3
        return self.limit if slots == self._max_slots else min(self.limit, slots // 2)

    def _grow(self) -> None:
        larger = np.zeros(min(_GROWTH * len(self._table), 3 * self._max_slots), np.int64)
        move_keys(self._table, larger)
        self._table = larger

    def grown(self, more: int) -> OffsetMap:
        """Return a map with the same keys, at least twice as many slots, and space for `more` further keys."""
        required = int((self._entries + more) / self._load_factor) + 1
        larger = OffsetMap(max(2 * self.slots, required), self._load_factor)
        move_keys(self._table, larger._table)
        larger._entries, larger.latest_offset = self._entries, self.latest_offset
        return larger

    def advance(self, offset: int) -> None:
        """Record that the log up to `offset` has been added to the map."""
        self.latest_offset = max(self.latest_offset, offset)

    def get(self, hashes: Hashes) -> Int64s:
        """Return the offset of each key, int64[n], or -1 if the key is absent. `hashes` is uint64[n, 2]."""
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
