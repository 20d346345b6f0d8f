"""Unusual batches written by other clients and brokers, each with the result of Kafka's reader.

Every case is the beginning of a log, and is followed by a valid batch. The results of Kafka were recorded with the
classes of Kafka 4.1 (`FileRecords`, batch by batch, as a consumer iterates). `kafka` contains the offsets that Kafka
returns, and `fails` is True if Kafka then raises an error for the batch. If the result of sparklog differs, `here`
contains the result and `why` the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import lz4.frame
import snappy
import zstandard

from sparklog.format.compression import XERIAL_HEADER, compress, lz4_header_checksum
from sparklog.format.record_batch import CODECS, BatchHeader
from tests.format.old_messages import message, wrapper
from tests.kafka.logs import HOUR_MS, varint

READ: Final = "read"
REFUSED: Final = "refused"
Answer = Literal["read", "refused"]


@dataclass(frozen=True)
class OddBatch:
    """`data`: batches or messages from offset 0 on; `end`: the offset after them."""

    data: bytes
    end: int
    kafka: tuple[int, ...]
    fails: bool = False
    here: Answer | None = None
    why: str = ""

    @property
    def is_read(self) -> bool:
        """True if all records that Kafka returns can be read, False if the batch is `Corrupt`."""
        return (self.here or (REFUSED if self.fails else READ)) == READ

    @property
    def magic(self) -> int:
        return self.data[16] if len(self.data) > 16 else 2


# ---------------------------------------------------------------- compressed payloads


def _record(
    delta: int, key: bytes | None, value: bytes | None, *, attributes: int = 0, headers: bytes = b"\0"
) -> bytes:
    def field(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = bytes((attributes, 0)) + varint(delta) + field(key) + field(value) + headers
    return varint(len(body)) + body


KEYS = (b"k0", b"k1", b"k2", b"k0", b"k1", b"k2")
RECORDS = [_record(delta, key, b"v" * 50) for delta, key in enumerate(KEYS)]
DATA = b"".join(RECORDS)
ONE, TWO = DATA[:100], DATA[100:]
HEADER = BatchHeader(0, 5, 6, HOUR_MS, HOUR_MS, leader_epoch=0)
ALL = (0, 1, 2, 3, 4, 5)


def _flip(data: bytes, position: int) -> bytes:
    flipped = bytearray(data)
    flipped[position] ^= 0xFF
    return bytes(flipped)


def _sized(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(level=3, **options).compress(data)


def _unsized(data: bytes, **options: Any) -> bytes:
    stream = zstandard.ZstdCompressor(level=3, **options).compressobj()
    return bytes(stream.compress(data) + stream.flush())


def _raw_zstd(window_log: int) -> bytes:
    """Return a frame of one uncompressed block, with this window size and without a content size."""
    block = struct.pack("<I", len(DATA) << 3 | 1)[:3]
    return bytes.fromhex("28b52ffd00") + bytes(((window_log - 10) << 3,)) + block + DATA


SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"hello"
NOTHING_SKIPPED = struct.pack("<II", 0x184D2A5F, 0)
_AFTER = "its records are whole; Kafka hands them out as well, and then fails"

ZSTD: dict[str, tuple[bytes, Answer | None, tuple[int, ...], bool]] = {
    "a frame with its size": (_sized(DATA), None, ALL, False),
    "a frame without its size": (_unsized(DATA), None, ALL, False),
    "a checksum": (_sized(DATA, write_checksum=True), None, ALL, False),
    "a checksum without a size": (_unsized(DATA, write_checksum=True), None, ALL, False),
    "a wrong checksum": (_flip(_sized(DATA, write_checksum=True), -1), None, (), True),
    "two frames with sizes": (_sized(ONE) + _sized(TWO), None, ALL, False),
    "two frames without sizes": (_unsized(ONE) + _unsized(TWO), None, ALL, False),
    "two frames, the first with its size": (_sized(ONE) + _unsized(TWO), None, ALL, False),
    "two frames, the second with its size": (_unsized(ONE) + _sized(TWO), None, ALL, False),
    "a frame a record": (b"".join(map(_sized, RECORDS)), None, ALL, False),
    "a frame a byte": (b"".join(_sized(bytes((byte,))) for byte in DATA), None, ALL, False),
    "an empty frame before": (_sized(b"") + _sized(DATA), None, ALL, False),
    "an empty frame between": (_sized(ONE) + _sized(b"") + _sized(TWO), None, ALL, False),
    "an empty frame after": (_sized(DATA) + _sized(b""), None, ALL, False),
    "a skippable frame before": (SKIPPABLE + _sized(DATA), None, ALL, False),
    "a skippable frame between": (_sized(ONE) + NOTHING_SKIPPED + _unsized(TWO), None, ALL, False),
    "a skippable frame after": (_sized(DATA) + SKIPPABLE, None, ALL, False),
    "a skippable frame alone": (SKIPPABLE, None, (), True),
    "half a skippable frame": (SKIPPABLE[:-3], None, (), True),
    "a wrong checksum of the first of two": (
        _flip(_sized(ONE, write_checksum=True), -1) + _sized(TWO), None, (), True,
    ),
    "a wrong checksum of the second of two": (
        _sized(ONE) + _flip(_sized(TWO, write_checksum=True), -1), None, (0,), True,
    ),
    "half a second frame": (_sized(ONE) + _sized(TWO)[:-4], None, (0,), True),
    "garbage between": (_sized(ONE) + b"\1\2\3\4\5\6\7\x08" + _sized(TWO), None, (0,), True),
    "garbage after": (_sized(DATA) + b"\0\1\2", READ, ALL, True),
    "zeros after": (_sized(DATA) + bytes(8), READ, ALL, True),
    "half a frame after": (_sized(DATA) + _sized(TWO)[:-4], None, ALL, False),
    "a window of 2^27": (_raw_zstd(27), None, ALL, False),
    "a window of 2^31": (_raw_zstd(31), None, (), True),
}  # fmt: skip


def _lz4(data: bytes, **options: Any) -> bytes:
    given: dict[str, Any] = {"block_linked": False, "block_size": 4, "store_size": False, **options}
    return bytes(lz4.frame.compress(data, **given))


def _lz4_blocks(*parts: bytes, end: bool = True) -> bytes:
    """Return a frame of uncompressed blocks."""
    blocks = b"".join(struct.pack("<I", len(part) | 1 << 31) + part for part in parts)
    return bytes.fromhex("04224d18604082") + blocks + (bytes(4) if end else b"")


def _lz4_of_size(size: int) -> bytes:
    frame = _lz4(DATA, store_size=True)
    descriptor = frame[4:6] + struct.pack("<Q", size)
    return frame[:4] + descriptor + bytes((lz4_header_checksum(descriptor),)) + frame[15:]


LZ4: dict[str, tuple[bytes, Answer | None, tuple[int, ...], bool]] = {
    "plain": (_lz4(DATA), None, ALL, False),
    "a content checksum": (_lz4(DATA, content_checksum=True), None, ALL, False),
    "a wrong content checksum": (_flip(_lz4(DATA, content_checksum=True), -1), None, ALL, False),
    "a content checksum cut off": (_lz4(DATA, content_checksum=True)[:-4], None, ALL, True),
    "block checksums": (_lz4(DATA, block_checksum=True), None, ALL, False),
    "a wrong block checksum": (_flip(_lz4(DATA, block_checksum=True), -5), None, (), True),
    "its content size": (_lz4(DATA, store_size=True), None, ALL, False),
    "a wrong content size": (_lz4_of_size(len(DATA) + 7), None, ALL, False),
    "a wrong header checksum": (_flip(_lz4(DATA), 6), None, (), True),
    "linked blocks": (_lz4(DATA * 1000, block_linked=True), None, (), True),
    "blocks of a byte": (_lz4_blocks(*(bytes((byte,)) for byte in DATA)), None, ALL, False),
    "no end mark": (_lz4_blocks(DATA, end=False), None, ALL, True),
    "half an end mark": (_lz4_blocks(DATA)[:-2], None, ALL, True),
    "bytes after the end": (_lz4_blocks(DATA) + b"\1\2\3", None, ALL, False),
    "blocks of 256 KiB": (_lz4(DATA, block_size=5), None, ALL, False),
    "blocks of 4 MiB": (_lz4(DATA, block_size=7), None, ALL, False),
    "a skippable frame before": (SKIPPABLE + _lz4(DATA), None, (), True),
    "two frames": (_lz4(ONE) + _lz4(TWO), None, (0,), True),
    "an empty frame before": (_lz4(b"") + _lz4(DATA), None, (), True),
    "an empty frame after": (_lz4(DATA) + _lz4(b""), None, ALL, False),
}


def _gzip(data: bytes) -> bytes:
    return compress("gzip", data)


GZIP: dict[str, tuple[bytes, Answer | None, tuple[int, ...], bool]] = {
    "two members": (_gzip(ONE) + _gzip(TWO), None, ALL, False),
    "a member a byte": (b"".join(_gzip(bytes((byte,))) for byte in DATA), None, ALL, False),
    "an empty member before": (_gzip(b"") + _gzip(DATA), None, ALL, False),
    "an empty member between": (_gzip(ONE) + _gzip(b"") + _gzip(TWO), None, ALL, False),
    "an empty member after": (_gzip(DATA) + _gzip(b""), None, ALL, False),
    "garbage after": (_gzip(DATA) + b"\1\2\3\4" * 10, None, ALL, False),
    "zeros after": (_gzip(DATA) + bytes(40), None, ALL, False),
    "half a header after": (_gzip(DATA) + _gzip(TWO)[:6], None, ALL, False),
    "a header of garbage after": (_gzip(DATA) + b"\x1f\x8b" + b"\x07" * 40, None, ALL, False),
    "half a member after": (_gzip(DATA) + _gzip(TWO)[:-6], None, ALL[:5], True),
    "a wrong checksum": (_flip(_gzip(DATA), -8), None, ALL[:5], True),
    "a wrong checksum of the first of two": (_flip(_gzip(ONE), -8) + _gzip(TWO), None, (0,), True),
    "a wrong size": (_flip(_gzip(DATA), -4), None, ALL[:5], True),
    "half a trailer": (_gzip(DATA)[:-4], None, ALL[:5], True),
}


def _xerial(*parts: bytes, version: int = 1, compatible: int = 1, order: str = ">") -> bytes:
    chunks = b"".join(struct.pack(">i", len(chunk)) + chunk for chunk in map(snappy.compress, parts))
    return XERIAL_HEADER[:8] + struct.pack(f"{order}ii", version, compatible) + chunks


SNAPPY: dict[str, tuple[bytes, Answer | None, tuple[int, ...], bool]] = {
    "xerial": (_xerial(DATA), None, ALL, False),
    "versions of the other byte order": (_xerial(DATA, order="<"), None, ALL, False),
    "version 2, compatible with 1": (_xerial(DATA, version=2), None, ALL, False),
    "versions 2": (_xerial(DATA, version=2, compatible=2), None, ALL, False),
    "versions 0": (_xerial(DATA, version=0, compatible=0), None, ALL, False),
    "a raw block": (snappy.compress(DATA), None, ALL, False),
    "a chunk a byte": (_xerial(*(bytes((byte,)) for byte in DATA)), None, ALL, False),
    "a chunk of an empty block": (_xerial(ONE, b"", TWO), None, ALL, False),
    "a chunk of no bytes": (_xerial(ONE) + bytes(4) + _xerial(TWO)[16:], None, (), True),
    "a chunk of no bytes at the end": (_xerial(DATA) + bytes(4), None, (), True),
    "three bytes at the end": (_xerial(DATA) + bytes(3), None, ALL, False),
    "a header again in the middle": (_xerial(ONE) + _xerial(TWO), None, ALL, False),
    "a header alone": (XERIAL_HEADER, None, (), True),
    "a length beyond the end": (XERIAL_HEADER + struct.pack(">i", 9999) + snappy.compress(DATA), None, (), True),
    "a negative length": (XERIAL_HEADER + struct.pack(">i", -5) + snappy.compress(DATA), None, (), True),
    "two raw blocks": (snappy.compress(ONE) + snappy.compress(TWO), None, (), True),
}


def _compressed() -> dict[str, OddBatch]:
    cases = {}
    for codec, table in {"zstd": ZSTD, "lz4": LZ4, "gzip": GZIP, "snappy": SNAPPY}.items():
        header = replace(HEADER, attributes=CODECS.index(codec))
        for name, (payload, here, kafka, fails) in table.items():
            why = _AFTER if here == READ else ""
            cases[f"{codec}: {name}"] = OddBatch(header.pack(payload), 6, kafka, fails, here, why)
    return cases


# ---------------------------------------------------------------- headers and records


def _plain(records: Sequence[bytes], **fields: Any) -> bytes:
    header = BatchHeader(0, len(records) - 1, len(records), HOUR_MS, HOUR_MS, leader_epoch=0)
    return replace(header, **fields).pack(b"".join(records))


PAIR = (_record(0, b"k", b"v"), _record(1, b"k", b"w"))
_SHARED = "records cannot share an offset here"
_NEGATIVE_KEY = b"\0\0\0" + varint(-2) + varint(1) + b"v" + b"\0"

HEADERS = {
    "last delta 0 of two": OddBatch(_plain(PAIR, last_offset_delta=0), 1, (0, 1), here=REFUSED, why=_SHARED),
    "last delta 0 of two, gzip": OddBatch(
        replace(HEADER, last_offset_delta=0, count=2, attributes=1).pack(_gzip(b"".join(PAIR))),
        1, (0, 1), here=REFUSED, why=_SHARED,
    ),
    "last delta 5 of two": OddBatch(_plain(PAIR, last_offset_delta=5), 6, (0, 1)),
    "count 1 of two": OddBatch(_plain(PAIR, count=1), 2, (), fails=True),
    "count 3 of two": OddBatch(_plain(PAIR, count=3, last_offset_delta=2), 3, (0, 1), fails=True),
    "unused attribute bits": OddBatch(_plain(PAIR, attributes=0x7F80), 2, (0, 1)),
    "attributes of a record": OddBatch(_plain([_record(0, b"k", b"v", attributes=5)]), 1, (0,)),
    "a delete horizon": OddBatch(_plain(PAIR, attributes=0x40), 2, (0, 1)),
    "a producer without an epoch": OddBatch(_plain(PAIR, producer_id=7), 2, (0, 1)),
    "transactional without a producer": OddBatch(_plain(PAIR, attributes=0x10), 2, (0, 1)),
    "leader epoch -1": OddBatch(_plain(PAIR, leader_epoch=-1), 2, (0, 1)),
    "epoch 32767": OddBatch(_plain(PAIR, producer_id=7, producer_epoch=32767, base_sequence=0), 2, (0, 1)),
    "sequence 2^31-1": OddBatch(_plain(PAIR, producer_id=7, producer_epoch=0, base_sequence=2**31 - 1), 2, (0, 1)),
    "key length -2": OddBatch(_plain([varint(len(_NEGATIVE_KEY)) + _NEGATIVE_KEY]), 1, (0,)),
    "headers -1": OddBatch(_plain([_record(0, None, b"v", headers=varint(-1))]), 1, (), fails=True),
    "a header twice, null, without a name": OddBatch(
        _plain([_record(0, b"k", b"v", headers=varint(3) + b"\x02a\x021" + b"\x02a\x01" + b"\0\0")]), 1, (0,)
    ),
    "a record of zeros": OddBatch(
        replace(BatchHeader(0, 0, 1, 0, 0), leader_epoch=0).pack(_record(0, None, None)), 1, (0,)
    ),
}  # fmt: skip


# ---------------------------------------------------------------- messages of formats v0 and v1


def _v1(offset: int, value: bytes, *, time: int = HOUR_MS, attributes: int = 0, crc: int = 0) -> bytes:
    return message(offset, b"k%d" % offset, value, timestamp=time, attributes=attributes, crc=crc)


def _v0(offset: int, value: bytes, *, attributes: int = 0) -> bytes:
    return message(offset, b"k%d" % offset, value, magic=0, attributes=attributes)


def _wrapped(offset: int, *inner: bytes, codec: str = "gzip", magic: int = 1, attributes: int = 0) -> bytes:
    return wrapper(offset, codec, b"".join(inner), magic=magic, timestamp=HOUR_MS, attributes=attributes)


_ORDER = "offsets that do not increase are an error here"

LEGACY = {
    "v1, inner 0, 3, 7": OddBatch(_wrapped(10, _v1(0, b"a"), _v1(3, b"b"), _v1(7, b"c")), 11, (3, 6, 10)),
    "v1, inner 1, 3": OddBatch(_wrapped(10, _v1(1, b"a"), _v1(3, b"b")), 11, (8, 10)),
    "v1, absolute inner offsets": OddBatch(_wrapped(10, _v1(8, b"a"), _v1(10, b"b")), 11, (8, 10)),
    "v0, absolute inner offsets": OddBatch(_wrapped(10, _v0(8, b"a"), _v0(10, b"b"), magic=0), 11, (8, 10)),
    "v0, relative inner offsets": OddBatch(_wrapped(10, _v0(0, b"a"), _v0(1, b"b"), magic=0), 11, (0, 1)),
    "v0, inner offsets of 0": OddBatch(
        _wrapped(10, _v0(0, b"a"), _v0(0, b"b"), magic=0), 11, (0, 0), here=REFUSED, why=_ORDER
    ),
    "v0 in a wrapper of v1": OddBatch(_wrapped(10, _v0(0, b"a"), _v0(1, b"b")), 11, (9, 10)),
    "v1 in a wrapper of v0": OddBatch(_wrapped(10, _v1(0, b"a"), _v1(1, b"b"), magic=0), 11, (0, 1)),
    "append time in the wrapper": OddBatch(_wrapped(3, _v1(0, b"a"), _v1(1, b"b"), attributes=8), 4, (2, 3)),
    "append time within": OddBatch(_wrapped(3, _v1(0, b"a", attributes=8), _v1(1, b"b", attributes=8)), 4, (2, 3)),
    "v2, a wrapper of v0, v1": OddBatch(
        _plain([_record(0, b"k", b"c")]) + _wrapped(2, _v0(1, b"a"), _v0(2, b"b"), magic=0) + _v1(3, b"e"),
        4, (0, 1, 2, 3),
    ),
    "an empty wrapper": OddBatch(_wrapped(1), 2, (), fails=True),
    "a wrapper of null": OddBatch(message(1, None, None, timestamp=HOUR_MS, attributes=1), 2, (), fails=True),
    "a wrapper with a key": OddBatch(
        message(1, b"key", _gzip(_v1(0, b"a") + _v1(1, b"b")), timestamp=HOUR_MS, attributes=1), 2, (0, 1)
    ),
    "an inner message cut off": OddBatch(_wrapped(1, _v1(0, b"a"), _v1(1, b"b"), _v1(2, b"c")[:-3]), 2, (0, 1)),
    "a wrong checksum within": OddBatch(_wrapped(1, _v1(0, b"a"), _v1(1, b"b", crc=1)), 2, (0,), fails=True),
    "a wrapper in a wrapper": OddBatch(_wrapped(1, _wrapped(1, _v1(0, b"a"), _v1(1, b"b"))), 2, (), fails=True),
    "lz4 of v0, its old header checksum": OddBatch(
        _wrapped(1, _v0(0, b"a"), _v0(1, b"b"), codec="lz4", magic=0), 2, (0, 1)
    ),
    "lz4 of v1": OddBatch(_wrapped(1, _v1(0, b"a"), _v1(1, b"b"), codec="lz4"), 2, (0, 1)),
    "snappy of v1": OddBatch(_wrapped(1, _v1(0, b"a"), _v1(1, b"b"), codec="snappy"), 2, (0, 1)),
    "zstd of v1": OddBatch(_wrapped(1, _v1(0, b"a"), _v1(1, b"b"), codec="zstd"), 2, (), fails=True),
    "time -1": OddBatch(_v1(0, b"a", time=-1) + _v1(1, b"b"), 2, (0, 1)),
    "a negative time": OddBatch(_v1(0, b"a", time=-5), 1, (0,)),
    "inner offsets that fall": OddBatch(
        _wrapped(10, _v1(3, b"a"), _v1(1, b"b"), _v1(7, b"c")), 11, (6, 4, 10), here=REFUSED, why=_ORDER
    ),
    "unused attribute bits of v1": OddBatch(_v1(0, b"a", attributes=0x70), 1, (0,)),
    "unused attribute bits of v0": OddBatch(_v0(0, b"a", attributes=0x78), 1, (0,)),
}  # fmt: skip

CASES: dict[str, OddBatch] = {**_compressed(), **HEADERS, **LEGACY}
