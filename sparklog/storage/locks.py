"""A lock that no child inherits as taken.

`os.fork` copies the locks that other threads hold at that moment, and in the child nobody is there to release them.
Python forks by itself (multiprocessing on Linux up to 3.13, Spark's worker daemon), so every lock that outlives a call
is one of these. What they guard must be usable at any point of a critical section: caches, of which an entry may be
missing.

Asking a store for several things at once, where each answer costs a round trip.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar
from weakref import WeakSet

from sparklog.errors import SparklogError
from sparklog.storage.store import Store


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


T = TypeVar("T")
R = TypeVar("R")


def ask_each(store: Store, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """What `look`, which makes requests to `store`, finds of each item, in order.

    Several at once where the store says `parallel_reads`, else one after the other and no sooner than asked for.
    """
    at_once = min(getattr(store, "parallel_reads", 1), len(items))
    if at_once <= 1:
        yield from map(look, items)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="sparklog-read") as pool:
        yield from pool.map(look, items)


def read_each(
    store: Store, look: Callable[[str], R], names: Sequence[str], failures: list[SparklogError] | None
) -> dict[str, R]:
    """Return what `look` reads of each name, as `ask_each`. An error is put into `failures`, or raised if that is None.

    A name that fails is left out.
    """

    def answer(name: str) -> R | SparklogError:
        try:
            return look(name)
        except SparklogError as error:
            return error

    answers: dict[str, R] = {}
    for name, one in zip(names, ask_each(store, answer, names), strict=True):
        if not isinstance(one, SparklogError):
            answers[name] = one
        elif failures is None:
            raise one
        else:
            failures.append(one)
    return answers
