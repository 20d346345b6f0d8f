"""Whose end-of-transaction markers damage has taken.

A batch whose checksum is wrong may have been a marker if it says so, or if it is transactional and has no sequence,
which data always has. Whose it was its header does not tell, for the producer id may be what is damaged; but most
damage is a single flipped bit, and where one explains the checksum it can be flipped back to look. What is no batch at
all may have held anybody's markers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import scan_headers, single_header
from sparklog.format.control import ABORT, COMMIT, control_types
from sparklog.format.flipped_bit import flipped_bit
from sparklog.format.record_batch import CRC_START, MAGIC, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeaders
from sparklog.kafka.in_place.segment_file import SegmentFile


ANYBODY = NO_PRODUCER_ID
MOST_BYTES = 64 * 1024
"""A longer batch is not searched for a flipped bit: markers have 78 bytes."""


@dataclass(frozen=True, slots=True)
class LostMarker:
    """A marker of `producer` (or `ANYBODY`) that damage took; `commit`: what it said, None: nobody knows."""

    producer: int
    commit: bool | None


def may_be_markers(headers: BatchHeaders) -> npt.NDArray[np.bool_]:
    """Which batches are markers, or were before they were damaged."""
    bare = headers.is_transactional & (headers.base_sequence == NO_SEQUENCE)
    maybe: npt.NDArray[np.bool_] = (headers.is_control | bare) & (headers.producer_id != NO_PRODUCER_ID)
    return maybe


def lost_producer(batch: bytes) -> int | None:
    """Whose marker this batch was, whose checksum or record is wrong: a producer id or `ANYBODY`; None: it was none."""
    header = single_header(batch)
    size, expected = int(header.size[0]), int(header.crc[0])
    if len(batch) < size or size > MOST_BYTES:
        return ANYBODY
    found = crc32c(memoryview(batch)[CRC_START:size])
    if (found ^ expected).bit_count() > 1:
        place = flipped_bit(size - CRC_START, found, expected)
        if place is None:
            return ANYBODY
        repaired = bytearray(batch[:size])
        repaired[CRC_START + place[0]] ^= 1 << place[1]
        header = single_header(bytes(repaired))
    return int(header.producer_id[0]) if header.is_control[0] else None


def lost_markers(file: SegmentFile, position: int, until: int) -> list[LostMarker]:
    """The markers that bytes `[position, until)` of a file held, as far as can be told: anybody's where something in
    them is no batch.
    """
    found: list[LostMarker] = []
    while position < until:
        header = file.header_at(position)
        if header is None or position + header.size > until:
            return [*found, LostMarker(ANYBODY, None)]
        if header.magic == MAGIC:
            batch = file.read(position, min(header.size, MOST_BYTES))
            if may_be_markers(single_header(batch))[0]:
                lost = _lost_marker(batch, header.size)
                found += [] if lost is None else [lost]
        position += header.size
    return found


def _lost_marker(batch: bytes, size: int) -> LostMarker | None:
    header = single_header(batch)
    if len(batch) == size and crc32c(memoryview(batch)[CRC_START:]) == header.crc[0]:
        # What is wrong lies outside of the checksum.
        try:
            kind = control_types(batch, scan_headers(batch))[0]
        except Corrupt:
            return LostMarker(int(header.producer_id[0]), None)
        return LostMarker(int(header.producer_id[0]), bool(kind == COMMIT)) if kind in (ABORT, COMMIT) else None
    producer = lost_producer(batch)
    return None if producer is None else LostMarker(producer, None)
