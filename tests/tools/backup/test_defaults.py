"""Root defaults in backups: complete copies that are listed and restored."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.log.topic.root import open_root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import prune
from sparklog.tools.backup.restoring import restore
from sparklog.tools.verification.run import verify_root


@pytest.fixture
def world() -> World:
    world = World()
    world.root().create_topic("t").append(pa.table({"value": ["a"]}))
    return world


def test_defaults_are_backed_up_and_restored(world: World) -> None:
    repository = MemoryStore(world.clock)
    back_up(world.root(), repository)
    assert open_root(repository, env=world.env()).defaults().number == -1
    for hours in (1, 2, 3):
        world.root().alter_defaults({"log.retention.hours": hours})
        back_up(world.root(), repository)
    world.root().alter_defaults({"log.retention.hours": 4})
    prune(repository, keep=1, env=world.env())
    assert open_root(repository, env=world.env()).defaults().configs == {"log.retention.hours": "3"}
    target = MemoryStore(world.clock)
    restore(repository, target, env=world.env())
    restored = open_root(target, env=world.env())
    assert restored.defaults().configs == {"log.retention.hours": "3"}
    restored.alter_defaults({"num.partitions": 2})
    assert world.root(target).defaults().configs == {"log.retention.hours": "3", "num.partitions": "2"}
    assert not verify_root(target).findings


def test_defaults_are_restored_from_a_live_root(world: World) -> None:
    for hours in (1, 2):
        world.root().alter_defaults({"retention.ms": hours}, pattern="t")
    target = MemoryStore(world.clock)
    restore(world.store, target, env=world.env())
    assert open_root(target, env=world.env()).defaults().of_topic("t") == {"retention.ms": "2"}
