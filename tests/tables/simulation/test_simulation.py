"""Simulated copies of a topic to a table (see `tests.tables.simulation.model`)."""

from __future__ import annotations

from tests.support import seeds as numbers
from tests.support.simulation.sweeps import Simulation, Sweep, sweeps
from tests.tables.simulation.model import CONTENDED, REJECTED, ROOT_CONTENDED, CopyRun

COPIES = Simulation(CopyRun, "tests/tables/simulation/test_simulation.py")


@sweeps(
    Sweep(
        "copies",
        numbers.TABLE_COPIES,
        per_seed=dict.fromkeys(("commits", "copied records"), 1),
        at_least=dict.fromkeys(
            (
                *("conflicts", "lost responses", "late commits", "late conflicts", "compacted", "crashes"),
                *("divided intervals", "repeated attempts"),
            ),
            1,
        ),
    ),
    Sweep(
        "rejected copies",
        numbers.REJECTED_TABLE_COPIES,
        profile=REJECTED,
        per_seed=dict.fromkeys(("commits", "copied records"), 1),
        at_least={"rejected copies": 1},
    ),
    *(
        Sweep(
            f"copies {profile}",
            numbers.CONTENDED_TABLE_COPIES,
            profile=profile,
            per_seed=dict.fromkeys(("commits", "copied records"), 1),
            at_least=dict.fromkeys(("conflicts", counter), 1),
        )
        for profile, counter in ((CONTENDED, "crashes"), (ROOT_CONTENDED, "expired"))
    ),
    *(
        Sweep(
            f"copies {profile}",
            numbers.TABLE_COPIES_IN_ROOT,
            profile=profile,
            per_seed=dict.fromkeys(("commits", "copied records"), 1),
            at_least=dict.fromkeys(("conflicts", "lost responses", "compacted", "crashes"), 1),
        )
        for profile in ("root append", "root upsert")
    ),
)
def test_each_record_is_copied_once(sweep: Sweep, seeds: range) -> None:
    assert COPIES.sweep(sweep, seeds)


def test_a_seed_is_one_run() -> None:
    first, second = (COPIES.run(5) for _ in range(2))
    assert first.world.trace == second.world.trace
    assert first.table.catalog.rows() == second.table.catalog.rows()


def test_one_seed() -> None:
    assert COPIES.run_one() > 0
