"""Decode record batches to columns: keys, values and headers as Arrow arrays, offsets and timestamps as numpy arrays.

One kernel call decodes consecutive uncompressed batches directly from the input. Compressed batches are decoded in
groups of about 1 MiB (`payloads`). Keys and values are written only once, to the buffers of the final arrays.

The required memory is limited by the size of the input. Uncompressed batches need at most twice their size and a few
bytes per record. A batch has at most one record per 7 bytes. A compressed batch may decompress to
`compression.decompressed_limit` bytes, and all batches of a call may decompress to 1 GiB. One call can return less than
2 GiB of keys and less than 2 GiB of values, because Arrow's offsets have 32 bits. To decode more, decode fewer batches
at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.batch_scan import MAX_OFFSET, check_crcs, check_headers
from sparklog.format.kernels import record_kernels as kernels
from sparklog.format.kernels.kernel_memory import SLACK
from sparklog.format.new_arrays import new_array
from sparklog.format.payloads import check_fit, payload_groups, record_error
from sparklog.format.record_batch import (
    HEADER_BYTES,
    IN_MEMORY,
    BatchHeaders,
    BoolArray,
    BytesLike,
    DataLocation,
    Int64Array,
    Payloads,
    as_bytes_array,
)
from sparklog.format.text import java_text

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
DECODABLE = frozenset({"key", "value", "headers", "offset", "timestamp", "timestampType"})
NOT_FIXED = -2


@dataclass
class RecordColumns:
    """The n decoded records of m batches, in log order.

    * `offset`, `timestamp`: int64[n]; timestamps are in ms. With LogAppendTime, each record has the timestamp of the
      batch
    * `key`, `value`: `pa.BinaryArray` of n rows, or None if not requested
    * `headers`: array of `HEADERS_TYPE`, with nulls for records without headers, or None if not requested
    * `batch_rows`: int64[m], number of decoded records of each batch
    * `batch_time_type`: int8[m], timestamp type of each batch, or -1 if the batch has no timestamps
    """

    offset: Int64Array
    timestamp: Int64Array
    key: pa.BinaryArray | None = None
    value: pa.BinaryArray | None = None
    headers: pa.ListArray | None = None
    batch_rows: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    batch_time_type: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def batch(self) -> npt.NDArray[np.int32]:
        """The index of each record's batch in the headers that were decoded, int32[n]."""
        return np.repeat(np.arange(len(self.batch_rows), dtype=np.int32), self.batch_rows)

    @property
    def timestamp_type(self) -> npt.NDArray[np.int8]:
        return np.repeat(self.batch_time_type, self.batch_rows)


def decode(
    data: BytesLike,
    headers: BatchHeaders,
    *,
    columns: Collection[str] = ("key", "value", "offset", "timestamp", "timestampType"),
    offset_shift: int = 0,
    start_offset: int | None = None,
    end_offset: int | None = None,
    select: BoolArray | None = None,
    append_time: int | None = None,
    check_crc: bool = True,
    location: DataLocation = IN_MEMORY,
) -> RecordColumns:
    """Decode the records of batches.

    Args:
        data: the bytes that contain the batches.
        headers: the headers of the batches, from a scan of `data`.
        columns: the columns of `DECODABLE` to decode. Offset and timestamp are always decoded.
        offset_shift: number to add to every offset.
        start_offset: skip records below this offset (after the shift).
        end_offset: skip records at or above this offset (after the shift).
        select: bool[len(headers)], the batches to decode. Control batches are decoded unless `select` excludes them.
        append_time: timestamp (ms) that replaces the timestamps of LogAppendTime batches.
        check_crc: verify the CRCs of the batches.
        location: the location of the data, for error messages.

    Raises:
        Corrupt: a CRC does not match, a record is invalid, or a payload exceeds its limit.
        BadRequest: a column is unknown, or keys or values have 2 GiB or more.
    """
    unknown = set(columns) - DECODABLE
    if unknown:
        raise BadRequest(f"unknown columns {sorted(unknown)}: expected some of {sorted(DECODABLE)}")
    first = 0 if start_offset is None else start_offset
    limit = MAX_OFFSET + 1 if end_offset is None else end_offset
    mask = np.ones(len(headers), np.bool_) if select is None else np.asarray(select, np.bool_)
    rows = np.zeros(len(headers), np.int64)
    location = replace(location, shift=offset_shift)
    source = as_bytes_array(data)
    check_headers(headers if mask.all() else headers[mask], location, len(source))
    mask = mask & (headers.last_offset + offset_shift >= first) & (headers.base_offset + offset_shift < limit)
    selected = headers if mask.all() else headers[mask]
    if check_crc:
        check_crcs(data, selected, location)
    time = selected.max_timestamp if append_time is None else append_time
    sink = _Sink(columns, selected, np.where(selected.is_log_append_time, time, NOT_FIXED), first, limit, location)
    for group in payload_groups(source, selected, location):
        sink.add(group)
    rows[mask] = sink.emitted
    return replace(sink.finish(), batch_rows=rows, batch_time_type=headers.timestamp_type)


class _Sink:
    """Columns that grow with each group of batches. They are numpy arrays that become Arrow buffers without a copy."""

    def __init__(
        self,
        columns: Collection[str],
        headers: BatchHeaders,
        fixed_time: Int64Array,
        first: int,
        limit: int,
        location: DataLocation,
    ) -> None:
        self.headers = headers
        self.location = location
        self.fixed_time = fixed_time
        self.base_offset = headers.base_offset + location.shift
        self.first, self.limit = first, limit
        self.columns = sum(bit for bit, name in ((1, "key"), (2, "value"), (4, "headers")) if name in columns)
        self.emitted = np.zeros(len(headers), np.int64)
        self.state = np.zeros(kernels.STATE_SIZE, np.int64)
        self.offset = np.empty(0, np.int64)
        self.timestamp = np.empty(0, np.int64)
        self.key, self.value, self.header_key, self.header_value = _Cells(), _Cells(), _Cells(), _Cells()
        self.list_offsets = np.zeros(1, np.int32)
        self.list_valid = np.empty(0, np.uint8)
        self.stored_left = int(headers.size.sum()) - HEADER_BYTES * len(headers)

    def add(self, group: Payloads) -> None:
        headers, rows = self.headers, slice(group.first, group.last)
        count = check_fit(group, headers, self.location)
        records = int(count.sum())
        self._reserve(group, records)
        positions = np.empty(records if self.columns & 4 else 0, np.int64)
        before = self.state.copy()
        code = kernels.decode_records.sized(records)(
            group.data, group.start, group.stop, count, self.base_offset[rows],
            np.ascontiguousarray(headers.base_timestamp[rows]), self.fixed_time[rows],
            np.ascontiguousarray(headers.last_offset_delta[rows]), self.first, self.limit, self.columns, self.offset,
            self.timestamp, self.key.offsets, self.key.data, self.key.valid, self.value.offsets, self.value.data,
            self.value.valid, self.list_offsets, self.list_valid, positions, self.emitted[rows], self.state
        )  # fmt: skip
        if code == kernels.TOO_LARGE:
            raise BadRequest("the keys or values of the records are 2 GiB or larger: decode fewer batches at a time")
        if code != kernels.OK:
            raise record_error(code, self.state, group, headers, self.location)
        if self.columns & 4:
            self._add_headers(group, positions, before)
        self.stored_left -= group.stored

    def _add_headers(self, group: Payloads, positions: Int64Array, before: Int64Array) -> None:
        state = self.state
        entries = int(state[kernels.HEADER_ROWS])
        key_bytes, value_bytes = int(state[kernels.HEADER_KEY_BYTES]), int(state[kernels.HEADER_VALUE_BYTES])
        if max(entries, key_bytes, value_bytes) >= 2**31:
            raise BadRequest("the headers of the records are 2 GiB or larger: decode fewer batches at a time")
        self.header_key.reserve(entries, key_bytes)
        self.header_value.reserve(entries, value_bytes)
        kernels.decode_headers.sized(entries - int(before[kernels.HEADER_ROWS]))(
            group.data, before[kernels.ROWS], state[kernels.ROWS], self.list_offsets, positions,
            self.header_key.offsets, self.header_key.data, self.header_value.offsets, self.header_value.data,
            self.header_value.valid, before[kernels.HEADER_KEY_BYTES], before[kernels.HEADER_VALUE_BYTES], state
        )  # fmt: skip

    def _reserve(self, group: Payloads, records: int) -> None:
        """Reserve memory for a group.

        The size of a group is an upper bound of the size of its keys and values. The space for later groups is
        estimated from the compression ratio of the group.
        """
        state = self.state
        nbytes = int((group.stop - group.start).sum())
        more = 0.0 if group.plain or not group.stored else 1.05 * (self.stored_left - group.stored) / group.stored
        estimate = records * (1 + more)
        rows = int(state[kernels.ROWS])
        self.offset = _grow(self.offset, rows + records, rows + estimate)
        self.timestamp = _grow(self.timestamp, rows + records, rows + estimate)
        for cells, bit, counter in ((self.key, 1, kernels.KEY_BYTES), (self.value, 2, kernels.VALUE_BYTES)):
            if self.columns & bit:
                filled = int(state[counter])
                cells.reserve(rows + records, filled + nbytes, rows + estimate, filled + nbytes * (1 + more))
        if self.columns & 4:
            self.list_offsets = _grow(self.list_offsets, rows + records + 1, rows + estimate)
            self.list_valid = _grow(self.list_valid, rows + records + 7 >> 3, (rows + estimate) / 8, fill=0xFF)

    def finish(self) -> RecordColumns:
        state = self.state
        rows = int(state[kernels.ROWS])
        columns = RecordColumns(self.offset[:rows], self.timestamp[:rows])
        if self.columns & 1:
            columns.key = self.key.array(rows, int(state[kernels.KEY_BYTES]), int(state[kernels.KEY_NULLS]))
        if self.columns & 2:
            columns.value = self.value.array(rows, int(state[kernels.VALUE_BYTES]), int(state[kernels.VALUE_NULLS]))
        if self.columns & 4:
            columns.headers = self._headers(rows)
        return columns

    def _headers(self, rows: int) -> pa.ListArray:
        state = self.state
        entries = int(state[kernels.HEADER_ROWS])
        key = self.header_key.array(entries, int(state[kernels.HEADER_KEY_BYTES]), 0)
        nulls = int(state[kernels.HEADER_VALUE_NULLS])
        value = self.header_value.array(entries, int(state[kernels.HEADER_VALUE_BYTES]), nulls)
        struct = pa.StructArray.from_buffers(
            HEADERS_TYPE.value_type, entries, [None], children=[_as_strings(key), value]
        )
        nulls = int(state[kernels.HEADER_NULLS])
        valid = pa.py_buffer(self.list_valid) if nulls else None
        buffers = [valid, pa.py_buffer(self.list_offsets)]
        return pa.ListArray.from_buffers(HEADERS_TYPE, rows, buffers, null_count=nulls, children=[struct])


class _Cells:
    """The buffers of one binary column: int32 offsets, bytes, and validity bits (1 for a valid cell)."""

    def __init__(self) -> None:
        self.offsets = np.zeros(1, np.int32)
        self.data = np.empty(0, np.uint8)
        self.valid = np.empty(0, np.uint8)

    def reserve(self, rows: int, nbytes: int, estimated_rows: float = 0, estimated_bytes: float = 0) -> None:
        """Reserve memory for a total of `rows` rows and `nbytes` bytes, or for the estimate if it is larger."""
        self.offsets = _grow(self.offsets, rows + 1, estimated_rows + 1)
        self.data = _grow(self.data, nbytes + SLACK, estimated_bytes)
        self.valid = _grow(self.valid, rows + 7 >> 3, estimated_rows / 8, fill=0xFF)

    def array(self, rows: int, nbytes: int, nulls: int) -> pa.Array:
        valid = pa.py_buffer(self.valid) if nulls else None
        buffers = [valid, pa.py_buffer(self.offsets), pa.py_buffer(self.data).slice(0, nbytes)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, null_count=nulls)


MAX_ESTIMATE_BYTES = 256 << 20
"""Maximum size to allocate because of an estimate, which may be inaccurate because it is based on a single group."""


def _grow(array: npt.NDArray[Any], min_size: int, estimate: float = 0, fill: int | None = None) -> npt.NDArray[Any]:
    """Return an array of at least `min_size` elements.

    If the array must grow, it grows by at least half of its size.
    """
    size = len(array)
    if min_size <= size:
        return array
    grown = new_array(
        max(min_size, size + size // 2, min(int(estimate), MAX_ESTIMATE_BYTES // array.itemsize)), array.dtype
    )
    grown[:size] = array
    if fill is not None:
        grown[size:] = fill
    return grown


def _as_strings(key: pa.Array) -> pa.StringArray:
    """Return header keys as strings. Bytes that are not valid UTF-8 become U+FFFD, as in Kafka's clients."""
    text = pa.Array.from_buffers(pa.string(), len(key), key.buffers())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([java_text(cell) for cell in key.to_pylist()], pa.string())
    return text
