"""Kernel for Kafka's murmur2 over the cells of a binary column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from sparklog.format._kernels_encode import COLUMN, cell
from sparklog.format._kernels_memory import INT32, helper, kernel, load_u8, load_u32

MASK = 0xFFFFFFFF
SEED = 0x9747B28C
M = 0x5BD1E995


@helper
def murmur2_bytes(data: Any, start: int, length: int) -> int:
    """32-bit murmur2 of a run of bytes, as an unsigned value (int64 arithmetic, masked to 32 bits)."""
    state = (SEED ^ length) & MASK
    position = start
    for _ in range(length >> 2):
        word = (load_u32(data, position) * M) & MASK
        word = ((word ^ (word >> 24)) * M) & MASK
        state = ((state * M) & MASK) ^ word
        position += 4
    rest = length & 3
    if rest > 2:
        state ^= load_u8(data, position + 2) << 16
    if rest > 1:
        state ^= load_u8(data, position + 1) << 8
    if rest > 0:
        state = ((state ^ load_u8(data, position)) * M) & MASK
    state = ((state ^ (state >> 13)) * M) & MASK
    return state ^ (state >> 15)


@kernel(types.void(*COLUMN, types.int64, INT32))
def murmur2_cells(offsets: Any, wide: int, data: Any, valid: Any, at: int, partitions: int, out: Any) -> None:
    """Per cell: murmur2 as int32 (null: 0) if `partitions` is 0, else its partition (null: -1)."""
    for row in range(len(out)):
        length, start = cell(offsets, wide, valid, at + row)
        if length < 0:
            out[row] = np.int32(0 if partitions == 0 else -1)
        else:
            value = murmur2_bytes(data, start, length)
            if partitions == 0:
                out[row] = np.int32(value - (1 << 32) if value > 0x7FFFFFFF else value)
            else:
                out[row] = np.int32((value & 0x7FFFFFFF) % partitions)
