"""A lock that no child inherits as taken.

`os.fork` copies the locks that other threads hold at that moment, and in the child nobody is there to release them.
Python forks by itself (multiprocessing on Linux up to 3.13, Spark's worker daemon), so every lock that outlives a call
is one of these. What they guard must be usable at any point of a critical section: caches, of which an entry may be
missing.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from weakref import WeakSet


class ForkLock:
    """A `threading.Lock` for `with` statements, free in every new child process."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


_LOCKS: WeakSet[ForkLock] = WeakSet()


def _free_all() -> None:
    for lock in _LOCKS:
        lock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
