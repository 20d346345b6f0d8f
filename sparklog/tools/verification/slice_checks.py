"""Check slices of a data file against commits and footers, and Kafka's index files against the batches.

A `SliceClaim` describes a slice in a commit or footer. A `SliceWindow` contains complete batches of one or more slices
in memory. `Totals` contains counts per slice, which `mismatches` compares with the claim.

Index files have no checksums. However, each entry of an `.index` file is the pair (last offset, position) of a batch,
and each entry of a `.timeindex` file is a pair (timestamp, offset). If one of the two values is corrupt, no batch
matches the entry. The number of entries cannot be checked, because it depends on the value of `index.interval.bytes`
when the index was written. A `.txnindex` file is compared with the ABORT markers. If the first batches of a transaction
were cleaned, its first offset cannot be checked, because it is not stored anywhere else.
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
from sparklog.log.topic.inventory import ReferencedFile, SliceClaim
from sparklog.maintenance.work_items import Progress
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import CHECKSUM, CONTENT, INDEX, CheckCounts, Finding

REBUILD = "run sparklog repair, which rebuilds the file from the batches of the log"
"""The remedy for an index file. Brokers do not rebuild index files: after a clean shutdown, Kafka treats a missing
`.txnindex` as if no transaction was aborted, and a missing `.timeindex` as an empty index.
"""


class BatchColumns(NamedTuple):
    """Batches as columns: position in the file, base offset, last offset, maximum timestamp, and True for formats v0
    and v1.
    """

    position: Int64Array
    base: Int64Array
    last: Int64Array
    stamp: Int64Array
    old: BoolArray


_NONE = np.empty(0, np.int64)
_NO_BATCHES = BatchColumns(_NONE, _NONE, _NONE, _NONE, _NONE.astype(np.bool_))


@dataclass(slots=True)
class CollectedBatches:
    """The batches of a segment, collected in windows.

    Attributes:
        aborts: the producer id of each ABORT marker by offset.
        filter: the key filter to check, or None.
        keys: the keys of the batches, if there is a filter to check.
    """

    windows: list[BatchColumns] = field(default_factory=lambda: [_NO_BATCHES])
    aborts: dict[int, int] = field(default_factory=dict)
    filter: KeyFilter | None = None
    keys: FilterBuilder | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.filter is not None:
            self.keys = FilterBuilder(self.filter)

    def add(self, data: BytesLike, headers: BatchHeaders, position: int) -> None:
        """Add the batches of a window that starts at byte `position`."""
        offsets = headers.base_offset, headers.last_offset
        columns = BatchColumns(headers.position + position, *offsets, headers.max_timestamp, headers.is_legacy)
        self.windows.append(columns)
        if self.keys is not None:
            self.keys.add(data, headers)
        for row in np.flatnonzero(headers.is_control).tolist():
            control = headers[row : row + 1]
            # A control batch that cannot be read also has a wrong checksum, which is reported separately.
            with suppress(Corrupt):
                if int(control_types(data, control)[0]) == ABORT:
                    self.aborts[int(control.base_offset[0])] = int(control.producer_id[0])

    def keys_beyond_filter(self) -> bool:
        """Return True if the batches contain a key that is not in the filter, so that lookups do not find the key."""
        return self.filter is not None and self.keys is not None and not self.keys.is_contained_in(self.filter)

    def columns(self) -> BatchColumns:
        return BatchColumns(*map(np.concatenate, zip(*self.windows, strict=True)))


def check_index(
    suffix: str, data: bytes, base: int, batches: CollectedBatches, *, file: str, active: bool = False
) -> list[Finding]:
    """Check an index file of the segment that starts at offset `base`. An `active` segment may still be appended to."""
    try:
        if suffix == "index":
            return _check_offset_index(data, base, batches, file, preallocated=active)
        if suffix == "timeindex":
            return _check_time_index(data, base, batches, file, active=active)
        return _check_transaction_index(data, base, batches, file)
    except Corrupt as error:
        return [replace(Finding.of(INDEX, error, file, REBUILD), position=error.position or 0)]


def _check_end(data: bytes, used: int, preallocated: bool, file: str) -> list[Finding]:
    """Check the bytes after the entries. If a broker preallocates the file, these bytes must be zeros. Otherwise the
    file must end after the entries.
    """
    rest = np.frombuffer(data, np.uint8)[used:]
    nonzero = np.flatnonzero(rest)
    if len(nonzero):
        return [Finding(INDEX, file, "expected zeros after the last entry", REBUILD, used + int(nonzero[0]))]
    if len(rest) and not preallocated:
        message = f"expected {used} bytes, found {len(data)}; the excess bytes are zeros"
        return [Finding(INDEX, file, message, REBUILD, used)]
    return []


def _check_offset_index(
    data: bytes, base: int, batches: CollectedBatches, file: str, *, preallocated: bool
) -> list[Finding]:
    """Check the entries of an `.index` file.

    Followers, and brokers before 4.0, write one entry for several batches: the position of the first batch and the last
    offset of the last batch. These entries are valid, because readers find the same batches.
    """
    entries = OffsetIndex.parse(data, base, file=file)
    wrong = _check_end(data, len(entries) * OffsetIndex.ENTRY_BYTES, preallocated, file)
    if not len(entries):
        return wrong
    position, _, last, _, _ = batches.columns()
    if not len(position):
        return [Finding(INDEX, file, "expected no entries, because the segment has no batches", REBUILD, 0)]
    rows = np.minimum(np.searchsorted(position, entries.positions), len(position) - 1)
    ends = np.minimum(np.searchsorted(last, entries.offsets), len(last) - 1)
    valid = (position[rows] == entries.positions) & (last[ends] == entries.offsets) & (ends >= rows)
    # The batches of an entry must precede the batches of the next entry.
    after = np.append(rows[1:], len(position))
    valid &= ends < after
    for entry in np.flatnonzero(~valid).tolist():
        byte, offset = int(entries.positions[entry]), int(entries.offsets[entry])
        message = (
            f"entry {entry} has offset {offset} at byte {byte}, but no batch at this position ends with this offset"
        )
        wrong.append(Finding(INDEX, file, message, REBUILD, entry * OffsetIndex.ENTRY_BYTES, offset))
    return wrong


def _check_time_index(data: bytes, base: int, batches: CollectedBatches, file: str, *, active: bool) -> list[Finding]:
    """Check the entries of a `.timeindex` file.

    Unless the segment is active, the last entry contains the maximum timestamp of the segment. An entry refers to the
    earliest batch with the timestamp of the entry. If messages of an old format were appended together, the entry
    refers to the last of these messages.
    """
    entries = TimeIndex.parse(data, base, file=file)
    size = TimeIndex.ENTRY_BYTES
    wrong = _check_end(data, len(entries) * size, active, file)
    _, _, last, stamp, old = batches.columns()
    if not len(stamp):
        return wrong
    running = np.maximum.accumulate(stamp)
    rows = np.minimum(np.searchsorted(last, entries.offsets), len(last) - 1)
    # An entry must refer to the earliest batch that has the maximum timestamp up to this batch.
    rises = np.concatenate(([True], running[1:] > running[:-1]))
    first = rises | (old & (stamp == running))
    valid = (last[rows] == entries.offsets) & (stamp[rows] == entries.timestamps) & first[rows]
    if len(entries) == 1 and int(entries.timestamps[0]) == 0 and int(entries.offsets[0]) == base:
        # Kafka writes this entry if no record has a timestamp.
        valid |= running[-1] <= 0
    for entry in np.flatnonzero(~valid).tolist():
        timestamp, offset = int(entries.timestamps[entry]), int(entries.offsets[entry])
        message = f"entry {entry}: the first batch with timestamp {timestamp} does not end with offset {offset}"
        wrong.append(Finding(INDEX, file, message, REBUILD, entry * size, offset))
    maximum = int(entries.timestamps[-1]) if len(entries) else -1
    if not active and not wrong and maximum < int(running[-1]):
        message = f"expected the last entry to have the maximum timestamp {int(running[-1])}, found {maximum}"
        wrong.append(Finding(INDEX, file, message, REBUILD, len(entries) * size))
    return wrong


def _check_transaction_index(data: bytes, base: int, batches: CollectedBatches, file: str) -> list[Finding]:
    entries = transaction_index.parse(data, base, file=file)
    wrong = []
    columns = (entries.producer_ids, entries.first_offsets, entries.last_offsets, entries.last_stable_offsets)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for entry, (producer, first, last, stable) in enumerate(rows):
        if batches.aborts.get(last) != producer or first < 0 or not 0 <= stable <= last + 1:
            message = (
                f"entry {entry} has an ABORT of producer {producer} at offset {last}, but the log does not "
                "contain this marker"
            )
            wrong.append(Finding(INDEX, file, message, REBUILD, entry * transaction_index.ENTRY_BYTES, last))
    return wrong


Int64s = npt.NDArray[np.int64]

DECODED_BYTES = 1 << 20
"""Maximum number of stored bytes that are decoded at a time, so that the decompressed records fit into memory."""
NONE = 2**63 - 1
_FLAGS = (SliceFlag.HAS_NULL_KEYS, SliceFlag.KAFKA_PRODUCERS, SliceFlag.LOG_APPEND_TIME)


class TruncatedFile(Exception):  # noqa: N818
    """Raised if a file is shorter than its size in the commits. The argument is the actual size."""


@dataclass(slots=True)
class CheckedFile:
    """The state and the findings of the check of one file.

    Attributes:
        is_missing: True if the file, or one of its auxiliary files, does not exist.
        filters: the valid key filters by the positions of their slices.
    """

    store: Store
    file: ReferencedFile
    progress: Progress
    findings: list[Finding] = field(default_factory=list)
    counts: CheckCounts = field(default_factory=CheckCounts)
    is_missing: bool = False
    filters: dict[int, KeyFilter] = field(default_factory=dict)

    def read(self, start: int, length: int) -> bytes:
        """Read `length` bytes from byte `start`. Raises `TruncatedFile` if the file is too short in two attempts."""
        for _ in range(2):
            data = self.store.get(self.file.key, start, length)
            if len(data) == length:
                return data
        raise TruncatedFile(start + len(data))


@dataclass(slots=True)
class Totals:
    """Counts per slice as int64 arrays. Offsets are log offsets. `min_ts` is `NONE` if the records of a slice do not
    have timestamps.
    """

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
    """Batches of one or more slices of a file.

    `row_of` contains the row in `claims` for each batch, in ascending order.
    """

    claims: Sequence[SliceClaim]
    row_of: Int64s
    sealed: bool

    def _of_batches(self, name: str) -> Int64s:
        return np.array([getattr(claim, name) for claim in self.claims], np.int64)[self.row_of]

    def wrong_batches(self, low: int | None = None) -> list[Finding]:
        """Return findings for batches with a wrong checksum, header or offset.

        `low` is the first valid offset. The default is the base offset of the slice.
        """
        headers, shift = self.headers, self._of_batches("shift")
        first, end = self._of_batches("base") if low is None else low, self._of_batches("end")
        wrong, lowest = misplaced(headers, first, end, shift=shift, owner=self.row_of)
        base, after = headers.base_offset + shift, headers.next_offset + shift
        findings = [self._wrong_crc(row, int(shift[row])) for row in crc_failures(self.data, headers).tolist()]
        try:
            check_headers(headers, self.location, self.data.nbytes)
        except Corrupt as error:
            findings.append(Finding.of(CONTENT, error, self.file))
        positions = (headers.position + self.start).tolist()
        for row in np.flatnonzero(wrong).tolist():
            message = f"expected a batch within offsets {int(lowest[row])} to {int(end[row]) - 1}"
            message += f", found offsets {int(base[row])} to {int(after[row]) - 1}"
            findings.append(Finding(CONTENT, self.file, message, position=positions[row], offset=int(lowest[row])))
        # Only sealed segments may contain messages of formats v0 and v1.
        for row in () if self.sealed else np.flatnonzero(headers.is_legacy).tolist():
            message = "expected record batches of magic 2, found a message of an older format"
            findings.append(Finding(CONTENT, self.file, message, position=positions[row]))
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
        """Decode the batches and add their counts to `totals`. Raises `Corrupt` if records cannot be decoded."""
        headers, rows = self.headers, self.row_of
        has_records = ~headers.is_control & (headers.count > 0)
        totals.batches += np.bincount(rows, minlength=len(self.claims))
        np.add.at(totals.records, rows, np.where(headers.is_control, 0, headers.count))
        np.maximum.at(totals.next_offset, rows, headers.next_offset + self._of_batches("shift"))
        np.maximum.at(totals.max_ts, rows, headers.max_timestamp)
        foreign = headers.is_control | (headers.producer_id != NO_PRODUCER_ID)
        flags = np.where(headers.is_log_append_time, int(SliceFlag.LOG_APPEND_TIME), 0)
        np.bitwise_or.at(totals.flags, rows, flags | np.where(foreign, int(SliceFlag.KAFKA_PRODUCERS), 0))
        for batches in _decode_chunks(headers.size):
            self._add_records(totals, batches, has_records[batches])

    def _add_records(self, totals: Totals, batches: slice, has_records: npt.NDArray[np.bool_]) -> None:
        records = self.select(batches).decode(("offset", "timestamp", "key"), has_records)
        if not len(records):
            return
        rows = np.repeat(self.row_of[batches], records.batch_rows)
        timed = np.where(records.timestamp >= 0, records.timestamp, NONE)
        starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
        totals.min_ts[rows[starts]] = np.minimum(totals.min_ts[rows[starts]], np.minimum.reduceat(timed, starts))
        if records.key is not None and records.key.null_count:
            keyless = ~valid_rows(records.key)
            totals.flags[np.unique(rows[keyless])] |= int(SliceFlag.HAS_NULL_KEYS)

    def count(self, checked: CheckedFile) -> CheckCounts:
        """Decode the window, compare it with the claims and add findings to `checked`. Return the window's counts."""
        totals = Totals.empty(len(self.claims))
        try:
            self.add_to(totals)
        except Corrupt as error:
            checked.findings.append(Finding.of(CONTENT, error, self.file))
            return CheckCounts(slices=len(self.claims), nbytes=len(self.data))
        for row, claim in enumerate(self.claims):
            checked.findings += mismatches(claim, totals, row, file=self.file)
        batches, records = int(totals.batches.sum()), int(totals.records.sum())
        return CheckCounts(slices=len(self.claims), batches=batches, records=records, nbytes=len(self.data))


def _decode_chunks(size: Int64s) -> Iterator[slice]:
    """Yield ranges of batches with about `DECODED_BYTES` stored bytes each."""
    ends = np.cumsum(size)
    start = before = 0
    while start < len(size):
        stop = max(int(np.searchsorted(ends, before + DECODED_BYTES, "right")), start + 1)
        yield slice(start, stop)
        start, before = stop, int(ends[stop - 1])


def mismatches(claim: SliceClaim, totals: Totals, row: int, *, file: str) -> list[Finding]:
    """Return a finding if the counts of a slice differ from its claim."""
    flags = int(totals.flags[row])
    min_ts, max_ts = int(totals.min_ts[row]), int(totals.max_ts[row])
    wrong = []
    if int(totals.records[row]) != claim.records:
        wrong.append(f"{claim.records} records, found {int(totals.records[row])} records")
    if int(totals.next_offset[row]) != claim.end:
        wrong.append(f"last offset {claim.end - 1}, found {int(totals.next_offset[row]) - 1}")
    unexpected = [flag.name for flag in _FLAGS if flags & flag & ~claim.flags]
    wrong += [f"no batches with flag {name}, found batches with this flag" for name in unexpected]
    if claim.append_time < 0:
        if max_ts >= 0 and max_ts != claim.max_ts:
            wrong.append(f"a maximum timestamp of {claim.max_ts}, found {max_ts}")
        if min_ts != NONE and not 0 <= claim.min_ts <= min_ts:
            wrong.append(f"no timestamp below {claim.min_ts}, found {min_ts}")
    elif not flags & SliceFlag.LOG_APPEND_TIME:
        wrong.append("batches with log append time, found batches with create time")
    if not wrong:
        return []
    message = f"slice of partition {claim.partition}: expected {'; '.join(wrong)}"
    return [Finding(CONTENT, file, message, position=claim.position, offset=claim.base)]


class _ClaimedSlice(BatchFile):
    """The bytes of one slice of a checked file."""

    def __init__(self, checked: CheckedFile, claim: SliceClaim) -> None:
        self.path, self.size = checked.file.key, claim.position + claim.size
        self._checked = checked

    def read(self, position: int, length: int) -> memoryview:
        return memoryview(self._checked.read(position, min(length, self.size - position)))

    def window(self, position: int) -> memoryview:
        return self.read(position, self._checked.store.limits.span_bytes)


def walk(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches) -> CheckCounts | None:
    """Check a slice window by window and collect its batches in `batches`. Return None if there are findings."""
    totals, crc, following = Totals.empty(1), 0, claim.base
    file, before, data_file = _ClaimedSlice(checked, claim), len(checked.findings), checked.file
    windows = BatchWalk(file, claim.position)
    for found in windows:
        trimmed = found.trimmed()
        headers, row_of = trimmed.headers, np.zeros(len(trimmed.headers), np.int64)
        window = SliceWindow(trimmed.data, trimmed.start, headers, file.path, [claim], row_of, data_file.sealed)
        wrong = window.wrong_batches(following)
        checked.findings += wrong
        if not wrong:
            try:
                window.add_to(totals)
            except Corrupt as error:
                checked.findings.append(Finding.of(CONTENT, error, file.path))
            batches.add(trimmed.data, headers, trimmed.start - claim.position)
            following = int(headers.next_offset[-1]) + claim.shift
        crc = crc32c(trimmed.data, crc)
        checked.progress(int(headers.count.sum()), len(trimmed.data))
    if windows.stop != "end":
        message = f"expected complete record batches: {windows.reason}"
        checked.findings.append(Finding(CONTENT, file.path, message, position=windows.end, offset=following))
        # The boundaries of the remaining batches are unknown, so check only the checksum of the slice.
        span = checked.store.limits.span_bytes
        for position in range(windows.end, file.size, span):
            crc = crc32c(file.read(position, span), crc)
    if crc != claim.crc:
        message = "the slice's CRC-32C does not match its bytes"
        finding = Finding(CHECKSUM, file.path, message, position=claim.position, offset=claim.base)
        flipped = finding.at_flipped_bit(claim.position, claim.size, crc, claim.crc)
        if flipped is not None or len(checked.findings) == before:
            # A single flipped bit explains all findings about the slice, so report only this bit.
            checked.findings[before:] = [flipped or finding]
    if len(checked.findings) > before:
        return None
    checked.findings += mismatches(claim, totals, 0, file=file.path)
    return CheckCounts(slices=1, batches=int(totals.batches[0]), records=int(totals.records[0]), nbytes=claim.size)
