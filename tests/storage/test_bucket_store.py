"""The simulated bucket has the behavior in its table, and no other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sparklog.errors import NotFound, Unavailable
from sparklog.storage.store import Store
from sparklog.testing.bucket_store import BucketStore
from sparklog.testing.store_tests import StoreTests
from sparklog.testing.world import START_MS, World


class CalmBucket(World):
    """A bucket, and its memory store."""

    def __init__(self, **how: float) -> None:
        super().__init__()
        self.bucket = BucketStore(self.store, random.Random(1), self.clock, **how)  # type: ignore[arg-type]

    def keys(self) -> list[str]:
        return [info.key for info in self.bucket.list("a/")]


class TestBucketOfOneClient(StoreTests):
    """A bucket without delays has all guarantees of a store."""

    clock_step_ms = 1_000

    @pytest.fixture
    def store(self) -> Store:
        return CalmBucket(late_ms=0, quick_ms=0, bulk_failures=0).bucket


def show(world: CalmBucket) -> list[str]:
    return world.keys()


def folders(world: CalmBucket) -> list[str]:
    return [f"a/{name}" for name in world.bucket.list_folders("a/")]


@pytest.mark.parametrize(("look", "suffix"), [(show, ""), (folders, "/x")], ids=["list", "list_folders"])
@pytest.mark.parametrize("wait", ["requests", "time"])
def test_listings_may_be_stale_and_reads_are_not(
    look: Callable[[CalmBucket], list[str]], suffix: str, wait: str
) -> None:
    world = CalmBucket(late_requests=15 if wait == "requests" else 10_000, late_ms=60_000, quick_ms=0)
    made = [f"a/{number}" for number in range(20)]
    for key in made:
        assert world.bucket.create(key + suffix, b"x")
        assert world.bucket.get(key + suffix) == b"x"
    shown = look(world)
    assert set(shown) < set(made)
    assert shown == sorted(shown)
    end_of_lateness(world, wait)
    assert look(world) == sorted(made)
    for key in made:
        world.bucket.delete(key + suffix)
        with pytest.raises(NotFound):
            world.bucket.get(key + suffix)
        assert world.bucket.stat(key + suffix) is None
    assert set() < set(look(world)) < set(made)
    end_of_lateness(world, wait)
    assert look(world) == []


def end_of_lateness(world: CalmBucket, wait: str) -> None:
    if wait == "time":
        world.now_ms += 60_000
    else:
        for _ in range(16):
            world.keys()


def test_closed_objects_may_also_be_listed_late() -> None:
    world = CalmBucket()
    for number in range(20):
        writer = world.bucket.writer(f"a/{number}")
        writer.write(b"x")
        writer.close()
    assert 0 < len(world.keys()) < 20


def test_times_are_whole_seconds_and_objects_never_look_too_old() -> None:
    world = CalmBucket(late_ms=0)
    created_ms = world.now_ms = START_MS + 1_999
    world.bucket.create("a/b", b"x")
    info = world.bucket.stat("a/b")
    assert [info] == list(world.bucket.list(""))
    assert info is not None
    assert info.modified_ms == START_MS + 1_000
    for world.now_ms in range(created_ms, created_ms + 3_000, 7):
        age_ms = world.now_ms - created_ms
        assert age_ms - 2_000 < world.bucket.now_ms() - info.modified_ms <= age_ms


def test_rate_limited_creates_of_a_key_have_no_effect() -> None:
    answers = set()
    world = CalmBucket()
    for number in range(40):
        key = f"a/{number}"
        assert world.bucket.create(key, b"x")
        world.bucket.delete(key)
        try:
            answers.add(world.bucket.create(key, b"y"))
        except Unavailable:
            answers.add(None)
        exists = world.store.stat(key) is not None
        world.now_ms += 1_000
        assert world.bucket.create(key, b"y") != exists
    assert answers == {True, False, None}


def test_a_bulk_delete_may_leave_objects() -> None:
    world = CalmBucket(bulk_failures=0.2)
    for number in range(20):
        world.bucket.create(f"a/{number}", b"x")
    with pytest.raises(Unavailable, match=r"a/\d+ in memory:test and \d other objects were not deleted; retry"):
        world.bucket.delete_many([f"a/{number}" for number in range(20)])
    assert 0 < len(list(world.store.list("a/"))) < 20
    for _ in range(20):
        try:
            world.bucket.delete_many([*(f"a/{number}" for number in range(20)), "a/nothing"])
        except Unavailable:
            continue
    assert not list(world.store.list("a/"))


def test_a_seed_determines_the_behavior_of_the_bucket() -> None:
    def story() -> list[list[str]]:
        world = CalmBucket()
        return [world.keys() for number in range(20) if world.bucket.create(f"a/{number}", b"x")]

    assert story() == story()
