"""The log that a server reads, which is a view of a root or a Kafka directory. It is shared by threads and waiting
fetches.

Views are not thread-safe, so a lock serializes polling and planning. Files are read in parallel. Fetches at the log end
wait in `wait_for_change`. A single task polls the topics of all waiting fetches, at the poll interval of the view and
after each commit of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
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
from sparklog.serve.recent_batches import RecentBatches
from sparklog.storage.fork_safety import ForkLock

LISTING_MS = 1_000
"""The time (ms) for which a topic listing is cached if the store is remote. Listings are cached because tools list
topics repeatedly.
"""
NEAR_OFFSETS = 1 << 16
"""The number of offsets that are first considered when a read is planned. The number is limited because a partition may
have a large number of slices.
"""
POLLED_TOPICS, YIELD_SECONDS = 100, 0.0005
"""The number of topics to poll while holding the lock, and the time for which other threads can then acquire it."""
Ends: TypeAlias = Mapping[int, Bounds]
Runner: TypeAlias = Callable[..., Awaitable[Any]]
"""A function that calls another function with arguments in a thread."""


@dataclass(frozen=True, slots=True)
class PolledTopic:
    """The state of a topic, as polled between `started` and `ended`.

    If the topic cannot be read, `ends` is empty and `code` is the reason.
    """

    ends: Ends = field(default_factory=dict)
    topic_id: str = ""
    started: ClockReading | None = None
    ended: ClockReading | None = None
    code: Code = Code.UNKNOWN_TOPIC_OR_PARTITION


MISSING, DENIED = PolledTopic(), PolledTopic(code=Code.TOPIC_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """The position of a fetch, which is the next offset of a partition for an isolation level."""

    topic: str
    topic_id: str
    partition: int
    isolation: str
    offset: int


class ServedLog:
    """The topics that a server reads.

    * `root`: the root, or None for a Kafka directory
    * `topic`: the only topic to serve, or None for all topics
    * `is_remote`: True if each request to the store costs a round trip
    * `skipped`: the corrupt records that `view` skips
    * `recent`: the batches that this server has just committed
    """

    def __init__(self, view: LogView, root: Root | None, topic: str | None, skipped: SkippedLog | None = None) -> None:
        self.root = root
        self.skipped = SkippedLog() if skipped is None else skipped
        self.recent = RecentBatches()
        self.location = view.location
        self._view = view
        self._topic = topic
        self.is_remote = root is None or root.store.parallel_reads > 1
        self._lock = ForkLock()
        self._polled: dict[str, PolledTopic] = {}
        self._names: dict[str, str] = {}
        """The names of the topics in `_polled`, by topic id."""
        self._committed: ClockReading | None = None
        self._listing: tuple[ClockReading, list[str]] | None = None
        self._polled_listing: tuple[ClockReading, list[str]] | None = None
        """The latest listing whose topics were all polled to find an unknown topic id."""
        self._waiting: dict[asyncio.Future[None], Mapping[str, PolledTopic]] = {}
        self._poll_task: asyncio.Task[None] | None = None
        self._pause: asyncio.Future[None] | None = None

    @property
    def env(self) -> Env:
        return self._view.env

    # -- polling and planning, in threads

    def topics(self) -> list[str]:
        """Return the names of all served topics."""
        if self._topic is not None:
            return [self._topic]
        with self._lock:
            if not self.is_remote or self._listing is None or self.env.elapsed_ms(self._listing[0]) > LISTING_MS:
                # Omit topics that cannot be read. Requests for such a topic return the error.
                listed = self._view.topics() if self.root is None else self.root.topics([])
                self._listing = self.env.now(), listed
            return self._listing[1]

    def serves(self, topic: str) -> bool:
        """Return True if the server may serve a topic with this name."""
        return topic in self._polled or (is_topic_name(topic) and self._topic in (None, topic))

    def invalidate_listing(self) -> None:
        with self._lock:
            self._listing = None

    def poll(self, topics: Collection[str]) -> dict[str, PolledTopic]:
        """Poll topics, and return the existing topics.

        Many topics are polled in parts, so that a request for many topics does not delay the other requests.
        """
        if len(topics) <= POLLED_TOPICS:
            return self._poll(topics)
        polled, remaining = dict[str, PolledTopic](), iter(topics)
        while part := list(islice(remaining, POLLED_TOPICS)):
            polled |= self._poll(part)
            # Allow another thread to acquire the lock.
            self.env.sleep(YIELD_SECONDS)
        return polled

    def _poll(self, topics: Collection[str]) -> dict[str, PolledTopic]:
        view = self._view
        with self._lock:
            started = self.env.now()
            names = refresh_existing(view, [name for name in topics if self.serves(name)])
            polled = {
                name: PolledTopic(view.bounds(name), self._topic_id(name), started, self.env.now()) for name in names
            }
            # Other threads read these dictionaries without the lock, so change one entry at a time.
            earlier_ids = {self.last_polled(name).topic_id for name in topics}
            names_by_id = {topic.topic_id: name for name, topic in polled.items()}
            self._polled.update(polled)
            self._names.update(names_by_id)
            for name in set(topics) - polled.keys():
                self._polled.pop(name, None)
            for topic_id in earlier_ids - names_by_id.keys():
                self._names.pop(topic_id, None)
            return polled

    def _topic_id(self, topic: str) -> str:
        # A fetch by topic id must never return records of another topic.
        if self.root is None:
            # This import is required only for Kafka directories, because the topics of a root always have unique ids.
            from sparklog.kafka.in_place.view import KafkaView

            if isinstance(self._view, KafkaView):
                return self._view.unique_topic_id(topic)
        return self._view.topic_id(topic)

    def poll_each(self, topics: Collection[str]) -> dict[str, PolledTopic]:
        """Poll topics, and return the state of each topic. A missing or unreadable topic does not affect the others."""
        try:
            polled = self.poll(topics) if topics else {}
            return {name: polled.get(name, MISSING) for name in topics}
        except SparklogError as error:
            if len(topics) == 1:
                return dict.fromkeys(topics, PolledTopic(code=code_of(error)))
            return {name: self.poll_each([name])[name] for name in topics}

    def last_polled(self, topic: str) -> PolledTopic:
        """Return the state of a topic at the latest poll. Does not send a request and does not wait."""
        return self._polled.get(topic, MISSING)

    def polled_topics(self) -> list[str]:
        """Return the names of the topics that clients have requested, without a request or a wait."""
        return list(self._polled)

    def name_of(self, topic_id: str) -> str | None:
        """Return the cached name of the topic with this id. Does not send a request and does not wait."""
        return self._names.get(topic_id)

    def names_of(self, topic_ids: Collection[str]) -> dict[str, str]:
        """Return the names of topics by topic id. If an id is unknown, poll all listed topics."""
        if any(self.name_of(topic_id) is None for topic_id in topic_ids):
            topics = self.topics()
            if self._listing is None or self._listing is not self._polled_listing:
                self.poll_each(topics)
                self._polled_listing = self._listing
        names = {topic_id: self.name_of(topic_id) for topic_id in topic_ids}
        return {topic_id: name for topic_id, name in names.items() if name is not None}

    def is_recent(self, polled: PolledTopic) -> bool:
        """Return True if the topic was polled within the poll interval, and this process has not committed since the
        poll.
        """
        if polled.started is None or polled.ended is None:
            return False
        if self._committed is not None and polled.started.elapsed_ms(self._committed) <= 0:
            return False
        return self.env.elapsed_ms(polled.ended) < self._view.poll_interval_ms

    def plan(self, offsets: OffsetRange, isolation: str, nbytes: int) -> tuple[ReadPart | None, int]:
        """Plan a read of the first part of a range, with about `nbytes` stored bytes.

        Return the part and the offset where it ends. The part is None if it does not contain visible records.
        """
        with self._lock:
            stop = end = offsets.start
            span = NEAR_OFFSETS
            while stop == end < offsets.end:
                end, span = min(offsets.start + span, offsets.end), span * 16
                stop = self._view.stored([replace(offsets, end=end)])[0].at_bytes(nbytes)[0]
            stop = min(max(stop, offsets.start + 1), offsets.end)
            parts = self._view.plan([replace(offsets, end=stop)], isolation)
            return (parts[0] if parts else None), stop

    def record_at(self, topic: str, partition: int, time_ms: int | None, isolation: str) -> TimestampOffset | None:
        """Return the first record at or after `time_ms`, or the record with the largest timestamp if `time_ms` is None.

        The largest timestamp is the largest timestamp of all records, regardless of the isolation level. If no record
        has a timestamp, return the first record, with timestamp -1, as a broker does.
        """
        with self._lock:
            is_largest = time_ms is None
            if time_ms is None:
                time_ms, isolation = self._largest_timestamp(topic, partition), READ_UNCOMMITTED
            elif time_ms < 0:
                return None
            found = self._view.offsets_for_timestamps(topic, {partition: time_ms}, isolation).get(partition)
            # In a Kafka directory, a batch header may have timestamp -1 although its records have timestamps. As on a
            # broker, such a batch has no largest timestamp.
            return None if is_largest and time_ms < 0 and found is not None and found.timestamp >= 0 else found

    def _largest_timestamp(self, topic: str, partition: int) -> int:
        """Return the largest record timestamp (ms) from metadata only, or -1 if no record has a timestamp."""
        view: Any = self._view
        if self.root is None:
            segments = view.partition_states(topic)[partition].segments
            return max((int(segment.max_timestamp) for segment in segments), default=-1)
        slices = view.snapshot(topic).slices.select(partition)
        return int(slices.record_max_ts.max(initial=-1))

    def sizes(self, topic: str) -> list[PartitionSize]:
        with self._lock:
            return self._view.partition_sizes(topic)

    # -- waiting, on the event loop

    async def find_names(self, topic_ids: Sequence[str], run: Runner) -> dict[str, str]:
        """Return the names of topics by topic id. Use a thread only if an id is unknown."""
        names = {topic_id: name for topic_id in topic_ids if (name := self.name_of(topic_id)) is not None}
        return names if len(names) == len(set(topic_ids)) else await run(self.names_of, topic_ids)

    async def wait_for_change(self, polled: Mapping[str, PolledTopic], seconds: float, run: Runner) -> None:
        """Wait until the bounds of a topic differ from its bounds in `polled`, for at most `seconds`."""
        changed = asyncio.get_running_loop().create_future()
        self._waiting[changed] = polled
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll_while_waiting(run))
        try:
            # Unlike `wait_for`, `wait` does not create a task and does not lose a cancellation.
            await asyncio.wait([changed], timeout=seconds)
        finally:
            del self._waiting[changed]

    def notify(self) -> None:
        """Poll immediately, because this process has committed."""
        self._committed = self.env.now()
        if self._pause is not None:
            _complete(self._pause)

    def close(self) -> None:
        """Stop polling."""
        if self._poll_task is not None:
            self._poll_task.cancel()

    async def _poll_while_waiting(self, run: Runner) -> None:
        while self._waiting:
            self._pause = asyncio.get_running_loop().create_future()
            topics = {topic for awaited in self._waiting.values() for topic in awaited}
            try:
                polled = await run(self.poll, topics)
            except SparklogError:
                # When the wait ends, each fetch polls again, and the error is raised in the fetch.
                polled = None
            for changed, awaited in self._waiting.items() if polled is not None else ():
                if any(polled.get(name, MISSING).ends != topic.ends for name, topic in awaited.items()):
                    _complete(changed)
            await asyncio.wait([self._pause], timeout=self._view.poll_interval_ms / 1000)


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
