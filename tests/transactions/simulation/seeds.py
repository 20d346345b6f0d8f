"""One seed is one run: it draws who takes part and what goes wrong; `run_seed` judges the outcome."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest import mock

from sparklog.log.state.configs import TopicConfigs
from sparklog.testing.faulty_store import Decide, FaultKind, Seeded
from tests.log.simulation.losses import Losses
from tests.log.simulation.seeds import LOST, of_bucket
from tests.log.simulation.simulated_world import Actor, SimulatedWorld
from tests.log.simulation.workload import ANSWERS, CRASHES, DAMAGE, ERRORS, Stalls
from tests.support.small_limits import small_limits
from tests.transactions.simulation.actors import (
    TIMEOUT_MS,
    TOPICS,
    Run,
    appender,
    driver,
    joiner,
    keeper,
    reader,
    sharer,
    writer,
)
from tests.transactions.simulation.deletions import DELETIONS, spawn_deletions
from tests.transactions.simulation.followers import follower, query
from tests.transactions.simulation.loops import loop, watcher

ROLES = ("writer", "instances", "driver", "drivers", "shared", "appender", "keeper", "reader", "loop", "loops")
CACHES = ("names", "folders")
"""Profiles in which every machine remembers names: one by one, or by folder (`NameCachingStore`)."""
LONGEST_CACHE_MS = 60_000
HIDDEN = "hidden"
"""A profile in which machines remember names for minutes: longer than anybody waits for what is not seen."""
HIDDEN_MS = [120_000, 240_000, 600_000]
Body = Callable[[Actor], None]
PROFILES = ("calm", "answers", "errors", "crashes", "zombies", "everything", "damage")


def draw_caches(run: Run, profile: str, source: random.Random) -> tuple[FaultKind, ...]:
    """How long machines remember names; also the faults that come beside that."""
    longest = source.choice(HIDDEN_MS if profile == HIDDEN else [2_000, 10_000, LONGEST_CACHE_MS])
    by_name = source.random() < 0.5 if profile == HIDDEN else profile == "names"
    run.name_ms, run.folder_ms = (longest, 0) if by_name else (0, longest)
    return tuple(source.choice([(), CRASHES]))


def spawn_followers(
    run: Run, source: random.Random, decide: Callable[[str], Decide], spawn: Callable[[str, Body], None]
) -> None:
    """Two consumers on two machines, and a streaming query that is started now on one of these, now on the other."""
    for number in range(2):
        topics = source.sample(TOPICS, source.choice([1, 1, 2]))
        label, polls, pace = f"follower-{number}", source.randint(10, 40), source.choice([0.3, 2.0])
        spawn(label, follower(run, decide(label), f"host-{number}", topics, polls, pace))
    batches, loss = source.randint(4, 10), source.choice(["true", "false"])
    batches *= 3 if max(run.name_ms, run.folder_ms) > LONGEST_CACHE_MS else 1
    spawn("query", query(run, decide("query"), ("host-0", "host-1"), batches, loss))


def draw(run: Run, profile: str | None) -> None:
    """The seed decides who takes part and what goes wrong (`profile`, if it is not given)."""
    source = random.Random(f"draw {run.seed}")
    profile = source.choice(PROFILES) if profile is None else profile
    kinds = {
        "calm": (),
        "zombies": (),
        DELETIONS: (),
        LOST: (),
        "answers": ANSWERS[:2] + ERRORS[1:2],
        "errors": ERRORS + ANSWERS,
        "crashes": CRASHES,
        "damage": DAMAGE,
    }.get(profile, ERRORS + ANSWERS + CRASHES)
    run.count(f"profile {profile}")
    kinds = of_bucket(kinds) if run.world.is_bucket else kinds
    if profile in (*CACHES, HIDDEN):
        kinds = draw_caches(run, profile, source)

    def decide(name: str) -> Decide:
        chances = random.Random(f"{run.seed}/faults/{name}")
        rate = source.choice([0.02, 0.06]) if kinds else 0.0
        plan = Seeded(chances, rate, kinds, 5.0)
        # A zombie sleeps past the timeout, between a prepare and its decision as well.
        return Stalls(plan, chances, 0.15 if profile in ("zombies", "everything", DELETIONS) else 0.0, 3 * TIMEOUT_MS)

    def spawn(name: str, body: Callable[[Actor], None]) -> None:
        skew = source.choice([0, 0, 0, source.randint(-3_600_000, 4 * 60_000)])
        run.world.spawn(name, body, skew_ms=skew, start_ms=source.randint(0, 2_000))

    if profile == LOST:
        run.losses = Losses(run.world)
        run.world.spawn("loser", run.losses.loser(source.randint(1, 4), 40.0))
    spawn("reader", reader(run, decide("reader"), source.randint(4, 12)))
    if profile in (*CACHES, HIDDEN):
        spawn_followers(run, source, decide, spawn)
    if profile == DELETIONS:
        spawn_deletions(run, source, decide, spawn)
    for number in range(source.randint(1, 5)):
        name, label = source.choice(ROLES), f"{number}"
        plan = decide(label)
        if name == "writer":
            spawn(label, writer(run, plan, f"w{number}", source.randint(2, 5), source.choice([0.1, 5.0])))
        elif name == "instances":
            spawn(label, writer(run, plan, "w", source.randint(2, 4), 1.0))
        elif name == "driver":
            spawn(label, driver(run, plan, f"q{number}", source.randint(2, 4), 1.0))
        elif name == "drivers":
            spawn(label, driver(run, plan, "q", 3, 1.0))
            spawn(label + "b", driver(run, decide(label + "b"), "q", 3, 1.0))
        elif name == "shared":
            spawn(label, sharer(run, plan, f"s{number}", 3))
            spawn(label + "b", joiner(run, decide(label + "b"), f"s{number}", 8))
        elif name == "loop":
            # An id of its own, or one that writers without a group use as well.
            name = source.choice([f"l{number}", "w"])
            spawn(label, loop(run, plan, f"g{number}", name, source.randint(2, 5), source.choice([0.1, 5.0])))
            spawn(label + "w", watcher(run, decide(label + "w"), f"g{number}", 6))
        elif name == "loops":
            # Two instances of one group; under one transactional id as well, or each under its own.
            other = source.choice(["l", "m"])
            spawn(label, loop(run, plan, "g", "l", source.randint(3, 6), 3.0))
            spawn(label + "b", loop(run, decide(label + "b"), "g", other, source.randint(3, 6), 3.0))
            spawn(label + "w", watcher(run, decide(label + "w"), "g", 8))
        elif name == "appender":
            spawn(label, appender(run, plan, source.randint(2, 6)))
        elif name == "keeper":
            spawn(label, keeper(run, plan, source.randint(2, 5)))
        else:
            spawn(label, reader(run, plan, source.randint(4, 12)))


def run_seed(
    seed: int,
    worlds: list[SimulatedWorld] | None = None,
    profile: str | None = None,
    *,
    bucket: bool = False,
    inline: int = 0,
) -> Run:
    """One seed, from the first request to the verdict. Raises what broke; the run is returned otherwise.

    `inline`: records of so many bytes are in commits.
    """
    run = Run(seed)
    if bucket:
        run.world.as_bucket()
    if worlds is not None:
        worlds.append(run.world)
    draw(run, profile)
    small = mock.patch.object(TopicConfigs, "inline_records_bytes", inline)
    with small, small_limits(checkpoint_commits=9, checkpoint_entries=3):
        run.world.run()
        if run.losses is not None:
            run.counters["lost"] = len(run.losses.lost)
            run.losses.put_back()
        run.judge()
    return run
