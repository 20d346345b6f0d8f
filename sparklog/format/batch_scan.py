"""The scan that finds the batches in bytes of a log, whatever their formats, and checks before records are read.

Batches of format v2 (`sparklog.format.record_batch`) and messages of formats v0 and v1
(`sparklog.format.legacy.old_messages`) may be in one file. All code that reads bytes of a log begins here, and gets
a row of `BatchHeaders` for each of either kind; `payloads` gives their records, all in format v2.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format import crc32c
from sparklog.format.legacy import old_messages
from sparklog.format.record_batch import (
    CODECS,
    COLUMNS,
    CRC_START,
    HEADER_BYTES,
    HEADER_DTYPE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MIN_LEGACY_SIZE_FIELD,
    MIN_SIZE_FIELD,
    BatchHeaders,
    BoolArray,
    ByteArray,
    BytesLike,
    Int64Array,
    Place,
    as_bytes_array,
)

MIN_SCAN_BYTES = 18
"""Kafka's file scan stops when fewer bytes than this remain: prefix, leader epoch or crc, magic and one more."""
MAX_OFFSET = 2**63 - 2
"""The greatest offset a record can have. A log that held 2^63-1 would have no end: the next offset is no int64."""
MIN_LEGACY_BYTES = MIN_SIZE_FIELD + LOG_OVERHEAD
JOINED_BATCH_BYTES = 64 << 10
"""CRCs of batches from this size on are joined: that takes 2 µs a batch, and a pass over the bytes 60 µs a MiB."""
MORE_RECORDS = "the batch has more records than offsets, as some old clients wrote it; skipping it loses its records"
RECORD_MESSAGES = (
    "",
    "a record's length does not fit into its batch",
    "a record's fields do not end where its length says",
    "offsets within the batch do not increase, or go beyond its last offset",
    "the batch goes on after its last record",
)
"""By the error codes of the kernels that read records."""


def scan_headers(
    data: BytesLike,
    *,
    start: int = 0,
    whole: bool = True,
    contents: bool = True,
    file: str | None = None,
    file_position: int = 0,
) -> BatchHeaders:
    """Scan `data` for batches from `start`; `data[0]` is byte `file_position` of `file` (both for messages only).

    With `whole`, data must end exactly at a batch end. Without it the scan stops silently at a cut-off last batch, at
    zeros (the tail of a preallocated file) and at bytes that are no batch: see `end` and `stop`. The rules are Kafka's.

    Without `contents`, compressed messages of formats v0 and v1 are not opened: their base offsets and counts are then
    the least they can be, all else is right.

    Raises `Corrupt` (only with `whole`).
    """
    view = memoryview(data).cast("B") if memoryview(data).format != "B" else memoryview(data)
    end = view.nbytes
    positions: list[int] = []
    unpack = struct.Struct(">i").unpack_from
    position, stop, reason = start, "end", ""
    old: list[tuple[int, BatchHeaders]] = []
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
                old.append((len(positions), old_messages.find(view, position)))
                position = old[-1][1].end
                continue
            unknown = f"magic is {magic - 256 if magic > 127 else magic}, expected 0, 1 or 2"
            few = f"message size {length} is less than a message of magic {magic} has"
            stop, reason = "corrupt", few if magic < MAGIC else unknown
            break
        positions.append(position)
        position += length + LOG_OVERHEAD
    if stop in ("partial", "corrupt") and not np.any(as_bytes_array(view[position:])):
        stop, reason = "zeros", "only zeros follow"
    if whole and stop != "end":
        raise Corrupt(f"expected whole record batches: {reason}", file=file, position=file_position + position)
    headers = _headers_at(as_bytes_array(view), np.array(positions, np.int64), position, stop, reason)
    if old:
        headers = old_messages.merged(headers, old)
        headers = old_messages.resolved(view, headers) if contents else headers
    return headers


def _headers_at(data: ByteArray, position: Int64Array, end: int, stop: str, reason: str) -> BatchHeaders:
    # Of a header at each byte those that are one: a view of numpy's own costs ten times as much.
    last = max(len(data) - HEADER_BYTES + 1, 0)
    rows: npt.NDArray[np.void] = np.ndarray((last,), HEADER_DTYPE, data.data, 0, (1,))[position]
    names = [name for name in COLUMNS if name not in ("position", "size")]
    column: dict[str, Any] = {name: rows[name].astype(np.int64) for name in names}
    size = rows["length"].astype(np.int64) + LOG_OVERHEAD
    return BatchHeaders(position=position, size=size, **column, end=end, stop=stop, reason=reason)


def begins_with_header(data: bytes) -> bool:
    """Return True if `data` begins with all bytes of a header, as far as its magic tells. It may still be damaged."""
    magic = data[MAGIC_POSITION] if len(data) > MAGIC_POSITION else MAGIC + 1
    return magic <= MAGIC and len(data) >= least_size(magic)


def least_size(magic: int) -> int:
    """Return the fewest bytes that a batch, or a message of format v0 or v1, can have."""
    return HEADER_BYTES if magic == MAGIC else MIN_LEGACY_SIZE_FIELD[magic] + LOG_OVERHEAD


def single_header(data: bytes) -> BatchHeaders:
    """Return the header at the beginning of `data` as headers of length 1, whether or not the batch's body follows.

    Needs as many bytes as `begins_with_header` wants. A message of format v0 or v1 is not opened (see `scan_headers`).
    """
    if data[MAGIC_POSITION] < MAGIC:
        return old_messages.header_at(data)
    return _headers_at(as_bytes_array(data), np.zeros(1, np.int64), 0, "end", "")


def crc_failures(data: BytesLike, headers: BatchHeaders) -> Int64Array:
    """Return the batches whose CRC-32C does not match (CRC-32 in formats v0 and v1), as rows (int64) of `headers`."""
    if headers.magic is not None:
        old, new = np.flatnonzero(headers.is_legacy), np.flatnonzero(~headers.is_legacy)
        wrong = old[old_messages.crc_failures(data, headers[old])]
        return np.sort(np.concatenate((wrong, new[crc_failures(data, replace(headers[new], magic=None))])))
    view, crc = memoryview(data), crc32c.crc32c
    columns = zip(headers.position.tolist(), headers.size.tolist(), headers.crc.tolist(), strict=True)
    failed = [
        row
        for row, (start, size, stored) in enumerate(columns)
        if crc(view[start + CRC_START : start + size]) != stored
    ]
    return np.array(failed, np.int64)


def beyond_offsets(headers: BatchHeaders, shift: int = 0) -> BoolArray:
    """Mark batches that, moved by `shift`, hold offsets above `MAX_OFFSET`, without a sum that could overflow."""
    beyond: BoolArray = headers.base_offset > MAX_OFFSET - shift - np.maximum(headers.last_offset_delta, 0)
    return beyond


def header_rules(headers: BatchHeaders, shift: int = 0) -> tuple[tuple[BoolArray, str], ...]:
    """Return the rules for batch headers, as (batches that break the rule, message); offsets are moved by `shift`."""
    return (
        (headers.codec >= len(CODECS), "the batch names an unknown compression codec (5 to 7)"),
        (headers.count < 0, "the batch has a negative record count"),
        (headers.last_offset_delta < 0, "the batch has a negative last offset delta"),
        (headers.count > headers.last_offset_delta + 1, MORE_RECORDS),
        (headers.base_offset < 0, "the batch has a negative base offset"),
        (beyond_offsets(headers, shift), f"the batch's offsets go beyond {MAX_OFFSET}"),
    )


def misplaced(
    headers: BatchHeaders,
    low: int | Int64Array,
    high: int | Int64Array,
    *,
    shift: int | Int64Array = 0,
    owner: Int64Array | None = None,
) -> tuple[BoolArray, Int64Array]:
    """Mark batches whose offsets are outside of `[low, high)`, or not above those of the batch before.

    Offsets are moved by `shift`. `low`, `high` and `shift` are of all batches or of each. Only batches of the same
    `owner` are compared. Returns the marks, and the lowest offset that each batch may have.
    """
    base, end = headers.base_offset + shift, headers.next_offset + shift
    least = np.array(np.broadcast_to(low, base.shape), np.int64)
    above = np.maximum(least[1:], end[:-1])
    least[1:] = above if owner is None else np.where(owner[1:] == owner[:-1], above, least[1:])
    return (base < least) | (end <= base) | (end > high), least


def check_headers(headers: BatchHeaders, place: Place, nbytes: int) -> None:
    """Raise `Corrupt` for impossible headers, before their sizes are used. `nbytes`: size of the data."""
    least = HEADER_BYTES if headers.magic is None else np.where(headers.is_legacy, MIN_LEGACY_BYTES, HEADER_BYTES)
    rules = (
        (headers.position + headers.size > nbytes, "the batch lies outside the data"),
        ((headers.position < 0) | (headers.size < least), "the batch has an impossible place or size"),
        *header_rules(headers, max(place.shift, 0)),
    )
    for broken, message in rules:
        if broken.any():
            raise place.corrupt(headers, int(np.argmax(broken)), message)


def check_crcs(data: BytesLike, headers: BatchHeaders, place: Place) -> None:
    """Raises `Corrupt` for the first batch whose CRC-32C (in formats v0 and v1: CRC-32) is wrong."""
    wrong = crc_failures(data, headers)
    if len(wrong):
        raise place.corrupt(headers, int(wrong[0]), crc_message(headers, int(wrong[0])))


def crc_after(data: BytesLike, headers: BatchHeaders, crc: int) -> int:
    """Return the CRC-32C of bytes that have `crc`, with `data` after them: all of it batches, whose own CRCs hold.

    These join to that of large batches, without another pass over the bytes.
    """
    if headers.magic is not None or len(data) < JOINED_BATCH_BYTES * len(headers):
        return crc32c.crc32c(data, crc)
    # Planners scan as well, and need no kernels.
    from sparklog.format.kernels.hash_kernels import join_crcs

    view = memoryview(data)
    crcs, lengths = (np.zeros((len(headers) + 1, 2), np.int64) for _ in range(2))
    crcs[0, 1] = crc
    crcs[1:, 0] = [crc32c.crc32c(view[start : start + CRC_START]) for start in headers.position.tolist()]
    crcs[1:, 1], lengths[1:, 0], lengths[1:, 1] = headers.crc, CRC_START, headers.size - CRC_START
    return int(join_crcs(crcs.reshape(-1), lengths.reshape(-1)))


def crc_message(headers: BatchHeaders, batch: int) -> str:
    if headers.magic is not None and headers.is_legacy[batch]:
        return "the message's CRC-32 does not match its bytes"
    return "the batch's CRC-32C does not match its bytes"
