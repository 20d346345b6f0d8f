"""Lag of groups: in records, according to Kafka's rule, and in seconds, based on the first unread record."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.groups.group import Group
from sparklog.groups.group_state import GroupState
from sparklog.groups.lag import Groups, Lag, lag
from sparklog.kafka.importing.run import import_log_dir
from sparklog.log.topic.root import RootView
from sparklog.testing.world import START_MS
from sparklog.testing.wrapper_stores import CountingStore
from tests.support.topics_world import TopicsWorld


def timed(partition: int, *seconds: int) -> pa.Table:
    """Return one record per second after the start."""
    n = len(seconds)
    return pa.table(
        {
            "value": [b"x"] * n,
            "partition": pa.array([partition] * n, pa.int32()),
            "timestamp": pa.array([START_MS + 1000 * second for second in seconds], pa.int64()),
        }
    )


@pytest.fixture
def world() -> TopicsWorld:
    """Return a world with topic a, whose partition 0 has six records, partition 1 two, and partition 2 none."""
    world = TopicsWorld(partitions=3)
    world.topic("a").append(timed(0, 1, 2, 3, 4))
    world.topic("a").append(timed(0, 9, 7))
    world.topic("a").append(timed(1, 5, 6))
    world.now_ms += 60_000
    return world


def rows(world: TopicsWorld, *names: str, **how: object) -> list[tuple[object, ...]]:
    return [astuple(row) for row in lag(world.root(), names or None, **how)]  # type: ignore[arg-type]


def test_lag_in_records_and_seconds(world: TopicsWorld) -> None:
    member = Groups(world.root()).group("g").join("one")
    member.commit({"a": {0: 4, 1: 2}})
    expected = [
        ("g", "a", 0, 4, 0, 6, 2, 51.0, "one"),
        ("g", "a", 1, 2, 0, 2, 0, 0.0, "one"),
        ("g", "a", 2, None, 0, 0, None, None, "one"),
    ]
    assert rows(world) == expected
    assert rows(world, "g", "nobody") == expected
    assert rows(world, "nobody") == []
    assert lag(RootView(world.root()), ["g"]) == lag(world.root(), ["g"])
    member.leave()
    # As in Kafka's tool, a group without members has rows only for partitions with committed offsets.
    assert rows(world) == [(*row[:-1], None) for row in expected[:2]]
    assert [row[2] for row in rows(world, all_partitions=True)] == [0, 1, 2]
    assert [row[7] for row in rows(world, seconds=False)] == [None, None]
    assert rows(world, now_ms=START_MS + 10_000)[0][7] == 1.0


def test_subscribed_topics_without_a_committed_offset_have_rows(world: TopicsWorld) -> None:
    consumer = sparklog.consumer(world.root(), "g", topics=["a", "c"], enable_auto_commit=False)
    (member,) = Groups(world.root()).group("g").description().members
    found = rows(world)
    assert [row[1:5] for row in found] == [(topic, partition, None, 0) for topic in "ac" for partition in range(3)]
    assert {row[8] for row in found} == {member.id}
    consumer.commit({"a": {0: 4}})
    assert [row[3] for row in rows(world)] == [4, None, None, None, None, None]
    world.root().delete_topic("c")
    assert [row[1] for row in rows(world)] == ["a", "a", "a"]
    consumer.close()
    assert [row[1:4] for row in rows(world)] == [("a", 0, 4)]


def test_offsets_out_of_range_and_of_deleted_topics_are_handled(world: TopicsWorld) -> None:
    group = Groups(world.root()).group("g")
    group.alter({"a": {0: 0, 1: 9}, "b": {0: 0}, "c": {0: 3}})
    world.topic("a").delete_records({0: 2})
    assert rows(world)[:2] == [
        ("g", "a", 0, 0, 2, 6, 6, 57.0, None),
        ("g", "a", 1, 9, 0, 2, -7, 0.0, None),
    ]
    world.root().delete_topic("a")
    world.root().delete_topic("b")
    world.root().create_topic("b")
    assert [row[1] for row in rows(world)] == ["c"]


def test_offsets_committed_during_a_lag_read_are_not_beyond_the_end(
    world: TopicsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("g", "h"):
        Groups(world.root()).group(name).alter({"a": {0: 6}})
    state = Group.state
    busied: list[str] = []

    def busy(group: Group) -> GroupState:
        if group.id == "h" and not busied:
            busied.append(group.id)
            world.topic("a").append(timed(0, 20, 21))
            Groups(world.root()).group("h").alter({"a": {0: 8}})
        return state(group)

    monkeypatch.setattr(Group, "state", busy)
    assert [(row.group, row.log_end, row.lag) for row in lag(world.root())] == [("g", 8, 2), ("h", 8, 0)]


def test_each_topic_is_read_once_for_all_groups(world: TopicsWorld) -> None:
    def requests(*names: str) -> int:
        store = CountingStore(world.store)
        assert len(lag(world.root(store), names, seconds=False)) == len(names)
        return sum(key.startswith("a/") for _, key in store.keys)

    for number in range(8):
        Groups(world.root()).group(f"g{number}").alter({"a": {0: number % 6}})
    assert requests("g0") == requests(*(f"g{number}" for number in range(8))) > 0


def test_lag_in_seconds_is_none_for_records_without_a_timestamp(tmp_path: Path, fixtures: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    import_log_dir(root, fixtures / "legacy/builder-v0/data")
    Groups(root).group("g").alter({"built": {0: 1}})
    (row,) = lag(root)
    assert (row.lag, row.seconds) == (row.log_end - 1, None)


def test_lag_is_sorted_by_group_and_counts_decided_transactions(world: TopicsWorld) -> None:
    for name in ("z", "y"):
        Groups(world.root()).group(name).alter({"a": {0: 1}})
    transaction = world.producer().begin()
    transaction.append("a", timed(1, 30))
    transaction.send_offsets("z", {"a": {0: 6}})
    transaction._prepare()
    found = lag(world.root(), all_partitions=True)
    # Open transactions are in the log, and Kafka's tool counts up to the log end.
    assert [(row.group, row.partition, row.log_end, row.lag) for row in found[3:5]] == [
        ("z", 0, 6, 5),
        ("z", 1, 3, None),
    ]
    assert [row.group for row in found] == ["y"] * 3 + ["z"] * 3
    transaction.commit()
    assert lag(world.root(), ["z"])[0] == Lag("z", "a", 0, 6, 0, 6, 0, 0.0, None)


@pytest.mark.usefixtures("records_in_files")
def test_seconds_cost_two_requests_per_partition_that_lags(world: TopicsWorld) -> None:
    Groups(world.root()).group("g").alter({"a": {0: 1, 1: 2}})
    store = CountingStore(world.store)
    root = world.root(store)
    lag(root)
    store.reset()
    assert [row.lag for row in lag(root)] == [5, 0]
    assert 1 <= store.by_kind["get", "append"] <= 2
    store.reset()
    lag(root, seconds=False)
    assert store.by_kind["get", "append"] == 0


@pytest.mark.usefixtures("records_in_files")
def test_adjacent_records_of_lagging_partitions_are_fetched_in_one_request() -> None:
    world, count = TopicsWorld(partitions=40), 40
    world.topic("a").append(pa.concat_tables(timed(partition, partition, 50) for partition in range(count)))
    Groups(world.root()).group("g").alter({"a": dict.fromkeys(range(count), 1)})
    store = CountingStore(world.store)
    assert [row.lag for row in lag(world.root(store))] == [1] * count
    assert store.by_kind["get", "append"] == 1
