"""Clients read the same records as Kafka's consumer from the same log, and batches are not decoded."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import Unavailable
from sparklog.format import compression, decode, payloads
from sparklog.format.batch_scan import scan_headers
from sparklog.log.state.view import OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.serve import server, stored_batches
from sparklog.serve.codes import Code
from sparklog.serve.connection import Connection
from sparklog.serve.options import Address, ServeLimits
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.serve.stored_batches import FetchedRecords, StoredBatches
from tests.fixture_data import expected_offsets, expected_records, split_partition
from tests.serve.clients import (
    ISOLATIONS,
    ReadRecord,
    filled_root,
    read_with_aiokafka,
    read_with_kafka_python,
    rows_of,
)
from tests.serve.wire import Wire, batch_of

PARTITIONS = (
    *(("codecs", f"codec-{codec}-{number}") for codec, number in (("gzip", 0), ("snappy", 1), ("lz4", 2), ("zstd", 3))),
    ("transactions", "txn-a-0"),
    ("transactions", "txn-b-1"),
    ("timestamps", None),
    ("compaction", None),
    ("legacy", None),
)


def places(fixtures: Path) -> list[tuple[Path, str]]:
    chosen = []
    for name, partition in PARTITIONS:
        for fixture in sorted(path.parent for path in (fixtures / name).rglob("data")):
            folders = [path.name for path in sorted((fixture / "data").iterdir()) if path.is_dir()]
            chosen += [(fixture, folder) for folder in folders if partition in (None, folder)][:2]
    return chosen


def expected(fixture: Path, partition: str, isolation: str) -> list[ReadRecord]:
    return [
        ReadRecord(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers)
        for r in expected_records(fixture, partition, isolation)
    ]


@pytest.mark.parametrize("imported", [False, True], ids=["in-place", "imported"])
def test_kafka_logs_are_served_as_kafka_served_them(
    fixtures: Path, serve: Callable[..., Any], tmp_path: Path, imported: bool
) -> None:
    counted = 0
    for fixture, partition in places(fixtures):
        location = fixture / "data"
        topic, number = split_partition(partition)
        if topic.startswith("__"):
            continue
        if imported:
            root = tmp_path / f"{fixture.name}-{partition}"
            sparklog.import_kafka(root, location, topics=[topic], groups=False, open_transactions="keep")
            location = root
        address = serve(location)
        for isolation in ISOLATIONS:
            records = expected(fixture, partition, isolation)
            assert read_with_kafka_python(address, topic, number, isolation) == records, (partition, isolation)
            counted += len(records)
    assert counted > 1000


def test_sparklog_topics_are_served_as_sparklog_reads_them(serve: Callable[..., Any], tmp_path: Path) -> None:
    root = filled_root(tmp_path)
    address = serve(tmp_path)
    for name in root.topics():
        topic = root.topic(name)
        for isolation in ISOLATIONS:
            for partition in topic.bounds():
                records = rows_of(topic, partition, isolation)
                assert read_with_kafka_python(address, name, partition, isolation) == records, (name, isolation)
    assert read_with_aiokafka(address, "decided", 0, "read_committed") == rows_of(
        root.topic("decided"), 0, "read_committed"
    )
    assert [record.offset for record in rows_of(root.topic("decided"), 0, "read_uncommitted")] == [0, 1, 2, 3, 4]
    assert [record.offset for record in rows_of(root.topic("decided"), 0, "read_committed")] == [0, 1]
    assert root.topic("decided").bounds()[0].last_stable == 3
    assert root.topic("decided").bounds()[1].last_stable == 2


def test_offsets_by_timestamp_are_those_of_the_topic(serve: Callable[..., Any], tmp_path: Path, fixtures: Path) -> None:
    from kafka import KafkaConsumer, TopicPartition

    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    for start in (1_000, 5_000, 3_000):
        topic.append({"value": ["a", "b", "c"], "timestamp": [start, start + 10, start + 5]})
    place = TopicPartition("t", 0)
    consumer = KafkaConsumer(bootstrap_servers=str(serve(tmp_path)))
    for time_ms in (0, 1_000, 1_001, 1_006, 3_000, 5_006, 5_011, 9_000):
        answer = consumer.offsets_for_times({place: time_ms})[place]
        record = topic.offset_for_timestamp(time_ms).get(0)
        assert (answer and (answer.offset, answer.timestamp)) == (record and (record.offset, record.timestamp))
    consumer.close()
    kafkas = expected_offsets(fixtures / "transactions")["txn-a-0"]
    place = TopicPartition("txn-a", 0)
    consumer = KafkaConsumer(bootstrap_servers=str(serve(fixtures / "transactions" / "data")))
    for answer in kafkas["offsetsForTimes"]:
        ours = consumer.offsets_for_times({place: answer["target"]})[place]
        assert (ours.offset, ours.timestamp) == tuple(
            answer["read_uncommitted"][name] for name in ("offset", "timestamp")
        )
    consumer.close()


def test_batches_are_not_decoded(serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled_root(tmp_path).topic("zstd")
    records = rows_of(topic, 0, "read_committed")
    calls: list[str] = []
    for module, name in ((decode, "decode"), (payloads, "payloads"), (compression, "decompress")):
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: calls.append(name))
    for name, module in list(sys.modules.items()):
        if name.startswith("sparklog.") and "payloads" in vars(module) and module is not payloads:
            monkeypatch.setattr(module, "payloads", lambda *_, **__: calls.append("payloads"), raising=False)
    assert read_with_kafka_python(serve(tmp_path), "zstd", 0) == records
    assert not calls


def test_a_fetch_at_the_log_end_returns_after_a_commit(serve: Callable[..., Any], tmp_path: Path) -> None:
    from kafka import KafkaConsumer, TopicPartition

    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    consumer = KafkaConsumer(bootstrap_servers=str(serve(tmp_path)), fetch_max_wait_ms=20_000)
    consumer.assign([TopicPartition("t", 0)])
    consumer.seek(TopicPartition("t", 0), 0)
    assert not consumer.poll(300)
    begun = time.monotonic()
    topic.append({"value": ["late"]})
    (batch,) = consumer.poll(15_000).values()
    assert [record.value for record in batch] == [b"late"]
    assert time.monotonic() - begun < 10
    consumer.close()


def test_a_fetch_of_buffered_batches_does_not_wait_for_a_thread(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    for number in range(3):
        topic.append({"value": [b"%d" % number * 50]})
    threads: list[str] = []
    read = StoredBatches.read

    def watched(*arguments: Any, **options: Any) -> FetchedRecords:
        threads.append(threading.current_thread().name)
        return read(*arguments, **options)

    monkeypatch.setattr(StoredBatches, "read", watched)
    wire, sizes = Wire(serve(tmp_path)), []
    for offset in (0, 1, 2, 1):
        fields = fetch_of({"t": offset}, 0)
        fields["topics"][0]["partitions"][0]["partitionMaxBytes"] = 150
        records = wire.ask("Fetch", 4, fields)["responses"][0]["partitions"][0]["records"]
        headers = scan_headers(bytes(records))
        assert headers.base_offset.tolist() == [offset]
        sizes.append(len(records))
    # One batch is smaller than the requested minimum, so a window is read. The last position is another one.
    assert all(75 < size < 150 for size in sizes), sizes
    assert [name == "sparklog-serve" for name in threads] == [False, True, False, False]
    wire.close()


def test_windows_of_all_sizes_have_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic = root.create_topic("t", configs={"inline.records.bytes": "0"})
    for number in range(20):
        topic.append({"value": [b"%d" % number * 100]})
    log = ServedLog(RootView(root), root, None)
    place = FetchPosition("t", log.poll(["t"])["t"].topic_id, 0, "read_uncommitted", 0)
    read = {}
    for size in (100, 700, 4 << 20):
        monkeypatch.setattr(stored_batches, "WINDOW_BYTES", size)
        records = StoredBatches(log).read(place, 20, 1 << 20, at_least_one=True)
        read[size] = b"".join(records.buffers)
    assert scan_headers(read[100]).base_offset.tolist() == list(range(20))
    assert read[100] == read[700] == read[4 << 20]


def test_clients_at_one_position_share_the_buffer(tmp_path: Path) -> None:
    """Each client reads the same window, of which only one is buffered."""
    root = sparklog.open(tmp_path, create=True)
    log, places = ServedLog(RootView(root), root, None), []
    for name in "tu":
        topic = root.create_topic(name)
        for number in range(4):
            topic.append({"value": [random.Random(number).randbytes(100)]})
        places.append(FetchPosition(name, log.poll([name])[name].topic_id, 0, "read_uncommitted", 0))
    batches = StoredBatches(log)
    batches._free_bytes = 2_000
    for place in (*places[:1] * 9, places[1]):
        batches.read(place, 4, 1, at_least_one=True)
    assert [batches.has_buffered(replace(place, offset=1), 4, 300) for place in places] == [True, True]


def test_the_remainder_of_a_window_does_not_keep_its_memory(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic = root.create_topic("t")
    for number in range(9):
        topic.append({"value": [random.Random(number).randbytes(1_000)]})
    log = ServedLog(RootView(root), root, None)
    place = FetchPosition("t", log.poll(["t"])["t"].topic_id, 0, "read_uncommitted", 0)
    whole = b"".join(StoredBatches(log).read(place, 9, 1 << 20, at_least_one=True).buffers)
    batches, read = StoredBatches(log), list[memoryview]()
    for offset in range(9):
        read += batches.read(replace(place, offset=offset), 9, 1, at_least_one=True).buffers
        kept = sum(len(memoryview(chunk.data.obj).cast("B")) for chunk in batches._buffered.values())
        assert kept <= 2 * (len(whole) - sum(map(len, read)))
    assert b"".join(read) == whole


def windows_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ServedLog, FetchPosition, list[int]]:
    """Return a log of 20 batches of about 1 KB, its start, and the offsets at which windows of 4 KB are planned."""
    root = sparklog.open(path, create=True)
    topic = root.create_topic("t")
    for number in range(20):
        topic.append({"value": [random.Random(number).randbytes(1_000)]})
    log, planned, plan = ServedLog(RootView(root), root, None), list[int](), ServedLog.plan

    def recording(log: ServedLog, offsets: OffsetRange, *arguments: Any) -> Any:
        planned.append(offsets.start)
        return plan(log, offsets, *arguments)

    monkeypatch.setattr(ServedLog, "plan", recording)
    monkeypatch.setattr(stored_batches, "WINDOW_BYTES", 4_400)
    return log, FetchPosition("t", log.poll(["t"])["t"].topic_id, 0, "read_uncommitted", 0), planned


def test_the_next_window_is_read_while_the_client_processes_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, start, planned = windows_of(tmp_path, monkeypatch)
    batches, read, ahead = StoredBatches(log), list[memoryview](), list[int]()
    offset = 0
    while offset < 20:
        records = batches.read(replace(start, offset=offset), 20, 1_200, at_least_one=True)
        read, offset = [*read, *records.buffers], records.next
        if records.next_window is not None:
            before = len(planned)
            batches.read_ahead(records.next_window, 20)
            batches.read_ahead(records.next_window, 20)
            assert planned[before:] in ([], [records.next_window.offset]), "a window is read once"
            ahead += planned[before:]
            assert offset <= records.next_window.offset, "before the client needs it"
    assert b"".join(read) == b"".join(StoredBatches(log).read(start, 20, 1 << 20, at_least_one=True).buffers)
    assert planned[: 1 + len(ahead)] == [0, *ahead], "fetches read only the first window"
    assert len(ahead) >= 3


def test_a_fetch_waits_for_the_window_that_is_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, start, planned = windows_of(tmp_path, monkeypatch)
    batches, window = StoredBatches(log), replace(start, offset=4)
    reading, complete, load = threading.Event(), threading.Event(), StoredBatches._load

    def slow(batches: StoredBatches, *arguments: Any) -> Any:
        reading.set()
        assert complete.wait(60)
        return load(batches, *arguments)

    monkeypatch.setattr(StoredBatches, "_load", slow)
    with ThreadPoolExecutor(2) as pool:
        ahead = pool.submit(batches.read_ahead, window, 20)
        assert reading.wait(60)
        fetched = pool.submit(batches.read, window, 20, 1_200, at_least_one=True)
        complete.set()
        ahead.result(60)
        assert fetched.result(60).next == 5
    assert planned == [4]


def test_a_fetch_gets_the_error_of_a_window_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, start, _ = windows_of(tmp_path, monkeypatch)
    batches = StoredBatches(log)

    def failing(*_: Any) -> Any:
        raise Unavailable("the store does not respond")

    monkeypatch.setattr(ServedLog, "plan", failing)
    batches.read_ahead(start, 20)
    with pytest.raises(Unavailable):
        batches.read(start, 20, 1_200, at_least_one=True)


def test_a_consumer_gets_all_windows_from_a_server_that_reads_ahead(
    serve: Callable[..., Address], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows_of(tmp_path, monkeypatch)
    ahead, read_ahead = list[int](), StoredBatches.read_ahead

    def recording(batches: StoredBatches, position: FetchPosition, end: int) -> None:
        ahead.append(position.offset)
        read_ahead(batches, position, end)

    monkeypatch.setattr(StoredBatches, "read_ahead", recording)
    wire, read, offset = Wire(serve(tmp_path)), bytearray(), 0
    while offset < 20:
        request = fetch_of({"t": offset}, 0)
        request["topics"][0]["partitions"][0]["partitionMaxBytes"] = 1_200
        wire.send("Fetch", 11, request)
        records = wire.receive("Fetch", 11)["responses"][0]["partitions"][0]["records"]
        read += records
        offset = int(scan_headers(bytes(records)).next_offset[-1])
    wire.close()
    assert scan_headers(bytes(read)).base_offset.tolist() == list(range(20))
    assert len(ahead) >= 3


def fetch_of(offsets: dict[str, int], wait_ms: int) -> dict[str, Any]:
    """Return the fields of a Fetch request for partition 0 of topics."""
    rows = {
        name: [{"partition": 0, "fetchOffset": start, "partitionMaxBytes": 1000}] for name, start in offsets.items()
    }
    topics = [{"topic": name, "partitions": partitions} for name, partitions in rows.items()]
    return {"maxWaitMs": wait_ms, "minBytes": 1, "maxBytes": 1 << 20, "topics": topics}


def fetched(wire: Wire, offsets: dict[str, int], wait_ms: int = 20_000) -> set[str]:
    """Return the names of topics for which a fetch returned batches."""
    answers = wire.ask("Fetch", 4, fetch_of(offsets, wait_ms))["responses"]
    assert [answer["partitions"][0]["errorCode"] for answer in answers] == [Code.NONE] * len(offsets)
    return {answer["topic"] for answer in answers if len(answer["partitions"][0]["records"] or b"")}


def fetching_slowly(address: Any, nbytes: int) -> Wire:
    """Return a connection that has requested a large response, and receives it slowly."""
    wire = Wire(address)
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    fields = fetch_of({"t": 0, "u": 0}, 0) | {"maxBytes": 2 * nbytes}
    for topic in fields["topics"]:
        topic["partitions"][0]["partitionMaxBytes"] = nbytes
    wire.send("Fetch", 4, fields)
    return wire


def test_a_slowly_received_response_is_complete_and_in_order(serve: Callable[..., Any], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    stored = []
    for name in "tu":
        root.create_topic(name).append(
            {"value": [random.Random(f"{name}{number}").randbytes(600_000) for number in range(5)]}
        )
        log = ServedLog(RootView(root), root, None)
        place = FetchPosition(name, log.poll([name])[name].topic_id, 0, "read_uncommitted", 0)
        stored.append(b"".join(StoredBatches(log).read(place, 5, 4_000_000, at_least_one=True).buffers))
    wire = fetching_slowly(serve(tmp_path), 4_000_000)
    wire.send("ApiVersions", 0, {})
    time.sleep(0.2)
    answers = wire.receive("Fetch", 4)["responses"]
    assert len(b"".join(stored)) > 6_000_000
    assert [bytes(answer["partitions"][0]["records"]) for answer in answers] == stored
    assert wire.receive("ApiVersions", 0)["apiKeys"]
    wire.close()


def test_idle_connections_are_closed_if_a_handler_cannot_be_imported(
    serve: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ImportError("no module of this name")

    monkeypatch.setattr(server, "import_handlers", fail)
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.05)
    sparklog.open(tmp_path, create=True)
    wire = Wire(serve(tmp_path, limits=ServeLimits(idle_seconds=0.3)))
    wire.socket.settimeout(20)
    assert wire.socket.recv(1) == b"", "the server has closed the connection"
    assert "cannot import the modules of all request handlers" in caplog.text
    wire.close()


def test_a_client_that_receives_nothing_is_dropped_after_its_timeout(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.05)
    ends: list[bool] = []
    run = Connection.run

    async def watched(connection: Connection) -> None:
        await run(connection)
        ends.append(True)

    monkeypatch.setattr(Connection, "run", watched)
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    topic.append({"value": [random.Random(number).randbytes(700_000) for number in range(12)]})
    wire = fetching_slowly(serve(tmp_path, limits=ServeLimits(idle_seconds=0.3)), 8_000_000)
    until = time.monotonic() + 20
    while not ends and time.monotonic() < until:
        time.sleep(0.02)
    assert ends
    wire.close()


def test_a_fetch_of_many_topics_polls_once(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = sparklog.open(tmp_path, create=True)
    for name in "abcd":
        root.create_topic(name).append({"value": [name]})
    looks: list[list[str]] = []
    look = ServedLog.poll

    def counted(log: ServedLog, names: Collection[str]) -> dict[str, Any]:
        looks.append(sorted(names))
        return look(log, names)

    monkeypatch.setattr(ServedLog, "poll", counted)
    monkeypatch.setattr(RootView, "poll_interval_ms", 60_000)
    address = serve(tmp_path, writable=True)
    wire = Wire(address)
    assert fetched(wire, {"a": 0, "b": 1, "c": 1, "d": 1}) == {"a"}
    assert looks == [["a", "b", "c", "d"]]
    # If there are batches to return, the topics are not polled again, except for a fetch that does not wait.
    for name in "bc":
        root.topic(name).append({"value": ["more"]})
    assert fetched(wire, {"a": 0, "b": 1, "c": 1, "d": 1}) == {"a"}
    assert len(looks) == 1
    assert fetched(wire, {"b": 1, "d": 1}) == {"b"}
    assert fetched(wire, {"a": 0, "c": 1}, 0) == {"a", "c"}
    # Commits of this server are visible immediately, also while other fetches wait, and so is an offset of another
    # server.
    waiting = Wire(address)
    waiting.send("Fetch", 4, fetch_of({"d": 1}, 60_000))
    assert not fetched(wire, {"a": 1, "c": 2, "d": 1}, 100)
    wire.produce("c", {0: batch_of([b"new"])})
    assert fetched(wire, {"a": 1, "c": 2, "d": 1}, 2_000) == {"c"}
    root.topic("d").append({"value": ["1", "2"]})
    assert fetched(wire, {"d": 2}) == {"d"}
    wire.close()
    waiting.close()
