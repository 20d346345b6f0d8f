"""The members of a consumer group in the classic protocol, in memory. The assignment is computed by the group leader,
which is a client.

| state               | a member that joins               | all other members                                          |
|---------------------|-----------------------------------|------------------------------------------------------------|
| Empty               | starts a rebalance                |                                                            |
| PreparingRebalance  | waits until all have joined again | must rejoin (heartbeat responses say so), or are removed   |
| CompletingRebalance | waits for the leader's assignment | wait for the assignment in SyncGroup                       |
| Stable              | starts a rebalance if it is new   | send heartbeats and commits                                |

The server is the exclusive owner of the group. Each rebalance ends with a new entry in the group's journal, and the
generation of this entry is sent to the clients. If another server becomes the owner of the group, its entry has the
next generation, which fences the commits of this server. No other information about members is stored.

**Shared groups.** If a consumer of the root (`sparklog.consumer`) joins the group, or another server has clients in the
group, the journal determines the assignment:

1. The owner's entry lists the assignors that all clients support and that sparklog implements. A new member that does
   not support any of these assignors receives an error. If the list is empty (Kafka Connect, Kafka Streams), no other
   member can join.
2. The new member's entry in the journal shows that the member is waiting. The server starts a rebalance.
3. When all clients have joined again, the server replaces itself in the journal with its clients, in one entry.
4. From then on, each client is a member in the journal (`shared_members`), until the last client has left the group.

If a static member (KIP-345) rejoins within its session timeout, it is assigned a new id, but retains its assignment and
generation. Requests with the previous id are fenced. If the leader rejoins with a JoinGroup version below 9, the
response contains the leader's previous id, so that the client does not compute an assignment. This behavior is the same
as in Kafka, except that a changed subscription starts a rebalance.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sparklog.common.warned import is_due_warning
from sparklog.errors import Conflict, Fenced, SparklogError
from sparklog.groups.classic_member import ClassicMember
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_members import common_assignor
from sparklog.groups.group_state import GroupMetadata
from sparklog.groups.membership import Membership
from sparklog.log.journal.clocks import SYSTEM
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.join_details import JoinDetails, common_assignors, shareable_assignors, subscription_in
from sparklog.serve.shared_members import assignment_bytes, leave_journal, refresh_membership, rejoin_journal

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
FIRST_DELAY = 0.1
"""The time (seconds) that the first member of a group waits for other members."""
LOCKED_SECONDS = 0.1
"""The time (seconds) after which a member is removed if its rebalance timeout ends during a call of its handle."""
MAX_MEMBERS = 10_000
T = TypeVar("T")
_LOG = logging.getLogger("sparklog.serve")
Begin = Callable[[Sequence[str], "GroupMetadata | None"], Awaitable[Membership]]
"""Makes this server the exclusive owner of a group, given shareable assignors and the server's previous generation.

Raises `Fenced` if another member has joined after that generation, because the clients' positions may then be
outdated.
"""
Share = Callable[[Sequence[JoinDetails], GroupMetadata | None], Awaitable[list[ClassicMember]]]
"""Adds clients to the group's journal. If this server is the owner, the clients replace it. See `join_journal`."""
Run = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The response to a member that has joined. Only the response to the leader contains `members`."""

    generation: int
    protocol: str
    leader: str
    member: str
    members: tuple[MemberState, ...] = ()
    skips_assignment: bool = False
    """True if the leader must skip the assignment, because it is a static member that rejoins without a rebalance."""


@dataclass(slots=True, eq=False)
class MemberState:
    """A member, with its join details, its assignment, and its pending JoinGroup and SyncGroup requests."""

    details: JoinDetails
    assignment: bytes = b""
    joining: asyncio.Future[JoinResult] | None = None
    syncing: asyncio.Future[bytes] | None = None
    expiry: asyncio.TimerHandle | None = None
    classic: ClassicMember | None = None
    """The member's handle in the journal, if the group is shared."""
    rejoining: asyncio.TimerHandle | None = None
    """The timer that removes a member of a shared group if the member does not rejoin in time."""
    call_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes the calls of `classic`."""

    @property
    def id(self) -> str:
        return self.details.member

    def fail(self, code: Code) -> None:
        """Complete the pending requests with an error."""
        for waiting in (self.joining, self.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(CodeError(code))
                # If the client has disconnected, nothing awaits the future. Retrieve the exception, so that asyncio
                # does not log it.
                waiting.exception()
        self.joining = self.syncing = None

    def metadata(self, protocol: str) -> bytes:
        return dict(self.details.protocols).get(protocol, b"")


@dataclass(slots=True)
class GroupMembers:
    """The members of one group (see the module docstring).

    * `new_id` creates member ids
    * `run` calls functions that send requests to the store
    """

    id: str
    begin: Begin
    new_id: Callable[[], str]
    share: Share
    run: Run
    state: str = EMPTY
    is_shared: bool = False
    """True if the clients are members in the journal. In this case, `state` is Stable."""
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
    def has_pending(self) -> bool:
        """True if a client has received a member id with MEMBER_ID_REQUIRED, and may join with this id."""
        return bool(self._pending)

    @property
    def kind(self) -> str:
        return next((member.details.kind for member in self.members.values()), "")

    # -- member requests

    async def join(self, details: JoinDetails, *, id_first: bool, may_skip: bool = False) -> JoinResult:
        """Add a member and wait until the rebalance completes. Raises `CodeError`.

        Args:
            details: the fields of the member's request.
            id_first: reject a member without an id, and return a new id to rejoin with (KIP-394).
            may_skip: if a static leader rejoins, instruct the leader to skip the assignment (KIP-814).
        """
        async with self.lock:
            joined: Awaitable[JoinResult]
            before, leader = self._member_of_instance(details.instance), self.leader
            member = self._joining_member(details, id_first)
            if self.is_shared:
                joined = self._join_shared(member, replace(details, member=member.id))
            elif self.state in (STABLE, COMPLETING) and self._repeats_request(member, details):
                return self._joined(member)
            elif before is not None and self._skips_rebalance(member, before):
                self.restart_session(member)
                if may_skip:
                    return replace(self._joined(member), skips_assignment=member.id == self.leader)
                return JoinResult(self.generation, self.protocol, leader, member.id)
            else:
                joined = self._join_rebalance(member, details)
        return await joined

    async def sync(self, member_id: str, generation: int, instance: str | None, assignments: dict[str, bytes]) -> bytes:
        """Apply the leader's assignments, or wait for them. Return the member's own assignment."""
        member = self.checked(member_id, generation, instance)
        if self.state == PREPARING:
            raise CodeError(Code.REBALANCE_IN_PROGRESS)
        self.restart_session(member)
        if member.classic is not None:
            async with member.call_lock:
                return assignment_bytes(self._call_classic(member, member.classic.sync, generation))
        if self.state == STABLE:
            return member.assignment
        if member_id != self.leader:
            # If a client sends SyncGroup again, it has closed the connection of the previous request.
            member.fail(Code.UNKNOWN_MEMBER_ID)
            waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            member.syncing = waiting
            return await waiting
        self.state = STABLE
        for other in self.members.values():
            other.assignment = assignments.get(other.id, b"")
            if other.syncing is not None and not other.syncing.done():
                other.syncing.set_result(other.assignment)
                other.syncing = None
                self.restart_session(other)
        return member.assignment

    def heartbeat(self, member_id: str, generation: int, instance: str | None) -> Code:
        """Process a heartbeat. Return REBALANCE_IN_PROGRESS if the member must rejoin. Raises `CodeError`."""
        member = self.checked(member_id, generation, instance)
        self.restart_session(member)
        if member.classic is None:
            must_rejoin = self.state == PREPARING
        else:
            must_rejoin = not member.call_lock.locked() and self._call_classic(member, member.classic.must_rejoin)
        return Code.REBALANCE_IN_PROGRESS if must_rejoin else Code.NONE

    async def leave(self, member_id: str, instance: str | None) -> Code:
        """Remove a member. If it was the last member, wait until the journal has an entry for the empty group."""
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
            # The entry must be written even if the client disconnects.
            await asyncio.shield(completing)
        return Code.NONE

    def checked(self, member_id: str, generation: int, instance: str | None) -> MemberState:
        """Return the member. Raises `CodeError` if the member does not exist or sends another generation."""
        member = self._member(member_id, instance)
        if generation != (self.generation if member.classic is None else member.classic.generation):
            raise CodeError(Code.ILLEGAL_GENERATION)
        return member

    def _member(self, member_id: str, instance: str | None) -> MemberState:
        member, current = self.members.get(member_id), self._member_of_instance(instance)
        if current is not None and current is not member:
            raise CodeError(Code.FENCED_INSTANCE_ID)
        if member is None or (instance is not None and current is None):
            raise CodeError(Code.UNKNOWN_MEMBER_ID)
        return member

    def restart_session(self, member: MemberState) -> None:
        """Restart the member's session timeout."""
        _stop(member.expiry)
        seconds = member.details.session_ms / 1000
        member.expiry = asyncio.get_running_loop().call_later(seconds, self._expire, member)

    def close(self, code: Code) -> None:
        """Remove all members, because another server or member owns the group."""
        for member in list(self.members.values()):
            member.fail(code)
            self._drop_member(member)
        _stop(self._deadline)
        self.state, self.membership, self.is_shared = EMPTY, None, False

    # -- joins

    def _join_rebalance(self, member: MemberState, details: JoinDetails) -> Awaitable[JoinResult]:
        """Add a member to the current rebalance. If no rebalance is in progress, start a rebalance."""
        member.details = replace(details, member=member.id)
        member.fail(Code.UNKNOWN_MEMBER_ID)
        _stop(member.expiry)
        if self.state != PREPARING:
            self._start_rebalance(first=self.state == EMPTY)
        waiting: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        member.joining = waiting
        self._schedule_completion()
        return waiting

    def _joining_member(self, details: JoinDetails, id_first: bool) -> MemberState:
        """Return the member that joins. If the member is unknown, create a member."""
        self._check_protocols(details)
        current = self._member_of_instance(details.instance)
        if details.member:
            if self._remove_pending(details.member):
                return self._add_member(details)
            return self._member(details.member, details.instance)
        if current is None and len(self.members) + len(self._pending) >= MAX_MEMBERS:
            raise CodeError(Code.GROUP_MAX_SIZE_REACHED)
        new_id = f"{details.instance or details.client or 'member'}-{self.new_id()}"
        if details.instance is None and id_first:
            loop = asyncio.get_running_loop()
            self._pending[new_id] = loop.call_later(details.session_ms / 1000, self._pending.pop, new_id, None)
            raise CodeError(Code.MEMBER_ID_REQUIRED, memberId=new_id)
        member = self._add_member(replace(details, member=new_id))
        if current is not None:
            # Another process has joined with the same instance id, so fence the previous member.
            current.fail(Code.FENCED_INSTANCE_ID)
            self._drop_member(current)
            member.assignment = current.assignment
            self.leader = member.id if self.leader == current.id else self.leader
        return member

    def _remove_pending(self, member_id: str) -> bool:
        """Remove an id that was assigned with MEMBER_ID_REQUIRED. Return False if the id is not pending."""
        timer = self._pending.pop(member_id, None)
        _stop(timer)
        return timer is not None

    def _add_member(self, details: JoinDetails) -> MemberState:
        member = self.members[details.member] = MemberState(details)
        return member

    def _member_of_instance(self, instance: str | None) -> MemberState | None:
        """Return the static member with this instance id."""
        members = self.members.values() if instance is not None else ()
        return next((member for member in members if member.details.instance == instance), None)

    def _skips_rebalance(self, member: MemberState, before: MemberState) -> bool:
        """Return True if a static member can rejoin under a new id without a rebalance."""
        return (
            self.state == STABLE
            and member is not before
            and self._elect_assignor() == self.protocol
            and _topics(member.metadata(self.protocol)) == _topics(before.metadata(self.protocol))
        )

    def _check_protocols(self, details: JoinDetails) -> None:
        all_details = [details, *(one.details for one in self.members.values() if one.id != details.member)]
        one_kind = details.kind and all(one.kind == details.kind for one in all_details)
        if not one_kind or not common_assignors(all_details) or (self.is_shared and details.group_member() is None):
            raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL)

    def _repeats_request(self, member: MemberState, details: JoinDetails) -> bool:
        """Return True if an existing member repeats its JoinGroup request, because the response may have been lost."""
        is_same = member.expiry is not None and member.details.protocols == details.protocols
        return is_same and (self.state == COMPLETING or member.id != self.leader)

    def _joined(self, member: MemberState) -> JoinResult:
        listed = tuple(self.members.values()) if member.id == self.leader else ()
        return JoinResult(self.generation, self.protocol, self.leader, member.id, listed)

    # -- rebalances

    def _start_rebalance(self, *, first: bool = False) -> None:
        """Start a rebalance. If the group was empty (`first`), wait a short time for other members."""
        self.state, self._is_delayed = PREPARING, first
        for member in self.members.values():
            member.fail(Code.REBALANCE_IN_PROGRESS)
        longest_ms = max((member.details.rebalance_ms for member in self.members.values()), default=0)
        seconds = FIRST_DELAY if first else longest_ms / 1000
        _stop(self._deadline)
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._schedule_completion, True)

    def _schedule_completion(self, late: bool = False) -> asyncio.Task[None] | None:
        """Start a task that completes the rebalance, and return it. Return None if the rebalance is delayed."""
        if not late and self._is_delayed:
            return None
        return self._start_task(self._complete(late))

    def _start_task(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _complete(self, late: bool) -> None:
        """Complete the rebalance once all members have joined: write the next generation to the journal, and send the
        responses.

        If `late` is true, remove the members that have not joined.
        """
        async with self.lock:
            absent = [member for member in self.members.values() if member.joining is None]
            if self.state != PREPARING or (absent and not late):
                return
            _stop(self._deadline)
            for member in absent:
                self._drop_member(member)
            try:
                if self.members and await self._begin_or_share():
                    return
            except Fenced as fenced:
                _LOG.warning("group %s: the clients must rejoin: %s", self.id, fenced)
                self.close(Code.UNKNOWN_MEMBER_ID)
                return
            except (Conflict, CodeError) as conflict:
                _LOG.warning("group %s: %s", self.id, conflict)
                self.close(Code.INCONSISTENT_GROUP_PROTOCOL)
                return
            except Exception as error:  # noqa: BLE001 - the members wait for a response
                if is_due_warning("next generation", self.id, now_ms=SYSTEM.boot_ms()):
                    _LOG.warning(
                        "group %s: cannot write the next generation, so the members must rejoin: %s", self.id, error
                    )
                for member in self.members.values():
                    member.fail(Code.COORDINATOR_NOT_AVAILABLE)
                    self.restart_session(member)
                self._start_rebalance()
                return
            if self.members:
                self._complete_joins()
            else:
                # All members have left or have been removed in the meantime.
                await self._leave_journal()

    async def _begin_or_share(self) -> bool:
        """Write the next generation to the journal.

        Return True if the group is shared. In this case, the responses have already been sent.
        """
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
            # The generation of the clients' assignment is unknown, so ignore the partitions that the clients report as
            # owned.
            all_details = [replace(details, keeps_owned=False) for details in all_details]
        joined = await self.share(all_details, owner)
        self.membership, self.is_shared, self.state, self.leader = None, True, STABLE, ""
        for member, classic in zip(list(self.members.values()), joined, strict=True):
            member.classic = classic
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self._joined_shared(member, classic))
            member.joining = None
            self.restart_session(member)
        return True

    def _complete_joins(self) -> None:
        self.protocol = self._elect_assignor()
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.state = COMPLETING
        for member in self.members.values():
            member.assignment = b""
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self._joined(member))
            member.joining = None
            self.restart_session(member)

    async def _leave_journal(self) -> None:
        self.state, self.leader = EMPTY, ""
        membership, self.membership = self.membership, None
        if membership is not None:
            try:
                await asyncio.to_thread(membership.leave)
            except SparklogError as error:
                _LOG.warning(
                    "group %s: cannot write the entry for the empty group; the server's session will time out: %s",
                    self.id,
                    error,
                )

    def _elect_assignor(self) -> str:
        """Return the assignor that all members support and most members prefer."""
        all_details = [member.details for member in self.members.values()]
        common = common_assignors(all_details)
        votes = Counter(next(name for name, _ in one.protocols if name in common) for one in all_details)
        return max(sorted(votes), key=lambda name: votes[name])

    def _remove(self, member: MemberState) -> asyncio.Task[None] | None:
        """Remove a member, and return the task that completes the resulting rebalance."""
        member.fail(Code.UNKNOWN_MEMBER_ID)
        self._drop_member(member)
        if member.classic is not None:
            return self._start_task(self._leave_shared(member.classic))
        if self.state in (STABLE, COMPLETING):
            self._start_rebalance()
        return self._schedule_completion(late=not self.members)

    def _expire(self, member: MemberState) -> None:
        if member.call_lock.locked():
            self.restart_session(member)
            return
        # A member that waits for a response cannot send heartbeats.
        if self.members.get(member.id) is member and member.joining is None and member.syncing is None:
            _LOG.info("group %s: member %s exceeded its session or rebalance timeout", self.id, member.id)
            self._remove(member)

    def _expire_rebalance(self, member: MemberState) -> None:
        """Remove a member of a shared group that has not rejoined in time."""
        if member.call_lock.locked():
            loop = asyncio.get_running_loop()
            member.rejoining = loop.call_later(LOCKED_SECONDS, self._expire_rebalance, member)
        else:
            self._expire(member)

    def _drop_member(self, member: MemberState) -> None:
        _stop(member.expiry)
        _stop(member.rejoining)
        if self.members.get(member.id) is member:
            del self.members[member.id]
        if self.is_shared and not self.members:
            self.state, self.is_shared = EMPTY, False

    # -- shared groups

    async def share_group(self) -> None:
        """Start a rebalance in which the clients become members in the journal, because other members are waiting."""
        async with self.lock:
            if self.state == STABLE and not self.is_shared:
                self._start_rebalance()

    async def commit_shared(self, member: MemberState, offsets: Offsets) -> None:
        """Commit offsets of a client that is a member in the journal."""
        classic = member.classic
        assert classic is not None
        generation = classic.generation
        async with member.call_lock:
            try:
                await self.run(classic.commit, generation, offsets)
            except Fenced:
                # This raises an error if the client is no longer a member. If the client is still a member, one of the
                # partitions has been reassigned to another member.
                self._call_classic(member, classic.must_rejoin)
                raise CodeError(Code.REBALANCE_IN_PROGRESS) from None

    async def _join_shared(self, member: MemberState, details: JoinDetails) -> JoinResult:
        """Add a client to the journal, or process the JoinGroup request of an existing member."""
        _stop(member.rejoining)
        member.rejoining = None
        try:
            async with member.call_lock:
                if member.classic is None:
                    member.classic = (await self.share([details], None))[0]
                else:
                    await self.run(rejoin_journal, member.classic, details)
        except Conflict as conflict:
            self._drop_member(member)
            _LOG.warning("group %s: %s", self.id, conflict)
            raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL) from None
        except Fenced:
            self._drop_member(member)
            raise CodeError(Code.UNKNOWN_MEMBER_ID) from None
        except SparklogError:
            if member.classic is None:
                self._drop_member(member)
            raise
        member.details = details
        self.restart_session(member)
        return self._joined_shared(member, member.classic)

    def _joined_shared(self, member: MemberState, classic: ClassicMember) -> JoinResult:
        """Return the JoinGroup response of a group without a leader, like Kafka's response to a classic member of a
        consumer group.
        """
        self.protocol = common_assignor(classic.membership.state.members)
        return JoinResult(classic.generation, self.protocol, "", member.id)

    def _call_classic(self, member: MemberState, call: Callable[..., T], *arguments: object) -> T:
        """Call a function of a member in the journal.

        If the member was removed from the group, drop it and raise `CodeError`.
        """
        try:
            return call(*arguments)
        except Fenced:
            assert member.classic is not None
            others = member.classic.membership.state.members
            self._drop_member(member)
            is_replaced = member.details.instance in {other.instance_id for other in others} - {None}
            raise CodeError(Code.FENCED_INSTANCE_ID if is_replaced else Code.UNKNOWN_MEMBER_ID) from None

    async def _leave_shared(self, classic: ClassicMember) -> None:
        await self.run(leave_journal, classic.membership)

    async def refresh_shared(self, group: Group) -> None:
        """Read the group's journal, send the heartbeats that are due, and drop clients that are no longer members.

        A client whose assignment has changed must rejoin within its rebalance timeout.
        """
        state = await self.run(group.log.refresh)
        for member in list(self.members.values()):
            classic = member.classic
            if classic is None or member.call_lock.locked():
                continue
            async with member.call_lock:
                try:
                    await self.run(refresh_membership, classic.membership, state)
                    must_rejoin = classic.must_rejoin()
                except Fenced:
                    self._drop_member(member)
                    continue
            if not must_rejoin:
                # The client has rejoined, or its assignment is again the one that the client has received.
                _stop(member.rejoining)
                member.rejoining = None
            elif member.rejoining is None:
                seconds = member.details.rebalance_ms / 1000
                member.rejoining = asyncio.get_running_loop().call_later(seconds, self._expire_rebalance, member)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _topics(metadata: bytes) -> object:
    """Return the topics of a consumer's subscription.

    If the metadata is not a valid subscription, return the metadata itself.
    """
    subscription = subscription_in(metadata)
    return metadata if subscription is None else subscription.topics
