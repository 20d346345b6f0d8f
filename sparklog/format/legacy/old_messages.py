"""Find and check messages of formats v0 and v1 (magic 0 and 1), and convert them to records of format v2.

These formats are only read, and never written. A log in these formats is a sequence of entries. An entry consists of an
offset, a size and a message. All integers are big-endian.

| off | size | field           | in CRC | remarks                                                                 |
|----:|-----:|-----------------|--------|-------------------------------------------------------------------------|
|   0 |    8 | offset          | no     | of a compressed message: offset of its last record                      |
|   8 |    4 | message size    | no     | bytes after this field: 14 or more (v0), 22 or more (v1)                |
|  12 |    4 | crc             | -      | CRC-32 (zlib's) of bytes 16 to the end                                  |
|  16 |    1 | magic           | yes    | 0 or 1                                                                  |
|  17 |    1 | attributes      | yes    | bits 0 to 2: codec (no zstd); bit 3, v1 only: LogAppendTime             |
|  18 |    8 | timestamp       | yes    | v1 only; -1: none                                                       |
|   … |  4+n | key             | yes    | int32 length (-1: null) and bytes                                       |
|   … |  4+n | value           | yes    | the same                                                                |

A compressed message (a wrapper) has no key, and its value is a compressed sequence of entries. In v0, the offsets of
these entries are offsets of the log. In v1, they are relative, and the last entry has the offset of the wrapper. In a
wrapper at offset 0, the first entry has offset 0, because old versions of librdkafka wrote such wrappers. The timestamp
type of a v1 wrapper applies to all of its records. With LogAppendTime, the timestamp of the wrapper also applies to all
of its records. Writers of magic 0 computed the header checksum of LZ4 frames from the wrong bytes, so this checksum is
not verified in magic 0.

Other code treats each entry as a batch, which is a row of `BatchHeaders`. This module returns these rows to
`batch_scan`, and returns the records, converted to format v2, to `payloads`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format import compression
from sparklog.format.kernels.kernel_memory import SLACK
from sparklog.format.new_arrays import new_array
from sparklog.format.record_batch import (
    CODECS,
    COLUMNS,
    GROUP_BYTES,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MIN_LEGACY_SIZE_FIELD,
    NO_TIMESTAMP,
    BatchHeaders,
    ByteArray,
    BytesLike,
    DataLocation,
    Int64Array,
    Payloads,
    as_bytes_array,
    join_parts,
)

BEFORE_KEY = (18, 26)
"""Position of the key's length field in an entry, by magic."""
CRC_START = MAGIC_POSITION
LONG_MESSAGE = 2048
"""Minimum message size for which zlib's CRC-32 is faster than the kernel, although zlib must be called for each
message.
"""
USUAL_MESSAGE = 100
"""Typical size of a message in bytes, which is used to estimate the number of messages."""
_FIELDS = ((0, 8, True), (8, 12, True), (12, 16, False), (17, 18, False), (18, 26, True))
NOTHING = -1
"""Value of the leader epoch and of the producer fields, which do not exist in formats v0 and v1."""
_GZIP, _SNAPPY, _LZ4 = 1, 2, 3


def find_entries(data: BytesLike, start: int) -> BatchHeaders:
    """Return the complete entries of formats v0 and v1 between `start` and the first entry of another format."""
    from sparklog.format.legacy import legacy_kernels as kernels

    source = as_bytes_array(data)
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    minimum = kernels.LOG_OVERHEAD + kernels.V0_BYTES
    table = new_array(kernels.TABLE_ROWS * ((len(source) - start) // minimum + 1), np.int64)
    table = table.reshape(kernels.TABLE_ROWS, -1)
    count = kernels.find_messages.sized((len(source) - start) // USUAL_MESSAGE + 1)(source, start, table, state)
    return _headers(table[:, :count], int(state[kernels.END]))


def header_at(data: bytes) -> BatchHeaders:
    """Return the header of the entry at the beginning of `data`, even if the rest of the entry is missing.

    `data` must contain the first 26 bytes of the entry, or the entire entry if it is smaller.
    """
    magic = data[MAGIC_POSITION]
    values = (int.from_bytes(data[a:b], "big", signed=signed) for a, b, signed in _FIELDS)
    offset, size, crc, attributes, time = values
    attributes, time = (attributes & 0x0F, time) if magic else (attributes & 0x07, NO_TIMESTAMP)
    row = np.array([0, size + LOG_OVERHEAD, offset, crc, attributes, time, magic], np.int64)
    return _headers(row.reshape(-1, 1), 0)


def _headers(columns: Iterable[Int64Array], end: int) -> BatchHeaders:
    """Return one row per entry, as if no entry were compressed.

    `columns` contains the columns that the kernel filled.
    """
    position, size, offset, crc, attributes, timestamp, magic = columns
    n = len(position)
    none = np.full(n, NOTHING, np.int64)
    return BatchHeaders(
        position=position, size=size, base_offset=offset, leader_epoch=none, crc=crc, attributes=attributes,
        last_offset_delta=np.zeros(n, np.int64), base_timestamp=timestamp, max_timestamp=timestamp, producer_id=none,
        producer_epoch=none, base_sequence=none, count=np.ones(n, np.int64), end=end, magic=magic.astype(np.int8)
    )  # fmt: skip


def merge_entries(headers: BatchHeaders, groups: Sequence[tuple[int, BatchHeaders]]) -> BatchHeaders:
    """Merge batches of format v2 and groups of entries in log order.

    For each group, `groups` contains the number of batches of format v2 before the group. The offsets of a wrapper
    begin after the row before it, and its count is 1, until `resolve_wrappers` sets the actual values.
    """
    parts: list[BatchHeaders] = []
    low = 0
    for before, entries in groups:
        parts += (headers[low:before], entries)
        low = before
    parts.append(headers[low:])
    magic = [np.full(len(part), MAGIC, np.int8) if part.magic is None else part.magic for part in parts]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    merged = replace(headers, **columns, magic=np.concatenate(magic))
    is_wrapper = merged.is_legacy & (merged.codec != 0)
    if not is_wrapper.any():
        return merged
    last = merged.last_offset
    after = np.concatenate((last[:1], last[:-1] + 1))
    base = np.where(is_wrapper & (after < last), after, merged.base_offset)
    return replace(merged, base_offset=base, last_offset_delta=last - base)


def resolve_wrappers(data: BytesLike, headers: BatchHeaders) -> BatchHeaders:
    """Decompress wrappers, and return the headers with the actual offsets and record counts of the wrappers.

    The row of a corrupt wrapper covers the widest possible offset range, so that a read of any offset in this range
    reads the wrapper, and gets the error that `records` raises.
    """
    rows = np.flatnonzero(headers.is_legacy & (headers.codec != 0))
    if not len(rows):
        return headers
    view = as_bytes_array(data).data
    base, delta, count = headers.base_offset.copy(), headers.last_offset_delta.copy(), headers.count.copy()
    for row in rows.tolist():
        last = int(headers.base_offset[row] + headers.last_offset_delta[row])
        try:
            inner = _open_wrapper(view, headers, row) if _crc_of(view, headers, row) == headers.crc[row] else None
        except Corrupt:
            inner = None
        if inner is None:
            base[row] = 0 if row == 0 else min(int(base[row - 1] + delta[row - 1]) + 1, last)
            delta[row] = last - base[row]
        else:
            base[row], delta[row], count[row] = inner.base, inner.last - inner.base, inner.count
    return replace(headers, base_offset=base, last_offset_delta=delta, count=count)


def crc_failures(data: BytesLike, headers: BatchHeaders) -> Int64Array:
    """Return the rows (int64) of entries whose CRC-32 does not match. All `headers` must be of formats v0 and v1."""
    from sparklog.format.legacy import legacy_kernels as kernels

    source = as_bytes_array(data)
    long = headers.size >= LONG_MESSAGE
    actual = headers.crc.copy()
    short = np.flatnonzero(~long)
    crcs = kernels.message_crcs.sized(len(short))
    computed = np.empty(len(short), np.int64)
    crcs(source, headers.position[short], headers.size[short], kernels.CRC_TABLE, computed)
    actual[short] = computed
    view = source.data
    for row in np.flatnonzero(long).tolist():
        actual[row] = _crc_of(view, headers, row)
    return np.flatnonzero(actual != headers.crc)


def message_crcs(data: BytesLike, headers: BatchHeaders, row: int) -> list[int]:
    """Return the stored CRC-32 of each message of a row. For a wrapper, these are the CRC-32s of the messages in it."""
    if not headers.codec[row]:
        return [int(headers.crc[row])]
    crcs: list[int] = find_entries(_open_wrapper(as_bytes_array(data).data, headers, row).data, 0).crc.tolist()
    return crcs


def _crc_of(view: memoryview, headers: BatchHeaders, row: int) -> int:
    position = int(headers.position[row])
    return zlib.crc32(view[position + CRC_START : position + int(headers.size[row])])


@dataclass(frozen=True, slots=True)
class _Inner:
    """The contents of a wrapper: its entries and their offsets. `shift` converts their offset fields to log offsets."""

    data: bytes
    base: int
    last: int
    shift: int
    count: int


def _open_wrapper(view: memoryview, headers: BatchHeaders, row: int) -> _Inner:
    """Decompress a wrapper, and determine its offsets.

    Raises `Corrupt`, without a file and position, if the wrapper is invalid.
    """
    assert headers.magic is not None
    magic, codec = int(headers.magic[row]), int(headers.codec[row])
    position = int(headers.position[row])
    data = decompress_wrapper(view[position : position + int(headers.size[row])], magic, codec)
    entries = find_entries(data, 0)
    if entries.end != len(data):
        _check_cut_message(data[entries.end :])
        data = data[: entries.end]
    if not len(entries):
        raise Corrupt("the compressed message contains no messages")
    outer = int(headers.base_offset[row] + headers.last_offset_delta[row])
    first, last = int(entries.base_offset[0]), int(entries.base_offset[-1])
    shift = 0 if magic == 0 or outer == 0 else outer - last
    if shift < 0:
        raise Corrupt(
            f"the compressed message has offset {outer}, which is below {last}, the offset of its last message"
        )
    is_ascending = bool((np.diff(entries.base_offset) > 0).all())
    end = last + shift if magic == 1 else outer
    if first + shift < 0 or not is_ascending or last + shift > end:
        raise Corrupt(_DISORDERED)
    return _Inner(data, first + shift, end, shift, len(entries))


def _check_cut_message(rest: bytes) -> None:
    """Raise `Corrupt` unless `rest` is an incomplete message.

    Kafka ignores incomplete messages, because old clients truncated message sets.
    """
    size = int.from_bytes(rest[8:LOG_OVERHEAD], "big", signed=True)
    if len(rest) < LOG_OVERHEAD or (size >= MIN_LEGACY_SIZE_FIELD[0] and size > len(rest) - LOG_OVERHEAD):
        return
    kind = rest[MAGIC_POSITION] if len(rest) > MAGIC_POSITION else 0
    if kind > 1:
        raise Corrupt(f"the compressed message contains a message of format v{kind}")
    raise Corrupt(f"the compressed message contains a message of size {size}, which is below the minimum")


def decompress_wrapper(entry: memoryview, magic: int, codec: int) -> bytes:
    """Return the decompressed value of a wrapper. Raises `Corrupt` if it has no value or cannot be decompressed."""
    if codec not in (_GZIP, _SNAPPY, _LZ4):
        raise Corrupt(f"a message of format v{magic} has codec {codec}, expected gzip, snappy or lz4 (1 to 3)")
    start, end = BEFORE_KEY[magic] + 4, entry.nbytes
    start += 4 + max(int.from_bytes(entry[start - 4 : start], "big", signed=True), 0)
    length = int.from_bytes(entry[start - 4 : start], "big", signed=True) if start <= end else end
    if length < 0:
        raise Corrupt("the compressed message has no value")
    if length > end - start:
        raise Corrupt("the fields of the compressed message exceed the size of the message")
    value = entry[start : start + length]
    if codec == _LZ4 and magic == 0:
        return compression.decompress("lz4", _lz4_with_checksum(value))
    return compression.decompress(CODECS[codec], value)


def _lz4_with_checksum(frame: memoryview) -> bytes:
    flags = frame[4] if frame.nbytes > 4 else 0
    checksum = 6 + (8 if flags & 0x08 else 0)
    if frame.nbytes <= checksum:
        return bytes(frame)
    corrected = bytearray(frame)
    corrected[checksum] = compression.lz4_header_checksum(bytes(frame[4:checksum]))
    return bytes(corrected)


def records(
    source: ByteArray, headers: BatchHeaders, low: int, high: int, location: DataLocation
) -> Iterator[Payloads]:
    """Yield the records of rows `[low, high)` of formats v0 and v1 in format v2, in groups of about `GROUP_BYTES`.

    Deltas are relative to the base offset and base timestamp of the row. Raises `Corrupt` if a message is invalid, and
    `BadRequest` if wrappers decompress to more than `CALL_LIMIT` bytes.
    """
    is_wrapper = headers.codec[low:high] != 0
    edges = [low, *(np.flatnonzero(np.diff(is_wrapper)) + 1 + low).tolist(), high]
    for first, last in pairwise(edges):
        if is_wrapper[first - low]:
            yield from _unwrap(source, headers, first, last, location)
        else:
            yield from _plain(source, headers, first, last, location)


def _plain(source: ByteArray, headers: BatchHeaders, low: int, high: int, location: DataLocation) -> Iterator[Payloads]:
    ends = np.cumsum(headers.size[low:high])
    first = low
    while first < high:
        done = int(ends[first - low] - headers.size[first])
        last = max(first + 1, low + int(np.searchsorted(ends, done + GROUP_BYTES, "right")))
        start = headers.position[first:last]
        group = Payloads(source, start, start + headers.size[first:last], first, last, stored=0)
        yield _translate(group, np.zeros(last - first, np.int64), headers, location, inner=False)
        first = last


def _unwrap(
    source: ByteArray, headers: BatchHeaders, low: int, high: int, location: DataLocation
) -> Iterator[Payloads]:
    view = source.data
    shifts: list[int] = []

    def contents() -> Iterator[bytes]:
        for row in range(low, high):
            try:
                wrapper = _open_wrapper(view, headers, row)
            except Corrupt as error:
                raise location.corrupt(headers, row, error.message) from None
            shifts.append(wrapper.shift)
            yield wrapper.data

    for group in join_parts(contents()):
        shift = np.array(shifts[group.first : group.last], np.int64)
        group = replace(group, first=low + group.first, last=low + group.last)
        yield _translate(group, shift, headers, location, inner=True)


def _translate(
    group: Payloads, shift: Int64Array, headers: BatchHeaders, location: DataLocation, *, inner: bool
) -> Payloads:
    """Convert the messages of a group to records of format v2. `shift` and `inner` are the arguments of the kernel."""
    from sparklog.format.legacy import legacy_kernels as kernels

    rows, n = slice(group.first, group.last), len(group)
    count = np.ascontiguousarray(headers.count[rows])
    room = int((group.stop - group.start).sum() + kernels.RECORD_GROWTH * count.sum()) + 2 * SLACK
    out = new_array(room, np.uint8)
    out_start, out_stop = new_array(n, np.int64), new_array(n, np.int64)
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    code = kernels.translate.sized(int(count.sum()))(
        group.data, np.ascontiguousarray(group.start), np.ascontiguousarray(group.stop), count,
        np.ascontiguousarray(headers.base_offset[rows]), shift, np.ascontiguousarray(headers.base_timestamp[rows]),
        np.ascontiguousarray(headers.last_offset_delta[rows]), int(inner), kernels.CRC_TABLE, out, out_start, out_stop,
        state
    )  # fmt: skip
    if code != kernels.OK:
        row = int(state[kernels.ERROR_ROW])
        byte = 0 if inner else int(state[kernels.ERROR_POSITION] - group.start[row])
        raise location.corrupt(headers, group.first + row, _MESSAGES[code], int(state[kernels.ERROR_OFFSET]), byte)
    stored = int((headers.size[rows] - HEADER_BYTES).sum())
    return replace(group, data=out, start=out_start, stop=out_stop, stored=max(stored, 1))


_DISORDERED = (
    "the offsets of the messages in a compressed message do not increase, or exceed the offset of that message"
)
_MESSAGES = {
    1: "the size of a message exceeds the remaining bytes",
    2: "the key or value of a message exceeds the message",
    3: _DISORDERED,
    4: "a compressed message contains a message of another format",
    5: "a compressed message contains another compressed message",
    6: "the CRC-32 of a message in a compressed message does not match its bytes",
    7: "the message does not have the number of records that was found when its header was read",
}
"""Error messages by error code of the kernels."""
