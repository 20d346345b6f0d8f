"""`.snapshot` files: the state of the producers of a partition at an offset, which is the name of the file.

| bytes | field                 | meaning                                                                    |
|------:|-----------------------|----------------------------------------------------------------------------|
|     2 | version               | 1                                                                          |
|     4 | crc                   | CRC-32C of all bytes after this field                                             |
|     4 | number of entries     |                                                                            |
|  46 n | entries:              |                                                                            |
|     8 | producerId            |                                                                            |
|     2 | producerEpoch         |                                                                            |
|     4 | lastSequence          | last sequence of its last data batch, -1: none in this epoch               |
|     8 | lastOffset            | last offset of that batch                                                  |
|     4 | offsetDelta           | last offset - first offset of that batch, 0 if there is none               |
|     8 | timestamp             | maximum timestamp of its last batch or marker (ms)                         |
|     4 | coordinatorEpoch      | of its last marker, -1: none                                               |
|     8 | currentTxnFirstOffset | first offset of its open transaction, -1: none                             |

Integers are big-endian. Kafka accepts entries in any order, because it writes them in the order of a hash map. This
module sorts entries by producer id. If a broker has a snapshot, it recovers producer state from the snapshot, and then
reads the log only from the offset of the snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from sparklog.errors import Corrupt
from sparklog.format.crc32c import crc32c

VERSION = 1
_HEADER = struct.Struct(">hIi")
ENTRY = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """The state of a producer. The fields have the same order as in the table in the module docstring."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    open_since: int


def snapshot_to_bytes(entries: Iterable[ProducerEntry]) -> bytes:
    """Return a `.snapshot` file."""
    rows = [ENTRY.pack(*astuple(entry)) for entry in sorted(entries, key=lambda entry: entry.producer_id)]
    covered = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", VERSION, crc32c(covered)) + covered


def parse_snapshot(data: bytes, *, file: str | None = None) -> list[ProducerEntry]:
    """Return the entries of a `.snapshot` file in file order.

    Raises `Corrupt` for an unknown version, a wrong checksum or a wrong length.
    """
    if len(data) < _HEADER.size:
        raise Corrupt(f"a producer snapshot must have at least {_HEADER.size} bytes, found {len(data)}", file=file)
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise Corrupt(f"expected a producer snapshot of version {VERSION}, found {version}", file=file)
    if crc32c(data[6:]) != crc:
        raise Corrupt("the CRC-32C of the producer snapshot does not match its bytes: restore the file", file=file)
    if count < 0 or len(data) != _HEADER.size + count * ENTRY.size:
        raise Corrupt(f"expected {count} entries in the producer snapshot, found {len(data)} bytes", file=file)
    return [ProducerEntry(*fields) for fields in ENTRY.iter_unpack(data[_HEADER.size :])]
