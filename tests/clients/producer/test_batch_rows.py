"""Offsets of records, computed from the base offsets of a commit."""

from __future__ import annotations

import numpy as np

from sparklog.clients.producer.batch_rows import PartitionedRows, no_positions
from sparklog.log.write.append_target import AppendOutcome


def placed(
    partitions: list[int], numbers: list[int] | None = None, count: int = 0, by_commit: bool = False
) -> PartitionedRows:
    rows = range(len(partitions)) if numbers is None else numbers
    times = np.arange(len(partitions), dtype=np.int64)
    return PartitionedRows(np.array(partitions, np.int32), times, by_commit, rows, count or len(partitions))


def test_offsets_increase_per_partition_across_batches() -> None:
    outcome = AppendOutcome(1, {0: 100, 2: 7}, {}, 6, time_ms=9)
    base = dict(outcome.base)
    first = placed([2, 0, 2, 2]).positions(outcome, base)
    assert first.offset.tolist() == [7, 100, 8, 9]
    assert first.timestamp.tolist() == [0, 1, 2, 3]
    second = placed([0, 2], by_commit=True).positions(outcome, base)
    assert (second.offset.tolist(), second.timestamp.tolist()) == ([101, 10], [9, 9])
    assert base == {0: 102, 2: 11}


def test_repeated_records_have_no_position() -> None:
    outcome = AppendOutcome(1, {0: 5}, {}, 2)
    places = placed([0, 0], numbers=[1, 3], count=4).positions(outcome, dict(outcome.base))
    assert places.partition.tolist() == [-1, 0, -1, 0]
    assert places.offset.tolist() == [-1, 5, -1, 6]
    assert no_positions(2).offset.tolist() == [-1, -1]
