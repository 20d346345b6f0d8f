"""A `.snapshot` read as Kafka reads it: with its words for what is wrong, and leniently where it is lenient.

`sparklog.format.coordinators.producer_snapshot` has the byte table. Kafka looks at the version, reads the entries,
then compares the checksum, which covers all bytes behind it, also those behind the last entry.
"""

from __future__ import annotations

import struct

from sparklog.errors import Corrupt
from sparklog.format.coordinators.producer_snapshot import ENTRY, VERSION, ProducerEntry


_VERSION = struct.Struct(">h")
_HEAD = struct.Struct(">Ii")
_COVERED_FROM = 6


def first_sequence(entry: ProducerEntry) -> int:
    """Of a producer's last batch; before 0 comes 2^31 - 1."""
    return (entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF if entry.offset_delta else entry.last_sequence


def snapshot_entries(data: bytes) -> list[ProducerEntry]:
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
        rows = [ENTRY.unpack_from(data, start + number * ENTRY.size) for number in range(count)]
    except struct.error:
        raise Corrupt("Snapshot failed schema validation: null") from None
    computed = crc32c(data[_COVERED_FROM:])
    if crc != computed:
        said = f"Stored crc: {crc}. Computed crc: {computed}"
        raise Corrupt(f"Snapshot is corrupt (CRC is no longer valid). {said}")
    return [ProducerEntry(*row) for row in rows]
