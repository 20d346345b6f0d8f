"""Roles that write: appends, producers with sequences, transactions, keys of a compacted topic, and Kafka clients.

The value of a record is `<process id>/<number>`, padded with dots to varying sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sparklog
from sparklog.errors import Conflict, Fenced, SparklogError
from tests.torture.process import Process, Step

if TYPE_CHECKING:
    from sparklog.clients.producer.futures import RecordMetadata

PLAIN, SEQUENCED, LATEST, EXPIRING, SERVED = "plain", "sequenced", "latest", "expiring", "served"
TRANSACTED = ("first", "second", "third")
KEYS = 20
"""Keys of one writer of the compacted topic."""
INCARNATION = 1_000_000
"""The numbers of one process of a keyed writer; those of its successor are higher."""


def value_of(process: Process, number: int, writer: str = "") -> bytes:
    """Return a value; one in twenty is large, so that some appends become files and others inline records."""
    size = process.random.choice([0] * 19 + [8_000])
    return f"{writer or process.id}/{number} ".encode() + b"." * size


def identity(value: bytes) -> tuple[str, int]:
    """Return the writer and the number of a value."""
    writer, _, number = value.partition(b" ")[0].decode().rpartition("/")
    return writer, int(number)


def appender(process: Process, topic_name: str = PLAIN) -> Step:
    """Append rows with `Topic.append`; unacknowledged appends are not repeated."""
    topic = process.root().topic(topic_name)
    number = 0

    def step() -> None:
        nonlocal number
        first, count = number, process.random.randint(1, 8)
        number += count
        process.log("try", process.id, first, count)
        outcome = topic.append({"value": [value_of(process, first + row) for row in range(count)]})
        process.log("ack", process.id, first, count, sorted(outcome.base.items()), sorted(outcome.end.items()))

    return step


def expiring_appender(process: Process) -> Step:
    return appender(process, EXPIRING)


def sequenced_producer(process: Process) -> Step:
    """Send with a producer id and sequences, starting after the last published sequence."""
    linger = process.random.choice([0, 5, 50])
    producer = sparklog.producer(process.root(), producer_id=process.name, linger_ms=linger)
    last: int | None = None

    def step() -> None:
        nonlocal last
        begin = producer.last_sequence(SEQUENCED) if last is None else last
        end, last = begin + process.random.randint(1, 20), None
        process.log("try", begin + 1, end - begin)
        futures = []
        for number in range(begin + 1, end + 1):
            value, key = value_of(process, number, process.name), f"{process.name}-{number % 5}"
            futures.append(producer.send(SEQUENCED, value, key, sequence=number))
        told: list[RecordMetadata] = [future.result() for future in futures]
        process.log("ack", begin + 1, [(each.partition, each.offset) for each in told])
        last = end

    return step


def transactor(process: Process) -> Step:
    """Write transactions to some of three topics; some are aborted, and some remain prepared for a while.

    Each value contains its transaction, its number in the topic, the number of records there, and the topics.
    """
    timeout_ms = process.random.choice([2_000, 60_000])
    producer = sparklog.transactional(process.root(), process.name, timeout_ms=timeout_ms)
    number = 0

    def step() -> None:
        nonlocal number
        name, number = f"{process.id}-{number}", number + 1
        topics = process.random.sample(TRANSACTED, process.random.randint(1, 3))
        process.log("try", name)
        try:
            transaction = producer.begin()
            for topic in topics:
                count = process.random.randint(1, 6)
                end = f"{count}/{','.join(topics)}"
                transaction.append(topic, {"value": [f"{name}/{row}/{end}".encode() for row in range(count)]})
            if process.random.random() < 0.3:
                transaction.prepare()
                process.pause(0.5)
            if process.random.random() < 0.25:
                transaction.abort()
                process.log("abort", name)
            else:
                transaction.commit()
                process.log("ack", name)
        except (Conflict, Fenced):
            process.log("abort", name)
            raise

    return step


def keyed_writer(process: Process) -> Step:
    """Write new values of keys that only this role writes; one in ten is a tombstone."""
    topic = process.root().topic(LATEST)
    number = process.incarnation * INCARNATION

    def step() -> None:
        nonlocal number
        keys = process.random.sample(range(KEYS), process.random.randint(1, 4))
        rows = []
        for key in keys:
            number += 1
            rows.append((f"{process.name}-{key}", number, process.random.random() < 0.1))
        process.log("try", rows)
        values = [None if is_tombstone else value_of(process, number) for _, number, is_tombstone in rows]
        topic.append({"key": [key for key, _, _ in rows], "value": values})
        process.log("ack", rows)

    return step


def kafka_producer(process: Process) -> Step:
    """Send to the servers with kafka-python, with an idempotent producer."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer: Any = KafkaProducer(
        bootstrap_servers=process.world.addresses,
        acks="all",
        enable_idempotence=True,
        request_timeout_ms=10_000,
        delivery_timeout_ms=120_000,
        metadata_max_age_ms=2_000,
        reconnect_backoff_max_ms=500,
    )
    number = 0

    def step() -> None:
        nonlocal number
        first, count = number, process.random.randint(1, 10)
        number += count
        process.log("try", process.id, first, count)
        futures = [producer.send(SERVED, value_of(process, first + row)) for row in range(count)]
        told = []
        try:
            for row, future in enumerate(futures):
                metadata = future.get(timeout=130)
                told.append((first + row, metadata.partition, metadata.offset))
        except KafkaError as error:
            raise SparklogError(f"kafka-python: {type(error).__name__}: {error}") from error
        finally:
            process.log("told", process.id, told)

    return step
