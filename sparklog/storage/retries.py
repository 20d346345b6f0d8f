"""Retries with random pauses, for requests, and for reads of objects that a cache may hide.

If a store asks clients to slow down, it needs seconds: S3 splits a prefix, or a namenode leaves safe mode. The wait has
a budget, because a longer wait would look like a hang. The store decides whether a request may be retried. A commit
must not be retried if its effect is unknown.
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
"""Maximum time for retries of requests to a busy server, as Kafka's `request.timeout.ms`."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
SETTLE_MS = 90_000
"""Maximum time for retries after failures and for hidden objects. Caches of network file systems last a minute."""
# an upper bound that is never reached within these times, so that retries end even if the clock of a test does not
# advance
_MAX_ATTEMPTS = 200


class Timer(Protocol):
    """Clock, sleep (in seconds) and randomness of a wait."""

    @property
    def sleep(self) -> Callable[[float], None]: ...
    def stopwatch(self) -> Callable[[], float]:
        """Return a function that returns the time since this call in ms."""

    def uniform(self) -> float:
        """Return a random number between 0 and 1."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses in seconds.

    The maximum pause doubles from `first` up to `longest`. The length of a pause is a random fraction of the maximum,
    between `low` and `high`.

    Randomness spreads the retries of clients that were rejected together. If `ends_in_time` is True, a pause that would
    exceed the time limit of a wait does not start.
    """

    first: float
    longest: float
    low: float
    high: float
    ends_in_time: bool = False

    def length(self, tries: int, random_share: float) -> float:
        """Return the pause before attempt `tries` + 1 in seconds. `random_share` is a random number from 0 to 1."""
        return (self.low + (self.high - self.low) * random_share) * min(
            self.first * 2.0 ** min(tries, 10), self.longest
        )


SHORT_PAUSES = Pauses(0.02, 2.0, 0.2, 1.0)
BUSY_PAUSES = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, 0.5, 1.5, ends_in_time=True)


class Backoff:
    """Attempts with random pauses in between, until `limit_ms` have passed."""

    def __init__(
        self, clock: Timer, limit_ms: float = SETTLE_MS, *, pauses: Pauses = SHORT_PAUSES, tries: int = 0
    ) -> None:
        self.tries = tries
        self._clock = clock
        self._limit_ms = limit_ms
        self._pauses = pauses
        self.restart()

    def restart(self) -> None:
        """Restart the time limit after progress."""
        self._elapsed_ms = self._clock.stopwatch()

    def is_over(self) -> bool:
        """Return True if the time limit has passed, or if there were `_MAX_ATTEMPTS` attempts."""
        return self.tries >= _MAX_ATTEMPTS or self._elapsed_ms() > self._limit_ms

    def sleep(self) -> None:
        self._sleep(self._next_pause())

    def wait(self) -> bool:
        """Wait for one pause and return True.

        Return False immediately if the time limit has passed. If `ends_in_time` is true, also return False if the limit
        would pass during the pause.
        """
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
        _LOG.info("attempt %d failed; retrying in %.1f s", self.tries + 1, pause)
        self._clock.sleep(pause)
        self.tries += 1


@dataclass(frozen=True, slots=True)
class Clock:
    """A monotonic clock in seconds, sleep, and random numbers from 0 to 1."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = field(default=random.SystemRandom().random)

    def stopwatch(self) -> Callable[[], float]:
        start = self.now()
        return lambda: 1000 * (self.now() - start)

    def uniform(self) -> float:
        return self.random()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The budget for retries of a request to a busy server."""

    budget_s: float = BUSY_BUDGET_S
    clock: Clock = Clock()

    def backoff(self) -> Backoff:
        return Backoff(self.clock, 1000 * self.budget_s, pauses=BUSY_PAUSES)

    def call(self, send: Callable[[], T], is_busy: Callable[[Exception], bool]) -> T:
        """Send a request, and retry it while `is_busy` returns True for its error. Raises the last error."""
        backoff = self.backoff()
        while True:
            try:
                return send()
            except Exception as error:
                if not (is_busy(error) and backoff.wait()):
                    raise


ONCE = RetryPolicy(budget_s=0)
"""A policy without retries."""
