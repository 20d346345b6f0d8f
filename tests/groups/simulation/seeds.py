"""The seeds of group simulations. Each seed determines the members and the faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.classic_member import ClassicMember
from sparklog.groups.consumer_member import ConsumerGroupMember
from sparklog.groups.group import Group
from sparklog.groups.group_members import ConsumerProtocol, GroupMember, Partitions
from sparklog.groups.group_state import GROUPS, GroupState, Row, TopicOffsets
from sparklog.groups.membership import JoinRequest, Membership
from sparklog.testing.faulty_store import Decide
from tests.groups.simulation.actors import (
    GROUP,
    SESSION_MS,
    MembersRun,
    Plan,
    grower,
    member,
    owner_of_all,
    partitions_of,
)
from tests.groups.simulation.consumers import Readers, consumer
from tests.groups.simulation.servers import server
from tests.support.simulation.faults import ANSWERS, CACHES, CRASHES, ERRORS, LOST
from tests.support.simulation.scheduler import Actor, expect
from tests.support.simulation.sweeps import Simulation
from tests.transactions.simulation.actors import TOPICS

ASSIGNORS = (("cooperative-sticky",), ("range", "cooperative-sticky"), ("roundrobin", "range"), ("sticky",))
FAULTS = {
    "answers": ANSWERS[:2] + ERRORS[1:2],
    "errors": ERRORS + ANSWERS,
    "crashes": CRASHES,
    "everything": ERRORS + ANSWERS + CRASHES,
}


SHARED_ASSIGNORS = (("cooperative-sticky", "range"), ("range", "cooperative-sticky"), ("roundrobin", "range"))


class GroupRun(MembersRun):
    """Members that share partitions, an exclusive owner, and topics that get more partitions."""

    PROFILES = ("calm", "answers", "errors", "crashes", "stalls", "clocks", "everything")
    STREAM = "draw members"

    def limits(self) -> dict[str, float]:
        return {"checkpoint_commits": 9, "checkpoint_entries": 7}

    def draw(self) -> None:
        source, profile = self.source, self.draw_profile()
        kinds = self.possible(FAULTS.get(profile, ()))
        if profile in CACHES:
            longest = source.choice([2_000, 10_000, 60_000])
            self.name_ms, self.folder_ms = (longest, 0) if profile == "names" else (0, longest)
        stall_rate = 0.05 if profile in ("stalls", "everything") else 0.0

        def decide(name: str) -> Decide:
            return self.stalling_faults(name, [0.01, 0.03], kinds, stall_rate, 2 * SESSION_MS)

        skews = [0, 0, 0, source.randint(-3_600_000, 4 * 60_000)]
        self.draw_members(decide, skews)
        if source.random() < 0.3:
            self.spawn("owner", owner_of_all(self, decide("owner"), 4), within_ms=30_000)
        if source.random() < 0.3:
            self.world.spawn("grower", grower(self, decide("grower")))
        if profile == LOST:
            # A process that starts at a gap in a bucket makes 2,000 requests before it fails.
            self.world.max_steps *= 4
            self.lose_objects(source.randint(1, 4), 40.0)
        if profile == "clocks":
            self.world.spawn("clock", self.step_clock)

    def draw_members(self, decide: Callable[[str], Decide], skews: Sequence[int]) -> None:
        source = self.source
        assignors = source.choice(ASSIGNORS)
        for number in range(source.randint(2, 4)):
            topics = tuple(sorted(source.sample(TOPICS, source.randint(1, 3))))
            plan = Plan(
                topics if source.random() < 0.5 else TOPICS,
                assignors if source.random() < 0.8 else assignors[::-1],
                source.randint(4, 12),
                source.choice([0.3, 2.0, 4.0]),
                f"static-{number % 2}" if source.random() < 0.2 else None,
                f"txn-{number}" if source.random() < 0.3 else None,
            )
            label = f"member-{number}"
            self.spawn(label, member(self, decide(label), plan), skews=skews, within_ms=9_000)

    def step_clock(self, actor: Actor) -> None:
        """Move the clock of the store and of all hosts ahead by more than a session timeout, three times."""
        for _ in range(3):
            actor.sleep(self.source.random() * 10)
            self.world.now_ms += 2 * SESSION_MS

    def check_result(self) -> None:
        """Check that no offset was skipped or committed twice, and that a last member is assigned all partitions."""
        root = self.outsider("judge")
        self.world.now_ms += 10 * SESSION_MS
        counts = partitions_of(root, TOPICS)
        last = JoinRequest(topics=TOPICS, assignors=("range", "roundrobin", "sticky", "cooperative-sticky"))
        membership = Group(root, GROUP).share(last, counts)
        everything = {(topic, partition) for topic, n in counts.items() for partition in range(n)}
        expect(membership.assigned() == everything, f"the last member does not own all: {membership.state.members}")
        steps = check_offsets(entries(self))
        for commit in self.acknowledged:
            expect(commit in steps, f"{commit} was acknowledged, and another commit took its place")


def rebalance(one: Membership, two: ClassicMember, reading: Partitions, counts: Mapping[str, int]) -> Partitions:
    """Let a member of the root and a client of the classic protocol take one step of a rebalance.

    Return the partitions that the client reads.
    """
    one.refresh()
    if one.revoking():
        one.revoke()
    two.membership.refresh()
    if not two.must_rejoin():
        return reading
    two.rejoin(TOPICS, SHARED_ASSIGNORS[0], frozenset(), counts)
    return two.sync(two.generation)


class MixedRun(GroupRun):
    """Members of the root and clients of one or two servers, in one group."""

    STREAM = "draw mixed members"

    def draw_members(self, decide: Callable[[str], Decide], skews: Sequence[int]) -> None:
        source = self.source
        assignors = source.choice(SHARED_ASSIGNORS)
        for number in range(source.randint(1, 2)):
            eager = tuple(source.random() < 0.5 for _ in range(source.randint(1, 3)))
            static = f"client-{number}" if source.random() < 0.2 else None
            plan = Plan(TOPICS, assignors, source.randint(6, 14), source.choice([0.3, 2.0]), static)
            label = f"server-{number}"
            self.spawn(label, server(self, decide(label), plan, eager), skews=skews, within_ms=9_000)
        for number in range(source.randint(1, 2)):
            plan = Plan(
                TOPICS,
                assignors if source.random() < 0.9 else ("sticky",),
                source.randint(4, 10),
                source.choice([0.3, 2.0, 4.0]),
                transactional_id=f"txn-{number}" if source.random() < 0.2 else None,
            )
            label = f"member-{number}"
            self.spawn(label, member(self, decide(label), plan), skews=skews, within_ms=20_000)

    def check_result(self) -> None:
        """Also check that a client of a server and a member of the root get their partitions within a few rounds."""
        super().check_result()
        root = self.outsider("second judge")
        self.world.now_ms += 100 * SESSION_MS
        counts, group = partitions_of(root, TOPICS), Group(root, GROUP)
        request = JoinRequest(topics=TOPICS, assignors=SHARED_ASSIGNORS[0])
        one = group.share(request, counts)
        two = ClassicMember(group.share_as([request.member("last client", "host")], counts)[0])
        reading = two.sync(two.generation)
        for _ in range(4):
            reading = rebalance(one, two, reading, counts)
        everything = {(topic, partition) for topic, n in counts.items() for partition in range(n)}
        shares = one.assigned(), reading
        expect(one.is_stable() and not two.must_rejoin(), f"members wait for ever: {one.state.members}")
        expect(all(shares) and shares[0] | shares[1] == everything, f"partitions without a member: {shares}")


class ConsumersRun(MixedRun):
    """Clients of the consumer protocol, with members of the root and clients of the classic protocol."""

    STREAM = "draw consumers"

    def draw_members(self, decide: Callable[[str], Decide], skews: Sequence[int]) -> None:
        source, readers = self.source, Readers(self)
        for number in range(source.randint(1, 3)):
            plan = Plan(
                TOPICS if source.random() < 0.7 else tuple(sorted(source.sample(TOPICS, source.randint(1, 3)))),
                (),
                source.randint(8, 24),
                source.choice([0.3, 2.0]),
                f"consumer-{number % 2}" if source.random() < 0.3 else None,
            )
            label = f"consumer-{number}"
            self.spawn(label, consumer(self, readers, decide(label), plan), skews=skews, within_ms=9_000)
        if source.random() < 0.6:
            super().draw_members(decide, skews)

    def check_result(self) -> None:
        """Also check that three members of different protocols get their partitions within a few rounds."""
        super().check_result()
        root = self.outsider("third judge")
        self.world.now_ms += 100 * SESSION_MS
        counts, group = partitions_of(root, TOPICS), Group(root, GROUP)
        request = JoinRequest(topics=TOPICS, assignors=SHARED_ASSIGNORS[0])
        one = group.share(request, counts)
        two = ClassicMember(group.share_as([request.member("last client", "host")], counts)[0])
        settings = "client", "host", SESSION_MS, (), TOPICS
        protocol = ConsumerProtocol(TOPICS, None, 60_000)
        three = ConsumerGroupMember.join(
            group, GroupMember("last consumer", None, *settings, consumer=protocol), counts
        )
        reading, owned, epoch = two.sync(two.generation), three.respond(0), three.epoch
        for _ in range(6):
            reading = rebalance(one, two, reading, counts)
            three.membership.refresh()
            three.check_epoch(epoch, owned)
            if three.may_release(owned):
                three.release(epoch)
            owned, epoch = three.respond(epoch), three.epoch
        everything = {(topic, partition) for topic, n in counts.items() for partition in range(n)}
        shares = one.assigned(), reading, owned
        expect(one.is_stable() and not two.must_rejoin(), f"members wait for ever: {one.state.members}")
        expect(all(shares) and frozenset().union(*shares) == everything, f"partitions without a member: {shares}")
        expect(sum(map(len, shares)) == len(everything), f"partitions with two members: {shares}")


MEMBERS = Simulation(GroupRun, "tests/groups/simulation/test_simulation.py")
MIXED = Simulation(MixedRun, "tests/groups/simulation/test_mixed_members.py")
CONSUMERS = Simulation(ConsumersRun, "tests/groups/simulation/test_consumers.py")


def entries(run: MembersRun) -> list[GroupState]:
    """Return all entries of the group in order. Decoding checks that no partition has two owners."""
    prefix = f"{GROUPS.prefix(GROUP)}/_log/0"
    keys = [info.key for info in run.world.store.list(prefix)]
    return [GROUPS.decode(run.world.store.get(key), key, number) for number, key in enumerate(keys)]


def check_offsets(states: list[GroupState]) -> set[tuple[TopicPartition, int, int]]:
    """Check that each committed range starts at the end of the previous one. Return (place, start, end) of all."""
    ends: dict[TopicPartition, int] = {}
    steps: set[tuple[TopicPartition, int, int]] = set()
    for before, state in pairwise([GroupState(GROUP), *states]):
        # An entry may record the decisions of transactions, and commit offsets in addition. Both count.
        prepared = [(topic_partition, row) for item in before.pending for topic_partition, row in rows(item.offsets)]
        for topic_partition, (offset, _, _, start) in rows(state.offsets):
            end = ends.get(topic_partition, 0)
            if end == offset:
                continue
            begins = {int(row[3]): row[0] for where, row in prepared if where == topic_partition}
            expect(
                int(start) in (end, begins.get(end)),
                f"entry {state.number} ({state.op}) commits {topic_partition} from {start} to {offset}, after {end}",
            )
            if int(start) != end:
                steps.add((topic_partition, end, int(start)))
            steps.add((topic_partition, int(start), offset))
            ends[topic_partition] = offset
    return steps


def rows(offsets: Sequence[TopicOffsets]) -> list[tuple[TopicPartition, Row]]:
    return [((item.topic, partition), row) for item in offsets for partition, row in item.rows().items()]
