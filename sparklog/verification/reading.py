"""What checking a data file is made of: exact reads, single batches, and a slice that is walked window by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import BatchHeaders
from sparklog.log.fetch import SPAN_BYTES
from sparklog.storage.store import Store
from sparklog.verification.batches import Claim, Totals, count_batches, disagreements, wrong_batches
from sparklog.verification.findings import CHECKSUM, CONTENT, Counts, Finding
from sparklog.verification.index_files import Batches

__all__ = [
    "RANGE",
    "Checked",
    "CutOff",
    "DataFile",
    "Progress",
    "check_crc",
    "count",
    "disorder",
    "read",
    "unframed",
    "walk",
]

Int64s = npt.NDArray[np.int64]
RANGE = ("shift", "base", "end")
"""Of a claim: what its batches' offsets are held against."""
CRC_MESSAGE = "the slice's CRC-32C does not match its bytes"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file as versions name it: its key, whole size, its footer's length (0: a sealed segment), its slices.

    `index_crc`: of a sealed segment, `sparklog.format.index_crc`.
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
    """What became of one file; `gone`: it, or a file beside it, is not there."""

    file: DataFile
    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    gone: str | None = None


class CutOff(Exception):  # noqa: N818
    """A file is shorter than is said of it."""

    def __init__(self, found: int) -> None:
        super().__init__(found)
        self.found = found


def read(store: Store, key: str, start: int, length: int) -> bytes:
    """Exactly these bytes."""
    data = store.get(key, start, length)
    if len(data) != length:
        data = store.get(key, start, length)
    if len(data) != length:
        raise CutOff(start + len(data))
    return data


def disorder(
    file: DataFile,
    data: memoryview,
    headers: BatchHeaders,
    row_of: Int64s,
    shift: Int64s,
    base: Int64s,
    end: Int64s,
    position: int,
    legacy: bool,
) -> list[Finding]:
    """What is wrong with single batches; int64 arrays, `row_of` for each batch, the others for each slice."""
    least, after = base[row_of], headers.next_offset + shift[row_of]
    least[1:] = np.where(row_of[1:] == row_of[:-1], np.maximum(least[1:], after[:-1]), least[1:])
    found = wrong_batches(data, headers, least, end[row_of], shift[row_of], file=file.key, position=position)
    for row in () if legacy else np.flatnonzero(headers.is_legacy).tolist():
        message = "expected record batches of magic 2, found an old message"
        found.append(Finding(CONTENT, file.key, message, position=position + int(headers.position[row])))
    return found


def count(
    file: DataFile,
    run: Sequence[Claim],
    data: memoryview,
    headers: BatchHeaders,
    row_of: Int64s,
    shift: Int64s,
    position: int,
    checked: Checked,
) -> Counts:
    """Decode, and compare with what is said of each slice. Of what only the footer names it is no loss to anybody."""
    try:
        totals = count_batches(data, headers, row_of, len(run), shift, file=file.key, position=position)
    except Corrupt as error:
        checked.findings.append(Finding.of(CONTENT, error, file.key))
        return Counts(slices=len(run), nbytes=len(data))
    for row, claim in enumerate(run):
        checked.findings += disagreements(claim, totals, row, file=file.key)
    return Counts(
        slices=len(run), batches=int(totals.batches.sum()), records=int(totals.records.sum()), nbytes=len(data)
    )


def unframed(file: DataFile, claim: Claim, headers: BatchHeaders, position: int) -> Finding:
    following = int(headers.next_offset[-1]) + claim.shift if len(headers) else claim.base
    message = f"expected whole record batches: {headers.reason}"
    return Finding(CONTENT, file.key, message, position=position + headers.end, offset=following)


def check_crc(file: DataFile, claim: Claim, data: memoryview, checked: Checked, before: int) -> None:
    """The slice's own checksum: where a single bit has flipped it names the place, better than anything above."""
    from crc32c import crc32c

    from sparklog.format.flipped_bit import flipped_bit

    found = crc32c(data)
    if found == claim.crc:
        return
    at = flipped_bit(len(data), found, claim.crc)
    if at is not None:
        del checked.findings[before:]
        checked.findings.append(_flipped(file, claim, at))
    elif len(checked.findings) == before:
        checked.findings.append(Finding(CHECKSUM, file.key, CRC_MESSAGE, position=claim.position, offset=claim.base))


def _flipped(file: DataFile, claim: Claim, at: tuple[int, int]) -> Finding:
    return Finding(CHECKSUM, file.key, CRC_MESSAGE, position=claim.position + at[0], offset=claim.base, bit=at[1])


def walk(
    store: Store, file: DataFile, claim: Claim, batches: Batches, checked: Checked, progress: Progress
) -> Counts | None:
    """A slice in windows of whole batches. None if it is not made of whole batches, or its checksum is wrong."""
    from crc32c import crc32c

    shift, base, end = (np.array([getattr(claim, name)], np.int64) for name in RANGE)
    totals, crc, low, sound = Totals.empty(1), 0, 0, True
    before = len(checked.findings)
    while low < claim.size:
        place = claim.position + low
        data = memoryview(read(store, file.key, place, min(SPAN_BYTES, claim.size - low)))
        headers = scan_headers(data, whole=False)
        if not headers.end and headers.stop == "partial" and len(data) < claim.size - low:
            size = int.from_bytes(data[8:12], "big") + 12
            data = memoryview(read(store, file.key, place, min(size, claim.size - low)))
            headers = scan_headers(data, whole=False)
        last = low + len(data) == claim.size
        if not headers.end or (headers.stop != "end" and (last or headers.stop == "corrupt")):
            sound = False
            checked.findings.append(unframed(file, claim, headers, place))
            if len(headers):
                one = np.zeros(len(headers), np.int64)
                checked.findings += disorder(file, data, headers, one, shift, base, end, place, file.sealed)
            # What follows has no frame any more: only the checksum says more.
            crc = _rest(store, file, claim, low, crc)
            break
        data = data[: headers.end]
        one = np.zeros(len(headers), np.int64)
        wrong = disorder(file, data, headers, one, shift, base, end, place, file.sealed)
        checked.findings += wrong
        if not wrong:
            try:
                part = count_batches(data, headers, one, 1, shift, file=file.key, position=place)
                totals.add(part)
            except Corrupt as error:
                checked.findings.append(Finding.of(CONTENT, error, file.key))
            batches.add(data, headers, low)
            base = np.array([int(headers.next_offset[-1]) + claim.shift], np.int64)
        crc = crc32c(data, crc)
        low += len(data)
        progress(int(headers.count.sum()), len(data))
    if crc != claim.crc:
        sound = False
        _name_flip(file, claim, crc, checked, before)
    if not sound or len(checked.findings) > before:
        return None
    checked.findings += disagreements(claim, totals, 0, file=file.key)
    return Counts(slices=1, batches=int(totals.batches[0]), records=int(totals.records[0]), nbytes=claim.size)


def _rest(store: Store, file: DataFile, claim: Claim, low: int, crc: int) -> int:
    from crc32c import crc32c

    while low < claim.size:
        data = read(store, file.key, claim.position + low, min(SPAN_BYTES, claim.size - low))
        crc = crc32c(data, crc)
        low += len(data)
    return crc


def _name_flip(file: DataFile, claim: Claim, crc: int, checked: Checked, before: int) -> None:
    from sparklog.format.flipped_bit import flipped_bit

    at = flipped_bit(claim.size, crc, claim.crc)
    if at is not None:
        del checked.findings[before:]
        checked.findings.append(_flipped(file, claim, at))
    elif len(checked.findings) == before:
        checked.findings.append(Finding(CHECKSUM, file.key, CRC_MESSAGE, position=claim.position, offset=claim.base))
