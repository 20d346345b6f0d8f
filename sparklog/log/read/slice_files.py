"""Slices in the form of batch files for `sparklog.format.batch_walk`. Positions are relative to the start of the
slice's file.

A `SliceFile` is a slice in memory. A `StoredSlice` is read from its store in windows of `span_bytes`, so that a task
has only a few windows in memory. If each request costs a round trip, the windows are read ahead
(`sparklog.log.read.read_ahead`), so that each byte is read once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sparklog.errors import Corrupt, NotFound
from sparklog.format.append_file import Footer, SliceIndex, WrittenSlice, decode_footer
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.batch_walk import BatchFile, BatchWalk, Window
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.read_ahead import ReadAhead, Request
from sparklog.log.read.segment_seek import SeekPosition
from sparklog.log.state.embedded_commits import RECENT_RECORDS
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.storage.store import Store


class MissingFile(Exception):  # noqa: N818
    """Raised if a planned file does not exist, so that the caller plans the read again. Callers of `sparklog.log` never
    receive this error.
    """

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


@dataclass(slots=True)
class MissingFiles:
    """Decides whether to plan the read again or to raise an error if a file is missing.

    The vacuum may have deleted a file of an old plan, so the caller first plans the read again. If the new plan also
    contains the file, the file is lost. However, the name cache of a mount may hide an existing file if the directory
    was read before the file was created.
    """

    env: Env = SYSTEM
    _last: tuple[int, str] | None = None
    _hidden: Backoff | None = None

    def note(self, store: Store, reader: int, file: str) -> None:
        """Record that a file is missing, so that the caller plans the read again. Raises `Corrupt` if the file is lost.
        `reader` is the index of the range.
        """
        if self._last != (reader, file):
            self._last, self._hidden = (reader, file), None
            return
        self._hidden = self._hidden or Backoff(self.env, SETTLE_MS if store.hides_names else 0)
        if not self._hidden.wait():
            raise Corrupt("the log references a file that does not exist: restore the file", file=file)


class SliceFile(BatchFile):
    """A slice in memory. `size` is the end position of the slice in its file."""

    def __init__(self, planned: PlannedSlice, data: memoryview) -> None:
        self.planned = planned
        self.path = planned.file
        self.size = planned.position + planned.size
        self._data = data
        self._start = planned.position
        """Position of `_data[0]` in the file."""

    def read(self, position: int, length: int) -> memoryview:
        return self._data[position - self._start :][: min(length, self.size - position)]

    def window(self, position: int) -> memoryview:
        return self.read(position, self.size - position)


class StoredSlice(SliceFile):
    """A slice in a store, up to position `end`, or up to the end of the slice if `end` is None.

    `window_ends` contains ascending positions at which windows end, in addition to the limit of `span_bytes`. `fetched`
    is the position after the last bytes that were read.
    """

    def __init__(
        self, store: Store, planned: PlannedSlice, end: int | None = None, window_ends: Sequence[int] = ()
    ) -> None:
        super().__init__(planned, memoryview(b""))
        self.size = self.size if end is None else end
        self._store = store
        self._window_ends = window_ends
        self._window_start = -1
        self._window_end = -1
        self._ahead: ReadAhead | None = None
        self._requests: deque[Request] = deque()

    @property
    def fetched(self) -> int:
        return self._start + len(self._data)

    def read_from(self, ahead: ReadAhead, requests: Iterable[Request]) -> None:
        """Use read-ahead requests to read the windows."""
        self._ahead, self._requests = ahead, deque(requests)

    def window(self, position: int) -> memoryview:
        if position != self._window_start or position < self._start:
            self._release(position)
            if self._requests and self.fetched <= max(position, self._window_end):
                self._consume_request()
                while self._requests and self.fetched <= position:
                    self._consume_request()
                self._release(position)
            elif self.fetched <= max(position, self._window_end):
                self._data, self._start = self._read(position, self._window_bytes(position)), position
            self._window_start, self._window_end = position, self.fetched
        return self._data[position - self._start :]

    def read(self, position: int, length: int) -> memoryview:
        end = min(position + length, self.size)
        while self._requests and self._start <= position <= self.fetched < end:
            self._release(position)
            self._consume_request()
        if self._start <= position and end <= self.fetched:
            return self._data[position - self._start : max(end - self._start, 0)]
        return self._read(position, end - position) if position < end else self._data[:0]

    def _release(self, position: int) -> None:
        """Release the bytes before a position."""
        if self._start <= position <= self.fetched:
            self._data, self._start = self._data[position - self._start :], position
        else:
            self._data, self._start, self._window_end = memoryview(b""), position, -1

    def _consume_request(self) -> None:
        assert self._ahead is not None
        request = self._requests.popleft()
        body = self._ahead.consume(request)
        if len(self._data) and self.fetched == request.start:
            self._data = memoryview(b"".join((self._data, body)))
        else:
            self._data, self._start = memoryview(body), request.start

    def _window_bytes(self, position: int) -> int:
        """Return the size of the window at a position, including the header of the next batch."""
        following = bisect_right(self._window_ends, position)
        end = self._window_ends[following] + HEADER_BYTES if following < len(self._window_ends) else self.size
        return min(self._store.limits.span_bytes, min(end, self.size) - position)

    def _read(self, position: int, length: int) -> memoryview:
        return read_range(self._store, self.path, position, length)


def whole_batches(file: SliceFile, start: int) -> Iterator[Window]:
    """Yield the batches of a slice, starting at position `start`, in windows. Batches are not checked.

    Raises `Corrupt` if there is no batch at a position. If the entire slice is read, its CRC-32C is checked before the
    last window is yielded.
    """
    planned = file.planned
    whole = start == planned.position and file.size == start + planned.size
    crc = 0
    walk = BatchWalk(file, start)
    for found in walk:
        window = found.trimmed()
        if whole:
            crc = crc32c(window.data, crc)
            if window.end == file.size and crc != planned.crc:
                raise Corrupt(
                    "the slice's CRC-32C does not match its bytes: restore the file",
                    file=file.path,
                    position=planned.position,
                )
        yield window
    if walk.stop != "end":
        raise Corrupt(f"expected complete record batches: {walk.reason}", file=file.path, position=walk.end)


@contextmanager
def opened_slice(store: Store, planned: PlannedSlice) -> Iterator[StoredSlice]:
    """Open a slice to read all of its bytes."""
    ahead = ReadAhead(store.parallel_reads, read_request, lambda: False, store.limits)
    file = StoredSlice(store, planned)
    if ahead.is_on:
        requests = ranges(store, planned, planned.position, file.size)
        ahead.add(requests)
        file.read_from(ahead, requests)
    try:
        yield file
    finally:
        ahead.close()


def read_windows(store: Store, planned: PlannedSlice) -> Iterator[Window]:
    """Yield all batches of a large slice, in windows. Raises `MissingFile`, or the errors of `whole_batches`."""
    with opened_slice(store, planned) as file:
        yield from whole_batches(file, planned.position)


def ranges(store: Store, planned: PlannedSlice, low: int, high: int) -> list[Request]:
    """Divide a byte range of a slice into the byte ranges of requests."""
    size = store.limits.span_bytes
    return [Request(store, planned.file, start, min(size, high - start)) for start in range(low, high, size)]


def read_request(request: Request) -> bytes | memoryview:
    cached = RECENT_RECORDS.read(request.store, request.file, request.start, request.length)
    return read_range(request.store, request.file, request.start, request.length) if cached is None else cached


def seek_in_segment(file: StoredSlice, seek: SeekPosition) -> int:
    """Return the position in a sealed segment at which to start reading. If the index is wrong, return the start of the
    segment.
    """
    begin = file.planned.position
    position = begin + seek.position
    window = next(iter(BatchWalk(file, position)), None) if begin < position < file.size else None
    if window is None:
        # No batch starts at this position. Read from the start of the segment to find out whether the index or the log
        # is corrupt.
        return begin
    headers = window.headers
    is_valid = int(headers.last_offset[0]) == seek.last_offset and not len(crc_failures(window.data, headers[:1]))
    if is_valid and 0 <= seek.indexed_offset <= int(headers.last_offset[-1]):
        is_valid = bool(
            (headers.max_timestamp[headers.last_offset == seek.indexed_offset] == seek.indexed_timestamp).any()
        )
    elif is_valid:
        is_valid = seek.indexed_offset < 0
    return position if is_valid else begin


def read_footer(store: Store, planned: PlannedSlice) -> Footer:
    data = read_range(store, planned.file, planned.file_size - planned.footer_length, planned.footer_length)
    return decode_footer(bytes(data), file_size=planned.file_size, file=planned.file)


def valid_footer(store: Store, planned: PlannedSlice) -> Footer | None:
    """Return the footer of a file.

    Return None if the footer is corrupt, so that slices must be read from their start.
    """
    try:
        return read_footer(store, planned)
    except Corrupt:
        return None


def index_of(footer: Footer, planned: PlannedSlice) -> SliceIndex | None:
    """Return the index of a slice, or None if a rewrite has kept only a part of the slice."""
    entry = entry_of(footer, planned)
    return None if entry is None else entry.index


def entry_of(footer: Footer, planned: PlannedSlice) -> WrittenSlice | None:
    """Return the footer's entry of a slice, or None if the entry belongs to another slice."""
    entry = footer.at(planned.position)
    return entry if entry is not None and entry.crc == planned.crc and entry.nbytes == planned.size else None


def read_range(store: Store, file: str, start: int, length: int) -> memoryview:
    """Return the requested bytes of a file. Raises `MissingFile` if the file does not exist, and `Corrupt` if it is too
    short.

    Both errors must be confirmed by a second request. A name cache may briefly hide an existing file. A reader with a
    lease would then plan the read again, and miss records that compaction has removed. A response may also be truncated
    by an interrupted connection.
    """
    for attempt in (1, 2):
        try:
            data = store.read(file, start, length)
        except NotFound:
            if attempt == 2:
                raise MissingFile(file) from None
            continue
        if len(data) == length:
            return data
    raise Corrupt(f"expected {length} bytes, found {len(data)}: the file is truncated", file=file, position=start)


def check_slice(data: memoryview, planned: PlannedSlice) -> None:
    """Raise `Corrupt` if the CRC-32C of a slice is wrong. The error contains the first corrupt batch if this batch can
    be found.
    """
    if crc32c(data) == planned.crc:
        return
    headers = scan_headers(data, whole=False)
    what, position, offset = "slice", headers.end if headers.stop != "end" else 0, planned.base
    wrong = crc_failures(data, headers)
    if len(wrong):
        what, position = "batch", int(headers.position[wrong[0]])
        offset = int(headers.base_offset[wrong[0]]) + planned.shift
    raise Corrupt(
        f"the {what}'s CRC-32C does not match its bytes: restore the file",
        file=planned.file,
        position=planned.position + position,
        offset=offset,
    )
