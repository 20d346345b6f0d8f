"""The merge of an upsert: which files of a table contain changed keys, and the files that replace them.

Only files with changed keys are rewritten (copy-on-write), so readers need no delete files:

1. The changes are split by the partition values of the table, if they can be computed from the key. Otherwise, a key
   may be in any partition.
2. Files of the partition whose minimum and maximum include no changed key are skipped.
3. The key columns of each remaining file are compared with the changed keys. If no key matches, the file is skipped.
4. The other rows of the file, followed by the new rows of the partition, are written to new files.

If a partition has many small files, they are rewritten together, so that the number of files stays small even if each
upsert only adds new keys.

The changes of one partition are in memory. Files are read and written one batch at a time, so memory does not depend on
the size of the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.errors import SparklogError, Unavailable
from sparklog.tables.data_files import FILE_BYTES, MAX_OPEN_FILES, ROW_GROUP_BYTES, parquet_writer
from sparklog.tables.target import (
    ChangeSet,
    NewFile,
    NewOutput,
    Partitioned,
    RowChanges,
    TableState,
    UpsertEffect,
    depends_on_keys,
    rows_by_partition,
)
from sparklog.tables.watermark import Watermark

BATCH_BYTES = 16 << 20
MAX_BATCH_ROWS = 1 << 14
"""Maximum number of rows that are read together. Values that are repeated in a file can be many times larger in memory.
"""
KEY_BYTES = 32 << 20
"""Size in memory of the keys of a file that are compared with the changed keys together."""
SMALL_FILE_BYTES = 32 << 20
MAX_SMALL_FILES = 8
"""Maximum number of files per partition that are smaller than `SMALL_FILE_BYTES`."""


@dataclass(frozen=True)
class ExistingFile:
    """A data file of a version of a table.

    Attributes:
        path: The location.
        records: The number of rows.
        nbytes: The size.
        partition_values: The values of the partition fields, or None if the file has another partitioning than the
            version.
        bounds: A lower and an upper bound of the values of columns. Columns without known bounds are missing.
        handle: The file as an object of the library. Only the implementation of the table uses it.
    """

    path: str
    records: int
    nbytes: int
    partition_values: tuple[Any, ...] | None
    bounds: Mapping[str, tuple[Any, Any]]
    handle: Any = field(default=None, compare=False, repr=False)


class MergeTable(Partitioned, Protocol):
    """The access of a merge to a table."""

    def open_output(self, state: TableState, name: str) -> NewOutput: ...

    def delete_files(self, paths: Sequence[str]) -> None: ...

    def commit(
        self, state: TableState, added: Sequence[NewFile], removed: Sequence[ExistingFile], watermark: Watermark | None
    ) -> None:
        """Commit new files, the removal of existing files and the watermark, based on exactly `state`.

        Without a watermark, the new files contain the same rows as the removed files.
        """

    def key_columns(self, state: TableState) -> Sequence[str]:
        """Return the columns whose statistics an upsert needs, as far as they are known."""

    def existing_files(self, state: TableState) -> Sequence[ExistingFile]:
        """Return the data files of a version."""

    def read_file(self, state: TableState, file: ExistingFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, in order, with the types of the schema of `state`."""


@dataclass
class Merge:
    """The files of an upsert: `removed` are replaced by `added`, which do not contain `deleted` rows of `removed`."""

    added: list[NewFile] = field(default_factory=list)
    removed: list[ExistingFile] = field(default_factory=list)
    deleted: int = 0
    rows: int = 0


def merge_changes(table: MergeTable, state: TableState, changes: ChangeSet, prefix: str) -> Merge:
    """Write the files that contain the changed rows and the other rows of the affected files.

    If an error occurs, the new files are deleted.

    Args:
        table: The table.
        state: The version that is merged with the changes.
        changes: The changes.
        prefix: The start of the names of new files. It must be different for each call.
    """
    merge = Merge()
    files: dict[tuple[Any, ...] | None, list[ExistingFile]] = {}
    for file in table.existing_files(state):
        files.setdefault(file.partition_values, []).append(file)
    # A file with another partitioning can contain keys of all parts of the changes, but is rewritten once.
    other_files = files.pop(None, [])
    other_masks: dict[str, pa.BooleanArray] = {}
    with _Writer(table, state, prefix, merge.added) as writer:
        for part in changes.parts:
            merge.rows += part.rows.num_rows
            _merge_part(table, state, part, files, writer, merge)
            if other_files:
                _add_changed_rows(table, state, part, other_files, other_masks, merge)
            # Do not retain the part while the next one is read.
            del part
        _rewrite(table, state, other_files, lambda file: other_masks.get(file.path), writer, merge)
        writer.close()
    return merge


def _merge_part(
    table: MergeTable,
    state: TableState,
    part: RowChanges,
    files: Mapping[tuple[Any, ...] | None, Sequence[ExistingFile]],
    writer: _Writer,
    merge: Merge,
) -> None:
    for group in _groups(table, state, part, files):
        _rewrite(table, state, group.files, partial(_changed_rows, table, state, group.keys, merge), writer, merge)
        for rows in group.rows.to_batches():
            writer.write(rows, group.values)
        writer.close()


def _add_changed_rows(
    table: MergeTable,
    state: TableState,
    part: RowChanges,
    files: Sequence[ExistingFile],
    masks: dict[str, pa.BooleanArray],
    merge: Merge,
) -> None:
    """Mark the rows of files whose key is in a part of the changes."""
    keys = _ChangedKeys(part.keys, part.deleted)
    for file in files:
        mask = _changed_rows(table, state, keys, merge, file)
        if mask is not None:
            masks[file.path] = pc.or_(mask, masks.get(file.path, mask))


def commit_upsert(table: MergeTable, state: TableState, changes: ChangeSet, watermark: Watermark, new_id: str) -> None:
    """Merge changes with a version, and commit the files and the watermark.

    If the commit raises an error other than an unknown outcome, the new files are deleted.
    """
    merge = merge_changes(table, state, changes, f"{watermark.topic_id}-{new_id}")
    file_bytes = sum(file.nbytes for file in merge.added)
    changes.effect = UpsertEffect(merge.deleted, len(merge.added), file_bytes, merge.rows)
    try:
        table.commit(state, merge.added, merge.removed, watermark)
    except SparklogError as error:
        if not (isinstance(error, Unavailable) and error.is_unknown):
            # Files that cannot be deleted now remain as unreferenced files.
            with suppress(SparklogError):
                table.delete_files([file.path for file in merge.added])
        raise


def compact_files(table: MergeTable, state: TableState, files: Sequence[ExistingFile], prefix: str) -> Merge:
    """Write the rows of files to as few files as possible.

    If an error occurs, the new files are deleted.
    """
    merge = Merge(removed=list(files))
    with _Writer(table, state, prefix, merge.added) as writer:
        for file in files:
            _copy(table, state, file, None, writer)
        writer.close()
    return merge


@dataclass(frozen=True)
class _Group:
    """The changes of a partition, and its files.

    Attributes:
        keys: The changed keys. If the partition of a key is not known, all changed keys.
        values: The partition values, or None for files with another partitioning.
        rows: The new rows.
        files: The files.
    """

    keys: _ChangedKeys
    values: tuple[Any, ...]
    rows: pa.Table
    files: Sequence[ExistingFile]


def _groups(
    table: MergeTable,
    state: TableState,
    changes: RowChanges,
    files: Mapping[tuple[Any, ...] | None, Sequence[ExistingFile]],
) -> Iterator[_Group]:
    keys = changes.keys
    if not len(keys):
        return
    rows = rows_by_partition(table, state, changes.rows)
    if depends_on_keys(table, state, keys.schema.names):
        changed = {}
        for values, index in rows_by_partition(table, state, keys).items():
            deleted = index.filter(pc.greater_equal(index, len(changes.rows)))
            changed[values] = _ChangedKeys(keys.take(index), keys.take(deleted))
    else:
        all_keys = _ChangedKeys(keys, changes.deleted)
        changed = {values: all_keys for values in (*rows, *files) if values is not None}
    for values, changed_keys in changed.items():
        index = rows.get(values, NO_ROWS)
        new_rows = changes.rows if len(index) == len(changes.rows) else changes.rows.take(index)
        yield _Group(changed_keys, values, new_rows, files.get(values, ()))


NO_ROWS = pa.array([], pa.int64())


def _rewrite(
    table: MergeTable,
    state: TableState,
    files: Sequence[ExistingFile],
    changed_rows: Callable[[ExistingFile], pa.BooleanArray | None],
    writer: _Writer,
    merge: Merge,
) -> None:
    """Write the other rows of files that contain changed rows, and all rows of small files if there are many."""
    small = [file for file in files if file.nbytes < SMALL_FILE_BYTES]
    for file in files:
        mask = changed_rows(file)
        if mask is not None or (file in small and len(small) > MAX_SMALL_FILES):
            _copy(table, state, file, mask, writer)
            merge.removed.append(file)


def _copy(
    table: MergeTable, state: TableState, file: ExistingFile, changed: pa.BooleanArray | None, writer: _Writer
) -> None:
    """Write the rows of a file, except the changed rows."""
    first = 0
    for batch in table.read_file(state, file, state.schema.names):
        rows = batch if changed is None else batch.filter(pc.invert(changed.slice(first, batch.num_rows)))
        first += batch.num_rows
        if file.partition_values is not None:
            writer.write(rows, file.partition_values)
        else:
            for values, index in rows_by_partition(table, state, pa.Table.from_batches([rows])).items():
                writer.write(rows.take(index), values)


def _changed_rows(
    table: MergeTable, state: TableState, keys: _ChangedKeys, merge: Merge, file: ExistingFile
) -> pa.BooleanArray | None:
    """Return True for each row of a file whose key has changed, or None if no key has changed. Count deleted rows."""
    if not keys.may_be_in(file):
        return None
    masks: list[pa.Array] = []
    for rows in _tables(table.read_file(state, file, keys.names), KEY_BYTES):
        mask = keys.matches(rows)
        merge.deleted += keys.deleted_rows(rows, mask)
        masks += mask.chunks
    mask = pa.concat_arrays(masks) if masks else pa.array([], pa.bool_())
    return mask if mask.true_count else None


def _tables(batches: Iterator[pa.RecordBatch], nbytes: int) -> Iterator[pa.Table]:
    """Join batches to tables of at least this size."""
    joined: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        joined.append(batch)
        size += batch.nbytes
        if size >= nbytes:
            yield pa.Table.from_batches(joined)
            joined, size = [], 0
    if joined:
        yield pa.Table.from_batches(joined)


class _ChangedKeys:
    """The changed keys of a partition, to find files and rows with these keys. Some of them may be deleted."""

    def __init__(self, keys: pa.Table, deleted: pa.Table) -> None:
        self.names: list[str] = keys.schema.names
        self._keys = keys.combine_chunks()
        self._deleted = deleted.combine_chunks()
        self._sorted: dict[str, pa.Array] = {}

    def may_be_in(self, file: ExistingFile) -> bool:
        """Return False if no changed key is between the bounds of a file."""
        return all(self._is_between(name, *file.bounds[name]) for name in self.names if name in file.bounds)

    def _is_between(self, name: str, lower: Any, upper: Any) -> bool:
        if name not in self._sorted:
            column = self._keys[name].drop_null()
            self._sorted[name] = column.take(pc.sort_indices(column)).combine_chunks()
        column = self._sorted[name]
        first = bisect_left(range(len(column)), lower, key=lambda index: column[index].as_py())
        return first < len(column) and column[first].as_py() <= upper

    def matches(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return True for each row whose key has changed."""
        return _is_in(rows, self._keys)

    def deleted_rows(self, rows: pa.Table, changed: pa.ChunkedArray) -> int:
        """Return the number of rows whose key is deleted. `changed` is the result of `matches`."""
        return pc.sum(_is_in(rows.filter(changed), self._deleted)).as_py() or 0 if len(self._deleted) else 0


_ROW = "_sparklog_row"


def _is_in(rows: pa.Table, keys: pa.Table) -> pa.ChunkedArray:
    """Return True for each row that is in `keys`."""
    if rows.num_columns == 1:
        # Arrow creates a hash table of the keys for each call.
        return pc.is_in(rows.column(0), keys.column(0))
    numbered = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    found = numbered.join(keys, rows.schema.names, join_type="left semi", use_threads=False)
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[found[_ROW].to_numpy()] = True
    return pa.chunked_array([mask])


@dataclass
class _Output:
    """A new file, and rows that have not been written to it."""

    file: NewOutput
    writer: pq.ParquetWriter
    records: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)
    nbytes: int = 0


class _Writer:
    """Writes rows to new files, one open file per combination of partition values.

    If the block of the context manager raises an error, the files are deleted.
    """

    def __init__(self, table: MergeTable, state: TableState, prefix: str, files: list[NewFile]) -> None:
        self._table = table
        self._state = state
        self._keys = table.key_columns(state)
        self._prefix = prefix
        self._files = files
        self._outputs: dict[tuple[Any, ...], _Output] = {}
        self._buffered_bytes = 0
        self._paths: list[str] = []

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        with suppress(SparklogError, OSError):
            for output in self._outputs.values():
                output.file.file.close()
        if issubclass(kind, Exception):
            with suppress(SparklogError, OSError):
                self._table.delete_files(self._paths)

    def write(self, rows: pa.RecordBatch, values: tuple[Any, ...]) -> None:
        if not rows.num_rows:
            return
        output = self._outputs.get(values) or self._open(values)
        output.batches.append(rows)
        output.nbytes += rows.nbytes
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= ROW_GROUP_BYTES:
            self._flush(max(self._outputs, key=lambda values: self._outputs[values].nbytes))

    def close(self) -> None:
        """Complete all open files."""
        for values in list(self._outputs):
            self._close(values)

    def _open(self, values: tuple[Any, ...]) -> _Output:
        if len(self._outputs) >= MAX_OPEN_FILES:
            self._close(next(iter(self._outputs)))
        file = self._table.open_output(self._state, f"{self._prefix}-{len(self._paths):05}.parquet")
        self._paths.append(file.path)
        output = self._outputs[values] = _Output(file, parquet_writer(file, self._state.schema, self._keys))
        return output

    def _flush(self, values: tuple[Any, ...]) -> None:
        output = self._outputs[values]
        if output.batches:
            rows = pa.Table.from_batches(output.batches)
            output.writer.write_table(rows, row_group_size=rows.num_rows)
            output.records += rows.num_rows
            self._buffered_bytes -= output.nbytes
            output.batches, output.nbytes = [], 0
        if output.file.file.tell() >= FILE_BYTES:
            self._close(values)

    def _close(self, values: tuple[Any, ...]) -> None:
        output = self._outputs[values]
        if output.batches:
            self._flush(values)
            if values not in self._outputs:
                return
        del self._outputs[values]
        output.writer.close()
        nbytes = output.file.file.tell()
        output.file.file.close()
        self._files.append(NewFile(output.file.path, output.records, nbytes, values, output.writer.writer.metadata))


def read_batches(parquet: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a file in batches of about `BATCH_BYTES`."""
    footer, names = parquet.metadata, set(columns)
    nbytes = 0
    for index in range(footer.num_row_groups):
        chunks = (footer.row_group(index).column(number) for number in range(footer.num_columns))
        nbytes += sum(
            chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in names
        )
    rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * footer.num_rows // max(1, nbytes)))
    yield from parquet.iter_batches(rows, columns=list(columns))
