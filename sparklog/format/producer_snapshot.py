"""`.snapshot`: what a partition's producers had done up to an offset, which is the file's name.

| bytes | field                 | meaning                                                                    |
|------:|-----------------------|----------------------------------------------------------------------------|
|     2 | version               | 1                                                                          |
|     4 | crc                   | CRC-32C of all bytes from 6 on                                             |
|     4 | number of entries     |                                                                            |
|  46 n | entries:              |                                                                            |
|     8 | producerId            |                                                                            |
|     2 | producerEpoch         |                                                                            |
|     4 | lastSequence          | of its last data batch, -1: none in this epoch                             |
|     8 | lastOffset            | the same, the batch's last offset                                          |
|     4 | offsetDelta           | the same, last offset - first offset; 0 without one                        |
|     8 | timestamp             | ms, greatest timestamp of its last batch or marker                         |
|     4 | coordinatorEpoch      | of its last marker, -1: none                                               |
|     8 | currentTxnFirstOffset | first offset of its open transaction, -1: none is open                     |

Big-endian. Kafka writes entries in the order of a hash map, so any order will do; here it is that of producer ids.
A broker that finds one reads the log only from its offset on to know its producers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from sparklog.errors import Corrupt
from sparklog.format.crc32c import crc32c

VERSION = 1
_HEAD = struct.Struct(">hIi")
ENTRY = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One producer, fields as in the module's table and in that order."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    open_since: int


def snapshot_to_bytes(entries: Iterable[ProducerEntry]) -> bytes:
    """A `.snapshot` file; one without producers has 10 bytes."""
    rows = [ENTRY.pack(*astuple(entry)) for entry in sorted(entries, key=lambda entry: entry.producer_id)]
    covered = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", VERSION, crc32c(covered)) + covered


def parse_snapshot(data: bytes, *, file: str | None = None) -> list[ProducerEntry]:
    """The entries of a `.snapshot`, in file order. `Corrupt` for another version, a wrong checksum or length."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"a producer snapshot has at least {_HEAD.size} bytes, found {len(data)}", file=file)
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise Corrupt(f"expected a producer snapshot of version {VERSION}, found {version}", file=file)
    if crc32c(data[6:]) != crc:
        raise Corrupt("the producer snapshot's CRC-32C is wrong: restore it", file=file)
    if count < 0 or len(data) != _HEAD.size + count * ENTRY.size:
        raise Corrupt(f"the producer snapshot announces {count} entries in {len(data)} bytes", file=file)
    return [ProducerEntry(*fields) for fields in ENTRY.iter_unpack(data[_HEAD.size :])]
