"""A `.snapshot` read as Kafka reads it: with its words for what is wrong, and leniently where it is lenient.

`sparklog.format.producer_snapshot` has the byte table. Kafka looks at the version, reads the entries, then compares
the checksum, which covers all bytes behind it, also those behind the last entry.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sparklog.errors import Corrupt
from sparklog.format.producer_snapshot import VERSION

__all__ = ["Producer", "snapshot_entries"]

_VERSION = struct.Struct(">h")
_HEAD = struct.Struct(">Ii")
_ENTRY = struct.Struct(">qhiqiqiq")
_COVERED_FROM = 6


@dataclass(frozen=True, slots=True)
class Producer:
    """One producer, fields as in the snapshot's table; `last_offset` -1: it has no data batch."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    open_since: int

    @property
    def first_sequence(self) -> int:
        """Of its last batch; before 0 comes 2^31 - 1."""
        return (self.last_sequence - self.offset_delta) & 0x7FFFFFFF if self.offset_delta else self.last_sequence


def snapshot_entries(data: bytes) -> list[Producer]:
    """The entries in file order. `Corrupt` where Kafka calls it corrupt."""
    from crc32c import crc32c

    if len(data) < _VERSION.size:
        raise Corrupt("Snapshot failed schema validation: null")
    version = int(_VERSION.unpack_from(data)[0])
    if version != VERSION:
        raise Corrupt(f"Snapshot failed schema validation: Snapshot contained an unknown file version {version}")
    try:
        crc, count = _HEAD.unpack_from(data, _VERSION.size)
        start = _VERSION.size + _HEAD.size
        if count < 0:
            raise Corrupt(
                "Snapshot failed schema validation: non-nullable field producerEntries was serialized as null"
            )
        if count > len(data) - start:
            said = f"Tried to allocate a collection of size {count}, but there are only {len(data) - start} bytes"
            raise Corrupt(f"Snapshot failed schema validation: {said} remaining.")
        rows = [_ENTRY.unpack_from(data, start + number * _ENTRY.size) for number in range(count)]
    except struct.error:
        raise Corrupt("Snapshot failed schema validation: null") from None
    computed = crc32c(data[_COVERED_FROM:])
    if crc != computed:
        said = f"Stored crc: {crc}. Computed crc: {computed}"
        raise Corrupt(f"Snapshot is corrupt (CRC is no longer valid). {said}")
    return [Producer(*row) for row in rows]
