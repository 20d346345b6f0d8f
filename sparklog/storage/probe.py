"""Test that a store keeps its promises: when a root is created, by `doctor`, and once in each process that commits.

A gateway that ignores a conditional header, a mount without hard links or a store that folds the case of names would
lose data silently. One that looks first and writes then would pass two creates in sequence: so 8 threads race.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from sparklog.errors import BadRequest, Unavailable
from sparklog.storage.local_writer import ForkLock
from sparklog.storage.store import Store

PROBE_FOLDER = "_probe"
_THREADS = 8


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Result of a probe: `clock_ahead_ms` is this machine's clock minus the store's."""

    location: str
    clock_ahead_ms: int
    took_ms: float


_probed: dict[str, ProbeReport] = {}
_lock = ForkLock()


def probe(store: Store, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> ProbeReport:
    """Test exclusive create, read-back, case, durability and clock; `BadRequest` names the promise that is broken."""
    began = time.perf_counter()
    folder = f"{PROBE_FOLDER}/{os.urandom(12).hex()}"
    keys = [f"{folder}/{name}" for name in ("race", "case", "CASE")]
    try:
        store.self_check()
        _race(store, keys[0])
        _case(store, keys[1:])
        before = wall_ms()
        store_ms = store.now_ms()
        # The store read its clock at some time between the two readings of ours.
        ahead = max(0, before - store_ms) or min(0, wall_ms() - store_ms)
    finally:
        for key in keys:
            with suppress(Unavailable):  # a leftover of the probe does no harm
                store.delete(key)
    return ProbeReport(store.location, ahead, (time.perf_counter() - began) * 1e3)


def ensure_probed(store: Store) -> ProbeReport | None:
    """Probe a store unless this process has done so already. None for stores that need none (`needs_probe = False`)."""
    if not store.needs_probe:
        return None
    report = _probed.get(store.location)
    if report is None:
        with _lock:
            report = _probed[store.location] = _probed.get(store.location) or probe(store)
    return report


def _race(store: Store, key: str) -> None:
    bodies = [f"probe {number} {os.urandom(12).hex()}".encode() for number in range(_THREADS)]
    start = threading.Barrier(_THREADS)

    def create(body: bytes) -> bool:
        start.wait()
        return store.create(key, body)

    with ThreadPoolExecutor(_THREADS) as pool:
        winners = [body for body, created in zip(bodies, pool.map(create, bodies), strict=True) if created]
    if len(winners) != 1:
        _broken(
            store, f"of {_THREADS} threads that created one object at once {len(winners)} were told they had; must be 1"
        )
    if store.get(key) != winners[0]:
        _broken(store, "an object read back holds other bytes than its only creator wrote")
    if store.create(key, b"again"):
        _broken(store, "an object that exists was created a second time")


def _case(store: Store, keys: Sequence[str]) -> None:
    for key in keys:
        if not store.create(key, key.encode()):
            _broken(store, "names that differ only in case are one object there")
    for key in keys:
        if store.get(key) != key.encode():
            _broken(store, "names that differ only in case hold the same bytes there")


def _broken(store: Store, what: str) -> None:
    raise BadRequest(f"{store.location} cannot hold a sparklog root: {what}; use another place")
