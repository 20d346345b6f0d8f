"""Maintenance while appends, transactions, scans and deletions go on, under faults, judged by an independent model.

The code is the real one, down to the bytes of batches and indexes; only the store, the clocks and the order in which
processes run are simulated. A failing seed prints the command that replays it.
`SPARKLOG_SEEDS=5000 python -m pytest -m slow tests/maintenance/simulation` sweeps more.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from sparklog.retention import vacuum
from tests.log.simulation.seeds import LOST
from tests.maintenance.simulation.seeds import run_seed
from tests.maintenance.simulation.workload import Run
from tests.support.replay import repeat_one_seed, replayable
from tests.support.seeds import MAINTENANCE, MAINTENANCE_IN_A_BUCKET, MAINTENANCE_INLINE, MAINTENANCE_LOST

MET = (
    *("appends", "stalled writer refused", "transactions committed", "transactions aborted", "records deleted"),
    *("pieces seal", "pieces merge", "pieces compact", "races lost", "expired", "vacuums that deleted"),
    *("young plans read", "old plans read", "held plans read", "topics created again"),
)


def check(seed: int, profile: str | None = None, *, bucket: bool = False, inline: int = 0) -> Run:
    """Run a seed; a failure names the seed, how to replay it, and the end of its story."""
    runs: list[Run] = []

    def story() -> list[str]:
        return [str(dict(runs[0].configs)), *runs[0].world.trace[-40:]] if runs else []

    with replayable(
        seed,
        "tests/maintenance/simulation/test_simulation.py",
        story,
        profile=profile,
        bucket=bucket,
        inline=inline or None,
    ):
        return run_seed(seed, runs, profile, bucket=bucket, inline=inline)


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", MAINTENANCE.few())
def test_seeds(seeds: range) -> None:
    met: Counter[str] = Counter()
    commits = 0
    for seed in seeds:
        run = check(seed)
        met.update(run.counters)
        commits += run.model.commits
    assert commits > 15 * len(seeds), "the runs did too little to show anything"
    missing = [what for what in MET if met[what] == 0]
    assert not missing, f"no run had any of {missing}: {dict(met)}"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", MAINTENANCE_LOST.few())
def test_after_a_loss_no_job_writes_in_its_place(seeds: range) -> None:
    assert sum(check(seed, LOST, bucket=seed % 2 == 0).counters["lost"] for seed in seeds) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MAINTENANCE_LOST.many())
def test_many_seeds_with_losses(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, LOST, bucket=seed % 2 == 0).world.failure is None


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", MAINTENANCE_IN_A_BUCKET.few())
def test_seeds_in_a_bucket(seeds: range) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        met.update(check(seed, bucket=True).counters)
    missing = [what for what in ("appends", "pieces seal", "pieces compact", "vacuums that deleted") if not met[what]]
    assert not missing, f"no run had any of {missing}: {dict(met)}"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", MAINTENANCE_INLINE.few())
def test_seeds_with_records_in_commits(seeds: range) -> None:
    """Some records are in commits and some in files, by a bound that the seed gives."""
    met: Counter[str] = Counter()
    for seed in seeds:
        met.update(check(seed, inline=300 + seed % 3 * 200, bucket=seed % 7 == 0).counters)
    names = ("files in memory", "appends", "pieces seal", "pieces merge", "pieces compact", "vacuums that deleted")
    missing = [what for what in names if not met[what]]
    assert not missing, f"no run had any of {missing}: {dict(met)}"


def test_one_seed() -> None:
    profile, bucket = os.environ.get("SPARKLOG_PROFILE"), "SPARKLOG_BUCKET" in os.environ
    inline = int(os.environ.get("SPARKLOG_INLINE", "0"))
    assert repeat_one_seed(lambda seed: check(seed, profile, bucket=bucket, inline=inline)) > 0


def test_a_seed_is_one_run() -> None:
    for seed in (2, 13):
        first, second = check(seed), check(seed)
        assert first.world.trace == second.world.trace
        assert first.store.snapshot() == second.store.snapshot()


def test_a_failing_seed_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "_list_data_files", lambda *given: 1 // 0)
    with pytest.raises(AssertionError) as caught:  # noqa: PT012
        for seed in range(3):
            check(seed)
    assert re.search(r"seed (\d+): ZeroDivisionError.*\nreplay: SPARKLOG_SEED=\1 python -m pytest ", str(caught.value))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MAINTENANCE.many())
def test_many_seeds(seeds: range) -> None:
    for seed in seeds:
        assert check(seed).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MAINTENANCE_IN_A_BUCKET.many())
def test_many_seeds_in_a_bucket(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, bucket=True).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MAINTENANCE_INLINE.many())
def test_many_seeds_with_records_in_commits(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, inline=300 + seed % 3 * 200, bucket=seed % 7 == 0).world.failure is None
