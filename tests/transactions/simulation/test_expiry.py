"""Random runs of months in which transactional ids expire, and rules of expiry that are broken on purpose.

`SPARKLOG_SEEDS=2000 python -m pytest -m slow tests/transactions/simulation/test_expiry.py` sweeps more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from sparklog.errors import SparklogError
from sparklog.log.decisions.decision import Decisions
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.transactions import completion
from tests.log.simulation.simulated_world import SimulatedWorld, SimulationError
from tests.support.replay import repeat_one_seed, replayable
from tests.support.seeds import EXPIRY
from tests.transactions.simulation.actors import Run
from tests.transactions.simulation.expiry import run_expiry

Patch = pytest.MonkeyPatch


def check(seed: int, profile: str | None = None) -> Run:
    """Run a seed; a failure names the seed, how to replay it, and the end of its story."""
    worlds: list[SimulatedWorld] = []

    def story() -> list[str]:
        return worlds[0].trace[-60:] if worlds else []

    with replayable(seed, "tests/transactions/simulation/test_expiry.py", story, profile=profile):
        return run_expiry(seed, profile, worlds)


def test_one_seed() -> None:
    assert repeat_one_seed(lambda seed: check(seed, os.environ.get("SPARKLOG_PROFILE"))) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", EXPIRY.few())
def test_whatever_sleeps_or_dies_no_commit_is_lost(seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(check(seed).counters)
    for what in ("expired", "deleted", "committed", "aborted", "batches", "polls", "crashes"):
        assert found[what] > 4, f"the runs did too little to show anything: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", EXPIRY.many())
def test_many_seeds(seeds: range) -> None:
    for seed in seeds:
        assert check(seed).world.failure is None


def numbers_begin_again(patch: Patch) -> None:
    """Who finds no journal begins one, and does not look into the register."""
    patch.setattr(DecisionLog, "_archived_entry", lambda self: None)


def all_of_the_folder_goes(patch: Patch) -> None:
    """The objects of an expired id are deleted whatever their numbers are."""
    real = completion.entry_in

    def newest(register: Decisions, name: str) -> Decisions | None:
        entry = real(register, name)
        return None if entry is None else replace(entry, number=10**6)

    patch.setattr(completion, "entry_in", newest)


MUTANTS: list[tuple[Callable[[Patch], None], str, int]] = [
    (numbers_begin_again, "calm", 10),
    (all_of_the_folder_goes, "calm", 20),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("mutate", "profile", "seeds"), MUTANTS)
def test_a_broken_rule_is_found(mutate: Callable[[Patch], None], profile: str, seeds: int, monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    with pytest.raises((SimulationError, SparklogError)):
        assert not [seed for seed in range(seeds) if run_expiry(seed, profile).world.failure]
