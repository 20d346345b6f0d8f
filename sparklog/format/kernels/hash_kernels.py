"""Kernel for Kafka's murmur2 over the cells of a binary column."""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.encode_kernels import cell
from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    INT,
    INT32,
    INT64_IN,
    VOID,
    address,
    helper,
    load_u8,
    load_u32,
    store_i32,
)

MASK = 0xFFFFFFFF
SEED = 0x9747B28C
M = 0x5BD1E995


@helper
def murmur2_bytes(at: int, length: int) -> int:
    """32-bit murmur2 of a run of bytes, as an unsigned value (int64 arithmetic, masked to 32 bits)."""
    state = (SEED ^ length) & MASK
    for _ in range(length >> 2):
        word = (load_u32(at) * M) & MASK
        word = ((word ^ (word >> 24)) * M) & MASK
        state = ((state * M) & MASK) ^ word
        at += 4
    rest = length & 3
    if rest > 2:
        state ^= load_u8(at + 2) << 16
    if rest > 1:
        state ^= load_u8(at + 1) << 8
    if rest > 0:
        state = ((state ^ load_u8(at)) * M) & MASK
    state = ((state ^ (state >> 13)) * M) & MASK
    return state ^ (state >> 15)


@kernel(VOID(INT64_IN, INT, INT32))
def murmur2_cells(column: Any, partitions: int, out: Any) -> None:
    """Per cell: murmur2 as int32 (null: 0) if `partitions` is 0, else its partition (null: -1)."""
    offsets, wide, data, valid, first = column[0], column[1], column[2], column[4], column[5]
    out_at = address(out)
    for row in range(len(out)):
        length, source = cell(offsets, wide, data, valid, first + row)
        if length < 0:
            value = 0 if partitions == 0 else -1
        else:
            value = murmur2_bytes(source, length)
            if partitions != 0:
                value = (value & 0x7FFFFFFF) % partitions
        store_i32(out_at + 4 * row, value)
