"""Test the records of Kafka's internal topics with fixtures of its coordinators and with Kafka's own dump of every
type.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.decode import decode
from sparklog.format.encode import EncodeOptions, encode
from sparklog.kafka.messages import coordinator_records as coordinators
from sparklog.kafka.messages.coordinator_records import (
    GROUPS,
    TRANSACTIONS,
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    OtherKey,
    Status,
    TransactionValue,
)
from sparklog.kafka.messages.message_codec import decode_prefix, decode_value, encode_versioned
from sparklog.kafka.messages.message_codec import encode as encode_message
from sparklog.kafka.messages.message_schema import (
    Field,
    Fields,
    Struct,
    Value,
    json_fields,
    json_text,
    record_types,
)
from tests.kafka_tools import KafkaTools
from tests.support.seeds import thinned

TYPES = record_types(GROUPS)
TRANSACTION = record_types(TRANSACTIONS)[0]
FIXTURES = ("transactions", "transactions-tv0")


def stored(fixtures: Path, topic: str) -> Iterator[tuple[bytes, bytes | None, Fields, Fields | None]]:
    """Yield keys and values of a topic, and both as printed by Kafka's formatter."""
    for name in FIXTURES:
        for partition in (0, 1):
            folder = f"{topic}-{partition}"
            records = {}
            for path in sorted((fixtures / name / "data" / folder).glob("*.log")):
                data = path.read_bytes()
                headers = scan_headers(data, whole=False)
                columns = decode(data, headers, columns=("key", "value"), select=~headers.is_control)
                assert columns.key is not None
                assert columns.value is not None
                keys, values = columns.key.to_pylist(), columns.value.to_pylist()
                records.update(zip(columns.offset.tolist(), zip(keys, values, strict=True), strict=True))
            said = fixtures / name / "expected" / f"{folder}.uncommitted.formatted.jsonl.gz"
            lines = [json.loads(line) for line in gzip.decompress(said.read_bytes()).splitlines()]
            assert len(lines) == len(records)
            for line in lines:
                # The formatters do not print types 3 and higher.
                for formatted in [said for name, said in line.items() if name.endswith("Formatter")]:
                    yield *records[line["offset"]], formatted["key"], formatted["value"]


def test_committed_offsets_and_groups_match_kafka(fixtures: Path) -> None:
    seen = {"offset": 0, "group": 0, "tombstone": 0}
    for key, value, said_key, said in stored(fixtures, "__consumer_offsets"):
        decoded = coordinators.decode_group_key(key)
        data: Any = None if said is None else said["data"]
        seen["tombstone"] += data is None
        if isinstance(decoded, OffsetKey):
            assert said_key == {"type": 1, "data": _fields(decoded, "group topic partition")}
            assert coordinators.encode_offset_key(decoded) == key
            offset = coordinators.decode_offset_value(value)
            if offset is not None:
                epoch = -1 if offset.leader_epoch is None else offset.leader_epoch
                assert data["leaderEpoch"] == epoch
                assert (data["offset"], data["metadata"]) == (offset.offset, offset.metadata)
                assert data["commitTimestamp"] == offset.commit_timestamp
                assert _again(TYPES[1].value, value) == value
            seen["offset"] += 1
        else:
            assert isinstance(decoded, GroupKey)
            assert coordinators.encode_group_key(decoded) == key
            state = coordinators.decode_group_value(value)
            if state is not None:
                names = "protocol_type generation protocol leader"
                assert [data[_camel(name)] for name in names.split()] == list(_fields(state, names).values())
                assert data["currentStateTimestamp"] == state.state_timestamp
                assert _again(TYPES[2].value, value) == value
            seen["group"] += 1
    assert min(seen.values()) > 1


def test_transactional_id_states_match_kafka(fixtures: Path) -> None:
    versions, states = set(), set()
    for key, value, said_key, said in stored(fixtures, "__transaction_state"):
        decoded = coordinators.decode_transaction_key(key)
        assert said_key == {"type": 0, "data": {"transactionalId": decoded}}
        state = coordinators.decode_transaction_value(value)
        assert state is not None
        assert said is not None
        data: Any = said["data"]
        version = said["version"]
        assert (data["producerId"], data["transactionStatus"]) == (state.producer_id, state.status)
        told = data["transactionPartitions"]
        flat = told and tuple((each["topic"], number) for each in told for number in each["partitionIds"])
        assert (state.partitions or told) == (flat or told)
        assert (state.partitions is None) == (told is None)
        assert _again(TRANSACTION.value, value) == value
        versions.add(version)
        states.add(state.status)
    assert versions == {0, 1}
    assert len(states) >= 5


def test_records_written_by_kafka_round_trip() -> None:
    key = bytes.fromhex("0001 0001 67 0001 74 00000003")
    assert coordinators.decode_group_key(key) == OffsetKey("g", "t", 3)
    assert coordinators.decode_group_key(b"\0\0" + key[2:]) == OffsetKey("g", "t", 3)
    plain = OffsetValue(42, 5, "m", 1700000000000)
    third = bytes.fromhex("0003 000000000000002a 00000005 0001 6d 0000018bcfe56800")
    fourth = bytes.fromhex("0004 000000000000002a 00000005 02 6d 0000018bcfe56800 00")
    for data in (third, fourth):
        assert coordinators.decode_offset_value(data) == plain
        assert _again(TYPES[1].value, data) == data
    assert coordinators.encode_offset_value(plain) == third
    old = bytes.fromhex("0001 000000000000002a 0001 6d 0000018bcfe56800 0000018bcfe56801")
    expiring = OffsetValue(42, None, "m", 1700000000000, 1700000000001)
    assert coordinators.decode_offset_value(old) == expiring
    assert coordinators.encode_offset_value(expiring) == old
    state = TransactionValue(1000, 5, -1, 60000, Status.ONGOING, (("t", 0), ("t", 1)), 10, 11)
    written = "0000 00000000000003e8 0005 0000ea60 01 00000001 0001 74 00000002 00000000 00000001"
    times = "000000000000000b 000000000000000a"
    flexible = f"0001 00000000000003e8 0005 0000ea60 01 02 02 74 03 00000000 00000001 00 {times} 00"
    for data in (bytes.fromhex(written + times), bytes.fromhex(flexible)):
        assert coordinators.decode_transaction_value(data) == state
        assert _again(TRANSACTION.value, data) == data
    assert coordinators.decode_offset_value(None) is None
    assert coordinators.decode_group_value(None) is None
    assert coordinators.decode_transaction_value(None) is None


def test_fields_of_each_version_round_trip() -> None:
    topic_id = base64.urlsafe_b64encode(bytes(range(16)))[:22].decode()
    fields: Fields = {
        "offset": 7,
        "leaderEpoch": 3,
        "metadata": "métadonnées",
        "commitTimestamp": 9,
        "topicId": topic_id,
    }
    whole = OffsetValue(7, 3, "métadonnées", 9, None, topic_id)
    assert coordinators.decode_offset_value(encode_versioned(TYPES[1].value, 4, fields)) == whole
    state = GroupValue("consumer", 3, "range", "m", 11)
    assert coordinators.decode_group_value(coordinators.encode_group_value(state)) == state
    fields = {"producerId": 1, "previousProducerId": 5, "transactionTimeoutMs": 3, "transactionStatus": 3}
    fields |= {"transactionPartitions": [], "transactionStartTimestampMs": -1}
    held = TransactionValue(1, 0, 5, 3, Status.PREPARE_ABORT, (), None, 0)
    assert coordinators.decode_transaction_value(encode_versioned(TRANSACTION.value, 1, fields)) == held


@pytest.mark.parametrize("step", thinned(4))
@pytest.mark.parametrize("number", [number for number in TYPES if number > 2])
def test_every_record_type_round_trips(number: int, step: int) -> None:
    kind, rng = TYPES[number], random.Random(number)
    for _ in range(0, 20, step):
        key_fields = _random_fields(kind.key, 0, rng)
        key = coordinators.decode_group_key(struct.pack(">h", number) + encode_message(kind.key, 0, key_fields))
        assert key == OtherKey(number, key_fields)
        value_fields = _random_fields(kind.value, 0, rng)
        value = b"\0\0" + encode_message(kind.value, 0, value_fields)
        assert isinstance(key, OtherKey)
        assert coordinators.decode_other_value(key, value) == value_fields
        assert coordinators.decode_other_value(key, None) is None
        for end in range(len(value)):
            with pytest.raises(Corrupt):
                coordinators.decode_other_value(key, value[:end])


def test_malformed_records_are_rejected() -> None:
    whole = coordinators.encode_offset_key(OffsetKey("g", "t", 3))
    for key in (None, b"", b"\0", b"\0\1\0\5g", b"\0\1\xff\xff", *(whole[:end] for end in range(len(whole)))):
        with pytest.raises(Corrupt):
            coordinators.decode_group_key(key)
    with pytest.raises(Corrupt, match="ends after"):
        coordinators.decode_group_key(whole + b"x")
    value = encode_versioned(TYPES[1].value, 4, {"offset": 1, "metadata": "text"})
    for broken in (b"", b"\0\5" + value[2:], b"\xff\xff" + value[2:], *(value[:end] for end in range(len(value)))):
        with pytest.raises(Corrupt):
            coordinators.decode_offset_value(broken)
    state = bytearray(encode_versioned(TRANSACTION.value, 0, {"producerId": 1}))
    state[16] = 9
    with pytest.raises(Corrupt, match="status"):
        coordinators.decode_transaction_value(bytes(state))
    for text in ("", "00", "0000", "0000 0005 67"):
        with pytest.raises(Corrupt):
            coordinators.decode_transaction_key(bytes.fromhex(text))
    with pytest.raises(Corrupt, match="has no key"):
        coordinators.decode_transaction_key(None)


def test_keys_of_unknown_types_are_ignored() -> None:
    assert coordinators.decode_group_key(bytes.fromhex("0018 1234")) is None
    assert coordinators.decode_group_key(bytes.fromhex("0009 1234")) is None
    assert coordinators.decode_transaction_key(bytes.fromhex("0009 1234")) is None


def test_values_that_cannot_be_encoded_are_rejected() -> None:
    with pytest.raises(BadRequest, match="at most 32767 bytes"):
        coordinators.encode_offset_key(OffsetKey("g" * 40000, "t", 0))
    with pytest.raises(BadRequest, match="int32"):
        coordinators.encode_offset_key(OffsetKey("g", "t", 1 << 31))
    with pytest.raises(BadRequest, match="UUID"):
        encode_message(TYPES[1].value, 4, {"topicId": "short"})


def test_kafka_decodes_every_type_and_version_to_the_same_fields(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    """Kafka's DumpLogSegments and sparklog print the same text for random records of every type."""
    rng = random.Random(5)
    records: list[tuple[bytes, bytes]] = []
    expected: list[str] = []
    for number, kind in TYPES.items():
        for version in range(kind.value.highest + 1):
            for _ in range(12):
                key_fields = _random_fields(kind.key, 0, rng)
                value_fields = _random_fields(kind.value, version, rng)
                key = struct.pack(">h", number) + encode_message(kind.key, 0, key_fields)
                value = struct.pack(">h", version) + encode_message(kind.value, version, value_fields)
                read, end = decode_prefix(kind.value, version, value[2:])
                assert (read, end) == (value_fields, len(value) - 2)
                shown_key = {"type": str(number), "data": json_fields(kind.key, 0, key_fields)}
                shown = {"version": str(version), "data": json_fields(kind.value, version, value_fields)}
                records.append((key, value))
                expected.append(f"| key: {json_text(shown_key)} payload: {json_text(shown)}")
    times = np.full(len(records), 1700000000000)
    keys, values = (pa.array(list(column), pa.binary()) for column in zip(*records, strict=True))
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(encode(keys, values, None, times, options=EncodeOptions()).data)
    lines = kafka_tools.dump([log], "--offsets-decoder", "--skip-record-metadata").files[str(log)]
    assert [line for line in lines if line.startswith("| ")] == expected


def _random_fields(message: Struct, version: int, rng: random.Random) -> Fields:
    return {
        field.name: _random_value(field, version, rng) if field.is_present(version) else field.initial()
        for field in message.fields
    }


def _random_value(field: Field, version: int, rng: random.Random) -> Value:
    if field.array:
        return [_random_single(field.kind, version, rng) for _ in range(rng.choice((0, 1, 3)))]
    if (field.nullable or field.tag is not None) and rng.random() < 0.3:
        return None if field.nullable else field.initial()
    return _random_single(field.kind, version, rng)


def _random_single(kind: str | Struct, version: int, rng: random.Random) -> Value:
    if isinstance(kind, Struct):
        return _random_fields(kind, version, rng)
    if kind == "string":
        return "".join(rng.choice('ab"\\/\x01\x1f\n\té€😀\x7f') for _ in range(rng.choice((0, 1, 5, 130))))
    if kind == "bytes":
        return rng.randbytes(rng.choice((0, 1, 5, 130)))
    if kind == "uuid":
        return base64.urlsafe_b64encode(rng.randbytes(16))[:22].decode()
    bits = int(kind.removeprefix("u")[3:])
    if kind == "uint16":
        return rng.getrandbits(16)
    return rng.choice((-1, 0, 1, rng.getrandbits(bits) - (1 << bits - 1)))


def _fields(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _again(schema: Struct, value: bytes) -> bytes:
    fields = decode_value(schema, value)
    assert fields is not None
    return encode_versioned(schema, struct.unpack_from(">h", value)[0], fields)
