"""The codec compared with kafka-python's classes: both encode the same bytes in all supported versions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sparklog.errors import Corrupt
from sparklog.kafka.messages import message_codec
from sparklog.kafka.messages.message_codec import MessageBytes, write_message
from sparklog.kafka.messages.message_schema import Field, Fields, Struct, message
from sparklog.serve.apis.table import APIS, FOLDER

VERSIONS = [
    (f"{api.name}{kind}", version)
    for api in APIS.values()
    for kind in ("Request", "Response")
    for version in range(api.min_version, api.max_version + 1)
]


def some_value(item: Field, version: int, random_: random.Random, depth: int = 0) -> Any:
    if item.may_be_null(version) and random_.random() < 0.2:
        return None
    if item.array:
        single = Field(item.name, item.kind)
        return [some_value(single, version, random_, depth + 1) for _ in range(random_.randrange(3))]
    kind = item.kind
    if isinstance(kind, Struct):
        return some_fields(kind, version, random_, depth + 1)
    if kind == "string":
        return random_.choice(["", "a", "größe", "x" * 200])
    if kind in ("bytes", "records"):
        return random_.randbytes(random_.randrange(300))
    if kind == "uuid":
        return random_.choice(["AAAAAAAAAAAAAAAAAAAAAA", "AAECAwQFBgcICQoLDA0ODw"])
    if kind == "bool":
        return random_.random() < 0.5
    if kind == "float64":
        return random_.choice([0.0, -1.5, 1e300])
    if kind == "uint16":
        return random_.randrange(1 << 16)
    bits = int(kind.removeprefix("int"))
    return random_.randrange(-(1 << bits - 1), 1 << bits - 1)


def some_fields(struct: Struct, version: int, random_: random.Random, depth: int = 0) -> dict[str, Any]:
    return {
        item.name: some_value(item, version, random_, depth)
        if item.is_present(version) and item.tag is None
        else item.initial()
        for item in struct.fields
    }


def sent_fields(name: str, version: int, seed: int) -> dict[str, Any]:
    fields = some_fields(message(FOLDER, name), version, random.Random(seed))
    if name == "ApiVersionsResponse":
        # kafka-python uses the fields of version 1 in version 0.
        fields["errorCode"] = 0
    return fields


def as_buffers(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return records as a writer accepts them: as a list of buffers."""
    if name == "FetchResponse":
        for topic in fields.get("responses", ()):
            for partition in topic["partitions"]:
                records = partition["records"]
                partition["records"] = None if records is None else [records[:10], records[10:]]
    if name == "ProduceRequest":
        for topic in fields.get("topicData", ()):
            for partition in topic["partitionData"]:
                records = partition["records"]
                partition["records"] = None if records is None else [records]
    return fields


def as_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_bytes(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_bytes(item) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


def read_message(name: str, version: int, data: bytes) -> tuple[Fields, int]:
    return message_codec.read_message(message(FOLDER, name), version, data)


def encoded(name: str, version: int, fields: dict[str, Any]) -> bytes:
    output = MessageBytes()
    write_message(message(FOLDER, name), version, as_buffers(name, fields), output)
    return b"".join(output.finish())


@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=str)
def test_encoded_messages_are_decoded_here_and_by_kafka_python(name: str, version: int) -> None:
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl

    modules = (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.sasl,
    )
    # kafka-python does not have the messages of the consumer protocol.
    theirs = next((getattr(module, name) for module in modules if hasattr(module, name)), None)
    assert theirs is not None or name.startswith("ConsumerGroup")
    for seed in range(5):
        fields = sent_fields(name, version, seed)
        data = encoded(name, version, sent_fields(name, version, seed))
        again, end = read_message(name, version, data)
        assert end == len(data)
        assert as_bytes(again) == fields
        if theirs is None:
            continue
        decoded = theirs.decode(data, version=version)
        decoded._header = None
        assert decoded.encode(version=version) == data


@pytest.mark.parametrize("name", ["FetchRequest", "JoinGroupRequest", "ProduceRequest", "OffsetCommitRequest"])
def test_truncated_or_corrupt_messages_raise_one_error_type(name: str) -> None:
    api = next(api for api in APIS.values() if name == f"{api.name}Request")
    random_ = random.Random(7)
    for version in range(api.min_version, api.max_version + 1):
        data = encoded(name, version, some_fields(message(FOLDER, name), version, random_))
        for cut in range(len(data)):
            try:
                _, end = read_message(name, version, data[:cut])
            except Corrupt:
                continue
            assert end <= cut
        for _ in range(200):
            broken = bytearray(data)
            broken[random_.randrange(len(broken))] = random_.randrange(256)
            try:
                read_message(name, version, bytes(broken))
            except Corrupt:
                continue


def test_an_array_length_beyond_the_remaining_bytes_is_rejected() -> None:
    with pytest.raises(Corrupt, match="has 2147483647 elements"):
        read_message("MetadataRequest", 1, b"\x7f\xff\xff\xff")


@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=str)
def test_missing_fields_are_null_only_if_they_are_nullable(name: str, version: int) -> None:
    data = encoded(name, version, {})
    fields, end = read_message(name, version, data)
    assert end == len(data)
    assert fields is not None


def test_a_rejected_join_has_no_protocol_in_old_versions() -> None:
    # The Java client cannot decode a response with a null here. Other clients can.
    fields = {"errorCode": 79, "generationId": -1, "memberId": "m"}
    assert read_message("JoinGroupResponse", 6, encoded("JoinGroupResponse", 6, fields))[0]["protocolName"] == ""
