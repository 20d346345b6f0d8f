"""Test messages of formats v0 and v1: Kafka's bytes, the bytes of a second implementation, and all kinds of damage."""

from __future__ import annotations

import random
import struct
from functools import partial
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import begins_with_header, crc_failures, scan_headers, single_header
from sparklog.format.decode import decode
from sparklog.format.filter_batches import filter_batches
from sparklog.format.payloads import payloads, record_fields
from sparklog.format.record_batch import CODECS, MAGIC_POSITION, BatchHeader, DataLocation
from tests.format.batch_samples import ALL, GOLDEN_BATCH, START_MS, decode_all, rows
from tests.format.old_messages import LOG_APPEND_TIME, Cell, message, messages, wrapper
from tests.format.plain_encoder import with_create_time
from tests.support.seeds import thinned

OLD_CODECS = ("gzip", "snappy", "lz4")
Row = tuple[int, int, Cell, Cell]
SAMPLE: list[Row] = [
    (100, START_MS, b"k1", b"v1"),
    (101, START_MS + 5, None, b"v2" * 3000),
    (103, START_MS - 10, b"k3", None),
    (104, START_MS, b"", b""),
]


def found(data: bytes) -> list[Row]:
    return [(offset, time, key, value) for offset, time, key, value, _ in rows(decode_all(data))]


def timeless(sample: list[Row]) -> list[Row]:
    return [(offset, -1, key, value) for offset, _, key, value in sample]


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("0000000000000064 0000001a a5da6a62 01 00 0000018bcfe56800 00000002 6b31 00000002 7631", SAMPLE[0], 0),
        ("0000000000000064 00000012 57e7496e 00 00 00000002 6b31 00000002 7631", (100, -1, b"k1", b"v1"), -1),
        ("0000000000000066 00000010 b643ca6a 00 00 00000002 6b33 ffffffff", (102, -1, b"k3", None), -1),
    ],
)
def test_messages_written_by_kafka(text: str, expected: Row, kind: int) -> None:
    data = bytes.fromhex(text)
    headers = scan_headers(data)
    assert (headers.size.tolist(), headers.end) == ([len(data)], len(data))
    assert not len(crc_failures(data, headers))
    assert found(data) == [expected]
    assert decode_all(data).timestamp_type.tolist() == [kind]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", *OLD_CODECS])
def test_messages_and_wrappers(codec: str, magic: int) -> None:
    first = 100 if magic else None
    inner = messages(SAMPLE, magic=magic, first=first)
    plain = messages(SAMPLE, magic=magic)
    data = plain if codec == "none" else wrapper(104, codec, inner, magic=magic, timestamp=START_MS + 5)
    assert found(data) == (SAMPLE if magic else timeless(SAMPLE))
    headers = scan_headers(data)
    if codec != "none":
        assert (headers.base_offset.tolist(), headers.last_offset.tolist(), headers.count.tolist()) == (
            [100],
            [104],
            [4],
        )
        assert headers.max_timestamp.tolist() == [START_MS + 5 if magic else -1]
    assert set(decode_all(data).timestamp_type.tolist()) == {0 if magic else -1}
    assert (headers.producer_id == -1).all()
    assert (headers.leader_epoch == -1).all()


def test_log_with_several_formats() -> None:
    parts = [
        message(10, b"a", b"b", magic=0),
        wrapper(12, "gzip", messages([(11, -1, b"c", b"d"), (12, -1, b"e", None)], magic=0), magic=0),
        message(13, b"f", b"g", timestamp=5),
        wrapper(16, "snappy", messages([(0, 6, b"h", b"i"), (2, 4, b"j", b"k")]), timestamp=6),
    ]
    data = b"".join(parts) + GOLDEN_BATCH + message(104, b"l", b"m", timestamp=7)
    expected = [
        *((10, -1, b"a", b"b"), (11, -1, b"c", b"d"), (12, -1, b"e", None), (13, 5, b"f", b"g"), (14, 6, b"h", b"i")),
        *((16, 4, b"j", b"k"), (100, START_MS, b"k1", b"v1"), (101, START_MS + 5, None, b"v2")),
        *((103, START_MS - 10, b"k3", None), (104, 7, b"l", b"m")),
    ]
    assert found(data) == expected
    headers = scan_headers(data)
    assert headers.magic is not None
    assert headers.magic.tolist() == [0, 0, 1, 1, 2, 1]
    assert headers.timestamp_type.tolist() == [-1, -1, 0, 0, 0, 0]
    assert headers.base_offset.tolist() == [10, 11, 13, 14, 100, 104]
    assert headers.position.tolist() == np.cumsum([0, *(len(part) for part in parts), len(GOLDEN_BATCH)]).tolist()
    part = decode(data, headers, columns=ALL, start_offset=12, end_offset=104, offset_shift=0)
    assert part.offset.tolist() == [12, 13, 14, 16, 100, 101, 103]
    assert part.batch_rows.tolist() == [0, 1, 1, 2, 3, 0]
    chosen = decode(data, headers, select=headers.is_legacy, offset_shift=1000)
    assert chosen.offset.tolist() == [1010, 1011, 1012, 1013, 1014, 1016, 1104]
    assert scan_headers(data[:-1], whole=False).stop == "partial"
    assert len(scan_headers(data[:-1], whole=False)) == 5


def test_wrapper_append_time_applies_to_its_records() -> None:
    inner = messages([(0, 5, b"a", b"b"), (1, 6, None, b"c")])
    data = wrapper(8, "gzip", inner, timestamp=99, attributes=LOG_APPEND_TIME)
    data += message(9, None, b"d", timestamp=77, attributes=LOG_APPEND_TIME)
    assert [row[:2] for row in found(data)] == [(7, 99), (8, 99), (9, 77)]
    assert decode_all(data).timestamp_type.tolist() == [1, 1, 1]
    raw = decode(data, with_create_time(scan_headers(data)))
    assert raw.timestamp.tolist() == [5, 6, 77]


def test_wrapper_at_offset_0_starts_at_0() -> None:
    data = wrapper(0, "snappy", messages([(0, 1, b"a", b"b"), (1, 2, b"c", b"d"), (2, 3, b"e", b"f")]), timestamp=3)
    assert [row[0] for row in found(data)] == [0, 1, 2]


def test_messages_of_v0_in_a_wrapper_of_v1() -> None:
    """Old brokers wrote such wrappers."""
    inner = message(0, b"a", b"b", magic=0) + message(1, b"c", b"d", timestamp=9)
    data = wrapper(51, "gzip", inner, timestamp=9)
    assert found(data) == [(50, -1, b"a", b"b"), (51, 9, b"c", b"d")]


@pytest.mark.parametrize(
    "options",
    [
        {"block_linked": False, "store_size": True},
        {"block_linked": False, "store_size": False, "content_checksum": True},
        {"block_linked": False, "store_size": False, "block_checksum": True, "block_size": lz4.frame.BLOCKSIZE_MAX1MB},
    ],
)
@pytest.mark.parametrize("magic", [0, 1])
def test_lz4_header_checksum_is_verified_only_in_v1(options: dict[str, Any], magic: int) -> None:
    inner = messages(SAMPLE, magic=magic, first=100 if magic else None)
    frame = bytearray(lz4.frame.compress(inner, **options))
    place = 14 if options.get("store_size") else 6

    def data() -> bytes:
        return message(104, None, bytes(frame), magic=magic, attributes=CODECS.index("lz4"))

    assert len(found(data())) == 4
    frame[place] ^= 0x55
    if magic == 0:
        assert len(found(data())) == 4
    else:
        with pytest.raises(Corrupt, match="expected an lz4 frame"):
            found(data())


def test_snappy_without_the_stream_header() -> None:
    import snappy

    inner = messages(SAMPLE, first=100)
    data = message(104, None, snappy.compress(inner), attributes=CODECS.index("snappy"))
    assert found(data) == SAMPLE


def test_more_messages_than_one_kernel_call_finds() -> None:
    many: list[Row] = [(i * 2, START_MS + i % 100, b"%d" % i, b"x" * (i % 200)) for i in range(30_000)]
    assert len(messages(many)) > 3 << 20
    assert found(messages(many)) == many
    pieces = [many[i : i + 500] for i in range(0, len(many), 500)]
    packed = b"".join(wrapper(p[-1][0], "lz4", messages(p, first=p[0][0]), timestamp=START_MS) for p in pieces)
    assert found(packed) == many


def test_record_fields_match_decoded_records() -> None:
    data = messages(SAMPLE) + wrapper(110, "snappy", messages(SAMPLE, first=100), timestamp=START_MS + 5)
    data += BatchHeader(120, 0, 0, -1, 7).pack() + message(130, b"z", b"y", magic=0)
    headers = scan_headers(data)
    body = payloads(data, headers)
    fields = record_fields(body, headers)
    columns = decode(data, with_create_time(headers))
    assert columns.key is not None
    assert columns.value is not None
    assert fields.offset.tolist() == columns.offset.tolist()
    assert fields.timestamp.tolist() == columns.timestamp.tolist()
    keys = [
        body.data[start : start + length].tobytes() if length >= 0 else None
        for start, length in zip(fields.key_start.tolist(), fields.key_length.tolist(), strict=True)
    ]
    assert keys == columns.key.to_pylist()
    assert fields.has_value.tolist() == columns.value.is_valid().to_pylist()
    assert fields.batch.tolist() == columns.batch.tolist()


# ---------------------------------------------------------------- conversion to format v2


def test_retained_messages_become_format_v2() -> None:
    data = messages(SAMPLE[:3]) + wrapper(114, "gzip", messages(SAMPLE, first=100), timestamp=START_MS + 5)
    data += wrapper(124, "snappy", messages(SAMPLE, first=100), timestamp=99, attributes=LOG_APPEND_TIME)
    data += message(130, b"k", b"v", magic=0) + message(131, b"k", b"v", magic=0) + GOLDEN_BATCH.replace(
        (100).to_bytes(8, "big"), (140).to_bytes(8, "big"), 1
    )  # fmt: skip
    headers = scan_headers(data)
    body = payloads(data, headers)
    fields = record_fields(body, headers)
    gone = (101, 110, 114, 121, 131)
    keep = ~np.isin(fields.offset, gone)
    none = np.zeros(len(headers), np.bool_)
    filtered = filter_batches(
        data, headers, body, fields, keep=keep, drop=none, empty=none, horizon=np.full(len(headers), -1)
    )
    out = filtered.data.tobytes()
    after = scan_headers(out)
    assert after.magic is None
    assert filtered.headers.magic is None
    assert not len(crc_failures(out, after))
    assert after.base_offset.tolist() == [100, 103, 111, 120, 130, 140]
    assert after.last_offset.tolist() == [100, 103, 113, 124, 130, 143]
    assert after.codec.tolist() == [0, 0, 1, 2, 0, 0]
    assert after.timestamp_type.tolist() == [0, 0, 0, 1, 0, 0]
    assert after.max_timestamp.tolist() == [START_MS, START_MS - 10, START_MS + 5, 99, -1, START_MS + 5]
    assert out[-len(GOLDEN_BATCH) :] == data[-len(GOLDEN_BATCH) :]
    before = [row for row in rows(decode(data, headers, columns=ALL)) if row[0] not in gone]
    assert rows(decode(out, after, columns=ALL)) == before
    for name in ("base_offset", "last_offset_delta", "size", "crc", "base_timestamp", "count"):
        assert getattr(filtered.headers, name).tolist() == getattr(after, name).tolist()


def test_message_retained_for_its_offsets_becomes_empty_batch() -> None:
    data = wrapper(104, "gzip", messages(SAMPLE, first=100), timestamp=START_MS)
    headers = scan_headers(data)
    body = payloads(data, headers)
    filtered = filter_batches(
        data, headers, body, record_fields(body, headers), keep=np.zeros(4, np.bool_), drop=np.zeros(1, np.bool_),
        empty=np.ones(1, np.bool_), horizon=np.full(1, -1),
    )  # fmt: skip
    after = scan_headers(filtered.data)
    assert (after.base_offset[0], after.last_offset[0], after.count[0], after.size[0]) == (100, 104, 0, 61)


# ---------------------------------------------------------------- damage


def at(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


INNER = messages([(0, 1, b"a", b"b"), (1, 2, b"c", b"d")])
BROKEN = {
    "flipped bit": (message(7, b"k", b"v", crc=1), "CRC-32 does not match"),
    "flipped bit, long": (message(7, b"k", b"v" * 5000, crc=1), "CRC-32 does not match"),
    "flipped bit, wrapper": (wrapper(7, "gzip", INNER, crc=1), "CRC-32 does not match"),
    "no value": (message(7, None, None, attributes=1), "has no value"),
    "no value in v0": (message(7, None, None, magic=0, attributes=2), "has no value"),
    "zstd": (wrapper(7, "zstd", INNER), "has codec 4"),
    "zstd in v0": (message(7, None, b"x", attributes=4, magic=0), "format v0 has codec 4"),
    "not gzip": (message(7, None, b"no gzip", attributes=1), "expected a gzip stream"),
    "empty": (wrapper(7, "gzip", b""), "contains no messages"),
    "inner cut off, nothing before it": (wrapper(7, "gzip", INNER[:20]), "contains no messages"),
    "inner size": (wrapper(7, "gzip", INNER + struct.pack(">qi", 2, 13) + bytes(13)), "a message of size 13, which"),
    "inner compressed": (wrapper(7, "gzip", wrapper(0, "snappy", INNER)), "contains another compressed message"),
    "inner checksum": (
        wrapper(7, "gzip", message(0, b"a", b"b", crc=4)),
        "CRC-32 of a message in a compressed message",
    ),
    "inner of v2": (wrapper(7, "gzip", INNER + GOLDEN_BATCH), "contains a message of format v2"),
    "offset too small": (wrapper(7, "gzip", message(9, b"a", b"b")), "has offset 7, which is below 9"),
    "offsets fall": (wrapper(7, "gzip", message(1, b"a", b"b") + message(0, b"a", b"b")), "do not increase"),
    "offsets repeat": (wrapper(7, "gzip", message(0, b"a", b"b") * 2), "do not increase"),
    "beyond a v0 wrapper": (
        wrapper(7, "gzip", message(8, b"a", b"b", magic=0), magic=0),
        "exceed the offset of that message",
    ),
    "key too long": (message(7, b"k" * 9, b"v"), "exceeds the message"),
    "value too long": (message(7, b"k", b"v" * 9), "exceeds the message"),
}


@pytest.mark.parametrize("magic", [0, 1])
def test_truncated_message_in_wrapper_is_ignored(magic: int) -> None:
    """Old clients truncated message sets anywhere. Kafka reads the complete messages before the truncation."""
    inner, last = messages([(0, 1, b"a", b"b"), (1, 2, b"c", b"d")], magic=magic), message(2, b"e", b"f", magic=magic)
    whole = found(wrapper(1, "gzip", inner, magic=magic))
    assert [row[0] for row in whole] == [0, 1]
    for cut in (1, 11, 12, 16, 17, len(last) - 1):
        assert found(wrapper(1, "gzip", inner + last[:cut], magic=magic)) == whole


def with_length(data: bytes, position: int, length: int) -> bytes:
    """Return the message with a changed length field, and a correct checksum."""
    import zlib

    body = at(data, position, struct.pack(">i", length))
    return at(body, 12, struct.pack(">I", zlib.crc32(body[16:])))


BROKEN["key too long"] = (with_length(BROKEN["key too long"][0], 26, 30), "exceeds the message")
BROKEN["value too long"] = (with_length(BROKEN["value too long"][0], 31, 10), "exceeds the message")


@pytest.mark.parametrize("name", BROKEN)
def test_damage_is_corrupt_with_its_position(name: str) -> None:
    broken, text = BROKEN[name]
    before, after = message(2, b"k", b"v"), message(9, b"k", b"v")
    data = before + broken + after
    headers = scan_headers(data)
    assert headers.position.tolist() == [0, len(before), len(before) + len(broken)]
    for read in (
        partial(decode, data, headers, location=DataLocation("a.log", 1000)),
        partial(payloads, data, headers, file="a.log", file_position=1000),
    ):
        with pytest.raises(Corrupt, match=text) as caught:
            read()
        assert (caught.value.file, caught.value.position) == ("a.log", 1000 + len(before))
        assert caught.value.offset is not None
        assert 3 <= caught.value.offset <= 7
    assert found(before + after) == [(2, -1, b"k", b"v"), (9, -1, b"k", b"v")]
    # A reader of other offsets does not reach the damage, and a reader of any of its offsets does.
    assert decode(data, headers, end_offset=3).offset.tolist() == [2]
    assert decode(data, headers, start_offset=8).offset.tolist() == [9]
    with pytest.raises(Corrupt):
        decode(data, headers, start_offset=7, end_offset=8)


def test_unknown_codec_is_corrupt() -> None:
    data = message(7, None, b"x", attributes=6)
    with pytest.raises(Corrupt, match=r"unknown compression codec \(5 to 7\)"):
        found(data)


def test_impossible_message_sizes_are_corrupt() -> None:
    whole = message(3, b"k", b"v")
    for data, stop in (
        (at(whole, 8, struct.pack(">i", 13)), "corrupt"),
        (at(whole, 8, struct.pack(">i", 21)), "corrupt"),
        (at(whole, 8, struct.pack(">i", -1)), "corrupt"),
        (at(whole, 8, struct.pack(">i", 2**31 - 1)), "partial"),
        (whole[:-1], "partial"),
        (bytes(40), "zeros"),
    ):
        headers = scan_headers(whole + data, whole=False)
        assert (len(headers), headers.stop, headers.end) == (1, stop, len(whole))
        with pytest.raises(Corrupt):
            scan_headers(whole + data)


def test_single_headers() -> None:
    for data in (message(5, None, None, magic=0), message(5, b"k", None, timestamp=8), GOLDEN_BATCH):
        assert begins_with_header(data)
        one, scanned = single_header(data), scan_headers(data)
        assert one.row(0) == scanned.row(0)
    assert not begins_with_header(b"")
    assert not begins_with_header(GOLDEN_BATCH[:60])
    assert not begins_with_header(message(5, None, None)[:33])
    assert not begins_with_header(at(GOLDEN_BATCH, MAGIC_POSITION, b"\x03"))


@pytest.mark.parametrize("step", thinned(3))
def test_random_damage_never_returns_wrong_records(fixtures: Path, step: int) -> None:
    logs = sorted(fixtures.glob("legacy/*/data/*/*.log"))
    chance = random.Random(3)
    wrong = right = 0
    for _ in range(0, 400, step):
        data = chance.choice(logs).read_bytes()[:20_000]
        data = data[: scan_headers(data, whole=False).end]
        if not data:
            continue
        expected = {(row[0], row[2], row[3]) for row in found(data)}
        broken = bytearray(data)
        for _ in range(chance.choice((1, 1, 5))):
            place = chance.randrange(len(broken))
            broken[place] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del broken[chance.randrange(len(broken)) :]
        headers = scan_headers(bytes(broken), whole=False)
        try:
            columns = decode(bytes(broken), headers, columns=ALL)
        except Corrupt:
            wrong += 1
            continue
        # The checksum does not cover offsets, so the records must be returned with some offset.
        cells = {(key, value) for _, key, value in expected}
        assert {(row[2], row[3]) for row in rows(columns)} <= cells
        right += 1
    assert wrong > 100 // step
    assert right > 20 // step


# ---------------------------------------------------------------- kafka-python


def peer_rows(data: bytes) -> list[tuple[int, int | None, Cell, Cell]]:
    """Return all records as kafka-python decodes them, including its checksum test."""
    out: list[tuple[int, int | None, Cell, Cell]] = []
    batches = MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert isinstance(batch, LegacyRecordBatch)
        assert batch.validate_crc()
        out += [(record.offset, record.timestamp, record.key, record.value) for record in batch]
    return out


def sample(count: int) -> list[Row]:
    noise = np.random.default_rng(1).bytes(50_000)
    return [
        (i, START_MS + (i * 37) % 500, None if i % 5 == 0 else b"key-%d" % i, None if i % 7 == 3 else noise[i : i * 9])
        for i in range(count)
    ]


PEER_KINDS = [(codec, magic) for codec in ("none", *OLD_CODECS) for magic in (0, 1) if (codec, magic) != ("lz4", 0)]
"""kafka-python can decode LZ4 of v0 only with a package that is not installed."""


@pytest.mark.parametrize(("codec", "magic"), PEER_KINDS)
def test_messages_of_kafka_python_are_decoded(codec: str, magic: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=CODECS.index(codec), batch_size=10_000_000)
    for offset, time, key, value in sample(300):
        builder.append(offset, timestamp=time, key=key, value=value)
    data = bytearray(builder.build())
    if codec != "none":
        struct.pack_into(">q", data, 0, 299)  # A broker sets the offset of a wrapper to the offset of its last record.
    expected = sample(300) if magic else timeless(sample(300))
    assert found(bytes(data)) == expected


@pytest.mark.parametrize(("codec", "magic"), PEER_KINDS)
def test_kafka_python_decodes_test_messages(codec: str, magic: int) -> None:
    base = sample(300)
    inner = messages(base, magic=magic)
    data = inner if codec == "none" else wrapper(299, codec, inner, magic=magic, timestamp=START_MS + 499)
    expected = [(offset, time if magic else None, key, value) for offset, time, key, value in base]
    assert peer_rows(data) == expected


def test_fixtures_match_kafka_python(fixtures: Path) -> None:
    compared = 0
    for log in sorted(fixtures.glob("legacy/builder-v*/data/*/*.log")):
        data = log.read_bytes()
        headers = scan_headers(data)
        for row in range(len(headers)):
            one = data[int(headers.position[row]) :][: int(headers.size[row])]
            if (int(headers.codec[row]), one[MAGIC_POSITION]) != (CODECS.index("lz4"), 0):
                ours = [(offset, None if time < 0 else time, key, value) for offset, time, key, value in found(one)]
                assert ours == peer_rows(one), log
                compared += len(ours)
    assert compared > 200
