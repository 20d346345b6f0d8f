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
from sparklog.storage import parallel_reads
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from tests.log.simulation.seeds import LOG
from tests.log.simulation.test_replaced_root import ON_DISK, REPLACED
from tests.support.seeds import Seeds
from tests.support.simulation.sweeps import BrokenRule, Patch, Sweep, broken_rules, sweeps

T = TypeVar("T")
R = TypeVar("R")


@pytest.fixture(autouse=True)
def _round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "parallel_reads", 16)
    for module in (numbered_objects, parallel_reads):
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


@sweeps(Sweep("log", Seeds(15, 2_000, 15, 500)))
def test_commits_follow_the_protocol_in_each_run(sweep: Sweep, seeds: range) -> None:
    assert LOG.sweep(sweep, seeds)


@sweeps(replace(ON_DISK, seeds=Seeds(50, 2_000, 50, 500)))
def test_no_acknowledged_write_is_lost_when_a_root_is_replaced(sweep: Sweep, seeds: range) -> None:
    assert REPLACED.sweep(sweep, seeds)


def root_not_looked_at(patch: Patch) -> None:
    patch.setattr(NumberedObjects, "_check_root", lambda *given, **named: None)
    patch.setattr(NumberedObjects, "_is_root", lambda self: True)


def root_seen_once_for_all(patch: Patch) -> None:
    """The look of a write counts for all later ones."""
    real = NumberedObjects.create

    def create(self: NumberedObjects, number: int, data: bytes, commit_id: str, basis: Expected) -> object:
        return real(self, number, data, commit_id, replace(basis, is_root_checked=True))

    patch.setattr(NumberedObjects, "create", create)


def loser_does_not_look_before(patch: Patch) -> None:
    """A loser takes the object that won for part of the log, whatever lies before it."""
    patch.setattr(NumberedObjects, "_confirm", lambda self, answer, *given: answer)


# A file is uploaded between the check and the commit, so that the root can be replaced in between.
@pytest.mark.usefixtures("records_in_files")
@broken_rules(
    *(
        BrokenRule(rule, None, range(50))
        for rule in (root_not_looked_at, root_seen_once_for_all, loser_does_not_look_before)
    )
)
def test_some_seed_with_a_replaced_root_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    REPLACED.assert_fails(rule, monkeypatch)


def ours_taken_for_lost(patch: Patch) -> None:
    """A lost answer counts as a lost race."""
    patch.setattr(numbered_objects, "peek_commit_id", lambda data: "somebody else's")
    patch.setattr(Advance, "with_id", lambda self, commit_id: None)


def no_age_test_on_the_answer(patch: Patch) -> None:
    """A create that succeeded counts, however long ago the newest number was seen."""
    patch.setattr(numbered_objects, "STALE_MS", 10**15)


@broken_rules(
    BrokenRule(ours_taken_for_lost, "answers", range(30)),
    BrokenRule(no_age_test_on_the_answer, "collector", range(100)),
)
def test_some_seed_of_the_log_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    LOG.assert_fails(rule, monkeypatch)
