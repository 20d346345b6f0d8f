"""Steps of several threads in one entry: each step follows the previous one, and each thread gets its own outcome."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from sparklog.errors import Fenced, Unavailable
from sparklog.groups.group import Group
from sparklog.groups.group_state import GroupState
from sparklog.log.journal.combined_writes import CombinedWrites
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.journal.group_commit import GroupCommit, _Request
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore

GROUP = "_groups/g/_log/"


class Gate(CountingStore):
    """Blocks the first create of an entry until the test opens the gate."""

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
    """Write the first step, and the other steps while it is being written. Return the result of each thread."""
    group = Group(world.root(store), "g")
    writes: CombinedWrites[GroupState] = group.root.engine.combined(group.log)
    outcomes: list[object] = [None] * len(steps)

    def run(number: int) -> None:
        try:
            outcomes[number] = writes.write(steps[number]).generation
        except BaseException as error:  # noqa: BLE001
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(steps))]
    threads[0].start()
    assert store.reached.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(writes._group._pending) < len(steps) - 1:
        pass
    store.open.set()
    for thread in threads:
        thread.join(30)
    return outcomes


def entries(store: Gate) -> int:
    return len([key for verb, key in store.keys if verb == "create" and key.startswith(GROUP)])


def test_pending_steps_become_one_entry() -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    assert at_once(world, store, plus(1), plus(10), plus(100), plus(1000)) == [1, 1111, 1111, 1111]
    assert entries(store) == 2


def test_each_thread_gets_its_own_error_and_other_steps_are_written() -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    first, second, third = at_once(world, store, plus(1), refuse, plus(10))
    assert (first, third) == (1, 11)
    assert isinstance(second, Fenced)
    assert str(second) in ("refused at 1", "refused at 11")


def test_a_step_without_a_write_succeeds_next_to_a_failed_step() -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    first, second, third = at_once(world, store, plus(1), refuse, lambda state: None)
    assert (first, third) == (1, 1)
    assert isinstance(second, Fenced)
    assert entries(store) == 1


@pytest.mark.parametrize("error", [Unavailable("outcome unknown"), KeyboardInterrupt()])
def test_an_unknown_outcome_applies_to_all_steps_of_an_entry(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the writing thread was interrupted, other threads must not treat their steps as written."""
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    real = EntryLog.write

    def write(log: EntryLog[GroupState], step: Callable[[GroupState], GroupState | None]) -> GroupState:
        state = real(log, step)
        if state.generation > 1:
            raise error
        return state

    monkeypatch.setattr(EntryLog, "write", write)
    first, *others = at_once(world, store, plus(1), plus(10), plus(100))
    assert first == 1
    # The writing thread raises the interruption, and the other one an unknown outcome.
    assert {type(other) for other in others} == {type(error), Unavailable}
    assert entries(store) == 2


def test_a_forked_child_does_not_write_the_pending_steps_of_its_parent() -> None:
    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    store.open.set()
    group = Group(world.root(store), "g")
    writes = group.root.engine.combined(group.log)
    waiting = _Request[Any, Any](plus(10), os.getpid() + 1)
    writes._group._pending.append(waiting)
    assert writes.write(plus(1)).generation == 1
    assert waiting.outcome is None


def test_the_step_of_an_interrupted_waiting_thread_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(nullcontext[None]):
        def __enter__(self) -> None:
            raise KeyboardInterrupt

    world = World()
    store = Gate(world.store)  # type: ignore[arg-type]
    store.open.set()
    group = Group(world.root(store), "g")
    writes = group.root.engine.combined(group.log)
    with monkeypatch.context() as patch:
        patch.setattr(writes._group, "_in_flight", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            writes.write(plus(10))
    assert writes.write(plus(1)).generation == 1


class InterruptedQueue(deque[_Request[int, int]]):
    """A queue whose first change is interrupted after it has been made."""

    is_interrupted = False

    def _interrupt(self) -> None:
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt

    def append(self, item: _Request[int, int]) -> None:
        super().append(item)
        self._interrupt()

    def popleft(self) -> _Request[int, int]:
        item = super().popleft()
        self._interrupt()
        return item

    def remove(self, item: _Request[int, int]) -> None:
        super().remove(item)
        self._interrupt()


def test_a_step_interrupted_while_it_is_added_is_not_written_later() -> None:
    written: list[int] = []

    def write(items: Sequence[int]) -> Sequence[int]:
        written.extend(items)
        return items

    group: GroupCommit[int, int] = GroupCommit("t", write)
    group._pending = InterruptedQueue()
    with pytest.raises(KeyboardInterrupt):
        group.submit(1)
    assert group.submit(2) == 2
    assert written == [2]


def test_an_interruption_before_a_write_leaves_no_step_without_an_outcome() -> None:
    group: GroupCommit[int, int] = GroupCommit("t", list)
    waiting = [_Request[int, int](number, os.getpid()) for number in (1, 2)]
    group._pending = InterruptedQueue(waiting)
    with pytest.raises(KeyboardInterrupt):
        group._commit_pending(os.getpid())
    left = [request for request in waiting if request.outcome is None]
    assert left == list(group._pending) == waiting[1:]
    assert isinstance(waiting[0].outcome, Unavailable)
    assert waiting[0].outcome.is_unknown


def test_an_interruption_after_a_write_leaves_no_step_without_an_outcome() -> None:
    class InterruptedOutcomes(list[int]):
        def __iter__(self) -> Iterator[int]:
            yield self[0]
            raise KeyboardInterrupt

    group: GroupCommit[int, int] = GroupCommit("t", InterruptedOutcomes)
    waiting = [_Request[int, int](number, os.getpid()) for number in (1, 2)]
    group._pending.extend(waiting)
    with pytest.raises(KeyboardInterrupt):
        group._commit_pending(os.getpid())
    assert waiting[0].outcome == 1
    assert isinstance(waiting[1].outcome, Unavailable)
    assert not group._pending
