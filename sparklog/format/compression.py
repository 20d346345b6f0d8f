"""Kafka's compression framings, both ways.

The records of a batch (all bytes after its 61-byte header) are one stream:

| codec  | bytes                                                                                                     |
|--------|-----------------------------------------------------------------------------------------------------------|
| gzip   | one RFC 1952 member (further members are read)                                                            |
| snappy | "xerial" stream: 16-byte header `82 SNAPPY 00`, int32 version 1, int32 compatible version 1, then chunks  |
|        | of int32 length and a raw block of at most 32 KiB of data. Read too: one raw block without the header (as |
|        | librdkafka writes), and headers repeated between chunks (concatenated streams)                             |
| lz4    | one LZ4 frame, version 1, independent blocks; written as `60 40 82`: 64 KiB blocks, no sizes or checksums. |
|        | Read too: content size, content checksum, block checksums (kafka-python, aiokafka). Linked blocks, reserved |
|        | bits and dictionaries are refused, as Kafka refuses them                                                  |
| zstd   | one frame, with or without its content size                                                               |

Every decompression has a limit in bytes, checked before memory is allocated or as it is filled: whatever wants more is
`Corrupt`. `decompressed_limit` is what the decoder grants a batch.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.record_batch import CODECS, BytesLike

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_MAGIC = XERIAL_HEADER[:8]
XERIAL_BLOCK = 32 * 1024
GZIP_MAGIC = b"\x1f\x8b"
SNAPPY_MAX_RATIO = 32
"""A snappy element of 3 bytes yields at most 64."""
LZ4_MAX_RATIO = 256
"""Each byte of an LZ4 match length yields at most 255."""
LZ4_MAGIC = 0x184D2204
LZ4_WRITTEN = bytes.fromhex("04224d18604082")
"""The head of a frame of independent 64 KiB blocks without sizes and checksums."""
LZ4_BLOCK = 64 * 1024
ZSTD_BLOCK = 128 * 1024
LIMIT_FLOOR, LIMIT_RATIO, LIMIT_CEILING = 64 << 20, 256, 256 << 20
"""A batch may become 64 MiB + 256 x its compressed bytes, at most 256 MiB. Kafka's own default is 1 MiB compressed."""

ISAL_LEVELS = {-1: 2, 1: 1, 2: 2, 3: 3}
"""Levels of gzip that isal takes over, with its own for each. A higher one is asked for because zlib's is smaller."""

_LEVELS = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
_local = threading.local()


def decompressed_limit(nbytes: int) -> int:
    return min(LIMIT_FLOOR + LIMIT_RATIO * nbytes, LIMIT_CEILING)


def compress(codec: str, data: BytesLike, level: int | None = None) -> bytes:
    """`data` in Kafka's framing of `codec` ("none" returns it unchanged). `level` None is the codec's default here:
    gzip 6 (with isal its 2: up to 15 % larger), lz4 fast, zstd 1; snappy has no levels. Raises `BadRequest` for an
    unknown codec or level."""
    if codec == "none":
        return bytes(data)
    if codec not in _FUNCTIONS:
        raise BadRequest(f"unknown compression codec {codec!r}: use one of {', '.join(CODECS)}")
    check_level(codec, level)
    return _FUNCTIONS[codec][0](data, level)


def check_level(codec: str, level: int | None) -> None:
    """Raise `BadRequest` for a level outside Kafka's range; there is no gzip 0."""
    if level is None:
        return
    if codec not in _LEVELS:
        raise BadRequest(f"codec {codec} has no compression levels: leave the level out (found {level})")
    low, high = _LEVELS[codec]
    if not low <= level <= high or (codec == "gzip" and level == 0):
        raise BadRequest(f"compression level {level} is out of range for {codec}: use {low} to {high}")


def decompress(codec: str, data: BytesLike, limit: int | None = None) -> bytes:
    """The stream's bytes, at most `limit` of them (default `decompressed_limit`). Raises `Corrupt`."""
    view = memoryview(data)
    if codec == "none":
        return bytes(view)
    if codec not in _FUNCTIONS:
        raise BadRequest(f"unknown compression codec {codec!r}: use one of {', '.join(CODECS)}")
    return _FUNCTIONS[codec][1](view, decompressed_limit(view.nbytes) if limit is None else limit)


Fill = Callable[[memoryview], int]
"""Writes decompressed bytes into memory that has room for them, and returns how many there are. Raises `Corrupt`."""


def opened(codec: str, data: BytesLike) -> tuple[int, Fill]:
    """Return the room that the stream's bytes need at most, and what writes them where a caller has that room.

    It saves the copy of a result of `decompress` to its place. Raises `Corrupt` as `decompress` does.
    """
    view = memoryview(data)
    opening = _OPENINGS[codec](view, decompressed_limit(view.nbytes)) if codec in _OPENINGS else None
    if opening is not None:
        return opening
    part = decompress(codec, view)
    return len(part), partial(_copied, part)


def _copied(part: bytes, out: memoryview) -> int:
    out[: len(part)] = part
    return len(part)


def _too_large(codec: str, limit: int, size: int | None = None) -> Corrupt:
    return Corrupt(f"{codec} data may decompress to at most {limit} bytes, found {'more' if size is None else size}")


@cache
def _isal() -> Any:
    """Return isal's form of zlib, which is several times as fast; zlib's own where it is not installed."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


def _gzip_compress(data: BytesLike, level: int | None) -> bytes:
    library, level = _isal(), -1 if level is None else level
    if library is not zlib and level in ISAL_LEVELS:
        level = ISAL_LEVELS[level]
    else:
        library = zlib
    compressor = library.compressobj(level, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()  # type: ignore[no-any-return]


def _gzip_decompress(data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    rest: BytesLike = data
    library = _isal()
    # isal would wait for the rest of what is short and no stream.
    if bytes(data[:2]) != GZIP_MAGIC[: data.nbytes]:
        raise Corrupt(f"expected a gzip stream, found {bytes(data[:2])!r} at its start")
    while True:
        member = library.decompressobj(31)
        try:
            part = member.decompress(rest, limit + 1)
        except library.error as error:
            raise Corrupt(f"expected a gzip stream: {error}") from None
        limit -= len(part)
        if limit < 0:
            raise _too_large("gzip", limit + len(part))
        parts.append(part)
        if not member.eof:
            raise Corrupt("the gzip stream is cut off")
        rest = member.unused_data
        if rest[:2] != GZIP_MAGIC:  # anything else after a member is ignored, as Java does
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy_compress(data: BytesLike, level: int | None) -> bytes:
    import snappy

    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, view.nbytes, XERIAL_BLOCK):
        block = snappy.compress(view[start : start + XERIAL_BLOCK])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _snappy_decompress(data: memoryview, limit: int) -> bytes:
    if data.nbytes < len(XERIAL_HEADER) or data[:8] != XERIAL_MAGIC:
        return _snappy_block(data, limit)
    parts: list[bytes] = []
    position, end = len(XERIAL_HEADER), data.nbytes
    while end - position >= 4:  # fewer than 4 bytes after the last chunk are ignored, as Kafka does
        if data[position : position + 8] == XERIAL_MAGIC:
            position += len(XERIAL_HEADER)
            continue
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if not 0 <= length <= end - position:
            raise Corrupt(f"a snappy chunk says {length} bytes, {end - position} are left")
        part = _snappy_block(data[position : position + length], limit)
        limit -= len(part)
        parts.append(part)
        position += length
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy_block(block: memoryview, limit: int) -> bytes:
    import snappy

    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise Corrupt("a snappy block does not begin with its length")
    if size > limit or size > SNAPPY_MAX_RATIO * block.nbytes:
        raise _too_large("snappy", min(limit, SNAPPY_MAX_RATIO * block.nbytes), size)
    try:
        return snappy.uncompress(block)  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001 - the binding raises several kinds
        raise Corrupt(f"expected a snappy block: {error.__cause__ or error}") from None


def _lz4_compress(data: BytesLike, level: int | None) -> bytes:
    import lz4.frame

    # Kafka's default level 9 means the fast compressor, any other one the high-compression compressor at that level.
    return lz4.frame.compress(  # type: ignore[no-any-return]
        data,
        compression_level=0 if level in (None, 9) else max(level or 0, lz4.frame.COMPRESSIONLEVEL_MINHC),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )


def _lz4_decompress(data: memoryview, limit: int) -> bytes:
    import lz4.frame

    _check_lz4_frame(data, limit)
    try:
        if LZ4_MAX_RATIO * data.nbytes <= limit:
            return lz4.frame.decompress(data)  # type: ignore[no-any-return]
        stream = lz4.frame.LZ4FrameDecompressor()
        out: bytes = stream.decompress(data, max_length=limit)
        if not stream.eof and not stream.needs_input:
            raise _too_large("lz4", limit)
    except (RuntimeError, ValueError, EOFError, MemoryError, OverflowError) as error:
        raise Corrupt(f"expected an lz4 frame: {error}") from None
    if not stream.eof:
        raise Corrupt("the lz4 frame is cut off")
    return out


def _lz4_opened(data: memoryview, limit: int) -> tuple[int, Fill] | None:
    """Open a frame of plain blocks, as this and Kafka's Java clients write; any other, or a damaged one: None."""
    position, room = len(LZ4_WRITTEN), 0
    if data[:position] != LZ4_WRITTEN:
        return None
    blocks: list[tuple[int, int]] = []
    while (size := int.from_bytes(data[position : position + 4], "little")) != 0:
        plain, size = size >> 31, size & 0x7FFFFFFF
        start, position = position + 4, position + 4 + size
        if size > LZ4_BLOCK or position + 4 > data.nbytes:
            return None
        blocks.append((start, -position if plain else position))
        room += size if plain else min(size * LZ4_MAX_RATIO, LZ4_BLOCK)
    return (room, partial(_lz4_fill, data, blocks)) if blocks and room <= limit else None


def _lz4_fill(data: memoryview, blocks: list[tuple[int, int]], out: memoryview) -> int:
    # Straight to its place, block by block: the package lz4 decompresses frames of an unknown size piece by piece.
    import cramjam

    filled, fill = 0, cramjam.lz4.decompress_block_into
    try:
        for start, end in blocks:
            room = out[filled : filled + LZ4_BLOCK]
            if end < 0:
                filled += _copied(bytes(data[start:-end]), room)
            else:
                filled += fill(data[start:end], room)
    except cramjam.DecompressionError as error:
        raise Corrupt(f"expected an lz4 frame: {error}") from None
    return filled


def _check_lz4_frame(data: memoryview, limit: int) -> None:
    """Kafka's rules for the frame descriptor (its checksum is verified by the library)."""
    if data.nbytes < 7 or int.from_bytes(data[:4], "little") != LZ4_MAGIC:
        raise Corrupt(f"expected an lz4 frame (04224d18), found {bytes(data[:4]).hex() or 'nothing'}")
    flags, block = data[4], data[5]
    if flags >> 6 != 1:
        raise Corrupt(f"the lz4 frame has version {flags >> 6}, expected 1")
    if not flags & 0x20:
        raise Corrupt("the lz4 frame has linked blocks: Kafka reads independent blocks only")
    if flags & 0x03 or block & 0x8F or block >> 4 < 4:
        raise Corrupt(f"the lz4 frame has reserved bits or a dictionary (flags {flags:02x}, block {block:02x})")
    if flags & 0x08:
        size = int.from_bytes(data[6:14], "little")
        if size > min(limit, LZ4_MAX_RATIO * data.nbytes):
            raise _too_large("lz4", min(limit, LZ4_MAX_RATIO * data.nbytes), size)


def _zstd_compress(data: BytesLike, level: int | None) -> bytes:
    import zstandard

    level = 1 if level is None else level
    compressors: dict[int, Any] = _local.__dict__.setdefault("compressors", {})
    if level not in compressors:  # not safe to share between threads, and expensive to make
        compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressors[level].compress(data)  # type: ignore[no-any-return]


def _zstd_decompressor() -> Any:
    import zstandard

    decompressor = _local.__dict__.get("decompressor")
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def _zstd_opened(data: memoryview, limit: int) -> tuple[int, Fill] | None:
    """Open a frame that says how many bytes it holds; any other, or a damaged one: None."""
    import zstandard

    try:
        size = zstandard.frame_content_size(data)
        bound = _zstd_bound(data, zstandard.frame_header_size(data))
    except (zstandard.ZstdError, Corrupt):
        return None
    return (size, partial(_zstd_fill, data, size)) if 0 < size <= min(limit, bound) else None


def _zstd_fill(data: memoryview, size: int, out: memoryview) -> int:
    import zstandard

    try:
        with _zstd_decompressor().stream_reader(data) as reader:
            filled: int = reader.readinto(out[:size])
    except zstandard.ZstdError as error:
        raise Corrupt(f"expected a zstd frame: {error}") from None
    if filled != size:
        raise Corrupt("the zstd frame is cut off")
    return filled


def _zstd_decompress(data: memoryview, limit: int) -> bytes:
    import zstandard

    decompressor = _zstd_decompressor()
    bound = 0
    try:
        size = zstandard.frame_content_size(data)
        bound = _zstd_bound(data, zstandard.frame_header_size(data))
        if size > min(limit, bound):
            raise _too_large("zstd", min(limit, bound), size)
        if size >= 0:
            return decompressor.decompress(data)  # type: ignore[no-any-return]
        # Room for one byte more than the limit tells a frame that is too large from a damaged one.
        out: bytes = decompressor.decompress(data, max_output_size=max(1, min(bound, limit + 1)))
    except zstandard.ZstdError as error:
        if bound > limit and "full frame" in str(error):
            raise _too_large("zstd", limit) from None
        raise Corrupt(f"expected a zstd frame: {error}") from None
    if len(out) > limit:
        raise _too_large("zstd", limit)
    return out


def _zstd_bound(data: memoryview, position: int) -> int:
    """At most so many bytes are in a frame: its blocks are counted by their headers, each holds up to 128 KiB.

    Without it a frame that does not state its size would need a guess, and a second go when the guess was too small.
    """
    bound, end = 0, data.nbytes
    while position + 3 <= end:
        header = int.from_bytes(data[position : position + 3], "little")
        size = header >> 3
        bound += min(size, ZSTD_BLOCK) if header & 6 != 4 else ZSTD_BLOCK  # raw and repeated blocks say their size
        position += 4 if header & 6 == 2 else 3 + size
        if header & 1:
            if position > end:
                break
            return bound
    raise Corrupt("the zstd frame is cut off")


_FUNCTIONS: dict[str, tuple[Callable[[BytesLike, int | None], bytes], Callable[[memoryview, int], bytes]]] = {
    "gzip": (_gzip_compress, _gzip_decompress),
    "snappy": (_snappy_compress, _snappy_decompress),
    "lz4": (_lz4_compress, _lz4_decompress),
    "zstd": (_zstd_compress, _zstd_decompress),
}
_OPENINGS: dict[str, Callable[[memoryview, int], tuple[int, Fill] | None]] = {
    "lz4": _lz4_opened,
    "zstd": _zstd_opened,
}
