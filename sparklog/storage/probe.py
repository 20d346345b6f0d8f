"""Test the guarantees of a store: when a root is created, in `doctor`, and in processes that commit.

Some stores would lose data silently: a gateway that ignores conditional headers, a mount without hard links, a store
with case-insensitive names. A server that first checks for the object and then writes it passes sequential creates, and
often also a race of 8 threads: it passed 13 of 30 races, and 19 of 30 in its next version. Therefore a probe runs
`Store.probe_rounds` races: twelve if a server decides. Two of the races use bodies of 1 MiB, which delay such a server
between the check and the write: it passed 1 of 15 races.

`sparklog.log.journal.probe_results` caches the result, so that not every process has to probe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage.store import PROBE_FOLDER, Store

THREADS = 8
LARGE_BYTES = 1 << 20
LARGE_ROUNDS = 2
"""The number of races with large bodies. These are the last races of a probe."""

Clock = Callable[[], int]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of a probe.

    `clock_ahead_ms` is the difference between this host's clock and the store's clock, and `probed_ms` is the store's
    time.
    """

    location: str
    rounds: int
    clock_ahead_ms: int
    probed_ms: int
    took_ms: float


class ProbeRun:
    """One run of the probe: its objects, in a separate directory, and its measurements.

    As a context manager, it deletes the objects at the end.
    """

    def __init__(self, store: Store, wall_ms: Clock) -> None:
        self.store = store
        self.wall_ms = wall_ms
        self.folder = f"{PROBE_FOLDER}/{os.urandom(12).hex()}/"
        self.keys: list[str] = []
        self.first = b""
        """The content of the first object."""
        self.clock_ahead_ms = 0
        self.probed_ms = 0
        self._started = time.perf_counter()

    def __enter__(self) -> ProbeRun:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(SparklogError):  # remaining objects are harmless
            self.store.delete_many(self.keys)

    def report(self) -> ProbeReport:
        took_ms = (time.perf_counter() - self._started) * 1e3
        rounds = self.store.probe_rounds
        return ProbeReport(self.store.location, rounds, self.clock_ahead_ms, self.probed_ms, took_ms)

    def new_key(self, name: str) -> str:
        self.keys.append(self.folder + name)
        return self.keys[-1]

    def fail(self, problem: str) -> NoReturn:
        raise BadRequest(f"{self.store.location} cannot hold a sparklog root: {problem}; use another store")


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A guarantee of a store: its description, its test, and the remedy if it does not hold."""

    name: str
    description: str
    remedy: str
    test: Callable[[ProbeRun], None]


@dataclass(frozen=True, slots=True)
class GuaranteeResult:
    """A guarantee and the error of its test, or None if the guarantee holds."""

    guarantee: Guarantee
    error: SparklogError | None


def probe(store: Store, wall_ms: Clock = wall_clock_ms) -> ProbeReport:
    """Test all guarantees except deletion. Raises `BadRequest` if a guarantee does not hold."""
    with ProbeRun(store, wall_ms) as run:
        for guarantee in GUARANTEES:
            guarantee.test(run)
        return run.report()


def examine(store: Store, wall_ms: Clock = wall_clock_ms) -> tuple[ProbeReport, list[GuaranteeResult]]:
    """Test all guarantees, and return the result of each test.

    If `create` fails, the other guarantees cannot be tested.
    """
    results: list[GuaranteeResult] = []
    with ProbeRun(store, wall_ms) as run:
        for guarantee in (*GUARANTEES, DELETE):
            error = None
            try:
                guarantee.test(run)
            except SparklogError as failure:
                error = failure
            results.append(GuaranteeResult(guarantee, error))
            if error is not None and guarantee is CREATE:
                break
        return run.report(), results


def _exclusive(run: ProbeRun) -> None:
    run.store.self_check()
    rounds = run.store.probe_rounds
    large = LARGE_ROUNDS if rounds > LARGE_ROUNDS else 0
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(rounds):
            winner = _race(run, pool, number, LARGE_BYTES if number >= rounds - large else 0)
            run.first = run.first or winner


def _race(run: ProbeRun, pool: ThreadPoolExecutor, number: int, size: int) -> bytes:
    """Create one object from all threads of a pool concurrently, and return its content."""
    key = run.new_key(f"{number}-race")
    bodies = [f"probe {thread} {os.urandom(12).hex()} ".encode().ljust(size, b".") for thread in range(THREADS)]
    start = threading.Barrier(THREADS)

    def create(body: bytes) -> bool | Unavailable:
        start.wait()
        try:
            return run.store.create(key, body)
        except Unavailable as error:  # the create may have taken effect
            return error

    try:
        results = list(pool.map(create, bodies))
    except BaseException:
        start.abort()  # otherwise, the other threads would wait for a thread that could not start
        raise
    winners = [body for body, result in zip(bodies, results, strict=True) if result is True]
    if len(winners) > 1:
        run.fail(f"{len(winners)} of {THREADS} threads that created the same object concurrently succeeded, expected 1")
    failures = [result for result in results if isinstance(result, Unavailable)]
    if len(failures) == THREADS:
        raise failures[0]
    try:
        stored = run.store.get(key)
    except NotFound:
        if winners:
            run.fail("an object does not exist although its creation succeeded")
        raise Unavailable(f"no object could be created in {run.store.location}: try again") from None
    # If the response to the winner was lost and the request was retried, there is no winner.
    if stored not in (winners or bodies):
        run.fail("an object contains different bytes than its only creator wrote")
    if run.store.create(key, b"again"):
        run.fail("an existing object was created a second time")
    return stored


def _ranges(run: ProbeRun) -> None:
    key, whole = run.keys[0], run.first
    for start, length in ((3, 7), (len(whole) - 3, 3), (len(whole) - 3, 10)):
        if run.store.get(key, start, length) != whole[start : start + length]:
            run.fail(f"a read of {length} bytes from byte {start} returns other bytes")


def _case_sensitive(run: ProbeRun) -> None:
    keys = [run.new_key(name) for name in ("case", "CASE")]
    for key in keys:
        run.store.create(key, key.encode())
    for key in keys:
        if run.store.get(key) != key.encode():
            run.fail("names that differ only in case are the same object")


def _listing(run: ProbeRun) -> None:
    """Check listings. They may be stale, but they must be sorted and must not contain keys that were not requested."""
    keys = sorted(run.keys)
    middle = keys[len(keys) // 2]
    for after in ("", middle):
        listed = [info.key for info in run.store.list(run.folder, after)]
        if listed != [key for key in keys if key in listed and key > after]:
            run.fail(f"a listing of {run.folder} has keys out of order, or keys that were not requested")


def _clock(run: ProbeRun) -> None:
    before = run.wall_ms()
    run.probed_ms = run.store.now_ms()
    # The store read its clock between our two readings.
    ahead_ms = max(0, before - run.probed_ms) or min(0, run.wall_ms() - run.probed_ms)
    # Times in whole seconds cannot show a smaller difference.
    is_coarse = run.store.clock_step_ms > 1 and abs(ahead_ms) < 2 * run.store.clock_step_ms
    run.clock_ahead_ms = 0 if is_coarse else ahead_ms


def _delete(run: ProbeRun) -> None:
    key = run.keys[0]
    run.store.delete(key)
    run.store.delete(key)
    if run.store.stat(key) is not None:
        run.fail("a deleted object still exists")


_REMEDY = "use another store, or a newer version of its server: docs/reference/stores.md lists the tested versions"
CREATE = Guarantee(
    "create", f"if {THREADS} threads create one object concurrently, exactly one succeeds", _REMEDY, _exclusive
)
GUARANTEES = (
    CREATE,
    Guarantee("read", "reads of byte ranges return the requested bytes", _REMEDY, _ranges),
    Guarantee("names", "names are case-sensitive", _REMEDY, _case_sensitive),
    Guarantee("list", "listings are sorted by key", _REMEDY, _listing),
    Guarantee("clock", "the store's clock can be read", _REMEDY, _clock),
)
DELETE = Guarantee(
    "delete",
    "objects can be deleted",
    "retain and its vacuum require this guarantee, but writers and readers do not",
    _delete,
)
