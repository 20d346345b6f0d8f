"""Follow a topic in plain Python, from any offset on. Works on every `LogView`, Kafka's directories too.

    tail = Tail(view, "orders", READ_COMMITTED)
    tail.open()
    tail.start_at_end()
    while True:
        tail.refresh()
        for batch in tail.poll(("key", "value")):
            ...

A topic that is deleted and created again is an error, never silence; offsets that retention took away before they were
read are skipped with a call of `warn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from sparklog.errors import Conflict, NotFound
from sparklog.log.state.view import LogView, OffsetRange


@dataclass
class Tail:
    """Progress of a reader of one topic: next offset per partition. `poll` reads on from there."""

    view: LogView
    topic: str
    isolation: str
    partition: int | None = None
    warn: Callable[[str], None] = lambda message: None
    positions: dict[int, int] = field(default_factory=dict)
    topic_id: str = ""

    def open(self) -> None:
        """Take the first snapshot; `NotFound` if the topic or the partition does not exist."""
        self.topic_id = self.view.topic_id(self.topic)
        self.view.refresh([self.topic])
        bounds = self.view.bounds(self.topic)
        if self.partition is not None and self.partition not in bounds:
            raise NotFound(f"{self.topic} has no partition {self.partition}, its last one is {max(bounds, default=-1)}")

    def start_at_log_start(self) -> None:
        bounds = self.view.bounds(self.topic)
        self.positions = {partition: bounds[partition].log_start for partition in self._partitions()}

    def start_at_end(self) -> None:
        bounds = self.view.bounds(self.topic)
        self.positions = {partition: bounds[partition].end(self.isolation) for partition in self._partitions()}

    def start_at_offset(self, offset: int) -> None:
        """At one offset of every partition read; `NotFound` if it is not between log start and end."""
        for partition in self._partitions():
            bounds = self.view.bounds(self.topic)[partition]
            start, end = bounds.log_start, bounds.end(self.isolation)
            if not start <= offset <= end:
                raise NotFound(f"offset {offset} of {self.topic}-{partition} is out of range: it has {start} to {end}")
            self.positions[partition] = offset

    def start_at_time(self, timestamp_ms: int) -> None:
        """At the first record of each partition that is not older; at the end where there is none."""
        self.start_at_end()
        targets = dict.fromkeys(self.positions, timestamp_ms)
        records = self.view.offsets_for_timestamps(self.topic, targets, self.isolation)
        self.positions.update({partition: answer.offset for partition, answer in records.items() if answer is not None})

    def poll(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Batches from the positions to the end of the snapshot. A partition's position moves when it is read up."""
        bounds = self.view.bounds(self.topic)
        for partition in self._partitions():
            start, log_start = self.positions.get(partition, bounds[partition].log_start), bounds[partition].log_start
            if start < log_start:
                self.warn(
                    f"offsets {start} to {log_start - 1} of {self.topic}-{partition} are deleted: going on after them"
                )
                start = log_start
            end = max(start, bounds[partition].end(self.isolation))
            for part in self.view.plan([OffsetRange(self.topic, partition, start, end)], self.isolation):
                yield from part.read(columns)
            self.positions[partition] = end

    def refresh(self) -> None:
        """Look for what is new; `Conflict` if the topic was deleted and created again."""
        self.view.refresh([self.topic])
        if self.view.topic_id(self.topic) != self.topic_id:
            raise Conflict(f"topic {self.topic} was deleted and created again while it was read: start again")

    def at_end(self) -> bool:
        """True if all of the snapshot was read."""
        bounds = self.view.bounds(self.topic)
        return all(
            partition in self.positions and self.positions[partition] >= bounds[partition].end(self.isolation)
            for partition in self._partitions()
        )

    def _partitions(self) -> list[int]:
        every = sorted(self.view.bounds(self.topic))
        return every if self.partition is None else [partition for partition in every if partition == self.partition]
