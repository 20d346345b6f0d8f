"""Positions of a consumer: the partitions that it reads, which of them are paused, and the next offset of each.

A position moves when records are handed out, never when they are read ahead. So it is what a commit commits. In each
partition it begins at the offset that the group has committed, else at one by the reset policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from sparklog.arguments import NAME, NUMBER, PARTITIONS
from sparklog.clients.consumer.consumer_options import EARLIEST, NONE, OffsetReset
from sparklog.clients.consumer.topics_read import TopicsRead
from sparklog.common.settings import ValueType
from sparklog.errors import NotFound
from sparklog.format.arrow_numpy import fixed_values
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.log.state.view import Bounds, IsolationLevel
from sparklog.storage.retries import SETTLE_MS, Backoff

_LOG = logging.getLogger("sparklog.groups")

Partitions: TypeAlias = Mapping[str, Collection[int]] | Iterable[TopicPartition]
"""A mapping of topics to lists of partitions, or pairs of a topic and a partition."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and NAME.accepts(value[0]) and NUMBER.accepts(value[1])


def _is_pairs(value: Any) -> bool:
    return (
        isinstance(value, (Collection, Iterable)) and not isinstance(value, (str, bytes)) and all(map(_is_pair, value))
    )


PAIRS = ValueType("pairs of a topic and a partition", _is_pairs)
PLACES = ValueType(
    "a mapping of topics to lists of partitions, or a list of pairs",
    lambda value: PARTITIONS.accepts(value) if isinstance(value, Mapping) else _is_pairs(value),
)


def places_of(partitions: Partitions) -> list[TopicPartition]:
    """Return pairs of a topic and a partition, each once, in the order given."""
    if isinstance(partitions, Mapping):
        partitions = ((topic, number) for topic, numbers in partitions.items() for number in numbers)
    return list(dict.fromkeys((topic, int(number)) for topic, number in partitions))


class Positions:
    """See the module. `next`: the offset to read next, of each partition that has begun.

    `committed`: what the group has committed, as far as this consumer knows.
    """

    def __init__(self) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.paused: set[TopicPartition] = set()
        self.next: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.assigned})

    def read(self) -> list[TopicPartition]:
        """Return the partitions that are read: assigned, not paused, and begun."""
        return sorted(place for place in self.next if place not in self.paused)

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        self.assigned = self.assigned | starts.keys()
        self.next.update(starts)

    def drop(self, places: Collection[TopicPartition]) -> None:
        self.assigned = self.assigned - frozenset(places)
        self.paused.difference_update(places)
        for place in places:
            self.next.pop(place, None)
            self.committed.pop(place, None)

    def check(self, places: Iterable[TopicPartition], reader: object) -> list[TopicPartition]:
        """Return these partitions, all if there are none; `NotFound` if one is not read here."""
        chosen = list(places)
        for topic, partition in chosen:
            if (topic, partition) not in self.next:
                raise NotFound(f"{reader!r} does not read partition {partition} of topic {topic!r}")
        return chosen or list(self.next)

    def move_after(self, batch: pa.RecordBatch) -> None:
        """Move after the records of a batch: of one topic, in offset order within each partition."""
        topic = batch.column("topic")[0].as_py()
        # Arrow's own way to numpy imports pandas.
        partitions = fixed_values(batch.column("partition"), np.int32)
        offsets = fixed_values(batch.column("offset"), np.int64)
        # Offsets of a partition go up: its last row is the newest.
        last, first = np.unique(partitions[::-1], return_index=True)
        for partition, offset in zip(last.tolist(), offsets[::-1][first].tolist(), strict=True):
            self.next[topic, partition] = offset + 1

    def by_topic(self) -> dict[str, dict[int, int]]:
        """Return topic to partition to the next offset."""
        return _by_topic(self.next)

    def uncommitted(self) -> dict[str, dict[int, int]]:
        """Return the positions that the group has not committed, as far as is known."""
        return _by_topic({place: offset for place, offset in self.next.items() if self.committed.get(place) != offset})


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    positions: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        positions.setdefault(topic, {})[partition] = offset
    return positions


@dataclass(frozen=True)
class Starts:
    """Offsets to begin at, and those of them that the group has committed."""

    next: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StartingPositions:
    """Positions to begin at. `group` None: nothing is committed."""

    topics: TopicsRead
    group: Group | None
    reset: OffsetReset
    isolation: IsolationLevel

    def of(self, places: Collection[TopicPartition], heartbeat: Callable[[], None]) -> Starts:
        """Return the offsets to begin at. `NotFound`: one is missing; `Unavailable`: some stay pending."""
        committed = self._committed(frozenset(places))
        bounds = self._bounds_with(places, committed, heartbeat)
        starts = {place: self.start(place, committed.get(place), limits) for place, limits in bounds.items()}
        return Starts(starts, {place: offset for place, offset in committed.items() if place in starts})

    def _committed(self, places: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        if self.group is None or not places:
            return {}
        return {
            (topic, partition): offset
            for offsets in self.group.stable(partitions=places).offsets
            if self.topics.ids.get(offsets.topic, offsets.topic_id) == offsets.topic_id
            for topic, partition, offset in offsets.positions()
            if (topic, partition) in places
        }

    def _bounds_with(
        self,
        places: Collection[TopicPartition],
        committed: Mapping[TopicPartition, int],
        heartbeat: Callable[[], None],
    ) -> dict[TopicPartition, Bounds]:
        """Return the bounds once they reach the committed offsets.

        The cache of a network file system hides new commits of a topic for a while, from this host alone. Offsets that
        were committed on another host then seem to be beyond the end, and a reset would read everything again.
        """
        backoff = Backoff(self.topics.view.env)
        topics = sorted({topic for topic, _ in places})
        while True:
            # Looked at after the offsets: one committed just before must not be beyond the end.
            self.topics.look(topics)
            bounds = self.topics.bounds(places)
            beyond = [f"{t}-{p}" for (t, p), limits in bounds.items() if committed.get((t, p), 0) > limits.log_end]
            if not beyond or backoff.is_over():
                return bounds
            if not backoff.tries and self.group is not None:
                _LOG.warning(
                    "group '%s' has committed offsets beyond the end of %s that is seen here; looking again for %s s",
                    *(self.group.id, ", ".join(beyond), SETTLE_MS // 1000),
                )
            heartbeat()
            backoff.sleep()

    def start(self, place: TopicPartition, offset: int | None, bounds: Bounds) -> int:
        """Return `offset` if it is in range, else the position by the reset policy."""
        if offset is not None and bounds.log_start <= offset <= bounds.log_end:
            return offset
        name = f"{place[0]}-{place[1]}"
        if offset is None and self.topics.came_since(place):
            return bounds.log_start
        problem = f"offset {offset} of {name} is out of range: it has {bounds.log_start} to {bounds.log_end}"
        if offset is None:
            reader = "a reader without a group" if self.group is None else f"group '{self.group.id}'"
            problem = f"{reader} has no offset committed for {name}"
        if self.reset == NONE:
            raise NotFound(f"{problem}; seek, reset the group, or choose auto_offset_reset earliest or latest")
        start = bounds.log_start if self.reset == EARLIEST else bounds.end(self.isolation)
        if offset is not None:
            _LOG.warning("%s; going on at %s (auto_offset_reset=%s)", problem, start, self.reset)
        return start
