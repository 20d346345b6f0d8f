"""The contents of ranges, estimated from ranges of batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from sparklog.log.state.view import BatchRanges, Stored

FAR = 2**63 - 1


def runs(*rows: tuple[int, int, int, int]) -> BatchRanges:
    """Return ranges of (base, end, records, nbytes), with one batch per ten records."""
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(4)]
    return BatchRanges(*columns, columns[2] // 10)


def rows_of(found: BatchRanges) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in (found.base, found.end, found.records, found.nbytes)), strict=True))


def test_offsets_by_records_assign_gaps_to_the_range_before_them() -> None:
    held = Stored(0, FAR, runs((5, 10, 5, 50), (1 << 40, (1 << 40) + 5, 5, 50), (1 << 62, (1 << 62) + 4, 2, 20)))
    assert (held.records, held.nbytes) == (12, 120)
    assert held.at_records(0, 1, 4, 5, 9, 10, 11, 12, 99) == [
        5,
        6,
        9,
        1 << 40,
        (1 << 40) + 4,
        1 << 62,
        (1 << 62) + 2,
        FAR,
        FAR,
    ]
    assert held.at_bytes(0, 49, 50, 75, 120) == [5, 9, 1 << 40, (1 << 40) + 2, FAR]


def test_an_empty_range_is_skipped() -> None:
    held = Stored(7, FAR, runs())
    assert (held.records, held.nbytes, held.batches) == (0, 0, 0)
    assert held.at_records(0, 1) == held.at_bytes(0, 1) == [FAR, FAR]
    assert held.part(8, 9).at_records(1) == [9]


def test_a_part_has_proportional_shares_of_its_first_and_last_ranges() -> None:
    held = Stored(0, FAR, runs((0, 10, 10, 100), (20, 20 + (1 << 61), 1000, 1 << 40)))
    assert rows_of(held.part(4, 20).runs) == [(4, 10, 6, 60)]
    assert rows_of(held.part(4, 7).runs) == [(4, 7, 3, 30)]
    assert rows_of(held.part(10, 20).runs) == []
    (half,) = rows_of(held.part(20 + (1 << 60), FAR).runs)
    assert half == (20 + (1 << 60), 20 + (1 << 61), 500, 1 << 39)
    assert rows_of(held.part(9, 21).runs) == [(9, 10, 1, 10), (20, 21, 0, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_parts_add_up_and_end_after_the_requested_records(seed: int) -> None:
    random_of = random.Random(seed)
    rows: list[tuple[int, int, int, int]] = []
    at = random_of.randrange(1 << 60)
    for _ in range(random_of.randrange(1, 9)):
        at += random_of.choice([0, 1, 1 << random_of.randrange(58)])
        span = random_of.choice([1, 10, 1 << random_of.randrange(58)])
        rows.append((at, at + span, random_of.randint(0, min(span, 1000)), random_of.randint(1, 1 << 30)))
        at += span
    held = Stored(rows[0][0], at + 1, runs(*rows))
    cuts = sorted({held.start, *held.at_records(*(held.records * i // 7 for i in range(1, 7))), held.end})
    parts = [held.part(low, high) for low, high in pairwise(cuts)]
    assert sum(part.records for part in parts) == held.records
    assert sum(part.nbytes for part in parts) == held.nbytes
    # In a range with gaps, a split lies between two of its records.
    assert all(part.records <= held.records // 7 + 2 for part in parts)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(10, 20, 10, 1), (FAR - 9, FAR, 9, 1), (30, 40, 10, 1)], [(10, 20, 10, 1), (30, 40, 10, 1)]),
        ([(10, 99, 50, 1), (20, 30, 10, 1)], [(10, 20, 10, 1), (20, 30, 10, 1)]),
        ([(10, 9, 5, 1), (20, 25, -4, 1)], [(20, 25, 0, 1)]),
        (
            [(10, 20, 5, 1), (20, 30, 4, 1), (30, 33, 2, 1), (33, 36, 1, 1)],
            [(10, 20, 10, 1), (20, 30, 4, 1), (30, 33, 3, 1), (33, 36, 1, 1)],
        ),
    ],
)
def test_ranges_do_not_overlap_and_half_full_ranges_count_offsets(
    rows: Sequence[tuple[int, int, int, int]], expected: list[tuple[int, ...]]
) -> None:
    assert rows_of(runs(*rows).ordered()) == expected
