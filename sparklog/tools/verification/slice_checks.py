"""Slices of a data file against what commits and footers say of them.

A `Claim` is what commit or footer say of one slice. A `Window` is a part of a file in memory: whole batches of some
slices. `Totals` is what was counted in the batches of each slice; `disagreements` compares that with the claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import check_headers, crc_failures, crc_message, scan_headers
from sparklog.format.record_batch import CRC_START, NO_PRODUCER_ID, BatchHeaders, Place
from sparklog.log.journal.arrow_numpy import valid_rows
from sparklog.log.read.fetch import SPAN_BYTES
from sparklog.log.state.slices import SliceFlag
from sparklog.maintenance.work_items import Progress
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import CHECKSUM, CONTENT, Counts, Finding
from sparklog.tools.verification.index_files import Batches

Int64s = npt.NDArray[np.int64]

DECODED_AT_ONCE = 1 << 20
"""Stored bytes: whatever so much is decompressed to, decoding has room for it."""
NONE = 2**63 - 1
_FLAGS = (SliceFlag.HAS_NULL_KEYS, SliceFlag.KAFKA_PRODUCERS, SliceFlag.LOG_APPEND_TIME)


@dataclass(frozen=True, slots=True)
class Claim:
    """One slice as commit or footer describe it; fields as in `sparklog.log.state.slice_table`.

    `position` and `size` in its file. `named`: a version that may be read names it; else only the file's footer does.
    """

    partition: int
    position: int
    size: int
    base: int
    end: int
    shift: int
    records: int
    min_ts: int
    max_ts: int
    crc: int
    flags: int
    append_time: int
    named: bool = True


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file as versions name it: its key, whole size, its footer's length (0: a sealed segment), its slices.

    `index_crc`: of a sealed segment, `sparklog.format.checksums`.
    """

    key: str
    size: int
    footer_length: int
    claims: tuple[Claim, ...]
    index_crc: int = 0

    @property
    def sealed(self) -> bool:
        return self.footer_length == 0


@dataclass(slots=True)
class Checked:
    """Outcome of the check of one file; `gone`: it, or a file beside it, does not exist."""

    file: DataFile
    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    gone: str | None = None


class CutOff(Exception):  # noqa: N818
    """A file is shorter than commits say; `size`: its size."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


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
        """Nothing counted yet."""
        return cls(*(np.full(n, value, np.int64) for value in (0, 0, -1, NONE, -1, 0)))

    def add(self, other: Totals) -> None:
        """Take in the next window of the same slices."""
        self.batches += other.batches
        self.records += other.records
        self.next_offset = np.maximum(self.next_offset, other.next_offset)
        self.min_ts = np.minimum(self.min_ts, other.min_ts)
        self.max_ts = np.maximum(self.max_ts, other.max_ts)
        self.flags |= other.flags


@dataclass(frozen=True, slots=True)
class Window:
    """Whole batches of some slices of a file, whose first byte is byte `position` of the file.

    `row_of`: for each batch the row in `claims` of its slice, not falling.
    """

    file: DataFile
    claims: Sequence[Claim]
    data: memoryview
    headers: BatchHeaders
    row_of: Int64s
    position: int

    @classmethod
    def of_one(cls, file: DataFile, claim: Claim, data: memoryview, headers: BatchHeaders, position: int) -> Window:
        """A window of one slice."""
        return cls(file, [claim], data, headers, np.zeros(len(headers), np.int64), position)

    def _of_batches(self, name: str) -> Int64s:
        """Return a claim's field for each batch."""
        return np.array([getattr(claim, name) for claim in self.claims], np.int64)[self.row_of]

    def wrong_batches(self, low: int | None = None) -> list[Finding]:
        """Find batches whose checksum, header or offsets are wrong; `low`: the least offset, if not the slice's."""
        headers, shift = self.headers, self._of_batches("shift")
        least, most = self._of_batches("base"), self._of_batches("end")
        base, after = headers.base_offset + shift, headers.next_offset + shift
        if low is not None:
            least[:] = low
        least[1:] = np.where(self.row_of[1:] == self.row_of[:-1], np.maximum(least[1:], after[:-1]), least[1:])
        findings = [self._wrong_crc(row, int(shift[row])) for row in crc_failures(self.data, headers).tolist()]
        try:
            check_headers(headers, Place(self.file.key, self.position), self.data.nbytes)
        except Corrupt as error:
            findings.append(Finding.of(CONTENT, error, self.file.key))
        for row in np.flatnonzero((base < least) | (after > most) | (after <= base)).tolist():
            message = (
                f"expected a batch within offsets {int(least[row])} to {int(most[row]) - 1}, found one of "
                f"{int(base[row])} to {int(after[row]) - 1}"
            )
            place = self.position + int(headers.position[row])
            findings.append(Finding(CONTENT, self.file.key, message, position=place, offset=int(least[row])))
        # Messages of formats v0 and v1 may lie in sealed segments alone.
        for row in () if self.file.sealed else np.flatnonzero(headers.is_legacy).tolist():
            message = "expected record batches of magic 2, found an old message"
            place = self.position + int(headers.position[row])
            findings.append(Finding(CONTENT, self.file.key, message, position=place))
        return findings

    def _wrong_crc(self, row: int, shift: int) -> Finding:
        headers = self.headers
        start, size = int(headers.position[row]), int(headers.size[row])
        offset = int(headers.base_offset[row]) + shift
        message, place = crc_message(headers, row), self.position + start
        finding = Finding(CHECKSUM, self.file.key, message, position=place, offset=offset)
        if headers.magic is not None and headers.is_legacy[row]:
            return finding
        body = self.data[start + CRC_START : start + size]
        flipped = finding.at_flipped_bit(place + CRC_START, len(body), crc32c(body), int(headers.crc[row]))
        return flipped or finding

    def totals(self) -> Totals:
        """Decode the batches and count what they hold. `Corrupt` for records that cannot be decoded."""
        headers, rows = self.headers, self.row_of
        totals = Totals.empty(len(self.claims))
        if not len(headers):
            return totals
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
        return totals

    def _add_records(self, totals: Totals, batches: slice, holds: npt.NDArray[np.bool_]) -> None:
        from sparklog.format.decode import decode

        records = decode(
            self.data,
            self.headers[batches],
            columns=("offset", "timestamp", "key"),
            select=holds,
            check_crc=False,
            file=self.file.key,
            file_position=self.position,
        )
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

    def count(self, checked: Checked) -> Counts:
        """Decode the window and compare what it holds with the claims; findings go into `checked`."""
        try:
            totals = self.totals()
        except Corrupt as error:
            checked.findings.append(Finding.of(CONTENT, error, self.file.key))
            return Counts(slices=len(self.claims), nbytes=len(self.data))
        for row, claim in enumerate(self.claims):
            checked.findings += disagreements(claim, totals, row, file=self.file.key)
        return Counts(
            slices=len(self.claims),
            batches=int(totals.batches.sum()),
            records=int(totals.records.sum()),
            nbytes=len(self.data),
        )


def _decoded_at_once(size: Int64s) -> Iterator[slice]:
    """Divide batches into runs that are decoded at once."""
    ends = np.cumsum(size)
    start = 0
    while start < len(size):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + DECODED_AT_ONCE, "right")), start + 1)
        yield slice(start, stop)
        start = stop


def disagreements(claim: Claim, totals: Totals, row: int, *, file: str) -> list[Finding]:
    """Find where what was counted in a slice is not what its claim says."""
    flags = int(totals.flags[row])
    least, greatest = int(totals.min_ts[row]), int(totals.max_ts[row])
    wrong = []
    if int(totals.records[row]) != claim.records:
        wrong.append(f"{claim.records} records, found {int(totals.records[row])}")
    if int(totals.next_offset[row]) != claim.end:
        wrong.append(f"offsets up to {claim.end - 1}, found the last at {int(totals.next_offset[row]) - 1}")
    wrong += [
        f"no batches for which flag {flag.name} stands, found some" for flag in _FLAGS if flags & flag & ~claim.flags
    ]
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


def read(store: Store, key: str, start: int, length: int) -> bytes:
    """Read `length` bytes of an object from byte `start` on. `CutOff` if it ends before that."""
    data = store.get(key, start, length)
    if len(data) != length:
        data = store.get(key, start, length)
    if len(data) != length:
        raise CutOff(start + len(data))
    return data


def unframed(file: DataFile, claim: Claim, headers: BatchHeaders, position: int) -> Finding:
    """No whole batch follows the last one of `headers`, in a window that begins at byte `position`."""
    following = int(headers.next_offset[-1]) + claim.shift if len(headers) else claim.base
    message = f"expected whole record batches: {headers.reason}"
    return Finding(CONTENT, file.key, message, position=position + headers.end, offset=following)


def walk(
    store: Store, file: DataFile, claim: Claim, batches: Batches, checked: Checked, progress: Progress
) -> Counts | None:
    """Check a slice in windows of whole batches, which are collected in `batches`. None if something is wrong."""
    totals, crc, at, following, sound = Totals.empty(1), 0, 0, claim.base, True
    before = len(checked.findings)
    while at < claim.size:
        place = claim.position + at
        data = memoryview(read(store, file.key, place, min(SPAN_BYTES, claim.size - at)))
        headers = scan_headers(data, whole=False)
        if not headers.end and headers.stop == "partial" and len(data) < claim.size - at:
            size = int.from_bytes(data[8:12], "big") + 12
            data = memoryview(read(store, file.key, place, min(size, claim.size - at)))
            headers = scan_headers(data, whole=False)
        last = at + len(data) == claim.size
        if not headers.end or (headers.stop != "end" and (last or headers.stop == "corrupt")):
            sound = False
            checked.findings.append(unframed(file, claim, headers, place))
            if len(headers):
                checked.findings += Window.of_one(file, claim, data, headers, place).wrong_batches(following)
            # The rest has no frame any more: only the checksum tells more.
            crc = _rest_crc(store, file, claim, at, crc)
            break
        data = data[: headers.end]
        window = Window.of_one(file, claim, data, headers, place)
        wrong = window.wrong_batches(following)
        checked.findings += wrong
        if not wrong:
            try:
                totals.add(window.totals())
            except Corrupt as error:
                checked.findings.append(Finding.of(CONTENT, error, file.key))
            batches.add(data, headers, at)
            following = int(headers.next_offset[-1]) + claim.shift
        crc = crc32c(data, crc)
        at += len(data)
        progress(int(headers.count.sum()), len(data))
    check_crc(file, claim, crc, checked, before)
    if not sound or len(checked.findings) > before:
        return None
    checked.findings += disagreements(claim, totals, 0, file=file.key)
    return Counts(slices=1, batches=int(totals.batches[0]), records=int(totals.records[0]), nbytes=claim.size)


def _rest_crc(store: Store, file: DataFile, claim: Claim, at: int, crc: int) -> int:
    while at < claim.size:
        data = read(store, file.key, claim.position + at, min(SPAN_BYTES, claim.size - at))
        crc = crc32c(data, crc)
        at += len(data)
    return crc


def check_crc(file: DataFile, claim: Claim, crc: int, checked: Checked, before: int) -> None:
    """Compare the CRC-32C of a slice's bytes with the claim.

    Where one flipped bit explains it, that replaces the findings of the slice, which begin at index `before`.
    """
    if crc == claim.crc:
        return
    message = "the slice's CRC-32C does not match its bytes"
    finding = Finding(CHECKSUM, file.key, message, position=claim.position, offset=claim.base)
    flipped = finding.at_flipped_bit(claim.position, claim.size, crc, claim.crc)
    if flipped is not None:
        checked.findings[before:] = [flipped]
    elif len(checked.findings) == before:
        checked.findings.append(finding)
