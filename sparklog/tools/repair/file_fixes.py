"""Fixes of data files and their auxiliary files, which are rebuilt from record batches with valid checksums.

| object                              | is rebuilt from                                                                |
|-------------------------------------|--------------------------------------------------------------------------------|
| any object                          | its own bytes, if one flipped bit explains a wrong checksum                    |
| `.index`, `.timeindex`, `.txnindex` | the batches of the segment, as in Kafka's recovery (`LogSegment.recover`)      |
| `.bloom`                            | the keys of the slices that have a filter                                      |
| footer of an append file            | the slices and their descriptions in commits, if these cover the entire file   |

The commit contains a checksum of the segment's index files. The indexes are rebuilt from the batches for each value of
`index.interval.bytes`. If the rebuilt indexes match the checksum, they are equal to the original indexes. If no value
results in this checksum, new indexes with valid entries are written. For example, an imported index may have been
written by a follower and contain entries for several batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np

from sparklog.compaction.producer_state import replay
from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format.append_file import WrittenSlice, build_index, decode_footer, encode_footer
from sparklog.format.checksums import SUFFIXES, index_crc
from sparklog.format.key_filter import FilterBuilder, encode_filters
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.format.slice_columns import WRITTEN
from sparklog.format.transaction_index import AbortedTransactions, none
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.journal.names import filter_path, is_commit
from sparklog.log.read.planned_slices import planned_slices
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.inventory import ReferencedFile, SliceClaim
from sparklog.maintenance.work_items import silent
from sparklog.storage.store import Store
from sparklog.tools.repair.fixes import Fix, Patch
from sparklog.tools.repair.log_fixes import is_valid
from sparklog.tools.verification.data_file import check_file
from sparklog.tools.verification.findings import SIZE, Finding
from sparklog.tools.verification.slice_checks import CheckedFile, CollectedBatches, TruncatedFile, check_index, walk

MAX_INTERVALS = 500
MAX_BATCHES = 10_000
"""Maximum number of batches of a segment for which all values of `index.interval.bytes` are tried."""


def fix_flipped_bits(store: Store, key: str, findings: Sequence[Finding]) -> Fix | None:
    """Return the fix of an object if single flipped bits explain all checksum mismatches. Otherwise return None."""
    info = store.stat(key)
    bits = {(finding.position or 0, finding.bit) for finding in findings if finding.bit is not None}
    if info is None:
        return None
    patches: list[Patch] = []
    for position, bit in sorted(bits):
        if byte := store.get(key, position, 1):
            patches.append((position, bytes([byte[0] ^ 1 << bit])))
    how = f"corrected by flipping {'one bit' if len(patches) == 1 else f'{len(patches)} bits'} back"
    return Fix(key, how, info.size, tuple(patches)) if patches else None


@dataclass(slots=True)
class FileFixes:
    """The fixes of a data file and its auxiliary files.

    `topic` is the latest state of the topic, or None if it cannot be rebuilt.
    """

    store: Store
    file: ReferencedFile
    topic: Snapshot | None

    def fixes(self, damaged: Sequence[str]) -> list[Fix]:
        """Return the fixes of the damaged objects. Each object is the data file or an auxiliary file."""
        fixes: list[Fix | None] = []
        if self.file.key in damaged:
            fixes.append(self._truncation() or self._footer())
        if filter_path(self.file.key) in damaged:
            fixes.append(self._filters())
        suffixes = [suffix for suffix in SUFFIXES if self.file.sealed and self.file.index_key(suffix) in damaged]
        if suffixes:
            fixes += self._indexes(suffixes)
        return [replace(fix, damaged=(fix.key,)) for fix in fixes if fix is not None]

    def _batches(self, claim: SliceClaim, *, keyed: bool = False) -> CollectedBatches | None:
        """Return the batches of a slice, including the keys if `keyed` is True. Return None if the slice is corrupt."""
        checked, batches = CheckedFile(self.store, self.file, silent), CollectedBatches()
        batches.keys = FilterBuilder() if keyed else None
        try:
            return None if walk(checked, claim, batches) is None else batches
        except (TruncatedFile, NotFound):
            return None

    # -- data file

    def _truncation(self) -> Fix | None:
        """Return the fix of a file with extra bytes after valid contents. Return None if the contents are corrupt."""
        info = self.store.stat(self.file.key)
        if info is None or info.size <= self.file.size:
            return None
        findings = check_file(self.store, self.file, silent).findings
        if any(finding.file == self.file.key and finding.kind != SIZE for finding in findings):
            return None
        return Fix(self.file.key, f"truncated to the {self.file.size} bytes that commits describe", self.file.size)

    def _footer(self) -> Fix | None:
        file, info = self.file, self.store.stat(self.file.key)
        start = file.size - file.footer_length
        if file.sealed or info is None or info.size < start or self._has_footer(start):
            return None
        claims = sorted({claim.position: claim for claim in file.claims}.values(), key=lambda claim: claim.position)
        ends = [claim.position + claim.size for claim in claims]
        if [*ends[-1:]] != [start] or [claim.position for claim in claims[1:]] != ends[:-1]:
            return None
        slices = [self._written(claim) for claim in claims]
        footer = encode_footer([written for written in slices if written is not None])
        if None in slices or len(footer) != file.footer_length:
            return None
        fix = Fix(file.key, "repaired with a footer that was rebuilt from the slices", file.size, ((start, footer),))
        if is_commit(f"/{file.key}"):
            data = fix.patched(0, self.store.get(file.key).ljust(file.size, b"\0"))
            return fix if is_valid(file.key, data) else None
        return fix

    def _has_footer(self, start: int) -> bool:
        """Return True if the footer of the file is intact. In this case, a commit that contradicts the footer may be
        wrong.
        """
        file, key = self.file, self.file.key
        try:
            decode_footer(self.store.get(key, start, file.footer_length), file_size=file.size, file=key)
        except (Corrupt, BadRequest, NotFound):
            return False
        return True

    def _written(self, claim: SliceClaim) -> WrittenSlice | None:
        batches = self._batches(claim)
        if batches is None:
            return None
        columns = batches.columns()
        values = {name: getattr(claim, column) for name, column in WRITTEN.items()}
        values["offsets"] = claim.end - claim.shift
        if claim.append_time >= 0:
            values |= {"min_ts": int(columns.stamp.min()), "max_ts": int(columns.stamp.max())}
        aborted = self._aborted(claim) if claim.flags & SliceFlag.KAFKA_ABORTED else none()
        if aborted is None:
            return None
        index = build_index(columns.position, columns.base, columns.stamp, claim.size)
        shifted = AbortedTransactions(
            aborted.producer_ids, aborted.first_offsets, aborted.last_offsets - claim.shift, aborted.last_stable_offsets
        )
        return WrittenSlice(**values, index=index, aborted=shifted)

    def _aborted(self, claim: SliceClaim) -> AbortedTransactions | None:
        """Return the transactions whose ABORT markers are in a slice, or None if the log cannot be read."""
        if self.topic is None:
            return None
        rows = self.topic.slices.select(claim.partition)
        state = self.topic.state
        planned = planned_slices(self.topic.topic, claim.partition, rows)
        start, end = int(state.log_start[claim.partition]), int(state.log_end[claim.partition])
        try:
            every = replay(self.store, planned, end, start, indexes=False).aborted
        except (Corrupt, NotFound):
            return None
        return every.select((every.last_offsets >= claim.base) & (every.last_offsets < claim.end))

    # -- auxiliary files

    def _filters(self) -> Fix | None:
        filters = []
        for claim in sorted(self.file.claims, key=lambda claim: claim.position):
            if claim.flags & SliceFlag.KEY_FILTER:
                batches = self._batches(claim, keyed=True)
                keys = None if batches is None or batches.keys is None else batches.keys
                filter_ = None if keys is None else keys.finish(claim.position, claim.size, claim.crc)
                if filter_ is None:
                    return None
                filters.append(filter_)
        unique = list({filter_.position: filter_ for filter_ in filters}.values())
        return Fix.rewrite(filter_path(self.file.key), "rebuilt from the keys of the slices", encode_filters(unique))

    def _indexes(self, suffixes: Sequence[str]) -> Iterator[Fix]:
        claim = self.file.claims[0]
        batches = self._batches(claim)
        if batches is None:
            return
        segment = _Segment(self, claim, batches)
        built = segment.with_checksum() or segment.with_right_entries(suffixes)
        for suffix, data in built.items():
            if data != segment.stored[suffix]:
                yield Fix.rewrite(self.file.index_key(suffix), "rebuilt from the segment", data)


class _Segment:
    """The stored index files of a sealed segment, and the index files that can be rebuilt from its batches."""

    def __init__(self, fixes: FileFixes, claim: SliceClaim, batches: CollectedBatches) -> None:
        self.file = fixes.file
        self.base = int(self.file.key.rsplit("/", 1)[-1][:20])
        self.batches = batches
        columns = batches.columns()
        self.position, self.last, self.stamp = columns.position, columns.last, columns.stamp
        self.stored = {suffix: read_if_there(fixes.store, self.file.index_key(suffix)) for suffix in SUFFIXES}
        aborted = fixes._aborted(claim) if batches.aborts else none()
        self.txnindex = None if aborted is None else aborted.to_bytes()
        topic = fixes.topic
        self.interval = 4096 if topic is None else topic.state.configs.index_interval_bytes

    def with_checksum(self) -> dict[str, bytes]:
        """Return the stored or rebuilt files that have the checksum in the commit, or an empty dict."""
        index, timeindex = self.stored["index"], self.stored["timeindex"]
        transactions = [data for data in (self.txnindex, self.stored["txnindex"], b"") if data is not None]
        for interval in self._intervals():
            offsets, times = build_indexes(self.base, self.batches, interval)
            options = ([offsets, index], [times, timeindex], transactions)
            distinct = (dict.fromkeys(data for data in versions if data is not None) for versions in options)
            for contents in product(*distinct):
                if index_crc(*contents) == self.file.index_crc:
                    files = zip(SUFFIXES, contents, strict=True)
                    return {suffix: data for suffix, data in files if suffix != "txnindex" or data}
        return {}

    def with_right_entries(self, suffixes: Sequence[str]) -> dict[str, bytes]:
        """Return new contents for the files with these `suffixes` that are missing or contain invalid entries."""
        offsets, times = build_indexes(self.base, self.batches, self.interval)
        new = {"index": offsets, "timeindex": times}
        if self.txnindex is not None and self.batches.aborts:
            new["txnindex"] = self.txnindex
        return {suffix: data for suffix, data in new.items() if suffix in suffixes and self._has_wrong_entries(suffix)}

    def _has_wrong_entries(self, suffix: str) -> bool:
        data = self.stored[suffix]
        if data is None or (suffix == "txnindex" and len(data) != len(self.txnindex or b"")):
            return True
        return bool(check_index(suffix, data, self.base, self.batches, file=self.file.index_key(suffix)))

    def _intervals(self) -> Iterator[int]:
        """Yield the values of `index.interval.bytes` that result in different indexes, starting with likely values."""
        yield from dict.fromkeys((self.interval, 4096))
        if len(self.position) <= MAX_BATCHES:
            yield from islice(_distinct_intervals(self.position), MAX_INTERVALS)


def _distinct_intervals(positions: np.ndarray) -> Iterator[int]:
    """Yield the smallest interval that results in each possible index of batches at these positions, in ascending
    order.
    """
    interval = 0
    while True:
        yield interval
        # Find the next larger interval for which the index omits a batch that is in the current index.
        last, following = 0, 2**62
        while (row := int(np.searchsorted(positions, last + interval, side="right"))) < len(positions):
            following = min(following, int(positions[row]) - last)
            last = int(positions[row])
        if following == 2**62:
            return
        interval = following


def build_indexes(base: int, batches: CollectedBatches, interval: int) -> tuple[bytes, bytes]:
    """Return the bytes of `.index` and `.timeindex` of a closed segment, as Kafka's recovery writes them."""
    position, _, last, stamp, _ = batches.columns()
    offsets = OffsetIndex.build(base, position, last, interval)
    return offsets.to_bytes(), TimeIndex.build(base, position, last, stamp, interval).to_bytes()
