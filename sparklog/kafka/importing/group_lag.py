"""Consumer lag in a Kafka log directory, from the coordinators' topic `__consumer_offsets`.

Rows are those of `sparklog.groups.lag`. The members of a group are in a broker's memory, so its state is unknown. Each
broker of a cluster has some partitions of `__consumer_offsets`, and of the topics: groups are those of the coordinators
in this directory, rows those of its logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError
from sparklog.groups.group import DEAD, GroupDescription
from sparklog.groups.lag import Lag
from sparklog.kafka.importing.coordinators import kafka_groups
from sparklog.kafka.in_place.damage_policy import log_skipped
from sparklog.kafka.in_place.directory import kafka_layout
from sparklog.kafka.in_place.internal_topics import CONSUMER_OFFSETS
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.journal.env import SYSTEM
from sparklog.log.state.view import READ_UNCOMMITTED, Bounds, OffsetRange

UNKNOWN = "Unknown"
"""Kafka's word for an unknown state."""


def has_groups(view: KafkaView) -> bool:
    """Return True if the directory holds a coordinator's topic."""
    return kafka_layout(view.location) == "log-dir" and CONSUMER_OFFSETS in view.topics()


class KafkaGroups:
    """The groups of a directory at `now_ms` (ms since the epoch), without offsets that have expired by then.

    `failures`: damage met by `lag`. `BadRequest` for the folder of one partition, `NotFound` without a coordinator's
    topic, `Corrupt` if it is damaged.
    """

    def __init__(self, view: KafkaView, now_ms: int | None = None) -> None:
        self.location = view.location
        self.now_ms = SYSTEM.wall_ms() if now_ms is None else now_ms
        self.failures: list[SparklogError] = []
        self._view = view
        if kafka_layout(view.location) != "log-dir":
            raise BadRequest(
                f"{view.location} is one partition: groups are in {CONSUMER_OFFSETS} of the whole log directory; give "
                "that"
            )
        if not has_groups(view):
            raise NotFound(
                f"{view.location} holds no partition of {CONSUMER_OFFSETS}, where Kafka keeps consumer groups: give "
                "the log directory of a broker that does"
            )
        self._groups = kafka_groups(view.location, env=SYSTEM, now_ms=self.now_ms, on_skipped=log_skipped)

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(self._groups)

    def descriptions(self, names: Iterable[str], failures: list[SparklogError] | None = None) -> list[GroupDescription]:
        """Describe groups; their time is that of the newest offset."""
        return [self._description(name) for name in names]

    def _description(self, name: str) -> GroupDescription:
        group = self._groups.get(name)
        if group is None:
            return GroupDescription(name, DEAD, 0, None, None, 0)
        newest = max((value.commit_timestamp for value in group.offsets.values()), default=0)
        return GroupDescription(name, UNKNOWN, group.generation, None, None, max(0, newest))

    def lag(
        self, names: Iterable[str] | None = None, *, topics: Collection[str] | None = None, seconds: bool = True
    ) -> list[Lag]:
        """Return a row per committed offset of the directory's partitions, ordered by group, topic and partition.

        `names`: None is all; a group that does not exist has no rows. `topics`: only these, as the view has them
        (None: all, and the view takes a new snapshot of them). `seconds` reads the first unread record of each
        partition.
        """
        known = [self._groups[name] for name in (self.names() if names is None else names) if name in self._groups]
        if topics is None:
            topics = {topic for group in known for topic, _ in group.offsets} & set(self._view.topics())
            self._view.refresh(sorted(topics))
        bounds = {topic: self._view.bounds(topic) for topic in topics}
        return [
            self._row(group.id, topic, partition, value.offset, bounds[topic][partition], seconds)
            for group in known
            for (topic, partition), value in sorted(group.offsets.items())
            if partition in bounds.get(topic, {})
        ]

    def _row(self, group: str, topic: str, partition: int, offset: int, limits: Bounds, seconds: bool) -> Lag:
        waited = self._waited(topic, partition, offset, limits) if seconds else None
        lag = limits.log_end - offset
        return Lag(group, topic, partition, offset, limits.log_start, limits.log_end, lag, waited, None)

    def _waited(self, topic: str, partition: int, offset: int, limits: Bounds) -> float | None:
        """Return the seconds since the first record from `offset` on was written; 0 without such a record.

        None if it has no time, or is damaged; the error goes into `failures`.
        """
        try:
            written = self._first_time(topic, partition, max(offset, limits.log_start), limits.log_end)
        except Corrupt as error:
            self.failures.append(error)
            return None
        if written is None:
            return 0.0
        return max(0, self.now_ms - written) / 1000 if written >= 0 else None

    def _first_time(self, topic: str, partition: int, start: int, end: int) -> int | None:
        """Return the time (ms) of the first record in offsets `[start, end)`; None without one."""
        if start < end:
            for part in self._view.plan([OffsetRange(topic, partition, start, end)], READ_UNCOMMITTED):
                for batch in part.read(("timestamp",)):
                    if batch.num_rows:
                        return int(batch.column(0)[0].value)
        return None
