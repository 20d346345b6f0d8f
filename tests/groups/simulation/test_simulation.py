"""Random runs of the members of a group under faults. No offset is skipped or committed twice.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow
tests/groups/simulation` runs more seeds.
"""

from __future__ import annotations

from tests.groups.simulation.seeds import MEMBERS
from tests.support import seeds as numbers
from tests.support.seeds import Seeds
from tests.support.simulation.faults import CACHES, LOST
from tests.support.simulation.sweeps import Sweep, sweeps

WHAT_HAPPENS = ("revoked", "transactions", "crashes", "member Fenced", "late commits refused", "more partitions")


@sweeps(
    Sweep("disk", numbers.MEMBERS, at_least=dict.fromkeys(WHAT_HAPPENS, 6)),
    Sweep("bucket", numbers.MEMBERS_IN_A_BUCKET, settings=lambda seed: {"bucket": True}, at_least={"revoked": 4}),
    # Lost entries and commits are restored at the end. Each offset is committed once, as without the loss.
    Sweep(
        "lost objects",
        numbers.MEMBERS_LOST,
        LOST,
        settings=lambda seed: {"bucket": seed % 2 == 0},
        per_seed=dict.fromkeys(("lost", "committed"), 0.6),
    ),
    *(Sweep(f"cached {profile}", numbers.MEMBERS_WITH_CACHES, profile, at_least={"revoked": 4}) for profile in CACHES),
    *(Sweep(profile, Seeds(3, 8, 3, 8), profile) for profile in ("answers", "calm", "crashes", "stalls")),
)
def test_each_offset_is_committed_once(sweep: Sweep, seeds: range) -> None:
    assert MEMBERS.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert MEMBERS.run_one() > 0
