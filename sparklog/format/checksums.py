"""Checksums other than those of record batches: one over a segment's index files, and the search for a flipped bit.

The checksum of the index files beside a sealed segment is kept by the commit that names the segment. It is over:

| bytes | content                                                                   |
|------:|---------------------------------------------------------------------------|
|     8 | length of `.index`, big-endian                                            |
|     n | its bytes                                                                 |
|       | the same of `.timeindex`, then of `.txnindex` (length 0 if there is none) |

Kafka's index files have no checksum. Not all of them can be held against the batches: where an aborted transaction
began whose first data the cleaner has removed is in the `.txnindex` alone, and a file that was cut off between two
entries looks whole.

Most damage that disks and memory do is one flipped bit. A CRC is linear: the change that one bit makes depends only on
its distance from the end. So the difference of two CRCs is taken back byte by byte until it is that of a single bit.
Longer damage looks like a single bit by chance once in 2^32 / (8 n) tries.
"""

from __future__ import annotations

from functools import cache

from sparklog.format.crc32c import crc32c

SUFFIXES = ("index", "timeindex", "txnindex")
"""Suffixes of the index files, in the order of their checksum."""


def index_crc(index: bytes, timeindex: bytes, txnindex: bytes) -> int:
    """Return the CRC-32C over the three files, each after its length; an empty file is the same as none."""
    crc = 0
    for data in (index, timeindex, txnindex):
        crc = crc32c(data, crc32c(len(data).to_bytes(8, "big"), crc))
    return crc


def appended_crc(before: int, following: int, crc: int) -> int:
    """Return the CRC-32C of bytes whose own is `before` and of `following` bytes after them, whose own is `crc`."""
    # Zeros move a CRC alone if it is inverted: a CRC begins and ends with all bits inverted.
    return int(crc32c(bytes(following), before ^ 0xFFFFFFFF) ^ 0xFFFFFFFF ^ crc)


POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reflected."""
MOST_BYTES = 4 << 20
"""Longer runs are not searched: it takes a second a megabyte or two."""


def flipped_bit(nbytes: int, actual: int, expected: int) -> tuple[int, int] | None:
    """Return the (byte, bit) whose flip turns CRC `actual` of `nbytes` bytes into `expected`; None without one."""
    if actual == expected or nbytes > MOST_BYTES:
        return None
    table, back, single = _tables()
    difference = actual ^ expected
    for byte in range(nbytes - 1, -1, -1):
        if difference in single:
            return byte, single[difference]
        low = back[difference >> 24]
        difference = ((difference ^ table[low]) << 8 | low) & 0xFFFFFFFF
    return None


@cache
def _tables() -> tuple[tuple[int, ...], tuple[int, ...], dict[int, int]]:
    """The CRC's table by byte, the byte by the table's highest one, and the bit by its change of the CRC."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    back = [0] * 256
    for byte, crc in enumerate(table):
        back[crc >> 24] = byte
    return tuple(table), tuple(back), {table[1 << bit]: bit for bit in range(8)}
