"""Random interleavings of transactions under faults, checked by an independent ledger.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow
tests/transactions/simulation` runs more seeds.
"""

from __future__ import annotations

from tests.support import seeds as numbers
from tests.support.seeds import Seeds
from tests.support.simulation.faults import CACHES, LOST
from tests.support.simulation.sweeps import Sweep, sweeps
from tests.transactions.simulation.deletions import DELETIONS
from tests.transactions.simulation.seeds import HIDDEN, TRANSACTIONS

WHAT_HAPPENS = ("committed", "aborted", "batches", "joined", "polls", "resolved True")
OF_FOLLOWERS = ("follower polls", "query batches", "batches planned again")


@sweeps(
    Sweep("disk", numbers.TRANSACTIONS, at_least=dict.fromkeys(WHAT_HAPPENS, 11)),
    Sweep(
        "bucket",
        numbers.TRANSACTIONS_IN_A_BUCKET,
        settings=lambda seed: {"bucket": True},
        at_least=dict.fromkeys((*WHAT_HAPPENS, "loop committed"), 3),
    ),
    Sweep(
        "records in commits",
        numbers.TRANSACTIONS_INLINE,
        settings=lambda seed: {"inline": 700, "bucket": seed % 4 == 0},
        at_least=dict.fromkeys((*WHAT_HAPPENS, "in memory"), 3),
    ),
    # Lost entries and commits are restored at the end, and all acknowledged transactions are complete.
    Sweep(
        "lost objects",
        numbers.TRANSACTIONS_LOST,
        LOST,
        settings=lambda seed: {"bucket": seed % 2 == 0},
        per_seed=dict.fromkeys(("lost", "committed", "polls"), 0.6),
    ),
    *(
        Sweep(
            f"cached {profile}",
            numbers.TRANSACTIONS_WITH_CACHES,
            profile,
            at_least=dict.fromkeys(("committed", "group looks", *OF_FOLLOWERS), 11),
        )
        for profile in CACHES
    ),
    Sweep(
        "names hidden for minutes",
        numbers.TRANSACTIONS_HIDDEN,
        HIDDEN,
        at_least=dict.fromkeys(("query Unavailable", *OF_FOLLOWERS), 6),
    ),
    Sweep(
        "deleted topics",
        numbers.TRANSACTIONS_WITH_DELETIONS,
        DELETIONS,
        at_least=dict.fromkeys(("remade", "side committed", "side aborted", "side polls"), 6),
    ),
    *(
        Sweep(profile, Seeds(3, 8, 3, 8), profile)
        for profile in ("answers", "calm", "crashes", "folders", "names", "zombies")
    ),
)
def test_readers_see_all_of_a_transaction_or_none(sweep: Sweep, seeds: range) -> None:
    assert TRANSACTIONS.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert TRANSACTIONS.run_one() > 0
