"""Kernels that work on CRC-32Cs without looking at the bytes again: those of neighbouring runs are joined, and one
follows a change of eight of its bytes.

With CRCs as polynomials over GF(2) in reflected form, crc(A + B) = crc(A) * x^(8 len(B)) mod P, plus crc(B): the method
of zlib's `crc32_combine`, with Castagnoli's polynomial. For runs of one length, crc(A xor D) = crc(A) plus D * x^32 mod
P, where initial and final inversion cancel out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    INT,
    INT64,
    INT64_IN,
    helper,
)

POLYNOMIAL = 0x82F63B78
ONE = 1 << 31
"""x^0: in reflected form the highest bit is the lowest power."""


@helper
def multiply(a: int, b: int) -> int:
    """Product modulo P."""
    product = 0
    bit = ONE
    while bit:
        if a & bit:
            product ^= b
        bit >>= 1
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


@kernel(INT(INT64_IN, INT64_IN))
def join_crcs(crcs: Any, lengths: Any) -> int:
    """CRC-32C of runs of `lengths` bytes with these CRC-32Cs, back to back."""
    total = 0
    for run in range(len(crcs)):
        length = lengths[run]
        power = ONE >> 8  # x^8: one byte
        shift = ONE
        while length:
            if length & 1:
                shift = multiply(power, shift)
            power = multiply(power, power)
            length >>= 1
        total = multiply(shift, total) ^ crcs[run]
    return total


@kernel(INT64(INT64_IN, INT64_IN, INT64_IN))
def change_crcs(crcs: Any, changes: Any, behind: Any) -> Any:
    """CRC-32Cs of runs in which a big-endian int64 was changed by `xor` with `changes`; `behind`: bytes after it."""
    powers = np.empty(64, np.int64)
    power = ONE >> 8  # x^8: one byte
    for bit in range(64):
        powers[bit] = power
        power = multiply(power, power)
    out = np.empty(len(crcs), np.int64)
    for run in range(len(crcs)):
        state = 0
        for byte in range(8):
            state ^= (changes[run] >> (56 - 8 * byte)) & 0xFF
            for _ in range(8):
                state = (state >> 1) ^ POLYNOMIAL if state & 1 else state >> 1
        left, bit = behind[run], 0
        while left > 0:
            if left & 1:
                state = multiply(powers[bit], state)
            left >>= 1
            bit += 1
        out[run] = crcs[run] ^ state
    return out
