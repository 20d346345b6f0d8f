"""Many stories by seed; a few here, more by hand: `python -m tests.tools.backup.simulation.test_simulation 0 5000`."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext

import pytest

from sparklog.errors import SparklogError
from sparklog.log.journal.clocks import Env
from sparklog.storage.store import Store
from sparklog.tools.backup import backing_up, copying, repository
from tests.log.simulation.simulated_world import SimulationError
from tests.support.seeds import BACKUPS, BACKUPS_IN_A_BUCKET, BACKUPS_INLINE, BACKUPS_WITH_CACHES
from tests.tools.backup.simulation.workload import run


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", BACKUPS.few())
def test_whatever_the_seed_what_is_restored_is_consistent(seeds: range) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(run(seed).counters)
    wanted = ("backups", "deaths", "transactions", "vacuums that deleted", "times restored", "clones")
    assert all(total[what] for what in wanted), total


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", BACKUPS_IN_A_BUCKET.few())
def test_whatever_the_seed_in_a_bucket_as_well(seeds: range) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(run(seed, bucket=True).counters)
    assert all(total[what] for what in ("backups", "deaths", "prunes", "transactions", "times restored")), total


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", BACKUPS_INLINE.few())
def test_whatever_the_seed_with_records_in_commits_as_well(seeds: range) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(run(seed, inline=1000, bucket=seed % 4 == 3).counters)
    assert all(total[what] for what in ("backups", "transactions", "times restored", "clones")), total


@pytest.mark.slow
@pytest.mark.parametrize("seeds", BACKUPS_INLINE.many())
def test_more_seeds_with_records_in_commits(seeds: range) -> None:
    for seed in seeds:
        assert run(seed, inline=1000, bucket=seed % 4 == 3).counters


@pytest.mark.sweep
def test_a_seed_is_one_story() -> None:
    assert run(2).world.trace == run(2).world.trace


@pytest.mark.parametrize(("seed", "caches"), [(16, "folders"), (19, "names"), (10_006, "names")])
def test_where_the_machine_that_makes_backups_remembers_names(seed: int, caches: str) -> None:
    assert run(seed, caches).counters["backups"]


@pytest.mark.sweep
@pytest.mark.parametrize("bucket", [False, True])
def test_a_false_answer_that_is_believed_shows_in_a_bucket_alone(bucket: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that a manifest names, or the mark of a run, is not there although the store said that it exists."""

    def heedless(store: Store, key: str, data: bytes, env: Env) -> None:
        store.create(key, data)

    for module in (repository, backing_up, copying):
        monkeypatch.setattr(module, "create_or_read", heedless)
    with pytest.raises((SparklogError, SimulationError)) if bucket else nullcontext():
        for seed in (4, 8, 15):
            assert run(seed, bucket=bucket).counters


@pytest.mark.slow
@pytest.mark.parametrize("caches", ["names", "folders"])
@pytest.mark.parametrize("seeds", BACKUPS_WITH_CACHES.many())
def test_more_seeds_where_names_are_remembered(seeds: range, caches: str) -> None:
    for seed in seeds:
        assert run(seed, caches).counters


@pytest.mark.slow
@pytest.mark.parametrize("seeds", BACKUPS_IN_A_BUCKET.many())
def test_more_seeds_in_a_bucket(seeds: range) -> None:
    for seed in seeds:
        assert run(seed, bucket=True).counters


@pytest.mark.slow
@pytest.mark.parametrize("seeds", BACKUPS.many())
def test_more_seeds(seeds: range) -> None:
    """In parts: each a minute or two where nothing else runs, far below pytest's timeout where much does."""
    for seed in seeds:
        assert run(seed).counters


if __name__ == "__main__":
    counted: Counter[str] = Counter()
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            counted.update(run(number).counters)
        except BaseException as error:
            print("seed", number, type(error).__name__, error, flush=True)
            raise
    print(dict(counted))
