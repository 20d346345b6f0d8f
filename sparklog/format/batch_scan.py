"""Scan the bytes of a log for batches of all formats, and check their headers and CRCs before records are read.

A file may contain both batches of format v2 (`sparklog.format.record_batch`) and messages of formats v0 and v1
(`sparklog.format.legacy.old_messages`). All code that reads the bytes of a log starts with a scan, which returns a row
of `BatchHeaders` for each batch or message. `sparklog.format.payloads` returns the records of the batches, always in
format v2.
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
    DataLocation,
    Int64Array,
    as_bytes_array,
)

MIN_SCAN_BYTES = 18
"""Minimum number of remaining bytes. If fewer bytes remain, the scan stops, as in Kafka. The bytes include the offset,
the length, the leader epoch or CRC, the magic, and one more byte.
"""
MAX_OFFSET = 2**63 - 2
"""The maximum offset of a record. If a record had the offset 2^63-1, the next offset would exceed the range of an
int64.
"""
MIN_LEGACY_BYTES = MIN_SIZE_FIELD + LOG_OVERHEAD
JOINED_BATCH_BYTES = 64 << 10
"""Minimum average batch size for which CRCs are combined. Combining takes 2 µs per batch, and hashing the bytes takes
60 µs per MiB.
"""
MORE_RECORDS = (
    "the batch has more records than offsets (written by some old clients); skipping the batch loses its records"
)
RECORD_MESSAGES = (
    "",
    "the length of a record exceeds its batch",
    "the fields of a record do not match its length",
    "offsets within the batch do not increase, or exceed its last offset",
    "the batch continues after its last record",
)
"""Messages for the error codes of the kernels that read records."""


def scan_headers(
    data: BytesLike,
    *,
    start: int = 0,
    whole: bool = True,
    contents: bool = True,
    file: str | None = None,
    file_position: int = 0,
) -> BatchHeaders:
    """Scan `data` for batches, like Kafka's file scan.

    Args:
        data: the bytes to scan.
        start: position of the first batch.
        whole: if True, `data` must end with a complete batch. If False, the scan also stops, without an error, at an
            incomplete batch, at zeros (the end of a preallocated file) and at bytes that are not a batch. `end` and
            `stop` of the result describe where and why the scan stopped.
        contents: if True, compressed messages of formats v0 and v1 are decompressed. If False, their base offsets and
            counts are the lowest possible values; all other fields are correct.
        file: name of the file, for error messages.
        file_position: position of `data[0]` in the file, for error messages.

    Raises:
        Corrupt: `whole` is True and the data does not end with a complete batch.
    """
    view = memoryview(data).cast("B") if memoryview(data).format != "B" else memoryview(data)
    end = view.nbytes
    positions: list[int] = []
    unpack = struct.Struct(">i").unpack_from
    position, stop, reason = start, "end", ""
    old: list[tuple[int, BatchHeaders]] = []
    while position < end:
        remaining = end - position
        if remaining < MIN_SCAN_BYTES:
            stop, reason = "partial", f"{remaining} bytes remain, which is too few for a batch"
            break
        length: int = unpack(view, position + 8)[0]
        if length < MIN_SIZE_FIELD:
            stop, reason = "corrupt", f"batch length {length} is invalid"
            break
        magic = view[MAGIC_POSITION + position]
        if magic == MAGIC and length < HEADER_BYTES - LOG_OVERHEAD:
            stop, reason = "corrupt", f"batch length {length} is less than a header of magic 2"
            break
        if length > remaining - LOG_OVERHEAD:
            stop, reason = "partial", f"the batch has {length + LOG_OVERHEAD} bytes, but only {remaining} bytes remain"
            break
        if magic != MAGIC:
            if magic < MAGIC and length >= MIN_LEGACY_SIZE_FIELD[magic]:
                old.append((len(positions), old_messages.find_entries(view, position)))
                position = old[-1][1].end
                continue
            unknown = f"magic is {magic - 256 if magic > 127 else magic}, expected 0, 1 or 2"
            too_small = f"message size {length} is less than the minimum for magic {magic}"
            stop, reason = "corrupt", too_small if magic < MAGIC else unknown
            break
        positions.append(position)
        position += length + LOG_OVERHEAD
    if stop in ("partial", "corrupt") and not np.any(as_bytes_array(view[position:])):
        stop, reason = "zeros", "only zeros follow"
    if whole and stop != "end":
        raise Corrupt(f"expected complete record batches: {reason}", file=file, position=file_position + position)
    headers = _headers_at(as_bytes_array(view), np.array(positions, np.int64), position, stop, reason)
    if old:
        headers = old_messages.merge_entries(headers, old)
        headers = old_messages.resolve_wrappers(view, headers) if contents else headers
    return headers


def _headers_at(data: ByteArray, position: Int64Array, end: int, stop: str, reason: str) -> BatchHeaders:
    # Use an overlapping view with a header at every byte. `sliding_window_view` would take ten times as long.
    last = max(len(data) - HEADER_BYTES + 1, 0)
    rows: npt.NDArray[np.void] = np.ndarray((last,), HEADER_DTYPE, data.data, 0, (1,))[position]
    names = [name for name in COLUMNS if name not in ("position", "size")]
    column: dict[str, Any] = {name: rows[name].astype(np.int64) for name in names}
    size = rows["length"].astype(np.int64) + LOG_OVERHEAD
    return BatchHeaders(position=position, size=size, **column, end=end, stop=stop, reason=reason)


def begins_with_header(data: bytes) -> bool:
    """Return True if `data` contains all bytes of a header, according to its magic. The header may still be corrupt."""
    magic = data[MAGIC_POSITION] if len(data) > MAGIC_POSITION else MAGIC + 1
    return magic <= MAGIC and len(data) >= min_size(magic)


def min_size(magic: int) -> int:
    """Return the minimum size of a batch, or of a message of format v0 or v1, in bytes."""
    return HEADER_BYTES if magic == MAGIC else MIN_LEGACY_SIZE_FIELD[magic] + LOG_OVERHEAD


def single_header(data: bytes) -> BatchHeaders:
    """Return the header at the beginning of `data` as headers of length 1, even if the rest of the batch is missing.

    `begins_with_header(data)` must be True. A message of format v0 or v1 is not decompressed (see `scan_headers`).
    """
    if data[MAGIC_POSITION] < MAGIC:
        return old_messages.header_at(data)
    return _headers_at(as_bytes_array(data), np.zeros(1, np.int64), 0, "end", "")


def crc_failures(data: BytesLike, headers: BatchHeaders) -> Int64Array:
    """Return the rows (int64) of `headers` whose CRC-32C (in formats v0 and v1, CRC-32) does not match."""
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
    """Mark batches whose offsets exceed `MAX_OFFSET` after a shift by `shift`. The computation cannot overflow."""
    beyond: BoolArray = headers.base_offset > MAX_OFFSET - shift - np.maximum(headers.last_offset_delta, 0)
    return beyond


def header_rules(headers: BatchHeaders, shift: int = 0) -> tuple[tuple[BoolArray, str], ...]:
    """Return the rules for batch headers as pairs. A pair consists of the batches that violate the rule, and the error
    message. Offsets are shifted before they are checked.
    """
    return (
        (headers.codec >= len(CODECS), "the batch has an unknown compression codec (5 to 7)"),
        (headers.count < 0, "the batch has a negative record count"),
        (headers.last_offset_delta < 0, "the batch has a negative last offset delta"),
        (headers.count > headers.last_offset_delta + 1, MORE_RECORDS),
        (headers.base_offset < 0, "the batch has a negative base offset"),
        (beyond_offsets(headers, shift), f"the offsets of the batch exceed {MAX_OFFSET}"),
    )


def misplaced(
    headers: BatchHeaders,
    low: int | Int64Array,
    high: int | Int64Array,
    *,
    shift: int | Int64Array = 0,
    owner: Int64Array | None = None,
) -> tuple[BoolArray, Int64Array]:
    """Mark batches whose offsets are outside of `[low, high)`, or not above the offsets of the previous batch.

    `low`, `high` and `shift`, which is added to offsets, are numbers or int64[batches]. Batches are compared only with
    batches of the same `owner`. Returns the marks (bool[batches]) and the lowest valid offset of each batch (int64).
    """
    base, end = headers.base_offset + shift, headers.next_offset + shift
    lowest = np.array(np.broadcast_to(low, base.shape), np.int64)
    above = np.maximum(lowest[1:], end[:-1])
    lowest[1:] = above if owner is None else np.where(owner[1:] == owner[:-1], above, lowest[1:])
    return (base < lowest) | (end <= base) | (end > high), lowest


def check_headers(headers: BatchHeaders, location: DataLocation, nbytes: int) -> None:
    """Raise `Corrupt` for an invalid header.

    Call this function before the sizes are used. `nbytes` is the size of the data.
    """
    minimum = HEADER_BYTES if headers.magic is None else np.where(headers.is_legacy, MIN_LEGACY_BYTES, HEADER_BYTES)
    rules = (
        (headers.position + headers.size > nbytes, "the batch is outside of the data"),
        ((headers.position < 0) | (headers.size < minimum), "the batch has an invalid position or size"),
        *header_rules(headers, max(location.shift, 0)),
    )
    for broken, message in rules:
        if broken.any():
            raise location.corrupt(headers, int(np.argmax(broken)), message)


def check_crcs(data: BytesLike, headers: BatchHeaders, location: DataLocation) -> None:
    """Raise `Corrupt` for the first batch whose CRC-32C (in formats v0 and v1, CRC-32) does not match."""
    wrong = crc_failures(data, headers)
    if len(wrong):
        raise location.corrupt(headers, int(wrong[0]), crc_message(headers, int(wrong[0])))


def crc_after(data: BytesLike, headers: BatchHeaders, crc: int) -> int:
    """Return the CRC-32C of bytes whose CRC-32C is `crc`, followed by `data`.

    `data` consists of the batches of `headers`, whose CRCs must have been verified. If the batches are large, their
    CRCs are combined, which is faster than hashing the bytes again.
    """
    if headers.magic is not None or len(data) < JOINED_BATCH_BYTES * len(headers):
        return crc32c.crc32c(data, crc)
    # Import the kernels lazily, because planners also use this module and must not load kernels.
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
