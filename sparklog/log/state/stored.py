"""The contents of a range of offsets as planners measure them: runs of batches, from metadata alone.

Offsets say little about how much a range holds: a compacted log can have a thousand records in 2^62 offsets. So ranges
are measured, split and limited by records and stored bytes. All numbers are estimates; they decide where a range is
cut and never what is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of batches in offset order, one int64[n] array per field: a run's offsets `[base, end)` and its contents.

    `records` is at most the number of its offsets; they are taken to lie evenly. No record lies between two runs.
    """

    base: Int64s
    end: Int64s
    records: Int64s
    nbytes: Int64s
    batches: Int64s

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> Runs:
        return Runs(*(column[rows] for column in self._columns()))

    def _columns(self) -> tuple[Int64s, ...]:
        return self.base, self.end, self.records, self.nbytes, self.batches

    def ordered(self) -> Runs:
        """Runs that do not overlap, whatever damage did to their offsets.

        A run that is at least half full counts by its offsets, as all of Kafka does: markers of transactions take
        offsets, too, and no cut then gives more records than were asked for.
        """
        if not len(self):
            return self
        base = np.minimum.accumulate(self.base[::-1])[::-1]
        end = np.maximum(self.end, base)
        end[:-1] = np.minimum(end[:-1], base[1:])
        span = end - base
        records = np.where(self.records >= span - span // 2, span, np.maximum(self.records, 0))
        ordered = Runs(base, end, records, self.nbytes, np.maximum(self.batches, 1))
        return ordered[span > 0]

    def clipped(self, start: int, stop: int) -> Runs:
        """The runs of offsets `[start, stop)`, the first and the last one with their share of what they hold."""
        low = int(np.searchsorted(self.end, start, "right"))
        high = max(low, int(np.searchsorted(self.base, stop, "left")))
        columns = [column[low:high].copy() for column in self._columns()]
        base, end = columns[:2]
        for row in {0, high - low - 1} if high > low else ():
            first, last = max(int(base[row]), start), min(int(end[row]), stop)
            span = int(end[row]) - int(base[row])
            for column in columns[2:]:
                amount, before = int(column[row]), first - int(base[row])
                column[row] = amount * (before + last - first) // span - amount * before // span
            base[row], end[row] = first, last
        return Runs(*columns)


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What offsets `[start, end)` hold."""

    start: int
    end: int
    runs: Runs

    @property
    def records(self) -> int:
        """Estimated, markers and aborted records among them."""
        return int(self.runs.records.sum())

    @property
    def nbytes(self) -> int:
        """Estimated stored bytes."""
        return int(self.runs.nbytes.sum())

    @property
    def batches(self) -> int:
        """As far as it is known: no more than this."""
        return int(self.runs.batches.sum())

    def part(self, start: int, end: int) -> Stored:
        """What some of these offsets hold."""
        return Stored(start, end, self.runs.clipped(start, end))

    def at_records(self, *counts: int) -> list[int]:
        """Offsets before which so many records lie; the range's end where there are no more."""
        return self._offsets_at(self.runs.records, counts)

    def at_bytes(self, *counts: int) -> list[int]:
        """Offsets before which about so many stored bytes lie; the range's end where there are no more."""
        return self._offsets_at(self.runs.nbytes, counts)

    def _offsets_at(self, amounts: Int64s, counts: Sequence[int]) -> list[int]:
        up_to = np.cumsum(amounts)
        rows = np.searchsorted(up_to, np.asarray(counts, np.int64), "right").tolist()
        found = []
        for row, count in zip(rows, counts, strict=True):
            if row == len(amounts):
                found.append(self.end)
                continue
            # Offsets reach up to 2^63: products of them need Python's integers.
            base, end, amount = int(self.runs.base[row]), int(self.runs.end[row]), int(amounts[row])
            inside = count - (int(up_to[row]) - amount)
            found.append(base + (end - base) * inside // amount)
        return found
