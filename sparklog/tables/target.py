"""`TargetTable`, the protocol of a table to which a topic is copied. Each table format has one implementation.

A commit contains the rows of an interval of offsets and the watermark at its end, and is atomic. A commit is based on
one loaded version of the table. Its outcome is one of:

* It returns: the commit is in the table.
* It raises `Conflict`: another commit came first, and the table does not contain this commit and never will.
* It raises `Unavailable` with `is_unknown`: the response was lost. The commit may be in the table, or may still be
  added later.
* It raises another `SparklogError`: the table does not contain this commit and never will.
* It raises an error of another class: unexpected, and handled like a lost response.

Each commit, even one without rows, must change what the condition of the next commit checks. For example, if a catalog
only compares snapshot ids, each commit must add a snapshot.

Implementations must not retry a commit. A retry of a library loads the table again and commits on top of the new
version, without a comparison of watermarks. Two runs of a copy would then add the same records twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.errors import BadRequest, shortened
from sparklog.tables.option_names import option_name
from sparklog.tables.watermark import Mode, Watermark


@dataclass(frozen=True)
class PartitionBy:
    """The partitioning of a new table: the day (UTC) of a timestamp column, or `buckets` hash buckets of columns."""

    transform: Literal["day", "bucket"]
    columns: tuple[str, ...]
    buckets: int = 0

    def check(self, schema: pa.Schema) -> None:
        """Raise `BadRequest` if a column does not exist or its type does not support the transform."""
        for name in self.columns:
            if name not in schema.names:
                names = ", ".join(schema.names)
                raise BadRequest(f"the table has no column '{name}' to partition by: use one of {names}")
            kind = schema.field(name).type
            if self.transform == "day" and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                raise BadRequest(f"day({name}) requires a date or a timestamp, but the type of the column is {kind}")
            unsupported = pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind)
            if self.transform == "bucket" and unsupported:
                raise BadRequest(
                    f"the column of bucket({self.buckets}, {name}) must not have the type {kind}: "
                    "use a column of integers, strings or binary values"
                )


Partitioning = PartitionBy | Literal["default"] | None
"""The partitioning of a new table. None is an unpartitioned table."""
_DAY, _BUCKET = re.compile(r"day\(([^(),]+)\)"), re.compile(r"bucket\((\d{1,9}), *([^(),]+)\)")


def parse_partition_by(text: str | None) -> Partitioning:
    """Parse a partitioning such as `day(_timestamp)`, `bucket(16, id)` or `none`."""
    if text is None:
        return "default"
    if text == "none":
        return None
    if (match := _BUCKET.fullmatch(text)) is not None and int(match[1]) > 0:
        return PartitionBy("bucket", (match[2].strip(),), int(match[1]))
    if (match := _DAY.fullmatch(text)) is not None:
        return PartitionBy("day", (match[1].strip(),))
    name = option_name("partition_by")
    raise BadRequest(f"{name} must be day(COLUMN), bucket(N, COLUMN) or none, found {shortened(text)}")


@dataclass(frozen=True)
class TableLayout:
    """The layout of a new table.

    Attributes:
        schema: The columns. Nullability is significant.
        mode: The mode of the copy.
        partition_by: The partitioning, or None for an unpartitioned table.
        key_columns: The columns that identify a row. Empty unless the mode is upsert.
    """

    schema: pa.Schema
    mode: Mode
    partition_by: PartitionBy | None = None
    key_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableState:
    """One version of a table.

    Attributes:
        schema: The schema of new data files, with the field metadata that files must contain, such as field ids.
        watermark: The watermark, or None if the table was not created by a copy and has no copied rows.
        partitioning: A value that is equal for versions with the same partitioning. Files can be committed to a later
            version if its schema and its partitioning are equal to those of the version for which they were written.
        handle: The loaded table of the library. Only the implementation of the table uses it.
    """

    schema: pa.Schema
    watermark: Watermark | None
    partitioning: Any = None
    handle: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class NewFile:
    """A complete Parquet file that is not part of the table yet. All of its rows have the same partition values.

    Attributes:
        path: The location, as returned by `NewOutput.path`.
        records: The number of rows.
        nbytes: The size of the file.
        partition_values: The values of the table's partition fields, in the order of `TargetTable.partition_values`.
        metadata: The footer, which contains the statistics of the columns.
    """

    path: str
    records: int
    nbytes: int
    partition_values: tuple[Any, ...]
    metadata: pq.FileMetaData


@dataclass(frozen=True)
class NewOutput:
    """A new file beside the data files of a table, opened for writing."""

    path: str
    file: IO[bytes]


@dataclass
class UpsertEffect:
    """The effect of changes on a table, for the report of the copy.

    Attributes:
        deleted: The number of rows that were deleted, without those that were replaced.
        files: The number of files that were written.
        file_bytes: The size of these files.
        rows: The number of rows that were added or replaced.
    """

    deleted: int = 0
    files: int = 0
    file_bytes: int = 0
    rows: int = 0


@dataclass(frozen=True)
class RowChanges:
    """Changes of an interval of offsets: each key is either in `rows` or in `deleted`, and occurs once.

    Attributes:
        rows: The new rows. A row replaces the row of the table that has the same key.
        deleted: The key columns of the deleted rows. The table may not contain some of these keys.
    """

    rows: pa.Table
    deleted: pa.Table

    @property
    def keys(self) -> pa.Table:
        """The key columns of all changes."""
        return pa.concat_tables([self.rows.select(self.deleted.schema.names), self.deleted])


@dataclass
class ChangeSet:
    """All changes of an interval.

    Attributes:
        parts: The changes. Each key is in one part. If there are several parts, the partition of a row depends on its
            key only, and all keys of a partition are in the same part.
        effect: The effect of the latest attempt to commit the changes. The table sets it before the commit, because the
            response of the commit may be lost.
    """

    parts: Iterable[RowChanges]
    effect: UpsertEffect = field(default_factory=UpsertEffect)


class Partitioned(Protocol):
    """The partitioning of a table."""

    def partition_columns(self, state: TableState) -> Sequence[str]:
        """Return the columns from which the partition values are computed."""

    def partition_values(self, state: TableState, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the values of the partition fields for each row. An unpartitioned table has no columns."""


def depends_on_keys(table: Partitioned, state: TableState, keys: Sequence[str]) -> bool:
    """Return True if the partition of a row depends on its key columns only."""
    return set(table.partition_columns(state)) <= set(keys)


def rows_by_partition(table: Partitioned, state: TableState, rows: pa.Table) -> dict[tuple[Any, ...], pa.Array]:
    """Return the indices of the rows of each combination of partition values, ascending."""
    if not len(rows):
        return {}
    [batch] = rows.combine_chunks().to_batches()
    return rows_by_values(table.partition_values(state, batch).columns, len(rows))


def rows_by_values(columns: Sequence[pa.Array], count: int) -> dict[tuple[Any, ...], pa.Array]:
    """Return the indices of the rows with each combination of values, ascending."""
    index = pa.array(np.arange(count))
    if not columns:
        return {(): index}
    names = [f"v{number}" for number in range(len(columns))]
    groups = (
        pa.table([*columns, index], [*names, "row"]).group_by(names, use_threads=False).aggregate([("row", "list")])
    )
    combinations = groups.select(names).to_pylist()
    return {
        tuple(combination[name] for name in names): rows.values
        for combination, rows in zip(combinations, groups["row_list"], strict=True)
    }


class TargetTable(Partitioned, Protocol):
    """A table of a catalog or a directory."""

    @property
    def name(self) -> str:
        """The name for messages."""

    def load(self) -> TableState | None:
        """Return the current version, read from the catalog, or None if the table does not exist."""

    def create(self, layout: TableLayout, watermark: Watermark) -> TableState:
        """Create the table with a watermark, in one atomic step. If another process has created the table first, return
        the state of that table.
        """

    def add_columns(self, state: TableState, columns: Sequence[pa.Field]) -> TableState:
        """Add nullable columns, and widen existing columns with the same name. Return the new version.

        Raises `Conflict` if another commit came first, in which case the caller loads the table again. Raises
        `BadRequest` if the format does not support a type.
        """

    def for_tasks(self, state: TableState) -> tuple[TargetTable, TableState]:
        """Return the table and a version in a form that can be pickled, to write files in a Spark task. The returned
        table can neither be loaded nor changed.
        """

    def open_output(self, state: TableState, name: str) -> NewOutput:
        """Create a file with this name for new rows. Rows in it are not part of the table before a commit."""

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        """Commit the rows of files and the watermark, based on exactly `state`. `files` may be empty.

        If the source of the watermark differs from that of `state`, neither `append` nor `upsert` contains rows. Some
        formats cannot store a new source and rows in the same commit.
        """

    def upsert(self, state: TableState, changes: ChangeSet, watermark: Watermark) -> None:
        """Commit the changes and the watermark, based on exactly `state`. `changes` may be empty.

        If the outcome is not unknown, a failed commit deletes the files that it wrote.
        """

    def clear(self, state: TableState, watermark: Watermark) -> None:
        """Commit the removal of all rows and a watermark with another source, based on exactly `state`.

        Some formats need two commits. If only the first one succeeds, the table has no rows and the watermark of the
        old source, with another commit id.
        """

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete files that are not part of the table. Missing files are not an error."""
