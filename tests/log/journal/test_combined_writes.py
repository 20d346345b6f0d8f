"""Steps of several threads in one entry: each is judged after the one before, and each thread gets its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from sparklog.errors import Fenced, Unavailable
from sparklog.groups.group import Group
from sparklog.groups.group_state import GroupState
from sparklog.log.journal.combined_writes import CombinedWrites
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore

GROUP = "_groups/g/_log/"


class Gate(CountingStore):
    """Holds up the first create of an entry until the test opens it."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.reached, self.open = threading.Event(), threading.Event()

    def create(self, key: str, data: bytes) -> bool:
        if key.startswith(GROUP):
            self.reached.set()
            assert self.open.wait(30)
        return super().create(key, data)


def plus(amount: int) -> Callable[[GroupState], GroupState]:
    return lambda state: replace(state, op="commit", generation=state.generation + amount)


def refuse(state: GroupState) -> GroupState:
    raise Fenced(f"refused at {state.generation}")


def at_once(world: World, store: Gate, *steps: Callable[[GroupState], GroupState | None]) -> list[object]:
    """Write the first step, and the others while it is being written; return what each thread got."""
    group = Group(world.root(store), "g")
    writes: CombinedWrites[GroupState] = group.root.engine.combined(group.log)
    outcomes: list[object] = [None] * len(steps)

    def run(number: int) -> None:
        try:
            outcomes[number] = writes.write(steps[number]).generation
        except Exception as error:  # noqa: BLE001
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(steps))]
    threads[0].start()
    assert store.reached.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(writes._waiting) < len(steps) - 1:
        pass
    store.open.set()
    for thread in threads:
        thread.join(30)
    return outcomes


def entries(store: Gate) -> int:
    return len([key for verb, key in store.keys if verb == "create" and key.startswith(GROUP)])


def test_what_waits_is_one_entry() -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    assert at_once(world, store, plus(1), plus(10), plus(100), plus(1000)) == [1, 1111, 1111, 1111]
    assert entries(store) == 2


def test_each_thread_gets_its_error_and_the_others_are_written() -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    first, second, third = at_once(world, store, plus(1), refuse, plus(10))
    assert (first, third) == (1, 11)
    assert isinstance(second, Fenced)
    assert str(second) in ("refused at 1", "refused at 11")


def test_nothing_to_write_beside_an_error_is_no_error() -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    first, second, third = at_once(world, store, plus(1), refuse, lambda state: None)
    assert (first, third) == (1, 1)
    assert isinstance(second, Fenced)
    assert entries(store) == 1


def test_an_outcome_that_is_unknown_is_so_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    group = Group(world.root(store), "g")
    writes = group.root.engine.combined(group.log)

    def fail(step: object) -> GroupState:
        raise Unavailable("outcome unknown")

    monkeypatch.setattr(group.log, "write", fail)
    with pytest.raises(Unavailable):
        writes.write(plus(1))
    monkeypatch.undo()
    store.open.set()
    assert writes.write(plus(2)).generation == 2


def test_a_thread_that_is_interrupted_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    store.open.set()
    group = Group(world.root(store), "g")
    writes = group.root.engine.combined(group.log)

    def interrupt(step: object) -> GroupState:
        raise KeyboardInterrupt

    monkeypatch.setattr(group.log, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writes.write(plus(1))
    monkeypatch.undo()
    assert writes.write(plus(2)).generation == 2
