"""Batches byte by byte, as no client's library builds them: any header field may differ from the records."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.format import compression
from sparklog.format.record_batch import CODEC_MASK, CODECS, BatchHeader

TIME_MS = 1_700_000_000_000
_MASK = (1 << 64) - 1


def odd_batch(
    times: Sequence[int], *, deltas: Sequence[int] | None = None, payload: bytes | None = None, **header: int
) -> bytes:
    """Return a batch of a record for each time (ms) with a right CRC-32C.

    `deltas`: the records' offset deltas; `payload`: these bytes in place of the records; `header`: fields of
    `BatchHeader` that differ from what the records say (`base_timestamp`: the records' time deltas follow it).
    """
    deltas = range(len(times)) if deltas is None else deltas
    base_ms = header.get("base_timestamp", times[0] if times else -1)
    if payload is None:
        payload = b"".join(record(delta, time - base_ms) for delta, time in zip(deltas, times, strict=True))
    fields = {
        "base_offset": 0,
        "last_offset_delta": deltas[-1] if deltas else 0,
        "count": len(times),
        "base_timestamp": base_ms,
        "max_timestamp": max(times, default=-1),
    }
    built = BatchHeader(**{**fields, **header})
    codec = CODECS[built.attributes & CODEC_MASK] if built.attributes & CODEC_MASK < len(CODECS) else "none"
    return built.pack(payload if codec == "none" else compression.compress(codec, payload))


def record(
    delta: int, time_delta: int, key: bytes | None = b"k", value: bytes | None = b"v", attributes: int = 0
) -> bytes:
    """Return a record with this offset delta and time delta, which wraps as a Java long does."""
    body = bytes([attributes]) + varint(wrapped(time_delta)) + varint(delta) + _cell(key) + _cell(value) + varint(0)
    return varint(len(body)) + body


def wrapped(value: int) -> int:
    return (value + 2**63 & _MASK) - 2**63


def varint(value: int) -> bytes:
    bits, out = (value << 1 ^ value >> 63) & _MASK, bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def _cell(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data
