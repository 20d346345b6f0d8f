"""Copies of a world that is built once."""

from __future__ import annotations

from sparklog.testing.world import World
from tests.support.built_once import built_once
from tests.support.records import rows
from tests.support.small_limits import small_limits
from tests.support.topics_world import TopicsWorld


def test_each_copy_has_its_own_clock_and_objects_and_goes_on_alike() -> None:
    built: list[World] = []

    @built_once
    def begun() -> TopicsWorld:
        world = TopicsWorld()
        world.topic("a").append(rows("first"))
        built.append(world)
        return world

    one, two = begun(), begun()
    keys = []
    for world in (one, two):
        world.advance(days=1)
        world.topic("a").append(rows("second"))
        keys.append([(info.key, info.modified_ms) for info in world.store.list("")])
    assert one.values("a") == two.values("a") == ["first", "second"]
    assert keys[0] == keys[1]
    assert begun().values("a") == ["first"]
    assert len(built) == 1
    with small_limits(checkpoint_commits=2):
        begun()
    assert len(built) == 2
