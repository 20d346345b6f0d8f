"""`LogView`, the protocol of every readable log (a sparklog root, a Kafka directory), and the sizes of offset ranges.

The Spark adapter and the command line only use `LogView`. A view returns the state that its latest `refresh` has read.

A compacted log may have a thousand records in 2^62 offsets. Therefore, ranges are measured, split and limited by
records and stored bytes, using only metadata. All numbers are estimates, which is sufficient because they only
determine where a range is split.
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
class BatchRanges:
    """Ranges of batches in offset order, with one int64[n] array per field: their offsets `[base, end)` and their
    contents.

    `records` is at most the number of offsets. Records are assumed to be distributed evenly, and to be in one of the
    ranges. In a Kafka directory, there may also be records between the ranges: the header of a compressed message of
    format v0 or v1 has only the last offset of its records, and batches after damage are unknown.
    """

    base: Int64s
    end: Int64s
    records: Int64s
    nbytes: Int64s
    batches: Int64s

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> BatchRanges:
        # Do not use a loop, because a plan may call this method ten thousand times.
        base, end, records, nbytes, batches = self._columns()
        return BatchRanges(base[rows], end[rows], records[rows], nbytes[rows], batches[rows])

    def _columns(self) -> tuple[Int64s, ...]:
        return self.base, self.end, self.records, self.nbytes, self.batches

    def ordered(self) -> BatchRanges:
        """Return ranges that do not overlap, even if corruption has changed their offsets."""
        if not len(self):
            return self
        base = np.minimum.accumulate(self.base[::-1])[::-1]
        end = np.maximum(self.end, base)
        end[:-1] = np.minimum(end[:-1], base[1:])
        return BatchRanges(base, end, self.records, self.nbytes, self.batches).counted()[end > base]

    def counted(self) -> BatchRanges:
        """Return ranges with at least one batch each.

        If a range is at least half full, it has as many records as offsets. Kafka counts in the same way, because
        transaction markers have offsets too. A split by records therefore never returns more records than requested.
        """
        width = self.end - self.base
        records = np.where(self.records >= width - width // 2, width, np.maximum(self.records, 0))
        return BatchRanges(self.base, self.end, records, self.nbytes, np.maximum(self.batches, 1))

    def clipped(self, start: int, stop: int) -> BatchRanges:
        """Return the part in offsets `[start, stop)`.

        The first and last ranges get proportional shares of their contents.
        """
        low = int(np.searchsorted(self.end, start, "right"))
        high = max(low, int(np.searchsorted(self.base, stop, "left")))
        columns = [column[low:high].copy() for column in self._columns()]
        base, end = columns[:2]
        for row in {0, high - low - 1} if high > low else ():
            first, last = max(int(base[row]), start), min(int(end[row]), stop)
            width = int(end[row]) - int(base[row])
            for column in columns[2:]:
                amount, before = int(column[row]), first - int(base[row])
                column[row] = amount * (before + last - first) // width - amount * before // width
            base[row], end[row] = first, last
        return BatchRanges(*columns)


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """The contents of offsets `[start, end)`."""

    start: int
    end: int
    runs: BatchRanges

    @property
    def records(self) -> int:
        """The estimated number of records, including markers and aborted records."""
        return _total(self.runs.records)

    @property
    def nbytes(self) -> int:
        """The estimated number of stored bytes."""
        return _total(self.runs.nbytes)

    @property
    def batches(self) -> int:
        """The maximum number of batches."""
        return _total(self.runs.batches)

    def part(self, start: int, end: int) -> Stored:
        return Stored(start, end, self.runs.clipped(start, end))

    def at_records(self, *counts: int) -> list[int]:
        """For each record count, return the offset after that many records, or the end of the range if the range has
        fewer records.
        """
        return self._offsets_at(self.runs.records, counts)

    def at_bytes(self, *counts: int) -> list[int]:
        """For each byte count, return the approximate offset after that many bytes, or the end of the range if the
        range has fewer bytes.
        """
        return self._offsets_at(self.runs.nbytes, counts)

    def _offsets_at(self, amounts: Int64s, counts: Sequence[int]) -> list[int]:
        up_to = np.cumsum(amounts)
        rows = np.searchsorted(up_to, np.asarray(counts, np.int64), "right").tolist()
        offsets = []
        for row, count in zip(rows, counts, strict=True):
            if row == len(amounts):
                offsets.append(self.end)
                continue
            # Products of offsets exceed int64, so use Python integers.
            base, end, amount = int(self.runs.base[row]), int(self.runs.end[row]), int(amounts[row])
            inside = count - (int(up_to[row]) - amount)
            offsets.append(base + (end - base) * inside // amount)
        return offsets


def _total(amounts: Int64s) -> int:
    # numpy takes 3 µs to sum an array, and a plan may sum ten thousand arrays with one element.
    return int(amounts.sum()) if len(amounts) > 1 else sum(amounts.tolist())


IsolationLevel = Literal["read_committed", "read_uncommitted"]
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
COUNTED = ("partition",)
"""The column to read if rows are only counted. This is the smallest column."""


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns. Raises `BadRequest` if a column is not in `COLUMNS`, or if it is duplicate."""
    NAMES.check("columns", columns)
    if any(name not in COLUMNS for name in columns) or len(set(columns)) != len(columns):
        raise BadRequest(f"expected distinct columns of {', '.join(COLUMNS)}; found {', '.join(columns)}")
    return tuple(columns)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Log start, log end and last stable offset of a partition. Uncommitted reads stop at `high_watermark`."""

    log_start: int
    log_end: int
    last_stable: int
    high_watermark: int

    def end(self, isolation: str) -> int:
        """Return the end (exclusive) for readers with this isolation level."""
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
    """The result of a lookup by timestamp: the record's offset and timestamp (ms)."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """The size of one partition, from metadata only. If a slice contains the log start, its entire size is included.

    As in Kafka, the size of indexes and footers is not included.
    """

    topic: str
    partition: int
    append_bytes: int  # size of append files, or of the active segment in a Kafka directory
    sealed_bytes: int  # size of sealed (closed) segments
    records: int  # number of records, without markers and aborted records of sparklog transactions
    slices: int  # number of slices, or of segments in a Kafka directory

    @property
    def total_bytes(self) -> int:
        return self.append_bytes + self.sealed_bytes


class ReadPart(Protocol):
    """A part of a plan that one task reads.

    It can be pickled. Tasks are planned with the estimates `records` and `nbytes`.
    """

    @property
    def range(self) -> OffsetRange: ...
    @property
    def records(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def read(self, columns: Sequence[str], *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
        """Yield the records in offset order, with these columns of `COLUMNS`, in batches of about `batch_bytes`."""


class LogView(Protocol):
    """A set of topics that can be read. Methods use the snapshots of the latest `refresh` or `refresh_all`."""

    @property
    def location(self) -> str: ...

    @property
    def env(self) -> Env:
        """The environment, whose clock readers use to wait."""

    @property
    def poll_interval_ms(self) -> int:
        """The time until the next `refresh`, for a reader that has read all records."""

    def topics(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        """Return the sorted names of all current topics, or of the topics that `name_filter` accepts."""

    def refresh_all(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        """Read a snapshot of all topics, or of the topics that `name_filter` accepts, and return the sorted topic
        names.
        """

    def topic_id(self, topic: str) -> str:
        """Return the topic's 22-character id, which changes if the topic is created again.

        Raises `NotFound` if it does not exist.
        """

    def refresh(self, topics: Sequence[str]) -> None:
        """Read new snapshots of these topics. If a topic has no changes, one request is sent for it."""

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        """Return the bounds of each partition."""

    def previous_partition_counts(self, topic: str) -> Sequence[int]:
        """Return the known earlier partition counts of the topic, ascending."""

    def first_dirty_offsets(self, topic: str) -> Mapping[int, int]:
        """Return each partition's first dirty offset. Compaction left at most one record per key below this offset."""

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        """Return the contents of each range, from metadata only.

        The cost depends on the number of slices, not of offsets.
        """

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        """Return one part per non-empty range, in the order of the ranges."""

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        """Return, for each partition, the first readable record with a timestamp >= target (ms), or None if there is no
        such record.
        """

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        """Return the size of each partition."""


def refresh_existing(view: LogView, topics: Sequence[str]) -> list[str]:
    """Read new snapshots of topics, and return the topics that still exist, because a listed topic may have been
    deleted.
    """
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
