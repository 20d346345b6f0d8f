"""Read a `.log` file of a Kafka partition, and the index files next to it.

Files are not memory-mapped. A broker truncates a preallocated file when it rolls the segment, and an access to a mapped
page after the new end would kill the process. Reads end at the size that the file had when it was opened. If a file is
missing, it was replaced or has expired. The records of a missing file can be read from the `.deleted` file until
`file.delete.delay.ms` has passed. In a bucket, files are neither truncated nor renamed (see
`sparklog.kafka.in_place.files`).
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
    """Return the file with another suffix, such as `index`, that belongs to a `.log`, `.log.swap` or `.log.deleted`
    file.

    A swap renames the files of a segment one by one, starting with the `.log`, so the other files may still end with
    `.swap`.
    """
    parent, name = log.parent, log.name
    for state in (SWAP, DELETED):
        if name.endswith(state):
            return parent.child(f"{name.removesuffix(state).removesuffix('.log')}.{suffix}{state}")
    plain = parent.child(f"{name.removesuffix('.log')}.{suffix}")
    swapped = parent.child(plain.name + SWAP)
    return plain if plain.exists() or not swapped.exists() else swapped


class SegmentFile(BatchFile):
    """An open `.log` file. `size` is its size at the time of opening, and `path` is its name in messages."""

    def __init__(self, path: FilePath) -> None:
        """Open the file at `path` or, on a disk, its `.deleted` file.

        Raises `FileNotFoundError` if neither file exists.
        """
        self._file = path.open()
        self.location: FilePath = self._file.path
        self.path = str(self.location)
        self.size, self.modified, self.inode = self._file.size, self._file.modified, self._file.inode

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes starting at `position`. Fewer bytes are returned if the file ends before."""
        return self._file.read(position, length)

    def is_replaced(self) -> bool:
        """Return True if the file was replaced in a bucket. In this case, earlier reads may have returned bytes of both
        files.
        """
        return self._file.is_replaced()


def aborted_by_index(log: FilePath, base: int) -> AbortedTransactions:
    """Return the entries of the `.txnindex` next to a `.log` file.

    The result is empty if the file is missing or invalid.
    """
    try:
        return transaction_index.parse(companion(log, "txnindex").data() or b"", base)
    except Corrupt:
        return transaction_index.none()


def seek(file: SegmentFile, base: int, offset: int) -> int:
    """Return the position at which to start reading to find `offset`. The position is taken from the `.index`, or is 0
    if the index is invalid.

    An index has no checksum and may belong to an earlier file with the same name. Therefore an entry is used only if a
    batch starts at the position of the entry, ends with the offset of the entry and matches its checksum.
    """
    if offset <= base and not file.location.is_local:
        return 0  # Reading from the start of the file does not require a request for the index.
    path = companion(file.location, "index")
    data = path.data()
    try:
        last, position = (-1, 0) if data is None else OffsetIndex.parse(data, base, file=str(path)).lookup(offset)
    except Corrupt:
        return 0
    header = file.header_at(position) if position else None
    if header is None or header.base_offset + header.last_offset_delta != last or header.base_offset < base:
        return 0
    return position if file.has_valid_crc(position, header) else 0
