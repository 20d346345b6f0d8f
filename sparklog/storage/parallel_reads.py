"""Work in several threads, with the results in order: requests to a store that answers several, decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sparklog.errors import SparklogError
from sparklog.storage.store import Store

T = TypeVar("T")
R = TypeVar("R")


def ask_each(store: Store, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Return the answers of `look`, which makes requests to `store`, for each item, in order.

    Several run at once if the store has `parallel_reads`; else each runs when its answer is asked for.
    """
    at_once = min(store.parallel_reads, len(items))
    return map(look, items) if at_once <= 1 else _ask_at_once(at_once, look, items)


def _ask_at_once(at_once: int, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    with ThreadPoolExecutor(at_once, thread_name_prefix="sparklog-read") as pool:
        yield from pool.map(look, items)


class UntilError(Iterator[T]):
    """Iterates over items up to an error, which is `error` then, so that results are passed on before it is raised.

    Example:
        items = UntilError(items)
        results = [work(item) for item in items]
        yield results
        items.raise_error()
    """

    def __init__(self, items: Iterable[T]) -> None:
        self.error: SparklogError | None = None
        self._items = iter(items)

    def __next__(self) -> T:
        try:
            return next(self._items)
        except SparklogError as error:
            self.error = error
            raise StopIteration from None

    def raise_error(self) -> None:
        """Raise the error that ended the items, if one did."""
        if self.error is not None:
            raise self.error


def work_ahead(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield the result of `work` for each item, in order, with up to `threads` items in progress ahead of the consumer.

    If `items` raises an error, it is raised after the results of the items before it.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="sparklog-work")
    under_way: deque[Future[R]] = deque()
    try:
        items = UntilError(items)
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
        items.raise_error()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def read_each(
    store: Store, look: Callable[[str], R], names: Sequence[str], failures: list[SparklogError] | None
) -> dict[str, R]:
    """Return what `look` reads of each name, as `ask_each`. Errors go to `failures`, or are raised if it is None."""

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
