"""Ranges of files that are read next, several under way at a time, where each request costs a round trip.

What is under way or waits to be taken is at most `ahead_bytes` (or one range) and as many requests as the store is
worth: fewer bytes at first, for many readers want a few records and no more. A store without `parallel_reads` is asked
when a range is taken, and for nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from sparklog.limits import DEFAULTS, Limits
from sparklog.storage.store import Store


@dataclass(slots=True, eq=False)
class Request:
    """Bytes `[start, start + length)` of a file. `answer`: they are under way, or here."""

    store: Store
    file: str
    start: int
    length: int
    answer: Future[bytes | memoryview] | None = None


class ReadAhead:
    """Requests in the order they are taken. `read` makes one; `more` adds others, or returns False: not known yet."""

    def __init__(
        self,
        at_once: int,
        read: Callable[[Request], bytes | memoryview],
        more: Callable[[], bool],
        limits: Limits = DEFAULTS,
    ) -> None:
        self._limits = limits
        self._at_once = at_once
        self.is_on = at_once > 1
        self._read = read
        self._more = more
        self._waiting: deque[Request] = deque()
        self._begun: set[Request] = set()
        """Begun and not taken."""
        self._pool: ThreadPoolExecutor | None = None
        self._taken = 0

    def add(self, requests: Iterable[Request]) -> None:
        if self.is_on:
            self._waiting.extend(requests)

    def take(self, request: Request) -> bytes | memoryview:
        """Return the bytes of the oldest request that was added and neither taken nor dropped."""
        if not self.is_on:
            return self._read(request)
        self._begin()
        self._begun.discard(request)
        self._taken += request.length
        return self._read(request) if request.answer is None else request.answer.result()

    def drop(self, requests: Iterable[Request]) -> None:
        """Forget requests, those that were taken too."""
        for request in requests if self.is_on else ():
            if request in self._begun:
                self._begun.discard(request)
                if request.answer is not None:
                    request.answer.cancel()
            elif request in self._waiting:
                self._waiting.remove(request)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Begin as many requests as may be under way; a single one is left to the thread that takes it."""
        begun: list[Request] = []
        nbytes = sum(request.length for request in self._begun)
        most = min(self._limits.first_ahead_bytes + 2 * self._taken, self._limits.ahead_bytes)
        while len(self._begun) < self._at_once and nbytes < most:
            if not self._waiting and not self._more():
                break
            request = self._waiting.popleft()
            nbytes += request.length
            self._begun.add(request)
            begun.append(request)
        if len(self._begun) == len(begun) == 1:
            return
        self._pool = self._pool or ThreadPoolExecutor(self._at_once, thread_name_prefix="sparklog-read")
        for request in begun:
            request.answer = self._pool.submit(self._read, request)
