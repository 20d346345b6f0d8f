"""The language of the kernels, and the way they run: interpreted or compiled.

A kernel is a function over integers and arrays that needs nothing but what is here: memory by address. Its two ways
share its source, so both give the same bytes and the same errors. **Interpreted**, as the plain Python that it is, it
calls the functions below and costs some five microseconds a record. **Compiled**, it calls their counterparts in
`native_kernels` and works through a gigabyte a second, but to load numba and the compiled code costs a process a third
of a second of CPU and more. What int64 arithmetic would wrap round, `wrap` does for Python's integers.

Each process interprets until `LOADING_IS_WORTH` records have gone through its kernels, or would with the next call;
then it loads them and never goes back. So none spends more than about twice what the better way would have cost.

Addresses are not checked: every kernel compares positions with ends before it reads or writes.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

SLACK = 64
"""Bytes a destination must have beyond its last valid byte: `copy` may write up to 31 bytes too many."""

_INT64 = 1 << 64
_SIGN = 1 << 63
_memory: Any = memoryview((ctypes.c_ubyte * (_SIGN - 1)).from_address(0)).cast("B")
"""The memory of this process."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kernel's parameter or result: an integer, nothing, or an array of a numpy type, contiguous."""

    dtype: str
    dimensions: int = 0
    writable: bool = True

    def __call__(self, *parameters: Kind) -> Signature:
        return Signature(self, parameters)


@dataclass(frozen=True, slots=True)
class Signature:
    result: Kind
    parameters: tuple[Kind, ...]


VOID = Kind("void")
INT = Kind("int64")
BYTES, INT32, INT64 = Kind("uint8", 1), Kind("int32", 1), Kind("int64", 1)
BYTES_IN, INT32_IN, INT64_IN = (replace(kind, writable=False) for kind in (BYTES, INT32, INT64))
"""Input arrays: read-only and writable ones go."""
TABLE = Kind("int64", 2)


def helper(function: F) -> F:
    helpers.add(function)
    return function


helpers: set[Callable[..., Any]] = set()

# What follows is for interpreted kernels; `native_kernels` has its counterparts under the same names. Integers are
# little-endian; stores take their lowest bytes.


def address(array: Any) -> int:
    place: int = np.asarray(array).__array_interface__["data"][0]
    return place


def load_u8(place: int) -> int:
    byte: int = _memory[place]
    return byte


def load_u32(place: int) -> int:
    return int.from_bytes(_memory[place : place + 4], "little")


def load_i32(place: int) -> int:
    return int.from_bytes(_memory[place : place + 4], "little", signed=True)


def load_i64(place: int) -> int:
    return int.from_bytes(_memory[place : place + 8], "little", signed=True)


def store_u8(place: int, value: int) -> None:
    _memory[place] = value & 0xFF


def store_i16(place: int, value: int) -> None:
    _memory[place : place + 2] = (value & 0xFFFF).to_bytes(2, "little")


def store_i32(place: int, value: int) -> None:
    _memory[place : place + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")


def store_i64(place: int, value: int) -> None:
    _memory[place : place + 8] = (value & _INT64 - 1).to_bytes(8, "little")


def prefetch(place: int) -> None:
    """Ask for a cache line: nothing to do here."""


def bit_length(value: int) -> int:
    return (value & _INT64 - 1).bit_length()


def wrap(value: int) -> int:
    """Return the value that int64 arithmetic has where Python's integers leave its range."""
    return (value + _SIGN & _INT64 - 1) - _SIGN


def copy(to: int, source: int, count: int, source_end: int) -> None:
    """Copy `count` bytes. Compiled, short runs may write up to 31 bytes more: `to` needs `SLACK` behind.

    Never reads at or beyond `source_end`.
    """
    _memory[to : to + count] = _memory[source : source + count]


def crc32(at: int, length: int, table: int) -> int:
    """CRC-32 (zlib's) of `length` bytes; `table` is for the compiled one."""
    return zlib.crc32(_memory[at : at + length])


LOADING_IS_WORTH = 50_000
"""Records that cost about as much CPU interpreted as loading numba and kernels does (docs/design/performance.md)."""


class Choice:
    """The way the kernels of a process run: interpreted while `left` records are to go, then compiled."""

    def __init__(self, left: int = LOADING_IS_WORTH) -> None:
        self.left = left

    def compiled(self, records: int) -> bool:
        """Count a call over so many records, and say whether to run it compiled."""
        self.left = self.left - records if records <= self.left else -1
        return self.left < 0

    def load(self) -> None:
        """Run everything compiled from now on."""
        self.left = -1


choice = Choice()
"""The choice of this process."""


class Kernel:
    """One kernel. Called, it runs compiled: for work that is worth it whatever its size."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function = function
        self.signature = signature
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return self.load()(*arguments)

    def sized(self, records: int) -> Callable[..., Any]:
        return self.load() if choice.compiled(records) else self.interpreted

    def load(self) -> Callable[..., Any]:
        """Return the compiled kernel, at the first use from the cache or, without one, compiled anew."""
        if self._compiled is None:
            choice.load()
            native: Any = import_module("sparklog.format.kernels.native_kernels")  # by name: it builds on this module
            self._compiled = native.compiled(self.function, self.signature)
        return self._compiled

    def interpreted(self, *arguments: Any) -> Any:
        pairs = zip(self.signature.parameters, arguments, strict=True)
        return self.function(*[_plain(kind, argument) for kind, argument in pairs])


def _plain(kind: Kind, argument: Any) -> Any:
    """An integer as Python's; an array as a memoryview, whose elements are Python's, too."""
    if not kind.dimensions:
        return int(argument)
    fits = argument.dtype == kind.dtype and argument.ndim == kind.dimensions and argument.flags.c_contiguous
    if not fits or (kind.writable and not argument.flags.writeable):
        raise TypeError(f"a kernel expected {kind}, found {argument.dtype}[{argument.ndim}] with {argument.flags}")
    return memoryview(argument)


def kernel(signature: Signature) -> Callable[[Callable[..., Any]], Kernel]:
    return lambda function: Kernel(function, signature)
