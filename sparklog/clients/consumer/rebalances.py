"""Rebalance a consumer: revoke and assign partitions, and notify the listener.

The order of the steps is the same as in Kafka's consumer. If auto-commit is enabled, positions are committed first.
Then `on_revoked` is called, and the partitions are released. Finally, new partitions start at their committed offsets,
and `on_assigned` is called. For a cooperative member, the listener is only notified of the partitions that were revoked
and added. For a member with an eager assignor, the listener is notified that all partitions are revoked, and then of
all assigned partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TypeAlias

from sparklog.clients.consumer.fetcher import PositionFetcher
from sparklog.clients.consumer.member import ConsumerMember
from sparklog.clients.consumer.offset_commits import OffsetCommits
from sparklog.clients.consumer.positions import Positions, StartingPositions
from sparklog.errors import SparklogError
from sparklog.format.checkpoint_files import TopicPartition

_LOG = logging.getLogger("sparklog.groups")
ListenerMethod: TypeAlias = Callable[[frozenset[TopicPartition]], None]


class RebalanceListener:
    """The base class of rebalance listeners. `poll`, `close` and `unsubscribe` call its methods.

    Example:
        class Flush(sparklog.RebalanceListener):
            def on_revoked(self, partitions):
                write_out(partitions)
    """

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle newly assigned partitions. This method may call `seek`.

        Args:
            partitions: The added partitions, as pairs of topic and partition. If the assignor is eager, all assigned
                partitions.
        """

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that will be revoked. The offsets of these partitions can still be committed.

        Args:
            partitions: The revoked partitions. If the assignor is eager, all partitions.
        """

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle the removal of the member from the group. Other members may already own its partitions.

        By default, this calls `on_revoked`.

        Args:
            partitions: The partitions that the member has read.
        """
        self.on_revoked(partitions)


class Rebalances:
    """Applies the assignments of the consumer's member."""

    def __init__(
        self, positions: Positions, fetcher: PositionFetcher, starts: StartingPositions, commits: OffsetCommits
    ) -> None:
        self.listener = RebalanceListener()
        self._positions = positions
        self._fetcher = fetcher
        self._starts = starts
        self._commits = commits
        self._is_unfinished = False
        """True if the next `follow` must continue the latest rebalance, even if the group has not changed."""
        self._has_revoked_all = False
        """True if an eager member has revoked all partitions, so that `on_assigned` is called even if no partitions are
        assigned.
        """
        self._unannounced: frozenset[TopicPartition] | None = None
        """The assigned partitions that have not been passed to `on_assigned` yet, or None if no call is due."""
        self._error: Exception | None = None
        """The first error of the listener since the last `notify`."""

    def follow(self, member: ConsumerMember) -> bool:
        """Apply the changes of the group. Return True if the assignment has changed. The listener is called later by
        `notify`.
        """
        if not (member.refresh() or self._is_unfinished):
            return False
        before = self._positions.assigned
        # If a step fails, the next call repeats it.
        self._is_unfinished = True
        revokes_all = member.must_revoke_all()
        revoked = before if revokes_all else member.revoking() & before
        if revoked:
            self._revoke(member, revoked)
        self._has_revoked_all = self._has_revoked_all or revokes_all
        if revokes_all or member.revoking():
            member.revoke()
        if member.is_stable() or not member.is_eager:
            self._start_added(member)
        self._is_unfinished = not member.is_stable()
        return self._positions.assigned != before

    def notify(self) -> None:
        """Call `on_assigned` if a call is due. Raise the first error of the listener since the last call."""
        if self._unannounced is not None:
            unannounced, self._unannounced = self._unannounced, None
            _LOG.info("assigned %s", _names(unannounced))
            self._call(self.listener.on_assigned, unannounced)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _start_added(self, member: ConsumerMember) -> None:
        added = member.assigned() - self._positions.assigned
        if added:
            self.start(added, member.polled)
        if added or self._has_revoked_all:
            self._unannounced = added if self._unannounced is None else self._unannounced | added
        self._has_revoked_all = False

    def start(self, partitions: Collection[TopicPartition], heartbeat: Callable[[], None]) -> None:
        """Start or restart reading partitions at their committed offsets."""
        starts = self._starts.of(partitions, heartbeat)
        self._fetcher.drop()
        self._positions.begin(starts.next)
        for partition in partitions:
            self._positions.committed.pop(partition, None)
        self._positions.committed.update(starts.committed)

    def _revoke(self, member: ConsumerMember, revoked: frozenset[TopicPartition]) -> None:
        try:
            self._commits.run_before_revoke(member)
        except SparklogError as error:
            _LOG.warning("could not commit positions before a rebalance, so records will be read again: %s", error)
        _LOG.info("revoked %s", _names(revoked))
        self._call_and_drop(self.listener.on_revoked, revoked)

    def end(self) -> None:
        """Revoke all partitions before the member leaves."""
        self._call_and_drop(self.listener.on_revoked, self._positions.assigned)
        self._unannounced, self._is_unfinished, self._has_revoked_all = None, False, False

    def lose(self) -> None:
        """Remove all partitions, because the member was removed from the group."""
        lost = self._positions.assigned
        _LOG.warning("lost %s", _names(lost))
        self._call_and_drop(self.listener.on_lost, lost)
        self._unannounced, self._is_unfinished, self._has_revoked_all = None, False, False

    def _call_and_drop(self, method: ListenerMethod, partitions: frozenset[TopicPartition]) -> None:
        try:
            # The listener has not been notified of unannounced partitions.
            announced = partitions - (self._unannounced or frozenset())
            if announced:
                self._call(method, announced)
        finally:
            self._drop(partitions)

    def _call(self, method: ListenerMethod, partitions: frozenset[TopicPartition]) -> None:
        """Call the listener. As in Kafka, an error of the listener is raised after the assignment has been applied."""
        try:
            method(partitions)
        except Exception as error:  # noqa: BLE001  (`notify` raises it)
            _LOG.warning("%s of the listener failed: %r", method.__name__, error)
            self._error = self._error or error

    def _drop(self, partitions: frozenset[TopicPartition]) -> None:
        self._fetcher.drop()
        self._positions.drop(partitions)
        if self._unannounced is not None:
            self._unannounced = self._unannounced - partitions


def _names(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "no partitions"
