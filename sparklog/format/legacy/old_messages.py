"""Messages of formats v0 and v1 (magic 0 and 1), read-only: found, checked, and turned into records of format v2.

Every entry of such a log is an offset, a size and a message. All integers are big-endian.

| off | size | field           | in CRC | remarks                                                                 |
|----:|-----:|-----------------|--------|-------------------------------------------------------------------------|
|   0 |    8 | offset          | no     | of a compressed message: that of the last record in it                  |
|   8 |    4 | message size    | no     | bytes after this field: 14 or more (v0), 22 or more (v1)                |
|  12 |    4 | crc             | -      | CRC-32 (zlib's) of bytes 16 to the end                                  |
|  16 |    1 | magic           | yes    | 0 or 1                                                                  |
|  17 |    1 | attributes      | yes    | bits 0 to 2: codec (no zstd); bit 3, v1 only: LogAppendTime             |
|  18 |    8 | timestamp       | yes    | v1 only; -1: none                                                       |
|   … |  4+n | key             | yes    | int32 length (-1: null) and bytes                                       |
|   … |  4+n | value           | yes    | the same                                                                |

A compressed message (a wrapper) has no key, and its value is a compressed run of entries. Their offsets are those of
the log in v0; in v1 they are relative, and the last one is at the wrapper's offset (a wrapper at offset 0 has its first
at 0: old librdkafka wrote such). What a v1 wrapper says of time type, and under LogAppendTime of time, holds for all of
its records. Magic 0 wrote the header checksum of LZ4 frames over the wrong bytes, so it is not looked at there.

To the rest of the code each entry is a batch: a row of `BatchHeaders`. This module fills in such rows for `batch_scan`,
and hands `payloads` their records, written again in format v2.
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
    Int64Array,
    Payloads,
    Place,
    as_bytes_array,
    gathered,
)

BEFORE_KEY = (18, 26)
"""Bytes before the key, by magic."""
CRC_START = MAGIC_POSITION
LONG_MESSAGE = 2048
"""zlib's own CRC-32 is faster from here on; the kernel needs no call for each message."""
USUAL_MESSAGE = 100
"""Bytes, to guess how many messages there are."""
_FIELDS = ((0, 8, True), (8, 12, True), (12, 16, False), (17, 18, False), (18, 26, True))
NOTHING = -1
"""There are no leader epochs and no producers in these formats."""
_GZIP, _SNAPPY, _LZ4 = 1, 2, 3


def find(data: BytesLike, start: int) -> BatchHeaders:
    """Find the whole entries of formats v0 and v1 from `start` on, up to the first that is of another format."""
    from sparklog.format.legacy import legacy_kernels as kernels

    source = as_bytes_array(data)
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    least = kernels.LOG_OVERHEAD + kernels.V0_BYTES
    table = new_array(kernels.TABLE_ROWS * ((len(source) - start) // least + 1), np.int64)
    table = table.reshape(kernels.TABLE_ROWS, -1)
    count = kernels.find_messages.sized((len(source) - start) // USUAL_MESSAGE + 1)(source, start, table, state)
    return _headers(table[:, :count], int(state[kernels.END]))


def header_at(data: bytes) -> BatchHeaders:
    """The message at the beginning of `data` (its first 26 bytes at least, unless it is shorter), whole or not."""
    magic = data[MAGIC_POSITION]
    values = (int.from_bytes(data[a:b], "big", signed=signed) for a, b, signed in _FIELDS)
    offset, size, crc, attributes, time = values
    attributes, time = (attributes & 0x0F, time) if magic else (attributes & 0x07, NO_TIMESTAMP)
    row = np.array([0, size + LOG_OVERHEAD, offset, crc, attributes, time, magic], np.int64)
    return _headers(row.reshape(-1, 1), 0)


def _headers(columns: Iterable[Int64Array], end: int) -> BatchHeaders:
    """A row for each entry, as if none were compressed; `columns` as the kernel fills them."""
    position, size, offset, crc, attributes, timestamp, magic = columns
    n = len(position)
    none = np.full(n, NOTHING, np.int64)
    return BatchHeaders(
        position=position, size=size, base_offset=offset, leader_epoch=none, crc=crc, attributes=attributes,
        last_offset_delta=np.zeros(n, np.int64), base_timestamp=timestamp, max_timestamp=timestamp, producer_id=none,
        producer_epoch=none, base_sequence=none, count=np.ones(n, np.int64), end=end, magic=magic.astype(np.int8)
    )  # fmt: skip


def merged(headers: BatchHeaders, groups: Sequence[tuple[int, BatchHeaders]]) -> BatchHeaders:
    """Batches of format v2 and runs of entries in log order; each run comes with how many of the batches are before it.

    Wrappers count as one record at least, from the end of the row before them on: see `resolved`.
    """
    parts: list[BatchHeaders] = []
    low = 0
    for before, entries in groups:
        parts += (headers[low:before], entries)
        low = before
    parts.append(headers[low:])
    magic = [np.full(len(part), MAGIC, np.int8) if part.magic is None else part.magic for part in parts]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    whole = replace(headers, **columns, magic=np.concatenate(magic))
    packed = whole.is_legacy & (whole.codec != 0)
    if not packed.any():
        return whole
    last = whole.last_offset
    after = np.concatenate((last[:1], last[:-1] + 1))
    base = np.where(packed & (after < last), after, whole.base_offset)
    return replace(whole, base_offset=base, last_offset_delta=last - base)


def resolved(data: BytesLike, headers: BatchHeaders) -> BatchHeaders:
    """Return the headers with the offsets and record counts of wrappers, which only their contents tell.

    A damaged wrapper keeps the widest range of offsets that it can have, so that every reader of one of them meets it:
    `records` then raises the error.
    """
    rows = np.flatnonzero(headers.is_legacy & (headers.codec != 0))
    if not len(rows):
        return headers
    view = as_bytes_array(data).data
    base, delta, count = headers.base_offset.copy(), headers.last_offset_delta.copy(), headers.count.copy()
    for row in rows.tolist():
        last = int(headers.base_offset[row] + headers.last_offset_delta[row])
        try:
            inner = _opened(view, headers, row) if _crc_of(view, headers, row) == headers.crc[row] else None
        except Corrupt:
            inner = None
        if inner is None:
            base[row] = 0 if row == 0 else min(int(base[row - 1] + delta[row - 1]) + 1, last)
            delta[row] = last - base[row]
        else:
            base[row], delta[row], count[row] = inner.base, inner.last - inner.base, inner.count
    return replace(headers, base_offset=base, last_offset_delta=delta, count=count)


def crc_failures(data: BytesLike, headers: BatchHeaders) -> Int64Array:
    """Indices (int64) of the entries whose CRC-32 does not match; all rows of `headers` are of formats v0 and v1."""
    from sparklog.format.legacy import legacy_kernels as kernels

    source = as_bytes_array(data)
    long = headers.size >= LONG_MESSAGE
    actual = headers.crc.copy()
    short = np.flatnonzero(~long)
    crcs = kernels.message_crcs.sized(len(short))
    actual[short] = crcs(source, headers.position[short], headers.size[short], kernels.CRC_TABLE)
    view = source.data
    for row in np.flatnonzero(long).tolist():
        actual[row] = _crc_of(view, headers, row)
    return np.flatnonzero(actual != headers.crc)


def message_crcs(data: BytesLike, headers: BatchHeaders, row: int) -> list[int]:
    """Return the CRC-32 of each message of a row: of a wrapper those within it, as they are stored."""
    if not headers.codec[row]:
        return [int(headers.crc[row])]
    crcs: list[int] = find(_opened(as_bytes_array(data).data, headers, row).data, 0).crc.tolist()
    return crcs


def _crc_of(view: memoryview, headers: BatchHeaders, row: int) -> int:
    position = int(headers.position[row])
    return zlib.crc32(view[position + CRC_START : position + int(headers.size[row])])


@dataclass(frozen=True, slots=True)
class _Inner:
    """A wrapper's content: entries back to back in `data`, and their offsets. `shift`: from theirs to the log's."""

    data: bytes
    base: int
    last: int
    shift: int
    count: int


def _opened(view: memoryview, headers: BatchHeaders, row: int) -> _Inner:
    """Decompress a wrapper and number its records. `Corrupt`, without a place, if it breaks the rules."""
    assert headers.magic is not None
    magic, codec = int(headers.magic[row]), int(headers.codec[row])
    position = int(headers.position[row])
    data = unpacked(view[position : position + int(headers.size[row])], magic, codec)
    entries = find(data, 0)
    if entries.end != len(data):
        _check_cut_message(data[entries.end :])
        data = data[: entries.end]
    if not len(entries):
        raise Corrupt("the compressed message holds no messages")
    outer = int(headers.base_offset[row] + headers.last_offset_delta[row])
    first, last = int(entries.base_offset[0]), int(entries.base_offset[-1])
    shift = 0 if magic == 0 or outer == 0 else outer - last
    if shift < 0:
        raise Corrupt(f"the compressed message has offset {outer}, less than {last}, that of the last message within")
    rising = bool((np.diff(entries.base_offset) > 0).all())
    end = last + shift if magic == 1 else outer
    if first + shift < 0 or not rising or last + shift > end:
        raise Corrupt("offsets within a compressed message do not increase, or go beyond its own")
    return _Inner(data, first + shift, end, shift, len(entries))


def _check_cut_message(rest: bytes) -> None:
    """Raise `Corrupt` unless `rest` is an incomplete message, which Kafka drops: old clients cut off message sets."""
    size = int.from_bytes(rest[8:LOG_OVERHEAD], "big", signed=True)
    if len(rest) < LOG_OVERHEAD or (size >= MIN_LEGACY_SIZE_FIELD[0] and size > len(rest) - LOG_OVERHEAD):
        return
    kind = rest[MAGIC_POSITION] if len(rest) > MAGIC_POSITION else 0
    if kind > 1:
        raise Corrupt(f"the compressed message holds a message of format v{kind}")
    raise Corrupt(f"the compressed message holds a message of size {size}, less than the minimum")


def unpacked(entry: memoryview, magic: int, codec: int) -> bytes:
    """The entries in a wrapper: its value, decompressed. `Corrupt` if there is none, or it cannot be."""
    if codec not in (_GZIP, _SNAPPY, _LZ4):
        raise Corrupt(f"a message of format v{magic} names codec {codec}: it can have gzip, snappy or lz4 (1 to 3)")
    start, end = BEFORE_KEY[magic] + 4, entry.nbytes
    start += 4 + max(int.from_bytes(entry[start - 4 : start], "big", signed=True), 0)
    length = int.from_bytes(entry[start - 4 : start], "big", signed=True) if start <= end else end
    if length < 0:
        raise Corrupt("the compressed message has no value")
    if length > end - start:
        raise Corrupt("the fields of the compressed message do not fit into it")
    value = entry[start : start + length]
    if codec == _LZ4 and magic == 0:
        return compression.decompress("lz4", _lz4_with_checksum(value))
    return compression.decompress(CODECS[codec], value)


def _lz4_with_checksum(frame: memoryview) -> bytes:
    flags = frame[4] if frame.nbytes > 4 else 0
    checksum = 6 + (8 if flags & 0x08 else 0)
    if frame.nbytes <= checksum:
        return bytes(frame)
    mended = bytearray(frame)
    mended[checksum] = compression.lz4_header_checksum(bytes(frame[4:checksum]))
    return bytes(mended)


def records(source: ByteArray, headers: BatchHeaders, low: int, high: int, place: Place) -> Iterator[Payloads]:
    """The records of rows `[low, high)` of formats v0 and v1 as records of v2, about `GROUP_BYTES` at a time.

    Deltas count from the row's base offset and base timestamp. Raises `Corrupt` with the place; `BadRequest` if
    wrappers become more than `CALL_LIMIT`.
    """
    packed = headers.codec[low:high] != 0
    edges = [low, *(np.flatnonzero(np.diff(packed)) + 1 + low).tolist(), high]
    for first, last in pairwise(edges):
        if packed[first - low]:
            yield from _unwrapped(source, headers, first, last, place)
        else:
            yield from _plain(source, headers, first, last, place)


def _plain(source: ByteArray, headers: BatchHeaders, low: int, high: int, place: Place) -> Iterator[Payloads]:
    ends = np.cumsum(headers.size[low:high])
    first = low
    while first < high:
        done = int(ends[first - low] - headers.size[first])
        last = max(first + 1, low + int(np.searchsorted(ends, done + GROUP_BYTES, "right")))
        start = headers.position[first:last]
        group = Payloads(source, start, start + headers.size[first:last], first, last, stored=0)
        yield _translated(group, np.zeros(last - first, np.int64), headers, place, inner=False)
        first = last


def _unwrapped(source: ByteArray, headers: BatchHeaders, low: int, high: int, place: Place) -> Iterator[Payloads]:
    view = source.data
    shifts: list[int] = []

    def contents() -> Iterator[bytes]:
        for row in range(low, high):
            try:
                wrapper = _opened(view, headers, row)
            except Corrupt as error:
                raise place.corrupt(headers, row, error.message) from None
            shifts.append(wrapper.shift)
            yield wrapper.data

    for group in gathered(contents()):
        shift = np.array(shifts[group.first : group.last], np.int64)
        group = replace(group, first=low + group.first, last=low + group.last)
        yield _translated(group, shift, headers, place, inner=True)


def _translated(group: Payloads, shift: Int64Array, headers: BatchHeaders, place: Place, *, inner: bool) -> Payloads:
    """Return the messages of some rows as records of format v2; `shift` and `inner` as for the kernel."""
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
        raise place.corrupt(headers, group.first + row, _MESSAGES[code], int(state[kernels.ERROR_OFFSET]), byte)
    stored = int((headers.size[rows] - HEADER_BYTES).sum())
    return replace(group, data=out, start=out_start, stop=out_stop, stored=max(stored, 1))


_MESSAGES = {
    1: "a message's size does not fit",
    2: "a message's key or value does not fit into it",
    3: "offsets within a compressed message do not increase, or go beyond its own",
    4: "a message of another format lies within a compressed one",
    5: "a message within a compressed one is compressed itself",
    6: "the CRC-32 of a message within a compressed one does not match its bytes",
    7: "the message holds other records than its header was found to say",
}
"""By the kernels' error codes."""
