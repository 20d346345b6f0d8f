"""A store in memory, a clock moved by hand, and processes that open the root in it."""

from __future__ import annotations

import random
from collections.abc import Callable

from sparklog.log.journal.env import Env
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class World:
    """The store and the clock of a test. Each `env` and each `root` is one more process.

    Time passes when the test moves `now_ms`, and when a process sleeps (unless `sleep_takes_time` is False).
    Processes make up ids from `seed` on: worlds that share a store need seeds far apart.
    """

    def __init__(
        self, store: Store | None = None, *, now_ms: int = START_MS, seed: int = 0, sleep_takes_time: bool = True
    ) -> None:
        self.now_ms = now_ms
        self.boot_ahead_ms = 0
        """How far the boot-time clock has gone beyond `now_ms`."""
        self.sleep_takes_time = sleep_takes_time
        self.slept: list[float] = []
        """Seconds that processes asked to sleep."""
        self.on_sleep: Callable[[], object] | None = None
        self.processes = seed
        self.store = MemoryStore(self.clock) if store is None else store

    def clock(self) -> int:
        return self.now_ms

    def pass_ms(self, ms: int) -> None:
        """Let time pass, where a statement cannot move `now_ms`."""
        self.now_ms += ms

    def set_wall_clock(self, ahead_ms: int) -> None:
        """Set the wall clock of the machine forward, or back; the boot-time clock goes on as before."""
        self.now_ms += ahead_ms
        self.boot_ahead_ms -= ahead_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.sleep_takes_time:
            self.now_ms += int(seconds * 1000) + 1
        if self.on_sleep is not None:
            self.on_sleep()

    def env(self, skew_ms: int = 0) -> Env:
        """The surroundings of one more process, whose wall clock is off by `skew_ms`."""
        self.processes += 1
        return Env(
            lambda: self.now_ms + skew_ms,
            lambda: self.now_ms + self.boot_ahead_ms,
            self.sleep,
            random.Random(self.processes),
        )

    def root(self, store: Store | None = None, env: Env | None = None, *, skew_ms: int = 0) -> Root:
        """The root as one more process sees it; made if there is none."""
        return open_root(self.store if store is None else store, create=True, env=env or self.env(skew_ms=skew_ms))
