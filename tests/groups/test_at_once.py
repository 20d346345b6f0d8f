"""Lists of groups and of transactional ids ask a distant store for all of them at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sparklog.groups.lag import Groups, lag
from sparklog.storage.memory import MemoryStore
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.store import ObjectInfo
from sparklog.testing.faulty_store import FaultyStore
from sparklog.transactions.listing import list_transactions
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

FIRST = "/_log/00000000000000000000.json"
WAIT_SECONDS = 120


class Distant(FaultyStore):
    """Answers for the first objects of logs below `folder` only when three of them are asked for at once."""

    parallel_reads = 8

    def __init__(self, inner: MemoryStore, folder: str) -> None:
        super().__init__(inner, lambda call: None)
        self.folder = folder
        self.meeting = threading.Barrier(3)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key.startswith(self.folder) and key.endswith(FIRST):
            self.meeting.wait(WAIT_SECONDS)
        return super().get(key, start, length)


@pytest.fixture
def world() -> TopicsWorld:
    world = TopicsWorld()
    for name in ("x", "y", "z"):
        Groups(world.root()).group(name).alter({"a": {0: 0}})
        with world.producer(name).begin() as transaction:
            transaction.append("b", rows(name))
    return world


def test_groups(world: TopicsWorld) -> None:
    distant = Groups(world.root(Distant(world.store, "_groups/")))  # type: ignore[arg-type]
    assert distant.names() == ["x", "y", "z"]
    distant = Groups(world.root(Distant(world.store, "_groups/")))  # type: ignore[arg-type]
    assert [each.state for each in distant.descriptions(["x", "y", "z"]).values()] == ["Empty"] * 3
    found = lag(world.root(Distant(world.store, "_groups/")), ["z", "x", "y"])  # type: ignore[arg-type]
    assert [row.group for row in found] == ["z", "x", "y"]


def test_transactional_ids(world: TopicsWorld) -> None:
    found = list_transactions(world.root(Distant(world.store, "_transactions/")))  # type: ignore[arg-type]
    assert [(item.id, item.state) for item in found] == [(name, "CompleteCommit") for name in ("x", "y", "z")]


def test_topics(world: TopicsWorld) -> None:
    distant = Distant(world.store, "_")  # type: ignore[arg-type]
    listed = distant.list

    def list_at_once(prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        if prefix.endswith("/_log/0"):
            distant.meeting.wait(WAIT_SECONDS)
        return listed(prefix, after)

    distant.list = list_at_once  # type: ignore[method-assign]
    assert world.root(distant).topics() == ["a", "b", "c"]


def test_a_store_that_is_near_is_asked_no_sooner_than_needed() -> None:
    asked: list[int] = []
    answers = map_requests(MemoryStore(lambda: 0), lambda item: asked.append(item) or item, [1, 2, 3])
    assert next(answers) == 1
    assert asked == [1]
