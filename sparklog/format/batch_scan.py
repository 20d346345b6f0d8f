"""The scan that finds the batches in bytes of a log, whatever their formats, and verifies their checksums.

Batches of format v2 (`sparklog.format.record_batch`) and messages of formats v0 and v1
(`sparklog.format.legacy.old_messages`) may stand in one file. All code that reads bytes of a log begins here, and gets
a row of `BatchHeaders` for each of either kind; `payloads` gives their records, all in format v2.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.legacy import old_messages
from sparklog.format.record_batch import (
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
    BytesLike,
    Int64Array,
    as_bytes_array,
)

MIN_SCAN_BYTES = 18
"""Kafka's file scan stops when fewer bytes than this remain: prefix, leader epoch or crc, magic and one more."""
_LENGTH_STRUCT = struct.Struct(">i")


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
    unpack = _LENGTH_STRUCT.unpack_from
    position, stop, reason = start, "end", ""
    old: list[tuple[int, old_messages.Entries]] = []
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


def _headers_at(data: npt.NDArray[np.uint8], position: Int64Array, end: int, stop: str, reason: str) -> BatchHeaders:
    if len(position):
        rows = np.lib.stride_tricks.sliding_window_view(data, HEADER_BYTES)[position].view(HEADER_DTYPE)[:, 0]
    else:
        rows = np.empty(0, HEADER_DTYPE)
    names = (name for name in COLUMNS if name not in ("position", "size"))
    column: dict[str, Any] = {name: rows[name].astype(np.int64) for name in names}
    size = rows["length"].astype(np.int64) + LOG_OVERHEAD
    return BatchHeaders(position=position, size=size, **column, end=end, stop=stop, reason=reason)


def begins_with_header(data: bytes) -> bool:
    """Return True if `data` begins with all bytes of a header, as far as its magic tells. It may still be damaged."""
    if len(data) <= MAGIC_POSITION or data[MAGIC_POSITION] > MAGIC:
        return False
    return len(data) >= least_size(data[MAGIC_POSITION])


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
    old, new = np.flatnonzero(headers.is_legacy), np.flatnonzero(~headers.is_legacy)
    wrong = old[old_messages.crc_failures(data, headers[old])]
    return np.sort(np.concatenate((wrong, new[crc_failures(data, replace(headers[new], magic=None))])))
