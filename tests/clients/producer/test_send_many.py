"""`Producer.send_many`: data, order, invalid rows, serializers, partitions, memory and transactions."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.testing import World
from tests.clients.producer.test_pressure import Gate
from tests.clients.producer.test_producer import LATER, records, root_with


def test_rows_are_published_in_the_order_of_the_calls() -> None:
    root = root_with(1)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = [producer.send("t", "0")]
        futures += producer.send_many("t", {"value": ["1", b"2"]})
        futures += producer.send_many("t", [{"value": "3"}, {"key": "k", "value": None}])
        futures += producer.send_many("t", pa.table({"value": pa.array(["5"], pa.large_string())}))
        futures.append(producer.send("t", "6"))
    assert root.topic("t").log.state().version == 1
    assert [future.result().offset for future in futures] == list(range(7))
    values = [row["value"] for _, row in sorted(records(root).items())]
    assert values == [b"0", b"1", b"2", b"3", None, b"5", b"6"]


def test_columns_are_those_of_append() -> None:
    world = World()
    root = root_with(3, world)
    rows = [
        {"value": "a", "headers": {"h": b"1"}, "timestamp": 1_700_000_000_005, "partition": 2},
        {"key": "k", "headers": [], "partition": None},
        {"value": "c", "partition": 0},
    ]
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = producer.send_many("t", rows)
        sent_ms = world.now_ms
        world.advance(500)
    there = records(root)
    first, second, third = (there[future.result()[1:3]] for future in futures)
    assert (first["partition"], first["value"], first["headers"]) == (2, b"a", [{"key": "h", "value": b"1"}])
    assert (second["key"], second["value"], third["partition"], third["value"]) == (b"k", None, 0, b"c")
    assert [future.result().timestamp for future in futures] == [1_700_000_000_005, sent_ms, sent_ms]
    with sparklog.producer(root) as producer:
        keyed = producer.send("t", key="k")
    assert keyed.result().partition == futures[1].result().partition


def test_futures_are_a_sequence() -> None:
    with sparklog.producer(root_with(1), batch_size=300) as producer:
        futures = producer.send_many("t", {"value": [b"x" * 100] * 20})
        assert (len(futures), repr(futures)) == (20, "RecordFutures(20 records)")
        assert [future.result(10).offset for future in futures] == list(range(20))
        assert futures[-1].result().offset == 19
        assert [future.result().offset for future in futures[3:9:2]] == [3, 5, 7]
        with pytest.raises(IndexError):
            futures[20]
        assert list(producer.send_many("t", {"value": []})) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"value": ["a", 5]}, "expected value to be bytes, str or None, found 5"),
        ({"value": [None], "key": [None]}, "row 0 requires a key or a value"),
        ({"value": ["a", None]}, "row 1 requires a key or a value"),
        ({"value": ["a"], "partition": [3]}, "has partitions 0 to 2, found partition 3"),
        ({"value": ["a"], "partition": [-1]}, "partition must be an integer .*, found -1"),
        ({"value": ["a"], "partition": [1 << 40]}, "partition must be an integer .*, found 1099511627776"),
        ({"value": ["a"], "timestamp": [-1]}, "timestamps of 1970 or later"),
        ({"value": ["a"], "headers": [5]}, "headers as pairs"),
        ({"value": ["a"], "key": ["a", "b"]}, "columns of equal length"),
        ({"values": ["a"]}, "did you mean 'value'"),
        ([{"value": "a"}, 5], "expected a dictionary per row"),
        (pa.table({"value": [5]}), "expected column value to be binary or string"),
        (pa.table({"key": ["a"]}), "expected a column value"),
    ],
)
def test_invalid_rows_are_rejected_before_any_row_is_accepted(data: Any, text: str) -> None:
    root = root_with(3)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        with pytest.raises(BadRequest, match=text) as refused:
            producer.send_many("t", data)
        with pytest.raises(BadRequest):
            producer.send_many("t", [pa.table({"value": ["good"]}), pa.table({"value": [5]})])
    assert "\n" not in str(refused.value)
    assert not records(root)


def test_calls_that_cannot_send_are_rejected() -> None:
    root, row = root_with(1), {"value": ["a"]}
    with sparklog.producer(root, producer_id="p") as producer, pytest.raises(BadRequest, match="requires a sequence"):
        producer.send_many("t", row)
    with sparklog.producer(root) as producer, pytest.raises(NotFound, match="topic 'tt' does not exist"):
        producer.send_many("tt", row)
    with pytest.raises(BadRequest, match="this producer is closed"):
        producer.send_many("t", row)


def test_serializers_are_applied_to_dictionaries() -> None:
    root = root_with(1)
    with sparklog.producer(root, key_serializer="integer", value_serializer="json") as producer:
        producer.send_many("t", {"key": [7, None], "value": [{"a": 1}, [2]]})
        producer.send_many("t", [{"key": 8, "value": None}, {"value": "x"}])
        producer.send_many("t", {"value": pa.array([1])})
        with pytest.raises(BadRequest, match=r"sends only dictionaries.*sparklog\.formats\.encode"):
            producer.send_many("t", pa.table({"value": ["a"]}))
        with pytest.raises(BadRequest, match="key_serializer failed for 'x'"):
            producer.send_many("t", {"key": ["x"], "value": [1]})
    rows = [(row["key"], row["value"]) for _, row in sorted(records(root).items())]
    assert rows == [
        (b"\0\0\0\7", b'{"a": 1}'), (None, b"[2]"), (b"\0\0\0\x08", None), (None, b'"x"'), (None, b"1")
    ]  # fmt: skip


def test_a_custom_partitioner_selects_the_partitions() -> None:
    def last_byte(key: bytes | None, every: list[int], _: list[int]) -> int:
        return 0 if key is None else every[key[-1] % len(every)]

    with sparklog.producer(root_with(3), partitioner=last_byte) as producer:
        futures = producer.send_many(
            "t", {"value": ["a"] * 3, "key": [b"\x05", None, b"\x05"], "partition": [None, None, 1]}
        )
    assert [future.result().partition for future in futures] == [2, 0, 1]


def test_only_the_rejected_row_fails() -> None:
    values = [os.urandom(1500) if number in (1, 4) else b"%d" % number for number in range(6)]
    root = root_with(1, max_message_bytes=1000)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = [producer.send("t", "first"), *producer.send_many("t", {"value": values}), producer.send("t", "last")]
    assert [number for number, future in enumerate(futures) if future.exception() is not None] == [2, 5]
    there = records(root)
    sent = [b"first", *values, b"last"]
    for number in (0, 1, 3, 4, 6, 7):
        assert there[futures[number].result()[1:3]]["value"] == sent[number]


def test_more_rows_than_buffer_memory_wait_for_commits() -> None:
    root = root_with(2)
    with sparklog.producer(root, linger_ms=LATER, buffer_memory=20_000) as producer:
        futures = producer.send_many("t", {"value": [b"%099d" % number for number in range(1000)]})
    assert root.topic("t").log.state().version > 5
    there = records(root)
    assert [there[future.result()[1:3]]["value"] for future in futures] == [b"%099d" % number for number in range(1000)]


def test_the_error_for_full_memory_counts_the_accepted_rows() -> None:
    gate = Gate()
    with sparklog.producer(gate.root, buffer_memory=20_000, max_block_ms=50) as producer:
        with pytest.raises(Unavailable, match=r"only the first (\d+) of 1000 rows were accepted") as full:
            producer.send_many("t", {"value": [b"x" * 100] * 1000})
        gate.opened.set()
    assert f"the first {len(records(gate.root))} of" in str(full.value)
    too_large = pytest.raises(BadRequest, match="does not fit in buffer_memory")
    with sparklog.producer(gate.root, buffer_memory=2_000) as producer, too_large:
        producer.send_many("t", {"value": [b"x" * 3000]})


def test_no_row_is_accepted_if_a_row_does_not_fit_in_memory() -> None:
    root = root_with(1)
    with sparklog.producer(root, buffer_memory=4_000) as producer:
        with pytest.raises(BadRequest, match=r"a record of 9\d\d\d bytes does not fit in buffer_memory"):
            producer.send_many("t", {"value": [b"x" * 1500, b"y" * 1500, b"z" * 9000]})
        producer.flush()
    assert not records(root)


def test_small_rows_fit_in_memory_with_the_added_columns() -> None:
    root, numbers = root_with(1), range(2_000)
    with sparklog.producer(root, linger_ms=LATER, buffer_memory=4_000) as producer:
        futures = producer.send_many("t", {"value": [b"%d" % number for number in numbers]})
    there = records(root)
    for number, future in enumerate(futures):
        assert there[0, future.result().offset]["value"] == b"%d" % number


def test_rows_belong_to_the_open_transaction() -> None:
    root = root_with(1)
    with sparklog.producer(root, transactional_id="job") as producer:
        with pytest.raises(BadRequest, match="no transaction is open"):
            producer.send_many("t", {"value": ["a"]})
        producer.begin_transaction()
        futures = producer.send_many("t", {"value": ["a", "b"]})
        producer.commit_transaction()
        assert [future.result().offset for future in futures] == [0, 1]
        producer.begin_transaction()
        producer.send_many("t", {"value": ["c"]})
        producer.abort_transaction()
    assert [row["value"] for _, row in sorted(records(root).items())] == [b"a", b"b"]


def test_all_rows_can_be_awaited() -> None:
    async def main(producer: sparklog.Producer) -> list[int]:
        rows = await producer.send_many("t", {"value": ["x"] * 50})
        with pytest.raises(BadRequest, match="a batch with a single record"):
            await producer.send_many("t", {"value": ["x", os.urandom(2000), "y"]})
        return [metadata.offset for metadata in rows]

    with sparklog.producer(root_with(1, max_message_bytes=1000), linger_ms=1) as producer:
        assert asyncio.run(main(producer)) == list(range(50))
