"""Group commit: one thread commits the requests of several threads of a process together.

Each commit waits for durable writes. If several threads commit to one journal concurrently, only one of them succeeds,
and the others must retry. Therefore, only one commit is in flight at a time, and requests that arrive during a commit
share the next commit:

1. Thread A submits a request and commits it.
2. Threads B and C submit their requests and wait for A.
3. The commit of A returns. B commits its own request and the request of C together.
4. C reads the outcome of its request and returns.

If there is only one request, the thread that submitted it commits it immediately. No other thread is started.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparklog.errors import Unavailable
from sparklog.storage.fork_safety import ForkLock

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Request(Generic[T, R]):
    """An item that a thread has submitted, and the outcome or error of its commit."""

    item: T
    process: int
    outcome: R | BaseException | None = None


class GroupCommit(Generic[T, R]):
    """Commits the items that threads submit. `title` is the journal's name in error messages.

    Only one thread at a time calls `commit`, which returns an outcome or an error for each item, in order. If `commit`
    raises an error, the error applies to all items.
    """

    def __init__(self, title: str, commit: Callable[[Sequence[T]], Sequence[R | Exception]]) -> None:
        self._title = title
        self._commit = commit
        self._pending: deque[_Request[T, R]] = deque()
        self._in_flight = ForkLock()

    def submit(self, item: T) -> R:
        """Commit an item together with the items of waiting threads, and return its outcome or raise its error."""
        request: _Request[T, R] = _Request(item, os.getpid())
        try:
            self._pending.append(request)
            with self._in_flight:
                is_own = request.outcome is None
                if is_own:
                    self._commit_pending(request.process)
        except BaseException:
            # If the thread was interrupted while it was waiting, another thread must not commit the item later.
            self._withdraw(request)
            raise
        outcome = request.outcome
        assert outcome is not None
        if isinstance(outcome, BaseException):
            # Raising an error modifies it, so each thread gets a copy.
            raise outcome if is_own else copy.copy(outcome)
        return outcome

    def _commit_pending(self, process: int) -> None:
        """Commit all pending requests, except requests that a forked process has inherited from its parent.

        The thread may be interrupted at any point. Each request is then either still pending, or has an outcome.
        """
        requests = list[_Request[T, R]]()
        try:
            for request in self._pending.copy():
                requests.append(request)
                if not self._withdraw(request) or request.process != process:
                    requests.pop()
            outcomes = self._commit([request.item for request in requests])
            for request, outcome in zip(requests, outcomes, strict=True):
                request.outcome = outcome
        except BaseException as error:
            message = f"{self._title}: the committing thread was interrupted; the outcome is unknown"
            shared = error if isinstance(error, Exception) else Unavailable(message, is_unknown=True)
            for request in requests:
                self._withdraw(request)
                if request.outcome is None:
                    request.outcome = shared
            raise

    def _withdraw(self, request: _Request[T, R]) -> bool:
        """Remove a pending request. Return False if it is not pending, because its thread was interrupted."""
        try:
            self._pending.remove(request)
        except ValueError:
            return False
        return True
