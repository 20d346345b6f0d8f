"""The latest record of each key of an interval, for upserts.

Rows that do not fit in memory are written to a temporary file, one batch per partition of the table. The merge reads
the changes of one partition at a time, so the memory depends on the size of the largest partition. This requires that
the partition of the table depends on the key only, and that the rows are read in the same process. Otherwise, all
changes of an interval must fit in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import Unavailable
from sparklog.tables.target import RowChanges

OFFSET, PARTITION, DELETED = "_sparklog_offset", "_sparklog_partition", "_sparklog_deleted"
RANK = "_sparklog_rank"
POSITION = (pa.field(OFFSET, pa.int64()), pa.field(PARTITION, pa.int32()), pa.field(DELETED, pa.bool_()))
BUFFER_BYTES = 64 << 20
"""Size in memory of the rows that are written to the temporary file together."""
FILE_BYTES = 4 << 30
"""Maximum size of the temporary file."""
Split = Callable[[pa.Table], Mapping[tuple[Any, ...], pa.Array]]
"""Function that returns the indices of the rows of each partition of the table."""


class TooManyChanges(Exception):  # noqa: N818
    """The changes of an interval, or its bad records, do not fit in memory after `records` records were read."""

    def __init__(self, records: int) -> None:
        super().__init__(records)
        self.records = records


class LatestRows:
    """Collects rows, and retains the latest row of each key. Use it as a context manager.

    All records of a key are usually in one topic partition, where the record with the largest offset is the latest. If
    a key has records in several partitions, the record with the largest offset is retained, and of two records with
    the same offset the record of the larger partition.

    Args:
        keys: The key columns.
        schema: The schema of the rows.
        max_bytes: The maximum size in memory of the changes that are merged together.
        split: Returns the rows of each partition of the table. If None, no temporary file is used.
    """

    def __init__(self, keys: Sequence[str], schema: pa.Schema, max_bytes: int, split: Split | None = None) -> None:
        self._keys = list(keys)
        self._schema = schema
        self._split = split
        self._max_bytes = max_bytes
        self._rows: list[pa.Table] = []
        self._nbytes = 0
        self._limit = max_bytes if split is None else BUFFER_BYTES
        self._records = 0
        self._file: _RowFile | None = None

    def __enter__(self) -> LatestRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the temporary file."""
        if self._file is not None:
            self._file.close()

    @property
    def usage(self) -> float:
        """The size of the changes as a share of the maximum. If it is more than 1, `add` may raise `TooManyChanges`."""
        if self._file is None:
            return self._nbytes / (self._max_bytes if self._split is None else FILE_BYTES)
        return max(self._file.max_partition_bytes / self._max_bytes, self._file.nbytes / FILE_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        # A task only sends the latest rows of its slice to the driver.
        self._compact()
        return self.__dict__

    def extend(self, other: LatestRows) -> None:
        """Add the rows of another slice of the interval, for which no temporary file is used."""
        assert other._file is None
        self._rows += other._rows
        self._nbytes += other._nbytes
        other._rows = []

    def add(self, rows: pa.RecordBatch, deleted: pa.BooleanArray, partition: pa.Array, offset: pa.Array) -> None:
        """Add rows and, for each row, True in `deleted` if the record deletes its key.

        Raises `TooManyChanges` if there are more rows than fit in memory or in the temporary file, and `Unavailable` if
        the temporary file cannot be written.
        """
        columns = [*rows.columns, offset, partition, deleted]
        table = pa.table(columns, pa.schema([*rows.schema, *POSITION]))
        self._rows.append(table)
        self._nbytes += table.nbytes
        self._records += len(table)
        if self._nbytes > self._limit:
            self._compact()
            if self._split is None:
                self._limit = self._nbytes + self._max_bytes // 2
                if self._nbytes > self._max_bytes and len(self._rows[0]) > 1:
                    raise TooManyChanges(self._records)
            elif self._nbytes > BUFFER_BYTES // 2:
                self._write(self._split)

    def changes(self) -> Iterable[RowChanges]:
        """Return the changes of all added rows, which can be iterated repeatedly until the context ends.

        If there are several elements, they contain different partitions of the table.
        """
        if self._file is not None and self._split is not None:
            self._write(self._split)
            self._file.finish()
            return _StoredChanges(self._file, self._changes)
        rows, self._rows = self._rows, []
        return [self._changes(rows)]

    def _compact(self) -> None:
        """Drop all rows except the latest row of each key."""
        if not self._rows:
            return
        columns, schema = _columns(self._rows), self._rows[0].schema
        self._rows = []
        latest = pa.array(latest_rows(columns, self._keys))
        self._rows = [pa.table([columns.pop(name).take(latest) for name in schema.names], schema)]
        self._nbytes = self._rows[0].nbytes

    def _write(self, split: Split) -> None:
        """Write the rows to the temporary file."""
        if self._rows:
            rows, self._rows, self._nbytes = pa.concat_tables(self._rows).combine_chunks(), [], 0
            if self._file is None:
                self._file = _RowFile(rows.schema)
            for values, index in split(rows).items():
                if self._file.write(values, rows.take(index)) > self._max_bytes and self._records > 1:
                    raise TooManyChanges(self._records)
            if self._file.nbytes > FILE_BYTES:
                raise TooManyChanges(self._records)

    def _changes(self, rows: list[pa.Table]) -> RowChanges:
        """Return the changes of rows. The list becomes empty, so that columns can be released one by one."""
        keys = pa.schema([self._schema.field(name) for name in self._keys])
        if not rows:
            return RowChanges(self._schema.empty_table(), keys.empty_table())
        columns = _columns(rows)
        rows.clear()
        latest = latest_rows(columns, self._keys)
        is_deleted = columns[DELETED].to_numpy()[latest]
        deleted = {name: columns[name].take(pa.array(latest[is_deleted])) for name in keys.names}
        changed = {name: columns.pop(name).take(pa.array(latest[~is_deleted])) for name in self._schema.names}
        return RowChanges(pa.table(changed, self._schema), pa.table(deleted, keys))


class _RowFile:
    """A temporary file with the rows of each partition of a table. It is deleted even if the process is killed."""

    def __init__(self, schema: pa.Schema) -> None:
        with _file_errors():
            self._file = tempfile.TemporaryFile(prefix="sparklog-upsert-")  # noqa: SIM115 - closed by `close`
            self._writer = pa.ipc.new_file(self._file, schema)
        self._batches: dict[tuple[Any, ...], list[int]] = {}
        self._nbytes: dict[tuple[Any, ...], int] = {}
        self._count = 0

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self._file.tell()

    @property
    def max_partition_bytes(self) -> int:
        """The size of the rows of the largest partition."""
        return max(self._nbytes.values(), default=0)

    def write(self, values: tuple[Any, ...], rows: pa.Table) -> int:
        """Write rows of a partition, and return the size of all rows of the partition."""
        for batch in rows.combine_chunks().to_batches():
            with _file_errors():
                self._writer.write_batch(batch)
            self._batches.setdefault(values, []).append(self._count)
            self._nbytes[values] = self._nbytes.get(values, 0) + batch.nbytes
            self._count += 1
        return self._nbytes[values]

    def finish(self) -> None:
        """Complete the file, so that it can be read."""
        with _file_errors():
            self._writer.close()
            self._file.flush()

    def parts(self) -> Iterator[list[pa.Table]]:
        """Yield the rows of each partition."""
        reader = pa.ipc.open_file(self._file)
        for batches in self._batches.values():
            yield [pa.Table.from_batches([reader.get_batch(index)]) for index in batches]

    def close(self) -> None:
        # Closing writes buffered bytes, which fails if the disk is full.
        with suppress(OSError):
            self._file.close()


@contextmanager
def _file_errors() -> Iterator[None]:
    """Convert the errors of requests to the temporary file to `Unavailable`."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"cannot write the changes of an upsert to a temporary file: {error}; free space, or set TMPDIR to another "
            "directory"
        ) from error


class _StoredChanges:
    """The changes of each partition in a file."""

    def __init__(self, file: _RowFile, changes: Callable[[list[pa.Table]], RowChanges]) -> None:
        self._file = file
        self._changes = changes

    def __iter__(self) -> Iterator[RowChanges]:
        return map(self._changes, self._file.parts())


def _columns(tables: Sequence[pa.Table]) -> dict[str, pa.ChunkedArray]:
    """Return the columns of tables. Columns that the caller removes from the result are not retained."""
    rows = pa.concat_tables(tables)
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def latest_rows(rows: Mapping[str, pa.ChunkedArray], keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the indexes of the rows with the largest offset and partition of their key, ascending."""
    order = np.lexsort([rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranked = pa.table({**{name: rows[name] for name in keys}, RANK: rank})
    last = ranked.group_by(list(keys), use_threads=False).aggregate([(RANK, "max")])[f"{RANK}_max"].to_numpy()
    return np.sort(order[last])
