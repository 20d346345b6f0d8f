"""Clocks: which writers may commit, and the times of a commit. Also times as text.

A writer whose clock is far ahead of the store's does not commit. On a local disk both are one clock: one that jumps
ahead and back again leaves commits from the future. Their followers are not pinned there. Each commit has

* `timeMs`, which never goes back, and so stays where the jump left it until the clock has come there again;
* `clockMs`, when it was made, if that is another time. It does not go back either, except behind a commit that lies
  more than five minutes ahead of the store's clock, and so was made while a clock was wrong;
* `clockSince`, the newest version behind which it went back like that, for looking commits up by time: from there on
  times are in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Protocol

from sparklog.errors import Unavailable
from sparklog.log.journal.env import Env, Moment
from sparklog.storage.store import Store

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999, where Python's times end; Kafka's do not."""


def iso_time(ms: int) -> str:
    """Write ms since the epoch as `2026-01-31T12:00:00.000Z`; as a number if not of the years 1970 to 9999.

    The commands take this text back (`--as-of`, `--to-datetime`).
    """
    if not 0 <= ms <= LAST_MS:
        return str(ms)
    return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


MAX_AHEAD_MS = 300_000
ASK_AGAIN_MS = 600_000
MAX_DRIFT_MS = 1_000


class Dated(Protocol):
    """A commit, or the state after one."""

    @property
    def time_ms(self) -> int: ...

    @property
    def made_ms(self) -> int: ...

    @property
    def clock_since(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Times:
    """The times that a commit records."""

    time_ms: int
    clock_ms: int | None
    clock_since: int | None


def next_times(base: Dated, number: int, now_ms: int, store_ms: int) -> Times:
    """Return the times of commit `number`, which follows `base`, by the writer's clock and the store's."""
    wrong = base.made_ms > store_ms + MAX_AHEAD_MS
    made_ms = min(now_ms, store_ms) if wrong else max(now_ms, base.made_ms)
    time_ms = max(made_ms, base.time_ms)
    return Times(time_ms, None if made_ms == time_ms else made_ms, number if wrong else base.clock_since)


def newest_at(commit: Callable[[int], Dated], first: int, last: int, time_ms: int) -> int:
    """Return the newest version of `first` to `last` that was not made after a time; `first` - 1 if all were."""
    while first <= last:
        since = max(first, commit(last).clock_since or 0)
        low, high = since, last + 1
        while low < high:
            middle = (low + high) // 2
            if commit(middle).made_ms <= time_ms:
                low = middle + 1
            else:
                high = middle
        if low > since:
            return low - 1
        last = since - 1
    return first - 1


def reading_clock_ms(store: Store, env: Env) -> int:
    """Return the store's clock for work that changes nothing; this machine's where the store cannot be asked.

    A local store tells the time by a file that it makes and removes, which a read-only mount refuses.
    """
    try:
        return store.now_ms()
    except Unavailable:
        return env.wall_ms()


class ClockGuard:
    """Compare the wall clock with the store's (maybe a request): every ten minutes, and when the clock jumps."""

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._env = env
        self._asked: Moment | None = None
        self._ahead_ms = 0

    def check(self) -> None:
        """`Unavailable` if the wall clock is more than five minutes ahead of the store's."""
        now = self._env.now()
        if self._asked is not None and self._still(now, self._asked):
            return
        store_ms = self._store.now_ms()
        ahead = now.wall_ms - store_ms
        if ahead > MAX_AHEAD_MS:
            raise Unavailable(
                f"this machine's clock is {ahead // 1000} s ahead of {self._store.location}; at most "
                f"{MAX_AHEAD_MS // 1000} s are allowed to commit: set the clock"
            )
        self._asked, self._ahead_ms = now, ahead

    def store_ms(self) -> int:
        """Return the store's clock, by the last comparison."""
        return self._env.wall_ms() - self._ahead_ms

    @staticmethod
    def _still(now: Moment, then: Moment) -> bool:
        wall, boot = now.wall_ms - then.wall_ms, now.boot_ms - then.boot_ms
        return 0 <= boot < ASK_AGAIN_MS and abs(wall - boot) <= MAX_DRIFT_MS
