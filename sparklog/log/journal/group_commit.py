"""Group commit: the requests of several threads of a process, committed together by one of them.

A commit costs durable writes, and threads that commit to one journal concurrently lose races against one another. So
one commit is in flight at a time, and requests that arrive during it share the next one:

1. Thread A submits a request and commits it.
2. B and C submit theirs and wait for A.
3. A returns. B commits its request and C's together.
4. C finds the outcome of its request and returns.

A lone request is committed immediately by its own thread, without a wait and without a new thread.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparklog.errors import SparklogError, Unavailable
from sparklog.storage.fork_safety import ForkLock

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Request(Generic[T, R]):
    """An item that a thread has submitted, and its outcome or error once it is known."""

    item: T
    process: int
    outcome: R | BaseException | None = None


class GroupCommit(Generic[T, R]):
    """Commits items that threads submit; `title` names their journal in errors.

    One thread at a time calls `commit`. It returns an outcome or an error for each item, in order, or raises the error
    of all of them.
    """

    def __init__(self, title: str, commit: Callable[[Sequence[T]], Sequence[R | SparklogError]]) -> None:
        self._title = title
        self._commit = commit
        self._pending: deque[_Request[T, R]] = deque()
        self._in_flight = ForkLock()

    def submit(self, item: T) -> R:
        """Commit an item together with those of waiting threads, and return its outcome or raise its error."""
        request: _Request[T, R] = _Request(item, os.getpid())
        self._pending.append(request)
        try:
            with self._in_flight:
                is_own = request.outcome is None
                if is_own:
                    self._commit_pending(request.process)
        except BaseException:
            # If the thread was interrupted while it waited, no other thread must commit its item later.
            with suppress(ValueError):
                self._pending.remove(request)
            raise
        outcome = request.outcome
        assert outcome is not None
        if isinstance(outcome, BaseException):
            # Raising an error changes it, so each thread has its own.
            raise outcome if is_own else copy.copy(outcome)
        return outcome

    def _commit_pending(self, process: int) -> None:
        """Commit all pending requests, except those that a forked process has copied from its parent."""
        requests, items = list[_Request[T, R]](), list[T]()
        for _ in range(len(self._pending)):
            request = self._pending.popleft()
            if request.process == process:
                requests.append(request)
                items.append(request.item)
        try:
            outcomes = self._commit(items)
        except BaseException as error:
            message = f"{self._title}: the committing thread was interrupted; the outcome is unknown"
            shared = error if isinstance(error, Exception) else Unavailable(message, is_unknown=True)
            for request in requests:
                request.outcome = shared
            raise
        for request, outcome in zip(requests, outcomes, strict=True):
            request.outcome = outcome
