"""Kernels of the offset map: linear probing over slots of 24 bytes, with the slots to come asked for ahead.

A table of some hundred megabytes misses every cache, so what a look-up costs is the way to memory: asking for the slot
of the key some places on while working on this one hides most of it. A key's probe starts at
`(upper half of the first hash word) * slots >> 32`, which needs no division and no power of two.
"""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.kernel_language import (
    INT,
    INT64,
    INT64_IN,
    VOID,
    address,
    helper,
    kernel,
    load_i64,
    prefetch,
    store_i64,
)

SLOT_BYTES = 24
HALF = 0xFFFFFFFF
AHEAD = 16
"""Keys between asking for a slot and using it: enough for memory to answer, few enough for the cache to keep them."""


@helper
def first_slot(hash_at: int, slots: int) -> int:
    """Return the slot at which the probe of a hash begins."""
    upper: int = (load_i64(hash_at) >> 32) & HALF
    return (upper * slots) >> 32


@kernel(INT(INT64, INT64_IN, INT64_IN, INT, INT))
def put_keys(table: Any, hashes: Any, offsets: Any, entries: int, limit: int) -> int:
    """Set the offset of each key until one comes while there are `limit` entries.

    `table` int64[3 * slots], `hashes` int64[2 * n], `offsets` int64[n]. Returns how many were taken in the lower and
    how many entries are new in the upper 32 bits.
    """
    slots = len(table) // 3
    count = len(offsets)
    at, hash_at, offset_at = address(table), address(hashes), address(offsets)
    table_end = at + SLOT_BYTES * slots
    taken, added = 0, 0
    for row in range(count):
        if entries + added >= limit:
            break
        if row + AHEAD < count:
            prefetch(at + SLOT_BYTES * first_slot(hash_at + 16 * (row + AHEAD), slots) + 8)
        low, high = load_i64(hash_at + 16 * row), load_i64(hash_at + 16 * row + 8)
        slot = at + SLOT_BYTES * first_slot(hash_at + 16 * row, slots)
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
                slot = at
        store_i64(slot + 16, load_i64(offset_at + 8 * row) + 1)
        taken += 1
    return taken | added << 32


@kernel(VOID(INT64_IN, INT64_IN, INT64))
def get_keys(table: Any, hashes: Any, offsets: Any) -> None:
    """Look up each key: its offset, or -1. `table` int64[3 * slots], `hashes` int64[2 * n], `offsets` int64[n]."""
    slots = len(table) // 3
    count = len(offsets)
    at, hash_at, offset_at = address(table), address(hashes), address(offsets)
    table_end = at + SLOT_BYTES * slots
    for row in range(count):
        if row + AHEAD < count:
            prefetch(at + SLOT_BYTES * first_slot(hash_at + 16 * (row + AHEAD), slots) + 8)
        low, high = load_i64(hash_at + 16 * row), load_i64(hash_at + 16 * row + 8)
        slot = at + SLOT_BYTES * first_slot(hash_at + 16 * row, slots)
        stored = load_i64(slot + 16)
        while stored != 0 and (load_i64(slot) != low or load_i64(slot + 8) != high):
            slot += SLOT_BYTES
            if slot == table_end:
                slot = at
            stored = load_i64(slot + 16)
        store_i64(offset_at + 8 * row, stored - 1)
