"""Slices of a data file against what commits and footers say of them, and Kafka's index files against the batches.

A `SliceClaim` is what commit or footer say of a slice. A `SliceWindow` is whole batches of some slices in memory.
`Totals` is what was counted in the batches of each slice; `disagreements` compares that with the claim.

Indexes have no checksum, but an entry of an `.index` is a pair (last offset, position) and one of a `.timeindex` a pair
(timestamp, offset) of one batch: whichever of the two changes, no batch has both. The number of entries follows from
`index.interval.bytes`, which may have been another one at the time, so the batches alone do not tell it. A `.txnindex`
is compared with the ABORT markers; the begin of a transaction that the cleaner has cut is written nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.arrow_numpy import valid_rows
from sparklog.format.batch_scan import check_headers, crc_failures, crc_message, misplaced
from sparklog.format.batch_walk import BatchFile, BatchWalk, Window
from sparklog.format.control import ABORT, control_types
from sparklog.format.crc32c import crc32c
from sparklog.format.key_filter import FilterBuilder, KeyFilter
from sparklog.format.record_batch import CRC_START, NO_PRODUCER_ID, BatchHeaders, BoolArray, BytesLike, Int64Array
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.inventory import NamedFile, SliceClaim
from sparklog.maintenance.work_items import Progress
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import CHECKSUM, CONTENT, INDEX, CheckCounts, Finding

REBUILD = "run sparklog repair, which builds the file again from the log's batches"
"""For an index file. A broker does not: after a clean stop it takes a missing `.txnindex` to mean that nothing was
aborted, and a missing `.timeindex` for an empty one."""


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
        return [replace(Finding.of(INDEX, error, file, REBUILD), position=error.position or 0)]


def _tail(data: bytes, used: int, preallocated: bool, file: str) -> list[Finding]:
    """Zeros after the entries belong to a file that a broker has preallocated, and nowhere else."""
    rest = np.frombuffer(data, np.uint8)[used:]
    odd = np.flatnonzero(rest)
    if len(odd):
        return [Finding(INDEX, file, "expected zeros after the last entry", REBUILD, used + int(odd[0]))]
    if len(rest) and not preallocated:
        message = f"expected {used} bytes, found {len(data)}: the rest is zeros"
        return [Finding(INDEX, file, message, REBUILD, used)]
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
        return [Finding(INDEX, file, "expected no entries, for the segment has no batches", REBUILD, 0)]
    rows = np.minimum(np.searchsorted(position, entries.positions), len(position) - 1)
    ends = np.minimum(np.searchsorted(last, entries.offsets), len(last) - 1)
    named = (position[rows] == entries.positions) & (last[ends] == entries.offsets) & (ends >= rows)
    # The batches of one entry are before the next one's.
    after = np.append(rows[1:], len(position))
    named &= ends < after
    for entry in np.flatnonzero(~named).tolist():
        place, offset = int(entries.positions[entry]), int(entries.offsets[entry])
        message = f"no batch at byte {place} of the segment ends with offset {offset}, as entry {entry} says"
        wrong.append(Finding(INDEX, file, message, REBUILD, entry * OffsetIndex.ENTRY_BYTES, offset))
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
        wrong.append(Finding(INDEX, file, message, REBUILD, entry * size, offset))
    greatest = int(entries.timestamps[-1]) if len(entries) else -1
    if not active and not wrong and greatest < int(running[-1]):
        message = f"expected the last entry to have the greatest timestamp {int(running[-1])}, found {greatest}"
        wrong.append(Finding(INDEX, file, message, REBUILD, len(entries) * size))
    return wrong


def _check_transaction_index(data: bytes, base: int, batches: CollectedBatches, file: str) -> list[Finding]:
    entries = transaction_index.parse(data, base, file=file)
    wrong = []
    columns = (entries.producer_ids, entries.first_offsets, entries.last_offsets, entries.last_stable_offsets)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for entry, (producer, first, last, stable) in enumerate(rows):
        if batches.aborts.get(last) != producer or first < 0 or not 0 <= stable <= last + 1:
            message = f"no ABORT marker of producer {producer} is at offset {last}, as entry {entry} says"
            place = entry * transaction_index.ENTRY_BYTES
            wrong.append(Finding(INDEX, file, message, REBUILD, place, last))
    return wrong


Int64s = npt.NDArray[np.int64]

# Stored bytes: whatever so much is decompressed to, decoding has room for it.
DECODED_AT_ONCE = 1 << 20
NONE = 2**63 - 1
_FLAGS = (SliceFlag.HAS_NULL_KEYS, SliceFlag.KAFKA_PRODUCERS, SliceFlag.LOG_APPEND_TIME)


class CutOff(Exception):  # noqa: N818
    """A file is shorter than commits say; its argument is its size."""


@dataclass(slots=True)
class CheckedFile:
    """The check of one file; `gone`: it, or a file beside it, does not exist."""

    store: Store
    file: NamedFile
    progress: Progress
    findings: list[Finding] = field(default_factory=list)
    counts: CheckCounts = field(default_factory=CheckCounts)
    gone: bool = False
    filters: dict[int, KeyFilter] = field(default_factory=dict)
    """Sound filters of keys by the positions of their slices."""

    def read(self, start: int, length: int) -> bytes:
        """Read `length` bytes from byte `start` on. `CutOff` if the file ends before that, also at a second look."""
        for _ in range(2):
            data = self.store.get(self.file.key, start, length)
            if len(data) == length:
                return data
        raise CutOff(start + len(data))


@dataclass(slots=True)
class Totals:
    """Counts per slice, int64[n] each: offsets as in the log; `min_ts` is `NONE` where no record has a time."""

    batches: Int64s
    records: Int64s
    next_offset: Int64s
    min_ts: Int64s
    max_ts: Int64s
    flags: Int64s

    @classmethod
    def empty(cls, n: int) -> Totals:
        return cls(*(np.full(n, value, np.int64) for value in (0, 0, -1, NONE, -1, 0)))


@dataclass(frozen=True, slots=True, eq=False)
class SliceWindow(Window):
    """Batches of some slices of a file. `row_of`: for each batch the row in `claims` of its slice, not falling."""

    claims: Sequence[SliceClaim]
    row_of: Int64s
    sealed: bool

    def _of_batches(self, name: str) -> Int64s:
        return np.array([getattr(claim, name) for claim in self.claims], np.int64)[self.row_of]

    def wrong_batches(self, low: int | None = None) -> list[Finding]:
        """Find batches whose checksum, header or offsets are wrong; `low`: the least offset, if not the slice's."""
        headers, shift = self.headers, self._of_batches("shift")
        first, most = self._of_batches("base") if low is None else low, self._of_batches("end")
        wrong, least = misplaced(headers, first, most, shift=shift, owner=self.row_of)
        base, after = headers.base_offset + shift, headers.next_offset + shift
        findings = [self._wrong_crc(row, int(shift[row])) for row in crc_failures(self.data, headers).tolist()]
        try:
            check_headers(headers, self.place, self.data.nbytes)
        except Corrupt as error:
            findings.append(Finding.of(CONTENT, error, self.file))
        places = (headers.position + self.start).tolist()
        for row in np.flatnonzero(wrong).tolist():
            message = f"expected a batch within offsets {int(least[row])} to {int(most[row]) - 1}"
            message += f", found one of {int(base[row])} to {int(after[row]) - 1}"
            findings.append(Finding(CONTENT, self.file, message, position=places[row], offset=int(least[row])))
        # Messages of formats v0 and v1 may be in sealed segments alone.
        for row in () if self.sealed else np.flatnonzero(headers.is_legacy).tolist():
            message = "expected record batches of magic 2, found an old message"
            findings.append(Finding(CONTENT, self.file, message, position=places[row]))
        return findings

    def _wrong_crc(self, row: int, shift: int) -> Finding:
        headers = self.headers
        start, end = int(headers.position[row]), int((headers.position + headers.size)[row])
        offset, position = int(headers.base_offset[row]) + shift, self.start + start
        finding = Finding(CHECKSUM, self.file, crc_message(headers, row), position=position, offset=offset)
        if headers.is_legacy[row]:
            return finding
        body = self.data[start + CRC_START : end]
        flipped = finding.at_flipped_bit(position + CRC_START, len(body), crc32c(body), int(headers.crc[row]))
        return flipped or finding

    def add_to(self, totals: Totals) -> None:
        """Decode the batches and count what they hold. `Corrupt` for records that cannot be decoded."""
        headers, rows = self.headers, self.row_of
        holds = ~headers.is_control & (headers.count > 0)
        totals.batches += np.bincount(rows, minlength=len(self.claims))
        np.add.at(totals.records, rows, np.where(headers.is_control, 0, headers.count))
        np.maximum.at(totals.next_offset, rows, headers.next_offset + self._of_batches("shift"))
        np.maximum.at(totals.max_ts, rows, headers.max_timestamp)
        foreign = headers.is_control | (headers.producer_id != NO_PRODUCER_ID)
        flags = np.where(headers.is_log_append_time, int(SliceFlag.LOG_APPEND_TIME), 0)
        np.bitwise_or.at(totals.flags, rows, flags | np.where(foreign, int(SliceFlag.KAFKA_PRODUCERS), 0))
        for batches in _decoded_at_once(headers.size):
            self._add_records(totals, batches, holds[batches])

    def _add_records(self, totals: Totals, batches: slice, holds: npt.NDArray[np.bool_]) -> None:
        records = self.select(batches).decode(("offset", "timestamp", "key"), holds)
        if not len(records):
            return
        rows = np.repeat(self.row_of[batches], records.batch_rows)
        timed = np.where(records.timestamp >= 0, records.timestamp, NONE)
        starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
        least = np.minimum.reduceat(timed, starts)
        totals.min_ts[rows[starts]] = np.minimum(totals.min_ts[rows[starts]], least)
        if records.key is not None and records.key.null_count:
            keyless = ~valid_rows(records.key)
            totals.flags[np.unique(rows[keyless])] |= int(SliceFlag.HAS_NULL_KEYS)

    def count(self, checked: CheckedFile) -> CheckCounts:
        """Decode the window and compare what it holds with the claims; findings go into `checked`."""
        totals = Totals.empty(len(self.claims))
        try:
            self.add_to(totals)
        except Corrupt as error:
            checked.findings.append(Finding.of(CONTENT, error, self.file))
            return CheckCounts(slices=len(self.claims), nbytes=len(self.data))
        for row, claim in enumerate(self.claims):
            checked.findings += disagreements(claim, totals, row, file=self.file)
        batches, records = int(totals.batches.sum()), int(totals.records.sum())
        return CheckCounts(slices=len(self.claims), batches=batches, records=records, nbytes=len(self.data))


def _decoded_at_once(size: Int64s) -> Iterator[slice]:
    ends = np.cumsum(size)
    start = before = 0
    while start < len(size):
        stop = max(int(np.searchsorted(ends, before + DECODED_AT_ONCE, "right")), start + 1)
        yield slice(start, stop)
        start, before = stop, int(ends[stop - 1])


def disagreements(claim: SliceClaim, totals: Totals, row: int, *, file: str) -> list[Finding]:
    """Find where what was counted in a slice is not what its claim says."""
    flags = int(totals.flags[row])
    least, greatest = int(totals.min_ts[row]), int(totals.max_ts[row])
    wrong = []
    if int(totals.records[row]) != claim.records:
        wrong.append(f"{claim.records} records, found {int(totals.records[row])}")
    if int(totals.next_offset[row]) != claim.end:
        wrong.append(f"offsets up to {claim.end - 1}, found the last at {int(totals.next_offset[row]) - 1}")
    odd = [flag.name for flag in _FLAGS if flags & flag & ~claim.flags]
    wrong += [f"no batches for which flag {name} stands, found some" for name in odd]
    if claim.append_time < 0:
        if greatest >= 0 and greatest != claim.max_ts:
            wrong.append(f"a greatest timestamp of {claim.max_ts}, found {greatest}")
        if least != NONE and not 0 <= claim.min_ts <= least:
            wrong.append(f"no timestamp below {claim.min_ts}, found {least}")
    elif not flags & SliceFlag.LOG_APPEND_TIME:
        wrong.append("batches with the append time, found others")
    if not wrong:
        return []
    message = f"of the slice of partition {claim.partition} expected {'; '.join(wrong)}"
    return [Finding(CONTENT, file, message, position=claim.position, offset=claim.base)]


class _ClaimedSlice(BatchFile):
    """A slice in a file that is checked."""

    def __init__(self, checked: CheckedFile, claim: SliceClaim) -> None:
        self.path, self.size = checked.file.key, claim.position + claim.size
        self._checked = checked

    def read(self, position: int, length: int) -> memoryview:
        return memoryview(self._checked.read(position, min(length, self.size - position)))

    def window(self, position: int) -> memoryview:
        return self.read(position, self._checked.store.limits.span_bytes)


def walk(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches) -> CheckCounts | None:
    """Check a slice in windows of whole batches, which are collected in `batches`. None if something is wrong."""
    totals, crc, following = Totals.empty(1), 0, claim.base
    file, before, data_file = _ClaimedSlice(checked, claim), len(checked.findings), checked.file
    windows = BatchWalk(file, claim.position)
    for found in windows:
        part = found.trimmed()
        headers, row_of = part.headers, np.zeros(len(part.headers), np.int64)
        window = SliceWindow(part.data, part.start, headers, file.path, [claim], row_of, data_file.sealed)
        wrong = window.wrong_batches(following)
        checked.findings += wrong
        if not wrong:
            try:
                window.add_to(totals)
            except Corrupt as error:
                checked.findings.append(Finding.of(CONTENT, error, file.path))
            batches.add(part.data, headers, part.start - claim.position)
            following = int(headers.next_offset[-1]) + claim.shift
        crc = crc32c(part.data, crc)
        checked.progress(int(headers.count.sum()), len(part.data))
    if windows.stop != "end":
        message = f"expected whole record batches: {windows.reason}"
        checked.findings.append(Finding(CONTENT, file.path, message, position=windows.end, offset=following))
        # The rest has no frame any more: only the checksum tells more.
        span = checked.store.limits.span_bytes
        for position in range(windows.end, file.size, span):
            crc = crc32c(file.read(position, span), crc)
    if crc != claim.crc:
        message = "the slice's CRC-32C does not match its bytes"
        finding = Finding(CHECKSUM, file.path, message, position=claim.position, offset=claim.base)
        flipped = finding.at_flipped_bit(claim.position, claim.size, crc, claim.crc)
        if flipped is not None or len(checked.findings) == before:
            # One bit that explains it all replaces the other findings of the slice.
            checked.findings[before:] = [flipped or finding]
    if len(checked.findings) > before:
        return None
    checked.findings += disagreements(claim, totals, 0, file=file.path)
    return CheckCounts(slices=1, batches=int(totals.batches[0]), records=int(totals.records[0]), nbytes=claim.size)
