"""The slices of one range as a plan carries them to tasks: columns of plain arrays, small to pickle."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparklog.log.journal.names import file_key
from sparklog.log.state.slice_table import Slices

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
        columns = [getattr(self, name)[low:high].tolist() for name in _NUMBERS]
        return [
            PlannedSlice(self.topic, self.partition, file, *numbers, aborted=self.aborted)  # type: ignore[misc]
            for file, *numbers in zip(files, *columns, strict=True)
        ]

    def row(self, i: int) -> PlannedSlice:
        """Slice i as plain integers."""
        return self.rows(i, i + 1)[0]


_OTHERS = ("topic", "partition", "file", "aborted")
_NUMBERS = tuple(each.name for each in fields(PlannedSlice) if each.name not in _OTHERS)


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
