"""Encode record batches in plain Python: a reference for the kernels, and a way to write unusual batches."""

from __future__ import annotations

from dataclasses import replace

from sparklog.format import compression
from sparklog.format.decode import RecordColumns
from sparklog.format.record_batch import CODEC_MASK, CODECS, LOG_APPEND_TIME_BIT, BatchHeader, BatchHeaders

_MASK = (1 << 64) - 1


def encode_batch(columns: RecordColumns, header: BatchHeader) -> bytes:
    """Encode one batch of these records with exactly these header fields, except size and CRC.

    Offsets and timestamps are written as differences to the header's base offset and base timestamp, so under
    LogAppendTime take the columns from `with_create_time`. The payload is compressed if the header names a codec.
    """
    assert len(columns) == header.count
    if not header.count:
        return header.pack()
    cells = [
        [None] * len(columns) if column is None else column.to_pylist()
        for column in (columns.key, columns.value, columns.headers)
    ]
    records = b"".join(
        _record(offset - header.base_offset, time - header.base_timestamp, key, value, headers or [])
        for offset, time, key, value, headers in zip(
            columns.offset.tolist(), columns.timestamp.tolist(), *cells, strict=True
        )
    )
    codec = CODECS[header.attributes & CODEC_MASK]
    return header.pack(records if codec == "none" else compression.compress(codec, records))


def with_create_time(headers: BatchHeaders) -> BatchHeaders:
    """Return the headers without the LogAppendTime bit, so that decoding returns the producers' timestamps."""
    return replace(headers, attributes=headers.attributes & ~LOG_APPEND_TIME_BIT)


def _record(delta: int, time: int, key: bytes | None, value: bytes | None, headers: list[dict[str, object]]) -> bytes:
    body = b"\0" + _varint(time) + _varint(delta) + _cell(key) + _cell(value) + _varint(len(headers))
    for each in headers:
        body += _cell(each["key"]) + _cell(each["value"])
    return _varint(len(body)) + body


def _cell(data: object) -> bytes:
    if data is None:
        return _varint(-1)
    content = data.encode() if isinstance(data, str) else data
    assert isinstance(content, bytes)
    return _varint(len(content)) + content


def _varint(value: int) -> bytes:
    bits = (value << 1 ^ value >> 63) & _MASK
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)
