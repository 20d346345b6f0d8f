"""Control records: the markers that end transactions, and the types that occur only in Kafka's metadata log.

A control batch has the control bit set, no compression and base sequence -1. A transaction marker has one record:

| part  | bytes                                   | meaning                                                   |
|-------|-----------------------------------------|-----------------------------------------------------------|
| key   | int16 version 0, int16 type             | 0 ABORT, 1 COMMIT, 2 LEADER_CHANGE, 3 SNAPSHOT_HEADER,    |
|       |                                         | 4 SNAPSHOT_FOOTER, 5 KRAFT_VERSION, 6 KRAFT_VOTERS        |
| value | int16 version 0, int32 coordinator epoch | of ABORT and COMMIT                                      |

Later versions only append fields, so the known fields are read regardless of the version. If the cleaner has removed
the records of a batch, the batch has no type. This module does not use the kernels, because planners read markers and
must not load the kernels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format import compression
from sparklog.format.record_batch import (
    CODECS,
    CONTROL_BIT,
    HEADER_BYTES,
    NO_LEADER_EPOCH,
    TRANSACTIONAL_BIT,
    BatchHeader,
    BatchHeaders,
    ByteArray,
    BytesLike,
    DataLocation,
    Int64Array,
    as_bytes_array,
)

UNKNOWN = -1
ABORT, COMMIT, LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, KRAFT_VOTERS = range(7)

MARKER_BYTES = 78
"""Size of a transaction marker as written by a coordinator: a header and a record of 17 bytes."""
_PLAIN_START = bytes.fromhex("20 00 00 00 08 0000")
"""The first bytes of a marker's record: length, attributes, both deltas, key length and key version. The marker type
follows these bytes.
"""
_RECORD_BYTES = MARKER_BYTES - HEADER_BYTES
_TYPE = struct.Struct(">h")

_Parsed = TypeVar("_Parsed")
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A control record. `type` is `UNKNOWN` if a later version of Kafka wrote the record. Only markers have a
    coordinator epoch.
    """

    type: int
    coordinator_epoch: int | None = None


def parse_control_type(key: bytes | None) -> int:
    """Return the type in the key of a control record, or `UNKNOWN` if a later version of Kafka wrote the record.

    Raises `Corrupt` for an invalid key.
    """
    if key is None or len(key) < _KEY.size:
        raise Corrupt(f"expected a control record key of at least 4 bytes, found {key.hex() if key else 'none'}")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise Corrupt(f"the control record key has version {version}, expected 0 or more")
    return int(kind) if ABORT <= kind <= KRAFT_VOTERS else UNKNOWN


def parse_control_record(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Parse the key and value of a control record.

    Raises `Corrupt` if either is too short or has a negative version.
    """
    kind = parse_control_type(key)
    if kind not in (ABORT, COMMIT):
        return ControlRecord(kind)
    if value is None or len(value) < _VALUE.size:
        raise Corrupt(
            f"expected an end-of-transaction value of at least 6 bytes, found {value.hex() if value else 'none'}"
        )
    value_version, epoch = _VALUE.unpack_from(value)
    if value_version < 0:
        raise Corrupt(f"the end-of-transaction value has version {value_version}, expected 0 or more")
    return ControlRecord(kind, epoch)


def control_types(
    data: BytesLike, headers: BatchHeaders, *, file: str | None = None, file_position: int = 0
) -> npt.NDArray[np.int8]:
    """Return the type of the first control record of each batch, int8[batches]. `headers` is from a scan of `data`.

    The type is `UNKNOWN` for an unknown type, for a batch without records, and for a batch that is not a control batch.
    Raises `Corrupt`, with the position of the batch, if a record cannot be read. CRCs are not checked.
    """
    types = np.full(len(headers), UNKNOWN, np.int8)
    rows, records = _plain_markers(data, headers)
    types[rows] = records[:, len(_PLAIN_START) + 1]
    for row, kind in _read(
        data, headers, rows, DataLocation(file, file_position), lambda key, _: parse_control_type(key)
    ):
        types[row] = kind
    return types


def coordinator_epochs(
    data: BytesLike, headers: BatchHeaders, *, file: str | None = None, file_position: int = 0
) -> Int64Array:
    """Return the coordinator epoch of each ABORT or COMMIT marker, and -1 for all other batches, int64[batches].

    Raises `Corrupt`, with the position of the batch, if a marker cannot be read. CRCs are not checked.
    """
    epochs = np.full(len(headers), -1, np.int64)
    rows, records = _plain_markers(data, headers)
    value = records[:, len(_PLAIN_START) + _TYPE.size :]
    is_standard = (value[:, :3] == (2 * _VALUE.size, 0, 0)).all(axis=1)
    rows = rows[is_standard]
    epochs[rows] = np.ascontiguousarray(value[is_standard, 3:7]).view(">i4")[:, 0]
    for row, record in _read(data, headers, rows, DataLocation(file, file_position), parse_control_record):
        if record.coordinator_epoch is not None:
            epochs[row] = record.coordinator_epoch
    return epochs


def _plain_markers(data: BytesLike, headers: BatchHeaders) -> tuple[Int64Array, ByteArray]:
    """Return the rows of the markers that have the form that coordinators write, and the records of these markers as
    uint8[rows, 17].

    These markers have a fast path, because half of the batches in a log of small transactions can be markers.
    """
    rows = np.flatnonzero(
        headers.is_control & (headers.count > 0) & (headers.codec == 0) & (headers.size == MARKER_BYTES)
    )
    if not len(rows):
        return rows, np.empty((0, _RECORD_BYTES), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(as_bytes_array(data), _RECORD_BYTES)
    records = windows[headers.position[rows] + HEADER_BYTES]
    start = len(_PLAIN_START)
    plain = (records[:, :start] == np.frombuffer(_PLAIN_START, np.uint8)).all(axis=1)
    plain &= (records[:, start] == 0) & (records[:, start + 1] <= KRAFT_VOTERS)
    return rows[plain], records[plain]


def _read(
    data: BytesLike,
    headers: BatchHeaders,
    plain: Int64Array,
    location: DataLocation,
    parse: Callable[[bytes | None, bytes | None], _Parsed],
) -> Iterator[tuple[int, _Parsed]]:
    """Yield the row and the parsed record of each control batch with records, except for the rows in `plain`."""
    view = memoryview(data)
    remaining = headers.is_control & (headers.count > 0)
    remaining[plain] = False
    rows = np.flatnonzero(remaining)
    columns = (rows, headers.position[rows], headers.size[rows], headers.codec[rows])
    for row, position, size, codec in zip(*(column.tolist() for column in columns), strict=True):
        try:
            parsed = parse(*_first_record(view[position + HEADER_BYTES : position + size], codec))
        except Corrupt as error:
            raise location.corrupt(headers, row, error.message) from None
        yield row, parsed


def _first_record(payload: memoryview, codec: int) -> tuple[bytes | None, bytes | None]:
    if codec:
        if codec >= len(CODECS):
            raise Corrupt(f"the batch has an unknown compression codec ({codec})")
        payload = memoryview(compression.decompress(CODECS[codec], payload))
    _, position = _read_varint(payload, 0)
    _, position = _read_varint(payload, position + 1, max_bytes=10)
    _, position = _read_varint(payload, position)
    key, position = _read_bytes(payload, position)
    return key, None if position == len(payload) else _read_bytes(payload, position)[0]


def _read_bytes(payload: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(payload, position)
    if length > len(payload) - position:
        raise Corrupt("the fields of a record do not match its length")
    return (None, position) if length < 0 else (bytes(payload[position : position + length]), position + length)


def _read_varint(data: memoryview, position: int, max_bytes: int = 5) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[position : position + max_bytes]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + shift + 1
    raise Corrupt("a varint of a control record is truncated or too long")


def end_txn_marker(
    *,
    commit: bool,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Return the bytes of the marker of a committed or aborted transaction. `timestamp` is in ms."""
    key, value = _KEY.pack(0, COMMIT if commit else ABORT), _VALUE.pack(0, coordinator_epoch)
    # Attributes and both deltas are 0. Zig-zag lengths below 64 have one byte each. There are no headers.
    body = bytes((0, 0, 0, 2 * len(key))) + key + bytes((2 * len(value),)) + value + b"\x00"
    header = BatchHeader(
        base_offset=offset, last_offset_delta=0, count=1, base_timestamp=timestamp, max_timestamp=timestamp,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT, leader_epoch=leader_epoch, producer_id=producer_id,
        producer_epoch=producer_epoch
    )  # fmt: skip
    return header.pack(bytes((2 * len(body),)) + body)
