"""What goes wrong in a simulated run: kinds of faults, and stalls that last longer than any timeout."""

from __future__ import annotations

import random

from sparklog.testing.bucket_store import BUCKET_FAULTS
from sparklog.testing.faulty_store import Call, Decide, Fault, FaultKind

ERRORS = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.LATE, FaultKind.FULL)
ANSWERS = (FaultKind.TWICE, FaultKind.FALSE_EXISTS, FaultKind.ABSENT)
CRASHES = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)
DAMAGE = (FaultKind.SHORT, FaultKind.FLIP)
DELAYS = (FaultKind.DELAY, FaultKind.DELAY_AFTER)
LOST = "lost"
"""The profile in which journal objects disappear."""
LATE = "late"
"""The profile in which a create takes effect after a stall of its client."""
CACHES = ("names", "folders")
"""Profiles in which each machine caches names, one by one or by folder (`NameCachingStore`)."""


def bucket_faults(kinds: tuple[FaultKind, ...]) -> tuple[FaultKind, ...]:
    """Return those of these kinds that a client of a bucket can meet."""
    return tuple(kind for kind in kinds if kind in BUCKET_FAULTS + CRASHES)


class Stalls:
    """Adds long stalls to another plan of faults: before a request takes effect, or before its response arrives.

    `rate` applies to creating a commit, where a stall can do harm; other requests stall a tenth as often.
    """

    def __init__(self, inner: Decide, source: random.Random, rate: float, longest_ms: int) -> None:
        self.inner = inner
        self.source = source
        self.rate = rate
        self.longest_ms = longest_ms
        self.kinds = getattr(inner, "kinds", ())

    def __call__(self, call: Call) -> Fault | None:
        rate = self.rate if call.label == "create:commit" else self.rate / 10
        if self.source.random() < rate:
            return Fault(self.source.choice(DELAYS), self.source.uniform(0.3, self.longest_ms / 1000))
        return self.inner(call)


class LateCreates:
    """Lets a create of a commit take effect long after its client gave up, while the client opens the log again.

    The client stalls for over an hour when it reads the number after the failed create, so it no longer trusts that
    number. The create takes effect some requests later.
    """

    def __init__(self, source: random.Random, rate: float) -> None:
        self.source = source
        self.rate = rate
        self._stalls = False

    def __call__(self, call: Call) -> Fault | None:
        if self._stalls:
            self._stalls = False
            return Fault(FaultKind.DELAY, self.source.uniform(4_000, 8_000))
        if call.label == "create:commit" and self.source.random() < self.rate:
            self._stalls = True
            return Fault(FaultKind.LATE, self.source.randint(2, 9))
        return None
