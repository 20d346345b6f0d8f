"""Random interleavings of the commit protocol under faults, judged by an independent model.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow tests/log/simulation`
sweeps more.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from sparklog.log.journal import numbered_objects
from tests.log.simulation.seeds import LOST, run_seed
from tests.log.simulation.simulated_world import SimulatedWorld
from tests.log.simulation.workload import Run
from tests.support.replay import repeat_one_seed, replayable
from tests.support.seeds import LOG, LOG_IN_A_BUCKET, LOG_INLINE, LOG_LOST

MET = ("acked", "batches", "replays skipped", "fenced", "snapshots", "checkpoints", "collected", "delete")


INLINE_BYTES = 350
"""Two made-up slices and less go into the commit, where its tasks have not written them."""


def check(seed: int, profile: str | None = None, *, bucket: bool = False, inline: int = 0) -> Run:
    """Run a seed; a failure names the seed, how to replay it, and the end of its story."""
    worlds: list[SimulatedWorld] = []

    def story() -> list[str]:
        return worlds[0].trace[-40:] if worlds else []

    how = {"profile": profile, "bucket": bucket, "inline": inline or None}
    with replayable(seed, "tests/log/simulation/test_simulation.py", story, **how):
        return run_seed(seed, worlds, profile, bucket=bucket, inline=inline)


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", LOG.few())
def test_seeds(seeds: range) -> None:
    """No run breaks a promise, and together they meet what they are meant to meet."""
    met: Counter[str] = Counter()
    for seed in seeds:
        run = check(seed)
        met.update(run.counters)
        met["commits"] += run.model.commits
        met["checkpoints"] += run.model.checkpoints
    assert met["commits"] > 5 * len(seeds), "the runs did too little to show anything"
    missing = [what for what in MET if met[what] == 0]
    assert not missing, f"no run had any of {missing}: {dict(met)}"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", LOG_IN_A_BUCKET.few())
def test_seeds_in_a_bucket(seeds: range) -> None:
    commits = sum(check(seed, bucket=True).model.commits for seed in seeds)
    assert commits > 5 * len(seeds), "the runs did too little to show anything"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", LOG_INLINE.few())
def test_seeds_with_records_in_commits(seeds: range) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        met.update(check(seed, inline=INLINE_BYTES, bucket=seed % 4 == 0).counters)
    assert met["in commits"] > len(seeds)
    assert met["by the driver"] > 0


def lost(seeds: range) -> Counter[str]:
    met: Counter[str] = Counter()
    for seed in seeds:
        met.update(check(seed, LOST, bucket=seed % 4 == 0, inline=INLINE_BYTES if seed % 2 else 0).counters)
    return met


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", LOG_LOST.few())
def test_after_a_loss_all_answers_are_right_or_named_errors(seeds: range) -> None:
    """A write that is acknowledged is in the log, and no snapshot differs from what the log was at its version."""
    met = lost(seeds)
    assert min(met["lost"], met["acked"], met["snapshots"]) > len(seeds) // 4, met
    assert met["append Corrupt"] + met["stream Corrupt"] + met["reader Corrupt"] > 1, met


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LOG_LOST.many())
def test_many_seeds_with_losses(seeds: range) -> None:
    assert lost(seeds)["lost"] > 0


def test_one_seed() -> None:
    profile, bucket = os.environ.get("SPARKLOG_PROFILE"), "SPARKLOG_BUCKET" in os.environ
    inline = int(os.environ.get("SPARKLOG_INLINE", "0"))
    assert repeat_one_seed(lambda seed: check(seed, profile, bucket=bucket, inline=inline)) > 0


@pytest.mark.parametrize("seed", [21844])
def test_seeds_that_failed_once(seed: int) -> None:
    """21844: delete-records answered after a stall, when the topic had been deleted."""
    assert check(seed).world.failure is None


def test_a_failing_seed_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_objects, "peek_commit_id", lambda data: 1 // 0)
    with pytest.raises(AssertionError) as caught:  # noqa: PT012
        for seed in range(20):
            check(seed)
    assert re.search(r"seed (\d+): ZeroDivisionError.*\nreplay: SPARKLOG_SEED=\1 python -m pytest ", str(caught.value))


def test_a_seed_is_one_run() -> None:
    for seed in (3, 11, 42):
        first, second = (check(seed, bucket=seed == 3) for _ in range(2))
        assert first.world.trace == second.world.trace
        assert first.world.store.snapshot() == second.world.store.snapshot()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LOG.many())
def test_many_seeds(seeds: range) -> None:
    for seed in seeds:
        assert check(seed).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LOG_IN_A_BUCKET.many())
def test_many_seeds_in_a_bucket(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, bucket=True).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LOG_INLINE.many())
def test_many_seeds_with_records_in_commits(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, inline=INLINE_BYTES, bucket=seed % 4 == 0).world.failure is None
