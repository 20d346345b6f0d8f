"""Random runs of months in which transactional ids expire, and runs with broken rules of expiry.

`SPARKLOG_SEEDS=2000 python -m pytest -m slow tests/transactions/simulation/test_expiry.py` runs more seeds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.log.decisions.decision import Decisions
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.transactions import completion
from tests.support.seeds import EXPIRY as EXPIRY_SEEDS
from tests.support.simulation.sweeps import BrokenRule, Patch, Sweep, broken_rules, sweeps
from tests.transactions.simulation.expiry import EXPIRY


@sweeps(
    Sweep(
        "months",
        EXPIRY_SEEDS,
        at_least=dict.fromkeys(("expired", "deleted", "committed", "aborted", "batches", "polls", "crashes"), 5),
    )
)
def test_no_commit_is_lost_when_ids_expire(sweep: Sweep, seeds: range) -> None:
    assert EXPIRY.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert EXPIRY.run_one() > 0


def numbers_begin_again(patch: Patch) -> None:
    """A process that finds no journal starts a new one, without reading the archive."""
    patch.setattr(DecisionLog, "_archived_entry", lambda self: None)


def all_of_the_folder_goes(patch: Patch) -> None:
    """All objects of an expired id are deleted, regardless of their numbers."""
    real = completion.entry_in

    def newest(register: Decisions, name: str) -> Decisions | None:
        entry = real(register, name)
        return None if entry is None else replace(entry, number=10**6)

    patch.setattr(completion, "entry_in", newest)


@pytest.mark.sweep
@broken_rules(BrokenRule(numbers_begin_again, "calm", range(10)), BrokenRule(all_of_the_folder_goes, "calm", range(20)))
def test_a_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    EXPIRY.assert_fails(rule, monkeypatch)
