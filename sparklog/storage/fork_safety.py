"""Locks, libraries and garbage collection in processes that fork.

`os.fork` copies locks that other threads hold at the time of the fork, and no thread in the child releases them. Python
programs fork (multiprocessing on Linux up to Python 3.13, Spark's worker daemon), so every lock that outlives a call is
a `ForkLock`. The guarded state must be usable at any point of a critical section. An example is a cache, in which
entries may be missing.

Python holds a lock per module during its import, pyarrow holds locks while it imports pandas for its first array, and
a kernel is loaded or compiled under a lock. These locks cannot be released in the child, where this work is incomplete.
Therefore a fork waits until no other thread imports or compiles.

Spark's worker daemon calls `gc.collect()` after every task. This takes 28 ms for the objects of pyspark, numpy and
pyarrow, and several times as long if numba has compiled a kernel. The collector skips frozen objects. Freezing all
objects after the first use in a worker reduces the Python CPU time of a small micro-batch from 250 ms to 48 ms.
"""

from __future__ import annotations

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
"""Maximum time that a fork waits, because an import may itself wait for a lock of the forking thread."""
_POLL_S = 0.002
_LOG = logging.getLogger("sparklog")


def ForkLock() -> threading.Lock:  # noqa: N802 - a function that creates a lock, like `threading.Lock`
    """Create a `threading.Lock` that is released in every new child process.

    The lock is not an object with an `__enter__` in Python. If Ctrl-C interrupted that method after it had acquired the
    lock, the lock would never be released. A `with` statement acquires and releases a `threading.Lock` without such an
    interruption.
    """
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


_LOCKS: WeakSet[threading.Lock] = WeakSet()


def _release_all() -> None:
    for lock in _LOCKS:
        lock._at_fork_reinit()  # type: ignore[attr-defined]


def _await_others() -> None:
    """Wait until no other thread imports or compiles."""
    end = time.monotonic() + WAIT_S
    while threading.active_count() > 1 and (_imports_elsewhere() or _compiles_elsewhere()):
        if time.monotonic() > end:
            _LOG.warning(
                "a thread has been importing or compiling for %d s; a forked child process that also imports "
                "or compiles may hang",
                WAIT_S,
            )
            return
        time.sleep(_POLL_S)


def _imports_elsewhere() -> bool:
    """Return True if another thread holds an import lock, according to importlib's internal data."""
    locks = [reference() for reference in list(getattr(_bootstrap, "_module_locks", {}).values())]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in locks)


def _compiles_elsewhere() -> bool:
    """Return True if another thread loads or compiles a kernel, or holds numba's lock."""
    kernels = sys.modules.get("sparklog.format.kernels.machine_code")
    numba = sys.modules.get("numba.core.compiler_lock")
    numba_lock = getattr(getattr(numba, "global_compiler_lock", None), "_lock", None)
    for lock in (getattr(kernels, "LOADING", None), numba_lock):
        if lock is not None:
            if not lock.acquire(blocking=False):
                return True
            lock.release()
    return False


if hasattr(os, "register_at_fork"):
    # This handler is registered after logging's handler, so that it runs first. Logging holds its lock during a fork,
    # and other threads may need this lock to finish.
    os.register_at_fork(before=_await_others, after_in_child=_release_all)


class RecentlyUsed(Generic[K, V]):
    """A cache of recently used values, which threads may share.

    The maximum total size of the values is `max_bytes`. The size of a value is `nbytes(value)` plus `VALUE_BYTES`.
    """

    def __init__(self, nbytes: Callable[[V], int], max_bytes: int = CACHE_BYTES) -> None:
        self._nbytes = nbytes
        self._max_bytes = max_bytes
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
            while self._total > self._max_bytes and self._values:
                self._total -= self._size(self._values.popitem(last=False)[1])

    def _size(self, value: V) -> int:
        return VALUE_BYTES + self._nbytes(value)


class ForkGuard:
    """Rejects the use of a library in a child process if the parent process has used the library, because the library's
    threads do not exist in the child.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._is_used = False
        self._is_unusable = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def use(self) -> None:
        """Record the use of the library. Raises `Unavailable` in a process in which the library would hang."""
        if self._is_unusable:
            raise Unavailable(
                f"this process was forked from a process that had used {self._library}, which does not work after a "
                "fork: start processes with multiprocessing's 'spawn' or 'forkserver' method, or open stores only "
                "after the fork"
            )
        self._is_used = True

    def _forked(self) -> None:
        self._is_unusable = self._is_used


_frozen_modules = 0


def freeze_gc() -> None:
    """Exempt all existing objects from garbage collection, if modules have been imported since the last call.

    A worker calls this function at the end of each piece of work. Imports may also follow the first piece of work:
    Spark returns the result of a write task with a call of pyarrow that imports pandas. If numba was imported to
    compile a kernel, it leaves 25,000 objects in reference cycles, so collect them before freezing. Other imports leave
    no cycles, so skip the collection, which would add 25 ms to the start of a query.
    """
    global _frozen_modules
    modules = len(sys.modules)
    if modules <= _frozen_modules:
        return
    _frozen_modules = modules
    if "numba" in sys.modules:
        gc.collect()
    gc.freeze()
