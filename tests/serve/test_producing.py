"""Producers: records are stored exactly once, whichever server gets them; invalid batches get an error code."""

from __future__ import annotations

import asyncio
import cProfile
import os
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.format.record_batch import BatchHeader
from sparklog.limits import Limits
from sparklog.log.state import append_offsets
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import RootView
from sparklog.serve import appends, batch_commit, server
from sparklog.serve.appends import Appends, TopicQueue
from sparklog.serve.batch_checks import checked_batch, next_number
from sparklog.serve.batch_commit import Responses
from sparklog.serve.batch_file import write_batches
from sparklog.serve.codes import Code, CodeError, ProduceResponse
from sparklog.serve.connection import DropConnection
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.served_log import ServedLog
from sparklog.serve.server import serving
from sparklog.storage import local
from sparklog.testing import HookedStore, World
from tests.serve.clients import read_with_kafka_python
from tests.serve.wire import Wire, batch_of
from tests.support.kernel_ways import compiled

PRODUCER = (1 << 40) + 7


@contextmanager
def connected(*addresses: Address) -> Iterator[list[Wire]]:
    wires = [Wire(address) for address in addresses]
    try:
        yield wires
    finally:
        for wire in wires:
            wire.close()


def topic_of(path: Path, name: str = "t", **options: Any) -> Any:
    return sparklog.open(path, create=True).create_topic(name, **options)


def values(topic: Any, partition: int = 0) -> list[bytes]:
    return topic.scan(partitions=[partition]).to_table()["value"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_produced_records_are_stored_as_sent(serve: Callable[..., Address], tmp_path: Path, codec: str | None) -> None:
    from kafka import KafkaProducer

    topic = topic_of(tmp_path, partitions=3)
    address = serve(tmp_path, writable=True)
    producer = KafkaProducer(bootstrap_servers=str(address), compression_type=codec, linger_ms=2)
    sent = [
        producer.send("t", key=b"k%d" % n, value=b"v%d" % n, headers=[("h", b"%d" % n)], timestamp_ms=BASE_MS + n)
        for n in range(300)
    ]
    producer.flush()
    producer.close()
    read = {
        (partition, record.offset): record
        for partition in range(3)
        for record in read_with_kafka_python(address, "t", partition)
    }
    assert len(read) == 300
    for n, future in enumerate(sent):
        answer = future.get(10)
        record = read[answer.partition, answer.offset]
        assert (record.key, record.value, record.timestamp) == (b"k%d" % n, b"v%d" % n, BASE_MS + n)
        assert record.headers == (("h", b"%d" % n),)
    state = topic.log.state()
    assert "kafkaWriters" in state.write_features
    sparklog.compact(tmp_path, roll=True)
    assert sparklog.verify(tmp_path).sound
    again = [record for partition in range(3) for record in read_with_kafka_python(address, "t", partition)]
    assert again == [read[place] for place in sorted(read)]
    assert topic.log.state().registry == state.registry


BASE_MS = int(time.time() * 1000)


def test_a_topic_has_one_commit_per_linger(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic = topic_of(tmp_path, partitions=2)
    address = serve(tmp_path, writable=True, linger_seconds=0.5)
    with connected(*[address] * 6) as wires:
        threads = [
            threading.Thread(
                target=wire.produce,
                args=("t", {n % 2: batch_of([b"%d" % n], producer=(PRODUCER + n, 0, 0) if n < 4 else None)}),
            )
            for n, wire in enumerate(wires)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The first batch does not wait. All other batches wait for each other.
        assert wires[0].produce("t", {0: batch_of([b"6"])})[0]["errorCode"] == Code.NONE
    assert topic.log.state().version <= 3, "the topic's creation (0), the first, the others, the one after them"
    assert sorted(values(topic, 0) + values(topic, 1)) == [b"%d" % n for n in range(7)]


def test_responses_for_the_batches_of_a_commit_are_sent_in_one_call(
    serve: Callable[..., Address], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, sizes = topic_of(tmp_path), list[int]()
    write = asyncio.StreamWriter.write

    def counting(writer: asyncio.StreamWriter, data: bytes) -> None:
        sizes.append(len(data))
        write(writer, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", counting)
    with connected(serve(tmp_path, writable=True, linger_seconds=0.5)) as (wire,):
        for n in range(4):
            rows = [{"index": 0, "records": [batch_of([b"%d" % n])]}]
            topics = [{"name": "t", "partitionData": rows}]
            wire.send("Produce", 7, {"acks": -1, "timeoutMs": 1000, "topicData": topics})
        answers = [wire.receive("Produce", 7)["responses"][0]["partitionResponses"][0] for _ in range(4)]
    assert [(answer["errorCode"], answer["baseOffset"]) for answer in answers] == [(0, n) for n in range(4)]
    commits = topic.log.state().version
    assert commits <= 2, "the first commit has what was there, the next one all that arrived meanwhile"
    assert len(sizes) == commits
    assert values(topic) == [b"0", b"1", b"2", b"3"]


def test_durable_batches_get_a_response_before_the_connection_is_dropped(
    serve: Callable[..., Address], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, batches = topic_of(tmp_path), list[int]()
    add = Appends.add

    def dropping_the_third(appends: Appends, *given: Any) -> Any:
        batches.append(len(batches))
        if len(batches) == 3:
            raise DropConnection("the third")
        return add(appends, *given)

    monkeypatch.setattr(Appends, "add", dropping_the_third)
    with connected(serve(tmp_path, writable=True)) as (wire,):
        for n in range(3):
            topics = [{"name": "t", "partitionData": [{"index": 0, "records": [batch_of([b"%d" % n])]}]}]
            wire.send("Produce", 7, {"acks": -1, "timeoutMs": 1000, "topicData": topics})
        answers = [wire.receive("Produce", 7)["responses"][0]["partitionResponses"][0] for _ in range(2)]
        assert wire.socket.recv(1) == b""
    assert [answer["baseOffset"] for answer in answers] == [0, 1]
    assert values(topic) == [b"0", b"1"]


def test_a_commit_starts_when_each_busy_producer_has_sent_a_batch(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic = root.create_topic("t")
    commits: list[int] = []

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        commits.append(len(batches))
        return commit(log, batches)

    async def produce() -> None:
        an_hour = 3_600.0
        appends = Appends(ServedLog(RootView(root), root, None), run, an_hour)
        queue = appends._topics["t"] = TopicQueue(
            an_hour, latest_start=asyncio.get_running_loop().time() + an_hour, expected_batches=3
        )
        answers = [appends.add("t", 0, memoryview(batch_of([b"%d" % n])), 9) for n in range(2)]
        await asyncio.sleep(0.01)
        assert commits == []
        answers.append(appends.add("t", 0, memoryview(batch_of([b"2"])), 9))
        assert [(await answer).code for answer in answers] == [Code.NONE] * 3
        assert queue.expected_batches == 3, "each answer brings another batch"

    asyncio.run(produce())
    assert commits == [3]
    assert values(topic) == [b"0", b"1", b"2"]


def test_a_commit_starts_when_pending_batches_reach_the_size_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        records = memoryview(bytes(100))
        monkeypatch.setattr(appends, "COMMIT_BYTES", 2 * len(records))
        queue = TopicQueue(0.0, latest_start=loop.time() + 3_600, expected_batches=9)

        def add() -> None:
            queue.add(appends.PendingBatch(0, records, 9, None, None, loop.create_future()))

        for _ in range(2):
            add()
            waiting = asyncio.ensure_future(queue.wait_for_start())
            await asyncio.sleep(0)
            assert not waiting.done()
            for _ in range(2):
                add()
            await waiting
            assert [len(queue.drain()), len(queue.drain())] == [2, 1]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_batches_are_validated_again_if_the_topic_becomes_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(tmp_path, partitions=2)
    # The process has not read the topic, so the first attempt reads the latest state.
    log = sparklog.open(tmp_path).engine.log("t")

    def changing(*args: Any) -> FileSlices:
        monkeypatch.setattr(batch_commit, "write_batches", write_batches)
        topic.alter(configs={"cleanup.policy": "compact"})
        return write_batches(*args)

    monkeypatch.setattr(batch_commit, "write_batches", changing)
    keyless, keyed = (
        batch_commit.ReceivedBatch(partition, memoryview(batch_of([b"v"], key=key)), 9, None, None)
        for partition, key in enumerate((None, b"k"))
    )
    responses = batch_commit.commit_batches(log, [keyless, keyed])
    assert responses[keyless].code is Code.INVALID_RECORD
    assert responses[keyed].code is Code.NONE
    assert values(topic, 1) == [b"v"]


def test_a_full_partition_does_not_fail_batches_for_other_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(tmp_path, partitions=2)
    topic.append([{"value": b"a", "partition": 0}])
    monkeypatch.setattr(append_offsets, "INT64_MAX", 3)
    batches = [
        batch_commit.ReceivedBatch(partition, memoryview(batch_of([b"b"] * count)), 9, None, None)
        for partition, count in ((0, 2), (0, 1), (1, 3), (1, 1))
    ]
    responses = batch_commit.commit_batches(topic.log, batches)
    assert [(responses[batch].code, responses[batch].base) for batch in batches] == [
        (Code.NONE, 1),
        (Code.INVALID_REQUEST, -1),
        (Code.NONE, 0),
        (Code.INVALID_REQUEST, -1),
    ]
    assert "ends at offset 3" in responses[batches[1]].message
    assert [len(values(topic, partition)) for partition in (0, 1)] == [3, 3]


def test_a_small_commit_does_not_reset_the_number_of_expected_batches(tmp_path: Path) -> None:
    """The other producers' batches may be in sockets that the event loop has not read yet."""
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("t")
    expected = list[int]()

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        return commit(log, batches)

    async def produce() -> None:
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        queue = appends._topics["t"] = TopicQueue(0.0, expected_batches=8)
        for n in range(6):
            await appends.add("t", 0, memoryview(batch_of([b"%d" % n])), 9)
            expected.append(queue.expected_batches)

    asyncio.run(produce())
    assert expected == [6, 4, 3, 2, 1, 1]


def test_a_commit_waits_for_busy_producers_as_long_as_a_commit_takes(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("t")
    slow, ended = 0.05, list[float]()

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        responses = commit(log, batches)
        await asyncio.sleep(slow)
        ended.append(asyncio.get_running_loop().time())
        return responses

    async def produce() -> None:
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        await appends.add("t", 0, memoryview(batch_of([b"1"])), 9)
        assert appends._topics["t"].latest_start >= ended[0] + slow

    asyncio.run(produce())


def test_responses_do_not_wait_for_a_checkpoint() -> None:
    root = World(limits=Limits(checkpoint_commits=4)).root()
    log = root.create_topic("t").log
    found = list[list[int]]()

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def produce() -> None:
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        for n in range(8):
            assert (await appends.add("t", 0, memoryview(batch_of([b"%d" % n])), 9)).code == Code.NONE
            found.append(log.checkpoints())
        worker = appends._topics["t"].worker
        assert worker is not None
        await worker

    asyncio.run(produce())
    # The creation of the topic is commit 0, and commits 3 and 7 need a checkpoint.
    assert found == [[], [], [], [3], [3], [3], [3], [3, 7]]
    assert log.checkpoints() == [3, 7]
    assert not log.has_due_checkpoint()


def test_a_checkpoint_that_fails_does_not_affect_batches(caplog: pytest.LogCaptureFixture) -> None:
    root = World(limits=Limits(checkpoint_commits=2)).root()
    log = root.create_topic("t").log

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        if function == log.write_due_checkpoint:
            raise ValueError("no checkpoint")
        return function(*arguments)

    async def produce() -> None:
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        for n in range(2):
            assert (await appends.add("t", 0, memoryview(batch_of([b"%d" % n])), 9)).code == Code.NONE

    asyncio.run(produce())
    assert "internal error while writing a checkpoint of topic 't'" in caplog.text


@pytest.mark.parametrize(("parallel_reads", "linger"), [(1, 0.0), (16, 0.05)])
def test_only_a_bucket_limits_the_frequency_of_commits(parallel_reads: int, linger: float) -> None:
    world = World()
    root = world.root(HookedStore(world.store, parallel_reads=parallel_reads))
    root.create_topic("t")
    started = list[float]()

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        started.append(asyncio.get_running_loop().time())
        return commit(log, batches)

    async def produce() -> None:
        appends = Appends(ServedLog(RootView(root), root, None), run)
        before = asyncio.get_running_loop().time()
        await appends.add("t", 0, memoryview(batch_of([b"1"])), 9)
        assert before + linger <= appends._topics["t"].earliest_start <= started[0] + linger

    asyncio.run(produce())


def test_a_commit_does_not_wait_as_long_as_a_store_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers with batches in flight may have disconnected, so the next batch must not wait as long again."""
    monkeypatch.setattr("sparklog.serve.appends.MAX_WAIT_SECONDS", 0.01)

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        await asyncio.sleep(0.1)
        return dict.fromkeys(batches, ProduceResponse(Code.KAFKA_STORAGE_ERROR))

    async def produce() -> float:
        root = sparklog.open(tmp_path, create=True)
        root.create_topic("t")
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        answers = [appends.add("t", 0, memoryview(batch_of([b"%d" % n])), 9) for n in range(3)]
        assert {(await answer).code for answer in answers} == {Code.KAFKA_STORAGE_ERROR}
        return appends._topics["t"].latest_start - asyncio.get_running_loop().time()

    assert asyncio.run(produce()) <= 0.01


@asynccontextmanager
async def appending(path: Path) -> AsyncIterator[Callable[..., Awaitable[list[Code]]]]:
    """Yield a function that appends batches together, to a server that has polled topic `t`. It returns the response
    codes.
    """
    root = sparklog.open(path)

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        return commit(log, batches)

    appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)

    async def add(*batches: bytes, partition: int = 0) -> list[Code]:
        return [
            (await answer).code for answer in [appends.add("t", partition, memoryview(data), 9) for data in batches]
        ]

    assert await add(batch_of([b"first"])) == [Code.NONE]
    yield add


def test_the_next_commit_is_not_read_before_it_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look, topic = list[str](), TopicLog.refresh_checking_root, topic_of(tmp_path)

    def counted(log: TopicLog) -> Any:
        looks.extend([log.topic] if log is not topic.log else [])
        return look(log)

    async def produce() -> None:
        async with appending(tmp_path) as add:
            monkeypatch.setattr(TopicLog, "refresh_checking_root", counted)
            assert await add(batch_of([b"1"]), batch_of([b"2"])) == [Code.NONE] * 2
            assert looks == []
            topic.append([{"value": b"of another process"}])
            assert await add(batch_of([b"3"])) == [Code.NONE]

    asyncio.run(produce())
    assert looks == []
    assert values(topic) == [b"first", b"1", b"2", b"of another process", b"3"]


def test_a_batch_that_the_latest_state_accepts_is_accepted(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, configs={"max.message.bytes": "150"})

    async def produce() -> None:
        async with appending(tmp_path) as add:
            assert await add(batch_of([b"x" * 500]), batch_of([b"small"])) == [Code.MESSAGE_TOO_LARGE, Code.NONE]
            topic.alter(configs={"max.message.bytes": "1000"})
            assert await add(batch_of([b"y" * 500])) == [Code.NONE]
            topic.alter(partitions=2)
            assert await add(batch_of([b"new"]), partition=1) == [Code.NONE]
            topic.alter(configs={"max.message.bytes": "150"})
            assert await add(batch_of([b"z" * 500])) == [Code.MESSAGE_TOO_LARGE]

    asyncio.run(produce())
    assert values(topic) == [b"first", b"small", b"y" * 500]
    assert values(topic, 1) == [b"new"]


def test_records_are_checked_again_only_if_configs_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached state rejects the second batch, so both batches are validated against the latest state."""
    topic, checked = topic_of(tmp_path, configs={"max.message.bytes": "150"}), list[int]()

    def counted(records: memoryview, *given: Any) -> Any:
        checked.append(len(records))
        return checked_batch(records, *given)

    async def produce() -> None:
        small, large = batch_of([b"small"]), batch_of([b"x" * 500])
        async with appending(tmp_path) as add:
            monkeypatch.setattr(batch_commit, "checked_batch", counted)
            assert await add(small, large) == [Code.NONE, Code.MESSAGE_TOO_LARGE]
            assert checked == [len(small), len(large), len(large)]
            checked.clear()
            topic.alter(configs={"max.message.bytes": "1000"})
            assert await add(small, large) == [Code.NONE, Code.NONE]
            assert checked == [len(small), len(large)] * 2

    asyncio.run(produce())


def test_an_internal_error_gets_a_response(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic = root.create_topic("t")
    errors = [ZeroDivisionError("a mistake"), None]

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        error = errors.pop(0)
        if error is not None:
            raise error
        return commit(log, batches)

    async def produce() -> list[Code]:
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        batches = [memoryview(batch_of([b"%d" % n])) for n in range(2)]
        return [(await asyncio.wait_for(appends.add("t", 0, batch, 9), 20)).code for batch in batches]

    assert asyncio.run(produce()) == [Code.UNKNOWN_SERVER_ERROR, Code.NONE]
    assert values(topic) == [b"1"]
    assert "a mistake" in caplog.text


def produce_request(value: bytes) -> dict[str, Any]:
    """Return the fields of a Produce request with one batch."""
    rows = [{"index": 0, "records": [batch_of([value])]}]
    return {"acks": -1, "timeoutMs": 1000, "topicData": [{"name": "t", "partitionData": rows}]}


@contextmanager
def a_commit_in_flight(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Wire, Callable[[], None]]]:
    """Yield a connection whose first batch is being committed, and a function that completes this commit.

    At the end of the block, the server has been told to stop.
    """
    committing, complete = threading.Event(), threading.Event()
    commit = batch_commit.commit_batches

    def gated(log: TopicLog, batches: Sequence[Any], **options: Any) -> Responses:
        committing.set()
        assert complete.wait(60)
        return commit(log, batches, **options)

    monkeypatch.setattr(appends, "commit_batches", gated)
    try:
        with serving(str(root), ServeOptions(listen=Address("127.0.0.1", 0), writable=True)) as address:
            wire = Wire(address)
            wire.send("Produce", 7, produce_request(b"in flight"))
            assert committing.wait(60)
            yield wire, complete.set
    finally:
        complete.set()


def test_a_stopping_server_responds_to_the_commit_in_flight_and_rejects_pending_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(tmp_path)
    added, stopping = threading.Event(), threading.Event()
    add, close = Appends.add, Appends.close

    def noting(self: Appends, *given: Any) -> Any:
        response = add(self, *given)
        added.set()
        return response

    async def closing(self: Appends, timeout_seconds: float) -> None:
        stopping.set()
        await close(self, timeout_seconds)

    monkeypatch.setattr(Appends, "close", closing)
    with a_commit_in_flight(tmp_path, monkeypatch) as (wire, complete):
        monkeypatch.setattr(Appends, "add", noting)
        wire.send("Produce", 7, produce_request(b"pending"))
        assert added.wait(60)
        responding = threading.Thread(target=lambda: stopping.wait(60) and complete())
        responding.start()
    responding.join()
    rows = [wire.receive("Produce", 7)["responses"][0]["partitionResponses"][0] for _ in range(2)]
    assert [row["errorCode"] for row in rows] == [Code.NONE, Code.NOT_LEADER_OR_FOLLOWER]
    assert wire.socket.recv(1) == b""
    wire.close()
    assert values(topic) == [b"in flight"]


def test_an_unsupported_version_of_api_versions_gets_its_response_in_request_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_of(tmp_path)
    with a_commit_in_flight(tmp_path, monkeypatch) as (wire, complete):
        wire.send_raw("ApiVersions", 99, b"")
        wire.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            wire.socket.recv(1)
        wire.socket.settimeout(30)
        complete()
        (row,) = wire.receive("Produce", 7)["responses"]
        assert row["partitionResponses"][0]["errorCode"] == Code.NONE
        assert wire.receive("ApiVersions", 0)["errorCode"] == Code.UNSUPPORTED_VERSION
        wire.close()


def test_a_stopping_server_does_not_wait_for_a_slow_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic_of(tmp_path)
    monkeypatch.setattr(server, "STOP_SECONDS", 0.1)
    with a_commit_in_flight(tmp_path, monkeypatch) as (wire, _):
        pass
    with pytest.raises((AssertionError, ConnectionError)):
        wire.receive("Produce", 7)
    wire.close()


def test_an_internal_error_closes_only_its_own_connection(
    serve: Callable[..., Address], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_of(tmp_path)
    address = serve(tmp_path, writable=True)
    with connected(address, address) as (wire, other):
        with monkeypatch.context() as patch:
            patch.setattr(Appends, "add", lambda *given: 1 // 0)
            with pytest.raises(AssertionError, match="the server has closed the connection"):
                wire.produce("t", {0: batch_of([b"a"])})
        assert other.produce("t", {0: batch_of([b"b"])})[0]["errorCode"] == Code.NONE


def test_batches_in_flight_from_the_java_producer_are_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five batches of 16 KiB: on a disk, a commit then waits for two fsyncs, of the object and of the directory."""
    root = sparklog.open(tmp_path, create=True)
    topic = root.create_topic("t")
    commits, synced = list[int](), list[str]()

    def fsync(fd: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")

    async def run(commit: Callable[..., Responses], log: TopicLog, batches: Sequence[Any]) -> Responses:
        synced.clear()
        commits.append(len(batches))
        return commit(log, batches)

    async def produce() -> None:
        appends = Appends(ServedLog(RootView(root), root, None), run, 0.0)
        for _ in range(2):
            batches = [batch_of([bytes([65 + n]) * 16_000]) for n in range(5)]
            answers = [appends.add("t", 0, memoryview(batch), 9) for batch in batches]
            assert [(await answer).code for answer in answers] == [Code.NONE] * 5

    monkeypatch.setattr(local, "full_fsync", fsync)
    asyncio.run(produce())
    assert commits == [5, 5]
    assert synced == ["file", "folder"], "of the second commit: the first settles the folders above"
    assert not (tmp_path / "t" / "append").exists()
    assert len(values(topic)) == 10


def test_a_retry_is_written_once_on_any_server(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    first, second = serve(tmp_path, writable=True), serve(tmp_path, writable=True)
    batches = [batch_of([b"%d" % n, b"%d" % (n + 1)], producer=(PRODUCER, 0, n)) for n in range(0, 12, 2)]
    with connected(first, second) as (one, other):
        assert one.produce("t", {0: batches[0]})[0]["baseOffset"] == 0
        for wire in (one, other):
            again = wire.produce("t", {0: batches[0]})[0]
            assert (again["errorCode"], again["baseOffset"], again["logStartOffset"]) == (Code.NONE, 0, 0)
        assert other.produce("t", {0: batches[1]})[0]["errorCode"] == Code.NONE
        # Batches after a missing batch wait for it.
        assert one.produce("t", {0: batches[3]})[0]["errorCode"] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert one.produce("t", {0: batches[2]})[0]["errorCode"] == Code.NONE
        assert one.produce("t", {0: batches[3]})[0]["baseOffset"] == 6
        bumped = batch_of([b"x"], producer=(PRODUCER, 1, 0))
        assert other.produce("t", {0: bumped})[0]["errorCode"] == Code.NONE
        assert one.produce("t", {0: batches[4]})[0]["errorCode"] == Code.INVALID_PRODUCER_EPOCH
    assert values(topic) == [*(b"%d" % n for n in range(8)), b"x"]


def test_a_batch_sent_to_two_servers_concurrently_is_committed_once(
    serve: Callable[..., Address], tmp_path: Path
) -> None:
    topic = topic_of(tmp_path)
    addresses = [serve(tmp_path, writable=True, linger_seconds=0) for _ in range(2)]
    with connected(*addresses) as wires:
        for n in range(20):
            batch, answers = batch_of([b"%d" % n], producer=(PRODUCER, 0, n)), list[tuple[int, int]]()

            def send(wire: Wire, batch: bytes = batch, answers: list[tuple[int, int]] = answers) -> None:
                answer = wire.produce("t", {0: batch})[0]
                answers.append((answer["errorCode"], answer["baseOffset"]))

            threads = [threading.Thread(target=send, args=(wire,)) for wire in wires]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert answers == [(Code.NONE, n)] * 2
    assert values(topic) == [b"%d" % n for n in range(20)]


def header(first: int, count: int = 1, epoch: int = 0) -> BatchHeader:
    return BatchHeader(0, count - 1, count, 0, 0, producer_id=1, producer_epoch=epoch, base_sequence=first)


def refusal(last: int, batch: BatchHeader) -> Code:
    with pytest.raises(CodeError) as refused:
        next_number(last, batch)
    return refused.value.code


def test_sequences_are_validated_as_in_kafka() -> None:
    out_of_order, landed = Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.DUPLICATE_SEQUENCE_NUMBER
    last = next_number(None, header(5, 3))
    assert next_number(last, header(8)) == last + 1
    assert refusal(last, header(9)) == out_of_order
    assert refusal(last, header(5, 3)) == landed
    assert refusal(last, header(7)) == landed
    assert refusal(last, header(7, 2)) == out_of_order
    assert refusal(last, header(8, epoch=1)) == out_of_order
    assert refusal(last, header(-1)) == Code.INVALID_RECORD
    assert refusal(last, header(8, epoch=-1)) == Code.INVALID_PRODUCER_EPOCH
    bumped = next_number(last, header(0, epoch=1))
    assert refusal(bumped, header(8)) == Code.INVALID_PRODUCER_EPOCH
    assert bumped > last
    # The sequence after 2^31 - 1 is 0, but the record number increases.
    end = next_number(None, header(2**31 - 2, 2))
    wrapped = next_number(end, header(0, 4))
    assert wrapped == end + 4
    assert refusal(wrapped, header(2**31 - 2, 2)) == landed
    assert next_number(wrapped, header(4)) == wrapped + 1


def broken(**changes: Any) -> bytes:
    """Return a batch with a changed header and a correct checksum."""
    data = bytearray(batch_of([b"a", b"b"]))
    from dataclasses import replace

    from sparklog.format.batch_scan import scan_headers

    replace(scan_headers(bytes(data)).row(0), **changes).pack_into(memoryview(data))
    return bytes(data)


@pytest.mark.parametrize(
    ("batch", "code", "version"),
    [
        (b"", Code.INVALID_RECORD, 7),
        (None, Code.INVALID_RECORD, 7),
        (batch_of([b"a"])[:-1], Code.INVALID_RECORD, 7),
        (batch_of([b"a"]) * 2, Code.INVALID_RECORD, 7),
        (batch_of([b"a"])[:-1] + b"\1", Code.CORRUPT_MESSAGE, 7),
        (batch_of([b"a" * 3000]), Code.MESSAGE_TOO_LARGE, 7),
        (batch_of([b"a"], key=None), Code.INVALID_RECORD, 7),
        (batch_of([b"a" * 900], codec=4), Code.UNSUPPORTED_COMPRESSION_TYPE, 6),
        (batch_of([b"a"], time_ms=1), Code.INVALID_TIMESTAMP, 7),
        (batch_of([b"a"], producer=(1 << 40, 0, 0), transactional=True), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 7),
        (broken(count=3, last_offset_delta=2), Code.INVALID_RECORD, 7),
        (broken(last_offset_delta=5), Code.INVALID_RECORD, 7),
        (broken(attributes=0x20), Code.INVALID_RECORD, 7),
        (broken(attributes=5), Code.INVALID_RECORD, 7),
        (broken(base_offset=-1), Code.INVALID_RECORD, 7),
        (broken(base_offset=2**63 - 2), Code.INVALID_RECORD, 7),
        (batch_of([b"a"])[:16] + b"\1" + batch_of([b"a"])[17:], Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, 7),
    ],
    # The batches contain timestamps, but all test processes must use the same case names.
    ids=[
        *("empty", "none", "cut", "two", "checksum", "too-large", "no-key", "zstd-for-6", "old", "transactional"),
        *("count", "last-offset", "control", "codec", "below", "beyond", "magic"),
    ],
)
def test_invalid_batches_are_rejected_and_not_written(
    serve: Callable[..., Address], tmp_path: Path, batch: bytes | None, code: Code, version: int
) -> None:
    configs = {
        "cleanup.policy": "compact",
        "max.message.bytes": 2_000,
        "message.timestamp.before.max.ms": 3_600_000,
    }
    topic = topic_of(tmp_path, configs=configs)
    with connected(serve(tmp_path, writable=True)) as (wire,):
        assert wire.produce("t", {0: batch}, version=version)[0]["errorCode"] == code
        good = wire.produce("t", {0: batch_of([b"good"]), 7: batch_of([b"none"])})
        assert [answer["errorCode"] for answer in good] == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert wire.produce("none", {0: batch_of([b"a"])})[0]["errorCode"] == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert wire.produce("t", {0: batch_of([b"a"])}, acks=5)[0]["errorCode"] == Code.INVALID_REQUIRED_ACKS
    assert values(topic) == [b"good"]


def test_validating_a_batch_takes_few_calls() -> None:
    configs, sent = TopicConfigs(), memoryview(batch_of([b"x"] * 100, codec=3))
    with compiled():
        checked_batch(sent, 9, configs, BASE_MS)
        profile = cProfile.Profile()
        with profile:
            assert checked_batch(sent, 9, configs, BASE_MS).count == 100
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls <= 40, "however many records it has"


def test_with_log_append_time_the_commit_defines_the_timestamp(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic = topic_of(tmp_path, configs={"message.timestamp.type": "LogAppendTime"})
    address = serve(tmp_path, writable=True)
    with connected(address) as (wire,):
        answer = wire.produce("t", {0: batch_of([b"a", b"b"], time_ms=5)})[0]
        wire.send("Produce", 7, {"acks": 0, "topicData": []})
        assert wire.produce("t", {0: batch_of([b"c"])})[0]["baseOffset"] == 2, "acks=0 is not answered"
    records = read_with_kafka_python(address, "t", 0)
    assert [record.timestamp for record in records[:2]] == [answer["logAppendTimeMs"]] * 2
    assert {record.timestamp_type for record in records} == {1}
    assert [record.value for record in records] == values(topic)


def test_a_read_only_server_rejects_each_change(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    with connected(serve(tmp_path)) as (wire,):
        assert wire.produce("t", {0: batch_of([b"a"])})[0]["errorCode"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert wire.ask("InitProducerId", 1, {})["errorCode"] == Code.CLUSTER_AUTHORIZATION_FAILED
        created = wire.ask("CreateTopics", 5, {"topics": [{"name": "x", "numPartitions": 1}]})
        assert created["topics"][0]["errorCode"] == Code.TOPIC_AUTHORIZATION_FAILED
        deleted = wire.ask("DeleteTopics", 4, {"topicNames": ["t"]})
        assert deleted["responses"][0]["errorCode"] == Code.TOPIC_AUTHORIZATION_FAILED
    assert sparklog.open(tmp_path).topics() == ["t"]


def test_operators_change_topics(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic = topic_of(tmp_path, configs={"retention.ms": 5_000})
    topic.append({"value": ["a", "b"]})
    with connected(serve(tmp_path, writable=True)) as (wire,):
        wanted = {"name": "new", "numPartitions": 3, "replicationFactor": 1}
        configs = [{"name": "retention.ms", "value": "1000"}]
        asked = [{**wanted, "configs": configs}, {**wanted, "name": "t"}, {**wanted, "name": "a/b"}]
        asked += [
            {**wanted, "name": "z", "numPartitions": 0},
            {**wanted, "name": "y", "configs": [{"name": "retention.ms", "value": "soon"}]},
        ]
        codes = [row["errorCode"] for row in wire.ask("CreateTopics", 5, {"topics": asked})["topics"]]
        assert codes == [
            Code.NONE, Code.TOPIC_ALREADY_EXISTS, Code.INVALID_TOPIC, Code.INVALID_PARTITIONS, Code.INVALID_CONFIG
        ]  # fmt: skip
        root = sparklog.open(tmp_path)
        assert root.topics() == ["new", "t"]
        grown = wire.ask("CreatePartitions", 0, {"topics": [{"name": "new", "count": 5}, {"name": "t", "count": 1}]})
        assert [row["errorCode"] for row in grown["results"]] == [Code.NONE, Code.INVALID_PARTITIONS]
        change = [{"name": "cleanup.policy", "configOperation": 2, "value": "compact"}]
        change += [{"name": "retention.ms", "configOperation": 1}]
        resources = [{"resourceType": 2, "resourceName": "new", "configs": change}]
        altered = wire.ask("IncrementalAlterConfigs", 0, {"resources": resources})
        assert altered["responses"][0]["errorCode"] == Code.NONE
        described = wire.ask(
            "DescribeConfigs",
            1,
            {"resources": [{"resourceType": 2, "resourceName": "new", "configurationKeys": None}]},
        )
        rows = {row["name"]: (row["value"], row["configSource"]) for row in described["results"][0]["configs"]}
        assert rows["cleanup.policy"] == ("delete,compact", 1)
        assert rows["retention.ms"] == ("604800000", 5)
        places = [{"partitionIndex": 0, "offset": 1}]
        cut = wire.ask("DeleteRecords", 1, {"topics": [{"name": "t", "partitions": places}]})
        assert cut["topics"][0]["partitions"][0]["lowWatermark"] == 1
        places = [{"partitionIndex": 0, "offset": 9}]
        cut = wire.ask("DeleteRecords", 1, {"topics": [{"name": "t", "partitions": places}]})
        assert cut["topics"][0]["partitions"][0]["errorCode"] == Code.OFFSET_OUT_OF_RANGE
        assert values(topic) == [b"b"]
        gone = wire.ask("DeleteTopics", 4, {"topicNames": ["new", "none"]})
        assert [row["errorCode"] for row in gone["responses"]] == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert root.topics() == ["t"]
