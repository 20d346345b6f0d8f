"""Filters of keys next to data files: sound, of the right slices, and holding every key.

A look-up reads a slice whose filter is missing or damaged, so that no record is lost. A filter that denies a key which
the slice has would hide it: each key is held against the filter, as slices are decoded anyway.
"""

from __future__ import annotations

from collections.abc import Container

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format.key_filter import KeyFilter, decode_filters
from sparklog.log.journal.names import filter_path
from sparklog.log.state.slices import SliceFlag
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import INDEX, MISSING, CheckCounts, Finding
from sparklog.tools.verification.index_files import CollectedBatches
from sparklog.tools.verification.slice_checks import CheckedFile, NamedFile, SliceClaim

WITHOUT_FILTER = "restore it from a backup, or delete it; no record is lost, look-ups by key read more without it"
DENIES = "the filter denies keys that the slice has, so that look-ups do not find them"


def missing_filters(store: Store, file: NamedFile, listed: Container[str]) -> list[Finding]:
    """Find out if the filters beside a file are missing, in a listing (`listed`) and by now."""
    key = filter_path(file.key)
    gone = file.filtered and key not in listed and store.stat(key) is None
    # The vacuum may have deleted it with its file.
    return [_missing(key)] if gone and store.stat(file.key) is not None else []


def _missing(key: str) -> Finding:
    return Finding(MISSING, key, "expected filters of keys beside the file, found none", WITHOUT_FILTER)


def take_filters(checked: CheckedFile) -> CheckCounts:
    """Read the filters beside a file into `checked.filters`, those of slices that versions name."""
    file, key = checked.file, filter_path(checked.file.key)
    if not file.filtered:
        return CheckCounts()
    try:
        data = checked.store.get(key)
    except NotFound:
        if checked.store.stat(file.key) is None:
            raise
        checked.findings.append(_missing(key))
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
            if stored is not None and _is_of(stored, claim):
                checked.filters[claim.position] = stored
            else:
                message = f"expected a filter of the slice at byte {claim.position}, found none"
                checked.findings.append(Finding(INDEX, key, message, WITHOUT_FILTER, offset=claim.base))
    return counts


def _is_of(stored: KeyFilter, claim: SliceClaim) -> bool:
    return (stored.nbytes, stored.crc) == (claim.size, claim.crc)


def batches_of(checked: CheckedFile, claim: SliceClaim) -> CollectedBatches:
    """Return what collects the batches of a slice, and its keys where it has a filter."""
    return CollectedBatches(filter=checked.filters.get(claim.position))


def against_filter(checked: CheckedFile, claim: SliceClaim, batches: CollectedBatches) -> list[Finding]:
    if not batches.keys_beyond_filter():
        return []
    return [Finding(INDEX, filter_path(checked.file.key), DENIES, WITHOUT_FILTER, offset=claim.base)]
