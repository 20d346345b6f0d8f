"""kafka-python or aiokafka, selected by the argument. It reads and writes lines of JSON; see `peer.py`."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from typing import Any

SECONDS = 30


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def data(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def row(record: Any) -> list[Any]:
    # Messages of format v0 have no timestamp: -1 in Kafka, None in kafka-python.
    time_ms, kind = (-1 if value is None else value for value in (record.timestamp, record.timestamp_type))
    headers = [[name, text(value)] for name, value in record.headers or ()]
    place = [record.topic, record.partition, record.offset]
    return [*place, time_ms, kind, text(record.key), text(record.value), headers]


def options(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the names and types that both clients use."""
    words = {"true": True, "false": False, "none": None}
    chosen = {
        name.replace(".", "_"): int(value) if value.isdigit() else words.get(value, value)
        for name, value in asked.get("options", {}).items()
    }
    return {"bootstrap_servers": asked["server"], **chosen}


def consuming(asked: dict[str, Any]) -> dict[str, Any]:
    quiet = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 100}
    return {**quiet, **options(asked)}


class KafkaPython:
    def read(self, asked: dict[str, Any]) -> dict[str, Any]:
        from kafka import KafkaConsumer, TopicPartition

        places = [TopicPartition(topic, number) for topic, number in asked["places"]]
        consumer = KafkaConsumer(**consuming(asked))
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends, records = consumer.end_offsets(places), []
        until = time.monotonic() + SECONDS
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < until, f"no end within {SECONDS} s"
            records += [row(record) for batch in consumer.poll(200).values() for record in batch]
        consumer.close()
        return {"records": records}

    def join(self, asked: dict[str, Any]) -> dict[str, Any]:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(asked["topic"], **consuming(asked))
        records: list[Any] = []
        until = time.monotonic() + asked["seconds"]
        while len(records) < asked["count"] and time.monotonic() < until:
            records += [row(record) for batch in consumer.poll(200).values() for record in batch]
        consumer.commit()
        consumer.close()
        return {"records": records}

    def produce(self, asked: dict[str, Any]) -> dict[str, Any]:
        from kafka import KafkaProducer

        producer, topic = KafkaProducer(**options(asked)), asked["topic"]
        sent = [
            producer.send(topic, data(value), data(key), [(name, data(header)) for name, header in headers], number, ms)
            for number, ms, key, value, headers in asked["records"]
        ]
        offsets = [future.get(SECONDS).offset for future in sent]
        producer.close()
        return {"offsets": offsets}

    def transact(self, asked: dict[str, Any]) -> dict[str, Any]:
        from kafka import KafkaProducer, TopicPartition
        from kafka.structs import OffsetAndMetadata

        producer, topic = KafkaProducer(**options(asked)), asked["topic"]
        producer.init_transactions()
        for transaction in asked["transactions"]:
            producer.begin_transaction()
            for value in transaction["values"]:
                producer.send(topic, data(value), partition=0)
            offsets = {TopicPartition(topic, 0): OffsetAndMetadata(transaction["offset"], "", -1)}
            producer.send_offsets_to_transaction(offsets, asked["group"])
            if transaction["commit"]:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
        producer.close()
        return {}


class AioKafka:
    def read(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asyncio.run(self._read(asked))

    async def _read(self, asked: dict[str, Any]) -> dict[str, Any]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        places = [TopicPartition(topic, number) for topic, number in asked["places"]]
        async with AIOKafkaConsumer(**consuming(asked)) as consumer:
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends, records = await consumer.end_offsets(places), list[Any]()
            until = time.monotonic() + SECONDS
            while any([await consumer.position(place) < ends[place] for place in places]):
                assert time.monotonic() < until, f"no end within {SECONDS} s"
                batches = await consumer.getmany(timeout_ms=200)
                records += [row(record) for batch in batches.values() for record in batch]
        return {"records": records}

    def join(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asyncio.run(self._join(asked))

    async def _join(self, asked: dict[str, Any]) -> dict[str, Any]:
        from aiokafka import AIOKafkaConsumer

        records: list[Any] = []
        async with AIOKafkaConsumer(asked["topic"], **consuming(asked)) as consumer:
            until = time.monotonic() + asked["seconds"]
            while len(records) < asked["count"] and time.monotonic() < until:
                batches = await consumer.getmany(timeout_ms=200)
                records += [row(record) for batch in batches.values() for record in batch]
            await consumer.commit()
        return {"records": records}

    def produce(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asyncio.run(self._produce(asked))

    async def _produce(self, asked: dict[str, Any]) -> dict[str, Any]:
        from aiokafka import AIOKafkaProducer

        topic = asked["topic"]
        async with AIOKafkaProducer(**options(asked)) as producer:
            sent = [
                await producer.send(
                    topic, data(value), data(key), number, ms, [(name, data(header)) for name, header in headers]
                )
                for number, ms, key, value, headers in asked["records"]
            ]
            return {"offsets": [(await future).offset for future in sent]}

    def transact(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asyncio.run(self._transact(asked))

    async def _transact(self, asked: dict[str, Any]) -> dict[str, Any]:
        from aiokafka import AIOKafkaProducer, TopicPartition

        topic = asked["topic"]
        async with AIOKafkaProducer(**options(asked)) as producer:
            for transaction in asked["transactions"]:
                await producer.begin_transaction()
                for value in transaction["values"]:
                    await producer.send(topic, data(value), partition=0)
                offsets = {TopicPartition(topic, 0): transaction["offset"]}
                await producer.send_offsets_to_transaction(offsets, asked["group"])
                if transaction["commit"]:
                    await producer.commit_transaction()
                else:
                    await producer.flush()
                    await producer.abort_transaction()
        return {}


client: Any = {"kafka-python": KafkaPython, "aiokafka": AioKafka}[sys.argv[1]]()
for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = getattr(client, asked["do"])(asked)
    except Exception as error:  # noqa: BLE001 - the test fails with it
        answer = {"error": repr(error)}
    print(json.dumps(answer), flush=True)
