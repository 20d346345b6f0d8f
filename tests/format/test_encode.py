"""Test encoding: golden bytes, splitting into batches, partitions, input types and rejected input."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.format.batch_scan import scan_headers
from sparklog.format.decode import HEADERS_TYPE, decode
from sparklog.format.encode import EncodeOptions, EncoderRows, encode, encode_partitions, encode_rows
from sparklog.format.kernels.encode_kernels import varint_size, write_varint, zigzag
from sparklog.format.record_batch import HEADER_BYTES
from tests.format.batch_samples import (
    ALL,
    CODEC_NAMES,
    GOLDEN_BATCH,
    GOLDEN_HEADER,
    START_MS,
    decode_all,
    encode_sample,
    golden_columns,
    rows,
    sample,
)
from tests.format.plain_encoder import encode_batch
from tests.format.test_decode import VARLONGS

PLAIN = EncodeOptions("none")


@pytest.mark.parametrize(("value", "text"), VARLONGS)
def test_written_varints_match_kafka(value: int, text: str) -> None:
    out = np.zeros(16, np.uint8)
    end = write_varint(out.ctypes.data, zigzag(value))
    assert out[: end - out.ctypes.data].tobytes() == bytes.fromhex(text)
    assert varint_size(zigzag(value)) == len(text) // 2


def test_golden_bytes() -> None:
    assert encode_batch(golden_columns(), GOLDEN_HEADER) == GOLDEN_BATCH


def test_batches_match_reference_encoder() -> None:
    data = encode_sample(2000, "none").data
    headers = scan_headers(data)
    assert len(headers) > 5
    for index in range(len(headers)):
        one, header = decode(data, headers[index : index + 1], columns=ALL), headers.row(index)
        position = int(headers.position[index])
        assert encode_batch(one, header) == data[position : position + header.size]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_slice_facts(codec: str) -> None:
    encoded = encode_sample(2000, codec)
    headers = scan_headers(encoded.data)
    assert len(headers) > 5
    assert encoded.positions.tolist() == headers.position.tolist()
    assert encoded.sizes.tolist() == headers.size.tolist()
    assert encoded.last_offsets.tolist() == headers.last_offset.tolist()
    assert encoded.max_timestamps.tolist() == headers.max_timestamp.tolist()
    assert (encoded.records, encoded.nbytes) == (2000, len(encoded.data))
    assert encoded.crc == crc32c.crc32c(encoded.data)
    times = sample(2000)[3]
    assert (encoded.min_ts, encoded.max_ts) == (times.min(), times.max())
    assert encoded.has_null_keys
    assert headers.base_offset.tolist() == [0, *headers.next_offset.tolist()[:-1]]
    assert set(headers.producer_id.tolist()) == {-1}
    assert set(headers.leader_epoch.tolist()) == {-1}
    columns = decode_all(encoded.data)
    assert headers.base_timestamp.tolist() == columns.timestamp[headers.base_offset].tolist()
    key, value, lists, _ = sample(2000)
    assert columns.key is not None
    assert columns.key.equals(key)
    assert columns.value is not None
    assert columns.value.equals(value)
    assert columns.headers is not None
    assert columns.headers.equals(lists)
    assert (columns.timestamp == times).all()


@pytest.mark.parametrize("batch_bytes", [1, 61, 62, 200, 1000, 10_000_000])
def test_batches_do_not_exceed_their_target_size(batch_bytes: int) -> None:
    encoded = encode(*sample(500), options=EncodeOptions("none", batch_bytes=batch_bytes))
    headers = scan_headers(encoded.data)
    assert (headers.size[headers.count > 1] <= batch_bytes).all()
    together = headers.size[:-1] + headers.size[1:] - HEADER_BYTES
    assert (together > batch_bytes).all()
    assert len(decode_all(encoded.data)) == 500


def test_records_of_exactly_the_target_size_form_one_batch() -> None:
    two = encode(None, pa.array([b"x" * 50, b"y" * 50]), None, np.array([5, 5]), options=PLAIN)
    for size, batches in ((two.nbytes, 1), (two.nbytes - 1, 2)):
        options = EncodeOptions("none", batch_bytes=size)
        again = encode(None, pa.array([b"x" * 50, b"y" * 50]), None, np.array([5, 5]), options=options)
        assert len(again.sizes) == batches


def test_no_rows_encode_to_an_empty_slice() -> None:
    nothing = pa.array([], pa.binary())
    encoded = encode(nothing, nothing, pa.array([], HEADERS_TYPE), np.empty(0, np.int64), options=PLAIN)
    assert (encoded.data, encoded.records, encoded.min_ts, encoded.max_ts) == (b"", 0, -1, -1)
    no_rows = encode(*sample(5), order=np.empty(0, np.int64), options=PLAIN)
    assert no_rows.nbytes == 0
    assert encode_partitions(*sample(0), np.empty(0, np.int32), options=PLAIN) == {}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_order_gathers_rows(codec: str) -> None:
    key, value, headers, times = sample(1000)
    order = np.random.default_rng(1).permutation(1000)[:700].astype(np.int32)
    options = EncodeOptions(codec, batch_bytes=8192)
    gathered = encode(key, value, headers, times, order=order, options=options)
    taken = [column.take(pa.array(order)) for column in (key, value, headers)]
    assert gathered.data == encode(*taken, times[order], options=options).data


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_partitions_encode_together_as_separately(codec: str) -> None:
    columns = sample(3000)
    partition = (np.arange(3000) * 7919 % 11).astype(np.int32)
    partition[partition == 4] = 9
    options = EncodeOptions(codec, batch_bytes=4096)
    slices = encode_partitions(*columns, partition, options=options)
    assert list(slices) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    for number, found in slices.items():
        expected = encode(*columns, order=np.flatnonzero(partition == number), options=options)
        assert found.data == expected.data
        assert found.crc == expected.crc
        assert (found.records, found.min_ts, found.max_ts) == (expected.records, expected.min_ts, expected.max_ts)
        assert found.has_null_keys == expected.has_null_keys


@pytest.mark.parametrize("sizes", [{}, {"max_message_bytes": 300}])
def test_several_groups_of_rows_encode_like_one(sizes: dict[str, int]) -> None:
    columns = sample(3000)
    partition = (np.arange(3000) * 7919 % 11).astype(np.int32)
    options = EncodeOptions("lz4", batch_bytes=4096, **sizes)
    edges = [0, 1, 1, 700, 2999, 3000]
    runs = [
        EncoderRows(*(column[low:high] for column in columns), partition[low:high]) for low, high in pairwise(edges)
    ]
    slices = dict(encode_rows(runs, options=options))
    expected = encode_partitions(*columns, partition, options=options)
    assert {number: found.data for number, found in slices.items()} == {
        number: found.data for number, found in expected.items()
    }


def test_content_bytes_are_counted() -> None:
    key = pa.array([b"k" * 3, None, None, b""])
    value = pa.array([b"v" * 10, b"v" * 200, None, b"v"])
    headers = pa.array([[("name", b"12345"), ("n", None)], None, [("a", b"")], []], HEADERS_TYPE)
    placed = np.array([False, False, True, False])
    rows = EncoderRows(key, value, headers, np.zeros(4, np.int64), np.array([0, 1, 1, 0]), placed)
    slices = dict(encode_rows([rows], options=PLAIN))
    counts = [(found.records, found.content_bytes, found.free_records, found.free_bytes) for found in slices.values()]
    assert counts == [(2, 3 + 10 + 4 + 5 + 1 + 1, 0, 0), (2, 200 + 1, 1, 200)]


def test_partitions_are_checked() -> None:
    with pytest.raises(BadRequest, match="must not be negative"):
        encode_partitions(*sample(3), np.array([0, -1, 0]), options=PLAIN)
    with pytest.raises(BadRequest, match="integers up to 2147483647, found 4294967296"):
        encode_partitions(*sample(3), np.array([0, 2**32, 0]), options=PLAIN)
    with pytest.raises(BadRequest, match="2 partitions"):
        encode_partitions(*sample(3), np.array([0, 1]), options=PLAIN)


HEADER_KINDS = [
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
    pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()])
def test_all_binary_like_types(kind: pa.DataType) -> None:
    cells = ["a", None, "", "ü" * 30, "b" * 1000]
    encoded_cells = [None if cell is None else cell.encode() for cell in cells]
    column = pa.array(encoded_cells, pa.binary()).cast(kind)
    data = encode(column, column, None, np.full(5, 1), options=PLAIN).data
    assert [row[2:4] for row in rows(decode_all(data))] == [(cell, cell) for cell in encoded_cells]


def test_fixed_size_null_and_chunked_columns() -> None:
    fixed = pa.array([b"ab", None, b"cd"], pa.binary(2))
    chunked = pa.chunked_array([pa.array([b"x"]), pa.array([b"y", None])])
    data = encode(fixed, chunked, pa.nulls(3), np.arange(3), options=PLAIN).data
    assert [row[2:] for row in rows(decode_all(data))] == [(b"ab", b"x", None), (None, b"y", None), (b"cd", None, None)]
    assert [row[2] for row in rows(decode_all(encode(pa.nulls(3), fixed, None, np.arange(3), options=PLAIN).data))] == [
        None
    ] * 3


@pytest.mark.parametrize("kind", HEADER_KINDS)
def test_header_types_and_slices(kind: pa.DataType) -> None:
    lists = [[{"key": "a", "value": b"1"}], None, [], [{"key": "ß", "value": None}, {"key": "ß", "value": b""}]] * 40
    headers = pa.array(lists, kind).slice(3, 150)
    expected = [None if not entry else [(pair["key"], pair["value"]) for pair in entry] for entry in lists[3:153]]
    value = pa.array([b"%d" % i for i in range(160)]).slice(5, 150)
    key = pa.array([b"k" if i % 3 else None for i in range(160)]).slice(1, 150)
    data = encode(key, value, headers, np.arange(150), options=EncodeOptions("none", batch_bytes=500)).data
    found = rows(decode_all(data))
    assert [row[4] for row in found] == expected
    assert [row[3] for row in found] == value.to_pylist()
    assert [row[2] for row in found] == key.to_pylist()


def test_more_than_127_headers() -> None:
    many = [{"key": f"h{i}", "value": b"v" * i} for i in range(300)]
    data = encode(None, pa.array([b"x"]), pa.array([many], HEADERS_TYPE), np.array([1]), options=PLAIN).data
    assert rows(decode_all(data))[0][4] == [(pair["key"], pair["value"]) for pair in many]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"key": pa.array([1])}, "column key must be binary or string, found int64"),
        ({"headers": pa.array([["a"]])}, "headers must be"),
        ({"headers": pa.array([[{"key": "a", "wert": b"x"}]])}, "fields key and value, found key, wert"),
        (
            {"headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS_TYPE)},
            "must not be null, found a null in row 0",
        ),
        ({"headers": pa.array([[None]], HEADERS_TYPE)}, "must not be null"),
        ({"value": pa.array([b"a", b"b"])}, "expected 1 rows in column value, as in column timestamp, found 2"),
        ({"order": np.array([1])}, "must contain only rows from 0 to 0"),
        ({"order": np.array([-1])}, "must contain only rows from 0 to 0"),
        ({"order": np.array([True])}, "order must be integers, found bool"),
    ],
)
def test_wrong_input(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"key": None, "value": pa.array([b"v"]), "headers": None, "timestamp": np.array([5])}
    given.update(arguments)
    with pytest.raises(BadRequest, match=text):
        encode(**given, options=PLAIN)


@pytest.mark.parametrize(
    "options", [{"codec": "brotli"}, {"codec": "zstd", "level": 99}, {"codec": "snappy", "level": 1}]
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=options["codec"]):
        EncodeOptions(**options)
    with pytest.raises(BadRequest, match="positive"):
        EncodeOptions(batch_bytes=0)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_oversized_record_reports_its_size(codec: str) -> None:
    noise = np.random.default_rng(1).bytes(5000)
    options = EncodeOptions(codec, max_message_bytes=4000)
    with pytest.raises(BadRequest, match=r"a batch with a single record has \d+ bytes, but max.message.bytes is 4000"):
        encode(None, pa.array([b"small", noise]), None, np.array([1, 1]), options=options)


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("spread", [False, True])
def test_large_batches_are_split(codec: str, spread: bool) -> None:
    random = np.random.default_rng(1)
    value = pa.array([random.bytes(500) for _ in range(300)])
    options = EncodeOptions(codec, batch_bytes=100_000, max_message_bytes=5000)
    times = START_MS + np.arange(300)
    partition = np.arange(300) % 3 if spread else np.zeros(300, np.int64)
    for number, found in encode_partitions(None, value, None, times, partition, options=options).items():
        assert found.sizes.max() <= 5000
        assert found.crc == crc32c.crc32c(found.data)
        columns = decode_all(found.data)
        assert columns.offset.tolist() == list(range(len(columns)))
        assert columns.value is not None
        assert columns.value.equals(value.filter(pa.array(partition == number)))
        assert (columns.timestamp == times[partition == number]).all()


def test_log_append_time_bit_and_missing_times() -> None:
    options = EncodeOptions("none", log_append_time=True)
    encoded = encode(None, pa.array([b"a", b"b"]), None, np.array([-1, -1]), options=options)
    headers = scan_headers(encoded.data)
    assert headers.is_log_append_time.all()
    assert (encoded.min_ts, encoded.max_ts, headers.base_timestamp.tolist()) == (-1, -1, [-1])
    assert decode_all(encoded.data, append_time=77).timestamp.tolist() == [77, 77]


@pytest.mark.parametrize("times", [[-1], [-5], [7, -1], [-5, -1, 9, 8], [-7_240_509_273_709_551_616, 2**62]])
def test_negative_timestamps_are_preserved_and_ignored(times: list[int]) -> None:
    encoded = encode(None, pa.array([b"v"] * len(times)), None, np.array(times), options=PLAIN)
    assert decode_all(encoded.data).timestamp.tolist() == times
    known = [time for time in times if time >= 0]
    assert (encoded.min_ts, encoded.max_ts) == (min(known, default=-1), max(known, default=-1))
    assert scan_headers(encoded.data).max_timestamp.tolist() == [max(known, default=-1)]


def test_timestamps_with_large_differences() -> None:
    times = np.array([2**62, -1, 0, 2**63 - 1, 5])
    columns = decode_all(encode(None, pa.array([b"v"] * 5), None, times, options=PLAIN).data)
    assert columns.timestamp.tolist() == times.tolist()
