"""A table in memory that implements `TargetTable`, with a catalog that tests can make fail.

The catalog compares snapshot ids, as an Iceberg catalog does: a commit requires that the snapshot on which it is based
is the current one. Files are Parquet files in memory, so that tests read what the copy has written.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.errors import Conflict
from sparklog.tables.root_watermark import FIRST_VERSION, TableHistory
from sparklog.tables.target import (
    ChangeSet,
    NewFile,
    NewOutput,
    PartitionBy,
    RowChanges,
    TableLayout,
    TableState,
    UpsertEffect,
)
from sparklog.tables.watermark import Watermark

Step = Callable[[str], None]


@dataclass(frozen=True)
class Version:
    """A version of a table: its rows are those of its files.

    `watermark` is in the properties of the table, and `summary` in the snapshot of the version.
    """

    number: int
    snapshot: int
    schema: pa.Schema
    partition_by: PartitionBy | None
    watermark: Watermark | None
    paths: tuple[str, ...] = ()
    summary: Watermark | None = None


class _File(io.BytesIO):
    """A file whose contents become visible when it is closed."""

    def __init__(self, path: str, files: dict[str, bytes]) -> None:
        super().__init__()
        self._path, self._files = path, files
        files.setdefault(path, b"")

    def close(self) -> None:
        if not self.closed:
            self._files[self._path] = self.getvalue()
        super().close()


@dataclass
class MemoryCatalog:
    """The shared state of a table: all of its versions, and the stored files."""

    versions: list[Version] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    table_id: str = "table"
    snapshots: Any = field(default_factory=lambda: itertools.count(1))

    first_snapshot: int | None = None

    @property
    def current(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def commit(self, based_on: Version, **changes: Any) -> Version:
        """Add a version with a new snapshot. Raise `Conflict` unless the current snapshot is that of `based_on`."""
        current = self.current
        assert current is not None
        if current.snapshot != based_on.snapshot:
            raise Conflict(f"expected snapshot {based_on.snapshot}, found {current.snapshot}")
        return self.change(snapshot=next(self.snapshots), **{"summary": None, **changes})

    def change(self, **changes: Any) -> Version:
        """Add a version without a condition, and without a new snapshot unless `changes` contains one."""
        assert self.current is not None
        self.versions.append(replace(self.current, number=len(self.versions), **changes))
        return self.versions[-1]

    def rows(self, version: Version | None = None) -> pa.Table:
        """Return the rows of a version, by default of the current version."""
        version = version or self.current
        assert version is not None
        tables = [pq.read_table(pa.BufferReader(self.files[path])) for path in version.paths]
        empty = version.schema.empty_table()
        return pa.concat_tables([empty, *(table.cast(table.schema) for table in tables)], promote_options="default")

    def unreferenced(self) -> set[str]:
        """Return the stored files that no version contains."""
        return set(self.files) - {path for version in self.versions for path in version.paths}


class MemoryTable:
    """One client of a `MemoryCatalog`. `step` is called before each request with its name, and may raise an error.

    If `has_properties` is False, the watermark is not read from the properties.
    """

    def __init__(
        self,
        catalog: MemoryCatalog,
        name: str = "memory.t",
        step: Step = lambda what: None,
        has_properties: bool = True,
    ) -> None:
        self.catalog = catalog
        self.name = name
        self.step = step
        self.has_properties = has_properties

    def load(self) -> TableState | None:
        self.step("load")
        if self.catalog.current is None:
            return None
        state = self._state(self.catalog.current)
        if self.has_properties:
            return state
        summaries = [version.summary for version in self.catalog.versions if version.summary is not None]
        return replace(state, watermark=summaries[-1] if summaries else None)

    def history(self, state: TableState) -> TableHistory:
        numbers = [version for version in self.catalog.versions if version.number <= state.handle.number]
        versions = list(dict.fromkeys(str(version.snapshot) for version in reversed(numbers)))
        if versions[-1] == str(self.catalog.first_snapshot):
            versions[-1] = FIRST_VERSION
        return TableHistory(self.catalog.table_id, versions)

    def create(self, layout: TableLayout, watermark: Watermark) -> TableState:
        self.step("create")
        if self.catalog.current is None:
            first = Version(0, next(self.catalog.snapshots), layout.schema, layout.partition_by, watermark)
            self.catalog.versions.append(first)
            self.catalog.first_snapshot = first.snapshot
        assert self.catalog.current is not None
        return self._state(self.catalog.current)

    def add_columns(self, state: TableState, columns: Sequence[pa.Field]) -> TableState:
        self.step("add_columns")
        if self.catalog.current != state.handle:
            raise Conflict("another commit came first")
        added = {column.name: column for column in columns}
        fields = [added.pop(column.name, column) for column in state.schema]
        return self._state(self.catalog.change(schema=pa.schema([*fields, *added.values()])))

    def for_tasks(self, state: TableState) -> tuple[MemoryTable, TableState]:
        return self, state

    def partition_columns(self, state: TableState) -> Sequence[str]:
        by: PartitionBy | None = state.partitioning
        return () if by is None else by.columns

    def partition_values(self, state: TableState, rows: pa.RecordBatch) -> pa.RecordBatch:
        by: PartitionBy | None = state.partitioning
        if by is None:
            return pa.RecordBatch.from_pydict({})
        if by.transform == "bucket":
            # The hash is not important. A bucket contains the keys with the same last byte.
            last = pc.binary_slice(rows.column(by.columns[0]).cast(pa.string()).cast(pa.binary()), -1)
            return pa.RecordBatch.from_pydict({"bucket": last})
        day = pc.floor_temporal(rows.column(by.columns[0]), unit="day").cast(pa.date32())
        return pa.RecordBatch.from_pydict({"day": day})

    def open_output(self, state: TableState, name: str) -> NewOutput:
        self.step("open_output")
        return NewOutput(name, _File(name, self.catalog.files))

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        self.step("append")
        is_new_source = state.watermark is not None and state.watermark.source != watermark.source
        assert not (files and is_new_source), "a commit with a new source must not contain rows"
        paths = (*state.handle.paths, *(file.path for file in files))
        self.catalog.commit(state.handle, watermark=watermark, summary=watermark, paths=paths)

    def clear(self, state: TableState, watermark: Watermark) -> None:
        self.step("clear")
        self.catalog.commit(state.handle, watermark=watermark, summary=watermark, paths=())

    def upsert(self, state: TableState, changes: ChangeSet, watermark: Watermark) -> None:
        self.step("upsert")
        self.commit_merged(state, self.merge(state, changes), watermark)

    def merge(self, state: TableState, changes: ChangeSet) -> str:
        """Write the rows of a version after the changes to a file, and return its path."""
        rows, effect = self.catalog.rows(state.handle), UpsertEffect()
        for part in changes.parts:
            keys = part.deleted.schema.names
            before, rows = rows, merged(rows, part, keys)
            effect.rows += part.rows.num_rows
            effect.deleted += (
                before.select(keys).join(part.deleted, keys, join_type="left semi", use_threads=False).num_rows
            )
        path = f"merged-{next(self.catalog.snapshots)}.parquet"
        output = _File(path, self.catalog.files)
        pq.write_table(rows, output)
        output.close()
        effect.files, effect.file_bytes = 1, len(self.catalog.files[path])
        changes.effect = effect
        return path

    def commit_merged(self, state: TableState, path: str, watermark: Watermark) -> None:
        try:
            self.catalog.commit(state.handle, watermark=watermark, summary=watermark, paths=(path,))
        except Conflict:
            del self.catalog.files[path]
            raise

    def delete_files(self, paths: Sequence[str]) -> None:
        self.step("delete_files")
        for path in paths:
            self.catalog.files.pop(path, None)

    @staticmethod
    def _state(version: Version) -> TableState:
        return TableState(version.schema, version.watermark, version.partition_by, version)


def merged(rows: pa.Table, changes: RowChanges, keys: Sequence[str]) -> pa.Table:
    """Return the rows after the changes."""
    changed = {tuple(row.values()) for part in (changes.rows.select(keys), changes.deleted) for row in part.to_pylist()}
    remaining = [row for row in rows.to_pylist() if tuple(row[key] for key in keys) not in changed]
    result = pa.Table.from_pylist([*remaining, *changes.rows.to_pylist()], rows.schema)
    return result.take(pc.sort_indices(result, [(key, "ascending") for key in keys]))
