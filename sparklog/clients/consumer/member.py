"""The interface that determines a consumer's partitions and commits offsets, and two implementations without a group
membership.

A consumer that subscribes without a group reads all partitions of its topics (`StandaloneMember`). A consumer with
manually assigned partitions reads these partitions (`ManualAssignment`). The third implementation is a member of a
group (`JoinedMember`).
"""

# ruff: noqa: B027  (the methods for group members do nothing by default)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from sparklog.clients.consumer.subscribed_topics import SubscribedTopics
from sparklog.errors import BadRequest
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class ConsumerMember(ABC):
    """Owns partitions for a consumer. By default, the methods for group members do nothing."""

    is_eager = False
    """True if the member revokes all partitions in each rebalance, as eager members do in Kafka."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the topics to read. The next `refresh` applies the change."""

    @abstractmethod
    def refresh(self) -> bool:
        """Update `assigned` and `revoking`. Return True if `assigned` or `revoking` may have changed."""

    @abstractmethod
    def assigned(self) -> frozenset[TopicPartition]:
        """Return the owned partitions that the member does not have to revoke. The result is empty before the first
        `refresh`.
        """

    def revoking(self) -> frozenset[TopicPartition]:
        """Return the owned partitions that the member must revoke."""
        return NO_PARTITIONS

    def revoke(self) -> None:
        """Release the partitions that must be revoked."""

    def must_revoke_all(self) -> bool:
        """Return True if the member is eager and has not yet revoked all partitions for the latest rebalance."""
        return False

    def is_stable(self) -> bool:
        """Return True if the member owns the partitions of the latest assignment."""
        return True

    def is_replaced(self) -> bool:
        """Return True if another process has joined the group as the same static member."""
        return False

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets. Raises `Fenced` if the consumer is no longer a member of its group, and `BadRequest` if the
        consumer has no group.
        """
        raise BadRequest(
            "a consumer without a group cannot commit offsets: specify a group, or enable_auto_commit=False"
        )

    def polled(self) -> None:
        """Record that the program has polled. Send a heartbeat if one is due."""

    def leave(self) -> None:
        """Leave the group."""

    def stop(self) -> None:
        """Stop background work, but do not leave the group."""


class StandaloneMember(ConsumerMember):
    """Owns all partitions of its topics. This member does not belong to a group."""

    def __init__(self, topics: SubscribedTopics) -> None:
        self._topics = topics
        self._names: tuple[str, ...] = ()
        self._assigned = NO_PARTITIONS
        self._owned = NO_PARTITIONS

    def subscribe(self, topics: Sequence[str]) -> None:
        self._names = tuple(topics)

    def refresh(self) -> bool:
        partitions = self._topics.partitions(self._names)
        changed = partitions != self._assigned
        self._assigned, self._owned = partitions, self._owned | partitions
        return changed

    def assigned(self) -> frozenset[TopicPartition]:
        return self._assigned

    def revoking(self) -> frozenset[TopicPartition]:
        return self._owned - self._assigned

    def revoke(self) -> None:
        self._owned = self._assigned


class ManualAssignment(ConsumerMember):
    """Owns the partitions that the program assigned. Offsets can be committed if the group has no members."""

    def __init__(self, partitions: Collection[TopicPartition], group: Group | None) -> None:
        self._partitions = frozenset(partitions)
        self._group = group
        self._is_new = True

    def refresh(self) -> bool:
        changed, self._is_new = self._is_new, False
        return changed

    def assigned(self) -> frozenset[TopicPartition]:
        return NO_PARTITIONS if self._is_new else self._partitions

    def commit(self, offsets: Offsets) -> None:
        if self._group is None:
            super().commit(offsets)
        else:
            self._group.alter(offsets)
