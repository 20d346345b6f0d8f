"""From columns to record batches.

One kernel call writes the records of all batches straight from the Arrow buffers into one buffer that leaves room for
the headers, the rows of every partition in a region of its own; then each batch is compressed (if asked for), gets its
header and its CRC-32C. Offsets count from 0 in each slice; producer id, epoch, sequence and leader epoch are -1: a
commit gives offsets and epoch (neither is covered by the CRC), and writers are known to commits, not to batches.

Batches hold about `batch_bytes` of uncompressed records. One that is larger than `max_message_bytes` as stored is
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
    Int64Array,
)

MAX_BATCH_BYTES = 2**31 - 1
RECORDS_PER_CRC = 16
"""To join a CRC costs as much as to write so many records, interpreted."""
ONE_PASS_BYTES = 64 << 10
"""Bytes that take less time to hash again than two CRCs take to join, interpreted."""
_ALL = np.empty(0, np.int64)
"""As `order`: all rows; as `lane_of`: all in one lane."""
_NONE_PLACED = np.empty(0, np.uint8)


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
    Times are -1 if no record has one. `content_bytes`: of keys, values and headers; `free_records` and `free_bytes`:
    of records without a key whose partition was not given.
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
    """Rows to encode: columns as `encode` takes them.

    `partition`: each row's, 0 or more; None: 0. `placed`: bool[rows], True where that was given and not chosen; None:
    nowhere.
    """

    key: Column
    value: Column
    headers: Column
    timestamp: Int64Array
    partition: npt.NDArray[Any] | None = None
    placed: BoolArray | None = None


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
    """`encode` for every partition at once: `partition` is each row's, 0 or more; rows of one keep their order.

    About three times as fast as one call per partition with an `order`: rows are read in their order in memory.
    Partitions come in ascending order, those without rows are left out.
    """
    return dict(encode_rows([EncoderRows(key, value, headers, timestamp, partition)], options=options))


def encode_rows(rows: Sequence[EncoderRows], *, options: EncodeOptions) -> Iterator[tuple[int, EncodedSlice]]:
    """Yield the partitions of rows that come in several runs, as `encode_partitions` does of one.

    Nothing is copied together before, and each slice can be written and let go before the next is compressed.
    """
    return _RowEncoder([_KernelRows.of(some) for some in rows]).slices(options)


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


@dataclass(frozen=True, slots=True, eq=False)
class _KernelRows:
    """Rows whose columns are in the same arrays, as the kernels take them."""

    times: Int64Array
    columns: KernelColumns
    order: Int64Array
    lane_of: Int64Array
    placed: ByteArray
    count: int
    low: int
    high: int

    @classmethod
    def of(cls, rows: EncoderRows, order: npt.NDArray[Any] | None = None) -> _KernelRows:
        times = np.ascontiguousarray(rows.timestamp, np.int64)
        for name, column in (("key", rows.key), ("value", rows.value), ("headers", rows.headers)):
            if column is not None and len(column) != len(times):
                raise BadRequest(f"column {name} has {len(column)} rows, timestamp has {len(times)}")
        taken = _ALL if order is None else _indices(order, "order")
        if len(taken) and not 0 <= int(taken.min()) <= int(taken.max()) < len(times):
            raise BadRequest(f"order names rows outside 0 to {len(times) - 1}")
        low, high = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        lane_of = _ALL if rows.partition is None else _indices(rows.partition, "partition")
        if rows.partition is not None and len(lane_of) != len(times):
            raise BadRequest(f"{len(lane_of)} partitions are given for {len(times)} rows")
        if len(lane_of) and int(lane_of.min()) < 0:
            raise BadRequest(f"partitions must be 0 or more, found {int(lane_of.min())}")
        columns = KernelColumns(rows.key, rows.value, rows.headers)
        placed = _NONE_PLACED if rows.placed is None else rows.placed.view(np.uint8)
        return cls(times, columns, taken, lane_of, placed, len(times) if order is None else len(taken), low, high)

    def rows(self, lane: int) -> Int64Array:
        """The rows of a lane, in their order."""
        if len(self.lane_of):
            return np.flatnonzero(self.lane_of == lane)
        return self.order if len(self.order) else np.arange(self.count)


class _RowEncoder:
    def __init__(self, parts: Sequence[_KernelRows]) -> None:
        self.parts = [part for part in parts if part.count]
        self.count = sum(part.count for part in self.parts)
        # Attributes, header count and, at their longest, both deltas: of a time up to high - low, zig-zag encoded.
        span = max((part.high for part in self.parts), default=0) - min((part.low for part in self.parts), default=0)
        self.extra = 1 + 5 + 5 + (2 * span + 1).bit_length() // 7 + 1

    def only(self, lane: int, first: int, count: int) -> _RowEncoder:
        """Rows `[first, first + count)` of a lane."""
        parts: list[_KernelRows] = []
        for part in self.parts:
            rows = part.rows(lane)
            taken = np.ascontiguousarray(rows[first : first + count], np.int64)
            parts.append(replace(part, order=taken, lane_of=_ALL, count=len(taken)))
            first, count = max(0, first - len(rows)), count - len(taken)
        return _RowEncoder(parts)

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
        for part in self.parts:
            kernels.encode_records.sized(part.count)(
                part.order, part.lane_of, part.count, part.times, part.columns.table, target, out, lanes, batches, state
            )
        batches = batches[: int(state[kernels.BATCHES])]
        if len(lanes) > 1:
            batches = batches[np.argsort(batches[:, kernels.BATCH_LANE], kind="stable")]
        return out, [_Draft(*row) for row in batches.tolist()], lanes

    def _measure(self) -> Int64Array:
        most = max((int(part.lane_of.max()) for part in self.parts if len(part.lane_of)), default=0)
        lanes = np.zeros((most + 1, kernels.LANE_FIELDS), np.int64)
        lanes[:, kernels.LANE_MIN_TIME] = np.iinfo(np.int64).max
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        before = 0
        for part in self.parts:
            code = kernels.measure.sized(part.count)(
                part.order, part.lane_of, part.placed, part.count, part.times, part.columns.table, self.extra, lanes,
                state
            )  # fmt: skip
            row = before + int(state[kernels.ERROR_ROW])
            if code == kernels.NULL_HEADER:
                raise BadRequest(f"a header and its key must not be null, found one in row {row}")
            if code == kernels.TOO_LARGE:
                raise BadRequest(f"the record in row {row} has more than 2 GiB: no batch can hold it")
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
