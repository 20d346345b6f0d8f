"""The mirror between a real broker and a root, which is killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

import sparklog
from sparklog.testing.world import START_MS
from tests.datasource import spark_session
from tests.datasource.live_kafka import connector_jars
from tests.datasource.streams import forget_commit
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(1500)]

JOB = spark_session.REPOSITORY / "jobs" / "mirror.py"
RUN_SECONDS = 300
BATCH_OFFSETS = 300
KEYS = (None, b"", b"anna", "\u00fc".encode())
VALUES = (None, b"", b"book", bytes(range(256)))
HEADERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = ((), (("a", b"1"), ("a", b""), ("\u00fc", b"\xff")))
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Partitions = dict[tuple[str, int], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        connector_jars()
        with Broker(tmp_path_factory.mktemp("kafka") / "broker") as kafka:
            yield kafka.address
    except Missing as missing:
        pytest.skip(str(missing))


class Runs:
    """Runs of the job with one checkpoint. Each run is a separate driver process."""

    def __init__(self, folder: Path, work: Path, *arguments: str) -> None:
        self.checkpoint = work / "checkpoint"
        self._log = work / "log"
        self._command = [sys.executable, str(JOB), *arguments, "--checkpoint", str(self.checkpoint)]
        self._command += ["--max-offsets-per-trigger", str(BATCH_OFFSETS)]
        settings = {"spark.local.dir": str(folder / "scratch"), **spark_session.SETTINGS}
        given = [f"--conf '{name}={value}'" for name, value in settings.items() if name != "spark.driver.memory"]
        jars = ",".join(map(str, connector_jars()))
        submit = f"--master local[2] --driver-memory 1g --jars {jars} {' '.join(given)} pyspark-shell"
        self._environment = {**os.environ, **spark_session.environment(), "PYSPARK_SUBMIT_ARGS": submit}

    def begin(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            command = [*self._command, *more]
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)

    def kill_after(self, batches: int, *more: str) -> None:
        """Start the job, and kill the driver and the JVM after this number of additional micro-batches."""
        wanted = self.batches() + batches
        process = self.begin(*more)
        try:
            end = time.monotonic() + RUN_SECONDS
            while self.batches() < wanted:
                assert process.poll() is None, self.said()[-3000:]
                assert time.monotonic() < end, "the job did not get that far in time"
                time.sleep(0.01)
        finally:
            kill(process)

    def finish(self, *more: str) -> int:
        process = self.begin(*more)
        try:
            return process.wait(RUN_SECONDS)
        finally:
            kill(process)

    def batches(self) -> int:
        """Return the number of micro-batches that are committed in the checkpoint."""
        folder = self.checkpoint / "commits"
        return sum(1 for name in os.listdir(folder) if name.isdigit()) if folder.exists() else 0

    def said(self) -> str:
        return self._log.read_text(errors="replace")


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def create(servers: str, topics: Mapping[str, int]) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics(
            {name: {"num_partitions": count, "replication_factor": 1} for name, count in topics.items()}
        )


def partitions_of(servers: str, topic: str) -> int:
    with closing(KafkaConsumer(bootstrap_servers=servers)) as consumer:
        return len(consumer.partitions_for_topic(topic) or ())


def produce(servers: str, topic: str, partitions: int, numbers: range, transaction: str | None = None) -> None:
    """Produce all kinds of records. If `transaction` is given, produce in transactions, and abort every second
    transaction.
    """
    options = {} if transaction is None else {"transactional_id": transaction}
    with closing(KafkaProducer(bootstrap_servers=servers, linger_ms=5, **options)) as producer:
        if transaction is not None:
            producer.init_transactions()
        for start in range(numbers.start, numbers.stop, 50):
            if transaction is not None:
                producer.begin_transaction()
            for n in range(start, min(start + 50, numbers.stop)):
                key, value = KEYS[n // 2 % 4], VALUES[n % 4] if n % 3 else str(n).encode()
                producer.send(
                    topic,
                    key=key,
                    # this client rejects records that Kafka accepts
                    value=b"" if key is None and value is None else value,
                    headers=list(HEADERS[n // 5 % 2]),
                    partition=n % partitions,
                    timestamp_ms=START_MS - 997 * n if n else 0,
                )
            producer.flush()
            if transaction is not None:
                (producer.abort_transaction if start // 50 % 2 else producer.commit_transaction)()


def of_kafka(servers: str, topics: Mapping[str, int]) -> Partitions:
    """Return the records of a read_committed consumer: (offset, timestamp, key, value, headers) in order."""
    places = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
    found: Partitions = {tuple(place): [] for place in places}
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False)
    with closing(consumer):
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        end = time.monotonic() + RUN_SECONDS
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < end, "the topics were not read in time"
            for place, records in consumer.poll(timeout_ms=1000).items():
                found[tuple(place)] += [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]
    return found


def of_root(root: Path, topics: Mapping[str, int]) -> Partitions:
    """Return the same for a root."""
    found: Partitions = {(name, number): [] for name, count in topics.items() for number in range(count)}
    for name in topics:
        table = sparklog.open(root).topic(name).scan().to_table()
        times = table["timestamp"].cast("int64").to_pylist()
        for row, timestamp in zip(table.to_pylist(), times, strict=True):
            headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
            record = (row["offset"], timestamp, row["key"], row["value"], headers)
            found[name, row["partition"]].append(record)
    return {place: sorted(records, key=lambda record: int(record[0])) for place, records in found.items()}


def test_from_kafka_exactly_once(servers: str, spark_folder: Path, tmp_path: Path) -> None:
    topics, root = {"orders": 3, "transactions": 2}, tmp_path / "root"
    create(servers, topics)
    produce(servers, "orders", 3, range(1500))
    produce(servers, "transactions", 2, range(600), transaction="mirrored")
    given = ["--from", f"kafka://{servers}", "--to", str(root), "--topics", ",".join(topics)]
    runs = Runs(spark_folder, tmp_path, *given)
    runs.kill_after(2)
    forget_commit(runs.checkpoint, runs.batches() - 1)  # as if killed between the commits of the sink and of Spark
    produce(servers, "orders", 3, range(1500, 2500))
    runs.kill_after(3, "--follow")
    produce(servers, "transactions", 2, range(600, 1000), transaction="mirrored")
    for _ in range(2):
        assert runs.finish() == 0, runs.said()[-3000:]
        kafka, found = of_kafka(servers, topics), of_root(root, topics)
        for place, records in kafka.items():
            assert len(records) > 200
            assert [record[1:] for record in found[place]] == [record[1:] for record in records], place
            assert [record[0] for record in found[place]] == list(range(len(records)))
            if place[0] == "orders":
                assert found[place] == records
    assert runs.batches() > 5
    assert {name: sparklog.open(root).topic(name).log.state().partitions for name in topics} == topics


def test_a_topic_created_while_the_job_runs(servers: str, spark_folder: Path, tmp_path: Path) -> None:
    first, second, root = {"come-1": 2}, {"come-1": 2, "come-2": 3}, tmp_path / "root"
    create(servers, first)
    produce(servers, "come-1", 2, range(200))
    given = ["--from", f"kafka://{servers}", "--to", str(root), "--pattern", "come-.*"]
    runs = Runs(spark_folder, tmp_path, *given, "--kafka-option", "metadata.max.age.ms=2000")
    process = runs.begin("--follow")
    try:
        for topics in (first, second):
            if topics is second:
                create(servers, {"come-2": 3})
                produce(servers, "come-2", 3, range(300))
                produce(servers, "come-1", 2, range(200, 400))
            expected = of_kafka(servers, topics)
            end = time.monotonic() + RUN_SECONDS
            while (
                not set(topics) <= set(sparklog.open(root, create=True).topics()) or of_root(root, topics) != expected
            ):
                assert process.poll() is None, runs.said()[-3000:]
                assert time.monotonic() < end, runs.said()[-3000:]
                time.sleep(0.5)
    finally:
        kill(process)
    assert "new topics: come-2" in runs.said()


def test_into_kafka_at_least_once_and_in_order(servers: str, spark_folder: Path, tmp_path: Path) -> None:
    topics, place = {"back": 3, "other": 1}, tmp_path / "root"
    root = sparklog.open(place, create=True)
    headers: tuple[tuple[tuple[str, bytes | None], ...], ...] = (*HEADERS, (("null", None),))
    for name, count in topics.items():
        numbers = list(range(800 * count))
        rows = {
            "key": pa.array([KEYS[n // 2 % 4] for n in numbers], pa.binary()),
            "value": pa.array([str(n).encode() if n % 7 else None for n in numbers], pa.binary()),
            "headers": pa.array([[("number", str(n).encode()), *headers[n % 3]] for n in numbers], HEADER_TYPE),
            "partition": pa.array([n % count for n in numbers], pa.int32()),
        }
        root.create_topic(name, partitions=count).append(pa.table(rows))
    runs = Runs(spark_folder, tmp_path, "--from", str(place), "--to", f"kafka://{servers}", "--pattern", "back|oth.*")
    runs.kill_after(3)
    assert "created topic back with 3 partitions" in runs.said()
    forget_commit(runs.checkpoint, runs.batches() - 1)
    assert runs.finish() == 0, runs.said()[-3000:]
    sent, source = of_kafka(servers, topics), of_root(place, topics)
    assert {name: partitions_of(servers, name) for name in topics} == topics
    for where, records in source.items():
        expected = {record[4][0]: record[2:] for record in records}
        assert len(expected) == len(records) == 800
        order = list(expected)
        seen = [order.index(record[4][0]) for record in sent[where]]
        assert {record[4][0]: record[2:] for record in sent[where]} == expected
        assert all(after <= before + 1 for before, after in pairwise(seen)), where
    # The micro-batch whose commit was removed was sent twice.
    assert sum(map(len, sent.values())) >= 3200 + BATCH_OFFSETS - 10
    before = sum(map(len, sent.values()))
    assert runs.finish() == 0
    assert sum(map(len, of_kafka(servers, topics).values())) == before


def test_unsupported_copies_are_one_line_errors(servers: str, spark_folder: Path, tmp_path: Path) -> None:
    patience = ["--kafka-option", "request.timeout.ms=1000", "--kafka-option", "default.api.timeout.ms=2000"]
    for at, says in (
        ("127.0.0.1:9", "cannot describe the topics of kafka://127.0.0.1:9: "),
        (servers, "no topic 'nowhere'"),
    ):
        given = ["--from", f"kafka://{at}", "--to", str(tmp_path / "root"), "--topics", "nowhere", *patience]
        runs = Runs(spark_folder, tmp_path, *given)
        assert runs.finish() == 1
        lines = [line for line in runs.said().splitlines() if line.startswith("sparklog mirror: ")]
        assert len(lines) == 1, runs.said()[-3000:]
        assert says in lines[0]
        assert not (tmp_path / "root").exists()


def test_send_failures_are_one_line_errors(servers: str, spark_folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "root"
    sparklog.open(place, create=True).create_topic("refused").append(pa.table({"value": ["a"]}))
    given = ["--from", str(place), "--to", f"kafka://{servers}", "--topics", "refused", "--kafka-option", "acks=bogus"]
    runs = Runs(spark_folder, tmp_path, *given)
    assert runs.finish() == 1
    (line,) = [line for line in runs.said().splitlines() if line.startswith("sparklog mirror: ")]
    assert "Invalid value bogus for configuration acks" in line
