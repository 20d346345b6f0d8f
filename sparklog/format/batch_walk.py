"""Iterate over the batches of a file in windows. Only this module splits the bytes of a log into batches.

A `BatchFile` is a Kafka segment (`sparklog.kafka.in_place.segment_file`), a slice of a root
(`sparklog.log.read.slice_files`), or any object to inspect. There are two iterators:

* `BatchWalk` yields windows of complete batches, and does not check the batches.
* `checked_batches` yields windows of valid batches, and a `Damage` for each position without a valid batch. The caller
  decides whether to raise an error, to end the iteration, or to report the damage and continue with the next valid
  batch.

A batch is valid if its checksum is correct, its header is consistent (`batch_scan.header_rules`), and its offsets are
above the offsets of the previous batch and below the end of the file's offsets. The offsets must be checked, because
the checksum does not cover the base offset and the length. A flipped bit in these fields would move records to other
offsets, or would hide all later batches.

Two batches are out of order if the second batch begins below the end of the first. In this case, one of the batches
either has a corrupt offset or is stale, which means that it consists of bytes of an older batch. `first_is_wrong`
determines the invalid batch.

If possible, the next valid batch after damage is the batch after the corrupt batch, according to the length of the
corrupt batch. Otherwise it is the first batch of magic 2 with a possible header, plausible offsets and a correct
checksum. The search does not find messages of formats v0 and v1, because they are too small and have too little
structure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from sparklog.format.batch_scan import (
    MAX_OFFSET,
    begins_with_header,
    crc_failures,
    crc_message,
    header_rules,
    min_size,
    scan_headers,
    single_header,
)
from sparklog.format.record_batch import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    HEADER_DTYPE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    BatchHeaders,
    BoolArray,
    BytesLike,
    DataLocation,
    Int64Array,
)

if TYPE_CHECKING:
    from sparklog.format.decode import RecordColumns

W = TypeVar("W", bound="Window")


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Complete batches in memory.

    `data[0]` is byte `start` of `file`, and positions in `headers` are relative to `start`.
    """

    data: BytesLike
    start: int
    headers: BatchHeaders
    file: str

    @property
    def location(self) -> DataLocation:
        return DataLocation(self.file, self.start)

    def select(self: W, rows: slice | Int64Array | BoolArray) -> W:
        """Return a window with the same data and only the selected headers."""
        return replace(self, headers=self.headers[rows])

    def trimmed(self: W) -> W:
        """Return a window that contains only the bytes of its batches.

        There must be at least one batch, and batches must be adjacent.
        """
        headers = self.headers
        low, high = int(headers.position[0]), int(headers.position[-1] + headers.size[-1])
        if low:
            headers = replace(headers, position=headers.position - low)
        return replace(self, data=memoryview(self.data)[low:high], start=self.start + low, headers=headers)

    @property
    def end(self) -> int:
        """Return the position in the file after the last batch."""
        return self.start + int(self.headers.position[-1] + self.headers.size[-1])

    def decode(
        self,
        columns: Collection[str],
        select: BoolArray | None = None,
        *,
        check_crc: bool = False,
        append_time: int | None = None,
        **offsets: int,
    ) -> RecordColumns:
        """Decode the records of the selected batches. The arguments are those of `sparklog.format.decode.decode`."""
        from sparklog.format.decode import decode

        return decode(
            self.data,
            self.headers,
            columns=columns,
            select=select,
            check_crc=check_crc,
            append_time=append_time,
            location=self.location,
            **offsets,
        )


WINDOW_BYTES = 1 << 20
"""Number of bytes to read and decode at a time, so that the decompressed records of a window fit in memory."""
HEADER_WINDOW_BYTES = 256 * 1024
MAX_MAGIC = 127
"""The maximum magic. Kafka reads the magic as a signed byte and rejects negative values."""
HUGE_BATCH_BYTES = 64 * 1024 * 1024
"""Size above which the checksum of a batch is verified in chunks before the batch is read, because the batch length may
be corrupt.
"""
_CRC_CHUNK_BYTES = 1024 * 1024


class BatchFile(ABC):
    """A file of batches, read by position. `size` is in bytes, and `path` is the name in error messages."""

    path: str
    size: int

    @abstractmethod
    def read(self, position: int, length: int) -> BytesLike:
        """Return `length` bytes from `position`. At the end of the file, fewer bytes are returned."""

    def window(self, position: int) -> BytesLike:
        """Return the bytes of the window that starts at `position`."""
        return self.read(position, min(WINDOW_BYTES, self.size - position))

    def header_at(self, position: int, data: BytesLike | None = None) -> BatchHeader | None:
        """Return the header of a batch that starts at `position` and ends inside the file, or None if there is no such
        batch.

        `data` contains bytes from `position` that have already been read. If there are too few bytes, they are read
        again.
        """
        if data is None or len(data) < HEADER_BYTES:
            data = self.read(position, HEADER_BYTES) if position < self.size else b""
        if not begins_with_header(data):
            return None
        header = single_header(data)
        size = int(header.size[0])
        return header.row(0) if min_size(data[MAGIC_POSITION]) <= size <= self.size - position else None

    def has_valid_batch_at(self, position: int) -> bool:
        header = self.header_at(position)
        return header is not None and self.has_valid_crc(position, header)

    def unknown_format_at(self, position: int) -> BatchHeaders | None:
        """Return the header of a complete batch that has an unknown, higher magic and a correct checksum, or None if
        there is no such batch.

        The checksum does not cover the magic. Kafka reads such a batch like a batch of its latest format.
        """
        data = bytearray(self.read(position, HEADER_BYTES))
        if len(data) < HEADER_BYTES or not MAGIC < data[MAGIC_POSITION] <= MAX_MAGIC:
            return None
        data[MAGIC_POSITION] = MAGIC
        headers = single_header(bytes(data))
        header = headers.row(0)
        fits = HEADER_BYTES <= header.size <= self.size - position and header.last_offset_delta >= 0
        return headers if fits and self.has_valid_crc(position, header) else None

    def has_valid_crc(self, position: int, header: BatchHeader) -> bool:
        import zlib

        from sparklog.format.crc32c import crc32c

        start, checksum = (MAGIC_POSITION, zlib.crc32) if header.magic < MAGIC else (CRC_START, crc32c)
        crc, low, high = 0, position + start, position + header.size
        while low < high:
            chunk = self.read(low, min(_CRC_CHUNK_BYTES, high - low))
            if not chunk:
                return False
            crc = checksum(chunk, crc)
            low += len(chunk)
        return crc == header.crc


class BatchWalk:
    """An iterator over the batches of a file, window by window. The batches are not checked.

    After the iteration, `end` is the position where the iteration stopped, and `stop` is the cause: "end" (of the
    file), "partial" (the last batch is incomplete), "zeros" (the end of a preallocated file) or "corrupt" (`reason`
    contains the details).
    """

    def __init__(
        self,
        file: BatchFile,
        start: int = 0,
        *,
        headers_only: bool = False,
        contents: bool = True,
        window: Callable[[int], BytesLike] | None = None,
    ) -> None:
        """Create an iterator that begins at position `start`.

        Args:
            file: the file to read.
            start: position of the first batch.
            headers_only: read smaller windows. If a batch does not fit into a window, only its header is returned.
            contents: decompress compressed messages of old formats, unless `headers_only` is True (see `scan_headers`).
            window: function that reads a window at a position; default: `file.window`.
        """
        self.file = file
        self.end = start
        self.stop = "end"
        self.reason = ""
        self._headers_only = headers_only
        self._contents = contents and not headers_only
        self._window = window or (self._header_window if headers_only else file.window)

    def _header_window(self, position: int) -> BytesLike:
        return self.file.read(position, min(HEADER_WINDOW_BYTES, self.file.size - position))

    def __iter__(self) -> Iterator[Window]:
        size = self.file.size
        while self.end < size:
            data = self._window(self.end)
            headers = scan_headers(data, whole=False, contents=self._contents)
            if len(headers):
                yield Window(data, self.end, headers, self.file.path)
            self.end += headers.end
            if headers.stop == "end" and headers.end:
                continue
            last = self.end + len(data) - headers.end >= size
            if headers.stop in ("partial", "zeros") and not last and headers.end:
                continue  # The window, not the file, ends inside this batch, so the batch begins the next window.
            header = self.file.header_at(self.end, data) if headers.stop == "partial" and not last else None
            if header is not None and self._headers_only:
                yield Window(data[:HEADER_BYTES], self.end, single_header(data), self.file.path)
                self.end += header.size
            elif header is not None and (header.size <= HUGE_BATCH_BYTES or self.file.has_valid_crc(self.end, header)):
                body = self.file.read(self.end, header.size)
                headers = scan_headers(body, whole=False, contents=self._contents)
                yield Window(body, self.end, headers, self.file.path)
                self.end += header.size
            else:
                huge = "the checksum of a long batch does not match"
                self.stop, self.reason = (headers.stop, headers.reason) if header is None else ("corrupt", huge)
                return

    def damage(self, expected: int, limit: int | None) -> Damage | None:
        """Return the damage that stopped the iteration, or None if the iteration reached the end of the file.

        The damage is a position without a batch, a batch of an unknown format, or a huge batch with a wrong checksum.
        `expected` is the lowest offset that a batch at this position may have.
        """
        if self.stop == "end":
            return None
        header, unknown = self.file.header_at(self.end), self.file.unknown_format_at(self.end)
        size = header.size if header is not None else int(unknown.size[0]) if unknown is not None else 0
        final = not size or self.file.header_at(self.end + size) is None
        stop, is_huge = "" if size else self.stop, header is not None
        return Damage(self.file, self.end, size, expected, self.reason, final, expected, limit, stop, is_huge)


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int

    def flips_into(self, low: int, high: int | None) -> int:
        """Rate how well a flipped bit in the offset would explain a batch that belongs between `low` and `high`.

        Returns 3 if flipping a bit makes the batch adjacent to a neighbor, 2 if it makes the batch fit, and 0
        otherwise. If `high` is None, there is no upper limit.
        """
        best, length = 0, self.end - self.start
        for bit in range(63):
            start = self.start ^ (1 << bit)
            if start == low or start + length == high:
                best = max(best, 3 if high is None or low <= start <= high - length else 0)
            elif high is not None and low <= start <= high - length:
                best = max(best, 2)
        return best


def first_is_wrong(before: int, first: Span, second: Span, after: int | None) -> bool:
    """Return True if the first of two out-of-order batches is invalid, and False if the second batch is invalid.

    `before` is the end of the batch before the first batch. `after` is the start of the batch after the second batch,
    or None if there is no such batch. The first batch is valid if it directly follows `before`. Otherwise, a batch is
    invalid if the others are in order without it. If this is true of both batches, the invalid batch is the one that a
    flipped bit explains better, or whose size matches the gap that it would leave.
    """
    if first.start == before or second.start < before:
        return False
    gap = second.start - before
    blame_first = first.flips_into(before, second.start) + 2 * (gap == first.end - first.start) + (gap == 0)
    if after is None:
        return blame_first > second.flips_into(first.end, None)
    if (first.end <= after) != (second.end <= after):
        return second.end <= after
    gap = after - first.end
    blame_second = second.flips_into(first.end, after) + 2 * (gap == second.end - second.start) + (gap == 0)
    return blame_first >= blame_second


_SEARCH_BYTES = 1 << 20


class ResumePoint(NamedTuple):
    position: int
    offset: int


@dataclass(frozen=True, eq=False)
class Damage:
    """A position of `file` without a valid batch.

    * `position`: position in the file
    * `size`: size of the batch at the position, or 0 if its end cannot be determined
    * `offset`: the first missing offset, if it is known
    * `final`: True if no batch follows
    * `stop`: the reason why the iteration stopped (see `BatchWalk`), or empty if the batch has a size
    * `wrong_crc`: True if the checksum of the batch is wrong
    * `expected`, `limit`: range of the offsets of valid batches after the damage; a `limit` of None means unlimited
    """

    file: BatchFile
    position: int
    size: int
    offset: int
    reason: str
    final: bool
    expected: int
    limit: int | None
    stop: str = ""
    wrong_crc: bool = False

    @property
    def is_structural(self) -> bool:
        """True if there is no batch at the position. False if there is a batch with corrupt contents."""
        return not self.size

    @property
    def is_incomplete_end(self) -> bool:
        """True if this may be the end of a log that a broker is writing, or was writing when it was killed."""
        return self.final and (self.is_structural or self.wrong_crc)

    @cached_property
    def following(self) -> ResumePoint | None:
        """The next valid batch, or None if there is no such batch. The first access searches the file."""
        return resume(self.file, self.position, self.expected, self.limit, size=self.size)

    @property
    def until(self) -> int:
        """The position of the next valid batch, or the end of the file."""
        return self.file.size if self.following is None else self.following.position

    @property
    def next_offset(self) -> int | None:
        """The offset of the next valid batch, or `limit` if there is no valid batch."""
        return self.limit if self.following is None else self.following.offset


def checked_batches(
    file: BatchFile,
    start: int,
    expected: int,
    *,
    end: int | None = None,
    limit: int | None = None,
    window: Callable[[int], BytesLike] | None = None,
) -> Iterator[Window | Damage]:
    """Yield windows of valid batches and the damage between them, in file order, up to the first batch past `end`.

    After damage, the caller may stop the iteration, or continue with the next valid batch. The last window is empty if
    the next batch begins at or above `end`.

    Args:
        file: the file to read.
        start: position of the first batch.
        expected: the lowest offset that the first batch may have.
        end: the offset to stop at, or None to read to the end of the file.
        limit: the base offset of the next segment, or None if it is unknown. All offsets must be below this offset.
        window: function that reads a window at a position; default: `file.window`.
    """
    position, offset, before = start, expected, expected
    while True:
        damage: Damage | None = None
        walk = BatchWalk(file, position, window=window)
        for found in walk:
            headers = found.headers
            count, damage = _count_valid(found, file, offset, before, end, limit)
            if count:
                offset, before = int(headers.next_offset[count - 1]), int(headers.base_offset[count - 1])
                yield found if count == len(headers) else found.select(slice(count))
            if damage is not None:
                break
            if count < len(headers):
                yield found.select(slice(0))
                return
            if end is not None and offset >= end:
                return
        else:
            damage = walk.damage(offset, limit)
            if damage is None:
                return
        yield damage
        if damage.following is None:
            return
        position = damage.following.position


def _count_valid(
    window: Window, file: BatchFile, expected: int, last_base: int, end: int | None, limit: int | None
) -> tuple[int, Damage | None]:
    """Return the number of batches of a window below `end` and before the first damage, and the damage.

    `last_base` is the base offset of the batch before the window.
    """
    headers = window.headers
    row, reason = _find_invalid_batch(window, file, expected, limit)
    inside = len(headers)
    if end is not None:
        beyond = np.flatnonzero(headers.base_offset >= end)
        inside = int(beyond[0]) if len(beyond) else inside
    if row is not None and row >= inside:
        # An out-of-order batch at the end of the range is an error only if another batch of the range follows.
        follows = _next_span(window, file, row) if row == inside else None
        row = row if follows and end is not None and follows.start < end else None
    wrong = crc_failures(window.data, headers[: inside if row is None else row + 1])
    if len(wrong):
        row = int(wrong[0])
        reason = crc_message(headers, row)
    if row is None:
        return inside, None
    base = int(headers.base_offset[row])
    before = int(headers.next_offset[row - 1]) if row else expected
    previous = int(headers.base_offset[row - 1]) if row else last_base
    # If two batches overlap, the offsets of the invalid batch may still be correct.
    plausible = base >= before if len(wrong) else previous < base < before
    offset = base if plausible and (limit is None or base < limit) else before
    position = window.start + int(headers.position[row])
    size = int(headers.size[row])
    final = file.header_at(position + size) is None
    return row, Damage(file, position, size, offset, reason, final, before, limit, wrong_crc=bool(len(wrong)))


def _find_invalid_batch(window: Window, file: BatchFile, expected: int, limit: int | None) -> tuple[int | None, str]:
    """Return the first batch of a window whose header or offsets are invalid, and the reason."""
    headers = window.headers
    base, following = headers.base_offset, headers.next_offset
    before = np.concatenate(([expected], following[:-1]))
    rules = header_rules(headers)
    odd = np.logical_or.reduce([broken for broken, _ in rules])
    beyond = following > limit if limit is not None else np.zeros(len(base), np.bool_)
    back = base < before
    last = len(base) - 1
    after = _next_span(window, file, last)
    overlapped = after is not None and after.start < following[last]
    wrong = odd | beyond | back
    if not wrong.any() and not overlapped:
        return None, ""
    row = int(np.argmax(wrong)) if wrong.any() else last + 1
    if row <= last and odd[row]:
        return row, next(message for broken, message in rules if broken[row])
    if row <= last and beyond[row]:
        return row, f"expected offsets below {limit}, where the next segment begins, found {int(following[row]) - 1}"
    second = after if row > last else Span(int(base[row]), int(following[row]))
    if row and second is not None:
        first = Span(int(base[row - 1]), int(following[row - 1]))
        third = _next_span(window, file, row)
        if first_is_wrong(int(before[row - 1]), first, second, limit if third is None else third.start):
            expectation = f"expected a batch below offset {second.start}, where the next batch begins"
            return row - 1, f"{expectation}, found offset {first.start}"
    if row > last:
        return None, ""
    return row, f"expected a batch at offset {int(before[row])} or above, found offset {int(base[row])}"


def _next_span(window: Window, file: BatchFile, row: int) -> Span | None:
    """Return the offsets of the batch after a row if the magic of that batch is 2.

    `row` may be one past the end of the window.
    """
    headers = window.headers
    if row + 1 < len(headers):
        return Span(int(headers.base_offset[row + 1]), int(headers.next_offset[row + 1]))
    last = len(headers) - 1
    position = window.end
    header = file.header_at(position, window.data[position - window.start :])
    if header is not None and row > last:
        header = file.header_at(position + header.size)
    if header is None or header.magic != MAGIC:
        return None
    return Span(header.base_offset, header.base_offset + header.last_offset_delta + 1)


def resume(file: BatchFile, position: int, expected: int, limit: int | None, *, size: int = 0) -> ResumePoint | None:
    """Return the next valid batch after damage at `position` whose offsets are at least `expected`, or None if there is
    no such batch.

    `size` is the size of the corrupt batch according to its length field, or 0 if that size is impossible.
    """
    max_offset = MAX_OFFSET if limit is None else limit - 1
    header = file.header_at(position + size) if size else None
    if header is not None:
        # The header of a compressed message of an old format contains only its last offset.
        last = header.base_offset + header.last_offset_delta
        if expected <= header.base_offset <= last <= max_offset and file.has_valid_crc(position + size, header):
            return ResumePoint(position + size, header.base_offset)
    start = position + 1
    while start + HEADER_BYTES <= file.size:
        data = file.read(start, _SEARCH_BYTES)
        if len(data) < HEADER_BYTES:
            return None
        for candidate in _candidates(data, file.size - start, expected, max_offset):
            header = file.header_at(start + candidate)
            if header is not None and file.has_valid_crc(start + candidate, header):
                return ResumePoint(start + candidate, header.base_offset)
        start += len(data) - HEADER_BYTES + 1
    return None


def _candidates(data: bytes, remaining: int, expected: int, max_offset: int) -> list[int]:
    """Return the positions of possible batch headers in `data`.

    `remaining` is the number of bytes to the end of the file.
    """
    raw = np.frombuffer(data, np.uint8)
    count = len(raw) - HEADER_BYTES + 1
    likely = np.flatnonzero(
        (raw[MAGIC_POSITION : MAGIC_POSITION + count] == MAGIC)
        & (raw[CRC_START : CRC_START + count] == 0)
        & (raw[CRC_START + 1 : CRC_START + 1 + count] < 0x80)
    )
    if not len(likely):
        return []
    rows = np.lib.stride_tricks.sliding_window_view(raw, HEADER_BYTES)[likely].view(HEADER_DTYPE)[:, 0]
    size = rows["length"].astype(np.int64) + LOG_OVERHEAD
    base, delta = rows["base_offset"].astype(np.int64), rows["last_offset_delta"].astype(np.int64)
    records = rows["count"].astype(np.int64)
    possible = (size >= HEADER_BYTES) & (size <= remaining - likely) & (base >= expected) & (delta >= 0)
    possible &= (records >= 0) & (records <= delta + 1) & ((rows["attributes"].astype(np.int64) & 7) < len(CODECS))
    # These bytes may not be a batch, so an addition could overflow. Subtract instead.
    possible &= base <= max_offset - np.maximum(delta, 0)
    positions: list[int] = likely[possible].tolist()
    return positions
