"""Random interleavings of transactions under faults, judged by an independent ledger.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow
tests/transactions/simulation` sweeps more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.log.simulation.world import World
from tests.transactions.simulation.actors import Run
from tests.transactions.simulation.seeds import run_seed

SEEDS = 600
CHUNK = 100
MANY = int(os.environ.get("SPARKLOG_SEEDS", "10000"))
MANY_FROM = 10_000
MANY_CHUNK = 1_000
REPLAY = "SPARKLOG_SEED={seed} python -m pytest tests/transactions/simulation/test_simulation.py -k test_one_seed"


def check(seed: int) -> Run:
    """Run a seed; a failure names the seed, how to replay it, and the end of its story."""
    worlds: list[World] = []
    try:
        return run_seed(seed, worlds)
    except BaseException as error:
        story = "\n".join(worlds[0].trace[-60:]) if worlds else ""
        message = f"seed {seed}: {type(error).__name__}: {error}\nreplay: {REPLAY.format(seed=seed)}\n{story}"
        raise AssertionError(message) from error


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_whatever_the_seed_readers_see_all_of_a_transaction_or_none(first: int) -> None:
    found: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        found.update(check(seed).counters)
    for what in ("committed", "aborted", "batches", "joined", "polls", "resolved True"):
        assert found[what] > 10, f"the runs did too little to show anything: {found}"


def test_one_seed() -> None:
    run = check(int(os.environ.get("SPARKLOG_SEED", "7")))
    assert run.world.steps > 0
    if "SPARKLOG_SEED" in os.environ:
        print("\n".join(run.world.trace))
        print(dict(run.counters))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(MANY_FROM, MANY_FROM + MANY, MANY_CHUNK))
def test_many_seeds(first: int) -> None:
    for seed in range(first, min(first + MANY_CHUNK, MANY_FROM + MANY)):
        assert check(seed).world.failure is None
