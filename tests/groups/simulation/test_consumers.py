"""Random runs of a group with clients of the consumer protocol and members of other protocols.

No offset is skipped or committed twice, and no two members read a partition at the same time.
"""

from __future__ import annotations

from tests.groups.simulation.seeds import CONSUMERS
from tests.support import seeds as numbers
from tests.support.seeds import Seeds
from tests.support.simulation.faults import CACHES
from tests.support.simulation.sweeps import Sweep, sweeps

WHAT_HAPPENS = (
    *("consumers joined", "consumers committed", "consumers revoked", "consumers changed the server"),
    *("late commits of consumers refused", "a session with a previous server timed out", "responses lost"),
    *("heartbeats UNKNOWN_MEMBER_ID", "heartbeats UNRELEASED_INSTANCE_ID", "commits STALE_MEMBER_EPOCH"),
    *("servers restarted", "consumers left with -1", "consumers left with -2", "owners replaced"),
)


@sweeps(
    Sweep("disk", numbers.CONSUMER_PROTOCOL, at_least=dict.fromkeys(WHAT_HAPPENS, 2)),
    Sweep("bucket", numbers.MEMBERS_IN_A_BUCKET, settings=lambda seed: {"bucket": True}),
    *(Sweep(f"cached {profile}", numbers.MEMBERS_WITH_CACHES, profile) for profile in CACHES),
    *(Sweep(profile, Seeds(3, 8, 3, 8), profile) for profile in ("answers", "calm", "clocks", "crashes", "stalls")),
)
def test_each_offset_is_committed_once(sweep: Sweep, seeds: range) -> None:
    assert CONSUMERS.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert CONSUMERS.run_one() > 0
