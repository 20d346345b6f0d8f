"""Conversion between Arrow and numpy through buffers alone.

`pa.array`, `pa.scalar`, `Array.to_numpy` and plain values handed to `pyarrow.compute` import pandas where it is
installed, `cast`, `fill_null` and `is_valid` import `pyarrow.compute`: a third of a second of CPU in each command and
in each of the processes that Spark starts for a query. These do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def fixed_values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a view of a fixed-width array's values as `dtype` of the same width; null rows hold any value."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    width = np.dtype(dtype).itemsize
    return np.frombuffer(buffer, dtype, len(array), array.offset * width) if len(array) else np.zeros(0, dtype)


def valid_rows(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return bool[n]: True where a row is not null."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    bits = array.buffers()[0]
    if bits is None or array.null_count == 0:
        return np.ones(len(array), np.bool_)
    rows = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return rows[array.offset : array.offset + len(array)].astype(np.bool_)


def fixed_array(values: npt.NDArray[Any], kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an array of `kind` over the memory of `values` (its width); rows that `valid` leaves out are null."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def text_array(texts: Sequence[str]) -> pa.StringArray:
    """Return a string array without nulls."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def bytes_array(cells: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return a binary array."""
    valid = np.array([cell is not None for cell in cells], np.bool_)
    offsets = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell or b"") for cell in cells], out=offsets[1:])
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = pa.py_buffer(b"".join(cell or b"" for cell in cells))
    return pa.Array.from_buffers(pa.binary(), len(cells), [bits, pa.py_buffer(offsets), data])


def bytes_scalar(cell: bytes | None) -> pa.BinaryScalar:
    """Return a binary scalar, for a function of `pyarrow.compute`: given plain bytes it would import pandas."""
    return bytes_array([cell])[0]


def int_scalar(number: int, kind: pa.DataType | None = None) -> pa.Scalar:
    """Return an integer scalar, of int64 or `kind` (of the same width or less), for the same reason."""
    return fixed_array(np.array([number], np.int64), pa.int64())[0].cast(kind or pa.int64())


def repeated_text(text: str, n: int) -> pa.StringArray:
    """Return the same text n times."""
    encoded = text.encode()
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(encoded * n))
