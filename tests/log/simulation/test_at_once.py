"""The same simulations on a store with round trips, where writers and readers make several requests at once.

Requests made at once come in any order: here the actor makes them one after the other, in an order that its seed draws,
and others go on between them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from sparklog.log.journal import numbered_objects
from sparklog.log.journal.numbered_objects import Expected, NumberedObjects
from sparklog.log.journal.seen_state import Advance
from sparklog.log.state import commit_log
from sparklog.log.topic import defaults
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from tests.log.simulation import test_replaced_root
from tests.log.simulation.seeds import run_seed
from tests.log.simulation.simulated_world import SimulationError

T = TypeVar("T")
R = TypeVar("R")
pytestmark = pytest.mark.sweep
EVERY_RUN = 15
SLOW_RUN = range(20_000, 22_000)
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "parallel_reads", 16)
    for module in (numbered_objects, commit_log, defaults):
        monkeypatch.setattr(module, "map_requests", in_any_order)


def in_any_order(store: Store, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """As `map_requests`, in the thread of the actor."""
    source = getattr(threading.current_thread(), "source", None)
    if source is None:
        source = threading.current_thread().source = random.Random(threading.current_thread().name)  # type: ignore[attr-defined]
    order = list(range(len(items)))
    source.shuffle(order)
    answers = {at: look(items[at]) for at in order}
    return (answers[at] for at in range(len(items)))


def test_seeds() -> None:
    for seed in range(EVERY_RUN):
        assert run_seed(seed).world.failure is None


def test_replaced_roots() -> None:
    met = test_replaced_root.sweep(range(50))
    assert min(met[what] for what in ("acked", "refused", "taken back", "files", "another id", "anew")) > 0, dict(met)


@pytest.mark.slow
def test_many_seeds() -> None:
    for seed in SLOW_RUN:
        assert run_seed(seed).world.failure is None
        test_replaced_root.run_seed(seed)


def root_not_looked_at(patch: Patch) -> None:
    patch.setattr(NumberedObjects, "_check_root", lambda *given, **named: None)
    patch.setattr(NumberedObjects, "_is_root", lambda self: True)


def root_seen_once_for_all(patch: Patch) -> None:
    """The look of a write counts for all later ones."""
    real = NumberedObjects.create

    def create(self: NumberedObjects, number: int, data: bytes, commit_id: str, basis: Expected) -> object:
        return real(self, number, data, commit_id, replace(basis, root_seen=True))

    patch.setattr(NumberedObjects, "create", create)


def loser_does_not_look_before(patch: Patch) -> None:
    """A loser takes the object that won for part of the log, whatever lies before it."""
    patch.setattr(NumberedObjects, "_confirm", lambda self, answer, *given: answer)


# A file is uploaded between the look and the commit: time for the root to be replaced.
@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize(
    ("mutate", "seeds"),
    [
        (root_not_looked_at, range(50)),
        (root_seen_once_for_all, range(50)),
        (loser_does_not_look_before, range(50)),
    ],
)
def test_without_a_look_some_seed_fails(
    mutate: Callable[[Patch], None], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        test_replaced_root.sweep(seeds)


def ours_taken_for_lost(patch: Patch) -> None:
    """A lost answer counts as a lost race."""
    patch.setattr(numbered_objects, "peek_commit_id", lambda data: "somebody else's")
    patch.setattr(Advance, "with_id", lambda self, commit_id: None)


def no_age_test_on_the_answer(patch: Patch) -> None:
    """A create that succeeded counts, however long ago the newest number was seen."""
    patch.setattr(numbered_objects, "STALE_MS", 10**15)


@pytest.mark.parametrize(
    ("mutate", "profile", "seeds"),
    [(ours_taken_for_lost, "answers", 30), (no_age_test_on_the_answer, "collector", 100)],
)
def test_a_broken_rule_is_found(
    mutate: Callable[[Patch], None], profile: str, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((SimulationError, Exception)):
        all(run_seed(seed, profile=profile) for seed in range(seeds))
