"""Servers with clients of Kafka's classic protocol: exclusive owners that can share the group, and members of the
journal.

A server keeps its clients in memory, like `sparklog serve`, and takes the same steps. It is the exclusive owner until a
member of the root waits. Then it joins as one member per client. The clients commit with the start of the processed
range as metadata, like all members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.groups.assignors import MemberSubscription, assign
from sparklog.groups.classic_member import ClassicMember
from sparklog.groups.group import Group
from sparklog.groups.group_members import GroupMember, Partitions
from sparklog.groups.group_state import GroupMetadata, OffsetAndMetadata
from sparklog.groups.membership import Membership
from sparklog.testing.faulty_store import Decide
from tests.groups.simulation.actors import (
    GROUP,
    SESSION_MS,
    CommitOffsets,
    MembersRun,
    Plan,
    Positions,
    committed,
    partitions_of,
)
from tests.support.simulation.runs import restarted
from tests.support.simulation.scheduler import Actor


@dataclass
class Client:
    """A client of one server: its positions, and its member in the journal."""

    id: str
    is_eager: bool
    instance_id: str | None = None
    positions: Positions = field(default_factory=dict)
    classic: ClassicMember | None = None

    @property
    def owned(self) -> Partitions:
        """Return the partitions that the client continues to read while it joins."""
        return frozenset() if self.is_eager else frozenset(self.positions)


@dataclass
class Server:
    """A server process and its clients."""

    run: MembersRun
    actor: Actor
    plan: Plan
    group: Group
    clients: list[Client]
    owner: Membership | None = None

    def step(self) -> None:
        if self.owner is not None:
            self.step_as_owner(self.owner)
        elif any(client.classic is None for client in self.clients):
            self.begin()
        for client in self.clients:
            if client.classic is not None:
                self.step_client(client, client.classic)
        if self.clients and self.actor.random.random() < 0.05:
            self.replace_client(self.actor.random.choice(self.clients))

    # -- the exclusive owner

    def begin(self) -> None:
        """End a rebalance of the clients: start the next generation of the owner, or join as members of the journal."""
        previous = None if self.owner is None else self.owner.metadata
        self.owner = None
        for client in self.clients:
            client.positions = {
                topic_partition: start
                for topic_partition, start in client.positions.items()
                if topic_partition in client.owned
            }
        metadata = None
        try:
            owner = self.group.own(
                f"serve@{self.actor.name}",
                session_timeout_ms=SESSION_MS,
                assignors=self.plan.assignors,
                previous=previous,
            )
            if len(owner.state.members) == 1:
                self.divide(owner)
                return
            metadata = owner.metadata
            self.run.count("owners replaced")
        except Conflict:
            self.run.count("joined members of the root")
        self.share(self.clients, owner_metadata=metadata)

    def divide(self, owner: Membership) -> None:
        """Divide the partitions, like the leader of the clients."""
        counts = partitions_of(self.group.root, self.plan.topics)
        subscriptions = [MemberSubscription(client.id, None, self.plan.topics) for client in self.clients]
        shares = assign("range", subscriptions, counts)
        for client in self.clients:
            client.positions = {}
            client.positions = committed(self.group, frozenset(shares[client.id]))
            client.classic = None
        self.owner = owner
        self.run.count("owner began")

    def step_as_owner(self, owner: Membership) -> None:
        owner.heartbeat_if_due()
        owner.refresh()
        if len(owner.state.members) > 1 or self.actor.random.random() < 0.1:
            # In the rebalance, eager clients commit and stop reading.
            for client in self.clients:
                if client.positions and self.actor.random.random() < 0.5:
                    self.process(client, owner.commit)
            self.begin()
            return
        for client in self.clients:
            if client.positions:
                self.process(client, owner.commit)
                self.run.count("owner committed")

    # -- members of the journal

    def share(self, clients: list[Client], owner_metadata: GroupMetadata | None = None) -> None:
        counts = partitions_of(self.group.root, self.plan.topics)
        claims = Counter(topic_partition for client in clients for topic_partition in client.owned)
        members = []
        for client in clients:
            owned = frozenset(
                topic_partition
                for topic_partition in client.owned
                if owner_metadata is not None and claims[topic_partition] == 1
            )
            settings = "client", "host", SESSION_MS, self.plan.assignors, self.plan.topics
            members.append(GroupMember(client.id, client.instance_id, *settings, owned=owned))
        joined = self.group.share_as(members, counts, owner_metadata)
        for client, membership in zip(clients, joined, strict=True):
            client.classic = ClassicMember(membership)
            self.sync(client, client.classic, membership.member.owned)
        self.run.count("classic members joined", len(clients))

    def sync(self, client: Client, classic: ClassicMember, owned: Partitions) -> None:
        """Apply the response to SyncGroup. `owned` are the partitions of the member when the client joined."""
        assigned = classic.sync(classic.generation)
        kept = {
            topic_partition: start for topic_partition, start in client.positions.items() if topic_partition in assigned
        }
        # The client may still commit partitions that it must revoke. Partitions of a fenced owner are lost.
        lost = {
            topic_partition: start
            for topic_partition, start in client.positions.items()
            if topic_partition in owned - assigned
        }
        if lost and self.actor.random.random() < 0.5:
            try:
                self.commit(classic, self.read(lost))
            except Fenced as error:
                classic.membership.refresh()
                raise AssertionError("a member could not commit what it still read") from error
        client.positions = {**kept, **committed(self.group, assigned - kept.keys())}

    def step_client(self, client: Client, classic: ClassicMember) -> None:
        try:
            classic.membership.refresh()
            classic.membership.heartbeat_if_due()
            counts = partitions_of(self.group.root, self.plan.topics)
            if any(classic.membership.state.partitions.get(topic, 0) < n for topic, n in counts.items()):
                classic.membership.subscribe(self.plan.topics, counts)
            if classic.must_rejoin():
                self.rejoin(client, classic)
            if client.positions:
                self.process(client, lambda offsets: classic.commit(classic.generation, offsets))
                self.run.count("classic members committed")
        except Fenced as error:
            self.actor.note(f"{client.id}: {error}")
            self.run.count("classic members fenced")
            self.replace_client(client, leaves=False)

    def rejoin(self, client: Client, classic: ClassicMember) -> None:
        if client.is_eager and client.positions and self.actor.random.random() < 0.5:
            self.commit(classic, self.read(client.positions))
            client.positions = {}
        before, reading, owned = classic.generation, dict(client.positions), classic.membership.member.owned
        client.positions = {
            topic_partition: start
            for topic_partition, start in client.positions.items()
            if topic_partition in client.owned
        }
        counts = partitions_of(self.group.root, self.plan.topics)
        classic.rejoin(self.plan.topics, self.plan.assignors, client.owned, counts)
        self.run.count("classic members rejoined")
        if reading and before != classic.generation and self.actor.random.random() < 0.3:
            # A thread of the client commits the records that it had before the rebalance.
            try:
                classic.commit(before, self.read(reading))
            except Fenced:
                self.run.count("late commits of clients refused")
        self.actor.sleep(self.actor.random.random())
        self.sync(client, classic, owned)

    def replace_client(self, client: Client, *, leaves: bool = True) -> None:
        """Replace a client that leaves, stops or was removed by another process."""
        number = self.clients.index(client)
        instance_id = client.instance_id
        self.clients[number] = Client(f"{client.id}+", client.is_eager, instance_id)
        if client.classic is not None:
            if leaves and instance_id is None:
                client.classic.membership.leave()
            self.share([self.clients[number]])
        elif self.owner is not None:
            self.begin()

    # -- processing of clients

    def process(self, client: Client, commit: Callable[[CommitOffsets], None]) -> None:
        offsets = self.read(client.positions)
        self.actor.sleep(self.actor.random.random() * self.plan.pace_s)
        commit(offsets)
        self.run.acknowledge(offsets)
        for topic, by_partition in offsets.items():
            for partition, offset in by_partition.items():
                client.positions[topic, partition] = offset.offset

    def commit(self, classic: ClassicMember, offsets: CommitOffsets) -> None:
        classic.commit(classic.generation, offsets)
        self.run.acknowledge(offsets)

    def read(self, positions: Positions) -> CommitOffsets:
        offsets: CommitOffsets = {}
        for (topic, partition), start in sorted(positions.items()):
            end = start + self.actor.random.randint(1, 5)
            offsets.setdefault(topic, {})[partition] = OffsetAndMetadata(end, str(start))
        return offsets


def server(run: MembersRun, decide: Decide, plan: Plan, eager: tuple[bool, ...]) -> Callable[[Actor], None]:
    """A server with one client per item of `eager`. If it dies, it restarts, and its clients rejoin."""

    def body(actor: Actor) -> None:
        left = iter(range(plan.rounds))
        lives = iter(range(100))

        def life() -> None:
            server_, started = None, next(lives)
            for turn in left:
                try:
                    if server_ is None:
                        clients = [
                            Client(f"{actor.name}-{started}.{turn}-{n}", is_eager, plan.instance_id if n == 0 else None)
                            for n, is_eager in enumerate(eager)
                        ]
                        server_ = Server(run, actor, plan, Group(run.root(actor, decide), GROUP), clients)
                    server_.step()
                except (Fenced, Conflict, NotFound, Unavailable, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")
                    run.count(f"server {type(error).__name__}")
                    server_ = None
                    actor.sleep(actor.random.random() * 3)
                actor.sleep(actor.random.random() * plan.pace_s)

        restarted(run, actor, life)

    return body
