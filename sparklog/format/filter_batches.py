"""Change the offsets, epochs and append times of batches in place, or remove records from batches.

`rewrite_headers` changes headers in place. The CRC does not cover the base offset and the leader epoch. It covers the
append time (the max timestamp of a LogAppendTime batch), so the CRC is corrected for the bits that change, without
reading the batch. If the CRC of a batch is wrong before the change, it is also wrong after the change, so corruption is
not hidden.

`filter_batches` writes the same batches as Kafka's log cleaner (`MemoryRecords.filterTo`):

| input batch                                   | output batch                                                  |
|-----------------------------------------------|---------------------------------------------------------------|
| dropped                                       | none                                                          |
| no record is retained, `empty` is True        | a header of 61 bytes, with the same offsets and producer      |
| no record is retained, `empty` is False       | none                                                          |
| all records are retained, no new delete horizon | the same bytes                                              |
| otherwise                                     | rebuilt                                                       |

A rebuilt batch has the same base offset, last offset delta, codec, timestamp type, leader epoch and producer fields.
Its records are unchanged, except for their lengths, their attributes (unused, set to 0) and their timestamp deltas. The
deltas change because the base timestamp changes. The base timestamp is the new delete horizon, or the existing delete
horizon, or the timestamp of the first retained record. With LogAppendTime, the max timestamp does not change, because
it is the timestamp of all records. Otherwise it becomes the largest timestamp of the retained records. Compressed
batches are compressed again with the default level of the codec.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparklog.errors import BadRequest
from sparklog.format import compression, crc32c
from sparklog.format.batch_scan import MAX_OFFSET, MIN_LEGACY_BYTES
from sparklog.format.kernels import record_kernels as kernels
from sparklog.format.kernels.hash_kernels import change_crcs
from sparklog.format.kernels.kernel_memory import SLACK
from sparklog.format.new_arrays import new_array
from sparklog.format.payloads import RecordFields
from sparklog.format.record_batch import (
    CODEC_MASK,
    CODECS,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    HEADER_DTYPE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeaders,
    BoolArray,
    ByteArray,
    BytesLike,
    Int64Array,
    Payloads,
    as_bytes_array,
)

_LEADER_EPOCH, _CRC, _MAX_TIMESTAMP = 12, 17, 35
"""Positions of fields in a header."""
_MAX_LEADER_EPOCH = 2**31 - 1
_INT64_MAX = 2**63 - 1


def rewrite_headers(
    data: BytesLike,
    headers: BatchHeaders,
    *,
    offset_shift: int | Int64Array = 0,
    leader_epoch: int | Int64Array | None = None,
    append_time: int | Int64Array | None = None,
) -> BatchHeaders:
    """Change header fields of the batches of `data` in place, and return the new headers.

    Each change is a number for all batches, or an array of int64[len(headers)] with a value for each batch. If an array
    of epochs or times contains -1 for a batch, the batch is not changed. The number -1 sets the field to "none".

    Args:
        data: writable bytes.
        headers: the batches to change, from a scan of `data`.
        offset_shift: number to add to base offsets.
        leader_epoch: new leader epoch.
        append_time: new max timestamp (ms) of LogAppendTime batches. Their CRCs are corrected.

    Raises:
        BadRequest: the data is read-only, a batch extends beyond the data, an offset, epoch or time is out of range, or
            an array has the wrong shape. In these cases, nothing is changed.
    """
    source = as_bytes_array(data)
    if not source.flags.writeable and len(source):
        raise BadRequest("headers are rewritten in place: expected writable data, found read-only data")
    shift = _column("an offset shift", offset_shift, len(headers), -_INT64_MAX, _INT64_MAX)
    epochs = _column("a leader epoch", leader_epoch, len(headers), -1, _MAX_LEADER_EPOCH)
    times = _column("an append time", append_time, len(headers), -1, _INT64_MAX)
    if not len(headers):
        return headers
    if bool(((headers.position < 0) | (headers.position + headers.size > len(source))).any()):
        raise BadRequest(f"a batch is outside the {len(source)} bytes of data")
    after = replace(headers, base_offset=_shifted(headers, shift))
    windows = np.lib.stride_tricks.sliding_window_view(source, HEADER_BYTES, writeable=True)
    if shift.any():
        windows[headers.position, :8] = after.base_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
    if leader_epoch is not None:
        rows = _rows(leader_epoch, epochs)
        after = replace(after, leader_epoch=_with(after.leader_epoch, rows, epochs))
        epoch = epochs[rows].astype(">i4").view(np.uint8).reshape(-1, 4)
        windows[headers.position[rows], _LEADER_EPOCH : _LEADER_EPOCH + 4] = epoch
    if append_time is not None:
        after = _with_append_time(windows, after, times, _rows(append_time, times))
    return after


def _column(name: str, given: int | Int64Array | None, n: int, low: int, high: int) -> Int64Array:
    if given is None or isinstance(given, int):
        value = -1 if given is None else given
        if not low <= value <= high:
            raise BadRequest(f"{name} must be {low} to {high}, found {value}")
        return np.full(n, value, np.int64)
    if given.shape != (n,) or given.dtype != np.int64:
        raise BadRequest(f"expected int64[{n}] with {name} for each batch, found {given.dtype}{list(given.shape)}")
    if n and not low <= (lowest := int(given.min())) <= int(given.max()) <= high:
        raise BadRequest(f"{name} must be {low} to {high}, found {lowest} to {int(given.max())}")
    return given


def _rows(value: int | Int64Array, values: Int64Array) -> Int64Array:
    """Return the batches to change. If `value` is a number, all batches are returned."""
    return np.arange(len(values)) if isinstance(value, int) else np.flatnonzero(values >= 0)


def _with(column: Int64Array, rows: Int64Array, values: Int64Array) -> Int64Array:
    changed: Int64Array = column.copy()
    changed[rows] = values[rows]
    return changed


def _shifted(headers: BatchHeaders, shift: Int64Array) -> Int64Array:
    """Return the shifted base offsets. If a sum overflows, the result is negative, unless both terms are negative."""
    base = headers.base_offset
    moved: Int64Array = base + shift
    beyond = moved > MAX_OFFSET - np.maximum(headers.last_offset_delta, 0)
    wrong = (moved < 0) | ((base < 0) & (shift <= 0)) | beyond
    if wrong.any():
        first = int(np.argmax(wrong))
        low = int(base[first]) + (by := int(shift[first]))
        high = low + int(headers.last_offset_delta[first])
        raise BadRequest(f"offsets must be 0 to {MAX_OFFSET}, found {low} to {high} after a shift by {by}")
    return moved


def _with_append_time(windows: ByteArray, headers: BatchHeaders, times: Int64Array, rows: Int64Array) -> BatchHeaders:
    rows = rows[headers.is_log_append_time[rows] & (headers.max_timestamp[rows] != times[rows])]
    if not len(rows):
        return headers
    position = headers.position[rows]
    following = headers.size[rows] - (_MAX_TIMESTAMP + 8)
    changed: Int64Array = headers.max_timestamp[rows] ^ times[rows]
    crc, crcs = headers.crc.copy(), headers.crc[rows]
    change_crcs(crcs, changed, following)
    crc[rows] = crcs
    windows[position, _MAX_TIMESTAMP : _MAX_TIMESTAMP + 8] = times[rows].astype(">i8").view(np.uint8).reshape(-1, 8)
    windows[position, _CRC : _CRC + 4] = crc[rows].astype(">u4").view(np.uint8).reshape(-1, 4)
    return replace(headers, crc=crc, max_timestamp=_with(headers.max_timestamp, rows, times))


MAX_BATCH_BYTES = 2**31 - 1 + LOG_OVERHEAD
_EMPTY_BITS = LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
_KNOWN_BITS = CODEC_MASK | _EMPTY_BITS | DELETE_HORIZON_BIT
_NO_BYTES = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Filtered:
    """The k batches that `filter_batches` wrote.

    * `data`: the bytes of the batches, back to back, in a new uint8 array
    * `headers`: the headers of the batches, with positions in `data`
    * `min_ts`: int64[k], smallest timestamp (ms) of the records of each batch, or -1 if the batch has no records
    * `source`: int64[k], ascending, row of each batch in the original headers
    """

    data: ByteArray
    headers: BatchHeaders
    min_ts: Int64Array
    source: Int64Array


def filter_batches(
    data: BytesLike,
    headers: BatchHeaders,
    payloads: Payloads,
    fields: RecordFields,
    *,
    keep: BoolArray,
    drop: BoolArray,
    empty: BoolArray,
    horizon: Int64Array,
) -> Filtered:
    """Write the m batches of `data` with only some of their n records.

    Messages of formats v0 and v1 become batches of format v2, whose offsets range from the first to the last retained
    record. Messages of v0 become CreateTime batches without timestamps.

    Args:
        data: the batches.
        headers: the headers of the batches, from a scan of `data`.
        payloads: the uncompressed records of the same batches.
        fields: the positions and fields of these records.
        keep: bool[n], the records to retain.
        drop: bool[m], batches to drop even if some of their records are retained.
        empty: bool[m], batches whose header is retained if no record is retained.
        horizon: int64[m], delete horizon to set (ms), or -1 for none.

    Raises:
        BadRequest: the lengths of the arrays do not match, or a batch would be 2 GiB or larger.
    """
    keep = np.ascontiguousarray(keep, np.bool_)
    batches = {len(headers), len(payloads), len(fields.batch_rows), len(drop), len(empty), len(horizon)}
    records = {len(fields), len(keep), int(fields.batch_rows.sum())}
    if len(batches) > 1 or len(records) > 1 or bool((fields.batch_rows != headers.count).any()):
        raise BadRequest(
            f"the lengths of headers, records and masks do not match: found {sorted(batches)} batches "
            f"and {sorted(records)} records"
        )
    has_append_time = headers.is_log_append_time
    totals = np.zeros((len(headers), kernels.SURVEY_FIELDS), np.int64)
    rows = np.ascontiguousarray(fields.batch_rows)
    code = kernels.survey(
        keep.view(np.uint8), rows, fields.timestamp, fields.start, fields.end, has_append_time.astype(np.int64),
        np.ascontiguousarray(headers.max_timestamp), len(payloads.data), totals
    )  # fmt: skip
    source, base_offset = as_bytes_array(data), headers.base_offset
    min_size = np.where(headers.is_legacy, MIN_LEGACY_BYTES, HEADER_BYTES)
    misplaced = (headers.position < 0) | (headers.size < min_size) | (headers.position > len(source) - headers.size)
    if code != kernels.OK or misplaced.any():
        raise BadRequest("a record is outside of the payloads, or a batch is outside of the data")
    retained = totals[:, kernels.KEPT_RECORDS]
    plan = np.zeros((len(headers), kernels.PLAN_FIELDS), np.int64)
    plan[:, kernels.ACTION] = np.select(
        [drop, retained == 0, (retained == rows) & (horizon < 0) & ~headers.is_legacy],
        [kernels.NOTHING, np.where(empty, kernels.EMPTY, kernels.NOTHING), kernels.COPY],
        kernels.REBUILD,
    )
    plan[:, kernels.FIRST_ROW] = np.cumsum(rows) - rows
    plan[:, kernels.RECORDS] = rows
    stamped = (horizon >= 0) | headers.has_delete_horizon
    old_base = np.where(headers.has_delete_horizon, headers.base_timestamp, totals[:, kernels.FIRST_TIME])
    plan[:, kernels.BASE_TIME] = np.where(horizon >= 0, horizon, old_base)
    plan[:, kernels.FIXED] = has_append_time
    plan[:, kernels.FIXED_TIME] = headers.max_timestamp
    plan[:, kernels.FROM_AT] = headers.position
    plan[:, kernels.FROM_SIZE] = headers.size
    if headers.magic is not None:
        headers = _narrowed(headers, fields, keep)
        plan[:, kernels.BASE_DELTA] = headers.base_offset - base_offset
    return _Writer(source, headers, payloads, fields, keep, plan, totals, stamped).run()


def _narrowed(headers: BatchHeaders, fields: RecordFields, keep: BoolArray) -> BatchHeaders:
    """Limit the offsets of messages of formats v0 and v1 to the offsets of their retained records, like Kafka."""
    rows = np.flatnonzero(keep & headers.is_legacy[fields.batch])
    batch, offset = fields.batch[rows], fields.offset[rows]
    edge = np.ones(len(batch) + 1, np.bool_)
    edge[1:-1] = batch[1:] != batch[:-1]
    base, last = headers.base_offset.copy(), headers.last_offset
    base[batch[edge[:-1]]] = offset[edge[:-1]]
    last[batch[edge[1:]]] = offset[edge[1:]]
    return replace(headers, base_offset=base, last_offset_delta=last - base)


@dataclass(eq=False)
class _Writer:
    """Writes the batches of a plan. Compressed batches that change are rebuilt and compressed separately first."""

    data: ByteArray
    headers: BatchHeaders
    payloads: Payloads
    fields: RecordFields
    keep: BoolArray
    plan: Int64Array
    totals: Int64Array
    stamped: BoolArray

    def run(self) -> Filtered:
        plan = self.plan
        action = plan[:, kernels.ACTION].copy()
        packed = self._compress(np.flatnonzero((action == kernels.REBUILD) & (self.headers.codec != 0)))
        out = self._write(plan, packed)
        source = np.flatnonzero(action != kernels.NOTHING)
        headers = self._headers(source, action[source])
        fresh = np.flatnonzero(action[source] != kernels.COPY)
        if len(fresh):
            headers = replace(headers, crc=headers.crc.copy())
            self._seal(out, headers, fresh)
        min_ts = np.where(headers.count > 0, self.totals[source, kernels.MIN_TIME], NO_TIMESTAMP)
        return Filtered(out, headers, min_ts, source)

    def _write(self, plan: Int64Array, packed: ByteArray) -> ByteArray:
        """Run the kernel for a plan and return its output. The output contains gaps for new headers."""
        fields = self.fields
        action = plan[:, kernels.ACTION]
        room = np.select(
            [action == kernels.NOTHING, action == kernels.COPY], [0, plan[:, kernels.FROM_SIZE]], HEADER_BYTES
        )
        growth = self.totals[:, kernels.KEPT_BYTES] + kernels.RECORD_GROWTH * self.totals[:, kernels.KEPT_RECORDS]
        out = new_array(int(room.sum() + growth[action == kernels.REBUILD].sum()) + SLACK, np.uint8)
        written = kernels.write_batches(
            plan, self.data, packed, self.payloads.data, fields.timestamp, fields.start, fields.end,
            self.keep.view(np.uint8), out
        )  # fmt: skip
        if written < 0:
            raise BadRequest("a record is outside of the payloads, or a batch is outside of the data")
        if len(plan) and int(plan[:, kernels.OUT_SIZE].max()) > MAX_BATCH_BYTES:
            raise BadRequest("a batch would be 2 GiB or larger; batches must be smaller than 2 GiB")
        return out[:written]

    def _compress(self, rows: Int64Array) -> ByteArray:
        """Rebuild and compress batches. The bytes of each batch follow a gap for its header.

        Also change the plan, so that the compressed batches are copied.
        """
        if not len(rows):
            return _NO_BYTES
        plan = self.plan
        alone = plan.copy()
        alone[:, kernels.ACTION] = kernels.NOTHING
        alone[rows, kernels.ACTION] = kernels.REBUILD
        rebuilt = self._write(alone, _NO_BYTES).data
        start, size = alone[rows, kernels.OUT_AT], alone[rows, kernels.OUT_SIZE]
        columns = ((start + HEADER_BYTES).tolist(), (start + size).tolist(), self.headers.codec[rows].tolist())
        parts: list[bytes] = []
        gap = bytes(HEADER_BYTES)
        for low, high, codec in zip(*columns, strict=True):
            parts += (gap, compression.compress(CODECS[codec], rebuilt[low:high]))
        size = np.array([len(part) for part in parts[1::2]], np.int64) + HEADER_BYTES
        plan[rows, kernels.ACTION], plan[rows, kernels.FROM] = kernels.COPY, 1
        plan[rows, kernels.FROM_AT], plan[rows, kernels.FROM_SIZE] = np.cumsum(size) - size, size
        return as_bytes_array(b"".join(parts))

    def _headers(self, source: Int64Array, action: Int64Array) -> BatchHeaders:
        plan, totals = self.plan[source], self.totals[source]
        old = self.headers[source]
        rebuilt, emptied = action == kernels.REBUILD, action == kernels.EMPTY
        attributes = np.where(emptied, old.attributes & _EMPTY_BITS, old.attributes)
        attributes = np.where(rebuilt, old.attributes & _KNOWN_BITS, attributes)
        attributes = np.where(rebuilt & self.stamped[source], attributes | DELETE_HORIZON_BIT, attributes)
        base = np.where(rebuilt, plan[:, kernels.BASE_TIME], old.base_timestamp)
        return replace(
            old,
            position=plan[:, kernels.OUT_AT].copy(),
            size=plan[:, kernels.OUT_SIZE].copy(),
            attributes=attributes,
            base_timestamp=np.where(emptied, NO_TIMESTAMP, base),
            max_timestamp=np.where(rebuilt, totals[:, kernels.MAX_TIME], old.max_timestamp),
            count=np.where(action == kernels.COPY, old.count, totals[:, kernels.KEPT_RECORDS]),
            magic=None,
            end=int(plan[:, kernels.OUT_SIZE].sum()),
            stop="end",
            reason="",
        )

    def _seal(self, out: ByteArray, headers: BatchHeaders, rows: Int64Array) -> None:
        """Write the headers and CRCs of batches to `out`, and write the CRCs to `headers.crc`."""
        packed = np.zeros(len(rows), HEADER_DTYPE)
        for name in HEADER_DTYPE.names or ():
            if name not in ("length", "magic", "crc"):
                packed[name] = getattr(headers, name)[rows]
        packed["length"] = headers.size[rows] - LOG_OVERHEAD
        packed["magic"] = MAGIC
        position = headers.position[rows]
        windows = np.lib.stride_tricks.sliding_window_view(out, HEADER_BYTES, writeable=True)
        windows[position] = packed.view(np.uint8).reshape(-1, HEADER_BYTES)
        view, crc = out.data, crc32c.crc32c
        ends = (position + headers.size[rows]).tolist()
        crcs = [crc(view[start + CRC_START : end]) for start, end in zip(position.tolist(), ends, strict=True)]
        headers.crc[rows] = crcs
        packed["crc"] = crcs
        windows[position] = packed.view(np.uint8).reshape(-1, HEADER_BYTES)
