"""A store whose times are whole seconds: nothing expires early, and the jitter of its clock has no effect."""

from __future__ import annotations

import random

import pytest

from sparklog.errors import Unavailable
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root
from sparklog.testing.bucket_store import BucketStore
from sparklog.testing.world import START_MS, World
from sparklog.transactions.listing import list_transactions
from sparklog.transactions.producer import transactional
from tests.tools.backup.backup_world import batch

BEGIN_MS = (0, 1, 500, 998, 999)


class CoarseWorld(World):
    """An otherwise valid bucket, `begin_ms` after a full second."""

    def __init__(self, begin_ms: int = 0) -> None:
        super().__init__(now_ms=START_MS + begin_ms)
        self.bucket = BucketStore(self.store, random.Random(1), self.clock, late_ms=0, quick_ms=0)

    def opened(self, skew_ms: int = 0) -> Root:
        return self.root(self.bucket, skew_ms=skew_ms)


@pytest.mark.parametrize("begin_ms", BEGIN_MS)
def test_run_times_of_a_query_increase_with_a_coarse_clock(begin_ms: int) -> None:
    """Otherwise, a run that is restarted immediately would be fenced by the previous run."""
    world = CoarseWorld(begin_ms)
    times = []
    for _ in range(100):
        run = world.opened()
        times.append(run.engine.to_store_clock(run.env.wall_ms()))
        world.now_ms += 37
    assert times == sorted(set(times))


@pytest.mark.parametrize("begin_ms", BEGIN_MS)
@pytest.mark.parametrize("skew_ms", [-60_000, 200_000])
def test_a_wrong_clock_is_detected(begin_ms: int, skew_ms: int) -> None:
    world = CoarseWorld(begin_ms)
    run = world.opened(skew_ms)
    assert world.now_ms - 2_000 < run.engine.to_store_clock(run.env.wall_ms()) <= world.now_ms
    with pytest.raises(Unavailable, match="commits require at most 300 s"):
        world.opened(302_000).engine.to_store_clock(START_MS)


@pytest.mark.parametrize("begin_ms", BEGIN_MS)
@pytest.mark.parametrize("skew_ms", [0, -60_000, 200_000])
@pytest.mark.parametrize("timeout_ms", [700, 60_000])
def test_a_transaction_is_not_aborted_before_its_timeout(begin_ms: int, skew_ms: int, timeout_ms: int) -> None:
    world = CoarseWorld(begin_ms)
    root = world.opened(skew_ms)
    root.create_topic("t")
    transaction = transactional(root, "job", timeout_ms=timeout_ms).begin()
    transaction.append("t", batch([b"x"]))
    transaction.prepare()
    state = root.topic("t").log.state()
    world.now_ms += timeout_ms - 50
    assert not root.engine.decisions.overdue("t", state.open)
    world.now_ms += 2_100
    assert root.engine.decisions.overdue("t", state.open)
    assert [item.is_open for item in list_transactions(root)] == [True]


@pytest.mark.parametrize("begin_ms", BEGIN_MS)
def test_a_group_is_active_until_the_session_of_its_member_ends(begin_ms: int) -> None:
    world = CoarseWorld(begin_ms)
    group = Groups(world.opened()).group("g")
    group.join("one", session_timeout_ms=1_500)
    world.now_ms += 1_400
    assert group.description().state == "Stable"
    world.now_ms += 2_200
    assert group.description().state == "Empty"
