"""Atomic bounds: ends of a read of several partitions, so that it has all of each transaction or none of it.

A transaction that is open in one partition hides later transactions there, behind the last stable offset, and in no
other partition. A reader that went up to that offset everywhere would see such a transaction in part: it is cut. So
ends are taken back to where a cut transaction begins, in all its partitions and topics, until none is cut. No end goes
below one that was returned before for the same topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sparklog.log.state.commit import Txn
from sparklog.log.state.slice_table import COMMITTED, Slices
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.state.topic_state import Head, Offsets, Prepare

Cut = tuple[str, int]


def whole_ends(snapshots: Mapping[str, Snapshot]) -> dict[str, Offsets]:
    """Return the ends, per topic and partition, of a read_committed read of all these snapshots."""
    heads = {name: snapshot.head for name, snapshot in snapshots.items()}
    if not any(_hides(head) for head in heads.values()):
        return {name: head.last_stable() for name, head in heads.items()}
    return _whole(heads, {name: _committed(snapshot.slices.all()) for name, snapshot in snapshots.items()})


def own_whole_ends(head: Head, slices: Slices) -> Offsets:
    """Return the same of one topic, from all its slices: maintenance leaves alone what lies behind."""
    return _whole({"": head}, {"": _committed(slices)})[""] if _hides(head) else head.last_stable()


def _hides(head: Head) -> bool:
    """True if a transaction is open, also one that Kafka left open in an import."""
    return bool((head.last_stable() < head.log_end).any())


def held_back(snapshot: Snapshot, ends: Offsets) -> Snapshot:
    """Return the snapshot as if a transaction were open from these ends on: for planning, which leaves that alone."""
    head = snapshot.head
    below = np.flatnonzero(ends < head.last_stable()).tolist()
    if not below:
        return snapshot
    first = {partition: int(ends[partition]) for partition in below}
    last = {partition: int(head.log_end[partition]) for partition in below}
    hidden = Prepare(Txn("", 0), head.version, "", head.made_ms, first, last)
    return replace(snapshot, head=replace(head, open=(*head.open, hidden)))


def _whole(heads: Mapping[str, Head], rows: Mapping[str, Slices]) -> dict[str, Offsets]:
    ends = {name: head.last_stable().copy() for name, head in heads.items()}
    done: set[Cut] = set()
    while cut := {each for name, part in rows.items() for each in _cut(part, ends[name])} - done:
        done |= cut
        for name, part in rows.items():
            for row in np.flatnonzero(np.isin(part.txn_n, [n for _, n in cut])).tolist():
                if (part.txn_id(row), int(part.txn_n[row])) in cut:
                    partition = int(part.partition[row])
                    ends[name][partition] = min(ends[name][partition], int(part.base[row]))
    return {name: np.maximum(end, heads[name].log_start) for name, end in ends.items()}


def _committed(rows: Slices) -> Slices:
    """Return slices of committed transactions that no merge has taken up."""
    return rows[np.flatnonzero(rows.status == COMMITTED)]


def _cut(rows: Slices, ends: Offsets) -> set[Cut]:
    """Return transactions with a slice beyond the end of its partition."""
    return {
        (rows.txn_id(row), int(rows.txn_n[row])) for row in np.flatnonzero(rows.end > ends[rows.partition]).tolist()
    }
