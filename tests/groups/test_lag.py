"""Lag of groups: records by Kafka's rule, seconds by the first unread record."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.groups import Group, Groups
from sparklog.groups.lag import Lag, lag
from sparklog.groups.state import GroupState
from sparklog.kafka.importing.importing import import_log_dir
from sparklog.log.topic.root_view import RootView
from sparklog.storage.counting import CountingStore
from tests.transactions.house import START_MS, House


def timed(partition: int, *seconds: int) -> pa.Table:
    """One record per second after the start."""
    n = len(seconds)
    return pa.table(
        {
            "value": [b"x"] * n,
            "partition": pa.array([partition] * n, pa.int32()),
            "timestamp": pa.array([START_MS + 1000 * second for second in seconds], pa.int64()),
        }
    )


@pytest.fixture
def house() -> House:
    """Topic a: partition 0 with six records, 1 with two, 2 with none."""
    house = House(partitions=3)
    house.topic("a").append(timed(0, 1, 2, 3, 4))
    house.topic("a").append(timed(0, 9, 7))
    house.topic("a").append(timed(1, 5, 6))
    house.now_ms += 60_000
    return house


def rows(house: House, *names: str, **how: object) -> list[tuple[object, ...]]:
    return [astuple(row) for row in lag(house.root(), names or None, **how)]  # type: ignore[arg-type]


def test_records_and_seconds_behind(house: House) -> None:
    member = Groups(house.root()).group("g").join("one")
    member.commit({"a": {0: 4, 1: 2}})
    expected = [
        ("g", "a", 0, 4, 0, 6, 2, 51.0, "one"),
        ("g", "a", 1, 2, 0, 2, 0, 0.0, "one"),
        ("g", "a", 2, None, 0, 0, None, None, "one"),
    ]
    assert rows(house) == expected
    assert rows(house, "g", "nobody") == expected
    assert rows(house, "nobody") == []
    assert lag(RootView(house.root()), ["g"]) == lag(house.root(), ["g"])
    member.leave()
    # Like Kafka's tool: of a group without a member only what it has committed.
    assert rows(house) == [(*row[:-1], None) for row in expected[:2]]
    assert [row[2] for row in rows(house, all_partitions=True)] == [0, 1, 2]
    assert [row[7] for row in rows(house, seconds=False)] == [None, None]
    assert rows(house, now_ms=START_MS + 10_000)[0][7] == 1.0


def test_offsets_out_of_range_and_of_topics_that_are_gone(house: House) -> None:
    group = Groups(house.root()).group("g")
    group.alter({"a": {0: 0, 1: 9}, "b": {0: 0}, "c": {0: 3}})
    house.topic("a").delete_records({0: 2})
    assert rows(house)[:2] == [
        ("g", "a", 0, 0, 2, 6, 6, 57.0, None),
        ("g", "a", 1, 9, 0, 2, -7, 0.0, None),
    ]
    house.root().delete_topic("a")
    house.root().delete_topic("b")
    house.root().create_topic("b")
    assert [row[1] for row in rows(house)] == ["c"]


def test_what_is_committed_while_groups_are_read_is_not_beyond_the_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("g", "h"):
        Groups(house.root()).group(name).alter({"a": {0: 6}})
    state = Group.state
    busied: list[str] = []

    def busy(group: Group) -> GroupState:
        if group.id == "h" and not busied:
            busied.append(group.id)
            house.topic("a").append(timed(0, 20, 21))
            Groups(house.root()).group("h").alter({"a": {0: 8}})
        return state(group)

    monkeypatch.setattr(Group, "state", busy)
    assert [(row.group, row.log_end, row.lag) for row in lag(house.root())] == [("g", 8, 2), ("h", 8, 0)]


def test_each_topic_is_looked_at_once_however_many_groups_read_it(house: House) -> None:
    def requests(*names: str) -> int:
        store = CountingStore(house.store)
        assert len(lag(house.root(store), names, seconds=False)) == len(names)
        return sum(key.startswith("a/") for _, key in store.keys)

    for number in range(8):
        Groups(house.root()).group(f"g{number}").alter({"a": {0: number % 6}})
    assert requests("g0") == requests(*(f"g{number}" for number in range(8))) > 0


def test_a_record_of_the_oldest_format_has_no_time_since_which_it_waits(tmp_path: Path, fixtures: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    import_log_dir(root, fixtures / "legacy/builder-v0/data")
    Groups(root).group("g").alter({"built": {0: 1}})
    (row,) = lag(root)
    assert (row.lag, row.seconds) == (row.log_end - 1, None)


def test_groups_come_in_order_and_transactions_count_when_they_are_decided(house: House) -> None:
    for name in ("z", "y"):
        Groups(house.root()).group(name).alter({"a": {0: 1}})
    transaction = house.producer().begin()
    transaction.append("a", timed(1, 30))
    transaction.send_offsets("z", {"a": {0: 6}})
    transaction._prepare()
    found = lag(house.root(), all_partitions=True)
    # What is open is in the log all the same: Kafka's tool counts to the log end.
    assert [(row.group, row.partition, row.log_end, row.lag) for row in found[3:5]] == [
        ("z", 0, 6, 5),
        ("z", 1, 3, None),
    ]
    assert [row.group for row in found] == ["y"] * 3 + ["z"] * 3
    transaction.commit()
    assert lag(house.root(), ["z"])[0] == Lag("z", "a", 0, 6, 0, 6, 0, 0.0, None)


def test_seconds_cost_two_requests_per_partition_that_lags(house: House) -> None:
    Groups(house.root()).group("g").alter({"a": {0: 1, 1: 2}})
    store = CountingStore(house.store)
    root = house.root(store)
    lag(root)
    store.reset()
    assert [row.lag for row in lag(root)] == [5, 0]
    assert 1 <= store.by_kind["get", "append"] <= 2
    store.reset()
    lag(root, seconds=False)
    assert store.by_kind["get", "append"] == 0
