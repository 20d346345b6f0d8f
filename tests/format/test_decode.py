"""Test decoding: golden records, all validity rules, filters and timestamp rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.compression import compress
from sparklog.format.decode import decode
from sparklog.format.kernels.record_kernels import BAD, read_varint, read_varlong
from sparklog.format.record_batch import CODECS, BatchHeader, DataLocation
from tests.format.batch_samples import (
    ALL,
    CODEC_NAMES,
    GOLDEN_BATCH,
    GOLDEN_HEADER,
    GOLDEN_RECORDS,
    decode_all,
    encode_sample,
    golden_columns,
    rows,
    sample,
)
from tests.format.plain_encoder import with_create_time

VARINTS = [
    (0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (127, "fe01"),
    (128, "8002"), (300, "d804"), (8191, "fe7f"), (8192, "808001"), (2**31 - 1, "feffffff0f"), (-(2**31), "ffffffff0f"),
]  # fmt: skip
VARLONGS = [*VARINTS, (2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")]


def varint(value: int) -> bytes:
    """Encode a number as zig-zag LEB128."""
    bits = (value << 1) ^ (value >> 63)
    bits &= 2**64 - 1
    out = bytearray()
    while bits >= 0x80:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes(out + bytes([bits]))


def record(body: bytes, length: int | None = None) -> bytes:
    return varint(len(body) if length is None else length) + body


def batch(payload: bytes, count: int = 1, **fields: int) -> bytes:
    return replace(GOLDEN_HEADER, count=count, last_offset_delta=max(count - 1, 0), **fields).pack(payload)


def read(function: object, data: bytes) -> tuple[int, int]:
    """Call a varint kernel.

    Return the value and the number of bytes read, or -1 if the bytes are not a valid number.
    """
    array = np.frombuffer(data, np.uint8)
    value, end = function(array.ctypes.data, array.ctypes.data + len(data))  # type: ignore[operator]
    return value, -1 if end == BAD else end - array.ctypes.data


@pytest.mark.parametrize(("value", "text"), VARINTS)
def test_varint_vectors(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert read(read_varint, data + b"\xff") == (value, len(data))
    assert varint(value) == data
    assert read(read_varint, data[:-1] + bytes([data[-1] | 0x80]))[1] == -1


@pytest.mark.parametrize(("value", "text"), VARLONGS)
def test_varlong_vectors(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert read(read_varlong, data + b"\xff") == (value, len(data))
    assert varint(value) == data


def test_overlong_varints_are_accepted_up_to_the_limit() -> None:
    assert read(read_varint, bytes.fromhex("8280808000")) == (1, 5)
    assert read(read_varint, bytes.fromhex("828080808000"))[1] == -1
    assert read(read_varlong, bytes.fromhex("82808080808080808000")) == (1, 10)
    assert read(read_varlong, bytes.fromhex("8280808080808080808000"))[1] == -1


def test_golden_records() -> None:
    columns = decode_all(GOLDEN_BATCH)
    assert rows(columns) == rows(golden_columns())
    assert columns.timestamp_type.tolist() == [0, 0, 0]
    assert columns.batch.tolist() == [0, 0, 0]
    assert columns.headers is not None
    columns.headers.validate(full=True)


@pytest.mark.parametrize(
    ("codec", "payload", "crc"),
    [
        (
            "gzip",
            """1f8b08000000000000ff 5362606060c9366429336461ca60aa60ca631460e06262642933621060106663c93666640000
            d2ab6738 24000000""",
            0xB95FD408,
        ),
        (
            "snappy",
            """82534e41505059000000000100000001 00000026
            248c22000000046b310476310402680278026e0110000a02010476320010001306046b330100""",
            0xDB9C2BA1,
        ),
        (
            "lz4",
            """04224d18604082 24000080
            22000000046b310476310402680278026e0110000a02010476320010001306046b330100 00000000""",
            0x0ADD2F2D,
        ),
        (
            "zstd",
            """28b52ffd0058 200100
            22000000046b310476310402680278026e0110000a02010476320010001306046b330100 010000""",
            0xF9635707,
        ),
    ],
)
def test_golden_compressed(codec: str, payload: str, crc: int) -> None:
    data = replace(GOLDEN_HEADER, attributes=CODECS.index(codec)).pack(bytes.fromhex(payload))
    assert scan_headers(data).crc.tolist() == [crc]
    assert rows(decode_all(data)) == rows(golden_columns())


def test_log_append_time_rules() -> None:
    data = replace(GOLDEN_HEADER, attributes=0x08, max_timestamp=1_700_000_009_999).pack(GOLDEN_RECORDS) + GOLDEN_BATCH
    columns = decode_all(data)
    assert columns.timestamp.tolist()[:3] == [1_700_000_009_999] * 3
    assert columns.timestamp_type.tolist() == [1, 1, 1, 0, 0, 0]
    given = decode_all(data, append_time=42)
    assert given.timestamp.tolist() == [42, 42, 42, *golden_columns().timestamp.tolist()]
    raw = decode(data, with_create_time(scan_headers(data)))
    assert raw.timestamp.tolist() == golden_columns().timestamp.tolist() * 2


def test_delete_horizon_batches_decode_to_the_original_times() -> None:
    horizon = 1_800_000_000_000
    payload = record(b"\x00" + varint(1_700_000_000_000 - horizon) + b"\x00\x02k\x01\x00")
    columns = decode_all(batch(payload, attributes=0x40, base_timestamp=horizon))
    assert columns.timestamp.tolist() == [1_700_000_000_000]
    assert columns.value is not None
    assert columns.value.to_pylist() == [None]


def test_empty_batches_are_not_decompressed() -> None:
    empty = replace(GOLDEN_HEADER, count=0, base_timestamp=-1).pack()
    junk = replace(GOLDEN_HEADER, count=0, attributes=4).pack(b"this is no zstd frame")
    columns = decode_all(empty + GOLDEN_BATCH + junk)
    assert columns.batch.tolist() == [1, 1, 1]
    assert columns.batch_rows.tolist() == [0, 3, 0]
    assert len(decode_all(junk)) == 0
    assert len(decode_all(b"")) == 0


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (1500, None), (None, 1700), (1433, 1434), (1100, 1900), (9999, None)]
)
def test_offset_bounds_and_shift(codec: str, start: int | None, end: int | None) -> None:
    data = encode_sample(900, codec, batch_bytes=4096).data
    everything = rows(decode_all(data, offset_shift=1000))
    assert [row[0] for row in everything] == list(range(1000, 1900))
    part = decode_all(data, offset_shift=1000, start_offset=start, end_offset=end)
    assert rows(part) == [row for row in everything if (start or 0) <= row[0] < (end or 10**9)]
    assert len(part.batch) == len(part)


def test_selected_batches_and_indices_into_all_headers() -> None:
    data = encode_sample(900, batch_bytes=4096).data
    headers = scan_headers(data)
    select = np.arange(len(headers)) % 3 == 1
    columns = decode(data, headers, columns=ALL, select=select)
    expected = np.repeat(np.arange(len(headers)), np.where(select, headers.count, 0))
    assert columns.batch.tolist() == expected.tolist()
    assert len(columns) == int(headers.count[select].sum())


@pytest.mark.parametrize("columns", [(), ("key",), ("value",), ("headers",), ("offset", "timestampType"), ALL])
def test_only_requested_columns_are_decoded(columns: tuple[str, ...]) -> None:
    data = encode_sample(300, "lz4", batch_bytes=4096).data
    whole = decode_all(data)
    part = decode(data, scan_headers(data), columns=columns)
    assert part.offset.tolist() == whole.offset.tolist()
    for name in ("key", "value", "headers"):
        found = getattr(part, name)
        assert found == getattr(whole, name) if name in columns else found is None


def test_unknown_columns_are_rejected() -> None:
    with pytest.raises(BadRequest, match="topic"):
        decode(GOLDEN_BATCH, scan_headers(GOLDEN_BATCH), columns=("topic",))


def test_buffers_are_valid_arrow() -> None:
    columns = decode_all(encode_sample(5000, "zstd").data)
    key, value, headers, times = sample(5000)
    for found, expected in ((columns.key, key), (columns.value, value), (columns.headers, headers)):
        assert found is not None
        found.validate(full=True)
        assert found.equals(expected)
        assert found.null_count == expected.null_count
    assert (columns.timestamp == times).all()


def test_header_keys_that_are_not_utf8_are_replaced() -> None:
    payload = record(b"\x00\x00\x00\x01\x01\x02" + b"\x04\xff\xfe" + b"\x02v")
    columns = decode_all(batch(payload))
    assert rows(columns)[0][4] == [("\ufffd\ufffd", b"v")]


def test_any_negative_length_is_null() -> None:
    payload = record(b"\x00\x00\x00" + varint(-2) + varint(-(2**31)) + b"\x02\x02h" + varint(-7))
    assert rows(decode_all(batch(payload)))[0][2:] == (None, None, [("h", None)])


FINE = b"\x00\x00\x00\x02k\x02v\x00"
INVALID = {
    "record length beyond the batch": (record(FINE, 9), 1),
    "record length negative": (record(FINE, -1), 1),
    "record length enormous": (record(FINE, 2**31 - 1), 1),
    "record length too small": (record(FINE, 7), 1),
    "record length zero": (b"\x00" * 8, 1),
    "fields end early": (record(FINE + b"\x00"), 1),
    "key beyond the record": (record(b"\x00\x00\x00\x7ek\x02v\x00"), 1),
    "value beyond the record": (record(b"\x00\x00\x00\x02k\x7ev\x00"), 1),
    "key length enormous": (record(b"\x00\x00\x00\xfe\xff\xff\xff\x0f" + b"kkkk"), 1),
    "varint of six bytes": (record(b"\x00\x00\x00\x82\x80\x80\x80\x80\x00k\x02v\x00"), 1),
    "varlong of eleven bytes": (record(b"\x00" + b"\x80" * 10 + b"\x00\x00\x02k\x02v\x00"), 1),
    "negative header count": (record(b"\x00\x00\x00\x02k\x02v\x01"), 1),
    "header count larger than what is left": (record(b"\x00\x00\x00\x02k\x02v\x10\x00\x00"), 1),
    "negative header key length": (record(b"\x00\x00\x00\x02k\x02v\x02\x01\x00"), 1),
    "header value beyond the record": (record(b"\x00\x00\x00\x02k\x02v\x02\x00\x7e"), 1),
    "record missing": (record(FINE), 2),
    "bytes behind the last record": (record(FINE) + b"\x00", 1),
    "record behind the last one": (record(FINE) + record(FINE), 1),
    "offset repeated": (record(FINE) + record(FINE), 2),
    "offset negative": (record(b"\x00\x00\x01\x02k\x02v\x00"), 1),
    "offset beyond the last": (record(b"\x00\x00\x04\x02k\x02v\x00"), 1),
    "count beyond the bytes": (record(FINE), 2**31 - 1),
}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("name", INVALID)
def test_invalid_records_are_corrupt(name: str, codec: str) -> None:
    payload, count = INVALID[name]
    good = encode_sample(50, codec).data
    bad = batch(compress(codec, payload), count, attributes=CODECS.index(codec), base_offset=50)
    with pytest.raises(Corrupt) as raised:
        decode_all(good + bad, location=DataLocation("some.log", 5000), offset_shift=1000)
    error = raised.value
    assert error.file == "some.log"
    assert error.position is not None
    assert error.position >= 5000 + len(good)
    assert error.offset is not None
    assert error.offset >= 1050


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": 5}, {"attributes": 7}, {"base_offset": -1}, {"base_offset": 2**63 - 4},
        {"last_offset_delta": -1}, {"count": -1}, {"count": 5},
    ],
)  # fmt: skip
def test_invalid_headers_are_corrupt(fields: dict[str, int]) -> None:
    data = replace(GOLDEN_HEADER, **fields).pack(GOLDEN_RECORDS)
    with pytest.raises(Corrupt, match="batch"):
        decode_all(data)


def test_wrong_crc_is_corrupt_unless_checks_are_disabled() -> None:
    damaged = bytearray(GOLDEN_BATCH * 2)
    damaged[-3] ^= 1
    with pytest.raises(Corrupt, match="CRC-32C") as raised:
        decode_all(bytes(damaged))
    assert (raised.value.position, raised.value.offset) == (97, 100)
    assert len(decode_all(bytes(damaged), check_crc=False)) == 6


def test_too_many_bytes_for_one_call_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_sample(900, "lz4", batch_bytes=4096).data
    monkeypatch.setattr("sparklog.format.payloads.CALL_LIMIT", 10_000)
    with pytest.raises(BadRequest, match="fewer batches"):
        decode_all(data)


def test_one_batch_of_100_000_tiny_records() -> None:
    from sparklog.format.encode import EncodeOptions, encode

    value = pa.array([b"%d" % (i % 10) for i in range(100_000)])
    encoded = encode(None, value, None, np.full(100_000, -1), options=EncodeOptions("gzip", batch_bytes=1 << 30))
    assert len(encoded.sizes) == 1
    columns = decode_all(encoded.data)
    assert columns.value is not None
    assert columns.value.equals(value)
    assert columns.key is not None
    assert columns.key.null_count == 100_000
    assert BatchHeader(0, 0, 0, 0, 0).size == 61


def test_headers_of_other_data_are_rejected() -> None:
    data = encode_sample(300, batch_bytes=4096).data
    headers = scan_headers(data)
    for check_crc in (True, False):
        with pytest.raises(Corrupt, match="outside of the data"):
            decode(data[:-1], headers, columns=ALL, check_crc=check_crc)
    moved = replace(headers, position=headers.position - 100)
    with pytest.raises(Corrupt, match="invalid position"):
        decode(data, moved, columns=ALL, check_crc=False)


def test_every_second_batch_by_a_slice() -> None:
    data = encode_sample(900, batch_bytes=4096).data
    headers = scan_headers(data)
    columns = decode(data, headers[::2], columns=ALL)
    assert len(columns) == int(headers.count[::2].sum())
    assert columns.offset.tolist() == [row[0] for row in rows(columns)]
