"""Plan the offsets of micro-batches. This module implements the streaming source independently of Spark.

Spark makes three calls:

1. `initial` returns the start of a new query. The result is not stored in the checkpoint.
2. `latest` returns the end of the next micro-batch. Spark calls this method repeatedly, compares the results as
   strings, and stores a result in the checkpoint if the result differs from the previous result.
3. `ranges` returns the offsets between two results. Spark also calls this method after a restart, with results from the
   checkpoint.

The planner therefore follows these rules:

* The first result of `latest` contains the start of the micro-batch (`$start`), even if no records are available. While
  the query is idle, later results are equal to the start.
* A result contains the id of each topic, so that a recreated topic is reported as data loss.
* A partition that is missing in a start begins at its log start.
* The offsets in a checkpoint have existed. If the offsets are not visible to this process although the topic is the
  same, the process waits until caches have expired, and then fails even if `failOnDataLoss=false`, because it would
  otherwise skip records or read records twice.
* If a start contains topics or partitions that the query does not read, the start belongs to another query, or the
  subscription has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from sparklog.datasource.offsets import OffsetJson, StreamOffset, describe
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.rate_limits import Offsets, RateLimits
from sparklog.datasource.starting_offsets import (
    OTHER_ROOT,
    DataLoss,
    Partitions,
    group_offsets,
    last_stable_of,
    log_end_of,
    offsets_now,
    partition_names,
    start_positions,
    wait_until_reached,
)
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.state.view import READ_COMMITTED, Bounds, LogView, OffsetRange
from sparklog.storage.retries import Clock

RESTORED = "; if the root was restored from an older copy, start the query again with a separate checkpointLocation"


class _Topics:
    """The topics of a query as of the latest snapshot. `refresh` replaces the snapshot.

    Attributes:
        names: The topics to read, which are given by the options or match the pattern. Some of these topics may not
            exist.
        existing: The topics that exist in the snapshot, sorted.
        refreshed_at: The time of the snapshot in seconds, or None before the first snapshot.
    """

    def __init__(self, view: LogView, subscriber: Subscriber, options: ReadOptions, clock: Clock) -> None:
        self.names: list[str] = []
        self.existing: list[str] = []
        self.refreshed_at: float | None = None
        self._view = view
        self._subscriber = subscriber
        self._options = options
        self._clock = clock
        self._listed_at: float | None = None
        self._bounds: Partitions | None = None

    def take_first_snapshot(self) -> None:
        """Take the first snapshot of a new query."""
        self.names = self._subscriber.take()
        self._listed_at = self._clock.now()
        self._use(self.names)

    def refresh(self, checkpoint_topics: Set[str] = frozenset()) -> None:
        """Take a snapshot of the topics to read and of the topics in a checkpoint. List topics again if the list is too
        old.
        """
        now = self._clock.now()
        max_age = self._options.metadata_max_age_ms / 1000
        if self._listed_at is None or (self._subscriber.open_ended and now - self._listed_at >= max_age):
            self.names = self._subscriber.topics()
            self._listed_at = now
        self.names = sorted({*checkpoint_topics, *self.names})
        self.refresh_only(self.names)

    def refresh_only(self, names: list[str]) -> list[str]:
        """Take a snapshot of these topics, and return the topics that exist."""
        self._use(self._subscriber.refresh(names))
        return self.existing

    def _use(self, existing: list[str]) -> None:
        self.existing = sorted(existing)
        self.refreshed_at = self._clock.now()
        self._bounds = None

    def bounds(self) -> Partitions:
        """Return the bounds of the partitions to read. The same mapping is returned until the next snapshot."""
        if self._bounds is None:
            self._bounds = {topic: self._subscriber.partitions(topic) for topic in self.existing}
        return self._bounds

    def all_bounds(self, topic: str) -> Mapping[int, Bounds]:
        """Return the bounds of all partitions of a topic, including partitions that the query does not read. The result
        is empty if the topic does not exist.
        """
        return self._view.bounds(topic) if topic in self.bounds() else {}

    def ends(self) -> Offsets:
        """Return the end of each partition for the isolation level."""
        isolation = self._options.isolation
        return {
            topic: {p: limits.end(isolation) for p, limits in bounds.items()} for topic, bounds in self.bounds().items()
        }

    def ids(self, positions: Mapping[str, object]) -> dict[str, str]:
        """Return the topic ids of the topics in `positions` that exist."""
        return {topic: self._view.topic_id(topic) for topic in positions if topic in self.existing}

    def contains(self, stop: StreamOffset) -> bool:
        """Return True if the snapshot contains all records before these offsets, at the isolation level."""
        # The offsets were readable when they were planned, so the high watermark does not matter.
        end_of = last_stable_of if self._options.isolation == READ_COMMITTED else log_end_of
        for topic, offsets in stop.positions.items():
            bounds = self.all_bounds(topic)
            if any(p not in bounds or end_of(bounds[p]) < offset for p, offset in offsets.items()):
                return False
        return True


@dataclass(frozen=True, slots=True)
class _IdleCall:
    """A call of `latest` that did not find records to read. If all fields are equal in a later call, the result is also
    equal.

    `checkpoint` is the parsed `start`. `unread` contains the offsets in `start` that the query does not read.
    """

    start: OffsetJson
    checkpoint: StreamOffset
    unread: Offsets
    bounds: Partitions
    ids: dict[str, str]


class StreamPlanner:
    """Handles the calls of Spark for one running query, and stores the following state between micro-batches:

    * `_initial`: the result of `initial`
    * `_names_checked`: True if the topics given by the user were checked, which is done once per planner
    * `_must_wait`: True if the next call of `latest` must wait for one poll interval, because the last micro-batch was
      empty, or was delayed by `minOffsetsPerTrigger`
    * `_idle_call`: the last call of `latest` if it did not find records to read, so that the same result is returned
      for an equal call
    * `_limits`: the rate options
    * `_target`: the end of an AvailableNow run, or None for other triggers
    * `_is_finished`: the value of `is_finished`
    """

    def __init__(self, view: LogView, subscriber: Subscriber, options: ReadOptions, clock: Clock | None = None) -> None:
        self._view = view
        self._subscriber = subscriber
        self._options = options
        self._clock = clock or Clock()
        self._topics = _Topics(view, subscriber, options, self._clock)
        self._loss = DataLoss(options.fail_on_data_loss)
        self._initial: OffsetJson | None = None
        self._names_checked = False
        self._must_wait = False
        self._idle_call: _IdleCall | None = None
        self._limits = RateLimits(view, options, self._clock)
        self._target: Offsets | None = None
        self._is_finished = False

    def initial(self) -> OffsetJson:
        """Return the start of a new query. Spark calls this method twice, so the planner always returns the same
        result.
        """
        if self._initial is None:
            committed = group_offsets(self._view, self._options)
            self._topics.take_first_snapshot()
            self._wait_for(offsets_now(self._view, self._topics.existing, committed), self._topics.names)
            bounds = self._topics.bounds()
            positions = start_positions(self._view, bounds, self._options, "latest", self._loss, committed)
            for topic, offsets in positions.items():
                for partition, offset in offsets.items():
                    limits = bounds[topic][partition]
                    top = self._loss.check_end(topic, partition, offset, limits, "startingOffsets")
                    offsets[partition] = self._loss.check_start(topic, partition, top, limits.log_end, limits)
            self._initial = StreamOffset(positions, self._topics.ids(positions), initial=True).to_json()
        return self._initial

    def prepare_available_now(self) -> None:
        """Set the end of an AvailableNow run to the current end offsets of the partitions."""
        self._topics.refresh()
        self._target = self._topics.ends()

    @property
    def is_finished(self) -> bool:
        """True if the last call of `latest` found that the AvailableNow run has read everything up to its target."""
        return self._is_finished

    def latest(self, start: OffsetJson, *, limited: bool) -> OffsetJson:
        """Return the end of the next micro-batch, or `start` if no records are available.

        Waits for at most one poll interval. If `limited` is False (Trigger.Once), the rate options are ignored, and the
        call does not wait.
        """
        previous, self._idle_call = self._idle_call, None
        self._is_finished = False
        if previous is not None and previous.start == start:
            checkpoint, unread = previous.checkpoint, previous.unread
        else:
            checkpoint = StreamOffset.from_json(start)
            unread = self._unread(checkpoint)
        if limited and self._target is None and self._must_wait:
            self._wait_for_poll_interval()
        # The list of topics may be old, so also refresh the topics of the checkpoint.
        self._topics.refresh(checkpoint.positions.keys() - unread.keys())
        bounds = self._topics.bounds()
        call = _IdleCall(start, checkpoint, unread, bounds, self._topics.ids(bounds))
        if call == previous and self._target is None:
            self._idle_call = call
            return start
        self._wait_for_checkpoint(checkpoint.without(unread), self._topics.names)
        self._check_names(checkpoint)
        begin = self._begin(checkpoint, unread)
        available = self._available(begin)
        end = available
        if limited:
            end = self._limits.plan(begin, available, bounds=self._topics.bounds(), may_delay=self._target is None)
        self._must_wait = end == begin
        result = StreamOffset(end, self._topics.ids(end), start=begin if checkpoint.initial else None)
        # Spark compares offsets as JSON strings, so return `start` unchanged if no new records are available.
        if _adds_to(checkpoint, result, begin):
            return result.to_json()
        self._idle_call = call if available == begin else None
        self._is_finished = self._target is not None
        return start

    def _available(self, begin: Offsets) -> Offsets:
        """Return the end of a micro-batch that starts at `begin` if rate options are not applied."""
        ends = self._topics.ends()
        if self._target is not None:
            # A recreated topic may have fewer records than when the target was set.
            target = self._target
            ends = {
                topic: {p: min(end, target[topic][p]) for p, end in offsets.items() if p in target[topic]}
                for topic, offsets in ends.items()
                if topic in target
            }
        return {
            topic: {p: max(offset, ends.get(topic, {}).get(p, offset)) for p, offset in offsets.items()}
            for topic, offsets in begin.items()
        }

    def ranges(self, start: OffsetJson, end: OffsetJson) -> list[OffsetRange]:
        """Return the offsets between two results. Check that the offsets can still be read."""
        if start == end:
            return []
        base, stop = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if stop.start is not None:
            base = StreamOffset(stop.start, stop.ids)
        # Repeat a micro-batch exactly, even if the query no longer reads some of the topics.
        self._check_unread(stop)
        if not self._topics.contains(stop):
            self._topics.refresh_only(sorted(stop.positions))
            self._wait_for_planned_end(base, stop)
        return [offsets for topic in sorted(stop.positions) for offsets in self._topic_ranges(topic, base, stop)]

    def report(self) -> OffsetJson | None:
        """Return the end offsets of the partitions in the latest snapshot, for query progress. Return None if no topics
        are read.
        """
        ends = self._topics.ends()
        return {topic: {str(p): n for p, n in sorted(ends[topic].items())} for topic in sorted(ends)} or None

    def _check_names(self, start: StreamOffset) -> None:
        """Raise NotFound for a topic that is given by the user and has never existed. Only the first call checks the
        topics.
        """
        if not self._names_checked and not self._subscriber.open_ended:
            missing = [t for t in self._topics.names if t not in self._topics.existing and t not in start.positions]
            self._subscriber.require(missing)
        self._names_checked = True

    def _unread(self, checkpoint: StreamOffset) -> Offsets:
        """Return the offsets of a checkpoint that this query does not read. Warn that the query ignores the offsets.

        Raises BadRequest as described in `_check_unread`.
        """
        unread = self._check_unread(checkpoint)
        if unread:
            self._loss.report(_unread_message(unread), "ignores them")
        return unread

    def _check_unread(self, checkpoint: StreamOffset) -> Offsets:
        """Return the offsets of a checkpoint that this query does not read.

        Raises BadRequest if the checkpoint contains unread offsets, unless data loss is allowed and the query reads
        some of the offsets in the checkpoint. If the query does not read any of the offsets, the checkpoint belongs to
        another query.
        """
        unread = self._subscriber.others(checkpoint.positions)
        if unread and (self._loss.fail or unread == checkpoint.positions):
            raise BadRequest(
                f"{_unread_message(unread)} ({self._subscriber}): give this query a separate checkpointLocation, "
                "or subscribe to these topics again if the checkpoint belongs to this query"
            )
        return unread

    def _wait_for(
        self, known: StreamOffset, topics: list[str], end_of: Callable[[Bounds], int] = log_end_of
    ) -> list[TopicPartition]:
        """Wait for offsets that have existed, but may be hidden by a cache. Return the partitions that still end before
        these offsets.
        """
        return wait_until_reached(
            self._view, known, self._topics.existing, lambda: self._topics.refresh_only(topics), self._clock, end_of
        )

    def _wait_for_checkpoint(self, checkpoint: StreamOffset, topics: list[str]) -> None:
        """Wait for the offsets of a checkpoint.

        Raises Unavailable if the log still ends before these offsets after caches have expired, although the topic is
        the same.
        """
        hidden = self._wait_for(checkpoint, topics)
        # If the id of a topic is unknown, the topic may have been recreated. In this case, the caller reports data
        # loss.
        hidden = [(topic, partition) for topic, partition in hidden if topic in checkpoint.ids]
        if hidden:
            raise Unavailable(
                f"The checkpoint is ahead of the log of {partition_names(hidden)} as seen from this host: start the "
                f"query again later, because the file system may still hide new files{RESTORED}"
            )

    def _wait_for_planned_end(self, base: StreamOffset, stop: StreamOffset) -> None:
        """Wait for the end of a micro-batch that was planned before a restart, so that the same records are read."""
        topics = sorted(stop.positions)
        self._wait_for_checkpoint(stop, topics)
        if self._options.isolation != READ_COMMITTED:
            return
        read: Offsets = {}
        for topic, offsets in stop.positions.items():
            ends = {p: limits.log_end for p, limits in self._topics.all_bounds(topic).items()}
            read[topic] = {p: end for p, end in offsets.items() if (base.get(topic, p) or 0) < end <= ends.get(p, -1)}
        hidden = self._wait_for(StreamOffset(read, stop.ids), topics, last_stable_of)
        if hidden:
            raise Unavailable(
                f"A micro-batch of {partition_names(hidden)} was planned up to offsets at which a transaction now "
                "appears to be open: start the query again later"
            )

    def _wait_for_poll_interval(self) -> None:
        """Wait until one poll interval has passed since the latest snapshot."""
        interval_ms = self._options.poll_interval_ms
        seconds = (self._view.poll_interval_ms if interval_ms is None else interval_ms) / 1000
        refreshed_at = self._topics.refreshed_at
        if refreshed_at is not None and (rest := refreshed_at + seconds - self._clock.now()) > 0:
            self._clock.sleep(rest)

    def _begin(self, start: StreamOffset, unread: Offsets) -> Offsets:
        """Check `start` for data loss, and return the start offsets of the next micro-batch for all existing
        partitions.
        """
        begin: Offsets = {}
        for topic in sorted(set(start.positions) - set(self._topics.existing) - set(unread)):
            self._loss.report(f"The topic {topic!r} was deleted while a stream reads it", "skips it", hint=OTHER_ROOT)
        for topic, bounds in self._topics.bounds().items():
            offsets = start.positions.get(topic, {})
            if topic in start.positions and not self._is_same_topic(topic, start):
                offsets = {}
            for partition in sorted(set(offsets) - set(bounds) - set(unread.get(topic, ()))):
                self._loss.report(f"Partition {partition} of topic {topic!r} no longer exists", "skips it")
            begin[topic] = {
                p: self._loss.check_end(topic, p, offsets[p], limits) if p in offsets else limits.log_start
                for p, limits in bounds.items()
            }
        return begin

    def _is_same_topic(self, topic: str, start: StreamOffset) -> bool:
        """Return True if a topic still has the id in `start`. Otherwise, report data loss."""
        before, now = start.ids.get(topic), self._view.topic_id(topic)
        if before is None or before == now:
            return True
        self._loss.report(
            f"The topic {topic!r} was deleted and created again while a stream reads it (id {before}, now {now})",
            "continues at the start of the new topic",
            hint=OTHER_ROOT,
        )
        return False

    def _is_planned_topic(self, topic: str, planned: str | None) -> bool:
        """Return True if a topic still has the id for which a micro-batch was planned. Otherwise, report data loss.

        If `planned` is None, the checkpoint does not contain the id, and any id is accepted.
        """
        try:
            now = self._view.topic_id(topic) if topic in self._topics.existing else None
        except NotFound:
            now = None
        if now is None or planned not in (None, now):
            change = "deleted" if now is None else "deleted and created again"
            self._loss.report(
                f"The topic {topic!r} was {change} before the offsets planned for this micro-batch were read",
                "skips them",
            )
            return False
        return True

    def _topic_ranges(self, topic: str, base: StreamOffset, stop: StreamOffset) -> list[OffsetRange]:
        """Return the offsets of a topic between two results, without offsets that can no longer be read."""
        planned = stop.ids.get(topic)
        if not self._is_planned_topic(topic, planned):
            return []
        bounds = self._topics.all_bounds(topic)
        is_same = base.ids.get(topic) in (None, planned)
        ranges = []
        for partition, end in sorted(stop.positions[topic].items()):
            limits = bounds.get(partition)
            if limits is None:
                self._loss.report(f"Partition {partition} of topic {topic!r} no longer exists", "skips it")
                continue
            start = base.get(topic, partition) if is_same else None
            begin = limits.log_start if start is None else start
            if begin < end:
                begin = self._loss.check_start(topic, partition, begin, end, limits)
                end = self._loss.check_end(topic, partition, end, limits)
            if begin < end:
                ranges.append(OffsetRange(topic, partition, begin, end))
        return ranges


def _unread_message(unread: Offsets) -> str:
    return f"The checkpoint contains offsets of {describe(unread)}, which this query does not read"


def _adds_to(start: StreamOffset, result: StreamOffset, begin: Offsets) -> bool:
    """Return True if a result differs from `start`. New partitions at their log start offset are not considered a
    difference.
    """
    if start.initial or any(start.ids.get(topic, topic_id) != topic_id for topic, topic_id in result.ids.items()):
        return True
    positions = {topic: {**offsets, **start.positions.get(topic, {})} for topic, offsets in begin.items()}
    return result.positions != {**start.positions, **positions}
