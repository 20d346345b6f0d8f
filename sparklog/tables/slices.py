"""The slices of an interval of offsets: how an interval is divided, and the work that reads and writes a slice.

A `SliceWork` is picklable and contains everything that it needs, so that it runs in this process or in a Spark task
(see `sparklog.maintenance.work_items`). It reads the records of its slice and converts them to rows. In append mode, it
writes the rows to files. In upsert mode, it retains the latest row of each key. The caller commits the results of all
slices together with the watermark.

**Attempts.** A task may run several times, for example if its executor is lost. Each attempt writes to new files,
because their names contain a random id. The caller only gets the files of one attempt. The files of the others are not
part of the table, like the files of a run that is killed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar

import pyarrow as pa

from sparklog.errors import NotFound
from sparklog.log.journal.clocks import Env
from sparklog.log.read.read_plan import TaskParts, read_parts
from sparklog.log.state.view import OffsetRange, Stored
from sparklog.maintenance.work_items import Progress, WorkItem, silent
from sparklog.tables.data_files import DataFileWriter
from sparklog.tables.latest import LatestRows, TooManyChanges
from sparklog.tables.rows import NewColumns, RowDecoder, bad_records, conform
from sparklog.tables.target import NewFile, TableState, TargetTable, rows_by_partition

BadRecords = Literal["fail", "skip", "quarantine"]
MIN_SLICE_RECORDS = 100_000
"""Minimum number of records per slice, which correspond to 100 ms of work. Fewer records are not divided."""
BAD_RECORD_BYTES = 64 << 20
"""Maximum size in memory of the bad records of an interval."""
T = TypeVar("T", bound=WorkItem)


class SliceRunner(Protocol):
    """Runs the slices of an interval. `InProcess` and `SparkRunner` implement it."""

    @property
    def parallelism(self) -> int:
        """The number of slices into which an interval is divided."""

    def run(self, works: Sequence[T]) -> Iterator[tuple[T, Any]]:
        """Run work items in any order, and yield each with its result, or with the `SparklogError` that it raised."""


class MissingRecords(Exception):  # noqa: N818
    """Records of an interval do not exist. `cause` is the error of the read."""

    def __init__(self, cause: NotFound) -> None:
        super().__init__(cause)
        self.cause = cause


class BadRecord(Exception):  # noqa: N818
    """A record does not match the schema."""

    def __init__(self, partition: int, offset: int, reason: str) -> None:
        super().__init__(partition, offset, reason)
        self.partition = partition
        self.offset = offset
        self.reason = reason


PROBLEMS = (BadRecord, MissingRecords, NewColumns, TooManyChanges)
"""Problems that a work item returns instead of raising, because a Spark task would be repeated if it raised them."""


@dataclass
class SliceRows:
    """The result of a slice.

    Attributes:
        records: The number of records that were read.
        rows: The number of their rows.
        bad_count: The number of bad records.
        bad: The bad records, as rows of the quarantine table. Empty unless they are quarantined.
        files: The files with the rows in append mode.
        latest: The latest row of each key in upsert mode.
        usage: The share of the memory for changes and bad records that the slice uses.
    """

    records: int = 0
    rows: int = 0
    bad_count: int = 0
    bad: list[pa.RecordBatch] = field(default_factory=list)
    files: Sequence[NewFile] = ()
    latest: LatestRows | None = None
    usage: float = 0


@dataclass(frozen=True, kw_only=True)
class SliceRead(ABC):
    """Reads and decodes a slice. `nbytes` is its size, and `title` is its name in messages.

    Attributes:
        parts: The records to read.
        decoder: The conversion of records to rows.
        bad_records: The action for a bad record.
        max_bad: The maximum size in memory of the bad records.
        batch_bytes: The size of the batches that are read.
    """

    title: str
    nbytes: int
    parts: TaskParts
    decoder: RowDecoder
    bad_records: BadRecords
    max_bad: int
    batch_bytes: int

    file_count = 0

    @abstractmethod
    def run(self, progress: Progress = silent) -> SliceRows | Exception:
        """Return the result of the slice, or one of `PROBLEMS`."""

    def _rows(self, result: SliceRows) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray, pa.RecordBatch]]:
        """Yield rows, whether they are deleted, and their records. Bad records are raised, skipped or collected."""
        nbytes = 0
        for records in self._records():
            result.records += records.num_rows
            decoded = self.decoder.decode(records)
            if decoded.reasons:
                result.bad_count += len(decoded.reasons)
                if self.bad_records == "fail":
                    row = min(decoded.reasons)
                    partition, offset = records["partition"][row].as_py(), records["offset"][row].as_py()
                    raise BadRecord(partition, offset, decoded.reasons[row])
                if self.bad_records == "quarantine":
                    result.bad.append(bad_records(records, decoded.reasons, self.decoder.topic))
                    nbytes += result.bad[-1].nbytes
                    result.usage = nbytes / self.max_bad
                    if nbytes > self.max_bad and result.records > 1:
                        raise TooManyChanges(result.records)
            yield decoded.valid(records)

    def _records(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_parts(self.parts, self.decoder.columns, batch_bytes=self.batch_bytes)
        except NotFound as error:
            raise MissingRecords(error) from error


@dataclass(frozen=True, kw_only=True)
class SliceCheck(SliceRead):
    """Decodes the records of a slice, to find problems before the table is created.

    Attributes:
        grow_schema: True if the records may have columns that the new table does not have.
    """

    grow_schema: bool

    def run(self, progress: Progress = silent) -> SliceRows | Exception:
        """Return the number of records, or one of `PROBLEMS`."""
        result = SliceRows()
        try:
            for rows, _, _ in self._rows(result):
                if not self.grow_schema:
                    conform(rows, self.decoder.schema)
        except PROBLEMS as problem:
            return problem
        return result


@dataclass(frozen=True, kw_only=True)
class SliceWork(SliceRead):
    """Reads a slice, and writes its rows or retains the latest row of each key.

    Attributes:
        target: The table, as returned by `TargetTable.for_tasks`.
        state: The version for which the rows are written.
        topic_id: The id of the topic.
        max_changes: The maximum size in memory of the changes in upsert mode.
        is_split: True to write the changes to a temporary file. `max_changes` then applies to each partition of the
            table.
        env: Returns a random id for each attempt.
    """

    target: TargetTable
    state: TableState
    topic_id: str
    max_changes: int
    is_split: bool
    env: Env

    def run(self, progress: Progress = silent) -> SliceRows | Exception:
        """Return the rows of the slice, or one of `PROBLEMS`."""
        try:
            return self._latest() if self.decoder.options.upsert else self._written()
        except PROBLEMS as problem:
            return problem

    def _written(self) -> SliceRows:
        result = SliceRows()
        ends = {part.range.partition: part.range.end for part in self.parts}
        attempt = self.env.new_id()
        with DataFileWriter(self.target, self.state, self.topic_id, attempt, ends) as writer:
            for rows, _, records in self._rows(result):
                writer.write(conform(rows, self.state.schema), records["partition"], records["offset"])
                result.rows += rows.num_rows
            result.files = writer.finish()
        return result

    def _latest(self) -> SliceRows:
        split = partial(rows_by_partition, self.target, self.state) if self.is_split else None
        latest = LatestRows(self.decoder.keys, self.state.schema, self.max_changes, split)
        result = SliceRows(latest=latest)
        try:
            for rows, deleted, records in self._rows(result):
                latest.add(conform(rows, self.state.schema), deleted, records["partition"], records["offset"])
        except BaseException:
            latest.close()
            raise
        result.usage = max(result.usage, latest.usage)
        return result


def divide(
    ranges: Sequence[OffsetRange], stored: Sequence[Stored], slices: int, min_records: int
) -> list[list[OffsetRange]]:
    """Divide ranges into at most this number of slices with about the same number of records.

    Args:
        ranges: The ranges, at most one per topic partition.
        stored: The contents of the ranges.
        slices: The maximum number of slices.
        min_records: The minimum number of records per slice, if there is more than one slice.
    """
    total = sum(part.records for part in stored)
    share = max(1, -(-total // max(1, min(slices, total // min_records))))
    divided: dict[int, list[OffsetRange]] = {}
    position = 0
    for offsets, part in zip(ranges, stored, strict=True):
        records = part.records
        cuts = part.at_records(*range(share - position % share, records, share))
        bounds = sorted({offsets.start, *cuts, offsets.end})
        for number, (start, end) in enumerate(pairwise(bounds), position // share):
            divided.setdefault(number, []).append(replace(offsets, start=start, end=end))
        position += records
    return list(divided.values())
