"""kafka-python or aiokafka, selected by the argument. It reads and writes lines of JSON; see `peer.py`."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

SECONDS = 30
PAUSE_SECONDS = 0.3


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
    # Releases without these options behave as with these values.
    defaults = (("isolation.level", "read_uncommitted"), ("enable.idempotence", "false"))
    chosen = {
        name.replace(".", "_"): int(value) if value.isdigit() else words.get(value, value)
        for name, value in asked.get("options", {}).items()
        if (name, value) not in defaults
    }
    return {"bootstrap_servers": asked["server"], **chosen}


def consuming(asked: dict[str, Any]) -> dict[str, Any]:
    quiet = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 100}
    return {**quiet, **options(asked)}


def is_stopped(asked: dict[str, Any]) -> bool:
    return "stop" in asked and Path(asked["stop"]).exists()


def outcome(step: Any) -> Any:
    """Return the result of a step after a pause, because a broker applies changes after its response."""
    time.sleep(PAUSE_SECONDS)
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - it is compared with a broker's
        return {"error": type(error).__name__}


class KafkaPython:
    def read(self, asked: dict[str, Any]) -> dict[str, Any]:
        from kafka import KafkaConsumer, TopicPartition

        places = [TopicPartition(topic, number) for topic, number in asked["places"]]
        consumer = KafkaConsumer(**consuming(asked))
        consumer.assign(places)
        for place, start in consumer.beginning_offsets(places).items():
            consumer.seek(place, asked.get("from", start))
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
        while len(records) < asked["count"] and time.monotonic() < until and not is_stopped(asked):
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

    def offsets(self, asked: dict[str, Any]) -> dict[str, Any]:
        from kafka import KafkaConsumer, TopicPartition

        consumer, rows = KafkaConsumer(**consuming(asked)), []
        for topic, number in asked["places"]:
            place = TopicPartition(topic, number)
            one = [consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]]
            for time_ms in asked.get("times", ()):
                hit = consumer.offsets_for_times({place: time_ms})[place]
                one.append(-1 if hit is None else hit.offset)
            rows.append(one)
        consumer.close()
        return {"offsets": rows}

    def admin(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Run the admin client step by step. Its results differ between releases: most steps search their text."""
        from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
        from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

        topic, group, filled = asked["topic"], asked["group"], TopicPartition(asked["filled"], 0)
        admin: Any = KafkaAdminClient(bootstrap_servers=asked["server"])
        consumer = KafkaConsumer(**consuming(asked))
        new = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})

        def call(name: str, *arguments: Any) -> Any:
            """Call a function of groups, which has another name since kafka-python 3."""
            return (getattr(admin, name, None) or getattr(admin, name.replace("consumer_", "")))(*arguments)

        def configs(values: dict[str, str] | None = None) -> Any:
            return ConfigResource(ConfigResourceType.TOPIC, topic, values)

        steps = {
            "create topic": lambda: bool(admin.create_topics([new])),
            "create topic again": lambda: bool(admin.create_topics([new])),
            "list topics": lambda: topic in str(admin.list_topics()),
            "describe topic": lambda: len(consumer.partitions_for_topic(topic)),
            "describe configs": lambda: "3600000" in str(admin.describe_configs([configs()])),
            "alter configs": lambda: bool(admin.alter_configs([configs({"retention.ms": "7200000"})])),
            "altered config": lambda: "7200000" in str(admin.describe_configs([configs()])),
            "create partitions": lambda: bool(admin.create_partitions({topic: NewPartitions(4)})),
            "delete records": lambda: "low_watermark" in str(admin.delete_records({filled: 3})),
            "list offsets": lambda: consumer.end_offsets([filled])[filled],
            "list groups": lambda: group in str(call("list_consumer_groups")),
            "describe group": lambda: "Empty" in str(call("describe_consumer_groups", [group])),
            "group offsets": lambda: filled.topic in str(call("list_consumer_group_offsets", group)),
            "delete group": lambda: group in str(call("delete_consumer_groups", [group])),
            "describe cluster": lambda: len(admin.describe_cluster()["brokers"]),
            "delete topic": lambda: bool(admin.delete_topics([topic])),
            "delete topic again": lambda: bool(admin.delete_topics([topic])),
        }
        answer = {"steps": {name: outcome(step) for name, step in steps.items()}}
        consumer.close()
        admin.close()
        return answer

    def transact(self, asked: dict[str, Any]) -> dict[str, Any]:
        from kafka import KafkaProducer, TopicPartition
        from kafka.structs import OffsetAndMetadata

        producer, topic = KafkaProducer(**options(asked)), asked["topic"]
        producer.init_transactions()
        for transaction in asked["transactions"]:
            producer.begin_transaction()
            for value in transaction["values"]:
                producer.send(topic, data(value), partition=0)
            if asked.get("group"):
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
            if "from" in asked:
                for place in places:
                    consumer.seek(place, asked["from"])
            else:
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
            while len(records) < asked["count"] and time.monotonic() < until and not is_stopped(asked):
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
            # Without acknowledgements, the result of a send is None.
            return {"offsets": [getattr(await future, "offset", -1) for future in sent]}

    def offsets(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asyncio.run(self._offsets(asked))

    async def _offsets(self, asked: dict[str, Any]) -> dict[str, Any]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        rows = []
        async with AIOKafkaConsumer(**consuming(asked)) as consumer:
            for topic, number in asked["places"]:
                place = TopicPartition(topic, number)
                one = [(await find([place]))[place] for find in (consumer.beginning_offsets, consumer.end_offsets)]
                for time_ms in asked.get("times", ()):
                    hit = (await consumer.offsets_for_times({place: time_ms}))[place]
                    one.append(-1 if hit is None else hit.offset)
                rows.append(one)
        return {"offsets": rows}

    def admin(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asyncio.run(self._admin(asked))

    async def _admin(self, asked: dict[str, Any]) -> dict[str, Any]:
        from aiokafka import TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        topic, group, filled = asked["topic"], asked["group"], TopicPartition(asked["filled"], 0)
        admin = AIOKafkaAdminClient(bootstrap_servers=asked["server"])
        await admin.start()
        new = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})

        def configs(values: dict[str, str] | None = None) -> Any:
            return ConfigResource(ConfigResourceType.TOPIC, topic, values)

        async def errors(call: Any) -> list[int]:
            """Return the error codes of topics in a response."""
            answer = await call
            return [row[1] for row in getattr(answer, "topic_errors", None) or answer.topic_error_codes]

        async def has(text: str, call: Any) -> bool:
            return text in str(await call)

        steps = {
            "create topic": lambda: errors(admin.create_topics([new])),
            "create topic again": lambda: errors(admin.create_topics([new])),
            "list topics": lambda: has(topic, admin.list_topics()),
            "describe topic": lambda: has(topic, admin.describe_topics([topic])),
            "describe configs": lambda: has("3600000", admin.describe_configs([configs()])),
            "alter configs": lambda: has(topic, admin.alter_configs([configs({"retention.ms": "7200000"})])),
            "altered config": lambda: has("7200000", admin.describe_configs([configs()])),
            "create partitions": lambda: errors(admin.create_partitions({topic: NewPartitions(4)})),
            "delete records": lambda: has("=3", admin.delete_records({filled: RecordsToDelete(3)})),
            "list groups": lambda: has(group, admin.list_consumer_groups()),
            "describe group": lambda: has("Empty", admin.describe_consumer_groups([group])),
            "group offsets": lambda: has(filled.topic, admin.list_consumer_group_offsets(group)),
            "describe cluster": lambda: has("127.0.0.1", admin.describe_cluster()),
            "delete topic": lambda: errors(admin.delete_topics([topic])),
            "delete topic again": lambda: errors(admin.delete_topics([topic])),
        }
        answer: dict[str, Any] = {}
        for name, step in steps.items():
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                answer[name] = await step()
            except Exception as error:  # noqa: BLE001 - it is compared with a broker's
                answer[name] = {"error": type(error).__name__}
        await admin.close()
        return {"steps": answer}

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
                if asked.get("group"):
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
