"""Transactions across a topic that is deleted and recreated, by writers whose store fails for minutes.

`SIDE` is this topic. The parts of the transactions in another topic are checked: they are atomic, and match the
reported outcomes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.log.topic.root import RootView, open_root
from sparklog.testing.faulty_store import Call, Decide, Fault, FaultKind
from sparklog.transactions.completion import resolve_topic
from sparklog.transactions.producer import Transaction, transactional
from tests.support.simulation.faults import Stalls
from tests.support.simulation.runs import restarted
from tests.support.simulation.scheduler import Actor
from tests.transactions.simulation.actors import TIMEOUT_MS, Attempt, Run, fill

DELETIONS = "deletions"
"""A separate profile."""
SIDE = "d"
OUTAGE_S = 60, 400


class Outages:
    """Adds outages to a plan of faults: a decision is written, its response is lost, and requests fail for long."""

    def __init__(self, inner: Decide, source: random.Random, rate: float, clock: Callable[[], int]) -> None:
        self.inner = inner
        self.source = source
        self.rate = rate
        self.clock = clock
        self.kinds = getattr(inner, "kinds", ())
        self._end_ms = -1

    def __call__(self, call: Call) -> Fault | None:
        if self.clock() < self._end_ms:
            return Fault(FaultKind.ERROR_BEFORE)
        if call.verb == "create" and call.key.startswith("_transactions/") and self.source.random() < self.rate:
            self._end_ms = self.clock() + round(1000 * self.source.uniform(*OUTAGE_S))
            return Fault(FaultKind.ERROR_AFTER)
        return self.inner(call)


def remaker(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Deletes the topic and creates it again, usually immediately."""

    def body(actor: Actor) -> None:
        def life() -> None:
            for _ in range(rounds):
                root = run.root(actor, decide)
                for change in (lambda: root.topic(SIDE).delete(), lambda: root.create_topic(SIDE, partitions=2)):  # noqa: B023
                    try:
                        change()
                    except SparklogError as error:
                        actor.note(f"{error.code} {error}")
                    if actor.random.random() < 0.3:
                        actor.sleep(actor.random.random() * 10)
                run.count("remade")
                actor.sleep(actor.random.random() * 6)

        restarted(run, actor, life)

    return body


def side_writer(run: Run, decide: Decide, name: str, rounds: int) -> Callable[[Actor], None]:
    """Transactions across two topics. If the outcome is not reported, the writer aborts, which resolves the outcome."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            for _ in left:
                attempt, transaction = Attempt(), None
                try:
                    root = run.root(actor, decide)
                    transaction = transactional(root, name, timeout_ms=TIMEOUT_MS).begin()
                    run.attempts.append(attempt)
                    fill(run, actor, root, transaction, attempt, "a")
                    fill(run, actor, root, transaction, Attempt(), SIDE)
                    actor.sleep(actor.random.random() * 3)
                    transaction.commit()
                    attempt.outcome = "committed"
                except (Fenced, Conflict, NotFound) as error:
                    actor.note(f"{error.code} {error}")
                    attempt.outcome = "aborted"
                except (Unavailable, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")
                    attempt.outcome = "aborted" if "is aborted" in str(error) else settled(transaction)
                run.count(f"side {attempt.outcome}")
                actor.sleep(actor.random.random() * 3)

        restarted(run, actor, life)

    return body


def settled(transaction: Transaction | None) -> str:
    """Abort the transaction, and return the outcome that its writer knows then."""
    if transaction is None:
        return "unknown"
    try:
        transaction.abort()
    except Conflict:
        return "committed"
    except SparklogError:
        return "unknown"
    return "aborted"


def side_keeper(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Records outcomes in the topic."""

    def body(actor: Actor) -> None:
        def life() -> None:
            for _ in range(rounds):
                try:
                    resolve_topic(run.root(actor, decide).topic(SIDE))
                except SparklogError as error:
                    actor.note(f"{error.code} {error}")
                actor.sleep(actor.random.random() * 2)

        restarted(run, actor, life)

    return body


def side_reader(run: Run, decide: Decide, polls: int) -> Callable[[Actor], None]:
    """Reads both topics while one of them is deleted and recreated."""

    def body(actor: Actor) -> None:
        def life() -> None:
            view = None
            for _ in range(polls):
                try:
                    view = view or RootView(run.root(actor, decide))
                    view.refresh(("a", SIDE))
                    run.count("side polls")
                except SparklogError as error:
                    actor.note(f"{error.code} {error}")
                    view = None
                actor.sleep(actor.random.random() * 2)

        restarted(run, actor, life)

    return body


def spawn_deletions(
    run: Run,
    source: random.Random,
    decide: Callable[[str], Decide],
    spawn: Callable[[str, Callable[[Actor], None]], None],
) -> None:
    """Spawn the topic, the actor that deletes it, and its users."""
    setup = Actor(run.world, "setup of the side topic", lambda actor: None, 0, 0)
    open_root(run.world.store, env=setup.env).create_topic(SIDE, partitions=2)
    spawn("remaker", remaker(run, lambda call: None, source.randint(4, 10)))
    for number in range(2):
        label = f"side-{number}"
        outages = Outages(decide(label), random.Random(f"{run.seed}/outages/{label}"), 0.05, lambda: run.world.now_ms)
        spawn(label, side_writer(run, outages, label, source.randint(3, 6)))
        # Long pauses between two requests, during which the topic is deleted and recreated.
        for role, make, rate in (("keeper", side_keeper, 0.7), ("reader", side_reader, 1.5)):
            name = f"{label}-{role}"
            stalls = Stalls(decide(name), random.Random(f"{run.seed}/stalls/{name}"), rate, 8_000)
            spawn(name, make(run, stalls, 20))
