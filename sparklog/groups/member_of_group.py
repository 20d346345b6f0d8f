"""Protocol between a consumer and its membership in a group, and the readers that share with no other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from sparklog.errors import BadRequest
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group, Offsets
from sparklog.groups.topics_read import TopicsRead


class MemberOfGroup(Protocol):
    """A reader of shared partitions. `eager`: its program is told that all go before it is told which it has."""

    eager: bool

    def subscribe(self, topics: Sequence[str]) -> None:
        """Say which topics are wanted from now on."""

    def look(self) -> bool:
        """See the newest entries; True if the assignment, or what is to be revoked, changed."""

    def assigned(self) -> frozenset[TopicPartition]:
        """Return the partitions that it owns and keeps."""

    def revoking(self) -> frozenset[TopicPartition]:
        """Return partitions that it owns and is to give up."""

    def starts_over(self) -> bool:
        """Return if it is eager, and has not given up all for the newest rebalance, by `revoke`."""

    def settled(self) -> bool:
        """Return if its part of the newest assignment is complete."""

    def revoke(self) -> None:
        """Give up what is to be given up."""

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets. `Fenced` once it is no member any more."""

    def keep_alive(self) -> None:
        """Send a heartbeat if one is due."""

    def leave(self) -> None: ...

    def stop(self) -> None:
        """End what it does in the background, without leaving."""


class Alone:
    """A reader of all partitions of its topics, without a group."""

    eager = False

    def __init__(self, topics: TopicsRead) -> None:
        self._topics = topics
        self._names: tuple[str, ...] = ()
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._held: frozenset[TopicPartition] = frozenset()

    def subscribe(self, topics: Sequence[str]) -> None:
        self._names = tuple(topics)

    def look(self) -> bool:
        partitions = self._topics.partitions(self._names)
        changed = partitions != self._assigned
        self._assigned, self._held = partitions, self._held | partitions
        return changed

    def assigned(self) -> frozenset[TopicPartition]:
        return self._assigned

    def revoking(self) -> frozenset[TopicPartition]:
        return self._held - self._assigned

    def starts_over(self) -> bool:
        return False

    def settled(self) -> bool:
        return True

    def revoke(self) -> None:
        self._held = self._assigned

    def commit(self, offsets: Offsets) -> None:
        raise BadRequest("a consumer without a group commits no offsets: give a group, or enable_auto_commit=False")

    def keep_alive(self) -> None: ...

    def leave(self) -> None: ...

    def stop(self) -> None: ...


class ByHand(Alone):
    """A reader of partitions that its program names. It commits for a group that has no member."""

    def __init__(self, topics: TopicsRead, partitions: Collection[TopicPartition], group: Group | None) -> None:
        super().__init__(topics)
        self._by_hand = frozenset(partitions)
        self._group = group

    def look(self) -> bool:
        changed = self._assigned != self._by_hand
        self._assigned = self._held = self._by_hand
        return changed

    def commit(self, offsets: Offsets) -> None:
        if self._group is None:
            super().commit(offsets)
        else:
            self._group.alter(offsets)
