"""Coordinate groups: determine the owner of each group, commit offsets, and send heartbeats.

The group's journal records the server that coordinates the group. If that server does not respond, the next server that
responds coordinates the group. The order of the servers depends on the group's name. Servers that are configured with
each other's addresses (`--advertise`) select the same server without exchanging requests. Servers without this
configuration fence each other's generations, like any other members of a group. A group that is shared with consumers
of the root does not have an owner, and each server coordinates its own clients.

Offsets that members commit while an entry is being written are combined in the next entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from itertools import count

from sparklog.errors import Fenced
from sparklog.groups.assignors import ALL
from sparklog.groups.group import STABLE, Group
from sparklog.groups.group_members import SERVER_PREFIX
from sparklog.groups.group_state import GroupMetadata, OffsetAndMetadata
from sparklog.groups.membership import Membership
from sparklog.limits import SESSION_TIMEOUT_MS
from sparklog.log.topic.root import Root
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.consumer_members import ConsumerClient, ConsumerMembers, GroupHeartbeat
from sparklog.serve.group_members import GroupMembers, MemberState
from sparklog.serve.options import Address
from sparklog.serve.peers import Peers, ranking
from sparklog.serve.served_log import Runner
from sparklog.serve.shared_members import join_journal, leave_journal

_LOG = logging.getLogger("sparklog.serve")
SESSION_MS = 45_000
POLL_SECONDS = 1.0
"""The time between reads of the journal of a shared group."""
OWNER_POLLS = 5
"""A group that this server owns exclusively is read in every fifth poll."""
Positions = dict[str, dict[int, OffsetAndMetadata]]


class Coordinator:
    """Coordinates groups (see the module docstring). `peers` are the servers of the root."""

    def __init__(self, root: Root, peers: Peers, run: Runner, consumer_session_ms: int = SESSION_TIMEOUT_MS) -> None:
        self.root = root
        self._consumer_session_ms = consumer_session_ms
        self._peers = peers
        self.run = run
        self._groups: dict[str, GroupMembers] = {}
        self._consumers: dict[str, ConsumerMembers] = {}
        self._pending_commits: dict[tuple[str, int], tuple[Positions, asyncio.Task[None]]] = {}
        """For each group and generation, the offsets of the next entry and the task that writes the entry."""
        self._watching = asyncio.create_task(self._watch())

    def group(self, name: str) -> Group:
        """Return the group's journal. Raises `BadRequest` if the name is invalid."""
        return Group(self.root, name)

    def members(self, name: str) -> GroupMembers:
        """Return the members of a group that this server coordinates. A new group is empty."""
        if name not in self._groups:
            begin, share = partial(self.run, self._join, name), partial(self.run, join_journal, self.group(name))
            self._groups[name] = GroupMembers(name, begin, self.root.env.new_id, share, self.run)
        return self._groups[name]

    def _join(self, name: str, assignors: Sequence[str], previous: GroupMetadata | None) -> Membership:
        owner = f"{SERVER_PREFIX}{self._peers.own}"
        return self.group(name).own(owner, session_timeout_ms=SESSION_MS, assignors=assignors, previous=previous)

    def consumers(self, name: str) -> ConsumerMembers:
        """Return the clients of a group that use the consumer protocol and send their heartbeats to this server."""
        if name not in self._consumers:
            self._consumers[name] = ConsumerMembers(self.group(name), self.run, self._consumer_session_ms)
        return self._consumers[name]

    async def heartbeat(self, name: str, request: GroupHeartbeat) -> ConsumerClient:
        """Process a heartbeat of the consumer protocol. Raises `CodeError`."""
        consumers = self.consumers(name)
        if request.member not in consumers.clients:
            await self.check_owner(name)
        client = await consumers.heartbeat(request)
        exclusive = self.exclusive_members(name)
        if exclusive is not None:
            # The clients of the classic protocol become members in the journal.
            await exclusive.share_group()
        return client

    def local_members(self, name: str) -> GroupMembers | None:
        """Return the members of a group, or None if this server has no clients of the classic protocol in the group."""
        members = self._groups.get(name)
        return members if members is not None and members.members else None

    def exclusive_members(self, name: str) -> GroupMembers | None:
        """Return the members of a group, or None if the group has no members or is shared with members of other
        processes.
        """
        members = self.local_members(name)
        return None if members is None or members.is_shared else members

    async def owner(self, name: str) -> Address:
        """Return the server that coordinates a group."""
        peers = self._peers
        consumers = self._consumers.get(name)
        has_clients = self.local_members(name) is not None or (consumers is not None and consumers.clients)
        if has_clients or len(peers.nodes) == 1:
            return peers.own
        description = await self.run(self.group(name).description)
        holder = description.instance if description.state == STABLE else None

        def rank(node: Address) -> tuple[bool, bytes]:
            return f"{SERVER_PREFIX}{node}" != holder, ranking(name, node)

        return await peers.first_responding(sorted(peers.nodes, key=rank))

    async def check_owner(self, name: str) -> None:
        """Raise `CodeError` if another server coordinates the group."""
        if await self.owner(name) != self._peers.own:
            raise CodeError(Code.NOT_COORDINATOR)

    async def metadata_of(self, name: str, member: str, generation: int, instance: str | None) -> GroupMetadata | None:
        """Return the membership of a client that commits offsets in a transaction. Return None if the client is not a
        member.

        Raises `CodeError` if the client is not a member of the latest generation.
        """
        try:
            client = await self.consumer_client(name, member, generation)
            if client is not None and client.member is not None:
                return client.member.membership.metadata
        except CodeError as error:
            # As in Kafka, producers get the code of the classic protocol.
            raise CodeError(Code.ILLEGAL_GENERATION) if error.code == Code.STALE_MEMBER_EPOCH else error from None
        members = self.local_members(name)
        if members is None and generation >= 0:
            raise CodeError(Code.ILLEGAL_GENERATION)
        if members is None or (generation < 0 and not member):
            return None
        sender = members.checked(member, generation, instance)
        members.restart_session(sender)
        membership = members.membership if sender.classic is None else sender.classic.membership
        if membership is None:
            raise CodeError(Code.UNKNOWN_MEMBER_ID)
        return membership.metadata

    async def consumer_client(self, name: str, member: str, epoch: int) -> ConsumerClient | None:
        """Return the client that sent a request about offsets, or None if it does not use the consumer protocol.

        Raises `CodeError` if the epoch in the request is not the epoch of the member.
        """
        local = self._groups.get(name)
        if not member or (local is not None and member in local.members):
            return None
        return await self.consumers(name).checked(member, epoch)

    async def commit(self, name: str, offsets: Positions, member: MemberState | None = None) -> None:
        """Commit offsets of a group. Raises `CodeError` if `member` does not belong to the latest generation."""
        members = self.members(name)
        if member is not None and member.classic is not None:
            await members.commit_shared(member, offsets)
            return
        membership = members.membership
        if membership is None:
            raise CodeError(Code.UNKNOWN_MEMBER_ID)
        entry = name, membership.generation
        if entry not in self._pending_commits:
            self._pending_commits[entry] = {}, asyncio.create_task(self._write(members, membership))
        combined, written = self._pending_commits[entry]
        for topic, rows in offsets.items():
            combined.setdefault(topic, {}).update(rows)
        try:
            # If a client disconnects, the offsets of other clients must still be committed.
            await asyncio.shield(written)
        except Fenced:
            if members.membership is not membership:
                # A newer generation of this server has fenced the commit.
                raise CodeError(Code.ILLEGAL_GENERATION) from None
            self._drop_group(name)
            raise CodeError(Code.UNKNOWN_MEMBER_ID) from None

    async def _write(self, members: GroupMembers, membership: Membership) -> None:
        async with members.committing:
            offsets, _ = self._pending_commits.pop((members.id, membership.generation))
            await self.run(membership.commit, offsets)

    def _drop_group(self, name: str) -> None:
        """Remove the members of a group that is now owned by another server or member. The clients then rejoin."""
        members = self._groups.pop(name, None)
        if members is not None:
            _LOG.warning("another server or member has taken over group %s, so its clients must rejoin", name)
            members.close(Code.UNKNOWN_MEMBER_ID)

    async def _watch(self) -> None:
        """Send the heartbeats of groups, check for members of other processes, and evict empty groups."""
        for turn in count():
            await asyncio.sleep(POLL_SECONDS)
            groups, consumers = list(self._groups.items()), list(self._consumers.items())
            await asyncio.gather(
                *(self._watch_group(name, members, turn) for name, members in groups),
                *(self._watch_consumers(name, clients, turn) for name, clients in consumers),
            )

    async def _watch_consumers(self, name: str, consumers: ConsumerMembers, turn: int) -> None:
        if not consumers.clients:
            del self._consumers[name]
            return
        try:
            await consumers.refresh(turn)
        except Exception as error:  # noqa: BLE001 - continue with the heartbeats of other groups
            _LOG.warning("group %s: cannot send heartbeats: %s", name, error)

    async def _watch_group(self, name: str, members: GroupMembers, turn: int) -> None:
        membership = members.membership
        try:
            if members.is_shared:
                await members.refresh_shared(self.group(name))
            elif membership is not None:
                if turn % OWNER_POLLS == 0 and await self.run(_has_waiting_members, membership):
                    await members.share_group()
            elif not (members.members or members.has_pending or members.lock.locked()):
                self._groups.pop(name, None)
        except Fenced:
            if members.membership is membership:
                self._drop_group(name)
        except Exception as error:  # noqa: BLE001 - continue with the heartbeats of other groups
            _LOG.warning("group %s: cannot send heartbeats: %s", name, error)

    async def leave_shared(self) -> None:
        """Remove the clients from the journals of shared groups, because the server stops.

        The requests are sent by several threads, so that an entry removes several clients.
        """
        self._watching.cancel()
        members = [member for group in self._groups.values() for member in group.members.values()]
        calls = (self.run(leave_journal, one.classic.membership) for one in members if one.classic is not None)
        await asyncio.gather(*calls, return_exceptions=True)

    def close(self) -> None:
        self._watching.cancel()
        for members in self._groups.values():
            members.close(Code.NOT_COORDINATOR)
        for consumers in self._consumers.values():
            consumers.close()


def _has_waiting_members(membership: Membership) -> bool:
    """Send the heartbeat of an exclusive owner if it is due. Return True if other members wait for partitions."""
    membership.heartbeat_if_due()
    if membership.member.assignors == (ALL,):
        return False
    membership.refresh()
    return len(membership.state.members) > 1
