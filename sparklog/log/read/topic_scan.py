"""Scans and tails read the records of a topic in a view as Arrow record batches.

A tail follows a topic of any `LogView`, including Kafka log directories:

    tail = Tail(view, "orders", READ_COMMITTED)
    tail.open()
    tail.start_at_end()
    while True:
        tail.refresh()
        for batch in tail.poll(("key", "value")):
            ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa

from sparklog.arguments import THREADS
from sparklog.common.settings import as_integer
from sparklog.errors import BadRequest, Conflict, NotFound, shortened
from sparklog.log.read.key_lookup import KeySet
from sparklog.log.read.read_plan import check_partition, read_parts
from sparklog.log.read.record_batches import RecordBatches, schema_of
from sparklog.log.state.view import Bounds, LogView, OffsetRange, ReadPart

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OffsetSpec = int | Literal["earliest", "latest"]
Position = OffsetSpec | Mapping[int, OffsetSpec]
"""The start or end of a scan: `earliest`, `latest`, an offset, or one of these values per partition. Ends are
exclusive.
"""


@dataclass(frozen=True)
class Scan(RecordBatches):
    """The records of a topic in one snapshot. Each iteration reads them as record batches.

    A scan can be passed to any function that accepts an Arrow stream: `pyarrow.table(scan)`, `polars.DataFrame(scan)`,
    a DuckDB query. The records of a partition are in offset order.
    """

    parts: tuple[ReadPart, ...]
    columns: tuple[str, ...]
    batch_bytes: int = 4 << 20
    threads: int = 1
    keys: KeySet | None = None
    noun = "scan"

    @property
    def schema(self) -> pa.Schema:
        """The schema of each record batch."""
        return schema_of(self.columns)

    @property
    def ranges(self) -> list[OffsetRange]:
        return [part.range for part in self.parts]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self.keys is None:
            return read_parts(self.parts, self.columns, batch_bytes=self.batch_bytes, threads=self.threads)
        columns = self.keys.columns(self.columns)
        rows = self.keys.rows(read_parts(self.parts, columns, batch_bytes=self.batch_bytes, threads=self.threads))
        return rows if columns == self.columns else (batch.select(self.columns) for batch in rows)


def check_threads(threads: int) -> int:
    THREADS.check("threads", threads)
    return int(threads)


def scan_ranges(
    view: LogView, topic: str, partitions: Sequence[int] | None, start: Position, end: Position, isolation: str
) -> list[OffsetRange]:
    """Return the offset ranges of a scan of these partitions, or of all partitions if `partitions` is None.

    Raises:
        NotFound: If a partition or an offset does not exist.
        BadRequest: If the start of a range is after its end.
    """
    bounds = view.bounds(topic)
    for position in (start, end):
        for partition in position if isinstance(position, Mapping) else ():
            check_partition(topic, partition, bounds)
    ranges = []
    for partition in sorted(bounds) if partitions is None else dict.fromkeys(partitions):
        limits = check_partition(topic, partition, bounds)
        low = _offset("start", start, partition, limits, isolation, EARLIEST)
        high = _offset("end", end, partition, limits, isolation, LATEST)
        if low > high and not (isinstance(start, str) or isinstance(end, str)):
            raise BadRequest(f"expected start <= end for partition {partition}, found {low} and {high}")
        for name, offset in (("start", low), ("end", high)):
            if not limits.log_start <= offset <= limits.log_end:
                raise NotFound(
                    f"{name}={offset} of {topic}-{partition} is out of range: expected {limits.log_start} to "
                    f"{limits.log_end}, {EARLIEST} or {LATEST}"
                )
        ranges.append(OffsetRange(topic, partition, low, high))
    return ranges


def _offset(name: str, position: Position, partition: int, bounds: Bounds, isolation: str, default: OffsetSpec) -> int:
    if isinstance(position, Mapping):
        position = position.get(partition, default)
    if position == EARLIEST:
        return bounds.log_start
    if position == LATEST:
        return bounds.end(isolation)
    offset = as_integer(position)
    if offset is None or offset < 0:
        raise BadRequest(f"{name} must be {EARLIEST}, {LATEST} or a non-negative offset, found {shortened(position)}")
    return offset


@dataclass
class Tail:
    """A reader that follows one topic. Its position is the next offset of each partition.

    `poll` reads from the position to the log end offset, or to `ends` if `ends` is specified. If the topic is deleted
    and created again, `refresh` raises an error. If retention has deleted offsets before they were read, `poll` calls
    `warn` and skips them.
    """

    view: LogView
    topic: str
    isolation: str
    partition: int | None = None
    warn: Callable[[str], None] = lambda message: None
    positions: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    topic_id: str = ""
    keys: KeySet | None = None
    """The keys whose records are read. If None, all records are read."""

    def open(self) -> None:
        self.topic_id = self.view.topic_id(self.topic)
        self.view.refresh([self.topic])
        bounds = self.view.bounds(self.topic)
        if self.partition is not None and self.partition not in bounds:
            raise NotFound(
                f"topic {self.topic} has no partition {self.partition}; the last partition is {max(bounds, default=-1)}"
            )

    def start_at_log_start(self) -> None:
        self.positions = {partition: bounds.log_start for partition, bounds in self._bounds().items()}

    def start_at_end(self) -> None:
        self.positions = {partition: bounds.end(self.isolation) for partition, bounds in self._bounds().items()}

    def start_at_offset(self, offset: int) -> None:
        for partition, bounds in self._bounds().items():
            start, end = bounds.log_start, bounds.end(self.isolation)
            if not start <= offset <= end:
                raise NotFound(
                    f"offset {offset} of {self.topic}-{partition} is out of range: expected {start} to {end}"
                )
            self.positions[partition] = offset

    def start_at_time(self, timestamp_ms: int) -> None:
        """Start at the first record at or after a time in each partition, or at the end if there is no such record."""
        self.start_at_end()
        targets = dict.fromkeys(self.positions, timestamp_ms)
        records = self.view.offsets_for_timestamps(self.topic, targets, self.isolation)
        self.positions.update({partition: result.offset for partition, result in records.items() if result is not None})

    def poll(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the records from the position to the end. The position of a partition advances after its last batch."""
        for partition, bounds in self._bounds().items():
            start, log_start = self.positions.get(partition, bounds.log_start), bounds.log_start
            if start < log_start:
                self.warn(f"offsets {start} to {log_start - 1} of {self.topic}-{partition} were deleted: skipping them")
                start = log_start
            end = max(start, min(bounds.end(self.isolation), self.ends.get(partition, bounds.log_end)))
            yield from self._read(OffsetRange(self.topic, partition, start, end), columns)
            self.positions[partition] = end

    def _read(self, offsets: OffsetRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        if self.keys is None:
            for part in self.view.plan([offsets], self.isolation):
                yield from part.read(columns)
            return
        ranges = self.keys.ranges(self.view, [offsets])
        for part in self.keys.parts(self.view.plan(ranges, self.isolation)):
            for batch in self.keys.rows(part.read(self.keys.columns(columns))):
                yield batch.select(columns)

    def refresh(self) -> None:
        """Refresh the view. Raises `Conflict` if the topic was deleted and recreated."""
        self.view.refresh([self.topic])
        if self.view.topic_id(self.topic) != self.topic_id:
            raise Conflict(f"topic {self.topic} was deleted and recreated during the read; restart the read")

    def at_end(self) -> bool:
        bounds = self._bounds().items()
        return all(self.positions.get(partition, -1) >= limits.end(self.isolation) for partition, limits in bounds)

    def _bounds(self) -> dict[int, Bounds]:
        bounds = self.view.bounds(self.topic)
        return {partition: bounds[partition] for partition in sorted(bounds) if self.partition in (None, partition)}
