"""Locks, libraries and garbage in a process that forks, or was forked.

`os.fork` copies locks that other threads hold at that moment; in the child no thread releases them. Python forks by
itself (multiprocessing on Linux up to 3.13, Spark's worker daemon), so every lock that outlives a call is a `ForkLock`.
What it guards must be usable at any point of a critical section: a cache, of which an entry may be missing.

Python has a lock for each module that is being imported, pyarrow one while it imports pandas, at its first array, and
numba one while it compiles. They cannot be freed in the child, where the work is half done. So a fork waits until no
other thread imports or compiles.

Spark's worker daemon runs `gc.collect()` after every task: 28 ms over the objects of pyspark, numpy and pyarrow, and
several times that once numba is loaded. Frozen objects are not visited. Freezing after the first use in a worker takes
the Python CPU time of a small micro-batch from 250 to 48 ms.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib import _bootstrap
from typing import Generic, TypeVar
from weakref import WeakSet

from sparklog.errors import Unavailable

K = TypeVar("K")
V = TypeVar("V")

CACHE_BYTES = 64 << 20
VALUE_BYTES = 1024
WAIT_S = 30.0
"""The longest that a fork waits: an import may itself wait for what the forking thread holds."""
_LOOK_EVERY_S = 0.002
_LOG = logging.getLogger("sparklog")


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


def _await_others() -> None:
    """Wait until no other thread imports or compiles."""
    end = time.monotonic() + WAIT_S
    while threading.active_count() > 1 and (_imports_elsewhere() or _compiles_elsewhere()):
        if time.monotonic() > end:
            _LOG.warning("a thread imports or compiles for %d s already: a child that does so, too, may hang", WAIT_S)
            return
        time.sleep(_LOOK_EVERY_S)


def _imports_elsewhere() -> bool:
    """True if another thread holds the lock of a module, which only importlib's inner part knows."""
    locks = [reference() for reference in list(getattr(_bootstrap, "_module_locks", {}).values())]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in locks)


def _compiles_elsewhere() -> bool:
    """True if another thread holds numba's lock."""
    numba = sys.modules.get("numba.core.compiler_lock")
    lock = getattr(getattr(numba, "global_compiler_lock", None), "_lock", None)
    if lock is None:
        return False
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


if hasattr(os, "register_at_fork"):
    # Later than logging's, so that it runs earlier: logging holds its lock during a fork, and the others may want it.
    os.register_at_fork(before=_await_others, after_in_child=_free_all)


class RecentlyUsed(Generic[K, V]):
    """A cache of the values used last, up to `most` bytes: `nbytes` of each and `VALUE_BYTES`. Threads may share it."""

    def __init__(self, nbytes: Callable[[V], int], most: int = CACHE_BYTES) -> None:
        self._nbytes = nbytes
        self._most = most
        self._lock = ForkLock()
        self._values: OrderedDict[K, V] = OrderedDict()
        self._total = 0

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._total += self._size(value)
            while self._total > self._most and self._values:
                self._total -= self._size(self._values.popitem(last=False)[1])

    def _size(self, value: V) -> int:
        return VALUE_BYTES + self._nbytes(value)


class ForkGuard:
    """Refuse a library in a child of a process that had used it: its threads are gone there, and calls would hang."""

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


@functools.cache
def freeze_gc(after: str, kernels: int = 0) -> None:
    """Exempt all objects alive now from garbage collection: once per process for each kind of work.

    `kernels`: how many a task has loaded so far. A first task may be small enough to be interpreted, and numba has more
    objects than all the rest. Loading it leaves 25,000 in cycles, which are collected first; imports leave none, and
    looking for them takes 25 ms of a query's start.
    """
    if kernels:
        gc.collect()
    gc.freeze()
