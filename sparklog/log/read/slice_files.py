"""Slices as files of batches, to walk over (`sparklog.format.batch_walk`); positions are those of the slice's file.

A `SliceFile` is a slice in memory. A `StoredSlice` is read from its store, a window of `span_bytes` at a time, so that
a task never holds more than a few of them. Where each request costs a round trip, its windows are those of requests
that were made ahead (`sparklog.log.read.read_ahead`): each byte is then read once.
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
from sparklog.log.read.segment_entrance import Entrance
from sparklog.log.state.embedded_commits import RECENT_RECORDS
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.storage.store import Store


class MissingFile(Exception):  # noqa: N818
    """A planned file is not there: a signal to plan again, never seen outside `sparklog.log`."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


@dataclass(slots=True)
class MissingFiles:
    """Files that were missing although the log named them: when to plan again, and when to give up.

    A vacuum may have deleted the file of an old plan, so the first answer is a new plan. If that names the file, too,
    it is lost, unless a mount's cache of names hides it: its folder may have been looked up before it was made.
    """

    env: Env = SYSTEM
    _last: tuple[int, str] | None = None
    _hidden: Backoff | None = None

    def note(self, store: Store, place: int, file: str) -> None:
        """Return if the caller, who was reading at this place, is to plan again. `Corrupt` if the file is lost."""
        if self._last != (place, file):
            self._last, self._hidden = (place, file), None
            return
        self._hidden = self._hidden or Backoff(self.env, SETTLE_MS if store.hides_names else 0)
        if not self._hidden.wait():
            raise Corrupt("the log names a file that does not exist: restore it", file=file)


class SliceFile(BatchFile):
    """A slice in memory; `size` is the position of its end in its file."""

    def __init__(self, planned: PlannedSlice, data: memoryview) -> None:
        self.planned = planned
        self.path = planned.file
        self.size = planned.position + planned.size
        self._data = data
        self._start = planned.position
        """Position of `_data[0]`."""

    def read(self, position: int, length: int) -> memoryview:
        return self._data[position - self._start :][: min(length, self.size - position)]

    def window(self, position: int) -> memoryview:
        return self.read(position, self.size - position)


class StoredSlice(SliceFile):
    """A slice in a store, up to position `end`; None: its end.

    `window_ends`: positions, rising, at which windows end and the next request begins, besides those of `span_bytes`.
    `fetched` is the position after the bytes that were read last.
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
        """Take the windows from requests that were made ahead; they follow one another."""
        self._ahead, self._requests = ahead, deque(requests)

    def window(self, position: int) -> memoryview:
        if position != self._window_start or position < self._start:
            self._forget(position)
            if self._requests and self.fetched <= max(position, self._window_end):
                self._take()
                while self._requests and self.fetched <= position:
                    self._take()
                self._forget(position)
            elif self.fetched <= max(position, self._window_end):
                self._data, self._start = self._read(position, self._window_bytes(position)), position
            self._window_start, self._window_end = position, self.fetched
        return self._data[position - self._start :]

    def read(self, position: int, length: int) -> memoryview:
        end = min(position + length, self.size)
        while self._requests and self._start <= position <= self.fetched < end:
            self._forget(position)
            self._take()
        if self._start <= position and end <= self.fetched:
            return self._data[position - self._start : max(end - self._start, 0)]
        return self._read(position, end - position) if position < end else self._data[:0]

    def _forget(self, position: int) -> None:
        """Forget the bytes before a position."""
        if self._start <= position <= self.fetched:
            self._data, self._start = self._data[position - self._start :], position
        else:
            self._data, self._start, self._window_end = memoryview(b""), position, -1

    def _take(self) -> None:
        assert self._ahead is not None
        request = self._requests.popleft()
        body = self._ahead.take(request)
        if len(self._data) and self.fetched == request.start:
            self._data = memoryview(b"".join((self._data, body)))
        else:
            self._data, self._start = memoryview(body), request.start

    def _window_bytes(self, position: int) -> int:
        """Return the bytes of the window at a position, with the header of the batch after it."""
        following = bisect_right(self._window_ends, position)
        end = self._window_ends[following] + HEADER_BYTES if following < len(self._window_ends) else self.size
        return min(self._store.limits.span_bytes, min(end, self.size) - position)

    def _read(self, position: int, length: int) -> memoryview:
        return read_range(self._store, self.path, position, length)


def whole_batches(file: SliceFile, start: int) -> Iterator[Window]:
    """Yield the batches of a slice from position `start`, in windows. Batches are not checked.

    `Corrupt` where no batch begins, and before the last window of a slice with a wrong CRC-32C that is read whole.
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
                raise Corrupt("the slice's CRC-32C is wrong: restore it", file=file.path, position=planned.position)
        yield window
    if walk.stop != "end":
        raise Corrupt(f"expected whole record batches: {walk.reason}", file=file.path, position=walk.end)


@contextmanager
def opened_slice(store: Store, planned: PlannedSlice) -> Iterator[StoredSlice]:
    """Open a slice that will be read whole, from its beginning."""
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
    """Yield all batches of a large slice, in windows. Raises as `whole_batches`, `MissingFile` if the file is gone."""
    with opened_slice(store, planned) as file:
        yield from whole_batches(file, planned.position)


def ranges(store: Store, planned: PlannedSlice, low: int, high: int) -> list[Request]:
    """Divide a part of a slice into requests."""
    size = store.limits.span_bytes
    return [Request(store, planned.file, start, min(size, high - start)) for start in range(low, high, size)]


def read_request(request: Request) -> bytes | memoryview:
    cached = RECENT_RECORDS.read(request.store, request.file, request.start, request.length)
    return read_range(request.store, request.file, request.start, request.length) if cached is None else cached


def enter_segment(file: StoredSlice, entrance: Entrance) -> int:
    """Return the position in a sealed segment to begin at; that of its first batch if the index is wrong."""
    begin = file.planned.position
    position = begin + entrance.position
    window = next(iter(BatchWalk(file, position)), None) if begin < position < file.size else None
    if window is None:
        # No batch begins there: what is damaged, the index or the log, shows when it is read from the start.
        return begin
    headers = window.headers
    right = int(headers.last_offset[0]) == entrance.last_offset and not len(crc_failures(window.data, headers[:1]))
    if right and 0 <= entrance.stamped <= int(headers.last_offset[-1]):
        right = bool((headers.max_timestamp[headers.last_offset == entrance.stamped] == entrance.stamp).any())
    elif right:
        right = entrance.stamped < 0
    return position if right else begin


def read_footer(store: Store, planned: PlannedSlice) -> Footer:
    data = read_range(store, planned.file, planned.file_size - planned.footer_length, planned.footer_length)
    return decode_footer(bytes(data), file_size=planned.file_size, file=planned.file)


def sound_footer(store: Store, planned: PlannedSlice) -> Footer | None:
    """Return the footer of a file; None if it is corrupt, so that its slices must be read from their starts."""
    try:
        return read_footer(store, planned)
    except Corrupt:
        return None


def index_of(footer: Footer, planned: PlannedSlice) -> SliceIndex | None:
    """Return the slice's index; None for what a rewrite left of a slice."""
    entry = entry_of(footer, planned)
    return None if entry is None else entry.index


def entry_of(footer: Footer, planned: PlannedSlice) -> WrittenSlice | None:
    """Return what the footer says of the slice, if it is of this very slice."""
    entry = footer.at(planned.position)
    return entry if entry is not None and entry.crc == planned.crc and entry.nbytes == planned.size else None


def read_range(store: Store, file: str, start: int, length: int) -> memoryview:
    """Return exactly these bytes of a file. `MissingFile` if it is gone, `Corrupt` if it is shorter.

    Both are believed when a second request says the same. A cache of names may deny once what is there, and a reader
    under a hold would then plan again, and get what compaction has left. A connection may break off.
    """
    for tries in (1, 2):
        try:
            data = store.read(file, start, length)
        except NotFound:
            if tries == 2:
                raise MissingFile(file) from None
            continue
        if len(data) == length:
            return data
    raise Corrupt(f"expected {length} bytes, found {len(data)}: the file was cut off", file=file, position=start)


def check_slice(data: memoryview, planned: PlannedSlice) -> None:
    """Raise `Corrupt` unless the slice is as it was written; name the first bad batch as well as it can be told."""
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
