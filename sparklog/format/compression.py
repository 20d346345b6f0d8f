"""Compress and decompress payloads in Kafka's framings.

The records of a compressed batch (all bytes after its 61-byte header) are one stream:

| codec  | bytes                                                                                                     |
|--------|-----------------------------------------------------------------------------------------------------------|
| gzip   | one RFC 1952 member. Also read: several members. Other bytes after a member are ignored                   |
| snappy | "xerial" stream: 16-byte header `82 SNAPPY 00`, int32 version 1, int32 compatible version 1, then chunks  |
|        | of int32 length and a raw block of at most 32 KiB of data. Also read: one raw block without the header (as|
|        | librdkafka writes), and headers repeated between chunks (concatenated streams)                             |
| lz4    | one LZ4 frame, version 1, independent blocks; written as `60 40 82`: 64 KiB blocks, no sizes or checksums. |
|        | Also read: block checksums, content size and content checksum (kafka-python, aiokafka). Like Kafka, the    |
|        | reader ignores content size, content checksum and all bytes after the frame. Like Kafka, it rejects linked |
|        | blocks, reserved bits and dictionaries                                                                    |
| zstd   | one frame, with or without its content size. Also read: several frames, including empty and skippable     |
|        | frames. Bytes after the last complete frame are ignored                                                   |

Every decompression has a limit in bytes, which is checked before memory is allocated, or while memory is filled. If
data exceeds the limit, `Corrupt` is raised. `decompressed_limit` is the limit of a batch.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.record_batch import CODECS, BytesLike

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_MAGIC = XERIAL_HEADER[:8]
XERIAL_BLOCK = 32 * 1024
GZIP_MAGIC = b"\x1f\x8b"
GZIP_DEFLATE = GZIP_MAGIC + b"\x08"
GZIP_MIN_BYTES = 20
"""Minimum size of a gzip member, which consists of a header, an empty block and a trailer. If fewer bytes follow a
member, Java ignores them.
"""
SNAPPY_MAX_RATIO = 32
"""Upper bound of the snappy compression ratio. A snappy element of 3 bytes decompresses to at most 64 bytes."""
LZ4_MAX_RATIO = 256
"""Upper bound of the LZ4 compression ratio. Each byte of an LZ4 match length adds at most 255 bytes."""
LZ4_MAGIC = 0x184D2204
LZ4_WRITTEN = bytes.fromhex("04224d18604082")
"""The first bytes of a frame of independent 64 KiB blocks without sizes and checksums."""
LZ4_BLOCK = 64 * 1024
LZ4_BLOCK_CHECKSUM, LZ4_CONTENT_SIZE, LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04
"""Flags in the descriptor of an LZ4 frame."""
ZSTD_BLOCK = 128 * 1024
ZSTD_FIRST_BYTE = b"\x28"
ZSTD_HEADER_BYTES = 18
"""The maximum length of a zstd frame header."""
ZSTD_CHECKSUM = 0x04
"""The flag in the descriptor of a zstd frame that indicates a checksum after the blocks."""
LIMIT_FLOOR, LIMIT_RATIO, LIMIT_CEILING = 64 << 20, 256, 256 << 20
"""The decompressed size of a batch is limited to 64 MiB plus 256 times its compressed size, and to at most 256 MiB. In
Kafka, the default maximum size of a compressed batch is 1 MiB.
"""

ISAL_LEVELS = {-1: 2, 1: 1, 2: 2, 3: 3}
"""The isal level for each gzip level that isal implements. Higher levels use zlib, whose output is smaller."""

_LEVELS = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
_local = threading.local()


def decompressed_limit(nbytes: int) -> int:
    return min(LIMIT_FLOOR + LIMIT_RATIO * nbytes, LIMIT_CEILING)


def compress(codec: str, data: BytesLike, level: int | None = None) -> bytes:
    """Compress `data` in Kafka's framing of `codec`. The codec "none" returns `data` unchanged.

    If `level` is None, the codec's default level is used: gzip 6 (if isal is installed, level 2 of isal, whose output
    is up to 15 % larger), lz4 fast, zstd 1. snappy has no levels. Raises `BadRequest` for an unknown codec or level.
    """
    if codec == "none":
        return bytes(data)
    if codec not in _FUNCTIONS:
        raise BadRequest(f"unknown compression codec {codec!r}: use one of {', '.join(CODECS)}")
    check_level(codec, level)
    return _FUNCTIONS[codec][0](data, level)


def check_level(codec: str, level: int | None) -> None:
    """Raise `BadRequest` for a level that is outside of Kafka's range, and for gzip level 0, which Kafka does not
    support.
    """
    if level is None:
        return
    if codec not in _LEVELS:
        raise BadRequest(f"codec {codec} does not support compression levels, found level {level!r}: omit the level")
    low, high = _LEVELS[codec]
    if not low <= level <= high or (codec == "gzip" and level == 0):
        raise BadRequest(f"compression level {level} is out of range for {codec}: use {low} to {high}")


def decompress(codec: str, data: BytesLike, limit: int | None = None) -> bytes:
    """Decompress a stream.

    Raises `Corrupt` if the stream is invalid or decompresses to more than `limit` bytes (default:
    `decompressed_limit`).
    """
    view = memoryview(data)
    if codec == "none":
        return bytes(view)
    if codec not in _FUNCTIONS:
        raise BadRequest(f"unknown compression codec {codec!r}: use one of {', '.join(CODECS)}")
    return _FUNCTIONS[codec][1](view, decompressed_limit(view.nbytes) if limit is None else limit)


Fill = Callable[[memoryview], int]
"""Function that writes decompressed bytes to a sufficiently large buffer, and returns their number. It may raise
`Corrupt`.
"""


def open_stream(codec: str, data: BytesLike) -> tuple[int, Fill]:
    """Return an upper bound of the decompressed size of a stream, and a function that decompresses the stream to a
    given buffer.

    The function decompresses directly to the buffer, so the result does not have to be copied. Raises the errors of
    `decompress`.
    """
    view = memoryview(data)
    opening = _OPENERS[codec](view, decompressed_limit(view.nbytes)) if codec in _OPENERS else None
    if opening is not None:
        return opening
    part = decompress(codec, view)
    return len(part), partial(_copy_state, part)


def _copy_state(part: bytes, out: memoryview) -> int:
    out[: len(part)] = part
    return len(part)


def _too_large(codec: str, limit: int, size: int | None = None) -> Corrupt:
    return Corrupt(f"{codec} data may decompress to at most {limit} bytes, found {'more' if size is None else size}")


@cache
def _isal() -> Any:
    """Return isal's variant of zlib, which is several times as fast. If isal is not installed, return zlib."""
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
    # For short data that is not a gzip stream, isal would wait for more input, and would not raise an error.
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
            raise Corrupt("the gzip stream is truncated")
        rest = member.unused_data
        if rest[:3] != GZIP_DEFLATE or len(rest) < GZIP_MIN_BYTES:  # Java also ignores these bytes.
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
    while end - position >= 4:  # Like Kafka, ignore fewer than 4 bytes after the last chunk.
        if data[position : position + 8] == XERIAL_MAGIC:
            position += len(XERIAL_HEADER)
            continue
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if not 0 <= length <= end - position:
            raise Corrupt(f"a snappy chunk has a length of {length} bytes, but only {end - position} bytes remain")
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

    # Kafka's default level 9 selects the fast compressor. Any other level selects the high-compression compressor.
    return lz4.frame.compress(  # type: ignore[no-any-return]
        data,
        compression_level=0 if level in (None, 9) else max(level or 0, lz4.frame.COMPRESSIONLEVEL_MINHC),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )


def _lz4_decompress(data: memoryview, limit: int) -> bytes:
    import lz4.frame

    frame, trailer = _lz4_plain_frame(data)
    try:
        if LZ4_MAX_RATIO * data.nbytes <= limit:
            out, end = lz4.frame.decompress(frame, return_bytes_read=True)
            remaining = len(frame) - end
        else:
            stream = lz4.frame.LZ4FrameDecompressor()
            out = stream.decompress(frame, max_length=limit)
            if not stream.eof and not stream.needs_input:
                raise _too_large("lz4", limit)
            remaining = len(stream.unused_data or b"") if stream.eof else -1
    except (RuntimeError, ValueError, EOFError, MemoryError, OverflowError) as error:
        raise Corrupt(f"expected an lz4 frame: {error}") from None
    if remaining < trailer:
        raise Corrupt("the lz4 frame is truncated")
    return out  # type: ignore[no-any-return]


def _open_lz4(data: memoryview, limit: int) -> tuple[int, Fill] | None:
    """Open a frame without block checksums, as Kafka clients write it.

    Return None if the frame has another form or is corrupt.
    """
    position, block_max, trailer = len(LZ4_WRITTEN), LZ4_BLOCK, 0
    if data[:position] != LZ4_WRITTEN:
        position, flags, block_max = _lz4_descriptor(data)
        if flags & LZ4_BLOCK_CHECKSUM:
            return None
        trailer = 4 if flags & LZ4_CONTENT_CHECKSUM else 0
    room = 0
    blocks: list[tuple[int, int]] = []
    while (size := int.from_bytes(data[position : position + 4], "little")) != 0:
        plain, size = size >> 31, size & 0x7FFFFFFF
        start, position = position + 4, position + 4 + size
        if size > block_max or position + 4 > data.nbytes:
            return None
        blocks.append((start, -position if plain else position))
        room += size if plain else min(size * LZ4_MAX_RATIO, block_max)
    if not blocks or room > limit or position + 4 + trailer > data.nbytes:
        return None
    return room, partial(_lz4_fill, data, blocks, block_max)


def _lz4_fill(data: memoryview, blocks: list[tuple[int, int]], block_max: int, out: memoryview) -> int:
    # Decompress each block directly to the final buffer, because the lz4 package uses small buffers for frames of
    # unknown size.
    import cramjam

    filled, fill = 0, cramjam.lz4.decompress_block_into
    try:
        for start, end in blocks:
            room = out[filled : filled + block_max]
            if end < 0:
                filled += _copy_state(bytes(data[start:-end]), room)
            else:
                filled += fill(data[start:end], room)
    except cramjam.DecompressionError as error:
        raise Corrupt(f"expected an lz4 frame: {error}") from None
    return filled


def _lz4_descriptor(data: memoryview) -> tuple[int, int, int]:
    """Return the position of the first block of a frame, its flags and its maximum block size.

    Validates the frame like Kafka.
    """
    if data.nbytes < 7 or int.from_bytes(data[:4], "little") != LZ4_MAGIC:
        raise Corrupt(f"expected an lz4 frame (04224d18), found {bytes(data[:4]).hex() or 'nothing'}")
    flags, block = data[4], data[5]
    if flags >> 6 != 1:
        raise Corrupt(f"the lz4 frame has version {flags >> 6}, expected 1")
    if not flags & 0x20:
        raise Corrupt("the lz4 frame has linked blocks: Kafka reads only independent blocks")
    if flags & 0x03 or block & 0x8F or block >> 4 < 4:
        raise Corrupt(f"the lz4 frame has reserved bits or a dictionary (flags {flags:02x}, block {block:02x})")
    checksum = 14 if flags & LZ4_CONTENT_SIZE else 6
    if data.nbytes <= checksum:
        raise Corrupt("the lz4 frame is truncated")
    if data[checksum] != lz4_header_checksum(bytes(data[4:checksum])):
        raise Corrupt("expected an lz4 frame: the checksum of its descriptor does not match")
    return checksum + 1, flags, 1 << (2 * (block >> 4) + 8)


def _lz4_plain_frame(data: memoryview) -> tuple[BytesLike, int]:
    """Return a frame without content size and content checksum, and the number of bytes that must follow the frame.

    Kafka ignores both fields, because the checksum of the batch covers the compressed bytes. Therefore Kafka can read a
    frame whose content size or checksum is wrong. The lz4 library would reject such a frame.
    """
    start, flags, _ = _lz4_descriptor(data)
    if not flags & (LZ4_CONTENT_SIZE | LZ4_CONTENT_CHECKSUM):
        return data, 0
    descriptor = bytes((flags & ~(LZ4_CONTENT_SIZE | LZ4_CONTENT_CHECKSUM), data[5]))
    head = data[:4].tobytes() + descriptor + bytes((lz4_header_checksum(descriptor),))
    return head + data[start:], 4 if flags & LZ4_CONTENT_CHECKSUM else 0


@lru_cache
def lz4_header_checksum(descriptor: bytes) -> int:
    """Return the checksum of an lz4 frame descriptor, which is one byte of the XXH32 (seed 0) of its fields."""
    primes = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
    mask = 0xFFFFFFFF

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & mask

    # XXH32 of fewer than 16 bytes does not need the main loop.
    state, words = (primes[4] + len(descriptor)) & mask, len(descriptor) // 4
    for word in struct.unpack_from(f"<{words}I", descriptor):
        state = rotate((state + word * primes[2]) & mask, 17) * primes[3] & mask
    for byte in descriptor[4 * words :]:
        state = rotate((state + byte * primes[4]) & mask, 11) * primes[0] & mask
    state = (state ^ state >> 15) * primes[1] & mask
    state = (state ^ state >> 13) * primes[2] & mask
    return (state ^ state >> 16) >> 8 & 0xFF


def _zstd_compress(data: BytesLike, level: int | None) -> bytes:
    import zstandard

    level = 1 if level is None else level
    compressors: dict[int, Any] = _local.__dict__.setdefault("compressors", {})
    if level not in compressors:  # Compressors are expensive to create, and not safe to share between threads.
        compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressors[level].compress(data)  # type: ignore[no-any-return]


def _zstd_decompressor() -> Any:
    import zstandard

    decompressor = _local.__dict__.get("decompressor")
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def _open_zstd(data: memoryview, limit: int) -> tuple[int, Fill]:
    frames = _zstd_frames(data)
    start, end, size, bound = frames[0] if frames else (0, 0, 0, 0)
    if end - start == data.nbytes and 0 < size <= limit and size <= bound:
        return size, partial(_zstd_fill, data, size)
    content = _zstd_contents(data, frames, limit)
    return len(content), partial(_copy_state, content)


def _zstd_fill(data: memoryview, size: int, out: memoryview) -> int:
    import zstandard

    try:
        with _zstd_decompressor().stream_reader(data) as reader:
            filled: int = reader.readinto(out[:size])
    except zstandard.ZstdError as error:
        raise Corrupt(f"expected a zstd frame: {error}") from None
    if filled != size:
        raise Corrupt("the zstd frame is truncated")
    return filled


def _zstd_decompress(data: memoryview, limit: int) -> bytes:
    return _zstd_contents(data, _zstd_frames(data), limit)


def _zstd_contents(data: memoryview, frames: list[_ZstdFrame], limit: int) -> bytes:
    # Check the content sizes in the frame headers, and reject frames that are too large before any frame is
    # decompressed.
    stated = sum(size for _, _, size, _ in frames if size > 0)
    if stated > limit:
        raise _too_large("zstd", limit, stated)
    parts, remaining = list[bytes](), limit
    for frame in frames:
        part = _zstd_content(data, frame, remaining)
        if len(part) > remaining:
            raise _too_large("zstd", limit)
        remaining -= len(part)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


_ZstdFrame = tuple[int, int, int, int]
"""Start and end position of a frame in its payload, its content size (-1 if the frame does not contain it), and an
upper bound of the content size.
"""


def _zstd_frames(data: memoryview) -> list[_ZstdFrame]:
    """Return the frames of a payload, except skippable frames. The result ends at the end of the payload or before the
    first incomplete frame.

    Kafka reads frames only as long as it needs more records, so it never reads corrupt bytes after the last record.
    """
    if data[:1] == ZSTD_FIRST_BYTE:
        frames = [_zstd_frame(data, 0)]
        position = frames[0][1]
    else:
        frames, position = [], 0
    while position < data.nbytes:
        try:
            if _zstd_is_skippable(data, position):
                position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
                if position > data.nbytes:
                    raise Corrupt("the zstd frame is truncated")
            else:
                frames.append(_zstd_frame(data, position))
                position = frames[-1][1]
        except Corrupt:
            if not frames:
                raise
            break
    if not data.nbytes:
        raise Corrupt("the zstd frame is truncated")
    return frames


def _zstd_is_skippable(data: memoryview, position: int) -> bool:
    return data[position] & 0xF0 == 0x50 and bytes(data[position + 1 : position + 4]) == b"\x2a\x4d\x18"


def _zstd_frame(data: memoryview, start: int) -> _ZstdFrame:
    """Return the frame at `start`, with an upper bound of its content size. Each block has at most 128 KiB.

    If a frame does not contain its content size, the buffer is allocated with the upper bound, so that decompression
    does not have to be retried with a larger buffer.
    """
    import zstandard

    end, bound = data.nbytes, 0
    try:
        head = data[start : start + ZSTD_HEADER_BYTES] if start else data
        size, position = zstandard.frame_content_size(head), start + zstandard.frame_header_size(head)
    except zstandard.ZstdError as error:
        raise Corrupt(f"expected a zstd frame: {error}") from None
    while position + 3 <= end:
        header = int.from_bytes(data[position : position + 3], "little")
        nbytes = header >> 3
        bound += min(nbytes, ZSTD_BLOCK) if header & 6 != 4 else ZSTD_BLOCK  # A raw or RLE block has the stated size.
        position += 4 if header & 6 == 2 else 3 + nbytes
        if header & 1:
            position += 4 if data[start + 4] & ZSTD_CHECKSUM else 0
            if position > end:
                break
            return start, position, size, bound
    raise Corrupt("the zstd frame is truncated")


def _zstd_content(data: memoryview, frame: _ZstdFrame, limit: int) -> bytes:
    import zstandard

    start, end, size, bound = frame
    if size > min(limit, bound):
        raise _too_large("zstd", min(limit, bound), size)
    decompressor, content = _zstd_decompressor(), data[start:end]
    try:
        if size >= 0:
            return decompressor.decompress(content)  # type: ignore[no-any-return]
        # One byte more than the limit distinguishes a frame that is too large from a corrupt frame.
        return decompressor.decompress(content, max_output_size=max(1, min(bound, limit + 1)))  # type: ignore[no-any-return]
    except zstandard.ZstdError as error:
        if bound > limit and "full frame" in str(error):
            raise _too_large("zstd", limit) from None
        raise Corrupt(f"expected a zstd frame: {error}") from None


_FUNCTIONS: dict[str, tuple[Callable[[BytesLike, int | None], bytes], Callable[[memoryview, int], bytes]]] = {
    "gzip": (_gzip_compress, _gzip_decompress),
    "snappy": (_snappy_compress, _snappy_decompress),
    "lz4": (_lz4_compress, _lz4_decompress),
    "zstd": (_zstd_compress, _zstd_decompress),
}
_OPENERS: dict[str, Callable[[memoryview, int], tuple[int, Fill] | None]] = {
    "lz4": _open_lz4,
    "zstd": _open_zstd,
}
