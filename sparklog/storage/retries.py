"""Tries that are made again, with random waits between them: of requests, and of looks at what a cache may hide.

A store that asks to slow down means seconds, not fractions of one: S3 splits a prefix, a namenode leaves safe mode.
Without an end the wait would look like a hang, so it has a budget. Whether a request may be sent again at all is for
the store to say: a commit may not, where its effect is open.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")
_LOG = logging.getLogger("sparklog.storage")

BUSY_BUDGET_S = 30.0
"""A request that a server is too busy for is repeated for so long: Kafka's `request.timeout.ms`."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
SETTLE_MS = 90_000
"""How long "exists, then absent" and failures are retried: caches of network file systems last a minute."""
_MAX_TRIES = 200  # more than fit into these times: a bound for clocks that stand still


class Timer(Protocol):
    """The clock of a wait: how long it has lasted, what waits (seconds), and chance, as a number from 0 to 1."""

    @property
    def sleep(self) -> Callable[[float], None]: ...
    def stopwatch(self) -> Callable[[], float]:
        """Return what tells the ms since now."""

    def uniform(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds to wait: of a time that doubles from `first` up to `longest`, a random share from `low` to `high`.

    Random, so that those who were refused together do not come back together. `ends_in_time`: a pause that would go
    beyond the time of a wait is not begun.
    """

    first: float
    longest: float
    low: float
    high: float
    ends_in_time: bool = False

    def length(self, tries: int, chance: float) -> float:
        """Return the seconds before try `tries` + 1."""
        return (self.low + (self.high - self.low) * chance) * min(self.first * 2.0 ** min(tries, 10), self.longest)


SHORT_PAUSES = Pauses(0.02, 2.0, 0.2, 1.0)
BUSY_PAUSES = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, 0.5, 1.5, ends_in_time=True)


class Backoff:
    """Tries with random waits between them, until `limit_ms` have passed."""

    def __init__(
        self, clock: Timer, limit_ms: float = SETTLE_MS, *, pauses: Pauses = SHORT_PAUSES, tries: int = 0
    ) -> None:
        self.tries = tries
        self._clock = clock
        self._limit_ms = limit_ms
        self._pauses = pauses
        self.restart()

    def restart(self) -> None:
        """Count the time again, after progress."""
        self._elapsed_ms = self._clock.stopwatch()

    def is_over(self) -> bool:
        """True once the time has passed, or on a clock that stands still enough tries."""
        return self.tries >= _MAX_TRIES or self._elapsed_ms() > self._limit_ms

    def sleep(self) -> None:
        self._sleep(self._next_pause())

    def wait(self) -> bool:
        """Wait a moment; False, at once, if the time is over, or would be with `ends_in_time`."""
        if self.is_over():
            return False
        pause = self._next_pause()
        if self._pauses.ends_in_time and self._elapsed_ms() + 1000 * pause > self._limit_ms:
            return False
        self._sleep(pause)
        return True

    def _next_pause(self) -> float:
        return self._pauses.length(self.tries, self._clock.uniform())

    def _sleep(self, pause: float) -> None:
        _LOG.info("try %d did not succeed: the next one is in %.1f s", self.tries + 1, pause)
        self._clock.sleep(pause)
        self.tries += 1


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock in seconds that never goes back, what waits, and numbers from 0 to 1."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = field(default=random.SystemRandom().random)

    def stopwatch(self) -> Callable[[], float]:
        begun = self.now()
        return lambda: 1000 * (self.now() - begun)

    def uniform(self) -> float:
        return self.random()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The budget of a request that a server is too busy for, by a clock."""

    budget_s: float = BUSY_BUDGET_S
    clock: Clock = Clock()

    def backoff(self) -> Backoff:
        return Backoff(self.clock, 1000 * self.budget_s, pauses=BUSY_PAUSES)

    def call(self, send: Callable[[], T], is_busy: Callable[[Exception], bool]) -> T:
        """Return the answer to a request, sent again while `is_busy` says so of its error; raise its last error."""
        backoff = self.backoff()
        while True:
            try:
                return send()
            except Exception as error:
                if not (is_busy(error) and backoff.wait()):
                    raise


ONCE = RetryPolicy(budget_s=0)
"""Without a second try."""
