"""Topics that a consumer reads, as it saw them first: by id, so that one that was created again is noticed.

A partition that was added since, or a topic that was created since, is read from its start whatever the reset policy
says: all its records came while the consumer was there.
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
    """Topics by their names, or all that a regular expression matches as a whole, but Kafka's internal ones."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def matching(self, view: RootView) -> tuple[str, ...]:
        """Return the topics now: with a pattern a listing, and a request per topic."""
        pattern = self.pattern
        if pattern is None:
            return self.topics
        return tuple(name for name in view.topics() if pattern.fullmatch(name) and name not in KAFKA_INTERNAL)


def subscription_to(topics: str | Sequence[str] | None, pattern: str | re.Pattern[str] | None) -> TopicSubscription:
    """Check what is subscribed to. `BadRequest`: no topics, no names, no regular expression, or both of them."""
    if (topics is None) == (pattern is None):
        raise BadRequest(f"a consumer subscribes to topics or to a pattern, found {topics!r} and {pattern!r}")
    if pattern is not None:
        try:
            return TopicSubscription(pattern=re.compile(pattern))
        except re.error as error:
            raise BadRequest(f"pattern is a regular expression, found {pattern!r}: {error}") from None
    names = tuple(dict.fromkeys([topics] if isinstance(topics, str) else topics or ()))
    if not names:
        raise BadRequest("a consumer needs topics, found none")
    for name in names:
        if not is_topic_name(name):
            raise BadRequest(f"a consumer reads topics by their names, found {name!r}; pattern= takes an expression")
    return TopicSubscription(names)


@dataclass
class TopicsRead:
    """See the module. `ids`: of the topics that were looked at."""

    view: RootView
    ids: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def look(self, topics: Sequence[str], *, follow: bool = False, new: bool = False) -> None:
        """Look at topics now; `follow`: as often as wanted; `new`: those not looked at yet were created since.

        `NotFound`: there is no such topic; `Conflict`: one was created again.
        """
        if not topics:
            return
        (self.view.follow if follow else self.view.refresh)(topics)
        for topic in topics:
            topic_id = self.view.topic_id(topic)
            if self.ids.setdefault(topic, topic_id) != topic_id:
                raise Conflict(f"topic {topic} was deleted and created again while it was read: start again")
            if topic not in self._counts:
                self._counts[topic] = 0 if new else len(self.view.bounds(topic))

    def forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self.ids.pop(topic, None)
            self._counts.pop(topic, None)

    def came_since(self, place: TopicPartition) -> bool:
        """True of a partition that was not there when its topic was looked at first."""
        topic, partition = place
        return partition >= self._counts.get(topic, 0)

    def bounds(self, places: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the bounds as they were looked at last. `NotFound`: there is no such partition."""
        topics: Mapping[str, Mapping[int, Bounds]] = {
            topic: self.view.bounds(topic) for topic in {topic for topic, _ in places}
        }
        return {(topic, number): check_partition(topic, number, topics[topic]) for topic, number in sorted(places)}

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the numbers of partitions of topics as they were looked at last."""
        return {topic: self.view.snapshot(topic).state.partitions for topic in topics}

    def partitions(self, topics: Iterable[str]) -> frozenset[TopicPartition]:
        """Return all partitions of topics as they were looked at last."""
        return frozenset((topic, partition) for topic in topics for partition in self.view.bounds(topic))
