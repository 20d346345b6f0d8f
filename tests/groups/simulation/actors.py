"""Members of one group, as processes that stall, die and restart. Each commit contains the start of the processed
range.

The source consists of topics of which only offsets matter. A member that "processes" offsets `[start, end)` of a
partition commits `end`, with `start` as the metadata. Therefore the entries of the group show whether a record was
skipped or processed twice by successful commits: each range must start at the end of the previous range.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups import group_steps as steps
from sparklog.groups.group import Group
from sparklog.groups.group_state import GroupMetadata, OffsetAndMetadata
from sparklog.groups.membership import JoinRequest, Membership
from sparklog.log.topic.root import Root
from sparklog.testing.faulty_store import Decide
from sparklog.transactions.producer import transactional
from tests.support.simulation.runs import restarted
from tests.support.simulation.scheduler import Actor
from tests.transactions.simulation.actors import TIMEOUT_MS, Run

GROUP = "g"
SESSION_MS = 9_000
Positions = dict[TopicPartition, int]
CommitOffsets = dict[str, dict[int, OffsetAndMetadata]]


@dataclass
class MembersRun(Run):
    """A run of one group: the acknowledged commits as (topic, partition), start and end."""

    acknowledged: list[tuple[TopicPartition, int, int]] = field(default_factory=list)

    def acknowledge(self, offsets: CommitOffsets) -> None:
        for topic, by_partition in offsets.items():
            for partition, offset in by_partition.items():
                self.acknowledged.append(((topic, partition), int(offset.metadata), offset.offset))


@dataclass
class Plan:
    """The actions of one process as a member, which the seed determines."""

    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    rounds: int
    pace_s: float
    instance_id: str | None = None
    transactional_id: str | None = None


@dataclass
class Process:
    """A process that is a member: its unfinished records and its positions."""

    run: MembersRun
    actor: Actor
    plan: Plan
    root: Root
    membership: Membership
    positions: Positions = field(default_factory=dict)

    def step(self) -> None:
        """Do the steps of one `poll`, in the order of a consumer."""
        self.membership.heartbeat_if_due()
        self.membership.refresh()
        self.revoke()
        self.tell_partitions()
        assigned = self.membership.assigned()
        self.positions = {
            topic_partition: start for topic_partition, start in self.positions.items() if topic_partition in assigned
        }
        new = assigned - self.positions.keys()
        if new:
            self.positions.update(committed(self.membership.group, new))
            self.run.count("assigned")
        if self.positions:
            self.process()

    def revoke(self) -> None:
        going = self.membership.revoking()
        if not going:
            return
        held = {topic_partition: start for topic_partition, start in self.positions.items() if topic_partition in going}
        transaction = None
        if held and self.actor.random.random() < 0.5:
            offsets = self.read(held)
            if self.plan.transactional_id is None:
                self.membership.commit(offsets)
                self.run.acknowledge(offsets)
            else:
                transaction = transactional(self.root, self.plan.transactional_id, timeout_ms=TIMEOUT_MS).begin()
                transaction.send_offsets(self.membership, offsets)
                transaction.prepare()
        before = self.membership.metadata
        self.membership.revoke()
        self.run.count("revoked")
        for topic_partition in going:
            self.positions.pop(topic_partition, None)
        if transaction is not None:
            # The next owner waits for the transaction, because its offsets may be committed after the partitions moved.
            self.actor.sleep(self.actor.random.random() * 3)
            transaction.commit()
            self.run.acknowledge(offsets)
            self.run.count("committed after revoked")
        elif held and self.actor.random.random() < 0.3:
            self.commit_late(before, held)

    def commit_late(self, before: GroupMetadata, held: Positions) -> None:
        """Commit unfinished records in a thread that does not know about the revocation yet."""
        self.actor.sleep(self.actor.random.random() * 3)
        group = self.membership.group
        offsets = group.checked(self.read(held))
        try:
            group.write(lambda base: steps.commit(base, before, offsets))
        except Fenced:
            self.run.count("late commits refused")

    def tell_partitions(self) -> None:
        counts = partitions_of(self.root, self.plan.topics)
        if any(self.membership.state.partitions.get(topic, 0) < n for topic, n in counts.items()):
            self.membership.subscribe(self.plan.topics, counts)
            self.run.count("more partitions")

    def read(self, positions: Positions) -> CommitOffsets:
        """Process some offsets of these partitions, and return the offsets to commit."""
        offsets: CommitOffsets = {}
        for (topic, partition), start in sorted(positions.items()):
            end = start + self.actor.random.randint(1, 5)
            offsets.setdefault(topic, {})[partition] = OffsetAndMetadata(end, str(start))
        return offsets

    def process(self) -> None:
        places = sorted(self.positions)
        chosen = self.actor.random.sample(places, self.actor.random.randint(1, len(places)))
        offsets = self.read({topic_partition: self.positions[topic_partition] for topic_partition in chosen})
        self.actor.sleep(self.actor.random.random() * self.plan.pace_s)
        if self.plan.transactional_id is None:
            self.membership.commit(offsets)
        else:
            self.commit_in_transaction(self.plan.transactional_id, offsets)
        self.run.acknowledge(offsets)
        self.run.count("committed")
        for topic, by_partition in offsets.items():
            for partition, offset in by_partition.items():
                self.positions[topic, partition] = offset.offset

    def commit_in_transaction(self, name: str, offsets: CommitOffsets) -> None:
        transaction = transactional(self.root, name, timeout_ms=TIMEOUT_MS).begin()
        transaction.send_offsets(self.membership, offsets)
        self.actor.sleep(self.actor.random.random() * 2)
        transaction.commit()
        self.run.count("transactions")


def committed(group: Group, partitions: frozenset[TopicPartition]) -> Positions:
    """Return the start positions, once no transaction of a previous member has pending offsets of these partitions."""
    state = group.stable(3 * TIMEOUT_MS, partitions)
    offsets = {(topic, p): offset for item in state.offsets for topic, p, offset in item.positions()}
    return {topic_partition: offsets.get(topic_partition, 0) for topic_partition in partitions}


def partitions_of(root: Root, topics: tuple[str, ...]) -> dict[str, int]:
    return {topic: root.topic(topic).log.state().partitions for topic in topics}


def member(run: MembersRun, decide: Decide, plan: Plan) -> Callable[[Actor], None]:
    """A process that joins, works, and rejoins if it was removed. It may leave at the end."""

    def body(actor: Actor) -> None:
        left = iter(range(plan.rounds))

        def life() -> None:
            process_ = None
            for _ in left:
                try:
                    if process_ is None:
                        process_ = joined(run, actor, run.root(actor, decide), plan)
                    process_.step()
                except (Fenced, Conflict, NotFound) as error:
                    actor.note(f"{error.code} {error}")
                    run.count(f"member {type(error).__name__}")
                    process_ = None
                    actor.sleep(actor.random.random() * 3)
                except (Unavailable, Corrupt, BadRequest) as error:
                    # The process ends here without leaving the group.
                    actor.note(f"{error.code} {error}")
                    run.count(f"member {type(error).__name__}")
                    process_ = None
                actor.sleep(actor.random.random() * plan.pace_s)
            if process_ is not None and actor.random.random() < 0.5:
                run.count("left")
                with suppress(Unavailable):
                    process_.membership.leave()

        restarted(run, actor, life)

    return body


def joined(run: MembersRun, actor: Actor, root: Root, plan: Plan) -> Process:
    subscription = JoinRequest(
        topics=plan.topics,
        assignors=plan.assignors,
        session_timeout_ms=SESSION_MS,
        instance_id=plan.instance_id,
        client_id=actor.name,
    )
    membership = Group(root, GROUP).share(subscription, partitions_of(root, plan.topics))
    run.count("joined")
    return Process(run, actor, plan, root, membership)


def owner_of_all(run: MembersRun, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """A streaming query of the same group, which owns all partitions while no members share them."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            membership, position = None, 0
            for _ in left:
                try:
                    if membership is None:
                        membership = Group(run.root(actor, decide), GROUP).join(session_timeout_ms=SESSION_MS)
                        position = committed(membership.group, frozenset({("a", 0)}))["a", 0]
                    end = position + actor.random.randint(1, 5)
                    membership.commit({"a": {0: OffsetAndMetadata(end, str(position))}})
                    position = end
                    run.count("owner of all")
                except (Fenced, Conflict, NotFound, Unavailable, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")
                    run.count(f"owner {type(error).__name__}")
                    membership = None
                actor.sleep(actor.random.random() * 4)

        restarted(run, actor, life)

    return body


def grower(run: MembersRun, decide: Decide) -> Callable[[Actor], None]:
    """Adds partitions to a topic twice."""

    def body(actor: Actor) -> None:
        def life() -> None:
            for count in (3, 5):
                actor.sleep(actor.random.random() * 20)
                try:
                    run.root(actor, decide).topic("a").alter(partitions=count)
                except (Conflict, NotFound, Unavailable, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")

        restarted(run, actor, life)

    return body
