"""A sealed segment and the index files beside it: Kafka's files, whose checksums stand in the commit."""

from __future__ import annotations

from collections.abc import Container

from sparklog.errors import NotFound
from sparklog.format import transaction_index
from sparklog.format.checksums import SUFFIXES, flipped_bit, index_crc
from sparklog.log.state.slices import SliceFlag
from sparklog.storage.store import Store
from sparklog.tools.verification.batches import Claim
from sparklog.tools.verification.findings import INDEX, MISSING, SIZE, Counts, Finding
from sparklog.tools.verification.index_files import (
    REBUILD,
    Batches,
    check_offset_index,
    check_time_index,
    check_transaction_index,
)
from sparklog.tools.verification.reading import Checked, DataFile, Progress, walk


def check_segment(store: Store, file: DataFile, checked: Checked, progress: Progress) -> None:
    """Check a sealed segment and the index files beside it; what is found and counted goes into `checked`."""
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


def missing_indexes(store: Store, file: DataFile, there: Container[str]) -> list[Finding]:
    """The index files that are not beside a sealed segment, neither `there`, in a listing, nor by now."""
    stem = file.key.removesuffix("log")
    keys = [f"{stem}{suffix}" for suffix in SUFFIXES if any(_needed(suffix, claim) for claim in file.claims)]
    gone = [key for key in keys if key not in there and store.stat(key) is None]
    # With its segment it may have gone by right.
    return [_no_index(key) for key in gone] if gone and store.stat(file.key) is not None else []


def _needed(suffix: str, claim: Claim) -> bool:
    return suffix != "txnindex" or bool(claim.flags & SliceFlag.KAFKA_ABORTED)


def _no_index(key: str) -> Finding:
    return Finding(MISSING, key, "expected an index beside the segment, found none", REBUILD)


def _check_indexes(store: Store, file: DataFile, claim: Claim, batches: Batches | None, checked: Checked) -> Counts:
    """`batches` None: the segment is damaged, only the checksum of its indexes can be looked at."""
    stem = file.key.removesuffix("log")
    found: dict[str, bytes] = {}
    for suffix in SUFFIXES:
        try:
            found[suffix] = store.get(f"{stem}{suffix}")
        except NotFound:
            if _needed(suffix, claim):
                if store.stat(file.key) is None:
                    raise
                checked.findings.append(_no_index(f"{stem}{suffix}"))
    counted = Counts(files=len(found), nbytes=sum(map(len, found.values())))
    whole = [found.get(suffix, b"") for suffix in SUFFIXES]
    if index_crc(*whole) == file.index_crc:
        return counted
    flip = _flipped(file, found, stem)
    if flip is not None:
        checked.findings.append(flip)
        return counted
    before = len(checked.findings)
    base = int(file.key.rsplit("/", 1)[-1][:20])
    if batches is not None:
        if "index" in found:
            checked.findings += check_offset_index(found["index"], base, batches, file=f"{stem}index")
        if "timeindex" in found:
            checked.findings += check_time_index(found["timeindex"], base, batches, file=f"{stem}timeindex")
        if "txnindex" in found:
            checked.findings += check_transaction_index(found["txnindex"], base, batches, file=f"{stem}txnindex")
    missing = any(finding.kind == MISSING and finding.file.startswith(stem) for finding in checked.findings)
    if len(checked.findings) == before and not missing:
        # Every entry is right: some must be missing. The time index ends with the greatest timestamp, so not there.
        entries = len(found.get("txnindex", b"")) // transaction_index.ENTRY_BYTES
        suspect = "txnindex" if batches is not None and entries < len(batches.aborts) else "index"
        message = (
            "the index files beside the segment do not match the CRC-32C that the commit gives for them: entries "
            "are missing"
        )
        checked.findings.append(Finding(INDEX, f"{stem}{suspect}", message, REBUILD, len(found.get(suspect, b""))))
    return counted


def _flipped(file: DataFile, found: dict[str, bytes], stem: str) -> Finding | None:
    """The one bit that explains it, where there is one."""
    data = [found.get(suffix, b"") for suffix in SUFFIXES]
    at = flipped_bit(sum(map(len, data)) + 8 * len(data), index_crc(*data), file.index_crc)
    if at is None:
        return None
    start = 0
    for suffix, each in zip(SUFFIXES, data, strict=True):
        start += 8
        if start <= at[0] < start + len(each):
            message = "the index files do not match the CRC-32C that the commit gives for them"
            return Finding(INDEX, f"{stem}{suffix}", message, REBUILD, at[0] - start, bit=at[1])
        start += len(each)
    return None
