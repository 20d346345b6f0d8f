"""Random runs of a group's members under faults: no offset is left out, none is committed by two.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow
tests/groups/simulation` sweeps more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.groups.simulation.actors import MembersRun
from tests.groups.simulation.seeds import run_seed
from tests.support.replay import repeat_one_seed, replayable
from tests.support.seeds import MEMBERS, MEMBERS_IN_A_BUCKET, MEMBERS_LOST, MEMBERS_WITH_CACHES
from tests.support.simulation.faults import CACHES, LOST
from tests.support.simulation.scheduler import SimulatedWorld


def check(seed: int, profile: str | None = None, *, bucket: bool = False) -> MembersRun:
    worlds: list[SimulatedWorld] = []

    def story() -> list[str]:
        return worlds[0].trace[-60:] if worlds else []

    with replayable(seed, "tests/groups/simulation/test_simulation.py", story, profile=profile, bucket=bucket):
        return run_seed(seed, worlds, profile, bucket=bucket)


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", MEMBERS.few())
def test_whatever_the_seed_each_offset_is_committed_once(seeds: range) -> None:
    counters: Counter[str] = Counter()
    for seed in seeds:
        counters.update(check(seed).counters)
    for what in ("revoked", "transactions", "crashes", "member Fenced", "late commits refused", "more partitions"):
        assert counters[what] > 5, f"the runs did too little to show anything: {counters}"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", MEMBERS_LOST.few())
def test_after_a_loss_no_commit_takes_its_place(seeds: range) -> None:
    """Lost entries and commits are put back at the end: each offset is committed once, as without the loss."""
    counters: Counter[str] = Counter()
    for seed in seeds:
        counters.update(check(seed, LOST, bucket=seed % 2 == 0).counters)
    assert min(counters["lost"], counters["committed"]) > len(seeds) // 2, counters


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MEMBERS_LOST.many())
def test_many_seeds_with_losses(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, LOST, bucket=seed % 2 == 0).world.failure is None


def test_one_seed() -> None:
    profile, bucket = os.environ.get("SPARKLOG_PROFILE"), "SPARKLOG_BUCKET" in os.environ
    assert repeat_one_seed(lambda seed: check(seed, profile, bucket=bucket)) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("profile", CACHES)
@pytest.mark.parametrize("seeds", MEMBERS_WITH_CACHES.few())
def test_whatever_a_machine_remembers_of_names(profile: str, seeds: range) -> None:
    assert sum(check(seed, profile).counters.get("revoked", 0) for seed in seeds) > 3


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", MEMBERS_IN_A_BUCKET.few())
def test_in_a_bucket_as_well(seeds: range) -> None:
    assert sum(check(seed, bucket=True).counters.get("revoked", 0) for seed in seeds) > 3


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MEMBERS.many())
def test_many_seeds(seeds: range) -> None:
    for seed in seeds:
        assert check(seed).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("profile", CACHES)
@pytest.mark.parametrize("seeds", MEMBERS_WITH_CACHES.many())
def test_many_seeds_with_caches_of_names(profile: str, seeds: range) -> None:
    for seed in seeds:
        assert check(seed, profile).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MEMBERS_IN_A_BUCKET.many())
def test_many_seeds_in_a_bucket(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, bucket=True).world.failure is None
