"""The members of one consumer group, in memory: Kafka's classic protocol, in which clients compute the assignment.

| state               | a member that joins                | all others                                             |
|---------------------|------------------------------------|--------------------------------------------------------|
| Empty               | begins a rebalance                 |                                                        |
| PreparingRebalance  | waits until all have joined again  | a heartbeat says so; who does not join again is removed |
| CompletingRebalance | waits for what the leader assigns  | the same in SyncGroup                                  |
| Stable              | begins a rebalance, if it is new   | heartbeats, commits                                    |

A rebalance ends in an entry of the group's journal, whose number of the generation is the clients': another server that
takes the group over does it by the next one, and what members of this one commit from then on is refused. Nothing else
of a member is written down.

Members that share the group's partitions natively, by its journal, are another protocol: while they are there, clients
that join are refused with INCONSISTENT_GROUP_PROTOCOL.

A static member (KIP-345) that comes back within its session has the assignment that it had, under a new id and in the
same generation; requests under its former id are fenced. Before JoinGroup 9 the answer names the former id of the
leader: one that comes back so assigns nothing. As in Kafka, but that a change of the subscription begins a rebalance.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from sparklog.errors import Conflict, Corrupt, SparklogError
from sparklog.groups.membership import Membership
from sparklog.kafka.messages.message_codec import decode_prefix, split_version
from sparklog.kafka.messages.message_schema import message
from sparklog.serve.codes import Code, CodeError

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
FIRST_DELAY = 0.1
"""Seconds that the first member of a group waits for others."""
MAX_MEMBERS = 10_000
_LOG = logging.getLogger("sparklog.serve")


@dataclass(frozen=True, slots=True)
class JoinDetails:
    """Details that a member joins with. `protocols`: name and metadata of each assignor, the preferred one first."""

    member: str
    instance: str | None
    client: str
    host: str
    session_ms: int
    rebalance_ms: int
    kind: str
    protocols: tuple[tuple[str, bytes], ...]


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
    """See the module. `begin` enters the next generation in the journal; `new_id` makes ids of members."""

    id: str
    begin: Callable[[], Awaitable[Membership]]
    new_id: Callable[[], str]
    state: str = EMPTY
    membership: Membership | None = None
    members: dict[str, MemberState] = field(default_factory=dict)
    protocol: str = ""
    leader: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _pending: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _deadline: asyncio.TimerHandle | None = None
    _settling: bool = False
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
            before, leader = self._holder(details.instance), self.leader
            member = self._entering(details, id_first)
            if self.state in (STABLE, COMPLETING) and self._goes_on(member, details):
                return self._joined(member)
            if before is not None and self._comes_back(member, before):
                self.touch(member)
                if may_skip:
                    return replace(self._joined(member), skips_assignment=member.id == self.leader)
                return Joined(self.generation, self.protocol, leader, member.id)
            member.details = replace(details, member=member.id)
            member.fail(Code.UNKNOWN_MEMBER_ID)
            _stop(member.expiry)
            if self.state != PREPARING:
                self._prepare(first=self.state == EMPTY)
            waiting: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
            member.joining = waiting
            self._complete_soon()
        return await waiting

    async def sync(self, member_id: str, generation: int, instance: str | None, given: dict[str, bytes]) -> bytes:
        """Take the leader's assignments, or wait for them; return the member's own."""
        member = self.checked(member_id, generation, instance)
        if self.state == PREPARING:
            raise CodeError(Code.REBALANCE_IN_PROGRESS)
        self.touch(member)
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
        self.touch(self.checked(member_id, generation, instance))
        return Code.REBALANCE_IN_PROGRESS if self.state == PREPARING else Code.NONE

    async def leave(self, member_id: str, instance: str | None) -> Code:
        """Remove a member. If it was the last one, return only after the journal has an entry for the empty group."""
        async with self.lock:
            if self._was_pending(member_id):
                return Code.NONE
            holder = self._holder(instance)
            try:
                member = self._member(holder.id if holder is not None and not member_id else member_id, instance)
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
        if generation != self.generation:
            raise CodeError(Code.ILLEGAL_GENERATION)
        return member

    def _member(self, member_id: str, instance: str | None) -> MemberState:
        member, holder = self.members.get(member_id), self._holder(instance)
        if holder is not None and holder is not member:
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
        for member in self.members.values():
            _stop(member.expiry)
            member.fail(code)
        self.members.clear()
        _stop(self._deadline)
        self.state, self.membership = EMPTY, None

    # -- joining

    def _entering(self, details: JoinDetails, id_first: bool) -> MemberState:
        """Return the member that joins, a new one where it is new."""
        self._check_protocols(details)
        holder = self._holder(details.instance)
        if details.member:
            if self._was_pending(details.member):
                return self._new(details)
            return self._member(details.member, details.instance)
        if holder is None and len(self.members) + len(self._pending) >= MAX_MEMBERS:
            raise CodeError(Code.GROUP_MAX_SIZE_REACHED)
        new_id = f"{details.instance or details.client or 'member'}-{self.new_id()}"
        if details.instance is None and id_first:
            loop = asyncio.get_running_loop()
            self._pending[new_id] = loop.call_later(details.session_ms / 1000, self._pending.pop, new_id, None)
            raise CodeError(Code.MEMBER_ID_REQUIRED, memberId=new_id)
        member = self._new(replace(details, member=new_id))
        if holder is not None:
            # The instance came back as another process: the one before it is told so.
            holder.fail(Code.FENCED_INSTANCE_ID)
            self._drop(holder)
            member.assignment = holder.assignment
            self.leader = member.id if self.leader == holder.id else self.leader
        return member

    def _was_pending(self, member_id: str) -> bool:
        """Return True for an id that was given, and that its member comes back with for the first time."""
        timer = self._pending.pop(member_id, None)
        _stop(timer)
        return timer is not None

    def _new(self, details: JoinDetails) -> MemberState:
        member = self.members[details.member] = MemberState(details)
        return member

    def _holder(self, instance: str | None) -> MemberState | None:
        """Return the member of this instance."""
        members = self.members.values() if instance is not None else ()
        return next((member for member in members if member.details.instance == instance), None)

    def _comes_back(self, member: MemberState, before: MemberState) -> bool:
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
        if not one_kind or not _common_assignors(all_details):
            raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL)

    def _goes_on(self, member: MemberState, details: JoinDetails) -> bool:
        """Return True if a member, not a new one, asks again for what it has: its answer may have been lost."""
        is_same = member.expiry is not None and member.details.protocols == details.protocols
        return is_same and (self.state == COMPLETING or member.id != self.leader)

    def _joined(self, member: MemberState) -> Joined:
        listed = tuple(self.members.values()) if member.id == self.leader else ()
        return Joined(self.generation, self.protocol, self.leader, member.id, listed)

    # -- rebalances

    def _prepare(self, *, first: bool = False) -> None:
        """Begin a rebalance. `first`: of an empty group, whose first member waits for others."""
        self.state, self._settling = PREPARING, first
        for member in self.members.values():
            member.fail(Code.REBALANCE_IN_PROGRESS)
        longest_ms = max((member.details.rebalance_ms for member in self.members.values()), default=0)
        seconds = FIRST_DELAY if first else longest_ms / 1000
        _stop(self._deadline)
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._complete_soon, True)

    def _complete_soon(self, late: bool = False) -> asyncio.Task[None] | None:
        """Start a task that completes the rebalance; return it, or None if the rebalance is being delayed."""
        if not late and self._settling:
            return None
        task = asyncio.get_running_loop().create_task(self._complete(late))
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
                if self.members:
                    self.membership = await self.begin()
            except Conflict as conflict:
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
                self._answer_joins()
            else:
                # All have left, or were given up meanwhile.
                await self._leave_journal()

    def _answer_joins(self) -> None:
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
        common = _common_assignors(all_details)
        votes = Counter(next(name for name, _ in one.protocols if name in common) for one in all_details)
        return max(sorted(votes), key=lambda name: votes[name])

    def _remove(self, member: MemberState) -> asyncio.Task[None] | None:
        """Remove a member; return the task that completes the resulting rebalance."""
        member.fail(Code.UNKNOWN_MEMBER_ID)
        self._drop(member)
        if self.state in (STABLE, COMPLETING):
            self._prepare()
        return self._complete_soon(late=not self.members)

    def _expire(self, member: MemberState) -> None:
        # A member that waits for an answer cannot say more.
        if self.members.get(member.id) is member and member.joining is None and member.syncing is None:
            _LOG.info("group %s: %s was silent for its session timeout", self.id, member.id)
            self._remove(member)

    def _drop(self, member: MemberState) -> None:
        _stop(member.expiry)
        self.members.pop(member.id, None)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _common_assignors(all_details: Sequence[JoinDetails]) -> set[str]:
    return set.intersection(*({name for name, _ in details.protocols} for details in all_details))


def _topics(metadata: bytes) -> object:
    """Return the topics that a consumer has subscribed to; of another kind of member, or if unreadable, all it sent."""
    try:
        version, body = split_version(metadata, "subscription")
        return sorted(decode_prefix(message("groups", "ConsumerProtocolSubscription"), version, body)[0]["topics"])
    except Corrupt:
        return metadata
