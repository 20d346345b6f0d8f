"""The pauses of followers: 10 ms on a disk, and a share of the idle time in a bucket."""

from __future__ import annotations

import pytest

from sparklog.cli.commands import consume
from sparklog.clients.consumer.consumer import Consumer, consumer
from sparklog.errors import NotFound
from sparklog.log.read.topic_scan import Tail
from sparklog.log.state.view import READ_COMMITTED
from sparklog.log.topic.root import POLL_SHARE, RootView, poll_pause_ms
from sparklog.testing.world import MINUTE_MS
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld


@pytest.fixture
def world() -> TopicsWorld:
    return TopicsWorld()


def in_bucket(world: TopicsWorld) -> RootView:
    return RootView(world.root(HookedStore(world.store, parallel_reads=16)))


def append(world: TopicsWorld, topic: str = "a") -> None:
    world.topic(topic).append(rows("x", partition=0))


@pytest.mark.parametrize(
    ("idle_ms", "pause_ms"),
    [(0, 5), (100, 5), (149, 5), (150, 6), (1_000, 40), (6_249, 249), (6_250, 250), (3_600_000, 250), (10**15, 250)],
)
def test_the_pause_is_a_share_of_the_idle_time(idle_ms: int, pause_ms: int) -> None:
    assert poll_pause_ms(idle_ms) == pause_ms


def test_new_records_reset_the_pause_of_a_bucket_reader(world: TopicsWorld) -> None:
    view = in_bucket(world)
    view.refresh(["a", "b"])
    assert view.poll_interval_ms == 5
    world.advance(2_000)
    assert view.poll_interval_ms == 80
    view.refresh(["a", "b"])
    assert view.poll_interval_ms == 80, "an idle look changes nothing"
    world.advance(60_000)
    assert view.poll_interval_ms == 250
    append(world, "b")
    assert view.poll_interval_ms == 250, "it has not been seen"
    view.refresh(["a", "b"])
    assert view.poll_interval_ms == 5


def test_a_reader_of_a_disk_polls_every_10_ms(world: TopicsWorld) -> None:
    view = RootView(world.root())
    view.refresh(["a"])
    for idle_ms in (0, 1_000, 10**8):
        world.advance(idle_ms)
        assert view.poll_interval_ms == 10


def ends(view: RootView) -> int:
    return sum(bounds.log_end for bounds in view.bounds("a").values())


def test_a_bucket_follower_reads_the_first_commit_with_one_request_and_the_rest_with_the_next_poll(
    world: TopicsWorld,
) -> None:
    counting = CountingStore(HookedStore(world.store, parallel_reads=16))
    view = RootView(world.root(counting))
    view.follow(["a"])
    view.follow(["a"])
    for _ in range(9):
        append(world)
    counting.reset()
    view.follow(["a"])
    assert ends(view) == 1
    assert counting.counts == {"get": 1}
    view.follow(["a"])
    assert ends(view) == 9
    view.follow(["a"])
    append(world)
    append(world)
    view.refresh(["a"])
    assert ends(view) == 11, "a look that is no follower's sees all there is"
    view.follow(["a"])
    world.root().delete_topic("a")
    with pytest.raises(NotFound, match="topic 'a' does not exist"):
        view.follow(["a"])


def test_a_follower_of_a_disk_reads_all_commits(world: TopicsWorld) -> None:
    view = RootView(world.root())
    for _ in range(3):
        view.follow(["a"])
        append(world)
        append(world)
    view.follow(["a"])
    assert ends(view) == 6


def test_a_slow_follower_opens_the_log_again_after_an_hour(world: TopicsWorld) -> None:
    store = CountingStore(HookedStore(world.store, parallel_reads=16))
    view = RootView(world.root(store))
    view.follow(["a"])
    for _ in range(3):
        view.follow(["a"])
        append(world)
        append(world)
        world.advance(50 * MINUTE_MS)
        # The follower reads one of two commits. The latest number was last listed 50 minutes ago.
        view.follow(["a"])
        world.advance(50 * MINUTE_MS)
        store.reset()
        view.follow(["a"])
        assert store.counts["list"] == 2, "opened afresh"


def waits(world: TopicsWorld, reader: Consumer, seconds: float) -> list[float]:
    world.slept.clear()
    reader.poll(seconds)
    return [round(each, 3) for each in world.slept]


def test_a_consumers_pause_increases_across_polls(world: TopicsWorld) -> None:
    local = consumer(world.root(), "g", topics="a", auto_offset_reset="earliest")
    assert set(waits(world, local, 30)[:-1]) == {0.01}
    reader = consumer(
        world.root(HookedStore(world.store, parallel_reads=16)), "h", topics="a", auto_offset_reset="earliest"
    )
    first = waits(world, reader, 30)
    assert first[:3] == [0.005] * 3
    assert first == [*sorted(first[:-1]), first[-1]]
    assert max(first) == 0.25
    assert len(first) < 250
    assert waits(world, reader, 0.3)[0] == 0.25
    append(world)
    assert waits(world, reader, 30) == []
    assert waits(world, reader, 0.006)[0] == 0.005


def test_consume_follow_uses_the_poll_interval_of_its_view(world: TopicsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for view, pauses in ((in_bucket(world), {0.005, 0.25}), (RootView(world.root()), {0.01})):
        slept: list[float] = []
        tail = Tail(view, "a", READ_COMMITTED)
        tail.open()
        tail.start_at_end()

        def sleep(seconds: float, slept: list[float] = slept) -> None:
            slept.append(seconds)
            world.sleep(seconds)

        monkeypatch.setattr(consume.time, "sleep", sleep)
        monkeypatch.setattr(consume.time, "monotonic", lambda: world.now_ms / 1000)
        assert list(consume._batches([tail], ("value",), True, 30.0)) == []
        assert pauses <= set(slept) <= {each / 1000 for each in range(5, 251)}
        if len(pauses) == 1:
            assert set(slept) == pauses


def test_a_reader_of_a_disk_pauses_longer_if_it_polls_more_topics(world: TopicsWorld) -> None:
    # Each read takes 10 ms.
    store = HookedStore(world.store, before=lambda verb, key: world.advance(10 * (verb == "get")))
    view = RootView(world.root(store))
    view.refresh(["a", "b"])
    view.refresh(["a", "b"])
    assert view.poll_interval_ms == 10, "what came a moment ago may be followed by more"
    world.advance(5_000)
    assert 200 <= view.poll_interval_ms <= 220, "a 25th of the time in which nothing came"
    world.advance(10**6)
    view.refresh(["a", "b"])
    assert view.poll_interval_ms == 2 * 10 * POLL_SHARE
    append(world)
    view.refresh(["a", "b"])
    assert view.poll_interval_ms == 10


def test_a_poll_without_new_commits_keeps_the_view(world: TopicsWorld) -> None:
    counting = CountingStore(world.store)
    view = RootView(world.root(counting))
    view.refresh(["a", "b"])
    before = view.bounds("a")
    counting.reset()
    view.refresh(["a", "b"])
    assert counting.counts == {"get": 2}, "one for each topic"
    assert view.bounds("a") is before
    append(world)
    view.refresh(["a", "b"])
    assert ends(view) == 1


def test_excluded_topics_are_not_opened(world: TopicsWorld) -> None:
    counting = CountingStore(world.store)
    view = RootView(world.root(counting))
    assert view.topics(lambda name: name == "b") == ["b"]
    assert not any(key.startswith("a/") for _, key in counting.keys)
