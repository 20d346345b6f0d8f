"""Read-ahead: request the next ranges of files in parallel, if each request costs a round trip.

The total size of requests in flight and of unconsumed results is limited to `ahead_bytes`, or to a single range if the
range is larger. The number of requests is limited to the store's `parallel_reads`. The byte limit is low at the start,
because many readers need only a few records. If a store does not support parallel reads, a range is read only when it
is consumed.
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
    """A request for bytes `[start, start + length)` of a file.

    `response` is the future of the response, or None if the request has not been started.
    """

    store: Store
    file: str
    start: int
    length: int
    response: Future[bytes | memoryview] | None = None


class ReadAhead:
    """Requests in the order in which they are consumed.

    `read` sends a request. `more` adds further requests, and returns False if the next requests are not known yet.
    """

    def __init__(
        self,
        max_requests: int,
        read: Callable[[Request], bytes | memoryview],
        more: Callable[[], bool],
        limits: Limits = DEFAULTS,
    ) -> None:
        self._limits = limits
        self._max_requests = max_requests
        self.is_on = max_requests > 1
        self._read = read
        self._more = more
        self._queued: deque[Request] = deque()
        self._started: set[Request] = set()
        """Requests that are in flight or whose results have not been consumed."""
        self._pool: ThreadPoolExecutor | None = None
        self._consumed_bytes = 0

    def add(self, requests: Iterable[Request]) -> None:
        if self.is_on:
            self._queued.extend(requests)

    def consume(self, request: Request) -> bytes | memoryview:
        """Return the bytes of the oldest request that has not been consumed or dropped."""
        if not self.is_on:
            return self._read(request)
        self._start_requests()
        self._started.discard(request)
        self._consumed_bytes += request.length
        return self._read(request) if request.response is None else request.response.result()

    def drop(self, requests: Iterable[Request]) -> None:
        """Cancel requests that have not been consumed."""
        for request in requests if self.is_on else ():
            if request in self._started:
                self._started.discard(request)
                if request.response is not None:
                    request.response.cancel()
            elif request in self._queued:
                self._queued.remove(request)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_requests(self) -> None:
        """Start requests up to the limits. If there is only one request, it is sent by the thread that consumes it."""
        started: list[Request] = []
        nbytes = sum(request.length for request in self._started)
        max_bytes = min(self._limits.first_ahead_bytes + 2 * self._consumed_bytes, self._limits.ahead_bytes)
        while len(self._started) < self._max_requests and nbytes < max_bytes:
            if not self._queued and not self._more():
                break
            request = self._queued.popleft()
            nbytes += request.length
            self._started.add(request)
            started.append(request)
        if len(self._started) == len(started) == 1:
            return
        self._pool = self._pool or ThreadPoolExecutor(self._max_requests, thread_name_prefix="sparklog-read")
        for request in started:
            request.response = self._pool.submit(self._read, request)
