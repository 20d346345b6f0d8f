"""LogView, the protocol of every readable log (a sparklog root, a Kafka directory), and the sizes of offset ranges.

The Spark adapter and the command line speak only to `LogView`. A view answers from a snapshot taken by `refresh`.

A compacted log can have a thousand records in 2^62 offsets. So ranges are measured, split and limited by records and
stored bytes, from metadata alone. All numbers are estimates: they decide where a range is cut, never what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.arguments import NAMES
from sparklog.errors import BadRequest, NotFound
from sparklog.log.journal.clocks import Env

if TYPE_CHECKING:
    import pyarrow as pa

Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BatchRuns:
    """Runs of batches in offset order, one int64[n] array per field: a run's offsets `[base, end)` and its contents.

    `records` is at most the number of its offsets; they are taken to be spread evenly. No record is between two runs.
    """

    base: Int64s
    end: Int64s
    records: Int64s
    nbytes: Int64s
    batches: Int64s

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> BatchRuns:
        # A plan may have ten thousand ranges of a run each.
        base, end, records, nbytes, batches = self._columns()
        return BatchRuns(base[rows], end[rows], records[rows], nbytes[rows], batches[rows])

    def _columns(self) -> tuple[Int64s, ...]:
        return self.base, self.end, self.records, self.nbytes, self.batches

    def ordered(self) -> BatchRuns:
        """Runs that do not overlap, whatever damage did to their offsets."""
        if not len(self):
            return self
        base = np.minimum.accumulate(self.base[::-1])[::-1]
        end = np.maximum(self.end, base)
        end[:-1] = np.minimum(end[:-1], base[1:])
        return BatchRuns(base, end, self.records, self.nbytes, self.batches).counted()[end > base]

    def counted(self) -> BatchRuns:
        """Runs that hold at least a batch each and, where they are at least half full, as many records as offsets.

        As all of Kafka does: markers of transactions take offsets, too, and no cut then gives more records than were
        asked for.
        """
        span = self.end - self.base
        records = np.where(self.records >= span - span // 2, span, np.maximum(self.records, 0))
        return BatchRuns(self.base, self.end, records, self.nbytes, np.maximum(self.batches, 1))

    def clipped(self, start: int, stop: int) -> BatchRuns:
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
        return BatchRuns(*columns)


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Contents of offsets `[start, end)`."""

    start: int
    end: int
    runs: BatchRuns

    @property
    def records(self) -> int:
        """Estimated, markers and aborted records among them."""
        return _total(self.runs.records)

    @property
    def nbytes(self) -> int:
        """Estimated stored bytes."""
        return _total(self.runs.nbytes)

    @property
    def batches(self) -> int:
        """As far as it is known: no more than this."""
        return _total(self.runs.batches)

    def part(self, start: int, end: int) -> Stored:
        return Stored(start, end, self.runs.clipped(start, end))

    def at_records(self, *counts: int) -> list[int]:
        """Return offsets before which so many records are; the range's end where there are no more."""
        return self._offsets_at(self.runs.records, counts)

    def at_bytes(self, *counts: int) -> list[int]:
        """Return offsets before which about so many stored bytes are; the range's end where there are no more."""
        return self._offsets_at(self.runs.nbytes, counts)

    def _offsets_at(self, amounts: Int64s, counts: Sequence[int]) -> list[int]:
        up_to = np.cumsum(amounts)
        rows = np.searchsorted(up_to, np.asarray(counts, np.int64), "right").tolist()
        offsets = []
        for row, count in zip(rows, counts, strict=True):
            if row == len(amounts):
                offsets.append(self.end)
                continue
            # Offsets reach up to 2^63: products of them need Python's integers.
            base, end, amount = int(self.runs.base[row]), int(self.runs.end[row]), int(amounts[row])
            inside = count - (int(up_to[row]) - amount)
            offsets.append(base + (end - base) * inside // amount)
        return offsets


def _total(amounts: Int64s) -> int:
    # A plan may have ten thousand ranges of one run each, and numpy takes 3 µs to sum one.
    return int(amounts.sum()) if len(amounts) > 1 else sum(amounts.tolist())


IsolationLevel = Literal["read_committed", "read_uncommitted"]
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
COUNTED = ("partition",)
"""Read where rows are only counted: the smallest column."""


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns if they are distinct ones of `COLUMNS`, else raise `BadRequest`."""
    NAMES.check("columns", columns)
    if any(name not in COLUMNS for name in columns) or len(set(columns)) != len(columns):
        raise BadRequest(f"expected distinct columns of {', '.join(COLUMNS)}; found {', '.join(columns)}")
    return tuple(columns)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Log start, log end and last stable offset of a partition. `high_watermark` is where uncommitted reads stop."""

    log_start: int
    log_end: int
    last_stable: int
    high_watermark: int

    def end(self, isolation: str) -> int:
        """Return the end (exclusive) for readers of this isolation level."""
        return self.last_stable if isolation == READ_COMMITTED else self.high_watermark


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets `[start, end)` of one partition."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """Answer to a time lookup: the record's offset and its timestamp (ms)."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """Size of one partition, by metadata alone; a slice that the log start cuts counts whole.

    Bytes are those of batches, as Kafka counts them: without indexes and footers.
    """

    topic: str
    partition: int
    append_bytes: int  # in append files, or a Kafka directory's active segment
    sealed_bytes: int  # in sealed (closed) segments
    records: int  # that batches hold, aborted ones of our own transactions and markers left out
    slices: int  # of a topic, or segments of a Kafka directory

    @property
    def total_bytes(self) -> int:
        return self.append_bytes + self.sealed_bytes


class ReadPart(Protocol):
    """A part of a plan that one task reads: picklable; `records` and `nbytes` are estimates for packing."""

    @property
    def range(self) -> OffsetRange: ...
    @property
    def records(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def read(self, columns: Sequence[str], *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
        """The part's records in offset order, batches of about `batch_bytes` with exactly `columns` of `COLUMNS`."""


class PinnedView(Protocol):
    """Topics as they were seen last: enough to read records of them."""

    @property
    def location(self) -> str: ...

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        """Return the bounds of every partition, from the snapshot."""

    def previous_partition_counts(self, topic: str) -> Sequence[int]:
        """The numbers of partitions that the topic had before, growing, as far as is known."""

    def first_dirty_offsets(self, topic: str) -> Mapping[int, int]:
        """Return per partition the offset below which compaction keeps the latest record of each key, if any does."""

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        """Return the contents of each range, from metadata alone. It costs what is stored, not the range's width."""

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        """One part per non-empty range, in the order given."""


class LogView(PinnedView, Protocol):
    """A set of topics that can be read, looked at again as often as wanted."""

    @property
    def env(self) -> Env:
        """The clock by which a reader waits."""

    @property
    def poll_interval_ms(self) -> int:
        """The time that a reader who has seen all waits from now on before it calls `refresh` again."""

    def topics(self, wanted: Callable[[str], bool] | None = None) -> list[str]:
        """Return the names of all topics, sorted; only of those wanted, the others are not opened. Finds new ones."""

    def take(self, wanted: Callable[[str], bool] | None = None) -> list[str]:
        """Take a snapshot of all topics, or of those of wanted names, and return their names, sorted."""

    def topic_id(self, topic: str) -> str:
        """22-character id; differs when a name was deleted and created again. `NotFound` if there is no such topic."""

    def refresh(self, topics: Sequence[str]) -> None:
        """Take a new snapshot of these topics (a probe each when nothing changed)."""

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        """Per partition, the first record below the isolation bound with timestamp >= target (ms); None: no such."""

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        """Return the size of every partition, from the snapshot."""


def refresh_existing(view: LogView, topics: Sequence[str]) -> list[str]:
    """Take a new snapshot of topics, and return those that exist: one that was listed may be deleted since."""
    try:
        view.refresh(topics)
        return list(topics)
    except NotFound:
        present = []
        for topic in topics:
            with suppress(NotFound):
                view.refresh([topic])
                present.append(topic)
        return present
