"""The probe: stores that break a promise are refused, each for its reason."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, Unavailable
from sparklog.storage import LocalStore
from sparklog.storage import probe as probe_module
from sparklog.storage.counting import CountingStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.probe import ensure_probed, probe


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
