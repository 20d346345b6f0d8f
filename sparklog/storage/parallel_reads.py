"""Run work in several threads, with ordered results: parallel requests to a store, and decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from sparklog.errors import SparklogError
from sparklog.storage.store import Store

T = TypeVar("T")
R = TypeVar("R")


def map_requests(store: Store, request: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Return the result of `request`, which makes requests to `store`, for each item, in order.

    If the store's `parallel_reads` is above 1, this number of requests runs in parallel. Otherwise, each request is
    made when the caller consumes its result.
    """
    threads = min(store.parallel_reads, len(items))
    return map(request, items) if threads <= 1 else _map_in_threads(threads, request, items)


def request_both(store: Store, first: Callable[[], T], second: Callable[[], R]) -> tuple[T, R]:
    """Return the results of two functions that make requests to `store`.

    The functions run in parallel if the store's `parallel_reads` is above 1, and otherwise one after the other. If both
    raise an error, the error of `first` is raised.
    """
    requests: tuple[Callable[[], Any], ...] = first, second
    first_result, second_result = map_requests(store, lambda request: request(), requests)
    return first_result, second_result


def _map_in_threads(threads: int, request: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    with ThreadPoolExecutor(threads, thread_name_prefix="sparklog-read") as pool:
        yield from pool.map(request, items)


class UntilError(Iterator[T]):
    """Iterates over items until the first error.

    The error is stored, so that the caller can process the results of the preceding items before `raise_error` raises
    the error.

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
        """Raise the stored error, if there is one."""
        if self.error is not None:
            raise self.error


def work_ahead(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield the result of `work` for each item, in order. Up to `threads` items are processed ahead of the consumer.

    If `items` raises an error, the error is raised after the results of the previous items.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="sparklog-work")
    in_progress: deque[Future[R]] = deque()
    try:
        items = UntilError(items)
        for item in items:
            in_progress.append(pool.submit(work, item))
            if len(in_progress) > threads:
                yield in_progress.popleft().result()
        while in_progress:
            yield in_progress.popleft().result()
        items.raise_error()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def read_each(
    store: Store, read: Callable[[str], R], names: Sequence[str], failures: list[SparklogError] | None
) -> dict[str, R]:
    """Return the result of `read` for each name, like `map_requests`.

    Errors are added to `failures`. If `failures` is None, the first error is raised.
    """

    def read_or_error(name: str) -> R | SparklogError:
        try:
            return read(name)
        except SparklogError as error:
            return error

    results: dict[str, R] = {}
    for name, result in zip(names, map_requests(store, read_or_error, names), strict=True):
        if not isinstance(result, SparklogError):
            results[name] = result
        elif failures is None:
            raise result
        else:
            failures.append(result)
    return results
