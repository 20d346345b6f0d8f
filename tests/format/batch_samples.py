"""Sample batches and records for the tests of the format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.format.batch_scan import scan_headers
from sparklog.format.decode import HEADERS_TYPE, RecordColumns, decode
from sparklog.format.encode import EncodedSlice, EncodeOptions, encode
from sparklog.format.record_batch import BatchHeader
from sparklog.testing.world import START_MS

ALL = ("key", "value", "headers", "offset", "timestamp", "timestampType")
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# Kafka's own bytes for: offset 100 (k1, v1, headers h="x", n=null), 101 (null key, v2, +5 ms), 103 (k3, null value,
# -10 ms).
GOLDEN_RECORDS = bytes.fromhex("22000000046b310476310402680278026e01 10000a020104763200 10001306046b330100")
GOLDEN_BATCH = (
    bytes.fromhex(
        "0000000000000064000000550000000002b7bce39c0000000000030000018bcfe568000000018bcfe56805"
        "ffffffffffffffffffffffffffff00000003"
    )
    + GOLDEN_RECORDS
)
GOLDEN_HEADER = BatchHeader(
    base_offset=100, last_offset_delta=3, count=3, base_timestamp=START_MS, max_timestamp=START_MS + 5, leader_epoch=0
)


def golden_columns() -> RecordColumns:
    """Return the records of the golden batch."""
    headers = [[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], None, None]
    return RecordColumns(
        offset=np.array([100, 101, 103]),
        timestamp=np.array([START_MS, START_MS + 5, START_MS - 10]),
        key=pa.array([b"k1", None, b"k3"], pa.binary()),
        value=pa.array([b"v1", b"v2", None], pa.binary()),
        headers=pa.array(headers, HEADERS_TYPE),
    )


def decode_all(data: bytes, **options: Any) -> RecordColumns:
    """Decode all columns of all batches in `data`."""
    return decode(data, scan_headers(data), columns=ALL, **options)


def rows(columns: RecordColumns) -> list[tuple[Any, ...]]:
    """Return records as (offset, timestamp, key, value, headers), with headers as pairs or None."""
    assert columns.key is not None
    assert columns.value is not None
    assert columns.headers is not None
    lists = [
        None if entry is None else [(pair["key"], pair["value"]) for pair in entry]
        for entry in columns.headers.to_pylist()
    ]
    return list(
        zip(
            columns.offset.tolist(),
            columns.timestamp.tolist(),
            columns.key.to_pylist(),
            columns.value.to_pylist(),
            lists,
            strict=True,
        )
    )


def sample(count: int, value_bytes: int = 100, seed: int = 1) -> tuple[pa.Array, pa.Array, pa.Array, Any]:
    """Return keys, values, headers and timestamps of `count` records, some of them null or empty."""
    random = np.random.default_rng(seed)
    text = random.integers(97, 105, count * value_bytes, dtype=np.uint8).tobytes()
    keys = [None if i % 7 == 3 else b"" if i % 11 == 5 else b"key-%d" % (i % 100) for i in range(count)]
    values = [
        None if i % 13 == 4 else b"" if i % 17 == 9 else text[i * value_bytes : (i + 1) * value_bytes]
        for i in range(count)
    ]
    headers = [
        [{"key": "näme", "value": b"%d" % i}, {"key": "", "value": None}, {"key": "", "value": b""}]
        if i % 5 == 2
        else None
        for i in range(count)
    ]
    times = START_MS + np.arange(count) // 3 - (np.arange(count) % 10 == 0) * 500
    return (
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers, HEADERS_TYPE),
        times.astype(np.int64),
    )


def encode_sample(count: int, codec: str = "none", batch_bytes: int = 16384, value_bytes: int = 100) -> EncodedSlice:
    """Encode `sample`."""
    options = EncodeOptions(codec=codec, batch_bytes=batch_bytes)
    return encode(*sample(count, value_bytes), options=options)
