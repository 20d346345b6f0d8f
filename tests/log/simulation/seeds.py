"""One seed is one run: it draws actors, faults, clocks and stalls; `run_seed` judges the outcome."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest import mock

from sparklog.log.state.configs import TopicConfigs
from sparklog.testing.bucket_store import BUCKET_FAULTS
from sparklog.testing.faulty_store import Decide, FaultKind, Seeded
from sparklog.testing.world import HOUR_MS
from tests.log.simulation.losses import Losses
from tests.log.simulation.maintenance import collector, merger, vacuum
from tests.log.simulation.model import expect
from tests.log.simulation.simulated_world import Actor, SimulatedWorld
from tests.log.simulation.workload import (
    ANSWERS,
    CRASHES,
    DAMAGE,
    ERRORS,
    Run,
    Stalls,
    administrator,
    plain_appender,
    reader,
    stream_driver,
)
from tests.support.small_limits import small_limits

CHECKPOINT_COMMITS = 4
"""Checkpoints come often where commits are collected, so that short runs have many; else seldom, for they take time."""
CHECKPOINT_COMMITS_ELSE = 9
ROLES = (
    "appender",
    "stream",
    "stream",
    "zombie",
    "administrator",
    "reader",
    "reader",
    "merger",
    "vacuum",
)
LOST = "lost"
"""A profile of its own: objects of the log are lost."""
PROFILES = ("calm", "answers", "errors", "crashes", "everything", "stalls", "collector", "damage")


def of_bucket(kinds: tuple[FaultKind, ...]) -> tuple[FaultKind, ...]:
    """What of these a client of a bucket can meet."""
    return tuple(kind for kind in kinds if kind in BUCKET_FAULTS + CRASHES)


def draw(run: Run, profile: str | None) -> str:
    """The seed decides who takes part and what goes wrong (`profile`, if it is not given); the profile."""
    source = random.Random(f"draw {run.seed}")
    profile = source.choice(PROFILES) if profile is None else profile
    kinds = {
        "calm": (),
        "answers": ANSWERS[:2] + ERRORS[1:2],
        "errors": ERRORS + ANSWERS,
        "crashes": CRASHES,
        "damage": DAMAGE,
        LOST: (),
    }.get(profile, ERRORS + ANSWERS + CRASHES)
    kinds = of_bucket(kinds) if run.world.is_bucket else kinds
    longest_ms = {"stalls": 3 * HOUR_MS, "collector": 5 * HOUR_MS}.get(profile, 60_000)
    run.count(f"profile {profile}")
    run.losses = Losses(run.world) if profile == LOST else None

    stalling = profile in ("stalls", "collector", "everything")
    pace_s = {"stalls": HOUR_MS / 2000, "collector": HOUR_MS / 2000, LOST: 15.0}.get(profile, 0.0)
    quiet = profile in ("stalls", "collector") and source.random() < 0.5

    def decide(name: str) -> Decide:
        chances = random.Random(f"{run.seed}/faults/{name}")
        rate = source.choice([0.03, 0.1]) if kinds and not quiet else 0.0
        plan = Seeded(chances, rate, kinds if rate else (), 5.0)
        return Stalls(plan, chances, 0.2 if stalling else 0.0, longest_ms)

    def spawn(name: str, body: Callable[[Actor], None]) -> None:
        skew = source.choice([0, 0, 0, source.randint(-HOUR_MS, 4 * 60_000)])
        run.world.spawn(name, body, skew_ms=skew, start_ms=source.randint(0, 2_000))

    count = source.randint(2, 8)
    most = 12 if profile == "collector" else 6
    destructive = source.random() < 0.4
    pause_s = longest_ms / 4000 if profile in ("stalls", "collector") else 30.0 if profile == LOST else 3.0
    spawn("appender-0", plain_appender(run, decide("appender-0"), source.randint(2, most), pace_s))
    for number in range(1, count):
        name = source.choice(ROLES)
        label = f"{name}-{number}"
        plan = decide(label)
        if name == "appender":
            spawn(label, plain_appender(run, plan, source.randint(1, most), pace_s))
        elif name == "stream":
            spawn(label, stream_driver(run, plan, f"query-{number}", source.randint(2, 5), pace_s))
        elif name == "zombie":
            batches = source.randint(2, 5)
            spawn(label, stream_driver(run, plan, "shared", batches, pace_s))
            spawn(label + "b", stream_driver(run, decide(label + "b"), "shared", batches, pace_s))
        elif name == "merger":
            spawn(label, merger(run, plan, source.randint(2, 4)))
        elif name == "vacuum":
            spawn(label, vacuum(run, plan, source.randint(1, 3)))
        elif name == "administrator":
            spawn(label, administrator(run, plan, source.randint(2, 5), destructive=destructive))
        else:
            spawn(label, reader(run, plan, source.randint(3, 8), pause_s))
    if run.losses is not None:
        run.world.spawn("loser", run.losses.loser(random.Random(f"losses {run.seed}").randint(1, 4), 60.0))
    if profile == "collector":
        # Commits must be kept longer than the hour after which a writer no longer trusts a number: 7 days are plenty.
        run.world.spawn("collector", collector(run, 8, 3 * HOUR_MS // 2))
    return profile


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
    drawn = draw(run, profile)
    often = CHECKPOINT_COMMITS if drawn == "collector" or seed % 8 == 0 else CHECKPOINT_COMMITS_ELSE
    # With few checkpoints a lost commit lies where who opens the log reads.
    often = 40 if drawn == LOST else often
    small = mock.patch.object(TopicConfigs, "inline_records_bytes", inline)
    with small, small_limits(checkpoint_commits=often):
        run.world.run()
    if run.losses is not None:
        run.counters["lost"] = len(run.losses.lost)
        run.losses.put_back()
    run.judge()
    if drawn == "calm" and not bucket:
        failed = {what: n for what, n in run.counters.items() if what.endswith((" Unavailable", " Corrupt"))}
        expect(not failed, f"nothing was injected, and yet: {failed}")
    return run
