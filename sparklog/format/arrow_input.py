"""Arrow arrays as input of the kernels: the addresses of the buffers of binary and header columns, without copies.

The kernels accept all binary-like columns: binary, large_binary, string and large_string columns, and columns of
fixed-size and view types, which are cast first.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.record_batch import Int64Array

Column: TypeAlias = "pa.Array | pa.ChunkedArray | None"
MISSING = (0, 0, 0, 0, 0, 0)
"""The row of a missing column. A row contains the address of the offsets (0 for a missing column), 1 if the offsets are
int64, the address of the data, the address after the data, the address of the validity bits (0 if there are no
nulls), and the offset of the array in elements.
"""


class KernelColumns:
    """The addresses of keys, values, header lists, header keys, header values and header structs. `table` contains one
    row for each of them.

    The object keeps the arrays alive. Key and value columns must be binary-like, or None if all cells are null. The
    header column must be `list<struct<key, value>>` (list or large_list), or None. A list that is null or empty is a
    record without headers. Raises `BadRequest` for other types.
    """

    def __init__(self, key: Column, value: Column = None, headers: Column = None) -> None:
        self._alive: list[pa.Array] = []
        rows = [self._binary(key, "key"), self._binary(value, "value"), *self._headers(headers)]
        self.table: Int64Array = np.array(rows, np.int64)

    def _keep(self, array: pa.Array | pa.ChunkedArray) -> pa.Array:
        single = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        self._alive.append(single)
        return single

    def _binary(self, array: Column, name: str) -> tuple[int, ...]:
        if array is None or pa.types.is_null(array.type) or not len(array):
            return MISSING
        single = self._keep(array)
        kind = single.type
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
            single = self._keep(single.cast(pa.large_binary()))
            kind = single.type
        wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
        if not (wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
            raise BadRequest(f"column {name} must be binary or string, found {kind}: cast it")
        return _row(single, wide, single.buffers()[2])

    def _headers(self, array: Column) -> list[tuple[int, ...]]:
        if array is None or pa.types.is_null(array.type) or not len(array):
            return [MISSING] * 4
        single = self._keep(array)
        kind = single.type
        wide = pa.types.is_large_list(kind)
        if not (wide or pa.types.is_list(kind)) or not pa.types.is_struct(kind.value_type):
            raise BadRequest(f"column headers must be array<struct<key string, value binary>>, found {kind}")
        struct = self._keep(single.values)
        names = [field.name for field in struct.type]
        if sorted(names) != ["key", "value"]:
            raise BadRequest(f"headers must have the fields key and value, found {', '.join(names)}")
        key, value = struct.field(names.index("key")), struct.field(names.index("value"))
        valid = (0, 0, 0, 0, _validity(struct), struct.offset)
        return [_row(single, wide, None), self._binary(key, "headers.key"), self._binary(value, "headers.value"), valid]


def _validity(array: pa.Array) -> int:
    return int(array.buffers()[0].address) if array.null_count else 0


def _row(array: pa.Array, wide: bool, data: pa.Buffer | None) -> tuple[int, ...]:
    start, end = (0, 0) if data is None else (data.address, data.address + data.size)
    return (array.buffers()[1].address, int(wide), start, end, _validity(array), array.offset)
