"""Decoders of keys and values for `dump-log`: strings, integers, and records of Kafka's internal topics.

A decoder converts bytes to the printed text and to a JSON value. A decoder is selected by its short name, or by the
class name that Kafka's tool accepts for --key-decoder-class and --value-decoder-class:

| name          | class                                     | output                                                   |
|---------------|-------------------------------------------|----------------------------------------------------------|
| string        | org.apache.kafka.tools.api.StringDecoder  | UTF-8; invalid bytes are replaced by U+FFFD              |
| int, long     | ...IntegerDecoder, ...LongDecoder         | signed big-endian integer of 4 or 8 bytes                |
| bytes-hex     | ...DefaultDecoder                         | hexadecimal digits (Kafka prints an object's address)    |
| bytes-base64  |                                           | base64                                                   |
| json          |                                           | JSON on one line; invalid JSON is printed unchanged      |

Records of internal topics and control records are printed as JSON in the format of Kafka's converters.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import control
from sparklog.format.text import java_text
from sparklog.kafka.messages.coordinator_records import CONSUMER_PROTOCOL, GROUP_METADATA, GROUPS
from sparklog.kafka.messages.message_codec import decode_prefix, split_version
from sparklog.kafka.messages.message_schema import (
    Fields,
    Struct,
    Value,
    json_fields,
    json_text,
    message,
    record_types,
)

Shown: TypeAlias = tuple[str, Any]
"""The printed text and the JSON value of a key or value."""
Decoder: TypeAlias = Callable[[bytes], Shown]

DELETE = "<DELETE>"
_CONTROL = {
    control.SNAPSHOT_HEADER: ("SnapshotHeader", "SnapshotHeaderRecord"),
    control.SNAPSHOT_FOOTER: ("SnapshotFooter", "SnapshotFooterRecord"),
    control.KRAFT_VERSION: ("KRaftVersion", "KRaftVersionRecord"),
    control.KRAFT_VOTERS: ("KRaftVoters", "VotersRecord"),
}


Decoders: TypeAlias = Callable[[int, bytes | None, bytes | None], tuple[Shown | None, Shown | None]]
"""A function that decodes the key and the value of the record at an offset. If the result is None, nothing is printed.
"""


def _same(text: str) -> Shown:
    return text, text


def _integer(size: int) -> Decoder:
    def show(data: bytes) -> Shown:
        if len(data) < size:
            raise Corrupt(f"expected an integer of {size} bytes, found {len(data)}; choose another decoder")
        value = int.from_bytes(data[:size], "big", signed=True)
        return str(value), value

    return show


def _json(data: bytes) -> Shown:
    text = java_text(data)
    try:
        value = json.loads(text)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")), value
    except (ValueError, RecursionError):
        return _same(text)


_DECODERS: dict[str, Decoder] = {
    "string": lambda data: _same(java_text(data)),
    "int": _integer(4),
    "long": _integer(8),
    "bytes-hex": lambda data: _same(data.hex()),
    "bytes-base64": lambda data: _same(base64.b64encode(data).decode("ascii")),
    "json": _json,
}
_CLASSES = {"StringDecoder": "string", "IntegerDecoder": "int", "LongDecoder": "long", "DefaultDecoder": "bytes-hex"}
_PACKAGES = ("", "org.apache.kafka.tools.api", "kafka.serializer")


def plain(key: str = "string", value: str = "string") -> Decoders:
    """Return the decoders with these names. Raises `BadRequest` if a name is unknown."""
    of_key, of_value = _named(key), _named(value)

    def show(offset: int, key: bytes | None, value: bytes | None) -> tuple[Shown | None, Shown | None]:
        try:
            return None if key is None else of_key(key), None if value is None else of_value(value)
        except Corrupt as error:
            raise Corrupt(error.message, offset=offset) from None

    return show


def _named(name: str) -> Decoder:
    package, _, last = name.rpartition(".")
    short = _CLASSES.get(last, name) if package in _PACKAGES else name
    if short not in _DECODERS:
        raise BadRequest(f"unknown decoder {name!r}; choose one of {', '.join(_DECODERS)}, {', '.join(_CLASSES)}")
    return _DECODERS[short]


def coordinator(folder: str) -> Decoders:
    """Return the decoders of an internal topic. `folder` contains its schemas: groups, transactions or shares."""

    def show(offset: int, key: bytes | None, value: bytes | None) -> tuple[Shown | None, Shown | None]:
        try:
            return _coordinators(folder, offset, key, value)
        except Corrupt as error:
            return _same(f"Error at offset {offset}, skipping. {error.message}"), None

    return show


def _coordinators(folder: str, offset: int, key: bytes | None, value: bytes | None) -> tuple[Shown, Shown | None]:
    if key is None:
        raise Corrupt("the record of the internal topic has no key")
    number, body = split_version(key, "key")
    kind = record_types(folder).get(number)
    if kind is None:
        return _same(f"Unknown record type {number} at offset {offset}, skipping."), None
    shown_key: Fields = {"type": str(number), "data": _fields(kind.key, 0, body)}
    if value is None:
        return _as_shown(shown_key), (DELETE, None)
    version, body = split_version(value, "value")
    if not 0 <= version <= kind.value.highest:
        raise Corrupt(f"expected a {kind.value.name} of version 0 to {kind.value.highest}, found {version}")
    data = _fields(kind.value, version, body)
    if (folder, number) == (GROUPS, GROUP_METADATA) and data["protocolType"] == CONSUMER_PROTOCOL:
        _open_members(data)
    return _as_shown(shown_key), _as_shown({"version": str(version), "data": data})


def _as_shown(fields: Fields) -> Shown:
    return json_text(fields), fields


def _fields(schema: Struct, version: int, data: bytes) -> Fields:
    return json_fields(schema, version, decode_prefix(schema, version, data)[0])


def _open_members(data: Fields) -> None:
    """Replace the subscriptions and assignments of group members with the decoded contents, if they can be decoded."""
    for member in data["members"]:
        member["subscription"] = _opened(member["subscription"], "ConsumerProtocolSubscription")
        member["assignment"] = _opened(member["assignment"], "ConsumerProtocolAssignment")


def _opened(shown: Value, name: str) -> Value:
    try:
        version, body = split_version(base64.b64decode(shown if isinstance(shown, str) else ""), name)
        return _fields(message(GROUPS, name), version, body)
    except (Corrupt, binascii.Error):
        return shown


def control_text(key: bytes | None, value: bytes | None) -> str:
    """Return a control record in the format of Kafka's tool, for example `endTxnMarker: COMMIT coordinatorEpoch: 0`.

    Topics with transactions have end-of-transaction markers. The other types occur in Kafka's metadata log. Raises
    `Corrupt` if the record cannot be read.
    """
    record = control.parse_control_record(key, value)
    if record.type in (control.ABORT, control.COMMIT):
        name = "COMMIT" if record.type == control.COMMIT else "ABORT"
        return f"endTxnMarker: {name} coordinatorEpoch: {record.coordinator_epoch}"
    if record.type in _CONTROL:
        title, name = _CONTROL[record.type]
        return f"{title} {json_text(_fields(message('control', name), 0, value or b''))}"
    number = int.from_bytes((key or b"")[2:4], "big", signed=True)
    return f"controlType: {'LEADER_CHANGE' if record.type == control.LEADER_CHANGE else 'UNKNOWN'}({number})"


def control_object(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return a control record as a JSON object."""
    epoch = control.parse_control_record(key, value).coordinator_epoch
    return {"kind": control_text(key, value), "coordinatorEpoch": epoch}
