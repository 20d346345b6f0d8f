"""Packing and splitting of ranges into tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sparklog.datasource.read_task import (
    PACK_BYTES,
    PACK_RECORDS,
    SPLIT_BYTES,
    SPLIT_RECORDS,
    Piece,
    pack,
    plan_tasks,
    split,
)
from sparklog.log.state.view import OffsetRange
from tests.datasource.memory_view import MemoryView, dense


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", p, 100, 100 + size) for p, size in enumerate(sizes)]


def covered(tasks: list[list[Piece]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for task in tasks:
        for piece in task:
            found.setdefault(piece.range.partition, []).append((piece.range.start, piece.range.end))
    return found


def plan(sizes: list[int], nbytes: list[int], low: int | None = None, most: int | None = None) -> list[list[Piece]]:
    held = [dense(wanted, size) for wanted, size in zip(ranges(*sizes), nbytes, strict=True)]
    pieces = split(ranges(*sizes), held, min_partitions=low, max_records=most)
    tasks = pack(pieces, min_partitions=low, max_records=most)
    for partition, size in enumerate(sizes):
        parts = covered(tasks)[partition]
        assert parts[0][0] == 100
        assert parts[-1][1] == 100 + size
        assert all(a[1] == b[0] for a, b in pairwise(parts))
        assert all(low_end < high_end for low_end, high_end in parts)
    return tasks


def test_many_small_partitions_are_a_few_tasks() -> None:
    assert len(plan([5] * 1000, [500] * 1000)) == 2


def test_partitions_worth_a_task_have_one_each() -> None:
    assert len(plan([1000] * 16, [PACK_BYTES - 1] * 16)) == 16


def test_a_big_partition_is_split() -> None:
    tasks = plan([1000], [10 * SPLIT_BYTES])
    assert len(tasks) == 10
    assert {task[0].records for task in tasks} == {100}
    assert len(plan([3 * SPLIT_RECORDS], [1000])) == 3


def test_well_compressed_partitions_are_not_one_task() -> None:
    assert len(plan([PACK_RECORDS // 2] * 8, [10] * 8)) == 4


@pytest.mark.parametrize(
    "sizes", [[10], [3, 2], [1000, 1, 1], [96, 1, 1, 1, 1], [96, 1, 1, 1, 1, 1, 1], [5, 5, 5], [1] * 100]
)
@pytest.mark.parametrize("low", [1, 2, 4, 7, 50])
def test_min_partitions_holds_where_there_are_records_enough(sizes: list[int], low: int) -> None:
    tasks = plan(sizes, [size * 10 for size in sizes], low=low)
    assert len(tasks) >= min(low, sum(sizes))
    assert len(tasks) <= 2 * low + len(sizes)


def test_max_records_bounds_the_whole_task() -> None:
    for tasks in (plan([10, 1, 1, 1], [100, 10, 10, 10], most=3), plan([10], [1], low=2, most=3)):
        assert all(sum(piece.records for piece in task) <= 3 for task in tasks)


def test_a_plan_leaves_out_empty_ranges() -> None:
    view = MemoryView()
    view.create("t", 3)
    view.add("t", 4, 0)
    view.add("t", 2, 2)
    found = plan_tasks(view, [OffsetRange("t", 0, 0, 4), OffsetRange("t", 1, 0, 0), OffsetRange("t", 2, 1, 2)], "x")
    assert [[part.range for part in task] for task in found] == [[OffsetRange("t", 0, 0, 4), OffsetRange("t", 2, 1, 2)]]
    assert plan_tasks(view, [], "x") == []
