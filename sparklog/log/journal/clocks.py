"""The environment of a log (`Env`): clocks, sleep and randomness. This module also defines the rules for clocks.

No module below `sparklog.log` reads the system's clocks or random numbers directly, so that a simulation can control
and replay them.

If the clock of a writer is far ahead of the store's clock, the writer does not commit. On a local disk, both are the
same clock. If this clock jumps ahead and back again, the log contains commits whose times are in the future. The times
of later commits must not stay in the future forever. Therefore, each commit has three fields:

* `timeMs` never decreases. After a jump, its value does not change until the clock reaches this time again.
* `clockMs` is the time at which the commit was created, if it differs from `timeMs`. It decreases only after a commit
  that is more than five minutes ahead of the store's clock, because such a commit was created while a clock was wrong.
* `clockSince` is the latest version at which `clockMs` decreased. From this version on, the times are in order, so
  commits can be looked up by time.
"""

from __future__ import annotations

import base64
import random
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypedDict

from sparklog.errors import Unavailable
from sparklog.storage.retries import SHORT_PAUSES
from sparklog.storage.store import Store

MAX_AHEAD_MS = 300_000
CHECK_INTERVAL_MS = 600_000
MAX_DRIFT_MS = 1_000


class Dated(Protocol):
    """A commit, or the state after a commit."""

    @property
    def time_ms(self) -> int: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def clock_since(self) -> int | None: ...


class Times(TypedDict):
    """The times in a commit."""

    time_ms: int
    clock_ms: int | None
    clock_since: int | None


def next_times(base: Dated, number: int, now_ms: int, store_ms: int) -> Times:
    """Return the times of commit `number`, which follows `base`.

    `now_ms` is the time of the writer's clock, and `store_ms` is the time of the store's clock.
    """
    is_ahead = base.created_ms > store_ms + MAX_AHEAD_MS
    created_ms = min(now_ms, store_ms) if is_ahead else max(now_ms, base.created_ms)
    time_ms = max(created_ms, base.time_ms)
    clock_ms = None if created_ms == time_ms else created_ms
    return Times(time_ms=time_ms, clock_ms=clock_ms, clock_since=number if is_ahead else base.clock_since)


def latest_at(commit: Callable[[int], Dated], first: int, last: int, time_ms: int) -> int:
    """Return the latest version from `first` to `last` that was created at or before a time, or `first` - 1 if there is
    none.
    """
    while first <= last:
        since = max(first, commit(last).clock_since or 0)
        count = bisect_right(range(since, last + 1), time_ms, key=lambda version: commit(version).created_ms)
        if count:
            return since + count - 1
        last = since - 1
    return first - 1


def reading_clock_ms(store: Store, env: Env) -> int:
    """Return the time of the store's clock. If the store's clock cannot be read, for example on a read-only mount,
    return the time of this host's clock.
    """
    if not store.writable:
        return env.wall_ms()
    try:
        return store.now_ms()
    except Unavailable:
        return env.wall_ms()


class ClockGuard:
    """Compares the wall clock with the store's clock every ten minutes, and when the wall clock has jumped. A
    comparison may send a request.
    """

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._env = env
        self._last_check: ClockReading | None = None
        self._ahead_ms = 0

    def check(self) -> None:
        """Raise `Unavailable` if the wall clock is more than five minutes ahead of the store's clock."""
        now = self._env.now()
        if self._last_check is not None:
            wall, boot = now.wall_ms - self._last_check.wall_ms, now.boot_ms - self._last_check.boot_ms
            if 0 <= boot < CHECK_INTERVAL_MS and abs(wall - boot) <= MAX_DRIFT_MS:
                return
        store_ms = self._store.now_ms()
        ahead = now.wall_ms - store_ms
        if ahead > MAX_AHEAD_MS:
            raise Unavailable(
                f"this host's clock is {ahead // 1000} s ahead of {self._store.location}; commits require at most "
                f"{MAX_AHEAD_MS // 1000} s: set the clock"
            )
        step_ms = self._store.clock_step_ms
        # If the resolution of a clock is one second, it cannot measure a smaller difference, and its jitter must not
        # change times.
        is_equal = step_ms > 1 and abs(ahead) < 2 * step_ms
        self._last_check, self._ahead_ms = now, 0 if is_equal else ahead

    def store_ms(self, wall_ms: int) -> int:
        """Convert a time of this host's clock to the store's clock."""
        return wall_ms - self._ahead_ms


@dataclass(frozen=True, slots=True)
class Env:
    """Clocks in ms, sleep in seconds, and randomness.

    `wall_ms` may jump. `boot_ms` never jumps, and includes the time during which the host sleeps.
    """

    wall_ms: Callable[[], int]
    boot_ms: Callable[[], int]
    sleep: Callable[[float], None]
    random: random.Random = field(repr=False)

    def new_id(self) -> str:
        """Return a random UUID in Kafka's format: 22 characters.

        The id starts with a letter, so that it cannot be mistaken for an option or a number.
        """
        while True:
            # Set version 4 and variant 2 directly, because the uuid module is slower.
            number = self.random.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62
            text = base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode("ascii")
            if text[0].isalpha():
                return text[:22]

    @property
    def wall_ns(self) -> Callable[[], int]:
        """A function that returns the time of `wall_ms` in ns. The system's function is written in C, so it is fast."""
        return time.time_ns if self is SYSTEM else lambda: self.wall_ms() * 1_000_000

    def now(self) -> ClockReading:
        return ClockReading(self.wall_ms(), self.boot_ms())

    def elapsed_ms(self, earlier: ClockReading) -> int:
        """Return the value of `now().elapsed_ms(earlier)`. No `ClockReading` is created, because each commit calls this
        method several times.
        """
        return max(self.wall_ms() - earlier.wall_ms, self.boot_ms() - earlier.boot_ms)

    def stopwatch(self) -> Callable[[], float]:
        return partial(self.elapsed_ms, self.now())

    def uniform(self) -> float:
        """Return a random number between 0 and 1."""
        return self.random.random()

    def pause(self, tries: int) -> None:
        """Wait a random time before attempt `tries` + 1. The maximum time doubles from 20 ms to 2 s."""
        self.sleep(SHORT_PAUSES.length(tries, self.uniform()))

    def __reduce__(self) -> str | tuple[object, ...]:
        if self is SYSTEM:
            return "SYSTEM"
        return Env, (self.wall_ms, self.boot_ms, self.sleep, self.random)


RECENT_MS = 1_000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of both clocks. The elapsed time is the larger of the two differences, so that setting back a clock
    does not hide a stall.
    """

    wall_ms: int
    boot_ms: int

    def elapsed_ms(self, earlier: ClockReading) -> int:
        return max(self.wall_ms - earlier.wall_ms, self.boot_ms - earlier.boot_ms)

    def is_soon_after(self, earlier: ClockReading) -> bool:
        """Return True if less than a second has passed according to both clocks.

        The result is False if a clock was set, or if `earlier` was read on another host.
        """
        passed = self.wall_ms - earlier.wall_ms, self.boot_ms - earlier.boot_ms
        return all(0 <= milliseconds < RECENT_MS for milliseconds in passed)


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def _boot_ms() -> int:
    # On Linux, Python's monotonic clock stops while the host sleeps, and CLOCK_BOOTTIME does not. On other systems,
    # time.monotonic includes sleep (CLOCK_MONOTONIC on macOS, the tick count on Windows).
    nanoseconds = time.monotonic_ns() if _BOOT_CLOCK is None else time.clock_gettime_ns(_BOOT_CLOCK)
    return nanoseconds // 1_000_000


SYSTEM = Env(lambda: time.time_ns() // 1_000_000, _boot_ms, time.sleep, random.SystemRandom())
