"""Runs of months in which transactional ids expire, are used again, and processes sleep for weeks between requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest import mock

from sparklog.errors import SparklogError
from sparklog.log.state.configs import TopicConfigs
from sparklog.testing.faulty_store import Call, Decide, Fault, FaultKind, Seeded
from sparklog.testing.world import DAY_MS
from sparklog.transactions.completion import collect, resolve_topic
from tests.log.simulation.seeds import of_bucket
from tests.log.simulation.simulated_world import Actor, SimulatedWorld
from tests.log.simulation.workload import ANSWERS, CRASHES, DELAYS, ERRORS
from tests.support.small_limits import small_limits
from tests.transactions.simulation.actors import TOPICS, Run, appender, driver, process, reader, writer

DAY_S = DAY_MS // 1000
PROFILES = ("calm", "crashes", "sleepers", "everything")


class Sleepers:
    """Adds sleeps of days to another plan of faults, before a request or before its answer; some die as they wake."""

    def __init__(self, inner: Decide, source: random.Random, rate: float) -> None:
        self.inner = inner
        self.source = source
        self.rate = rate
        self.kinds = getattr(inner, "kinds", ())
        self._dies = False

    def __call__(self, call: Call) -> Fault | None:
        if self._dies:
            self._dies = False
            return Fault(FaultKind.CRASH_AFTER)
        in_decisions = call.key.startswith("_transactions/") and call.verb in ("create", "delete")
        if self.source.random() < (self.rate if in_decisions else self.rate / 10):
            self._dies = self.source.random() < 0.4
            return Fault(self.source.choice(DELAYS), self.source.uniform(0.01, 40) * DAY_S)
        return self.inner(call)


def cleaner(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Maintenance every few days, by which ids expire."""

    def body(actor: Actor) -> None:
        left = [rounds]

        def life() -> None:
            root = None
            while left[0] > 0:
                left[0] -= 1
                actor.sleep(actor.random.random() * 8 * DAY_S)
                try:
                    if root is None or actor.random.random() < 0.3:
                        root = run.root(actor, decide)
                    for name in TOPICS:
                        resolve_topic(root.topic(name))
                    done = collect(root, expiration_ms=DAY_MS)
                    run.counters["expired"] = run.counters.get("expired", 0) + done.expired
                    run.counters["deleted"] = run.counters.get("deleted", 0) + done.objects
                    for error in done.failures:
                        actor.note(f"cleaner: {error}")
                        run.count(f"cleaner {type(error).__name__}")
                except (SparklogError, OSError) as error:
                    actor.note(f"cleaner: {error}")

        process(run, actor, life, restarts=12)

    return body


def run_expiry(seed: int, profile: str | None = None, worlds: list[SimulatedWorld] | None = None) -> Run:
    """One seed, from the first request to the verdict. Raises what broke; the run is returned otherwise."""
    run = Run(seed)
    source = random.Random(f"expiry {seed}")
    profile = profile or source.choice(PROFILES)
    run.count(f"profile {profile}")
    if source.random() < 0.3:
        run.world.as_bucket()
    if worlds is not None:
        worlds.append(run.world)
    kinds = {"calm": (), "sleepers": (), "crashes": CRASHES}.get(profile, ERRORS + ANSWERS[:2] + CRASHES)
    kinds = of_bucket(kinds) if run.world.is_bucket else kinds

    def decide(name: str) -> Decide:
        chances = random.Random(f"{seed}/faults/{name}")
        plan = Seeded(chances, source.choice([0.01, 0.04]) if kinds else 0.0, kinds, 5.0)
        return Sleepers(plan, chances, 0.1 if profile in ("sleepers", "everything") else 0.0)

    def spawn(name: str, body: Callable[[Actor], None], start_ms: int = 0) -> None:
        run.world.spawn(name, body, start_ms=start_ms or source.randint(0, 5 * DAY_MS))

    for number in range(2):
        spawn(f"cleaner-{number}", cleaner(run, decide(f"cleaner-{number}"), 22))
    for number in range(source.randint(2, 4)):
        label, pace = f"{number}", source.choice([1.0, 20.0, 20.0 * DAY_S, 60.0 * DAY_S])
        name = source.choice(["w", f"w{number}", "v"])
        role = source.choice(["writer", "late", "driver"])
        if role == "driver":
            spawn(label, driver(run, decide(label), "q", source.randint(3, 6), pace))
        else:
            start_ms = source.randint(30, 90) * DAY_MS if role == "late" else 0
            spawn(label, writer(run, decide(label), name, source.randint(2, 5), pace), start_ms)
    spawn("appender", appender(run, decide("appender"), 2), source.randint(1, 60) * DAY_MS)
    for number in range(3):
        spawn(f"reader-{number}", reader(run, decide("reader"), 3), source.randint(1, 80) * DAY_MS)
    small = mock.patch.object(TopicConfigs, "inline_records_bytes", 0)
    with small, small_limits(checkpoint_commits=9, checkpoint_entries=source.choice([3, 64])):
        run.world.run()
        run.judge()
    for key in run.world.store.keys() if hasattr(run.world.store, "keys") else ():
        run.counters["objects"] = run.counters.get("objects", 0) + key.startswith("_transactions/")
    return run
