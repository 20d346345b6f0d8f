"""A rate limit for maintenance I/O, Kafka's `log.cleaner.io.max.bytes.per.second`.

As in Kafka, the rate applies to the sum of bytes read and written. All work items of a process share the rate. A Spark
executor has one Python worker process per core, and each process has its own rate.
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
"""The rate limit that means unlimited, which is Kafka's default."""
MIN_PAUSE_MS = 50
"""The minimum length of a pause. Shorter pauses are accumulated until they reach this length."""


class Throttle:
    """Limits callers to `bytes_per_second`. Unpickling returns the throttle that the process shares for this rate."""

    def __init__(self, bytes_per_second: float, env: Env = SYSTEM) -> None:
        self._rate = bytes_per_second
        self._env = env
        self._lock = ForkLock()
        self._free_ms = -math.inf
        """The time at which all bytes so far would have been transferred at this rate."""

    def __reduce__(self) -> tuple[object, ...]:
        return process_throttle, (self._rate,)

    def add(self, nbytes: int) -> None:
        """Add bytes that were read or written, and wait until the rate allows more bytes."""
        with self._lock:
            now_ms = self._env.boot_ms()
            self._free_ms = max(self._free_ms, now_ms) + nbytes * 1000 / self._rate
            wait_ms = self._free_ms - now_ms
        if wait_ms >= MIN_PAUSE_MS:
            self._env.sleep(wait_ms / 1000)


@lru_cache(maxsize=8)
def process_throttle(bytes_per_second: float) -> Throttle:
    """Return the throttle that this process shares for a rate."""
    return Throttle(bytes_per_second)


def throttled(store: Store, bytes_per_second: float) -> Store:
    """Return the store limited to this rate, or the store itself if the rate is unlimited."""
    return store if bytes_per_second >= UNLIMITED else ThrottledStore(store, process_throttle(bytes_per_second))


class ThrottledStore(WrapperStore):
    """A store whose reads and writes are limited by a throttle."""

    def __init__(self, inner: Store, throttle: Throttle) -> None:
        super().__init__(inner)
        self.throttle = throttle

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = self.inner.get(key, start, length)
        self.throttle.add(len(data))
        return data

    def create(self, key: str, data: bytes) -> bool:
        self.throttle.add(len(data))
        return self.inner.create(key, data)

    def writer(self, key: str) -> ObjectWriter:
        return _ThrottledWriter(self, key, self.inner.writer(key))


class _ThrottledWriter(WrapperWriter):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._store.throttle.add(len(data))
        self._inner.write(data)
