"""Check all bytes of a data file.

An append file is checked against its footer and the commits, and a segment against the commits:

| bytes                               | checks                                                                      |
|-------------------------------------|-----------------------------------------------------------------------------|
| slice                               | the CRC-32C equals that in the commits and in the footer                    |
| footer                              | the CRC-32C is valid; the slices fill the file; the index matches batches   |
| `.index`, `.timeindex`, `.txnindex` | the CRC-32C equals that in the commit; the entries match the batches        |
| `.bloom`                            | the CRC-32Cs are valid; the filters contain all keys of their slices        |

If a filter is missing or corrupt, lookups read the slice, so records are not hidden. If a valid filter does not contain
an existing key, lookups do not find the records of the key.

A footer can describe slices that are no longer referenced by any version. These slices are also checked. All slices are
decoded in order to check the checksums, offsets, counts and timestamps of their batches. The files are divided into
work items, so that a Spark job can distribute them over tasks. Each work item returns its findings.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format import transaction_index
from sparklog.format.append_file import TRAILER_BYTES, Footer, WrittenSlice, build_index, decode_footer
from sparklog.format.batch_scan import scan_headers
from sparklog.format.checksums import SUFFIXES, flipped_bit, index_crc
from sparklog.format.crc32c import crc32c
from sparklog.format.key_filter import decode_filters
from sparklog.format.slice_columns import WRITTEN
from sparklog.limits import Limits
from sparklog.log.journal.names import filter_path, is_commit
from sparklog.log.state.commit import MAINTAIN, Op
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.inventory import ReferencedFile, SliceClaim
from sparklog.maintenance.work_items import Progress, WorkResult, silent
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import FOOTER, INDEX, MISSING, SIZE, CheckCounts, Finding
from sparklog.tools.verification.slice_checks import (
    REBUILD,
    CheckedFile,
    CollectedBatches,
    SliceWindow,
    TruncatedFile,
    check_index,
    walk,
)

MAX_FINDINGS = 100
"""Maximum number of findings per file."""
DELETE_FILTER = (
    "restore the filter from a backup or delete it; no records are lost, but lookups by key then read more data"
)
MISSING_KEYS = "the filter does not contain all keys of the slice, so lookups do not find the missing keys"


def check_file(store: Store, file: ReferencedFile, progress: Progress) -> CheckedFile:
    """Read an entire file and compare it with its footer and with all versions that reference it."""
    checked = CheckedFile(store, file, progress)
    try:
        filters = _read_filters(checked)
        (_check_segment if file.sealed else _check_append_file)(checked)
        checked.counts += filters
    except NotFound:
        return CheckedFile(store, file, progress, is_missing=True)
    except TruncatedFile as error:
        (size,) = error.args
        checked.findings.append(Finding(SIZE, file.key, f"expected {file.size} bytes, found {size}", position=size))
    del checked.findings[MAX_FINDINGS:]
    return checked


def _too_long(file: ReferencedFile) -> Finding:
    return Finding(SIZE, file.key, f"expected {file.size} bytes, found more", position=file.size)


def _check_segment(checked: CheckedFile) -> None:
    """Check a sealed segment and its index files."""
    if checked.store.get(checked.file.key, checked.file.size, 1):
        checked.findings.append(_too_long(checked.file))
    counts = CheckCounts(files=1)
    for claim in checked.file.claims:
        batches = CollectedBatches(filter=checked.filters.get(claim.position))
        walked = walk(checked, claim, batches)
        counts += walked or CheckCounts(slices=1)
        checked.findings += _against_filter(checked, claim, batches) if walked is not None else []
        counts += _check_indexes(checked, claim, batches if walked is not None else None)
    checked.counts = counts


def find_missing_companions(store: Store, file: ReferencedFile, listed: Container[str]) -> list[Finding]:
    """Return findings for missing indexes and filters of a file. `listed` contains the keys of existing objects."""
    suffixes = [suffix for suffix in SUFFIXES if file.sealed and any(_needed(suffix, claim) for claim in file.claims)]
    expected = [_no_index(file.index_key(suffix)) for suffix in suffixes]
    expected += [_no_filter(filter_path(file.key))] if file.filtered else []
    missing = [finding for finding in expected if finding.file not in listed and store.stat(finding.file) is None]
    # The vacuum may have deleted these files together with the data file.
    return missing if missing and store.stat(file.key) is not None else []


def _needed(suffix: str, claim: SliceClaim) -> bool:
    return suffix != "txnindex" or bool(claim.flags & SliceFlag.KAFKA_ABORTED)


def _no_index(key: str) -> Finding:
    return Finding(MISSING, key, "the index file of the segment is missing", REBUILD)


def _no_filter(key: str) -> Finding:
    return Finding(MISSING, key, "the key filters of the data file are missing", DELETE_FILTER)


def _read_filters(checked: CheckedFile) -> CheckCounts:
    """Read the filters of the referenced slices into `checked.filters`."""
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
        checked.findings.append(Finding.of(INDEX, error, key, DELETE_FILTER))
        return counts
    for claim in file.claims:
        if claim.flags & SliceFlag.KEY_FILTER:
            stored = filters.get(claim.position)
            if stored is not None and (stored.nbytes, stored.crc) == (claim.size, claim.crc):
                checked.filters[claim.position] = stored
            else:
                message = f"expected a filter for the slice at byte {claim.position}, found none"
                checked.findings.append(Finding(INDEX, key, message, DELETE_FILTER, offset=claim.base))
    return counts


def _against_filter(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches) -> list[Finding]:
    if not batches.keys_beyond_filter():
        return []
    return [Finding(INDEX, filter_path(checked.file.key), MISSING_KEYS, DELETE_FILTER, offset=claim.base)]


def _check_indexes(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches | None) -> CheckCounts:
    """Check the index files of a segment.

    If `batches` is None, the segment is corrupt, so only the checksum is checked.
    """
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
    counts = CheckCounts(files=len(indexes), nbytes=sum(map(len, indexes.values())))
    contents = [indexes.get(suffix, b"") for suffix in SUFFIXES]
    crc = index_crc(*contents)
    if crc == file.index_crc:
        return counts
    flipped = _flipped(file, contents, crc)
    if flipped is not None:
        checked.findings.append(flipped)
        return counts
    base = int(file.key.rsplit("/", 1)[-1][:20])
    if batches is not None:
        for suffix, data in indexes.items():
            checked.findings += check_index(suffix, data, base, batches, file=file.index_key(suffix))
    if len(checked.findings) == before:
        checked.findings += _mismatch(file, indexes, batches)
    return counts


def _mismatch(
    file: ReferencedFile, indexes: Mapping[str, bytes], batches: CollectedBatches | None
) -> Iterator[Finding]:
    """Yield findings if the checksum of the index files is wrong although each entry matches the batches.

    In this case, entries are missing or belong to another segment. If entries of aborted transactions are missing, the
    `.txnindex` is wrong, because the number of aborted transactions is known. Otherwise it is unknown which file is
    wrong, because the number of index entries depends on the writer, and the last stable offset of an aborted
    transaction depends on other segments.
    """
    entries = len(indexes.get("txnindex", b"")) // transaction_index.ENTRY_BYTES
    if batches is not None and entries < len(batches.aborts):
        message = f"the index files of the segment {_NO_MATCH}, because entries are missing"
        size = len(indexes.get("txnindex", b""))
        yield Finding(INDEX, file.index_key("txnindex"), message, REBUILD, size)
        return
    which = ", ".join(f".{suffix}" for suffix in indexes)
    message = f"entries are missing or wrong in one of {which}, because these files {_NO_MATCH}"
    for suffix, data in indexes.items():
        yield Finding(INDEX, file.index_key(suffix), message, REBUILD, len(data))


_NO_MATCH = "do not match their CRC-32C in the commit"


def _flipped(file: ReferencedFile, indexes: list[bytes], crc: int) -> Finding | None:
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
    """The result of a work item. The driver checks the `missing` files against a later state of the topic."""

    findings: tuple[Finding, ...] = ()
    counts: CheckCounts = field(default_factory=CheckCounts)
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyWork:
    """A work item that checks all bytes of several files of a topic."""

    store: Store
    topic: str
    topic_id: str
    files: tuple[ReferencedFile, ...]
    op: Op = MAINTAIN
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
        """Check the files. Corruption is returned as findings and never raised."""
        findings: list[Finding] = []
        counts = CheckCounts()
        missing: list[str] = []
        for file in self.files:
            checked = check_file(self.store, file, progress)
            findings += checked.findings
            counts += checked.counts
            if checked.is_missing:
                missing.append(file.key)
        return Verified((), (), (), tuple(findings), counts, tuple(missing))


def groups_of(files: Sequence[ReferencedFile], limits: Limits) -> Iterator[tuple[ReferencedFile, ...]]:
    """Divide files into groups of about `verify_piece_bytes`, one group per work item, without changing their order."""
    group: tuple[ReferencedFile, ...] = ()
    nbytes = 0
    for file in files:
        if group and (nbytes + file.size > limits.verify_piece_bytes or len(group) >= limits.verify_piece_files):
            yield group
            group, nbytes = (), 0
        group, nbytes = (*group, file), nbytes + file.size
    if group:
        yield group


def _check_append_file(checked: CheckedFile) -> None:
    file, footer = checked.file, _footer(checked)
    claims = list(file.claims)
    entries: dict[int, WrittenSlice] = {}
    if footer is not None:
        entries = {entry.position: entry for entry in footer.slices}
        claims += _footer_only_claims(footer, file)
        for claim in file.claims:
            checked.findings += _against_footer(file.key, claim, entries.get(claim.position))
    counts = CheckCounts(files=1, nbytes=file.footer_length)
    for group in _adjacent(sorted(claims, key=lambda claim: claim.position), checked.store.limits.span_bytes):
        counts += _check_adjacent(checked, group, entries)
    # The bytes of the commit have already been counted, because the log has been read.
    checked.counts = replace(counts, nbytes=0) if is_commit(f"/{file.key}") else counts


def _footer(checked: CheckedFile) -> Footer | None:
    store, file = checked.store, checked.file
    start = file.size - file.footer_length
    # Request one additional byte to check that the file ends after the footer.
    data = store.get(file.key, start, file.footer_length + 1)
    if len(data) > file.footer_length:
        checked.findings.append(_too_long(file))
        data = data[: file.footer_length]
    if len(data) < file.footer_length:
        info = store.stat(file.key)
        raise TruncatedFile(start + len(data) if info is None else info.size)
    try:
        return decode_footer(data, file_size=file.size, file=file.key)
    except (Corrupt, BadRequest) as error:
        finding = Finding.of(FOOTER, error, file.key)
    body, expected = data[:-TRAILER_BYTES], int.from_bytes(data[-TRAILER_BYTES : -TRAILER_BYTES + 4], "big")
    crc = crc32c(body)
    # If the checksum is valid, either the length or the magic bytes after it are damaged, or the writer had a defect.
    position = file.size - TRAILER_BYTES + 4 if crc == expected else finding.position or start
    flipped = None if crc == expected else finding.at_flipped_bit(start, len(body), crc, expected)
    checked.findings.append(flipped or replace(finding, position=position))
    return None


def _footer_only_claims(footer: Footer, file: ReferencedFile) -> list[SliceClaim]:
    """Return claims for slices that only the footer describes. The offsets of these slices in the log are unknown."""
    claimed = {claim.position for claim in file.claims}
    claims = []
    for entry in footer.slices:
        if entry.position not in claimed:
            columns = {column: getattr(entry, name) for name, column in WRITTEN.items()}
            claims.append(SliceClaim(**columns, position=entry.position, base=0, shift=0, append_time=-1))
    return claims


def _against_footer(key: str, claim: SliceClaim, entry: WrittenSlice | None) -> list[Finding]:
    """Check that the footer and the commit describe a slice in the same way."""
    if entry is None:
        message = f"the commit has a slice at byte {claim.position}, but the footer does not contain this slice"
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
    message = f"the footer contradicts the commit: expected {'; '.join(wrong)}"
    return [Finding(FOOTER, key, message, position=claim.position, offset=claim.base)]


def _adjacent(claims: Sequence[SliceClaim], span_bytes: int) -> Iterator[list[SliceClaim]]:
    """Yield groups of adjacent slices that can be read with one request. A slice that is too long is yielded
    separately.
    """
    group: list[SliceClaim] = []
    for claim in claims:
        end = group[-1].position + group[-1].size if group else 0
        if group and (claim.position != end or end + claim.size - group[0].position > span_bytes):
            yield group
            group = []
        group.append(claim)
    if group:
        yield group


def _check_adjacent(
    checked: CheckedFile, claims: Sequence[SliceClaim], entries: dict[int, WrittenSlice]
) -> CheckCounts:
    """Check adjacent slices.

    The slices are read in one request. If a checksum is wrong, or if the slices are too long, the slices are checked
    individually.
    """
    start = claims[0].position
    nbytes = claims[-1].position + claims[-1].size - start
    starts = np.array([claim.position - start for claim in claims], np.int64)
    headers = None
    if nbytes <= checked.store.limits.span_bytes:
        data = memoryview(checked.read(start, nbytes))
        slices = [data[claim.position - start : claim.position - start + claim.size] for claim in claims]
        if all(crc32c(each) == claim.crc for each, claim in zip(slices, claims, strict=True)):
            headers = scan_headers(data, whole=False)
    if headers is None or headers.stop != "end" or not np.isin(starts, headers.position).all():
        counts = CheckCounts()
        for claim in claims:
            batches, entry = CollectedBatches(filter=checked.filters.get(claim.position)), entries.get(claim.position)
            walked = walk(checked, claim, batches)
            checked.findings += _against_filter(checked, claim, batches) if walked is not None else []
            if entry is not None and walked is not None:
                checked.findings += _against_index(checked.file.key, claim, entry, batches)
            counts += walked or CheckCounts(slices=1)
        return counts
    row_of = np.searchsorted(starts, headers.position, side="right") - 1
    window = SliceWindow(data, start, headers, checked.file.key, claims, row_of, checked.file.sealed)
    checked.findings += window.wrong_batches()
    counts = window.count(checked)
    for row, claim in enumerate(claims):
        entry = entries.get(claim.position)
        if entry is not None and (entry.index is not None or len(entry.aborted)):
            batches = CollectedBatches(filter=checked.filters.get(claim.position))
            batches.add(data, headers[row_of == row], -int(starts[row]))
            checked.findings += _against_filter(checked, claim, batches)
            checked.findings += _against_index(checked.file.key, claim, entry, batches)
    checked.progress(counts.records, nbytes)
    return counts


def _against_index(key: str, claim: SliceClaim, entry: WrittenSlice, batches: CollectedBatches) -> list[Finding]:
    """Compare the index and the aborted transactions of a slice in the footer with the batches of the slice.

    Positions in `batches` are relative to the start of the slice.
    """
    position, base, _, stamp, _ = batches.columns()
    built = build_index(position, base, stamp, claim.size)
    findings = []
    same = (built is None) == (entry.index is None)
    if same and built is not None:
        same = all(np.array_equal(getattr(built, name), getattr(entry.index, name)) for name in _INDEX_COLUMNS)
    if not same:
        message = "the index in the footer does not match the batches of the slice"
        findings.append(Finding(FOOTER, key, message, position=claim.position))
    for producer, last in zip(entry.aborted.producer_ids.tolist(), entry.aborted.last_offsets.tolist(), strict=True):
        if batches.aborts.get(last) != producer:
            message = (
                f"the footer has an ABORT of producer {producer} at offset {last}, but the slice does not "
                "contain this marker"
            )
            findings.append(Finding(FOOTER, key, message, position=claim.position, offset=last + claim.shift))
    if bool(len(entry.aborted)) != bool(claim.flags & SliceFlag.KAFKA_ABORTED):
        message = "flag 16 of the slice contradicts the aborted transactions in the footer"
        findings.append(Finding(FOOTER, key, message, position=claim.position, offset=claim.base))
    return findings


_LABELS = {"nbytes": "size", "crc": "CRC-32C", "offsets": "end offset", "min_ts": "minTs", "max_ts": "maxTs"}
_INDEX_COLUMNS = ("position", "offset", "max_ts")
