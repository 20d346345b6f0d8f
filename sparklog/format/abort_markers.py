"""ABORT markers found in a log, against what `.txnindex` files say of them.

A `.txnindex` has no checksum, and a wrong entry makes committed records vanish. So a file is believed only if each of
its entries belongs to a marker that is there; what it lacks, the log itself tells. Yet a file can know more than the
log: where a transaction began whose first batches the cleaner has removed, and what else was open when it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparklog.format import transaction_index
from sparklog.format.transaction_index import AbortedTransactions


NONE = -1


@dataclass(frozen=True, slots=True)
class AbortMarker:
    """An ABORT marker at offset `last`; the fields with `first` are an entry of a `.txnindex`.

    `first`: where its transaction began, -1 if nothing of it was seen; `last_stable`: what else was open then;
    `after`: offset of the producer's marker before, -1: none.
    """

    producer_id: int
    first: int
    last: int
    last_stable: int
    after: int


def fits(index: AbortedTransactions, markers: Sequence[AbortMarker]) -> bool:
    """Whether each entry of a segment's index has its marker among the segment's, and covers no earlier one."""
    known = {(marker.producer_id, marker.last): marker.after for marker in markers}
    entries = zip(index.producer_ids.tolist(), index.last_offsets.tolist(), index.first_offsets.tolist(), strict=True)
    return all((producer, last) in known and first > known[producer, last] for producer, last, first in entries)


def united(indexed: Sequence[AbortedTransactions], markers: Sequence[AbortMarker]) -> AbortedTransactions:
    """All aborted transactions by marker: of two entries for one the one that begins earlier, then the index's."""
    seen = np.array([(m.producer_id, m.first, m.last, m.last_stable) for m in markers if m.first != NONE], np.int64)
    columns = seen.reshape(-1, 4).T
    every = transaction_index.concatenate([*indexed, AbortedTransactions(*columns)])
    order = np.lexsort((np.arange(len(every)), every.first_offsets, every.last_offsets))
    again = np.zeros(len(order), np.bool_)
    again[1:] = np.diff(every.last_offsets[order]) == 0
    return every.select(order[~again])
