"""Slices of one partition that a task reads or rewrites. They are stored in plain arrays, which are small when they are
pickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparklog.format.slice_columns import PLANNED, SliceRow
from sparklog.log.journal.names import file_key
from sparklog.log.state.slice_table import ABORTED, Columns, ColumnsByName, Slices

if TYPE_CHECKING:
    from sparklog.format.transaction_index import AbortedTransactions
    from sparklog.log.state.rewrites import Input


@dataclass(slots=True, eq=False)
class PlannedSlice(SliceRow):
    """A slice to read or rewrite, with columns of the slice table.

    The class is not frozen, because a task creates thousands of instances.
    """

    file_size: int
    footer_length: int
    leader_epoch: int
    status: int
    topic: str
    partition: int
    path: str  # path below the topic's directory, as in commits
    file: str  # key of the file in the store
    hidden: AbortedTransactions | None  # Kafka's aborted transactions, whose records are skipped

    @property
    def aborted(self) -> bool:
        return self.status == ABORTED

    @property
    def sealed(self) -> bool:
        """True for a sealed segment, which has absolute offsets and no footer."""
        return self.footer_length == 0

    def input(self) -> Input:
        from sparklog.log.state.rewrites import Input

        return Input(self.path, self.position, self.base, self.end)


_NUMBERS = tuple(field.name for field in fields(PlannedSlice) if field.name in PLANNED)


class ColumnRows(Mapping[str, npt.NDArray[Any]]):
    """Rows `[low, high)` of columns. Columns are sliced on access, because a plan may have ten thousand single rows."""

    __slots__ = ("high", "low", "whole")

    def __init__(self, whole: Columns, low: int, high: int) -> None:
        self.whole = whole
        self.low = low
        self.high = high

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.whole[name][self.low : self.high]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)


@dataclass(frozen=True, eq=False)
class PlannedSlices(ColumnsByName):
    """Slices of one partition in offset order."""

    topic: str
    partition: int
    paths: tuple[str, ...]
    columns: Mapping[str, npt.NDArray[Any]]  # columns of the slice table, except that `file` is an index into `paths`
    hidden: AbortedTransactions | None = None  # Kafka's aborted transactions of all slices, as in `PlannedSlice`

    def __getitem__(self, rows: slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> PlannedSlices:
        return replace(self, columns={name: column[rows] for name, column in self.columns.items()})

    def rows(self, low: int = 0, high: int | None = None) -> list[PlannedSlice]:
        paths = [self.paths[code] for code in self.columns["file"][low:high].tolist()]
        files = [file_key(self.topic, path) for path in paths]
        numbers = [self.columns[name][low:high].tolist() for name in _NUMBERS]
        topic, partition, hidden = repeat(self.topic), repeat(self.partition), repeat(self.hidden)
        return list(map(PlannedSlice, *numbers, topic, partition, paths, files, hidden))

    def row(self, i: int) -> PlannedSlice:
        return self.rows(i, i + 1)[0]

    @property
    def nbytes(self) -> int:
        return int(self.columns["size"].sum())

    def inputs(self) -> tuple[Input, ...]:
        from sparklog.log.state.rewrites import Input

        rows = zip(*(self.columns[name].tolist() for name in ("file", "position", "base", "end")), strict=True)
        return tuple([Input(self.paths[code], position, base, end) for code, position, base, end in rows])


def count_files(sources: Iterable[PlannedSlices]) -> int:
    """Return the number of files that contain these slices of one topic."""
    return len({part.paths[code] for part in sources for code in np.unique(part.columns["file"]).tolist()})


def planned_slices(topic: str, partition: int, rows: Slices, low: int = 0, high: int | None = None) -> PlannedSlices:
    rows = rows[slice(low, high)]
    return planned_ranges([(topic, partition)], rows, [0, len(rows)])[0]


def planned_ranges(partitions: Sequence[tuple[str, int]], rows: Slices, cuts: Sequence[int]) -> list[PlannedSlices]:
    """Return the slices of each range. The slices of range i are `rows[cuts[i] : cuts[i + 1]]`.

    The results share their columns. `partitions` contains the topic and partition of each range.
    """
    codes, file = rows.file.tolist(), np.zeros(len(rows), np.int32)
    columns = {"file": file, **{name: rows.columns[name] for name in PLANNED}}
    plans = []
    for (topic, partition), low, high in zip(partitions, cuts, cuts[1:], strict=False):
        numbers: dict[int, int] = {}
        of_each = [numbers.setdefault(code, len(numbers)) for code in codes[low:high]]
        if len(numbers) > 1:
            file[low:high] = of_each
        paths = tuple([rows.paths[code] for code in numbers])
        plans.append(PlannedSlices(topic, partition, paths, ColumnRows(columns, low, high)))
    return plans


def joined(parts: Sequence[PlannedSlices]) -> PlannedSlices:
    """Join the slices of consecutive plans of the same partition."""
    first = np.cumsum([0, *(len(part.paths) for part in parts)])
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in PLANNED}
    columns["file"] = np.concatenate([part.file + start for part, start in zip(parts, first, strict=False)])
    return replace(parts[0], paths=tuple(path for part in parts for path in part.paths), columns=columns)
