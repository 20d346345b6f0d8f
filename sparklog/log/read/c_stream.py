"""Arrow's C stream interface over record batches that Python makes, one at a time, as a consumer asks for them.

pyarrow exports an iterator, too, but puts Python's whole traceback into the message of an error. Here the message is
one line with the error's code, whatever library reads the stream.

A consumer moves the struct to memory of its own, so what belongs to a stream is found by a number in its
`private_data`, and lives until the consumer calls `release`.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa

from sparklog.errors import SparklogError, Unavailable

_CAPSULE = b"arrow_array_stream"
_GetInto = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_GetError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Struct(ctypes.Structure):
    _fields_ = (
        ("get_schema", _GetInto),
        ("get_next", _GetInto),
        ("get_last_error", _GetError),
        ("release", _Release),
        ("private_data", ctypes.c_ssize_t),
    )


class _Open:
    """A stream that was not released yet."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self.batches = batches
        self.error = ctypes.create_string_buffer(b"")

    def fail(self, error: BaseException) -> int:
        code = error.code if isinstance(error, SparklogError) else type(error).__name__
        line = " ".join(str(error).split())
        self.error = ctypes.create_string_buffer(f"[{code}] {line}".encode())
        return errno.EIO if isinstance(error, Unavailable) else errno.EINVAL


_open: dict[int, _Open] = {}
_structs: dict[int, _Struct] = {}
"""Structs in capsules, by address."""
_numbers = count(1)


def _of(address: int) -> _Open:
    return _open[_Struct.from_address(address).private_data]


@_GetInto
def _get_schema(address: int, to: int) -> int:
    stream = _of(address)
    try:
        stream.schema._export_to_c(to)
    except Exception as error:  # noqa: BLE001  (a caller in C cannot take it)
        return stream.fail(error)
    return 0


@_GetInto
def _get_next(address: int, to: int) -> int:
    stream = _of(address)
    try:
        batch = next(stream.batches, None)
        if batch is None:
            # An array that is released marks the end: `release` is its ninth word.
            ctypes.memset(to, 0, 10 * ctypes.sizeof(ctypes.c_void_p))
        else:
            batch._export_to_c(to)
    except BaseException as error:  # noqa: BLE001  (a caller in C cannot take it)
        return stream.fail(error)
    return 0


@_GetError
def _get_last_error(address: int) -> int:
    return ctypes.addressof(_of(address).error)


@_Release
def _release(address: int) -> None:
    struct = _Struct.from_address(address)
    stream = _open.pop(struct.private_data, None)
    struct.release = _Release()
    close = getattr(None if stream is None else stream.batches, "close", None)
    if close is not None:
        close()


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@_Release
def _drop(capsule: int) -> None:
    """Free the struct of a capsule that goes, and the stream if nobody took it."""
    struct = _structs.pop(_pointer_of(capsule, _CAPSULE))
    if struct.release:
        struct.release(ctypes.addressof(struct))


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Release)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def stream_of(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
    """Return a capsule with a C stream of these batches."""
    number = next(_numbers)
    _open[number] = _Open(schema, batches)
    struct = _Struct(_get_schema, _get_next, _get_last_error, _release, number)
    _structs[ctypes.addressof(struct)] = struct
    return _new_capsule(ctypes.addressof(struct), _CAPSULE, _drop)


class CStream:
    """Batches that can be streamed once, for `pyarrow.RecordBatchReader.from_stream`."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._schema = schema
        self._batches = batches

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        if requested_schema is None:
            return stream_of(self._schema, self._batches)
        return pa.RecordBatchReader.from_stream(self).__arrow_c_stream__(requested_schema)
