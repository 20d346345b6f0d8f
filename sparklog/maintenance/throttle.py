"""A byte rate for maintenance, Kafka's `log.cleaner.io.max.bytes.per.second`: jobs leave disk and network to others.

What a piece of work reads and writes counts together, as in Kafka. All pieces of one process share the rate: of a Spark
executor, each of its Python workers, of which there is one for each core that has a task.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache

from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import ObjectWriter, Store
from sparklog.storage.wrapper_store import WrapperStore, WrapperWriter

UNLIMITED = sys.float_info.max
"""Kafka's default."""
LEAST_PAUSE_MS = 50
"""Shorter pauses are saved up."""


class Throttle:
    """Make those wait that move more than `bytes_per_second`. Pickled, it becomes the one of the process."""

    def __init__(self, bytes_per_second: float, env: Env = SYSTEM) -> None:
        self._rate = bytes_per_second
        self._env = env
        self._lock = ForkLock()
        self._free_ms = -math.inf
        """When all bytes so far would have been moved at the rate."""

    def __reduce__(self) -> tuple[object, ...]:
        return process_throttle, (self._rate,)

    def moved(self, nbytes: int) -> None:
        """Count bytes that were read or written, and wait until the rate allows more."""
        with self._lock:
            now_ms = self._env.boot_ms()
            self._free_ms = max(self._free_ms, now_ms) + nbytes * 1000 / self._rate
            wait_ms = self._free_ms - now_ms
        if wait_ms >= LEAST_PAUSE_MS:
            self._env.sleep(wait_ms / 1000)


@lru_cache(maxsize=8)
def process_throttle(bytes_per_second: float) -> Throttle:
    """Return the throttle of this process for a rate."""
    return Throttle(bytes_per_second)


def throttled(store: Store, bytes_per_second: float) -> Store:
    """Return the store with this rate; without one the store itself."""
    return store if bytes_per_second >= UNLIMITED else ThrottledStore(store, process_throttle(bytes_per_second))


class ThrottledStore(WrapperStore):
    """A store whose data moves at a throttle's rate."""

    def __init__(self, inner: Store, throttle: Throttle) -> None:
        super().__init__(inner)
        self.throttle = throttle

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = self.inner.get(key, start, length)
        self.throttle.moved(len(data))
        return data

    def create(self, key: str, data: bytes) -> bool:
        self.throttle.moved(len(data))
        return self.inner.create(key, data)

    def writer(self, key: str) -> ObjectWriter:
        return _ThrottledWriter(self, key, self.inner.writer(key))


class _ThrottledWriter(WrapperWriter):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._store.throttle.moved(len(data))
        self._inner.write(data)
