"""Convert between Arrow and numpy through buffers, without loading pandas or `pyarrow.compute`.

`pa.array`, `pa.scalar`, `Array.to_numpy` and functions of `pyarrow.compute` with Python values import pandas if it is
installed. `cast`, `fill_null` and `is_valid` import `pyarrow.compute`. These imports take a third of a second of CPU
time in each command, and in each process that Spark starts for a query. The functions of this module avoid the imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest


def fixed_values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a view of the values of a fixed-width array as `dtype` of the same width.

    Null rows have arbitrary values.
    """
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    width = np.dtype(dtype).itemsize
    return np.frombuffer(buffer, dtype, len(array), array.offset * width) if len(array) else np.zeros(0, dtype)


def valid_rows(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return bool[n], which is True for each row that is not null."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    bits = array.buffers()[0]
    if bits is None or array.null_count == 0:
        return np.ones(len(array), np.bool_)
    rows = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return rows[array.offset : array.offset + len(array)].astype(np.bool_)


def fixed_array(values: npt.NDArray[Any], kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an array of type `kind` that uses the memory of `values`, which has the same width.

    Rows that are False in `valid` are null.
    """
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), pa.py_buffer(np.ascontiguousarray(values))])


def binary_array(lengths: npt.ArrayLike, data: Any, valid: npt.NDArray[np.bool_] | None = None) -> pa.BinaryArray:
    """Return a binary array of cells with these lengths, which are adjacent in `data`.

    Raises `BadRequest` if the cells have more than 2 GB in total.
    """
    ends = np.zeros(np.size(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise BadRequest(f"a column of {ends[-1]} bytes is larger than 2 GB: use fewer rows at a time")
    buffers = [_bits(valid), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def _bits(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def bytes_array(cells: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return a binary array that contains these cells."""
    if None not in cells:
        full: Sequence[bytes] = cells  # type: ignore[assignment]
        return binary_array(np.fromiter(map(len, full), np.int64, len(full)), b"".join(full))
    valid = np.array([cell is not None for cell in cells], np.bool_)
    full = [cell or b"" for cell in cells]
    return binary_array([len(cell) for cell in full], b"".join(full), valid)


def text_array(texts: Sequence[str]) -> pa.StringArray:
    """Return a string array without nulls."""
    return bytes_array([text.encode() for text in texts]).view(pa.string())


def bytes_scalar(cell: bytes | None) -> pa.BinaryScalar:
    """Return a binary scalar for functions of `pyarrow.compute`, which import pandas if they are called with bytes."""
    return bytes_array([cell])[0]


def int_scalar(number: int, kind: pa.DataType | None = None) -> pa.Scalar:
    """Return a scalar of int64, or of the integer type `kind`, for functions of `pyarrow.compute`."""
    return fixed_array(np.array([number], np.int64), pa.int64())[0].cast(kind or pa.int64())


def repeated_text(text: str, n: int) -> pa.StringArray:
    """Return a string array that contains the same string n times."""
    encoded = text.encode()
    return binary_array(np.full(n, len(encoded)), encoded * n).view(pa.string())
