"""Read a `.log` file of a Kafka partition, and the index files beside it.

Files are not memory-mapped: a broker truncates a preallocated file when it rolls, and access to a mapped page after the
new end would kill the process. Reads end at the size that the file had when it was opened. A missing file was replaced
or has expired; until `file.delete.delay.ms` has passed, its records are in the `.deleted` file. In a bucket neither
happens (see `sparklog.kafka.in_place.files`).
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
    """Return the file with another suffix, such as `index`, beside a `.log`, `.log.swap` or `.log.deleted` file.

    A swap renames the files of a segment one by one, the `.log` first, so the others may still end in `.swap`.
    """
    parent, name = log.parent, log.name
    for state in (SWAP, DELETED):
        if name.endswith(state):
            return parent.child(f"{name.removesuffix(state).removesuffix('.log')}.{suffix}{state}")
    plain = parent.child(f"{name.removesuffix('.log')}.{suffix}")
    swapped = parent.child(plain.name + SWAP)
    return plain if plain.exists() or not swapped.exists() else swapped


class SegmentFile(BatchFile):
    """An open `.log` file, with the `size` that it had when it was opened; `path` is its name for messages."""

    def __init__(self, path: FilePath) -> None:
        """Open `path` or, on a disk, the `.deleted` file. Raises `FileNotFoundError` if neither exists."""
        self._file = path.open()
        self.location: FilePath = self._file.path
        self.path = str(self.location)
        self.size, self.modified, self.inode = self._file.size, self._file.modified, self._file.inode

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`, or fewer at the end of the file."""
        return self._file.read(position, length)

    def is_replaced(self) -> bool:
        """Return True if the file was replaced in a bucket, so that earlier reads may be of both files."""
        return self._file.is_replaced()


def aborted_by_index(log: FilePath, base: int) -> AbortedTransactions:
    """Return the entries of the `.txnindex` beside a `.log` file; none if it is missing or invalid."""
    try:
        return transaction_index.parse(companion(log, "txnindex").data() or b"", base)
    except Corrupt:
        return transaction_index.none()


def seek(file: SegmentFile, base: int, offset: int) -> int:
    """Return the position of a batch where a reader of `offset` can start: from the `.index` if it is valid, else 0.

    An index has no checksum and may belong to an earlier file of the same name. So its entry is used only if a batch
    starts at its position, ends with its offset and matches the checksum.
    """
    if offset <= base and not file.location.is_local:
        return 0  # This saves a request.
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
