"""Requests that are sent manually, because clients would not send them, or not at this moment."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

from sparklog.kafka.messages.message_codec import MessageBytes, read_message, write_message
from sparklog.serve.apis.table import APIS
from sparklog.serve.options import Address

Fields = dict[str, Any]
BY_NAME = {api.name: api for api in APIS.values()}


class Wire:
    """A connection. `ask` sends a request and returns the response."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=30)

    def close(self) -> None:
        self.socket.close()

    def send(self, name: str, version: int, fields: Fields) -> None:
        output, api = MessageBytes(), BY_NAME[name]
        write_message(api.request, version, fields, output)
        self.send_raw(name, version, b"".join(output.finish()))

    def send_raw(self, name: str, version: int, message: bytes) -> None:
        """Send a request whose message is these bytes."""
        api = BY_NAME[name]
        header = struct.pack(">hhih", api.key, version, 1, 4) + b"test" + b"\0" * api.request.is_flexible(version)
        body = header + message
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive(self, name: str, version: int) -> Fields:
        size = struct.unpack(">i", self.take(4))[0]
        data = self.take(size)
        response = BY_NAME[name].response
        flexible = name != "ApiVersions" and response.is_flexible(version)
        fields, end = read_message(response, version, data, 5 if flexible else 4)
        assert end == len(data)
        return fields

    def ask(self, name: str, version: int, fields: Fields) -> Fields:
        self.send(name, version, fields)
        return self.receive(name, version)

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "the server has closed the connection"
            data += piece
        return data

    def produce(
        self, topic: str, batches: dict[int, bytes | None], *, acks: int = -1, version: int = 7
    ) -> list[Fields]:
        """Produce one batch per partition, and return the responses of the partitions."""
        rows = [{"index": number, "records": None if batch is None else [batch]} for number, batch in batches.items()]
        fields = {"acks": acks, "timeoutMs": 1000, "topicData": [{"name": topic, "partitionData": rows}]}
        answers: list[Fields] = self.ask("Produce", version, fields)["responses"][0]["partitionResponses"]
        return answers


def batch_of(
    values: Sequence[bytes],
    *,
    key: bytes | None = b"k",
    producer: tuple[int, int, int] | None = None,
    time_ms: int | None = None,
    codec: int = 0,
    transactional: bool = False,
) -> bytes:
    """Build a batch with kafka-python. `producer` is id, epoch and first sequence."""
    import time

    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(2, codec, 1 << 24)
    if producer is not None:
        builder.set_producer_state(*producer, transactional)
    for value in values:
        builder.append(timestamp=time_ms or int(time.time() * 1000), key=key, value=value, headers=[])
    builder.close()
    return bytes(builder.buffer())
