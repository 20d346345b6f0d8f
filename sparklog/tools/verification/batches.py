"""What record batches hold, window by window, against what is said of the slices they are in.

A `Totals` has one row for each slice of a window, or the one row of a slice that is read in many windows: what was
counted in its batches. `disagreements` compares that with a `Claim`, what commit or footer say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.batch_checks import Place, check_headers, crc_message
from sparklog.format.batch_scan import crc_failures
from sparklog.format.record_batch import NO_PRODUCER_ID, BatchHeaders, BytesLike
from sparklog.log.journal.arrow_numpy import valid_rows
from sparklog.log.state.slices import SliceFlag
from sparklog.tools.verification.findings import CHECKSUM, CONTENT, Finding

Int64s = npt.NDArray[np.int64]

_FLAGS = (SliceFlag.HAS_NULL_KEYS, SliceFlag.KAFKA_PRODUCERS, SliceFlag.LOG_APPEND_TIME)
DECODED_AT_ONCE = 1 << 20
"""Stored bytes: whatever so much is decompressed to, decoding has room for it."""
NONE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """One slice as it is said to be; fields as in `sparklog.log.state.slice_table`, `position` and `size` in its file.

    `named`: a version that may be read names it; else only the file's footer does.
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


@dataclass(slots=True)
class Totals:
    """Per slice, int64[n] each: offsets as in the log; `min_ts` is `NONE` where no record has a time; `flags` found."""

    batches: Int64s
    records: Int64s
    next_offset: Int64s
    min_ts: Int64s
    max_ts: Int64s
    flags: Int64s

    @classmethod
    def empty(cls, n: int) -> Totals:
        """Nothing counted yet."""

        def full(value: int) -> Int64s:
            return np.full(n, value, np.int64)

        return cls(full(0), full(0), full(-1), full(NONE), full(-1), full(0))

    def add(self, other: Totals) -> None:
        """Take in the next window of the same slices."""
        self.batches += other.batches
        self.records += other.records
        self.next_offset = np.maximum(self.next_offset, other.next_offset)
        self.min_ts = np.minimum(self.min_ts, other.min_ts)
        self.max_ts = np.maximum(self.max_ts, other.max_ts)
        self.flags |= other.flags


def count_batches(
    data: BytesLike, headers: BatchHeaders, row_of: Int64s, n: int, shift: Int64s, *, file: str, position: int
) -> Totals:
    """Decode the batches of `data`, whose first byte is byte `position` of `file`, and count what they hold.

    `row_of`: for each batch the slice (of `n`) it lies in, not falling; `shift`: of each slice. `Corrupt` for records
    that cannot be decoded.
    """
    found = Totals.empty(n)
    if not len(headers):
        return found
    holds = ~headers.is_control & (headers.count > 0)
    found.batches += np.bincount(row_of, minlength=n)
    np.add.at(found.records, row_of, np.where(headers.is_control, 0, headers.count))
    np.maximum.at(found.next_offset, row_of, headers.next_offset + shift[row_of])
    np.maximum.at(found.max_ts, row_of, headers.max_timestamp)
    seen = np.where(headers.is_log_append_time, int(SliceFlag.LOG_APPEND_TIME), 0)
    foreign = headers.is_control | (headers.producer_id != NO_PRODUCER_ID)
    seen = seen | np.where(foreign, int(SliceFlag.KAFKA_PRODUCERS), 0)
    np.bitwise_or.at(found.flags, row_of, seen)
    for rows in _groups(headers.size):
        _add_records(found, data, headers[rows], row_of[rows], holds[rows], file, position)
    return found


def _groups(size: Int64s) -> Iterator[slice]:
    """Runs of batches that are decoded at once."""
    ends = np.cumsum(size)
    start = 0
    while start < len(size):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + DECODED_AT_ONCE, "right")), start + 1)
        yield slice(start, stop)
        start = stop


def _add_records(
    found: Totals,
    data: BytesLike,
    headers: BatchHeaders,
    row_of: Int64s,
    holds: npt.NDArray[np.bool_],
    file: str,
    position: int,
) -> None:
    from sparklog.format.decode import decode

    columns = ("offset", "timestamp", "key")
    records = decode(data, headers, columns=columns, select=holds, check_crc=False, file=file, file_position=position)
    if not len(records):
        return
    rows = np.repeat(row_of, records.batch_rows)
    timed = np.where(records.timestamp >= 0, records.timestamp, NONE)
    starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    least = np.minimum.reduceat(timed, starts)
    found.min_ts[rows[starts]] = np.minimum(found.min_ts[rows[starts]], least)
    if records.key is not None and records.key.null_count:
        keyless = ~valid_rows(records.key)
        found.flags[np.unique(rows[keyless])] |= int(SliceFlag.HAS_NULL_KEYS)


def wrong_batches(
    data: BytesLike, headers: BatchHeaders, least: Int64s, most: Int64s, shift: Int64s, *, file: str, position: int
) -> list[Finding]:
    """Batches whose checksum, header or offsets are wrong. int64[len(headers)] each: no batch lies below `least` or
    reaches beyond `most`, offsets of the log.
    """
    found = [
        _wrong_crc(data, headers, row, int(shift[row]), file, position) for row in crc_failures(data, headers).tolist()
    ]
    try:
        check_headers(headers, Place(file, position), memoryview(data).nbytes)
    except Corrupt as error:
        found.append(Finding.of(CONTENT, error, file))
    base, after = headers.base_offset + shift, headers.next_offset + shift
    outside = np.flatnonzero((base < least) | (after > most) | (after <= base))
    found += [
        Finding(
            CONTENT,
            file,
            f"expected a batch within offsets {int(least[row])} to {int(most[row]) - 1}, found one of "
            f"{int(base[row])} to {int(after[row]) - 1}",
            position=position + int(headers.position[row]),
            offset=int(least[row]),
        )
        for row in outside.tolist()
    ]
    return found


def _wrong_crc(data: BytesLike, headers: BatchHeaders, row: int, shift: int, file: str, position: int) -> Finding:
    from crc32c import crc32c

    from sparklog.format.checksums import flipped_bit
    from sparklog.format.record_batch import CRC_START

    start, size = int(headers.position[row]), int(headers.size[row])
    at = None
    if headers.magic is None or not headers.is_legacy[row]:
        body = memoryview(data)[start + CRC_START : start + size]
        at = flipped_bit(len(body), crc32c(body), int(headers.crc[row]))
    place = start if at is None else start + CRC_START + at[0]
    return Finding(
        CHECKSUM,
        file,
        crc_message(headers, row),
        position=position + place,
        offset=int(headers.base_offset[row]) + shift,
        bit=None if at is None else at[1],
    )


def disagreements(claim: Claim, totals: Totals, row: int, *, file: str) -> list[Finding]:
    """Where what was counted in a slice is not what is said of it."""
    flags = int(totals.flags[row])
    least, greatest = int(totals.min_ts[row]), int(totals.max_ts[row])
    said = []
    if int(totals.records[row]) != claim.records:
        said.append(f"{claim.records} records, found {int(totals.records[row])}")
    if int(totals.next_offset[row]) != claim.end:
        said.append(f"offsets up to {claim.end - 1}, found the last at {int(totals.next_offset[row]) - 1}")
    said += [
        f"no batches for which flag {flag.name} stands, found some" for flag in _FLAGS if flags & flag & ~claim.flags
    ]
    if claim.append_time < 0:
        if greatest >= 0 and greatest != claim.max_ts:
            said.append(f"a greatest timestamp of {claim.max_ts}, found {greatest}")
        if least != NONE and not 0 <= claim.min_ts <= least:
            said.append(f"no timestamp below {claim.min_ts}, found {least}")
    elif not flags & SliceFlag.LOG_APPEND_TIME:
        said.append("batches with the append time, found others")
    if not said:
        return []
    message = f"of the slice of partition {claim.partition} expected {'; '.join(said)}"
    return [Finding(CONTENT, file, message, position=claim.position, offset=claim.base)]
