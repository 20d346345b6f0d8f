"""librdkafka with confluent-kafka. It reads and writes lines of JSON; see `peer.py`.

It runs in its own environment, in which only confluent-kafka is installed.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

SECONDS = 30
PAUSE_SECONDS = 0.3
TIME_TYPES = {
    confluent_kafka.TIMESTAMP_NOT_AVAILABLE: -1,
    confluent_kafka.TIMESTAMP_CREATE_TIME: 0,
    confluent_kafka.TIMESTAMP_LOG_APPEND_TIME: 1,
}


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def data(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def row(message: Any) -> list[Any]:
    kind, time_ms = message.timestamp()
    kind = TIME_TYPES[kind]
    return [
        *(message.topic(), message.partition(), message.offset(), -1 if kind < 0 else time_ms, kind),
        *(text(message.key()), text(message.value()), [[name, text(value)] for name, value in message.headers() or ()]),
    ]


def consumer(asked: dict[str, Any], **more: Any) -> Any:
    options = {
        "bootstrap.servers": asked["server"],
        "group.id": "unused",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "check.crcs": True,
    }
    return Consumer({**options, **more, **asked.get("options", {})})


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """Read all partitions with one consumer, from the log start to the end for its isolation level."""
    records, ended = [], set()
    client = consumer(asked, **{"enable.partition.eof": True})
    try:
        begin = asked.get("from", OFFSET_BEGINNING)
        client.assign([TopicPartition(topic, number, begin) for topic, number in asked["places"]])
        until = time.monotonic() + SECONDS
        while len(ended) < len(asked["places"]):
            assert time.monotonic() < until, f"no end within {SECONDS} s: {ended}"
            for message in client.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    records.append(row(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add((message.topic(), message.partition()))
                else:
                    raise RuntimeError(str(error))
    finally:
        client.close()
    return {"records": records}


def join(asked: dict[str, Any]) -> dict[str, Any]:
    """Join a group, read up to a number of records or seconds or until the file `stop` exists, commit and leave."""
    records: list[Any] = []
    client, stop = consumer(asked), Path(asked.get("stop", "/nonexistent"))
    try:
        client.subscribe([asked["topic"]])
        until = time.monotonic() + asked.get("seconds", SECONDS)
        while len(records) < asked["count"] and time.monotonic() < until and not stop.exists():
            for message in client.consume(min(asked["count"] - len(records), 1000), 0.2):
                if message.error() is not None:
                    raise RuntimeError(str(message.error()))
                records.append(row(message))
        if records:
            client.commit(asynchronous=False)
    finally:
        client.close()
    return {"records": records}


def offsets(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the first and last offsets, and the offsets at or after timestamps."""
    client, rows = consumer(asked), []
    try:
        for topic, number in asked["places"]:
            low, high = client.get_watermark_offsets(TopicPartition(topic, number), 10)
            one = [low, high]
            for time_ms in asked.get("times", ()):
                (hit,) = client.offsets_for_times([TopicPartition(topic, number, time_ms)], 10)
                one.append(hit.offset)
            rows.append(one)
    finally:
        client.close()
    return {"offsets": rows}


def produce(asked: dict[str, Any]) -> dict[str, Any]:
    placed: dict[int, int] = {}
    failed: list[str] = []

    def landed(number: int) -> Any:
        def note(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(str(error))
            placed[number] = message.offset()

        return note

    producer = Producer({"bootstrap.servers": asked["server"], **asked.get("options", {})})
    for number, (partition, time_ms, key, value, headers) in enumerate(asked["records"]):
        producer.produce(
            asked["topic"],
            data(value),
            data(key),
            partition,
            on_delivery=landed(number),
            timestamp=time_ms,
            headers=[(name, data(header)) for name, header in headers],
        )
        producer.poll(0)
    left = producer.flush(SECONDS)
    assert not left, f"{left} records were not sent"
    if failed:
        raise RuntimeError(failed[0])
    return {"offsets": [placed[number] for number in sorted(placed)]}


def transact(asked: dict[str, Any]) -> dict[str, Any]:
    """Run transactions of one producer, with the offsets of a group."""
    topic, group = asked["topic"], consumer({"server": asked["server"]}, **{"group.id": asked.get("group") or "unused"})
    producer = Producer({"bootstrap.servers": asked["server"], **asked.get("options", {})})
    producer.init_transactions(SECONDS)
    for transaction in asked["transactions"]:
        producer.begin_transaction()
        for value in transaction["values"]:
            producer.produce(topic, data(value), partition=0)
        if asked.get("group"):
            positions = [TopicPartition(topic, 0, transaction["offset"])]
            producer.send_offsets_to_transaction(positions, group.consumer_group_metadata(), SECONDS)
        if transaction["commit"]:
            producer.commit_transaction(SECONDS)
        else:
            producer.flush(SECONDS)
            producer.abort_transaction(SECONDS)
    group.close()
    return {}


def admin(asked: dict[str, Any]) -> dict[str, Any]:
    """Run the admin client step by step."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka import admin as api

    topic, group, filled = asked["topic"], asked["group"], TopicPartition(asked["filled"], 0, 3)
    client: Any = api.AdminClient({"bootstrap.servers": asked["server"]})
    new = api.NewTopic(topic, 2, 1, config={"retention.ms": "3600000"})
    resource = api.ConfigResource(api.ConfigResource.Type.TOPIC, topic)

    def of(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(SECONDS)

    def retention() -> str:
        value: str = of(client.describe_configs([resource]))["retention.ms"].value
        return value

    def alter() -> Any:
        change = api.ConfigEntry("retention.ms", "7200000", incremental_operation=api.AlterConfigOpType.SET)
        changed = api.ConfigResource(api.ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
        return of(client.incremental_alter_configs([changed]))

    def group_offsets() -> int:
        (position,) = of(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])).topic_partitions
        offset: int = position.offset
        return offset

    names = client.list_consumer_groups
    steps = {
        "create topic": lambda: of(client.create_topics([new])),
        "create topic again": lambda: of(client.create_topics([new])),
        "list topics": lambda: topic in client.list_topics(timeout=SECONDS).topics,
        "describe topic": lambda: len(client.list_topics(topic, timeout=SECONDS).topics[topic].partitions),
        "describe configs": retention,
        "alter configs": alter,
        "altered config": retention,
        "create partitions": lambda: of(client.create_partitions([api.NewPartitions(topic, 4)])),
        "delete records": lambda: of(client.delete_records([filled])).low_watermark,
        "list offsets": lambda: of(client.list_offsets({filled: api.OffsetSpec.latest()})).offset,
        "list groups": lambda: group in {one.group_id for one in names().result(SECONDS).valid},
        "describe group": lambda: of(client.describe_consumer_groups([group])).state.name,
        "group offsets": group_offsets,
        "delete group": lambda: of(client.delete_consumer_groups([group])),
        "describe cluster": lambda: len(client.describe_cluster().result(SECONDS).nodes),
        "delete topic": lambda: of(client.delete_topics([topic])),
        "delete topic again": lambda: of(client.delete_topics([topic])),
    }
    return {"steps": {name: outcome(step) for name, step in steps.items()}}


def outcome(step: Any) -> Any:
    """Return the result of a step after a pause, because a broker applies changes after its response."""
    time.sleep(PAUSE_SECONDS)
    try:
        return step()
    except confluent_kafka.KafkaException as error:
        return {"error": error.args[0].name()}
    except Exception as error:  # noqa: BLE001 - it is compared with a broker's
        return {"error": type(error).__name__}


def version(asked: dict[str, Any]) -> dict[str, Any]:
    return {"version": confluent_kafka.libversion()[0]}


for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = {
            "read": read,
            "join": join,
            "offsets": offsets,
            "produce": produce,
            "transact": transact,
            "admin": admin,
            "version": version,
        }[asked["do"]](asked)
    except Exception as error:  # noqa: BLE001 - the test fails with it
        answer = {"error": repr(error)}
    print(json.dumps(answer), flush=True)
