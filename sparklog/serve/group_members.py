"""The members of one consumer group, in memory: Kafka's classic protocol, in which clients compute the assignment.

| state               | a member that joins               | all others                                               |
|---------------------|-----------------------------------|----------------------------------------------------------|
| Empty               | starts a rebalance                |                                                          |
| PreparingRebalance  | waits until all have joined again | heartbeats report it; who does not join again is removed |
| CompletingRebalance | waits for the leader's assignment | wait for it in SyncGroup                                 |
| Stable              | starts a rebalance if it is new   | send heartbeats and commits                              |

The server is the group's exclusive owner: a rebalance ends with an entry of the group's journal, and the generation of
the entry is the clients'. A server that takes over the group does so with the next generation, which fences the commits
of this one. Nothing else about a member is stored.

**Sharing the group.** If a member of the root (`sparklog.consumer`) joins, or another server has clients in the group,
its assignment comes from the journal:

1. The owner's entry lists the assignors that all clients have and that sparklog runs, too. A member with another one
   gets an error; if no assignor is left (Kafka Connect, Kafka Streams), so does every member.
2. The member's entry shows the server that it waits. The server starts a rebalance.
3. When all clients have joined again, the server replaces itself in the journal by its clients, with one entry.
4. From then on each client is a member of the journal (`shared_members`), until the last client has left.

A static member (KIP-345) that comes back within its session has the assignment that it had, under a new id and in the
same generation; requests under its former id are fenced. Before JoinGroup 9 the response names the former id of the
leader: a leader that comes back assigns nothing. As in Kafka, except that a change of the subscription starts a
rebalance.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sparklog.errors import Conflict, Fenced, SparklogError
from sparklog.groups.classic_member import ClassicMember
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_members import common_assignor
from sparklog.groups.group_state import GroupMetadata
from sparklog.groups.membership import Membership
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.join_details import JoinDetails, common_assignors, shareable_assignors, subscription_in
from sparklog.serve.shared_members import assignment_bytes, leave_journal, refresh_member, rejoin_journal

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
FIRST_DELAY = 0.1
"""Seconds that the first member of a group waits for others."""
MAX_MEMBERS = 10_000
T = TypeVar("T")
_LOG = logging.getLogger("sparklog.serve")
Begin = Callable[[Sequence[str], "GroupMetadata | None"], Awaitable[Membership]]
"""Makes this server the exclusive owner, ready to share the group by these assignors, after an earlier generation.

`Fenced`: another member came after that generation, so that clients must not go on with what they have read.
"""
Share = Callable[[Sequence[JoinDetails], GroupMetadata | None], Awaitable[list[ClassicMember]]]
"""Adds clients to the group's journal, in place of this server if it is the owner. See `join_journal`."""
Run = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a member that has joined; `members` is for the leader alone."""

    generation: int
    protocol: str
    leader: str
    member: str
    members: tuple[MemberState, ...] = ()
    skips_assignment: bool = False
    """True for a leader that keeps the assignment: a static member that rejoins without a rebalance."""


@dataclass(slots=True, eq=False)
class MemberState:
    """A member: what it joined with, what it was assigned, and the requests of it that wait."""

    details: JoinDetails
    assignment: bytes = b""
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[bytes] | None = None
    expiry: asyncio.TimerHandle | None = None
    classic: ClassicMember | None = None
    """The member of the journal, if the group is shared."""
    rejoining: asyncio.TimerHandle | None = None
    """Removes the member of a shared group if it does not join again in time."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Calls of `classic` follow one another."""

    @property
    def id(self) -> str:
        return self.details.member

    def fail(self, code: Code) -> None:
        """Answer what waits with an error."""
        for waiting in (self.joining, self.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(CodeError(code))
                # A client that has left does not ask for it.
                waiting.exception()
        self.joining = self.syncing = None

    def metadata(self, protocol: str) -> bytes:
        return dict(self.details.protocols).get(protocol, b"")


@dataclass(slots=True)
class GroupMembers:
    """See the module. `new_id` makes ids of members, `run` calls functions that make requests to the store."""

    id: str
    begin: Begin
    new_id: Callable[[], str]
    share: Share
    run: Run
    state: str = EMPTY
    is_shared: bool = False
    """The clients are members of the journal; `state` is Stable."""
    membership: Membership | None = None
    members: dict[str, MemberState] = field(default_factory=dict)
    protocol: str = ""
    leader: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _pending: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _deadline: asyncio.TimerHandle | None = None
    _is_delayed: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def generation(self) -> int:
        return self.membership.generation if self.membership is not None else -1

    @property
    def kind(self) -> str:
        return next((member.details.kind for member in self.members.values()), "")

    # -- requests of members

    async def join(self, details: JoinDetails, *, id_first: bool, may_skip: bool = False) -> Joined:
        """Join, and wait for the rebalance. Raises `CodeError`.

        Args:
            details: the fields of the member's request.
            id_first: reject a member without an id, with a new id to rejoin with (KIP-394).
            may_skip: tell a static leader that rejoins to skip the assignment (KIP-814).
        """
        async with self.lock:
            joined: Awaitable[Joined]
            before, leader = self._member_of_instance(details.instance), self.leader
            member = self._entering(details, id_first)
            if self.is_shared:
                joined = self._join_shared(member, replace(details, member=member.id))
            elif self.state in (STABLE, COMPLETING) and self._repeats_request(member, details):
                return self._joined(member)
            elif before is not None and self._skips_rebalance(member, before):
                self.touch(member)
                if may_skip:
                    return replace(self._joined(member), skips_assignment=member.id == self.leader)
                return Joined(self.generation, self.protocol, leader, member.id)
            else:
                joined = self._join_rebalance(member, details)
        return await joined

    async def sync(self, member_id: str, generation: int, instance: str | None, given: dict[str, bytes]) -> bytes:
        """Take the leader's assignments, or wait for them; return the member's own."""
        member = self.checked(member_id, generation, instance)
        if self.state == PREPARING:
            raise CodeError(Code.REBALANCE_IN_PROGRESS)
        self.touch(member)
        if member.classic is not None:
            async with member.turn:
                return assignment_bytes(self._call_classic(member, member.classic.sync, generation))
        if self.state == STABLE:
            return member.assignment
        if member_id != self.leader:
            # A client that asks again has left the connection on which it asked before.
            member.fail(Code.UNKNOWN_MEMBER_ID)
            waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            member.syncing = waiting
            return await waiting
        self.state = STABLE
        for other in self.members.values():
            other.assignment = given.get(other.id, b"")
            if other.syncing is not None and not other.syncing.done():
                other.syncing.set_result(other.assignment)
                other.syncing = None
                self.touch(other)
        return member.assignment

    def heartbeat(self, member_id: str, generation: int, instance: str | None) -> Code:
        """Take a sign of life; return whether a rebalance waits for the member. Raises `CodeError`."""
        member = self.checked(member_id, generation, instance)
        self.touch(member)
        if member.classic is None:
            must_rejoin = self.state == PREPARING
        else:
            must_rejoin = not member.turn.locked() and self._call_classic(member, member.classic.must_rejoin)
        return Code.REBALANCE_IN_PROGRESS if must_rejoin else Code.NONE

    async def leave(self, member_id: str, instance: str | None) -> Code:
        """Remove a member. If it was the last one, return only after the journal has an entry for the empty group."""
        async with self.lock:
            if self._remove_pending(member_id):
                return Code.NONE
            current = self._member_of_instance(instance)
            try:
                member = self._member(current.id if current is not None and not member_id else member_id, instance)
            except CodeError as error:
                return error.code
            completing = self._remove(member)
            is_last = not self.members
        if is_last and completing is not None:
            # If the client disconnects, the entry must still be written.
            await asyncio.shield(completing)
        return Code.NONE

    def checked(self, member_id: str, generation: int, instance: str | None) -> MemberState:
        """Return the member. `CodeError` if it is not one, or speaks of another generation."""
        member = self._member(member_id, instance)
        if generation != (self.generation if member.classic is None else member.classic.generation):
            raise CodeError(Code.ILLEGAL_GENERATION)
        return member

    def _member(self, member_id: str, instance: str | None) -> MemberState:
        member, current = self.members.get(member_id), self._member_of_instance(instance)
        if current is not None and current is not member:
            raise CodeError(Code.FENCED_INSTANCE_ID)
        if member is None:
            raise CodeError(Code.UNKNOWN_MEMBER_ID)
        return member

    def touch(self, member: MemberState) -> None:
        """Begin the member's session timeout again."""
        _stop(member.expiry)
        seconds = member.details.session_ms / 1000
        member.expiry = asyncio.get_running_loop().call_later(seconds, self._expire, member)

    def close(self, code: Code) -> None:
        """Give up all members: another one has the group."""
        for member in list(self.members.values()):
            member.fail(code)
            self._drop(member)
        _stop(self._deadline)
        self.state, self.membership, self.is_shared = EMPTY, None, False

    # -- joining

    def _join_rebalance(self, member: MemberState, details: JoinDetails) -> Awaitable[Joined]:
        """Let a member take part in a rebalance, and start it if none is under way."""
        member.details = replace(details, member=member.id)
        member.fail(Code.UNKNOWN_MEMBER_ID)
        _stop(member.expiry)
        if self.state != PREPARING:
            self._prepare(first=self.state == EMPTY)
        waiting: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        member.joining = waiting
        self._complete_soon()
        return waiting

    def _entering(self, details: JoinDetails, id_first: bool) -> MemberState:
        """Return the member that joins, a new one where it is new."""
        self._check_protocols(details)
        current = self._member_of_instance(details.instance)
        if details.member:
            if self._remove_pending(details.member):
                return self._new(details)
            return self._member(details.member, details.instance)
        if current is None and len(self.members) + len(self._pending) >= MAX_MEMBERS:
            raise CodeError(Code.GROUP_MAX_SIZE_REACHED)
        new_id = f"{details.instance or details.client or 'member'}-{self.new_id()}"
        if details.instance is None and id_first:
            loop = asyncio.get_running_loop()
            self._pending[new_id] = loop.call_later(details.session_ms / 1000, self._pending.pop, new_id, None)
            raise CodeError(Code.MEMBER_ID_REQUIRED, memberId=new_id)
        member = self._new(replace(details, member=new_id))
        if current is not None:
            # Another process has joined with the same instance id: fence the previous member.
            current.fail(Code.FENCED_INSTANCE_ID)
            self._drop(current)
            member.assignment = current.assignment
            self.leader = member.id if self.leader == current.id else self.leader
        return member

    def _remove_pending(self, member_id: str) -> bool:
        """Return True for an id that was given, and that its member comes back with for the first time."""
        timer = self._pending.pop(member_id, None)
        _stop(timer)
        return timer is not None

    def _new(self, details: JoinDetails) -> MemberState:
        member = self.members[details.member] = MemberState(details)
        return member

    def _member_of_instance(self, instance: str | None) -> MemberState | None:
        """Return the member of this instance."""
        members = self.members.values() if instance is not None else ()
        return next((member for member in members if member.details.instance == instance), None)

    def _skips_rebalance(self, member: MemberState, before: MemberState) -> bool:
        """Return True if a static member needs no rebalance: it is joined as it was, under a new id."""
        return (
            self.state == STABLE
            and member is not before
            and self._elected() == self.protocol
            and _topics(member.metadata(self.protocol)) == _topics(before.metadata(self.protocol))
        )

    def _check_protocols(self, details: JoinDetails) -> None:
        all_details = [details, *(one.details for one in self.members.values() if one.id != details.member)]
        one_kind = details.kind and all(one.kind == details.kind for one in all_details)
        if not one_kind or not common_assignors(all_details) or (self.is_shared and details.group_member() is None):
            raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL)

    def _repeats_request(self, member: MemberState, details: JoinDetails) -> bool:
        """Return True if a member, not a new one, asks again for what it has: its answer may have been lost."""
        is_same = member.expiry is not None and member.details.protocols == details.protocols
        return is_same and (self.state == COMPLETING or member.id != self.leader)

    def _joined(self, member: MemberState) -> Joined:
        listed = tuple(self.members.values()) if member.id == self.leader else ()
        return Joined(self.generation, self.protocol, self.leader, member.id, listed)

    # -- rebalances

    def _prepare(self, *, first: bool = False) -> None:
        """Begin a rebalance. `first`: of an empty group, whose first member waits for others."""
        self.state, self._is_delayed = PREPARING, first
        for member in self.members.values():
            member.fail(Code.REBALANCE_IN_PROGRESS)
        longest_ms = max((member.details.rebalance_ms for member in self.members.values()), default=0)
        seconds = FIRST_DELAY if first else longest_ms / 1000
        _stop(self._deadline)
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._complete_soon, True)

    def _complete_soon(self, late: bool = False) -> asyncio.Task[None] | None:
        """Start a task that completes the rebalance; return it, or None if the rebalance is being delayed."""
        if not late and self._is_delayed:
            return None
        return self._start(self._complete(late))

    def _start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _complete(self, late: bool) -> None:
        """End the rebalance once all have joined: the next generation is entered in the journal, and all are answered.

        `late`: who has not joined by now is removed.
        """
        async with self.lock:
            absent = [member for member in self.members.values() if member.joining is None]
            if self.state != PREPARING or (absent and not late):
                return
            _stop(self._deadline)
            for member in absent:
                self._drop(member)
            try:
                if self.members and await self._begin_or_share():
                    return
            except Fenced as fenced:
                _LOG.warning("group %s: its clients join again: %s", self.id, fenced)
                self.close(Code.UNKNOWN_MEMBER_ID)
                return
            except (Conflict, CodeError) as conflict:
                _LOG.warning("group %s: %s", self.id, conflict)
                self.close(Code.INCONSISTENT_GROUP_PROTOCOL)
                return
            except Exception as error:  # noqa: BLE001 - members wait for an answer
                _LOG.warning("group %s: a rebalance could not be written, members try again: %s", self.id, error)
                for member in self.members.values():
                    member.fail(Code.COORDINATOR_NOT_AVAILABLE)
                    self.touch(member)
                self._prepare()
                return
            if self.members:
                self._complete_joins()
            else:
                # All have left, or were given up meanwhile.
                await self._leave_journal()

    async def _begin_or_share(self) -> bool:
        """Enter the next generation in the journal. True: its members share the group, and all have been answered."""
        all_details = [member.details for member in self.members.values()]
        assignors = shareable_assignors(all_details)
        previous = None if self.membership is None else self.membership.metadata
        try:
            self.membership = await self.begin(assignors, previous)
            owner = self.membership.metadata
            if len(self.membership.state.members) == 1:
                return False
        except Conflict:
            if not assignors:
                raise
            owner = None
        if previous is None:
            # What new clients say that they read was assigned by nobody who is known here.
            all_details = [replace(details, keeps_owned=False) for details in all_details]
        joined = await self.share(all_details, owner)
        self.membership, self.is_shared, self.state, self.leader = None, True, STABLE, ""
        for member, classic in zip(list(self.members.values()), joined, strict=True):
            member.classic = classic
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self._joined_shared(member, classic))
            member.joining = None
            self.touch(member)
        return True

    def _complete_joins(self) -> None:
        self.protocol = self._elected()
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.state = COMPLETING
        for member in self.members.values():
            member.assignment = b""
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self._joined(member))
            member.joining = None
            self.touch(member)

    async def _leave_journal(self) -> None:
        self.state, self.leader = EMPTY, ""
        membership, self.membership = self.membership, None
        if membership is not None:
            try:
                await asyncio.to_thread(membership.leave)
            except SparklogError as error:
                _LOG.warning("group %s: its end could not be written, it ends by its timeout: %s", self.id, error)

    def _elected(self) -> str:
        """Return the assignor that all have and most prefer."""
        all_details = [member.details for member in self.members.values()]
        common = common_assignors(all_details)
        votes = Counter(next(name for name, _ in one.protocols if name in common) for one in all_details)
        return max(sorted(votes), key=lambda name: votes[name])

    def _remove(self, member: MemberState) -> asyncio.Task[None] | None:
        """Remove a member; return the task that completes the resulting rebalance."""
        member.fail(Code.UNKNOWN_MEMBER_ID)
        self._drop(member)
        if member.classic is not None:
            if not self.members:
                self.state, self.is_shared = EMPTY, False
            return self._start(self._leave_shared(member.classic))
        if self.state in (STABLE, COMPLETING):
            self._prepare()
        return self._complete_soon(late=not self.members)

    def _expire(self, member: MemberState) -> None:
        if member.turn.locked():
            self.touch(member)
            return
        # A member that waits for an answer cannot say more.
        if self.members.get(member.id) is member and member.joining is None and member.syncing is None:
            _LOG.info("group %s: %s was silent for its session timeout, or did not rejoin in time", self.id, member.id)
            self._remove(member)

    def _drop(self, member: MemberState) -> None:
        _stop(member.expiry)
        _stop(member.rejoining)
        if self.members.get(member.id) is member:
            del self.members[member.id]

    # -- a group that members of the root share

    async def share_group(self) -> None:
        """Start the rebalance in which the clients become members of the journal, as other members wait for them."""
        async with self.lock:
            if self.state == STABLE and not self.is_shared:
                self._prepare()

    async def commit_shared(self, member: MemberState, offsets: Offsets) -> None:
        """Commit offsets of a client that is a member of the journal."""
        classic = member.classic
        assert classic is not None
        generation = classic.generation
        async with member.turn:
            try:
                await self.run(classic.commit, generation, offsets)
            except Fenced:
                # Raises if it is no longer a member. Otherwise one of the partitions is another member's now.
                self._call_classic(member, classic.must_rejoin)
                raise CodeError(Code.REBALANCE_IN_PROGRESS) from None

    async def _join_shared(self, member: MemberState, details: JoinDetails) -> Joined:
        """Add a client to the journal, or apply the request of one that is a member."""
        _stop(member.rejoining)
        member.rejoining = None
        try:
            async with member.turn:
                if member.classic is None:
                    member.classic = (await self.share([details], None))[0]
                else:
                    await self.run(rejoin_journal, member.classic, details)
        except Conflict as conflict:
            self._drop(member)
            _LOG.warning("group %s: %s", self.id, conflict)
            raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL) from None
        except Fenced:
            self._drop(member)
            raise CodeError(Code.UNKNOWN_MEMBER_ID) from None
        except SparklogError:
            if member.classic is None:
                self._drop(member)
            raise
        member.details = details
        self.touch(member)
        return self._joined_shared(member, member.classic)

    def _joined_shared(self, member: MemberState, classic: ClassicMember) -> Joined:
        """Return the response of a group without a leader, as Kafka's to a classic member of a consumer group."""
        self.protocol = common_assignor(classic.membership.state.members)
        return Joined(classic.generation, self.protocol, "", member.id)

    def _call_classic(self, member: MemberState, call: Callable[..., T], *arguments: object) -> T:
        """Call a function of a member; if the group went on without it, drop it and tell the client."""
        try:
            return call(*arguments)
        except Fenced:
            assert member.classic is not None
            others = member.classic.membership.state.members
            self._drop(member)
            is_replaced = member.details.instance in {other.instance_id for other in others} - {None}
            raise CodeError(Code.FENCED_INSTANCE_ID if is_replaced else Code.UNKNOWN_MEMBER_ID) from None

    async def _leave_shared(self, classic: ClassicMember) -> None:
        await self.run(leave_journal, classic)

    async def refresh_shared(self, group: Group) -> None:
        """Read the group's journal, send heartbeats that are due, and drop clients that are no longer members.

        Clients whose assignment has changed get their rebalance timeout to join again.
        """
        state = await self.run(group.log.refresh)
        for member in list(self.members.values()):
            classic = member.classic
            if classic is None or member.turn.locked():
                continue
            async with member.turn:
                try:
                    await self.run(refresh_member, classic, state)
                    must_rejoin = classic.must_rejoin()
                except Fenced:
                    self._drop(member)
                    continue
            if must_rejoin and member.rejoining is None:
                seconds = member.details.rebalance_ms / 1000
                member.rejoining = asyncio.get_running_loop().call_later(seconds, self._expire, member)

    def leave_shared(self) -> None:
        """Remove all clients from the journal: the server stops."""
        for member in list(self.members.values()):
            if member.classic is not None:
                leave_journal(member.classic)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _topics(metadata: bytes) -> object:
    """Return the topics of a consumer's subscription; of other members, or if unreadable, all that the client sent."""
    subscription = subscription_in(metadata)
    return metadata if subscription is None else subscription.topics
