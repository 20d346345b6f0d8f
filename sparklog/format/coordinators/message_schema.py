"""Messages of Kafka's protocol: bytes to fields and back, in any version of a schema.

Kafka describes by schemas what it stores in its internal topics. `messages/` has the JSON files of Kafka 4.1.0 that its
code generator reads, verbatim (JSON with lines of comments):

| folder         | records of                       | files                                                          |
|----------------|----------------------------------|----------------------------------------------------------------|
| `groups`       | `__consumer_offsets`             | key and value of every type, and what members of a consumer    |
|                |                                  | group send each other (`ConsumerProtocol…`)                    |
| `shares`       | `__share_group_state` (KIP-932)  | key and value of both types                                    |
| `transactions` | `__transaction_state`            | key and value of the only type                                 |
| `control`      | control batches of KRaft's log   | values                                                         |
| `protocol`     | (requests and responses)         | what `sparklog serve` speaks: headers and messages, which      |
|                |                                  | `sparklog.serve.codec` reads and writes, as they are frequent  |

The encoding of one version of a message:

| type           | bytes                                                             | in a flexible version         |
|----------------|-------------------------------------------------------------------|-------------------------------|
| int8 .. int64  | big-endian, two's complement; uint16 without sign                 | the same                      |
| uuid           | 16 bytes, printed as 22 characters of URL-safe base64             | the same                      |
| string         | int16 length, then UTF-8; length -1: null                         | uvarint (length + 1), 0: null |
| bytes          | int32 length, then the bytes; -1: null                            | uvarint (length + 1), 0: null |
| array          | int32 count, then the elements; -1: null                          | uvarint (count + 1), 0: null  |
| struct         | its fields; a nullable one begins with int8: below 0 null, else 1 | the same, then tagged fields  |
| tagged fields  | (none)                                                            | see below                     |

Tagged fields: uvarint count, then of each field uvarint tag, uvarint size and the value; fields at their default are
left out, unknown ones are skipped. A uvarint has 7 bits per byte, lowest first, at most 5 bytes. A nullable struct in
a tagged field begins with a uvarint (0 null, 1 present) instead of the int8. A version above the known ones is read as
the highest known, as clients read each other's subscriptions; a record of such a version is refused.

A coordinator's record has a key of int16 type and the key's fields, and a value of int16 version and the value's
fields. Keys are never flexible. No value (null) is a tombstone.

Pure Python: these are messages by the thousand, not records by the million.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import get_data
from typing import Any, TypeAlias

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.text import java_text

Value: TypeAlias = "int | str | bytes | list[Value] | dict[str, Value] | None"
Fields: TypeAlias = dict[str, Any]
"""A message or struct by Kafka's names of its fields, those that a version lacks at their defaults."""

PACKAGE = "sparklog.format.coordinators"
NO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"

_CODES = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q"}
_INTEGERS = {name: struct.Struct(code) for name, code in _CODES.items()}
_VERSION = _INTEGERS["int16"]
_LONGEST_STRING = 0x7FFF


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the versions `since` to `until` (None: all later ones), of a type in the table above or a struct."""

    name: str
    kind: str | Struct
    array: bool = False
    since: int = 0
    until: int | None = None
    nullable: bool = False
    tag: int | None = None
    default: Value = None
    nullable_since: int = 0
    """The first version in which a field that is nullable may be null."""

    def may_be_null(self, version: int) -> bool:
        return self.nullable and version >= self.nullable_since

    def present(self, version: int) -> bool:
        return version >= self.since and (self.until is None or version <= self.until)

    def initial(self) -> Value:
        if self.default is not None or (self.nullable and self.tag is None):
            return self.default
        if self.array:
            return []
        if isinstance(self.kind, Struct):
            return {field.name: field.initial() for field in self.kind.fields}
        empty: dict[str, Value] = {"string": "", "bytes": b"", "uuid": NO_UUID}
        return empty.get(self.kind, 0)


@dataclass(frozen=True, slots=True)
class Struct:
    """A message or a part of one. `highest` version that Kafka 4.1 knows; first `flexible` one, None without one."""

    name: str
    fields: tuple[Field, ...]
    highest: int = 0
    flexible: int | None = None


@dataclass(frozen=True, slots=True)
class RecordType:
    key: Struct
    value: Struct


@cache
def record_types(folder: str) -> Mapping[int, RecordType]:
    """Return the types of a folder's records, by the number that a key begins with."""
    schemas: dict[tuple[int, str], Struct] = {}
    # Late: it brings zipfile, tempfile and lzma along.
    from importlib import resources

    for file in (resources.files(PACKAGE) / "messages" / folder).iterdir():
        definition = _parsed(file.read_bytes())
        if "apiKey" in definition:
            schemas[definition["apiKey"], definition["type"]] = _message(definition)
    numbers = sorted({number for number, _ in schemas})
    return {
        number: RecordType(schemas[number, "coordinator-key"], schemas[number, "coordinator-value"])
        for number in numbers
    }


@cache
def message(folder: str, name: str) -> Struct:
    return _message(_parsed(get_data(PACKAGE, f"messages/{folder}/{name}.json") or b""))


def _parsed(text: bytes) -> dict[str, Any]:
    lines = [line for line in text.decode().splitlines() if not line.lstrip().startswith("//")]
    definition: dict[str, Any] = json.loads("\n".join(lines))
    return definition


def _message(definition: dict[str, Any]) -> Struct:
    common = {struct["name"]: struct for struct in definition.get("commonStructs", ())}
    _, highest = _versions(definition["validVersions"])
    flexible = definition["flexibleVersions"]
    fields = tuple(_field(field, common) for field in definition["fields"])
    return Struct(definition["name"], fields, highest or 0, None if flexible == "none" else _versions(flexible)[0])


def _field(definition: dict[str, Any], common: dict[str, dict[str, Any]]) -> Field:
    name, kind, default = definition["name"], definition["type"], definition.get("default")
    element = kind.removeprefix("[]")
    fields = definition.get("fields") or common.get(element, {}).get("fields")
    since, until = _versions(definition.get("versions") or definition["taggedVersions"])
    return Field(
        name[0].lower() + name[1:],
        Struct(element, tuple(_field(field, common) for field in fields)) if fields else element,
        array=element != kind,
        since=since,
        until=until,
        nullable="nullableVersions" in definition,
        tag=definition.get("tag"),
        default=_default(default, element),
        nullable_since=_versions(definition.get("nullableVersions", "0+"))[0],
    )


def _default(text: Value, kind: str) -> Value:
    """Return a default as a value of its type: a number may be written with base, a truth value as a word."""
    if text in (None, "null") or kind == "string":
        return None if text in (None, "null") else str(text)
    if kind == "bool":
        return str(text).lower() == "true"
    return int(str(text), 0)


def _versions(text: str) -> tuple[int, int | None]:
    """The first and the last version of a range: `3`, `0-4`, or `2+`, whose last one is None."""
    first, dash, last = text.removesuffix("+").partition("-")
    return int(first), None if text.endswith("+") else int(last if dash else first)


def split_version(data: bytes, part: str) -> tuple[int, bytes]:
    """Return the int16 that a record's key or value begins with, and the bytes after it."""
    if len(data) < _VERSION.size:
        raise Corrupt(f"a record's {part} begins with 2 bytes of version, found {data.hex() or 'none'}")
    return int(_VERSION.unpack_from(data)[0]), data[_VERSION.size :]


def decode_value(message: Struct, value: bytes | None) -> Fields | None:
    """Return the fields of a record's value, None for a tombstone. `Corrupt` for an unknown version, or as `decode`."""
    if value is None:
        return None
    version, body = split_version(value, "value")
    if not 0 <= version <= message.highest:
        raise Corrupt(f"expected a {message.name} of version 0 to {message.highest}, found {version}")
    return decode(message, version, body)


def decode(message: Struct, version: int, data: bytes) -> Fields:
    """Return the fields of a message's bytes, which follow its version number.

    `Corrupt` where the bytes do not fit the schema, and for bytes after the message.
    """
    fields, end = decode_prefix(message, version, data)
    if end != len(data):
        raise Corrupt(f"{message.name} version {version} ends after {end} bytes, found {len(data)}")
    return fields


def decode_prefix(message: Struct, version: int, data: bytes) -> tuple[Fields, int]:
    """Return the same where bytes may follow the message, and how many bytes the message has."""
    reader = MessageReader(data)
    return reader.struct(message, version, _is_flexible(message, version)), reader.position


def uvarints(data: bytes, count: int) -> tuple[tuple[int, ...], bytes]:
    """Return so many numbers of variable length that bytes begin with, and the bytes after them."""
    reader = MessageReader(data)
    return tuple(reader.uvarint() for _ in range(count)), data[reader.position :]


def encode_versioned(message: Struct, version: int, values: Mapping[str, Value]) -> bytes:
    return _VERSION.pack(version) + encode(message, version, values)


def encode(message: Struct, version: int, values: Mapping[str, Value]) -> bytes:
    """Return a message's bytes in a version, without the version's number. Fields not given are at their defaults.

    `BadRequest` for a field that the message does not have, a null where none may be and a number out of range.
    """
    out = bytearray()
    _write_struct(out, message, version, _is_flexible(message, version), values)
    return bytes(out)


def json_fields(message: Struct, version: int, fields: Mapping[str, Value]) -> Fields:
    """Return a message as Kafka's tools print it: without tagged fields at their default, and with bytes as base64."""
    shown: Fields = {}
    for field in message.fields:
        value = fields[field.name]
        if field.present(version) and (field.tag is None or value != field.initial()):
            shown[field.name] = _json_value(field.kind, version, value)
    return shown


def json_text(value: Value) -> str:
    """Return JSON as Kafka's tools write it (Jackson): without spaces, only quotes, backslashes and control characters
    escaped, those like \\u001F with capital letters."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return re.sub(r"\\(u....|.)", lambda escape: "\\" + escape[1][0] + escape[1][1:].upper(), text)


def _json_value(kind: str | Struct, version: int, value: Value) -> Value:
    if isinstance(value, list):
        return [_json_value(kind, version, element) for element in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return json_fields(kind, version, value) if isinstance(kind, Struct) and isinstance(value, dict) else value


def _is_flexible(message: Struct, version: int) -> bool:
    return message.flexible is not None and version >= message.flexible


class MessageReader:
    """Reads the fields of a message, in the order of its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def struct(self, message: Struct, version: int, flexible: bool) -> Fields:
        fields: Fields = {}
        tagged: dict[int, Field] = {}
        for field in message.fields:
            if field.present(version) and field.tag is None:
                fields[field.name] = self.field(field, version, flexible)
            else:
                fields[field.name] = field.initial()
                if field.present(version) and field.tag is not None:
                    tagged[field.tag] = field
        if flexible:
            for _ in range(self.uvarint()):
                tag, size = self.uvarint(), self.uvarint()
                if tag in tagged:
                    fields[tagged[tag].name] = self.field(tagged[tag], version, flexible)
                else:
                    self.take(size)
        return fields

    def field(self, field: Field, version: int, flexible: bool) -> Value:
        if not field.array:
            return self.value(field, field.name, version, flexible)
        count = self.uvarint() - 1 if flexible else self.integer("int32")
        if count < 0:
            return _null(field.nullable, field.name)
        if count > (left := len(self.data) - self.position):
            raise Corrupt(f"field {field.name} announces {count} elements, but only {left} bytes are left")
        if isinstance(field.kind, Struct):
            return [self.struct(field.kind, version, flexible) for _ in range(count)]
        return [self.value(field, f"{field.name} element", version, flexible) for _ in range(count)]

    def value(self, field: Field, name: str, version: int, flexible: bool) -> Value:
        kind = field.kind
        if isinstance(kind, Struct):
            if field.nullable and (self.uvarint() <= 0 if field.tag is not None else self.integer("int8") < 0):
                return None
            return self.struct(kind, version, flexible)
        if kind in _INTEGERS:
            return self.integer(kind)
        if kind == "uuid":
            return base64.urlsafe_b64encode(self.take(16))[:22].decode("ascii")
        text = kind == "string"
        length = self.uvarint() - 1 if flexible else self.integer("int16" if text else "int32")
        if length < 0:
            return _null(field.nullable and not field.array, name)
        if not text:
            return self.take(length)
        if length > _LONGEST_STRING:
            raise Corrupt(f"field {name} announces {length} bytes of text: at most {_LONGEST_STRING} are allowed")
        return java_text(self.take(length))

    def integer(self, kind: str) -> int:
        value: int = _INTEGERS[kind].unpack(self.take(_INTEGERS[kind].size))[0]
        return value

    def take(self, length: int) -> bytes:
        left = len(self.data) - self.position
        if length > left:
            raise Corrupt(f"a field of {length} bytes begins where only {left} are left")
        self.position += length
        return self.data[self.position - length : self.position]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Corrupt("a number of variable length has more than 5 bytes")


def _null(allowed: bool, name: str) -> Value:
    if not allowed:
        raise Corrupt(f"field {name} is null, and must not be")
    return None


def _write_struct(out: bytearray, message: Struct, version: int, flexible: bool, values: Mapping[str, Value]) -> None:
    unknown = values.keys() - {field.name for field in message.fields}
    if unknown:
        raise BadRequest(f"{message.name} has no field {min(unknown)!r}")
    tagged: list[tuple[int, bytes]] = []
    for field in message.fields:
        value = values.get(field.name, field.initial())
        if not field.present(version):
            continue
        if field.tag is None:
            _write_field(out, field, version, flexible, value)
        elif flexible and value != field.initial():
            content = bytearray()
            _write_field(content, field, version, flexible, value)
            tagged.append((field.tag, bytes(content)))
    if flexible:
        out += uvarint(len(tagged))
        for tag, part in sorted(tagged):
            out += uvarint(tag) + uvarint(len(part)) + part


def _write_field(out: bytearray, field: Field, version: int, flexible: bool, value: Value) -> None:
    if not field.array:
        _write_value(out, field, version, flexible, value)
    elif value is None and field.nullable:
        out += _length(-1, "int32", flexible)
    elif isinstance(value, list):
        out += _length(len(value), "int32", flexible)
        for element in value:
            if isinstance(field.kind, Struct) and isinstance(element, dict):
                _write_struct(out, field.kind, version, flexible, element)
            else:
                _write_value(out, field, version, flexible, element)
    else:
        raise BadRequest(f"field {field.name} takes a list, not {value!r}")


def _write_value(out: bytearray, field: Field, version: int, flexible: bool, value: Value) -> None:
    kind = field.kind
    if isinstance(kind, Struct) and (isinstance(value, dict) or (value is None and field.nullable)):
        if field.nullable:
            present = value is not None
            out += bytes((present,)) if field.tag is not None else (b"\x01" if present else b"\xff")
        if isinstance(value, dict):
            _write_struct(out, kind, version, flexible, value)
    elif kind in _INTEGERS and isinstance(value, int):
        try:
            out += _INTEGERS[kind].pack(value)
        except struct.error:
            raise BadRequest(f"field {field.name} takes an {kind}, not {value}") from None
    elif kind == "uuid" and isinstance(value, str):
        out += _uuid_bytes(value)
    elif kind == "string" and isinstance(value, str):
        data = value.encode("utf-8", "replace")
        if len(data) > _LONGEST_STRING:
            raise BadRequest(f"field {field.name} takes at most {_LONGEST_STRING} bytes of text, not {len(data)}")
        out += _length(len(data), "int16", flexible) + data
    elif kind == "bytes" and isinstance(value, bytes):
        out += _length(len(value), "int32", flexible) + value
    elif kind in ("string", "bytes") and value is None and field.nullable and not field.array:
        out += _length(-1, "int16" if kind == "string" else "int32", flexible)
    else:
        name = kind.name if isinstance(kind, Struct) else kind
        raise BadRequest(f"field {field.name} takes a value of type {name}, not {value!r}")


def _uuid_bytes(text: str) -> bytes:
    try:
        data = base64.urlsafe_b64decode(text + "==")
    except (ValueError, binascii.Error):
        data = b""
    if len(data) != 16 or len(text) != 22:
        raise BadRequest(f"expected a UUID of 22 characters of URL-safe base64, not {text!r}")
    return data


def _length(count: int, kind: str, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _INTEGERS[kind].pack(count)


def uvarint(value: int) -> bytes:
    """Return an unsigned number of variable length."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
