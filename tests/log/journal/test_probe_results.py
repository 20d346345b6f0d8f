"""Results of probes: they are cached in the process and in the root, for one location."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import sparklog as library
from sparklog.errors import BadRequest, Unavailable
from sparklog.log.journal import probe_results
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.journal.names import create_root_id
from sparklog.log.journal.probe_results import (
    PROBE_RESULT_JSON,
    RESULT_MS,
    REVERIFY_MS,
    ensure_probed,
    probe_anew,
    reverify,
)
from sparklog.log.topic.root import Root
from sparklog.storage import LocalStore
from sparklog.storage import probe as probe_module
from sparklog.storage.memory import MemoryStore
from sparklog.storage.probe import ProbeRun
from sparklog.testing.wrapper_stores import CountingStore
from tests.support.forked import in_child


def clock() -> int:
    return 1_000_000


class Far(MemoryStore):
    """A store of a remote server."""

    needs_probe = True
    server = ""
    down = False

    def create(self, key: str, data: bytes) -> bool:
        if self.down:
            raise Unavailable("down")
        return super().create(key, data)


class Twice(Far):
    """Ignores the condition."""

    def create(self, key: str, data: bytes) -> bool:
        self.delete(key)
        return super().create(key, data)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Clear the cached results of this process, at each call."""
    monkeypatch.setattr(probe_results, "_probed", {})
    monkeypatch.setattr(probe_results, "_reverified", {})
    return probe_results._probed.clear


def result_key(store: MemoryStore) -> str:
    (key,) = [info.key for info in store.list("_probe/")]
    return key


def probes(store: MemoryStore) -> int:
    """Return the number of probes that `ensure_probed` runs in this process."""
    counting = CountingStore(store)
    ensure_probed(counting, clock)
    return counting.counts["create"] // 100


def test_processes_share_a_probe_result(new_process: Callable[[], None]) -> None:
    store = Far(clock)
    assert probes(store) == 1
    for _ in range(2):
        new_process()
        counting = CountingStore(store)
        ensure_probed(counting, clock)
        ensure_probed(counting, clock)
        counting.expect(get=1)
    stored = PROBE_RESULT_JSON.decode(store.get(result_key(store)), "verdict")
    assert (stored.location, stored.server, stored.rounds, stored.threads) == ("memory:test", "", 12, 8)
    assert (stored.probed_ms, stored.sparklog) == (clock(), library.__version__)


def test_a_copied_probe_result_is_not_valid(new_process: Callable[[], None]) -> None:
    store, elsewhere = Far(clock, "a"), Far(clock, "b")
    ensure_probed(store, clock)
    elsewhere.restore(store.snapshot())
    assert probes(elsewhere) == 1
    assert len(list(elsewhere.list("_probe/"))) == 2
    new_process()
    assert (probes(elsewhere), probes(store)) == (0, 0)
    new_process()
    store.server = "http://another"
    assert probes(store) == 1


def test_invalid_probe_results_are_ignored(new_process: Callable[[], None]) -> None:
    store = Far(clock)
    ensure_probed(store, clock)
    key = result_key(store)
    good = PROBE_RESULT_JSON.decode(store.get(key), key)
    elsewhere = [replace(good, location="x"), replace(good, server="x")]
    changed = [*elsewhere, replace(good, rounds=1), replace(good, threads=2)]
    for data in (b"damaged", b"", *map(PROBE_RESULT_JSON.encode, changed)):
        store.replace(key, data)
        new_process()
        assert probes(store) == 1
        assert store.get(key) == PROBE_RESULT_JSON.encode(good), "and it is renewed"


def test_a_store_that_fails_the_probe_loses_its_probe_result(new_process: Callable[[], None]) -> None:
    good, bad = Far(clock), Twice(clock)
    ensure_probed(good, clock)
    new_process()
    with pytest.raises(BadRequest, match="expected 1"):
        ensure_probed(bad, clock)
    assert list(bad.list("")) == []
    bad.restore(good.snapshot())
    with pytest.raises(BadRequest, match="expected 1"):
        probe_anew(bad)
    assert list(bad.list("")) == []


@pytest.mark.parametrize("days", [-2, 2])
def test_a_probe_result_is_valid_for_a_day(days: int, new_process: Callable[[], None]) -> None:
    """A server may be upgraded without a change of its endpoint while processes are running, and clocks may be set."""
    now = [clock()]
    store = Far(lambda: now[0])

    def made() -> int:
        counting = CountingStore(store)
        ensure_probed(counting, lambda: now[0])
        return counting.counts["create"] // 100

    now[0] += 10 * RESULT_MS
    assert made() == 1
    now[0] += RESULT_MS - 1
    assert made() == 0
    now[0] += days * RESULT_MS
    assert made() == 1, "by the process that has probed it"
    assert made() == 0
    new_process()
    assert made() == 0, "it was renewed"
    now[0] += days * RESULT_MS
    new_process()
    assert made() == 1, "by another one"


def test_a_contradicted_store_is_probed_again(new_process: Callable[[], None]) -> None:
    now, store = [clock()], Far(lambda: now[0])
    ensure_probed(store, lambda: now[0])
    counting = CountingStore(store)
    assert reverify(counting, lambda: now[0]) is None
    assert counting.counts["create"] > 100
    counting.reset()
    assert reverify(counting, lambda: now[0]) is None
    counting.expect()
    now[0] += REVERIFY_MS
    bad = Twice(lambda: now[0])
    bad.restore(store.snapshot())
    for _ in range(2):
        error = reverify(bad, lambda: now[0])
        assert error is not None
        assert "expected 1" in str(error)
        assert list(bad.list("")) == []
    with pytest.raises(BadRequest, match="expected 1"):
        ensure_probed(bad, lambda: now[0])


def test_a_store_that_cannot_be_reverified_has_no_probe_result(new_process: Callable[[], None]) -> None:
    store = Far(clock)
    ensure_probed(store, clock)
    store.down = True
    assert reverify(store, clock) is None
    assert list(store.list("")) == []
    with pytest.raises(Unavailable):
        ensure_probed(store, clock)
    assert reverify(MemoryStore(clock), clock) is None


def test_a_failed_probe_is_not_cached() -> None:
    store = Far(clock)
    store.down = True
    with pytest.raises(Unavailable):
        ensure_probed(store, clock)
    store.down = False
    assert probes(store) == 1


def test_failing_to_store_a_probe_result_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Far):
        def create(self, key: str, data: bytes) -> bool:
            if "verdict" in key:
                raise Unavailable("denied")
            return super().create(key, data)

    store = Full(clock)
    assert probes(store) == 1
    assert list(store.list("")) == []


def test_local_paths_are_probed_by_each_process(tmp_path: Path, new_process: Callable[[], None]) -> None:
    store = CountingStore(LocalStore(tmp_path, durable=False))
    ensure_probed(store, clock)
    made = store.counts["create"]
    assert made >= 8
    ensure_probed(store, clock)
    ensure_probed(LocalStore(tmp_path, durable=False))
    assert store.counts["create"] == made
    new_process()
    ensure_probed(store, clock)
    assert store.counts["create"] == 2 * made
    assert list(tmp_path.iterdir()) == []


def test_memory_is_not_probed() -> None:
    store = CountingStore(MemoryStore(clock))
    ensure_probed(store, clock)
    assert not store.counts


def test_creating_a_root_stores_a_probe_result(new_process: Callable[[], None]) -> None:
    store = Far(clock)
    store.create("_probe/x/0-race", b"left by a probe that was killed")
    env = replace(SYSTEM, wall_ms=clock)
    root = Root(store, create_root_id(store, env), env)
    new_process()
    made = len(list(store.list("_probe/")))
    root.engine.ensure_probed()
    assert root.topics() == []
    assert len(list(store.list("_probe/"))) == made == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_during_a_probe_runs_its_own_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, probing, forked = os.getpid(), threading.Event(), threading.Event()

    def held(run: ProbeRun) -> None:
        if os.getpid() == parent:
            probing.set()
            assert forked.wait(30)

    guarantee = replace(probe_module.GUARANTEES[2], test=held)
    monkeypatch.setattr(
        probe_module, "GUARANTEES", (*probe_module.GUARANTEES[:2], guarantee, *probe_module.GUARANTEES[3:])
    )
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
