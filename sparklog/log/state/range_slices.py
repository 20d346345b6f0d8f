"""Select the slices of many offset ranges in one or more topics. This is the first step of planning a read.

A numpy call takes a few microseconds, regardless of whether it processes one row or a thousand rows. Therefore, topics
with few slices are not searched one by one. Instead, their slices are joined into one table, in which the upper half of
a partition number is the topic's index. For a topic with many slices, this table only contains the slices near the
ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.state.commit import Commit
from sparklog.log.state.slice_table import Columns, Slices, SliceTable, Snapshot, Texts, columns_of, in_order
from sparklog.log.state.topic_state import Offsets
from sparklog.log.state.view import OffsetRange

FEW_SLICES = 64
"""If a topic has at most this many slices per range, all of its slices are joined, and not only the slices near the
ranges.
"""
_TOPIC_SHIFT = 32
_PARTITION_MASK = (1 << _TOPIC_SHIFT) - 1


@dataclass(frozen=True, slots=True, eq=False)
class RangeSlices:
    """The slices of offset ranges in snapshots.

    The slices of `ranges[i]` are `rows[cuts[i] : cuts[i + 1]]`, in offset order. `cuts` is int64[n + 1].
    """

    snapshots: Mapping[str, Snapshot]
    ranges: tuple[OffsetRange, ...]
    rows: Slices
    cuts: Offsets


def select_ranges(snapshots: Mapping[str, Snapshot], ranges: Sequence[OffsetRange]) -> RangeSlices:
    """Return the slices that overlap each range."""
    by_topic: dict[str, list[OffsetRange]] = {}
    for offsets in ranges:
        by_topic.setdefault(offsets.topic, []).append(offsets)
    if len(ranges) == 1:
        (only,) = ranges
        rows = snapshots[only.topic].slices.select(only.partition, only.start, only.end)
        return RangeSlices(snapshots, (only,), rows, np.array([0, len(rows)]))
    numbers = {topic: number << _TOPIC_SHIFT for number, topic in enumerate(by_topic)}
    bounds = [(numbers[offsets.topic] | offsets.partition, offsets.start, offsets.end) for offsets in ranges]
    table = _joined([(snapshots[topic].slices, of_topic) for topic, of_topic in by_topic.items()])
    rows, cuts = table.select_each(*np.array(bounds, np.int64).reshape(-1, 3).T)
    if len(by_topic) > 1:
        rows.columns["partition"] = (rows.partition & _PARTITION_MASK).astype(np.int32)
    return RangeSlices(snapshots, tuple(ranges), rows, cuts)


@dataclass(slots=True)
class _Rows:
    """The rows to join. They consist of parts of tables and of pending commits, each with the index of its topic."""

    parts: list[tuple[int, Slices]] = field(default_factory=list)
    commits: list[tuple[int, Commit]] = field(default_factory=list)


def _joined(tables: Sequence[tuple[SliceTable, Sequence[OffsetRange]]]) -> SliceTable:
    """Return one table with all slices of these ranges. The index of a topic is its position in `tables`."""
    if len(tables) == 1:
        return tables[0][0]
    rows = _Rows()
    for number, (table, ranges) in enumerate(tables):
        if len(table) <= FEW_SLICES * len(ranges):
            parts, pending = table.parts_and_pending()
            rows.parts += [(number, part) for part in parts]
            rows.commits += [(number, commit) for commit in pending]
        else:
            rows.parts += [(number, part) for part in _of_partitions(table, ranges)]
    texts = Texts(), Texts()
    columns = [_numbered(columns_of([commit for _, commit in rows.commits], *texts), _topics(rows.commits))]
    columns += [_numbered(_recoded(part, *texts), np.int64(number)) for number, part in rows.parts]
    joined = {name: np.concatenate([part[name] for part in columns]) for name in COLUMN_TYPES}
    return SliceTable(0, (in_order(joined, *texts),), *texts)


def _of_partitions(table: SliceTable, ranges: Sequence[OffsetRange]) -> list[Slices]:
    """Return the slices of each partition between the start of its first range and the end of its last range."""
    return [table.select(partition, *span) for (_, partition), span in spans_of(ranges).items()]


def spans_of(ranges: Iterable[OffsetRange]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the smallest start and the largest end of the ranges of each (topic, partition)."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for offsets in ranges:
        key = offsets.topic, offsets.partition
        low, high = spans.get(key, (offsets.start, offsets.end))
        spans[key] = min(low, offsets.start), max(high, offsets.end)
    return spans


def _topics(commits: Sequence[tuple[int, Commit]]) -> Offsets:
    """Return the topic index of each slice in these commits, as int64[n]."""
    slices = ([number] * len(file) for number, commit in commits for file in commit.files)
    return np.fromiter(chain.from_iterable(slices), np.int64)


def _numbered(columns: Columns, topics: Offsets | np.int64) -> Columns:
    return {**columns, "partition": topics << _TOPIC_SHIFT | columns["partition"]}


def _recoded(part: Slices, paths: Texts, txn_ids: Texts) -> Columns:
    """Convert the string codes in the columns to the codes of another table."""

    def codes(column: npt.NDArray[np.int32], before: Texts, after: Texts) -> npt.NDArray[np.int32]:
        numbers = {code: after.code(before[code]) if code >= 0 else code for code in set(column.tolist())}
        return np.array([numbers[code] for code in column.tolist()], np.int32)

    texts = {"file": codes(part.file, part.paths, paths), "txn": codes(part.txn, part.txn_ids, txn_ids)}
    return {**part.columns, **texts}
