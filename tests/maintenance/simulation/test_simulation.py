"""Maintenance during appends, transactions, scans and deletions with injected faults, checked by an independent model.

The production code runs unchanged and writes real batches and indexes; only the store, the clocks and the order of
processes are simulated. For a failed seed, the test prints a command that repeats it.
`SPARKLOG_SEEDS=5000 python -m pytest -m slow tests/maintenance/simulation` runs more seeds.
"""

from __future__ import annotations

import re

import pytest

from sparklog.retention import vacuum
from tests.maintenance.simulation.seeds import MAINTENANCE
from tests.support import seeds as numbers
from tests.support.simulation.faults import LOST
from tests.support.simulation.sweeps import Sweep, sweeps

OF_JOBS = ("appends", "pieces seal", "pieces compact", "vacuums that deleted")
WHAT_HAPPENS = (
    *OF_JOBS,
    *("stalled writer refused", "transactions committed", "transactions aborted", "records deleted", "pieces merge"),
    *("races lost", "expired", "young plans read", "old plans read", "held plans read", "topics created again"),
)


@sweeps(
    Sweep("disk", numbers.MAINTENANCE, at_least=dict.fromkeys(WHAT_HAPPENS, 1), per_seed={"commits": 15}),
    Sweep(
        "bucket",
        numbers.MAINTENANCE_IN_A_BUCKET,
        settings=lambda seed: {"bucket": True},
        at_least=dict.fromkeys(OF_JOBS, 1),
    ),
    # The limit for inline records depends on the seed, so that some records are in commits and some in files.
    Sweep(
        "records in commits",
        numbers.MAINTENANCE_INLINE,
        settings=lambda seed: {"inline": 300 + seed % 3 * 200, "bucket": seed % 7 == 0},
        at_least=dict.fromkeys((*OF_JOBS, "files in memory", "pieces merge"), 1),
    ),
    # No job writes an object with the number of a lost object.
    Sweep(
        "lost objects",
        numbers.MAINTENANCE_LOST,
        LOST,
        settings=lambda seed: {"bucket": seed % 2 == 0},
        at_least={"lost": 1},
    ),
)
def test_maintenance_keeps_all_visible_records(sweep: Sweep, seeds: range) -> None:
    assert MAINTENANCE.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert MAINTENANCE.run_one() > 0


@pytest.mark.parametrize("seed", [2, 13])
def test_a_seed_is_one_run(seed: int) -> None:
    MAINTENANCE.assert_repeats(seed)


def test_a_failing_seed_prints_its_replay_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "_list_data_files", lambda *given: 1 // 0)
    with pytest.raises(AssertionError) as caught:  # noqa: PT012
        for seed in range(3):
            MAINTENANCE.run(seed)
    assert re.search(r"seed (\d+): ZeroDivisionError.*\nreplay: SPARKLOG_SEED=\1 python -m pytest ", str(caught.value))
