"""Transactions of a producer: futures complete with the commit, aborted records are not read, and offsets are
committed.
"""

from __future__ import annotations

import os
import threading

import pyarrow as pa
import pytest

import sparklog
from sparklog.clients.producer import transactions
from sparklog.errors import BadRequest, Conflict, Unavailable
from sparklog.log.topic.root import Root
from sparklog.testing import World
from tests.clients.producer.test_producer import LATER, records


def root_with_two(world: World | None = None) -> Root:
    root = (world or World()).root()
    root.create_topic("a", partitions=2)
    root.create_topic("b", configs={"max.message.bytes": 1000, "message.timestamp.type": "LogAppendTime"})
    return root


def test_futures_complete_with_the_commit() -> None:
    root = root_with_two()
    with sparklog.producer(root, transactional_id="job", linger_ms=0) as producer:
        futures = []
        for round_number in range(3):
            producer.begin_transaction()
            part = []
            for number in range(40):
                part.append(producer.send("ab"[number % 2], f"{round_number} {number}", key=f"k{number % 5}"))
                if number % 13 == 0:
                    producer.flush()
            assert not any(future.done() for future in part)
            producer.commit_transaction()
            assert all(future.done() for future in part)
            futures += part
    for index, future in enumerate(futures):
        row = records(root, future.result().topic)[future.result()[1:3]]
        assert row["value"] == f"{index // 40} {index % 40}".encode()
        assert int(row["timestamp"].timestamp() * 1000) == future.result().timestamp
    assert len(records(root, "a")) + len(records(root, "b")) == len({future.result() for future in futures}) == 120


def test_aborted_records_are_not_read() -> None:
    root = root_with_two()
    with sparklog.producer(root, transactional_id="job", linger_ms=LATER) as producer:
        producer.begin_transaction()
        first = producer.send("a", "1")
        producer.flush()
        second = producer.send("a", "2")
        producer.abort_transaction()
        for future in (first, second):
            with pytest.raises(Conflict, match="was aborted"):
                future.result(0)
        producer.begin_transaction()
        kept = producer.send("a", "3")
        producer.commit_transaction()
    assert [row["value"] for row in records(root, "a").values()] == [b"3"]
    assert kept.result().topic == "a"


def test_a_rejected_record_fails_the_transaction() -> None:
    root = root_with_two()
    with sparklog.producer(root, transactional_id="job", linger_ms=LATER) as producer:
        producer.begin_transaction()
        futures = [producer.send("a", "1"), producer.send("b", os.urandom(2000)), producer.send("b", "2")]
        with pytest.raises(BadRequest, match="a batch with a single record has"):
            producer.commit_transaction()
        assert all(isinstance(future.exception(0), BadRequest) for future in futures)
        with pytest.raises(BadRequest, match="no transaction is open"):
            producer.send("a", "x")
        with pytest.raises(BadRequest, match="a transaction is open"):
            producer.begin_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("b", "3")
        producer.commit_transaction()
    assert [len(records(root, topic)) for topic in "ab"] == [0, 1]


def test_a_batch_that_cannot_be_converted_fails_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    root = root_with_two()

    def no_memory(*_: object) -> pa.RecordBatch:
        raise pa.ArrowMemoryError("out of memory")

    with sparklog.producer(root, transactional_id="job", linger_ms=LATER) as producer:
        producer.begin_transaction()
        futures = [producer.send("a", "1")]
        producer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "rows_of", no_memory)
            # The error stops the sender's thread.
            patch.setattr(threading, "excepthook", lambda _: None)
            futures.append(producer.send("a", "2"))
            producer.flush()
        with pytest.raises(Unavailable, match=r"a batch of the transaction failed: .*out of memory"):
            producer.commit_transaction()
        assert all(isinstance(future.exception(0), Unavailable) for future in futures)
    assert records(root, "a") == {}


def test_group_offsets_are_committed_with_the_transaction() -> None:
    root = root_with_two()
    root.topic("a").append({"value": ["1", "2", "3"], "partition": [0, 0, 0]})
    with (
        sparklog.producer(root, transactional_id="job") as producer,
        sparklog.consumer(root, "g", topics="a", auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
    ):
        for abort in (True, False):
            producer.begin_transaction()
            for batch in consumer.poll(1.0):
                for value in batch.column("value").to_pylist():
                    producer.send("b", value + b"!")
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
            if abort:
                producer.abort_transaction()
                consumer.seek_to_committed()
            else:
                producer.commit_transaction()
        assert consumer.committed()["a", 0].offset == 3
    assert [row["value"] for _, row in sorted(records(root, "b").items())] == [b"1!", b"2!", b"3!"]


def test_close_aborts_an_open_transaction() -> None:
    root = root_with_two()
    producer = sparklog.producer(root, transactional_id="job")
    producer.begin_transaction()
    future = producer.send("a", "1")
    producer.close()
    with pytest.raises(Conflict, match="was aborted"):
        future.result(0)
    assert records(root, "a") == {}


def test_calls_in_the_wrong_order() -> None:
    root = root_with_two()
    with sparklog.producer(root) as plain:
        for call in (plain.begin_transaction, plain.commit_transaction, plain.abort_transaction):
            with pytest.raises(BadRequest, match="no transactional_id"):
                call()
    with sparklog.producer(root, transactional_id="job") as producer:
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(BadRequest, match="begin_transaction first"):
                call()
        with pytest.raises(BadRequest, match="no transaction is open"):
            producer.send("a", "1")
        with pytest.raises(BadRequest, match="begin_transaction first"):
            producer.send_offsets_to_transaction({"a": {0: 1}}, "g")
        producer.begin_transaction()
        producer.commit_transaction()
