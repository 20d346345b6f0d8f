"""Checks before records are read: header fields that no writer writes, checksums, and the messages for damage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_failures
from sparklog.format.record_batch import (
    CODECS,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MIN_SIZE_FIELD,
    BatchHeaders,
    BoolArray,
    BytesLike,
)

MAX_OFFSET = 2**63 - 2
"""The greatest offset a record can have. A log that held 2^63-1 would have no end: the next offset is no int64."""
MIN_LEGACY_BYTES = MIN_SIZE_FIELD + LOG_OVERHEAD


@dataclass(frozen=True)
class Place:
    """The place of data, for messages: it begins at byte `file_position` of `file`; `shift` is added to offsets."""

    file: str | None
    file_position: int
    shift: int = 0

    def corrupt(
        self, headers: BatchHeaders, batch: int, message: str, offset: int | None = None, at: int = 0
    ) -> Corrupt:
        """The error for `batch`; `at` is a position within it, `offset` a log offset before the shift."""
        base = int(headers.base_offset[batch]) if offset is None else offset
        position = int(headers.position[batch]) + at + self.file_position
        return Corrupt(message, file=self.file, position=position, offset=base + self.shift)


def beyond_offsets(headers: BatchHeaders, shift: int = 0) -> BoolArray:
    """Mark batches that, moved by `shift`, hold offsets above `MAX_OFFSET`, without a sum that could overflow."""
    beyond: BoolArray = headers.base_offset > MAX_OFFSET - shift - np.maximum(headers.last_offset_delta, 0)
    return beyond


def check_headers(headers: BatchHeaders, place: Place, nbytes: int) -> None:
    """Refuse what no writer writes, before sizes taken from it are used. `nbytes`: of the data. Raises `Corrupt`."""
    least = HEADER_BYTES if headers.magic is None else np.where(headers.is_legacy, MIN_LEGACY_BYTES, HEADER_BYTES)
    rules = (
        (headers.position + headers.size > nbytes, "the batch lies outside the data"),
        ((headers.position < 0) | (headers.size < least), "the batch has an impossible place or size"),
        (headers.codec >= len(CODECS), "the batch names an unknown compression codec (5 to 7)"),
        (headers.count < 0, "the batch has a negative record count"),
        (headers.last_offset_delta < 0, "the batch has a negative last offset delta"),
        (headers.count > headers.last_offset_delta + 1, "the batch has more records than offsets"),
        (headers.base_offset < 0, "the batch has a negative base offset"),
        (beyond_offsets(headers, max(place.shift, 0)), f"the batch's offsets go beyond {MAX_OFFSET}"),
    )
    for broken, message in rules:
        if broken.any():
            raise place.corrupt(headers, int(np.argmax(broken)), message)


def check_crcs(data: BytesLike, headers: BatchHeaders, place: Place) -> None:
    """Raises `Corrupt` for the first batch whose CRC-32C (in formats v0 and v1: CRC-32) is wrong."""
    wrong = crc_failures(data, headers)
    if len(wrong):
        raise place.corrupt(headers, int(wrong[0]), crc_message(headers, int(wrong[0])))


def crc_message(headers: BatchHeaders, batch: int) -> str:
    if headers.magic is not None and headers.is_legacy[batch]:
        return "the message's CRC-32 does not match its bytes"
    return "the batch's CRC-32C does not match its bytes"


def record_message(code: int) -> str:
    from sparklog.format.kernels import decode_kernels as kernels

    return {
        kernels.LENGTH: "a record's length does not fit into its batch",
        kernels.FIELDS: "a record's fields do not end where its length says",
        kernels.ORDER: "offsets within the batch do not increase, or go beyond its last offset",
        kernels.REMAINING: "the batch goes on behind its last record",
    }[code]
