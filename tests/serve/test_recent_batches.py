"""Batches in memory: fetches get the same bytes as from the log, and only batches that every reader may see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.log.topic.root import RootView
from sparklog.serve import recent_batches
from sparklog.serve.batch_commit import ReceivedBatch, commit_batches
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from sparklog.serve.recent_batches import RecentBatches
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.serve.stored_batches import StoredBatches
from tests.serve.test_reading import fetch_of
from tests.serve.wire import Wire, batch_of


def batches_of(*values: bytes, partition: int = 0) -> list[ReceivedBatch]:
    return [ReceivedBatch(partition, memoryview(batch_of([value, value])), 9, None, None) for value in values]


def log_of(root: Any) -> ServedLog:
    return ServedLog(RootView(root), root, None)


def position(log: ServedLog, offset: int, partition: int = 0) -> FetchPosition:
    return FetchPosition("t", log.poll(["t"])["t"].topic_id, partition, "read_committed", offset)


def read(log: ServedLog, offset: int, end: int, nbytes: int = 1 << 20, partition: int = 0) -> bytes:
    records = StoredBatches(log).read(position(log, offset, partition), end, nbytes, at_least_one=True)
    assert records.nbytes == sum(map(len, records.buffers))
    return b"".join(records.buffers)


def in_memory(log: ServedLog, offset: int, end: int) -> Sequence[memoryview]:
    key = position(log, offset)
    return log.recent.read(key.topic_id, key.partition, offset, end, 1 << 20, at_least_one=True).batches


def test_recent_batches_have_the_bytes_of_the_log(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    log, stored = log_of(root), log_of(root)
    topic = root.create_topic("t", partitions=2)
    for _ in range(2):
        commit_batches(topic.log, [*batches_of(b"1", b"2"), *batches_of(b"3", partition=1)], log.recent)
    assert len(in_memory(log, 0, 8)) == 4
    assert read(log, 0, 8) == read(stored, 0, 8)
    assert read(log, 2, 6) == read(stored, 2, 6)
    assert read(log, 0, 4, partition=1) == read(stored, 0, 4, partition=1)
    assert in_memory(stored, 0, 8) == []


def test_a_fetch_of_recent_batches_ends_at_its_limits(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic, log = root.create_topic("t"), log_of(root)
    commit_batches(topic.log, batches_of(b"1", b"2", b"3"), log.recent)
    first, second, third = in_memory(log, 0, 6)
    assert read(log, 0, 6, 1) == first, "the first batch is returned whatever its size"
    assert read(log, 0, 6, len(first) + len(second)) == bytes(first) + bytes(second)
    assert read(log, 0, 6, len(first) + len(second) + 1) == bytes(first) + bytes(second)
    assert read(log, 2, 4) == second
    records = StoredBatches(log).read(position(log, 0), 6, 1, at_least_one=False)
    assert records.buffers == []
    batches = StoredBatches(log)
    assert batches.has_buffered(position(log, 0), 6, 1 << 20)
    assert batches.has_buffered(position(log, 0), 6, len(first) + 1)
    assert not batches.has_buffered(position(log, 0), 8, 1 << 20), "offset 6 may be in the log"
    assert not batches.has_buffered(position(log, 1), 6, 1 << 20)
    assert in_memory(log, 0, 5) == [first, second], "a batch that ends after the end is not returned"
    assert bytes(third) == read(log, 4, 6)


def test_batches_of_other_writers_between_recent_batches_are_read_from_the_log(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic, log = root.create_topic("t"), log_of(root)
    commit_batches(topic.log, batches_of(b"1"), log.recent)
    sparklog.open(tmp_path).topic("t").append({"value": [b"2"]})
    commit_batches(topic.log, batches_of(b"3"), log.recent)
    assert read(log, 0, 5) == read(log_of(root), 0, 5)
    assert len(in_memory(log, 0, 5)) == 1
    # A read of recent batches does not use the batches that were read ahead at its position.
    for served, is_buffered in ((log, False), (log_of(root), True)):
        batches, start = StoredBatches(served), position(served, 0)
        batches.read_ahead(start, 5)
        assert batches.has_buffered(start, 5, 1) == is_buffered


@pytest.mark.parametrize("configs", [{"message.timestamp.type": "LogAppendTime"}])
def test_batches_with_log_append_time_are_not_cached(tmp_path: Path, configs: dict[str, str]) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic, log = root.create_topic("t", configs=configs), log_of(root)
    commit_batches(topic.log, batches_of(b"1"), log.recent)
    assert in_memory(log, 0, 2) == []
    assert read(log, 0, 2) == read(log_of(root), 0, 2)


def test_rejected_batches_are_not_cached(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic, log = root.create_topic("t"), log_of(root)
    corrupt = ReceivedBatch(0, memoryview(bytes(61)), 9, None, None)
    responses = commit_batches(topic.log, [corrupt, *batches_of(b"1")], log.recent)
    assert [response.code is Code.NONE for response in responses.values()].count(True) == 1
    assert in_memory(log, 0, 2) == [memoryview(read(log_of(root), 0, 2))]


def test_the_oldest_batches_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = RecentBatches()

    def add(base: int) -> None:
        recent.add("id", 0, base, 0, [(memoryview(bytearray(100)), 1)])

    def bases() -> list[int]:
        return [n for n in range(9) if recent.read("id", 0, n, n + 1, 100, at_least_one=True).batches]

    monkeypatch.setattr(recent_batches, "MAX_BATCHES", 3)
    for base in range(5):
        add(base)
    assert bases() == [2, 3, 4]
    monkeypatch.setattr(recent_batches, "MAX_BYTES", 200)
    add(5)
    assert bases() == [4, 5]
    assert recent.read("other", 0, 5, 6, 100, at_least_one=True).batches == []


def test_a_recent_batch_does_not_keep_its_request_in_memory() -> None:
    request = bytearray(1_000)
    batch = memoryview(request)[100:200]
    recent = RecentBatches()
    recent.add("id", 0, 7, 0, [(batch, 1)])
    batch.release()
    request.clear()  # raises BufferError as long as a view exists
    assert len(recent.read("id", 0, 7, 8, 100, at_least_one=True).batches[0]) == 100


def test_a_waiting_fetch_gets_a_committed_batch_without_a_plan(
    serve: Callable[..., Address], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    address, planned = serve(tmp_path, writable=True), list[int]()
    plan = ServedLog.plan

    def counting(log: ServedLog, offsets: Any, *arguments: Any) -> Any:
        planned.append(offsets.start)
        return plan(log, offsets, *arguments)

    monkeypatch.setattr(ServedLog, "plan", counting)
    consumer, producer = Wire(address), Wire(address)
    values = list[bytes]()
    for n in range(4):
        sent = threading.Event()

        def fetch(n: int = n, sent: threading.Event = sent) -> None:
            consumer.send("Fetch", 11, fetch_of({"t": n}, 10_000))
            sent.set()
            (topic,) = consumer.receive("Fetch", 11)["responses"]
            values.append(bytes(topic["partitions"][0]["records"]))

        thread = threading.Thread(target=fetch)
        thread.start()
        sent.wait()
        assert producer.produce("t", {0: batch_of([b"%d" % n])})[0]["errorCode"] == Code.NONE
        thread.join()
    consumer.close()
    producer.close()
    assert [b"%d" % n in value for n, value in enumerate(values)] == [True] * 4
    assert len(set(planned)) <= 1, "only the first fetch may have arrived before the modules were imported"
