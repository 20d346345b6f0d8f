"""The membership of a consumer in a group. It provides the owned partitions according to the last read of the group,
and sends heartbeats.

The consumer's thread and a heartbeat thread share the membership. A method holds the lock while it checks and writes an
entry or reads the group. A method that only returns a value, such as `assigned`, does not require the lock, because it
uses the immutable `GroupState` of the last read, which is replaced only by the consumer's thread. If the member does
not have a heartbeat thread, for example in simulations, heartbeats are sent when the consumer is called.
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
from sparklog.groups.assignors import COOPERATIVE_STICKY
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_members import Partitions
from sparklog.groups.group_state import GroupState
from sparklog.groups.membership import HEARTBEATS, JoinRequest, Membership
from sparklog.log.journal.clocks import SYSTEM
from sparklog.storage.fork_safety import ForkLock

_LOG = logging.getLogger("sparklog.groups")


class Rebalance(NamedTuple):
    """The values that start a rebalance in Kafka if one of them changes."""

    members: tuple[tuple[str, tuple[str, ...]], ...]
    """The static or dynamic id of each member, and its topics."""
    partitions: tuple[tuple[str, int], ...]
    """The topics and their numbers of partitions."""


class SharedMember(ConsumerMember):
    """A member of a group. If the member was removed from the group, its methods raise `Fenced`."""

    @classmethod
    def join(
        cls, topics: SubscribedTopics, group: Group, names: Sequence[str], options: ConsumerOptions
    ) -> SharedMember:
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
            every_ms = min(options["heartbeat_interval_ms"], options["session_timeout_ms"] / (2 * HEARTBEATS))
            member.start_thread(options["client_id"], every_ms / 1000)
        return member

    def __init__(
        self, membership: Membership, topics: SubscribedTopics, request: JoinRequest, options: ConsumerOptions
    ) -> None:
        self.membership = membership
        # As in Kafka, the member is cooperative if all of its assignors are cooperative.
        self._is_eager = any(name != COOPERATIVE_STICKY for name in request.assignors)
        self._topics = topics
        self._names = request.topics
        self._instance_id = request.instance_id
        self._env = membership.group.root.env
        self._refresh_interval_ms = options["heartbeat_interval_ms"]
        self._max_poll_interval_ms = options["max_poll_interval_ms"]
        self._lock = ForkLock()
        self._refreshed_at = self._polled_at = self._env.now()
        self._must_refresh = False
        """True if the next `refresh` must read the group even if a read is not due, because a commit was rejected or a
        read failed.
        """
        self._applied: GroupState | None = None
        """The state of the group that the consumer has applied, or None before the first `refresh`. The first `refresh`
        applies the state that the member read when it joined.
        """
        self._revoked_for: Rebalance | None = None
        """The latest rebalance for which an eager member has revoked all partitions."""
        self._stopped = False
        self._thread: HeartbeatThread | None = None
        self._add_topic_ids(self._names)

    def start_thread(self, name: str, every_s: float) -> None:
        """Send heartbeats in a thread until the member leaves or is stopped."""
        self._thread = HeartbeatThread(self, name, every_s)
        self._thread.start()

    def is_eager(self) -> bool:
        return self._is_eager

    def subscribe(self, topics: Sequence[str]) -> None:
        with self._lock:
            self._names = tuple(topics)
            self._add_topic_ids(self._names)
            # If the group cannot be written, the next `refresh` tries again.
            self._write_subscription()

    def _add_topic_ids(self, topics: Sequence[str]) -> None:
        """Store the ids of topics, so that offsets are not committed for a recreated topic."""
        self.membership.topic_ids.update({topic: self._topics.ids[topic] for topic in topics})

    def refresh(self) -> bool:
        """Read new entries of the group if a read is due or during a rebalance.

        Return True if the group has changed.
        """
        with self._lock:
            if self._applied is not None:
                self._read_group()
            self._write_subscription()
            before, self._applied = self._applied, self.membership.state
            return before is not self._applied

    def _read_group(self) -> None:
        now = self._env.now()
        is_due = self._must_refresh or now.elapsed_ms(self._refreshed_at) >= self._refresh_interval_ms
        if is_due or not self.membership.is_stable():
            self._must_refresh = True
            self.membership.refresh()
            self._refreshed_at, self._must_refresh = now, False

    def _write_subscription(self) -> None:
        """Write an entry if the topics were replaced, or if partitions were added to them, so that the partitions are
        assigned.
        """
        counts = self._topics.counts(self._names)
        known = self.membership.state.partitions
        if self._names != self.membership.member.topics or any(n > known.get(topic, 0) for topic, n in counts.items()):
            self.membership.subscribe(self._names, counts)

    def assigned(self) -> Partitions:
        return self.membership.assigned()

    def revoking(self) -> Partitions:
        return self.membership.revoking()

    def must_revoke_all(self) -> bool:
        return self._is_eager and self._revoked_for != self._latest_rebalance()

    def is_stable(self) -> bool:
        return self.membership.is_stable()

    def revoke(self) -> None:
        with self._lock:
            self._revoked_for = self._latest_rebalance()
            if self.membership.revoking():
                self.membership.revoke()

    def _latest_rebalance(self) -> Rebalance:
        state = self.membership.state
        members = tuple((member.instance_id or member.id, member.topics) for member in state.members)
        return Rebalance(members, tuple(state.partitions.items()))

    def commit(self, offsets: Offsets) -> None:
        with self._lock:
            try:
                self.membership.commit(offsets)
            except Fenced:
                self._must_refresh = True
                raise

    def polled(self) -> None:
        with self._lock:
            self._leave_if_idle()
            # The program has polled even if the heartbeat fails.
            self._polled_at = self._env.now()
            self._send_heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat if one is due. If the program has not polled for too long, leave the group.

        If the entry cannot be written, the next call retries.
        """
        with self._lock:
            self._leave_if_idle()
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        if not self._stopped:
            self.membership.heartbeat_if_due()

    def _leave_if_idle(self) -> None:
        """Leave the group if the program has not polled for `max_poll_interval_ms`."""
        idle_ms = self._env.elapsed_ms(self._polled_at)
        if self._stopped or idle_ms < self._max_poll_interval_ms:
            return
        self._must_refresh = True
        # Leave the group before stopping the heartbeats, because a stopped member would not retry after a failure.
        self.membership.leave()
        self.stop()
        _LOG.warning(
            "%s leaves group '%s': it has not polled for %s s (max_poll_interval_ms); the next poll will rejoin the "
            "group",
            self.membership.metadata.member_id,
            self.membership.group.id,
            idle_ms // 1000,
        )

    def is_replaced(self) -> bool:
        members = self.membership.group.log.current().members
        others = {item.instance_id for item in members if item.id != self.membership.metadata.member_id}
        return self._instance_id is not None and self._instance_id in others

    def leave(self) -> None:
        # Stop the heartbeats first, so that no heartbeat follows the member's last entry. If the entry cannot be
        # written, the member's session times out.
        self.stop()
        with self._lock:
            self.membership.leave()

    def stop(self) -> None:
        self._stopped = True
        if self._thread is not None:
            self._thread.stop()
