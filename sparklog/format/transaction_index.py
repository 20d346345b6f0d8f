"""`.txnindex`: the aborted transactions whose ABORT marker lies in a segment.

| bytes | field            | meaning |
|------:|------------------|---|
|     2 | version          | 0 |
|     8 | producerId       | |
|     8 | firstOffset      | base offset of the transaction's first batch in the partition (may lie segments earlier) |
|     8 | lastOffset       | offset of the ABORT marker |
|     8 | lastStableOffset | first offset of the earliest other transaction then open, else lastOffset + 1 |

Entries of 34 bytes, big-endian, all offsets absolute, lastOffset strictly increasing. The file exists only where a
segment has an entry. An ABORT marker of a transaction without data in the partition has no entry; COMMIT markers
never have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt

ENTRY_BYTES = 34
VERSION = 0

Int64Array = npt.NDArray[np.int64]

_ENTRY = np.dtype(
    [("version", ">i2"), ("producer", ">i8"), ("first", ">i8"), ("last", ">i8"), ("stable", ">i8")], align=False
)


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
        """The entries of a mask or an index array."""
        return AbortedTransactions(
            self.producer_ids[rows],
            self.first_offsets[rows],
            self.last_offsets[rows],
            self.last_stable_offsets[rows],
        )

    def overlapping(self, start: int, end: int) -> AbortedTransactions:
        """Those that can matter to offsets `[start, end)`."""
        return self.select((self.last_offsets >= start) & (self.first_offsets < end))

    def covers(self, producer_ids: Int64Array, offsets: Int64Array) -> npt.NDArray[np.bool_]:
        """For each (producer id, offset of a transactional data batch), in any order: is it aborted? Both int64[n];
        bool[n].
        """
        found = np.zeros(len(offsets), np.bool_)
        if not len(offsets) or not len(self):
            return found
        near = self.overlapping(int(offsets.min()), int(offsets.max()) + 1)
        # A producer's transactions do not overlap, so the first that ends at or behind a batch is the only candidate:
        # both are sorted together, and each batch looks at the next transaction behind it.
        entries = len(near)
        ids = np.concatenate((near.producer_ids, producer_ids))
        nowhere = len(ids)
        order = np.lexsort((np.arange(nowhere) < entries, np.concatenate((near.last_offsets, offsets)), ids))
        place = np.where(order < entries, np.arange(nowhere), nowhere)
        behind = np.minimum.accumulate(place[::-1])[::-1]
        entry = np.empty(nowhere, np.int64)
        entry[order] = np.where(behind < nowhere, order[np.minimum(behind, nowhere - 1)], entries)
        mine = entry[entries:]
        firsts, owners = np.append(near.first_offsets, 0)[mine], np.append(near.producer_ids, -1)[mine]
        found |= (mine < entries) & (owners == producer_ids) & (firsts <= offsets)
        return found

    def to_bytes(self) -> bytes:
        """Kafka's bytes."""
        entries = np.zeros(len(self), _ENTRY)
        entries["version"] = VERSION
        entries["producer"] = self.producer_ids
        entries["first"] = self.first_offsets
        entries["last"] = self.last_offsets
        entries["stable"] = self.last_stable_offsets
        return entries.tobytes()


def none() -> AbortedTransactions:
    """No aborted transactions."""
    empty = np.empty(0, np.int64)
    return AbortedTransactions(empty, empty, empty, empty)


def concatenate(parts: list[AbortedTransactions]) -> AbortedTransactions:
    """The entries of several segments in segment order, as one."""
    if not parts:
        return none()
    return AbortedTransactions(
        np.concatenate([part.producer_ids for part in parts]),
        np.concatenate([part.first_offsets for part in parts]),
        np.concatenate([part.last_offsets for part in parts]),
        np.concatenate([part.last_stable_offsets for part in parts]),
    )


def parse(data: bytes | bytearray | memoryview, base: int, *, file: str | None = None) -> AbortedTransactions:
    """Entries of a `.txnindex` file of the segment that starts at offset `base`.

    `Corrupt` if the length is no multiple of 34, a version is not 0, a marker lies below `base`, entries are out of
    order or an entry ends before it begins.
    """
    if len(data) % ENTRY_BYTES:
        raise Corrupt(
            f"a transaction index has a multiple of 34 bytes, this one has {len(data)}; rebuild it", file=file
        )
    entries = np.frombuffer(data, _ENTRY)
    found = AbortedTransactions(
        entries["producer"].astype(np.int64),
        entries["first"].astype(np.int64),
        entries["last"].astype(np.int64),
        entries["stable"].astype(np.int64),
    )
    wrong = (entries["version"] != VERSION) | (found.last_offsets < base) | (found.first_offsets > found.last_offsets)
    wrong[1:] |= np.diff(found.last_offsets) <= 0
    if wrong.any():
        raise Corrupt(
            "a transaction index has entries of version 0 with rising markers from the segment's base on; rebuild it",
            file=file,
            position=int(np.argmax(wrong)) * ENTRY_BYTES,
        )
    return found
