"""Locks and libraries in a process that forks.

`os.fork` copies locks that other threads hold at that moment; in the child no thread releases them. Python forks by
itself (multiprocessing on Linux up to 3.13, Spark's worker daemon), so every lock that outlives a call is a `ForkLock`.
What it guards must be usable at any point of a critical section: a cache, of which an entry may be missing.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

from sparklog.errors import Unavailable


class ForkLock:
    """A `threading.Lock` for `with` statements, free in every new child process."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_LOCKS: WeakSet[ForkLock] = WeakSet()


def _free_all() -> None:
    for lock in _LOCKS:
        lock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)


class ForkGuard:
    """Refuse a library in a process that was forked by one which had used it.

    The threads of such a library are gone in the child, where each call would wait for them for ever.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._used = False
        self._lost = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def use(self) -> None:
        """Note that the library is used. `Unavailable` where it would hang."""
        if self._lost:
            raise Unavailable(
                f"this process was forked by one that had used {self._library}, which works in no such child: start "
                "processes with multiprocessing's 'spawn' or 'forkserver' method, or open stores after the fork only"
            )
        self._used = True

    def _forked(self) -> None:
        self._lost = self._used
