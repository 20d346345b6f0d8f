"""Positions to begin at: in each partition the offset that the group has committed, else one by the reset policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sparklog.errors import NotFound
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.consumer_options import EARLIEST, NONE, OffsetReset
from sparklog.groups.group import Group
from sparklog.groups.topics_read import TopicsRead
from sparklog.log.state.view import Bounds, IsolationLevel
from sparklog.storage.retries import SETTLE_MS, Backoff

_LOG = logging.getLogger("sparklog.groups")


@dataclass(frozen=True)
class Starts:
    """Offsets to begin at, and those of them that the group has committed."""

    next: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StartingPositions:
    """See the module. `group` None: nothing is committed."""

    topics: TopicsRead
    group: Group | None
    reset: OffsetReset
    isolation: IsolationLevel

    def of(self, places: Collection[TopicPartition], keep_alive: Callable[[], None]) -> Starts:
        """Return the offsets to begin at. `NotFound`: one is missing; `Unavailable`: some stay pending."""
        committed = self._committed(frozenset(places))
        bounds = self._bounds_with(places, committed, keep_alive)
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
        keep_alive: Callable[[], None],
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
            keep_alive()
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
