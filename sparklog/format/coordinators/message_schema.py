"""Messages of Kafka's own protocol: fields described once, read and written by any version of them.

Kafka describes what it stores in its internal topics (and sends over the wire) by schemas; so do `group_messages`,
`transaction_messages` and others here. The encoding of one version of a message:

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
a tagged field begins with a uvarint (0 null, 1 there) instead of the int8. A version above the known ones is read as
the highest known, as clients read each other's subscriptions; who reads records checks their version first.

Texts of errors are Kafka's where it has any, so that `dump-log` can print them. Pure Python, for messages by the
thousand, not for records by the million.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.text import java_text

Value: TypeAlias = "int | str | bytes | list[Value] | dict[str, Value] | None"
Fields: TypeAlias = dict[str, Value]
"""A message or struct by Kafka's names of its fields, those that a version lacks at their defaults."""

ENDS_EARLY = "the bytes end within a field"
"""What `decode` says where Kafka has no text (it prints "null")."""
NO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"

_INTEGERS = {
    name: struct.Struct(code)
    for name, code in {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q"}.items()
}
_LONGEST_STRING = 0x7FFF


@dataclass(frozen=True, slots=True)
class Field:
    """A field: `kind` is a name of the module's table or a struct; in versions `since` to `until` (None: all later
    ones). `tag`: it is a tagged field of the flexible versions among these.
    """

    name: str
    kind: str | Struct
    array: bool = False
    since: int = 0
    until: int | None = None
    nullable: bool = False
    tag: int | None = None
    default: Value = None

    def present(self, version: int) -> bool:
        return version >= self.since and (self.until is None or version <= self.until)

    def initial(self) -> Value:
        """What the field is where no bytes say it."""
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
    """A message or a part of one: fields in order; `flexible`: the first flexible version, None if there is none.

    `highest`: the highest version Kafka 4.1 knows.
    """

    name: str
    fields: tuple[Field, ...]
    highest: int = 0
    flexible: int | None = None


def decode(message: Struct, version: int, data: bytes) -> Fields:
    """The fields of a message's bytes, which follow its version number; bytes behind the message are `Corrupt`, as is
    whatever is not as the schema says.
    """
    fields, end = decode_from(message, version, data)
    if end != len(data):
        raise Corrupt(f"{message.name} version {version} ends after {end} bytes, found {len(data)}")
    return fields


def decode_from(message: Struct, version: int, data: bytes) -> tuple[Fields, int]:
    """The same, leniently: the fields, and how many bytes they took."""
    reader = _Reader(data)
    return reader.struct(message, version, _is_flexible(message, version)), reader.position


def encode(message: Struct, version: int, values: Mapping[str, Value]) -> bytes:
    """A message's bytes in a version, without the version's number. Fields that are not given are at their defaults.

    `BadRequest` for a field that the message does not have, a null where none may be and a number out of range.
    """
    out = bytearray()
    _write_struct(out, message, version, _is_flexible(message, version), values)
    return bytes(out)


def json_fields(message: Struct, version: int, fields: Mapping[str, Value]) -> Fields:
    """What Kafka's tools print of a message in a version: its fields in order, tagged ones unless at their default,
    bytes as base64.
    """
    shown: Fields = {}
    for field in message.fields:
        value = fields[field.name]
        if field.present(version) and (field.tag is None or value != field.initial()):
            shown[field.name] = _json_value(field.kind, version, value)
    return shown


def json_text(value: Value) -> str:
    """JSON as Kafka's tools write it (Jackson): no spaces, nothing escaped but quotes, backslashes and what lies below
    U+0020.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if "\\u00" in text:
        text = _upper_escapes(text)
    return text


def _upper_escapes(text: str) -> str:
    """Escapes like \\u001f with Jackson's capital letters; a backslash in front of one is itself escaped."""
    out: list[str] = []
    position = 0
    while (found := text.find("\\", position)) >= 0:
        length = 6 if text[found + 1] == "u" else 2
        escape = text[found : found + length]
        out += (text[position:found], escape if length == 2 else "\\u" + escape[2:].upper())
        position = found + length
    return "".join((*out, text[position:]))


def _json_value(kind: str | Struct, version: int, value: Value) -> Value:
    if isinstance(value, list):
        return [_json_value(kind, version, each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(kind, Struct) and isinstance(value, dict):
        return json_fields(kind, version, value)
    return value


def _is_flexible(message: Struct, version: int) -> bool:
    return message.flexible is not None and version >= message.flexible


class _Reader:
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
        left = len(self.data) - self.position
        if count > left:
            raise Corrupt(f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining.")
        name = f"{field.name} element"
        if isinstance(field.kind, Struct):
            return [self.struct(field.kind, version, flexible) for _ in range(count)]
        return [self.value(field, name, version, flexible) for _ in range(count)]

    def value(self, field: Field, name: str, version: int, flexible: bool) -> Value:
        kind = field.kind
        if isinstance(kind, Struct):
            if field.nullable and (self.uvarint() <= 0 if field.tag is not None else self.integer("int8") < 0):
                return None
            return self.struct(kind, version, flexible)
        if kind in _INTEGERS:
            return self.integer(kind)
        if kind == "uuid":
            if len(self.data) - self.position < 16:
                raise Corrupt(ENDS_EARLY)
            return base64.urlsafe_b64encode(self.take(16))[:22].decode("ascii")
        text = kind == "string"
        length = self.uvarint() - 1 if flexible else self.integer("int16" if text else "int32")
        if length < 0:
            return _null(field.nullable and not field.array, name)
        if not text:
            return self.take(length)
        if length > _LONGEST_STRING:
            raise Corrupt(f"string field {name} had invalid length {length}")
        return java_text(self.take(length))

    def integer(self, kind: str) -> int:
        form = _INTEGERS[kind]
        end = self.position + form.size
        if end > len(self.data):
            raise Corrupt(ENDS_EARLY)
        value: int = form.unpack_from(self.data, self.position)[0]
        self.position = end
        return value

    def take(self, length: int) -> bytes:
        left = len(self.data) - self.position
        if length > left:
            raise Corrupt(f"Error reading byte array of {length} byte(s): only {left} byte(s) available")
        if length < 0:
            raise Corrupt(str(length))
        self.position += length
        return self.data[self.position - length : self.position]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            if self.position >= len(self.data):
                raise Corrupt(ENDS_EARLY)
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return _signed(value)
        shown = f"{value & 0xFFFFFFFF:x}"
        raise Corrupt(f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {shown}")


def _null(allowed: bool, name: str) -> Value:
    if not allowed:
        raise Corrupt(f"non-nullable field {name} was serialized as null")
    return None


def _signed(value: int) -> int:
    """As Java's int holds it."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


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
        out += _uvarint(len(tagged))
        for tag, part in sorted(tagged):
            out += _uvarint(tag) + _uvarint(len(part)) + part


def _write_field(out: bytearray, field: Field, version: int, flexible: bool, value: Value) -> None:
    if not field.array:
        _write_value(out, field, version, flexible, value)
        return
    if value is None and field.nullable:
        out += _length(-1, "int32", flexible)
        return
    if not isinstance(value, list):
        raise BadRequest(f"field {field.name} takes a list, not {value!r}")
    out += _length(len(value), "int32", flexible)
    for each in value:
        if isinstance(field.kind, Struct) and isinstance(each, dict):
            _write_struct(out, field.kind, version, flexible, each)
        else:
            _write_value(out, field, version, flexible, each)


def _write_value(out: bytearray, field: Field, version: int, flexible: bool, value: Value) -> None:
    kind = field.kind
    if isinstance(kind, Struct):
        if field.nullable:
            there = isinstance(value, dict)
            out += bytes((there,)) if field.tag is not None else (b"\x01" if there else b"\xff")
        if isinstance(value, dict):
            _write_struct(out, kind, version, flexible, value)
            return
        if value is None and field.nullable:
            return
    elif kind in _INTEGERS and isinstance(value, int):
        try:
            out += _INTEGERS[kind].pack(value)
        except struct.error:
            raise BadRequest(f"field {field.name} takes an {kind}, not {value}") from None
        return
    elif kind == "uuid" and isinstance(value, str):
        out += uuid_bytes(value)
        return
    elif kind in ("string", "bytes"):
        data = value.encode("utf-8", "replace") if isinstance(value, str) and kind == "string" else value
        if isinstance(data, bytes):
            if kind == "string" and len(data) > _LONGEST_STRING:
                raise BadRequest(f"field {field.name} takes at most {_LONGEST_STRING} bytes of text, not {len(data)}")
            out += _length(len(data), "int16" if kind == "string" else "int32", flexible) + data
            return
        if value is None and field.nullable and not field.array:
            out += _length(-1, "int16" if kind == "string" else "int32", flexible)
            return
    name = kind.name if isinstance(kind, Struct) else kind
    raise BadRequest(f"field {field.name} takes a value of type {name}, not {value!r}")


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of a UUID as Kafka prints it. `BadRequest` for other text."""
    try:
        data = base64.urlsafe_b64decode(text + "==")
    except (ValueError, binascii.Error):
        data = b""
    if len(data) != 16 or len(text) != 22:
        raise BadRequest(f"expected a UUID of 22 characters of URL-safe base64, not {text!r}")
    return data


def _length(count: int, kind: str, flexible: bool) -> bytes:
    return _uvarint(count + 1) if flexible else _INTEGERS[kind].pack(count)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: Value) -> str:
    """A field's value that the schema says is text."""
    assert isinstance(value, str)
    return value


def optional_text(value: Value) -> str | None:
    """The same, or null."""
    return None if value is None else text(value)


def number(value: Value) -> int:
    """A field's value that the schema says is an integer."""
    assert isinstance(value, int)
    return value


def binary(value: Value) -> bytes:
    """A field's value that the schema says is bytes."""
    assert isinstance(value, bytes)
    return value


def elements(value: Value) -> list[Fields]:
    """A field's value that the schema says is an array of structs; null: none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
