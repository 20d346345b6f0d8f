"""Where a read of several partitions ends, so that it has all of each transaction or none of it.

The last stable offset is a partition's own: a transaction that is open in one partition hides what others committed
behind it there, and nowhere else. A reader that went up to it everywhere would see such a transaction in part. So ends
are taken back to where a cut transaction begins, in all its partitions and topics, until none is cut. This never takes
an end back below one that was given before for the same topics: what lay wholly below the ends then still does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparklog.log.head import Offsets
from sparklog.log.slice_table import COMMITTED, Slices
from sparklog.log.snapshot import Snapshot

__all__ = ["whole_ends"]

Cut = tuple[str, int]


def whole_ends(snapshots: Mapping[str, Snapshot]) -> dict[str, Offsets]:
    """Per topic and partition, where a read_committed read of all these snapshots ends."""
    ends = {name: snapshot.head.last_stable() for name, snapshot in snapshots.items()}
    if not any(snapshot.head.open for snapshot in snapshots.values()):
        return ends
    ends = {name: offsets.copy() for name, offsets in ends.items()}
    rows = {name: _committed(snapshot) for name, snapshot in snapshots.items()}
    done: set[Cut] = set()
    while cut := {found for name, part in rows.items() for found in _cut(part, ends[name])} - done:
        done |= cut
        for name, part in rows.items():
            for row in range(len(part)):
                if (part.txn_id(row), int(part.txn_n[row])) in cut:
                    partition = int(part.partition[row])
                    ends[name][partition] = min(ends[name][partition], int(part.base[row]))
    return {name: np.maximum(found, snapshots[name].head.log_start) for name, found in ends.items()}


def _committed(snapshot: Snapshot) -> Slices:
    """Slices of committed transactions that no merge has taken up."""
    rows = snapshot.slices.all()
    return rows[np.flatnonzero(rows.status == COMMITTED)]


def _cut(rows: Slices, ends: Offsets) -> set[Cut]:
    """Transactions with a slice beyond the end of its partition."""
    return {
        (rows.txn_id(row), int(rows.txn_n[row])) for row in np.flatnonzero(rows.end > ends[rows.partition]).tolist()
    }
