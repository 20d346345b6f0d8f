"""Clients of other projects that read all records of a partition, and a root to read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sparklog

SECONDS = 30
ISOLATIONS = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as returned by a client."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_with_kafka_python(
    address: object, topic: str, partition: int, isolation: str = "read_uncommitted", **options: Any
) -> list[ReadRecord]:
    """Read from the log start to the end for the isolation level."""
    from kafka import KafkaConsumer, TopicPartition

    topic_partition = TopicPartition(topic, partition)
    consumer = KafkaConsumer(
        bootstrap_servers=str(address),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=isolation,
        fetch_max_wait_ms=100,
        **options,
    )
    try:
        consumer.assign([topic_partition])
        end = consumer.end_offsets([topic_partition])[topic_partition]
        records: list[Any] = []
        until = time.monotonic() + SECONDS
        while consumer.position(topic_partition) < end:
            for batch in consumer.poll(200).values():
                records += batch
            assert time.monotonic() < until, f"at {consumer.position(topic_partition)} of {end}"
        return [record_of(record) for record in records]
    finally:
        consumer.close(autocommit=False)


def read_with_aiokafka(
    address: object, topic: str, partition: int, isolation: str = "read_uncommitted"
) -> list[ReadRecord]:
    """Read with aiokafka, like `read_with_kafka_python`."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read() -> list[ReadRecord]:
        topic_partition = TopicPartition(topic, partition)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=str(address),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=isolation,
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        try:
            consumer.assign([topic_partition])
            end = (await consumer.end_offsets([topic_partition]))[topic_partition]
            records: list[Any] = []
            until = time.monotonic() + SECONDS
            while await consumer.position(topic_partition) < end:
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    records += batch
                assert time.monotonic() < until, f"at {await consumer.position(topic_partition)} of {end}"
            return [record_of(record) for record in records]
        finally:
            await consumer.stop()

    return asyncio.run(read())


def record_of(record: Any) -> ReadRecord:
    headers = tuple((name, value) for name, value in record.headers or ())
    # Messages of format v0 have no timestamp: -1 in Kafka, None in kafka-python.
    time_ms = -1 if record.timestamp is None else record.timestamp
    kind = -1 if record.timestamp_type is None else record.timestamp_type
    return ReadRecord(record.offset, time_ms, kind, record.key, record.value, headers)


def rows_of(topic: Any, partition: int, isolation: str) -> list[ReadRecord]:
    table = topic.scan(partitions=[partition], isolation_level=isolation).to_table()
    return [
        ReadRecord(
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["timestampType"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in table.to_pylist()
    ]


def filled_root(path: Path) -> Any:
    """Return a root with everything that sparklog writes: codecs, LogAppendTime, compaction, transactions, empty
    topics.
    """
    root = sparklog.open(path, create=True)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = root.create_topic(codec)
        for number in range(3):
            rows = [{"key": f"k{row}", "value": f"{number}-{row}" * 9, "headers": [("h", b"x")]} for row in range(50)]
            topic.append(rows, options=sparklog.WriteOptions(codec=codec, batch_bytes=2_000))
    stamped = root.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    stamped.append({"key": ["a", "b"], "value": ["1", "2"]})
    stamped.append({"key": ["a"], "value": [None]})
    table = root.create_topic("table", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for number in range(4):
        table.append({"key": ["a", "b", f"c{number}"], "value": [f"{number}"] * 3})
    sparklog.compact(root, topics=["table"], roll=True)
    table.append({"key": ["a"], "value": ["last"]})
    inline = root.create_topic("inline", configs={"inline.records.bytes": 65536})
    inline.append({"value": ["a", "b"]})
    inline.append({"value": ["c"]})
    decided = root.create_topic("decided", partitions=2)
    decided.append({"value": ["before"], "partition": [0]})
    for name, end in (("first", "commit"), ("second", "abort"), ("third", None)):
        transaction = sparklog.transactional(root, name).begin()
        # The third transaction remains open in partition 0. There, the second transaction is the last decided one.
        transaction.append("decided", {"value": [name, name], "partition": [0, 0 if end is None else 1]})
        transaction.prepare()
        if end is not None:
            getattr(transaction, end)()
    root.create_topic("empty")
    return root
