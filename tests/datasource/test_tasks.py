"""Packing and splitting of ranges into tasks."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sparklog.datasource.read_task import (
    MAX_PACK_RECORDS,
    PACK_BYTES,
    PACK_RECORDS,
    SPLIT_BYTES,
    SPLIT_RECORDS,
    TaskRange,
    plan_tasks,
    split_and_pack,
)
from sparklog.log.state.view import OffsetRange
from tests.datasource.memory_view import MemoryView, dense


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", p, 100, 100 + size) for p, size in enumerate(sizes)]


def covered(tasks: list[list[TaskRange]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for task in tasks:
        for piece in task:
            found.setdefault(piece.range.partition, []).append((piece.range.start, piece.range.end))
    return found


def plan(sizes: list[int], nbytes: list[int], low: int | None = None, most: int | None = None) -> list[list[TaskRange]]:
    held = [dense(wanted, size) for wanted, size in zip(ranges(*sizes), nbytes, strict=True)]
    tasks = split_and_pack(ranges(*sizes), held, min_partitions=low, max_records=most)
    for partition, size in enumerate(sizes):
        parts = covered(tasks)[partition]
        assert parts[0][0] == 100
        assert parts[-1][1] == 100 + size
        assert all(a[1] == b[0] for a, b in pairwise(parts))
        assert all(low_end < high_end for low_end, high_end in parts)
    return tasks


def test_many_small_partitions_are_a_few_tasks() -> None:
    assert len(plan([5] * 1000, [500] * 1000)) == 2


def test_large_partitions_have_their_own_task() -> None:
    assert len(plan([1000] * 16, [PACK_BYTES - 1] * 16)) == 16


def test_a_big_partition_is_split() -> None:
    tasks = plan([1000], [10 * SPLIT_BYTES])
    assert len(tasks) == 10
    assert {task[0].records for task in tasks} == {100}
    assert len(plan([3 * SPLIT_RECORDS], [1000])) == 3


def test_well_compressed_partitions_are_not_one_task() -> None:
    assert len(plan([PACK_RECORDS // 2] * 8, [10] * 8)) == 4


@pytest.mark.parametrize(
    ("records", "partitions", "tasks"),
    [(300_000, 16, 4), (600_000, 16, 8), (1_000_000, 16, 8), (2_000_000, 16, 8), (6_000_000, 60, 20)],
)
def test_large_reads_have_larger_tasks_but_stay_parallel(records: int, partitions: int, tasks: int) -> None:
    planned = plan([records // partitions] * partitions, [100] * partitions)
    assert len(planned) == tasks
    assert all(sum(item.records for item in task) <= MAX_PACK_RECORDS for task in planned)


VECTORS: list[tuple[list[int], int, int | None, list[int]]] = [
    ([10, 1, 3, 10, 5, 1], 12, None, [4, 1, 1, 4, 2, 1]),
    ([706, 43, 42, 1, 1022, 5, 276, 3], 24, None, [7, 1, 1, 1, 10, 1, 3, 1]),
    ([10, 1, 10, 5, 3], 17, None, [6, 1, 6, 3, 2]),
    ([1, 3, 5, 1, 10], 12, None, [1, 2, 3, 1, 6]),
    ([10, 3, 1, 2, 3, 23, 1, 10], 28, None, [5, 2, 1, 1, 2, 12, 1, 5]),
    ([1, 1, 1], 28, None, [1, 1, 1]),
    ([745, 10, 10], 177, None, [172, 2, 2]),
    ([3, 10, 5, 5, 5, 10, 41], 13, None, [1, 1, 1, 1, 1, 1, 6]),
    ([10, 1970, 1, 1965, 3, 1608, 945], 17, None, [1, 4, 1, 4, 1, 3, 2]),
    ([3, 26, 3, 100000, 328], 15, None, [1, 1, 1, 11, 1]),
    ([3, 1, 3, 2, 5, 10, 5, 1], 13, None, [1, 1, 1, 1, 2, 4, 2, 1]),
    ([32, 5, 3, 1000, 1, 8], 15, None, [1, 1, 1, 10, 1, 1]),
    ([1, 2, 42, 1, 1000, 1], 17, None, [1, 1, 1, 1, 12, 1]),
    ([3, 2, 10, 1, 1, 738, 3], 23, None, [1, 1, 1, 1, 1, 17, 1]),
    ([10, 5, 3, 2, 10, 1, 697], 24, None, [1, 1, 1, 1, 1, 1, 18]),
    ([10], 119, 3, [10]),
    ([10000, 49, 18, 43, 725], 24, 601, [17, 1, 1, 1, 2]),
    ([10, 140, 2, 626, 1], 8, 129, [1, 2, 1, 5, 1]),
    ([5, 302, 1, 1219, 10, 1860], 27, 226, [1, 2, 1, 6, 1, 9]),
    ([3, 1, 1000, 2, 10, 1], 13, 59, [1, 1, 17, 1, 1, 1]),
    ([10, 5, 1], 20, 2, [10, 3, 1]),
]
"""Records of each partition, minPartitions, maxRecordsPerPartition, and the number of tasks of each partition according
to KafkaOffsetRangeCalculator of spark-sql-kafka 4.2.0.
"""


@pytest.mark.parametrize(("sizes", "low", "most", "expected"), VECTORS)
def test_more_tasks_than_partitions_are_those_of_kafkas_connector(
    sizes: list[int], low: int, most: int | None, expected: list[int]
) -> None:
    tasks = plan(sizes, [size * 10 for size in sizes], low, most)
    assert all(len(task) == 1 for task in tasks)
    assert [len(parts) for _, parts in sorted(covered(tasks).items())] == expected


def rounded_half_up(size: int, total: int, tasks: int) -> int:
    return max(1, (2 * size * tasks + total) // (2 * total))


def shares(part: tuple[int, int, int], count: int) -> list[tuple[int, int, int]]:
    """Cut (partition, start, end) into parts. Each part gets an equal share of the remaining offsets, rounded down."""
    partition, start, end = part
    cuts = [start]
    for left in range(count, 0, -1):
        cuts.append(cuts[-1] + (end - cuts[-1]) // left)
    return [(partition, low, high) for low, high in pairwise(cuts) if low < high]


def kafkas_ranges(sizes: list[int], low: int, most: int | None) -> list[tuple[int, int, int]]:
    """A simple implementation of the rule of Kafka's connector."""
    parts = [(partition, 100, 100 + size) for partition, size in enumerate(sizes)]
    if most is not None:
        parts = [each for part in parts for each in shares(part, -(-(part[2] - part[1]) // most))]
    if len(parts) >= low:
        return parts
    total = sum(end - start for _, start, end in parts)
    small = [part for part in parts if rounded_half_up(part[2] - part[1], total, low) == 1]
    untouched = {partition for partition, _, _ in small}
    total, low = total - sum(end - start for _, start, end in small), max(1, low - len(small))
    counts = [1 if part[0] in untouched else rounded_half_up(part[2] - part[1], total, low) for part in parts]
    return [each for part, count in zip(parts, counts, strict=True) for each in shares(part, count)]


def test_random_partitions_are_cut_by_the_rule_of_kafkas_connector() -> None:
    rng = random.Random(20)
    for _ in range(500):
        sizes = [
            rng.choice([1, 2, 5, rng.randrange(1, 50), 10 ** rng.randrange(6)]) for _ in range(rng.randrange(1, 9))
        ]
        low = len(sizes) + rng.randrange(1, 30)
        most = None if rng.random() < 0.7 else -(-sum(sizes) // rng.randrange(1, 20))
        tasks = plan(sizes, [size * 10 for size in sizes], low, most)
        found = [(piece.range.partition, piece.range.start, piece.range.end) for task in tasks for piece in task]
        assert found == kafkas_ranges(sizes, low, most), (sizes, low, most)
        assert len(tasks) == len(found)


@pytest.mark.parametrize("low", [1, 2, 4, 7, 50])
def test_partitions_enough_share_tasks_down_to_min_partitions(low: int) -> None:
    for sizes in ([1000] + [1] * 99, [1] * 100, [1] * 99 + [1000], [5, 500] * 30):
        assert low <= len(plan(sizes, [size * 10 for size in sizes], low)) <= 2 * low


def test_max_records_bounds_the_whole_task() -> None:
    for tasks in (plan([10, 1, 1, 1], [100, 10, 10, 10], most=3), plan([10], [1], low=2, most=3)):
        assert all(sum(piece.records for piece in task) <= 3 for task in tasks)


def test_a_plan_skips_empty_ranges() -> None:
    view = MemoryView()
    view.create("t", 3)
    view.add("t", 4, 0)
    view.add("t", 2, 2)
    found = plan_tasks(view, [OffsetRange("t", 0, 0, 4), OffsetRange("t", 1, 0, 0), OffsetRange("t", 2, 1, 2)], "x")
    assert [[part.range for part in task] for task in found] == [[OffsetRange("t", 0, 0, 4), OffsetRange("t", 2, 1, 2)]]
    assert plan_tasks(view, [], "x") == []
