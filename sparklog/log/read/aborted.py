"""Find Kafka's aborted transactions, whose records a `read_committed` read of imported data must skip.

An ABORT marker can be far after the records that it aborts. Therefore, all slices with ABORT markers
(`SliceFlag.KAFKA_ABORTED`) after the start of the range are relevant, not only the slices in the range. A segment
stores the aborted transactions in its `.txnindex`, and an append file stores them in its footer. As in Kafka, the
search stops at the first marker after which all transactions that began before the end of the range have ended. These
files never change, so each process reads them once. Slices without ABORT markers, and therefore native topics, do not
require requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from sparklog.errors import Corrupt, NotFound, Unavailable
from sparklog.format import transaction_index
from sparklog.format.checksums import SUFFIXES, index_crc
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.read.planned_slices import PlannedSlice, planned_slices
from sparklog.log.read.slice_files import MissingFile, entry_of, read_footer
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import SliceFlag
from sparklog.storage.fork_safety import ForkLock, RecentlyUsed
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.store import Store

Aborted = AbortedTransactions | None

_FLAG = int(SliceFlag.KAFKA_ABORTED)
FILES_PER_READ = 16
"""Number of files to read before checking whether the search can stop."""

_Cache = RecentlyUsed[tuple[str, int], AbortedTransactions]

_CACHES: WeakKeyDictionary[Store, _Cache] = WeakKeyDictionary()
_CACHES_LOCK = ForkLock()


def aborted_ranges(store: Store, topic: str, table: SliceTable, partition: int, start: int, end: int) -> Aborted:
    """Return the aborted transactions with offsets in `[start, end)`.

    Raises `Unavailable` if a file no longer exists.
    """
    slices = table.select(partition, start)
    marked = slices[(slices.flags & _FLAG) != 0]
    if not len(marked):
        return None
    planned, crcs = planned_slices(topic, partition, marked), marked.columns["index_crc"].tolist()
    cache = _cache_of(store)
    aborted: list[AbortedTransactions] = []
    try:
        for first in range(0, len(planned), FILES_PER_READ):
            rows = slice(first, first + FILES_PER_READ)
            aborted += _read(store, planned.rows(first, first + FILES_PER_READ), crcs[rows], cache)
            if int(aborted[-1].last_stable_offsets.max()) >= end:
                break
    except MissingFile as missing:
        raise Unavailable(f"{missing.file} was replaced and deleted after the snapshot was read; retry") from None
    ranges = transaction_index.concatenate(aborted).overlapping(start, end)
    return ranges if len(ranges) else None


def _cache_of(store: Store) -> _Cache:
    with _CACHES_LOCK:
        cache = _CACHES.get(store)
        if cache is None:
            cache = _CACHES[store] = RecentlyUsed(lambda entries: transaction_index.ENTRY_BYTES * len(entries))
        return cache


def _read(
    store: Store, slices: Sequence[PlannedSlice], crcs: Sequence[int], cache: _Cache
) -> list[AbortedTransactions]:
    by_row = {
        i: entries for i, one in enumerate(slices) if (entries := cache.get((one.file, one.position))) is not None
    }
    missing = [i for i in range(len(slices)) if i not in by_row]
    results = map_requests(store, lambda i: aborted_of(store, slices[i], crcs[i]), missing)
    for i, entries in zip(missing, results, strict=True):
        cache.put((slices[i].file, slices[i].position), entries)
        by_row[i] = entries
    return [by_row[i] for i in range(len(slices))]


def aborted_of(store: Store, planned: PlannedSlice, crc: int = 0) -> AbortedTransactions:
    """Return the aborted transactions whose ABORT markers are in a slice.

    Args:
        crc: The CRC-32C of the segment's three index files, as stored in the segment's commit, or 0 if it is unknown.

    Raises:
        Corrupt: If the entries are damaged.
        MissingFile: If the file of the slice does not exist.
    """
    entries = _from_append_file(store, planned) if planned.footer_length else _from_segment(store, planned, crc)
    last = entries.last_offsets
    if not len(entries) or int(last.min()) < planned.base or int(last.max()) >= planned.end:
        raise Corrupt(
            f"expected aborted transactions with markers at offsets {planned.base} to {planned.end - 1}, found "
            f"{len(entries)} transactions with other markers: restore the file",
            file=planned.file,
        )
    return entries


def _from_segment(store: Store, planned: PlannedSlice, crc: int) -> AbortedTransactions:
    """Read the `.txnindex` and verify it, because a wrong entry would make aborted records visible.

    The commit contains one checksum for all three index files, so the other two files are also read.
    """
    name = planned.file.removesuffix("log")
    key = f"{name}txnindex"
    try:
        data = store.get(key)
        entries = transaction_index.parse(data, planned.base, file=key)
        index, timeindex = (read_if_there(store, name + suffix) or b"" for suffix in SUFFIXES[:2])
        if crc and index_crc(index, timeindex, data) != crc:
            message = "the segment's index files do not match the CRC-32C in its commit, so aborted records are unknown"
            raise Corrupt(f"{message}: run sparklog repair", file=key)
        return entries
    except NotFound:
        if store.stat(planned.file) is None:
            raise MissingFile(planned.file) from None
    raise Corrupt("the segment has no transaction index: restore the index", file=key)


def _from_append_file(store: Store, planned: PlannedSlice) -> AbortedTransactions:
    entry = entry_of(read_footer(store, planned), planned)
    if entry is None:
        raise Corrupt(
            "the footer does not contain the slice with the aborted transactions: restore the file",
            file=planned.file,
            position=planned.position,
        )
    return replace(entry.aborted, last_offsets=entry.aborted.last_offsets + np.int64(planned.shift))
