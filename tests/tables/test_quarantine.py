"""The quarantine table: bad records after crashes, and with other options."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.tables.quarantine import Quarantine
from sparklog.tables.rows import BAD_RECORD_SCHEMA
from sparklog.tables.target import TableLayout
from sparklog.tables.watermark import Watermark
from sparklog.testing.world import World
from tests.tables.memory_table import MemoryCatalog, MemoryTable

WORLD = World()
START = Watermark("r", "t", "id", {0: 0, 1: 0}, "", "append")


def bad(*positions: tuple[int, int]) -> pa.RecordBatch:
    rows = [
        {"topic": "t", "partition": partition, "offset": offset, "timestamp": 0, "value": b"x", "reason": "bad"}
        for partition, offset in positions
    ]
    return pa.RecordBatch.from_pylist(rows, BAD_RECORD_SCHEMA)


def quarantine(
    table: MemoryTable, before: Watermark, ends: dict[int, int], options: str, *positions: tuple[int, int]
) -> bool:
    """Quarantine the bad records of an interval, and return the result of the commit."""
    env = WORLD.env()
    after = before.advanced(ends, env.new_id())
    with Quarantine(table, before, after, options, env) as bad_rows:
        for position in positions:
            bad_rows.add(bad(position))
        return bad_rows.commit()


def positions(table: MemoryTable) -> list[tuple[int, int]]:
    rows = table.catalog.rows()
    return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable(MemoryCatalog(), "t_quarantine")


def test_interval_without_bad_records_makes_no_request(table: MemoryTable) -> None:
    table.step = lambda what: pytest.fail(what)
    assert quarantine(table, START, {0: 5}, "a")


def test_interval_that_is_repeated_adds_no_record_twice(table: MemoryTable) -> None:
    assert quarantine(table, START, {0: 5, 1: 2}, "a", (0, 1), (1, 1))
    assert quarantine(table, START, {0: 9, 1: 1}, "a", (0, 1), (0, 7))
    assert quarantine(table, START, {0: 5, 1: 3}, "a", (0, 1), (1, 2))
    assert positions(table) == [(0, 1), (0, 7), (1, 1), (1, 2)]


def test_repeated_interval_with_other_options_loses_no_record(table: MemoryTable) -> None:
    assert quarantine(table, START, {0: 9}, "a", (0, 1))
    # The record at offset 3 was valid with the options "a", but its row has not been committed.
    assert quarantine(table, START, {0: 3}, "b", (0, 2))
    assert quarantine(table, START.advanced({0: 3}, "x"), {0: 9}, "b", (0, 3))
    assert positions(table) == [(0, 1), (0, 2), (0, 3)]


def test_records_of_a_topic_that_was_created_again_are_added(table: MemoryTable) -> None:
    assert quarantine(table, START, {0: 9}, "a", (0, 1))
    assert quarantine(table, replace(START, topic_id="id-2"), {0: 2}, "a", (0, 1))
    assert positions(table) == [(0, 1), (0, 1)]


def test_another_run_that_commits_first_repeats_the_interval(table: MemoryTable) -> None:
    quarantine(table, START, {0: 1}, "a", (0, 0))

    def step(what: str) -> None:
        if what == "append":
            table.step = lambda what: None
            assert quarantine(table, START, {0: 5}, "a", (0, 4))

    table.step = step
    assert not quarantine(table, START, {0: 9}, "a", (0, 4), (0, 7))
    assert positions(table) == [(0, 0), (0, 4)]
    assert not table.catalog.unreferenced()


def test_tables_of_other_kinds_are_rejected(table: MemoryTable) -> None:
    table.create(TableLayout(BAD_RECORD_SCHEMA, "append"), START)
    with pytest.raises(BadRequest, match="table t_quarantine is not a quarantine table"):
        quarantine(table, START, {0: 5}, "a", (0, 1))
    table.catalog.versions.clear()
    quarantine(table, START, {0: 5}, "a", (0, 1))
    with pytest.raises(BadRequest, match="contains bad records of topic 't' of the root with id r, not of topic 'u'"):
        quarantine(table, replace(START, topic="u"), {0: 5}, "a", (0, 1))
