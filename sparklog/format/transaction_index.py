"""`.txnindex`: the aborted transactions whose ABORT marker is in a segment.

| bytes | field            | meaning |
|------:|------------------|---|
|     2 | version          | 0 |
|     8 | producerId       | |
|     8 | firstOffset      | base offset of the transaction's first batch in the partition (may be segments earlier)  |
|     8 | lastOffset       | offset of the ABORT marker |
|     8 | lastStableOffset | first offset of the earliest other transaction then open, else lastOffset + 1 |

Entries of 34 bytes, big-endian, all offsets absolute, lastOffset strictly increasing. The file exists only where a
segment has an entry. An ABORT marker of a transaction without data in the partition has no entry; COMMIT markers
never have one.

The file has no checksum, and a wrong entry makes committed records vanish. So it is believed only if each of its
entries belongs to an ABORT marker of the log (`AbortMarker`). Entries that it lacks are made from the markers. Yet a
file can know more than the log: where a transaction began whose first batches the cleaner has removed, and which other
transaction was open at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.format.record_batch import BoolArray, BytesLike, Int64Array
from sparklog.format.segment_indexes import REMEDY

VERSION = 0
_FIELDS = ("producer", "first", "last", "stable")
ENTRY = np.dtype([("version", ">i2"), *((name, ">i8") for name in _FIELDS)])
ENTRY_BYTES = ENTRY.itemsize


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Aborted transactions, ordered by `last_offsets` (the markers'); four int64[n].

    A transactional data batch of producer p at offset o is aborted iff an entry has producer p and first <= o <= last.
    """

    producer_ids: Int64Array
    first_offsets: Int64Array
    last_offsets: Int64Array
    last_stable_offsets: Int64Array

    def __len__(self) -> int:
        return len(self.producer_ids)

    def select(self, rows: npt.NDArray[Any]) -> AbortedTransactions:
        return AbortedTransactions(*(getattr(self, name)[rows] for name in _COLUMNS))

    def overlapping(self, start: int, end: int) -> AbortedTransactions:
        return self.select((self.last_offsets >= start) & (self.first_offsets < end))

    def covers(self, producer_ids: Int64Array, offsets: Int64Array) -> BoolArray:
        """Return which transactional data batches are aborted, bool[n], by producer id and offset (int64[n])."""
        covered = np.zeros(len(offsets), np.bool_)
        if not len(offsets) or not len(self):
            return covered
        near = self.overlapping(int(offsets.min()), int(offsets.max()) + 1)
        # A producer's transactions do not overlap, so the first that ends at or after a batch is the only candidate:
        # both are sorted together, and each batch looks at the next transaction after it.
        entries = len(near)
        ids = np.concatenate((near.producer_ids, producer_ids))
        nowhere = len(ids)
        order = np.lexsort((np.arange(nowhere) < entries, np.concatenate((near.last_offsets, offsets)), ids))
        place = np.where(order < entries, np.arange(nowhere), nowhere)
        following = np.minimum.accumulate(place[::-1])[::-1]
        entry = np.empty(nowhere, np.int64)
        entry[order] = np.where(following < nowhere, order[np.minimum(following, nowhere - 1)], entries)
        mine = entry[entries:]
        firsts, owners = np.append(near.first_offsets, 0)[mine], np.append(near.producer_ids, -1)[mine]
        covered |= (mine < entries) & (owners == producer_ids) & (firsts <= offsets)
        return covered

    def to_bytes(self) -> bytes:
        entries = np.zeros(len(self), ENTRY)
        entries["version"] = VERSION
        for field, name in zip(_FIELDS, _COLUMNS, strict=True):
            entries[field] = getattr(self, name)
        return entries.tobytes()


_COLUMNS = AbortedTransactions.__slots__


_EMPTY = np.empty(0, np.int64)
_NONE = AbortedTransactions(_EMPTY, _EMPTY, _EMPTY, _EMPTY)


def none() -> AbortedTransactions:
    return _NONE


def concatenate(parts: list[AbortedTransactions]) -> AbortedTransactions:
    """Join the entries of several segments, in segment order."""
    if not parts:
        return none()
    return AbortedTransactions(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


def parse(data: BytesLike, base: int, *, file: str | None = None) -> AbortedTransactions:
    """Parse a `.txnindex` file of the segment that starts at offset `base`.

    `Corrupt` if the length is no multiple of 34, a version is not 0, a marker is below `base`, entries are out of
    order or an entry ends before it begins.
    """
    if len(data) % ENTRY_BYTES:
        raise Corrupt(f"a transaction index has a multiple of 34 bytes, this one has {len(data)}; {REMEDY}", file=file)
    entries = np.frombuffer(data, ENTRY)
    index = AbortedTransactions(*(entries[field].astype(np.int64) for field in _FIELDS))
    wrong = (entries["version"] != VERSION) | (index.last_offsets < base) | (index.first_offsets > index.last_offsets)
    wrong[1:] |= np.diff(index.last_offsets) <= 0
    if wrong.any():
        raise Corrupt(
            "a transaction index has entries of version 0 with rising markers from the segment's base on; " + REMEDY,
            file=file,
            position=int(np.argmax(wrong)) * ENTRY_BYTES,
        )
    return index


@dataclass(frozen=True, slots=True)
class AbortMarker:
    """An ABORT marker at offset `last`; the fields with `first` are an entry of a `.txnindex`.

    `first`: where its transaction began, -1 if nothing of it was seen; `last_stable`: as in the entry; `after`: offset
    of the producer's marker before, -1: none.
    """

    producer_id: int
    first: int
    last: int
    last_stable: int
    after: int


def agrees(index: AbortedTransactions, markers: Sequence[AbortMarker]) -> bool:
    """Return True if each entry of a segment's index has its marker in the segment, and covers no earlier one."""
    earlier = {(marker.producer_id, marker.last): marker.after for marker in markers}
    entries = zip(index.producer_ids.tolist(), index.last_offsets.tolist(), index.first_offsets.tolist(), strict=True)
    return all((producer, last) in earlier and first > earlier[producer, last] for producer, last, first in entries)


def unite(indexed: Sequence[AbortedTransactions], markers: Sequence[AbortMarker]) -> AbortedTransactions:
    """Return all aborted transactions: of two entries for a marker the one that begins earlier, else the index's."""
    seen = np.array([(m.producer_id, m.first, m.last, m.last_stable) for m in markers if m.first != -1], np.int64)
    columns = seen.reshape(-1, 4).T
    every = concatenate([*indexed, AbortedTransactions(*columns)])
    order = np.lexsort((np.arange(len(every)), every.first_offsets, every.last_offsets))
    again = np.zeros(len(order), np.bool_)
    again[1:] = np.diff(every.last_offsets[order]) == 0
    return every.select(order[~again])
