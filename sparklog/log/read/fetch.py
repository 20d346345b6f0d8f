"""Fetch the slices of a plan with few requests. If a planned file no longer exists, plan the read again.

Adjacent slices of a file are fetched in one request if they are the next slices of their ranges, even if they belong to
different partitions. Therefore, a task that reads 8 partitions from n small append files sends n requests instead of 8n
requests. If a slice is at most `span_bytes` long, the entire slice is fetched, and its CRC-32C is verified. Larger
slices are fetched in windows of `span_bytes`. If the range starts or ends inside a large slice, the positions to read
are looked up in the index of the footer. Therefore, the memory of a task is limited to a few times `span_bytes`. If
each request costs a round trip, several requests are in flight (`sparklog.log.read.read_ahead`). This changes only the
boundaries of windows.

Sealed segments have no footer: see `sparklog.log.read.segment_seek`.

If a slice is corrupt, its valid batches up to the first corrupt batch are returned
(`sparklog.log.read.damaged_slices`), unless the fetch is `strict`.

If a file does not exist, it was replaced (merged, sealed or compacted) after the plan was made. The topic is then
opened again, and the same offsets are read from the new files. If the log start offset has passed these offsets, their
records have been deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sparklog.format.append_file import Footer
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import BatchHeaders
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.limits import DEFAULTS
from sparklog.log.read.damaged_slices import valid_batches
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices
from sparklog.log.read.read_ahead import ReadAhead, Request
from sparklog.log.read.segment_seek import read_offset_index, seek_position_for_offsets
from sparklog.log.read.skipped import OnSkipped
from sparklog.log.read.slice_files import (
    MissingFile,
    MissingFiles,
    SliceFile,
    StoredSlice,
    check_slice,
    index_of,
    ranges,
    read_request,
    seek_in_segment,
    valid_footer,
    whole_batches,
)
from sparklog.log.state.embedded_commits import RECENT_RECORDS
from sparklog.log.state.view import OffsetRange
from sparklog.storage.store import Store

ROWS_PER_READ = 512


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Complete batches of one slice."""

    data: memoryview
    position: int  # position of `data[0]` in the file of the slice
    slice: PlannedSlice
    start: int  # start of the requested offsets `[start, end)`
    end: int
    cut: bool  # True if the batches are only a part of the slice
    verified: bool  # True if the checksums have been verified
    headers: BatchHeaders | None = None  # batch headers of `data`, if they have been scanned


@dataclass(slots=True)
class Cursor:
    """The progress of one range. Offsets below `next` have been fetched, and `at` is the index of the next slice."""

    store: Store
    range: OffsetRange
    slices: PlannedSlices
    replan: Callable[[int], tuple[int, PlannedSlices]]
    """A function that plans the range again, starting at a given offset. It returns the offset to continue with, and
    the new slices.

    If deleted offsets may be skipped, the returned offset can be greater than the given offset.
    """
    next: int
    at: int = 0
    _rows: list[PlannedSlice] = field(default_factory=list)
    _first: int = 0
    """Index of the first slice in `_rows`. `_rows` contains a few slices at a time."""
    location: str = field(init=False)

    def __post_init__(self) -> None:
        self.location = self.store.location

    def next_slice(self) -> PlannedSlice | None:
        row = self.at - self._first
        if not 0 <= row < len(self._rows):
            if self.at >= len(self.slices):
                return None
            self._rows, self._first, row = self.slices.rows(self.at, self.at + ROWS_PER_READ), self.at, 0
        return self._rows[row]

    def file_position(self) -> tuple[str, str, int] | None:
        planned = self.next_slice()
        return None if planned is None else (self.location, planned.file, planned.position)

    def cuts(self, planned: PlannedSlice) -> bool:
        return self.next > planned.base or self.range.end < planned.end


@dataclass(slots=True)
class _Job:
    """The next slices to read.

    A job consists of adjacent slices of a file, or of one slice that is read in windows starting at position `low` of
    `file`.
    """

    slices: list[tuple[Cursor, PlannedSlice, int]]  # the cursor, the slice and the first requested offset
    requests: list[Request]
    file: StoredSlice | None = None  # the file to read in windows
    low: int = 0


class Fetcher:
    """Iterates over the batches of all ranges.

    The batches of each range are in offset order. Ranges are interleaved in the order of their files.

    Args:
        strict: Raise `Corrupt` for a corrupt slice, and do not check the batches of windows.
        on_skipped: Called with each corrupt range that is skipped. If None, `Corrupt` is raised.
    """

    def __init__(self, cursors: Sequence[Cursor], *, strict: bool = False, on_skipped: OnSkipped | None = None) -> None:
        self._strict = strict
        self._on_skipped = on_skipped
        self._cursors = cursors
        self._cursors_by_position: dict[tuple[str, str, int] | None, Cursor] = {}
        self._footers: dict[str, Footer | None] = {}
        self._indexes: dict[str, OffsetIndex | None] = {}
        self._first = 0
        """Index of the first cursor that is not finished."""
        self._jobs: deque[_Job] = deque()
        max_requests = min((cursor.store.parallel_reads for cursor in cursors), default=1)
        self._ahead = ReadAhead(
            max_requests, read_request, self._more, cursors[0].store.limits if cursors else DEFAULTS
        )

    def __iter__(self) -> Iterator[FetchedBatches]:
        for cursor in self._cursors:
            self._register(cursor)
        missed = MissingFiles()
        try:
            while True:
                try:
                    if not self._jobs and not self._plan():
                        return
                    yield from self._span(self._jobs[0]) if self._jobs[0].file is None else self._windows(self._jobs[0])
                    self._ahead.drop(self._jobs.popleft().requests)
                except MissingFile as missing:
                    self._cancel_jobs()
                    cursor = self._cursors[self._first]
                    missed.note(cursor.store, self._first, missing.file)
                    self._unregister(cursor)
                    cursor.next, cursor.slices = cursor.replan(cursor.next)
                    cursor.at, cursor._rows = 0, []
                    self._register(cursor)
        finally:
            self._ahead.close()

    def _cancel_jobs(self) -> None:
        """Cancel the planned jobs that have not been read."""
        for job in reversed(self._jobs):
            self._ahead.drop(job.requests)
            for cursor, _, start in reversed(job.slices):
                self._unregister(cursor)
                cursor.at, cursor.next = cursor.at - 1, start
                self._register(cursor)
        if self._jobs:
            self._first = next(i for i, cursor in enumerate(self._cursors) if cursor is self._jobs[0].slices[0][0])
        self._jobs.clear()

    def _register(self, cursor: Cursor) -> None:
        self._cursors_by_position[cursor.file_position()] = cursor

    def _unregister(self, cursor: Cursor) -> None:
        key = cursor.file_position()
        if self._cursors_by_position.get(key) is cursor:
            del self._cursors_by_position[key]

    def _advance(self, cursor: Cursor, planned: PlannedSlice) -> None:
        """Advance a cursor past its next slice."""
        if self._cursors_by_position.get(file_position := (cursor.location, planned.file, planned.position)) is cursor:
            del self._cursors_by_position[file_position]
        cursor.next, cursor.at = min(planned.end, cursor.range.end), cursor.at + 1
        self._register(cursor)

    @staticmethod
    def _in_windows(cursor: Cursor, planned: PlannedSlice) -> bool:
        """Return True if a slice is too large for one request, or if only a part of the slice is needed and the index
        is used to find it.
        """
        limits = cursor.store.limits
        return planned.size > limits.span_bytes or (planned.size > limits.index_min_bytes and cursor.cuts(planned))

    def _next(self) -> tuple[Cursor, PlannedSlice] | None:
        while self._first < len(self._cursors):
            cursor = self._cursors[self._first]
            if (planned := cursor.next_slice()) is not None:
                return cursor, planned
            self._first += 1
        return None

    def _plan(self) -> bool:
        """Plan the next job and advance the cursors. Return False if all cursors are finished."""
        following = self._next()
        if following is None:
            return False
        job = self._plan_windows(*following) if self._in_windows(*following) else self._plan_adjacent(*following)
        self._jobs.append(job)
        self._ahead.add(job.requests)
        return True

    def _more(self) -> bool:
        """Plan one more job while other jobs are being read.

        A job that uses an index is not planned ahead, because its index is read only when the job is due.
        """
        following = self._next()
        return (
            following is not None
            and not (self._in_windows(*following) and following[0].cuts(following[1]))
            and self._plan()
        )

    def _plan_adjacent(self, cursor: Cursor, planned: PlannedSlice) -> _Job:
        """Plan a request for a slice. The request includes adjacent slices in the file that are the next slices of
        their ranges.
        """
        adjacent = [(cursor, planned, cursor.next)]
        self._advance(cursor, planned)
        end = planned.position + planned.size
        while (other := self._cursors_by_position.get((cursor.location, planned.file, end))) is not None:
            adjacent_slice = other.next_slice()
            if adjacent_slice is None or self._in_windows(other, adjacent_slice):
                break
            if end + adjacent_slice.size - planned.position > cursor.store.limits.span_bytes:
                break
            adjacent.append((other, adjacent_slice, other.next))
            self._advance(other, adjacent_slice)
            end += adjacent_slice.size
        return _Job(adjacent, [Request(cursor.store, planned.file, planned.position, end - planned.position)])

    def _span(self, job: _Job) -> Iterator[FetchedBatches]:
        (request,) = job.requests
        data = memoryview(self._ahead.consume(request))
        for cursor, planned, start in job.slices:
            body = data[planned.position - request.start :][: planned.size]
            # The cached bytes may belong to a replaced object, so read the object from the store.
            if (is_intact := crc32c(body) == planned.crc) is False and RECENT_RECORDS.evict(cursor.store, planned.file):
                data = memoryview(read_request(request))
                body = data[planned.position - request.start :][: planned.size]
                is_intact = crc32c(body) == planned.crc
            end = min(planned.end, cursor.range.end)
            if is_intact:
                cut = start > planned.base or cursor.range.end < planned.end
                yield FetchedBatches(body, planned.position, planned, start, end, cut, True)
                continue
            if self._strict:
                check_slice(body, planned)
            for window in valid_batches(SliceFile(planned, body), start, end, on_skipped=self._on_skipped):
                yield FetchedBatches(window.data, window.start, planned, start, end, cut=True, verified=True)

    def _plan_windows(self, cursor: Cursor, planned: PlannedSlice) -> _Job:
        """Plan a large slice, or the requested part of it, to be read in windows of complete batches."""
        low, high = self._limits(cursor, planned)
        file, until = StoredSlice(cursor.store, planned, high), high
        index = None if planned.footer_length or not cursor.cuts(planned) else self._index(cursor.store, planned)
        if index is not None:
            seek = seek_position_for_offsets(index, planned, cursor.next, min(planned.end, cursor.range.end))
            until = planned.position + seek.until
            file = StoredSlice(cursor.store, planned, high, [until])
            low = seek_in_segment(file, seek)
        requests = []
        if self._ahead.is_on:
            begin = low if low == planned.position else max(low, file.fetched)
            requests = ranges(cursor.store, planned, begin, min(until, high))
            file.read_from(self._ahead, requests)
        job = _Job([(cursor, planned, cursor.next)], requests, file, low)
        self._advance(cursor, planned)
        return job

    def _windows(self, job: _Job) -> Iterator[FetchedBatches]:
        assert job.file is not None
        ((cursor, planned, offset),) = job.slices
        end = min(planned.end, cursor.range.end)
        cut = offset > planned.base or cursor.range.end < planned.end
        if self._strict:
            windows = whole_batches(job.file, job.low)
        else:
            windows = valid_batches(job.file, offset, end, low=job.low, on_skipped=self._on_skipped)
        for window in windows:
            piece = FetchedBatches(
                window.data, window.start, planned, offset, end, cut, not self._strict, window.headers
            )
            offset = min(max(offset, int(window.headers.next_offset[-1]) + planned.shift), end)
            job.slices = [(cursor, planned, offset)]
            yield piece
            if self._strict and offset >= end:
                return

    def _limits(self, cursor: Cursor, planned: PlannedSlice) -> tuple[int, int]:
        """Return the start and end position of the requested batches of a slice, based on the footer's index."""
        begin, end = planned.position, planned.position + planned.size
        if not cursor.cuts(planned) or not planned.footer_length:
            return begin, end
        footer = self._footer(cursor.store, planned)
        index = None if footer is None else index_of(footer, planned)
        if index is None:
            return begin, end
        low = int(index.position[index.entry_for_offset(cursor.next - planned.shift)])
        beyond = int(index.offset.searchsorted(cursor.range.end - planned.shift, side="left"))
        return begin + low, begin + int(index.position[beyond]) if beyond < len(index) else end

    def _footer(self, store: Store, planned: PlannedSlice) -> Footer | None:
        if planned.file not in self._footers:
            self._footers = {planned.file: valid_footer(store, planned)}
        return self._footers[planned.file]

    def _index(self, store: Store, planned: PlannedSlice) -> OffsetIndex | None:
        if planned.file not in self._indexes:
            self._indexes = {planned.file: read_offset_index(store, planned)}
        return self._indexes[planned.file]
