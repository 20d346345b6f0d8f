"""Kernel for SipHash-2-4 with 128 bits of output over runs of bytes.

Words are int64: additions wrap as unsigned ones do, and a rotation masks off the sign that the shift drags in. Bounds:
each run is checked against the data before it is read; its last word is loaded byte by byte only where eight bytes
would reach behind the data.
"""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    BYTES_IN,
    INT,
    INT32_IN,
    INT64,
    INT64_IN,
    address,
    helper,
    load_i32,
    load_i64,
    load_u8,
    store_i64,
)

V0 = 0x736F6D6570736575
V1 = 0x646F72616E646F6D
V2 = 0x6C7967656E657261
V3 = 0x7465646279746573
"""The initial state: "somepseudorandomlygeneratedbytes"."""


@helper
def rotate(word: int, by: int) -> int:
    """Rotate left by `by` bits, 1 to 63."""
    return (word << by) | ((word >> (64 - by)) & ((1 << by) - 1))


@helper
def sip_round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 += v1
    v1 = rotate(v1, 13) ^ v0
    v0 = rotate(v0, 32)
    v2 += v3
    v3 = rotate(v3, 16) ^ v2
    v0 += v3
    v3 = rotate(v3, 21) ^ v0
    v2 += v1
    v1 = rotate(v1, 17) ^ v2
    v2 = rotate(v2, 32)
    return v0, v1, v2, v3


@helper
def last_word(at: int, length: int, data_end: int) -> int:
    """The bytes behind the last whole word, below the length in the highest byte."""
    rest = length & 7
    word: int = (length & 0xFF) << 56
    if at + 8 <= data_end:
        word |= load_i64(at) & ((1 << (8 * rest)) - 1)
    else:
        for index in range(rest):
            word |= load_u8(at + index) << (8 * index)
    return word


@kernel(INT(BYTES_IN, INT64_IN, INT32_IN, INT, INT, INT64))
def siphash_runs(data: Any, starts: Any, lengths: Any, key_low: int, key_high: int, out: Any) -> int:
    """Both words of the hash of each run; zeros for a negative length. Returns the first run that does not lie in the
    data, -1 if all do. `out` has two words per run."""
    data_at, starts_at, lengths_at, out_at = address(data), address(starts), address(lengths), address(out)
    data_end = data_at + len(data)
    for run in range(len(starts)):
        start, length = load_i64(starts_at + 8 * run), load_i32(lengths_at + 4 * run)
        if length < 0:
            store_i64(out_at + 16 * run, 0)
            store_i64(out_at + 16 * run + 8, 0)
            continue
        if start < 0 or length > len(data) - start:
            return run
        at = data_at + start
        v0, v1, v2, v3 = key_low ^ V0, key_high ^ V1 ^ 0xEE, key_low ^ V2, key_high ^ V3
        for _ in range(length >> 3):
            word = load_i64(at)
            v0, v1, v2, v3 = sip_round(v0, v1, v2, v3 ^ word)
            v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
            v0 ^= word
            at += 8
        word = last_word(at, length, data_end)
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3 ^ word)
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        v0, v2 = v0 ^ word, v2 ^ 0xEE
        for _ in range(4):
            v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        store_i64(out_at + 16 * run, v0 ^ v1 ^ v2 ^ v3)
        v1 ^= 0xDD
        for _ in range(4):
            v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        store_i64(out_at + 16 * run + 8, v0 ^ v1 ^ v2 ^ v3)
    return -1
