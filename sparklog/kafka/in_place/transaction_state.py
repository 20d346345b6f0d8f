"""Open and aborted transactions of a partition, from the headers of its batches, and the markers lost to damage.

Kafka keeps this in producer snapshots and `.txnindex` files. Headers and markers hold the same and are always there:
the first transactional batch of a producer after its last marker opens a transaction, its next marker ends it. (Under
transaction.version 2 the marker's epoch is one above the data's, so only the producer id counts.) A marker whose
record the cleaner has removed ends nothing. Events are kept per segment, so that only a segment which the cleaner
replaces is read again.

A batch with a wrong checksum may have been a marker: if its header says so, or if it is transactional and has no
sequence, which data always has. Its producer id may be the damaged part. But most damage is a single flipped bit, and
one that explains the checksum can be flipped back to read the id. Bytes that are no batch may have held markers of any
producer (`ANYBODY`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers, single_header
from sparklog.format.batch_walk import Window
from sparklog.format.checksums import flipped_bit
from sparklog.format.control import ABORT, COMMIT, control_types
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import CRC_START, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions, AbortMarker, concatenate
from sparklog.kafka.in_place.segment_file import SegmentFile

ANYBODY = NO_PRODUCER_ID
MOST_BYTES = 64 * 1024
"""A longer batch is not searched for a flipped bit: markers have 78 bytes."""


@dataclass(frozen=True, slots=True)
class LostMarker:
    """A marker of `producer` (or `ANYBODY`) that damage took; `commit`: its type, None: unknown."""

    producer: int
    commit: bool | None


def may_be_markers(headers: BatchHeaders) -> npt.NDArray[np.bool_]:
    """Mark batches that are markers, or may have been before damage."""
    bare = headers.is_transactional & (headers.base_sequence == NO_SEQUENCE)
    maybe: npt.NDArray[np.bool_] = (headers.is_control | bare) & (headers.producer_id != NO_PRODUCER_ID)
    return maybe


def lost_producer(batch: bytes) -> int | None:
    """Return the producer id of a damaged marker, `ANYBODY` if unknown; None if the batch was no marker."""
    header = single_header(batch)
    size, expected = int(header.size[0]), int(header.crc[0])
    if len(batch) < size or size > MOST_BYTES:
        return ANYBODY
    actual = crc32c(memoryview(batch)[CRC_START:size])
    if (actual ^ expected).bit_count() > 1:
        place = flipped_bit(size - CRC_START, actual, expected)
        if place is None:
            return ANYBODY
        repaired = bytearray(batch[:size])
        repaired[CRC_START + place[0]] ^= 1 << place[1]
        header = single_header(bytes(repaired))
    return int(header.producer_id[0]) if header.is_control[0] else None


def lost_markers(file: SegmentFile, position: int, until: int) -> list[LostMarker]:
    """Return the markers that bytes `[position, until)` of a file held; `ANYBODY`'s if some bytes are no batch."""
    lost_here: list[LostMarker] = []
    while position < until:
        header = file.header_at(position)
        if header is None or position + header.size > until:
            return [*lost_here, LostMarker(ANYBODY, None)]
        batch = file.read(position, min(header.size, MOST_BYTES))
        lost = _lost_marker(batch, header.size) if may_be_markers(single_header(batch))[0] else None
        lost_here += [] if lost is None else [lost]
        position += header.size
    return lost_here


def _lost_marker(batch: bytes, size: int) -> LostMarker | None:
    header = single_header(batch)
    if len(batch) == size and crc32c(memoryview(batch)[CRC_START:]) == header.crc[0]:
        # What is wrong is outside of the checksum.
        try:
            kind = control_types(batch, scan_headers(batch))[0]
        except Corrupt:
            return LostMarker(int(header.producer_id[0]), None)
        return LostMarker(int(header.producer_id[0]), bool(kind == COMMIT)) if kind in (ABORT, COMMIT) else None
    producer = lost_producer(batch)
    return None if producer is None else LostMarker(producer, None)


DATA = 100
LOST = 101
"""Event kinds besides ABORT and COMMIT: a producer's first data since its last marker; damage that may hide markers, of
that producer or of `ANYBODY`."""


@dataclass
class TransactionEvents:
    """Events of one segment in offset order, as flat triples (kind, producer id, offset)."""

    triples: array[int] = field(default_factory=lambda: array("q"))
    _writing: set[int] = field(default_factory=set)

    def add(self, window: Window) -> None:
        headers = window.headers
        written = headers.is_transactional | headers.is_control
        rows = np.flatnonzero(written & (headers.producer_id != NO_PRODUCER_ID))
        if not len(rows):
            return
        selection = headers[rows]
        kinds = np.full(len(rows), DATA, np.int64)
        for index in np.flatnonzero(may_be_markers(selection)).tolist():
            kinds[index] = _kind(window, int(rows[index]))
        producers, offsets = selection.producer_id.tolist(), selection.base_offset.tolist()
        for row, kind, producer, offset in zip(rows.tolist(), kinds.tolist(), producers, offsets, strict=True):
            if kind == LOST:
                position = int(headers.position[row])
                owner = lost_producer(window.data[position : position + int(headers.size[row])])
                if owner is not None:
                    self.lost(offset, owner)
            elif kind == DATA:
                if producer not in self._writing and not _damaged(window, row):
                    self._writing.add(producer)
                    self.triples.extend((kind, producer, offset))
            elif kind in (ABORT, COMMIT):
                self._writing.discard(producer)
                self.triples.extend((kind, producer, offset))

    def lost(self, offset: int, producer: int = ANYBODY) -> None:
        """Add the loss of the marker at `offset`, or of all markers from it on in the segment."""
        if producer == ANYBODY:
            self._writing.clear()
        else:
            self._writing.discard(producer)
        self.triples.extend((LOST, producer, offset))


class TransactionSpan(NamedTuple):
    """A transaction's producer id, first offset, and the offset of its marker or of the damage that hides it."""

    producer: int
    first: int
    last: int


@dataclass
class TransactionState:
    """Transactions of a partition after the events applied so far.

    `open`: producer id -> first offset; `aborted`: by marker; `unknown`: open when damage hid what came next.
    `markers`: producer id -> offset of its last marker that `abort_markers` has passed.
    """

    open: dict[int, int] = field(default_factory=dict)
    aborted: list[TransactionSpan] = field(default_factory=list)
    unknown: list[TransactionSpan] = field(default_factory=list)
    markers: dict[int, int] = field(default_factory=dict)

    def apply(self, triples: array[int], start: int = 0) -> None:
        for first_of_three in range(start, len(triples), 3):
            kind, producer, offset = triples[first_of_three : first_of_three + 3]
            if kind == DATA:
                self.open.setdefault(producer, offset)
            elif kind == LOST:
                for writer in list(self.open) if producer == ANYBODY else [producer] if producer in self.open else []:
                    self.unknown.append(TransactionSpan(writer, self.open.pop(writer), offset))
            else:
                first = self.open.pop(producer, None)
                if kind == ABORT and first is not None:
                    self.aborted.append(TransactionSpan(producer, first, offset))

    def abort_markers(self, events: TransactionEvents) -> Iterator[AbortMarker]:
        """Apply the events of the next segment; yield its ABORT markers."""
        for start in range(0, len(events.triples), 3):
            kind, producer, offset = event = events.triples[start : start + 3]
            first = self.open.get(producer, -1)
            self.apply(event)
            if kind == ABORT:
                stable, after = self.first_open(), self.markers.get(producer, -1)
                yield AbortMarker(producer, first, offset, offset + 1 if stable is None else stable, after)
            if kind in (ABORT, COMMIT):
                self.markers[producer] = offset

    def first_open(self) -> int | None:
        """Return the first offset of the earliest open transaction, the last stable offset; None without one."""
        return min(self.open.values(), default=None)


def merged(state: TransactionState, indexed: Sequence[AbortedTransactions]) -> AbortedTransactions:
    """Unite the aborted transactions seen in headers and those of `.txnindex` files.

    The index of the segment that is being written lags behind the log, and indexes get lost; headers are lost only to
    damage. Whatever either calls aborted is aborted.
    """
    seen = np.array(state.aborted, np.int64).reshape(-1, 3)
    every = concatenate([AbortedTransactions(seen[:, 0], seen[:, 1], seen[:, 2], seen[:, 2] + 1), *indexed])
    # By marker; of two entries for one marker the one that begins earlier comes first and stays.
    order = np.lexsort((every.first_offsets, every.producer_ids, every.last_offsets))
    producers, last = every.producer_ids[order], every.last_offsets[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (producers[1:] == producers[:-1]) & (last[1:] == last[:-1])
    return every.select(order[~again])


def _damaged(window: Window, row: int) -> bool:
    """True if the checksum of a whole batch is wrong: its producer id may be any, and open a transaction for ever."""
    header = window.headers[row : row + 1]
    # A batch longer than its window comes without its body: it is believed.
    whole = int(header.position[0] + header.size[0]) <= len(window.data)
    return whole and bool(len(crc_failures(window.data, header)))


def _kind(window: Window, row: int) -> int:
    """ABORT, COMMIT, another control type, DATA or, for damage that may have been a marker, LOST."""
    header = window.headers[row : row + 1]
    if not header.is_control[0]:
        return LOST if _damaged(window, row) else DATA
    try:
        return LOST if len(crc_failures(window.data, header)) else int(control_types(window.data, header)[0])
    except Corrupt:
        return LOST
