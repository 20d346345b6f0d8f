"""The clients of a group that use the consumer protocol (KIP-848) and send their heartbeats to this server.

Each client is a member in the group's journal (`consumer_member`). This module contains only the state that is not
stored in the journal, which is the latest assignment that was sent to each client, and the timers. A client is removed
from the group if it does not send a heartbeat within its session timeout, or does not revoke partitions within its
rebalance timeout. If the server stops, the members remain in the journal, so that the clients can continue with another
server, or with this server after its restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from sparklog.errors import Conflict, Fenced
from sparklog.groups.consumer_member import ConsumerGroupMember
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_members import ConsumerProtocol, GroupMember, Partitions
from sparklog.groups.group_state import GroupState
from sparklog.groups.group_steps import EpochMismatch, UnreleasedInstance, is_member
from sparklog.groups.membership import Membership
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.group_members import MAX_MEMBERS, Run
from sparklog.serve.shared_members import leave_journal, partition_counts, refresh_membership

_LOG = logging.getLogger("sparklog.serve")
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_TEMPORARILY_EPOCH = 0, -1, -2
SESSION, REBALANCE = "session", "rebalance"
"""The names of timers."""
BUSY_MS = 100
"""The delay after which an expired timer is checked again if a request of its client is being processed."""
REGEX_POLLS = 5
"""Topics that match regular expressions are listed in every fifth poll."""
Subscription = tuple[tuple[str, ...], tuple[str, ...], ConsumerProtocol]
"""The topics, the assignors and the other fields of a member in the journal."""


@dataclass(frozen=True, slots=True)
class GroupHeartbeat:
    """The fields of a heartbeat. A field is None if it has not changed.

    * `owned`: the client's partitions; partitions of unknown topics have an empty topic name
    * `matching`: function that returns the topics that match a regular expression and that the client may read
    """

    member: str
    epoch: int
    instance: str | None
    rack: str | None
    rebalance_ms: int | None
    topics: tuple[str, ...] | None
    regex: str | None
    assignor: str | None
    owned: Partitions | None
    client: str
    host: str
    matching: Callable[[str], Collection[str]]

    @property
    def is_full(self) -> bool:
        """True if the response must contain the assignment, because the client has joined or has received an error."""
        has_topics = self.topics is not None or self.regex is not None
        return self.epoch == JOIN_EPOCH or (has_topics and self.rebalance_ms is not None and self.owned is not None)

    @property
    def has_subscription(self) -> bool:
        fields = self.topics, self.regex, self.assignor, self.rebalance_ms, self.rack
        return any(value is not None for value in fields)

    def subscription(self, before: GroupMember | None) -> Subscription:
        """Return the subscription of a member after this heartbeat. `member` is the state before the heartbeat."""
        known = ConsumerProtocol((), None, 0) if before is None or before.consumer is None else before.consumer
        consumer = replace(
            known,
            topic_names=known.topic_names if self.topics is None else tuple(sorted(set(self.topics))),
            # An empty expression removes the subscription to a regular expression.
            topic_regex=known.topic_regex if self.regex is None else self.regex or None,
            rebalance_timeout_ms=known.rebalance_timeout_ms if self.rebalance_ms is None else self.rebalance_ms,
            rack_id=self.rack or known.rack_id,
        )
        assignors = () if before is None else before.assignors
        topics = before.topics if before is not None and self.topics is None and self.regex is None else None
        if topics is None:
            topics = subscribed_topics(consumer, self.matching)
        return topics, assignors if self.assignor is None else (self.assignor,), consumer


def subscribed_topics(consumer: ConsumerProtocol, matching: Callable[[str], Collection[str]]) -> tuple[str, ...]:
    matches = () if consumer.topic_regex is None else matching(consumer.topic_regex)
    return tuple(sorted({*consumer.topic_names, *matches}))


@dataclass(slots=True, eq=False)
class ConsumerClient:
    """A client, with its member in the journal, the partitions in the latest response, and its timers."""

    id: str
    matching: Callable[[str], Collection[str]]
    member: ConsumerGroupMember | None = None
    assignment: object = None
    """The assignment in the latest response that contained an assignment."""
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """The timers of the session and of a revocation, by name."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes the calls of `member`."""

    def stop_timer(self, name: str) -> None:
        timer = self.timers.pop(name, None)
        if timer is not None:
            timer.cancel()


@dataclass(slots=True)
class ConsumerMembers:
    """The clients of one group (see the module docstring). `run` calls functions that send requests to the store."""

    group: Group
    run: Run
    session_ms: int
    clients: dict[str, ConsumerClient] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def heartbeat(self, request: GroupHeartbeat) -> ConsumerClient:
        """Process a heartbeat, and return the client. Raises `CodeError`."""
        client = self.clients.get(request.member)
        if client is None:
            client = ConsumerClient(request.member, request.matching)
            self.clients[client.id] = client
        async with client.lock:
            try:
                member = await self._processed(client, request)
            except EpochMismatch as error:
                raise CodeError(Code.FENCED_MEMBER_EPOCH, f"{error}; abandon all partitions and rejoin") from None
            except Fenced as error:
                self._drop(client)
                raise CodeError(Code.UNKNOWN_MEMBER_ID, str(error)) from None
            finally:
                if client.member is None:
                    self._drop(client)
            member.respond(request.epoch)
            self._restart_timers(client, member)
        return client

    async def _processed(self, client: ConsumerClient, request: GroupHeartbeat) -> ConsumerGroupMember:
        owned = frozenset[tuple[str, int]]() if request.epoch == JOIN_EPOCH else request.owned
        if client.member is not None:
            # The client may have sent requests to another server since its latest request to this server.
            try:
                await self._apply_latest(client.member, request)
            except Fenced:
                client.member = None
        if client.member is None or _changes_instance(client.member.membership.member, request):
            client.member = await self.run(self._attached, request, owned)
        member = client.member
        _check_instance(member.membership.state, request)
        member.check_epoch(request.epoch, owned)
        client.matching = request.matching
        if request.has_subscription:
            subscription = await self.run(request.subscription, member.membership.member)
            if not member.is_subscribed(*subscription):
                await self.run(self._subscribe, member, subscription)
        if member.may_release(owned):
            await self.run(member.release, request.epoch)
        return member

    async def _apply_latest(self, member: ConsumerGroupMember, request: GroupHeartbeat) -> None:
        """Apply the latest state of the group, which is read only for a full heartbeat. Raises `Fenced`."""
        latest = await self.run(self.group.log.refresh) if request.is_full else self.group.log.known()
        if latest is not None:
            member.membership.apply(latest)

    def _attached(self, request: GroupHeartbeat, owned: Partitions | None) -> ConsumerGroupMember:
        """Add a client to the journal, or continue a member that sent its heartbeats to another server."""
        state = self.group.log.refresh()
        known = state.member(request.member)
        if known is not None and known.consumer is not None and not _changes_instance(known, request):
            _check_instance(state, request)
            return ConsumerGroupMember.move(self.group, request.member, request.epoch, owned)
        if request.epoch != JOIN_EPOCH:
            problem = f"member {request.member} is not a member of group '{self.group.id}'"
            if not state.exists:
                raise CodeError(Code.GROUP_ID_NOT_FOUND, problem)
            _check_instance(state, request)
            raise CodeError(Code.UNKNOWN_MEMBER_ID, problem)
        if known is None and len(state.members) >= MAX_MEMBERS:
            raise CodeError(Code.GROUP_MAX_SIZE_REACHED, f"the group has the maximum of {MAX_MEMBERS} members")
        topics, assignors, consumer = request.subscription(None)
        settings = request.client or "client", request.host, self.session_ms, assignors, topics
        member = GroupMember(request.member, request.instance, *settings, consumer=consumer)
        try:
            return ConsumerGroupMember.join(self.group, member, partition_counts(self.group, topics))
        except UnreleasedInstance as error:
            raise CodeError(Code.UNRELEASED_INSTANCE_ID, str(error)) from None
        except Conflict as error:
            # An exclusive owner, or a server whose clients use other assignors, does not share the group.
            raise CodeError(Code.GROUP_ID_NOT_FOUND, str(error)) from None

    def _subscribe(self, member: ConsumerGroupMember, subscription: Subscription) -> None:
        topics, assignors, consumer = subscription
        member.membership.subscribe(topics, partition_counts(self.group, topics), assignors, consumer)

    async def leave(self, member_id: str, instance: str | None, epoch: int) -> None:
        """Remove a member from the group. A static member that leaves with epoch -2 keeps its partitions."""
        client = self.clients.get(member_id)
        temporarily = epoch == LEAVE_TEMPORARILY_EPOCH
        if client is None:
            await self.run(self._leave, member_id, instance, temporarily, None)
            return
        async with client.lock:
            await self.run(self._leave, member_id, instance, temporarily, client.member)
            self._drop(client)

    def _leave(
        self, member_id: str, instance: str | None, temporarily: bool, known: ConsumerGroupMember | None
    ) -> None:
        """Remove a member from the group. `known` is the member of a client that sent a heartbeat to this server."""
        state = self.group.log.refresh()
        if not state.exists:
            raise CodeError(Code.GROUP_ID_NOT_FOUND, f"group '{self.group.id}' does not exist")
        _check_instance_id(state, member_id, instance)
        member = state.member(member_id)
        if member is None or member.consumer is None:
            raise CodeError(Code.UNKNOWN_MEMBER_ID, f"member {member_id} is not a member of group '{self.group.id}'")
        if known is not None and is_member(state, known.membership.metadata):
            membership = known.membership
        else:
            # The latest heartbeat of the member was sent to another server.
            membership = self.group.move(member_id, JOIN_EPOCH, None)
        membership.leave(temporarily=temporarily)

    # -- offsets

    async def checked(self, member_id: str, epoch: int) -> ConsumerClient | None:
        """Return the client that sent a request about offsets, or None if it does not use the consumer protocol.

        Raises `CodeError` if the epoch in the request is not the epoch of the member.
        """
        client = self.clients.get(member_id)
        if client is None or client.member is None:
            _check_other_member(await self.run(self.group.log.refresh), member_id, epoch)
            return None
        try:
            client.member.check_commit_epoch(epoch)
        except EpochMismatch as error:
            raise CodeError(Code.STALE_MEMBER_EPOCH, str(error)) from None
        return client

    async def commit(self, client: ConsumerClient, epoch: int, offsets: Offsets) -> None:
        """Commit offsets of a client."""
        async with client.lock:
            if client.member is None:
                raise CodeError(Code.UNKNOWN_MEMBER_ID)
            try:
                await self.run(client.member.commit, epoch, offsets)
            except EpochMismatch as error:
                raise CodeError(Code.STALE_MEMBER_EPOCH, str(error)) from None
            except Fenced as error:
                state = self.group.log.current()
                if is_member(state, client.member.membership.metadata):
                    # Another member owns a partition.
                    raise CodeError(Code.STALE_MEMBER_EPOCH, str(error)) from None
                self._drop(client)
                _check_other_member(state, client.id, epoch)
                raise CodeError(Code.UNKNOWN_MEMBER_ID, str(error)) from None

    # -- timers, and changes of other members

    def _restart_timers(self, client: ConsumerClient, member: ConsumerGroupMember) -> None:
        client.stop_timer(SESSION)
        self._start_timer(client, SESSION, self.session_ms)
        joined = member.membership.member
        if not joined.revoked:
            client.stop_timer(REBALANCE)
        elif REBALANCE not in client.timers and joined.consumer is not None:
            self._start_timer(client, REBALANCE, joined.consumer.rebalance_timeout_ms)

    def _start_timer(self, client: ConsumerClient, name: str, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        client.timers[name] = loop.call_later(timeout_ms / 1000, self._expire, client, name)

    def _expire(self, client: ConsumerClient, name: str) -> None:
        if client.lock.locked() or client.member is None:
            self._start_timer(client, name, BUSY_MS)
            return
        _LOG.info("group %s: member %s exceeded its %s timeout", self.group.id, client.id, name)
        self._drop(client)
        task = asyncio.get_running_loop().create_task(self._leave_journal(client.member.membership))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave_journal(self, membership: Membership) -> None:
        await self.run(leave_journal, membership)

    async def refresh(self, turn: int) -> None:
        """Read the group's journal, send the heartbeats that are due, and drop clients that are no longer members."""
        state = await self.run(self.group.log.refresh)
        for client in list(self.clients.values()):
            member = client.member
            if member is None or client.lock.locked():
                continue
            async with client.lock:
                try:
                    await self.run(self._refresh_client, client, member, state, turn)
                except Fenced:
                    self._drop(client)

    def _refresh_client(
        self, client: ConsumerClient, member: ConsumerGroupMember, state: GroupState, turn: int
    ) -> None:
        refresh_membership(member.membership, state)
        joined = member.membership.member
        if joined.consumer is None or joined.consumer.topic_regex is None or turn % REGEX_POLLS:
            return
        topics = subscribed_topics(joined.consumer, client.matching)
        if topics != joined.topics:
            self._subscribe(member, (topics, joined.assignors, joined.consumer))

    def _drop(self, client: ConsumerClient) -> None:
        for name in list(client.timers):
            client.stop_timer(name)
        if self.clients.get(client.id) is client:
            del self.clients[client.id]

    def close(self) -> None:
        for client in list(self.clients.values()):
            self._drop(client)


def _changes_instance(member: GroupMember, request: GroupHeartbeat) -> bool:
    """Return True if a member joins again with an instance id that it did not have."""
    return request.epoch == JOIN_EPOCH and request.instance not in (None, member.instance_id)


def _check_instance(state: GroupState, request: GroupHeartbeat) -> None:
    """Raise `CodeError` if a member that does not join sends the instance id of another member."""
    if request.epoch != JOIN_EPOCH:
        _check_instance_id(state, request.member, request.instance)


def _check_instance_id(state: GroupState, member_id: str, instance: str | None) -> None:
    if instance is None:
        return
    holder = next((member for member in state.members if member.instance_id == instance), None)
    if holder is None:
        raise CodeError(Code.UNKNOWN_MEMBER_ID, f"instance id {instance} is unknown")
    if holder.id != member_id:
        raise CodeError(
            Code.FENCED_INSTANCE_ID, f"member {member_id} with instance id {instance} was fenced by member {holder.id}"
        )


def _check_other_member(state: GroupState, member_id: str, epoch: int) -> None:
    """Raise `CodeError` if a request about offsets is from a member that did not send its latest heartbeat to this
    server.
    """
    member = state.member(member_id)
    if member is None:
        if any(other.consumer is not None for other in state.members):
            raise CodeError(Code.UNKNOWN_MEMBER_ID)
        return
    if member.consumer is None:
        return
    if member.has_left or not member.generation <= epoch <= state.generation:
        raise CodeError(Code.STALE_MEMBER_EPOCH, f"{epoch} is not the epoch of member {member_id}")
    # The latest epoch of the client is unknown until it sends a heartbeat to this server, so a delayed commit cannot be
    # distinguished from a new commit.
    raise CodeError(Code.COORDINATOR_LOAD_IN_PROGRESS)
