"""How `dump-log` shows keys and values: as text, numbers, or as records of Kafka's internal topics.

A decoder turns bytes into the text that is printed and the value that JSON gets. Names are short ones of ours or the
classes that Kafka's tool takes for --key-decoder-class and --value-decoder-class:

| name          | class                                  | shows                                                       |
|---------------|----------------------------------------|-------------------------------------------------------------|
| string        | org.apache.kafka.tools.api.StringDecoder  | UTF-8, what is none replaced by U+FFFD                   |
| int, long     | ...IntegerDecoder, ...LongDecoder      | 4 or 8 bytes, big-endian, signed                            |
| bytes-hex     | ...DefaultDecoder                      | hexadecimal digits (Kafka prints an object's address there) |
| bytes-base64  |                                        | base64                                                      |
| json          |                                        | JSON text on one line; text that is none as it is           |

Records of internal topics are shown in the JSON that Kafka's own converters write.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.coordinators import share_messages, transaction_messages
from sparklog.format.coordinators.group_messages import CONSUMER_PROTOCOL
from sparklog.format.coordinators.group_schemas import ASSIGNMENT, GROUP_METADATA, SUBSCRIPTION, TYPES
from sparklog.format.coordinators.message_schema import (
    ENDS_EARLY,
    Fields,
    Struct,
    Value,
    decode_from,
    elements,
    json_fields,
    json_text,
)
from sparklog.format.text import java_text
from sparklog.tools.inspection.dump_halt import RUNTIME, UNDERFLOW, Halt

Shown: TypeAlias = tuple[str, Any]
"""What is printed, and what JSON holds."""
Decoder: TypeAlias = Callable[[bytes], Shown]

_VERSION = struct.Struct(">h")
DELETE = "<DELETE>"


class Parser(Protocol):
    """Key and value of a record at an offset, as they are shown; None: nothing is shown for it."""

    def __call__(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[Shown | None, Shown | None]: ...


def _string(data: bytes) -> Shown:
    text = java_text(data)
    return text, text


def _integer(size: int) -> Decoder:
    def show(data: bytes) -> Shown:
        if len(data) < size:
            raise Halt(UNDERFLOW)
        value = int.from_bytes(data[:size], "big", signed=True)
        return str(value), value

    return show


def _hex(data: bytes) -> Shown:
    return data.hex(), data.hex()


def _base64(data: bytes) -> Shown:
    text = base64.b64encode(data).decode("ascii")
    return text, text


def _json(data: bytes) -> Shown:
    text = java_text(data)
    try:
        value = json.loads(text)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")), value
    except (ValueError, RecursionError):
        return text, text


DECODERS: dict[str, Decoder] = {
    "string": _string,
    "int": _integer(4),
    "long": _integer(8),
    "bytes-hex": _hex,
    "bytes-base64": _base64,
    "json": _json,
}
_CLASSES = {"StringDecoder": "string", "IntegerDecoder": "int", "LongDecoder": "long", "DefaultDecoder": "bytes-hex"}
_PACKAGES = ("", "org.apache.kafka.tools.api.", "kafka.serializer.")


def named(name: str) -> Decoder:
    """The decoder of a name or of one of Kafka's classes. `BadRequest` for another, naming those that there are."""
    package, _, last = name.rpartition(".")
    if last in _CLASSES and (package + "." if package else "") in _PACKAGES:
        return DECODERS[_CLASSES[last]]
    if name in DECODERS:
        return DECODERS[name]
    raise BadRequest(f"there is no decoder {name!r}: choose one of {', '.join(DECODERS)}, {', '.join(_CLASSES)}")


@dataclass(frozen=True, slots=True)
class Plain:
    """Keys by one decoder, values by another."""

    key: Decoder
    value: Decoder

    def __call__(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[Shown | None, Shown | None]:
        return None if key is None else self.key(key), None if value is None else self.value(value)


def plain(key: str = "string", value: str = "string") -> Plain:
    """By names, see `named`."""
    return Plain(named(key), named(value))


class _Unknown(Exception):  # noqa: N818 - not an error: a type of record that is passed over
    def __init__(self, kind: int) -> None:
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Records of a coordinator's topic: `types` by the number that a key begins with, schemas of key and value."""

    types: dict[int, tuple[Struct, Struct]]

    def __call__(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[Shown | None, Shown | None]:
        if key is None:
            said = f"Failed to decode message at offset {offset} using the specified decoder"
            raise Halt(RUNTIME, f"{said} (message had a missing key)")
        try:
            kind = _version(key, "key")
            if kind not in self.types:
                raise _Unknown(kind)
            key_schema, value_schema = self.types[kind]
            key_fields = _fields(key_schema, 0, key, "key")
            shown_key: Fields = {"type": str(kind), "data": json_fields(key_schema, 0, key_fields)}
            if value is None:
                return _shown(shown_key), (DELETE, None)
            version = _version(value, "value")
            if not 0 <= version <= value_schema.highest:
                raise Corrupt(f"Found an unknown record version {version} for {kind} type")
            fields = _fields(value_schema, version, value, "value")
            data = json_fields(value_schema, version, fields)
            if kind == GROUP_METADATA and value_schema is TYPES[GROUP_METADATA].value:
                _open_members(data)
            shown: Fields = {"version": str(version), "data": data}
            return _shown(shown_key), _shown(shown)
        except _Unknown as unknown:
            text = f"Unknown record type {unknown.kind} at offset {offset}, skipping."
        except Corrupt as error:
            text = f"Error at offset {offset}, skipping. {error.message}"
        return (text, text), None


def group_parser() -> Coordinator:
    """Of `__consumer_offsets`."""
    return Coordinator({number: (kind.key, kind.value) for number, kind in TYPES.items()})


def transaction_parser() -> Coordinator:
    """Of `__transaction_state`."""
    schemas = (transaction_messages.KEY, transaction_messages.VALUE)
    return Coordinator({transaction_messages.TRANSACTION_LOG: schemas})


def share_parser() -> Coordinator:
    """Of `__share_group_state`."""
    return Coordinator(dict(share_messages.TYPES))


def _shown(fields: Fields) -> Shown:
    return json_text(fields), fields


def _version(data: bytes, what: str) -> int:
    if len(data) < _VERSION.size:
        raise Corrupt(f"Could not read version from {what}'s buffer.")
    return int(_VERSION.unpack_from(data)[0])


def _fields(schema: Struct, version: int, data: bytes, what: str) -> Fields:
    try:
        return decode_from(schema, version, data[_VERSION.size :])[0]
    except Corrupt as error:
        reason = "null" if error.message == ENDS_EARLY else error.message
        said = f"Could not read record with version {version} from {what}'s buffer due to: {reason}."
        raise Corrupt(said) from None


def _open_members(data: Fields) -> None:
    """Show subscriptions and assignments of a consumer group's members, as far as they can be read."""
    if data.get("protocolType") != CONSUMER_PROTOCOL:
        return
    for member in elements(data.get("members")):
        for name, schema in (("subscription", SUBSCRIPTION), ("assignment", ASSIGNMENT)):
            member[name] = _opened(member[name], schema)


def _opened(shown: Value, schema: Struct) -> Value:
    try:
        data = base64.b64decode(shown if isinstance(shown, str) else "")
        version = _version(data, schema.name)
        return json_fields(schema, version, decode_from(schema, version, data[_VERSION.size :])[0])
    except (Corrupt, binascii.Error):
        return shown
