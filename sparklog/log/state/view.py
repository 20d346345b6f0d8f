"""What every readable log looks like to its readers: a sparklog root and a Kafka directory implement the same protocol.

The Spark adapter and the command line speak only to `LogView`. A view answers from a snapshot taken by `refresh`;
offsets are Kafka's: inclusive start, exclusive end. `ReadPart`s are picklable and carry all that a task needs to read
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sparklog.log.state.stored import Stored

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        # Kafka's exact milliseconds; the Spark adapter casts to microseconds and saturates there.
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one partition: log start, log end and last stable offset. `high_watermark` is where uncommitted reads stop."""

    log_start: int
    log_end: int
    last_stable: int
    high_watermark: int

    def end(self, isolation: str) -> int:
        """Where a reader of this isolation level stops (exclusive)."""
        return self.last_stable if isolation == READ_COMMITTED else self.high_watermark


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets `[start, end)` of one partition of one topic."""

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
    """What one partition takes, by metadata alone; a slice that the log start cuts counts whole.

    * `append_bytes`: in append files, or a Kafka directory's active segment; `sealed_bytes`: in sealed (closed)
      segments; bytes of batches, as Kafka counts them: without indexes and footers
    * `records`: that batches hold, aborted ones of our own transactions and markers left out
    * `slices`: of a topic, or segments of a Kafka directory
    """

    topic: str
    partition: int
    append_bytes: int
    sealed_bytes: int
    records: int
    slices: int

    @property
    def total_bytes(self) -> int:
        return self.append_bytes + self.sealed_bytes


class ReadPart(Protocol):
    """Something one task reads: picklable; `records` and `nbytes` are estimates for packing."""

    @property
    def range(self) -> OffsetRange: ...

    @property
    def records(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def read(self, columns: Sequence[str], *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
        """The part's records in offset order, batches of about `batch_bytes` with exactly `columns` of `COLUMNS`."""
        ...


class TakenView(Protocol):
    """Topics as they were seen last: enough to read records of them."""

    @property
    def location(self) -> str: ...

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        """Of every partition, from the snapshot."""
        ...

    def earlier_partitions(self, topic: str) -> Sequence[int]:
        """The numbers of partitions that the topic had before, growing, as far as is known."""
        ...

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        """What each range holds, from metadata alone: costs what is stored there, however many offsets it spans."""
        ...

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        """One part per non-empty range, in the order given."""
        ...


class LogView(TakenView, Protocol):
    """A set of topics that can be read, looked at again as often as wanted."""

    @property
    def poll_interval_ms(self) -> int:
        """How often an idle tail may look: 10 locally, 250 on an object store."""
        ...

    def topics(self) -> list[str]:
        """Names of all topics, sorted. Finds new ones."""
        ...

    def topic_id(self, topic: str) -> str:
        """22-character id; differs when a name was deleted and created again. `NotFound` if there is no such topic."""
        ...

    def refresh(self, topics: Sequence[str]) -> None:
        """Take a new snapshot of these topics (a probe each when nothing changed)."""
        ...

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        """Per partition, the first record below the isolation bound with timestamp >= target (ms); None: no such."""
        ...

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        """Of every partition, from the snapshot."""
        ...
