"""The log that is served, a root's or a Kafka directory's, as threads and waiting fetches use it.

A view is not safe between threads: looks at it and plans take turns, reads of files do not. A fetch at the end waits
here. One task looks at all topics that are waited for, as often as the view says, and whenever this process commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sparklog.errors import SparklogError
from sparklog.log.journal.clocks import ClockReading, Env
from sparklog.log.journal.names import is_topic_name
from sparklog.log.read.skipped import SkippedLog
from sparklog.log.state.view import (
    READ_UNCOMMITTED,
    Bounds,
    LogView,
    OffsetRange,
    PartitionSize,
    ReadPart,
    TimestampOffset,
    refresh_existing,
)
from sparklog.log.topic.root import Root
from sparklog.serve.codes import Code, code_of
from sparklog.storage.fork_safety import ForkLock

LISTING_MS = 1_000
"""A list of topics is believed so long where it costs round trips: tools ask for it again and again."""
NEAR_OFFSETS = 1 << 16
Ends: TypeAlias = Mapping[int, Bounds]
Runner: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a function, with arguments, in a thread."""


@dataclass(frozen=True, slots=True)
class PolledTopic:
    """A topic as it was seen between two moments; without `ends` it cannot be read, and `code` says why."""

    ends: Ends = field(default_factory=dict)
    topic_id: str = ""
    begun: ClockReading | None = None
    done: ClockReading | None = None
    code: Code = Code.UNKNOWN_TOPIC_OR_PARTITION


MISSING, DENIED = PolledTopic(), PolledTopic(code=Code.TOPIC_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """The place that a fetch reads on at: the next offset of a partition, for readers of one isolation level."""

    topic: str
    topic_id: str
    partition: int
    isolation: str
    offset: int


class ServedLog:
    """Topics to read.

    * `root`: None for a Kafka directory
    * `topic`: the only served topic; None: all topics
    * `skipped`: the corrupt records that `view` skips
    """

    def __init__(self, view: LogView, root: Root | None, topic: str | None, skipped: SkippedLog | None = None) -> None:
        self.root = root
        self.skipped = SkippedLog() if skipped is None else skipped
        self.location = view.location
        self._view = view
        self._topic = topic
        self._is_far = root is None or root.store.parallel_reads > 1
        self._lock = ForkLock()
        self._seen: dict[str, PolledTopic] = {}
        self._names: dict[str, str] = {}
        """Names of the topics in `_seen`, by topic id."""
        self._poked: ClockReading | None = None
        self._listed: tuple[ClockReading, list[str]] | None = None
        self._searched: tuple[ClockReading, list[str]] | None = None
        """The latest list whose topics were all polled to find an unknown id."""
        self._waiting: dict[asyncio.Future[None], Mapping[str, PolledTopic]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._pause: asyncio.Future[None] | None = None

    @property
    def env(self) -> Env:
        return self._view.env

    # -- looking, in threads

    def topics(self) -> list[str]:
        """Return the names of all topics that are served."""
        if self._topic is not None:
            return [self._topic]
        with self._lock:
            if not self._is_far or self._listed is None or self.env.elapsed_ms(self._listed[0]) > LISTING_MS:
                # A topic that cannot be read is left out: its own requests name the error.
                listed = self._view.topics() if self.root is None else self.root.topics([])
                self._listed = self.env.now(), listed
            return self._listed[1]

    def serves(self, topic: str) -> bool:
        """Return True if a topic of this name may be served."""
        return topic in self._seen or (is_topic_name(topic) and self._topic in (None, topic))

    def invalidate_listing(self) -> None:
        with self._lock:
            self._listed = None

    def poll(self, topics: Collection[str]) -> dict[str, PolledTopic]:
        """Take a new look; return the topics that exist."""
        view = self._view
        with self._lock:
            begun = self.env.now()
            names = refresh_existing(view, [name for name in topics if self.serves(name)])
            polled = {
                name: PolledTopic(view.bounds(name), self._topic_id(name), begun, self.env.now()) for name in names
            }
            # Others look up one topic without the lock.
            earlier_ids = {self.last_polled(name).topic_id for name in topics}
            names_by_id = {seen.topic_id: name for name, seen in polled.items()}
            self._seen.update(polled)
            self._names.update(names_by_id)
            for name in set(topics) - polled.keys():
                self._seen.pop(name, None)
            for topic_id in earlier_ids - names_by_id.keys():
                self._names.pop(topic_id, None)
            return polled

    def _topic_id(self, topic: str) -> str:
        # A fetch names a topic by its id alone, and must never get the records of another one.
        if self.root is None:
            # Of a root this is not imported, and topics have ids of their own.
            from sparklog.kafka.in_place.view import KafkaView

            if isinstance(self._view, KafkaView):
                return self._view.unique_topic_id(topic)
        return self._view.topic_id(topic)

    def poll_each(self, topics: Collection[str]) -> dict[str, PolledTopic]:
        """Take a new look; return all topics: one that does not exist or cannot be read fails alone."""
        try:
            polled = self.poll(topics) if topics else {}
            return {name: polled.get(name, MISSING) for name in topics}
        except SparklogError as error:
            if len(topics) == 1:
                return dict.fromkeys(topics, PolledTopic(code=code_of(error)))
            return {name: self.poll_each([name])[name] for name in topics}

    def last_polled(self, topic: str) -> PolledTopic:
        """Return a topic as it was seen last. Asks nothing, and waits for nothing."""
        return self._seen.get(topic, MISSING)

    def name_of(self, topic_id: str) -> str | None:
        """Return the cached name of the topic with an id, without a request or a wait."""
        return self._names.get(topic_id)

    def names_of(self, topic_ids: Collection[str]) -> dict[str, str]:
        """Return the names of topics by their ids; poll all listed topics if an id is unknown."""
        if any(self.name_of(topic_id) is None for topic_id in topic_ids):
            topics = self.topics()
            if self._listed is None or self._listed is not self._searched:
                self.poll_each(topics)
                self._searched = self._listed
        names = {topic_id: self.name_of(topic_id) for topic_id in topic_ids}
        return {topic_id: name for topic_id, name in names.items() if name is not None}

    def is_recent(self, seen: PolledTopic) -> bool:
        """Return True for a look a moment ago, since which this process has not committed."""
        if seen.begun is None or seen.done is None:
            return False
        if self._poked is not None and seen.begun.elapsed_ms(self._poked) <= 0:
            return False
        return self.env.elapsed_ms(seen.done) < self._view.poll_interval_ms

    def plan(self, offsets: OffsetRange, isolation: str, nbytes: int) -> tuple[ReadPart | None, int]:
        """Plan the first part of a range, of about so many stored bytes; and where the part ends.

        None: the range is empty, or holds nothing that is visible.
        """
        with self._lock:
            stop = end = offsets.start
            # What is far is not looked at: there may be a hundred thousand slices.
            span = NEAR_OFFSETS
            while stop == end < offsets.end:
                end, span = min(offsets.start + span, offsets.end), span * 16
                stop = self._view.stored([replace(offsets, end=end)])[0].at_bytes(nbytes)[0]
            stop = min(max(stop, offsets.start + 1), offsets.end)
            parts = self._view.plan([replace(offsets, end=stop)], isolation)
            return (parts[0] if parts else None), stop

    def record_at(self, topic: str, partition: int, time_ms: int | None, isolation: str) -> TimestampOffset | None:
        """Return the first record at or after `time_ms`; None: the record with the largest timestamp, in any isolation.

        If no record has a timestamp, the largest timestamp is -1, the one of the first record, as on a broker.
        """
        with self._lock:
            is_largest = time_ms is None
            if time_ms is None:
                time_ms, isolation = self._greatest_timestamp(topic, partition), READ_UNCOMMITTED
            elif time_ms < 0:
                return None
            found = self._view.offsets_for_timestamps(topic, {partition: time_ms}, isolation).get(partition)
            # A batch header in a Kafka directory may say -1 although its records have timestamps: a broker finds none.
            return None if is_largest and time_ms < 0 and found is not None and found.timestamp >= 0 else found

    def _greatest_timestamp(self, topic: str, partition: int) -> int:
        """Return the greatest time (ms) of a record, by metadata alone; -1: there is none with a time."""
        view: Any = self._view
        if self.root is None:
            segments = view.partition_states(topic)[partition].segments
            return max((int(segment.max_timestamp) for segment in segments), default=-1)
        slices = view.snapshot(topic).slices.select(partition)
        # `max_ts` of a slice without timestamps is the time of its append, or of the imported file.
        return int(slices.max_ts[slices.min_ts >= 0].max(initial=-1))

    def sizes(self, topic: str) -> list[PartitionSize]:
        with self._lock:
            return self._view.partition_sizes(topic)

    # -- waiting, in the event loop

    async def changed(self, seen: Mapping[str, PolledTopic], seconds: float, run: Runner) -> None:
        """Wait until one of these topics differs from what was seen of it, at most so many seconds."""
        changed = asyncio.get_running_loop().create_future()
        self._waiting[changed] = seen
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watching(run))
        try:
            # Unlike `wait_for` it makes no task, and loses no cancellation.
            await asyncio.wait([changed], timeout=seconds)
        finally:
            del self._waiting[changed]

    def notify(self) -> None:
        """Look now: this process has committed."""
        self._poked = self.env.now()
        if self._pause is not None:
            _end(self._pause)

    def close(self) -> None:
        """Stop looking: the server ends."""
        if self._watch is not None:
            self._watch.cancel()

    async def _watching(self, run: Runner) -> None:
        while self._waiting:
            self._pause = asyncio.get_running_loop().create_future()
            topics = {topic for seen in self._waiting.values() for topic in seen}
            try:
                polled = await run(self.poll, topics)
            except SparklogError:
                # Fetches ask again when their time is over, and get the error then.
                polled = None
            for changed, seen in self._waiting.items() if polled is not None else ():
                if any(polled.get(name, MISSING).ends != topic.ends for name, topic in seen.items()):
                    _end(changed)
            await asyncio.wait([self._pause], timeout=self._view.poll_interval_ms / 1000)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
