"""Arrow arrays as the kernels take them: raw buffers of binary and header columns, without copies.

Any binary-like column goes: binary, large_binary, string, large_string, fixed-size and view types (the last two are
cast).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest

Column = tuple[npt.NDArray[np.uint8], int, npt.NDArray[np.uint8], npt.NDArray[np.uint8], int]
"""Offsets (as bytes), 1 if they are int64, data, validity bits (empty: no nulls), the array's offset in elements."""

_NOTHING = np.empty(0, np.uint8)
MISSING: Column = (_NOTHING, 0, _NOTHING, _NOTHING, 0)
"""A column that is not there: every cell null."""


def _buffer(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return _NOTHING if buffer is None or buffer.size == 0 else np.frombuffer(buffer, np.uint8)


def _single(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _validity(array: pa.Array) -> npt.NDArray[np.uint8]:
    return _buffer(array.buffers()[0]) if array.null_count else _NOTHING


def _column(array: pa.Array, wide: bool) -> Column:
    buffers = array.buffers()
    data = _buffer(buffers[2]) if len(buffers) > 2 else _NOTHING
    if buffers[1] is None or buffers[1].size == 0:  # allowed for an array without elements
        return (np.zeros(8, np.uint8), 0, data, _NOTHING, 0)
    return (_buffer(buffers[1]), int(wide), data, _validity(array), array.offset)


def binary_column(array: pa.Array | pa.ChunkedArray | None, name: str) -> Column:
    """A binary-like column's buffers; None and the null type are `MISSING`. Raises `BadRequest` for another type."""
    if array is None or pa.types.is_null(array.type):
        return MISSING
    single = _single(array)
    kind = single.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return _column(single, wide=False)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _column(single, wide=True)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return _column(single.cast(pa.large_binary()), wide=True)
    raise BadRequest(f"column {name} must be binary or string, found {kind}: cast it")


def header_columns(array: pa.Array | pa.ChunkedArray | None) -> tuple[Any, ...]:
    """List, header key and header value columns' buffers, then the structs' validity and offset: the kernels'
    arguments.

    Takes `list<struct<key: string, value: binary>>` with list, large_list, and any binary-like children. A list that is
    null or empty is a record without headers. Raises `BadRequest` for another type.
    """
    if array is None or pa.types.is_null(array.type):
        return (*MISSING, *MISSING, *MISSING, _NOTHING, 0)
    single = _single(array)
    kind = single.type
    wide = pa.types.is_large_list(kind)
    if not (wide or pa.types.is_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise BadRequest(f"column headers must be array<struct<key string, value binary>>, found {kind}")
    struct = single.values
    names = [struct.type.field(index).name for index in range(struct.type.num_fields)]
    if sorted(names) != ["key", "value"]:
        raise BadRequest(f"headers must have the fields key and value, found {', '.join(names)}")
    key, value = struct.field(names.index("key")), struct.field(names.index("value"))
    return (
        *_column(single, wide),
        *binary_column(key, "headers.key"),
        *binary_column(value, "headers.value"),
        _validity(struct),
        struct.offset,
    )
