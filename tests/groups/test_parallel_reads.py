"""Groups and transactional ids on a remote store are read in parallel."""

from __future__ import annotations

import threading

import pytest

from sparklog.groups.lag import Groups, lag
from sparklog.storage.memory import MemoryStore
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.store import Store
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.transactions.listing import list_transactions
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

FIRST = "/_log/00000000000000000000.json"
WAIT_SECONDS = 120


def distant(inner: Store, folder: str, verb: str = "get") -> HookedStore:
    """Return a remote store in which reads of first entries below `folder` wait until three of them are in flight."""
    meeting = threading.Barrier(3)

    def meet(made: str, key: str) -> None:
        if made == verb and key.startswith(folder) and key.endswith(FIRST if verb == "get" else "/_log/0"):
            meeting.wait(WAIT_SECONDS)

    return HookedStore(inner, before=meet, parallel_reads=8)


@pytest.fixture
def world() -> TopicsWorld:
    world = TopicsWorld()
    for name in ("x", "y", "z"):
        Groups(world.root()).group(name).alter({"a": {0: 0}})
        with world.producer(name).begin() as transaction:
            transaction.append("b", rows(name))
    return world


def test_groups_are_read_in_parallel(world: TopicsWorld) -> None:
    groups = Groups(world.root(distant(world.store, "_groups/")))
    assert groups.names() == ["x", "y", "z"]
    groups = Groups(world.root(distant(world.store, "_groups/")))
    assert [each.state for each in groups.descriptions(["x", "y", "z"]).values()] == ["Empty"] * 3
    found = lag(world.root(distant(world.store, "_groups/")), ["z", "x", "y"])
    assert [row.group for row in found] == ["z", "x", "y"]


def test_transactional_ids_are_read_in_parallel(world: TopicsWorld) -> None:
    found = list_transactions(world.root(distant(world.store, "_transactions/")))
    assert [(item.id, item.state) for item in found] == [(name, "CompleteCommit") for name in ("x", "y", "z")]


def test_topics_are_read_in_parallel(world: TopicsWorld) -> None:
    assert world.root(distant(world.store, "", "list")).topics() == ["a", "b", "c"]


def test_a_store_without_parallel_reads_is_read_only_on_demand() -> None:
    asked: list[int] = []
    answers = map_requests(MemoryStore(lambda: 0), lambda item: asked.append(item) or item, [1, 2, 3])
    assert next(answers) == 1
    assert asked == [1]
