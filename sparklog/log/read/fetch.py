"""Fetch the slices of a plan: the requests of a task, and its way on when a planned file is gone.

Slices that lie side by side in one file and come next for the ranges being read are fetched together, also those of
different partitions: a task that reads 8 partitions of n small append files makes n requests, not 8 n. Slices are
fetched whole and checked by their CRC-32C while they fit into `span_bytes`; larger ones come in windows of that size,
and where the range begins or ends inside one, the footer's index says where to enter. So a task never holds more than a
few `span_bytes`, whatever it reads. Where each request costs a round trip, several are under way
(`sparklog.log.read.read_ahead`): the same pieces in the same order, but for the borders of windows.

Sealed segments have no footer: see `sparklog.log.read.segment_entrance`.

A fetch of a corrupt slice returns its valid batches up to the first corrupt one (`sparklog.log.read.damaged_slices`),
unless the fetch is `strict`.

A file that is gone was replaced (merged, sealed, compacted) after the plan was made: the topic is opened again and the
same offsets are read from where they are now. Only a log start beyond them is data loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from sparklog.errors import Corrupt, NotFound
from sparklog.format.append_file import Footer, SliceIndex, WrittenSlice, decode_footer
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.batch_walk import Window as BatchWindow
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import HEADER_BYTES, LOG_OVERHEAD, BatchHeaders
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.limits import DEFAULTS
from sparklog.log.read.damaged_slices import (
    SliceReader,
    SoundPrefix,
    skipped,
    sound_batches,
    sound_batches_of_whole,
    unexplained,
)
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices
from sparklog.log.read.read_ahead import ReadAhead, Request
from sparklog.log.read.segment_entrance import Entrance, entrance_for_offsets, read_offset_index
from sparklog.log.read.skipped import OnSkipped
from sparklog.log.state.carried import RECENT
from sparklog.log.state.view import OffsetRange
from sparklog.storage.store import Store

ROWS_AT_ONCE = 512
Window = tuple[memoryview, BatchHeaders]
"""Whole batches and their headers."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches of one slice."""

    data: memoryview
    position: int  # of `data[0]` in the slice's file
    slice: PlannedSlice
    start: int  # `[start, end)`: the offsets wanted
    end: int
    cut: bool  # they are not all of the slice
    verified: bool  # checksums have been verified, so batches need not be checked again


@dataclass(slots=True)
class Cursor:
    """Progress of one range: offsets below `next` have been fetched, `at` is the slice that comes next."""

    store: Store
    range: OffsetRange
    slices: PlannedSlices
    replan: Callable[[int], tuple[int, PlannedSlices]]
    """Takes the first offset still wanted; gives the offset to go on at, later only if that is no error, and slices."""
    next: int
    at: int = 0
    _rows: list[PlannedSlice] = field(default_factory=list)
    _first: int = 0
    """`_rows` are the slices from this one on, made some at a time."""
    location: str = field(init=False)

    def __post_init__(self) -> None:
        self.location = self.store.location

    def head(self) -> PlannedSlice | None:
        row = self.at - self._first
        if not 0 <= row < len(self._rows):
            if self.at >= len(self.slices):
                return None
            self._rows, self._first, row = self.slices.rows(self.at, self.at + ROWS_AT_ONCE), self.at, 0
        return self._rows[row]

    def place(self) -> tuple[str, str, int] | None:
        planned = self.head()
        return None if planned is None else (self.location, planned.file, planned.position)

    def cuts(self, planned: PlannedSlice) -> bool:
        return self.next > planned.base or self.range.end < planned.end


class MissingFile(Exception):  # noqa: N818
    """A planned file is not there: a signal to plan again, never seen outside `sparklog.log`."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


@dataclass(slots=True)
class _Job:
    """The next slices to read: those side by side in a file, or one in windows (bytes `low` to `high`, or `until`)."""

    taken: list[tuple[Cursor, PlannedSlice, int]]  # each with its cursor and the first offset wanted of it
    requests: list[Request]
    in_windows: bool = False
    low: int = 0
    high: int = 0
    until: int = 0
    first: Window | None = None  # was read already


class Fetcher:
    """Iterates over the pieces of all ranges: of each range in offset order, ranges interleaved as files have them.

    `strict`: raise `Corrupt` for a corrupt slice, and do not check batches of windows. Otherwise yield its valid
    batches and call `on_skipped` with its corrupt ranges; None: raise `Corrupt` for them.
    """

    def __init__(self, cursors: Sequence[Cursor], *, strict: bool = False, on_skipped: OnSkipped | None = None) -> None:
        self._strict = strict
        self._on_skipped = on_skipped
        self._cursors = cursors
        self._heads: dict[tuple[str, str, int] | None, Cursor] = {}
        self._footers: dict[str, Footer | None] = {}
        self._indexes: dict[str, OffsetIndex | None] = {}
        self._first = 0
        """Cursors before this one are through."""
        self._jobs: deque[_Job] = deque()
        at_once = min((cursor.store.parallel_reads for cursor in cursors), default=1)
        self._ahead = ReadAhead(at_once, _read, self._more, cursors[0].store.limits if cursors else DEFAULTS)

    def __iter__(self) -> Iterator[FetchedBatches]:
        for cursor in self._cursors:
            self._list(cursor)
        missed: tuple[int, str] | None = None
        try:
            while True:
                try:
                    if not self._jobs and not self._plan():
                        return
                    yield from self._windows(self._jobs[0]) if self._jobs[0].in_windows else self._span(self._jobs[0])
                    self._ahead.drop(self._jobs.popleft().requests)
                except MissingFile as missing:
                    self._give_back()
                    cursor = self._cursors[self._first]
                    if missed == (self._first, missing.file):
                        raise Corrupt(
                            "the log names a file that does not exist: restore it", file=missing.file
                        ) from None
                    missed = self._first, missing.file
                    self._unlist(cursor)
                    cursor.next, cursor.slices = cursor.replan(cursor.next)
                    cursor.at, cursor._rows = 0, []
                    self._list(cursor)
        finally:
            self._ahead.close()

    def _give_back(self) -> None:
        """Take back what was chosen and not read."""
        for job in reversed(self._jobs):
            self._ahead.drop(job.requests)
            for cursor, _, start in reversed(job.taken):
                self._unlist(cursor)
                cursor.at, cursor.next = cursor.at - 1, start
                self._list(cursor)
        if self._jobs:
            self._first = next(i for i, cursor in enumerate(self._cursors) if cursor is self._jobs[0].taken[0][0])
        self._jobs.clear()

    def _list(self, cursor: Cursor) -> None:
        self._heads[cursor.place()] = cursor

    def _unlist(self, cursor: Cursor) -> None:
        key = cursor.place()
        if self._heads.get(key) is cursor:
            del self._heads[key]

    def _advance(self, cursor: Cursor, planned: PlannedSlice) -> None:
        """Go on after the slice that came next for a range."""
        if self._heads.get(place := (cursor.location, planned.file, planned.position)) is cursor:
            del self._heads[place]
        cursor.next, cursor.at = min(planned.end, cursor.range.end), cursor.at + 1
        self._list(cursor)

    @staticmethod
    def _in_windows(cursor: Cursor, planned: PlannedSlice) -> bool:
        """True if a slice is too large to fetch whole, or large enough to be entered by its index."""
        limits = cursor.store.limits
        return planned.size > limits.span_bytes or (planned.size > limits.index_min_bytes and cursor.cuts(planned))

    def _next(self) -> tuple[Cursor, PlannedSlice] | None:
        while self._first < len(self._cursors):
            cursor = self._cursors[self._first]
            if (planned := cursor.head()) is not None:
                return cursor, planned
            self._first += 1
        return None

    def _plan(self) -> bool:
        """Choose what to read after the jobs chosen so far, and advance the cursors; False at the end."""
        following = self._next()
        if following is None:
            return False
        job = self._enter(*following) if self._in_windows(*following) else self._side_by_side(*following)
        self._jobs.append(job)
        self._ahead.add(job.requests)
        return True

    def _more(self) -> bool:
        """Choose one more job while others are read. What is entered by an index waits for its turn."""
        following = self._next()
        return (
            following is not None
            and not (self._in_windows(*following) and following[0].cuts(following[1]))
            and self._plan()
        )

    def _side_by_side(self, cursor: Cursor, planned: PlannedSlice) -> _Job:
        """Choose a slice and, in the same request, what follows it in the file and is wanted next."""
        taken = [(cursor, planned, cursor.next)]
        self._advance(cursor, planned)
        end = planned.position + planned.size
        while (other := self._heads.get((cursor.location, planned.file, end))) is not None:
            neighbour = other.head()
            if neighbour is None or self._in_windows(other, neighbour):
                break
            if end + neighbour.size - planned.position > cursor.store.limits.span_bytes:
                break
            taken.append((other, neighbour, other.next))
            self._advance(other, neighbour)
            end += neighbour.size
        return _Job(taken, [Request(cursor.store, planned.file, planned.position, end - planned.position)])

    def _span(self, job: _Job) -> Iterator[FetchedBatches]:
        (request,) = job.requests
        data = memoryview(self._ahead.take(request))
        for cursor, planned, start in job.taken:
            body = data[planned.position - request.start :][: planned.size]
            # Cached bytes may be those of an object that has been replaced: read it from the store again.
            if (sound := crc32c(body) == planned.crc) is False and RECENT.forget(cursor.store, planned.file):
                data = memoryview(_read(request))
                body = data[planned.position - request.start :][: planned.size]
                sound = crc32c(body) == planned.crc
            end = min(planned.end, cursor.range.end)
            if sound:
                cut = start > planned.base or cursor.range.end < planned.end
                yield FetchedBatches(body, planned.position, planned, start, end, cut, True)
                continue
            if self._strict:
                check_slice(body, planned)
            file = SliceReader(planned, partial(part_of, body))
            yield from _pieces(sound_batches_of_whole(file, start, end, self._on_skipped), planned, start, end)

    def _enter(self, cursor: Cursor, planned: PlannedSlice) -> _Job:
        """Choose a large slice, or the part of it that is wanted, to be read in windows of whole batches."""
        low, high = self._limits(cursor, planned)
        first, until = None, high
        cut = cursor.cuts(planned)
        index = self._index(cursor.store, planned) if cut and not planned.footer_length else None
        if index is not None:
            entrance = entrance_for_offsets(index, planned, cursor.next, min(planned.end, cursor.range.end))
            low, first = enter_segment(cursor.store, planned, entrance)
            until = entrance.until
        begin = low + (len(first[0]) if first else 0)
        requests = _ranges(cursor.store, planned, begin, min(until, high)) if self._ahead.is_on else []
        job = _Job([(cursor, planned, cursor.next)], requests, True, low, high, until, first)
        self._advance(cursor, planned)
        return job

    def _windows(self, job: _Job) -> Iterator[FetchedBatches]:
        ((cursor, planned, offset),) = job.taken
        end = min(planned.end, cursor.range.end)
        cut = offset > planned.base or cursor.range.end < planned.end
        whole = job.low == 0 and job.high == planned.size
        low_of_rest = job.low + (len(job.first[0]) if job.first else 0)
        rest = _window_reads(self._ahead, job.requests, cursor.store, planned, (low_of_rest, job.high, job.until))
        windows = chain((job.first,) if job.first else (), rest)
        prefix = SoundPrefix(planned, job.low, checked=not self._strict, whole=whole)
        for data, headers in prefix.of(windows):
            error = unexplained(planned) if whole and prefix.low == job.high and prefix.crc != planned.crc else None
            if error is not None and (self._strict or not prefix.is_dense):
                if self._on_skipped is None:
                    raise error
                position, nbytes = planned.position + prefix.low - len(data), len(data)
                self._on_skipped(skipped(planned, position, nbytes, offset, end, error.message))
                return
            position = planned.position + prefix.low - len(data)
            piece = FetchedBatches(data, position, planned, offset, end, cut, not self._strict)
            offset = min(max(offset, int(headers.next_offset[-1]) + planned.shift), end)
            job.taken = [(cursor, planned, offset)]
            yield piece
            if error is not None and self._on_skipped is None:
                raise error
            if offset >= end:
                return
        if prefix.stopped:
            read = partial(read_of, cursor.store, planned)
            carefully = sound_batches(
                SliceReader(planned, read), offset, end,
                low=prefix.low, expected=prefix.reached, on_skipped=self._on_skipped,
            )  # fmt: skip
            for piece in _pieces(carefully, planned, offset, end):
                yield piece

    def _limits(self, cursor: Cursor, planned: PlannedSlice) -> tuple[int, int]:
        if not cursor.cuts(planned) or not planned.footer_length:
            return 0, planned.size
        footer = self._footer(cursor.store, planned)
        index = None if footer is None else index_of(footer, planned)
        if index is None:
            return 0, planned.size
        low = int(index.position[index.entry_for_offset(cursor.next - planned.shift)])
        beyond = int(index.offset.searchsorted(cursor.range.end - planned.shift, side="left"))
        return low, int(index.position[beyond]) if beyond < len(index) else planned.size

    def _footer(self, store: Store, planned: PlannedSlice) -> Footer | None:
        if planned.file not in self._footers:
            self._footers = {planned.file: sound_footer(store, planned)}
        return self._footers[planned.file]

    def _index(self, store: Store, planned: PlannedSlice) -> OffsetIndex | None:
        if planned.file not in self._indexes:
            self._indexes = {planned.file: read_offset_index(store, planned)}
        return self._indexes[planned.file]


def _pieces(windows: Iterator[BatchWindow], planned: PlannedSlice, start: int, end: int) -> Iterator[FetchedBatches]:
    for window in windows:
        yield FetchedBatches(
            memoryview(window.data), planned.position + window.start, planned, start, end, cut=True, verified=True
        )


def part_of(data: memoryview, position: int, length: int) -> memoryview:
    """Return bytes of a slice in memory."""
    return data[position : position + length]


def read_of(store: Store, planned: PlannedSlice, position: int, length: int) -> memoryview:
    """Read bytes of a slice from its file."""
    return read_range(store, planned.file, planned.position + position, length)


def _read(request: Request) -> bytes | memoryview:
    kept = RECENT.read(request.store, request.file, request.start, request.length)
    if kept is not None:
        return kept
    return read_range(request.store, request.file, request.start, request.length)


def _ranges(store: Store, planned: PlannedSlice, low: int, high: int) -> list[Request]:
    span = store.limits.span_bytes
    return [
        Request(store, planned.file, planned.position + offset, min(span, high - offset))
        for offset in range(low, high, span)
    ]


def _window_reads(
    ahead: ReadAhead, requests: Sequence[Request], store: Store, planned: PlannedSlice, span: tuple[int, int, int]
) -> Iterator[Window]:
    """Yield whole batches, of ranges read ahead, then by windows. `span`: begin, end, and `until` of `read_window`."""
    low, high, until = span
    rest = b""
    for request in requests:
        body = ahead.take(request)
        data = memoryview(rest + body if rest else body)
        headers = scan_headers(data, whole=False)
        rest = bytes(data[headers.end :])
        if headers.end:
            low += headers.end
            yield data[: headers.end], headers
        elif headers.stop != "partial":
            break
    # Of what is left over nothing is believed: a guess that was too short, or damage, which is named here.
    while low < high:
        window = read_window(store, planned, low, high, until)
        low += len(window[0])
        yield window


def read_windows(store: Store, planned: PlannedSlice) -> Iterator[Window]:
    """Yield all batches of a large slice, in windows. Raises as `read_window`; checksums are for the caller."""
    ahead = ReadAhead(store.parallel_reads, _read, lambda: False, store.limits)
    requests = _ranges(store, planned, 0, planned.size) if ahead.is_on else []
    ahead.add(requests)
    try:
        yield from _window_reads(ahead, requests, store, planned, (0, planned.size, 0))
    finally:
        ahead.close()


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


def enter_segment(store: Store, planned: PlannedSlice, entrance: Entrance) -> tuple[int, Window | None]:
    """Return where in a sealed segment to begin, and the window that is there: 0 and None if the index was wrong."""
    if not 0 < entrance.position < planned.size:
        return 0, None
    try:
        window = read_window(store, planned, entrance.position, planned.size, entrance.until)
    except Corrupt:
        # No batch begins there: what is damaged, the index or the log, shows when it is read from the start.
        return 0, None
    data, headers = window
    right = int(headers.last_offset[0]) == entrance.last_offset and not len(crc_failures(data, headers[:1]))
    if right and 0 <= entrance.stamped <= int(headers.last_offset[-1]):
        right = bool((headers.max_timestamp[headers.last_offset == entrance.stamped] == entrance.stamp).any())
    elif right:
        right = entrance.stamped < 0
    return (entrance.position, window) if right else (0, None)


def read_window(store: Store, planned: PlannedSlice, low: int, high: int, until: int = 0) -> Window:
    """Return the first whole batches of bytes `[low, high)` of a slice; `until`: a guess at how much to ask for."""
    length = min(store.limits.span_bytes, high - low)
    if low < until:
        length = min(length, max(until - low, HEADER_BYTES))
    position = planned.position + low
    data = read_range(store, planned.file, position, length)
    headers = scan_headers(data, whole=False)
    if headers.end == 0 and headers.stop == "partial" and length < high - low:
        # One batch is larger than a window; its length is believed only as far as the slice goes.
        size = int.from_bytes(data[8:LOG_OVERHEAD], "big") + LOG_OVERHEAD
        data = read_range(store, planned.file, position, min(size, high - low))
        headers = scan_headers(data, whole=False)
    if headers.end == 0 or (headers.stop != "end" and low + len(data) == high):
        raise Corrupt(
            f"expected whole record batches: {headers.reason}", file=planned.file, position=position + headers.end
        )
    return data[: headers.end], headers


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
