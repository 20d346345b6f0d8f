"""Clients that are not ours, as tests use them: they read all of a partition, and return its records."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

SECONDS = 30


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as a client gave it."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_with_kafka_python(
    address: object, topic: str, partition: int, isolation: str = "read_uncommitted", **options: Any
) -> list[ReadRecord]:
    """Read from the log start to where the reader's isolation level ends."""
    from kafka import KafkaConsumer, TopicPartition

    place = TopicPartition(topic, partition)
    consumer = KafkaConsumer(
        bootstrap_servers=str(address),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=isolation,
        fetch_max_wait_ms=100,
        **options,
    )
    try:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        records: list[Any] = []
        until = time.monotonic() + SECONDS
        while consumer.position(place) < end:
            for batch in consumer.poll(200).values():
                records += batch
            assert time.monotonic() < until, f"at {consumer.position(place)} of {end}"
        return [record_of(record) for record in records]
    finally:
        consumer.close(autocommit=False)


def read_with_aiokafka(
    address: object, topic: str, partition: int, isolation: str = "read_uncommitted"
) -> list[ReadRecord]:
    """The same, by another client."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read() -> list[ReadRecord]:
        place = TopicPartition(topic, partition)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=str(address),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=isolation,
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        try:
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            records: list[Any] = []
            until = time.monotonic() + SECONDS
            while await consumer.position(place) < end:
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    records += batch
                assert time.monotonic() < until, f"at {await consumer.position(place)} of {end}"
            return [record_of(record) for record in records]
        finally:
            await consumer.stop()

    return asyncio.run(read())


def record_of(record: Any) -> ReadRecord:
    headers = tuple((name, value) for name, value in record.headers or ())
    # Messages of format v0 have no time: -1 for Kafka, None for kafka-python.
    time_ms = -1 if record.timestamp is None else record.timestamp
    kind = -1 if record.timestamp_type is None else record.timestamp_type
    return ReadRecord(record.offset, time_ms, kind, record.key, record.value, headers)
