"""Invariants that every topic satisfies at every version. They are checked before a commit is written.

`check_commit` checks a commit against the topic states before and after it. This check is cheap, and runs for every
commit. `check_state` checks an entire state, including its slices, for tests, the simulation and `verify`. Neither
function repeats the checks of `decode_commit` and `TopicState.apply`, such as the paths in a commit and its link to the
previous commit.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from sparklog.errors import BadRequest, Corrupt
from sparklog.log.state.commit import CREATE, IMPORT, Commit
from sparklog.log.state.slice_table import ABORTED, COMMITTED, OPEN, PLAIN, SliceTable
from sparklog.log.state.topic_state import TopicState

Check = Callable[[TopicState, Commit, TopicState], str | None]


def time_never_decreases(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """The commit time never decreases."""
    return None if commit.time_ms >= before.time_ms else f"time {commit.time_ms} is before {before.time_ms}"


def appends_are_dense(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """An appended slice starts at the log end. An import may leave gaps, but does not reuse offsets."""
    if commit.edits and commit.op != IMPORT:
        return None
    end = dict(enumerate(before.log_end.tolist()))
    for file in commit.files:
        for partition, base, offsets in zip(file.partition, file.base, file.offsets, strict=True):
            expected = end.get(partition, 0)
            if base < expected or (base > expected and commit.op != IMPORT):
                return f"a slice of partition {partition} starts at {base}, but the log end is {expected}"
            if offsets < 1:
                return f"the slice of partition {partition} at {base} has no offsets"
            end[partition] = base + offsets
    return None


def partitions_exist(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """A commit only refers to existing partitions, and never removes partitions."""
    count = after.partitions
    if commit.op != CREATE and commit.partitions is not None and commit.partitions < before.partitions:
        return f"the number of partitions cannot decrease from {before.partitions} to {commit.partitions}"
    partitions = [*commit.log_starts, *[edit.partition for edit in commit.edits]]
    for file in commit.files:
        partitions += file.partition
    wrong = [partition for partition in partitions if partition >= count]
    return f"partition {min(wrong)} does not exist; the topic has {count} partitions" if wrong else None


def log_start_in_range(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """The log start offset is at most the log end offset, and neither offset decreases."""
    if after.deleted or commit.op == CREATE:
        return None
    n = before.partitions
    for older, newer in ((before.log_start, after.log_start), (before.log_end, after.log_end)):
        if older is not newer and (newer[:n] < older).any():
            return "a log start or log end would decrease"
    wrong = after.log_start > after.log_end
    if wrong.any():
        p = int(wrong.argmax())
        return f"log start {after.log_start[p]} of partition {p} would exceed its log end {after.log_end[p]}"
    return None


def slices_above_log_start(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """Appended slices end above the log start."""
    if commit.edits and not commit.may_copy_partitions:
        return None
    for file in commit.files:
        for partition, base, offsets in zip(file.partition, file.base, file.offsets, strict=True):
            if base + offsets <= after.log_start[partition]:
                return f"a slice of partition {partition} ends at {base + offsets}, below its log start"
    return None


def outputs_within_edits(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """Edits of a partition do not overlap and end below the last stable offset.

    Added and removed slices are inside edits.
    """
    if not commit.edits:
        return "slices are removed without an edit" if commit.remove else None
    # Edits of imports and clones have the ranges of the copied logs, which may contain Kafka's open transactions.
    stable = after.log_end if commit.may_copy_partitions else before.last_stable()
    spans: dict[int, list[tuple[int, int]]] = {}
    for edit in commit.edits:
        if edit.end > stable[edit.partition]:
            return f"an edit of partition {edit.partition} ends at {edit.end}, above the last stable offset"
        spans.setdefault(edit.partition, []).append((edit.start, edit.end))
    for partition, ranges in spans.items():
        ranges.sort()
        if any(right[0] < left[1] for left, right in pairwise(ranges)):
            return f"edits of partition {partition} overlap"
    outputs: dict[int, list[tuple[int, int]]] = {}
    for file in commit.files:
        for partition, base, offsets in zip(file.partition, file.base, file.offsets, strict=True):
            outputs.setdefault(partition, []).append((base, base + offsets))
    for partition, slices in outputs.items():
        slices.sort()
        if any(right[0] < left[1] for left, right in pairwise(slices)):
            return f"outputs of partition {partition} overlap"
        if not all(_inside(spans.get(partition, []), base, end) for base, end in slices):
            return f"an output of partition {partition} is outside its edit"
    for item in commit.remove:
        for partition, base in zip(item.partition, item.base, strict=True):
            if not _inside(spans.get(partition, []), base, base + 1):
                return f"the removed slice at {base} of partition {partition} is not in an edit"
    return None


def kafka_transactions_are_known(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """Only imports and clones add open Kafka transactions. A commit that ends a transaction appends a marker."""
    if not (after.kafka_open or commit.kafka_open or commit.kafka_ended):
        return None
    if commit.kafka_open and not commit.may_copy_partitions:
        return "only an import or a clone can add open Kafka transactions"
    ended = [transaction.ended for transaction in after.kafka_open]
    if len(set(ended)) < len(ended) or any(
        transaction.end > after.log_end[transaction.partition] for transaction in commit.kafka_open
    ):
        return "a Kafka transaction would be open twice, or end after the log end"
    appended = {partition for file in commit.files for partition in file.partition}
    missing = sorted({transaction.partition for transaction in commit.kafka_ended} - appended)
    return f"transactions of partition {missing[0]} would end without a marker" if missing else None


def floor_and_leases_in_range(before: TopicState, commit: Commit, after: TopicState) -> str | None:
    """The retention floor is an existing version and never decreases. The version of a new lease is not below the
    floor, unless another lease has the same version.
    """
    if commit.floor is not None and not before.floor <= commit.floor <= before.version:
        return f"retention floor {commit.floor} must be between {before.floor} and {before.version}"
    for name, lease in commit.leases.items():
        if lease is None or any(lease.version == other.version for other in before.leases.values()):
            continue
        if not after.floor <= lease.version <= max(before.version, 0):
            return f"version {lease.version} of lease '{name}' must be between {after.floor} and {before.version}"
    return None


CHECKS: tuple[Check, ...] = (
    time_never_decreases,
    partitions_exist,
    appends_are_dense,
    log_start_in_range,
    slices_above_log_start,
    outputs_within_edits,
    kafka_transactions_are_known,
    floor_and_leases_in_range,
)


def check_commit(before: TopicState, commit: Commit, after: TopicState) -> None:
    """Raise `BadRequest` if a commit that is about to be written violates an invariant."""
    for check in CHECKS:
        problem = check(before, commit, after)
        if problem is not None:
            raise BadRequest(f"cannot commit ({check.__name__.replace('_', ' ')}): {problem}")


def check_state(state: TopicState, table: SliceTable) -> None:
    """Raise `Corrupt` unless the slices are ordered, disjoint, within the log and consistent with the state."""
    rows = table.all()
    if table.version != state.version:
        raise Corrupt(f"the slices have version {table.version}, but the topic state has version {state.version}")
    if state.deleted and len(rows):
        raise Corrupt(f"a deleted topic still has {len(rows)} slices")
    if (state.log_start > state.log_end).any():
        raise Corrupt("a log start exceeds its log end")
    if not len(rows):
        return
    if int(rows.partition.max()) >= state.partitions or int(rows.partition.min()) < 0:
        raise Corrupt(
            f"a slice is in partition {int(rows.partition.max())} of a topic with {state.partitions} partitions"
        )
    same = rows.partition[1:] == rows.partition[:-1]
    if (rows.partition[1:] < rows.partition[:-1]).any() or (same & (rows.base[1:] < rows.end[:-1])).any():
        raise Corrupt("slices of a partition overlap or are out of order")
    if (rows.end <= rows.base).any() or (rows.end > state.log_end[rows.partition]).any():
        raise Corrupt("a slice is empty or ends after the log end")
    if (rows.end <= state.log_start[rows.partition]).any():
        raise Corrupt("a slice is entirely below the log start")
    if not np.isin(rows.status, (PLAIN, OPEN, COMMITTED, ABORTED)).all():
        raise Corrupt("a slice has an unknown status")
    is_open = rows.status == OPEN
    if set(rows.prepare_version[is_open].tolist()) - {prepare.version for prepare in state.open}:
        raise Corrupt("an open slice does not belong to an open transaction")
    if (is_open & (rows.end <= state.last_stable()[rows.partition])).any():
        raise Corrupt("an open slice is below the last stable offset")


def _inside(ranges: list[tuple[int, int]], base: int, end: int) -> bool:
    return any(low <= base and end <= high for low, high in ranges)
