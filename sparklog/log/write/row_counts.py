"""Counts of the rows of an append by partition, from which the content of its batch is made.

See `sparklog.log.state.content`. Everything goes by Arrow's buffers: its functions would load `pyarrow.compute`, and
with it pandas, into each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparklog.log.journal.arrow_numpy import valid_rows
from sparklog.log.state.content import ANYWHERE
from sparklog.log.write.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa


def add_rows(counts: dict[int, tuple[int, int]], rows: Rows, partition: npt.NDArray[np.int32]) -> None:
    """Add rows, which were given these partitions, to the counts."""
    sizes = _sizes(rows.key, rows.n) + _sizes(rows.value, rows.n) + _header_sizes(rows.headers, rows.n)
    place = np.where(_is_valid(rows.key, rows.n) | _is_valid(rows.partition, rows.n), partition, ANYWHERE)
    # Counting is much faster than sorting; a sum of bytes in floats is exact below 2^53.
    records = np.bincount(place - ANYWHERE)
    nbytes = np.bincount(place - ANYWHERE, weights=sizes)
    for at in np.flatnonzero(records).tolist():
        number, count, size = at + ANYWHERE, int(records[at]), int(nbytes[at])
        before = counts.get(number, (0, 0))
        counts[number] = before[0] + count, before[1] + size


def _is_valid(column: pa.Array | None, n: int) -> npt.NDArray[np.bool_]:
    if column is None or column.null_count == n:
        return np.zeros(n, np.bool_)
    return valid_rows(column)


def _sizes(column: pa.Array | None, n: int) -> npt.NDArray[np.int64]:
    """int64[n]: bytes of each item, 0 for null."""
    import pyarrow as pa

    if column is None or n == 0 or column.null_count == n:
        return np.zeros(n, np.int64)
    kind = column.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not wide and not pa.types.is_binary(kind) and not pa.types.is_string(kind):
        return _sizes(column.cast(pa.large_binary()), n)
    offsets = np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32)
    sizes = np.diff(offsets[column.offset : column.offset + n + 1]).astype(np.int64)
    return np.where(_is_valid(column, n), sizes, 0) if column.null_count else sizes


def _header_sizes(column: pa.Array | None, n: int) -> npt.NDArray[np.int64]:
    """int64[n]: bytes of the keys and values of each row's headers."""
    import pyarrow as pa

    if column is None or pa.types.is_null(column.type) or column.null_count == n:
        return np.zeros(n, np.int64)
    wide = pa.types.is_large_list(column.type)
    offsets = np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32)[column.offset : column.offset + n + 1]
    first = int(offsets[0])
    items = column.values.slice(first, int(offsets[-1]) - first)
    sizes = _sizes(items.field("key"), len(items)) + _sizes(items.field("value"), len(items))
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])[offsets - first]
    return np.diff(sums) * _is_valid(column, n)
