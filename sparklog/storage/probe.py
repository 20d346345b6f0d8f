"""Test that a store keeps its promises: when a root is created, by `doctor`, and by processes that commit.

A gateway that ignores a conditional header, a mount without hard links or a store that folds the case of names would
lose data silently. One that looks first and writes then passes two creates in sequence, and often one race of 8
threads: 13 of 30 times, 19 of 30 in the next version. So `Store.probe_rounds` races are run, twelve where a server
decides. Two of them carry 1 MiB: such a server is then slow between looking and writing, and 1 of 15 races passes.

`sparklog.log.journal.probe_verdict` keeps the outcome, so that not every process pays.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage.store import PROBE_FOLDER, Store

THREADS = 8
LARGE_BYTES = 1 << 20
LARGE_ROUNDS = 2
"""Races with large bodies: the last of twelve."""

Clock = Callable[[], int]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Result of a probe: `clock_ahead_ms` is this machine's clock minus the store's, `probed_ms` the store's."""

    location: str
    rounds: int
    clock_ahead_ms: int
    probed_ms: int
    took_ms: float


class Trial:
    """One probe: its objects, in a folder of its own, and what it measured. As a context it removes them in the end."""

    def __init__(self, store: Store, wall_ms: Clock) -> None:
        self.store = store
        self.wall_ms = wall_ms
        self.folder = f"{PROBE_FOLDER}/{os.urandom(12).hex()}/"
        self.keys: list[str] = []
        self.first = b""
        """Bytes of the first object."""
        self.clock_ahead_ms = 0
        self.probed_ms = 0
        self._began = time.perf_counter()

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(SparklogError):  # a leftover of the probe does no harm
            self.store.delete_many(self.keys)

    def report(self) -> ProbeReport:
        took_ms = (time.perf_counter() - self._began) * 1e3
        rounds = self.store.probe_rounds
        return ProbeReport(self.store.location, rounds, self.clock_ahead_ms, self.probed_ms, took_ms)

    def key(self, name: str) -> str:
        self.keys.append(self.folder + name)
        return self.keys[-1]

    def broken(self, problem: str) -> None:
        raise BadRequest(f"{self.store.location} cannot hold a sparklog root: {problem}; use another place")


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise of stores: its words where it is kept, what to do where not, and the test, which raises."""

    name: str
    kept: str
    remedy: str
    test: Callable[[Trial], None]


@dataclass(frozen=True, slots=True)
class PromiseOutcome:
    """A promise, and the error that its test ended with, None if it is kept."""

    promise: Promise
    error: SparklogError | None


def probe(store: Store, wall_ms: Clock = wall_clock_ms) -> ProbeReport:
    """Test all promises but that of deleting; `BadRequest` names the one that is broken."""
    with Trial(store, wall_ms) as trial:
        for promise in PROMISES:
            promise.test(trial)
        return trial.report()


def examine(store: Store, wall_ms: Clock = wall_clock_ms) -> tuple[ProbeReport, list[PromiseOutcome]]:
    """Test all promises and say how each came out. Without `create` the others cannot be tested."""
    outcomes: list[PromiseOutcome] = []
    with Trial(store, wall_ms) as trial:
        for promise in (*PROMISES, DELETE):
            error = None
            try:
                promise.test(trial)
            except SparklogError as failure:
                error = failure
            outcomes.append(PromiseOutcome(promise, error))
            if error is not None and promise is CREATE:
                break
        return trial.report(), outcomes


def _exclusive(trial: Trial) -> None:
    trial.store.self_check()
    rounds = trial.store.probe_rounds
    large = LARGE_ROUNDS if rounds > LARGE_ROUNDS else 0
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(rounds):
            winner = _race(trial, pool, number, LARGE_BYTES if number >= rounds - large else 0)
            trial.first = trial.first or winner


def _race(trial: Trial, pool: ThreadPoolExecutor, number: int, size: int) -> bytes:
    """Create one object from all threads of a pool at once; return what it holds."""
    key = trial.key(f"{number}-race")
    bodies = [f"probe {thread} {os.urandom(12).hex()} ".encode().ljust(size, b".") for thread in range(THREADS)]
    start = threading.Barrier(THREADS)

    def create(body: bytes) -> bool | Unavailable:
        start.wait()
        try:
            return trial.store.create(key, body)
        except Unavailable as error:  # it may have taken effect
            return error

    try:
        answers = list(pool.map(create, bodies))
    except BaseException:
        start.abort()  # a thread that could not be started would be waited for by all others
        raise
    winners = [body for body, answer in zip(bodies, answers, strict=True) if answer is True]
    if len(winners) > 1:
        trial.broken(
            f"of {THREADS} threads that created one object at once {len(winners)} were told they had; must be 1"
        )
    failures = [answer for answer in answers if isinstance(answer, Unavailable)]
    if len(failures) == THREADS:
        raise failures[0]
    try:
        stored = trial.store.get(key)
    except NotFound:
        if winners:
            trial.broken("an object is not there although its creator was told so")
        raise Unavailable(f"no object could be created in {trial.store.location}: try again") from None
    # No thread was told so where the winner's answer was lost and asked for again.
    if stored not in (winners or bodies):
        trial.broken("an object read back holds other bytes than its only creator wrote")
    if trial.store.create(key, b"again"):
        trial.broken("an object that exists was created a second time")
    return stored


def _ranges(trial: Trial) -> None:
    key, whole = trial.keys[0], trial.first
    for start, length in ((3, 7), (len(whole) - 3, 3), (len(whole) - 3, 10)):
        if trial.store.get(key, start, length) != whole[start : start + length]:
            trial.broken(f"a read of {length} bytes from byte {start} gives others")


def _case(trial: Trial) -> None:
    keys = [trial.key(name) for name in ("case", "CASE")]
    for key in keys:
        trial.store.create(key, key.encode())
    for key in keys:
        if trial.store.get(key) != key.encode():
            trial.broken("names that differ only in case are one object there")


def _listing(trial: Trial) -> None:
    """A listing may be late. It may not be out of order, or name what was not asked for."""
    keys = sorted(trial.keys)
    middle = keys[len(keys) // 2]
    for after in ("", middle):
        listed = [info.key for info in trial.store.list(trial.folder, after)]
        if listed != [key for key in keys if key in listed and key > after]:
            trial.broken(f"a listing of {trial.folder} gives keys out of order, or others than those asked for")


def _clock(trial: Trial) -> None:
    before = trial.wall_ms()
    trial.probed_ms = trial.store.now_ms()
    # The store read its clock at some time between the two readings of ours.
    ahead_ms = max(0, before - trial.probed_ms) or min(0, trial.wall_ms() - trial.probed_ms)
    # Whole seconds cannot tell clocks apart that differ by less.
    is_coarse = trial.store.clock_step_ms > 1 and abs(ahead_ms) < 2 * trial.store.clock_step_ms
    trial.clock_ahead_ms = 0 if is_coarse else ahead_ms


def _delete(trial: Trial) -> None:
    key = trial.keys[0]
    trial.store.delete(key)
    trial.store.delete(key)
    if trial.store.stat(key) is not None:
        trial.broken("an object that was deleted is still there")


_OTHER = "use another store, or a newer version of its server: docs/reference/stores.md names those that were tried"
CREATE = Promise("create", f"of {THREADS} that create one object at once exactly one does", _OTHER, _exclusive)
PROMISES = (
    CREATE,
    Promise("read", "ranges of an object are its bytes", _OTHER, _ranges),
    Promise("names", "names keep their case", _OTHER, _case),
    Promise("list", "listings are in order", _OTHER, _listing),
    Promise("clock", "the store's clock can be read", _OTHER, _clock),
)
DELETE = Promise("delete", "objects can be deleted", "retain and vacuum need it, writers and readers do not", _delete)
