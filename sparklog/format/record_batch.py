"""Headers of Kafka record batches (magic 2): constants, the scan over batches, columnar access, CRC-32C.

A batch is a 61-byte header and its records (plain, or one compressed stream of them). All integers are big-endian.

| off | size | field                | in CRC | remarks                                                         |
|----:|-----:|----------------------|--------|-----------------------------------------------------------------|
|   0 |    8 | base offset          | no     | rewritten when the log assigns offsets                          |
|   8 |    4 | batch length         | no     | bytes after this field: whole size - 12                         |
|  12 |    4 | leader epoch         | no     | -1: none                                                        |
|  16 |    1 | magic                | no     | at byte 16 in every format, so it is read first                 |
|  17 |    4 | crc                  | -      | CRC-32C of bytes 21 to the end, compressed payload included     |
|  21 |    2 | attributes           | yes    | codec, timestamp type, transactional, control, delete horizon   |
|  23 |    4 | last offset delta    | yes    | may exceed the last record's delta after cleaning               |
|  27 |    8 | base timestamp       | yes    | the delete horizon when that attribute bit is set               |
|  35 |    8 | max timestamp        | yes    | every record's time under LogAppendTime                         |
|  43 |    8 | producer id          | yes    | -1: none                                                        |
|  51 |    2 | producer epoch       | yes    | -1: none                                                        |
|  53 |    4 | base sequence        | yes    | -1: none, also in control batches                               |
|  57 |    4 | record count         | yes    | records present, 0 in a batch that the cleaner emptied          |

What stands before the CRC field is not covered by it: that is why a log can assign offsets and epochs without touching
the rest. Messages of formats v0 and v1 (magic 0 and 1) count as batches, too: see `sparklog.format.legacy`, which is
loaded where the scan meets one. Numpy only: planners import this module.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt

if TYPE_CHECKING:
    from sparklog.format.legacy import Entries

BytesLike: TypeAlias = Any
"""Anything with a contiguous buffer of bytes: bytes, memoryview, uint8 array, pyarrow.Buffer, mmap."""
Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

MAGIC = 2
HEADER_BYTES = 61
LOG_OVERHEAD = 12
"""Base offset and batch length: what a size field does not count."""
CRC_START = 21
MAGIC_POSITION = 16
MIN_SCAN_BYTES = 18
"""Kafka's file scan stops when fewer bytes than this remain: prefix, leader epoch or crc, magic and one more."""
MIN_SIZE_FIELD = 14
"""The smallest size field of any format (magic 0 without key and value)."""
MIN_RECORD_BYTES = 7
"""Length, attributes, two deltas, two lengths, header count: one byte each."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

MIN_LEGACY_SIZE_FIELD = (14, 22)
"""The smallest size fields of formats v0 and v1."""

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP_TYPE = -1
"""Of records of format v0, which have no time."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1
MAX_SEQUENCE = 2**31 - 1

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
_HEADER_STRUCT = struct.Struct(">qiibIhiqqqhii")
_LENGTH_STRUCT = struct.Struct(">i")
_CRC_STRUCT = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fields of one header, as they stand in the batch (`size` is the whole batch in bytes).

    `magic` other than 2: a message of an old format, which is not written.
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
        """Write the header into the first 61 bytes of a whole batch; size and CRC are computed. Returns the CRC."""
        import crc32c

        self._pack_fields(batch, batch.nbytes)
        crc: int = crc32c.crc32c(batch[CRC_START:])
        _CRC_STRUCT.pack_into(batch, MAGIC_POSITION + 1, crc)
        return crc

    def pack_header(self, payload: BytesLike) -> tuple[bytes, int]:
        """The 61 bytes that go before `payload`, and their CRC field; size and CRC are computed."""
        import crc32c

        header = bytearray(HEADER_BYTES)
        self._pack_fields(header, HEADER_BYTES + memoryview(payload).nbytes)
        crc: int = crc32c.crc32c(payload, crc32c.crc32c(memoryview(header)[CRC_START:]))
        _CRC_STRUCT.pack_into(header, MAGIC_POSITION + 1, crc)
        return bytes(header), crc

    def pack(self, payload: BytesLike = b"") -> bytes:
        """The whole batch with this payload: size and CRC are computed, the other fields taken as they are."""
        return b"".join((self.pack_header(payload)[0], payload))

    def _pack_fields(self, to: bytearray | memoryview, size: int) -> None:
        _HEADER_STRUCT.pack_into(
            to,
            0,
            self.base_offset,
            size - LOG_OVERHEAD,
            self.leader_epoch,
            MAGIC,
            0,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )


@dataclass(frozen=True, slots=True, eq=False)
class BatchHeaders:
    """Headers of a run of batches, one int64 array per field (shape `[len(self)]`).

    `position` is where each batch starts in the scanned data, `size` its bytes. `end` is where the scan stopped and
    `stop` why: "end" (of the data), "partial" (the last batch is cut off), "zeros" (a preallocated tail), "corrupt"
    (`reason` says what was found). Selecting rows keeps `end`, `stop` and `reason` of the scan.

    `magic` (int8[len(self)]) is None where all batches have magic 2. Rows of magic 0 and 1 are messages: their bytes
    are no header, base offset and count are what they hold.
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
        """The rows of a slice, a boolean mask or an index array."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, **columns, magic=None if self.magic is None else self.magic[rows])

    def row(self, index: int) -> BatchHeader:
        """One header as plain integers."""
        columns = {f.name: int(getattr(self, f.name)[index]) for f in fields(BatchHeader) if f.name != "magic"}
        return BatchHeader(**columns, magic=MAGIC if self.magic is None else int(self.magic[index]))

    @property
    def codec(self) -> Int64Array:
        """Codec number: index into `CODECS`; 5 to 7 are invalid."""
        return self.attributes & CODEC_MASK

    @property
    def is_legacy(self) -> BoolArray:
        """Which rows are messages of format v0 or v1."""
        return np.zeros(len(self), np.bool_) if self.magic is None else self.magic < MAGIC

    @property
    def timestamp_type(self) -> npt.NDArray[np.int8]:
        """int8: `CREATE_TIME`, `LOG_APPEND_TIME` or `NO_TIMESTAMP_TYPE`."""
        known = self.is_log_append_time.astype(np.int8)
        return known if self.magic is None else np.where(self.magic == 0, NO_TIMESTAMP_TYPE, known).astype(np.int8)

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
        """Base timestamp holds the delete horizon (set by the log cleaner)."""
        return self._has(DELETE_HORIZON_BIT)

    @property
    def last_offset(self) -> Int64Array:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Int64Array:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> Int64Array:
        """Sequence of the last offset, -1 without one; after 2^31 - 1 comes 0."""
        wrapped = (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE
        return np.where(self.base_sequence == NO_SEQUENCE, NO_SEQUENCE, wrapped)


_COLUMNS = tuple(f.name for f in fields(BatchHeaders) if f.name not in ("end", "stop", "reason", "magic"))


def as_bytes_array(data: BytesLike) -> npt.NDArray[np.uint8]:
    """The same memory as a uint8 array (read-only if the source is)."""
    view = memoryview(data)
    if view.nbytes == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(view, np.uint8)


def scan_headers(
    data: BytesLike,
    *,
    start: int = 0,
    whole: bool = True,
    contents: bool = True,
    file: str | None = None,
    file_position: int = 0,
) -> BatchHeaders:
    """Walk the batches of `data` from `start`; `data[0]` is byte `file_position` of `file` (both for messages only).

    With `whole`, data must end exactly at a batch end. Without it the scan stops silently at a cut-off last batch, at
    zeros (the tail of a preallocated file) and at what is no batch: see `end` and `stop`. Kafka's scanning rules.

    Without `contents`, compressed messages of formats v0 and v1 are not opened: their base offsets and counts are then
    the least they can be, all else is right.

    Raises `Corrupt` (only with `whole`).
    """
    view = memoryview(data).cast("B") if memoryview(data).format != "B" else memoryview(data)
    end = view.nbytes
    positions: list[int] = []
    unpack = _LENGTH_STRUCT.unpack_from
    position, stop, reason = start, "end", ""
    old: list[tuple[int, Entries]] = []
    while position < end:
        left = end - position
        if left < MIN_SCAN_BYTES:
            stop, reason = "partial", f"{left} bytes are left, too few for a batch"
            break
        length: int = unpack(view, position + 8)[0]
        if length < MIN_SIZE_FIELD:
            stop, reason = "corrupt", f"batch length {length} is impossible"
            break
        magic = view[MAGIC_POSITION + position]
        if magic == MAGIC and length < HEADER_BYTES - LOG_OVERHEAD:
            stop, reason = "corrupt", f"batch length {length} is less than a header of magic 2"
            break
        if length > left - LOG_OVERHEAD:
            stop, reason = "partial", f"the batch has {length + LOG_OVERHEAD} bytes, {left} are left"
            break
        if magic != MAGIC:
            if magic < MAGIC and length >= MIN_LEGACY_SIZE_FIELD[magic]:
                from sparklog.format import legacy

                old.append((len(positions), legacy.find(view, position)))
                position = old[-1][1].end
                continue
            found = f"magic is {magic - 256 if magic > 127 else magic}, expected 0, 1 or 2"
            few = f"message size {length} is less than a message of magic {magic} has"
            stop, reason = "corrupt", few if magic < MAGIC else found
            break
        positions.append(position)
        position += length + LOG_OVERHEAD
    if stop in ("partial", "corrupt") and not np.any(as_bytes_array(view[position:])):
        stop, reason = "zeros", "only zeros follow"
    if whole and stop != "end":
        raise Corrupt(f"expected whole record batches: {reason}", file=file, position=file_position + position)
    headers = _columns(as_bytes_array(view), np.array(positions, np.int64), position, stop, reason)
    if old:
        from sparklog.format import legacy

        headers = legacy.merged(headers, old)
        headers = legacy.resolved(view, headers) if contents else headers
    return headers


def _columns(data: npt.NDArray[np.uint8], position: Int64Array, end: int, stop: str, reason: str) -> BatchHeaders:
    if len(position):
        rows = np.lib.stride_tricks.sliding_window_view(data, HEADER_BYTES)[position].view(HEADER_DTYPE)[:, 0]
    else:
        rows = np.empty(0, HEADER_DTYPE)
    names = (name for name in _COLUMNS if name not in ("position", "size"))
    column: dict[str, Any] = {name: rows[name].astype(np.int64) for name in names}
    size = rows["length"].astype(np.int64) + LOG_OVERHEAD
    return BatchHeaders(position=position, size=size, **column, end=end, stop=stop, reason=reason)


def begins_with_header(data: bytes) -> bool:
    """Does `data` begin with all bytes of a header, as far as its magic tells? It may still be damaged."""
    if len(data) <= MAGIC_POSITION or data[MAGIC_POSITION] > MAGIC:
        return False
    return len(data) >= least_size(data[MAGIC_POSITION])


def least_size(magic: int) -> int:
    """The fewest bytes that a batch, or a message of format v0 or v1, can have."""
    return HEADER_BYTES if magic == MAGIC else MIN_LEGACY_SIZE_FIELD[magic] + LOG_OVERHEAD


def single_header(data: bytes) -> BatchHeaders:
    """The header at the beginning of `data` as headers of length 1, whether or not the batch's body follows.

    Needs as many bytes as `begins_with_header` says. A message of format v0 or v1 is not opened (see `scan_headers`).
    """
    if data[MAGIC_POSITION] < MAGIC:
        from sparklog.format import legacy

        return legacy.header_at(data)
    return _columns(as_bytes_array(data), np.zeros(1, np.int64), 0, "end", "")


def crc_failures(data: BytesLike, headers: BatchHeaders) -> Int64Array:
    """Indices (int64) of the batches whose CRC-32C does not match (CRC-32 in formats v0 and v1). `headers` is of a scan
    of `data`.
    """
    import crc32c

    if headers.magic is not None:
        return _mixed_crc_failures(data, headers)

    view = memoryview(data)
    crc = crc32c.crc32c
    wrong = [
        index
        for index, (position, size, expected) in enumerate(
            zip(headers.position.tolist(), headers.size.tolist(), headers.crc.tolist(), strict=True)
        )
        if crc(view[position + CRC_START : position + size]) != expected
    ]
    return np.array(wrong, np.int64)


def _mixed_crc_failures(data: BytesLike, headers: BatchHeaders) -> Int64Array:
    from sparklog.format import legacy

    old, new = np.flatnonzero(headers.is_legacy), np.flatnonzero(~headers.is_legacy)
    wrong = old[legacy.crc_failures(data, headers[old])]
    return np.sort(np.concatenate((wrong, new[crc_failures(data, replace(headers[new], magic=None))])))
