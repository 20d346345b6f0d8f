"""The content of a batch, by which a replay is told from other records under the same number.

A replay holds the same records, but may be laid out over other tasks, at other times and in another order. So it is
judged by what none of these changes: records, bytes of keys, values and headers, and how both spread over partitions.
Rows with neither key nor partition count together, for the task decides where these go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparklog.log.journal.arrow_numpy import valid_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.write.rows import Rows

__all__ = ["ANYWHERE", "Content", "RowCounts", "add_rows", "content_of"]

ANYWHERE = -1
"""Stands for the partition of rows that have neither a key nor a partition."""
LAYOUT_BYTES = 8


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of keys, values and headers of a batch, and its `layout`: the number of partitions and a digest.

    The digest is of records and bytes by topic and partition. It says nothing once partitions were added, which sends
    keys elsewhere.
    """

    nbytes: int
    layout: str

    def matches(self, other: Content) -> bool:
        """True if both may be the same batch."""
        comparable = self.layout.partition(":")[0] == other.layout.partition(":")[0]
        return self.nbytes == other.nbytes and (self.layout == other.layout or not comparable)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of one file by partition (or `ANYWHERE`): records and bytes; `partitions`: of the topic, as its task saw."""

    partitions: int
    rows: Mapping[int, tuple[int, int]]


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


def content_of(counts: Mapping[str, Sequence[RowCounts | None]]) -> Content | None:
    """The content of files, topic to the counts of each; None where these are not known of all."""
    partitions: set[tuple[str, int]] = set()
    total: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, files in counts.items():
        for each in files:
            if each is None:
                return None
            partitions.add((topic, each.partitions))
            for partition, (records, nbytes) in each.rows.items():
                before = total.get((topic, partition), (0, 0))
                total[topic, partition] = before[0] + records, before[1] + nbytes
    listed = json.dumps([[*place, *amounts] for place, amounts in sorted(total.items())], separators=(",", ":"))
    digest = hashlib.blake2b(listed.encode(), digest_size=LAYOUT_BYTES).hexdigest()
    return Content(sum(size for _, size in total.values()), f"{sum(number for _, number in partitions)}:{digest}")


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
