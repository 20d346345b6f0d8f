"""A retried batch gets a response with its offset from any server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root, RootView
from sparklog.maintenance.work_items import Settings
from sparklog.retention.vacuum import IDLE_KAFKA_MS, vacuum
from sparklog.serve import repeated_batches
from sparklog.serve.appends import Appends
from sparklog.serve.batch_commit import Responses
from sparklog.serve.codes import Code, ProduceResponse
from sparklog.serve.options import Address
from sparklog.serve.served_log import ServedLog
from sparklog.testing.world import World
from tests.serve.wire import batch_of

PRODUCER = (1 << 40) + 7
OUT_OF_ORDER = [ProduceResponse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)]
Sent = tuple[int, bytes]


def produced(root: Root, *sent: Sent) -> list[ProduceResponse]:
    """Send batches to topic `t` concurrently, to a server that has just started: partition and bytes of each batch."""

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        return commit(log, batches)

    async def send() -> list[ProduceResponse]:
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        return [await answer for answer in [appends.add("t", place, memoryview(data), 9) for place, data in sent]]

    return asyncio.run(send())


def batch(producer: int, first: int, count: int, epoch: int = 0) -> bytes:
    values = [b"%d-%d" % (producer, first + n) for n in range(count)]
    return batch_of(
        values,
        key=b"%d-%d" % (producer, first),
        producer=(PRODUCER + producer, epoch, first),
        time_ms=1_700_000_000_000,
    )


STATES: dict[str, Callable[[Root], object]] = {
    "as appended": lambda root: None,
    "merged": lambda root: sparklog.compact(root),
    "sealed": lambda root: sparklog.compact(root, roll=True),
    "sealed, then merged above": lambda root: (
        sparklog.compact(root, roll=True),
        root.topic("t").append({"key": ["z"], "value": ["a"]}),
        sparklog.compact(root),
    ),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"inline.records.bytes": 0, "carried.commits": 0},
        {"message.timestamp.type": "LogAppendTime"},
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
    ],
    ids=["inline", "files", "log-append-time", "compacted"],
)
def test_another_server_returns_the_offsets_of_the_last_five_batches(state: str, configs: dict[str, object]) -> None:
    world = World()
    topic = world.root().create_topic("t", partitions=2, configs=configs)
    topic.append({"key": ["a"], "value": ["plain"]})
    first: list[tuple[Sent, ProduceResponse]] = []
    # Two commits with several batches of two producers in each of two partitions, and a plain batch in between.
    for commit in range(2):
        sent = [
            (partition, batch(producer, commit * 6 + n * 2, 2))
            for n in range(3)
            for partition in range(2)
            for producer in range(2)
        ]
        sent.insert(5, (0, batch_of([b"plain"])))
        first += zip(sent, produced(world.root(), *sent), strict=True)
        assert topic.log.state().version == commit + 2
    STATES[state](world.root())
    retried = [(sent, answer) for sent, answer in first if b"plain" not in sent[1]]
    assert len({(sent[0], answer.base) for sent, answer in retried}) == 24
    version = topic.log.state().version
    for one, answer in retried[4:]:
        assert produced(world.root(), one) == [answer]
    assert topic.log.state().version == version


def test_committed_batches_missing_from_the_log_are_acknowledged_without_an_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    topic = world.root().create_topic("t")
    batches = [(0, batch(0, n, 1)) for n in range(8)]
    for one in batches:
        assert produced(world.root(), one)[0].code is Code.NONE
    answers = [produced(world.root(), one)[0] for one in batches]
    assert [answer.base for answer in answers[3:]] == [3, 4, 5, 6, 7]
    # Limits of the search: the batch is found in one window, whose size was counted before it was read.
    monkeypatch.setattr(repeated_batches, "WINDOW_BYTES", 1)
    assert [produced(world.root(), one)[0].base for one in batches[3:]] == [3, 4, 5, 6, 7]
    # This is not a complete batch: the client has grouped its records differently.
    assert produced(world.root(), (0, batch(0, 5, 2))) == [ProduceResponse(Code.DUPLICATE_SEQUENCE_NUMBER)]
    topic.delete_records({0: 6})
    assert produced(world.root(), batches[5]) == [ProduceResponse(Code.DUPLICATE_SEQUENCE_NUMBER)]
    assert produced(world.root(), batches[6]) == [ProduceResponse(Code.NONE, 6, -1, 6)]


def test_a_committed_batch_that_was_compacted_is_acknowledged_without_an_offset() -> None:
    world = World()
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    world.root().create_topic("t", configs=configs)
    # Both records have the same key.
    first, second = [(0, batch_of([b"%d" % n], producer=(PRODUCER, 0, n), time_ms=1_700_000_000_000)) for n in range(2)]
    for one in (first, second):
        assert produced(world.root(), one)[0].code is Code.NONE
    sparklog.compact(world.root(), roll=True)
    assert world.values("t") == ["1"]
    assert produced(world.root(), first) == [ProduceResponse(Code.DUPLICATE_SEQUENCE_NUMBER)]


def append_others(world: World, first: int, count: int) -> None:
    """Commit batches of another producer, one by one."""
    for n in range(first, first + count):
        assert produced(world.root(), (0, batch(1, n, 1)))[0].code is Code.NONE


@pytest.mark.parametrize("copies", [127, 0])
def test_a_batch_that_was_not_written_before_a_later_batch_of_a_new_producer_is_rejected(copies: int) -> None:
    world = World()
    topic = world.root().create_topic("t", configs={"carried.commits": copies})
    append_others(world, 0, 20)
    topic.delete_records({0: 20})
    # The commit with the first batch has failed, and the producer has sent two batches without waiting for it.
    for first in (2, 3):
        assert produced(world.root(), (0, batch(0, first, 1)))[0].code is Code.NONE
        append_others(world, 18 + first, 1)
    assert produced(world.root(), (0, batch(0, 0, 2))) == OUT_OF_ORDER
    assert produced(world.root(), (0, batch(0, 1, 2))) == OUT_OF_ORDER
    assert produced(world.root(), (0, batch(0, 2, 1)))[0].base == 20
    assert topic.count().records == 4


def test_a_batch_that_was_not_written_after_an_idle_day_is_rejected() -> None:
    world = World()
    world.root().create_topic("t")
    for n in range(6):
        produced(world.root(), (0, batch(0, n, 1)))
    world.advance(2 * IDLE_KAFKA_MS)
    vacuum(world.topic("t"), Settings(now_ms=world.now_ms))
    assert not world.topic("t").log.state().registry
    assert produced(world.root(), (0, batch(0, 7, 1)))[0].code is Code.NONE
    assert produced(world.root(), (0, batch(0, 6, 1))) == OUT_OF_ORDER
    assert produced(world.root(), (0, batch(0, 5, 1))) == OUT_OF_ORDER


def test_a_batch_of_a_deleted_topic_is_not_a_batch_of_the_new_topic() -> None:
    world = World()
    world.root().create_topic("t")
    produced(world.root(), (0, batch(0, 0, 2)))
    world.topic("t").delete()
    world.root().create_topic("t")
    assert produced(world.root(), (0, batch(0, 2, 1)))[0].base == 0
    assert produced(world.root(), (0, batch(0, 0, 2))) == OUT_OF_ORDER


@pytest.mark.parametrize("copies", [127, 0])
def test_a_batch_is_found_behind_commits_of_other_producers(monkeypatch: pytest.MonkeyPatch, copies: int) -> None:
    world = World()
    world.root().create_topic("t", configs={"carried.commits": copies})
    first = produced(world.root(), (0, batch(0, 0, 2)))
    append_others(world, 0, 20)
    assert produced(world.root(), (0, batch(0, 2, 1)))[0].code is Code.NONE
    monkeypatch.setattr(repeated_batches, "SEARCHED_COMMITS", 22)
    assert produced(world.root(), (0, batch(0, 0, 2))) == first
    monkeypatch.setattr(repeated_batches, "SEARCHED_COMMITS", 21)
    assert produced(world.root(), (0, batch(0, 0, 2))) == OUT_OF_ORDER


def test_offsets_are_found_after_the_sequence_wraps() -> None:
    world = World()
    world.root().create_topic("t")
    last = 2**31 - 1
    sent = [(0, batch_of([b"a"] * 2, producer=(PRODUCER, 0, first))) for first in (last - 3, last - 1, 0, 2)]
    for one in sent:
        produced(world.root(), one)
    assert [produced(world.root(), one)[0].base for one in sent] == [0, 2, 4, 6]


class LossyProxy:
    """Forwards connections to `target`. After a call of `lose`, drops the next response and then forwards to `then`."""

    target: Address

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listener.getsockname()[1])
        self._then: Address | None = None
        self.lost = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, then: Address) -> None:
        self._then = then

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                server = socket.create_connection((self.target.host, self.target.port))
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_response: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_response and self._then is not None and not self.lost.is_set():
                    self.target = self._then
                    self.lost.set()
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def kafka_python_producer(address: Address) -> Iterator[Callable[[bytes], Callable[[], int]]]:
    from kafka import KafkaProducer

    options: dict[str, Any] = {"linger_ms": 50, "retry_backoff_ms": 50, "reconnect_backoff_ms": 50}
    producer = KafkaProducer(bootstrap_servers=str(address), enable_idempotence=True, acks="all", **options)

    def send(value: bytes) -> Callable[[], int]:
        future = producer.send("t", value, partition=0)
        return lambda: int(future.get(30).offset)

    yield send
    producer.close()


@contextmanager
def librdkafka_producer(address: Address) -> Iterator[Callable[[bytes], Callable[[], int]]]:
    options = {"bootstrap.servers": str(address), "enable.idempotence": True, "linger.ms": 50, "log_level": 0}
    producer = pytest.importorskip("confluent_kafka").Producer(options)
    offsets = dict[bytes, int]()

    def delivered(error: object, message: Any) -> None:
        assert error is None
        offsets[message.value()] = message.offset()

    def send(value: bytes) -> Callable[[], int]:
        producer.produce("t", value, partition=0, on_delivery=delivered)

        def offset() -> int:
            producer.flush(30)
            return offsets[value]

        return offset

    yield send


CLIENTS = {"kafka-python": kafka_python_producer, "librdkafka": librdkafka_producer}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_correct_offsets_after_a_failover(
    serve: Callable[..., Address], tmp_path: Path, client: str
) -> None:
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    topic.append({"value": ["plain"] * 10})
    proxy = LossyProxy()
    # Both servers advertise the proxy, so a client does not know which server it uses.
    servers = [serve(tmp_path, writable=True, advertise=(proxy.address,)) for _ in range(2)]
    proxy.target = servers[0]
    with CLIENTS[client](proxy.address) as send:
        assert send(b"first")() == 10
        proxy.lose(then=servers[1])
        told = {b"%d" % n: send(b"%d" % n) for n in range(3)}
        offsets = {value: offset() for value, offset in told.items()}
    proxy.listener.close()
    assert proxy.lost.wait(30)
    rows = topic.scan(start={0: 11}).to_table()
    assert dict(zip(rows["value"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == offsets
