"""Parts of checking a data file: exact reads, single batches, and a slice that is walked window by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import BatchHeaders
from sparklog.log.read.fetch import SPAN_BYTES
from sparklog.storage.store import Store
from sparklog.tools.verification.batches import Claim, Totals, count_batches, disagreements, wrong_batches
from sparklog.tools.verification.findings import CHECKSUM, CONTENT, Counts, Finding
from sparklog.tools.verification.index_files import Batches

Int64s = npt.NDArray[np.int64]
RANGE = ("shift", "base", "end")
"""Of a claim: what its batches' offsets are held against."""
CRC_MESSAGE = "the slice's CRC-32C does not match its bytes"
Progress = Callable[[int, int], None]


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
    """`length` bytes of an object from byte `start` on. `CutOff` if it ends before that."""
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
    """Batches of a window whose checksum, header or offsets are wrong.

    int64 arrays: `row_of` (per batch) says in which slice it lies; `shift`, `base`, `end` (per slice) are as claimed.
    `position`: of the window in the file; `legacy`: messages of formats v0 and v1 may be there.
    """
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
    """Decode a window and compare what it holds with the claims of its slices (`run`); findings go into `checked`.

    `row_of` (per batch) and `shift` (per slice) as in `disorder`.
    """
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
    """That no whole batch follows the last one of `headers`, in a window that begins at byte `position`."""
    following = int(headers.next_offset[-1]) + claim.shift if len(headers) else claim.base
    message = f"expected whole record batches: {headers.reason}"
    return Finding(CONTENT, file.key, message, position=position + headers.end, offset=following)


def check_crc(file: DataFile, claim: Claim, data: memoryview, checked: Checked, before: int) -> None:
    """Compare the CRC-32C of a slice's bytes with the claim.

    Where one flipped bit explains it, that replaces the findings of the slice, which begin at index `before`.
    """
    from crc32c import crc32c

    found = crc32c(data)
    if found != claim.crc:
        _wrong_crc(file, claim, found, checked, before)


def walk(
    store: Store, file: DataFile, claim: Claim, batches: Batches, checked: Checked, progress: Progress
) -> Counts | None:
    """Check a slice in windows of whole batches, which are collected in `batches`. None if something is wrong."""
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
        _wrong_crc(file, claim, crc, checked, before)
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


def _wrong_crc(file: DataFile, claim: Claim, crc: int, checked: Checked, before: int) -> None:
    """As `check_crc`, where the checksum is `crc` and not that of the claim."""
    from sparklog.format.checksums import flipped_bit

    at = flipped_bit(claim.size, crc, claim.crc)
    if at is not None:
        del checked.findings[before:]
        place = claim.position + at[0]
        checked.findings.append(Finding(CHECKSUM, file.key, CRC_MESSAGE, position=place, offset=claim.base, bit=at[1]))
    elif len(checked.findings) == before:
        checked.findings.append(Finding(CHECKSUM, file.key, CRC_MESSAGE, position=claim.position, offset=claim.base))
