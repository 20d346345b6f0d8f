"""Build messages of formats v0 and v1, byte by byte."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from sparklog.format.compression import compress
from sparklog.format.record_batch import CODECS

Cell = bytes | None
LOG_APPEND_TIME = 0x08


def message(
    offset: int, key: Cell, value: Cell, *, magic: int = 1, timestamp: int = -1, attributes: int = 0, crc: int = 0
) -> bytes:
    """Return one entry. `crc` is added to its checksum, to corrupt it."""
    body = bytes((magic, attributes)) + (struct.pack(">q", timestamp) if magic else b"")
    for cell in (key, value):
        body += struct.pack(">i", -1 if cell is None else len(cell)) + (cell or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body) ^ crc) + body


def wrapper(
    offset: int, codec: str, inner: bytes, *, magic: int = 1, timestamp: int = -1, attributes: int = 0, crc: int = 0
) -> bytes:
    """Return a compressed message. LZ4 frames of v0 get the incorrect header checksum that Kafka clients wrote."""
    packed = bytearray(compress(codec, inner))
    if codec == "lz4" and magic == 0:
        assert packed[:7].hex() == "04224d18604082"
        packed[6] = 0x1A
    attributes |= CODECS.index(codec)
    return message(
        offset, None, bytes(packed), magic=magic, timestamp=timestamp, attributes=attributes, crc=crc
    )  # fmt: skip


def messages(rows: Sequence[tuple[int, int, Cell, Cell]], *, magic: int = 1, first: int | None = None) -> bytes:
    """Return adjacent entries for rows (offset, timestamp, key, value). Offsets are relative to `first`, if given."""
    return b"".join(
        message(offset - (first or 0), key, value, magic=magic, timestamp=time) for offset, time, key, value in rows
    )
