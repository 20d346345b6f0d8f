"""Clients of the consumer protocol (KIP-848) and the two servers to which each of them sends its requests.

The servers are those of `sparklog serve`, without a network. Requests and responses are lost, servers stop, and clients
change the server. A server that has lost its client does not know it: it continues to send heartbeats to the journal
until the client's session times out, and may still process a commit that the client sent earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.consumer_member import ConsumerGroupMember
from sparklog.groups.group import Group
from sparklog.groups.group_members import Partitions
from sparklog.groups.group_state import GROUPS, GroupState, OffsetAndMetadata
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.consumer_members import (
    LEAVE_EPOCH,
    LEAVE_TEMPORARILY_EPOCH,
    ConsumerMembers,
    GroupHeartbeat,
)
from sparklog.serve.shared_members import leave_journal
from sparklog.testing.faulty_store import Crash, Decide
from tests.groups.simulation.actors import GROUP, SESSION_MS, CommitOffsets, MembersRun, Plan, Positions, committed
from tests.support.simulation.runs import restarted
from tests.support.simulation.scheduler import Actor, expect

T = TypeVar("T")
SERVERS = 2
LOST = 0.06
"""The share of lost responses."""
RESTARTED = 0.02
NOT_NOW = (Code.UNRELEASED_INSTANCE_ID, Code.GROUP_ID_NOT_FOUND, Code.COORDINATOR_LOAD_IN_PROGRESS)
FENCED = (Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID)


async def run_now(function: Callable[..., Any], *arguments: object) -> Any:
    return function(*arguments)


@dataclass
class Readers:
    """The partitions that each client reads, by member id."""

    run: MembersRun
    partitions: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def check(self, member_id: str) -> None:
        """Check that no other client, which is still a member of the group, reads a partition of this client."""
        own = self.partitions[member_id]
        for other, partitions in self.partitions.items():
            both = own & partitions
            if other != member_id and both:
                state = latest(self.run)
                are_members = state.member(member_id) is not None and state.member(other) is not None
                expect(not are_members, f"{member_id} and {other} read {sorted(both)}: {state.members}")
                self.run.count("a removed client still reads")


def latest(run: MembersRun) -> GroupState:
    prefix = f"{GROUPS.prefix(GROUP)}/_log/0"
    keys = [info.key for info in run.world.store.list(prefix)]
    return GROUPS.decode(run.world.store.get(keys[-1]), keys[-1], len(keys) - 1)


@dataclass
class ConsumerClient:
    """A client: its epoch, its positions, and its servers."""

    run: MembersRun
    actor: Actor
    plan: Plan
    decide: Decide
    readers: Readers
    id: str
    servers: list[ConsumerMembers] = field(default_factory=list)
    contacts: list[float] = field(default_factory=list)
    """When each server got the latest heartbeat."""
    current: int = 0
    epoch: int = 0
    positions: Positions = field(default_factory=dict)
    is_full: bool = True
    has_changed: bool = False
    late: tuple[ConsumerGroupMember, int, CommitOffsets] | None = None
    """The server's member, the epoch and the offsets of a commit that the server has received but not processed."""
    turn: int = 0

    def __post_init__(self) -> None:
        self.current = self.actor.random.randrange(SERVERS)
        self.servers = [self.server() for _ in range(SERVERS)]
        self.contacts = [self.run.world.now_ms] * SERVERS

    def server(self) -> ConsumerMembers:
        return ConsumerMembers(Group(self.run.root(self.actor, self.decide), GROUP), run_now, SESSION_MS)

    def chance(self, share: float) -> bool:
        return self.actor.random.random() < share

    # -- steps

    def step(self) -> None:
        self.turn += 1
        if self.chance(0.1):
            self.change_server()
        elif self.chance(0.1):
            # A heartbeat overtakes the commit.
            self.delay_commit(self.positions)
        self.heartbeat()
        if self.positions and self.chance(0.8):
            self.process()
        for number in range(SERVERS):
            self.step_server(number)
        if self.chance(0.04):
            self.leave()

    def delay_commit(self, positions: Positions) -> None:
        """Send a commit that the server receives, but processes only in `send_late`."""
        client = self.servers[self.current].clients.get(self.id)
        if client is not None and client.member is not None and positions:
            self.late = client.member, self.epoch, self.read(positions)

    def change_server(self) -> None:
        if self.chance(0.5):
            self.delay_commit(self.positions)
        self.current = (self.current + 1) % SERVERS
        self.is_full = True
        self.run.count("consumers changed the server")

    def step_server(self, number: int) -> None:
        """Let a server do what it does once per second, or restart it."""
        server = self.servers[number]
        if self.chance(RESTARTED):
            self.servers[number] = self.server()
            self.is_full = self.is_full or number == self.current
            self.run.count("servers restarted")
            return
        client = server.clients.get(self.id)
        if number != self.current and client is not None and client.member is not None:
            # A server that stalls does not read the journal.
            if self.chance(0.6):
                return
            if self.run.world.now_ms - self.contacts[number] > SESSION_MS:
                self.run.count("a session with a previous server timed out")
                server._drop(client)
                self.guarded(lambda: leave_journal(client.member.membership) if client.member else None)
                return
        self.guarded(lambda: asyncio.run(server.refresh(self.turn)))

    def guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (Unavailable, Corrupt, BadRequest, Conflict, NotFound, Fenced) as error:
            self.actor.note(f"{error.code} {error}")

    def ask(self, call: Callable[[ConsumerMembers], Coroutine[Any, Any, T]]) -> T | None:
        """Send a request. Return None if the client gets no response. Raises `CodeError`."""
        server = self.servers[self.current]
        if self.chance(LOST / 2):
            self.run.count("requests lost")
            return None
        try:
            result = asyncio.run(call(server))
        except CodeError:
            raise
        except SparklogError as error:
            self.actor.note(f"{error.code} {error}")
            return None
        except Crash:
            self.run.count("servers crashed")
            self.servers[self.current] = self.server()
            return None
        if self.chance(LOST):
            self.run.count("responses lost")
            return None
        return result

    def heartbeat(self) -> None:
        owned = frozenset(self.positions) if self.is_full or self.has_changed else None
        request = GroupHeartbeat(
            member=self.id,
            epoch=self.epoch,
            instance=self.plan.instance_id,
            rack=None,
            rebalance_ms=60_000 if self.is_full else None,
            topics=self.plan.topics if self.is_full else None,
            regex=None,
            assignor=None,
            owned=owned,
            client="client",
            host="host",
            matching=lambda pattern: (),
        )
        self.contacts[self.current] = self.run.world.now_ms

        async def send(server: ConsumerMembers) -> tuple[int, Partitions]:
            client = await server.heartbeat(request)
            assert client.member is not None
            return client.member.epoch, client.member.assigned

        try:
            response = self.ask(send)
        except CodeError as error:
            self.actor.note(f"{self.id}: {error.code.name} {error}")
            self.run.count(f"heartbeats {error.code.name}")
            expect(error.code in (*NOT_NOW, *FENCED), f"{error.code.name}")
            if error.code not in NOT_NOW:
                self.abandon()
            return
        if response is None:
            self.is_full = True
            return
        if self.epoch == 0:
            self.run.count("consumers joined")
        is_repeated, self.is_full, self.has_changed = self.is_full, False, False
        self.apply(*response, is_repeated=is_repeated)

    def apply(self, epoch: int, assigned: Partitions, *, is_repeated: bool) -> None:
        """Apply a response. If the response to an earlier request was lost, the epoch may be that of this response."""
        revoked = {place: start for place, start in self.positions.items() if place not in assigned}
        is_valid = not revoked or epoch == self.epoch or is_repeated
        expect(is_valid, f"epoch {self.epoch} became {epoch} before partitions were revoked")
        self.epoch = epoch
        if revoked and self.chance(0.5):
            self.commit(self.read(revoked))
            if self.epoch == 0:
                return
        if revoked:
            self.run.count("consumers revoked")
            if self.chance(0.5):
                self.delay_commit(revoked)
        self.positions = {place: start for place, start in self.positions.items() if place in assigned}
        self.note_reading()
        new = assigned - self.positions.keys()
        if new:
            # The client reads the partitions from now on, even if it waits for their committed offsets.
            self.readers.partitions[self.id] |= new
            self.readers.check(self.id)
            self.positions.update(committed(Group(self.run.root(self.actor), GROUP), new))
            self.run.count("consumers got partitions")
        self.has_changed = bool(new or revoked)
        self.send_late()

    def send_late(self) -> None:
        """Let a server process a commit that the client sent before it changed the server, revoked partitions or left
        the group.
        """
        if self.late is None or self.has_changed:
            return
        (member, epoch, offsets), self.late = self.late, None
        client = self.servers[self.current].clients.get(self.id)
        if client is not None and client.member is member and member.epoch == epoch:
            return
        try:
            member.commit(epoch, offsets)
        except Fenced:
            self.run.count("late commits of consumers refused")
        except (Unavailable, Corrupt, Conflict, NotFound):
            return
        else:
            raise AssertionError(f"a late commit of {self.id} was accepted")

    def abandon(self) -> None:
        """Stop reading, and join again."""
        self.positions, self.epoch, self.is_full = {}, 0, True
        self.note_reading()

    def note_reading(self) -> None:
        self.readers.partitions[self.id] = set(self.positions)

    def leave(self) -> None:
        is_static = self.plan.instance_id is not None
        epoch = LEAVE_TEMPORARILY_EPOCH if is_static and self.chance(0.7) else LEAVE_EPOCH
        if self.chance(0.5):
            self.delay_commit(self.positions)
        self.positions, self.has_changed = {}, False
        self.note_reading()

        async def send(server: ConsumerMembers) -> bool:
            await server.leave(self.id, self.plan.instance_id, epoch)
            return True

        try:
            has_left = self.ask(send)
        except CodeError as error:
            self.actor.note(f"{self.id}: {error.code.name} {error}")
        else:
            if has_left is None:
                # The member may remain in the group until its session times out. Until then, a server accepts a commit
                # with its epoch, as a broker does.
                self.late = None
            else:
                self.check_left()
                if self.chance(0.5):
                    self.send_late()
        self.run.count(f"consumers left with {epoch}")
        del self.readers.partitions[self.id]
        self.id += "+"
        self.abandon()

    def check_left(self) -> None:
        """Check that the client left, although its latest heartbeats may have been sent to the other server."""
        member = Group(self.run.root(self.actor), GROUP).log.refresh().member(self.id)
        expect(member is None or member.has_left, f"{self.id} is still a member")

    # -- offsets

    def process(self) -> None:
        places = sorted(self.positions)
        chosen = self.actor.random.sample(places, self.actor.random.randint(1, len(places)))
        offsets = self.read({place: self.positions[place] for place in chosen})
        self.actor.sleep(self.actor.random.random() * self.plan.pace_s)
        if self.commit(offsets):
            for topic, by_partition in offsets.items():
                for partition, offset in by_partition.items():
                    self.positions[topic, partition] = offset.offset

    def commit(self, offsets: CommitOffsets) -> bool:
        """Commit offsets. Return False if they were rejected. If the outcome is unknown, join again."""
        member_id, epoch = self.id, self.epoch

        async def send(server: ConsumerMembers) -> bool:
            client = await server.checked(member_id, epoch)
            if client is None:
                raise CodeError(Code.UNKNOWN_MEMBER_ID)
            await server.commit(client, epoch, offsets)
            return True

        try:
            response = self.ask(send)
        except CodeError as error:
            self.run.count(f"commits {error.code.name}")
            return False
        if response is None:
            # A new server writes an entry, after which the commit can no longer succeed. The client then reads the
            # committed offsets.
            self.servers[self.current] = self.server()
            self.abandon()
            return False
        self.run.acknowledge(offsets)
        self.run.count("consumers committed")
        return True

    def read(self, positions: Positions) -> CommitOffsets:
        offsets: CommitOffsets = {}
        for (topic, partition), start in sorted(positions.items()):
            end = start + self.actor.random.randint(1, 5)
            offsets.setdefault(topic, {})[partition] = OffsetAndMetadata(end, str(start))
        return offsets


def consumer(run: MembersRun, readers: Readers, decide: Decide, plan: Plan) -> Callable[[Actor], None]:
    """A client with its servers. If it dies, it restarts with another id."""

    def body(actor: Actor) -> None:
        left, lives = iter(range(plan.rounds)), iter(range(100))

        def life() -> None:
            started = next(lives)
            client = None
            try:
                for _ in left:
                    try:
                        if client is None:
                            client = ConsumerClient(run, actor, plan, decide, readers, f"{actor.name}.{started}")
                            client.note_reading()
                        client.step()
                    except (Unavailable, Corrupt, BadRequest, Conflict, NotFound) as error:
                        actor.note(f"{error.code} {error}")
                        run.count(f"consumers {type(error).__name__}")
                        if client is not None:
                            client.servers[client.current] = client.server()
                            client.abandon()
                    actor.sleep(actor.random.random() * plan.pace_s)
            finally:
                if client is not None:
                    readers.partitions.pop(client.id, None)

        restarted(run, actor, life)

    return body
