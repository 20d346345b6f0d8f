"""Kafka's aborted transactions that hide records from a `read_committed` plan of imported data.

An ABORT marker can be far after the records it takes back, so the answer always comes from the whole snapshot, never
from the range that is read: from the slices that hold ABORT markers (`SliceFlag.KAFKA_ABORTED`), from the range's start
on. A segment has a `.txnindex` beside it, an append file has the same in its footer. As with Kafka, going on ends at
the first marker before which everything that began below the range's end had ended. Such files never change: each is
read once in a process. Other slices, and so native topics, cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from sparklog.errors import Corrupt, NotFound, Unavailable
from sparklog.format import transaction_index
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.read.fetch import MissingFile, entry_of, read_footer
from sparklog.log.read.planned_slices import PlannedSlice, planned_slices
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import SliceFlag
from sparklog.storage.fork_safety import ForkLock, RecentlyUsed
from sparklog.storage.parallel_reads import ask_each
from sparklog.storage.store import Store

Aborted = AbortedTransactions | None

_FLAG = int(SliceFlag.KAFKA_ABORTED)
FILES_AT_ONCE = 16
"""Files read before the next look at whether that is enough."""

_Cache = RecentlyUsed[tuple[str, int], AbortedTransactions]

_CACHES: WeakKeyDictionary[Store, _Cache] = WeakKeyDictionary()
_CACHES_LOCK = ForkLock()


def aborted_ranges(store: Store, topic: str, table: SliceTable, partition: int, start: int, end: int) -> Aborted:
    """Return the aborted transactions that matter to offsets `[start, end)`. `Unavailable` if a file is gone."""
    slices = table.select(partition, start)
    marked = slices[(slices.flags & _FLAG) != 0]
    if not len(marked):
        return None
    planned = planned_slices(topic, partition, marked)
    cache = _cache_of(store)
    aborted: list[AbortedTransactions] = []
    try:
        for first in range(0, len(planned), FILES_AT_ONCE):
            aborted += _read(store, planned.rows(first, first + FILES_AT_ONCE), cache)
            if int(aborted[-1].last_stable_offsets.max()) >= end:
                break
    except MissingFile as missing:
        raise Unavailable(
            f"{missing.file} is gone: it was replaced and deleted after the snapshot was taken that is read; try again"
        ) from None
    ranges = transaction_index.concatenate(aborted).overlapping(start, end)
    return ranges if len(ranges) else None


def _cache_of(store: Store) -> _Cache:
    with _CACHES_LOCK:
        cache = _CACHES.get(store)
        if cache is None:
            cache = _CACHES[store] = RecentlyUsed(lambda entries: transaction_index.ENTRY_BYTES * len(entries))
        return cache


def _read(store: Store, slices: Sequence[PlannedSlice], cache: _Cache) -> list[AbortedTransactions]:
    by_row = {
        i: entries for i, one in enumerate(slices) if (entries := cache.get((one.file, one.position))) is not None
    }
    missing = [i for i in range(len(slices)) if i not in by_row]
    answers = ask_each(store, lambda i: aborted_of(store, slices[i]), missing)
    for i, entries in zip(missing, answers, strict=True):
        cache.put((slices[i].file, slices[i].position), entries)
        by_row[i] = entries
    return [by_row[i] for i in range(len(slices))]


def aborted_of(store: Store, planned: PlannedSlice) -> AbortedTransactions:
    """Return the transactions whose ABORT markers are in a slice. `Corrupt`; `MissingFile` if its file is gone."""
    entries = _of_append_file(store, planned) if planned.footer_length else _of_segment(store, planned)
    last = entries.last_offsets
    if not len(entries) or int(last.min()) < planned.base or int(last.max()) >= planned.end:
        raise Corrupt(
            f"expected the aborted transactions with markers at {planned.base} to {planned.end - 1}, found "
            f"{len(entries)} others: restore the file",
            file=planned.file,
        )
    return entries


def _of_segment(store: Store, planned: PlannedSlice) -> AbortedTransactions:
    key = f"{planned.file.removesuffix('.log')}.txnindex"
    try:
        return transaction_index.parse(store.get(key), planned.base, file=key)
    except NotFound:
        if store.stat(planned.file) is None:
            raise MissingFile(planned.file) from None
    raise Corrupt("expected a transaction index beside the segment, found none: restore it", file=key)


def _of_append_file(store: Store, planned: PlannedSlice) -> AbortedTransactions:
    entry = entry_of(read_footer(store, planned), planned)
    if entry is None:
        raise Corrupt(
            "expected the footer to name the slice whose transactions were aborted: restore the file",
            file=planned.file,
            position=planned.position,
        )
    return replace(entry.aborted, last_offsets=entry.aborted.last_offsets + np.int64(planned.shift))
