"""The latest record of each key of an interval, for upserts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.tables.target import RowChanges

OFFSET, PARTITION, DELETED = "_sparklog_offset", "_sparklog_partition", "_sparklog_deleted"
RANK = "_sparklog_rank"


class LatestRows:
    """Collects rows, and retains the latest row of each key.

    All records of a key are usually in one topic partition, where the record with the largest offset is the latest. If
    a key has records in several partitions, the record with the largest offset is retained, and of two records with
    the same offset the record of the larger partition.

    Args:
        keys: The key columns.
        schema: The schema of the rows.
    """

    def __init__(self, keys: Sequence[str], schema: pa.Schema) -> None:
        self._keys = list(keys)
        self._schema = schema
        self._rows: list[pa.Table] = []
        self.nbytes = 0
        """The size of the collected rows in memory."""

    def add(self, rows: pa.RecordBatch, deleted: pa.BooleanArray, partition: pa.Array, offset: pa.Array) -> None:
        """Add rows and, for each row, True in `deleted` if the record deletes its key."""
        columns = [*rows.columns, offset, partition, deleted]
        table = pa.table(columns, names=[*rows.schema.names, OFFSET, PARTITION, DELETED])
        self._rows.append(table)
        self.nbytes += table.nbytes

    def extend(self, other: LatestRows) -> None:
        """Add the rows of another slice of the interval."""
        self._rows += other._rows
        self.nbytes += other.nbytes

    def __getstate__(self) -> dict[str, Any]:
        # A task only sends the latest rows of its slice to the driver.
        self.compact()
        return self.__dict__

    def compact(self) -> None:
        """Drop all rows except the latest row of each key."""
        if self._rows:
            columns = self._release()
            latest = latest_rows(columns, self._keys)
            self._rows = [pa.table({name: columns.pop(name).take(pa.array(latest)) for name in list(columns)})]
            self.nbytes = self._rows[0].nbytes

    def changes(self) -> RowChanges:
        """Return the changes of all collected rows, and release them."""
        keys = pa.schema([self._schema.field(name) for name in self._keys])
        if not self._rows:
            return RowChanges(self._schema.empty_table(), keys.empty_table())
        columns = self._release()
        latest = latest_rows(columns, self._keys)
        is_deleted = columns[DELETED].to_numpy()[latest]
        deleted = {name: columns[name].take(pa.array(latest[is_deleted])) for name in keys.names}
        rows = {name: columns.pop(name).take(pa.array(latest[~is_deleted])) for name in self._schema.names}
        return RowChanges(pa.table(rows, self._schema), pa.table(deleted, keys))

    def _release(self) -> dict[str, pa.ChunkedArray]:
        """Return the columns. Columns that the caller removes from the result are not retained."""
        rows = pa.concat_tables(self._rows)
        self._rows, self.nbytes = [], 0
        return dict(zip(rows.schema.names, rows.columns, strict=True))


def latest_rows(rows: Mapping[str, pa.ChunkedArray], keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the indexes of the rows with the largest offset and partition of their key, ascending."""
    order = np.lexsort([rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranked = pa.table({**{name: rows[name] for name in keys}, RANK: rank})
    last = ranked.group_by(list(keys), use_threads=False).aggregate([(RANK, "max")])[f"{RANK}_max"].to_numpy()
    return np.sort(order[last])
