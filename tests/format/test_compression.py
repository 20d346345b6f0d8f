"""Test the compression framings of all clients: encoding, decoding, limits and corruption."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Any

import lz4.block
import lz4.frame
import numpy as np
import pytest
import snappy
import zstandard

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import compression
from sparklog.format.compression import (
    LZ4_WRITTEN,
    XERIAL_HEADER,
    compress,
    decompress,
    decompressed_limit,
    open_stream,
)

CODECS = ("gzip", "snappy", "lz4", "zstd")
NOISE = np.random.default_rng(1).bytes(200_000)
INPUTS = {
    "nothing": b"",
    "one byte": b"x",
    "text": b"what compresses well " * 10_000,
    "noise": NOISE,
    "mixed": NOISE[:40_000] + bytes(300_000) + NOISE[:100],
    "one block": bytes(range(256)) * 256,
}


@pytest.mark.parametrize("codec", ["none", *CODECS])
@pytest.mark.parametrize("name", INPUTS)
def test_round_trip(codec: str, name: str) -> None:
    data = INPUTS[name]
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", 1), ("gzip", 9), ("gzip", -1), ("lz4", 1), ("lz4", 9), ("lz4", 17), ("zstd", -5), ("zstd", 19)],
)
def test_levels(codec: str, level: int) -> None:
    assert decompress(codec, compress(codec, INPUTS["text"], level)) == INPUTS["text"]


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", 0), ("gzip", 10), ("lz4", 0), ("lz4", 18), ("zstd", 23), ("snappy", 1)]
)
def test_levels_out_of_range(codec: str, level: int) -> None:
    with pytest.raises(BadRequest, match="level"):
        compress(codec, b"x", level)


def test_unknown_codecs() -> None:
    with pytest.raises(BadRequest, match="brotli"):
        compress("brotli", b"x")
    with pytest.raises(BadRequest, match="brotli"):
        decompress("brotli", b"x")


def test_written_lz4_frame_has_kafka_header() -> None:
    for data in INPUTS.values():
        frame = compress("lz4", data)
        assert frame[:7] == bytes.fromhex("04224d18604082")
        position, blocks = 7, 0
        while size := struct.unpack_from("<I", frame, position)[0] & 0x7FFFFFFF:
            position += 4 + size
            blocks += 1
        assert (position + 4, blocks) == (len(frame), -(-len(data) // 65536))


def test_snappy_is_written_in_32_kib_blocks() -> None:
    stream = compress("snappy", INPUTS["mixed"])
    assert stream[:16] == bytes.fromhex("82534e41505059000000000100000001")
    position, sizes = 16, []
    while position < len(stream):
        length = struct.unpack_from(">i", stream, position)[0]
        sizes.append(len(snappy.uncompress(stream[position + 4 : position + 4 + length])))
        position += 4 + length
    assert sizes == [32768] * (len(INPUTS["mixed"]) // 32768) + [len(INPUTS["mixed"]) % 32768]


@pytest.mark.parametrize("name", INPUTS)
def test_snappy_without_a_header(name: str) -> None:
    assert decompress("snappy", snappy.compress(INPUTS[name])) == INPUTS[name]


def test_snappy_concatenated_streams_and_short_tails() -> None:
    both = compress("snappy", b"first ") + compress("snappy", b"second")
    assert decompress("snappy", both) == b"first second"
    assert decompress("snappy", both + b"\x00\x00") == b"first second"


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 100])
def test_snappy_chunk_lengths(length: int) -> None:
    with pytest.raises(Corrupt, match="snappy chunk"):
        decompress("snappy", XERIAL_HEADER + struct.pack(">i", length) + b"abc")


@pytest.mark.parametrize("options", [{"store_size": True}, {"content_checksum": True}, {"block_checksum": True}])
@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
def test_lz4_frames_of_other_clients(options: dict[str, bool], block_size: int) -> None:
    given = {"store_size": False, **options}
    for data in INPUTS.values():
        frame = lz4.frame.compress(data, block_linked=False, block_size=block_size, **given)
        assert decompress("lz4", frame) == data
        assert decompress("lz4", frame, limit=len(data)) == data


def in_place(codec: str, stream: bytes) -> bytes:
    room, fill = open_stream(codec, stream)
    out = memoryview(bytearray(room))
    return bytes(out[: fill(out)])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", INPUTS)
def test_open_stream_and_decompress_return_the_same_bytes(codec: str, name: str) -> None:
    assert in_place(codec, compress(codec, INPUTS[name])) == INPUTS[name]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_open_stream_raises_corrupt_for_damage(codec: str) -> None:
    good = compress(codec, INPUTS["mixed"][:100_000])
    for length in (*range(40), *range(40, len(good), 997), len(good) - 1):
        with pytest.raises(Corrupt):
            in_place(codec, good[:length])
    refused = 0
    for position in range(0, len(good), len(good) // 200):
        bad = bytearray(good)
        bad[position] ^= 0x55
        try:
            in_place(codec, bytes(bad))
        except Corrupt:
            refused += 1
    assert refused > 0


def test_oversized_lz4_block_is_corrupt() -> None:
    block = lz4.block.compress(bytes(65537), store_size=False)
    frame = LZ4_WRITTEN + len(block).to_bytes(4, "little") + block + bytes(4)
    with pytest.raises(Corrupt):
        in_place("lz4", frame)


def test_lz4_frames_that_kafka_rejects() -> None:
    with pytest.raises(Corrupt, match="linked blocks"):
        decompress("lz4", lz4.frame.compress(NOISE, block_linked=True))
    good = bytearray(compress("lz4", b"x" * 100))
    for position, value, text in (
        (4, 0x20, "version 0"),
        (4, 0x61, "reserved"),
        (5, 0x30, "reserved"),
        (5, 0xC0, "reserved"),
    ):
        bad = good.copy()
        bad[position] = value
        with pytest.raises(Corrupt, match=text):
            decompress("lz4", bytes(bad))
    good[6] ^= 1
    with pytest.raises(Corrupt):
        decompress("lz4", bytes(good))


@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_zstd_frames_of_other_clients(size: bool, checksum: bool) -> None:
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=size, write_checksum=checksum)
    for data in (*INPUTS.values(), NOISE * 30 + bytes(3 << 20)):
        assert decompress("zstd", compressor.compress(data)) == data
        stream = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
        assert decompress("zstd", stream.compress(data) + stream.flush()) == data


def test_gzip_members_and_trailing_bytes() -> None:
    two = gzip.compress(b"one ") + gzip.compress(b"two")
    # Java ignores trailing bytes that cannot be another member.
    for rest in (b"", b"junk", bytes(40), b"\x1f\x8b", b"\x1f\x8b" + b"\x07" * 40, gzip.compress(b"three")[:9]):
        assert decompress("gzip", two + rest) == b"one two"
    with pytest.raises(Corrupt, match="truncated"):
        decompress("gzip", two + gzip.compress(b"three")[:-2])


def zstd_stream(data: bytes) -> bytes:
    """Return a frame that does not state its content size."""
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return bytes(stream.compress(data) + stream.flush())


def skippable(content: bytes, low: int = 0x50) -> bytes:
    return bytes((low, 0x2A, 0x4D, 0x18)) + struct.pack("<I", len(content)) + content


ONE, TWO = compress("zstd", b"one "), zstd_stream(b"two ")
ZSTD_PAYLOADS = {
    "both with sizes": (ONE + compress("zstd", b"two "), b"one two "),
    "first with its size": (ONE + TWO, b"one two "),
    "second with its size": (TWO + ONE, b"two one "),
    "without sizes": (TWO + TWO, b"two two "),
    "an empty frame before": (compress("zstd", b"") + ONE, b"one "),
    "an empty frame without a size before": (zstd_stream(b"") + TWO, b"two "),
    "an empty frame between": (ONE + compress("zstd", b"") + TWO, b"one two "),
    "an empty frame after": (ONE + compress("zstd", b""), b"one "),
    "a skippable frame before": (skippable(b"hello") + ONE, b"one "),
    "a skippable frame of nothing between": (TWO + skippable(b"", 0x5F) + ONE, b"two one "),
    "a skippable frame after": (TWO + skippable(b"hello", 0x57), b"two "),
    "a skippable frame alone": (skippable(b"hello"), b""),
    "a frame a byte": (b"".join(compress("zstd", b"%c" % byte) for byte in range(256)), bytes(range(256))),
    "garbage after": (ONE + TWO + b"\x00\x01\x02", b"one two "),
    "half a frame after": (ONE + TWO[:-2], b"one "),
    "half a skippable frame after": (ONE + skippable(b"hello")[:-2], b"one "),
}


@pytest.mark.parametrize("name", ZSTD_PAYLOADS)
def test_zstd_payload_is_a_sequence_of_frames(name: str) -> None:
    payload, content = ZSTD_PAYLOADS[name]
    assert decompress("zstd", payload) == content
    assert in_place("zstd", payload) == content
    if content:
        with pytest.raises(Corrupt, match="zstd data may decompress to at most"):
            decompress("zstd", payload, limit=len(content) - 1)
    assert decompress("zstd", payload, limit=len(content)) == content


def test_invalid_zstd_frames_are_rejected() -> None:
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(b"one ")
    wrong = checked[:-1] + bytes((checked[-1] ^ 0xFF,))
    for payload in (b"", skippable(b"hello")[:-2], skippable(b"")[:6], wrong + ONE, ONE + wrong, b"junk" + ONE):
        with pytest.raises(Corrupt, match="zstd frame"):
            decompress("zstd", payload)
        with pytest.raises(Corrupt, match="zstd frame"):
            in_place("zstd", payload)


def test_zstd_sizes_are_checked_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    monkeypatch.setattr(compression, "_zstd_content", lambda *_: pytest.fail("a frame was decompressed"))
    for read in (decompress, in_place):
        with pytest.raises(Corrupt, match=r"at most \d+ bytes, found 314572800"):
            read("zstd", frame * 300)


def lz4_frame(data: bytes, **options: Any) -> bytes:
    given: dict[str, Any] = {"block_linked": False, "block_size": 4, "store_size": False, **options}
    return bytes(lz4.frame.compress(data, **given))


def with_size(frame: bytes, size: int) -> bytes:
    """Return a frame that states another content size, with a correct descriptor checksum."""
    descriptor = frame[4:6] + struct.pack("<Q", size)
    return frame[:4] + descriptor + bytes((compression.lz4_header_checksum(descriptor),)) + frame[15:]


def flipped(data: bytes, position: int) -> bytes:
    bad = bytearray(data)
    bad[position] ^= 0xFF
    return bytes(bad)


LZ4_PAYLOADS = {
    "content checksum wrong": flipped(lz4_frame(b"one ", content_checksum=True), -1),
    "content checksum wrong, block checksums": flipped(
        lz4_frame(b"one ", content_checksum=True, block_checksum=True), -1
    ),
    "content size wrong": with_size(lz4_frame(b"one ", store_size=True), 2**40),
    "content size wrong, block checksums": with_size(lz4_frame(b"one ", store_size=True, block_checksum=True), 0),
    "a frame after": lz4_frame(b"one ") + lz4_frame(b"two "),
    "bytes after": lz4_frame(b"one ", content_checksum=True) + b"\1\2\3",
}


@pytest.mark.parametrize("name", LZ4_PAYLOADS)
def test_lz4_reader_matches_kafka(name: str) -> None:
    """Kafka ignores content sizes, content checksums, and bytes after the frame."""
    assert decompress("lz4", LZ4_PAYLOADS[name]) == b"one "
    assert decompress("lz4", LZ4_PAYLOADS[name], limit=100) == b"one "
    assert in_place("lz4", LZ4_PAYLOADS[name]) == b"one "


@pytest.mark.parametrize(
    "frame",
    [
        lz4_frame(b"one ", content_checksum=True)[:-4],
        lz4_frame(b"one ", content_checksum=True)[:-1],
        lz4_frame(b"one ", content_checksum=True, block_checksum=True)[:-1],
        flipped(lz4_frame(b"one ", block_checksum=True), -5),
        flipped(lz4_frame(b"one ", store_size=True), 14),
        skippable(b"ab") + lz4_frame(b"one "),
    ],
)
def test_lz4_frames_that_kafka_cannot_read(frame: bytes) -> None:
    for limit in (None, 100):
        with pytest.raises(Corrupt):
            decompress("lz4", frame, limit=limit)
    with pytest.raises(Corrupt):
        in_place("lz4", frame)


@pytest.mark.parametrize("writer", ["zlib", "isal.isal_zlib"])
@pytest.mark.parametrize("reader", ["zlib", "isal.isal_zlib"])
def test_gzip_with_and_without_isal(writer: str, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "isal is not installed: pip install 'sparklog[gzip]'"
    libraries = [pytest.importorskip(name, reason=why) for name in (writer, reader)]
    for level in (None, -1, 1, 2, 3, 6, 9):
        monkeypatch.setattr(compression, "_isal", lambda: libraries[0])
        written = {name: compress("gzip", data, level) for name, data in INPUTS.items()}
        monkeypatch.setattr(compression, "_isal", lambda: libraries[1])
        for name, data in written.items():
            assert decompress("gzip", data) == gzip.decompress(data) == INPUTS[name]
    two, size = written["text"] + written["mixed"], len(INPUTS["text"]) + len(INPUTS["mixed"])
    assert decompress("gzip", memoryview(two + b"junk"), size) == INPUTS["text"] + INPUTS["mixed"]
    with pytest.raises(Corrupt, match="gzip data may decompress to at most"):
        decompress("gzip", two, size - 1)
    for cut in (0, 1, 5, 17, len(two) // 2, len(two) - 5):
        if cut != len(written["text"]):
            with pytest.raises(Corrupt, match="truncated"):
                decompress("gzip", two[:cut])
    for place in (0, 2, 40, len(written["text"]) - 5, len(written["text"]) - 1):
        damaged = bytearray(written["text"])
        damaged[place] ^= 0xFF
        with pytest.raises(Corrupt, match="gzip stream"):
            decompress("gzip", damaged)


def test_explicit_gzip_levels_use_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    isal = pytest.importorskip("isal.isal_zlib", reason="isal is not installed: pip install 'sparklog[gzip]'")
    monkeypatch.setattr(compression, "_isal", lambda: isal)
    quick = compress("gzip", INPUTS["text"])
    monkeypatch.setattr(compression, "_isal", lambda: zlib)
    assert quick != compress("gzip", INPUTS["text"])
    high = compress("gzip", INPUTS["text"], 6)
    monkeypatch.setattr(compression, "_isal", lambda: isal)
    assert compress("gzip", INPUTS["text"], 6) == high


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["text", "noise", "one byte"])
def test_truncated_stream_is_corrupt(codec: str, name: str) -> None:
    whole = compress(codec, INPUTS[name][:70_000])
    for cut in {0, 1, 3, 7, 15, len(whole) // 2, len(whole) - 5, len(whole) - 1}:
        if codec == "snappy" and (cut in (0, 16) or cut - 16 in range(4)):
            continue
        if 0 <= cut < len(whole):
            with pytest.raises(Corrupt):
                decompress(codec, whole[:cut])


def bomb(codec: str, size: int) -> bytes:
    """Return a stream of about `size` zeros, created without allocating them."""
    step = 1 << 20
    if codec == "gzip":
        return gzip.compress(bytes(step)) * (size // step)
    if codec == "snappy":
        chunk = snappy.compress(bytes(32768))
        return XERIAL_HEADER + (struct.pack(">i", len(chunk)) + chunk) * (size // 32768)
    if codec == "lz4":
        frame = lz4.frame.compress(bytes(65536), block_linked=False, store_size=False)
        return frame[:7] + frame[7:-4] * (size // 65536) + bytes(4)
    # A zstd frame without content size, with blocks that repeat one byte: 4 bytes for 128 KiB.
    block = ((128 << 10) << 3 | 2).to_bytes(3, "little") + b"\x00"
    last = (8 << 3 | 3).to_bytes(3, "little") + b"\x00"
    return bytes.fromhex("28b52ffd0058") + block * (size // (128 << 10)) + last


@pytest.mark.parametrize("codec", CODECS)
def test_limits(codec: str) -> None:
    small = bomb(codec, 4 << 20)
    assert not any(decompress(codec, small, limit=5 << 20))
    with pytest.raises(Corrupt, match=f"{codec} data may decompress to at most"):
        decompress(codec, small, limit=3 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_stream_of_exactly_the_limit_is_decompressed(codec: str) -> None:
    for data in (bytes(100_000), NOISE):
        stream = compress(codec, data)
        assert decompress(codec, stream, limit=len(data)) == data
        with pytest.raises(Corrupt):
            decompress(codec, stream, limit=len(data) - 1)


def test_stated_sizes_are_not_trusted() -> None:
    claims = {
        "snappy": b"\xff\xff\xff\xff\x0f" + b"\x00" * 20,
        "zstd": bytes.fromhex("28b52ffd e0") + struct.pack("<Q", 2**40) + b"\x01\x00\x00",
    }
    for codec, stream in claims.items():
        with pytest.raises(Corrupt, match="at most"):
            decompress(codec, stream)
    assert zlib.crc32(b"") == 0


def test_limit_grows_with_input_size() -> None:
    assert decompressed_limit(0) == 64 << 20
    assert decompressed_limit(1000) == (64 << 20) + 256_000
    assert decompressed_limit(10**9) == 256 << 20
