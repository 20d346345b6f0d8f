"""The probe: stores that break a promise are refused, each for its reason."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from sparklog.errors import BadRequest, Unavailable
from sparklog.storage import LocalStore
from sparklog.storage import probe as probe_module
from sparklog.storage.local_writer import ForkLock
from sparklog.storage.memory import MemoryStore
from sparklog.storage.probe import ensure_probed, probe
from sparklog.storage.store import Store
from sparklog.testing.wrapper_stores import CountingStore


def clock() -> int:
    return 1_000_000


class Racy(MemoryStore):
    """Looks first, writes then: what a gateway without conditional writes does."""

    def __init__(self) -> None:
        super().__init__(clock)
        self.together = threading.Barrier(8)

    def create(self, key: str, data: bytes) -> bool:
        if self.stat(key) is not None:
            return False
        if key.endswith("race"):
            self.together.wait()
        self.delete(key)
        return super().create(key, data)


class Twice(MemoryStore):
    """Ignores the condition altogether."""

    def create(self, key: str, data: bytes) -> bool:
        self.delete(key)
        super().create(key, data)
        return True


class NoCase(MemoryStore):
    def create(self, key: str, data: bytes) -> bool:
        return super().create(key.lower(), data)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return super().get(key.lower(), start, length)


class WrongBytes(MemoryStore):
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return b"something else"


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (Racy(), r"8 threads .* must be 1"),
        (Twice(clock), r"8 threads .* must be 1"),
        (NoCase(clock), "differ only in case"),
        (WrongBytes(clock), "other bytes than its only creator wrote"),
    ],
)
def test_broken_promises_are_refused(store: MemoryStore, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        probe(store)
    assert list(store.list("")) == [] or isinstance(store, NoCase)


def test_a_good_store_passes_and_is_left_clean(tmp_path: Path) -> None:
    report = probe(LocalStore(tmp_path / "root"))
    assert report.location == str(tmp_path / "root")
    assert abs(report.clock_ahead_ms) < 1000
    assert list((tmp_path / "root").iterdir()) == []


def test_clock_difference() -> None:
    store = MemoryStore(clock)
    assert probe(store, lambda: 1_600_000).clock_ahead_ms == 600_000
    assert probe(store, lambda: 400_000).clock_ahead_ms == -600_000
    assert probe(store, lambda: 1_000_000).clock_ahead_ms == 0


def test_once_per_process_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "_probed", {})
    store = CountingStore(LocalStore(tmp_path, durable=False))
    first = ensure_probed(store)
    made = store.counts["create"]
    assert made >= 8
    assert ensure_probed(store) is first
    assert ensure_probed(LocalStore(tmp_path, durable=False)) is first
    assert store.counts["create"] == made
    assert ensure_probed(MemoryStore(clock)) is None
    assert ensure_probed(CountingStore(MemoryStore(clock))) is None


def test_a_failed_probe_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Down(MemoryStore):
        needs_probe = True
        down = True

        def create(self, key: str, data: bytes) -> bool:
            if self.down:
                raise Unavailable("down")
            return super().create(key, data)

    monkeypatch.setattr(probe_module, "_probed", {})
    store = Down(clock, "down")
    with pytest.raises(Unavailable):
        ensure_probed(store)
    store.down = False
    assert ensure_probed(store) is not None


def in_child(action: Callable[[], object]) -> NoReturn:
    """Run `action` in a forked child, which never comes back to pytest; one that hangs is killed."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        action()
        code = 0
    finally:
        os._exit(code)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_is_forked_during_a_probe_probes_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "_probed", {})
    parent, probing, forked = os.getpid(), threading.Event(), threading.Event()
    real = probe_module._case

    def held(store: Store, keys: Sequence[str]) -> None:
        if os.getpid() == parent:
            probing.set()
            assert forked.wait(30)
        real(store, keys)

    monkeypatch.setattr(probe_module, "_case", held)
    store = LocalStore(tmp_path, durable=False)
    thread = threading.Thread(target=ensure_probed, args=(store,))
    thread.start()
    assert probing.wait(30)
    child = os.fork()
    if child == 0:
        in_child(lambda: ensure_probed(store))
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_no_lock_of_a_thread_is_held_in_a_forked_child() -> None:
    lock, taken, done = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            assert done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(30)
    child = os.fork()
    if child == 0:
        in_child(lambda: lock.__enter__())
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()


def test_every_lock_that_is_kept_is_free_after_a_fork() -> None:
    """A plain lock may be made where a call makes and drops it; an attribute or a global is kept."""
    package = Path(probe_module.__file__).parents[1]
    plain = re.compile(r"threading\.(R?Lock|Condition|Semaphore)\(")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if plain.search(path.read_text())}
    assert found == {"storage/local_writer.py"}
