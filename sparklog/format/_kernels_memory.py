"""Raw memory access for the kernels: loads, stores and copies without index wrap-around, and the place of the kernel
cache.

Numba's own indexing pays for negative indices on every access and its slice assignment for overlap checks; these
intrinsics compile to one load or store. They check nothing: every caller compares positions with lengths before, which
is what keeps hostile input harmless.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
"""Input bytes: accepts read-only and writable arrays with one compiled version."""
INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
INT32 = types.Array(types.int32, 1, "C")
INT64 = types.Array(types.int64, 1, "C")

SLACK = 64
"""Bytes a destination must have beyond its last valid byte: `copy` may write up to 31 bytes too many."""

_byte = ir.IntType(8)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any, to: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(builder.bitcast(data, _byte.as_pointer()), [position]), to.as_pointer())


def _loader(bits: int, signed: bool) -> Any:
    def load(typing_context: Any, array: Any, position: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(bits)
            value = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], word), align=1)
            wide = ir.IntType(64)
            if bits == 64:
                return value
            return builder.sext(value, wide) if signed else builder.zext(value, wide)

        return types.int64(array, types.int64), codegen

    return intrinsic(load)


load_u8 = _loader(8, signed=False)
load_u32 = _loader(32, signed=False)
load_i32 = _loader(32, signed=True)
load_i64 = _loader(64, signed=True)


@intrinsic  # type: ignore[untyped-decorator]
def store_u8(typing_context: Any, array: Any, position: Any, value: Any) -> Any:
    """Store the low byte of `value` at byte `position` of `array`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _byte)
        builder.store(builder.trunc(args[2], _byte), pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


def _mover(width: int) -> Any:
    def move(typing_context: Any, to: Any, to_position: Any, source: Any, position: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = ir.VectorType(_byte, width)
            source_pointer = _pointer(context, builder, signature.args[2], args[2], args[3], vector)
            target = _pointer(context, builder, signature.args[0], args[0], args[1], vector)
            builder.store(builder.load(source_pointer, align=1), target, align=1)
            return context.get_dummy_value()

        return types.void(to, types.int64, source, types.int64), codegen

    return intrinsic(move)


_move16 = _mover(16)
_move32 = _mover(32)


@intrinsic  # type: ignore[untyped-decorator]
def _memcpy(typing_context: Any, to: Any, to_position: Any, source: Any, position: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source_pointer = _pointer(context, builder, signature.args[2], args[2], args[3], _byte)
        target = _pointer(context, builder, signature.args[0], args[0], args[1], _byte)
        cgutils.raw_memcpy(builder, target, source_pointer, args[4], 1)
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, array: Any, position: Any) -> Any:
    """Ask for the cache line at byte `position` (any value: a prefetch never faults)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _byte)
        word = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        )
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


def helper(function: F) -> F:
    """A function used inside kernels only."""
    return njit(nogil=True, forceinline=True)(function)  # type: ignore[no-any-return]


@helper
def copy(to: Any, to_position: int, source: Any, position: int, count: int) -> None:
    """Copy `count` bytes. Short runs go in whole vectors and may write up to 31 bytes more: `to` needs `SLACK` behind.

    Never reads beyond the end of `source`.
    """
    if count <= 16 and position + 16 <= len(source):
        _move16(to, to_position, source, position)
    elif count <= 256 and position + count + 31 <= len(source):
        done = 0
        while done < count:
            _move32(to, to_position + done, source, position + done)
            done += 32
    else:
        _memcpy(to, to_position, source, position, count)


def _digest() -> str:
    """Of all kernel sources: numba's cache does not notice that a helper in another module changed, this name does."""
    state = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("_kernels*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _private_directory(name: str) -> Path:
    """A directory below the temporary one that nobody else can write to: cached kernels are code that will be run."""
    path = Path(tempfile.gettempdir()) / f"{name}-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return (
        path if ours and not path.is_symlink() and not status.st_mode & 0o022 else Path(tempfile.mkdtemp(prefix=name))
    )


def cache_directory(package: Path | None = None) -> str | None:
    """Where compiled kernels are kept: the package's `__pycache__`, else a private temporary folder, else nowhere.

    A read-only installation that was warmed up is copied to the temporary folder, so that nothing is compiled twice.
    """
    try:
        name = f"kernels-{_digest()}"
        home = (package or Path(__file__).parent) / "__pycache__" / name
        try:
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=home):
                return str(home)
        except OSError:
            away = _private_directory("sparklog-kernels") / name
            if home.is_dir() and not away.exists():
                shutil.copytree(home, away)
            away.mkdir(exist_ok=True)
            return str(away)
    except OSError:
        return None


CACHE_DIRECTORY = cache_directory()


def kernel(signature: Any) -> Callable[[F], F]:
    """Compile for exactly this signature at import, from the disk cache where possible, without holding the GIL."""

    def decorate(function: F) -> F:
        if CACHE_DIRECTORY is not None:
            before = numba.config.CACHE_DIR
            numba.config.CACHE_DIR = CACHE_DIRECTORY
            try:
                return njit(signature, cache=True, nogil=True)(function)  # type: ignore[no-any-return]
            except (RuntimeError, OSError):  # numba found no place, or the disk is full: compile without a cache
                pass
            finally:
                numba.config.CACHE_DIR = before
        return njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return decorate
