"""The future of a record: a `concurrent.futures.Future` that can be awaited and has the methods of kafka-python's
futures.

A future contains only its batch and its row in the batch. The metadata is created on request. Therefore, neither `send`
nor a commit creates long-lived objects per record, which Python's garbage collector would visit repeatedly. For the
same reason, all futures of a batch share one condition.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from sparklog.errors import SparklogError

_LOG = logging.getLogger("sparklog.producer")
PENDING, FINISHED = "PENDING", "FINISHED"
"""The states of `concurrent.futures`."""


def limited(timeout: float | None) -> float | None:
    """Limit a timeout in seconds to the maximum of the functions of `threading`."""
    return None if timeout is None else min(timeout, threading.TIMEOUT_MAX)


class RecordMetadata(NamedTuple):
    """The position and timestamp (in ms) of a record.

    If `is_repeat` is True, a record with this sequence was published earlier. In this case, all numbers are -1.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    is_repeat: bool = False


class RecordPositions(NamedTuple):
    """The partition (int32), offset and timestamp in ms (int64) of each record in a batch. All values of a repeated
    record are -1.
    """

    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    timestamp: npt.NDArray[np.int64]


class BatchResult:
    """The results of the records in a batch, by row. The futures read the results from this object, so no other object
    per record is required.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.condition = threading.Condition()
        self.watched: defaultdict[int, list[RecordFuture]] = defaultdict(list)
        """The futures that have callbacks or are awaited by functions of `concurrent.futures`, by row."""
        self._awaited: defaultdict[asyncio.AbstractEventLoop, list[tuple[int, asyncio.Future[None]]]] = defaultdict(
            list
        )
        """The futures of coroutines that await a record, with its row, by event loop."""
        self._rejected: dict[int, SparklogError] = {}
        self._failure: SparklogError | None = None
        self._positions: RecordPositions | None = None

    def is_done(self, row: int) -> bool:
        return self._positions is not None or self._failure is not None or row in self._rejected

    def error(self, row: int) -> SparklogError | None:
        """Return a copy of the error of a record. A copy is required, because raising an error modifies the error."""
        error = self._rejected.get(row) or (self._failure if self._positions is None else None)
        return copy.copy(error)

    def metadata(self, row: int) -> RecordMetadata | None:
        positions = self._positions
        if positions is None or row in self._rejected:
            return None
        partition, offset, timestamp = (int(column[row]) for column in positions)
        return RecordMetadata(self.topic, partition, offset, timestamp, is_repeat=partition < 0)

    def done_in_loop(self, row: int) -> asyncio.Future[None]:
        """Return a future of the running event loop, which is done when a record is done."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self.condition:
            if self.is_done(row):
                future.set_result(None)
            else:
                self._awaited[loop].append((row, future))
        return future

    def succeed(self, positions: RecordPositions) -> None:
        """Set the positions of the records that have not failed."""
        with self.condition:
            if self._failure is None:
                self._positions = positions
        self._notify()

    def reject(self, errors: Mapping[int, SparklogError]) -> None:
        """Fail records by row. The other records of the batch are not affected."""
        with self.condition:
            self._rejected.update(errors)
        self._notify()

    def fail(self, error: SparklogError) -> None:
        """Fail all records that are not done."""
        with self.condition:
            if self._positions is None and self._failure is None:
                self._failure = error
        self._notify()

    def fail_after_fork(self, error: SparklogError) -> None:
        """Fail all records that are not done. This method is called in a forked child process, in which the lock may
        never be released.
        """
        self.condition = threading.Condition()
        self.watched.clear()
        self._awaited.clear()
        self._failure = error

    def _notify(self) -> None:
        """Notify waiting threads, and call the callbacks in the order of the records."""
        with self.condition:
            rows = [row for row in sorted(self.watched) if self.is_done(row)]
            futures = [future for row in rows for future in self.watched.pop(row)]
            for future in futures:
                future._notify_waiters()
            self.condition.notify_all()
            awaited = [(loop, self._pop_awaited(loop)) for loop in list(self._awaited)]
        for loop, done in awaited:
            # One call per event loop instead of one per record.
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(_set_done, done)
        for future in futures:
            future._call_callbacks()

    def _pop_awaited(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[None]]:
        """Remove and return the futures of an event loop whose records are done. The caller holds the condition."""
        awaited = self._awaited.pop(loop)
        pending = [(row, future) for row, future in awaited if not self.is_done(row)]
        if pending:
            self._awaited[loop] = pending
        return [future for row, future in awaited if self.is_done(row)]


def _set_done(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        # A coroutine that was cancelled has cancelled its future.
        if not future.done():
            future.set_result(None)


class RowSpan(NamedTuple):
    """Consecutive records of a batch."""

    batch: BatchResult
    first_row: int
    rows: int


class RecordFuture(Future[RecordMetadata]):
    """The future of a sent record. Call `result()`, or `await` the future in asyncio.

    The class has the methods of `concurrent.futures.Future`, such as `add_done_callback` and `exception`. Callbacks are
    called in the producer's thread, in the order of the records. A slow callback delays the next commit.
    """

    __slots__ = ("_batch", "_callbacks", "_row", "_waiting")

    def __init__(self, result: BatchResult, row: int) -> None:
        # Do not call the base class, which would create a condition and two lists. The base class reads the properties
        # below.
        self._batch = result
        self._row = row
        self._waiting: list[Any] | None = None
        self._callbacks: list[Callable[[RecordFuture], object]] | None = None

    # The base class reads the following properties as attributes.
    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._batch.condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        return FINISHED if self._batch.is_done(self._row) else PENDING

    @property
    def _result(self) -> RecordMetadata | None:  # type: ignore[override]
        return self._batch.metadata(self._row)

    @property
    def _exception(self) -> BaseException | None:
        return self._batch.error(self._row)

    @_exception.setter
    def _exception(self, error: BaseException | None) -> None:
        """Ignore the assignment. The base class drops its reference to an error after raising the error."""

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._waiting is None:
            self._watch()
            self._waiting = []
        return self._waiting

    @property
    def _done_callbacks(self) -> list[Callable[[RecordFuture], object]]:
        if self._callbacks is None:
            self._watch()
            self._callbacks = []
        return self._callbacks

    def _watch(self) -> None:
        if self._waiting is None and self._callbacks is None:
            self._batch.watched[self._row].append(self)

    def _notify_waiters(self) -> None:
        """Notify `concurrent.futures.wait` and `as_completed`. The caller holds the condition."""
        for waiter in self._waiting or ():
            if self._exception is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)

    def _call_callbacks(self) -> None:
        with self._condition:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - user code must not end the thread that sends
                _LOG.exception("a callback for a record of the producer failed")

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._wait_in_loop()
        return self.result(0)

    def _wait_in_loop(self) -> Generator[Any, None, None]:
        """Wait until the record is done, in a coroutine."""
        if not self._batch.is_done(self._row):
            yield from self._batch.done_in_loop(self._row)

    def cancel(self) -> bool:
        """Return False, because a sent record cannot be cancelled."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is published.

        Args:
            timeout: The maximum time to wait in seconds, or None for no limit.

        Returns:
            The `RecordMetadata` of the record.

        Raises:
            SparklogError: If the record was not published, or may not have been published. The message describes which
                is the case.
            TimeoutError: If the record is not published in time (`concurrent.futures.TimeoutError`). The record may
                still be published.
        """
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `result`.

        Args:
            timeout: The maximum time to wait in seconds, or None for no limit.

        Returns:
            The error of the record, or None if it is published.

        Raises:
            TimeoutError: If the record is not done in time (`concurrent.futures.TimeoutError`).
        """
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._batch.is_done(self._row), limited(timeout))

    get = result
    """An alias of `result`, which is the name in kafka-python."""

    def add_callback(self, call: Callable[..., object], *args: object, **kwargs: object) -> RecordFuture:
        """Call `call(*args, metadata, **kwargs)` when the record is published.

        Args:
            call: The function.
            args: The arguments before the `RecordMetadata`.
            kwargs: The keyword arguments.

        Returns:
            This future.
        """
        self.add_done_callback(lambda done: done.exception() or call(*args, done.result(), **kwargs))
        return self

    def add_errback(self, call: Callable[..., object], *args: object, **kwargs: object) -> RecordFuture:
        """Call `call(*args, error, **kwargs)` if the record fails.

        Args:
            call: The function.
            args: The arguments before the error.
            kwargs: The keyword arguments.

        Returns:
            This future.
        """

        def call_if_failed(done: Future[RecordMetadata]) -> None:
            error = done.exception()
            if error is not None:
                call(*args, error, **kwargs)

        self.add_done_callback(call_if_failed)
        return self


class RecordFutures(Sequence[RecordFuture]):
    """The futures of the records of one call of `Producer.send_many`, in order. A future is created when you get it."""

    def __init__(self, spans: Sequence[RowSpan]) -> None:
        self._spans = spans
        self._ends = list(accumulate(span.rows for span in spans))

    def __repr__(self) -> str:
        return f"RecordFutures({len(self)} records)"

    def __await__(self) -> Generator[Any, None, list[RecordMetadata]]:
        """Wait until all records are done, and return their metadata. Raises the error of the first failed record."""
        for future in self:
            yield from future._wait_in_loop()
        return [future.result(0) for future in self]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> RecordFuture: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordFuture]: ...
    def __getitem__(self, index: int | slice) -> RecordFuture | list[RecordFuture]:
        rows = range(len(self))[index]
        return self._future(rows) if isinstance(rows, int) else [self._future(row) for row in rows]

    def _future(self, row: int) -> RecordFuture:
        number = bisect_right(self._ends, row)
        span = self._spans[number]
        return RecordFuture(span.batch, span.first_row + row - (self._ends[number] - span.rows))
