"""Backups of a root in use, checked by restoring each of them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest

from sparklog.log.journal.clocks import Env
from sparklog.storage.store import Store
from sparklog.tools.backup import backing_up, copying, repository
from tests.support import seeds as numbers
from tests.support.simulation.faults import CACHES
from tests.support.simulation.sweeps import Sweep, sweeps
from tests.tools.backup.simulation.workload import BACKUPS

RESTORED = dict.fromkeys(("backups", "transactions", "times restored"), 1)


@sweeps(
    Sweep("disk", numbers.BACKUPS, at_least={**RESTORED, "deaths": 1, "vacuums that deleted": 1, "clones": 1}),
    Sweep(
        "bucket",
        numbers.BACKUPS_IN_A_BUCKET,
        settings=lambda seed: {"bucket": True},
        at_least={**RESTORED, "deaths": 1, "prunes": 1},
    ),
    Sweep(
        "records in commits",
        numbers.BACKUPS_INLINE,
        settings=lambda seed: {"inline": 1000, "bucket": seed % 4 == 3},
        at_least={**RESTORED, "clones": 1},
    ),
    *(Sweep(f"cached {profile}", numbers.BACKUPS_WITH_CACHES, profile) for profile in CACHES),
)
def test_restored_root_is_consistent(sweep: Sweep, seeds: range) -> None:
    assert BACKUPS.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert BACKUPS.run_one() > 0


@pytest.mark.sweep
def test_a_seed_is_one_run() -> None:
    BACKUPS.assert_repeats(2)


@pytest.mark.parametrize(("seed", "profile"), [(16, "folders"), (19, "names"), (10_006, "names")])
def test_backups_with_a_name_cache(seed: int, profile: str) -> None:
    assert BACKUPS.run(seed, profile).counters["backups"]


@pytest.mark.sweep
@pytest.mark.parametrize("bucket", [False, True])
def test_trusting_a_false_exists_only_breaks_backups_in_a_bucket(bucket: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of a manifest or the mark of a run is missing, although the store reported that it exists."""

    def heedless(store: Store, key: str, data: bytes, env: Env) -> None:
        store.create(key, data)

    for module in (repository, backing_up, copying):
        monkeypatch.setattr(module, "create_or_read", heedless)
    run = partial(BACKUPS.run, bucket=bucket)
    with pytest.raises(AssertionError, match="seed") if bucket else nullcontext():
        for seed in (4, 8, 15):
            assert run(seed).counters
