"""Mutations of requests: changed fields, with any value that the encoding allows, and changed bytes."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

from sparklog.format.record_batch import HEADER_BYTES, HEADER_STRUCT, BatchHeader
from sparklog.kafka.messages.message_codec import MessageBytes, write_message
from sparklog.kafka.messages.message_schema import Field, Struct
from sparklog.serve.apis.table import Api
from tests.serve.wire import Fields
from tests.support.odd_batches import varint

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
SHORT = {
    "maxWaitMs", "timeoutMs", "sessionTimeoutMs", "rebalanceTimeoutMs", "numPartitions", "count", "retentionTimeMs"
}  # fmt: skip
"""Waits and counts of partitions, which a server must respect, so that large values only make the test slow."""
NAMES = (
    "t",
    "u",
    "g",
    "h",
    "c",
    "m1",
    "job",
    "other",
    "",
    "a/b",
    ".",
    "__consumer_offsets",
    "ß" * 40,
    "x" * 249,
    "x" * 32_000,
)
LENGTHS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\0\0\0\0")
UNKNOWN_TAGS = (
    b"\1\x63\4tags",
    b"\1\xff\xff\xff\xff\x0f\0",
    b"\1\0\1\0",
    b"\1\1\2\0\0",
    b"\2\x63\0\x63\0",
    b"\1\x63\x7f",
)
"""Tagged fields that no version has; fields with known tags but other values; a field whose size is too large."""

Place = tuple[Any, Any, Field]
"""A container of values, the key of a value in it, and its field."""


def places(struct_: Struct, version: int, fields: Fields) -> Iterator[Place]:
    """Yield all values of a message."""
    for field in struct_.fields:
        if field.is_present(version) and field.name in fields:
            yield from _places_of(fields, field.name, field, version)


def _places_of(container: Any, key: Any, field: Field, version: int) -> Iterator[Place]:
    yield container, key, field
    value = container[key]
    if field.array and isinstance(value, list):
        for index in range(len(value)):
            yield from _places_of(value, index, field.element(), version)
    elif isinstance(field.kind, Struct) and isinstance(value, dict):
        yield from places(field.kind, version, value)


def changed_fields(api: Api, version: int, fields: Fields, random_: Random) -> Fields:
    """Return the fields of a request with one to three changed values."""
    fields = copy.deepcopy(fields)
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        container, key, field = random_.choice(list(places(api.request, version, fields)) or [({"": 0}, "", _NO_FIELD)])
        container[key] = _changed(container[key], field, version, random_)
    return fields


_NO_FIELD = Field("", "int8")


def _changed(value: Any, field: Field, version: int, random_: Random) -> Any:
    if field.may_be_null(version) and random_.random() < 0.25:
        return None
    if field.array:
        return _changed_array(value or [], random_)
    if field.kind in BITS:
        return _changed_number(value, field, BITS[str(field.kind)], random_)
    if field.kind == "bool":
        return not value
    if field.kind == "uint16":
        return random_.choice((0, 1, 65_535))
    if field.kind == "string":
        return random_.choice((*NAMES, str(value) + "\0", str(value)[:-1]))
    if field.kind == "uuid":
        return random_.choice(("A" * 22, "AAECAwQFBgcICQoLDA0ODw", "_" * 21 + "w"))
    if field.kind == "records":
        return [changed_batch(b"".join(value or []), random_)]
    if field.kind == "bytes":
        return changed_bytes(bytes(value or b""), random_)
    return value


def _changed_number(value: int, field: Field, bits: int, random_: Random) -> int:
    if field.name in SHORT:
        return random_.choice((-1, 0, 1, 7, 50))
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return random_.choice((low, low + 1, -2, -1, 0, 1, high - 1, high, max(value - 1, low), min(value + 1, high)))


def _changed_array(values: list[Any], random_: Random) -> list[Any]:
    """Return an array without elements, without one element, or with repeated elements."""
    if not values or random_.random() < 0.3:
        return []
    chosen = random_.choice(values)
    return values + [chosen] * random_.choice((1, 1, 2, 50)) if random_.random() < 0.7 else values[1:]


def changed_batch(batch: bytes, random_: Random) -> bytes:
    """Return a batch with a changed header or changed records. Its checksum is mostly correct."""
    kind = random_.randrange(5)
    if kind == 0 or len(batch) < HEADER_BYTES:
        return changed_bytes(batch, random_)
    if kind == 1:
        return batch * 2
    names: tuple[str, ...] = (
        "base_offset",
        "size",
        "leader_epoch",
        "",
        "crc",
        "attributes",
        "last_offset_delta",
        "base_timestamp",
    )
    names += ("max_timestamp", "producer_id", "producer_epoch", "base_sequence", "count")
    header = dict(zip(names, HEADER_STRUCT.unpack_from(batch), strict=True))
    payload = batch[HEADER_BYTES:]
    if kind == 2:
        payload = changed_bytes(payload, random_)
    elif kind == 3:
        payload = varint(random_.choice((-1, 0, 1, 1 << 31, 1 << 62))) + payload
    else:
        name = random_.choice([name for name in names if name not in ("", "crc", "size")])
        bits = {"attributes": 16, "producer_epoch": 16, "base_timestamp": 64, "max_timestamp": 64}.get(name, 32)
        bits = 64 if name in ("base_offset", "producer_id") else bits
        field = Field(name, f"int{bits}")
        changes = [_changed_number(header[name], field, bits, random_), header[name] ^ 1 << random_.randrange(bits - 1)]
        header[name] = random_.choice(changes)
    del header[""]
    return BatchHeader(**header).pack(payload)


def changed_bytes(data: bytes, random_: Random) -> bytes:
    """Return bytes with changed, missing, repeated or additional bytes, such as the length of a long value."""
    changed = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 4))):
        position, kind = random_.randrange(len(changed) + 1), random_.randrange(5)
        if kind == 0:
            changed[position : position + 1] = bytes([random_.randrange(256)])
        elif kind == 1:
            inserted = random_.choice(LENGTHS)
            changed[position : position + len(inserted)] = inserted
        elif kind == 2:
            del changed[position:]
        elif kind == 3:
            changed[position:position] = random_.randbytes(random_.randrange(9))
        else:
            changed[position:position] = changed[position : position + 20]
    return bytes(changed)


def with_unknown_tags(message: bytes, random_: Random) -> bytes:
    """Return the message of a flexible version with other tagged fields. The message must not have any."""
    return message[:-1] + random_.choice(UNKNOWN_TAGS)


def known_fields(struct_: Struct, fields: Fields) -> Fields:
    """Return the fields without those that the message does not have."""
    return {field.name: _known(field, fields[field.name]) for field in struct_.fields if field.name in fields}


def _known(field: Field, value: Any) -> Any:
    if isinstance(value, list) and field.array:
        return [_known(field.element(), item) for item in value]
    return known_fields(field.kind, value) if isinstance(field.kind, Struct) and isinstance(value, dict) else value


def encoded(api: Api, version: int, fields: Fields) -> bytes:
    output = MessageBytes()
    write_message(api.request, version, fields, output)
    return b"".join(output.finish())


def framed(api: Api, version: int, message: bytes, correlation: int) -> bytes:
    header = struct.pack(">hhih", api.key, version, correlation, 4) + b"fuzz" + b"\0" * api.request.is_flexible(version)
    return struct.pack(">i", len(header) + len(message)) + header + message
