"""Locks and caches that outlive a call, in processes that fork."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.storage import fork_safety
from sparklog.storage.fork_safety import VALUE_BYTES, ForkLock, RecentlyUsed
from tests.support.forked import in_child
from tests.support.interrupts import repeat_until_interrupted

ROOM = 3 * VALUE_BYTES + 10
"""Room for three values of three bytes."""


def test_a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_holds() -> None:
    cache, lock = RecentlyUsed[str, bytes](len, ROOM), ForkLock()
    cache.put("a", b"1")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock, cache._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        with lock:
            os._exit(0 if cache.get("a") == b"1" else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_interrupted_use_of_a_lock_releases_the_lock() -> None:
    lock = ForkLock()

    def use() -> None:
        with lock:
            pass

    for _ in range(100):
        repeat_until_interrupted(use)
        thread = threading.Thread(target=use, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()


def test_the_least_recently_used_value_is_evicted_first() -> None:
    cache = RecentlyUsed[str, bytes](len, ROOM)
    for name in "abc":
        cache.put(name, b"123")
    assert cache.get("a") == b"123"
    cache.put("d", b"123")
    assert [name for name in "abcd" if cache.get(name) is not None] == ["a", "c", "d"]
    cache.put("a", b"of another thread, the same file")
    assert cache.get("a") == b"123"
    cache.put("e", bytes(ROOM))
    assert [name for name in "abcde" if cache.get(name) is not None] == []
    cache.put("f", b"")
    assert cache.get("f") == b""


class Working:
    """Work of a thread that lasts until a fork has observed it, or for longer than the child may take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
        self.begun, self._seen = threading.Event(), threading.Event()
        real: Callable[[], bool] = getattr(fork_safety, look)

        def seen() -> bool:
            busy = real()
            if busy:
                self._seen.set()
            return busy

        monkeypatch.setattr(fork_safety, look, seen)

    def work(self) -> None:
        self.begun.set()
        self._seen.wait(90)

    def fork_meanwhile(self, work: Callable[[], object], in_the_child: Callable[[], object]) -> int:
        """Fork while a thread is working, and return how the child ended. `in_child` kills a child that hangs."""
        thread = threading.Thread(target=work)
        thread.start()
        assert self.begun.wait(300)
        child = os.fork()
        if child == 0:
            in_child(in_the_child)
        _, status = os.waitpid(child, 0)
        thread.join()
        return os.waitstatus_to_exitcode(status)


def test_a_child_can_import_a_module_that_a_thread_of_its_parent_was_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = Working(monkeypatch, "_imports_elsewhere")
    (tmp_path / "slow_to_import.py").write_text("import sys\nsys.slow_work()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "slow_work", working.work, raising=False)

    def load() -> object:
        return importlib.import_module("slow_to_import")

    assert working.fork_meanwhile(load, load) == 0


def test_a_child_can_compile_although_a_thread_of_its_parent_was_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = pytest.importorskip("numba.core.compiler_lock").global_compiler_lock
    working = Working(monkeypatch, "_compiles_elsewhere")

    def compile_slowly() -> None:
        with lock:
            working.work()

    def compile_one() -> None:
        with lock:
            pass

    assert working.fork_meanwhile(compile_slowly, compile_one) == 0


def test_a_fork_does_not_wait_for_the_import_that_it_is_part_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forks_itself.py").write_text("import sys\nsys.fork_here()\n")
    monkeypatch.syspath_prepend(tmp_path)
    answers: list[bool] = []
    monkeypatch.setattr(sys, "fork_here", lambda: answers.append(fork_safety._imports_elsewhere()), raising=False)
    importlib.import_module("forks_itself")
    assert answers == [False]


def test_a_fork_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(fork_safety, "WAIT_S", 0)
    monkeypatch.setattr(fork_safety, "_imports_elsewhere", lambda: True)
    fork_safety._await_others()
    if threading.active_count() == 1:  # a single thread does not check for other threads
        assert not caplog.messages
    caplog.clear()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    fork_safety._await_others()
    ended.set()
    thread.join()
    assert caplog.messages == [
        (
            "a thread has been importing or compiling for 0 s; a forked child process that also imports or compiles "
            "may hang"
        )
    ]
