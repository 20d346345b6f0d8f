"""Requests that real clients sent, and changes to them that a broker ignores or corrects.

    python -m tests.serve.client_requests     # record them from the installed clients: client_requests.json

There is one request per client, API and version, without its header. When it is sent again, its topic ids are replaced
with those of the server.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from sparklog.kafka.messages.message_codec import MessageBytes, read_message, write_message
from sparklog.kafka.messages.message_schema import NO_UUID, Fields, message
from sparklog.serve.apis import table
from sparklog.serve.connection import Connection
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import in_memory, serving
from tests.serve.broker_cases import Answer, Asked, codes_in
from tests.serve.wire import BY_NAME

REQUESTS = Path(__file__).with_name("client_requests.json")
TOPIC, OTHER, GROUP = "asked-by-clients", "made-by-clients", "group-of-clients"
UNKNOWN_TAG = b"\1\xe7\7\3abc"
"""Tagged fields with a tag that no version has: tag 999 with three bytes."""
SKIPPED = ("SaslHandshake", "SaslAuthenticate")


# -- recording


class Recorder:
    """Serves an empty root and records the requests of clients. `client` is the client that sends them."""

    def __init__(self) -> None:
        self.client = ""
        self.found: dict[tuple[str, str, int], str] = {}

    def keep(self, data: bytes) -> None:
        key, version = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
        api = table.APIS.get(key)
        if api is None or api.name in SKIPPED or not api.min_version <= version <= api.max_version:
            return
        header = message(table.FOLDER, "RequestHeader")
        _, start = read_message(header, 1 + api.request.is_flexible(version), data)
        self.found.setdefault((self.client, api.name, version), bytes(data[start:]).hex())


def record() -> None:
    recorder, serve = Recorder(), Connection._serve

    async def keeping(connection: Connection, data: bytes, *others: Any) -> bool:
        recorder.keep(data)
        return await serve(connection, data, *others)

    with mock.patch.object(Connection, "_serve", keeping), serving(in_memory(), options()) as address:
        for name, client in CLIENTS.items():
            recorder.client = name
            client(str(address))
    rows = [[*place, body] for place, body in recorder.found.items()]
    REQUESTS.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def options() -> ServeOptions:
    return ServeOptions(listen=Address("127.0.0.1", 0), writable=True, auto_create=True, linger_seconds=0.0)


def kafka_python(address: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import KafkaAdminClient, NewTopic

    admin: Any = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(TOPIC, 2, 1), NewTopic(OTHER, 1, 1)])
    producer: Any = KafkaProducer(bootstrap_servers=address, enable_idempotence=True, acks="all")
    for number in range(3):
        producer.send(TOPIC, b"%d" % number, partition=0, timestamp_ms=1_700_000_000_000 + number).get(30)
    producer.close()
    consumer: Any = KafkaConsumer(TOPIC, bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest")
    consumer.poll(5_000)
    consumer.commit()
    consumer.close()
    admin.list_topics()
    admin.describe_topics([TOPIC])
    admin.describe_groups([GROUP])
    admin.list_groups()
    admin.delete_topics([OTHER])
    admin.close()


def aio_kafka(address: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def run() -> None:
        producer: Any = AIOKafkaProducer(bootstrap_servers=address, compression_type="gzip")
        await producer.start()
        await producer.send_and_wait(TOPIC, b"x", partition=0, timestamp_ms=1_700_000_000_009)
        await producer.stop()
        consumer: Any = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=address, group_id=GROUP + "2", auto_offset_reset="earliest"
        )
        await consumer.start()
        await consumer.getmany(timeout_ms=3_000)
        await consumer.commit()
        await consumer.stop()

    asyncio.run(run())


def java(address: str) -> None:
    """Run Kafka's own tools: consumer, producer, topics, configs, groups, offsets."""
    import os
    import subprocess

    import pyspark

    from tests.kafka_broker import QUICK_JVM, console_jars
    from tests.kafka_tools import find_java, kafka_jars

    scala = (Path(pyspark.__file__).parent / "jars").glob("scala-reflect-*.jar")
    classes = os.pathsep.join([f"{kafka_jars()}{os.sep}*", *map(str, scala), console_jars()])

    def tool(name: str, *arguments: str, text: str | None = None) -> None:
        command = [find_java(), *QUICK_JVM, "-cp", classes, f"org.apache.kafka.tools.{name}"]
        command += ["--bootstrap-server", address, *arguments]
        subprocess.run(command, input=text, text=True, capture_output=True, timeout=120, check=False)

    tool("ConsoleProducer", "--topic", TOPIC, text="a\nb\n")
    tool(
        "consumer.ConsoleConsumer", "--topic", TOPIC, "--from-beginning", "--group", GROUP + "3", "--timeout-ms", "4000"
    )
    tool("TopicCommand", "--create", "--topic", OTHER, "--partitions", "1", "--config", "retention.ms=77")
    tool("TopicCommand", "--describe")
    tool("TopicCommand", "--alter", "--topic", OTHER, "--partitions", "2")
    tool("GetOffsetShell", "--topic", TOPIC, "--time", "-3")
    tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", GROUP)
    tool("TopicCommand", "--delete", "--topic", OTHER)


CLIENTS: dict[str, Callable[[str], None]] = {"kafka-python": kafka_python, "aiokafka": aio_kafka, "java": java}


# -- changing


def changed(name: str, version: int, fields: Fields) -> Iterator[tuple[str, bytes]]:
    """Yield a request, and changes to it that a broker ignores or corrects."""
    api = BY_NAME[name]
    plain = encoded(name, version, fields)
    yield "as it was", plain
    yield "a byte after the end", plain + b"\0"
    yield "bytes after the end", plain + b"\xff\1\2\3"
    if api.request.is_flexible(version) and plain.endswith(b"\0"):
        yield "an unknown tagged field", plain[:-1] + UNKNOWN_TAG
    if name == "Fetch" and version >= 7:
        for session, epoch in ((-1, -1), (77, -1), (77, 0)):
            yield (
                f"session {session}, epoch {epoch}",
                encoded(name, version, {**fields, "sessionId": session, "sessionEpoch": epoch}),
            )
    if name == "Produce":
        for what, start, data in (
            ("greatest time -1", 35, b"\xff" * 8),
            ("greatest time 7", 35, bytes(7) + b"\7"),
            ("leader epoch 77", 12, bytes(3) + b"\x4d"),
            ("LogAppendTime bit", 22, None),
        ):
            yield what, encoded(name, version, _with_batches(fields, start, data))


def _with_batches(fields: Fields, start: int, data: bytes | None) -> Fields:
    """Return a Produce request with these bytes in each batch and a valid checksum (None: set LogAppendTime)."""
    from sparklog.format.crc32c import crc32c

    fields = copy.deepcopy(fields)
    for topic in fields["topicData"]:
        for row in topic["partitionData"]:
            batch = bytearray(row["records"][0])
            batch[start : start + len(data or b"x")] = bytes([batch[start] | 8]) if data is None else data
            batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
            row["records"] = [bytes(batch)]
    return fields


def encoded(name: str, version: int, fields: Fields) -> bytes:
    output = MessageBytes()
    write_message(BY_NAME[name].request, version, fields, output)
    return b"".join(output.finish())


def recorded(topic_id: str) -> Iterator[tuple[str, str, int, Fields]]:
    """Yield client, API, version and fields of each request. Topic ids are replaced with `topic_id`."""
    for client, name, version, body in json.loads(REQUESTS.read_text()):
        fields, _ = read_message(BY_NAME[name].request, version, bytes.fromhex(body))
        yield client, name, version, _readable(fields, topic_id)


def _readable(value: Any, topic_id: str) -> Any:
    if isinstance(value, dict):
        return {key: _field(key, item, topic_id) for key, item in value.items()}
    return [_readable(item, topic_id) for item in value] if isinstance(value, list) else value


def _field(key: str, value: Any, topic_id: str) -> Any:
    if key == "topicId" and value != NO_UUID:
        return topic_id
    if key == "records" and value is not None:
        return [bytes(value)]
    return _readable(value, topic_id)


def replayed(server: Asked) -> dict[str, dict[str, Answer]]:
    """Send each request and its changes. Return the distinct response codes by request and change."""
    row = {"name": TOPIC, "numPartitions": 2, "replicationFactor": 1, "assignments": [], "configs": []}
    server.ask("CreateTopics", 4, {"topics": [row], "timeoutMs": 10_000})
    topic_id = NO_UUID
    while topic_id == NO_UUID:
        topic_id = server.ask("Metadata", 10, {"topics": [{"name": TOPIC}]})["topics"][0]["topicId"]
    found: dict[str, dict[str, Answer]] = {}
    for client, name, version, fields in recorded(topic_id):
        changes = changed(name, version, fields)
        found[f"{client}: {name} {version}"] = {what: _sent(server, name, version, body) for what, body in changes}
    return found


def _sent(server: Asked, name: str, version: int, body: bytes) -> Answer:
    """Send a request. Retry while a broker's coordinator or leader is new."""

    def send() -> Any:
        server.wire.send_raw(name, version, body)
        return server.wire.receive(name, version)

    for _ in range(100):
        answer = server.guarded(send)
        codes = sorted({str(code) for code in codes_in(answer)})
        if not {"COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "14", "5", "6"} & set(codes):
            break
        time.sleep(0.1)
    return "closed" if answer == "closed" else codes


if __name__ == "__main__":
    record()
