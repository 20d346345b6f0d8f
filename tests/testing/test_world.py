"""A `World` reads a root as another process."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.errors import NotFound
from sparklog.testing import World
from sparklog.transactions.producer import transactional


def test_values_are_ordered_by_partition_and_offset() -> None:
    world = World()
    topic = world.root().create_topic("t", partitions=2)
    for partition, value in ((1, "c"), (0, "a"), (0, "b")):
        topic.append(pa.table({"value": [value], "partition": pa.array([partition], pa.int32())}))
    assert world.values("t") == ["a", "b", "c"]
    assert world.topic("t").scan().to_table().num_rows == 3


def test_values_of_aborted_transactions_are_read_with_read_uncommitted_only() -> None:
    world = World()
    world.root().create_topic("t")
    transaction = transactional(world.root(), "job").begin()
    transaction.append("t", pa.table({"value": ["lost"]}))
    transaction._prepare_topics()
    transaction.abort()
    assert world.values("t") == []
    assert world.values("t", isolation_level="read_uncommitted") == ["lost"]


def test_an_unknown_topic_is_not_created() -> None:
    with pytest.raises(NotFound):
        World().topic("nosuch")
