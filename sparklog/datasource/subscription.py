"""The topics and partitions to read, determined by `subscribe`, `subscribePattern`, `assign` and the kind of path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from sparklog.datasource.offsets import Positions, describe
from sparklog.datasource.options import Subscription
from sparklog.datasource.spark_workers import warn_once
from sparklog.errors import BadRequest, NotFound, nearest
from sparklog.log.state.view import Bounds, LogView, refresh_existing
from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, TOPIC, Location


class Subscriber:
    """The topics and partitions that a read subscribes to. Raises BadRequest if the topics or partitions do not match
    the path.
    """

    def __init__(self, view: LogView, location: Location, subscription: Subscription | None) -> None:
        self._view = view
        self._location = location
        self._subscription = subscription
        self._assigned = None if subscription is None else subscription.partitions
        """The partitions of the option `assign` by topic, or None if all partitions of the topics are read."""
        if location.kind == TOPIC and subscription is not None:
            name = location.topic or ""
            matches = subscription.topics == (name,)
            if subscription.pattern is not None:
                matches = re.fullmatch(subscription.pattern, name) is not None
            if not matches:
                raise BadRequest(
                    f"The path {location.path} is the directory of topic {name!r} only: to read other topics, use the "
                    f"root {location.root} as the path; otherwise remove 'subscribe', 'subscribePattern' and 'assign'"
                )

    @property
    def is_open_ended(self) -> bool:
        """True if the user does not specify topics. In this case, the existing topics are read, which may change."""
        if self._subscription is not None:
            return self._subscription.pattern is not None and self._location.kind != TOPIC
        return self._location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION)

    def split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the positions of partitions that are read, even if they do not exist, and the other positions."""
        read: dict[str, dict[int, int]] = {}
        unread: dict[str, dict[int, int]] = {}
        for topic, offsets in positions.items():
            is_topic_read = self._includes(topic)
            for partition, offset in offsets.items():
                is_read = is_topic_read and (self._assigned is None or partition in self._assigned.get(topic, ()))
                part = read if is_read else unread
                part.setdefault(topic, {})[partition] = offset
        return read, unread

    def _includes(self, topic: str) -> bool:
        subscription = self._subscription
        if self._location.kind == TOPIC:
            return topic == self._location.topic
        if subscription is not None and subscription.pattern is not None:
            return re.fullmatch(subscription.pattern, topic) is not None
        return subscription is None or topic in subscription.topics

    def __str__(self) -> str:
        """Return the option or the path that selects the topics, for use in messages."""
        subscription = self._subscription
        if subscription is None or self._location.kind == TOPIC:
            return self._location.path
        if subscription.pattern is not None:
            return f"subscribePattern={subscription.pattern}"
        if subscription.partitions is None:
            return f"subscribe={','.join(subscription.topics)}"
        return f"assign: {describe({topic: dict.fromkeys(ps, 0) for topic, ps in subscription.partitions.items()})}"

    def topics(self) -> list[str]:
        """Return the sorted names of the topics to read. List the topics of the view only if the user does not specify
        topics.
        """
        subscription = self._subscription
        if self._location.kind == TOPIC and self._location.topic is not None:
            return [self._location.topic]
        if subscription is not None and subscription.pattern is None:
            return sorted(subscription.topics)
        names = self._view.topics(self._filter())
        if self.is_open_ended:
            return self._matching(names)
        raise BadRequest(
            f"The path {self._location.path} is a root with {_listed(names)}: select topics with 'subscribe', "
            "'subscribePattern' or 'assign', or use the path of a topic directory"
        )

    def _filter(self) -> Callable[[str], bool]:
        from sparklog.kafka.in_place.directory import is_internal

        # As in Kafka consumers, internal topics of Kafka are read only if the user specifies them.
        return lambda topic: not is_internal(topic) and self._includes(topic)

    def take_snapshot(self) -> list[str]:
        """Take a snapshot of the topics to read, and return their names. Raises NotFound as described in `existing`."""
        if self.is_open_ended:
            return self._matching(self._view.refresh_all(self._filter()))
        return self.existing(self.topics())

    def _matching(self, names: list[str]) -> list[str]:
        """Return these topics. Warn if a pattern matches no topic."""
        if not names and self._subscription is not None:
            existing = _listed(self._view.topics())
            warn_once([f"{self} does not match any topic at {self._view.location}, which has {existing}"])
        return names

    def refresh(self, topics: Sequence[str]) -> list[str]:
        return refresh_existing(self._view, topics)

    def existing(self, topics: Sequence[str]) -> list[str]:
        """Take a snapshot of topics, and return the topics that exist. A listed topic may have been deleted since then.

        Raises NotFound if a topic that the user specified does not exist.
        """
        present = self.refresh(topics)
        if not self.is_open_ended:
            self.require([topic for topic in topics if topic not in present])
        return present

    def require(self, topics: Sequence[str]) -> None:
        """Take a snapshot of topics that must exist. Raises NotFound with similar names for the first missing topic."""
        missing = sorted(set(topics) - set(self.refresh(topics)))
        if missing:
            names = self._view.topics()
            near = nearest(missing[0], names)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {_listed(names)}"
            raise NotFound(f"There is no topic {missing[0]!r} at {self._view.location}: {hint}")

    def partitions(self, topic: str) -> Mapping[int, Bounds]:
        """Return the partitions of a topic to read in the snapshot. Raises NotFound if an assigned partition is
        missing.
        """
        bounds = self._view.bounds(topic)
        if self._assigned is None:
            return bounds
        # A checkpoint may contain a topic that the option no longer contains.
        assigned = self._assigned.get(topic, ())
        for partition in assigned:
            if partition not in bounds:
                raise NotFound(
                    f"Option 'assign' contains partition {partition} of topic {topic!r}, which has "
                    f"{_partitions(sorted(bounds))}"
                )
        return {partition: bounds[partition] for partition in assigned}


def _listed(topics: Sequence[str]) -> str:
    if not topics:
        return "no topics"
    shown = ", ".join(sorted(topics)[:10])
    more = f" and {len(topics) - 10} more" if len(topics) > 10 else ""
    return f"the topic{'s' if len(topics) > 1 else ''} {shown}{more}"


def _partitions(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no partitions"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"partitions {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"partition {numbers[0]} only"
    return f"partitions {', '.join(map(str, numbers[:20]))}"
