"""Compiled readers and writers of requests and responses: one function for each message and version.

`message_schema` reads Kafka's definitions, and could read the messages as well, but asks of each field again whether
the version has it. Here that is asked once, when a version of a message is first met: what is left is a list of steps,
in which neighbouring numbers of fixed size are one `struct` call. Messages are dictionaries by Kafka's names of fields.

Records are never copied on their way in or out: a reader gives views of the request, a writer takes buffers, and its
result is a list of them (`MessageBytes`), as a socket takes it.

Bytes that do not fit are `Corrupt`. A number of elements is believed only as far as bytes are left for them.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

from sparklog.errors import Corrupt
from sparklog.format.coordinators.message_schema import Field, Fields, Struct, message, uvarint

FOLDER = "protocol"
Buffer: TypeAlias = "bytes | bytearray | memoryview"
_NUMBERS = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "bool": "?",
    "float64": "d",
}
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_EMPTY = b"\x00" * 16
LONGEST_STRING = 0x7FFF


@dataclass(slots=True)
class MessageBytes:
    """The bytes of a message: `small` is what follows the finished `parts`. Records are parts of their own."""

    small: bytearray = field(default_factory=bytearray)
    parts: list[Buffer] = field(default_factory=list)

    def add_records(self, buffers: Sequence[Buffer]) -> None:
        self.parts.append(self.small)
        self.parts += buffers
        self.small = bytearray()

    def finish(self) -> list[Buffer]:
        return [part for part in (*self.parts, self.small) if len(part)]


ReadValue: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
ReadStep: TypeAlias = Callable[[bytes, int, Fields], int]
WriteValue: TypeAlias = Callable[[MessageBytes, Any], None]
WriteStep: TypeAlias = Callable[[MessageBytes, Mapping[str, Any]], None]


def read_message(name: str, version: int, data: bytes, start: int = 0) -> tuple[Fields, int]:
    """Return the fields of a message from `start` on, and where it ends. `Corrupt` if the bytes do not fit."""
    try:
        fields: Fields
        fields, end = reader(name, version)(data, start)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Corrupt(f"expected a {name} of version {version}, found bytes that end or break off: {error}") from None
    if end > len(data):
        raise Corrupt(f"a {name} of version {version} ends after {end} bytes, found {len(data)}")
    return fields, end


def write_message(name: str, version: int, values: Mapping[str, Any], output: MessageBytes) -> None:
    """Append a message; fields that `values` does not have are at their defaults."""
    writer(name, version)(output, values)


@cache
def reader(name: str, version: int) -> ReadValue:
    schema = message(FOLDER, name)
    return _struct_reader(schema, version, is_flexible(schema, version))


@cache
def writer(name: str, version: int) -> WriteValue:
    schema = message(FOLDER, name)
    return _struct_writer(schema, version, is_flexible(schema, version))


def is_flexible(schema: Struct, version: int) -> bool:
    return schema.flexible is not None and version >= schema.flexible


# -- reading


def read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while shift < 35:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise Corrupt("a number of variable length has more than 5 bytes")


def _struct_reader(schema: Struct, version: int, flexible: bool) -> ReadValue:
    steps, present = [], [item for item in schema.fields if item.present(version)]
    for group in _groups([item for item in present if item.tag is None]):
        if _is_number(group[0]):
            steps.append(_numbers_reader(group))
        else:
            steps.append(_field_reader(group[0], version, flexible))
    # Defaults of fields that this version lacks; a new list each time, as handlers may keep them.
    absent = [item for item in schema.fields if not item.present(version) or item.tag is not None]
    tags = {item.tag: (item.name, _value_reader(item, version, flexible)) for item in present if item.tag is not None}

    def read(data: bytes, position: int) -> tuple[Fields, int]:
        fields: Fields = {item.name: item.initial() for item in absent}
        for step in steps:
            position = step(data, position, fields)
        if flexible:
            position = _read_tagged(data, position, tags, fields)
        return fields, position

    return read


def _read_tagged(data: bytes, position: int, tags: Mapping[int, tuple[str, ReadValue]], fields: Fields) -> int:
    count, position = read_uvarint(data, position)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if tag in tags:
            name, value = tags[tag]
            fields[name] = value(data, position)[0]
        position += size
        if position > len(data):
            raise Corrupt(f"a tagged field ends after {position} bytes, found {len(data)}")
    return position


def skip_tagged_fields(data: bytes, position: int) -> int:
    """Return where tagged fields that are of no interest end. `Corrupt` as `read_message`."""
    try:
        return _read_tagged(data, position, {}, {})
    except IndexError:
        raise Corrupt("expected tagged fields, found bytes that break off") from None


def _groups(fields: Sequence[Field]) -> list[list[Field]]:
    """Neighbouring numbers together, other fields one by one."""
    groups: list[list[Field]] = []
    for item in fields:
        if groups and _is_number(item) and _is_number(groups[-1][0]):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _is_number(item: Field) -> bool:
    return not item.array and isinstance(item.kind, str) and item.kind in _NUMBERS


def _packing(group: Sequence[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(_NUMBERS[str(item.kind)] for item in group))


def _numbers_reader(group: Sequence[Field]) -> ReadStep:
    packing, names = _packing(group), [item.name for item in group]
    unpack, size = packing.unpack_from, packing.size

    def read(data: bytes, position: int, fields: Fields) -> int:
        fields.update(zip(names, unpack(data, position), strict=True))
        return position + size

    return read


def _field_reader(item: Field, version: int, flexible: bool) -> ReadStep:
    name, value = item.name, _value_reader(item, version, flexible)

    def read(data: bytes, position: int, fields: Fields) -> int:
        fields[name], position = value(data, position)
        return position

    return read


def _value_reader(item: Field, version: int, flexible: bool) -> ReadValue:
    """Return the reader of a field with its length; `Corrupt` for a null where none may be."""
    if item.array:
        element = _element_reader(item, version, flexible)

        def read_array(data: bytes, position: int) -> tuple[Any, int]:
            count, position = _read_length(data, position, _INT, flexible)
            if count < 0:
                return _checked_null(item, version), position
            if count > len(data) - position:
                raise Corrupt(f"field {item.name} announces {count} elements, {len(data) - position} bytes are left")
            values = []
            for _ in range(count):
                value, position = element(data, position)
                values.append(value)
            return values, position

        return read_array
    return _element_reader(item, version, flexible)


def _element_reader(item: Field, version: int, flexible: bool) -> ReadValue:
    kind = item.kind
    if isinstance(kind, Struct):
        return _struct_reader(kind, version, flexible)
    if kind in _NUMBERS:
        packing = struct.Struct(">" + _NUMBERS[kind])
        return lambda data, position: (packing.unpack_from(data, position)[0], position + packing.size)
    if kind == "uuid":
        return lambda data, position: (_uuid_text(data[position : position + 16]), position + 16)
    lengths = _SHORT if kind == "string" else _INT

    def read(data: bytes, position: int) -> tuple[Any, int]:
        length, position = _read_length(data, position, lengths, flexible)
        if length < 0:
            return _checked_null(item, version), position
        end = position + length
        if end > len(data):
            raise Corrupt(f"field {item.name} has {length} bytes, {len(data) - position} are left")
        if kind == "string":
            return data[position:end].decode(), end
        return (memoryview(data)[position:end] if kind == "records" else data[position:end]), end

    return read


def _read_length(data: bytes, position: int, packing: struct.Struct, flexible: bool) -> tuple[int, int]:
    if flexible:
        length, position = read_uvarint(data, position)
        return length - 1, position
    return packing.unpack_from(data, position)[0], position + packing.size


def _checked_null(item: Field, version: int) -> Any:
    if not item.may_be_null(version):
        raise Corrupt(f"field {item.name} is null, and must not be")
    return None


def _uuid_text(data: bytes) -> str:
    if len(data) != 16:
        raise Corrupt("an id has 16 bytes, fewer are left")
    return base64.urlsafe_b64encode(data)[:22].decode("ascii")


# -- writing


def _struct_writer(schema: Struct, version: int, flexible: bool) -> WriteValue:
    steps: list[WriteStep] = []
    present = [item for item in schema.fields if item.present(version)]
    for group in _groups([item for item in present if item.tag is None]):
        if _is_number(group[0]):
            steps.append(_numbers_writer(group))
        else:
            steps.append(_field_writer(group[0], version, flexible))
    tagged = sorted(
        (item.tag, item, _value_writer(item, version, flexible)) for item in present if item.tag is not None
    )

    def write(output: MessageBytes, values: Mapping[str, Any]) -> None:
        for step in steps:
            step(output, values)
        if flexible:
            given = [entry for entry in tagged if values.get(entry[1].name, entry[1].initial()) != entry[1].initial()]
            output.small += uvarint(len(given))
            for tag, item, value in given:
                content = MessageBytes()
                value(content, values[item.name])
                output.small += uvarint(tag) + uvarint(len(content.small)) + content.small

    return write


def _numbers_writer(group: Sequence[Field]) -> WriteStep:
    pack, defaults = _packing(group).pack, [(item.name, item.initial()) for item in group]

    def write(output: MessageBytes, values: Mapping[str, Any]) -> None:
        get = values.get
        output.small += pack(*[get(name, default) for name, default in defaults])

    return write


def _field_writer(item: Field, version: int, flexible: bool) -> WriteStep:
    name, value = item.name, _value_writer(item, version, flexible)
    # A field without a value is null only in versions in which it may be.
    initial = item.initial if item.may_be_null(version) else replace(item, nullable=False).initial

    def write(output: MessageBytes, values: Mapping[str, Any]) -> None:
        value(output, values[name] if name in values else initial())

    return write


def _value_writer(item: Field, version: int, flexible: bool) -> WriteValue:
    element = _element_writer(item, version, flexible)
    if not item.array:
        return element

    def write(output: MessageBytes, values: Any) -> None:
        output.small += _length(-1 if values is None else len(values), _INT, flexible)
        for value in values or ():
            element(output, value)

    return write


def _element_writer(item: Field, version: int, flexible: bool) -> WriteValue:
    kind = item.kind
    if isinstance(kind, Struct):
        return _struct_writer(kind, version, flexible)
    if kind in _NUMBERS:
        pack = struct.Struct(">" + _NUMBERS[kind]).pack
        return lambda output, value: output.small.extend(pack(value))
    if kind == "uuid":
        return lambda output, value: output.small.extend(base64.urlsafe_b64decode(value + "==") if value else _EMPTY)
    if kind == "records":
        return lambda output, value: _write_records(output, value, flexible)
    lengths = _SHORT if kind == "string" else _INT

    def write(output: MessageBytes, value: str | Buffer | None) -> None:
        data = value.encode("utf-8", "replace")[:LONGEST_STRING] if isinstance(value, str) else value
        output.small += _length(-1 if data is None else len(data), lengths, flexible)
        output.small += data or b""

    return write


def _write_records(output: MessageBytes, buffers: Sequence[Buffer] | None, flexible: bool) -> None:
    output.small += _length(-1 if buffers is None else sum(map(len, buffers)), _INT, flexible)
    if buffers:
        output.add_records(buffers)


def _length(count: int, packing: struct.Struct, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else packing.pack(count)
