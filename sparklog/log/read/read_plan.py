"""The slices of one range as a plan carries them to tasks: columns of plain arrays, small to pickle.

The slices of one partition that a piece of maintenance rewrites, as a plan carries them to its task.

Like `sparklog.log.read.read_plan`, but with all that a rewrite must carry over (flags, leader epoch, status) and with
paths as commits name them, so that the task can say exactly which inputs it replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparklog.log.journal.names import file_key
from sparklog.log.state.intents import Input
from sparklog.log.state.slice_table import ABORTED, Slices

if TYPE_CHECKING:
    from sparklog.format.transaction_index import AbortedTransactions


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """One slice to read. Offsets are the log's; `shift` is what turns those in its batch headers into them.

    `position` and `size`: bytes in `file` (a key of the store). `append_time`: ms, or -1 where batches have their own
    times. `footer_length` is 0 where there is no footer (sealed segments).
    """

    topic: str
    partition: int
    file: str
    file_size: int
    footer_length: int
    position: int
    size: int
    base: int
    end: int
    shift: int
    records: int
    crc: int
    append_time: int
    aborted: AbortedTransactions | None = None
    """Of Kafka's transactions: their records are not to be seen, whichever slice they are in."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSlices:
    """Slices of one partition in offset order: one int64[n] array per field, `file` an index into `files`.

    `aborted`: as in `PlannedSlice`, one for all of them; None where nothing is hidden.
    """

    topic: str
    partition: int
    files: tuple[str, ...]
    file: Int64s
    file_size: Int64s
    footer_length: Int64s
    position: Int64s
    size: Int64s
    base: Int64s
    end: Int64s
    shift: Int64s
    records: Int64s
    crc: Int64s
    append_time: Int64s
    aborted: AbortedTransactions | None = None

    def __len__(self) -> int:
        return len(self.file)

    def rows(self, low: int, high: int) -> list[PlannedSlice]:
        """Slices `[low, high)` as plain integers."""
        files = [self.files[code] for code in self.file[low:high].tolist()]
        columns = [getattr(self, name)[low:high].tolist() for name in _PLANNED_NUMBERS]
        return [
            PlannedSlice(self.topic, self.partition, file, *numbers, aborted=self.aborted)  # type: ignore[misc]
            for file, *numbers in zip(files, *columns, strict=True)
        ]

    def row(self, i: int) -> PlannedSlice:
        """Slice i as plain integers."""
        return self.rows(i, i + 1)[0]


_OTHERS = ("topic", "partition", "file", "aborted")
_PLANNED_NUMBERS = tuple(each.name for each in fields(PlannedSlice) if each.name not in _OTHERS)


def planned_slices(topic: str, partition: int, found: Slices) -> PlannedSlices:
    """Rows of one partition of the slice table as plans carry them."""
    codes, file = np.unique(found.file, return_inverse=True)
    return PlannedSlices(
        topic=topic,
        partition=partition,
        files=tuple(file_key(topic, found.paths[code]) for code in codes.tolist()),
        file=file.astype(np.int64),
        file_size=found.file_size,
        footer_length=found.footer_length.astype(np.int64),
        position=found.position,
        size=found.size,
        base=found.base,
        end=found.end,
        shift=found.shift,
        records=found.records,
        crc=found.crc.astype(np.int64),
        append_time=found.append_time,
    )


@dataclass(frozen=True, slots=True)
class SourceSlice:
    """One slice to rewrite, as in the slice table; `path` below the topic's folder, `file` its key in the store."""

    path: str
    file: str
    file_size: int
    footer_length: int
    position: int
    size: int
    base: int
    end: int
    shift: int
    records: int
    min_ts: int
    max_ts: int
    crc: int
    flags: int
    append_time: int
    leader_epoch: int
    status: int

    @property
    def aborted(self) -> bool:
        """Whether a transaction that was aborted wrote it: rewriting drops it."""
        return self.status == ABORTED

    @property
    def sealed(self) -> bool:
        """Whether it is a sealed segment: absolute offsets in its batches, no footer."""
        return self.footer_length == 0

    def input(self) -> Input:
        """How an edit names it."""
        return Input(self.path, self.position, self.base, self.end)

    def planned(self, topic: str, partition: int) -> PlannedSlice:
        """As `sparklog.log.read.fetch` reads it."""
        return PlannedSlice(
            topic,
            partition,
            self.file,
            self.file_size,
            self.footer_length,
            self.position,
            self.size,
            self.base,
            self.end,
            self.shift,
            self.records,
            self.crc,
            self.append_time,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SourceSlices:
    """Slices of one partition in offset order: one int64[n] array per number of `SourceSlice`. Picklable."""

    topic: str
    partition: int
    paths: tuple[str, ...]
    path: Int64s
    """Index into `paths`."""
    file_size: Int64s
    footer_length: Int64s
    position: Int64s
    size: Int64s
    base: Int64s
    end: Int64s
    shift: Int64s
    records: Int64s
    min_ts: Int64s
    max_ts: Int64s
    crc: Int64s
    flags: Int64s
    append_time: Int64s
    leader_epoch: Int64s
    status: Int64s

    def __len__(self) -> int:
        return len(self.path)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> SourceSlices:
        """Some rows, still in order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("path", *_SOURCE_NUMBERS)})

    def row(self, i: int) -> SourceSlice:
        """One slice as plain integers."""
        path = self.paths[int(self.path[i])]
        return SourceSlice(path, file_key(self.topic, path), *(int(getattr(self, name)[i]) for name in _SOURCE_NUMBERS))

    def rows(self) -> list[SourceSlice]:
        """All of them as plain integers."""
        paths = [self.paths[code] for code in self.path.tolist()]
        columns = [getattr(self, name).tolist() for name in _SOURCE_NUMBERS]
        return [
            SourceSlice(path, file_key(self.topic, path), *numbers)
            for path, *numbers in zip(paths, *columns, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Stored bytes of all of them."""
        return int(self.size.sum())

    def inputs(self) -> tuple[Input, ...]:
        """How an edit names them."""
        rows = zip(self.path.tolist(), self.position.tolist(), self.base.tolist(), self.end.tolist(), strict=True)
        return tuple(Input(self.paths[path], position, base, end) for path, position, base, end in rows)


_SOURCE_NUMBERS = tuple(
    each.name for each in fields(SourceSlices) if each.name not in ("topic", "partition", "paths", "path")
)


def source_slices(topic: str, partition: int, found: Slices) -> SourceSlices:
    """Rows of one partition of the slice table as plans carry them."""
    codes, path = np.unique(found.file, return_inverse=True)
    return SourceSlices(
        topic=topic,
        partition=partition,
        paths=tuple(found.paths[code] for code in codes.tolist()),
        path=path.astype(np.int64),
        **{name: getattr(found, name).astype(np.int64) for name in _SOURCE_NUMBERS},
    )
