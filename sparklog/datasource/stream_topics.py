"""The topics of a streaming query in the latest snapshot, and the wait for offsets that caches hide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from sparklog.datasource.hidden_offsets import last_stable_of, log_end_of, partition_names, wait_until_reached
from sparklog.datasource.offsets import Positions, StreamOffset, map_partitions
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.starting_offsets import PartitionBounds
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import NotFound, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.state.view import READ_COMMITTED, Bounds, LogView
from sparklog.storage.retries import Clock


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The contents of a snapshot that determine the next micro-batch: the bounds of the partitions to read, and the ids
    of the existing topics.
    """

    bounds: PartitionBounds
    ids: Mapping[str, str]


class StreamTopics:
    """The topics of a query as of the latest snapshot. `refresh` and `refresh_only` replace the snapshot."""

    def __init__(self, view: LogView, subscriber: Subscriber, options: ReadOptions, clock: Clock) -> None:
        self.names: list[str] = []
        """The topics to read, which are given by the options or match the pattern. Some of them may not exist."""
        self.existing: list[str] = []
        """The topics that exist in the snapshot, sorted."""
        self._view = view
        self._subscriber = subscriber
        self._options = options
        self._clock = clock
        self._refreshed_at: float | None = None
        """The time of the snapshot in seconds, or None before the first snapshot."""
        self._listed_at: float | None = None
        """The time at which `names` was determined, or None if it has not been determined."""
        self._bounds: PartitionBounds | None = None
        """The result of `bounds`, or None if `bounds` has not been called for the snapshot."""

    # -- snapshots

    def take_first_snapshot(self) -> None:
        """Take the first snapshot of a new query."""
        self.names = self._subscriber.take_snapshot()
        self._listed_at = self._clock.now()
        self._replace_snapshot(self.names)

    def refresh(self, checkpoint_topics: Set[str] = frozenset()) -> None:
        """Take a snapshot of the topics to read and of the topics in a checkpoint. List topics again if the list is too
        old.
        """
        now = self._clock.now()
        max_age = self._options.metadata_max_age_ms / 1000
        if self._listed_at is None or (self._subscriber.is_open_ended and now - self._listed_at >= max_age):
            self.names = self._subscriber.topics()
            self._listed_at = now
        self.names = sorted({*checkpoint_topics, *self.names})
        self.refresh_only(self.names)

    def refresh_only(self, names: Sequence[str]) -> list[str]:
        """Take a snapshot of these topics, and return the topics that exist."""
        self._replace_snapshot(self._subscriber.refresh(names))
        return self.existing

    def _replace_snapshot(self, existing: list[str]) -> None:
        self.existing = sorted(existing)
        self._refreshed_at = self._clock.now()
        self._bounds = None

    # -- contents of the snapshot

    def bounds(self) -> PartitionBounds:
        """Return the bounds of the partitions to read. The same mapping is returned until the next snapshot."""
        if self._bounds is None:
            self._bounds = {topic: self._subscriber.partitions(topic) for topic in self.existing}
        return self._bounds

    def all_bounds(self, topic: str) -> Mapping[int, Bounds]:
        """Return the bounds of all partitions of a topic, including partitions that the query does not read. The result
        is empty if the topic does not exist.
        """
        return self._view.bounds(topic) if topic in self.existing else {}

    def ends(self) -> Positions:
        """Return the end of each partition to read, for the isolation level."""
        isolation = self._options.isolation
        return map_partitions(self.bounds(), lambda topic, partition, limits: limits.end(isolation))

    def ids(self) -> dict[str, str]:
        """Return the ids of the existing topics."""
        return {topic: self._view.topic_id(topic) for topic in self.existing}

    def id_of(self, topic: str) -> str | None:
        """Return the id of a topic, or None if the topic does not exist."""
        if topic in self.existing:
            # The topic may have been deleted while the snapshots of several topics were compared.
            with suppress(NotFound):
                return self._view.topic_id(topic)
        return None

    def snapshot(self) -> StreamSnapshot:
        return StreamSnapshot(self.bounds(), self.ids())

    # -- waiting

    def wait_for_poll_interval(self) -> None:
        """Wait until one poll interval has passed since the snapshot was taken."""
        interval_ms = self._options.poll_interval_ms
        seconds = (self._view.poll_interval_ms if interval_ms is None else interval_ms) / 1000
        if self._refreshed_at is not None and (rest := self._refreshed_at + seconds - self._clock.now()) > 0:
            self._clock.sleep(rest)

    def wait_until_visible(
        self, known: StreamOffset, names: Sequence[str], end_of: Callable[[Bounds], int] = log_end_of
    ) -> list[TopicPartition]:
        """Wait for offsets that have existed, but may be hidden by a cache. Meanwhile, take snapshots of these topics.

        Returns:
            The partitions that still end before these offsets after caches have expired.
        """
        return wait_until_reached(
            self._view, known, self.existing, lambda: self.refresh_only(names), self._clock, end_of
        )

    def wait_for_checkpoint(self, checkpoint: StreamOffset, names: Sequence[str]) -> None:
        """Wait for the offsets of a checkpoint.

        Raises Unavailable if the log still ends before these offsets after caches have expired, although the topic is
        the same.
        """
        hidden = self.wait_until_visible(checkpoint, names)
        # If the id of a topic is unknown, the topic may have been recreated. In this case, the caller reports data
        # loss.
        hidden = [(topic, partition) for topic, partition in hidden if topic in checkpoint.ids]
        if hidden:
            raise Unavailable(
                f"The checkpoint is ahead of the log of {partition_names(hidden)} as seen from this host: start the "
                "query again later, because the file system may still hide new files; if the root was restored from an "
                "older copy, start the query again with a separate checkpointLocation"
            )

    def wait_for_micro_batch(self, start: StreamOffset, end: StreamOffset) -> None:
        """Wait until all records of a planned micro-batch can be read at the isolation level, so that a repeated
        micro-batch contains the same records.

        Raises Unavailable as described in `wait_for_checkpoint`, and if a transaction appears to be open although its
        records were readable when the micro-batch was planned.
        """
        if self._contains(end):
            return
        names = sorted(end.positions)
        self.refresh_only(names)
        self.wait_for_checkpoint(end, names)
        if self._options.isolation != READ_COMMITTED:
            return
        existing = {topic: self._existing_ends(topic, start, end) for topic in end.positions}
        hidden = self.wait_until_visible(StreamOffset(existing, end.ids), names, last_stable_of)
        if hidden:
            raise Unavailable(
                f"A micro-batch of {partition_names(hidden)} was planned up to offsets at which a transaction now "
                "appears to be open: start the query again later"
            )

    def _contains(self, end: StreamOffset) -> bool:
        """Return True if the snapshot contains all records before these offsets, at the isolation level."""
        # The offsets were readable when they were planned, so the high watermark does not matter.
        end_of = last_stable_of if self._options.isolation == READ_COMMITTED else log_end_of
        for topic, offsets in end.positions.items():
            bounds = self.all_bounds(topic)
            if any(p not in bounds or end_of(bounds[p]) < offset for p, offset in offsets.items()):
                return False
        return True

    def _existing_ends(self, topic: str, start: StreamOffset, end: StreamOffset) -> dict[int, int]:
        """Return the end offsets of the partitions with records in a micro-batch, if the log contains these records."""
        log_ends = {p: limits.log_end for p, limits in self.all_bounds(topic).items()}
        return {
            p: offset
            for p, offset in end.positions[topic].items()
            if (start.get(topic, p) or 0) < offset <= log_ends.get(p, -1)
        }
