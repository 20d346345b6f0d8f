"""A topic as a dataset: how much a scan reads, and which calls are rejected."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparklog
from sparklog.engines.datasets import _rounds
from sparklog.errors import BadRequest, NotFound
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore
from sparklog.transactions.producer import transactional
from tests.support.records import random_rows, small

APPENDS, ROWS = 6, 20


class Place:
    """A topic `t` with two partitions, whose twelve slices are in six files."""

    def __init__(self) -> None:
        self.world = World()
        self.store = CountingStore(self.world.store)
        self.root = self.world.root(self.store)
        topic = self.root.create_topic("t", partitions=2)
        partitions = pa.array([number % 2 for number in range(ROWS)], pa.int32())
        for number in range(APPENDS):
            rows = random_rows(ROWS, first=number * ROWS, seed=number)
            topic.append(rows.append_column("partition", partitions), options=small())
        self.topic = topic

    @property
    def dataset(self) -> Any:
        return sparklog.datasets(self.root)["t"]

    def reads(self) -> int:
        return sum(verb == "get" and "/append/" in key for verb, key in self.store.keys)


@pytest.fixture
def place() -> Place:
    return Place()


def test_head_reads_no_more_than_it_needs(place: Place) -> None:
    dataset = place.dataset
    scanner = dataset.scanner(columns=["offset"])
    for count in (0, 1, ROWS, APPENDS * ROWS, APPENDS * ROWS + 5):
        assert scanner.head(count).num_rows == min(count, APPENDS * ROWS)
    assert scanner.head(5)["offset"].to_pylist() == scanner.to_table()["offset"].to_pylist()[:5]
    assert scanner.head(1).schema == pa.schema([RECORD_SCHEMA.field("offset")])


@pytest.mark.usefixtures("records_in_files")
def test_a_filter_saves_requests(place: Place) -> None:
    dataset = place.dataset
    place.store.reset()
    assert dataset.to_table().num_rows == APPENDS * ROWS
    whole = place.reads()
    place.store.reset()
    # Offsets 0 to 9 of both partitions are in the first file.
    assert dataset.to_table(filter=pc.field("offset") < 10).num_rows == ROWS
    assert 0 < place.reads() < whole
    place.store.reset()
    assert dataset.count_rows(filter=pc.field("partition") == 9) == 0
    assert place.reads() == 0


def test_columns_of_a_filter_are_not_among_the_rows(place: Place) -> None:
    table = place.dataset.to_table(columns=["value"], filter=pc.field("offset") == 3)
    assert table.column_names == ["value"]
    assert table.num_rows == 2
    assert place.dataset.schema == RECORD_SCHEMA
    assert place.dataset.to_table().column_names == list(COLUMNS)


def test_a_dataset_is_as_of_its_creation(place: Place) -> None:
    before = place.dataset
    place.topic.append(random_rows(7))
    assert (before.count_rows(), place.dataset.count_rows()) == (APPENDS * ROWS, APPENDS * ROWS + 7)


def test_isolation_and_log_starts_are_those_of_a_scan(place: Place) -> None:
    place.topic.delete_records({0: 25})
    writing = transactional(place.root, "job").begin()
    writing.append("t", random_rows(4))
    writing._prepare_topics()
    for isolation, more in ((READ_COMMITTED, 0), (READ_UNCOMMITTED, 4)):
        dataset: Any = sparklog.datasets(place.root, isolation_level=isolation)["t"]  # type: ignore[arg-type]
        assert dataset.count_rows() == APPENDS * ROWS - 25 + more
        below = dataset.to_table(filter=(pc.field("partition") == 0) & (pc.field("offset") < 30))
        assert below["offset"].to_pylist() == [25, 26, 27, 28, 29]


def test_topics_are_opened_by_name(place: Place) -> None:
    place.root.create_topic("orders")
    assert sorted(sparklog.datasets(place.root)) == ["orders", "t"]
    opened = sparklog.datasets(place.root, topics=["t", "t"])
    assert list(opened) == ["t"]
    with pytest.raises(NotFound, match="topic 'order' was not opened"):
        _ = opened["order"]
    with pytest.raises(LookupError, match="did you mean 'orders'"):
        _ = sparklog.datasets(place.root)["order"]
    assert repr(opened["t"]) == f"TopicDataset('t', {place.root.location!r})"


def test_a_fragment_is_the_dataset(place: Place) -> None:
    dataset = place.dataset
    (fragment,) = dataset.get_fragments()
    assert fragment is dataset
    assert dataset.partition_expression.equals(pc.scalar(True))


@pytest.mark.parametrize("call", ["filter", "replace_schema", "join", "join_asof", "sort_by"])
def test_unsupported_methods_of_a_dataset_are_rejected(place: Place, call: str) -> None:
    with pytest.raises(BadRequest, match="does not support this method: pass columns and a filter"):
        getattr(place.dataset, call)(1)
    with pytest.raises(BadRequest, match="cannot be pickled: open it in the process"):
        pickle.dumps(place.dataset)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, []),
        ({0: 1}, [[(0, 0)]]),
        ({0: 2, 1: 1}, [[(0, 0), (1, 0)], [(0, 1)]]),
        ({0: 1, 2: 3}, [[(0, 0), (2, 0)], [(2, 1)], [(2, 2)]]),
    ],
)
def test_partitions_are_read_in_turns(counts: dict[int, int], expected: list[list[tuple[int, int]]]) -> None:
    ranges = [OffsetRange("t", partition, 10 * n, 10 * n + 5) for partition, of in counts.items() for n in range(of)]
    assert [[(each.partition, each.start // 10) for each in turn] for turn in _rounds(ranges)] == expected
