"""Records that wait for their commit: one open batch per topic, for all threads that send.

A batch is due when it has waited for the linger, holds `batch_size` bytes, or when `send` waits for room, `flush` or
`close` for its end. While the sender commits a batch of a topic, the next one of it accumulates. The memory of records
is free again once they are committed.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from sparklog.clients.producer.futures import BatchOutcomes, RecordFuture
from sparklog.clients.producer.options import ProducerOptions
from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.log.journal.clocks import Env
from sparklog.log.write.python_rows import Header

Row: TypeAlias = tuple[bytes | None, bytes | None, "list[Header] | None", int, "int | None", "int | None"]
"""Key, value, headers, timestamp, partition and sequence of a record."""
ROW_CELLS = 6
IDLE_MS = 3_600_000
RECORD_BYTES = 200
"""What Python takes for a record beside its bytes, about."""
CLOSED = "this producer is closed: open another one"
FORKED = "this process was forked by the one that opened this producer: open another one after the fork"


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of records; `numbers`: their rows in the batch."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[list[Header] | None]
    timestamps: Sequence[int]
    partitions: Sequence[int | None]
    sequences: Sequence[int | None]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, rows: Sequence[int]) -> Records:
        return Records(*([getattr(self, column.name)[row] for row in rows] for column in fields(self)))


class Batch:
    """Records of one topic, in the order in which they were sent."""

    __slots__ = ("cells", "count", "due_ms", "is_done", "is_full", "nbytes", "outcomes", "topic")

    def __init__(self, topic: str, due_ms: float) -> None:
        self.topic = topic
        self.cells: list[Any] = []
        """The cells of each `Row`, one row after the other: a list per row would keep the garbage collector busy."""
        self.count = 0
        self.outcomes = BatchOutcomes(topic)
        self.due_ms = due_ms
        self.nbytes = 0
        self.is_full = False
        self.is_done = False

    @property
    def memory(self) -> int:
        return self.nbytes + RECORD_BYTES * self.count

    def records(self) -> Records:
        keys, values, headers, timestamps, partitions, sequences = (
            self.cells[column::ROW_CELLS] for column in range(ROW_CELLS)
        )
        return Records(keys, values, headers, timestamps, partitions, sequences, range(self.count))


class Accumulator:
    """The open batches of all topics. Threads share it; one of them takes batches and says when they are done."""

    def __init__(self, options: ProducerOptions, env: Env) -> None:
        self._linger_ms = options["linger_ms"]
        self._boot_ms = env.boot_ms
        self._batch_size = options["batch_size"]
        self._buffer_memory = options["buffer_memory"]
        self._max_block_ms = options["max_block_ms"]
        self._open: dict[str, Batch] = {}
        self._in_flight: list[Batch] = []
        self._used = 0
        self._hurried = 0
        """Calls that wait for room or for a flush: all batches are due."""
        self._refusal: SparklogError | None = None
        """Why no more records are taken."""
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._due = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)

    # -- for threads that send

    def append(self, topic: str, row: Row, nbytes: int) -> RecordFuture:
        """Add a record. `Unavailable`: no room for `max_block_ms`; `BadRequest`: too large, or closed."""
        with self._lock:
            if self._refusal is not None:
                raise copy.copy(self._refusal)
            if self._used + nbytes + RECORD_BYTES > self._buffer_memory:
                self._wait_for_room(nbytes)
            batch = self._open.get(topic)
            if batch is None:
                batch = self._open[topic] = Batch(topic, self._boot_ms() + self._linger_ms)
                self._due.notify()
            batch.cells.extend(row)
            future = RecordFuture(batch.outcomes, batch.count)
            batch.count += 1
            batch.nbytes += nbytes
            self._used += nbytes + RECORD_BYTES
            if batch.nbytes >= self._batch_size and not batch.is_full:
                batch.is_full = True
                self._due.notify()
            return future

    def _wait_for_room(self, nbytes: int) -> None:
        """Wait, with the lock, until a record of so many bytes fits."""
        needed = nbytes + RECORD_BYTES
        if needed > self._buffer_memory:
            raise BadRequest(f"a record of {nbytes} bytes does not fit in buffer_memory ({self._buffer_memory} bytes)")
        self._hurry()
        try:
            has_room = self._done.wait_for(
                lambda: self._refusal is not None or self._used + needed <= self._buffer_memory,
                self._max_block_ms / 1000,
            )
        finally:
            self._hurried -= 1
        if self._refusal is not None:
            raise copy.copy(self._refusal)
        if not has_room:
            raise Unavailable(
                f"buffer_memory ({self._buffer_memory} bytes) is full for max_block_ms ({self._max_block_ms} ms): "
                "commits are slower than sends, or the store does not answer; the record was not taken, send it later"
            )

    def _hurry(self) -> None:
        self._hurried += 1
        self._due.notify()

    def flush(self, timeout: float | None) -> bool:
        """Wait until what was added is done; False if that takes longer than `timeout` seconds."""
        with self._lock:
            batches = [*self._open.values(), *self._in_flight]
            self._hurry()
            try:
                return self._done.wait_for(lambda: all(batch.is_done for batch in batches), timeout)
            finally:
                self._hurried -= 1

    def close(self) -> None:
        """Take no more records. The sender ends when it has sent those that are here."""
        with self._lock:
            if self._refusal is None:
                self._refusal = BadRequest(CLOSED)
            self._due.notify()
            self._done.notify_all()

    def give_up(self, error: SparklogError) -> None:
        """Fail all records that are not done, and take no more."""
        with self._lock:
            self._refusal = error
        self.drop(error, in_flight=True)

    def drop(self, error: SparklogError, *, in_flight: bool = False) -> None:
        """Fail the records that wait here; those that a commit has taken, too, if `in_flight`."""
        with self._lock:
            batches = [*(self._in_flight if in_flight else ()), *self._open.values()]
            self._open.clear()
            self._due.notify()
        for batch in batches:
            batch.outcomes.fail(error)
        self.done(batches)

    def forked(self) -> None:
        """Refuse and fail records in a child process, where no thread sends them and locks may be held for ever."""
        self._make_locks()
        self._refusal = BadRequest(FORKED)
        for batch in (*self._open.values(), *self._in_flight):
            batch.outcomes.forked(self._refusal)
        self._open = {}
        self._in_flight = []

    # -- for the sender

    def take(self) -> Sequence[Batch]:
        """Wait for batches that are due, and take them; none once the producer is closed and all are taken."""
        with self._lock:
            now: float = self._boot_ms()
            while True:
                all_due = self._hurried > 0 or self._refusal is not None
                due = [batch for batch in self._open.values() if all_due or batch.is_full or batch.due_ms <= now]
                if due or self._refusal is not None:
                    for batch in due:
                        del self._open[batch.topic]
                    self._in_flight += due
                    return due
                next_ms = min((batch.due_ms for batch in self._open.values()), default=now + IDLE_MS)
                was_told = self._due.wait((next_ms - now) / 1000)
                # The clock of a test may stand still while the wait ends.
                now = self._boot_ms() if was_told else max(self._boot_ms(), next_ms)

    def done(self, batches: Sequence[Batch]) -> None:
        """Free the memory of batches whose futures are done."""
        with self._lock:
            for batch in batches:
                if not batch.is_done:
                    batch.is_done = True
                    self._used -= batch.memory
            self._in_flight = [batch for batch in self._in_flight if not batch.is_done]
            self._done.notify_all()
