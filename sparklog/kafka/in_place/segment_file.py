"""One `.log` file of a Kafka partition, read in bounded windows, and the files beside it.

Plain positioned reads, no memory map: a broker cuts a preallocated file to its length when it rolls, and touching a
mapped page after the new end would kill the process. What the file held when it was opened counts; what is appended
later is for the next look. A file that is gone was replaced or has expired: for `file.delete.delay.ms` it is still
there as `.deleted`, with the same records. In a bucket neither happens (`sparklog.kafka.in_place.files`).
"""

from __future__ import annotations

from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.batch_walk import BatchFile
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.format.transaction_index import AbortedTransactions
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


class SegmentFile(BatchFile):
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
