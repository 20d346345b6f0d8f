"""Headers of Kafka record batches (magic 2): constants, a class to write one header, and columns to read many headers.

A batch is a 61-byte header followed by its records, uncompressed or as one compressed stream. All integers are
big-endian.

| off | size | field                | in CRC | remarks                                                         |
|----:|-----:|----------------------|--------|-----------------------------------------------------------------|
|   0 |    8 | base offset          | no     | rewritten when the log assigns offsets                          |
|   8 |    4 | batch length         | no     | bytes after this field: size of the batch - 12                  |
|  12 |    4 | leader epoch         | no     | -1: none                                                        |
|  16 |    1 | magic                | no     | at byte 16 in every format, so it is read first                 |
|  17 |    4 | crc                  | -      | CRC-32C of bytes 21 to the end, compressed payload included     |
|  21 |    2 | attributes           | yes    | codec, timestamp type, transactional, control, delete horizon   |
|  23 |    4 | last offset delta    | yes    | may exceed the last record's delta after cleaning               |
|  27 |    8 | base timestamp       | yes    | the delete horizon when that attribute bit is set               |
|  35 |    8 | max timestamp        | yes    | with LogAppendTime, the timestamp of all records                |
|  43 |    8 | producer id          | yes    | -1: none                                                        |
|  51 |    2 | producer epoch       | yes    | -1: none                                                        |
|  53 |    4 | base sequence        | yes    | -1: none, also in control batches                               |
|  57 |    4 | record count         | yes    | 0 in a batch whose records were all removed by the cleaner      |

The CRC does not cover the fields before it, so a log can assign offsets and epochs without computing the CRC again.
Messages of formats v0 and v1 (magic 0 and 1) are also represented as batches (see
`sparklog.format.legacy.old_messages`). This module imports only numpy, because planners import it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import crc32c

BytesLike: TypeAlias = Any
"""An object with a contiguous buffer of bytes: bytes, memoryview, uint8 array, pyarrow.Buffer or mmap."""
ByteArray: TypeAlias = npt.NDArray[np.uint8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

MAGIC = 2
HEADER_BYTES = 61
LOG_OVERHEAD = 12
"""Size of base offset and batch length, which the batch length does not include."""
CRC_START = 21
MAGIC_POSITION = 16
MIN_SIZE_FIELD = 14
"""The smallest size field of all formats (magic 0 without key and value)."""
MIN_RECORD_BYTES = 7
"""Minimum size of a record, with one byte each for length, attributes, two deltas, two lengths and the header count."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
MIN_LEGACY_SIZE_FIELD = (14, 22)
"""The smallest size fields of formats v0 and v1."""

NO_TIMESTAMP = -1
NO_PRODUCER_ID = NO_PRODUCER_EPOCH = NO_SEQUENCE = NO_LEADER_EPOCH = -1
NO_TIMESTAMP_TYPE = -1
"""The timestamp type of records of format v0, which have no timestamps."""
CREATE_TIME, LOG_APPEND_TIME = 0, 1
MAX_SEQUENCE = 2**31 - 1

GROUP_BYTES = 1 << 20
"""Approximate number of bytes to decompress at a time."""
CALL_LIMIT = 1 << 30
"""Maximum decompressed size of the batches of one call."""

HEADER_DTYPE = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
HEADER_STRUCT = struct.Struct(">qiibIhiqqqhii")
_CRC_STRUCT = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fields of a header as stored in the batch. `size` is the size of the entire batch in bytes.

    If `magic` is not 2, the header belongs to a message of an old format. Messages of old formats are only read, and
    never written.
    """

    base_offset: int
    last_offset_delta: int
    count: int
    base_timestamp: int
    max_timestamp: int
    attributes: int = 0
    leader_epoch: int = NO_LEADER_EPOCH
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    size: int = HEADER_BYTES
    crc: int = 0
    magic: int = MAGIC

    def pack_into(self, batch: memoryview) -> int:
        """Write the header, with its size and CRC, to the first 61 bytes of a complete batch. Return the CRC."""
        self._pack_fields(batch, batch.nbytes)
        crc: int = crc32c.crc32c(batch[CRC_START:])
        _CRC_STRUCT.pack_into(batch, MAGIC_POSITION + 1, crc)
        return crc

    def pack_header(self, payload: BytesLike) -> tuple[bytes, int]:
        """Return the 61 bytes of the header of a batch with `payload`, and the CRC in the header."""
        header = bytearray(HEADER_BYTES)
        self._pack_fields(header, HEADER_BYTES + memoryview(payload).nbytes)
        crc: int = crc32c.crc32c(payload, crc32c.crc32c(memoryview(header)[CRC_START:]))
        _CRC_STRUCT.pack_into(header, MAGIC_POSITION + 1, crc)
        return bytes(header), crc

    def pack(self, payload: BytesLike = b"") -> bytes:
        return b"".join((self.pack_header(payload)[0], payload))

    def _pack_fields(self, to: bytearray | memoryview, size: int) -> None:
        HEADER_STRUCT.pack_into(
            to, 0, self.base_offset, size - LOG_OVERHEAD, self.leader_epoch, MAGIC, 0, self.attributes,
            self.last_offset_delta, self.base_timestamp, self.max_timestamp, self.producer_id, self.producer_epoch,
            self.base_sequence, self.count
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class BatchHeaders:
    """Headers of consecutive batches. Each field is an array of int64[len(self)].

    `position` is the position of each batch in the scanned data, and `size` is its size in bytes. `end` is the position
    where the scan stopped, and `stop` is the cause: "end" (of the data), "partial" (the last batch is incomplete),
    "zeros" (the end of a preallocated file) or "corrupt" (`reason` contains the details). Selecting rows does not
    change `end`, `stop` and `reason`.

    `magic` (int8[len(self)]) is None if all batches have magic 2. Rows of magic 0 and 1 are messages, which have no
    batch header. The base offset and the count of such a row describe the records in the message.
    """

    position: Int64Array
    size: Int64Array
    base_offset: Int64Array
    leader_epoch: Int64Array
    crc: Int64Array
    attributes: Int64Array
    last_offset_delta: Int64Array
    base_timestamp: Int64Array
    max_timestamp: Int64Array
    producer_id: Int64Array
    producer_epoch: Int64Array
    base_sequence: Int64Array
    count: Int64Array
    end: int = 0
    stop: str = "end"
    reason: str = ""
    magic: npt.NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, rows: slice | npt.NDArray[Any] | Sequence[int]) -> BatchHeaders:
        """Return the rows selected by a slice, a boolean mask or an index array."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, **columns, magic=None if self.magic is None else self.magic[rows])

    def row(self, index: int) -> BatchHeader:
        columns = {f.name: int(getattr(self, f.name)[index]) for f in fields(BatchHeader) if f.name != "magic"}
        return BatchHeader(**columns, magic=MAGIC if self.magic is None else int(self.magic[index]))

    @property
    def codec(self) -> Int64Array:
        """The codec number, which is an index into `CODECS`. Numbers 5 to 7 are invalid."""
        return self.attributes & CODEC_MASK

    @property
    def is_legacy(self) -> BoolArray:
        return np.zeros(len(self), np.bool_) if self.magic is None else self.magic < MAGIC

    @property
    def timestamp_type(self) -> npt.NDArray[np.int8]:
        """The timestamp type as int8, which is `CREATE_TIME`, `LOG_APPEND_TIME` or `NO_TIMESTAMP_TYPE`."""
        types = self.is_log_append_time.astype(np.int8)
        return types if self.magic is None else np.where(self.magic == 0, NO_TIMESTAMP_TYPE, types).astype(np.int8)

    def _has(self, bit: int) -> BoolArray:
        mask: BoolArray = (self.attributes & bit).astype(np.bool_)
        return mask

    @property
    def is_control(self) -> BoolArray:
        return self._has(CONTROL_BIT)

    @property
    def is_transactional(self) -> BoolArray:
        return self._has(TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> BoolArray:
        return self._has(LOG_APPEND_TIME_BIT)

    @property
    def has_delete_horizon(self) -> BoolArray:
        """True if the base timestamp is the delete horizon, set by the log cleaner."""
        return self._has(DELETE_HORIZON_BIT)

    @property
    def last_offset(self) -> Int64Array:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Int64Array:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> Int64Array:
        """The sequence number of the last offset, or -1 if there is none. Sequence numbers wrap from 2^31 - 1 to 0."""
        wrapped = (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE
        return np.where(self.base_sequence == NO_SEQUENCE, NO_SEQUENCE, wrapped)


COLUMNS = tuple(f.name for f in fields(BatchHeaders) if f.name not in ("end", "stop", "reason", "magic"))
"""The fields of `BatchHeaders` that every row has."""


@dataclass(frozen=True)
class DataLocation:
    """The location of data for error messages. The data starts at byte `file_position` of `file`. `shift` is added to
    offsets.
    """

    file: str | None = None
    file_position: int = 0
    shift: int = 0

    def corrupt(
        self, headers: BatchHeaders, batch: int, message: str, offset: int | None = None, byte: int = 0
    ) -> Corrupt:
        """Return an error for `batch`.

        `byte` is a position in the batch, and `offset` is a log offset before the shift.
        """
        base = int(headers.base_offset[batch]) if offset is None else offset
        position = int(headers.position[batch]) + byte + self.file_position
        return Corrupt(message, file=self.file, position=position, offset=base + self.shift)


IN_MEMORY = DataLocation()
"""The location of data that is not from a file."""


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """The uncompressed records of batches `[first, last)`.

    `data[start[i] : stop[i]]` contains the records of batch `first + i`. The range of a batch without records is empty,
    regardless of the bytes after its header. `stored` is the stored size of the
    payloads in bytes. If `plain` is True, `data` is the input itself. Do not write to `data`.
    """

    data: ByteArray
    start: Int64Array
    stop: Int64Array
    first: int
    last: int
    stored: int
    plain: bool = False

    def __len__(self) -> int:
        return len(self.start)


def as_bytes_array(data: BytesLike) -> ByteArray:
    """Return `data` as a uint8 array without a copy. The array is read-only if `data` is read-only."""
    view = memoryview(data)
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def join_parts(parts: Iterable[bytes], group_bytes: int = GROUP_BYTES) -> Iterator[Payloads]:
    """Concatenate adjacent parts to groups of about `group_bytes`. `first` and `last` of a group are indices of parts.

    Raises `BadRequest` if the parts have more than `CALL_LIMIT` bytes in total.
    """
    group: list[bytes] = []
    first = filled = total = 0
    for part in parts:
        group.append(part)
        filled += len(part)
        total += len(part)
        if total > CALL_LIMIT:
            raise BadRequest(f"the batches have more than {CALL_LIMIT} bytes of records: read fewer batches at a time")
        if filled >= group_bytes:
            yield _back_to_back(group, first)
            group, first, filled = [], first + len(group), 0
    if group:
        yield _back_to_back(group, first)


def _back_to_back(parts: list[bytes], first: int) -> Payloads:
    stop = np.cumsum([len(part) for part in parts], dtype=np.int64)
    start = np.concatenate([np.zeros(1, np.int64), stop[:-1]])
    data = as_bytes_array(parts[0] if len(parts) == 1 else b"".join(parts))
    return Payloads(data, start, stop, first, first + len(parts), stored=0)
