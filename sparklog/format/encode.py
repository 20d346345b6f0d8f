"""From columns to record batches.

One kernel call writes the records of all batches of a slice, gathered by `order` from the Arrow buffers, into one
buffer that leaves room for the headers; then each batch is compressed (if asked for), gets its header and its CRC-32C.
Offsets count from 0 in each slice; producer id, epoch, sequence and leader epoch are -1: a commit gives offsets and
epoch (neither is covered by the CRC), and writers are known to commits, not to batches.

Batches hold about `batch_bytes` of uncompressed records. One that is larger than `max_message_bytes` as stored is
split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format import compression
from sparklog.format.arrow_input import binary_column, header_columns
from sparklog.format.decode import SLACK, RecordColumns
from sparklog.format.record_batch import (
    CODEC_MASK,
    CODECS,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    Int64Array,
)

MAX_BATCH_BYTES = 2**31 - 1


@dataclass(frozen=True)
class EncodeOptions:
    """How to write batches. `level` None: the codec's default (gzip 6, lz4 fast, zstd 1). Sizes in bytes.

    `max_message_bytes` is Kafka's `max.message.bytes`: the largest whole batch as stored, compressed, header included.
    """

    codec: str = "zstd"
    level: int | None = None
    batch_bytes: int = 512 * 1024
    max_message_bytes: int = 1048588
    log_append_time: bool = False

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise BadRequest(f"unknown compression codec {self.codec!r}: use one of {', '.join(CODECS)}")
        if self.codec != "none":
            compression.check_level(self.codec, self.level)
        if self.batch_bytes <= 0 or self.max_message_bytes <= 0:
            raise BadRequest(
                f"batch and message sizes must be positive, found {self.batch_bytes} and {self.max_message_bytes}"
            )


@dataclass(frozen=True)
class EncodedSlice:
    """Finished batches, back to back, and what a commit and an index need to know of them.

    `buffers` in order are the bytes. Per batch (int64): `positions` from the slice's start, `sizes`, `last_offsets`
    from the slice's base, `max_timestamps` in ms. `offsets`: end - base of the slice; `crc`: CRC-32C of all bytes.
    Times are -1 if no record has one.
    """

    buffers: list[memoryview | bytes]
    positions: Int64Array
    sizes: Int64Array
    last_offsets: Int64Array
    max_timestamps: Int64Array
    records: int
    offsets: int
    min_ts: int
    max_ts: int
    crc: int
    has_null_keys: bool

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def data(self) -> bytes:
        """All bytes in one piece (a copy)."""
        return b"".join(self.buffers)


def encode(
    key: pa.Array | pa.ChunkedArray | None,
    value: pa.Array | pa.ChunkedArray | None,
    headers: pa.Array | pa.ChunkedArray | None,
    timestamp: Int64Array,
    *,
    order: npt.NDArray[Any] | None = None,
    options: EncodeOptions,
) -> EncodedSlice:
    """Encode rows as record batches whose offsets count from 0.

    `key`, `value`: binary-like columns of one length, None for all null; `headers`: `list<struct<key, value>>` or None;
    `timestamp`: int64[rows], ms, -1 for none. `order`: the rows to take, in that order (default: all).

    Raises `BadRequest`: a null header key, a timestamp below -1, a record that alone is larger than
    `max_message_bytes`.
    """
    rows = _Rows(key, value, headers, timestamp, order)
    if not len(rows):
        nothing = np.empty(0, np.int64)
        return EncodedSlice([], nothing, nothing, nothing, nothing, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP, 0, False)
    written = rows.write(
        min(options.batch_bytes, MAX_BATCH_BYTES) if options.codec != "none" else _plain_target(options)
    )
    attributes = CODECS.index(options.codec) | (LOG_APPEND_TIME_BIT if options.log_append_time else 0)
    batches = list(_finish(rows, written, 0, attributes, options))
    sizes = np.array([batch.size for batch in batches], np.int64)
    times = rows.times if order is None else rows.times[rows.order]
    return EncodedSlice(
        buffers=[part for batch in batches for part in batch.parts],
        positions=np.cumsum(sizes) - sizes,
        sizes=sizes,
        last_offsets=np.array([batch.last_offset for batch in batches], np.int64),
        max_timestamps=np.array([batch.max_timestamp for batch in batches], np.int64),
        records=len(rows),
        offsets=len(rows),
        min_ts=int(times.min()),
        max_ts=int(times.max()),
        crc=_crc([part for batch in batches for part in batch.parts]),
        has_null_keys=written.null_keys > 0,
    )


def encode_batch(columns: RecordColumns, header: BatchHeader) -> bytes:
    """One batch with exactly these header fields (size and CRC apart) around these records: what a decoded batch was
    made of.

    Offsets and timestamps are written as differences to the header's base offset and base timestamp, so under
    LogAppendTime decode with `raw_timestamps`. The payload is compressed if the header names a codec. A batch of no
    records is a bare header.
    """
    if len(columns) != header.count:
        raise BadRequest(f"the header counts {header.count} records, found {len(columns)}")
    if not header.count:
        return header.pack()
    rows = _Rows(columns.key, columns.value, columns.headers, columns.timestamp, None, any_time=True)
    written = rows.write(MAX_BATCH_BYTES, base_time=header.base_timestamp, deltas=columns.offset - header.base_offset)
    payload = written.out.data[HEADER_BYTES : int(written.size[0])]
    codec = CODECS[header.attributes & CODEC_MASK]
    return header.pack(payload if codec == "none" else compression.compress(codec, payload))


@dataclass(frozen=True)
class _Written:
    """Uncompressed batches in one buffer, without headers: per batch place, size, rows, base and largest time."""

    out: npt.NDArray[np.uint8]
    at: Int64Array
    size: Int64Array
    rows: Int64Array
    base_time: Int64Array
    max_time: Int64Array
    null_keys: int


class _Rows:
    """The input as the kernels take it."""

    def __init__(
        self,
        key: pa.Array | pa.ChunkedArray | None,
        value: pa.Array | pa.ChunkedArray | None,
        headers: pa.Array | pa.ChunkedArray | None,
        timestamp: Int64Array,
        order: npt.NDArray[Any] | None,
        any_time: bool = False,
    ) -> None:
        self.times = np.ascontiguousarray(timestamp, np.int64)
        for name, column in (("key", key), ("value", value), ("headers", headers)):
            if column is not None and len(column) != len(self.times):
                raise BadRequest(f"column {name} has {len(column)} rows, timestamp has {len(self.times)}")
        self.order = np.empty(0, np.int64) if order is None else np.ascontiguousarray(order, np.int64)
        self.count = len(self.times) if order is None else len(self.order)
        if len(self.order) and not 0 <= int(self.order.min()) <= int(self.order.max()) < len(self.times):
            raise BadRequest(f"order names rows outside 0 to {len(self.times) - 1}")
        if not any_time and len(self.times) and int(self.times.min()) < NO_TIMESTAMP:
            raise BadRequest(f"timestamps must not be negative, found {int(self.times.min())} ms")
        self.columns: tuple[Any, ...] = (
            *binary_column(key, "key"),
            *binary_column(value, "value"),
            *header_columns(headers),
        )

    def __len__(self) -> int:
        return self.count

    def part(self, first: int, last: int) -> _Rows:
        """Rows `[first, last)` of the order."""
        part = object.__new__(_Rows)
        part.times, part.columns, part.count = self.times, self.columns, last - first
        part.order = self.order[first:last] if len(self.order) else np.arange(first, last, dtype=np.int64)
        return part

    def write(self, target: int, *, base_time: int | None = None, deltas: Int64Array | None = None) -> _Written:
        """Run the kernels: batches of at most `target` bytes, header room included, unless one record is larger."""
        from sparklog.format import _kernels_encode as kernels

        state = np.zeros(kernels.STATE_SIZE, np.int64)
        bound = kernels.upper_bound(self.order, self.count, *self.columns, state)
        row = int(state[kernels.ERROR_ROW])
        if bound < 0:
            raise BadRequest(f"a header and its key must not be null, found one in row {row}")
        if int(state[kernels.LARGEST_RECORD]) > MAX_BATCH_BYTES - HEADER_BYTES:
            raise BadRequest(
                f"the record in row {row} has about {int(state[kernels.LARGEST_RECORD])} bytes: at most 2 GiB"
            )
        # Two neighbouring batches together exceed the target, or they would be one.
        batches = min(self.count, 2 * (bound // max(1, target - HEADER_BYTES)) + 2)
        out = np.empty(bound + HEADER_BYTES * batches + SLACK, np.uint8)
        table = np.zeros((5, batches), np.int64)
        given = np.empty(0, np.int64) if deltas is None else np.ascontiguousarray(deltas, np.int64)
        kernels.encode_records(
            self.order, self.count, self.times, *self.columns, target, int(base_time is not None), base_time or 0,
            given, out, *table, state,
        )  # fmt: skip
        at, size, count, base, largest = table[:, : int(state[kernels.BATCHES])]
        out = out[: int(state[kernels.BYTES_WRITTEN])]
        return _Written(out, at, size, count, base, largest, int(state[kernels.NULL_KEYS]))


@dataclass(frozen=True)
class _Batch:
    """One finished batch."""

    parts: list[memoryview | bytes]
    size: int
    last_offset: int
    max_timestamp: int


def _plain_target(options: EncodeOptions) -> int:
    return min(options.batch_bytes, options.max_message_bytes)


def _finish(rows: _Rows, written: _Written, offset: int, attributes: int, options: EncodeOptions) -> Iterator[_Batch]:
    """Headers, CRCs and compression; splits batches that are still larger than allowed."""
    view = written.out.data
    first = 0
    for at, size, count, base_time, max_time in zip(
        *(column.tolist() for column in (written.at, written.size, written.rows, written.base_time, written.max_time)),
        strict=True,
    ):
        header = BatchHeader(offset + first, count - 1, count, base_time, max_time, attributes)
        if options.codec == "none":
            if size > options.max_message_bytes:
                raise _too_large(size, options)
            whole = view[at : at + size]
            header.pack_into(whole)
            parts: list[memoryview | bytes] = [whole]
        else:
            payload = compression.compress(options.codec, view[at + HEADER_BYTES : at + size], options.level)
            if HEADER_BYTES + len(payload) > options.max_message_bytes:
                if count == 1:
                    raise _too_large(HEADER_BYTES + len(payload), options)
                some = rows.part(first, first + count)
                yield from _finish(some, some.write(max(1, size // 2)), offset + first, attributes, options)
                first += count
                continue
            parts = [header.pack_header(payload), payload]
        yield _Batch(parts, sum(len(part) for part in parts), offset + first + count - 1, max_time)
        first += count


def _too_large(size: int, options: EncodeOptions) -> BadRequest:
    return BadRequest(
        f"one record alone makes a batch of {size} bytes, max.message.bytes is {options.max_message_bytes}: "
        "raise it or write smaller records"
    )


def _crc(parts: list[memoryview | bytes]) -> int:
    import crc32c

    crc = 0
    for part in parts:
        crc = crc32c.crc32c(part, crc)
    return crc
