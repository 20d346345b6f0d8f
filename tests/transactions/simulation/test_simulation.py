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
from tests.transactions.simulation.seeds import CACHES, run_seed

SEEDS = 600
CHUNK = 100
MANY = int(os.environ.get("SPARKLOG_SEEDS", "10000"))
MANY_FROM = 10_000
MANY_CHUNK = 1_000
CACHE_SEEDS = 50
CACHE_MANY = 600
REPLAY = (
    "{profile}SPARKLOG_SEED={seed} python -m pytest tests/transactions/simulation/test_simulation.py -k test_one_seed"
)


def check(seed: int, profile: str | None = None) -> Run:
    """Run a seed; a failure names the seed, how to replay it, and the end of its story."""
    worlds: list[World] = []
    try:
        return run_seed(seed, worlds, profile)
    except BaseException as error:
        story = "\n".join(worlds[0].trace[-60:]) if worlds else ""
        replay = REPLAY.format(seed=seed, profile="" if profile is None else f"SPARKLOG_PROFILE={profile} ")
        message = f"seed {seed}: {type(error).__name__}: {error}\nreplay: {replay}\n{story}"
        raise AssertionError(message) from error


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_whatever_the_seed_readers_see_all_of_a_transaction_or_none(first: int) -> None:
    found: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        found.update(check(seed).counters)
    for what in ("committed", "aborted", "batches", "joined", "polls", "resolved True"):
        assert found[what] > 10, f"the runs did too little to show anything: {found}"


def test_one_seed() -> None:
    run = check(int(os.environ.get("SPARKLOG_SEED", "7")), os.environ.get("SPARKLOG_PROFILE"))
    assert run.world.steps > 0
    if "SPARKLOG_SEED" in os.environ:
        print("\n".join(run.world.trace))
        print(dict(run.counters))


@pytest.mark.parametrize("profile", CACHES)
def test_whatever_a_machine_remembers_of_names_nothing_is_passed_over(profile: str) -> None:
    found: Counter[str] = Counter()
    for seed in range(CACHE_SEEDS):
        found.update(check(seed, profile).counters)
    for what in ("committed", "follower polls", "query batches", "batches planned again", "group looks"):
        assert found[what] > 10, f"the runs did too little to show anything: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("profile", CACHES)
def test_many_seeds_where_names_are_remembered(profile: str) -> None:
    for seed in range(MANY_FROM, MANY_FROM + CACHE_MANY):
        assert check(seed, profile).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(MANY_FROM, MANY_FROM + MANY, MANY_CHUNK))
def test_many_seeds(first: int) -> None:
    for seed in range(first, min(first + MANY_CHUNK, MANY_FROM + MANY)):
        assert check(seed).world.failure is None
