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
* A partition that is missing in a start begins at its log start when the micro-batch is planned. The end of the
  micro-batch contains this offset (`$added`).
* The offsets in a checkpoint have existed. If the offsets are not visible to this process although the topic is the
  same, the process waits until caches have expired, and then fails even if `failOnDataLoss=false`, because it would
  otherwise skip records or read records twice.
* If a start contains topics or partitions that the query does not read, the start belongs to another query, or the
  subscription has changed.

`start` and `end` are offsets in the JSON form that Spark passes and stores. `checkpoint` is a parsed start. A
micro-batch contains the records from `begin` to `end`, or to `available` if no rate options are set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparklog.datasource.data_loss import OTHER_ROOT, DataLoss
from sparklog.datasource.offsets import OffsetJson, Positions, StreamOffset, describe, map_partitions
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.planned_ranges import planned_ranges
from sparklog.datasource.rate_limits import RateLimits
from sparklog.datasource.starting_offsets import group_offsets, offsets_now, start_positions
from sparklog.datasource.stream_topics import StreamSnapshot, StreamTopics
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest
from sparklog.log.state.view import LogView, OffsetRange
from sparklog.storage.retries import Clock


@dataclass(frozen=True, slots=True)
class _LatestCall:
    """A call of `latest` and its result."""

    start: OffsetJson
    checkpoint: StreamOffset
    """The parsed `start`, without the partitions that the query does not read."""
    snapshot: StreamSnapshot
    """The snapshot at the beginning of the call."""
    is_empty: bool
    """True if the micro-batch is empty, because no records were available or `minOffsetsPerTrigger` delayed it."""
    is_idle: bool
    """True if no records were available, so that a call with the same start and snapshot has the same result."""


NO_CALL = _LatestCall({}, StreamOffset({}), StreamSnapshot({}, {}), is_empty=False, is_idle=False)


class StreamPlanner:
    """Handles the calls of Spark for one running query."""

    def __init__(self, view: LogView, subscriber: Subscriber, options: ReadOptions, clock: Clock | None = None) -> None:
        clock = clock or Clock()
        self._view = view
        self._subscriber = subscriber
        self._options = options
        self._topics = StreamTopics(view, subscriber, options, clock)
        self._limits = RateLimits(view, options, clock)
        self._loss = DataLoss(options.fail_on_data_loss)
        self._initial: OffsetJson | None = None
        """The result of `initial`, or None before the first call."""
        self._target: Positions | None = None
        """The end of an AvailableNow run, or None for other triggers."""
        self._previous = NO_CALL
        """The last successful call of `latest`."""
        self._has_checked_names = False
        """True if the topics given by the user were checked, which is done once per planner."""

    def initial(self) -> OffsetJson:
        """Return the start of a new query. Spark calls this method twice, so the planner always returns the same
        result.
        """
        if self._initial is None:
            committed = group_offsets(self._view, self._options)
            self._topics.take_first_snapshot()
            known = offsets_now(self._view, self._topics.existing, committed)
            self._topics.wait_until_visible(known, self._topics.names)
            bounds = self._topics.bounds()
            positions = start_positions(self._view, bounds, self._options, "latest", self._loss, committed)

            def checked(topic: str, partition: int, offset: int) -> int:
                limits = bounds[topic][partition]
                offset = self._loss.check_end(
                    topic, partition, offset, limits, "starts at the log end", "startingOffsets"
                )
                return self._loss.check_start(topic, partition, offset, limits.log_end, limits)

            initial = StreamOffset(map_partitions(positions, checked), self._topics.ids(), initial=True)
            self._initial = initial.to_json()
        return self._initial

    def prepare_available_now(self) -> None:
        """Set the end of an AvailableNow run to the current end offsets of the partitions."""
        self._topics.refresh()
        self._target = self._topics.ends()

    @property
    def is_available_now(self) -> bool:
        """True in an AvailableNow run, which is finished as soon as `latest` returns `start`."""
        return self._target is not None

    def latest(self, start: OffsetJson, *, limited: bool) -> OffsetJson:
        """Return the end of the next micro-batch, or `start` if no records are available.

        Waits for at most one poll interval. If `limited` is False (Trigger.Once), the rate options are ignored, and the
        call does not wait.
        """
        previous = self._previous
        checkpoint = previous.checkpoint if previous.start == start else self._parsed(start)
        if previous.is_empty and limited and not self.is_available_now:
            self._topics.wait_for_poll_interval()
        # The list of topics may be old, so also refresh the topics of the checkpoint.
        self._topics.refresh(checkpoint.positions.keys())
        snapshot = self._topics.snapshot()
        if previous.is_idle and (previous.start, previous.snapshot) == (start, snapshot):
            return start
        self._topics.wait_for_checkpoint(checkpoint, self._topics.names)
        self._check_names(checkpoint)
        begin = self._begin(checkpoint)
        available = self._available(begin)
        end = self._limited(begin, available) if limited else available
        result = StreamOffset(end, self._topics.ids(), start=begin if checkpoint.initial else None)
        has_advanced = _has_advanced(checkpoint, begin, result)
        is_idle = available == begin and not has_advanced
        self._previous = _LatestCall(start, checkpoint, snapshot, is_empty=end == begin, is_idle=is_idle)
        if not has_advanced:
            # Spark compares offsets as JSON strings, so return `start` unchanged if no new records are available.
            return start
        if not checkpoint.initial:
            result = replace(result, added=_added(checkpoint, begin, result))
        return result.to_json()

    def ranges(self, start: OffsetJson, end: OffsetJson) -> list[OffsetRange]:
        """Return the offsets between two results. Check that the offsets can still be read."""
        if start == end:
            return []
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if last.start is not None:
            first = StreamOffset(last.start, last.ids)
        # If the query no longer reads some of the partitions, either raise an error or repeat the micro-batch exactly.
        self._split(last.positions)
        return planned_ranges(self._topics, self._loss, first, last)

    def report(self) -> OffsetJson | None:
        """Return the end offsets of the partitions in the latest snapshot, for query progress. Return None if no topics
        are read.
        """
        ends = self._topics.ends()
        return {topic: {str(p): n for p, n in sorted(ends[topic].items())} for topic in sorted(ends)} or None

    # -- the partitions to read

    def _parsed(self, start: OffsetJson) -> StreamOffset:
        """Parse an offset of the checkpoint. Remove the partitions that the query does not read, and log a warning."""
        checkpoint = StreamOffset.from_json(start)
        read, unread = self._split(checkpoint.positions)
        if unread:
            self._loss.report(_unread_message(unread), "ignores them")
        return replace(checkpoint, positions=read)

    def _split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the positions of a checkpoint that the query reads, and the other positions.

        Raises BadRequest if there are other positions, unless data loss is allowed and the query reads some positions.
        If the query does not read any of the positions, the checkpoint belongs to another query.
        """
        read, unread = self._subscriber.split(positions)
        if unread and (self._loss.fail or not read):
            raise BadRequest(
                f"{_unread_message(unread)} ({self._subscriber}): give this query a separate checkpointLocation, "
                "or subscribe to these topics again if the checkpoint belongs to this query"
            )
        return read, unread

    def _check_names(self, checkpoint: StreamOffset) -> None:
        """Raise NotFound for a topic that is given by the user and has never existed. Only the first call checks the
        topics.
        """
        if not self._has_checked_names and not self._subscriber.is_open_ended:
            known = {*self._topics.existing, *checkpoint.positions}
            self._subscriber.require([topic for topic in self._topics.names if topic not in known])
        self._has_checked_names = True

    # -- the offsets of the next micro-batch

    def _begin(self, checkpoint: StreamOffset) -> Positions:
        """Check a checkpoint for data loss, and return the start offsets of the next micro-batch for all existing
        partitions.
        """
        for topic in sorted(checkpoint.positions.keys() - set(self._topics.existing)):
            self._loss.report(
                f"The topic {topic!r} was deleted while a stream was reading it", "skips it", hint=OTHER_ROOT
            )
        return {topic: self._topic_begin(topic, checkpoint) for topic in self._topics.existing}

    def _topic_begin(self, topic: str, checkpoint: StreamOffset) -> dict[int, int]:
        offsets = checkpoint.positions.get(topic, {})
        if offsets and not self._is_same_topic(topic, checkpoint):
            offsets = {}
        bounds = self._topics.bounds()[topic]
        for partition in sorted(offsets.keys() - bounds.keys()):
            self._loss.report(f"Partition {partition} of topic {topic!r} no longer exists", "skips it")
        otherwise = "continues at the log end"
        return {
            p: self._loss.check_end(topic, p, offsets[p], limits, otherwise) if p in offsets else limits.log_start
            for p, limits in bounds.items()
        }

    def _is_same_topic(self, topic: str, checkpoint: StreamOffset) -> bool:
        """Return True if a topic still has the id in the checkpoint. Otherwise, report data loss."""
        before, now = checkpoint.ids.get(topic), self._view.topic_id(topic)
        if before is None or before == now:
            return True
        self._loss.report(
            f"The topic {topic!r} was deleted and recreated while a stream was reading it (id {before}, now {now})",
            "continues at the start of the new topic",
            hint=OTHER_ROOT,
        )
        return False

    def _available(self, begin: Positions) -> Positions:
        """Return the end of a micro-batch that starts at `begin` if rate options are not applied."""
        ends, target = self._topics.ends(), self._target

        def available(topic: str, partition: int, offset: int) -> int:
            end = ends[topic][partition]
            if target is not None:
                # A recreated topic may have fewer records than when the target was set.
                end = min(end, target.get(topic, {}).get(partition, offset))
            return max(offset, end)

        return map_partitions(begin, available)

    def _limited(self, begin: Positions, available: Positions) -> Positions:
        """Apply the rate options. `minOffsetsPerTrigger` does not delay an AvailableNow run."""
        may_delay = not self.is_available_now
        return self._limits.plan(begin, available, bounds=self._topics.bounds(), may_delay=may_delay)


def _unread_message(unread: Positions) -> str:
    return f"The checkpoint contains offsets of {describe(unread)}, which this query does not read"


def _has_advanced(checkpoint: StreamOffset, begin: Positions, result: StreamOffset) -> bool:
    """Return True if a result differs from the checkpoint, apart from new partitions at their log start offset."""
    ids = checkpoint.ids
    if checkpoint.initial or any(ids.get(topic, topic_id) != topic_id for topic, topic_id in result.ids.items()):
        return True
    known = {topic: {**offsets, **checkpoint.positions.get(topic, {})} for topic, offsets in begin.items()}
    return result.positions != {**checkpoint.positions, **known}


def _added(checkpoint: StreamOffset, begin: Positions, result: StreamOffset) -> Positions:
    """Return the begin of partitions that have records in the next micro-batch, but are missing in the checkpoint."""
    added: dict[str, dict[int, int]] = {}
    for topic, offsets in begin.items():
        is_same = checkpoint.ids.get(topic) in (None, result.ids[topic])
        known = checkpoint.positions.get(topic, {}) if is_same else {}
        ends = result.positions[topic]
        if new := {p: offset for p, offset in offsets.items() if p not in known and offset < ends[p]}:
            added[topic] = new
    return added
