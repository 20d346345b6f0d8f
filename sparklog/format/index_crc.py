"""One checksum over the index files beside a sealed segment, for the commit that names the segment.

| bytes | what                                                                      |
|------:|---------------------------------------------------------------------------|
|     8 | length of `.index`, big-endian                                            |
|     n | its bytes                                                                 |
|       | the same of `.timeindex`, then of `.txnindex` (length 0 if there is none) |

Kafka's index files have no checksum. Most of what they say can be held against the batches, but not all: where an
aborted transaction began whose first data the cleaner has removed stands in the `.txnindex` alone, and of a file that
was cut off between two entries the rest looks whole.
"""

from __future__ import annotations

SUFFIXES = ("index", "timeindex", "txnindex")
"""Of the files, in the order in which they are counted in."""


def index_crc(index: bytes, timeindex: bytes, txnindex: bytes) -> int:
    """CRC-32C over the three files, each behind its length; an empty one is the same as none."""
    from crc32c import crc32c

    crc = 0
    for data in (index, timeindex, txnindex):
        crc = crc32c(data, crc32c(len(data).to_bytes(8, "big"), crc))
    return crc
