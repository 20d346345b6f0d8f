"""The records of batches as Kafka's tools iterate over them: sound ones by the decoder, all others one by one.

Kafka's iteration checks no checksum and less than a reader here does, and prints what it can before it dies. Where the
decoder refuses a batch, it is walked in Python by Kafka's own rules, to the same record and the same exception.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format import compression
from sparklog.format.decode import decode
from sparklog.format.legacy import old_messages
from sparklog.format.record_batch import (
    CODEC_MASK,
    CODECS,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    MAX_SEQUENCE,
    NO_SEQUENCE,
    BatchHeader,
    BatchHeaders,
)
from sparklog.format.text import java_text
from sparklog.tools.inspection.dump_halt import CORRUPT_RECORD, ILLEGAL_ARGUMENT, INVALID_RECORD, KAFKA, Halt
from sparklog.tools.inspection.dump_walk import Window

Header = tuple[str, bytes | None]
NO_HEADERS: tuple[Header, ...] = ()

_ENTRY = struct.Struct(">qi")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_ZSTD = 4


@dataclass(slots=True)
class Records:
    """Records of a window in log order, a list per field; `rows`: how many each batch has.

    `sequence` -1: none. `old`: of messages of formats v0 and v1 whether their checksum holds, and it; else None.
    `halt`: what Kafka's tool dies of behind the last one, in the batch after those that `rows` counts whole.
    """

    rows: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    timestamp: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    key: list[bytes | None] = field(default_factory=list)
    value: list[bytes | None] = field(default_factory=list)
    headers: list[tuple[Header, ...]] = field(default_factory=list)
    old: list[tuple[bool, int] | None] = field(default_factory=list)
    halt: Halt | None = None

    def add(self, record: Record) -> None:
        self.offset.append(record.offset)
        self.timestamp.append(record.timestamp)
        self.sequence.append(record.sequence)
        self.key.append(record.key)
        self.value.append(record.value)
        self.headers.append(record.headers)
        self.old.append(record.old)


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as in `Records`."""

    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = NO_HEADERS
    old: tuple[bool, int] | None = None


def records_of(window: Window) -> Records:
    """All records of a window's batches, up to where Kafka's tool dies."""
    found = Records()
    headers = window.headers
    new = ~headers.is_legacy
    row = 0
    while row < len(headers):
        end = row + 1
        if new[row]:
            others = np.flatnonzero(~new[row:])
            end = row + int(others[0]) if len(others) else len(headers)
        if new[row] and _decoded(window.data, headers[row:end], found):
            row = end
            continue
        for each in range(row, end):
            if new[each] and end > row + 1 and _decoded(window.data, headers[each : each + 1], found):
                continue
            _walked(window, each, found)
            if found.halt is not None:
                return found
        row = end
    return found


def _decoded(data: bytes, headers: BatchHeaders, found: Records) -> bool:
    """Add the records of batches of format v2; False, adding none, if the decoder refuses one of them."""
    headers = replace(headers, magic=None)
    try:
        columns = decode(data, headers, columns=("key", "value", "headers"), check_crc=False)
    except Corrupt:
        return False
    count = len(columns)
    base = np.repeat(headers.base_sequence, columns.batch_rows)
    delta = columns.offset - np.repeat(headers.base_offset, columns.batch_rows)
    found.rows += columns.batch_rows.tolist()
    found.offset += columns.offset.tolist()
    found.timestamp += columns.timestamp.tolist()
    found.sequence += np.where(base < 0, NO_SEQUENCE, (base + delta) & MAX_SEQUENCE).tolist()
    assert columns.key is not None
    assert columns.value is not None
    assert columns.headers is not None
    found.key += columns.key.to_pylist()
    found.value += columns.value.to_pylist()
    if columns.headers.null_count == count:
        found.headers += [NO_HEADERS] * count
    else:
        found.headers += [
            NO_HEADERS if each is None else tuple((header["key"], header["value"]) for header in each)
            for each in columns.headers.to_pylist()
        ]
    found.old += [None] * count
    return True


def _walked(window: Window, row: int, found: Records) -> None:
    """Add one batch's records by Kafka's rules; where these throw, what came before and the exception."""
    header = window.headers.row(row)
    position = int(window.headers.position[row])
    batch = window.data[position : position + header.size]
    before = len(found.offset)
    try:
        walk = _messages(batch, header) if header.magic < MAGIC else _walk_batch(batch, header, window.magic[row])
        for record in walk:
            found.add(record)
    except Halt as halt:
        found.halt = halt
    found.rows.append(len(found.offset) - before)


def _walk_batch(batch: bytes, header: BatchHeader, magic: int) -> Iterator[Record]:
    """Records of a batch of format v2, as `DefaultRecordBatch.iterator` gives them."""
    if header.count == 0:
        return
    packed = header.attributes & CODEC_MASK
    if header.count < 0:
        raise Halt(INVALID_RECORD, f"Found invalid record count {header.count} in magic v{magic} batch")
    body: bytes = batch[HEADER_BYTES:]
    if packed:
        try:
            body = compression.decompress(CODECS[packed], body)
        except Corrupt:
            raise Halt(KAFKA, "Failed to decompress record stream") from None
        # Kafka reads a compressed batch to its end before it hands out the first record.
        yield from list(_walk_records(body, header, packed=True))
    else:
        yield from _walk_records(body, header, packed=False)


def _walk_records(body: bytes, header: BatchHeader, *, packed: bool) -> Iterator[Record]:
    cursor = _Cursor(body)
    for number in range(1, header.count + 1):
        record = _walk_record(cursor, header, packed=packed)
        if number == header.count and cursor.position < len(body):
            raise Halt(INVALID_RECORD, "Incorrect declared batch size, records still remaining in file")
        yield record


class _EndError(Exception):
    """The bytes end within a field (Java: BufferUnderflowException)."""


class _LongError(Exception):
    """A varint goes on behind its last byte; the argument is Kafka's text."""


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def varint(self, most: int = 5) -> int:
        value = 0
        for shift in range(most):
            if self.position >= len(self.data):
                raise _EndError
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << 7 * shift
            if byte < 0x80:
                mask = 0xFFFFFFFF if most == 5 else 0xFFFFFFFFFFFFFFFF
                value &= mask
                return (value >> 1) ^ -(value & 1)
        # Kafka's text of a varlong is never seen: it stands in a record, whose reader says something else.
        shown = f"{value & 0xFFFFFFFF:x}"
        raise _LongError(
            f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {shown}"
        )

    def take(self, length: int) -> bytes | None:
        if length < 0:
            return None
        if length > len(self.data) - self.position:
            raise _EndError
        self.position += length
        return self.data[self.position - length : self.position]


def _walk_record(cursor: _Cursor, header: BatchHeader, *, packed: bool) -> Record:
    try:
        size = cursor.varint()
    except _EndError:
        raise Halt(INVALID_RECORD, "Incorrect declared batch size, premature EOF reached") from None
    except _LongError as error:
        raise Halt(ILLEGAL_ARGUMENT, str(error)) from None
    left = len(cursor.data) - cursor.position
    if left < size:
        what = "the record payload reached EOF." if packed else f"instead the buffer has only {left} remaining bytes."
        raise Halt(INVALID_RECORD, f"Invalid record size: expected {size} bytes in record payload, but {what}")
    inner, start = cursor, cursor.position
    if packed:
        if size < 0:
            raise Halt(ILLEGAL_ARGUMENT, f"capacity < 0: ({size} < 0)")
        inner, start = _Cursor(cursor.take(size) or b""), 0
    try:
        record = _fields(inner, header)
    except (_EndError, _LongError):
        raise Halt(INVALID_RECORD, "Found invalid record structure") from None
    if inner.position - start != size:
        said = f"Invalid record size: expected to read {size} bytes in record payload, but instead read "
        raise Halt(INVALID_RECORD, f"{said}{inner.position - start}")
    return record


def _fields(cursor: _Cursor, header: BatchHeader) -> Record:
    if cursor.take(1) is None:
        raise _EndError
    timestamp = _wrapped(header.base_timestamp + cursor.varint(10), 64)
    if header.attributes & LOG_APPEND_TIME_BIT:
        timestamp = header.max_timestamp
    delta = cursor.varint()
    sequence = (header.base_sequence + delta) & MAX_SEQUENCE if header.base_sequence >= 0 else NO_SEQUENCE
    key = cursor.take(cursor.varint())
    value = cursor.take(cursor.varint())
    count = cursor.varint()
    if count < 0:
        raise Halt(INVALID_RECORD, f"Found invalid number of record headers {count}")
    if count > len(cursor.data) - cursor.position:
        said = "is larger than the remaining size of the buffer"
        raise Halt(INVALID_RECORD, f"Found invalid number of record headers. {count} {said}")
    headers = []
    for _ in range(count):
        length = cursor.varint()
        if length < 0:
            raise Halt(INVALID_RECORD, f"Invalid negative header key size {length}")
        name = java_text(cursor.take(length) or b"")
        headers.append((name, cursor.take(cursor.varint())))
    return Record(_wrapped(header.base_offset + delta, 64), timestamp, sequence, key, value, tuple(headers))


def _wrapped(value: int, bits: int) -> int:
    """As Java's integers of so many bits do."""
    half = 1 << bits - 1
    return (value + half) % (1 << bits) - half


def _messages(entry: bytes, header: BatchHeader) -> Iterator[Record]:
    """Records of one message of format v0 or v1, as `AbstractLegacyRecordBatch.iterator` gives them."""
    offset = header.base_offset + header.last_offset_delta
    codec = header.attributes & CODEC_MASK
    if not codec:
        yield _message(entry[LOG_OVERHEAD:], offset, None)
        return
    if codec == _ZSTD:
        said = "Invalid wrapper compressionType found in legacy deep record iterator"
        raise Halt(INVALID_RECORD, f"{said} {header.magic}")
    inner = list(_inner(_unpacked(entry, header.magic, codec)))
    if not inner:
        raise Halt(INVALID_RECORD, "Found invalid compressed record set with no inner records")
    base, stamp = 0, None
    if header.magic == 1:
        stamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
        last = inner[-1][0]
        if offset < last and offset:
            said = "Found invalid wrapper offset in compressed v1 message set, wrapper offset"
            less = f"is less than the last inner message offset '{last}' and it is not zero."
            raise Halt(INVALID_RECORD, f"{said} '{offset}' {less}")
        base = offset - last if offset else 0
    for relative, message in inner:
        if len(message) > 5 and message[5] & CODEC_MASK:
            raise Halt(INVALID_RECORD, "Inner messages must not be compressed")
        yield _message(message, base + relative, stamp)


def _unpacked(entry: bytes, magic: int, codec: int) -> bytes:
    try:
        return old_messages.unpacked(memoryview(entry), magic, codec)
    except Corrupt as error:
        raise Halt(KAFKA, error.message) from None


def _inner(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes (from the checksum on) of each message in a wrapper."""
    position = 0
    while position + LOG_OVERHEAD <= len(data):
        offset, size = _ENTRY.unpack_from(data, position)
        if size < 14:
            raise Halt(CORRUPT_RECORD, "Record size is less than the minimum record overhead (14)")
        position += LOG_OVERHEAD
        if position + size > len(data):
            return
        yield offset, data[position : position + size]
        position += size


def _message(message: bytes, offset: int, stamp: int | None) -> Record:
    """A message from its checksum on; `stamp`: the LogAppendTime of its wrapper."""
    crc = int.from_bytes(message[:4], "big")
    valid = zlib.crc32(message[4:]) == crc
    magic = message[4]
    at, timestamp = 6, -1
    try:
        if magic:
            timestamp = int(_LONG.unpack_from(message, 6)[0]) if stamp is None else stamp
            at = 14
        key, at = _sized(message, at)
        value, at = _sized(message, at)
    except struct.error:
        raise Halt(CORRUPT_RECORD, f"the message at offset {offset} ends within its key or value") from None
    return Record(offset, timestamp, NO_SEQUENCE, key, value, old=(valid, crc))


def _sized(data: bytes, position: int) -> tuple[bytes | None, int]:
    length = int(_INT.unpack_from(data, position)[0])
    position += 4
    if length > len(data) - position:
        raise struct.error
    return (None, position) if length < 0 else (data[position : position + length], position + length)
