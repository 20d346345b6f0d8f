"""The Python producer: arguments and results of `send`, partitions, order, flush, close, callbacks and asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import formats
from sparklog.clients.producer.futures import RecordFuture, RecordMetadata
from sparklog.errors import BadRequest, NotFound
from sparklog.log.topic.root import Root
from sparklog.testing import World

LATER = 60_000
"""A linger that is longer than any test waits."""


def root_with(partitions: int = 3, world: World | None = None, **configs: object) -> Root:
    root = (world or World()).root()
    names = {name.replace("_", "."): value for name, value in configs.items()}
    root.create_topic("t", partitions=partitions, configs=names)
    return root


def records(root: Root, topic: str = "t") -> dict[tuple[int, int], dict[str, Any]]:
    """Return the records by partition and offset."""
    rows = root.topic(topic).scan().to_table().to_pylist()
    return {(row["partition"], row["offset"]): row for row in rows}


def test_futures_return_the_position_of_each_record() -> None:
    root = root_with(4)
    sent: list[tuple[RecordFuture, bytes]] = []
    with sparklog.producer(root, linger_ms=1) as producer:
        for number in range(500):
            value = b"%d" % number
            key = None if number % 3 == 0 else b"key %d" % (number % 11)
            partition = 2 if number % 7 == 0 else None
            headers = {"n": value, "none": None} if number % 5 == 0 else None
            future = producer.send(
                "t", value, key, headers, partition, 1_700_000_000_000 + number if number % 2 else None
            )
            sent.append((future, value))
            if number % 90 == 0:
                producer.flush()
    there = records(root)
    assert len(there) == len({future.result()[:3] for future, _ in sent}) == 500
    for number, (future, value) in enumerate(sent):
        metadata = future.result()
        row = there[metadata.partition, metadata.offset]
        assert (metadata.topic, metadata.is_repeat, row["value"]) == ("t", False, value)
        assert int(row["timestamp"].timestamp() * 1000) == metadata.timestamp
        assert number % 7 or metadata.partition == 2
        headers = [(header["key"], header["value"]) for header in row["headers"] or []]
        assert headers == ([("n", value), ("none", None)] if number % 5 == 0 else [])


def test_records_of_a_partition_keep_the_order_of_each_thread() -> None:
    root = root_with(3)
    with sparklog.producer(root, linger_ms=0) as producer:

        def send(name: int) -> None:
            for number in range(300):
                producer.send("t", b"%d %d" % (name, number), key=b"%d" % (number % 5))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen: dict[tuple[int, bytes, int], list[int]] = defaultdict(list)
    for (partition, _), row in sorted(records(root).items()):
        name, number = map(int, row["value"].split())
        seen[name, row["key"], partition].append(number)
    assert len(seen) == 20
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values())
    assert sum(map(len, seen.values())) == 1200


def test_accumulated_records_are_one_commit() -> None:
    root = root_with()
    before = root.topic("t").log.state().version
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = [producer.send("t", str(number)) for number in range(50)]
        assert not any(future.done() for future in futures)
    assert root.topic("t").log.state().version == before + 1


def test_a_full_batch_does_not_wait() -> None:
    with sparklog.producer(root_with(), linger_ms=LATER, batch_size=1000) as producer:
        futures = [producer.send("t", b"x" * 100) for _ in range(10)]
        assert futures[-1].result(10).offset >= 0


def test_linger_ends_without_a_flush() -> None:
    with sparklog.producer(root_with(), linger_ms=30) as producer:
        begun = time.monotonic()
        producer.send("t", "a").result(10)
        assert 0.028 <= time.monotonic() - begun < 5


def test_keys_are_partitioned_as_in_kafka_python() -> None:
    partitioner = pytest.importorskip("kafka.partitioner.default")
    root = root_with(7)
    keys = [os.urandom(number % 20) for number in range(200)]
    with sparklog.producer(root) as producer:
        futures = [producer.send("t", b"", key=key) for key in keys]
    expected = [(partitioner.murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert [future.result().partition for future in futures] == expected


def test_records_without_a_key_change_their_partition_with_each_commit() -> None:
    with sparklog.producer(root_with(3)) as producer:
        places = []
        for _ in range(6):
            futures = [producer.send("t", "x") for _ in range(5)]
            producer.flush()
            places.append({future.result().partition for future in futures})
    assert all(len(partitions) == 1 for partitions in places)
    assert places[:3] == places[3:]
    assert len(set.union(*places)) == 3


def test_a_custom_partitioner_selects_the_partition() -> None:
    def last_byte(key: bytes | None, every: list[int], _: list[int]) -> int:
        return 0 if key is None else every[key[-1] % len(every)]

    with sparklog.producer(root_with(3), partitioner=last_byte) as producer:
        keyed, keyless = producer.send("t", key=b"\x05"), producer.send("t", "a")
        explicit = producer.send("t", "a", partition=1)
    assert [future.result().partition for future in (keyed, keyless, explicit)] == [2, 0, 1]


def test_timestamps_default_to_the_time_of_send() -> None:
    world = World()
    root = root_with(1, world)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        first = producer.send("t", "a")
        world.advance(70)
        second = producer.send("t", "b")
        sent_ms = world.now_ms
        world.advance(100)
    assert [first.result().timestamp, second.result().timestamp] == [sent_ms - 70, sent_ms]


def test_log_append_time_is_the_commit_time() -> None:
    world = World()
    root = root_with(2, world, message_timestamp_type="LogAppendTime")
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = [producer.send("t", "a", timestamp=5), producer.send("t", "b", partition=1)]
        world.advance(1000)
    there = records(root)
    for future in futures:
        metadata = future.result()
        stored = there[metadata.partition, metadata.offset]["timestamp"]
        assert metadata.timestamp == int(stored.timestamp() * 1000) == root.topic("t").log.state().time_ms


def test_added_partitions_are_used() -> None:
    world = World()
    root = root_with(1, world)
    with sparklog.producer(root, linger_ms=5) as producer:
        producer.send("t", "a")
        producer.flush()
        world.topic("t").alter(partitions=8)
        futures = [producer.send("t", "b", key=f"k{number}") for number in range(50)]
        producer.flush()
        assert len({future.result().partition for future in futures}) > 4
        assert producer.partitions_for("t") == set(range(8))
        world.topic("t").alter(partitions=9)
        assert producer.send("t", "c", partition=8).get(10).partition == 8
    there = records(root)
    assert all(there[future.result()[1:3]]["value"] == b"b" for future in futures)


def test_callbacks_run_in_order_and_errors_are_contained(caplog: pytest.LogCaptureFixture) -> None:
    called: list[object] = []
    with sparklog.producer(root_with(1), linger_ms=LATER) as producer:
        first = producer.send("t", "a").add_callback(called.append).add_errback(called.append)
        producer.send("t", "b").add_done_callback(lambda future: called.append(future.result()))
        producer.send("t", "c").add_done_callback(lambda future: 1 // 0)
        producer.send("t", "d").add_callback(lambda *both, **more: called.append((both, more)), 1, x=2)
        wrong = producer.send("t", "e")
        producer.flush()
        assert [item[2] for item in called[:2]] == [0, 1]  # type: ignore[index]
        assert called[2] == ((1, RecordMetadata("t", 0, 3, called[2][0][1].timestamp)), {"x": 2})  # type: ignore[index]
        late: list[object] = []
        first.add_done_callback(late.append)
        assert late == [first]
        assert wrong.exception() is None
    assert "a callback for a record" in caplog.text


def test_flush_in_a_callback_is_rejected() -> None:
    errors: list[BaseException | None] = []
    with sparklog.producer(root_with(1)) as producer:

        def flush(_: object) -> None:
            try:
                producer.flush()
            except BadRequest as error:
                errors.append(error)

        producer.send("t", "a").add_done_callback(flush)
    assert "from another thread" in str(errors[0])


def test_functions_of_concurrent_futures() -> None:
    with sparklog.producer(root_with(1), linger_ms=20) as producer:
        futures = [producer.send("t", str(number)) for number in range(5)]
        assert not futures[0].cancel()
        with pytest.raises(concurrent.futures.TimeoutError):
            producer.send("t", "x").result(0.001)
        done, waiting = concurrent.futures.wait(futures, 10)
        assert (len(done), len(waiting)) == (5, 0)
        assert {future.result().offset for future in concurrent.futures.as_completed(futures, 10)} == set(range(5))
        assert concurrent.futures.wait([producer.send("t", "y")], 10).not_done == set()


def test_a_send_can_be_awaited() -> None:
    async def main(producer: sparklog.Producer) -> list[int]:
        first = await producer.send("t", "a")
        rest = await asyncio.gather(*(producer.send("t", str(number)) for number in range(10)))
        with pytest.raises(BadRequest, match="a batch with a single record"):
            await producer.send("t", os.urandom(2000))
        return [first.offset, *(metadata.offset for metadata in rest)]

    with sparklog.producer(root_with(1, max_message_bytes=1000), linger_ms=1) as producer:
        assert asyncio.run(main(producer)) == list(range(11))


def test_coroutines_that_await_a_commit_are_woken_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    async def main(producer: sparklog.Producer) -> list[int]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *given: calls.append(given) or wake(*given))
        loop.call_later(0.05, producer.flush)
        return [
            metadata.offset
            for metadata in await asyncio.gather(*(producer.send("t", str(number)) for number in range(50)))
        ]

    with sparklog.producer(root_with(1), linger_ms=LATER) as producer:
        assert asyncio.run(main(producer)) == list(range(50))
    assert len(calls) == 1


def test_a_cancelled_coroutine_does_not_affect_the_others() -> None:
    async def main(producer: sparklog.Producer) -> None:
        sent = [producer.send("t", value) for value in ("a", os.urandom(2000), "c")]
        tasks = [asyncio.ensure_future(future) for future in sent]
        await asyncio.sleep(0)
        tasks[0].cancel()
        asyncio.get_running_loop().call_soon(producer.flush)
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert isinstance(second, BadRequest)
        assert isinstance(third, RecordMetadata)
        assert await sent[0] == sent[0].result()

    with sparklog.producer(root_with(1, max_message_bytes=1000), linger_ms=LATER) as producer:
        asyncio.run(main(producer))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("str", "ä", "ä".encode()),
        ("string", "ä", "ä".encode()),
        ("bytes", b"\x00", b"\x00"),
        ("json", {"a": [1, None]}, b'{"a": [1, null]}'),
        ("hex", "00ff", b"\x00\xff"),
        ("base64", "AP8=", b"\x00\xff"),
        *((name, 7, None) for name in ("short", "integer", "long", "float", "double")),
        (lambda value: json.dumps(value), {"a": 1}, b'{"a": 1}'),
        (lambda value: value[::-1], b"ab", b"ba"),
    ],
)
def test_serializers(name: str | Callable[..., Any], value: object, expected: bytes | None) -> None:
    if expected is None:
        expected = formats.encode(pa.array([value]), str(name))[0].as_py()
    root = root_with(1)
    with sparklog.producer(root, key_serializer=name, value_serializer=name) as producer:
        producer.send("t", value, key=value)
        producer.send("t", key=value)
        producer.send("t", value)
    rows = list(records(root).values())
    cells = [(expected, expected), (expected, None), (None, expected)]
    assert [(row["key"], row["value"]) for row in rows] == cells


def test_avro() -> None:
    pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    root = root_with(1)
    for given in (schema, json.dumps(schema), {4: schema}):
        with sparklog.producer(root, value_serializer=("avro", given)) as producer:
            producer.send("t", {"n": 3})
    column = root.topic("t").scan(columns=["value"]).to_table().column("value")
    assert formats.decode(column.slice(0, 2), "avro", schema).to_pylist() == [{"n": 3}] * 2
    assert formats.decode(column.slice(2), "avro", {4: schema}).to_pylist() == [{"n": 3}]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"linger": 5}, "did you mean 'linger_ms'"),
        ({"linger_ms": -1}, "linger_ms must be a non-negative number of milliseconds"),
        ({"batch_size": 0}, "batch_size"),
        ({"compression_type": None}, "compression_type must be none, gzip"),
        ({"compression_type": "brotli"}, "compression_type must be none, gzip"),
        ({"acks": 1}, "acks must be 'all'"),
        ({"acks": 0}, "acks must be 'all'"),
        ({"retries": 0}, "retries must be 2147483647"),
        ({"max_in_flight_requests_per_connection": 6}, "must be an integer from 1 to 5"),
        ({"enable_idempotence": False}, "enable_idempotence must be True"),
        ({"partitioner": "sticky"}, "partitioner must be a function"),
        ({"key_serializer": 5}, "key_serializer must be a function"),
        ({"value_serializer": "jsn"}, "perhaps|did you mean"),
        ({"value_serializer": "avro"}, r"value_serializer=\('avro', schema\)"),
        ({"producer_id": "a", "transactional_id": "b"}, "not both"),
        ({"producer_id": ""}, "producer id"),
        ({"bootstrap_servers": "a:9092"}, "bootstrap_servers"),
    ],
)
def test_options_with_unsupported_values_are_rejected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest, match=text) as refused:
        sparklog.producer(root_with(), **options)
    assert "\n" not in str(refused.value)


def test_options_with_equivalent_values_are_accepted() -> None:
    names: dict[str, Any] = {"acks": -1, "retries": 2**31 - 1, "max_in_flight_requests_per_connection": 1}
    with sparklog.producer(root_with(), enable_idempotence=True, client_id="mine", **names) as producer:
        assert "mine" in repr(producer)


@pytest.mark.parametrize(
    ("send", "text"),
    [
        ({"value": 5}, "expected value to be bytes"),
        ({"value": "\ud800"}, "as UTF-8"),
        ({"key": [1]}, "expected key to be bytes"),
        ({"headers": 5}, "expected headers as pairs"),
        ({"headers": [("a",)]}, "expected headers as pairs"),
        ({"headers": [(1, b"")]}, "header keys to be str"),
        ({"headers": {"a": 1}}, "a header to be bytes"),
        ({"partition": 3}, "has partitions 0 to 2, found partition 3"),
        ({"partition": -1}, "partition must be an integer .*, found -1"),
        ({"partition": True}, "partition must be an integer .*, found True"),
        ({"timestamp": -1}, "milliseconds since 1970"),
        ({"timestamp": 1.5}, "milliseconds since 1970"),
        ({"sequence": 1}, "sequence=1 requires a producer_id"),
        ({}, "requires a key or a value"),
        ({"partition": 1, "timestamp": 5}, "requires a key or a value"),
    ],
)
def test_invalid_records_are_rejected_by_send(send: dict[str, Any], text: str) -> None:
    with sparklog.producer(root_with()) as producer, pytest.raises(BadRequest, match=text) as refused:
        producer.send("t", **send)
    assert "\n" not in str(refused.value)


def test_a_serializer_error_reports_the_value() -> None:
    with sparklog.producer(root_with(), value_serializer="integer") as producer:
        with pytest.raises(BadRequest, match="value_serializer failed for 'x'"):
            producer.send("t", "x")
        with pytest.raises(BadRequest, match="value_serializer failed for 4294967296"):
            producer.send("t", 1 << 32)


def test_a_topic_must_exist() -> None:
    with sparklog.producer(root_with()) as producer:
        with pytest.raises(NotFound, match="topic 'tt' does not exist"):
            producer.send("tt", "x")
        with pytest.raises(BadRequest, match="topic must be a string"):
            producer.send(5, "x")  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            producer.partitions_for("tt")


def test_a_closed_producer_rejects_calls() -> None:
    producer = sparklog.producer(root_with(), linger_ms=LATER)
    future = producer.send("t", "a")
    producer.close()
    producer.close()
    assert future.done()
    with pytest.raises(BadRequest, match="this producer is closed"):
        producer.send("t", "b")


def test_each_topic_is_committed_separately() -> None:
    root = World().root()
    for number in range(5):
        root.create_topic(f"t{number}", partitions=number + 1)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = [producer.send(f"t{number % 5}", str(number)) for number in range(100)]
    for number, future in enumerate(futures):
        metadata = future.result()
        assert records(root, metadata.topic)[metadata.partition, metadata.offset]["value"] == b"%d" % number
    assert all(root.topic(f"t{number}").log.state().version == 1 for number in range(5))


def test_on_a_disk_with_a_location(tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    with sparklog.producer(tmp_path) as producer:
        assert producer.send("t", "a").result(20)[:3] == ("t", 0, 0)


def test_values_and_records_with_other_cells_can_be_mixed() -> None:
    world = World()
    root = root_with(3, world)
    sent: list[tuple[RecordFuture, dict[str, Any]]] = []
    with sparklog.producer(root, linger_ms=LATER) as producer:
        for number in range(300):
            given: dict[str, Any] = {"value": b"%d" % number}
            if number % 5 == 1:
                given["key"] = b"k%d" % number
            if number % 7 == 2:
                given["headers"] = {"h": b"%d" % number}
            if number % 11 == 3:
                given["timestamp"] = world.now_ms - number
            if number % 13 == 4:
                given["partition"] = number % 3
            sent.append((producer.send("t", **given), {"timestamp": world.now_ms} | given))
            world.advance(1)
    there = records(root)
    for future, given in sent:
        row = there[future.result()[1:3]]
        assert (row["value"], row["key"]) == (given["value"], given.get("key"))
        assert {item["key"]: item["value"] for item in row["headers"] or []} == given.get("headers", {})
        assert int(row["timestamp"].timestamp() * 1000) == future.result().timestamp == given["timestamp"]
        assert given.get("partition") in (None, row["partition"])
