"""The primitives of kernels: the types of their parameters, and access to memory by address.

A kernel is a function of integers and arrays that uses only the functions of this module. An interpreted kernel calls
the functions below, and a compiled kernel calls their counterparts in `native_kernels`. `wrap` gives Python integers
the overflow of int64 arithmetic.

Addresses are not checked. Every kernel compares positions with bounds before it reads or writes.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

SLACK = 64
"""Number of bytes that a destination needs after its last valid byte, because `copy` may write up to 31 bytes more."""

_INT64 = 1 << 64
_SIGN = 1 << 63
_memory: Any = memoryview((ctypes.c_ubyte * (_SIGN - 1)).from_address(0)).cast("B")
"""A view of the entire memory of this process."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a kernel's parameter or result: an integer, no value, or a contiguous array of a numpy type."""

    dtype: str
    dimensions: int = 0
    writable: bool = True

    def __call__(self, *parameters: Kind) -> Signature:
        return Signature(self, parameters)

    def check(self, argument: Any) -> Any:
        """Return an integer argument as a Python integer, or an array unchanged. Raises TypeError if the array does not
        have this type.
        """
        if not self.dimensions:
            return int(argument)
        flags = argument.flags
        is_this = argument.dtype == _DTYPES[self.dtype] and argument.ndim == self.dimensions and flags.c_contiguous
        if not is_this or (self.writable and not flags.writeable) or not isinstance(argument, np.ndarray):
            raise TypeError(f"a kernel expected {self}, found {argument.dtype}[{argument.ndim}] with {flags}")
        return argument


_DTYPES = {name: np.dtype(name) for name in ("uint8", "int32", "int64")}


@dataclass(frozen=True, slots=True)
class Signature:
    result: Kind
    parameters: tuple[Kind, ...]


VOID = Kind("void")
INT = Kind("int64")
BYTES, INT32, INT64 = Kind("uint8", 1), Kind("int32", 1), Kind("int64", 1)
BYTES_IN, INT32_IN, INT64_IN = (replace(kind, writable=False) for kind in (BYTES, INT32, INT64))
"""Input arrays, which may be read-only or writable."""
TABLE = Kind("int64", 2)


def helper(function: F) -> F:
    helpers.add(function)
    return function


helpers: set[Callable[..., Any]] = set()

# Interpreted kernels use the functions below. `native_kernels` has their counterparts with the same names. Integers are
# little-endian. Store functions write the lowest bytes of a value.


def address(array: Any) -> int:
    pointer: int = np.asarray(array).__array_interface__["data"][0]
    return pointer


def load_u8(pointer: int) -> int:
    byte: int = _memory[pointer]
    return byte


def load_u32(pointer: int) -> int:
    return int.from_bytes(_memory[pointer : pointer + 4], "little")


def load_i32(pointer: int) -> int:
    return int.from_bytes(_memory[pointer : pointer + 4], "little", signed=True)


def load_i64(pointer: int) -> int:
    return int.from_bytes(_memory[pointer : pointer + 8], "little", signed=True)


def store_u8(pointer: int, value: int) -> None:
    _memory[pointer] = value & 0xFF


def store_i16(pointer: int, value: int) -> None:
    _memory[pointer : pointer + 2] = (value & 0xFFFF).to_bytes(2, "little")


def store_i32(pointer: int, value: int) -> None:
    _memory[pointer : pointer + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")


def store_i64(pointer: int, value: int) -> None:
    _memory[pointer : pointer + 8] = (value & _INT64 - 1).to_bytes(8, "little")


def prefetch(pointer: int) -> None:
    """Do nothing. The compiled counterpart prefetches a cache line."""


def bit_length(value: int) -> int:
    return (value & _INT64 - 1).bit_length()


def wrap(value: int) -> int:
    """Return the value wrapped to the range of int64."""
    return (value + _SIGN & _INT64 - 1) - _SIGN


def copy(to: int, source: int, count: int, source_end: int) -> None:
    """Copy `count` bytes. Bytes at or beyond `source_end` are never read.

    The compiled counterpart may write up to 31 bytes more, so `to` needs `SLACK` more bytes.
    """
    _memory[to : to + count] = _memory[source : source + count]


def crc32(cursor: int, length: int, table: int) -> int:
    """Return the CRC-32 (as in zlib) of `length` bytes. Only the compiled counterpart uses `table`."""
    return zlib.crc32(_memory[cursor : cursor + length])


SIP_START = (0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573)
"""The initial state of SipHash, "somepseudorandomlygeneratedbytes", for 128 bits of output."""


def siphash(cursors: Sequence[int], words: int, lasts: Sequence[int], key_low: int, key_high: int, out: int) -> None:
    """Write the SipHash-2-4, two words each, of one key or of four keys. Compiled code hashes the four keys together.

    A key consists of `words` complete words, starting at its cursor, and a last word, which includes the length of the
    key.
    """
    for lane, (cursor, last) in enumerate(zip(cursors, lasts, strict=True)):
        keys = (key_low, key_high, key_low, key_high)
        state = [(start ^ key) & _INT64 - 1 for start, key in zip(SIP_START, keys, strict=True)]
        for word in (*(load_i64(cursor + 8 * index) for index in range(words)), last):
            state[3] ^= word & _INT64 - 1
            _sip_rounds(state, 2)
            state[0] ^= word & _INT64 - 1
        for half, mark in enumerate((0xEE, 0xDD)):
            state[2 - half] ^= mark
            _sip_rounds(state, 4)
            store_i64(out + 16 * lane + 8 * half, state[0] ^ state[1] ^ state[2] ^ state[3])


def _sip_rounds(state: list[int], count: int) -> None:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = v0 + v1 & _INT64 - 1
        v1 = _rotate(v1, 13) ^ v0
        v2 = v2 + v3 & _INT64 - 1
        v3 = _rotate(v3, 16) ^ v2
        v0 = _rotate(v0, 32) + v3 & _INT64 - 1
        v3 = _rotate(v3, 21) ^ v0
        v2 = v2 + v1 & _INT64 - 1
        v1 = _rotate(v1, 17) ^ v2
        v2 = _rotate(v2, 32)
    state[:] = v0, v1, v2, v3


def _rotate(word: int, by: int) -> int:
    return word << by & _INT64 - 1 | word >> 64 - by
