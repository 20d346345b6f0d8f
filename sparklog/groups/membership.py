"""A member of a consumer group in one process, which joins, refreshes, revokes partitions, sends heartbeats and leaves.

`group_members` determines the movement of partitions, and this module sends the requests. A member uses the state that
was read by its last `refresh`. The member writes an entry when it joins, changes its topics, commits, releases
partitions or leaves. The member also writes a heartbeat if it has not written an entry for a third of its session
timeout. One heartbeat covers all members of a process that use the same open root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from sparklog.common.reached import reached
from sparklog.common.settings import as_integer
from sparklog.errors import BadRequest, shortened
from sparklog.groups import group_steps as steps
from sparklog.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY
from sparklog.groups.group_journal import GroupJournal, Offsets
from sparklog.groups.group_members import ConsumerProtocol, GroupMember, Partitions
from sparklog.groups.group_state import GroupMetadata, GroupState
from sparklog.groups.member_leases import MemberLeases
from sparklog.limits import MAX_SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.entry_log import EntryLog, Step
from sparklog.log.journal.names import check_id

HEARTBEATS = 3
"""Number of heartbeats per session timeout of a member that does not commit offsets."""


def checked_session_timeout(session_timeout_ms: object) -> int:
    timeout_ms = as_integer(session_timeout_ms)
    if timeout_ms is None or not 1 <= timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        found = shortened(session_timeout_ms)
        raise BadRequest(f"session.timeout.ms must be 1 to {MAX_SESSION_TIMEOUT_MS} (a day), found {found}")
    return timeout_ms


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """The topics and settings of a member that joins a group, as in Kafka."""

    topics: tuple[str, ...]
    assignors: tuple[str, ...] = (COOPERATIVE_STICKY,)
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    instance_id: str | None = None
    client_id: str = "sparklog"

    def __post_init__(self) -> None:
        checked_session_timeout(self.session_timeout_ms)
        if self.instance_id is not None:
            check_id(self.instance_id, "group.instance.id")
        check_id(self.client_id, "client.id")
        unknown = [name for name in self.assignors if name not in ASSIGNORS]
        if unknown or not self.assignors:
            raise BadRequest(
                f"partition_assignment_strategy must be one or more of {', '.join(ASSIGNORS)}, found "
                f"{', '.join(map(str, unknown)) or 'none'}"
            )

    def member(self, member_id: str, host: str) -> GroupMember:
        settings = self.client_id, host, self.session_timeout_ms, self.assignors, self.topics
        return GroupMember(member_id, self.instance_id, *settings)


_MEMBERSHIPS: WeakKeyDictionary[EntryLog[GroupState], WeakValueDictionary[str, Membership]] = WeakKeyDictionary()
"""The members of this process by the log of their group, because one heartbeat covers all of them."""


@dataclass(eq=False)
class Membership:
    """A member of a group, with the state of its last refresh.

    Methods raise `Fenced` if the member was removed from the group. In this case, the member must join again. An
    exclusive owner never has to revoke partitions.
    """

    group: GroupJournal
    metadata: GroupMetadata
    instance_id: str | None
    session_timeout_ms: int
    written_at: ClockReading
    """The time of the latest entry that counts as a heartbeat of the member."""
    state: GroupState
    topic_ids: dict[str, str] = field(default_factory=dict)
    """The ids of the topics that the member reads.

    The ids are used to reject offset commits for recreated topics.
    """
    leases: MemberLeases = field(init=False)
    checked_at: ClockReading = field(init=False)
    """The time at which the member last checked if a heartbeat is due.

    Heartbeats of other members do not cover a member that stops checking.
    """
    _is_steady: bool = field(init=False, default=True)
    """True if the member must revoke the same partitions in the last two states that were applied."""

    def __post_init__(self) -> None:
        self.leases = MemberLeases(self.group)
        self.checked_at = self.written_at
        _MEMBERSHIPS.setdefault(self.group.log, WeakValueDictionary())[self.metadata.member_id] = self

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def heartbeat_ms(self) -> int:
        """The time since the latest entry of the member after which a heartbeat is due."""
        return self.session_timeout_ms // HEARTBEATS

    @property
    def member(self) -> GroupMember:
        """The member in the latest state that was read."""
        steps.check_member(self.state, self.metadata)
        member = self.state.member(self.metadata.member_id)
        assert member is not None
        return member

    def assigned(self) -> Partitions:
        """Return the owned partitions, except those that the member must revoke now."""
        return self.member.owned - self.revoking()

    def revoking(self) -> Partitions:
        """Return the partitions to release with `revoke`.

        The result is empty while consecutive refreshes differ, so that the member revokes partitions only once instead
        of after each change.
        """
        return self.member.revoked if self._is_steady else frozenset()

    def is_stable(self) -> bool:
        return self.member.is_stable

    def is_replaced(self) -> bool:
        """Return True if another process has joined as the same static member, according to the latest known entry."""
        members = self.group.log.current().members
        others = {member.instance_id for member in members if member.id != self.metadata.member_id}
        return self.instance_id is not None and self.instance_id in others

    def refresh(self) -> bool:
        """Read the latest entry.

        Return True if the member's partitions changed. Raises `Fenced` if the member was removed.
        """
        return self.apply(self.group.log.refresh())

    def apply(self, state: GroupState) -> bool:
        """Apply `state` unless a later state has already been applied. The result and the exceptions are the same as in
        `refresh`.
        """
        if state.number < self.state.number:
            return False
        before, was_steady = self.state.member(self.metadata.member_id), self._is_steady
        self.state = state
        self.leases.note(state)
        member = self.member
        self._is_steady = before is not None and before.revoked == member.revoked
        return not (was_steady and self._is_steady) or before is None or before.owned != member.owned

    def commit(self, offsets: Offsets, *, refresh: bool = True) -> None:
        """Commit offsets (the next offsets to read) by topic and partition.

        Raises `Fenced` if the member was removed or replaced.
        """
        checked = self.group.checked(offsets, self.topic_ids, refresh=refresh)
        self._write(lambda base: steps.commit(base, self.metadata, checked))

    def revoke(self, partitions: Partitions | None = None, epoch: int | None = None) -> None:
        """Release partitions after their offsets have been committed. If `partitions` is None, release the revoked
        partitions.

        `epoch` is the epoch in the request of a client that uses the consumer protocol.
        """
        revoked = self.member.revoked if partitions is None else partitions
        state = self._write(lambda base: steps.revoke(base, self.metadata, revoked, epoch))
        member = state.member(self.metadata.member_id)
        if member is not None:
            self.metadata = GroupMetadata(self.group.id, member.generation, member.id)
        self.apply(state)

    def subscribe(
        self,
        topics: Sequence[str],
        partitions: Mapping[str, int],
        assignors: Sequence[str] | None = None,
        consumer: ConsumerProtocol | None = None,
    ) -> None:
        """Change the topics and settings of the member, or update the numbers of partitions."""
        self.apply(
            self._write(lambda base: steps.subscribe(base, self.metadata, topics, partitions, assignors, consumer))
        )

    def heartbeat(self, expired: steps.Expired | None = None) -> None:
        """Write a heartbeat for this member and the other members of its process, and remove expired members."""
        now = self.group.root.env.now()
        # Iterate over a copy of the references, because another thread may join concurrently.
        memberships = [reference() for reference in _MEMBERSHIPS[self.group.log].valuerefs()]
        alive = {
            other.metadata.member_id: other
            for other in memberships
            if other is not None and (other is self or now.elapsed_ms(other.checked_at) < other.heartbeat_ms)
        }
        self._write(lambda base: steps.heartbeat(base, self.metadata, alive, expired))
        for membership in alive.values():
            membership.written_at = self.written_at
        if expired:
            # Abort the transactions of removed members, so that other members do not wait for them.
            self.group.resolve_pending()

    def heartbeat_if_due(self) -> None:
        """Write a heartbeat if one is due, or if the session of another member timed out."""
        now = self.group.root.env.now()
        self.checked_at = now
        latest = self.group.log.known()
        expired = self.leases.expired(self.state if latest is None else latest, own=self.metadata.member_id)
        if expired:
            reached("groups: a session seems to have timed out")
        if expired or now.elapsed_ms(self.written_at) >= self.heartbeat_ms:
            self.heartbeat(expired)

    def leave(self, *, temporarily: bool = False) -> None:
        """Leave the group. Other members own the partitions immediately. Has no effect if the member was removed.

        Args:
            temporarily: A static member of the consumer protocol keeps its partitions until its session times out.
        """
        memberships = _MEMBERSHIPS[self.group.log]
        if memberships.get(self.metadata.member_id) is self:
            del memberships[self.metadata.member_id]
        step = steps.leave_temporarily if temporarily else steps.leave
        self.group.write(lambda base: step(base, self.metadata))

    def _write(self, step: Step[GroupState]) -> GroupState:
        state = self.group.write(step)
        self.written_at = self.group.root.env.now()
        return state


class GroupConsumer(ABC):
    """A consumer that can commit its positions to its group as part of a transaction."""

    auto_commit_interval_ms: int | None
    """Interval of automatic commits, or None if the consumer commits only on request."""

    @property
    @abstractmethod
    def membership(self) -> Membership: ...

    @abstractmethod
    def positions(self) -> Offsets:
        """Return the next offset to read, by topic and partition."""
