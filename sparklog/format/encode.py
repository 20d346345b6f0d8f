"""Encode columns as record batches.

One kernel call writes the records of all batches from the Arrow buffers to one buffer, which has a region per partition
and gaps for the headers. Then each batch is compressed, if requested, and gets its header and CRC-32C. Offsets start at
0 in each slice. Producer id, producer epoch, sequence and leader epoch are -1. A commit assigns offsets and the leader
epoch, which the CRC does not cover. The commit also identifies the writer, so batches need no producer.

Batches have about `batch_bytes` of uncompressed records. A batch whose stored size exceeds `max_message_bytes` is
split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest
from sparklog.format import compression, crc32c
from sparklog.format.arrow_input import Column, KernelColumns
from sparklog.format.kernels import encode_kernels as kernels
from sparklog.format.kernels.hash_kernels import join_crcs
from sparklog.format.kernels.kernel_memory import SLACK
from sparklog.format.new_arrays import new_array
from sparklog.format.record_batch import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    BoolArray,
    ByteArray,
    Int32Array,
    Int64Array,
)

MAX_BATCH_BYTES = 2**31 - 1
MAX_PARTITION = 2**31 - 1
RECORDS_PER_CRC = 16
"""The number of records that can be written in the time that combining a CRC takes, if both kernels are interpreted."""
ONE_PASS_BYTES = 64 << 10
"""Maximum size for which hashing the bytes again is faster than combining two CRCs, if both kernels are interpreted."""
_ALL = np.empty(0, np.int64)
"""An empty array. If it is passed as `order`, all rows are encoded."""
_ONE_LANE = np.empty(0, np.int32)
"""An empty array. If it is passed as `lane_of`, all rows have the same lane."""
_NONE_EXPLICIT = np.empty(0, np.uint8)


@dataclass(frozen=True)
class EncodeOptions:
    """Options for batches to write.

    * `codec`, `level`: compression; a level of None means the codec's default (gzip 6, lz4 fast, zstd 1)
    * `batch_bytes`: target size of the uncompressed records of a batch, in bytes
    * `max_message_bytes`: Kafka's `max.message.bytes`, the maximum stored size of a batch with its header, in bytes
    * `log_append_time`: True to write LogAppendTime batches, False to write CreateTime batches
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
            sizes = f"{self.batch_bytes} and {self.max_message_bytes}"
            raise BadRequest(f"batch and message sizes must be positive, found {sizes}")

    @property
    def attributes(self) -> int:
        return CODECS.index(self.codec) | (LOG_APPEND_TIME_BIT if self.log_append_time else 0)

    @property
    def target(self) -> int:
        return min(self.batch_bytes, MAX_BATCH_BYTES if self.codec != "none" else self.max_message_bytes)


@dataclass(frozen=True)
class EncodedSlice:
    """The encoded batches of a slice, and the properties of the batches that are stored in a commit and in an index.

    * `buffers`: the bytes of the batches, in order
    * `positions`, `sizes`, `last_offsets`, `max_timestamps`: int64[batches]; positions and offsets are relative to the
      slice, timestamps are in ms
    * `records`: number of records, which equals the number of offsets
    * `min_ts`, `max_ts`: smallest and largest timestamp (ms), or -1 if no record has a timestamp
    * `crc`: CRC-32C of all bytes
    * `content_bytes`: size of keys, values and headers
    * `free_records`, `free_bytes`: number and content size of records that have no key and no explicit partition
    """

    buffers: list[memoryview | bytes]
    positions: Int64Array
    sizes: Int64Array
    last_offsets: Int64Array
    max_timestamps: Int64Array
    records: int
    min_ts: int
    max_ts: int
    crc: int
    has_null_keys: bool
    content_bytes: int = 0
    free_records: int = 0
    free_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def data(self) -> bytes:
        return b"".join(self.buffers)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderRows:
    """Rows to encode. The columns are those of `encode`.

    * `partition`: non-negative partition of each row; None means partition 0 for all rows
    * `explicit`: bool[rows], True for rows whose partition the caller specified; None means False for all rows
    """

    key: Column
    value: Column
    headers: Column
    timestamp: Int64Array
    partition: npt.NDArray[Any] | None = None
    explicit: BoolArray | None = None


def encode(
    key: Column,
    value: Column,
    headers: Column,
    timestamp: Int64Array,
    *,
    order: npt.NDArray[Any] | None = None,
    options: EncodeOptions,
) -> EncodedSlice:
    """Encode rows as record batches whose offsets start at 0.

    Args:
        key: binary-like column, or None if all keys are null.
        value: binary-like column, or None if all values are null.
        headers: column of `list<struct<key, value>>`, or None if there are no headers.
        timestamp: timestamps in ms as int64[rows], or -1 for rows without a timestamp.
        order: the rows to encode, in this order, or None for all rows.
        options: compression and sizes.

    Raises:
        BadRequest: a header key is null, or a single record is larger than `max_message_bytes`.
    """
    rows = _RowEncoder([_KernelRows.of(EncoderRows(key, value, headers, timestamp), order)])
    empty = EncodedSlice([], _ALL, _ALL, _ALL, _ALL, 0, NO_TIMESTAMP, NO_TIMESTAMP, 0, False)
    return dict(rows.slices(options)).get(0, empty)


def encode_partitions(
    key: Column,
    value: Column,
    headers: Column,
    timestamp: Int64Array,
    partition: npt.NDArray[Any],
    *,
    options: EncodeOptions,
) -> dict[int, EncodedSlice]:
    """Encode the rows of several partitions. Return a slice for each partition with rows, in ascending order.

    `partition` is the non-negative partition of each row. The rows of a partition stay in order. This is about three
    times as fast as one call of `encode` with an `order` per partition, because the rows are read in their order in
    memory. The other arguments and the errors are those of `encode`.
    """
    return dict(encode_rows([EncoderRows(key, value, headers, timestamp, partition)], options=options))


def encode_rows(rows: Sequence[EncoderRows], *, options: EncodeOptions) -> Iterator[tuple[int, EncodedSlice]]:
    """Yield the partitions and slices of several groups of rows, like `encode_partitions`.

    The groups are not concatenated before they are encoded. Each slice can be written and freed before the next slice
    is compressed.
    """
    return _RowEncoder([_KernelRows.of(some) for some in rows]).slices(options)


@dataclass(frozen=True, slots=True)
class _Draft:
    """An uncompressed batch at `out[start : start + size]` that does not have a header yet."""

    lane: int
    start: int
    size: int
    rows: int
    base_time: int
    max_time: int


@dataclass(frozen=True, slots=True)
class _FinishedBatch:
    """A complete batch. `uncovered_crc` is the CRC-32C of the bytes that the CRC of the batch does not cover."""

    parts: list[memoryview | bytes]
    size: int
    last_offset: int
    max_time: int
    uncovered_crc: int
    crc: int


@dataclass(frozen=True, slots=True, eq=False)
class _KernelRows:
    """A group of rows in the form that the kernels expect."""

    times: Int64Array
    columns: KernelColumns
    order: Int64Array
    lane_of: Int32Array
    max_lane: int
    explicit: ByteArray
    count: int

    @classmethod
    def of(cls, rows: EncoderRows, order: npt.NDArray[Any] | None = None) -> _KernelRows:
        times = np.ascontiguousarray(rows.timestamp, np.int64)
        for name, column in (("key", rows.key), ("value", rows.value), ("headers", rows.headers)):
            if column is not None and len(column) != len(times):
                raise BadRequest(
                    f"expected {len(times)} rows in column {name}, as in column timestamp, found {len(column)}"
                )
        selected = _ALL if order is None else _indices(order, "order")
        if len(selected) and not 0 <= int(selected.min()) <= int(selected.max()) < len(times):
            raise BadRequest(f"order must contain only rows from 0 to {len(times) - 1}")
        lane_of = _ONE_LANE if rows.partition is None else _indices(rows.partition, "partition", np.int32)
        if rows.partition is not None and len(lane_of) != len(times):
            raise BadRequest(f"expected one partition per row, found {len(lane_of)} partitions for {len(times)} rows")
        # Negative numbers are the largest unsigned numbers, so one pass over the numbers is sufficient.
        max_lane = int(lane_of.view(np.uint32).max()) if len(lane_of) else 0
        if max_lane > MAX_PARTITION:
            raise BadRequest(f"partition numbers must not be negative, found {int(lane_of.min())}")
        columns = KernelColumns(rows.key, rows.value, rows.headers)
        explicit = _NONE_EXPLICIT if rows.explicit is None else rows.explicit.view(np.uint8)
        count = len(times) if order is None else len(selected)
        return cls(times, columns, selected, lane_of, max_lane, explicit, count)

    def rows(self, lane: int) -> Int64Array:
        """Return the rows of a lane, in order."""
        if len(self.lane_of):
            return np.flatnonzero(self.lane_of == lane)
        return self.order if len(self.order) else np.arange(self.count)


class _RowEncoder:
    def __init__(self, parts: Sequence[_KernelRows]) -> None:
        self.parts = [part for part in parts if part.count]
        self.count = sum(part.count for part in self.parts)

    def only(self, lane: int, first: int, count: int) -> _RowEncoder:
        """Return an encoder for the rows `[first, first + count)` of a lane."""
        parts: list[_KernelRows] = []
        for part in self.parts:
            rows = part.rows(lane)
            selected = np.ascontiguousarray(rows[first : first + count], np.int64)
            parts.append(replace(part, order=selected, lane_of=_ONE_LANE, max_lane=0, count=len(selected)))
            first, count = max(0, first - len(rows)), count - len(selected)
        return _RowEncoder(parts)

    def write(self, target: int) -> tuple[ByteArray, list[_Draft], Int64Array]:
        """Run the kernels. Return their output, the batches ordered by lane, and the lane table.

        Batches have at most `target` bytes, including the header, unless a single record is larger.
        """
        lanes = self._measure()
        # Any two adjacent batches of a lane together exceed the target, which bounds the number of batches.
        room = lanes[:, kernels.LANE_BYTES]
        counts = np.minimum(lanes[:, kernels.LANE_ROWS], 2 * (room // max(1, target - HEADER_BYTES)) + 2)
        ends = np.cumsum(room + HEADER_BYTES * counts + SLACK)
        lanes[:, kernels.LANE_AT] = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        out = new_array(int(ends[-1]), np.uint8)
        batches = np.zeros((int(counts.sum()), kernels.BATCH_FIELDS), np.int64)
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        for part in self.parts:
            kernels.encode_records.sized(part.count)(
                part.order, part.lane_of, part.count, part.times, part.columns.table, target, out, lanes, batches, state
            )
        batches = batches[: int(state[kernels.BATCHES])]
        if len(lanes) > 1:
            batches = batches[np.argsort(batches[:, kernels.BATCH_LANE], kind="stable")]
        return out, [_Draft(*row) for row in batches.tolist()], lanes

    def _measure(self) -> Int64Array:
        lanes = np.zeros((max(part.max_lane for part in self.parts) + 1, kernels.LANE_FIELDS), np.int64)
        lanes[:, kernels.LANE_MIN_TIME] = np.iinfo(np.int64).max
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        before = 0
        for part in self.parts:
            code = kernels.measure.sized(part.count)(
                part.order, part.lane_of, part.explicit, part.count, part.times, part.columns.table, lanes, state
            )
            row = before + int(state[kernels.ERROR_ROW])
            if code == kernels.NULL_HEADER:
                raise BadRequest(f"headers and their keys must not be null, found a null in row {row}")
            if code == kernels.TOO_LARGE:
                raise BadRequest(f"the record in row {row} exceeds 2 GiB, which is too large for a batch")
            before += len(part.times)
        return lanes

    def slices(self, options: EncodeOptions) -> Iterator[tuple[int, EncodedSlice]]:
        if not self.count:
            return
        out, drafts, lanes = self.write(options.target)
        for lane, batches in groupby(self._finish(out.data, drafts, 0, options), itemgetter(1)):
            yield lane, _slice([batch for batch, _ in batches], lanes[lane])

    def _finish(
        self, out: memoryview, drafts: list[_Draft], offset: int, options: EncodeOptions
    ) -> Iterator[tuple[_FinishedBatch, int]]:
        """Compress batches, write their headers and CRCs, and split batches that are still too large.

        `offset` contains the offset of the first row of each lane.
        """
        lane, first = -1, 0
        for draft in drafts:
            if draft.lane != lane:
                lane, first = draft.lane, 0
            batch_bytes = out[draft.start : draft.start + draft.size]
            header = BatchHeader(
                offset + first, draft.rows - 1, draft.rows, draft.base_time, draft.max_time, options.attributes
            )
            if options.codec == "none":
                crc = header.pack_into(batch_bytes)
                parts: list[memoryview | bytes] = [batch_bytes]
            else:
                payload = compression.compress(options.codec, batch_bytes[HEADER_BYTES:], options.level)
                head, crc = header.pack_header(payload)
                parts = [head, payload]
            size = sum(len(part) for part in parts)
            if size <= options.max_message_bytes:
                uncovered_crc = crc32c.crc32c(parts[0][:CRC_START])
                last = offset + first + draft.rows - 1
                yield _FinishedBatch(parts, size, last, draft.max_time, uncovered_crc, crc), lane
            elif draft.rows == 1:
                raise BadRequest(
                    f"a batch with a single record has {size} bytes, but max.message.bytes is "
                    f"{options.max_message_bytes}: increase max.message.bytes, or write smaller records"
                )
            else:
                some = self.only(lane, first, draft.rows)
                halves, batches, _ = some.write(max(1, draft.size // 2))
                for batch, _ in some._finish(halves.data, batches, offset + first, options):
                    yield batch, lane
            first += draft.rows


def _slice(batches: list[_FinishedBatch], lane: Int64Array) -> EncodedSlice:
    sizes = np.array([batch.size for batch in batches], np.int64)
    times = np.array([batch.max_time for batch in batches], np.int64)
    buffers = [part for batch in batches for part in batch.parts]
    latest = int(times.max())
    return EncodedSlice(
        buffers=buffers,
        positions=np.cumsum(sizes) - sizes,
        sizes=sizes,
        last_offsets=np.array([batch.last_offset for batch in batches], np.int64),
        max_timestamps=times,
        records=int(lane[kernels.LANE_ROWS]),
        min_ts=int(lane[kernels.LANE_MIN_TIME]) if latest >= 0 else NO_TIMESTAMP,
        max_ts=latest,
        crc=_crc(batches, buffers, sizes),
        has_null_keys=int(lane[kernels.LANE_NULL_KEYS]) > 0,
        content_bytes=int(lane[kernels.LANE_CONTENT]),
        free_records=int(lane[kernels.LANE_FREE_ROWS]),
        free_bytes=int(lane[kernels.LANE_FREE_CONTENT]),
    )


def _crc(batches: list[_FinishedBatch], buffers: list[memoryview | bytes], sizes: Int64Array) -> int:
    """Return the CRC-32C of all bytes.

    If there are many bytes, the CRC-32Cs of the batches are combined, and the bytes are not hashed again.
    """
    if int(sizes.sum()) <= ONE_PASS_BYTES:
        crc = 0
        for part in buffers:
            crc = crc32c.crc32c(part, crc)
        return crc
    crcs = np.array([crc for batch in batches for crc in (batch.uncovered_crc, batch.crc)], np.int64)
    lengths = np.array([size for batch in batches for size in (CRC_START, batch.size - CRC_START)], np.int64)
    return int(join_crcs.sized(RECORDS_PER_CRC * len(crcs))(crcs, lengths))


def _indices(array: npt.NDArray[Any], name: str, kind: type[np.integer[Any]] = np.int64) -> npt.NDArray[Any]:
    array = np.asarray(array)
    if array.dtype.kind not in "iu" and len(array):
        raise BadRequest(f"{name} must be integers, found {array.dtype}")
    converted = np.ascontiguousarray(array, kind)
    if converted.dtype.itemsize < array.dtype.itemsize and not np.array_equal(converted, array):
        raise BadRequest(f"{name} must contain only integers up to {np.iinfo(kind).max}, found {int(array.max())}")
    return converted
