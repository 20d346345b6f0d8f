"""Requests that no client sends: the server drops the sender, responds to other clients, and has no internal error."""

from __future__ import annotations

import logging
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.kafka.messages.message_codec import MessageBytes, write_message
from sparklog.serve.apis.table import API_VERSIONS, APIS, Api
from sparklog.serve.options import Address
from sparklog.testing.kafka_server import KafkaServer
from tests.serve.test_codec import as_buffers, some_fields
from tests.serve.wire import Wire, batch_of

WAITS = {"maxWaitMs": 1, "sessionTimeoutMs": 50, "rebalanceTimeoutMs": 50, "timeoutMs": 1}
NAMES = ("t", "u", "", "a/b", "__consumer_offsets", "x" * 300)


def calmed(value: Any, random_: random.Random) -> Any:
    """Return a request's fields with short waits and, sometimes, with existing names and numbers."""
    if isinstance(value, list):
        return [calmed(item, random_) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {name: WAITS.get(name, calmed(item, random_)) for name, item in value.items()}
    for name, item in fields.items():
        if random_.random() < 0.6:
            if isinstance(item, str) and len(item) != 22:
                fields[name] = random_.choice(NAMES)
            elif isinstance(item, int) and not isinstance(item, bool) and name not in WAITS:
                fields[name] = random_.choice((-2, -1, 0, 1, 2))
            elif name == "records" and item is not None:
                fields[name] = bytes(broken(batch_of([b"a"]), random_))
    # Creating millions of partitions succeeds, but takes long.
    return fields | {name: fields[name] % 8 for name in ("numPartitions", "count") if name in fields}


def broken(data: bytes, random_: random.Random) -> bytearray:
    changed = bytearray(data)
    for _ in range(random_.randrange(3)):
        if changed:
            changed[random_.randrange(len(changed))] = random_.randrange(256)
    return changed[: random_.randrange(len(changed) + 1)] if random_.random() < 0.2 else changed


def request(api: Api, version: int, random_: random.Random) -> bytes:
    schema, output = api.request, MessageBytes()
    fields = calmed(some_fields(schema, version, random_), random_)
    write_message(schema, version, as_buffers(schema.name, fields), output)
    header = struct.pack(">hhih", api.key, version, 1, 4) + b"fuzz" + b"\0" * schema.is_flexible(version)
    body = header + b"".join(output.finish())
    if random_.random() < 0.5:
        body = bytes(broken(body, random_))
    size = len(body) if random_.random() < 0.97 else random_.randrange(-(2**31), 2**31)
    return struct.pack(">i", size) + body


def sent(address: Address, requests: Iterator[bytes]) -> None:
    """Send requests on one connection, until the server closes it because of an incomplete request."""
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        try:
            for data in requests:
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except (ConnectionError, BrokenPipeError):
            pass


def run(server: KafkaServer, caplog: pytest.LogCaptureFixture, seeds: range) -> None:
    address = Address.of(server.bootstrap)
    server.root.create_topic("t").append({"value": ["a", "b"]})
    server.root.create_topic("u", configs={"cleanup.policy": "compact"})
    with caplog.at_level(logging.WARNING, "sparklog.serve"):
        for seed in seeds:
            random_ = random.Random(seed)
            apis = [api for api in APIS.values() if api.name != "Fetch" or random_.random() < 0.5]
            highest = {api: api.max_version + (random_.random() < 0.02) for api in apis}
            rows = ((api, random_.randint(api.min_version, highest[api])) for api in apis)
            for api, version in rows:
                sent(address, iter([request(api, min(version, api.max_version), random_)]))
            wire = Wire(address)
            assert wire.ask("ApiVersions", 3, {})["errorCode"] == 0, seed
            wire.close()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, errors[0].exc_text or errors[0].getMessage()


def test_hundreds_of_random_requests(kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    run(kafka_server, caplog, range(12))


@pytest.mark.slow
@pytest.mark.sweep
def test_thousands_of_random_requests(kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    run(kafka_server, caplog, range(1_000, 1_850))


def test_an_unsupported_version_of_api_versions_returns_the_list(kafka_server: KafkaServer) -> None:
    wire = Wire(Address.of(kafka_server.bootstrap))
    body = struct.pack(">hhih", API_VERSIONS, APIS[API_VERSIONS].max_version + 1, 1, -1) + b"\0\5test\4\0"
    wire.socket.sendall(struct.pack(">i", len(body)) + body)
    answer = wire.receive("ApiVersions", 0)
    assert answer["errorCode"] == 35
    assert len(answer["apiKeys"]) == len(APIS)
    wire.close()
