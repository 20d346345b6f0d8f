"""A topic as a table: its rows, rejected arguments, and followed tables."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.common.times import iso_time
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable
from sparklog.log.read import followed_table
from sparklog.log.read.read_plan import NativeReadPart
from sparklog.log.read.table_plan import AsOf, cuts_of, plan_table
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, BatchRanges, OffsetRange, Stored
from sparklog.log.topic.root import RootView
from sparklog.log.topic.topic import Topic
from sparklog.testing.world import DAY_MS, START_MS
from tests.fixture_data import (
    ExpectedRecord,
    expected_folder,
    expected_records,
    fixture_tree,
    partitions,
    split_partition,
)
from tests.support.command_line import invoke
from tests.support.kernel_ways import both_ways
from tests.support.records import keyed_rows
from tests.support.topics_world import TopicsWorld

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "tables.md"


def pairs(table: pa.Table) -> list[tuple[str, str]]:
    return [(row["key"].decode(), row["value"].decode()) for row in table.select(["key", "value"]).to_pylist()]


def test_a_table_returns_the_latest_record_of_each_key_latest_first() -> None:
    topic = TopicsWorld().topic("a")
    topic.append(keyed_rows(("a", "1"), ("b", "2"), (None, "no key"), ("", "empty"), ("a", "3"), ("c", "")))
    topic.append(keyed_rows(("b", None), ("d", "4"), (None, None)))
    table = topic.table()
    assert table.to_table().schema == topic.scan().schema
    assert pairs(table.to_table()) == [("d", "4"), ("c", ""), ("a", "3"), ("", "empty")]
    assert pa.table(topic.table(columns=["offset"]))["offset"].to_pylist() == [7, 5, 4, 3]
    assert sum(batch.num_rows for batch in table.to_batches()) == table.to_reader().read_all().num_rows == 4
    with pytest.raises(BadRequest, match="is not an array"):
        np.asarray(table)
    assert topic.table(as_of={0: 0}).to_table().num_rows == 0
    empty = TopicsWorld().topic("b").table(columns=["key", "headers"])
    assert empty.to_table().schema == empty.schema
    assert len(empty.follow()) == 0


def test_both_implementations_of_seen_keys_agree() -> None:
    rng = random.Random(5)
    topic = TopicsWorld(partitions=3).topic("a")
    for _ in range(4):
        cells = [(f"k{rng.randrange(300)}", None if rng.random() < 0.2 else str(rng.random())) for _ in range(400)]
        topic.append(keyed_rows(*cells))
    few, hashed = both_ways(lambda: pairs(topic.table().to_table()))
    assert few == hashed
    assert len(few) > 200


def test_a_key_has_a_row_in_each_partition_that_contains_it() -> None:
    world = TopicsWorld(partitions=2)
    topic = world.topic("a")
    topic.append(keyed_rows(("a", "old"), partition=0))
    world.now_ms += 1
    topic.append(keyed_rows(("a", "new"), ("b", "2"), partition=1))
    table = topic.table()
    assert sorted(pairs(table.to_table())) == [("a", "new"), ("a", "old"), ("b", "2")]
    live = table.follow()
    assert (len(live), sorted(live), live["a"]["value"][0].as_py()) == (2, [b"a", b"b"], b"new")
    assert live.to_table().num_rows == 3


def compacted(world: TopicsWorld) -> Topic:
    """Return a topic with two partitions in which offsets 0 to 3 are cleaned, and 4 and 5 are not."""
    topic = world.topic("a")
    topic.alter(configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}, partitions=2)
    topic.append(keyed_rows(("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), partition=0))
    world.now_ms += DAY_MS
    (report,) = sparklog.compact(topic.root, topics=["a"], roll=True, now_ms=world.now_ms)
    assert not report.failures
    assert RootView(topic.root).first_dirty_offsets("a") == {0: 4, 1: 0}
    topic.append(keyed_rows(("a", "5"), ("b", "6"), partition=0))
    return topic


def with_open_transaction(world: TopicsWorld) -> Topic:
    topic = world.topic("a")
    topic.append(keyed_rows(("a", "1"), ("b", "2")))
    transaction = world.producer().begin()
    transaction.append("a", keyed_rows(("a", "3"), ("b", "4")))
    transaction._prepare_topics()
    return topic


def with_deleted_records(world: TopicsWorld) -> Topic:
    topic = world.topic("a")
    for value in "1234":
        topic.append(keyed_rows(("a", value)))
        world.now_ms += 1000
    topic.delete_records({0: 2})
    return topic


REFUSED: list[tuple[Callable[[TopicsWorld], Topic], AsOf, type[SparklogError], str]] = [
    (compacted, "noon", BadRequest, "as_of must be milliseconds, a time such as .* found 'noon'"),
    (compacted, -1, BadRequest, "found -1"),
    (compacted, True, BadRequest, "found True"),
    (compacted, {0: 7}, NotFound, "offset 7 of a-0 is out of range: expected 0 to 6"),
    (compacted, {0: -1}, NotFound, "offset -1 of a-0 is out of range"),
    (compacted, {0: True}, NotFound, "offset True of a-0 is out of range"),
    (compacted, {9: 1}, NotFound, "topic a has partitions 0 to 1, found partition 9"),
    (
        compacted,
        {0: 3},
        NotFound,
        "would be incomplete, because compaction has cleaned the log up to offset 4; .*min.compaction.lag.ms",
    ),
    (
        with_open_transaction,
        {0: 3},
        NotFound,
        "a transaction that starts at offset 2 is open; use an offset from 0 to 2",
    ),
    (with_deleted_records, {0: 1}, NotFound, "offset 1 of a-0 is out of range: expected 2 to 4"),
    (with_deleted_records, START_MS, NotFound, "is before the first record of a-0 .offset 2, 2023-11"),
]


@pytest.mark.parametrize(("topic", "as_of", "kind", "message"), REFUSED)
def test_invalid_as_of_values_are_rejected(
    topic: Callable[[TopicsWorld], Topic], as_of: AsOf, kind: type[SparklogError], message: str
) -> None:
    with pytest.raises(kind, match=message) as error:
        topic(TopicsWorld()).table(as_of=as_of)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"columns": ["key", "size"]}, {"threads": 0}])
def test_wrong_arguments_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        TopicsWorld().topic("a").table(**wrong)  # type: ignore[arg-type]


def test_as_of_times_and_offsets() -> None:
    world = TopicsWorld()
    topic = with_deleted_records(world)
    for as_of, expected in (
        (START_MS + 2001, [("a", "3")]),
        (iso_time(START_MS + 3000), [("a", "3")]),
        (str(START_MS + 3001), [("a", "4")]),
        (START_MS + DAY_MS, [("a", "4")]),
        ({0: np.int64(3)}, [("a", "3")]),
        ({0: 2}, []),
        ({}, [("a", "4")]),
    ):
        assert pairs(topic.table(as_of=as_of).to_table()) == expected  # type: ignore[arg-type]
    early = topic.table(as_of={0: 3}).follow()
    assert early["a"]["value"][0].as_py() == b"3"
    assert early.refresh()
    assert early["a"]["value"][0].as_py() == b"4"


def test_a_table_contains_committed_but_no_aborted_records() -> None:
    world = TopicsWorld()
    topic = world.topic("a")
    world.prepare(world.producer("x"), a=["no"]).abort()
    transaction = world.producer("y").begin()
    transaction.append("a", keyed_rows(("a", "1"), ("b", "2"), ("a", "3")))
    transaction.commit()
    assert pairs(topic.table().to_table()) == [("a", "3"), ("b", "2")]
    assert pairs(topic.table(as_of={0: 3}).to_table()) == [("b", "2"), ("a", "1")]


def test_a_table_as_of_a_time_ends_before_a_hidden_transaction() -> None:
    """An open transaction in partition 0 hides a committed transaction, which is therefore also hidden in partition 1.
    There, it is followed by the first record at or after the time.
    """
    world = TopicsWorld(partitions=2)
    topic = world.topic("a")
    open_transaction = world.producer("open").begin()
    open_transaction.append("a", keyed_rows(("open", "1"), partition=0))
    open_transaction._prepare_topics()
    with world.producer().begin() as transaction:
        for number in (0, 1):
            transaction.append("a", keyed_rows((f"k{number}", "2"), partition=number))
    world.now_ms += 1000
    time_ms = world.now_ms
    topic.append(keyed_rows(("late", "3"), partition=1))
    assert plan_table(RootView(topic.root), "a", time_ms) == []
    table = topic.table(as_of=time_ms)
    assert pairs(topic.table().to_table()) == pairs(table.to_table()) == []
    live = table.follow()
    open_transaction.abort()
    assert live.refresh()
    assert sorted(pairs(live.to_table())) == [("k0", "2"), ("k1", "2"), ("late", "3")]


def test_a_followed_table_reports_a_deleted_or_recreated_topic() -> None:
    world = TopicsWorld()
    topic = world.topic("a")
    topic.append(keyed_rows(("a", "1")))
    table = topic.table(columns=["value"])
    live, asking = table.follow(), table.follow(poll=0)
    assert not live.wait(0.001)
    topic.append(keyed_rows(("a", None), ("b", "2")))
    assert "a" in live
    assert "a" not in asking
    assert live.wait(10)
    assert (live.get("a"), live.get("b"), live.get(b"x", 5)) == (None, pa.record_batch({"value": [b"2"]}), 5)
    with pytest.raises(KeyError):
        live["a"]
    topic.delete()
    world.root().create_topic("a")
    with pytest.raises((Conflict, NotFound)):
        live.refresh()
    with pytest.raises((Conflict, NotFound)):
        table.follow().refresh()


def test_a_followed_table_uses_the_clock_of_its_root() -> None:
    world = TopicsWorld()
    topic = world.topic("a")
    topic.append(keyed_rows(("a", "1")))
    both = topic.table().follow(poll=60), sparklog.table(topic.root, "a").follow(poll=60)
    topic.append(keyed_rows(("b", "2")))
    assert ["b" in live for live in both] == [False, False]
    world.now_ms += 60_000
    assert ["b" in live for live in both] == [True, True]
    live = both[0]
    before = world.now_ms
    assert not live.wait(20)
    assert world.now_ms - before >= 20_000


def test_a_followed_table_deletes_keys_whose_tombstones_were_compacted() -> None:
    world = TopicsWorld()
    topic = compacted(world)
    topic.alter(configs={"delete.retention.ms": 0})
    live = topic.table().follow()
    assert "c" in live
    for value in ("7", "8", "9"):
        gone = [("c", None)] if value == "7" else []
        topic.append(keyed_rows(*gone, ("a", value), partition=0))
        world.now_ms += DAY_MS
        sparklog.compact(topic.root, topics=["a"], roll=True, now_ms=world.now_ms)
    assert b"c" not in topic.scan().to_table()["key"].to_pylist()
    assert live.refresh()
    assert "c" not in live
    assert sorted(pairs(live.to_table())) == sorted(pairs(topic.table().to_table())) == [("a", "9"), ("b", "6")]


def test_a_followed_table_keeps_its_rows_if_a_refresh_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TopicsWorld()
    topic = compacted(world)
    live = topic.table().follow()
    before = sorted(pairs(live.to_table()))
    topic.append(keyed_rows(("a", "7"), partition=0))
    world.now_ms += DAY_MS
    sparklog.compact(topic.root, topics=["a"], roll=True, now_ms=world.now_ms)

    def fail(*args: object, **options: object) -> None:
        raise Unavailable("the store is busy")

    with monkeypatch.context() as patch:
        patch.setattr(followed_table, "latest_records", fail)
        with pytest.raises(Unavailable, match="the store is busy"):
            live.refresh()
    assert sorted(pairs(live.to_table())) == before == [("a", "5"), ("b", "6"), ("c", "4")]
    assert live.refresh()
    assert sorted(pairs(live.to_table())) == [("a", "7"), ("b", "6"), ("c", "4")]


def test_a_table_whose_topic_is_compacted_during_the_read_fails() -> None:
    world = TopicsWorld()
    topic = compacted(world)
    tables = plan_table(RootView(topic.root), "a")
    part = tables[0].part
    assert isinstance(part, NativeReadPart)
    assert part.replan({}, 0)[0] == 0
    world.now_ms += DAY_MS
    sparklog.compact(topic.root, topics=["a"], roll=True, now_ms=world.now_ms)
    with pytest.raises(Conflict, match="a-0 was compacted while its table was being read: read the table again"):
        part.replan({}, 0)


def test_chunks_end_between_small_slices_and_inside_large_ones() -> None:
    def held(*sizes: int) -> Stored:
        ends = np.arange(1, len(sizes) + 1, dtype=np.int64) * 100
        nbytes = np.array(sizes, np.int64)
        return Stored(
            0, int(ends[-1]), BatchRanges(ends - 100, ends, np.full(len(sizes), 100), nbytes, np.full(len(sizes), 10))
        )

    assert cuts_of(held(10)) == (0, 100)
    assert cuts_of(held(5 << 20, 5 << 20, 5 << 20)) == (0, 100, 300)
    assert cuts_of(held(32 << 20)) == (0, 25, 50, 75, 100)
    assert cuts_of(Stored(5, 5, BatchRanges(*np.zeros((5, 0), np.int64)))) == (5, 5)


def fixture_table(records: list[ExpectedRecord]) -> dict[bytes, tuple[int, bytes]]:
    table: dict[bytes, tuple[int, bytes]] = {}
    for each in records:
        if each.key is not None:
            table.pop(each.key, None)
            if each.value is not None:
                table[each.key] = each.offset, each.value
    return table


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("transactions", ["data"]),
        ("compaction/plain", ["before", "after"]),
        ("compaction/transactions", ["pass-2", "pass-3", "after"]),
        ("compaction/old-formats", ["before", "appended"]),
    ],
)
def test_lookups_work_in_kafka_log_directories(name: str, stages: list[str]) -> None:
    """Tables equal the records that Kafka's consumer read, before and after Kafka's cleaner."""
    fixture = fixture_tree() / name
    checked = 0
    for stage in stages:
        for folder in partitions(fixture / stage):
            topic, number = split_partition(folder)
            if topic.startswith("__") or not list(expected_folder(fixture, stage).glob(f"{folder}.*committed*")):
                continue
            expected = fixture_table(expected_records(fixture, folder, READ_COMMITTED, stage))
            table = sparklog.table(fixture / stage / folder, topic).to_table()
            assert {row["key"]: (row["offset"], row["value"]) for row in table.to_pylist()} == expected
            assert set(table["partition"].to_pylist()) <= {number}
            live = sparklog.table(fixture / stage / folder, topic).follow()
            assert set(live) == set(expected)
            checked += len(expected)
    assert checked > 0


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_examples_in_the_guide_run(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    names: dict[str, object] = {}
    for block in snippets("python")[:2]:
        exec(compile(block.replace("/data/log", root), str(GUIDE), "exec"), names)
    commands, printed = [], []
    for line in snippets("console")[0].splitlines():
        if line.startswith("$ "):
            result = invoke(line.replace("/data/log", root).split()[2:], {})
            assert result.exit_code == 0, result.stderr
            commands += result.stdout.splitlines()
        else:
            printed.append(line)
    assert commands == printed
    assert names["customers"].table().plan.columns == COLUMNS  # type: ignore[attr-defined]
    assert OffsetRange("customers", 0, 0, 0) not in names["table"].plan.ranges  # type: ignore[attr-defined]
