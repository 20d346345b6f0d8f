"""From columns to record batches.

One kernel call writes the records of all batches straight from the Arrow buffers into one buffer that leaves room for
the headers, the rows of every partition in a region of its own; then each batch is compressed (if asked for), gets its
header and its CRC-32C. Offsets count from 0 in each slice; producer id, epoch, sequence and leader epoch are -1: a
commit gives offsets and epoch (neither is covered by the CRC), and writers are known to commits, not to batches.

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
    ByteArray,
    Int64Array,
)

MAX_BATCH_BYTES = 2**31 - 1
RECORDS_PER_CRC = 16
"""To join a CRC costs as much as to write so many records, interpreted."""
ONE_PASS_BYTES = 64 << 10
"""Bytes that take less time to hash again than two CRCs take to join, interpreted."""
_ALL = np.empty(0, np.int64)
"""As `order`: all rows; as `lane_of`: all in one lane."""


@dataclass(frozen=True)
class EncodeOptions:
    """Options of written batches. `level` None: the codec's default (gzip 6, lz4 fast, zstd 1). Sizes in bytes.

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
    """Finished batches, back to back, and the facts that a commit and an index need of them.

    `buffers` in order are the bytes. Per batch (int64): `positions` from the slice's start, `sizes`, `last_offsets`
    from the slice's base, `max_timestamps` in ms. `records`: as many as its offsets; `crc`: CRC-32C of all bytes.
    Times are -1 if no record has one.
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

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def data(self) -> bytes:
        return b"".join(self.buffers)


def encode(
    key: Column,
    value: Column,
    headers: Column,
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
    rows = _RowEncoder(key, value, headers, timestamp, order)
    empty = EncodedSlice([], _ALL, _ALL, _ALL, _ALL, 0, NO_TIMESTAMP, NO_TIMESTAMP, 0, False)
    return rows.slices(options).get(0, empty)


def encode_partitions(
    key: Column,
    value: Column,
    headers: Column,
    timestamp: Int64Array,
    partition: npt.NDArray[Any],
    *,
    options: EncodeOptions,
) -> dict[int, EncodedSlice]:
    """`encode` for every partition at once: `partition` is each row's, 0 or more; rows of one keep their order.

    About three times as fast as one call per partition with an `order`: rows are read in their order in memory.
    Partitions come in ascending order, those without rows are left out.
    """
    if len(partition) != len(timestamp):
        raise BadRequest(f"{len(partition)} partitions are given for {len(timestamp)} rows")
    lane_of = _indices(partition, "partition")
    if len(lane_of) and int(lane_of.min()) < 0:
        raise BadRequest(f"partitions must be 0 or more, found {int(lane_of.min())}")
    return _RowEncoder(key, value, headers, timestamp, None, lane_of).slices(options)


@dataclass(frozen=True, slots=True)
class _Draft:
    """An uncompressed batch at `out[start : start + size]` whose header is not written yet."""

    lane: int
    start: int
    size: int
    rows: int
    base_time: int
    max_time: int


@dataclass(frozen=True, slots=True)
class _FinishedBatch:
    """One finished batch: `head` are the bytes that its CRC leaves out."""

    parts: list[memoryview | bytes]
    size: int
    last_offset: int
    max_time: int
    head_crc: int
    crc: int


class _RowEncoder:
    def __init__(
        self,
        key: Column,
        value: Column,
        headers: Column,
        timestamp: Int64Array,
        order: npt.NDArray[Any] | None,
        lane_of: Int64Array = _ALL,
    ) -> None:
        self.times = np.ascontiguousarray(timestamp, np.int64)
        for name, column in (("key", key), ("value", value), ("headers", headers)):
            if column is not None and len(column) != len(self.times):
                raise BadRequest(f"column {name} has {len(column)} rows, timestamp has {len(self.times)}")
        self.order = _ALL if order is None else _indices(order, "order")
        self.lane_of = lane_of
        self.count = len(self.times) if order is None else len(self.order)
        if len(self.order) and not 0 <= int(self.order.min()) <= int(self.order.max()) < len(self.times):
            raise BadRequest(f"order names rows outside 0 to {len(self.times) - 1}")
        low, high = (int(self.times.min()), int(self.times.max())) if len(self.times) else (0, 0)
        if low < NO_TIMESTAMP:
            raise BadRequest(f"timestamps must not be negative, found {low} ms")
        # Attributes, header count and, at their longest, both deltas: of a time up to high - low, zig-zag encoded.
        self.extra = 1 + 5 + 5 + (2 * (high - low) + 1).bit_length() // 7 + 1
        self.columns = KernelColumns(key, value, headers)

    def only(self, lane: int, first: int, count: int) -> _RowEncoder:
        """Rows `[first, first + count)` of a lane."""
        if len(self.lane_of):
            rows = np.flatnonzero(self.lane_of == lane)[first : first + count]
        elif len(self.order):
            rows = self.order[first : first + count]
        else:
            rows = np.arange(first, first + count)
        part = object.__new__(_RowEncoder)
        part.times, part.columns, part.extra = self.times, self.columns, self.extra
        part.order, part.lane_of, part.count = np.ascontiguousarray(rows, np.int64), _ALL, count
        return part

    def write(self, target: int) -> tuple[ByteArray, list[_Draft], Int64Array]:
        """Run the kernels: their output, batches by lane, and the lane table.

        Batches have at most `target` bytes, header included, unless one record is larger.
        """
        lanes = self._measure()
        # Two neighbouring batches of a lane together exceed the target, or they would be one.
        room = lanes[:, kernels.LANE_BYTES]
        counts = np.minimum(lanes[:, kernels.LANE_ROWS], 2 * (room // max(1, target - HEADER_BYTES)) + 2)
        ends = np.cumsum(room + HEADER_BYTES * counts + SLACK)
        lanes[:, kernels.LANE_AT] = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        lanes[:, kernels.LANE_BATCH] = -1
        out = new_array(int(ends[-1]), np.uint8)
        batches = np.zeros((int(counts.sum()), kernels.BATCH_FIELDS), np.int64)
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        kernels.encode_records.sized(self.count)(
            self.order, self.lane_of, self.count, self.times, self.columns.table, target, out, lanes, batches, state
        )
        batches = batches[: int(state[kernels.BATCHES])]
        if len(lanes) > 1:
            batches = batches[np.argsort(batches[:, kernels.BATCH_LANE], kind="stable")]
        return out, [_Draft(*row) for row in batches.tolist()], lanes

    def _measure(self) -> Int64Array:
        lanes = np.zeros((int(self.lane_of.max()) + 1 if len(self.lane_of) else 1, kernels.LANE_FIELDS), np.int64)
        lanes[:, kernels.LANE_MIN_TIME] = np.iinfo(np.int64).max
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        code = kernels.measure.sized(self.count)(
            self.order, self.lane_of, self.count, self.times, self.columns.table, self.extra, lanes, state
        )
        row = int(state[kernels.ERROR_ROW])
        if code == kernels.NULL_HEADER:
            raise BadRequest(f"a header and its key must not be null, found one in row {row}")
        if code == kernels.TOO_LARGE:
            raise BadRequest(f"the record in row {row} has more than 2 GiB: no batch can hold it")
        return lanes

    def slices(self, options: EncodeOptions) -> dict[int, EncodedSlice]:
        if not self.count:
            return {}
        out, drafts, lanes = self.write(options.target)
        done: dict[int, list[_FinishedBatch]] = {}
        for batch, lane in self._finish(out.data, drafts, 0, options):
            done.setdefault(lane, []).append(batch)
        return {lane: _slice(batches, lanes[lane]) for lane, batches in done.items()}

    def _finish(
        self, out: memoryview, drafts: list[_Draft], offset: int, options: EncodeOptions
    ) -> Iterator[tuple[_FinishedBatch, int]]:
        """Compress, write headers and CRCs, split batches that are still too large. `offset`: of each lane's start."""
        lane, first = -1, 0
        for draft in drafts:
            if draft.lane != lane:
                lane, first = draft.lane, 0
            whole = out[draft.start : draft.start + draft.size]
            header = BatchHeader(
                offset + first, draft.rows - 1, draft.rows, draft.base_time, draft.max_time, options.attributes
            )
            if options.codec == "none":
                crc = header.pack_into(whole)
                parts: list[memoryview | bytes] = [whole]
            else:
                payload = compression.compress(options.codec, whole[HEADER_BYTES:], options.level)
                head, crc = header.pack_header(payload)
                parts = [head, payload]
            size = sum(len(part) for part in parts)
            if size <= options.max_message_bytes:
                head_crc = crc32c.crc32c(parts[0][:CRC_START])
                last = offset + first + draft.rows - 1
                yield _FinishedBatch(parts, size, last, draft.max_time, head_crc, crc), lane
            elif draft.rows == 1:
                raise BadRequest(
                    f"one record alone makes a batch of {size} bytes, max.message.bytes is "
                    f"{options.max_message_bytes}: raise it or write smaller records"
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
    return EncodedSlice(
        buffers=buffers,
        positions=np.cumsum(sizes) - sizes,
        sizes=sizes,
        last_offsets=np.array([batch.last_offset for batch in batches], np.int64),
        max_timestamps=times,
        records=int(lane[kernels.LANE_ROWS]),
        min_ts=int(lane[kernels.LANE_MIN_TIME]),
        max_ts=int(times.max()),
        crc=_crc(batches, buffers, sizes),
        has_null_keys=int(lane[kernels.LANE_NULL_KEYS]) > 0,
    )


def _crc(batches: list[_FinishedBatch], buffers: list[memoryview | bytes], sizes: Int64Array) -> int:
    """CRC-32C of all bytes: of few by another pass over them, of many from the CRC-32Cs of the batches."""
    if int(sizes.sum()) <= ONE_PASS_BYTES:
        crc = 0
        for part in buffers:
            crc = crc32c.crc32c(part, crc)
        return crc
    crcs = np.array([(batch.head_crc, batch.crc) for batch in batches], np.int64).reshape(-1)
    lengths = np.stack((np.full(len(sizes), CRC_START), sizes - CRC_START), axis=1).reshape(-1)
    return int(join_crcs.sized(RECORDS_PER_CRC * len(crcs))(crcs, lengths))


def _indices(array: npt.NDArray[Any], name: str) -> Int64Array:
    array = np.asarray(array)
    if array.dtype.kind not in "iu" and len(array):
        raise BadRequest(f"{name} must be integers, found {array.dtype}")
    return np.ascontiguousarray(array, np.int64)
