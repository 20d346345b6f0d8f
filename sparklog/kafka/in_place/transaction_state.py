"""Find the open and aborted transactions of a partition from batch headers, and the markers that damage may hide.

Kafka stores transactions in producer snapshots and `.txnindex` files. The same information can be obtained from batch
headers and markers, which always exist. The first transactional batch of a producer after its last marker opens a
transaction, and the next marker ends the transaction. With transaction.version 2, the epoch of a marker is one above
the epoch of the data, so only the producer id is compared. If the cleaner has removed the record of a marker, the
marker does not end a transaction. Events are stored per segment, so that only segments that the cleaner replaces are
read again.

A batch with a wrong checksum may have been a marker if its header is that of a marker. It may also have been a marker
if it is transactional and has no sequence, because data batches always have a sequence. The producer id of such a batch
may be corrupt. Most damage is a single flipped bit. If a single flipped bit explains the wrong checksum, the bit is
corrected before the producer id is read. Bytes that are not a batch may have contained markers of any producer
(`ANY_PRODUCER`).
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

ANY_PRODUCER = NO_PRODUCER_ID
MAX_MARKER_BYTES = 64 * 1024
"""Maximum size of a batch that is searched for a flipped bit. The size of a marker is 78 bytes."""


@dataclass(frozen=True, slots=True)
class LostMarker:
    """A damaged marker of `producer`. `commit` is True for a COMMIT marker, False for an ABORT marker, and None if the
    type is unknown.
    """

    producer: int
    commit: bool | None


def may_be_markers(headers: BatchHeaders) -> npt.NDArray[np.bool_]:
    """Return True for each batch that is a marker, or that may have been a marker before it was damaged."""
    has_no_sequence = headers.is_transactional & (headers.base_sequence == NO_SEQUENCE)
    marks: npt.NDArray[np.bool_] = (headers.is_control | has_no_sequence) & (headers.producer_id != NO_PRODUCER_ID)
    return marks


def lost_producer(batch: bytes) -> int | None:
    """Return the producer id of a damaged marker, or None if the batch was not a marker.

    Returns `ANY_PRODUCER` if the producer id cannot be determined.
    """
    header = single_header(batch)
    size, expected = int(header.size[0]), int(header.crc[0])
    if len(batch) < size or size > MAX_MARKER_BYTES:
        return ANY_PRODUCER
    actual = crc32c(memoryview(batch)[CRC_START:size])
    if (actual ^ expected).bit_count() > 1:
        bit = flipped_bit(size - CRC_START, actual, expected)
        if bit is None:
            return ANY_PRODUCER
        repaired = bytearray(batch[:size])
        repaired[CRC_START + bit[0]] ^= 1 << bit[1]
        header = single_header(bytes(repaired))
    return int(header.producer_id[0]) if header.is_control[0] else None


def lost_markers(file: SegmentFile, position: int, until: int) -> list[LostMarker]:
    """Return the markers that the bytes `[position, until)` of a file may have contained.

    If some of these bytes are not a batch, the producer of the last marker is `ANY_PRODUCER`.
    """
    markers: list[LostMarker] = []
    while position < until:
        header = file.header_at(position)
        if header is None or position + header.size > until:
            return [*markers, LostMarker(ANY_PRODUCER, None)]
        batch = file.read(position, min(header.size, MAX_MARKER_BYTES))
        lost = _lost_marker(batch, header.size) if may_be_markers(single_header(batch))[0] else None
        markers += [] if lost is None else [lost]
        position += header.size
    return markers


def _lost_marker(batch: bytes, size: int) -> LostMarker | None:
    header = single_header(batch)
    if len(batch) == size and crc32c(memoryview(batch)[CRC_START:]) == header.crc[0]:
        # The checksum is correct, so the damaged bytes are not covered by the checksum.
        try:
            kind = control_types(batch, scan_headers(batch))[0]
        except Corrupt:
            return LostMarker(int(header.producer_id[0]), None)
        return LostMarker(int(header.producer_id[0]), bool(kind == COMMIT)) if kind in (ABORT, COMMIT) else None
    producer = lost_producer(batch)
    return None if producer is None else LostMarker(producer, None)


DATA = 100
LOST = 101
"""Kinds of events in addition to ABORT and COMMIT. `DATA`: the first data batch of a producer after its last marker.
`LOST`: a damaged range that may have contained markers of a producer, or of any producer (`ANY_PRODUCER`).
"""


@dataclass
class TransactionEvents:
    """The events of a segment in offset order, as flat triples (kind, producer id, offset)."""

    triples: array[int] = field(default_factory=lambda: array("q"))
    _open_producers: set[int] = field(default_factory=set)

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
                if producer not in self._open_producers and not _is_damaged(window, row):
                    self._open_producers.add(producer)
                    self.triples.extend((kind, producer, offset))
            elif kind in (ABORT, COMMIT):
                self._open_producers.discard(producer)
                self.triples.extend((kind, producer, offset))

    def lost(self, offset: int, producer: int = ANY_PRODUCER) -> None:
        """Record that the marker of `producer` at `offset` is damaged.

        If `producer` is `ANY_PRODUCER`, the damaged range that starts at `offset` may have contained markers of all
        producers.
        """
        if producer == ANY_PRODUCER:
            self._open_producers.clear()
        else:
            self._open_producers.discard(producer)
        self.triples.extend((LOST, producer, offset))

    @property
    def has_lost(self) -> bool:
        """True if the markers of a damaged range are unknown."""
        return LOST in self.triples[::3]


class TransactionSpan(NamedTuple):
    """The producer id of a transaction, its first offset, and the offset of its marker or of the damaged range that may
    have contained the marker.
    """

    producer: int
    first: int
    last: int


@dataclass
class TransactionState:
    """The transactions of a partition after applying the events of its segments.

    * `open`: the first offset of each open transaction, by producer id
    * `aborted`: the aborted transactions in the order of their markers
    * `unknown`: transactions whose markers may have been in a damaged range
    * `markers`: the offset of the last marker by producer id, for the segments passed to `abort_markers`
    """

    open: dict[int, int] = field(default_factory=dict)
    aborted: list[TransactionSpan] = field(default_factory=list)
    unknown: list[TransactionSpan] = field(default_factory=list)
    markers: dict[int, int] = field(default_factory=dict)

    def apply(self, triples: array[int], start: int = 0) -> None:
        for index in range(start, len(triples), 3):
            kind, producer, offset = triples[index : index + 3]
            if kind == DATA:
                self.open.setdefault(producer, offset)
            elif kind == LOST:
                for writer in list(self.open) if producer == ANY_PRODUCER else self.open.keys() & {producer}:
                    self.unknown.append(TransactionSpan(writer, self.open.pop(writer), offset))
            else:
                first = self.open.pop(producer, None)
                if kind == ABORT and first is not None:
                    self.aborted.append(TransactionSpan(producer, first, offset))

    def abort_markers(self, events: TransactionEvents) -> Iterator[AbortMarker]:
        """Apply the events of the next segment, and yield its ABORT markers."""
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
        """Return the first offset of the earliest open transaction, or None if no transaction is open."""
        return min(self.open.values(), default=None)


def confirmed_entries(
    index: AbortedTransactions, events: Sequence[TransactionEvents], *, is_damaged: bool
) -> AbortedTransactions:
    """Return the entries of a `.txnindex` that the log does not contradict.

    A transaction contains exactly one marker of its producer, which is its last batch. Therefore an entry is wrong if
    the log has an earlier marker of the producer in its range, or a marker other than an ABORT marker of the producer
    at its end. If there is no marker at its end, the entry is used only if damage may have hidden the marker.

    Args:
        index: The entries of a segment.
        events: The events of this segment and of all earlier segments that its transactions may start in.
        is_damaged: Whether markers of this segment may be damaged.
    """
    # The first row stands for "no marker": it is before all entries, and is not of their producers.
    parts = [array("q", (COMMIT, np.iinfo(np.int64).min, -1)), *(each.triples for each in events)]
    rows = np.concatenate([np.array(part, np.int64).reshape(-1, 3) for part in parts])
    markers = rows[(rows[:, 0] == ABORT) | (rows[:, 0] == COMMIT)]
    # Sort markers and entries together, each entry before the marker at its end, to find the previous marker.
    producers = np.concatenate((markers[:, 1], index.producer_ids))
    offsets = np.concatenate((markers[:, 2], index.last_offsets))
    is_marker = np.arange(len(producers)) < len(markers)
    order = np.lexsort((is_marker, offsets, producers))
    previous = np.empty(len(order), np.int64)
    previous[order] = order[np.maximum.accumulate(np.where(is_marker[order], np.arange(len(order)), 0))]
    before = previous[len(markers) :]
    has_earlier_marker = (producers[before] == index.producer_ids) & (offsets[before] >= index.first_offsets)
    by_offset = markers[np.argsort(markers[:, 2])]
    at_end = by_offset[np.searchsorted(by_offset[:, 2], index.last_offsets, "right") - 1]
    has_marker = at_end[:, 2] == index.last_offsets
    is_aborted = (at_end[:, 0] == ABORT) & (at_end[:, 1] == index.producer_ids)
    return index.select(~has_earlier_marker & np.where(has_marker, is_aborted, is_damaged))


def merge_aborted(state: TransactionState, indexed: Sequence[AbortedTransactions]) -> AbortedTransactions:
    """Merge the aborted transactions from batch headers and from confirmed entries of `.txnindex` files. A transaction
    is aborted if either source contains it.

    Both sources are needed: the index of the active segment lags behind the log, indexes may be missing, and headers
    may be damaged.
    """
    from_headers = np.array(state.aborted, np.int64).reshape(-1, 3)
    every = concatenate(
        [
            AbortedTransactions(from_headers[:, 0], from_headers[:, 1], from_headers[:, 2], from_headers[:, 2] + 1),
            *indexed,
        ]
    )
    # If a marker has two entries, select the entry that begins earlier.
    order = np.lexsort((every.first_offsets, every.producer_ids, every.last_offsets))
    producers, last = every.producer_ids[order], every.last_offsets[order]
    is_repeated = np.zeros(len(order), np.bool_)
    is_repeated[1:] = (producers[1:] == producers[:-1]) & (last[1:] == last[:-1])
    return every.select(order[~is_repeated])


def _is_damaged(window: Window, row: int) -> bool:
    """Return True if a complete batch has a wrong checksum.

    The producer id of a damaged batch may be wrong. If the batch were used, it might open a transaction that never
    ends.
    """
    header = window.headers[row : row + 1]
    # The checksum cannot be verified if the window does not contain all bytes of the batch.
    is_complete = int(header.position[0] + header.size[0]) <= len(window.data)
    return is_complete and bool(len(crc_failures(window.data, header)))


def _kind(window: Window, row: int) -> int:
    """Return the kind of a batch: ABORT, COMMIT, another control type, DATA, or LOST if the batch is damaged and may
    have been a marker.
    """
    header = window.headers[row : row + 1]
    if not header.is_control[0]:
        return LOST if _is_damaged(window, row) else DATA
    try:
        return LOST if len(crc_failures(window.data, header)) else int(control_types(window.data, header)[0])
    except Corrupt:
        return LOST
