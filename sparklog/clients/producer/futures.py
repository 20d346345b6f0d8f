"""The future of a record: a `concurrent.futures.Future` that can be awaited, and has the calls of kafka-python's.

A future knows its batch and its number there, no more: it makes its metadata when it is asked. So `send` and a commit
make no object for a record that stays, which would cost more than all the rest: Python's garbage collector would pass
over it again and again. All futures of a batch share one condition, too.
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
"""States as in `concurrent.futures`."""


class RecordMetadata(NamedTuple):
    """The place of a record, time in ms. `is_repeat`: published before, by its sequence; numbers are -1 then."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    is_repeat: bool = False


class Places(NamedTuple):
    """Partition (int32), offset and timestamp in ms (int64) of each record of a batch; -1 for one that is a repeat."""

    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    timestamp: npt.NDArray[np.int64]


class BatchOutcomes:
    """Outcomes of the records of a batch, by their numbers. Futures ask it, so a record costs no object here."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.condition = threading.Condition()
        self.watched: defaultdict[int, list[RecordFuture]] = defaultdict(list)
        """Futures by row that have callbacks, or are waited for by functions of `concurrent.futures`."""
        self._refused: dict[int, SparklogError] = {}
        self._failure: SparklogError | None = None
        self._places: Places | None = None

    def is_done(self, row: int) -> bool:
        return self._places is not None or self._failure is not None or row in self._refused

    def error(self, row: int) -> SparklogError | None:
        """Return why a record failed: an error of its own, as raising one changes it."""
        error = self._refused.get(row) or (self._failure if self._places is None else None)
        return copy.copy(error)

    def metadata(self, row: int) -> RecordMetadata | None:
        places = self._places
        if places is None or row in self._refused:
            return None
        partition, offset, timestamp = (int(column[row]) for column in places)
        return RecordMetadata(self.topic, partition, offset, timestamp, is_repeat=partition < 0)

    def succeed(self, places: Places) -> None:
        """Set where the records are that have not failed."""
        with self.condition:
            if self._failure is None:
                self._places = places
        self._tell()

    def refuse(self, errors: Mapping[int, SparklogError]) -> None:
        """Fail some records; the others of the batch go on."""
        with self.condition:
            self._refused.update(errors)
        self._tell()

    def fail(self, error: SparklogError) -> None:
        """Fail all records that are not done."""
        with self.condition:
            if self._places is None and self._failure is None:
                self._failure = error
        self._tell()

    def forked(self, error: SparklogError) -> None:
        """Fail all that is not done, in a child process: no thread ends it, and the lock may be held for ever."""
        self.condition = threading.Condition()
        self.watched.clear()
        self._failure = error

    def _tell(self) -> None:
        """Wake who waits, and call callbacks in the order of records."""
        with self.condition:
            rows = [row for row in sorted(self.watched) if self.is_done(row)]
            futures = [future for row in rows for future in self.watched.pop(row)]
            for future in futures:
                future._tell_listeners()
            self.condition.notify_all()
        for future in futures:
            future._call_callbacks()


class RecordFuture(Future[RecordMetadata]):
    """The future of a record that was sent: `result()`, or `await` in asyncio.

    It has what a `concurrent.futures.Future` has (`add_done_callback`, `exception`, `concurrent.futures.wait`).
    Callbacks run in the producer's thread, in the order of the records: a slow one delays the next commit.
    """

    __slots__ = ("_callbacks", "_listeners", "_outcomes", "_row")

    def __init__(self, outcomes: BatchOutcomes, row: int) -> None:
        # Not the base class's, which makes a condition and two lists; it reads them by the properties below.
        self._outcomes = outcomes
        self._row = row
        self._listeners: list[Any] | None = None
        self._callbacks: list[Callable[[RecordFuture], object]] | None = None

    # The base class has plain attributes, which it reads.
    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._outcomes.condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        return FINISHED if self._outcomes.is_done(self._row) else PENDING

    @property
    def _result(self) -> RecordMetadata | None:  # type: ignore[override]
        return self._outcomes.metadata(self._row)

    @property
    def _exception(self) -> BaseException | None:
        return self._outcomes.error(self._row)

    @_exception.setter
    def _exception(self, error: BaseException | None) -> None:
        """Take nothing: the base class drops its reference to an error after it raised it."""

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._listeners is None:
            self._watch()
            self._listeners = []
        return self._listeners

    @property
    def _done_callbacks(self) -> list[Callable[[RecordFuture], object]]:
        if self._callbacks is None:
            self._watch()
            self._callbacks = []
        return self._callbacks

    def _watch(self) -> None:
        if self._listeners is None and self._callbacks is None:
            self._outcomes.watched[self._row].append(self)

    def _tell_listeners(self) -> None:
        """Tell `concurrent.futures.wait` and `as_completed`. Call it with the condition."""
        for listener in self._listeners or ():
            if self._exception is None:
                listener.add_result(self)
            else:
                listener.add_exception(self)

    def _call_callbacks(self) -> None:
        with self._condition:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - whatever the caller wrote
                # A callback of the caller must not end the thread that sends.
                _LOG.exception("a callback of a record of the producer failed")

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Return False: a record that was sent cannot be taken back."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is published.

        Args:
            timeout: seconds; None: as long as it takes.

        Returns:
            Its `RecordMetadata`.

        Raises:
            SparklogError: it was not published, or that is unknown: the message says so.
            TimeoutError: of `concurrent.futures`; it may be published yet.
        """
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does.

        Args:
            timeout: seconds; None: as long as it takes.

        Returns:
            The error of the record; None: it is published.

        Raises:
            TimeoutError: of `concurrent.futures`.
        """
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._outcomes.is_done(self._row), timeout)

    get = result
    """The name that kafka-python has."""

    def add_callback(self, call: Callable[..., object], *args: object, **kwargs: object) -> RecordFuture:
        """Call `call(*args, metadata, **kwargs)` once the record is published.

        Args:
            call: what to call.
            args: come before the `RecordMetadata`.
            kwargs: go on as they are.

        Returns:
            This future.
        """
        self.add_done_callback(lambda done: done.exception() or call(*args, done.result(), **kwargs))
        return self

    def add_errback(self, call: Callable[..., object], *args: object, **kwargs: object) -> RecordFuture:
        """Call `call(*args, error, **kwargs)` if the record fails.

        Args:
            call: what to call.
            args: come before the error.
            kwargs: go on as they are.

        Returns:
            This future.
        """

        def when_failed(done: Future[RecordMetadata]) -> None:
            error = done.exception()
            if error is not None:
                call(*args, error, **kwargs)

        self.add_done_callback(when_failed)
        return self
