"""The merge of an upsert: which files of a table contain changed keys, and the files that replace them.

Only files with changed keys are rewritten (copy-on-write), so readers need no delete files:

1. The changes are split by the partition values of the table, if they can be computed from the key. Otherwise, a key
   may be in any partition.
2. Files of the partition whose minimum and maximum include no changed key are skipped.
3. The key columns of each remaining file are compared with the changed keys. If no key matches, the file is skipped.
4. The other rows of the file, followed by the new rows of the partition, are written to new files.

If a partition has many small files, they are rewritten together, so that the number of files stays small even if each
upsert only adds new keys.

Files are read and written one batch at a time, so memory does not depend on the size of the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.errors import SparklogError, Unavailable
from sparklog.tables.data_files import FILE_BYTES, MAX_OPEN_FILES, ROW_GROUP_BYTES, parquet_writer
from sparklog.tables.target import NewFile, NewOutput, RowChanges, TableState
from sparklog.tables.watermark import Watermark

BATCH_BYTES = 16 << 20
MAX_BATCH_ROWS = 1 << 17
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


class MergeTable(Protocol):
    """The access of a merge to a table."""

    def partition_values(self, state: TableState, rows: pa.RecordBatch) -> pa.RecordBatch: ...

    def open_output(self, state: TableState, name: str) -> NewOutput: ...

    def delete_files(self, paths: Sequence[str]) -> None: ...

    def commit(
        self, state: TableState, added: Sequence[NewFile], removed: Sequence[ExistingFile], watermark: Watermark | None
    ) -> None:
        """Commit new files, the removal of existing files and the watermark, based on exactly `state`.

        Without a watermark, the new files contain the same rows as the removed files.
        """

    def partition_columns(self, state: TableState) -> Sequence[str]:
        """Return the columns from which the partition values are computed."""

    def existing_files(self, state: TableState) -> Sequence[ExistingFile]:
        """Return the data files of a version."""

    def read_file(self, state: TableState, file: ExistingFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with the types of the schema of `state`. Repeated reads yield the same batches."""


@dataclass
class Merge:
    """The files of an upsert: `removed` are replaced by `added`, which do not contain `deleted` rows of `removed`."""

    added: list[NewFile] = field(default_factory=list)
    removed: list[ExistingFile] = field(default_factory=list)
    deleted: int = 0


def merge_changes(table: MergeTable, state: TableState, changes: RowChanges, prefix: str) -> Merge:
    """Write the files that contain the changed rows and the other rows of the affected files.

    If an error occurs, the new files are deleted.

    Args:
        table: The table.
        state: The version that is merged with the changes.
        changes: The changes.
        prefix: The start of the names of new files. It must be different for each call.
    """
    merge = Merge()
    with _Writer(table, state, changes.deleted.schema.names, prefix, merge.added) as writer:
        for group in _groups(table, state, changes):
            _merge_group(table, state, group, writer, merge)
            writer.close()
    return merge


def commit_upsert(table: MergeTable, state: TableState, changes: RowChanges, watermark: Watermark, new_id: str) -> None:
    """Merge changes with a version, and commit the files and the watermark.

    If the commit raises an error other than an unknown outcome, the new files are deleted.
    """
    merge = merge_changes(table, state, changes, f"{watermark.topic_id}-{new_id}")
    effect = changes.effect
    effect.deleted, effect.files = merge.deleted, len(merge.added)
    effect.file_bytes = sum(file.nbytes for file in merge.added)
    try:
        table.commit(state, merge.added, merge.removed, watermark)
    except SparklogError as error:
        if not (isinstance(error, Unavailable) and error.is_unknown):
            # Files that cannot be deleted now remain as unreferenced files.
            with suppress(SparklogError):
                table.delete_files([file.path for file in merge.added])
        raise


def compact_files(
    table: MergeTable, state: TableState, files: Sequence[ExistingFile], keys: Sequence[str], prefix: str
) -> Merge:
    """Write the rows of files to as few files as possible, with statistics of the key columns.

    If an error occurs, the new files are deleted.
    """
    merge = Merge(removed=list(files))
    with _Writer(table, state, keys, prefix, merge.added) as writer:
        for file in files:
            _copy(table, state, file, table.read_file(state, file, state.schema.names), writer)
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
    values: tuple[Any, ...] | None
    rows: pa.Table
    files: Sequence[ExistingFile]


def _groups(table: MergeTable, state: TableState, changes: RowChanges) -> Iterator[_Group]:
    names = changes.deleted.schema.names
    keys = pa.concat_tables([changes.rows.select(names), changes.deleted])
    if not len(keys):
        return
    files: dict[tuple[Any, ...] | None, list[ExistingFile]] = {}
    for file in table.existing_files(state):
        files.setdefault(file.partition_values, []).append(file)
    rows = rows_by_partition(table, state, changes.rows)
    if set(table.partition_columns(state)) <= set(names):
        for values, index in rows_by_partition(table, state, keys).items():
            deleted = index.filter(pc.greater_equal(index, len(changes.rows)))
            changed = _ChangedKeys(keys.take(index), keys.take(deleted))
            yield _Group(changed, values, changes.rows.take(rows.get(values, NO_ROWS)), files.get(values, ()))
    else:
        changed = _ChangedKeys(keys, changes.deleted)
        for values in dict.fromkeys([*rows, *(known for known in files if known is not None)]):
            yield _Group(changed, values, changes.rows.take(rows.get(values, NO_ROWS)), files.get(values, ()))
    if None in files:
        yield _Group(_ChangedKeys(keys, changes.deleted), None, changes.rows.slice(0, 0), files[None])


NO_ROWS = pa.array([], pa.int64())


def rows_by_partition(table: MergeTable, state: TableState, rows: pa.Table) -> dict[tuple[Any, ...], pa.Array]:
    """Return the indices of the rows of each combination of partition values."""
    if not len(rows):
        return {}
    [batch] = rows.combine_chunks().to_batches()
    values = table.partition_values(state, batch)
    index = pa.array(np.arange(len(rows)))
    if not values.num_columns:
        return {(): index}
    names = [f"v{number}" for number in range(values.num_columns)]
    numbered = pa.table([*values.columns, index], names=[*names, "row"])
    groups = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
    combinations = groups.select(names).to_pylist()
    return {
        tuple(combination[name] for name in names): part.values
        for combination, part in zip(combinations, groups["row_list"], strict=True)
    }


def _merge_group(table: MergeTable, state: TableState, group: _Group, writer: _Writer, merge: Merge) -> None:
    small = [file for file in group.files if file.nbytes < SMALL_FILE_BYTES]
    for file in group.files:
        masks: list[pa.BooleanArray] = []
        if group.keys.may_be_in(file):
            for keys in table.read_file(state, file, group.keys.names):
                masks.append(group.keys.matches(keys))
                merge.deleted += group.keys.deleted_rows(keys, masks[-1])
        has_changes = any(mask.true_count for mask in masks)
        if not has_changes and (file not in small or len(small) <= MAX_SMALL_FILES):
            continue
        batches = table.read_file(state, file, state.schema.names)
        if has_changes:
            batches = (rows.filter(pc.invert(mask)) for rows, mask in zip(batches, masks, strict=True))
        _copy(table, state, file, batches, writer)
        merge.removed.append(file)
    if group.values is not None:
        for rows in group.rows.to_batches():
            writer.write(rows, group.values)


def _copy(
    table: MergeTable, state: TableState, file: ExistingFile, batches: Iterator[pa.RecordBatch], writer: _Writer
) -> None:
    for rows in batches:
        if file.partition_values is not None:
            writer.write(rows, file.partition_values)
        else:
            for values, index in rows_by_partition(table, state, pa.Table.from_batches([rows])).items():
                writer.write(rows.take(index), values)


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

    def matches(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return True for each row whose key has changed."""
        return _is_in(rows, self._keys)

    def deleted_rows(self, rows: pa.RecordBatch, changed: pa.BooleanArray) -> int:
        """Return the number of rows whose key is deleted. `changed` is the result of `matches`."""
        if not (len(self._deleted) and changed.true_count):
            return 0
        return int(_is_in(rows.filter(changed), self._deleted).true_count)


_ROW = "_sparklog_row"


def _is_in(rows: pa.RecordBatch, keys: pa.Table) -> pa.BooleanArray:
    """Return True for each row that is in `keys`."""
    if rows.num_columns == 1:
        return pc.is_in(rows.column(0), keys.column(0))
    numbered = pa.Table.from_batches([rows]).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    found = numbered.join(keys, rows.schema.names, join_type="left semi", use_threads=False)
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[found[_ROW].to_numpy()] = True
    return pa.array(mask)


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

    def __init__(
        self, table: MergeTable, state: TableState, keys: Sequence[str], prefix: str, files: list[NewFile]
    ) -> None:
        self._table = table
        self._state = state
        self._keys = keys
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


def batch_rows(footer: pq.FileMetaData) -> int:
    """Return the number of rows that are read together, so that a batch has about `BATCH_BYTES`."""
    nbytes = sum(int(footer.row_group(index).total_byte_size) for index in range(footer.num_row_groups))
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * int(footer.num_rows) // max(1, nbytes)))
