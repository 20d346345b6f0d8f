"""An accumulator of records that have not been committed yet. All sending threads share one open batch per topic.

A batch is due if its linger time has elapsed, if it contains `batch_size` bytes, if a call of `send` waits for memory,
or if `flush` or `close` waits for the batch. While the sender commits a batch of a topic, new records are added to the
next batch of the topic. The memory of a record is released when the record is committed.
"""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from sparklog.clients.producer.futures import BatchResult, RecordFuture, RowSpan, limited
from sparklog.clients.producer.options import ProducerOptions
from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.log.journal.clocks import Env
from sparklog.log.write.python_rows import Header

if TYPE_CHECKING:
    import pyarrow as pa

Details: TypeAlias = tuple["list[Header] | None", "int | None", "int | None", "int | None"]
"""The headers, timestamp in ms, partition and sequence of a record."""
IDLE_MS = 3_600_000
RECORD_BYTES = 200
"""The approximate overhead in bytes per record in Python."""
ROOM_BYTES = 16 << 10
"""The maximum memory that a batch reserves for its next records."""
CLOSED = "this producer is closed: open another producer"
FORKED = "this process was forked from the process that opened this producer: open another producer after the fork"


class Cells:
    """Records as lists of cells. The garbage collector would have to visit a separate list or tuple for each record, so
    only records with `Details` have one.
    """

    __slots__ = ("detail_rows", "details", "key_rows", "keys", "times_ns", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.times_ns: list[int] = []
        """The time of each call of `send`, which is the timestamp of a record without another timestamp."""
        self.keys: list[bytes] = []
        self.key_rows: list[int] = []
        self.details: list[Details] = []
        self.detail_rows: list[int] = []

    def __len__(self) -> int:
        return len(self.values)

    def truncate(self, n: int) -> None:
        """Remove all cells after the first `n` records."""
        keys, details = bisect_left(self.key_rows, n), bisect_left(self.detail_rows, n)
        del self.values[n:], self.times_ns[n:]
        del self.key_rows[keys:], self.keys[keys:]
        del self.detail_rows[details:], self.details[details:]


class Batch:
    """The records of one topic, in the order in which they were sent."""

    __slots__ = (
        *("cells", "column_rows", "due_ms", "is_done", "is_full", "memory", "parts", "result", "room", "rows", "topic"),
    )

    def __init__(self, topic: str, due_ms: float) -> None:
        self.topic = topic
        self.parts: list[Cells | pa.RecordBatch] = []
        """The records that precede `cells`."""
        self.cells = Cells()
        self.rows = 0
        self.column_rows = 0
        self.result = BatchResult(topic)
        self.due_ms = due_ms
        self.memory = 0
        """The reserved memory in bytes, including `room`."""
        self.room = 0
        """The reserved memory that records do not use yet."""
        self.is_full = False
        self.is_done = False

    @property
    def nbytes(self) -> int:
        """The size of the content of all records."""
        return self.memory - self.room - RECORD_BYTES * (self.rows - self.column_rows)

    def add_columns(self, columns: pa.RecordBatch) -> int:
        """Add records that use all of the room. Return the row of the first record."""
        first, cells = self.rows, Cells()
        # No call follows, so an interrupt adds all of the records or none.
        self.parts += [self.cells, columns]
        self.cells = cells
        self.rows += columns.num_rows
        self.column_rows += columns.num_rows
        self.room = 0
        return first

    def drop_incomplete_record(self) -> None:
        """Remove the cells of a record that was not added completely."""
        self.cells.truncate(self.rows - sum(map(len, self.parts)))


class Accumulator:
    """Stores the open batches of all topics. Any thread may append records. A single thread drains batches and releases
    the memory of their records.

    Python may run a signal handler after any call of a function, such as `list.append`. The handler of Ctrl-C raises
    `KeyboardInterrupt`, and the program may continue to use the producer. Therefore, an interrupted call must release
    the lock, which only `with` ensures, and must not leave a part of a record.
    """

    def __init__(self, options: ProducerOptions, env: Env) -> None:
        self._linger_ms = options["linger_ms"]
        self._boot_ms = env.boot_ms
        self._batch_size = options["batch_size"]
        self._buffer_memory = options["buffer_memory"]
        self._max_block_ms = options["max_block_ms"]
        self.batches: dict[str, Batch] = {}
        """The open batch of each topic."""
        self._in_flight: list[Batch] = []
        self._used_bytes = 0
        self._waiting_calls = 0
        """The number of calls that wait for memory or a flush. If this number is not 0, all batches are due."""
        self._closed_error: SparklogError | None = None
        """The error that further appends raise, or None if records are accepted."""
        self._create_locks()

    def _create_locks(self) -> None:
        self.lock = threading.Lock()
        self._due = threading.Condition(self.lock)
        self._released = threading.Condition(self.lock)

    # -- for threads that send

    def append(
        self, topic: str, key: bytes | None, value: bytes | None, nbytes: int, time_ns: int, details: Details | None
    ) -> RecordFuture:
        """Add a record. `Producer.send` contains the same steps for a record that has only a key and a value.

        Raises `Unavailable` if memory is not available within `max_block_ms`, and `BadRequest` if the record is too
        large or the producer is closed.
        """
        memory = nbytes + RECORD_BYTES
        with self.lock:
            batch = self.batches.get(topic)
            if batch is None or batch.room < memory:
                batch = self._batch_with_room(topic, memory, nbytes)
            row, cells = batch.rows, batch.cells
            try:
                if key is not None:
                    cells.key_rows.append(len(cells.values))
                    cells.keys.append(key)
                if details is not None:
                    cells.detail_rows.append(len(cells.values))
                    cells.details.append(details)
                cells.values.append(value)
                cells.times_ns.append(time_ns)
            except BaseException:
                batch.drop_incomplete_record()
                raise
            batch.rows = row + 1
            batch.room -= memory
            return RecordFuture(batch.result, row)

    def append_columns(self, topic: str, columns: pa.RecordBatch) -> RowSpan:
        """Add records, whose columns are those of `batch_rows.COLUMNS`. Raises the errors of `append`."""
        nbytes = columns.nbytes
        with self.lock:
            batch = self._batch_with_room(topic, nbytes, nbytes, max_extra=0)
            return RowSpan(batch.result, batch.add_columns(columns), columns.num_rows)

    def _batch_with_room(self, topic: str, memory: int, nbytes: int, max_extra: int = ROOM_BYTES) -> Batch:
        """Return the open batch of a topic after reserving `memory` for records of `nbytes` bytes, and up to
        `max_extra` bytes for the next records. The caller holds the lock, and adds the records.

        The extra memory is limited, so that the next call that reserves memory is the one that fills the batch.
        """
        if (batch := self.batches.get(topic)) is not None:
            self._return_room(batch)
        if self._closed_error is not None or self._used_bytes + memory > self._buffer_memory:
            self._wait_for_memory(memory, nbytes)
            if (batch := self.batches.get(topic)) is not None:
                # Another thread may have reserved room during the wait.
                self._return_room(batch)
        # Notify the sender before each change, so that the next call repeats an interrupted notification.
        if batch is None:
            self._due.notify()
            batch = self.batches[topic] = Batch(topic, self._boot_ms() + self._linger_ms)
        missing = self._batch_size - batch.nbytes - nbytes
        if missing <= 0 and not batch.is_full:
            self._due.notify()
            batch.is_full = True
        if not batch.is_full:
            max_extra = min(max_extra, missing)
        free = self._buffer_memory - self._used_bytes - memory
        batch.room = memory + min(max_extra, free // 16)
        batch.memory += batch.room
        self._used_bytes += batch.room
        return batch

    def _return_room(self, batch: Batch) -> None:
        self._used_bytes -= batch.room
        batch.memory -= batch.room
        batch.room = 0

    def check_fits(self, memory: int, nbytes: int) -> None:
        """Raise `BadRequest` if a record of `nbytes` bytes requires more than the total memory."""
        if memory > self._buffer_memory:
            raise BadRequest(f"a record of {nbytes} bytes does not fit in buffer_memory ({self._buffer_memory} bytes)")

    def _wait_for_memory(self, memory: int, nbytes: int) -> None:
        """Wait until this amount of memory is available for records of `nbytes` bytes. The caller must hold the lock.

        Raises the error of a closed accumulator.
        """
        if self._closed_error is None:
            self.check_fits(memory, nbytes)
        is_free = self._wait(
            lambda: self._closed_error is not None or self._used_bytes + memory <= self._buffer_memory,
            self._max_block_ms / 1000,
        )
        if self._closed_error is not None:
            raise copy.copy(self._closed_error)
        if not is_free:
            raise Unavailable(
                f"buffer_memory ({self._buffer_memory} bytes) is full for max_block_ms ({self._max_block_ms} ms): "
                "commits are slower than sends, or the store does not respond; the record was not accepted; send the "
                "record again later"
            )

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Make all batches due, and wait at most `timeout` seconds for a condition. The caller must hold the lock."""
        self._waiting_calls += 1
        try:
            self._due.notify()
            return self._released.wait_for(condition, limited(timeout))
        finally:
            self._waiting_calls -= 1

    def flush(self, timeout: float | None) -> bool:
        """Wait until all added records are done. Return False if this takes longer than `timeout` seconds."""
        with self.lock:
            batches = [*self.batches.values(), *self._in_flight]
            return self._wait(lambda: all(batch.is_done for batch in batches), timeout)

    def close(self) -> None:
        """Reject further records. The sender stops after it has sent the existing records."""
        with self.lock:
            if self._closed_error is None:
                self._closed_error = BadRequest(CLOSED)
            for batch in self.batches.values():
                self._return_room(batch)
            self._due.notify()
            self._released.notify_all()

    def fail_all(self, error: SparklogError) -> None:
        """Fail all records that are not done, including records in flight, and reject further records."""
        with self.lock:
            self._closed_error = error
        self.fail_pending(error, in_flight=True)

    def fail_pending(self, error: SparklogError, *, in_flight: bool = False) -> None:
        """Fail the records of open batches. If `in_flight` is True, also fail the records of batches that are being
        committed.
        """
        with self.lock:
            batches = [*(self._in_flight if in_flight else ()), *self.batches.values()]
            self.batches.clear()
            self._due.notify()
        for batch in batches:
            batch.result.fail(error)
        self.release(batches)

    def fail_after_fork(self) -> None:
        """Fail all records in a forked child process. In a child process, no thread sends the records, and locks may
        never be released.
        """
        self._create_locks()
        self._closed_error = BadRequest(FORKED)
        for batch in (*self.batches.values(), *self._in_flight):
            batch.result.fail_after_fork(self._closed_error)
        self.batches = {}
        self._in_flight = []

    # -- for the sender

    def drain(self) -> Sequence[Batch]:
        """Wait for due batches, and return them. Return an empty list if the producer is closed and has no more
        batches.
        """
        with self.lock:
            now: float = self._boot_ms()
            while True:
                all_due = self._waiting_calls > 0 or self._closed_error is not None
                due = [batch for batch in self.batches.values() if all_due or batch.is_full or batch.due_ms <= now]
                if due or self._closed_error is not None:
                    for batch in due:
                        del self.batches[batch.topic]
                    self._in_flight += due
                    return due
                next_ms = min((batch.due_ms for batch in self.batches.values()), default=now + IDLE_MS)
                is_notified = self._due.wait((next_ms - now) / 1000)
                # The clock of a test may not advance during the wait.
                now = self._boot_ms() if is_notified else max(self._boot_ms(), next_ms)

    def release(self, batches: Sequence[Batch]) -> None:
        """Release the memory of batches whose futures are done."""
        with self.lock:
            for batch in batches:
                if not batch.is_done:
                    batch.is_done = True
                    self._used_bytes -= batch.memory
            self._in_flight = [batch for batch in self._in_flight if not batch.is_done]
            self._released.notify_all()
