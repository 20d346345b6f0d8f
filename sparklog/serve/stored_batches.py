"""Read stored batches for fetches, without decoding them.

The base offset, the leader epoch and, if LogAppendTime is used, the commit time of the slice are written to the batch
headers, and the checksum is updated. Maintenance rewrites slices in the same way. If a fetch starts inside a batch, it
returns the entire batch, as in Kafka.

If the remainder of a range contains no visible batches, because all of them were aborted or compacted, an empty batch
covers the offsets. Clients continue after this batch, as after a batch that Kafka's cleaner has emptied.

A window of batches is read in one step and returned in the sizes that the client requests. The remainder is buffered
for the next fetch. When less than half of a window remains, the next window is read while the client processes its
records.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sparklog.errors import Corrupt, SparklogError
from sparklog.format.batch_scan import scan_headers
from sparklog.format.filter_batches import rewrite_headers
from sparklog.format.new_arrays import new_array
from sparklog.format.record_batch import NO_TIMESTAMP, BatchHeader, BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.read.fetch import Cursor, Fetcher
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.read_plan import NativeReadPart
from sparklog.log.state.slice_table import ReadLatest
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.serve.recent_batches import ConsecutiveBatches
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.parallel_reads import UntilError

WINDOW_BYTES = 4 << 20
"""The approximate number of bytes to read from a partition in one step."""
BUFFER_BYTES = 64 << 20
"""The maximum total size of the batches that are buffered for the next fetches of all clients."""
MAX_DELTA = 2**31 - 2


@dataclass(slots=True)
class _Chunk:
    """Consecutive batches.

    Batch i is at `position[i]` to `position[i + 1]`, and `following[i]` is the offset after the batch.

    * `first`: the index of the first remaining batch
    * `base`: the position at which `data` starts
    * `aborted`: aborted Kafka transactions, or None if readers do not require this list
    """

    data: memoryview
    position: list[int]
    following: list[int]
    aborted: AbortedTransactions | None
    first: int = 0
    base: int = 0

    @property
    def nbytes(self) -> int:
        """The size of the remaining batches."""
        return self.position[-1] - self.position[self.first]

    def consume(self, nbytes: int, *, at_least_one: bool) -> memoryview:
        """Remove and return the next batches, up to `nbytes`."""
        start = self.position[self.first]
        fitting = bisect_right(self.position, start + nbytes) - 1
        self.first = min(max(fitting, self.first + at_least_one), len(self.following))
        end = self.position[self.first]
        consumed, rest = self.data[start - self.base : end - self.base], self.data[end - self.base :]
        if 2 * len(rest) < len(self.data):
            # Copy a small remainder, so that it does not keep the memory of the entire window in use.
            self.data, self.base = memoryview(bytes(rest)), end
        return consumed


@dataclass(slots=True)
class FetchedRecords:
    """The result of a fetch from one partition. `buffers` contains consecutive batches up to offset `next`."""

    buffers: list[memoryview] = field(default_factory=list)
    nbytes: int = 0
    next: int = 0
    aborted: list[tuple[int, int]] | None = None
    """The producer id and first offset of each aborted Kafka transaction in the batches."""
    next_window: FetchPosition | None = None
    """The position to pass to `read_ahead`, if the next window should be read now."""


class StoredBatches:
    """Reads batches of a served log. This class is thread-safe."""

    def __init__(self, log: ServedLog) -> None:
        self._log = log
        self._lock = ForkLock()
        self._buffered: OrderedDict[FetchPosition, _Chunk] = OrderedDict()
        self._free_bytes = BUFFER_BYTES
        self._ahead: dict[FetchPosition, threading.Event] = {}
        """The windows that `read_ahead` is reading."""

    def has_buffered(self, position: FetchPosition, end: int, nbytes: int) -> bool:
        """Return True if all batches from this position to offset `end`, or at least `nbytes`, are in memory.

        Does not wait for the lock.
        """
        recent = self._recent(position, end, nbytes, at_least_one=True)
        if recent.is_full or recent.next >= end:
            return True
        # `read` returns recent batches first, so it uses the buffered batches at this position only if there are none.
        chunk = self._buffered.get(position)
        return not recent.batches and chunk is not None and chunk.nbytes >= nbytes

    def read(self, position: FetchPosition, end: int, nbytes: int, *, at_least_one: bool) -> FetchedRecords:
        """Return batches from a position to offset `end`, up to `nbytes`.

        If `at_least_one` is true, the first batch is returned regardless of its size. Raises `NotFound` if the offsets
        have been deleted, and `Corrupt` if the first batch is corrupt. If a later batch is corrupt, the result ends
        before this batch, and the next fetch starts at this batch.
        """
        records = FetchedRecords(next=position.offset)
        aborted = list[AbortedTransactions]()
        while records.next < end:
            here = replace(position, offset=records.next)
            is_first = at_least_one and not records.nbytes
            recent = self._recent(here, end, nbytes - records.nbytes, at_least_one=is_first)
            if recent.batches:
                # One buffer can be sent faster than many small buffers.
                records.buffers.append(memoryview(b"".join(recent.batches)))
                records.nbytes += len(records.buffers[-1])
                records.next = recent.next
            if recent.is_full:
                break
            if recent.batches:
                continue
            try:
                buffered = self._pop(here)
                chunk = buffered or self._load(here, end, max(WINDOW_BYTES, min(nbytes, 2 * WINDOW_BYTES)))
            except Corrupt:
                if not records.nbytes:
                    raise
                break
            data = chunk.consume(nbytes - records.nbytes, at_least_one=is_first)
            if len(data):
                records.buffers.append(data)
                records.nbytes += len(data)
                records.next = chunk.following[chunk.first - 1]
                aborted += [chunk.aborted] if chunk.aborted is not None else []
            if chunk.nbytes:
                self._buffer(replace(position, offset=records.next), chunk)
            is_ending = buffered is not None and chunk.nbytes < WINDOW_BYTES // 2 and chunk.following[-1] < end
            records.next_window = replace(position, offset=chunk.following[-1]) if is_ending else None
            if chunk.nbytes or records.nbytes >= nbytes:
                break
        if position.isolation == READ_COMMITTED:
            records.aborted = _aborted_in(aborted, position.offset, records.next)
        return records

    def _recent(self, position: FetchPosition, end: int, nbytes: int, *, at_least_one: bool) -> ConsecutiveBatches:
        recent, topic_id, offset = self._log.recent, position.topic_id, position.offset
        return recent.read(topic_id, position.partition, offset, end, nbytes, at_least_one=at_least_one)

    def read_ahead(self, position: FetchPosition, end: int) -> None:
        """Read and buffer the window at a position, unless it has already been read. Errors are ignored, because the
        fetch at this position reads the window again and raises the error.
        """
        with self._lock:
            if position in self._ahead or position in self._buffered:
                return
            complete = self._ahead[position] = threading.Event()
        try:
            with suppress(SparklogError):
                self._buffer(position, self._load(position, end, WINDOW_BYTES))
        finally:
            del self._ahead[position]
            complete.set()

    def _pop(self, position: FetchPosition) -> _Chunk | None:
        if (ahead := self._ahead.get(position)) is not None:
            ahead.wait()
        with self._lock:
            chunk = self._buffered.pop(position, None)
            self._free_bytes += chunk.nbytes if chunk else 0
            return chunk

    def _buffer(self, position: FetchPosition, chunk: _Chunk) -> None:
        with self._lock:
            # Another client at the same position may have buffered the same batches.
            other = self._buffered.pop(position, None)
            self._free_bytes += (other.nbytes if other else 0) - chunk.nbytes
            self._buffered[position] = chunk
            while self._free_bytes < 0 and len(self._buffered) > 1:
                self._free_bytes += self._buffered.popitem(last=False)[1].nbytes

    def _load(self, position: FetchPosition, end: int, nbytes: int) -> _Chunk:
        """Read the next window, which contains at least one batch."""
        start = position.offset
        while start < end:
            offsets = OffsetRange(position.topic, position.partition, start, end)
            part, stop = self._log.plan(offsets, position.isolation, nbytes)
            chunk = None if part is None else _chunk_of(part, position.offset, end)
            if chunk is not None and chunk.following:
                return chunk
            start = stop
        return _empty_batch(position.offset, end)


def _aborted_in(parts: list[AbortedTransactions], start: int, end: int) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of each transaction with offsets in [start, end), in offset order."""
    transactions = set[tuple[int, int]]()
    for part in parts:
        overlapping = part.overlapping(start, end)
        transactions |= set(zip(overlapping.producer_ids.tolist(), overlapping.first_offsets.tolist(), strict=True))
    return sorted(transactions, key=lambda transaction: transaction[1])


def _chunk_of(part: Any, start: int, end: int) -> _Chunk:
    """Read the batches of a part that overlap offsets [start, end).

    The header fields that the slices define are written to the batches.
    """
    if isinstance(part, NativeReadPart):
        return _joined(patched_batches(part), start, end, part.slices.hidden)
    pairs = ((memoryview(window.data), window.headers) for window in part.windows(WINDOW_BYTES // 4))
    return _joined(pairs, start, end, getattr(part, "aborted", None))


def patched_batches(part: NativeReadPart) -> Iterator[tuple[memoryview, BatchHeaders]]:
    """Yield the batches of a part, concatenated, with the header fields that their slices define.

    Fetched data is copied while it is in the CPU cache, so that its memory can be reused. If a batch is corrupt,
    `Corrupt` is raised after the batches before it have been yielded.
    """
    opened: dict[tuple[str, str], ReadLatest] = {}
    cursor = Cursor(part.store, part.range, part.slices, partial(part.replan, opened), part.range.start)
    memory = new_array(min(part.slices.nbytes, WINDOW_BYTES + WINDOW_BYTES // 4), np.uint8)
    sources, starts, end = list[tuple[PlannedSlice, int]](), list[int](), 0
    fetched = UntilError(Fetcher([cursor], on_skipped=part.on_skipped))
    for batches in fetched:
        sources.append((batches.slice, batches.position))
        starts.append(end)
        end += len(batches.data)
        if end > len(memory):
            memory = np.concatenate((memory, new_array(end, np.uint8)))
        memory[starts[-1] : end] = np.frombuffer(batches.data, np.uint8)
    # Copy a range that is small compared with its slices, so that it does not keep the memory of all slices in use.
    data = (memory[:end].copy() if 2 * end < len(memory) else memory).data[:end]
    try:
        headers = scan_headers(data, contents=False)
    except Corrupt:
        for (planned, position), start, stop in zip(sources, starts, [*starts[1:], end], strict=True):
            # Scan again, so that the error reports the file and position of the corrupt batch.
            scan_headers(data[start:stop], contents=False, file=planned.file, file_position=position)
        raise
    source = np.searchsorted(starts, headers.position, side="right") - 1
    rows = [(planned.shift, planned.leader_epoch, planned.append_time) for planned, _ in sources]
    shift, epoch, append_time = np.array(rows, np.int64).reshape(-1, 3)[source].T.copy()
    times = append_time if (append_time >= 0).any() else None
    yield data, rewrite_headers(data, headers, offset_shift=shift, leader_epoch=epoch, append_time=times)
    fetched.raise_error()


def _joined(
    windows: Iterable[tuple[memoryview, BatchHeaders]], start: int, end: int, aborted: AbortedTransactions | None
) -> _Chunk:
    """Concatenate the batches of windows that overlap the range. A single window is not copied.

    Raises `Corrupt` if the first batch in the range is corrupt. If a later batch is corrupt, the result ends before
    that batch.
    """
    position, following, parts, base = [0], list[int](), list[memoryview](), 0
    try:
        for data, headers in windows:
            rows = np.flatnonzero((headers.next_offset > start) & (headers.base_offset < end))
            if not len(rows):
                continue
            inside = headers[rows[0] : rows[-1] + 1]
            low = int(inside.position[0])
            ends = inside.position + inside.size
            position += (ends - low + base).tolist()
            following += inside.next_offset.tolist()
            parts.append(data[low : int(ends[-1])])
            base = position[-1]
    except Corrupt:
        if not following:
            raise
    data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    return _Chunk(data, position, following, aborted)


def _empty_batch(start: int, end: int) -> _Chunk:
    delta = min(end - start - 1, MAX_DELTA)
    data = BatchHeader(start, delta, 0, NO_TIMESTAMP, NO_TIMESTAMP).pack()
    return _Chunk(memoryview(data), [0, len(data)], [start + delta + 1], None)
