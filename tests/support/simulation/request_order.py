"""Requests that a process makes at once, in a simulation: one after the other, in an order that its seed draws.

Others go on between them, so every outcome that threads could have is one of some order.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from unittest import mock

T = TypeVar("T")
R = TypeVar("R")


class InAnyOrder:
    """Stands in for a pool of threads, in the thread of an actor; `source` of that thread draws the order."""

    def __init__(self, *args: object, **more: object) -> None:
        thread = threading.current_thread()
        self._source: random.Random = getattr(thread, "source", None) or random.Random(thread.name)

    def __enter__(self) -> InAnyOrder:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        wanted = list(items)
        order = list(range(len(wanted)))
        self._source.shuffle(order)
        answers = {at: self.submit(work, wanted[at]) for at in order}
        return (answers[at].result() for at in range(len(wanted)))

    def submit(self, work: Callable[[T], R], item: T) -> Future[R]:
        answer: Future[R] = Future()
        try:
            answer.set_result(work(item))
        except Exception as error:  # noqa: BLE001  (a process that dies raises no Exception)
            answer.set_exception(error)
        return answer

    def shutdown(self, **how: object) -> None:
        """Do nothing: all is done."""


@contextmanager
def no_threads() -> Iterator[None]:
    """Let all of sparklog that was imported make its requests in the threads of actors."""
    with ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("sparklog.") and getattr(module, "ThreadPoolExecutor", None) is ThreadPoolExecutor:
                patches.enter_context(mock.patch.object(module, "ThreadPoolExecutor", InAnyOrder))
        yield
