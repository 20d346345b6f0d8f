"""The uncompressed records of batches, always in format v2, regardless of the codec and the format of the batches.

All code that reads records starts here. `decode` converts the records to columns. `record_fields` locates the records
for code that retains or drops records without reading their values. `filter_batches` writes some of the records again.
Only this module decompresses batches and converts messages of formats v0 and v1 to records of format v2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import compression
from sparklog.format.batch_scan import RECORD_MESSAGES, check_crcs, check_headers
from sparklog.format.kernels import record_kernels as kernels
from sparklog.format.legacy import old_messages
from sparklog.format.new_arrays import new_array
from sparklog.format.record_batch import (
    CALL_LIMIT,
    CODECS,
    GROUP_BYTES,
    HEADER_BYTES,
    MIN_RECORD_BYTES,
    BatchHeaders,
    BoolArray,
    ByteArray,
    BytesLike,
    Codec,
    DataLocation,
    Int64Array,
    Payloads,
    as_bytes_array,
)

_LEGACY = 2
_NOT_DECOMPRESSED = "the batch cannot be decompressed: {}"
_CROWDED = "{} records do not fit into the batch"
TOGETHER_BYTES = 16 << 20
"""Size of the groups of batches that `payloads` decompresses together. The groups are concatenated afterwards."""


def payloads(
    data: BytesLike, headers: BatchHeaders, *, check_crc: bool = True, file: str | None = None, file_position: int = 0
) -> Payloads:
    """Return the uncompressed records of batches.

    Args:
        data: the bytes that contain the batches.
        headers: all or some rows of a scan of `data`.
        check_crc: verify the CRCs of the batches.
        file: name of the file, for error messages.
        file_position: position of `data[0]` in the file, for error messages.

    Raises:
        Corrupt: a header has invalid fields, a CRC does not match, or a payload cannot be decompressed or exceeds
            `compression.decompressed_limit`.
        BadRequest: the records have more than 1 GiB in total. Pass fewer batches.
    """
    source = as_bytes_array(data)
    location = DataLocation(file, file_position)
    check_headers(headers, location, len(source))
    if check_crc:
        check_crcs(data, headers, location)
    groups: list[Payloads] = []
    inflated = 0
    for group in payload_groups(source, headers, location, group_bytes=TOGETHER_BYTES):
        groups.append(group)
        inflated += 0 if group.plain else len(group.data)
        if inflated > CALL_LIMIT:
            raise BadRequest(f"the batches have more than {CALL_LIMIT} bytes of records: read fewer batches at a time")
    if len(groups) == 1:
        return groups[0]
    parts: list[ByteArray] = [source[:0]]
    start, stop = np.zeros(len(headers), np.int64), np.zeros(len(headers), np.int64)
    filled = 0
    for group in groups:
        low, high = int(group.start.min()), int(group.stop.max())
        rows = slice(group.first, group.last)
        start[rows], stop[rows] = group.start + (filled - low), group.stop + (filled - low)
        parts.append(group.data[low:high])
        filled += high - low
    return Payloads(np.concatenate(parts), start, stop, 0, len(headers), stored=0)


def payload_groups(
    data: ByteArray, headers: BatchHeaders, location: DataLocation, *, group_bytes: int = GROUP_BYTES
) -> Iterator[Payloads]:
    """Yield the records of adjacent batches of the same kind. Compressed batches are grouped to about `group_bytes`.

    Payloads of batches without records are ignored. Raises `Corrupt` and `BadRequest` like `payloads`.
    """
    kind = ((headers.codec != 0) & (headers.count > 0)).astype(np.int8)
    kind[headers.is_legacy] = _LEGACY
    start = headers.position + HEADER_BYTES
    stop = np.where(headers.count == 0, start, headers.position + headers.size)
    edges = ((kind[1:] != kind[:-1]).nonzero()[0] + 1).tolist()
    for low, high in zip([0, *edges], [*edges, len(headers)], strict=True):
        if low == high:
            continue
        if kind[low] == _LEGACY:
            yield from old_messages.records(data, headers, low, high, location)
        elif kind[low]:
            yield from _decompressed(data, headers, low, high, location, group_bytes)
        else:
            nbytes = int((stop[low:high] - start[low:high]).sum())
            yield Payloads(data, start[low:high], stop[low:high], low, high, nbytes, plain=True)


def _decompressed(
    data: ByteArray, headers: BatchHeaders, low: int, high: int, location: DataLocation, group_bytes: int
) -> Iterator[Payloads]:
    view = data.data
    columns = (column[low:high].tolist() for column in (headers.position, headers.size, headers.codec))
    out, first, edges, stored, total = data[:0], low, [0], 0, 0
    for batch, (position, size, codec) in enumerate(zip(*columns, strict=True), low):
        try:
            room, fill = compression.open_stream(CODECS[codec], view[position + HEADER_BYTES : position + size])
            if batch > first and edges[-1] + room > len(out):
                yield _group(out, edges, first, stored)
                out, first, edges, stored = data[:0], batch, [0], 0
            if batch == first:
                out = new_array(max(room, min(group_bytes, room * (high - low))), np.uint8)
            filled = fill(out.data[edges[-1] :])
        except Corrupt as error:
            raise location.corrupt(headers, batch, _NOT_DECOMPRESSED.format(error.message)) from None
        edges.append(edges[-1] + filled)
        stored += size - HEADER_BYTES
        total += filled
        if total > CALL_LIMIT:
            raise BadRequest(f"the batches have more than {CALL_LIMIT} bytes of records: read fewer batches at a time")
    yield _group(out, edges, first, stored)


def _group(out: ByteArray, edges: list[int], first: int, stored: int) -> Payloads:
    ends = np.array(edges, np.int64)
    return Payloads(out[: edges[-1]], ends[:-1], ends[1:], first, first + len(edges) - 1, stored)


@dataclass(frozen=True, slots=True, eq=False)
class RecordFields:
    """The positions and fields of n records of m batches, in log order.

    Each field is an array. The fields of a record need 50 bytes.

    * `batch`: int32[n], row of the record's batch in the headers
    * `batch_rows`: int64[m], number of records of each batch
    * `offset`: int64[n]
    * `timestamp`: int64[n], ms, base plus delta; with LogAppendTime, the max timestamp of the batch applies instead
    * `start`, `end`: int64[n], position of the record, including its length field, in `Payloads.data`
    * `has_key`, `has_value`: bool[n]
    * `key_start`: int64[n], position of the key in `Payloads.data`
    * `key_length`: int32[n], -1 for a null key
    """

    batch: npt.NDArray[np.int32]
    offset: Int64Array
    timestamp: Int64Array
    start: Int64Array
    end: Int64Array
    has_key: BoolArray
    has_value: BoolArray
    key_start: Int64Array
    key_length: npt.NDArray[np.int32]
    batch_rows: Int64Array

    def __len__(self) -> int:
        return len(self.offset)


def record_fields(
    payloads: Payloads, headers: BatchHeaders, *, file: str | None = None, file_position: int = 0
) -> RecordFields:
    """Locate the records of all batches.

    Args:
        payloads: the uncompressed records of the batches.
        headers: the headers of the same batches.
        file: name of the file, for error messages.
        file_position: position in the file of the first byte of the data that was scanned, for error messages.

    Raises:
        Corrupt: a record does not fit into its batch, the fields of a record do not match its length, offsets do not
            increase or leave the range of their batch, or a batch continues after its last record.
        BadRequest: `payloads` and `headers` do not match.
    """
    if len(payloads) != len(headers):
        raise BadRequest(f"expected one payload per header, found {len(payloads)} payloads for {len(headers)} headers")
    if bool(((payloads.start < 0) | (payloads.stop > len(payloads.data))).any()):
        raise BadRequest(f"a payload is outside of the {len(payloads.data)} bytes of data")
    location = DataLocation(file, file_position)
    payloads = replace(payloads, first=0, last=len(headers))
    count = check_fit(payloads, headers, location)
    n = int(count.sum())
    kinds = (np.int32, np.int64, np.int64, np.int64, np.int64, np.bool_, np.bool_, np.int64, np.int32)
    fields = RecordFields(*[*(new_array(n, kind) for kind in kinds), count])
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    code = kernels.find_records.sized(n)(
        payloads.data, np.ascontiguousarray(payloads.start), np.ascontiguousarray(payloads.stop), count,
        np.ascontiguousarray(headers.base_offset), np.ascontiguousarray(headers.base_timestamp),
        np.ascontiguousarray(headers.last_offset_delta), fields.batch, fields.offset, fields.timestamp, fields.start,
        fields.end, fields.has_key.view(np.uint8), fields.has_value.view(np.uint8), fields.key_start,
        fields.key_length, state
    )  # fmt: skip
    if code != kernels.OK:
        raise record_error(code, state, payloads, headers, location)
    return fields


def check_batch(stored: BytesLike, codec: Codec, count: int, base_time: int) -> Int64Array:
    """Check the records of one batch, whose offsets start at 0.

    `stored` contains all bytes after its header; times are in ms.

    Returns the smallest and the largest non-negative timestamp (-1 if there is none), the smallest timestamp other than
    -1 (2^63 - 1 if there is none), and the number of records without a key. `count` must not be 0.

    Raises `Corrupt`, without a file and position, if the records are invalid.
    """
    if codec == "none":
        payload = as_bytes_array(stored)
    else:
        try:
            room, fill = compression.open_stream(codec, stored)
            out = new_array(room, np.uint8)
            payload = out[: fill(out.data)]
        except Corrupt as error:
            raise Corrupt(_NOT_DECOMPRESSED.format(error.message)) from None
    if count * MIN_RECORD_BYTES > payload.size:
        raise Corrupt(_CROWDED.format(count))
    totals = np.empty(4, np.int64)
    code = kernels.check_records.sized(count)(payload, count, base_time, totals)
    if code != kernels.OK:
        raise Corrupt(RECORD_MESSAGES[code])
    return totals


def check_fit(payloads: Payloads, headers: BatchHeaders, location: DataLocation) -> Int64Array:
    """Return the record counts of batches. Raises `Corrupt` if a count is too large for the size of its batch."""
    count = np.ascontiguousarray(headers.count[payloads.first : payloads.last])
    crowded = count * MIN_RECORD_BYTES > payloads.stop - payloads.start
    if crowded.any():
        row = int(np.argmax(crowded))
        raise location.corrupt(headers, payloads.first + row, _CROWDED.format(int(count[row])))
    return count


def record_error(
    code: int, state: Int64Array, payloads: Payloads, headers: BatchHeaders, location: DataLocation
) -> Corrupt:
    """Return the error for the error code and the state of a kernel that reads records."""
    row = int(state[kernels.ERROR_BATCH])
    batch = payloads.first + row
    plain = payloads.plain or int(headers.codec[batch]) == 0
    byte = HEADER_BYTES + int(state[kernels.ERROR_POSITION]) - int(payloads.start[row]) if plain else 0
    return location.corrupt(
        headers, batch, RECORD_MESSAGES[code], int(state[kernels.ERROR_OFFSET]) - location.shift, byte
    )
