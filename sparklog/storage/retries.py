"""Requests that a busy server refuses, sent again for a while.

A store that asks to slow down means seconds, not fractions of one: S3 splits a prefix, a namenode leaves safe mode.
Without an end the wait would look like a hang, so it has a budget. Whether a request may be sent again at all is for
the store to say: a commit may not, where its effect is open.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

BUSY_BUDGET_S = 30.0
"""A request that a server is too busy for is repeated for so long: Kafka's `request.timeout.ms`."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The budget of a request, the clock (seconds, monotonic) and the pauses. `random` gives numbers from 0 to 1."""

    budget_s: float = BUSY_BUDGET_S
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = field(default=random.SystemRandom().random)

    def call(self, send: Callable[[], T], is_busy: Callable[[Exception], bool]) -> T:
        """Return the answer to a request, sent again while `is_busy` says so of its error; raise its last error."""
        retries = Retries(self)
        while True:
            try:
                return send()
            except Exception as error:
                if not (is_busy(error) and retries.wait()):
                    raise


ONCE = RetryPolicy(budget_s=0)
"""Without a second try."""


class Retries:
    """The pauses before the next tries of one request: each about twice the one before, up to `LONGEST_PAUSE_S`."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._end = policy.now() + policy.budget_s
        self._pause = FIRST_PAUSE_S

    def wait(self) -> bool:
        """Pause, and return True; False, at once, if the budget would be over then."""
        # Random, so that tasks that were refused together do not come back together.
        pause = self._pause * (0.5 + self._policy.random())
        if self._policy.now() + pause > self._end:
            return False
        self._policy.sleep(pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        return True
