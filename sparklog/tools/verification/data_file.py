"""One data file, every byte of it: an append file by its footer and by what commits say, a segment by that alone.

| bytes                               | are right if                                                                  |
|-------------------------------------|-------------------------------------------------------------------------------|
| a slice                             | its CRC-32C, which commits and footer agree on, holds                         |
| footer                              | its CRC-32C holds; its slices fill the file; its index is that of the batches |
| `.index`, `.timeindex`, `.txnindex` | the CRC-32C in the commit holds; their entries name batches                   |
| `.bloom`                            | its CRC-32Cs hold; it has all keys of its slices, as they are decoded anyway  |

A filter that is missing or damaged hides no record: a look-up reads the slice then. One that denies a key does.

A footer also describes slices that no version names any more: they are checked as well. Slices are decoded, too:
batches' checksums, offsets, counts, times. Files are checked in pieces of work, so that a Spark job can spread them
over tasks; findings come back as a value.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format import transaction_index
from sparklog.format.append_file import TAIL_BYTES, Footer, WrittenSlice, build_index, decode_footer
from sparklog.format.batch_scan import scan_headers
from sparklog.format.checksums import SUFFIXES, flipped_bit, index_crc
from sparklog.format.crc32c import crc32c
from sparklog.format.key_filter import decode_filters
from sparklog.format.slice_columns import WRITTEN
from sparklog.limits import Limits
from sparklog.log.journal.names import filter_path, is_commit
from sparklog.log.state.commit import MAINTAIN
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.inventory import NamedFile, SliceClaim
from sparklog.maintenance.work_items import Progress, WorkResult, silent
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import FOOTER, INDEX, MISSING, SIZE, CheckCounts, Finding
from sparklog.tools.verification.slice_checks import (
    REBUILD,
    CheckedFile,
    CollectedBatches,
    CutOff,
    SliceWindow,
    check_index,
    walk,
)

MOST_FINDINGS = 100  # of one file: beyond, single places do not matter
WITHOUT_FILTER = "restore it from a backup, or delete it; no record is lost, look-ups by key read more without it"
DENIES = "the filter denies keys that the slice has, so that look-ups do not find them"


def check_file(store: Store, file: NamedFile, progress: Progress) -> CheckedFile:
    """Read a file whole and compare it with its footer and all versions that name it."""
    checked = CheckedFile(store, file, progress)
    try:
        filters = _take_filters(checked)
        (_check_segment if file.sealed else _check_append_file)(checked)
        checked.counts += filters
    except NotFound:
        return CheckedFile(store, file, progress, gone=True)
    except CutOff as cut:
        (size,) = cut.args
        checked.findings.append(Finding(SIZE, file.key, f"expected {file.size} bytes, found {size}", position=size))
    del checked.findings[MOST_FINDINGS:]
    return checked


def _goes_on(file: NamedFile) -> Finding:
    return Finding(SIZE, file.key, f"expected {file.size} bytes, found more after them", position=file.size)


def _check_segment(checked: CheckedFile) -> None:
    """Check a sealed segment and the index files beside it."""
    if checked.store.get(checked.file.key, checked.file.size, 1):
        checked.findings.append(_goes_on(checked.file))
    counted = CheckCounts(files=1)
    for claim in checked.file.claims:
        batches = CollectedBatches(filter=checked.filters.get(claim.position))
        walked = walk(checked, claim, batches)
        counted += walked or CheckCounts(slices=1)
        checked.findings += _against_filter(checked, claim, batches) if walked is not None else []
        counted += _check_indexes(checked, claim, batches if walked is not None else None)
    checked.counts = counted


def missing_beside(store: Store, file: NamedFile, listed: Container[str]) -> list[Finding]:
    """Find the indexes and filters that are missing beside a file, in a listing (`listed`) and by now."""
    suffixes = [suffix for suffix in SUFFIXES if file.sealed and any(_needed(suffix, claim) for claim in file.claims)]
    expected = [_no_index(file.index_key(suffix)) for suffix in suffixes]
    expected += [_no_filter(filter_path(file.key))] if file.filtered else []
    gone = [finding for finding in expected if finding.file not in listed and store.stat(finding.file) is None]
    # The vacuum may have deleted them with their file.
    return gone if gone and store.stat(file.key) is not None else []


def _needed(suffix: str, claim: SliceClaim) -> bool:
    return suffix != "txnindex" or bool(claim.flags & SliceFlag.KAFKA_ABORTED)


def _no_index(key: str) -> Finding:
    return Finding(MISSING, key, "expected an index beside the segment, found none", REBUILD)


def _no_filter(key: str) -> Finding:
    return Finding(MISSING, key, "expected filters of keys beside the file, found none", WITHOUT_FILTER)


def _take_filters(checked: CheckedFile) -> CheckCounts:
    """Read the filters beside a file into `checked.filters`, those of slices that versions name."""
    file, key = checked.file, filter_path(checked.file.key)
    if not file.filtered:
        return CheckCounts()
    try:
        data = checked.store.get(key)
    except NotFound:
        if checked.store.stat(file.key) is None:
            raise
        checked.findings.append(_no_filter(key))
        return CheckCounts()
    counts = CheckCounts(files=1, nbytes=len(data))
    try:
        filters = {stored.position: stored for stored in decode_filters(data, file=key)}
    except (Corrupt, BadRequest) as error:
        checked.findings.append(Finding.of(INDEX, error, key, WITHOUT_FILTER))
        return counts
    for claim in file.claims:
        if claim.flags & SliceFlag.KEY_FILTER:
            stored = filters.get(claim.position)
            if stored is not None and (stored.nbytes, stored.crc) == (claim.size, claim.crc):
                checked.filters[claim.position] = stored
            else:
                message = f"expected a filter of the slice at byte {claim.position}, found none"
                checked.findings.append(Finding(INDEX, key, message, WITHOUT_FILTER, offset=claim.base))
    return counts


def _against_filter(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches) -> list[Finding]:
    if not batches.keys_beyond_filter():
        return []
    return [Finding(INDEX, filter_path(checked.file.key), DENIES, WITHOUT_FILTER, offset=claim.base)]


def _check_indexes(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches | None) -> CheckCounts:
    """`batches` None: the segment is damaged, only the checksum of its indexes can be looked at."""
    store, file, before = checked.store, checked.file, len(checked.findings)
    indexes: dict[str, bytes] = {}
    for suffix in SUFFIXES:
        try:
            indexes[suffix] = store.get(file.index_key(suffix))
        except NotFound:
            if _needed(suffix, claim):
                if store.stat(file.key) is None:
                    raise
                checked.findings.append(_no_index(file.index_key(suffix)))
    counted = CheckCounts(files=len(indexes), nbytes=sum(map(len, indexes.values())))
    whole = [indexes.get(suffix, b"") for suffix in SUFFIXES]
    crc = index_crc(*whole)
    if crc == file.index_crc:
        return counted
    flipped = _flipped(file, whole, crc)
    if flipped is not None:
        checked.findings.append(flipped)
        return counted
    base = int(file.key.rsplit("/", 1)[-1][:20])
    if batches is not None:
        for suffix, data in indexes.items():
            checked.findings += check_index(suffix, data, base, batches, file=file.index_key(suffix))
    if len(checked.findings) == before:
        checked.findings += _of_no_entry(file, indexes, batches)
    return counted


def _of_no_entry(file: NamedFile, indexes: Mapping[str, bytes], batches: CollectedBatches | None) -> Iterator[Finding]:
    """Yield findings where every entry is right by itself, so that some are missing or of another segment.

    Aborted transactions can be counted. Which of the files it is else cannot be known: an index has as many entries as
    its writer wanted, and the last stable offset of an aborted transaction is known from other segments only.
    """
    entries = len(indexes.get("txnindex", b"")) // transaction_index.ENTRY_BYTES
    if batches is not None and entries < len(batches.aborts):
        message = f"the index files beside the segment {_NO_MATCH}: entries are missing"
        size = len(indexes.get("txnindex", b""))
        yield Finding(INDEX, file.index_key("txnindex"), message, REBUILD, size)
        return
    which = ", ".join(f".{suffix}" for suffix in indexes)
    message = f"one of {which} does not match the CRC-32C of them all in the commit: entries are missing or others"
    for suffix, data in indexes.items():
        yield Finding(INDEX, file.index_key(suffix), message, REBUILD, len(data))


_NO_MATCH = "do not match the CRC-32C that the commit gives for them"


def _flipped(file: NamedFile, indexes: list[bytes], crc: int) -> Finding | None:
    flip = flipped_bit(sum(map(len, indexes)) + 8 * len(indexes), crc, file.index_crc)
    start = 0
    for suffix, data in zip(SUFFIXES, indexes, strict=True):
        start += 8
        if flip is not None and start <= flip[0] < start + len(data):
            message = f"the index files {_NO_MATCH}"
            return Finding(INDEX, file.index_key(suffix), message, REBUILD, flip[0] - start, bit=flip[1])
        start += len(data)
    return None


@dataclass(frozen=True)
class Verified(WorkResult):
    """Findings of a piece; `gone`: files that are missing, which the driver looks up in a newer state."""

    findings: tuple[Finding, ...] = ()
    counts: CheckCounts = field(default_factory=CheckCounts)
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyWork:
    """Reads these files of one topic whole."""

    store: Store
    topic: str
    topic_id: str
    files: tuple[NamedFile, ...]
    op: str = MAINTAIN
    partitions: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"verify {self.topic}"

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def file_count(self) -> int:
        return len(self.files)

    def run(self, progress: Progress = silent) -> Verified:
        """Read them. Damage is never raised: it comes as findings."""
        findings: list[Finding] = []
        counts = CheckCounts()
        gone: list[str] = []
        for file in self.files:
            checked = check_file(self.store, file, progress)
            findings += checked.findings
            counts += checked.counts
            if checked.gone:
                gone.append(file.key)
        return Verified((), (), (), tuple(findings), counts, tuple(gone))


def pieces(files: Sequence[NamedFile], limits: Limits) -> Iterator[tuple[NamedFile, ...]]:
    """Divide files into pieces of about `verify_piece_bytes`, in the order of the topic's folder."""
    piece: tuple[NamedFile, ...] = ()
    nbytes = 0
    for file in files:
        if piece and (nbytes + file.size > limits.verify_piece_bytes or len(piece) >= limits.verify_piece_files):
            yield piece
            piece, nbytes = (), 0
        piece, nbytes = (*piece, file), nbytes + file.size
    if piece:
        yield piece


def _check_append_file(checked: CheckedFile) -> None:
    file, footer = checked.file, _footer(checked)
    claims = list(file.claims)
    entries: dict[int, WrittenSlice] = {}
    if footer is not None:
        entries = {entry.position: entry for entry in footer.slices}
        claims += _unnamed(footer, file)
        for claim in file.claims:
            checked.findings += _against_footer(file.key, claim, entries.get(claim.position))
    counted = CheckCounts(files=1, nbytes=file.footer_length)
    for run in _runs(sorted(claims, key=lambda claim: claim.position), checked.store.limits.span_bytes):
        counted += _check_run(checked, run, entries)
    # All bytes of a commit were counted with its log.
    checked.counts = replace(counted, nbytes=0) if is_commit(f"/{file.key}") else counted


def _footer(checked: CheckedFile) -> Footer | None:
    store, file = checked.store, checked.file
    start = file.size - file.footer_length
    # One byte more, to see that the file ends there.
    data = store.get(file.key, start, file.footer_length + 1)
    if len(data) > file.footer_length:
        checked.findings.append(_goes_on(file))
        data = data[: file.footer_length]
    if len(data) < file.footer_length:
        info = store.stat(file.key)
        raise CutOff(start + len(data) if info is None else info.size)
    try:
        return decode_footer(data, file_size=file.size, file=file.key)
    except (Corrupt, BadRequest) as error:
        finding = Finding.of(FOOTER, error, file.key)
    body, expected = data[:-TAIL_BYTES], int.from_bytes(data[-TAIL_BYTES : -TAIL_BYTES + 4], "big")
    crc = crc32c(body)
    # The checksum does not cover length and magic of the tail; or it is a writer's fault.
    position = file.size - TAIL_BYTES + 4 if crc == expected else finding.position or start
    flipped = None if crc == expected else finding.at_flipped_bit(start, len(body), crc, expected)
    checked.findings.append(flipped or replace(finding, position=position))
    return None


def _unnamed(footer: Footer, file: NamedFile) -> list[SliceClaim]:
    """The slices that only the footer knows; of their offsets in the log it says nothing."""
    named = {claim.position for claim in file.claims}
    claims = []
    for entry in footer.slices:
        if entry.position not in named:
            columns = {column: getattr(entry, name) for name, column in WRITTEN.items()}
            claims.append(SliceClaim(**columns, position=entry.position, base=0, shift=0, append_time=-1))
    return claims


def _against_footer(key: str, claim: SliceClaim, entry: WrittenSlice | None) -> list[Finding]:
    """Commits and footer must say the same of a slice."""
    if entry is None:
        message = f"expected the footer to name the slice at byte {claim.position}, as the commit does"
        return [Finding(FOOTER, key, message, position=claim.position, offset=claim.base)]
    expected = {name: getattr(claim, column) for name, column in WRITTEN.items()} | {"offsets": claim.end - claim.shift}
    if claim.append_time >= 0:
        del expected["min_ts"], expected["max_ts"]
    wrong = [
        f"{_LABELS.get(name, name)} {value}, found {getattr(entry, name)}"
        for name, value in expected.items()
        if value != getattr(entry, name)
    ]
    if not wrong:
        return []
    message = f"the footer should say of the slice what the commit says: {'; '.join(wrong)}"
    return [Finding(FOOTER, key, message, position=claim.position, offset=claim.base)]


def _runs(claims: Sequence[SliceClaim], span_bytes: int) -> Iterator[list[SliceClaim]]:
    """Slices that are side by side and fit into one request; longer ones alone."""
    run: list[SliceClaim] = []
    for claim in claims:
        end = run[-1].position + run[-1].size if run else 0
        if run and (claim.position != end or end + claim.size - run[0].position > span_bytes):
            yield run
            run = []
        run.append(claim)
    if run:
        yield run


def _check_run(checked: CheckedFile, run: Sequence[SliceClaim], entries: dict[int, WrittenSlice]) -> CheckCounts:
    """Slices side by side, in one request: all at once if their checksums hold, else one by one, as long ones are."""
    start = run[0].position
    nbytes = run[-1].position + run[-1].size - start
    starts = np.array([claim.position - start for claim in run], np.int64)
    headers = None
    if nbytes <= checked.store.limits.span_bytes:
        data = memoryview(checked.read(start, nbytes))
        parts = [data[claim.position - start : claim.position - start + claim.size] for claim in run]
        if all(crc32c(part) == claim.crc for part, claim in zip(parts, run, strict=True)):
            headers = scan_headers(data, whole=False)
    if headers is None or headers.stop != "end" or not np.isin(starts, headers.position).all():
        counted = CheckCounts()
        for claim in run:
            batches, entry = CollectedBatches(filter=checked.filters.get(claim.position)), entries.get(claim.position)
            walked = walk(checked, claim, batches)
            checked.findings += _against_filter(checked, claim, batches) if walked is not None else []
            if entry is not None and walked is not None:
                checked.findings += _against_index(checked.file.key, claim, entry, batches)
            counted += walked or CheckCounts(slices=1)
        return counted
    row_of = np.searchsorted(starts, headers.position, side="right") - 1
    window = SliceWindow(data, start, headers, checked.file.key, run, row_of, checked.file.sealed)
    checked.findings += window.wrong_batches()
    counted = window.count(checked)
    for row, claim in enumerate(run):
        entry = entries.get(claim.position)
        if entry is not None and (entry.index is not None or len(entry.aborted)):
            batches = CollectedBatches(filter=checked.filters.get(claim.position))
            batches.add(data, headers[row_of == row], -int(starts[row]))
            checked.findings += _against_filter(checked, claim, batches)
            checked.findings += _against_index(checked.file.key, claim, entry, batches)
    checked.progress(counted.records, nbytes)
    return counted


def _against_index(key: str, claim: SliceClaim, entry: WrittenSlice, batches: CollectedBatches) -> list[Finding]:
    """The footer's index and aborted transactions of one slice against its batches; positions from its start."""
    position, base, _, stamp, _ = batches.columns()
    built = build_index(position, base, stamp, claim.size)
    findings = []
    same = (built is None) == (entry.index is None)
    if same and built is not None:
        same = all(np.array_equal(getattr(built, name), getattr(entry.index, name)) for name in _INDEX_COLUMNS)
    if not same:
        message = "the footer's index is not that of the slice's batches"
        findings.append(Finding(FOOTER, key, message, position=claim.position))
    for producer, last in zip(entry.aborted.producer_ids.tolist(), entry.aborted.last_offsets.tolist(), strict=True):
        if batches.aborts.get(last) != producer:
            message = f"the footer says that producer {producer} aborts at {last}; no such marker is in the slice"
            findings.append(Finding(FOOTER, key, message, position=claim.position, offset=last + claim.shift))
    if bool(len(entry.aborted)) != bool(claim.flags & SliceFlag.KAFKA_ABORTED):
        message = "flag 16 and the footer's aborted transactions do not agree"
        findings.append(Finding(FOOTER, key, message, position=claim.position, offset=claim.base))
    return findings


_LABELS = {"nbytes": "size", "crc": "CRC-32C", "offsets": "end offset", "min_ts": "minTs", "max_ts": "maxTs"}
_INDEX_COLUMNS = ("position", "offset", "max_ts")
