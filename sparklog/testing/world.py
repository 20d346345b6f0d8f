"""A manual clock, and a simulated environment of processes that share an in-memory store and this clock."""

from __future__ import annotations

import random
from collections.abc import Callable

from sparklog.errors import BadRequest
from sparklog.limits import Limits
from sparklog.log.journal.clocks import Env
from sparklog.log.state.view import READ_COMMITTED, IsolationLevel
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class ManualClock:
    """A clock that only advances when a test advances it or when code sleeps. `now_ms` is the current time.

    `sleep` returns immediately. `slept` contains the requested seconds, and `on_sleep` is called after each sleep.

    Example:
        clock = testing.ManualClock()
        before = clock.now_ms
        clock.advance(days=8)
        assert clock.now_ms == before + 8 * testing.DAY_MS
    """

    def __init__(self, now_ms: int = START_MS, *, sleep_takes_time: bool = True) -> None:
        self.now_ms = now_ms
        self.boot_ahead_ms = 0
        self.sleep_takes_time = sleep_takes_time
        self.slept: list[float] = []
        self.on_sleep: Callable[[], object] | None = None

    def clock(self) -> int:
        """Return `now_ms`. Pass this method to code that expects a function."""
        return self.now_ms

    def advance(
        self, ms: int = 0, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """Advance the clock."""
        passed_ms = ms + int(seconds * 1000 + minutes * MINUTE_MS + hours * HOUR_MS + days * DAY_MS)
        if passed_ms < 0:
            raise BadRequest(f"time cannot advance by {passed_ms} ms: use set_wall_clock to set the clock back")
        self.now_ms += passed_ms

    def set_wall_clock(self, ahead_ms: int) -> None:
        """Set the wall clock forward, or back if `ahead_ms` is negative. The boot-time clock does not change."""
        self.now_ms += ahead_ms
        self.boot_ahead_ms -= ahead_ms

    def sleep(self, seconds: float) -> None:
        """Advance the clock by the given time plus one millisecond, unless `sleep_takes_time` is False."""
        self.slept.append(seconds)
        if self.sleep_takes_time:
            self.now_ms += int(seconds * 1000) + 1
        if self.on_sleep is not None:
            self.on_sleep()


class World(ManualClock):
    """A clock, an in-memory store, and seeded ids. Each call of `root()` simulates another process that opens the root.

    Worlds with the same seed generate the same ids. If worlds share a store, their seeds must be far apart. `limits`
    are the limits of the store. If the limits are small, checkpoints, windows and work items contain only a few
    records.

    Example:
        world = testing.World()
        world.root().create_topic("t").append(pa.table({"value": ["a"]}))
        assert world.values("t") == ["a"]
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        now_ms: int = START_MS,
        seed: int = 0,
        sleep_takes_time: bool = True,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(now_ms, sleep_takes_time=sleep_takes_time)
        self.processes = seed
        self.store = MemoryStore(self.clock) if store is None else store
        if limits is not None:
            self.store.limits = limits

    def env(self, skew_ms: int = 0) -> Env:
        """Return the environment of another process. The wall clock of the process is ahead by `skew_ms`."""
        self.processes += 1
        return Env(
            lambda: self.now_ms + skew_ms,
            lambda: self.now_ms + self.boot_ahead_ms,
            self.sleep,
            random.Random(self.processes),
        )

    def root(self, store: Store | None = None, env: Env | None = None, *, skew_ms: int = 0) -> Root:
        """Open the root as another process, and create it if it does not exist."""
        return open_root(self.store if store is None else store, create=True, env=env or self.env(skew_ms=skew_ms))

    def topic(self, name: str) -> Topic:
        """Open a topic as another process."""
        return self.root().topic(name)

    def values(self, name: str, isolation_level: IsolationLevel = READ_COMMITTED) -> list[str]:
        """Return the values of a topic's records as read by another process, in order of partition and offset.

        The values must be UTF-8.
        """
        table = self.topic(name).scan(columns=["value"], isolation_level=isolation_level).to_table()
        return [value.decode() for value in table["value"].to_pylist()]
