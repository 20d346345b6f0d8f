"""Plan the offsets of each micro-batch: the streaming source without Spark.

Spark asks three questions:

* Where does a new query begin? (`initial`) No checkpoint keeps the answer.
* Where does the next micro-batch end? (`latest`) Asked again and again: Spark compares the answers as text, and keeps
  in its checkpoint those that differ from the one before.
* Which offsets lie between two answers? (`ranges`) Asked after a restart too, with texts from the checkpoint.

Hence:

* The first answer always carries its own start (`$start`), idle or not. Later answers are the start itself while idle.
* A topic's id is stored with its offsets, so a topic that was deleted and created again is data loss and not silence.
* Partitions missing in a start begin at their log start.
* What a checkpoint names has existed. Where this process does not see it, though the topic is the same, it waits, and
  fails then, whatever `failOnDataLoss` says: to go on would pass records over, or read them twice.
* A start that names what the query does not read is another query's, or the subscription has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from operator import attrgetter

from sparklog.datasource.offsets import StreamOffset, describe
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.starting_offsets import (
    OTHER_ROOT,
    DataLoss,
    Partitions,
    group_offsets,
    offsets_now,
    start_positions,
    wait_until_reached,
)
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.state.view import READ_COMMITTED, Bounds, LogView, OffsetRange, Stored
from sparklog.storage.retries import Clock

RESTORED = "; if the root was restored from an older copy, start the query again, with a checkpointLocation of its own"

Document = dict[str, object]
Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class _NothingNew:
    """A question whose start was the answer, and what was seen for it: seen again, it has the same answer."""

    start: Document
    checkpoint: StreamOffset
    others: Offsets
    bounds: Partitions
    ids: dict[str, str]


class StreamPlanner:
    """Answers Spark's questions for one running query; keeps state between micro-batches.

    What is kept:

    * `_topics`: names to read, from the options or matched by the pattern; `_listed_at`: when they were matched
    * `_present`: those of them that exist in the newest snapshot; `_probed_at`: when it was taken
    * `_bounds`: the bounds of their partitions that are read, by topic; None until the first question about them
    * `_names_checked`: a restarted query has made sure of the user's names, which is done once
    * `_idle`: the last answer was its own start, so that the next one may wait for news
    * `_last_trigger`: when a micro-batch was last let through, for `maxTriggerDelay`
    * `_target`: ends of an AvailableNow run, None in others
    * `_nothing_new`: the last question and what was seen then, if its start was the answer and all was read
    * `_initial`: the answer of `initial`, once it was given
    """

    def __init__(self, view: LogView, subscriber: Subscriber, options: ReadOptions, clock: Clock | None = None) -> None:
        self._view = view
        self._subscriber = subscriber
        self._options = options
        self._clock = clock or Clock()
        self._loss = DataLoss(options.fail_on_data_loss)
        self._topics: list[str] = []
        self._listed_at: float | None = None
        self._present: list[str] = []
        self._bounds: Partitions | None = None
        self._probed_at: float | None = None
        self._idle = False
        self._names_checked = False
        self._last_trigger: float | None = None
        self._target: Offsets | None = None
        self._initial: Document | None = None
        self._nothing_new: _NothingNew | None = None

    def initial(self) -> Document:
        """Return the start of a new query. Spark asks twice: the answer stays the same for the life of this object."""
        if self._initial is None:
            committed = group_offsets(self._view, self._options)
            self._topics = self._subscriber.take()
            self._listed_at = self._clock.now()
            self._note_present(self._topics)
            self._wait_for(offsets_now(self._view, self._present, committed), self._topics)
            bounds = self._seen_bounds()
            positions = start_positions(self._view, bounds, self._options, "latest", self._loss, committed)
            for topic, offsets in positions.items():
                for partition, offset in offsets.items():
                    limits = bounds[topic][partition]
                    top = self._loss.check_end(topic, partition, offset, limits, "startingOffsets")
                    offsets[partition] = self._loss.check_start(topic, partition, top, limits.log_end, limits)
            self._initial = StreamOffset(positions, self._ids(positions), initial=True).to_json()
        return self._initial

    def prepare_available_now(self) -> None:
        self._refresh()
        self._target = self._ends()

    @property
    def has_target(self) -> bool:
        """True in an AvailableNow run, which ends where an answer is the start itself."""
        return self._target is not None

    def latest(self, start: Document, *, limited: bool) -> Document:
        """Return the end of the next micro-batch, `start` itself if there is nothing to read.

        Waits at most one poll interval.

        `limited=False` (Trigger.Once) ignores the rate options and never waits.
        """
        previous, self._nothing_new = self._nothing_new, None
        if previous is not None and previous.start != start:
            previous = None
        checkpoint, others = self._parsed(start) if previous is None else (previous.checkpoint, previous.others)
        if limited and self._target is None and self._idle:
            self._wait()
        # A listing may be as old as the rest: topics of the checkpoint are looked for by name.
        self._refresh(checkpoint.positions.keys() - others.keys())
        bounds = self._seen_bounds()
        seen = _NothingNew(start, checkpoint, others, bounds, self._ids(bounds))
        if seen == previous and self._target is None:
            self._nothing_new = seen
            return start
        self._wait_for_checkpoint(checkpoint, self._topics)
        self._check_names(checkpoint)
        begin = self._begin(checkpoint, others)
        available = self._available(begin)
        end = self._limited(begin, available) if limited else available
        self._idle = end == begin
        answer = StreamOffset(end, self._ids(end), start=begin if checkpoint.initial else None)
        # An answer that says no more than `start` must be `start` itself, to the letter.
        if not _says_no_more_than(checkpoint, answer, begin):
            return answer.to_json()
        self._nothing_new = seen if available == begin else None
        return start

    def _parsed(self, start: Document) -> tuple[StreamOffset, Offsets]:
        """Return a start, and its offsets that the query does not read, where these are allowed."""
        checkpoint = StreamOffset.from_json(start)
        others = self._subscriber.others(checkpoint.positions)
        self._check_others(others, checkpoint)
        return checkpoint, others

    def _available(self, begin: Offsets) -> Offsets:
        """Return where a micro-batch from `begin` ends without the rate options."""
        ends = self._ends() if self._target is None else self._up_to_target(self._target)
        return {
            topic: {p: max(offset, ends.get(topic, {}).get(p, offset)) for p, offset in offsets.items()}
            for topic, offsets in begin.items()
        }

    def _limited(self, begin: Offsets, available: Offsets) -> Offsets:
        """Return the end of a micro-batch by the rate options: `begin` while it is held back."""
        stored = self._stored(begin, available) if self._options.has_rate_limits else {}
        if self._is_held_back(stored):
            return begin
        self._last_trigger = self._clock.now()
        return self._cut_by_rate(begin, available, stored)

    def ranges(self, start: Document, end: Document) -> list[OffsetRange]:
        """Return the offsets between two answers, checked against what can still be read."""
        if start == end:
            return []
        base, stop = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if stop.start is not None:
            base = StreamOffset(stop.start, stop.ids)
        self._check_others(self._subscriber.others(stop.positions), stop)
        if not self._covered(stop):
            self._note_present(self._subscriber.refresh(sorted(stop.positions)))
            self._wait_for_planned_end(base, stop)
        return [offsets for topic in sorted(stop.positions) for offsets in self._topic_ranges(topic, base, stop)]

    def report(self) -> Document | None:
        """Return where the logs end in the newest snapshot, for a query's progress; None without topics."""
        if not self._present:
            return None
        return {topic: {str(p): n for p, n in sorted(ends.items())} for topic, ends in sorted(self._ends().items())}

    def _refresh(self, named: Set[str] = frozenset()) -> None:
        now = self._clock.now()
        age = self._options.metadata_max_age_ms / 1000
        if self._listed_at is None or (self._subscriber.open_ended and now - self._listed_at >= age):
            self._topics = self._subscriber.topics()
            self._listed_at = now
        self._topics = sorted({*named, *self._topics})
        self._note_present(self._subscriber.refresh(self._topics))

    def _check_names(self, start: StreamOffset) -> None:
        """Once: a topic named by the user that was never there is a mistake, also where a query is restarted."""
        if not self._names_checked and not self._subscriber.open_ended:
            self._subscriber.require([t for t in self._topics if t not in self._present and t not in start.positions])
        self._names_checked = True

    def _check_others(self, others: Offsets, checkpoint: StreamOffset) -> None:
        """Raise BadRequest for what a checkpoint holds and this query does not read, unless losses are allowed.

        A checkpoint without anything that is read is another query's, which nothing allows.
        """
        if not others:
            return
        what = f"The checkpoint holds offsets of {describe(others)}, which this query does not read"
        if self._loss.fail or others == checkpoint.positions:
            raise BadRequest(
                f"{what} ({self._subscriber}): give this query a checkpointLocation of its own, or subscribe to "
                "them again if it is this query's"
            )
        self._loss.report(what, "goes on without them")

    def _note_present(self, present: list[str]) -> None:
        self._present = sorted(present)
        self._bounds = None
        self._probed_at = self._clock.now()

    def _seen_bounds(self) -> Partitions:
        """Return the bounds of what is read in the newest snapshot: one mapping a look, for all questions about it."""
        if self._bounds is None:
            self._bounds = {topic: self._subscriber.partitions(topic) for topic in self._present}
        return self._bounds

    def _wait_for(
        self, named: StreamOffset, topics: list[str], end_of: Callable[[Bounds], int] = attrgetter("log_end")
    ) -> list[str]:
        """Wait for offsets that an earlier run has seen and a cache may hide; return the partitions not seen."""

        def refresh() -> list[str]:
            self._note_present(self._subscriber.refresh(topics))
            return self._present

        return wait_until_reached(self._view, named, self._present, refresh, self._clock, end_of)

    def _wait_for_checkpoint(self, named: StreamOffset, topics: list[str]) -> None:
        others = self._subscriber.others(named.positions)
        positions = {
            topic: {p: offset for p, offset in offsets.items() if p not in others.get(topic, {})}
            for topic, offsets in named.positions.items()
        }
        hidden = self._wait_for(StreamOffset(positions, named.ids), topics)
        hidden = [partition for partition in hidden if partition.rpartition("-")[0] in named.ids]
        if hidden:
            raise Unavailable(
                f"The checkpoint has read further in {', '.join(hidden)} than the log goes as it is seen here: try "
                f"again later, as a mount may hide what is new{RESTORED}"
            )

    def _wait_for_planned_end(self, base: StreamOffset, stop: StreamOffset) -> None:
        """Wait for the end of a batch that was planned before a restart, as it is to be read as it was then."""
        topics = sorted(stop.positions)
        self._wait_for_checkpoint(stop, topics)
        if self._options.isolation != READ_COMMITTED:
            return
        read: Offsets = {}
        for topic, offsets in stop.positions.items():
            ends = {p: limits.log_end for p, limits in self._seen_bounds().get(topic, {}).items()}
            read[topic] = {p: end for p, end in offsets.items() if (base.get(topic, p) or 0) < end <= ends.get(p, -1)}
        hidden = self._wait_for(StreamOffset(read, stop.ids), topics, attrgetter("last_stable"))
        if hidden:
            raise Unavailable(
                f"A batch of {', '.join(hidden)} was planned up to offsets at which a transaction seems to be open "
                "now: try again later"
            )

    def _wait(self) -> None:
        interval = self._options.poll_interval_ms
        seconds = (self._view.poll_interval_ms if interval is None else interval) / 1000
        passed = self._clock.now() - self._probed_at if self._probed_at is not None else seconds
        if passed < seconds:
            self._clock.sleep(seconds - passed)

    def _ends(self) -> Offsets:
        isolation = self._options.isolation
        return {
            topic: {p: limits.end(isolation) for p, limits in bounds.items()}
            for topic, bounds in self._seen_bounds().items()
        }

    def _up_to_target(self, target: Offsets) -> Offsets:
        """Cut the target of AvailableNow to offsets that are there: a topic created again is shorter than before."""
        return {
            topic: {p: min(end, target[topic][p]) for p, end in ends.items() if p in target[topic]}
            for topic, ends in self._ends().items()
            if topic in target
        }

    def _ids(self, positions: Mapping[str, object]) -> dict[str, str]:
        return {topic: self._view.topic_id(topic) for topic in positions if topic in self._present}

    def _covered(self, stop: StreamOffset) -> bool:
        end_of = attrgetter("last_stable" if self._options.isolation == READ_COMMITTED else "log_end")
        for topic, offsets in stop.positions.items():
            bounds = self._seen_bounds().get(topic, {})
            if any(p not in bounds or end_of(bounds[p]) < offset for p, offset in offsets.items()):
                return False
        return True

    def _begin(self, start: StreamOffset, others: Offsets) -> Offsets:
        begin: Offsets = {}
        for topic in sorted(set(start.positions) - set(self._present) - set(others)):
            self._loss.report(
                f"The topic {topic!r} was deleted while a stream reads it",
                "leaves it out",
                hint=OTHER_ROOT,
            )
        for topic, bounds in self._seen_bounds().items():
            offsets = start.positions.get(topic, {})
            if topic in start.positions and not self._same_topic(topic, start):
                offsets = {}
            for partition in sorted(set(offsets) - set(bounds) - set(others.get(topic, ()))):
                self._loss.report(f"Partition {partition} of topic {topic!r} is gone", "leaves it out")
            begin[topic] = {
                p: self._loss.check_end(topic, p, offsets[p], limits) if p in offsets else limits.log_start
                for p, limits in bounds.items()
            }
        return begin

    def _same_topic(self, topic: str, start: StreamOffset) -> bool:
        before, now = start.ids.get(topic), self._view.topic_id(topic)
        if before is None or before == now:
            return True
        self._loss.report(
            f"The topic {topic!r} was deleted and created again while a stream reads it (id {before}, now {now})",
            "goes on from the new topic's start",
            hint=OTHER_ROOT,
        )
        return False

    def _is_held_back(self, stored: Mapping[TopicPartition, Stored]) -> bool:
        """True while `minOffsetsPerTrigger` waits for records, which `maxTriggerDelay` ends; the first is not held."""
        min_offsets = self._options.min_offsets_per_trigger
        if min_offsets is None or self._target is not None or self._last_trigger is None:
            return False
        if self._clock.now() - self._last_trigger >= self._options.max_trigger_delay_ms / 1000:
            return False
        return sum(held.records for held in stored.values()) < min_offsets

    def _cut_by_rate(self, begin: Offsets, end: Offsets, stored: Mapping[TopicPartition, Stored]) -> Offsets:
        """Cut `end` by the rate options, which count what is stored: offsets without records are passed at once."""
        max_offsets = self._options.max_offsets_per_trigger
        total = sum(held.records for held in stored.values())
        if max_offsets is not None and total > max_offsets:
            # At least one record, beyond the limit too, as in Kafka's connector: shares below one would leave small
            # partitions unread for as long as large ones grow.
            end = _cut_each(end, stored, lambda held: held.at_records(max(1, held.records * max_offsets // total))[0])
            stored = self._stored(begin, end)
        max_bytes = self._options.max_bytes_per_trigger
        size = sum(held.nbytes for held in stored.values())
        if max_bytes is not None and size > max_bytes:
            # At least one record, too: what a byte's share comes to may lie inside it.
            end = _cut_each(
                end, stored, lambda held: max(*held.at_bytes(held.nbytes * max_bytes // size), *held.at_records(1))
            )
        return end

    def _stored(self, begin: Offsets, end: Offsets) -> dict[TopicPartition, Stored]:
        """Measure what lies between, without offsets below the log start, which a view cannot measure."""
        ranges = [
            OffsetRange(topic, p, max(offset, limits[p].log_start), end[topic][p])
            for topic, limits in self._seen_bounds().items()
            for p, offset in begin[topic].items()
        ]
        ranges = [offsets for offsets in ranges if offsets.start < offsets.end]
        stored = self._view.stored(ranges)
        return {(offsets.topic, offsets.partition): held for offsets, held in zip(ranges, stored, strict=True)}

    def _topic_ranges(self, topic: str, base: StreamOffset, stop: StreamOffset) -> list[OffsetRange]:
        planned = stop.ids.get(topic)
        try:
            now = self._view.topic_id(topic) if topic in self._present else None
        except NotFound:
            now = None
        if now is None or planned not in (None, now):
            change = "deleted" if now is None else "deleted and created again"
            self._loss.report(
                f"The topic {topic!r} was {change} before offsets planned for this batch were read", "leaves them out"
            )
            return []
        bounds = self._seen_bounds()[topic]
        same = base.ids.get(topic) in (None, planned)
        ranges = []
        for partition, end in sorted(stop.positions[topic].items()):
            limits = bounds.get(partition)
            if limits is None and self._subscriber.others({topic: {partition: end}}):
                continue
            if limits is None:
                self._loss.report(f"Partition {partition} of topic {topic!r} is gone", "leaves it out")
                continue
            start = base.get(topic, partition) if same else None
            begin = limits.log_start if start is None else start
            if begin < end:
                begin = self._loss.check_start(topic, partition, begin, end, limits)
                end = self._loss.check_end(topic, partition, end, limits)
            if begin < end:
                ranges.append(OffsetRange(topic, partition, begin, end))
        return ranges


def _cut_each(ends: Offsets, stored: Mapping[TopicPartition, Stored], cut: Callable[[Stored], int]) -> Offsets:
    """Replace the end of each partition that has something stored by what `cut` makes of that."""
    return {
        topic: {p: cut(stored[topic, p]) if (topic, p) in stored else end for p, end in offsets.items()}
        for topic, offsets in ends.items()
    }


def _says_no_more_than(start: StreamOffset, answer: StreamOffset, begin: Offsets) -> bool:
    """True if an answer has the ids and positions of `start`, and for partitions new since then where they begin."""
    if start.initial or any(start.ids.get(topic, topic_id) != topic_id for topic, topic_id in answer.ids.items()):
        return False
    positions = {topic: {**offsets, **start.positions.get(topic, {})} for topic, offsets in begin.items()}
    return answer.positions == {**start.positions, **positions}
