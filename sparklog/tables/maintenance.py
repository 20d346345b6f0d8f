"""Maintenance of tables of all formats: merging small files.

A copy adds at least one file per partition with each commit. Merging keeps their number bounded. It does not change the
watermark or the rows, and may run at any time, even while a copy runs. A merge is a commit that is based on the loaded
version. If another commit comes first, the merge is not repeated until the next run.

The commits say that the rows do not change (`replace` in Iceberg, `dataChange=false` in Delta), so incremental readers
skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparklog.errors import BadRequest, Conflict
from sparklog.tables.data_files import FILE_BYTES
from sparklog.tables.merge import ExistingFile, MergeTable, compact_files
from sparklog.tables.target import NewFile, TableState


@dataclass
class MaintenanceReport:
    """The results of the maintenance of a table.

    Attributes:
        merged_files: The number of files that were merged.
        written_files: The number of files that replaced them.
        expired_snapshots: The number of snapshots that were removed.
        deleted_files: The locations of deleted files.
    """

    merged_files: int = 0
    written_files: int = 0
    expired_snapshots: int = 0
    deleted_files: list[str] = field(default_factory=list)


class MaintainedTable(MergeTable, Protocol):
    """The access of maintenance to a table."""

    @property
    def name(self) -> str:
        """The name for messages."""

    def load(self) -> TableState | None:
        """Return the current version, or None if the table does not exist."""

    def file_prefix(self, state: TableState) -> str:
        """Return the start of the names of data files."""

    def replace_files(self, state: TableState, added: Sequence[NewFile], removed: Sequence[ExistingFile]) -> None:
        """Replace files with files that contain the same rows, based on exactly `state`. Raises `Conflict` if another
        commit came first.
        """


def merge_small_files(
    table: MaintainedTable, max_files: int, new_id: Callable[[], str], report: MaintenanceReport
) -> None:
    """Merge files of partitions that have more than `max_files` files. If another commit comes first, do nothing."""
    state = loaded(table)
    partitions: dict[tuple[Any, ...], list[ExistingFile]] = {}
    for file in table.existing_files(state):
        if file.partition_values is not None:
            partitions.setdefault(file.partition_values, []).append(file)
    for files in partitions.values():
        merged = files_to_merge(files, max_files)
        if not merged:
            continue
        prefix = f"{table.file_prefix(state)}-merged-{new_id()}"
        files_in_order = sorted(merged, key=_first_position)
        merge = compact_files(table, state, files_in_order, prefix)
        try:
            table.replace_files(state, merge.added, merge.removed)
        except Conflict:
            table.delete_files([file.path for file in merge.added])
            return
        report.merged_files += len(merge.removed)
        report.written_files += len(merge.added)
        state = loaded(table)


def files_to_merge(files: Sequence[ExistingFile], max_files: int) -> list[ExistingFile]:
    """Return the files of a partition to merge, or none if it has at most `max_files` small files.

    Files that are at least half as large as a complete file are not merged. The smallest files are merged, so that at
    most half of `max_files` remain. A larger file is merged with them if it is not larger than all of them together.
    Therefore, a row is rewritten only when the size of its file at least doubles.
    """
    small = sorted((file for file in files if file.nbytes < FILE_BYTES // 2), key=lambda file: file.nbytes)
    if len(small) <= max_files:
        return []
    merged: list[ExistingFile] = []
    nbytes = 0
    for file in small:
        if len(merged) > len(small) - max_files // 2 and file.nbytes > nbytes:
            break
        merged.append(file)
        nbytes += file.nbytes
    return merged


def _first_position(file: ExistingFile) -> tuple[Any, ...]:
    """Return a key that sorts files by topic partition and offset."""
    return tuple(file.bounds.get(name, (0,))[0] for name in ("_partition_id", "_offset"))


class _Loadable(Protocol):
    @property
    def name(self) -> str: ...

    def load(self) -> TableState | None: ...


def loaded(table: _Loadable) -> TableState:
    """Return the current version. Raises `BadRequest` if the table does not exist."""
    state = table.load()
    if state is None:
        raise BadRequest(f"table {table.name} does not exist")
    return state
