"""The topics that a consumer reads, with the topic ids and partition counts at the time when the consumer first read
the topics.

The topic id is used to detect recreated topics. Partitions that were added later, and topics that were created later,
are read from their start regardless of the reset policy, because all of their records were appended while the consumer
was running.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.errors import BadRequest, Conflict
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.journal.names import is_topic_name
from sparklog.log.read.read_plan import check_partition
from sparklog.log.state.view import Bounds
from sparklog.log.topic.root import RootView

KAFKA_INTERNAL = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True)
class TopicSubscription:
    """A list of topics, or all topics whose full name matches a pattern, except Kafka's internal topics."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def matching(self, view: RootView) -> tuple[str, ...]:
        """Return the names of the existing topics. If the subscription is a pattern, a listing and one request per
        topic are required.
        """
        pattern = self.pattern
        if pattern is None:
            return self.topics
        return tuple(name for name in view.topics() if pattern.fullmatch(name) and name not in KAFKA_INTERNAL)


def subscription_to(topics: str | Sequence[str] | None, pattern: str | re.Pattern[str] | None) -> TopicSubscription:
    """Validate the arguments of `subscribe`: either topic names or a regular expression. Raises `BadRequest`."""
    if (topics is None) == (pattern is None):
        raise BadRequest(f"expected topics or a pattern, found {topics!r} and {pattern!r}")
    if pattern is not None:
        try:
            return TopicSubscription(pattern=re.compile(pattern))
        except re.error as error:
            raise BadRequest(f"pattern must be a regular expression, found {pattern!r}: {error}") from None
    names = tuple(dict.fromkeys([topics] if isinstance(topics, str) else topics or ()))
    if not names:
        raise BadRequest("a consumer requires at least one topic, found none")
    for name in names:
        if not is_topic_name(name):
            raise BadRequest(f"{name!r} is not a topic name: use pattern= to subscribe with a regular expression")
    return TopicSubscription(names)


@dataclass
class SubscribedTopics:
    """The topics that a consumer reads. `ids` contains the id of each topic at its first refresh."""

    view: RootView
    ids: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    """The number of partitions that each topic had at its first refresh."""

    def refresh(self, topics: Sequence[str], *, follow: bool = False, new: bool = False) -> None:
        """Read the latest state of topics.

        Args:
            follow: True to poll with `RootView.follow`, which may leave commits for the next poll.
            new: True if topics that have not been refreshed before were created while the consumer was running.

        Raises:
            NotFound: If a topic does not exist.
            Conflict: If a topic was recreated.
        """
        if not topics:
            return
        (self.view.follow if follow else self.view.refresh)(topics)
        for topic in topics:
            topic_id = self.view.topic_id(topic)
            if self.ids.setdefault(topic, topic_id) != topic_id:
                raise Conflict(
                    f"topic {topic} was deleted and recreated while it was being read: create a new consumer"
                )
            if topic not in self._counts:
                self._counts[topic] = 0 if new else len(self.view.bounds(topic))

    def remove(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self.ids.pop(topic, None)
            self._counts.pop(topic, None)

    def is_new(self, partition: TopicPartition) -> bool:
        """Return True if the partition did not exist when the consumer first read its topic."""
        topic, number = partition
        return number >= self._counts.get(topic, 0)

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the bounds of partitions as of the last refresh. Raises `NotFound` if a partition does not exist."""
        topics: Mapping[str, Mapping[int, Bounds]] = {
            topic: self.view.bounds(topic) for topic in {topic for topic, _ in partitions}
        }
        return {(topic, number): check_partition(topic, number, topics[topic]) for topic, number in sorted(partitions)}

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each topic as of the last refresh."""
        return {topic: self.view.snapshot(topic).state.partitions for topic in topics}

    def partitions(self, topics: Iterable[str]) -> frozenset[TopicPartition]:
        """Return all partitions of topics as of the last refresh."""
        return frozenset((topic, partition) for topic in topics for partition in self.view.bounds(topic))
