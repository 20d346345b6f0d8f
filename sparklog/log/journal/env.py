"""The environment of a log: clocks, sleep and randomness, in one value that callers pass in.

No module below `sparklog.log` asks the operating system for the time or for a random number: it asks an `Env`, so that
a simulation can stop clocks, skew them and replay a run from its seed.
"""

from __future__ import annotations

import base64
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Env:
    """Clocks in ms, sleep in seconds, a source of random numbers.

    * `wall_ms`: the time of day, ms since the epoch; may jump
    * `boot_ms`: never goes back and goes on counting while the machine sleeps (a laptop lid, a suspended VM)
    * `sleep`: waits that many seconds
    """

    wall_ms: Callable[[], int]
    boot_ms: Callable[[], int]
    sleep: Callable[[float], None]
    random: random.Random = field(repr=False)

    def new_id(self) -> str:
        """Return a random (version 4) UUID as 22 characters of URL-safe base64, as Kafka writes ids; a letter first.

        The letter keeps ids apart from options on a command line and from the number in a Kafka partition directory's
        name.
        """
        while True:
            raw = uuid.UUID(int=self.random.getrandbits(128), version=4).bytes
            text = base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")
            if text[0].isalpha():
                return text

    def now(self) -> Moment:
        """Read both clocks."""
        return Moment(self.wall_ms(), self.boot_ms())

    def __reduce__(self) -> str | tuple[object, ...]:
        if self is SYSTEM:
            return "SYSTEM"
        return Env, (self.wall_ms, self.boot_ms, self.sleep, self.random)


@dataclass(frozen=True, slots=True)
class Moment:
    """A reading of both clocks; the time between two readings is the larger of what the two clocks say."""

    wall_ms: int
    boot_ms: int

    def elapsed_ms(self, earlier: Moment) -> int:
        """Return the ms since `earlier`: a clock that was set back, or one that stood still, does not hide a stall."""
        return max(self.wall_ms - earlier.wall_ms, self.boot_ms - earlier.boot_ms)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _boot_ms() -> int:
    # Python's monotonic clock stands still while a Linux machine sleeps; CLOCK_BOOTTIME does not. Elsewhere the clock
    # behind time.monotonic counts sleep already (CLOCK_MONOTONIC on macOS, the tick count on Windows).
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    nanoseconds = time.monotonic_ns() if boot_clock is None else time.clock_gettime_ns(boot_clock)
    return nanoseconds // 1_000_000


SETTLE_MS = 90_000
"""How long "exists, then absent" and failures are retried: caches of network file systems last a minute."""
MAX_TRIES = 200
"""More than fit into that time; a bound for clocks that stand still."""


@dataclass(slots=True)
class Backoff:
    """Tries with random waits between them, until `limit_ms` have passed."""

    env: Env
    limit_ms: float = SETTLE_MS
    tries: int = 0
    begun: Moment = field(init=False)

    def __post_init__(self) -> None:
        self.begun = self.env.now()

    def is_over(self) -> bool:
        """True once the time has passed, or on a clock that stands still enough tries."""
        return self.tries >= MAX_TRIES or self.env.now().elapsed_ms(self.begun) > self.limit_ms

    def restart(self) -> None:
        """Count the time anew: there was progress."""
        self.begun = self.env.now()

    def sleep(self) -> None:
        """Wait a moment, longer after more tries."""
        self.env.sleep(pause(self.env.random, self.tries))
        self.tries += 1

    def wait(self) -> bool:
        """Wait a moment; False, at once, if the time is over."""
        if self.is_over():
            return False
        self.sleep()
        return True


def pause(rng: random.Random, tries: int) -> float:
    """Return the seconds to wait before try `tries` + 1: random, up to a bound that doubles from 20 ms to 2 s."""
    bound: float = min(0.02 * 2 ** min(tries, 10), 2.0)
    return rng.uniform(0.2, 1.0) * bound


SYSTEM = Env(_wall_ms, _boot_ms, time.sleep, random.SystemRandom())
