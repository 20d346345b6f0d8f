"""Kafka's index files against the batches they point into.

Neither has a checksum, but an entry of an `.index` is a pair (last offset, position) and one of a `.timeindex` a pair
(timestamp, offset) of one batch: whichever of the two changes, no batch has both. The number of entries follows from
`index.interval.bytes`, which may have been another one at the time, so the batches alone do not tell it. A `.txnindex`
is compared with the ABORT markers; the begin of a transaction that the cleaner has cut is written nowhere else.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.control import ABORT, control_types
from sparklog.format.key_filter import FilterBuilder, KeyFilter
from sparklog.format.record_batch import BatchHeaders, BoolArray, BytesLike, Int64Array
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.tools.verification.findings import INDEX, RESTORE, Finding

DELETE_INDEX = "delete the file: the broker's next start writes it again"
WITHOUT_INDEX = "restore the file from a backup; no record is lost, reads begin at the segment's start without it"


class BatchColumns(NamedTuple):
    """CollectedBatches: positions in the file, base and last offset, greatest timestamp, true for formats v0 and v1."""

    position: Int64Array
    base: Int64Array
    last: Int64Array
    stamp: Int64Array
    old: BoolArray


_NONE = np.empty(0, np.int64)
_NO_BATCHES = BatchColumns(_NONE, _NONE, _NONE, _NONE, _NONE.astype(np.bool_))


@dataclass(slots=True)
class CollectedBatches:
    """Batches of a segment, window by window. `aborts`: offset of each ABORT marker -> its producer id.

    `filter`: that of their keys, which are put into `keys` then.
    """

    windows: list[BatchColumns] = field(default_factory=lambda: [_NO_BATCHES])
    aborts: dict[int, int] = field(default_factory=dict)
    filter: KeyFilter | None = None
    keys: FilterBuilder | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.filter is not None:
            self.keys = FilterBuilder(self.filter)

    def add(self, data: BytesLike, headers: BatchHeaders, position: int) -> None:
        """Take in the batches of a window that begins at byte `position`."""
        offsets = headers.base_offset, headers.last_offset
        columns = BatchColumns(headers.position + position, *offsets, headers.max_timestamp, headers.is_legacy)
        self.windows.append(columns)
        if self.keys is not None:
            self.keys.add(data, headers)
        for row in np.flatnonzero(headers.is_control).tolist():
            one = headers[row : row + 1]
            # Of one that cannot be read the checksum says so, too.
            with suppress(Corrupt):
                if int(control_types(data, one)[0]) == ABORT:
                    self.aborts[int(one.base_offset[0])] = int(one.producer_id[0])

    def keys_beyond_filter(self) -> bool:
        """True if the filter would deny some key: look-ups would not find it."""
        return self.filter is not None and self.keys is not None and not self.keys.within(self.filter)

    def columns(self) -> BatchColumns:
        return BatchColumns(*map(np.concatenate, zip(*self.windows, strict=True)))


def check_index(
    suffix: str, data: bytes, base: int, batches: CollectedBatches, *, file: str, active: bool = False
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
    """Zeros after the entries belong to a file that a broker has preallocated, and nowhere else."""
    rest = np.frombuffer(data, np.uint8)[used:]
    odd = np.flatnonzero(rest)
    if len(odd):
        return [Finding(INDEX, file, "expected zeros after the last entry", WITHOUT_INDEX, used + int(odd[0]))]
    if len(rest) and not preallocated:
        message = f"expected {used} bytes, found {len(data)}: the rest is zeros"
        return [Finding(INDEX, file, message, WITHOUT_INDEX, used)]
    return []


def _check_offset_index(
    data: bytes, base: int, batches: CollectedBatches, file: str, *, preallocated: bool
) -> list[Finding]:
    """Kafka's followers, and brokers before 4.0, name several batches by one entry: the first one's position, the last
    one's offset. Readers find the same batches by them, so such entries are right, too."""
    entries = OffsetIndex.parse(data, base, file=file)
    wrong = _tail(data, len(entries) * OffsetIndex.ENTRY_BYTES, preallocated, file)
    if not len(entries):
        return wrong
    position, _, last, _, _ = batches.columns()
    if not len(position):
        return [Finding(INDEX, file, "expected no entries, for the segment has no batches", WITHOUT_INDEX, 0)]
    rows = np.minimum(np.searchsorted(position, entries.positions), len(position) - 1)
    ends = np.minimum(np.searchsorted(last, entries.offsets), len(last) - 1)
    named = (position[rows] == entries.positions) & (last[ends] == entries.offsets) & (ends >= rows)
    # The batches of one entry are before the next one's.
    after = np.append(rows[1:], len(position))
    named &= ends < after
    for entry in np.flatnonzero(~named).tolist():
        place, offset = int(entries.positions[entry]), int(entries.offsets[entry])
        message = f"no batch at byte {place} of the segment ends with offset {offset}, as entry {entry} says"
        wrong.append(Finding(INDEX, file, message, WITHOUT_INDEX, entry * OffsetIndex.ENTRY_BYTES, offset))
    return wrong


def _check_time_index(data: bytes, base: int, batches: CollectedBatches, file: str, *, active: bool) -> list[Finding]:
    """The last entry is the segment's greatest timestamp, unless the segment is active. An entry names the earliest
    batch with its timestamp; but of old messages that were appended together and have one time, it names the last."""
    entries = TimeIndex.parse(data, base, file=file)
    size = TimeIndex.ENTRY_BYTES
    wrong = _tail(data, len(entries) * size, active, file)
    _, _, last, stamp, old = batches.columns()
    if not len(stamp):
        return wrong
    running = np.maximum.accumulate(stamp)
    rows = np.minimum(np.searchsorted(last, entries.offsets), len(last) - 1)
    # The earliest batch with the greatest timestamp so far.
    rises = np.concatenate(([True], running[1:] > running[:-1]))
    first = rises | (old & (stamp == running))
    named = (last[rows] == entries.offsets) & (stamp[rows] == entries.timestamps) & first[rows]
    if len(entries) == 1 and int(entries.timestamps[0]) == 0 and int(entries.offsets[0]) == base:
        # What Kafka's indexes begin with where nothing has a time.
        named |= running[-1] <= 0
    for entry in np.flatnonzero(~named).tolist():
        stamped, offset = int(entries.timestamps[entry]), int(entries.offsets[entry])
        batch = f"the batch that ends with offset {offset}"
        message = f"{batch} is not the first with timestamp {stamped}, as entry {entry} says"
        wrong.append(Finding(INDEX, file, message, WITHOUT_INDEX, entry * size, offset))
    greatest = int(entries.timestamps[-1]) if len(entries) else -1
    if not active and not wrong and greatest < int(running[-1]):
        message = f"expected the last entry to have the greatest timestamp {int(running[-1])}, found {greatest}"
        wrong.append(Finding(INDEX, file, message, WITHOUT_INDEX, len(entries) * size))
    return wrong


def _check_transaction_index(data: bytes, base: int, batches: CollectedBatches, file: str) -> list[Finding]:
    entries = transaction_index.parse(data, base, file=file)
    wrong = []
    columns = (entries.producer_ids, entries.first_offsets, entries.last_offsets, entries.last_stable_offsets)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for entry, (producer, first, last, stable) in enumerate(rows):
        if batches.aborts.get(last) != producer or first < 0 or not 0 <= stable <= last + 1:
            message = f"no ABORT marker of producer {producer} is at offset {last}, as entry {entry} says"
            wrong.append(Finding(INDEX, file, message, position=entry * transaction_index.ENTRY_BYTES, offset=last))
    return wrong
