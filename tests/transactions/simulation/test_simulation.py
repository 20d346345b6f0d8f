"""Random interleavings of transactions under faults, judged by an independent ledger.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow
tests/transactions/simulation` sweeps more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.log.simulation.seeds import LOST
from tests.log.simulation.simulated_world import SimulatedWorld
from tests.support.replay import repeat_one_seed, replayable
from tests.support.seeds import (
    TRANSACTIONS,
    TRANSACTIONS_HIDDEN,
    TRANSACTIONS_IN_A_BUCKET,
    TRANSACTIONS_INLINE,
    TRANSACTIONS_LOST,
    TRANSACTIONS_WITH_CACHES,
    TRANSACTIONS_WITH_DELETIONS,
)
from tests.transactions.simulation.actors import Run
from tests.transactions.simulation.deletions import DELETIONS
from tests.transactions.simulation.seeds import CACHES, HIDDEN, run_seed


def check(seed: int, profile: str | None = None, *, bucket: bool = False, inline: int = 0) -> Run:
    """Run a seed; a failure names the seed, how to replay it, and the end of its story."""
    worlds: list[SimulatedWorld] = []

    def story() -> list[str]:
        return worlds[0].trace[-60:] if worlds else []

    how = {"profile": profile, "bucket": bucket, "inline": inline or None}
    with replayable(seed, "tests/transactions/simulation/test_simulation.py", story, **how):
        return run_seed(seed, worlds, profile, bucket=bucket, inline=inline)


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", TRANSACTIONS.few())
def test_whatever_the_seed_readers_see_all_of_a_transaction_or_none(seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(check(seed).counters)
    for what in ("committed", "aborted", "batches", "joined", "polls", "resolved True"):
        assert found[what] > 10, f"the runs did too little to show anything: {found}"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", TRANSACTIONS_LOST.few())
def test_after_a_loss_nothing_is_written_in_its_place(seeds: range) -> None:
    """Lost entries and commits are put back at the end, and all that was acknowledged is whole."""
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(check(seed, LOST, bucket=seed % 2 == 0).counters)
    assert min(found["lost"], found["committed"], found["polls"]) > len(seeds) // 2, found


@pytest.mark.slow
@pytest.mark.parametrize("seeds", TRANSACTIONS_LOST.many())
def test_many_seeds_with_losses(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, LOST, bucket=seed % 2 == 0).world.failure is None


def test_one_seed() -> None:
    profile, bucket = os.environ.get("SPARKLOG_PROFILE"), "SPARKLOG_BUCKET" in os.environ
    inline = int(os.environ.get("SPARKLOG_INLINE", "0"))
    assert repeat_one_seed(lambda seed: check(seed, profile, bucket=bucket, inline=inline)) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", TRANSACTIONS_INLINE.few())
def test_with_records_in_commits_as_well(seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        run = check(seed, inline=700, bucket=seed % 4 == 0)
        found.update(run.counters)
        found["in memory"] += sum(file.path.startswith("in") for files in run.ledger.files.values() for file in files)
    for what in ("in memory", "committed", "aborted", "batches", "joined", "polls", "resolved True"):
        assert found[what] > 2, f"the runs did too little to show anything: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", TRANSACTIONS_INLINE.many())
def test_many_seeds_with_records_in_commits(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, inline=700, bucket=seed % 4 == 0).world.failure is None


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", TRANSACTIONS_IN_A_BUCKET.few())
def test_in_a_bucket_as_well(seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(check(seed, bucket=True).counters)
    for what in ("committed", "aborted", "batches", "joined", "polls", "resolved True", "loop committed"):
        assert found[what] > 2, f"the runs did too little to show anything: {found}"


@pytest.mark.sweep
@pytest.mark.parametrize("profile", CACHES)
@pytest.mark.parametrize("seeds", TRANSACTIONS_WITH_CACHES.few())
def test_whatever_a_machine_remembers_of_names_nothing_is_passed_over(profile: str, seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(check(seed, profile).counters)
    for what in ("committed", "follower polls", "query batches", "batches planned again", "group looks"):
        assert found[what] > 10, f"the runs did too little to show anything: {found}"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", TRANSACTIONS_WITH_DELETIONS.few())
def test_while_a_topic_of_transactions_is_deleted_and_created_again(seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(check(seed, DELETIONS).counters)
    for what in ("remade", "side committed", "side aborted", "side polls"):
        assert found[what] > 5, f"the runs did too little to show anything: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", TRANSACTIONS_WITH_DELETIONS.many())
def test_many_seeds_with_deletions(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, DELETIONS).world.failure is None


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", TRANSACTIONS_HIDDEN.few())
def test_whatever_a_mount_hides_for_minutes_a_stream_passes_over_nothing(seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(check(seed, HIDDEN).counters)
    for what in ("follower polls", "query batches", "batches planned again", "query Unavailable"):
        assert found[what] > 5, f"the runs did too little to show anything: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", TRANSACTIONS_HIDDEN.many())
def test_many_seeds_where_a_mount_hides_for_minutes(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, HIDDEN).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("profile", CACHES)
@pytest.mark.parametrize("seeds", TRANSACTIONS_WITH_CACHES.many())
def test_many_seeds_where_names_are_remembered(profile: str, seeds: range) -> None:
    for seed in seeds:
        assert check(seed, profile).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", TRANSACTIONS.many())
def test_many_seeds(seeds: range) -> None:
    for seed in seeds:
        assert check(seed).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", TRANSACTIONS_IN_A_BUCKET.many())
def test_many_seeds_in_a_bucket(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, bucket=True).world.failure is None
