"""The cost of a plan over many topics per topic: requests, calls and garbage collections."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from sparklog.datasource.options import parse_options
from sparklog.datasource.starting_offsets import batch_ranges
from sparklog.datasource.subscription import Subscriber
from sparklog.log.state.view import LogView, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.opening import ROOT, Location, open_view
from tests.support.counted_calls import counted_calls
from tests.support.counted_root import KINDS_AND_BUCKET, CountedRoot
from tests.support.records import rows

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, StructType

from sparklog.datasource import reader
from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.read_task import log_partitions

MANY = 24
MOST_CALLS = 490
"""The maximum number of Python calls for an additional topic with one record, from its listing to its task (441 in
Python 3.11).
"""


def topics_of(counted_root: CountedRoot, count: int) -> None:
    for number in range(count):
        counted_root.topic(name=f"topic-{number:03d}").append(rows("x", partition=0))
    counted_root.topic(name="other").append(rows("y", partition=0))
    counted_root.topic(name="topic-gone")
    counted_root.root.delete_topic("topic-gone")


def plan(counted_root: CountedRoot) -> list[OffsetRange]:
    """Plan a read of all topics of a pattern in a process without cached topics. Return the ranges of its tasks."""
    read = parse_options({"subscribepattern": "topic-.*"}).read
    view = RootView(counted_root.world.root(counted_root.store))
    ranges = batch_ranges(view, Subscriber(view, Location(ROOT, "/log", "/log"), read.subscription), read)
    return [part.range for task in log_partitions(view, ranges, read) for part in task.value]


@pytest.mark.parametrize("kind", KINDS_AND_BUCKET)
def test_a_topic_of_a_pattern_is_read_once(kind: str, tmp_path: Path) -> None:
    counted_root = CountedRoot(kind, tmp_path)
    topics_of(counted_root, MANY)
    counted_root.store.reset()
    assert plan(counted_root) == [OffsetRange(f"topic-{number:03d}", 0, 0, 1) for number in range(MANY)]
    # For each topic, two commits and the following missing commit are read, and the same for the deleted topic. The
    # root is read when it is opened. The checkpoints and the entries above the end are listed, because a commit may be
    # lost there.
    expected = {"get": 3 * (MANY + 1) + 1, "list": 2 * (MANY + 1), "list_folders": 1}
    assert {verb: counted_root.store.counts[verb] for verb in counted_root.store.counts} == expected, (
        counted_root.store.keys
    )


def test_each_additional_topic_costs_few_calls(tmp_path: Path) -> None:
    counts = []
    for number in (MANY, 2 * MANY):
        counted_root = CountedRoot("local", tmp_path / str(number))
        topics_of(counted_root, number)
        plan(counted_root)
        with counted_calls("call") as count:
            assert len(plan(counted_root)) == number
        counts.append(count[0])
    assert (counts[1] - counts[0]) / MANY < MOST_CALLS


def test_no_garbage_is_collected_while_a_plan_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics_of(CountedRoot("local", tmp_path), 2)
    schema, meanwhile = StructType().add("value", BinaryType()), []

    def opened(*given: Any, **options: Any) -> LogView:
        meanwhile.append(gc.isenabled())
        return open_view(*given, **options)

    monkeypatch.setattr(reader, "open_view", opened)

    def planned(**options: str) -> list[Any]:
        return SparklogDataSource({"path": str(tmp_path), **options}).reader(schema).partitions()

    assert len(planned(subscribePattern="topic-.*")) == 1
    assert gc.isenabled()
    with pytest.raises(Exception, match="There is no topic 'none'"):
        planned(subscribe="none")
    assert gc.isenabled()
    gc.disable()
    try:
        assert len(planned(subscribe="other")) == 1
        assert not gc.isenabled(), "it stays as it was"
    finally:
        gc.enable()
    assert meanwhile == [False] * 3
