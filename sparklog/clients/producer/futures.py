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
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.errors import SparklogError

_LOG = logging.getLogger("sparklog.producer")
PENDING, FINISHED = "PENDING", "FINISHED"
"""The states of `concurrent.futures`."""


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
        self._failure = error

    def _notify(self) -> None:
        """Notify waiting threads, and call the callbacks in the order of the records."""
        with self.condition:
            rows = [row for row in sorted(self.watched) if self.is_done(row)]
            futures = [future for row in rows for future in self.watched.pop(row)]
            for future in futures:
                future._notify_waiters()
            self.condition.notify_all()
        for future in futures:
            future._call_callbacks()


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
        return asyncio.wrap_future(self).__await__()

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
            self._condition.wait_for(lambda: self._batch.is_done(self._row), timeout)

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
