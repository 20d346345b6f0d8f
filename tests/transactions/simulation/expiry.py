"""Runs of months in which transactional ids expire and are reused, and processes are suspended for weeks between
requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sparklog.errors import SparklogError
from sparklog.testing.faulty_store import Call, Decide, Fault, FaultKind
from sparklog.testing.world import DAY_MS
from sparklog.transactions.completion import collect, resolve_topic
from tests.support.simulation.faults import ANSWERS, CRASHES, DELAYS, ERRORS
from tests.support.simulation.runs import Body, restarted
from tests.support.simulation.scheduler import Actor
from tests.support.simulation.sweeps import Simulation
from tests.transactions.simulation.actors import TOPICS, Run, appender, driver, reader, writer

DAY_S = DAY_MS // 1000


class Sleepers:
    """Adds suspensions of days to a plan of faults, before a request or before its response.

    Some processes die afterwards.
    """

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
    """Runs maintenance every few days, which expires ids."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            root = None
            for _ in left:
                actor.sleep(actor.random.random() * 8 * DAY_S)
                try:
                    if root is None or actor.random.random() < 0.3:
                        root = run.root(actor, decide)
                    for name in TOPICS:
                        resolve_topic(root.topic(name))
                    done = collect(root, expiration_ms=DAY_MS)
                    run.count("expired", done.expired)
                    run.count("deleted", done.objects)
                    for error in done.failures:
                        actor.note(f"cleaner: {error}")
                        run.count(f"cleaner {type(error).__name__}")
                except (SparklogError, OSError) as error:
                    actor.note(f"cleaner: {error}")

        restarted(run, actor, life, restarts=12)

    return body


class ExpiryRun(Run):
    """Writers and streaming queries that are suspended for weeks, while two cleaners expire ids."""

    PROFILES = ("calm", "crashes", "sleepers", "everything")
    STREAM = "expiry"

    def draw(self) -> None:
        source, profile = self.source, self.draw_profile()
        if source.random() < 0.3:
            self.world.as_bucket()
        kinds = {"calm": (), "sleepers": (), "crashes": CRASHES}.get(profile, ERRORS + ANSWERS[:2] + CRASHES)
        kinds = self.possible(kinds)

        def decide(name: str) -> Decide:
            plan = self.seeded_faults(name, [0.01, 0.04], kinds)
            return Sleepers(plan, plan.source, 0.1 if profile in ("sleepers", "everything") else 0.0)

        def spawn(name: str, body: Body, start_ms: int = 0) -> None:
            self.world.spawn(name, body, start_ms=start_ms or source.randint(0, 5 * DAY_MS))

        for number in range(2):
            spawn(f"cleaner-{number}", cleaner(self, decide(f"cleaner-{number}"), 22))
        for number in range(source.randint(2, 4)):
            label, pace = f"{number}", source.choice([1.0, 20.0, 20.0 * DAY_S, 60.0 * DAY_S])
            name = source.choice(["w", f"w{number}", "v"])
            role = source.choice(["writer", "late", "driver"])
            if role == "driver":
                spawn(label, driver(self, decide(label), "q", source.randint(3, 6), pace))
            else:
                start_ms = source.randint(30, 90) * DAY_MS if role == "late" else 0
                spawn(label, writer(self, decide(label), name, source.randint(2, 5), pace), start_ms)
        spawn("appender", appender(self, decide("appender"), 2), source.randint(1, 60) * DAY_MS)
        for number in range(3):
            spawn(f"reader-{number}", reader(self, decide("reader"), 3), source.randint(1, 80) * DAY_MS)

    def limits(self) -> dict[str, float]:
        return {"checkpoint_commits": 9, "checkpoint_entries": self.source.choice([3, 64])}


EXPIRY = Simulation(ExpiryRun, "tests/transactions/simulation/test_expiry.py")
