"""How long tail readers pause: 10 ms on a disk, in a bucket a share of the time in which nothing came."""

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
def test_the_pause_is_a_share_of_the_time_in_which_nothing_came(idle_ms: int, pause_ms: int) -> None:
    assert poll_pause_ms(idle_ms) == pause_ms


def test_what_comes_makes_a_reader_of_a_bucket_quick_again(world: TopicsWorld) -> None:
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


def test_a_reader_of_a_disk_looks_every_10_ms(world: TopicsWorld) -> None:
    view = RootView(world.root())
    view.refresh(["a"])
    for idle_ms in (0, 1_000, 10**8):
        world.advance(idle_ms)
        assert view.poll_interval_ms == 10


def ends(view: RootView) -> int:
    return sum(bounds.log_end for bounds in view.bounds("a").values())


def test_a_follower_of_a_bucket_sees_the_first_commit_after_one_request_and_all_others_with_the_next_look(
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


def test_a_follower_of_a_disk_sees_all(world: TopicsWorld) -> None:
    view = RootView(world.root())
    for _ in range(3):
        view.follow(["a"])
        append(world)
        append(world)
    view.follow(["a"])
    assert ends(view) == 6


def test_a_slow_follower_trusts_no_number_for_longer_than_an_hour(world: TopicsWorld) -> None:
    store = CountingStore(HookedStore(world.store, parallel_reads=16))
    view = RootView(world.root(store))
    view.follow(["a"])
    for _ in range(3):
        view.follow(["a"])
        append(world)
        append(world)
        world.advance(50 * MINUTE_MS)
        # Of two commits it sees one: the newest number was last seen 50 minutes ago.
        view.follow(["a"])
        world.advance(50 * MINUTE_MS)
        store.reset()
        view.follow(["a"])
        assert store.counts["list"] == 2, "opened afresh"


def waits(world: TopicsWorld, reader: Consumer, seconds: float) -> list[float]:
    world.slept.clear()
    reader.poll(seconds)
    return [round(each, 3) for each in world.slept]


def test_a_consumer_pauses_longer_and_longer_also_over_its_polls(world: TopicsWorld) -> None:
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


def test_consume_follow_pauses_as_its_view_says(world: TopicsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_reader_of_a_disk_pauses_the_longer_the_more_it_looks_at(world: TopicsWorld) -> None:
    # Each read takes a hundredth of a second.
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


def test_a_look_that_finds_nothing_keeps_the_view(world: TopicsWorld) -> None:
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


def test_topics_that_are_not_wanted_are_not_opened(world: TopicsWorld) -> None:
    counting = CountingStore(world.store)
    view = RootView(world.root(counting))
    assert view.topics(lambda name: name == "b") == ["b"]
    assert not any(key.startswith("a/") for _, key in counting.keys)
