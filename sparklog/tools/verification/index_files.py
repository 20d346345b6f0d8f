"""Kafka's index files against the batches they point into.

Neither has a checksum, but an entry of an `.index` is a pair (last offset, position) and one of a `.timeindex` a pair
(timestamp, offset) of one batch: whichever of the two changes, no batch has both. The number of entries follows from
`index.interval.bytes`, which may have been another one at the time, so the batches alone do not tell it. A `.txnindex`
is compared with the ABORT markers; the begin of a transaction that the cleaner has cut stands nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.control import ABORT, control_types
from sparklog.format.record_batch import BatchHeaders, BytesLike
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.tools.verification.findings import INDEX, RESTORE, Finding

Int64s = npt.NDArray[np.int64]
DELETE_INDEX = "delete the file: the broker's next start writes it anew"
WITHOUT_INDEX = "restore the file from a backup; no record is lost, reads begin at the segment's start without it"


@dataclass(slots=True)
class Batches:
    """Batches of a segment, window by window: positions in the file, offsets of the log, times in ms."""

    position: list[Int64s] = field(default_factory=list)
    last: list[Int64s] = field(default_factory=list)
    stamp: list[Int64s] = field(default_factory=list)
    old: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    """True for messages of formats v0 or v1."""
    aborts: dict[int, int] = field(default_factory=dict)
    """Offset of each ABORT marker -> its producer id."""
    offset: list[Int64s] = field(default_factory=list)
    """Base offsets as the headers have them."""

    def add(self, data: BytesLike, headers: BatchHeaders, position: int, shift: int = 0) -> None:
        """Take in the batches of a window that begins at byte `position`."""
        self.position.append(headers.position + position)
        self.offset.append(headers.base_offset)
        self.last.append(headers.last_offset + shift)
        self.stamp.append(headers.max_timestamp)
        self.old.append(headers.is_legacy)
        markers = np.flatnonzero(headers.is_control)
        for row in markers.tolist():
            one = headers[row : row + 1]
            try:
                aborts = int(control_types(data, one)[0]) == ABORT
            except Corrupt:
                # Its checksum says so, too.
                continue
            if aborts:
                self.aborts[int(one.base_offset[0]) + shift] = int(one.producer_id[0])

    def columns(self) -> tuple[Int64s, Int64s, Int64s]:
        """Positions, last offsets and greatest timestamps of all batches."""
        empty = [np.empty(0, np.int64)]
        position, last, stamp = (np.concatenate(parts or empty) for parts in (self.position, self.last, self.stamp))
        return position, last, stamp


def check_index(
    suffix: str, data: bytes, base: int, batches: Batches, *, file: str, active: bool = False
) -> list[Finding]:
    """Check an index file of the segment that starts at offset `base`; `active`: the segment may still grow."""
    try:
        if suffix == "index":
            return _check_offset_index(data, base, batches, file, preallocated=active)
        if suffix == "timeindex":
            return _check_time_index(data, base, batches, file, active=active)
        return _check_transaction_index(data, base, batches, file)
    except Corrupt as error:
        remedy = RESTORE if suffix == "txnindex" else WITHOUT_INDEX
        return [replace(Finding.of(INDEX, error, file, remedy), position=error.position or 0)]


def _tail(data: bytes, used: int, preallocated: bool, file: str) -> list[Finding]:
    """Zeros behind the entries belong to a file that a broker has preallocated, and nowhere else."""
    rest = np.frombuffer(data, np.uint8)[used:]
    odd = np.flatnonzero(rest)
    if len(odd):
        return [Finding(INDEX, file, "expected zeros behind the last entry", WITHOUT_INDEX, used + int(odd[0]))]
    if len(rest) and not preallocated:
        message = f"expected {used} bytes, found {len(data)}: the rest is zeros"
        return [Finding(INDEX, file, message, WITHOUT_INDEX, used)]
    return []


def _check_offset_index(data: bytes, base: int, batches: Batches, file: str, *, preallocated: bool) -> list[Finding]:
    """Check an `.index`.

    Kafka's followers, and brokers before 4.0, name several batches by one entry: the first one's position, the last
    one's offset. Readers find the same batches by them, so such entries are right, too.
    """
    entries = OffsetIndex.parse(data, base, file=file)
    wrong = _tail(data, len(entries) * OffsetIndex.ENTRY_BYTES, preallocated, file)
    if not len(entries):
        return wrong
    position, last, _ = batches.columns()
    if not len(position):
        return [Finding(INDEX, file, "expected no entries, for the segment has no batches", WITHOUT_INDEX, 0)]
    rows = np.minimum(np.searchsorted(position, entries.positions), len(position) - 1)
    ends = np.minimum(np.searchsorted(last, entries.offsets), len(last) - 1)
    named = (position[rows] == entries.positions) & (last[ends] == entries.offsets) & (ends >= rows)
    # The batches of one entry lie before the next one's.
    after = np.append(rows[1:], len(position))
    named &= ends < after
    for entry in np.flatnonzero(~named).tolist():
        place, offset = int(entries.positions[entry]), int(entries.offsets[entry])
        message = f"no batch at byte {place} of the segment ends with offset {offset}, as entry {entry} says"
        wrong.append(Finding(INDEX, file, message, WITHOUT_INDEX, entry * OffsetIndex.ENTRY_BYTES, offset))
    return wrong


def _check_time_index(data: bytes, base: int, batches: Batches, file: str, *, active: bool) -> list[Finding]:
    """Check a `.timeindex`. Its last entry is the segment's greatest timestamp, unless the segment is active.

    An entry names the earliest batch with its timestamp; but of messages of formats v0 and v1 that were appended
    together and have one time, it names the last.
    """
    entries = TimeIndex.parse(data, base, file=file)
    size = TimeIndex.ENTRY_BYTES
    wrong = _tail(data, len(entries) * size, active, file)
    _, last, stamp = batches.columns()
    if not len(stamp):
        return wrong
    running = np.maximum.accumulate(stamp)
    rows = np.minimum(np.searchsorted(last, entries.offsets), len(last) - 1)
    # The earliest batch with the greatest timestamp so far.
    rises = np.concatenate(([True], running[1:] > running[:-1]))
    first = rises | (np.concatenate(batches.old) & (stamp == running))
    named = (last[rows] == entries.offsets) & (stamp[rows] == entries.timestamps) & first[rows]
    if len(entries) == 1 and int(entries.timestamps[0]) == 0 and int(entries.offsets[0]) == base:
        # What Kafka's indexes begin with where nothing has a time.
        named |= running[-1] <= 0
    for entry in np.flatnonzero(~named).tolist():
        stamped, offset = int(entries.timestamps[entry]), int(entries.offsets[entry])
        message = (
            f"the batch that ends with offset {offset} is not the first with timestamp {stamped}, as entry {entry} says"
        )
        wrong.append(Finding(INDEX, file, message, WITHOUT_INDEX, entry * size, offset))
    greatest = int(entries.timestamps[-1]) if len(entries) else -1
    if not active and not wrong and greatest < int(running[-1]):
        message = f"expected the last entry to have the greatest timestamp {int(running[-1])}, found {greatest}"
        wrong.append(Finding(INDEX, file, message, WITHOUT_INDEX, len(entries) * size))
    return wrong


def _check_transaction_index(data: bytes, base: int, batches: Batches, file: str) -> list[Finding]:
    """Check a `.txnindex`: each entry has its ABORT marker among the segment's."""
    entries = transaction_index.parse(data, base, file=file)
    wrong = []
    columns = (entries.producer_ids, entries.first_offsets, entries.last_offsets, entries.last_stable_offsets)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for entry, (producer, first, last, stable) in enumerate(rows):
        if batches.aborts.get(last) != producer or first < 0 or not 0 <= stable <= last + 1:
            message = f"no ABORT marker of producer {producer} lies at offset {last}, as entry {entry} says"
            wrong.append(Finding(INDEX, file, message, position=entry * transaction_index.ENTRY_BYTES, offset=last))
    return wrong
