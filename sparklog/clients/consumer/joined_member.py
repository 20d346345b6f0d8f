"""A consumer's member of a group. It provides the owned partitions according to the last read of the group, commits
offsets, and sends heartbeats.

The consumer's thread and a heartbeat thread use the member. A method holds the lock while it checks and writes an entry
or reads the group. A method that only returns a value, such as `assigned`, does not require the lock, because it uses
the immutable `GroupState` of the last read, which is replaced only by the consumer's thread. `stop` does not require
the lock either, so that it does not wait for a heartbeat. If the member does not have a heartbeat thread, for example
in simulations, heartbeats are sent when the consumer is called.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from sparklog.clients.consumer.consumer_options import ConsumerOptions
from sparklog.clients.consumer.heartbeat_thread import HeartbeatThread
from sparklog.clients.consumer.member import ConsumerMember
from sparklog.clients.consumer.subscribed_topics import SubscribedTopics
from sparklog.errors import Fenced
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import COOPERATIVE_STICKY
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_state import GroupState
from sparklog.groups.membership import JoinRequest, Membership
from sparklog.log.journal.clocks import SYSTEM, ClockReading
from sparklog.storage.fork_safety import ForkLock

_LOG = logging.getLogger("sparklog.groups")


class RebalanceKey(NamedTuple):
    """Identifies a rebalance by the values that start a rebalance in Kafka if one of them changes."""

    members: tuple[tuple[str, tuple[str, ...]], ...]
    """The static or dynamic id of each member, and its topics."""
    partitions: tuple[tuple[str, int], ...]
    """The topics and their numbers of partitions."""

    @classmethod
    def of(cls, state: GroupState) -> RebalanceKey:
        members = tuple((member.instance_id or member.id, member.topics) for member in state.members)
        return cls(members, tuple(state.partitions.items()))


class JoinedMember(ConsumerMember):
    """A member of a group. If the member was removed from the group, its methods raise `Fenced`."""

    @classmethod
    def join(
        cls, topics: SubscribedTopics, group: Group, names: Sequence[str], options: ConsumerOptions
    ) -> JoinedMember:
        """Join a group, and start to send heartbeats."""
        request = JoinRequest(
            topics=tuple(names),
            assignors=tuple(options["partition_assignment_strategy"]),
            session_timeout_ms=options["session_timeout_ms"],
            instance_id=options["group_instance_id"],
            client_id=options["client_id"],
        )
        member = cls(group.share(request, topics.counts(names)), topics, request, options)
        if group.root.env is SYSTEM:
            # A heartbeat is late by at most half of its interval.
            every_ms = min(options["heartbeat_interval_ms"], member.membership.heartbeat_ms / 2)
            member.start_thread(options["client_id"], every_ms / 1000)
        return member

    def __init__(
        self, membership: Membership, topics: SubscribedTopics, request: JoinRequest, options: ConsumerOptions
    ) -> None:
        self.membership = membership
        # As in Kafka, the member is cooperative if all of its assignors are cooperative.
        self.is_eager = any(name != COOPERATIVE_STICKY for name in request.assignors)
        self._topics = topics
        self._names = request.topics
        """The topics of the latest `subscribe`, which the next `refresh` writes to the group if they have changed."""
        self._env = membership.group.root.env
        self._refresh_interval_ms = options["heartbeat_interval_ms"]
        self._max_poll_interval_ms = options["max_poll_interval_ms"]
        self._lock = ForkLock()
        self._polled_ms = self._env.boot_ms()
        self._refreshed_at: ClockReading | None = self._env.now()
        """The time of the last read of the group. None if the next `refresh` must read the group, because the member
        may have been removed.
        """
        self._applied: GroupState | None = None
        """The state of the group that the consumer has applied, or None before the first `refresh`. The first `refresh`
        applies the state that the member read when it joined.
        """
        self._revoked_for: RebalanceKey | None = None
        """The latest rebalance for which an eager member has revoked all partitions."""
        self._is_stopped = False
        """True if no more heartbeats are sent."""
        self._thread: HeartbeatThread | None = None
        self._remember_ids()

    def start_thread(self, name: str, every_s: float) -> None:
        """Send heartbeats in a thread until the member leaves or is stopped."""
        self._thread = HeartbeatThread(self, name, every_s)
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> None:
        self._names = tuple(topics)
        self._remember_ids()

    def _remember_ids(self) -> None:
        """Store the ids of the topics, so that offsets are not committed for a recreated topic."""
        self.membership.topic_ids.update({topic: self._topics.ids[topic] for topic in self._names})

    def refresh(self) -> bool:
        """Read new entries of the group if a read is due or during a rebalance.

        Return True if the group has changed.
        """
        with self._lock:
            # A changed subscription starts a rebalance, after which the group is read once more, as in each rebalance.
            self._write_subscription()
            if self._applied is not None:
                self._read_group()
            before, self._applied = self._applied, self.membership.state
            return before is not self._applied

    def _read_group(self) -> None:
        now = self._env.now()
        is_due = self._refreshed_at is None or now.elapsed_ms(self._refreshed_at) >= self._refresh_interval_ms
        if is_due or not self.membership.is_stable():
            self.membership.refresh()
            self._refreshed_at = now

    def _write_subscription(self) -> None:
        """Write an entry if the topics were replaced, or if partitions were added to them, so that the partitions are
        assigned.
        """
        counts = self._topics.counts(self._names)
        known = self.membership.state.partitions
        if self._names != self.membership.member.topics or any(n > known.get(topic, 0) for topic, n in counts.items()):
            self.membership.subscribe(self._names, counts)

    def assigned(self) -> frozenset[TopicPartition]:
        return self.membership.assigned()

    def revoking(self) -> frozenset[TopicPartition]:
        return self.membership.revoking()

    def must_revoke_all(self) -> bool:
        return self.is_eager and self._revoked_for != RebalanceKey.of(self.membership.state)

    def is_stable(self) -> bool:
        return self.membership.is_stable()

    def revoke(self) -> None:
        with self._lock:
            self._revoked_for = RebalanceKey.of(self.membership.state)
            if self.membership.revoking():
                self.membership.revoke()

    def commit(self, offsets: Offsets) -> None:
        with self._lock:
            try:
                self.membership.commit(offsets)
            except Fenced:
                self._refreshed_at = None
                raise

    def polled(self) -> None:
        with self._lock:
            self._leave_if_idle()
            # The program has polled even if the heartbeat fails.
            self._polled_ms = self._env.boot_ms()
            self._send_heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat if one is due. If the program has not polled for too long, leave the group.

        If the entry cannot be written, the next call retries.
        """
        with self._lock:
            self._leave_if_idle()
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        if not self._is_stopped:
            self.membership.heartbeat_if_due()

    def _leave_if_idle(self) -> None:
        """Leave the group if the program has not polled for `max_poll_interval_ms`."""
        # The wall clock may be set ahead, although the member is active.
        idle_ms = self._env.boot_ms() - self._polled_ms
        if self._is_stopped or idle_ms < self._max_poll_interval_ms:
            return
        self._refreshed_at = None
        # Leave the group before stopping the heartbeats, because a stopped member would not retry after a failure.
        self.membership.leave()
        self.stop()
        _LOG.warning(
            "%s leaves group '%s', because it has not polled for %s s (max_poll_interval_ms); the next poll will "
            "rejoin the group",
            self.membership.metadata.member_id,
            self.membership.group.id,
            idle_ms // 1000,
        )

    def is_replaced(self) -> bool:
        return self.membership.is_replaced()

    def leave(self) -> None:
        # Stop the heartbeats first, so that no heartbeat follows the member's last entry. If the entry cannot be
        # written, the member's session times out.
        self.stop()
        with self._lock:
            self.membership.leave()

    def stop(self) -> None:
        self._is_stopped = True
        if self._thread is not None:
            self._thread.stop()
