"""The positions of a consumer: the partitions that it reads, the paused partitions, and the next offset of each
partition.

A position advances when records are returned to the program instead of when they are prefetched, so that a commit never
covers unprocessed records. The first position in a partition is the committed offset of the group. If the group has not
committed an offset, or if the offset is out of range, the reset policy determines the position.
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
from sparklog.clients.consumer.subscribed_topics import SubscribedTopics
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
PARTITIONS_OR_PAIRS = ValueType(
    "a mapping of topics to lists of partitions, or a list of pairs",
    lambda value: PARTITIONS.accepts(value) if isinstance(value, Mapping) else _is_pairs(value),
)


def partition_pairs(partitions: Partitions) -> list[TopicPartition]:
    """Return partitions as pairs of topic and partition, without duplicates and in the given order."""
    if isinstance(partitions, Mapping):
        partitions = ((topic, number) for topic, numbers in partitions.items() for number in numbers)
    return list(dict.fromkeys((topic, int(number)) for topic, number in partitions))


class Positions:
    """The partitions of a consumer, and its position in each partition."""

    def __init__(self) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.paused: set[TopicPartition] = set()
        self.deleted_topics: frozenset[str] = frozenset()
        """Deleted topics of which partitions may still be assigned. They are not read, and no offsets are committed."""
        self.take_returned: Callable[[], pa.RecordBatch] | None = None
        """A function that returns the rows that an iteration has returned since the previous call. The positions after
        these rows are computed when they are required instead of for each record.
        """
        self._next: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        """The committed offsets of the group that are known to this consumer."""

    @property
    def next(self) -> dict[TopicPartition, int]:
        """The next offset to return in each assigned partition."""
        self.move_after_returned()
        return self._next

    def move_after_returned(self) -> None:
        """Advance the positions to the end of the rows that an iteration has returned."""
        if self.take_returned is not None and (rows := self.take_returned()).num_rows:
            self.move_after(rows)

    def topics(self) -> list[str]:
        """Return the topics to read."""
        return sorted({topic for topic, _ in self.assigned} - self.deleted_topics)

    def read(self) -> list[TopicPartition]:
        """Return the partitions to read, which are all partitions that are not paused and whose topic exists."""
        return sorted(
            (topic, number)
            for topic, number in self.next
            if (topic, number) not in self.paused and topic not in self.deleted_topics
        )

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        self.assigned = self.assigned | starts.keys()
        self.deleted_topics = self.deleted_topics - {topic for topic, _ in starts}
        self.next.update(starts)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        self.assigned = self.assigned - frozenset(partitions)
        self.paused.difference_update(partitions)
        for partition in partitions:
            self.next.pop(partition, None)
            self.committed.pop(partition, None)

    def check(self, partitions: Iterable[TopicPartition], reader: object) -> list[TopicPartition]:
        """Return the given partitions. If no partitions are given, return all partitions. Raises `NotFound` if `reader`
        does not read a partition.
        """
        chosen = list(partitions)
        for topic, partition in chosen:
            if (topic, partition) not in self.next:
                raise NotFound(f"{reader!r} does not read partition {partition} of topic {topic!r}")
        return chosen or list(self.next)

    def move_after(self, batch: pa.RecordBatch) -> None:
        """Advance the positions to the end of a batch. The batch contains records of one topic, which are in offset
        order within each partition.
        """
        topic = batch.column("topic")[0].as_py()
        # Do not use Arrow's conversion to numpy, because it imports pandas.
        partitions = fixed_values(batch.column("partition"), np.int32)
        offsets = fixed_values(batch.column("offset"), np.int64)
        # The offsets of a partition increase, so the last row of a partition has its highest offset.
        last, first = np.unique(partitions[::-1], return_index=True)
        for partition, offset in zip(last.tolist(), offsets[::-1][first].tolist(), strict=True):
            self._next[topic, partition] = offset + 1

    def by_topic(self) -> dict[str, dict[int, int]]:
        """Return the next offset to read, by topic and partition, without deleted topics."""
        return self._by_topic(self.next)

    def uncommitted(self) -> dict[str, dict[int, int]]:
        """Return the positions that differ from the known committed offsets of the group, without deleted topics."""
        return self._by_topic(
            {partition: offset for partition, offset in self.next.items() if self.committed.get(partition) != offset}
        )

    def _by_topic(self, offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
        positions: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in offsets.items():
            if topic not in self.deleted_topics:
                positions.setdefault(topic, {})[partition] = offset
        return positions


@dataclass(frozen=True)
class Starts:
    """The starting offsets of partitions, and the committed offsets of these partitions."""

    next: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StartingPositions:
    """Determines the starting positions of partitions. If `group` is None, committed offsets are not used."""

    topics: SubscribedTopics
    group: Group | None
    reset: OffsetReset
    isolation: IsolationLevel

    def of(self, partitions: Collection[TopicPartition], heartbeat: Callable[[], None]) -> Starts:
        """Return the starting offsets of partitions.

        Raises:
            NotFound: If the reset policy is `none`, and an offset is not committed or is out of range.
            Unavailable: If offsets of the group are pending in a transaction for too long.
        """
        committed = self._committed(frozenset(partitions))
        bounds = self._bounds_after_commits(partitions, committed, heartbeat)
        starts = {
            partition: self.start(partition, committed.get(partition), limits) for partition, limits in bounds.items()
        }
        return Starts(starts, {partition: offset for partition, offset in committed.items() if partition in starts})

    def _committed(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        if self.group is None or not partitions:
            return {}
        return {
            (topic, partition): offset
            for offsets in self.group.stable(partitions=partitions).offsets
            if self.topics.ids.get(offsets.topic, offsets.topic_id) == offsets.topic_id
            for topic, partition, offset in offsets.positions()
            if (topic, partition) in partitions
        }

    def _bounds_after_commits(
        self,
        partitions: Collection[TopicPartition],
        committed: Mapping[TopicPartition, int],
        heartbeat: Callable[[], None],
    ) -> dict[TopicPartition, Bounds]:
        """Wait until the log end offsets have reached the committed offsets, and return the bounds of the partitions.

        On a network file system, the cache of this host may hide new commits of a topic for a while. Offsets that were
        committed on another host then appear to be beyond the log end, and a reset would read all records again.
        """
        backoff = Backoff(self.topics.view.env)
        topics = sorted({topic for topic, _ in partitions})
        while True:
            # Read the bounds after the committed offsets, so that an offset that was just committed is not beyond the
            # log end.
            self.topics.refresh(topics)
            bounds = self.topics.bounds(partitions)
            beyond = [f"{t}-{p}" for (t, p), limits in bounds.items() if committed.get((t, p), 0) > limits.log_end]
            if not beyond or backoff.is_over():
                return bounds
            if not backoff.tries and self.group is not None:
                _LOG.warning(
                    "group '%s' has committed offsets beyond the log end of %s as seen from this host; "
                    "retrying for %s s",
                    *(self.group.id, ", ".join(beyond), SETTLE_MS // 1000),
                )
            heartbeat()
            backoff.sleep()

    def start(self, partition: TopicPartition, offset: int | None, bounds: Bounds) -> int:
        """Return `offset` if it is in range. Otherwise, return the offset that the reset policy selects."""
        if offset is not None and bounds.log_start <= offset <= bounds.log_end:
            return offset
        name = f"{partition[0]}-{partition[1]}"
        if offset is None and self.topics.is_new(partition):
            return bounds.log_start
        problem = f"offset {offset} of {name} is out of range: expected {bounds.log_start} to {bounds.log_end}"
        if offset is None:
            reader = "a reader without a group" if self.group is None else f"group '{self.group.id}'"
            problem = f"{reader} has no committed offset for {name}"
        if self.reset == NONE:
            raise NotFound(
                f"{problem}; seek to an offset, reset the group, or set auto_offset_reset to earliest or latest"
            )
        start = bounds.log_start if self.reset == EARLIEST else bounds.end(self.isolation)
        if offset is not None:
            _LOG.warning("%s; continuing at %s (auto_offset_reset=%s)", problem, start, self.reset)
        return start
