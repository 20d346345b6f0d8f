"""The model of the simulations does not count withdrawn entries."""

from __future__ import annotations

import json

import crc32c
import pytest

from tests.support.simulation.scheduler import SimulationError
from tests.transactions.simulation.ledger import WRITTEN_CRC, YOUNG_MS, Ledger, LedgerStore


class World:
    """A store that a ledger observes, and its clock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ledger = Ledger()
        self.store = LedgerStore(lambda: self.now_ms, self.ledger)

    def commit(self, version: int, path: str, before: bytes | None, **members: object) -> bytes:
        files = [{"path": path, "crc": [WRITTEN_CRC]}]
        return self._entry("t", version, {"files": files, **members}, before)

    def decide(self, number: int, newest: int, commits: list[int], before: bytes | None) -> bytes:
        prepares = [{"topic": "t", "version": 1}]
        items = [{"n": n, "prepares": prepares, "groups": []} for n in commits]
        return self._entry("_transactions/x", number, {"id": "x", "newest": newest, "commits": items}, before)

    def _entry(self, folder: str, number: int, members: dict[str, object], before: bytes | None) -> bytes:
        data = json.dumps({**members, "prevCrc": None if before is None else crc32c.crc32c(before)}).encode() + b"\n"
        assert self.store.create(key(folder, number), data)
        return data

    def visible(self) -> list[str]:
        return self.ledger.visible("t")


def key(folder: str, number: int) -> str:
    return f"{folder}/_log/{number:020d}.json"


@pytest.fixture
def world() -> World:
    return World()


def test_a_commit_that_reuses_a_withdrawn_number_counts(world: World) -> None:
    first = world.commit(0, "first", None)
    world.commit(1, "back", first)
    world.store.delete(key("t", 1))
    assert world.visible() == ["first"]
    second = world.commit(1, "second", first)
    world.commit(2, "third", second)
    assert world.visible() == ["first", "second", "third"]


def test_a_restored_commit_counts_with_the_commit_that_follows_it(world: World) -> None:
    first = world.commit(0, "first", None)
    second = world.commit(1, "second", first)
    world.store.delete(key("t", 1))
    world.commit(2, "third", second)
    assert world.visible() == ["first"]
    world.store.create(key("t", 1), second)
    assert world.visible() == ["first", "second", "third"]


def test_a_deleted_old_commit_counts_and_a_commit_that_reuses_its_number_does_not(world: World) -> None:
    first = world.commit(0, "first", None)
    world.commit(1, "second", first)
    world.now_ms += YOUNG_MS
    for version in (0, 1):
        world.store.delete(key("t", version))
    world.commit(1, "late", first)
    world.store.delete(key("t", 1))
    assert world.visible() == ["first", "second"]


def test_a_withdrawn_decision_and_its_recorded_outcomes_do_not_count(world: World) -> None:
    first = world.commit(0, "first", None)
    prepared = world.commit(1, "prepared", first, txn={"id": "x", "n": 0})
    begun = world.decide(0, -1, [], None)
    world.decide(1, 0, [0], begun)
    committed = [{"id": "x", "n": 0, "committed": [1]}]
    world.commit(2, "recorded", prepared, resolved=committed)
    assert world.visible() == ["first", "prepared", "recorded"]
    world.store.delete(key("t", 2))
    world.store.delete(key("_transactions/x", 1))
    assert world.visible() == ["first"]
    world.decide(1, 0, [], begun)
    with pytest.raises(SimulationError, match="its decision names"):
        world.commit(2, "wrong", prepared, resolved=committed)


def test_the_model_detects_a_gap(world: World) -> None:
    first = world.commit(0, "first", None)
    with pytest.raises(SimulationError, match="leaves a gap"):
        world.commit(2, "third", first)
