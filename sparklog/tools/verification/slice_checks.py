"""Slices of a data file against what commits and footers say of them.

A `SliceClaim` is what commit or footer say of a slice. A `SliceWindow` is whole batches of some slices in memory.
`Totals` is what was counted in the batches of each slice; `disagreements` compares that with the claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.arrow_numpy import valid_rows
from sparklog.format.batch_scan import check_headers, crc_failures, crc_message, scan_headers
from sparklog.format.crc32c import crc32c
from sparklog.format.key_filter import KeyFilter
from sparklog.format.record_batch import CRC_START, NO_PRODUCER_ID
from sparklog.format.slice_columns import SliceRow
from sparklog.format.window import Window
from sparklog.log.state.slices import SliceFlag
from sparklog.maintenance.work_items import Progress
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import CHECKSUM, CONTENT, CheckCounts, Finding
from sparklog.tools.verification.index_files import CollectedBatches

Int64s = npt.NDArray[np.int64]

# Stored bytes: whatever so much is decompressed to, decoding has room for it.
DECODED_AT_ONCE = 1 << 20
NONE = 2**63 - 1
_FLAGS = (SliceFlag.HAS_NULL_KEYS, SliceFlag.KAFKA_PRODUCERS, SliceFlag.LOG_APPEND_TIME)


@dataclass(slots=True, unsafe_hash=True)
class SliceClaim(SliceRow):
    """One slice as commit or footer describe it."""

    partition: int


CLAIMED = tuple(field.name for field in fields(SliceClaim))


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A data file as versions name it."""

    key: str
    size: int
    footer_length: int  # 0: a sealed segment
    claims: tuple[SliceClaim, ...]
    index_crc: int = 0  # of a sealed segment, `sparklog.format.checksums`

    @property
    def filtered(self) -> bool:
        """True if filters of keys were written beside it."""
        return any(claim.flags & SliceFlag.KEY_FILTER for claim in self.claims)

    @property
    def sealed(self) -> bool:
        return self.footer_length == 0

    def index_key(self, suffix: str) -> str:
        """Return the key of an index beside a sealed segment."""
        return self.key.removesuffix("log") + suffix


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
        least, most = self._of_batches("base"), self._of_batches("end")
        base, after = headers.base_offset + shift, headers.next_offset + shift
        if low is not None:
            least[:] = low
        least[1:] = np.where(self.row_of[1:] == self.row_of[:-1], np.maximum(least[1:], after[:-1]), least[1:])
        findings = [self._wrong_crc(row, int(shift[row])) for row in crc_failures(self.data, headers).tolist()]
        try:
            check_headers(headers, self.place, self.data.nbytes)
        except Corrupt as error:
            findings.append(Finding.of(CONTENT, error, self.file))
        places = (headers.position + self.start).tolist()
        for row in np.flatnonzero((base < least) | (after > most) | (after <= base)).tolist():
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


def walk(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches) -> CheckCounts | None:
    """Check a slice in windows of whole batches, which are collected in `batches`. None if something is wrong."""
    totals, crc, start, following = Totals.empty(1), 0, 0, claim.base
    file, before, span = checked.file, len(checked.findings), checked.store.limits.span_bytes
    while start < claim.size:
        position = claim.position + start
        data = memoryview(checked.read(position, min(span, claim.size - start)))
        headers = scan_headers(data, whole=False)
        if not headers.end and headers.stop == "partial" and len(data) < claim.size - start:
            size = int.from_bytes(data[8:12], "big") + 12
            data = memoryview(checked.read(position, min(size, claim.size - start)))
            headers = scan_headers(data, whole=False)
        last = start + len(data) == claim.size
        row_of = np.zeros(len(headers), np.int64)
        if not headers.end or (headers.stop != "end" and (last or headers.stop == "corrupt")):
            message = f"expected whole record batches: {headers.reason}"
            after = int(headers.next_offset[-1]) + claim.shift if len(headers) else claim.base
            checked.findings.append(Finding(CONTENT, file.key, message, position=position + headers.end, offset=after))
            if len(headers):
                checked.findings += SliceWindow(
                    data, position, headers, file.key, [claim], row_of, file.sealed
                ).wrong_batches(following)
            # The rest has no frame any more: only the checksum tells more.
            for rest in range(start, claim.size, span):
                crc = crc32c(checked.read(claim.position + rest, min(span, claim.size - rest)), crc)
            break
        data = data[: headers.end]
        window = SliceWindow(data, position, headers, file.key, [claim], row_of, file.sealed)
        wrong = window.wrong_batches(following)
        checked.findings += wrong
        if not wrong:
            try:
                window.add_to(totals)
            except Corrupt as error:
                checked.findings.append(Finding.of(CONTENT, error, file.key))
            batches.add(data, headers, start)
            following = int(headers.next_offset[-1]) + claim.shift
        crc = crc32c(data, crc)
        start += len(data)
        checked.progress(int(headers.count.sum()), len(data))
    if crc != claim.crc:
        message = "the slice's CRC-32C does not match its bytes"
        finding = Finding(CHECKSUM, file.key, message, position=claim.position, offset=claim.base)
        flipped = finding.at_flipped_bit(claim.position, claim.size, crc, claim.crc)
        if flipped is not None or len(checked.findings) == before:
            # One bit that explains it all replaces the other findings of the slice.
            checked.findings[before:] = [flipped or finding]
    if len(checked.findings) > before:
        return None
    checked.findings += disagreements(claim, totals, 0, file=file.key)
    return CheckCounts(slices=1, batches=int(totals.batches[0]), records=int(totals.records[0]), nbytes=claim.size)
