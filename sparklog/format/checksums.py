"""One checksum over the index files beside a sealed segment, for the commit that names the segment.

| bytes | what                                                                      |
|------:|---------------------------------------------------------------------------|
|     8 | length of `.index`, big-endian                                            |
|     n | its bytes                                                                 |
|       | the same of `.timeindex`, then of `.txnindex` (length 0 if there is none) |

Kafka's index files have no checksum. Most of what they say can be held against the batches, but not all: where an
aborted transaction began whose first data the cleaner has removed stands in the `.txnindex` alone, and of a file that
was cut off between two entries the rest looks whole.

Where a single bit flipped in bytes whose CRC-32C is known: most damage that disks and memory do is just that.

A CRC is linear: what one flipped bit changes in it depends only on how far the bit lies from the end. So the difference
of two CRCs is taken back byte by byte until it is what a single bit makes of it. Longer damage looks like a single bit
by chance once in 2^32 / (8 n) tries.
"""

from __future__ import annotations

from functools import cache

SUFFIXES = ("index", "timeindex", "txnindex")
"""Of the files, in the order in which they are counted in."""


def index_crc(index: bytes, timeindex: bytes, txnindex: bytes) -> int:
    """CRC-32C over the three files, each behind its length; an empty one is the same as none."""
    from crc32c import crc32c

    crc = 0
    for data in (index, timeindex, txnindex):
        crc = crc32c(data, crc32c(len(data).to_bytes(8, "big"), crc))
    return crc


POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reflected."""
MOST_BYTES = 4 << 20
"""Longer runs are not searched: it takes a second a megabyte or two."""


def flipped_bit(nbytes: int, found: int, expected: int) -> tuple[int, int] | None:
    """(byte, bit) whose flip turns CRC `found` of `nbytes` bytes into `expected`; None if no single one does."""
    if found == expected or nbytes > MOST_BYTES:
        return None
    table, back, single = _tables()
    difference = found ^ expected
    for at in range(nbytes - 1, -1, -1):
        if difference in single:
            return at, single[difference]
        low = back[difference >> 24]
        difference = ((difference ^ table[low]) << 8 | low) & 0xFFFFFFFF
    return None


@cache
def _tables() -> tuple[tuple[int, ...], tuple[int, ...], dict[int, int]]:
    """The CRC's table by byte; that byte by the table's highest one; what one bit of the last byte makes of the CRC."""
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
