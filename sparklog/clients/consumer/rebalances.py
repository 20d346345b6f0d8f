"""Take up what a group assigns: give up partitions, begin in others, and tell the program of both.

The order is that of Kafka's consumer: positions are committed if that is automatic, `on_revoked` runs, then the
partitions are given up; others begin at their committed offsets, then `on_assigned` runs. Cooperative members are told
what goes and what comes. Members with an eager assignor are told that all go, and then all that they have.
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
    """Base of what a program does when partitions come and go. Methods run inside `poll`, `close` and `unsubscribe`.

    Example:
        class Flush(sparklog.RebalanceListener):
            def on_revoked(self, partitions):
                write_out(partitions)
    """

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions, pairs of a topic and a number, are read from now on; `seek` may be called.

        Args:
            partitions: those that come; with an eager assignor all.
        """

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions go to another member; what was done of them can still be committed.

        Args:
            partitions: those that go; with an eager assignor all.
        """

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions are gone: the group went on without this member. By default as `on_revoked`.

        Args:
            partitions: those that were read.
        """
        self.on_revoked(partitions)


class Rebalances:
    """See the module: the part of a consumer that follows its member."""

    def __init__(
        self, positions: Positions, fetcher: PositionFetcher, starts: StartingPositions, commits: OffsetCommits
    ) -> None:
        self.listener = RebalanceListener()
        self._positions = positions
        self._fetcher = fetcher
        self._starts = starts
        self._commits = commits
        self._unfinished = False
        self._gave_all_up = False
        self._untold: frozenset[TopicPartition] | None = None
        """Partitions that have begun, of which the program is to be told; None: it was."""
        self._error: Exception | None = None

    def follow(self, member: ConsumerMember) -> bool:
        """Apply what has changed in the group; True if the assignment changed. `tell` tells the program."""
        if not (member.refresh() or self._unfinished):
            return False
        before = self._positions.assigned
        self._unfinished = True
        revokes_all = member.must_revoke_all()
        going = before if revokes_all else member.revoking() & before
        if going:
            self._give_up(member, going)
        self._gave_all_up = self._gave_all_up or revokes_all
        if revokes_all or member.revoking():
            member.revoke()
        if member.is_settled() or not member.eager:
            self._begin(member)
        self._unfinished = not member.is_settled()
        return self._positions.assigned != before

    def tell(self) -> None:
        """Tell the program what came, and raise what its listener has raised since the last call."""
        if self._untold is not None:
            untold, self._untold = self._untold, None
            _LOG.info("assigned %s", _names(untold))
            self._call(self.listener.on_assigned, untold)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _begin(self, member: ConsumerMember) -> None:
        coming = member.assigned() - self._positions.assigned
        if coming:
            self.begin(coming, member.polled)
        if coming or self._gave_all_up:
            self._untold = coming if self._untold is None else self._untold | coming
        self._gave_all_up = False

    def begin(self, places: Collection[TopicPartition], heartbeat: Callable[[], None]) -> None:
        """Begin in partitions, or begin again, at the committed offsets."""
        starts = self._starts.of(places, heartbeat)
        self._fetcher.drop()
        self._positions.begin(starts.next)
        for place in places:
            self._positions.committed.pop(place, None)
        self._positions.committed.update(starts.committed)

    def _give_up(self, member: ConsumerMember, going: frozenset[TopicPartition]) -> None:
        try:
            self._commits.run_before_revoke(member)
        except SparklogError as error:
            _LOG.warning("positions are not committed before partitions go, and will be read again: %s", error)
        _LOG.info("revoked %s", _names(going))
        self._call_and_drop(self.listener.on_revoked, going)

    def end(self) -> None:
        """Give up all partitions, before the member leaves."""
        self._call_and_drop(self.listener.on_revoked, self._positions.assigned)
        self._untold, self._unfinished, self._gave_all_up = None, False, False

    def lose(self) -> None:
        """Give up all partitions: the group went on without this member."""
        lost = self._positions.assigned
        _LOG.warning("lost %s", _names(lost))
        self._call_and_drop(self.listener.on_lost, lost)
        self._untold, self._unfinished, self._gave_all_up = None, False, False

    def _call_and_drop(self, method: ListenerMethod, places: frozenset[TopicPartition]) -> None:
        try:
            # Those that it was not told of have not come for the program.
            announced = places - (self._untold or frozenset())
            if announced:
                self._call(method, announced)
        finally:
            self._drop(places)

    def _call(self, method: ListenerMethod, places: frozenset[TopicPartition]) -> None:
        """Call the program. As in Kafka, what it raises is raised once the partitions are taken up."""
        try:
            method(places)
        except Exception as error:  # noqa: BLE001  (the program's; it is raised later)
            _LOG.warning("%s of the listener failed: %r", method.__name__, error)
            self._error = self._error or error

    def _drop(self, places: frozenset[TopicPartition]) -> None:
        self._fetcher.drop()
        self._positions.drop(places)
        if self._untold is not None:
            self._untold = self._untold - places


def _names(places: Collection[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(places)) or "no partitions"
