"""Random runs of a group with members of the root and clients of servers. No offset is skipped or committed twice."""

from __future__ import annotations

from tests.groups.simulation.seeds import MIXED
from tests.support import seeds as numbers
from tests.support.seeds import Seeds
from tests.support.simulation.faults import CACHES
from tests.support.simulation.sweeps import Sweep, sweeps

WHAT_HAPPENS = (
    *("owner committed", "owners replaced", "joined members of the root", "classic members committed"),
    *("classic members rejoined", "late commits of clients refused", "classic members fenced", "crashes"),
)


@sweeps(
    Sweep("disk", numbers.MIXED_MEMBERS, at_least=dict.fromkeys(WHAT_HAPPENS, 2)),
    Sweep("bucket", numbers.MEMBERS_IN_A_BUCKET, settings=lambda seed: {"bucket": True}),
    *(Sweep(f"cached {profile}", numbers.MEMBERS_WITH_CACHES, profile) for profile in CACHES),
    *(Sweep(profile, Seeds(3, 8, 3, 8), profile) for profile in ("answers", "calm", "clocks", "crashes", "stalls")),
)
def test_each_offset_is_committed_once(sweep: Sweep, seeds: range) -> None:
    assert MIXED.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert MIXED.run_one() > 0
