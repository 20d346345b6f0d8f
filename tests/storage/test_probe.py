"""The probe rejects stores that violate a guarantee, and reports the reason."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from sparklog.errors import BadRequest, Unavailable
from sparklog.storage import LocalStore
from sparklog.storage import probe as probe_module
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.memory import MemoryStore
from sparklog.storage.probe import LARGE_BYTES, THREADS, examine, probe
from sparklog.storage.store import ObjectInfo
from sparklog.testing.wrapper_stores import CountingStore
from tests.support.forked import in_child


def clock() -> int:
    return 1_000_000


class Racy(MemoryStore):
    """Checks for the object, and then writes it, like a gateway without conditional writes."""

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
    """Ignores the condition."""

    def create(self, key: str, data: bytes) -> bool:
        self.delete(key)
        super().create(key, data)
        return True


class SometimesRacy(MemoryStore):
    """Checks for the object, and then writes it.

    In most races, no other create comes in between; with large bodies, one does.
    """

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        return created or (len(data) >= LARGE_BYTES and key.endswith("-race"))


class LosesAnswers(MemoryStore):
    """The first response to the winner is lost.

    The client sends the request again, and gets the response that the object exists.
    """

    def create(self, key: str, data: bytes) -> bool:
        super().create(key, data)
        return False


class FailsSometimes(MemoryStore):
    """Half of the requests of a race time out. Some of them take effect."""

    def __init__(self) -> None:
        super().__init__(clock)
        self.number = count()

    def create(self, key: str, data: bytes) -> bool:
        number = next(self.number) if data.startswith(b"probe") else 0
        created = super().create(key, data) if number % 4 != 1 else False
        if number % 2:
            raise Unavailable("timed out")
        return created


class CreatesNothing(MemoryStore):
    def create(self, key: str, data: bytes) -> bool:
        return False


class Forgets(MemoryStore):
    def create(self, key: str, data: bytes) -> bool:
        return data.startswith(b"probe 0")


class WrongRanges(MemoryStore):
    """Interprets a range as a range from the end."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        whole = super().get(key)
        return whole if length is None else whole[-length:]


class Unordered(MemoryStore):
    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return iter(list(super().list(prefix, after))[::-1])


class IgnoresAfter(MemoryStore):
    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return super().list(prefix)


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
        (Racy(), r"8 threads .* expected 1"),
        (Twice(clock), r"8 threads .* expected 1"),
        (NoCase(clock), "differ only in case"),
        (SometimesRacy(clock), r"8 threads .* expected 1"),
        (WrongBytes(clock), "different bytes than its only creator wrote"),
        (Forgets(clock), "does not exist although its creation succeeded"),
        (WrongRanges(clock), "a read of 7 bytes from byte 3 returns other bytes"),
        (Unordered(clock), "keys out of order"),
        (IgnoresAfter(clock), "keys that were not requested"),
    ],
)
def test_stores_that_violate_a_guarantee_are_rejected(store: MemoryStore, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        probe(store)
    assert list(store.list("")) == [] or isinstance(store, NoCase)


@pytest.mark.parametrize("store", [LosesAnswers(clock), FailsSometimes()])
def test_lost_responses_do_not_violate_the_guarantees(store: MemoryStore) -> None:
    assert probe(store).rounds == 12
    assert list(store.list("")) == []


def test_a_store_in_which_no_create_succeeds_asks_to_try_again() -> None:
    with pytest.raises(Unavailable, match="no object could be created"):
        probe(CreatesNothing(clock))


def test_the_number_of_races_comes_from_the_store(tmp_path: Path) -> None:
    local, far = CountingStore(LocalStore(tmp_path, durable=False)), CountingStore(MemoryStore(clock))
    for store, races in ((local, 1), (far, 12)):
        assert probe(store).rounds == races
        # Eight threads and a late one, and two names that differ only in case.
        assert store.counts["create"] == races * 9 + 2


class Denies(MemoryStore):
    """Rejects one verb, like the policy of a bucket."""

    def __init__(self, verb: str) -> None:
        super().__init__(clock)

        def refuse(*args: object) -> NoReturn:
            raise Unavailable(f"access is denied; it needs the right to {verb}")

        setattr(self, verb, refuse)


@pytest.mark.parametrize(
    ("verb", "broken"),
    [
        ("create", {"create"}),
        ("get", {"create"}),
        ("list", {"list"}),
        ("now_ms", {"clock"}),
        ("delete", {"delete"}),
        ("none", set()),
    ],
)
def test_each_guarantee_has_a_result(verb: str, broken: set[str]) -> None:
    _, outcomes = examine(Denies(verb))
    assert {each.guarantee.name for each in outcomes if each.error is not None} == broken
    assert all(f"the right to {verb}" in str(each.error) for each in outcomes if each.error is not None)
    names = ["create", "read", "names", "list", "clock", "delete"]
    assert [each.guarantee.name for each in outcomes] == (names[:1] if "create" in broken else names)


def test_a_valid_store_passes_the_probe_and_no_objects_remain(tmp_path: Path) -> None:
    report = probe(LocalStore(tmp_path / "root"))
    assert report.location == str(tmp_path / "root")
    assert abs(report.clock_ahead_ms) < 1000
    assert list((tmp_path / "root").iterdir()) == []


def test_clock_difference() -> None:
    store = MemoryStore(clock)
    assert probe(store, lambda: 1_600_000).clock_ahead_ms == 600_000
    assert probe(store, lambda: 400_000).clock_ahead_ms == -600_000
    assert probe(store, lambda: 1_000_000).clock_ahead_ms == 0


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


def test_long_lived_locks_are_free_after_a_fork() -> None:
    """A plain lock is allowed in a call that creates and drops it, but not as an attribute or a global.

    A producer needs conditions. It creates them again in the child, and rejects requests (`test_pressure.py`).
    """
    package = Path(probe_module.__file__).parents[1]
    plain = re.compile(r"threading\.(R?Lock|Condition|Semaphore)\(")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if plain.search(path.read_text())}
    fork_safe = {"storage/fork_safety.py", "clients/producer/accumulator.py", "clients/producer/futures.py"}
    # A fork waits until no kernel is being loaded.
    assert found == fork_safe | {"format/kernels/machine_code.py"}


def test_a_race_does_not_hang_if_a_thread_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, iter(range(THREADS - 1))

    def limited(thread: threading.Thread) -> None:
        if next(started, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        probe(MemoryStore(clock))
