"""A writer whose clock is far ahead does not commit: commit time never goes back, one fast clock would pin it."""

from __future__ import annotations

from sparklog.errors import Unavailable
from sparklog.log.env import Env, Moment
from sparklog.storage.store import Store

MAX_AHEAD_MS = 300_000
ASK_AGAIN_MS = 600_000
MAX_DRIFT_MS = 1_000


class ClockGuard:
    """Compares the wall clock with the store's (maybe a request): every ten minutes, and when the clock jumps."""

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._env = env
        self._asked: Moment | None = None

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
        self._asked = now

    @staticmethod
    def _still(now: Moment, then: Moment) -> bool:
        wall, boot = now.wall_ms - then.wall_ms, now.boot_ms - then.boot_ms
        return 0 <= boot < ASK_AGAIN_MS and abs(wall - boot) <= MAX_DRIFT_MS
