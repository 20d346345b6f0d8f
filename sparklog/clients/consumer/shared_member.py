"""Members as a consumer has them: of a group that shares its partitions, or readers that share with no other.

The consumer's thread and a heartbeat thread use a shared one: each call of the membership has the lock. Without the
thread, as in simulations, all of it happens inside the calls of the consumer.

The heartbeat thread holds no reference to its member: one that is forgotten ends its thread, and its session times out.
At the end of the interpreter threads are ended before what they write with. A forked child has none.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Protocol

from sparklog.clients.consumer.consumer_options import ConsumerOptions
from sparklog.clients.consumer.topics_read import TopicsRead
from sparklog.errors import BadRequest, Fenced, SparklogError
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import COOPERATIVE_STICKY
from sparklog.groups.group import HEARTBEATS, Group, Offsets
from sparklog.groups.group_members import Partitions
from sparklog.groups.group_state import GroupState
from sparklog.groups.sharing import JoinRequest, SharedMembership, join_shared
from sparklog.log.journal.clocks import SYSTEM
from sparklog.storage.fork_safety import ForkLock

_LOG = logging.getLogger("sparklog.groups")
Rebalance = tuple[object, ...]


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


class SharedMember:
    """See the module. Raises `Fenced` once the group has gone on without it."""

    def __init__(self, topics: TopicsRead, group: Group, names: Sequence[str], options: ConsumerOptions) -> None:
        request = JoinRequest(
            topics=tuple(names),
            assignors=tuple(options.partition_assignment_strategy),
            session_timeout_ms=options.session_timeout_ms,
            instance_id=options.group_instance_id,
            client_id=options.client_id,
        )
        self.membership: SharedMembership = join_shared(group, request, topics.counts(names))
        # As in Kafka: cooperative if all of its assignors are.
        self.eager = any(name != COOPERATIVE_STICKY for name in request.assignors)
        self._topics = topics
        self._names = request.topics
        self._instance_id = request.instance_id
        self._env = group.root.env
        self._look_every_ms = options.heartbeat_interval_ms
        self._max_poll_interval_ms = options.max_poll_interval_ms
        self._lock = ForkLock()
        self._looked = self._polled = self._env.now()
        self._look_now = False
        self._taken: GroupState | None = None
        """The state that the consumer has taken up."""
        self._rebalance: Rebalance | None = None
        """The rebalance for which an eager member has given up all."""
        self._over = False
        self._thread: HeartbeatThread | None = None
        self.subscribe(names)
        if self._env is SYSTEM:
            every_ms = min(options.heartbeat_interval_ms, options.session_timeout_ms / (2 * HEARTBEATS))
            self._thread = HeartbeatThread(self, options.client_id, every_ms / 1000)
            self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> None:
        self._names = tuple(topics)
        self.membership.topic_ids.update({topic: self._topics.ids[topic] for topic in topics})
        if self._names != self.membership.member.topics:
            with self._lock:
                self.membership.subscribe(topics, self._topics.counts(topics))

    def look(self) -> bool:
        """See the newest entries, if that is due or something is under way; True if there are any since the last."""
        now = self._env.now()
        is_due = self._look_now or now.elapsed_ms(self._looked) >= self._look_every_ms
        if self._taken is not None and (is_due or not self.membership.is_settled()):
            with self._lock:
                self._look_now = True
                self.membership.look()
                self._looked, self._look_now = now, False
        counts = self._topics.counts(self._names)
        if any(count > self.membership.state.partitions.get(topic, 0) for topic, count in counts.items()):
            with self._lock:
                self.membership.subscribe(self._names, counts)
        before, self._taken = self._taken, self.membership.state
        return before is not self._taken

    def assigned(self) -> Partitions:
        return self.membership.assigned()

    def revoking(self) -> Partitions:
        return self.membership.revoking()

    def starts_over(self) -> bool:
        return self.eager and self._rebalance != self._newest_rebalance()

    def settled(self) -> bool:
        return self.membership.is_settled()

    def revoke(self) -> None:
        self._rebalance = self._newest_rebalance()
        if self.membership.revoking():
            with self._lock:
                self.membership.revoke()

    def _newest_rebalance(self) -> Rebalance:
        """Return what Kafka's members rebalance for: who they are, their topics, and the partitions of these."""
        state = self.membership.state
        members = tuple((member.instance_id or member.id, member.topics) for member in state.members)
        return members, tuple(state.partitions.items())

    def commit(self, offsets: Offsets) -> None:
        try:
            with self._lock:
                self.membership.commit(offsets)
        except Fenced:
            self._look_now = True
            raise

    def keep_alive(self) -> None:
        """Note that the program goes on, and send a heartbeat if one is due."""
        self.beat()
        self._polled = self._env.now()

    def beat(self) -> None:
        """Send a heartbeat if one is due; leave, if the program has not polled for too long."""
        idle_ms = self._env.elapsed_ms(self._polled)
        with self._lock:
            if self._over:
                return
            if idle_ms < self._max_poll_interval_ms:
                self.membership.keep_alive()
                return
            self._look_now = True
            self.stop()
            self.membership.leave()
        _LOG.warning(
            "%s leaves group '%s': it has not polled for %s s (max_poll_interval_ms); its next poll joins again",
            *(self.membership.metadata.member_id, self.membership.group.id, idle_ms // 1000),
        )

    def is_replaced(self) -> bool:
        """True if another process has joined as the same static member."""
        members = self.membership.group.log.current().members
        others = {item.instance_id for item in members if item.id != self.membership.metadata.member_id}
        return self._instance_id is not None and self._instance_id in others

    def leave(self) -> None:
        self.stop()
        with self._lock:
            self.membership.leave()

    def stop(self) -> None:
        """End the heartbeats."""
        self._over = True
        if self._thread is not None:
            self._thread.stop()


EXIT_S = 5.0
"""How long the end of the interpreter waits for a heartbeat that is under way."""


class HeartbeatThread(threading.Thread):
    """Calls `beat` of a member each `every_s` seconds, until `stop`; see the module."""

    def __init__(self, member: SharedMember, name: str, every_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._member = weakref.ref(member)
        self._every_s = every_s
        self._stopped = threading.Event()
        weakref.finalize(member, self._stopped.set).atexit = False
        _OPEN.add(self)

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(self._every_s):
            member = self._member()
            if member is None:
                return
            try:
                member.beat()
            except Fenced as error:
                # The next poll joins again.
                _LOG.info("no heartbeats any more: %s", error)
                return
            except SparklogError as error:
                _LOG.warning("a heartbeat failed, the next one is tried in %s s: %s", self._every_s, error)
            del member


_OPEN: weakref.WeakSet[HeartbeatThread] = weakref.WeakSet()


def _end_all() -> None:
    threads = [thread for thread in _OPEN if thread.is_alive()]
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(EXIT_S)


# Earlier than the end of thread pools, where Python has that: buckets are written with one.
getattr(threading, "_register_atexit", atexit.register)(_end_all)
