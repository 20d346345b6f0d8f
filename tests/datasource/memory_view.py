"""A LogView over lists, for tests of planning without files and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sparklog.errors import NotFound
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import COLUMNS, BatchRanges, Bounds, OffsetRange, Stored, TimestampOffset, refresh_existing

RECORD_BYTES = 100


def dense(held: OffsetRange, nbytes: int) -> Stored:
    """Return the stored part of a range without gaps, with one batch per record."""
    if held.end == held.start:
        return Stored(held.start, held.end, BatchRanges(*np.zeros((5, 0), np.int64)))
    count = held.end - held.start
    numbers = (held.start, held.end, count, nbytes, count)
    return Stored(held.start, held.end, BatchRanges(*(np.array([number], np.int64) for number in numbers)))


@dataclass
class MemoryPartition:
    """A partition in which record i has the offset `log_start_of_list + i`. `times` contains the timestamps in ms."""

    times: list[int] = field(default_factory=list)
    log_start: int = 0
    last_stable: int | None = None

    @property
    def log_end(self) -> int:
        return len(self.times)

    def bounds(self) -> Bounds:
        stable = self.log_end if self.last_stable is None else self.last_stable
        return Bounds(self.log_start, self.log_end, stable, self.log_end)


@dataclass(frozen=True)
class MemoryPart:
    """Reads a range of a partition. The key of a record is its offset as text."""

    range: OffsetRange
    times: tuple[int, ...]

    @property
    def records(self) -> int:
        return self.range.end - self.range.start

    @property
    def nbytes(self) -> int:
        return self.records * RECORD_BYTES

    def read(self, columns: Sequence[str], *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
        offsets = range(self.range.start, self.range.end)
        rows = {
            "key": [str(offset).encode() for offset in offsets],
            "value": [b"v" for _ in offsets],
            "topic": [self.range.topic for _ in offsets],
            "partition": [self.range.partition for _ in offsets],
            "offset": list(offsets),
            "timestamp": list(self.times),
            "timestampType": [0 for _ in offsets],
            "headers": [None for _ in offsets],
        }
        step = max(1, batch_bytes // RECORD_BYTES)
        for low in range(0, len(offsets), step):
            part = {name: rows[name][low : low + step] for name in COLUMNS if name in columns}
            schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
            yield pa.RecordBatch.from_pydict({name: part[name] for name in columns}, schema=schema)


class MemoryView:
    """Topics that tests can change. Readers see a change only after `refresh`."""

    def __init__(self) -> None:
        self.now: dict[str, tuple[str, dict[int, MemoryPartition]]] = {}
        self.seen: dict[str, tuple[str, dict[int, Bounds]]] = {}
        self.refreshed: list[tuple[str, ...]] = []
        self.listed = 0
        self.deleted_once_listed: tuple[str, ...] = ()

    # Methods for tests

    def create(self, topic: str, partitions: int = 1, topic_id: str | None = None) -> None:
        self.now[topic] = (topic_id or f"id-{topic}", {p: MemoryPartition() for p in range(partitions)})

    def add(self, topic: str, count: int, partition: int = 0, time: int = 1000) -> None:
        self.now[topic][1].setdefault(partition, MemoryPartition()).times.extend([time] * count)

    def partition(self, topic: str, partition: int = 0) -> MemoryPartition:
        return self.now[topic][1][partition]

    # Methods of LogView

    location = "memory"
    poll_interval_ms = 10
    env = SYSTEM

    def topics(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        self.listed += 1
        names = sorted(filter(name_filter, self.now))
        for name in self.deleted_once_listed:
            self.now.pop(name, None)
        return names

    def refresh_all(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        return refresh_existing(self, self.topics(name_filter))

    def topic_id(self, topic: str) -> str:
        return self._snapshot(topic)[0]

    def _snapshot(self, topic: str) -> tuple[str, dict[int, Bounds]]:
        if topic not in self.seen:
            raise NotFound(f"there is no topic {topic}")
        return self.seen[topic]

    def refresh(self, topics: Sequence[str]) -> None:
        self.refreshed.append(tuple(topics))
        for topic in topics:
            if topic not in self.now:
                self.seen.pop(topic, None)
                raise NotFound(f"there is no topic {topic}")
            topic_id, partitions = self.now[topic]
            self.seen[topic] = (topic_id, {p: found.bounds() for p, found in partitions.items()})

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        return self._snapshot(topic)[1]

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = "read_uncommitted"
    ) -> dict[int, TimestampOffset | None]:
        answers: dict[int, TimestampOffset | None] = {}
        for partition, target in targets.items():
            limits = self.bounds(topic)[partition]
            times = self.now[topic][1][partition].times
            hits = [o for o in range(limits.log_start, limits.end(isolation)) if times[o] >= target]
            answers[partition] = TimestampOffset(hits[0], times[hits[0]]) if hits else None
        return answers

    def previous_partition_counts(self, topic: str) -> Sequence[int]:
        return ()

    def first_dirty_offsets(self, topic: str) -> Mapping[int, int]:
        return {}

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        return [dense(found, (found.end - found.start) * RECORD_BYTES) for found in ranges]

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[MemoryPart]:
        return [
            MemoryPart(found, tuple(self.now[found.topic][1][found.partition].times[found.start : found.end]))
            for found in ranges
            if found.end > found.start
        ]
