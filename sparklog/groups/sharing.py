"""A member of a group that shares its partitions, as one process sees it: joins, looks, gives up, keeps its lease.

`group_members` says how partitions move; this module makes the requests. A member goes on with what its last `look` at
the group's next entry showed. It writes only to join, to change its topics, to commit, to give up partitions, to leave,
and, where it had nothing of that to write for a third of its session, to show that it is alive: members of one process
that read through one open root do that by one entry.

**A lease** ends a session timeout after the member's newest entry, by the store's time of that entry and the store's
clock. Looking that up costs requests, so a member asks when it joins, and then not before the lease is over by the time
that has passed in its process too. So a clock that steps ahead takes no member out that goes on writing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from sparklog.common.reached import reached
from sparklog.errors import BadRequest
from sparklog.groups import group_steps as steps
from sparklog.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY
from sparklog.groups.group import Group, Membership, checked_session_timeout
from sparklog.groups.group_members import GroupMember, Partitions
from sparklog.groups.group_state import GroupMetadata, GroupState
from sparklog.limits import SESSION_TIMEOUT_MS
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.journal.names import check_id


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """Topics of a member that joins, and its settings, as in Kafka."""

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
                f"partition_assignment_strategy is one or more of {', '.join(ASSIGNORS)}; found "
                f"{', '.join(map(str, unknown)) or 'none'}"
            )


@dataclass(frozen=True, slots=True)
class MemberLease:
    """The moment at which this process saw a member's newest entry, and how long the lease lasted from then on."""

    seen: int
    since: ClockReading
    left_ms: float


class MemberLeases:
    """The leases of a group's members, by the clock of this process until one seems over, then by the store's."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._leases: dict[str, MemberLease] = {}

    def note(self, state: GroupState) -> None:
        """Take note of signs of life that a look has shown."""
        now = self._group.root.env.now()
        self._leases = {member.id: self._lease(member, now) for member in state.members}

    def expired(self, state: GroupState, *, ask: bool = False) -> steps.Expired:
        """Return the members whose lease is over. Makes requests if one seems to be over, or with `ask`."""
        self.note(state)
        now = self._group.root.env.now()
        doubtful = []
        for member in state.members:
            lease = self._leases[member.id]
            # Not by the wall clock: one that is set ahead is no sign that time has passed.
            if ask or now.boot_ms - lease.since.boot_ms >= lease.left_ms:
                doubtful.append(member)
        return self._expired_by_store(doubtful) if doubtful else {}

    def _lease(self, member: GroupMember, now: ClockReading) -> MemberLease:
        lease = self._leases.get(member.id)
        if lease is not None and lease.seen == member.seen:
            return lease
        return MemberLease(member.seen, now, member.session_timeout_ms)

    def _expired_by_store(self, members: Sequence[GroupMember]) -> dict[str, int]:
        env = self._group.root.env
        written = {number: self._group.written_ms(number) for number in {member.seen for member in members}}
        store_ms, now, expired = self._group.root.store.now_ms(), env.now(), dict[str, int]()
        for member in members:
            since_ms = written[member.seen]
            # No entry: collected, and so more than a day old.
            left_ms = 0 if since_ms is None else since_ms + member.session_timeout_ms - store_ms
            if left_ms > 0:
                reached("groups: a session that seemed to have timed out goes on by the store's clock")
            if left_ms <= 0:
                expired[member.id] = member.seen
            self._leases[member.id] = MemberLease(member.seen, now, max(left_ms, 0))
        return expired


_MEMBERSHIPS: WeakKeyDictionary[EntryLog[GroupState], WeakValueDictionary[str, SharedMembership]] = WeakKeyDictionary()
"""Members of this process by the log of their group: one heartbeat shows all of them alive."""


@dataclass(eq=False)
class SharedMembership(Membership):
    """A member that shares partitions, as of its last look. `Fenced`: the group went on without it: join again."""

    state: GroupState = field(default_factory=lambda: GroupState(""))
    leases: MemberLeases = field(init=False)
    alive: ClockReading = field(init=False)
    _is_steady: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.leases = MemberLeases(self.group)
        self.alive = self.written
        _MEMBERSHIPS.setdefault(self.group.log, WeakValueDictionary())[self.metadata.member_id] = self

    @property
    def member(self) -> GroupMember:
        """The member in the entry that was seen last."""
        steps.check_member(self.state, self.metadata)
        member = self.state.member(self.metadata.member_id)
        assert member is not None
        return member

    def assigned(self) -> Partitions:
        """Return the partitions that it owns, but for those that it is to give up now."""
        return self.member.owned - self.revoking()

    def revoking(self) -> Partitions:
        """Return what it is to give up, by `revoke`; none while looks differ: each member gives up once."""
        return self.member.revoked if self._is_steady else frozenset()

    def is_settled(self) -> bool:
        return self.member.is_settled

    def look(self) -> bool:
        """Read on to the newest entry; True if its partitions changed. `Fenced`: it is no member any more."""
        return self._take(self.group.log.refresh())

    def _take(self, state: GroupState) -> bool:
        before, was_steady = self.state.member(self.metadata.member_id), self._is_steady
        self.state = state
        self.leases.note(state)
        member = self.member
        self._is_steady = before is not None and before.revoked == member.revoked
        return not (was_steady and self._is_steady) or before is None or before.owned != member.owned

    def revoke(self) -> None:
        """Give up what `revoking` returned as of the last look, after its offsets have been committed."""
        given_up = self.member.revoked
        state = self._write(lambda base: steps.revoke(base, self.metadata, given_up))
        member = state.member(self.metadata.member_id)
        if member is not None:
            self.metadata = GroupMetadata(self.group.id, member.generation, member.id)
        self._take(state)

    def subscribe(self, topics: Sequence[str], partitions: Mapping[str, int]) -> None:
        """Change the topics, or tell that they have more partitions: how many each has."""
        self._take(self._write(lambda base: steps.subscribe(base, self.metadata, topics, partitions)))

    def heartbeat(self) -> None:
        """Show that it is alive, and so the others of this process; take out those whose session timed out."""
        self._renew({})

    def keep_alive(self) -> None:
        """Send a heartbeat if one is due, or if the session of another member timed out."""
        now = self.group.root.env.now()
        self.alive = now
        newest = self.group.log.known()
        expired = self.leases.expired(self.state if newest is None else newest)
        if expired:
            reached("groups: a session seems to have timed out")
        if set(expired) - {self.metadata.member_id} or now.elapsed_ms(self.written) >= self.heartbeat_ms:
            self._renew(expired)

    def _renew(self, expired: steps.Expired) -> None:
        now = self.group.root.env.now()
        # Their references are a list: another thread may join meanwhile.
        memberships = [reference() for reference in _MEMBERSHIPS[self.group.log].valuerefs()]
        alive = {
            item.metadata.member_id: item
            for item in memberships
            if item is not None and (item is self or now.elapsed_ms(item.alive) < item.heartbeat_ms)
        }

        def step(base: GroupState) -> GroupState | None:
            steps.check_member(base, self.metadata)
            return steps.renew(base, alive, expired)

        self._write(step)
        for membership in alive.values():
            membership.written = self.written
        if expired:
            # What they have prepared is aborted, so that others need not wait for it.
            self.group.settle()

    def leave(self) -> None:
        """Leave: others own its partitions at once. No effect if it is no member any more."""
        _MEMBERSHIPS[self.group.log].pop(self.metadata.member_id, None)
        self.group.write(lambda base: steps.leave(base, self.metadata))


def join_shared(group: Group, request: JoinRequest, partitions: Mapping[str, int]) -> SharedMembership:
    """Become a member that shares `partitions`, per topic. `Conflict`: another owns all; or no assignor is common."""
    env, store = group.root.env, group.root.store
    member = GroupMember(
        f"{request.client_id}-{env.new_id()}",
        request.instance_id,
        request.client_id,
        socket.gethostname(),
        request.session_timeout_ms,
        request.assignors,
        request.topics,
    )
    expired = MemberLeases(group).expired(group.log.refresh(), ask=True)

    def step(base: GroupState) -> GroupState:
        if base.instance is not None:
            group.refuse_active(base, store.now_ms)
        return steps.share(base, member, partitions, expired)

    state = group.write(step)
    joined = state.member(member.id)
    if joined is None:
        steps.check_member(state, GroupMetadata(group.id, state.generation, member.id))
    assert joined is not None
    group.settle()
    metadata = GroupMetadata(group.id, joined.generation, joined.id)
    return SharedMembership(group, metadata, request.session_timeout_ms, env.now(), state=state)
