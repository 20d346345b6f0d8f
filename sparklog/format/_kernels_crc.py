"""Kernel that joins CRC-32Cs of neighbouring runs of bytes without looking at the bytes again.

With CRCs as polynomials over GF(2) in reflected form, crc(A + B) = crc(A) * x^(8 len(B)) mod P, plus crc(B): the method
of zlib's `crc32_combine`, with Castagnoli's polynomial.
"""

from __future__ import annotations

from typing import Any

from numba import types

from sparklog.format._kernels_memory import INT64_IN, helper, kernel

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


@kernel(types.int64(INT64_IN, INT64_IN))
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
