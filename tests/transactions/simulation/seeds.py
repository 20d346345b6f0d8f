"""The seeds of transaction simulations. Each seed determines the actors and the faults."""

from __future__ import annotations

from collections.abc import Callable

from sparklog.storage.retries import SETTLE_MS
from sparklog.testing.faulty_store import Decide, FaultKind
from tests.support.simulation.faults import ANSWERS, CACHES, CRASHES, DAMAGE, ERRORS, LOST
from tests.support.simulation.runs import Body
from tests.support.simulation.scheduler import expect
from tests.support.simulation.sweeps import Simulation
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
LONGEST_CACHE_MS = 60_000
HIDDEN = "hidden"
"""The profile in which hosts cache names for minutes, longer than any process waits for a hidden object."""
HIDDEN_MS = [120_000, 240_000, 600_000]
FAULTS = {
    "calm": (),
    "zombies": (),
    DELETIONS: (),
    LOST: (),
    "answers": ANSWERS[:2] + ERRORS[1:2],
    "errors": ERRORS + ANSWERS,
    "crashes": CRASHES,
    "damage": DAMAGE,
}


class TransactionsRun(Run):
    """Writers, streaming queries, shared transactions, consuming loops, maintenance and readers across three topics."""

    PROFILES = ("calm", "answers", "errors", "crashes", "zombies", "everything", "damage")
    kinds: tuple[FaultKind, ...] = ()
    stall_rate: float = 0.0

    def limits(self) -> dict[str, float]:
        return {"checkpoint_commits": 9, "checkpoint_entries": 3}

    def draw(self) -> None:
        source, profile = self.source, self.draw_profile()
        kinds = self.possible(FAULTS.get(profile, ERRORS + ANSWERS + CRASHES))
        if profile in (*CACHES, HIDDEN):
            kinds = self.draw_caches(profile)
        # A zombie is suspended for longer than the timeout, also between a prepare and its decision.
        stall_rate = 0.15 if profile in ("zombies", "everything", DELETIONS) else 0.0
        self.kinds, self.stall_rate = kinds, stall_rate

        def decide(name: str) -> Decide:
            return self.stalling_faults(name, [0.02, 0.06], kinds, stall_rate, 3 * TIMEOUT_MS)

        def spawn(name: str, body: Body) -> None:
            self.spawn(name, body, skews=[0, 0, 0, source.randint(-3_600_000, 4 * 60_000)])

        if profile == LOST:
            self.lose_objects(source.randint(1, 4), 40.0)
        spawn("reader", reader(self, decide("reader"), source.randint(4, 12)))
        if profile in (*CACHES, HIDDEN):
            self.spawn_followers(decide, spawn)
        if profile == DELETIONS:
            spawn_deletions(self, source, decide, spawn)
        for number in range(source.randint(1, 5)):
            self.spawn_role(source.choice(ROLES), number, decide, spawn)

    def draw_caches(self, profile: str) -> tuple[FaultKind, ...]:
        """Draw the cache lifetimes of hosts, and return the faults of the profile."""
        source = self.source
        longest = source.choice(HIDDEN_MS if profile == HIDDEN else [2_000, 10_000, LONGEST_CACHE_MS])
        by_name = source.random() < 0.5 if profile == HIDDEN else profile == "names"
        self.name_ms, self.folder_ms = (longest, 0) if by_name else (0, longest)
        return tuple(source.choice([(), CRASHES]))

    def spawn_followers(self, decide: Callable[[str], Decide], spawn: Callable[[str, Body], None]) -> None:
        """Two consumers on two hosts, and a streaming query that starts on either host."""
        source = self.source
        for number in range(2):
            topics = source.sample(TOPICS, source.choice([1, 1, 2]))
            label, polls, pace = f"follower-{number}", source.randint(10, 40), source.choice([0.3, 2.0])
            spawn(label, follower(self, decide(label), f"host-{number}", topics, polls, pace))
        batches, loss = source.randint(4, 10), source.choice(["true", "false"])
        batches *= 3 if max(self.name_ms, self.folder_ms) > LONGEST_CACHE_MS else 1
        spawn("query", query(self, decide("query"), ("host-0", "host-1"), batches, loss))

    def spawn_role(
        self, role: str, number: int, decide: Callable[[str], Decide], spawn: Callable[[str, Body], None]
    ) -> None:
        source, label = self.source, f"{number}"
        plan = decide(label)
        if role == "writer":
            spawn(label, writer(self, plan, f"w{number}", source.randint(2, 5), source.choice([0.1, 5.0])))
        elif role == "instances":
            spawn(label, writer(self, plan, "w", source.randint(2, 4), 1.0))
        elif role == "driver":
            spawn(label, driver(self, plan, f"q{number}", source.randint(2, 4), 1.0))
        elif role == "drivers":
            spawn(label, driver(self, plan, "q", 3, 1.0))
            spawn(label + "b", driver(self, decide(label + "b"), "q", 3, 1.0))
        elif role == "shared":
            spawn(label, sharer(self, plan, f"s{number}", 3))
            spawn(label + "b", joiner(self, decide(label + "b"), f"s{number}", 8))
        elif role == "loop":
            # A separate transactional id, or one that writers without a group use as well.
            name = source.choice([f"l{number}", "w"])
            spawn(label, loop(self, plan, f"g{number}", name, source.randint(2, 5), source.choice([0.1, 5.0])))
            spawn(label + "w", watcher(self, decide(label + "w"), f"g{number}", 6))
        elif role == "loops":
            # Two instances of one group, with one or two transactional ids.
            other = source.choice(["l", "m"])
            spawn(label, loop(self, plan, "g", "l", source.randint(3, 6), 3.0))
            spawn(label + "b", loop(self, decide(label + "b"), "g", other, source.randint(3, 6), 3.0))
            spawn(label + "w", watcher(self, decide(label + "w"), "g", 8))
        elif role == "appender":
            spawn(label, appender(self, plan, source.randint(2, 6)))
        elif role == "keeper":
            spawn(label, keeper(self, plan, source.randint(2, 5)))
        else:
            spawn(label, reader(self, plan, source.randint(4, 12)))

    def check_result(self) -> None:
        super().check_result()
        # Processes wait longer than these caches hide names.
        if self.machines and max(self.name_ms, self.folder_ms) <= SETTLE_MS:
            for who in ("reader", "follower", "query"):
                expect(not self.counters[f"{who} Unavailable"], f"a {who} gave up only because of caches")


TRANSACTIONS = Simulation(TransactionsRun, "tests/transactions/simulation/test_simulation.py")
