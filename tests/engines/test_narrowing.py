"""Which offsets must be read for a filter: the offsets of spans that can match, including exact bounds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from sparklog.engines.narrowing import LATEST_MS, Spans, columns_of, narrowed
from sparklog.log.state.record_schema import RECORD_SCHEMA

SPANS = [(0, 10, 1000, 1999), (10, 11, 2000, 2000), (11, 40, 1500, 2500), (60, 61, 2501, 2501), (61, 90, 2600, 3000)]
"""Start, end, smallest and largest timestamp of each span. Offsets 40 to 59 do not exist."""
OPERATORS = {
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}
BOUNDS = sorted({time + step for *_, low, high in SPANS for time in (low, high) for step in (-1, 0, 1)})


def spans(rows: list[tuple[int, int, int, int]] = SPANS, *, times: bool = True) -> Spans:
    base, end, low, high = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Spans(base, end, low, high) if times else Spans(base, end)


def left(expression: ds.Expression, of: Spans) -> list[int]:
    """Return the remaining offsets of partition 3."""
    ranges = narrowed("t", {3: of}, expression, columns_of(expression))
    assert all((each.topic, each.partition) == ("t", 3) for each in ranges)
    return [offset for each in ranges for offset in range(each.start, each.end)]


def stamp(ms: int) -> pa.Scalar:
    return pa.scalar(ms, RECORD_SCHEMA.field("timestamp").type)


def may(compare: Callable[[Any, Any], bool], low: int, high: int, bound: int) -> bool:
    """Return whether a timestamp of a span can match. Negative timestamps of a span are not in `low`."""
    within = compare(low, bound) or compare(high, bound) or (compare is operator.eq and low <= bound <= high)
    return within or compare(-1, bound)


def offsets_of(rows: list[tuple[int, int, int, int]]) -> set[int]:
    return {offset for base, end, *_ in rows for offset in range(base, end)}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_bound_at_the_very_end_of_a_span_keeps_it_and_one_beyond_does_not(name: str) -> None:
    compare = OPERATORS[name]
    for bound in BOUNDS:
        found = set(left(compare(pc.field("timestamp"), stamp(bound)), spans()))
        possible = [row for row in SPANS if may(compare, row[2], row[3], bound)]
        assert found & offsets_of(SPANS) == offsets_of(possible), bound


@pytest.mark.parametrize("name", OPERATORS)
def test_no_offset_is_lost_at_a_bound(name: str) -> None:
    """More offsets may remain than match, but no offset of another span."""
    for bound in (0, 1, 9, 10, 11, 39, 40, 59, 60, 61, 88, 89):
        for known in (spans(), spans(times=False)):
            found = left(OPERATORS[name](pc.field("offset"), bound), known)
            wanted = {offset for offset in offsets_of(SPANS) if OPERATORS[name](offset, bound)}
            assert len(found) == len(set(found))
            assert wanted <= set(found), bound
            assert name != "==" or set(found) & offsets_of(SPANS) == wanted


def test_records_without_a_time_and_times_beyond_nanoseconds_are_left() -> None:
    beyond = LATEST_MS + 1
    rows = [(0, 1, -1, -1), (1, 2, LATEST_MS, LATEST_MS), (2, 3, beyond, beyond), (3, 4, 0, 0)]
    assert left(pc.field("timestamp") >= stamp(LATEST_MS), spans(rows)) == [1, 2]
    assert left(pc.field("timestamp") > stamp(LATEST_MS), spans(rows)) == [2]
    assert left(pc.field("timestamp") > stamp(0), spans(rows)) == [1, 2]
    assert left(pc.field("timestamp") == stamp(0), spans(rows)) == [3]
    assert left(pc.field("timestamp") < stamp(0), spans(rows)) == [0, 1, 2, 3]


def test_negative_timestamps_are_left() -> None:
    for rows in ([(0, 1, -1, -1)], [(0, 1, -1, 2000)], [(0, 1, -1, -1), (1, 2, 100, 2000)], [(0, 1, 100, 2000)]):
        assert 0 in left(pc.field("timestamp") < stamp(-1), spans(rows)), rows
        assert 0 in left(pc.field("timestamp") == stamp(-5), spans(rows)), rows


def test_other_partitions_and_topics_are_excluded() -> None:
    assert left(pc.field("partition") == 4, spans()) == []
    assert left(pc.field("topic") == "u", spans()) == []
    assert set(left(pc.field("partition") == 3, spans())) >= offsets_of(SPANS)
    assert set(left(pc.field("value") == b"x", spans())) >= offsets_of(SPANS)
    assert narrowed("t", {0: Spans(*np.empty((2, 0), np.int64))}, pc.field("offset") == 1, {"offset"}) == []
