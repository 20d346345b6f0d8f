"""Batches as they are stored, for fetches: patched outside of their checksum, never decoded.

What a slice does not say in its bytes is set as maintenance sets it when it rewrites a slice: base offsets, the leader
epoch, and under LogAppendTime the time of the commit, for which the checksum is changed by what the field changes. A
batch that the fetch begins inside of is served whole, as in Kafka.

Where the rest of a range has no batch that the reader may see (aborted, compacted away), an empty batch takes its
offsets: clients go on after it, as they do after one that Kafka's cleaner emptied.

A window is read at once and served in the sizes that a client asks for. What is left waits for its next fetch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.filter_batches import rewrite_headers
from sparklog.format.new_arrays import new_array
from sparklog.format.record_batch import NO_TIMESTAMP, BatchHeader, BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.read.fetch import Cursor, Fetcher
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.read_plan import NativeReadPart
from sparklog.log.state.slice_table import Newer
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.parallel_reads import UntilError

WINDOW_BYTES = 4 << 20
"""About what is read at once of a partition."""
WAITING_BYTES = 64 << 20
"""Batches that were read and wait for the next fetch, of all clients."""
MAX_DELTA = 2**31 - 2


@dataclass(slots=True)
class _Chunk:
    """Batches back to back: `position[i]` to `position[i + 1]` is batch i, `following[i]` the offset after it.

    `data` begins at position `base`, and `first` is the first batch that is left. `aborted`: of Kafka's transactions,
    None where a reader is not told.
    """

    data: memoryview
    position: list[int]
    following: list[int]
    aborted: AbortedTransactions | None
    first: int = 0
    base: int = 0

    @property
    def left(self) -> int:
        return self.position[-1] - self.position[self.first]

    def take(self, nbytes: int, *, at_least_one: bool) -> memoryview:
        """Take whole batches of at most so many bytes; `first` moves on."""
        start = self.position[self.first]
        fitting = bisect_right(self.position, start + nbytes) - 1
        self.first = min(max(fitting, self.first + at_least_one), len(self.following))
        end = self.position[self.first]
        taken, rest = self.data[start - self.base : end - self.base], self.data[end - self.base :]
        if 2 * len(rest) < len(self.data):
            # What is left must not keep memory for all that was read.
            self.data, self.base = memoryview(bytes(rest)), end
        return taken


@dataclass(slots=True)
class FetchedRecords:
    """The answer to a fetch of one partition: `buffers` one after another, up to offset `next`."""

    buffers: list[memoryview] = field(default_factory=list)
    nbytes: int = 0
    next: int = 0
    aborted: list[tuple[int, int]] | None = None
    """Producer id and first offset of each of Kafka's aborted transactions in it."""


class StoredBatches:
    """Reads batches of a served log. Safe between threads."""

    def __init__(self, log: ServedLog) -> None:
        self._log = log
        self._lock = ForkLock()
        self._waiting: OrderedDict[FetchPosition, _Chunk] = OrderedDict()
        self._room = WAITING_BYTES

    def has_buffered(self, place: FetchPosition, nbytes: int) -> bool:
        """Return True if so many bytes from a place on were read and wait. Neither waits itself nor takes them."""
        chunk = self._waiting.get(place)
        return chunk is not None and chunk.left >= nbytes

    def read(self, place: FetchPosition, end: int, nbytes: int, *, at_least_one: bool) -> FetchedRecords:
        """Return batches from a place on, below offset `end`, of at most so many bytes.

        `at_least_one`: return the first batch however large it is. Raises the errors of record reads: `NotFound` for
        deleted offsets, `Corrupt` for a corrupt batch at the start. A later corrupt batch ends the result; the next
        fetch starts there.
        """
        records = FetchedRecords(next=place.offset)
        gone = list[AbortedTransactions]()
        while records.next < end:
            here = replace(place, offset=records.next)
            try:
                chunk = self._taken(here) or self._load(here, end, max(WINDOW_BYTES, min(nbytes, 2 * WINDOW_BYTES)))
            except Corrupt:
                if not records.nbytes:
                    raise
                break
            data = chunk.take(nbytes - records.nbytes, at_least_one=at_least_one and not records.nbytes)
            if len(data):
                records.buffers.append(data)
                records.nbytes += len(data)
                records.next = chunk.following[chunk.first - 1]
                gone += [chunk.aborted] if chunk.aborted is not None else []
            if chunk.left:
                self._keep(replace(place, offset=records.next), chunk)
            if chunk.left or records.nbytes >= nbytes:
                break
        if place.isolation == READ_COMMITTED:
            records.aborted = _aborted_in(gone, place.offset, records.next)
        return records

    def _taken(self, place: FetchPosition) -> _Chunk | None:
        with self._lock:
            chunk = self._waiting.pop(place, None)
            self._room += chunk.left if chunk else 0
            return chunk

    def _keep(self, place: FetchPosition, chunk: _Chunk) -> None:
        with self._lock:
            # Two clients at one place: both have read what is there.
            other = self._waiting.pop(place, None)
            self._room += (other.left if other else 0) - chunk.left
            self._waiting[place] = chunk
            while self._room < 0 and len(self._waiting) > 1:
                self._room += self._waiting.popitem(last=False)[1].left

    def _load(self, place: FetchPosition, end: int, nbytes: int) -> _Chunk:
        """Read the next window: at least one batch."""
        start = place.offset
        while start < end:
            wanted = OffsetRange(place.topic, place.partition, start, end)
            part, stop = self._log.plan(wanted, place.isolation, nbytes)
            chunk = None if part is None else _chunk_of(part, place.offset, end)
            if chunk is not None and chunk.following:
                return chunk
            start = stop
        return _empty_batch(place.offset, end)


def _aborted_in(parts: list[AbortedTransactions], start: int, end: int) -> list[tuple[int, int]]:
    """Return the transactions that begin below `end` and end at or above `start`, each once, by their first offset."""
    transactions = set[tuple[int, int]]()
    for part in parts:
        near = part.overlapping(start, end)
        transactions |= set(zip(near.producer_ids.tolist(), near.first_offsets.tolist(), strict=True))
    return sorted(transactions, key=lambda item: item[1])


def _chunk_of(part: Any, start: int, end: int) -> _Chunk:
    """Read the batches of a part that end above `start` and begin below `end`, patched."""
    if isinstance(part, NativeReadPart):
        return _joined(patched_batches(part), start, end, part.slices.hidden)
    pairs = ((memoryview(window.data), window.headers) for window in part.windows(WINDOW_BYTES // 4))
    return _joined(pairs, start, end, getattr(part, "aborted", None))


def patched_batches(part: NativeReadPart) -> Iterator[tuple[memoryview, BatchHeaders]]:
    """Concatenate the batches of a part and set the header fields that their slices define, in one call for all.

    Each piece is copied while it is in the CPU cache, and its memory can then be reused. Raises `Corrupt` after
    yielding the valid batches before a corrupt one.
    """
    opened: dict[tuple[str, str], Newer] = {}
    cursor = Cursor(part.store, part.range, part.slices, partial(part.replan, opened), part.range.start)
    memory = new_array(min(part.slices.nbytes, WINDOW_BYTES + WINDOW_BYTES // 4), np.uint8)
    pieces, starts, end = list[tuple[PlannedSlice, int]](), list[int](), 0
    fetched = UntilError(Fetcher([cursor], on_skipped=part.on_skipped))
    for piece in fetched:
        pieces.append((piece.slice, piece.position))
        starts.append(end)
        end += len(piece.data)
        if end > len(memory):
            memory = np.concatenate((memory, new_array(end, np.uint8)))
        memory[starts[-1] : end] = np.frombuffer(piece.data, np.uint8)
    # A range that is small beside its slices must not keep memory for all of them.
    data = (memory[:end].copy() if 2 * end < len(memory) else memory).data[:end]
    try:
        headers = scan_headers(data, contents=False)
    except Corrupt:
        for (planned, position), start, stop in zip(pieces, starts, [*starts[1:], end], strict=True):
            # This one names the place.
            scan_headers(data[start:stop], contents=False, file=planned.file, file_position=position)
        raise
    of_piece = np.searchsorted(starts, headers.position, side="right") - 1
    rows = [(planned.shift, planned.leader_epoch, planned.append_time) for planned, _ in pieces]
    shift, epoch, append_time = np.array(rows, np.int64).reshape(-1, 3)[of_piece].T.copy()
    times = append_time if (append_time >= 0).any() else None
    yield data, rewrite_headers(data, headers, offset_shift=shift, leader_epoch=epoch, append_time=times)
    fetched.raise_error()


def _joined(
    windows: Iterable[tuple[memoryview, BatchHeaders]], start: int, end: int, aborted: AbortedTransactions | None
) -> _Chunk:
    """Concatenate windows without the batches outside the range; a single window is not copied.

    Raises `Corrupt` if there is no valid batch of the range before the corrupt one.
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
