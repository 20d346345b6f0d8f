"""One data file, every byte of it: an append file by its footer and by what versions say, a segment by that alone.

| bytes                               | are right if                                                                  |
|-------------------------------------|-------------------------------------------------------------------------------|
| a slice                             | its CRC-32C, which commits and footer agree on, holds                         |
| footer                              | its CRC-32C holds; its slices fill the file; its index is that of the batches |
| `.index`, `.timeindex`, `.txnindex` | the CRC-32C in the commit holds; their entries name batches                   |

A footer also describes slices that no version names any more: they are checked as well. Slices are decoded, too:
batches' checksums, offsets, counts, times. Files are checked in pieces of work, so that a Spark job can spread them
over tasks; findings come back as a value.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from sparklog.errors import NotFound
from sparklog.format import transaction_index
from sparklog.format.checksums import SUFFIXES, flipped_bit, index_crc
from sparklog.log.state.commit import MAINTAIN
from sparklog.log.state.slices import SliceFlag
from sparklog.maintenance.work_items import Done, Progress, silent
from sparklog.storage.store import Store
from sparklog.tools.verification.append_file import check_append_file
from sparklog.tools.verification.findings import INDEX, MISSING, SIZE, Counts, Finding
from sparklog.tools.verification.index_files import WITHOUT_INDEX, Batches, check_index
from sparklog.tools.verification.slice_checks import Checked, Claim, CutOff, DataFile, walk

MOST_FINDINGS = 100
"""Findings of one file, at most: beyond, single places do not matter."""
PIECE_BYTES = 256 << 20
"""A second or two of one core's work, far more than a task costs."""
PIECE_FILES = 1000


def check_file(store: Store, file: DataFile, progress: Progress) -> Checked:
    """Read a file whole and compare it with its footer and all versions that name it."""
    checked = Checked(file)
    try:
        if file.sealed:
            check_segment(store, file, checked, progress)
        else:
            check_append_file(store, file, checked, progress)
    except NotFound:
        checked.gone = checked.gone or file.key
        checked.findings.clear()
    except CutOff as cut:
        checked.findings.append(
            Finding(SIZE, file.key, f"expected {file.size} bytes, found {cut.size}", position=cut.size)
        )
    del checked.findings[MOST_FINDINGS:]
    return checked


def check_segment(store: Store, file: DataFile, checked: Checked, progress: Progress) -> None:
    """Check a sealed segment and the index files beside it; findings and counts go into `checked`."""
    if store.get(file.key, file.size, 1):
        checked.findings.append(
            Finding(SIZE, file.key, f"expected {file.size} bytes, found more behind them", position=file.size)
        )
    counted = Counts(files=1)
    for claim in file.claims:
        batches = Batches()
        walked = walk(store, file, claim, batches, checked, progress)
        counted += walked or Counts(slices=1)
        counted += _check_indexes(store, file, claim, batches if walked is not None else None, checked)
    checked.counts = counted


def missing_indexes(store: Store, file: DataFile, listed: Container[str]) -> list[Finding]:
    """Find the index files that are missing beside a sealed segment, in a listing (`listed`) and by now."""
    stem = file.key.removesuffix("log")
    keys = [f"{stem}{suffix}" for suffix in SUFFIXES if any(_needed(suffix, claim) for claim in file.claims)]
    gone = [key for key in keys if key not in listed and store.stat(key) is None]
    # The vacuum may have deleted it with its segment.
    return [_no_index(key) for key in gone] if gone and store.stat(file.key) is not None else []


def _needed(suffix: str, claim: Claim) -> bool:
    return suffix != "txnindex" or bool(claim.flags & SliceFlag.KAFKA_ABORTED)


def _no_index(key: str) -> Finding:
    return Finding(MISSING, key, "expected an index beside the segment, found none", WITHOUT_INDEX)


def _check_indexes(store: Store, file: DataFile, claim: Claim, batches: Batches | None, checked: Checked) -> Counts:
    """`batches` None: the segment is damaged, only the checksum of its indexes can be looked at."""
    stem = file.key.removesuffix("log")
    indexes: dict[str, bytes] = {}
    for suffix in SUFFIXES:
        try:
            indexes[suffix] = store.get(f"{stem}{suffix}")
        except NotFound:
            if _needed(suffix, claim):
                if store.stat(file.key) is None:
                    raise
                checked.findings.append(_no_index(f"{stem}{suffix}"))
    counted = Counts(files=len(indexes), nbytes=sum(map(len, indexes.values())))
    whole = [indexes.get(suffix, b"") for suffix in SUFFIXES]
    crc = index_crc(*whole)
    if crc == file.index_crc:
        return counted
    flipped = _flipped(file, whole, crc, stem)
    if flipped is not None:
        checked.findings.append(flipped)
        return counted
    before = len(checked.findings)
    base = int(file.key.rsplit("/", 1)[-1][:20])
    if batches is not None:
        for suffix, data in indexes.items():
            checked.findings += check_index(suffix, data, base, batches, file=f"{stem}{suffix}")
    missing = any(finding.kind == MISSING and finding.file.startswith(stem) for finding in checked.findings)
    if len(checked.findings) == before and not missing:
        # Every entry is right: some must be missing. The time index ends with the greatest timestamp, so not there.
        entries = len(indexes.get("txnindex", b"")) // transaction_index.ENTRY_BYTES
        suspect = "txnindex" if batches is not None and entries < len(batches.aborts) else "index"
        message = (
            "the index files beside the segment do not match the CRC-32C that the commit gives for them: entries "
            "are missing"
        )
        checked.findings.append(
            Finding(INDEX, f"{stem}{suspect}", message, WITHOUT_INDEX, len(indexes.get(suspect, b"")))
        )
    return counted


def _flipped(file: DataFile, indexes: list[bytes], crc: int, stem: str) -> Finding | None:
    """Return the one bit of all index files that explains the checksum, None if there is none."""
    at = flipped_bit(sum(map(len, indexes)) + 8 * len(indexes), crc, file.index_crc)
    start = 0
    for suffix, data in zip(SUFFIXES, indexes, strict=True):
        start += 8
        if at is not None and start <= at[0] < start + len(data):
            message = "the index files do not match the CRC-32C that the commit gives for them"
            return Finding(INDEX, f"{stem}{suffix}", message, WITHOUT_INDEX, at[0] - start, bit=at[1])
        start += len(data)
    return None


@dataclass(frozen=True)
class Verified(Done):
    """Findings of a piece; `gone`: files that are missing, which the driver looks up in a newer state."""

    findings: tuple[Finding, ...] = ()
    counts: Counts = field(default_factory=Counts)
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyWork:
    """Reads these files of one topic whole."""

    store: Store
    topic: str
    topic_id: str
    files: tuple[DataFile, ...]
    op: str = MAINTAIN
    partitions: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"verify {self.topic}"

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files)

    def run(self, progress: Progress = silent) -> Verified:
        """Read them. Damage is never raised: it comes as findings."""
        findings: list[Finding] = []
        counts = Counts()
        gone: list[str] = []
        for file in self.files:
            checked = check_file(self.store, file, progress)
            findings += checked.findings
            counts += checked.counts
            if checked.gone is not None:
                gone.append(file.key)
        return Verified((), (), (), tuple(findings), counts, tuple(gone))


def pieces(store: Store, topic: str, topic_id: str, files: Sequence[DataFile]) -> Iterator[VerifyWork]:
    """Divide files into pieces of about `PIECE_BYTES`, in the order of the topic's folder."""
    piece: list[DataFile] = []
    nbytes = 0
    for file in files:
        if piece and (nbytes + file.size > PIECE_BYTES or len(piece) >= PIECE_FILES):
            yield VerifyWork(store, topic, topic_id, tuple(piece))
            piece, nbytes = [], 0
        piece.append(file)
        nbytes += file.size
    if piece:
        yield VerifyWork(store, topic, topic_id, tuple(piece))
