"""One seed is one run of a group's members: it draws who takes part and what goes wrong; `run_seed` judges it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.groups.group_state import GROUPS, GroupState, Row, TopicOffsets
from sparklog.groups.membership import JoinRequest
from sparklog.log.topic.root import open_root
from sparklog.testing.faulty_store import Decide, Seeded
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
from tests.support.simulation.faults import ANSWERS, CACHES, CRASHES, ERRORS, LOST, Stalls, bucket_faults
from tests.support.simulation.losses import Losses
from tests.support.simulation.scheduler import Actor, SimulatedWorld, expect
from tests.support.small_limits import small_limits
from tests.transactions.simulation.actors import TOPICS

PROFILES = ("calm", "answers", "errors", "crashes", "stalls", "clocks", "everything")
ASSIGNORS = (("cooperative-sticky",), ("range", "cooperative-sticky"), ("roundrobin", "range"), ("sticky",))


def draw(run: MembersRun, profile: str | None) -> None:
    source = random.Random(f"draw members {run.seed}")
    profile = source.choice(PROFILES) if profile is None else profile
    run.count(f"profile {profile}")
    kinds = {"answers": ANSWERS[:2] + ERRORS[1:2], "errors": ERRORS + ANSWERS, "crashes": CRASHES}.get(profile, ())
    if profile == "everything":
        kinds = ERRORS + ANSWERS + CRASHES
    if profile in CACHES:
        longest = source.choice([2_000, 10_000, 60_000])
        run.name_ms, run.folder_ms = (longest, 0) if profile == "names" else (0, longest)
    kinds = bucket_faults(kinds) if run.world.is_bucket else kinds

    def decide(name: str) -> Decide:
        chances = random.Random(f"{run.seed}/faults/{name}")
        plan = Seeded(chances, source.choice([0.01, 0.03]) if kinds else 0.0, kinds, 5.0)
        return Stalls(plan, chances, 0.05 if profile in ("stalls", "everything") else 0.0, 2 * SESSION_MS)

    skews = [0, 0, 0, source.randint(-3_600_000, 4 * 60_000)]
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
        run.world.spawn(
            label, member(run, decide(label), plan), skew_ms=source.choice(skews), start_ms=source.randint(0, 9_000)
        )
    if source.random() < 0.3:
        run.world.spawn("owner", owner_of_all(run, decide("owner"), 4), start_ms=source.randint(0, 30_000))
    if source.random() < 0.3:
        run.world.spawn("grower", grower(run, decide("grower")))
    if profile == LOST:
        run.losses = Losses(run.world)
        # Each start of a process at a gap in a bucket takes 2,000 requests before it gives up.
        run.world.max_steps *= 4
        run.world.spawn("loser", run.losses.loser(source.randint(1, 4), 40.0))
    if profile == "clocks":
        run.world.spawn("clock", stepping(run, source))


def stepping(run: MembersRun, source: random.Random) -> Callable[[Actor], None]:
    """The store's clock, and with it every one, steps ahead now and then by more than a session."""

    def body(actor: Actor) -> None:
        for _ in range(3):
            actor.sleep(source.random() * 10)
            run.world.now_ms += 2 * SESSION_MS

    return body


def entries(run: MembersRun) -> list[GroupState]:
    """All entries of the group, in their order; decoding asserts that no partition has two owners."""
    prefix = f"{GROUPS.prefix(GROUP)}/_log/0"
    keys = [info.key for info in run.world.store.list(prefix)]
    return [GROUPS.decode(run.world.store.get(key), key, number) for number, key in enumerate(keys)]


def judge_offsets(states: list[GroupState]) -> set[tuple[TopicPartition, int, int]]:
    """Expect that each committed offset begins where the one before ended; return (place, start, end) of all."""
    ends: dict[TopicPartition, int] = {}
    steps: set[tuple[TopicPartition, int, int]] = set()
    for before, state in pairwise([GroupState(GROUP), *states]):
        # An entry may record what transactions have decided, and commit more: both steps count.
        prepared = [(place, row) for item in before.pending for place, row in rows(item.offsets)]
        for place, (offset, _, _, start) in rows(state.offsets):
            end = ends.get(place, 0)
            if end == offset:
                continue
            begins = {int(row[3]): row[0] for where, row in prepared if where == place}
            expect(
                int(start) in (end, begins.get(end)),
                f"entry {state.number} ({state.op}) commits {place} from {start} to {offset}, after {end}",
            )
            if int(start) != end:
                steps.add((place, end, int(start)))
            steps.add((place, int(start), offset))
            ends[place] = offset
    return steps


def rows(offsets: Sequence[TopicOffsets]) -> list[tuple[TopicPartition, Row]]:
    return [((item.topic, partition), row) for item in offsets for partition, row in item.rows().items()]


def judge(run: MembersRun) -> None:
    """At the end: nothing left out or twice; and one more member gets all that those that are gone owned."""
    actor = Actor(run.world, "judge", lambda actor: None, 0, 0)
    root = open_root(run.world.store, env=actor.env)
    actor.sleep = lambda seconds: setattr(run.world, "now_ms", run.world.now_ms + round(seconds * 1000))  # type: ignore[method-assign]
    run.world.now_ms += 10 * SESSION_MS
    counts = partitions_of(root, TOPICS)
    last = JoinRequest(topics=TOPICS, assignors=("range", "roundrobin", "sticky", "cooperative-sticky"))
    membership = Group(root, GROUP).share(last, counts)
    everything = {(topic, partition) for topic, n in counts.items() for partition in range(n)}
    expect(membership.assigned() == everything, f"the last member does not own all: {membership.state.members}")
    steps = judge_offsets(entries(run))
    for commit in run.acknowledged:
        expect(commit in steps, f"{commit} was acknowledged, and another commit took its place")


def run_seed(
    seed: int, worlds: list[SimulatedWorld] | None = None, profile: str | None = None, *, bucket: bool = False
) -> MembersRun:
    """One seed, from the first request to the verdict. Raises what broke; the run is returned otherwise."""
    run = MembersRun(seed)
    if bucket:
        run.world.as_bucket()
    if worlds is not None:
        worlds.append(run.world)
    draw(run, profile)
    with small_limits(checkpoint_commits=9, checkpoint_entries=7):
        run.world.run()
        if run.losses is not None:
            run.counters["lost"] = len(run.losses.lost)
            run.losses.put_back()
        judge(run)
    return run
