"""`.txnindex` files: the aborted transactions whose ABORT marker is in a segment.

| bytes | field            | meaning |
|------:|------------------|---|
|     2 | version          | 0 |
|     8 | producerId       | |
|     8 | firstOffset      | base offset of the transaction's first batch in the partition (or in an earlier segment) |
|     8 | lastOffset       | offset of the ABORT marker |
|     8 | lastStableOffset | first offset of the earliest other transaction open at that time, else lastOffset + 1 |

An entry has 34 bytes. Integers are big-endian, offsets are absolute, and lastOffset strictly increases. The file exists
only if it has at least one entry. The ABORT marker of a transaction without data in the partition and COMMIT markers do
not add entries.

The file has no checksum, and a wrong entry would hide committed records. Therefore the file is used only if each of its
entries belongs to an ABORT marker of the log (`AbortMarker`). Reads in place also use entries whose markers are damaged
(`sparklog.kafka.in_place.transaction_state`). Missing entries are derived from the markers. The file can contain
information that the log does not contain. If the cleaner has removed the first batches of a transaction, only the file
contains the first offset. Only the file records which other transaction was open when a transaction ended.
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
    """Aborted transactions, sorted by `last_offsets`, which contains the offsets of their markers. Each array is
    int64[n].

    A transactional data batch of producer p at offset o is aborted if and only if an entry has producer p and first <=
    o <= last.
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
        """Return bool[n], which is True for each batch that is aborted.

        Producer ids and offsets of the batches are int64[n] each.

        The batches must be transactional data batches.
        """
        covered = np.zeros(len(offsets), np.bool_)
        if not len(offsets) or not len(self):
            return covered
        near = self.overlapping(int(offsets.min()), int(offsets.max()) + 1)
        # The transactions of a producer do not overlap, so only the first transaction that ends at or after a batch can
        # contain the batch. Sort transactions and batches together to find the next transaction for each batch.
        entries = len(near)
        ids = np.concatenate((near.producer_ids, producer_ids))
        none = len(ids)
        order = np.lexsort((np.arange(none) < entries, np.concatenate((near.last_offsets, offsets)), ids))
        rank = np.where(order < entries, np.arange(none), none)
        following = np.minimum.accumulate(rank[::-1])[::-1]
        entry = np.empty(none, np.int64)
        entry[order] = np.where(following < none, order[np.minimum(following, none - 1)], entries)
        candidates = entry[entries:]
        firsts, owners = np.append(near.first_offsets, 0)[candidates], np.append(near.producer_ids, -1)[candidates]
        covered |= (candidates < entries) & (owners == producer_ids) & (firsts <= offsets)
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

    Raises `Corrupt` if the length is not a multiple of 34, a version is not 0, a marker is below `base`, entries are
    out of order, or an entry ends before it begins.
    """
    if len(data) % ENTRY_BYTES:
        raise Corrupt(
            f"the size of a transaction index must be a multiple of 34 bytes, found {len(data)}; {REMEDY}", file=file
        )
    entries = np.frombuffer(data, ENTRY)
    index = AbortedTransactions(*(entries[field].astype(np.int64) for field in _FIELDS))
    wrong = (entries["version"] != VERSION) | (index.last_offsets < base) | (index.first_offsets > index.last_offsets)
    wrong[1:] |= np.diff(index.last_offsets) <= 0
    if wrong.any():
        raise Corrupt(
            "entries of a transaction index must have version 0 and ascending markers from the base offset; " + REMEDY,
            file=file,
            position=int(np.argmax(wrong)) * ENTRY_BYTES,
        )
    return index


@dataclass(frozen=True, slots=True)
class AbortMarker:
    """An ABORT marker of a log, with the fields of its `.txnindex` entry.

    * `first`: first offset of its transaction, or -1 if no batch of the transaction has been read
    * `last`: offset of the marker
    * `last_stable`: last stable offset, as in the entry
    * `after`: offset of the previous marker of the producer, or -1 if there is none
    """

    producer_id: int
    first: int
    last: int
    last_stable: int
    after: int


def matches_markers(index: AbortedTransactions, markers: Sequence[AbortMarker]) -> bool:
    """Return True if each entry of a segment's index has a marker in the segment, and does not include an earlier
    marker.
    """
    earlier = {(marker.producer_id, marker.last): marker.after for marker in markers}
    entries = zip(index.producer_ids.tolist(), index.last_offsets.tolist(), index.first_offsets.tolist(), strict=True)
    return all((producer, last) in earlier and first > earlier[producer, last] for producer, last, first in entries)


def merge_markers(indexed: Sequence[AbortedTransactions], markers: Sequence[AbortMarker]) -> AbortedTransactions:
    """Return the aborted transactions of indexes and markers.

    If a marker has two entries, the entry that begins earlier is used. If both entries begin at the same offset, the
    entry of the index is used.
    """
    seen = np.array([(m.producer_id, m.first, m.last, m.last_stable) for m in markers if m.first != -1], np.int64)
    columns = seen.reshape(-1, 4).T
    every = concatenate([*indexed, AbortedTransactions(*columns)])
    order = np.lexsort((np.arange(len(every)), every.first_offsets, every.last_offsets))
    is_duplicate = np.zeros(len(order), np.bool_)
    is_duplicate[1:] = np.diff(every.last_offsets[order]) == 0
    return every.select(order[~is_duplicate])
