"""Asking a store for several things at once, where each answer costs a round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sparklog.storage.store import Store


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
