"""One `.log` file of a Kafka partition, read in bounded windows, and the files beside it.

Plain positioned reads, no memory map: a broker cuts a preallocated file to its length when it rolls, and touching a
mapped page after the new end would kill the process. What the file held when it was opened counts; what is appended
later is for the next look. A file that is gone was replaced or has expired: for `file.delete.delay.ms` it is still
there as `.deleted`, with the same records. In a bucket neither happens (`sparklog.kafka.in_place.files`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.batch_scan import begins_with_header, least_size, scan_headers, single_header
from sparklog.format.record_batch import CRC_START, HEADER_BYTES, MAGIC, MAGIC_POSITION, BatchHeader, BatchHeaders
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.format.window import Window
from sparklog.kafka.in_place.files import DELETED, FilePath

SWAP = ".swap"
CLEANED = ".cleaned"


def companion(log: FilePath, suffix: str) -> FilePath:
    """The file beside a `.log` (`.log.swap`, `.log.deleted`) with another extension, as `index`.

    A swap renames the files of a segment one by one, the `.log` first, so the others may still be named `.swap`.
    """
    folder, name = log.parent, log.name
    for state in (SWAP, DELETED):
        if name.endswith(state):
            return folder.child(f"{name.removesuffix(state).removesuffix('.log')}.{suffix}{state}")
    plain = folder.child(f"{name.removesuffix('.log')}.{suffix}")
    swapped = folder.child(plain.name + SWAP)
    return plain if plain.exists() or not swapped.exists() else swapped


HEADER_WINDOW_BYTES = 256 * 1024
MAX_MAGIC = 127
"""Kafka reads the byte as signed: less than 0 is no batch."""
HUGE_BATCH_BYTES = 64 * 1024 * 1024
"""A batch that claims more is read only after its checksum has been computed in pieces: its length may be damaged."""
_CRC_PIECE_BYTES = 1024 * 1024


class SegmentFile:
    """An open `.log` file: `size` is what it had when it was opened, `path` its name for messages."""

    def __init__(self, path: FilePath) -> None:
        """Open `path`, or on a disk its `.deleted` namesake. `FileNotFoundError` if there is neither."""
        self._file = path.open()
        self.place: FilePath = self._file.path
        self.path = str(self.place)
        self.size, self.modified, self.inode = self._file.size, self._file.modified, self._file.inode

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, position: int, length: int) -> bytes:
        """Bytes from `position`; fewer than `length` only at the end of the file."""
        return self._file.read(position, length)

    def replaced(self) -> bool:
        """True if another file has this name in a bucket by now, so that what was read may be of both."""
        return self._file.replaced()

    def header_at(self, position: int) -> BatchHeader | None:
        """The header of a batch that claims to start at `position` and to end inside the file, or None."""
        data = self.read(position, HEADER_BYTES)
        if not begins_with_header(data):
            return None
        header = single_header(data)
        size = int(header.size[0])
        return header.row(0) if least_size(data[MAGIC_POSITION]) <= size <= self.size - position else None

    def holds_at(self, position: int) -> bool:
        header = self.header_at(position)
        return header is not None and self.crc_holds(position, header)

    def unknown_format_at(self, position: int) -> BatchHeaders | None:
        """The header of a whole batch whose magic is above any that is known, and whose checksum holds, or None.

        The magic is outside the checksum. Kafka takes such a batch for one of its newest format.
        """
        data = bytearray(self.read(position, HEADER_BYTES))
        if len(data) < HEADER_BYTES or not MAGIC < data[MAGIC_POSITION] <= MAX_MAGIC:
            return None
        data[MAGIC_POSITION] = MAGIC
        headers = single_header(bytes(data))
        header = headers.row(0)
        whole = HEADER_BYTES <= header.size <= self.size - position and header.last_offset_delta >= 0
        return headers if whole and self.crc_holds(position, header) else None

    def crc_holds(self, position: int, header: BatchHeader) -> bool:
        import zlib

        from sparklog.format.crc32c import crc32c

        start, checksum = (MAGIC_POSITION, zlib.crc32) if header.magic < MAGIC else (CRC_START, crc32c)
        crc, low, high = 0, position + start, position + header.size
        while low < high:
            piece = self.read(low, min(_CRC_PIECE_BYTES, high - low))
            if not piece:
                return False
            crc = checksum(piece, crc)
            low += len(piece)
        return crc == header.crc


class BatchWalk:
    """Iterates over the batches of a file from a batch start, window by window.

    `window_bytes` gives the size of the next window, which then holds its batches whole; without, a batch that does not
    fit a window comes as its header alone. After the iteration `end` is where it stopped and `stop` why: "end" (of the
    file), "partial" (the last batch is cut off), "zeros" (the tail of a preallocated file) or "corrupt" (`reason` says
    what was found).
    """

    def __init__(self, file: SegmentFile, start: int, window_bytes: Callable[[], int] | None = None) -> None:
        self.file = file
        self.end = start
        self.stop = "end"
        self.reason = ""
        self._window_bytes = window_bytes

    def __iter__(self) -> Iterator[Window]:
        size = self.file.size
        while self.end < size:
            nbytes = HEADER_WINDOW_BYTES if self._window_bytes is None else self._window_bytes()
            data = self.file.read(self.end, min(nbytes, size - self.end))
            headers = scan_headers(data, whole=False, contents=self._window_bytes is not None)
            if len(headers):
                yield Window(data, self.end, headers, self.file.path)
            self.end += headers.end
            if headers.stop == "end" and headers.end:
                continue
            last = self.end + len(data) - headers.end >= size
            if headers.stop in ("partial", "zeros") and not last and headers.end:
                continue  # Cut off by the window, not by the file: it begins the next window.
            header = self.file.header_at(self.end) if headers.stop == "partial" and not last else None
            if header is not None and self._window_bytes is None:
                yield Window(data[:HEADER_BYTES], self.end, single_header(data), self.file.path)
                self.end += header.size
            elif header is not None and (header.size <= HUGE_BATCH_BYTES or self.file.crc_holds(self.end, header)):
                body = self.file.read(self.end, header.size)
                yield Window(body, self.end, scan_headers(body, whole=False), self.file.path)
                self.end += header.size
            else:
                huge = "the checksum of a long batch does not match"
                self.stop, self.reason = (headers.stop, headers.reason) if header is None else ("corrupt", huge)
                return


def aborted_by_index(log: FilePath, base: int) -> AbortedTransactions:
    """Return the entries of the `.txnindex` beside a `.log`; none where it is missing or damaged."""
    try:
        return transaction_index.parse(companion(log, "txnindex").data() or b"", base)
    except Corrupt:
        return transaction_index.none()


def seek(file: SegmentFile, base: int, offset: int) -> int:
    """Position of a batch of the file from which a reader of `offset` can start: by the `.index` beside it where that
    is right, else 0.

    An index has no checksum and may belong to another file of the same name, so its entry counts only if a batch starts
    there, ends with the entry's offset and matches its checksum.
    """
    if offset <= base and not file.place.is_local:
        return 0  # It spares a request.
    path = companion(file.place, "index")
    data = path.data()
    try:
        last, position = (-1, 0) if data is None else OffsetIndex.parse(data, base, file=str(path)).lookup(offset)
    except Corrupt:
        return 0
    header = file.header_at(position) if position else None
    if header is None or header.base_offset + header.last_offset_delta != last or header.base_offset < base:
        return 0
    return position if file.crc_holds(position, header) else 0
