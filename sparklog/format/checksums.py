"""The checksum of the index files of a segment, and the search for a flipped bit.

A commit that references a sealed segment also contains a checksum of the index files. The checksum covers:

| bytes | content                                                                   |
|------:|---------------------------------------------------------------------------|
|     8 | length of `.index`, big-endian                                            |
|     n | bytes of `.index`                                                         |
|       | the same for `.timeindex`, then `.txnindex` (length 0 if there is none)   |

Kafka's index files do not contain a checksum, and the batches are not sufficient to verify an index. If the cleaner has
removed the first batches of an aborted transaction, only the `.txnindex` contains the offset where the transaction
began. A file that was truncated between two entries looks complete.

Most corruption by disks and memory is a single flipped bit. A CRC is linear: the difference that a flipped bit makes
depends only on its distance from the end. Therefore the search reverts the difference of two CRCs byte by byte until it
equals the difference of a single bit. The probability that other corruption looks like a flipped bit is 8 n / 2^32 for
n bytes.
"""

from __future__ import annotations

from functools import cache

from sparklog.format.crc32c import crc32c

SUFFIXES = ("index", "timeindex", "txnindex")
"""Suffixes of the index files, in the order in which the checksum covers them."""


def index_crc(index: bytes, timeindex: bytes, txnindex: bytes) -> int:
    """Return the CRC-32C of the three files, each preceded by its length.

    A missing file is treated as an empty file.
    """
    crc = 0
    for data in (index, timeindex, txnindex):
        crc = crc32c(data, crc32c(len(data).to_bytes(8, "big"), crc))
    return crc


def appended_crc(before: int, following: int, crc: int) -> int:
    """Return the CRC-32C of bytes whose CRC-32C is `before`, followed by `following` bytes whose CRC-32C is `crc`."""
    # `crc32c` inverts all bits at its start and at its end. Undo both inversions, so that the zeros only shift
    # `before`.
    return int(crc32c(bytes(following), before ^ 0xFFFFFFFF) ^ 0xFFFFFFFF ^ crc)


POLYNOMIAL = 0x82F63B78
"""The Castagnoli polynomial, reflected."""
MAX_SEARCH_BYTES = 4 << 20
"""Maximum size of the data to search. The search takes about a second for one or two megabytes."""


def flipped_bit(nbytes: int, actual: int, expected: int) -> tuple[int, int] | None:
    """Return the position (byte, bit) of the bit that must be flipped to change the CRC of `nbytes` bytes from `actual`
    to `expected`, or None if there is no such bit.
    """
    if actual == expected or nbytes > MAX_SEARCH_BYTES:
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
    """Return the CRC table, the inverse of its highest bytes, and a map of CRC differences to the flipped bit that
    causes each difference.
    """
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
