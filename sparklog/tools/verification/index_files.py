"""Kafka's index files against the batches they point into.

Neither has a checksum, but an entry of an `.index` is a pair (last offset, position) and one of a `.timeindex` a pair
(timestamp, offset) of one batch: whichever of the two changes, no batch has both. How many entries there are follows
from `index.interval.bytes`, which may have been another one at the time, so it cannot be told from the batches alone.
A `.txnindex` is held against the ABORT markers; where a transaction began that the cleaner has cut is only said there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format import offset_index, time_index, transaction_index
from sparklog.format.control import ABORT, control_types
from sparklog.format.record_batch import BatchHeaders, BytesLike
from sparklog.tools.verification.findings import INDEX, Finding

Int64s = npt.NDArray[np.int64]
REBUILD = "restore the file from a backup; it can be built anew from the segment beside it"


@dataclass(slots=True)
class Batches:
    """What indexes need of a segment, window by window: positions in the file, offsets of the log, times in ms."""

    position: list[Int64s] = field(default_factory=list)
    last: list[Int64s] = field(default_factory=list)
    stamp: list[Int64s] = field(default_factory=list)
    old: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    """Which are messages of formats v0 or v1."""
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
        return _joined(self.position), _joined(self.last), _joined(self.stamp)


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _tail(data: bytes, used: int, preallocated: bool, file: str) -> list[Finding]:
    """Zeros behind the entries belong to a file that a broker has preallocated, and nowhere else."""
    rest = np.frombuffer(data, np.uint8)[used:]
    odd = np.flatnonzero(rest)
    if len(odd):
        return [Finding(INDEX, file, "expected zeros behind the last entry", REBUILD, used + int(odd[0]))]
    if len(rest) and not preallocated:
        message = f"expected {used} bytes, found {len(data)}: the rest is zeros"
        return [Finding(INDEX, file, message, REBUILD, used)]
    return []


def check_offset_index(
    data: bytes, base: int, batches: Batches, *, file: str, preallocated: bool = False, whole: bool = True
) -> list[Finding]:
    """An `.index` of the segment that starts at offset `base`. `whole`: all batches of the segment are known.

    Kafka's followers, and brokers before 4.0, name several batches by one entry: the first one's position, the last
    one's offset. Readers find the same batches by them, so such entries are right, too.
    """
    try:
        found = offset_index.parse(data, base, file=file)
    except Corrupt as error:
        return [replace(Finding.of(INDEX, error, file, REBUILD), position=error.position or 0)]
    wrong = _tail(data, len(found) * offset_index.ENTRY_BYTES, preallocated, file)
    if not len(found):
        return wrong
    position, last, _ = batches.columns()
    if not len(position):
        return [Finding(INDEX, file, "expected no entries, for the segment has no batches", REBUILD, 0)]
    rows = np.minimum(np.searchsorted(position, found.positions), len(position) - 1)
    ends = np.minimum(np.searchsorted(last, found.offsets), len(last) - 1)
    named = (position[rows] == found.positions) & (last[ends] == found.offsets) & (ends >= rows)
    # The batches of one entry lie before the next one's.
    after = np.append(rows[1:], len(position))
    named &= ends < after
    known = np.ones(len(found), np.bool_) if whole else found.positions <= position[-1]
    for entry in np.flatnonzero(~named & known).tolist():
        wrong.append(
            Finding(
                INDEX,
                file,
                f"no batch at byte {int(found.positions[entry])} of the segment ends with offset "
                f"{int(found.offsets[entry])}, as entry {entry} says",
                REBUILD,
                entry * offset_index.ENTRY_BYTES,
                int(found.offsets[entry]),
            )
        )
    return wrong


def check_time_index(
    data: bytes, base: int, batches: Batches, *, file: str, preallocated: bool = False, closed: bool = True
) -> list[Finding]:
    """A `.timeindex`. `closed`: the last entry is the segment's greatest timestamp (not so in an active segment).

    An entry names the earliest batch with its timestamp; but of messages of formats v0 and v1 that were appended
    together and have one time, it names the last.
    """
    try:
        found = time_index.parse(data, base, file=file)
    except Corrupt as error:
        return [replace(Finding.of(INDEX, error, file, REBUILD), position=error.position or 0)]
    size = time_index.ENTRY_BYTES
    wrong = _tail(data, len(found) * size, preallocated, file)
    _, last, stamp = batches.columns()
    if not len(stamp):
        return wrong
    running = np.maximum.accumulate(stamp)
    rows = np.minimum(np.searchsorted(last, found.offsets), len(last) - 1)
    # The earliest batch with the greatest timestamp so far.
    rises = np.concatenate(([True], running[1:] > running[:-1]))
    first = rises | (np.concatenate(batches.old) & (stamp == running))
    named = (last[rows] == found.offsets) & (stamp[rows] == found.timestamps) & first[rows]
    if len(found) == 1 and int(found.timestamps[0]) == 0 and int(found.offsets[0]) == base:
        # What Kafka's indexes begin with where nothing has a time.
        named |= running[-1] <= 0
    for entry in np.flatnonzero(~named).tolist():
        wrong.append(
            Finding(
                INDEX,
                file,
                f"the batch that ends with offset {int(found.offsets[entry])} is not the first with timestamp "
                f"{int(found.timestamps[entry])}, as entry {entry} says",
                REBUILD,
                entry * size,
                int(found.offsets[entry]),
            )
        )
    greatest = int(found.timestamps[-1]) if len(found) else -1
    if closed and not wrong and greatest < int(running[-1]):
        message = f"expected the last entry to have the greatest timestamp {int(running[-1])}, found {greatest}"
        wrong.append(Finding(INDEX, file, message, REBUILD, len(found) * size))
    return wrong


def check_transaction_index(data: bytes, base: int, batches: Batches, *, file: str) -> list[Finding]:
    """A `.txnindex`: each entry has its ABORT marker among the segment's."""
    try:
        found = transaction_index.parse(data, base, file=file)
    except Corrupt as error:
        return [replace(Finding.of(INDEX, error, file), position=error.position or 0)]
    wrong = []
    columns = (found.producer_ids, found.first_offsets, found.last_offsets, found.last_stable_offsets)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for entry, (producer, first, last, stable) in enumerate(rows):
        if batches.aborts.get(last) != producer or first < 0 or not 0 <= stable <= last + 1:
            message = f"no ABORT marker of producer {producer} lies at offset {last}, as entry {entry} says"
            wrong.append(Finding(INDEX, file, message, position=entry * transaction_index.ENTRY_BYTES, offset=last))
    return wrong
