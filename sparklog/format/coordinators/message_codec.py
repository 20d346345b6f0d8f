"""Bytes of Kafka's messages to fields and back: a compiled reader and writer for each message and version.

Both are made when a version of a message is first met. A field that the version lacks costs nothing from then on, and
neighbouring numbers of fixed size are one `struct` call. The encoding of one version of a message:

| type           | bytes                                                             | in a flexible version         |
|----------------|-------------------------------------------------------------------|-------------------------------|
| int8 .. int64  | big-endian, two's complement; uint16 without sign                 | the same                      |
| bool           | one byte, 0: false                                                | the same                      |
| uuid           | 16 bytes, printed as 22 characters of URL-safe base64             | the same                      |
| string         | int16 length, then UTF-8; length -1: null                         | uvarint (length + 1), 0: null |
| bytes, records | int32 length, then the bytes; -1: null                            | uvarint (length + 1), 0: null |
| array          | int32 count, then the elements; -1: null                          | uvarint (count + 1), 0: null  |
| struct         | its fields; a nullable one begins with int8: below 0 null, else 1 | the same, then tagged fields  |
| tagged fields  | (none)                                                            | see below                     |

Tagged fields: uvarint count, then of each field uvarint tag, uvarint size and the value; fields at their default are
left out, unknown ones are skipped. A uvarint has 7 bits per byte, lowest first, at most 5 bytes. A nullable struct in
a tagged field begins with a uvarint (0 null, 1 present) instead of the int8. A version above those that are defined is
read as the highest one, as clients read each other's subscriptions; a record of such a version is refused.

A coordinator's record has a key of int16 type and the key's fields, and a value of int16 version and the value's
fields. Keys are never flexible. No value (null) is a tombstone.

Records (batches) are not copied: a reader gives views, a writer takes buffers and gives a list of them, as a socket
takes it. Bytes that do not fit are `Corrupt`; a number of elements is believed only as far as bytes are left for them.
Values that do not fit are `BadRequest`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, NoReturn, TypeAlias

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.coordinators.message_schema import Field, Fields, Struct, Value
from sparklog.format.text import JAVA_ERRORS

Buffer: TypeAlias = "bytes | bytearray | memoryview"
_NUMBERS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "bool": "?"}
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_LONGEST_STRING = 0x7FFF


@dataclass(slots=True)
class MessageBytes:
    """The bytes of a message: `small` is what follows the finished `parts`. Records are parts of their own."""

    small: bytearray = field(default_factory=bytearray)
    parts: list[Buffer] = field(default_factory=list)

    def finish(self) -> list[Buffer]:
        return [part for part in (*self.parts, self.small) if len(part)]


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a message's bytes. `text_errors`: what is done with text that is not UTF-8, as `bytes.decode`."""

    version: int
    flexible: bool
    text_errors: str = "strict"


ReadValue: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
WriteValue: TypeAlias = Callable[[MessageBytes, Any], None]


def read_message(message: Struct, version: int, data: bytes, start: int = 0) -> tuple[Fields, int]:
    """Return the fields of a message from `start` on, and where it ends.

    `Corrupt` if the bytes do not fit, and for text that is not UTF-8.
    """
    return _read(message, version, data, start, "strict")


def write_message(message: Struct, version: int, values: Mapping[str, Any], output: MessageBytes) -> None:
    """Append a message; fields that `values` does not have are at their defaults. `BadRequest` as `encode`."""
    _writer(message, version)(output, values)


def decode(message: Struct, version: int, data: bytes) -> Fields:
    """Return the fields of a message's bytes, which follow its version number; text as Java reads it.

    `Corrupt` where the bytes do not fit the schema, and for bytes after the message.
    """
    fields, end = decode_prefix(message, version, data)
    if end != len(data):
        raise Corrupt(f"{message.name} version {version} ends after {end} bytes, found {len(data)}")
    return fields


def decode_prefix(message: Struct, version: int, data: bytes) -> tuple[Fields, int]:
    """Return the same where bytes may follow the message, and how many bytes the message has."""
    return _read(message, version, data, 0, JAVA_ERRORS)


def decode_value(message: Struct, value: bytes | None) -> Fields | None:
    """Return the fields of a record's value, None for a tombstone. `Corrupt` for an unknown version, or as `decode`."""
    if value is None:
        return None
    version, body = split_version(value, "value")
    if not 0 <= version <= message.highest:
        raise Corrupt(f"expected a {message.name} of version 0 to {message.highest}, found {version}")
    return decode(message, version, body)


def split_version(data: bytes, part: str) -> tuple[int, bytes]:
    """Return the int16 that a record's key or value begins with, and the bytes after it."""
    if len(data) < _SHORT.size:
        raise Corrupt(f"a record's {part} begins with 2 bytes of version, found {data.hex() or 'none'}")
    return int(_SHORT.unpack_from(data)[0]), data[_SHORT.size :]


def uvarints(data: bytes, count: int) -> tuple[tuple[int, ...], bytes]:
    """Return so many numbers of variable length that bytes begin with, and the bytes after them."""
    numbers, position = list[int](), 0
    for _ in range(count):
        try:
            number, position = _read_uvarint(data, position)
        except IndexError:
            raise Corrupt(f"expected {count} numbers of variable length, found {data.hex() or 'nothing'}") from None
        numbers.append(number)
    return tuple(numbers), data[position:]


def encode_versioned(message: Struct, version: int, values: Mapping[str, Value]) -> bytes:
    return _SHORT.pack(version) + encode(message, version, values)


def encode(message: Struct, version: int, values: Mapping[str, Value]) -> bytes:
    """Return a message's bytes in a version, without the version's number. Fields not given are at their defaults.

    `BadRequest` for a field that the message does not have, a null where none may be and a number out of range.
    """
    output = MessageBytes()
    write_message(message, version, values, output)
    return b"".join(output.finish())


def _read(message: Struct, version: int, data: bytes, start: int, text_errors: str) -> tuple[Fields, int]:
    if version < 0:
        raise Corrupt(f"expected a {message.name} of version 0 or more, found {version}")
    fields: Fields
    try:
        fields, end = _reader(message, min(version, message.highest), text_errors)(data, start)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        name = f"{message.name} of version {version}"
        raise Corrupt(f"expected a {name}, found bytes that end or break off: {error}") from None
    if end > len(data):
        raise Corrupt(f"a {message.name} of version {version} ends after {end} bytes, found {len(data)}")
    return fields, end


@cache
def _reader(message: Struct, version: int, text_errors: str) -> ReadValue:
    return _struct_reader(message, _Form(version, message.is_flexible(version), text_errors))


def _read_uvarint(data: bytes, position: int) -> tuple[int, int]:
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


def _struct_reader(schema: Struct, form: _Form) -> ReadValue:
    steps = [
        _numbers_reader(group) if _is_number(group[0]) else _field_reader(group[0], form)
        for group in _groups(schema.untagged(form.version))
    ]
    tags = {item.tag: (item.name, _value_reader(item, form)) for item in schema.tagged(form.version)}
    # Defaults of fields that may not be there; a new list each time, as callers may keep them.
    absent = [item for item in schema.fields if item.tag is not None or not item.present(form.version)]

    def read(data: bytes, position: int) -> tuple[Fields, int]:
        fields: Fields = {item.name: item.initial() for item in absent}
        for step in steps:
            position = step(data, position, fields)
        if form.flexible:
            position = _read_tagged(data, position, tags, fields)
        return fields, position

    return read


def _read_tagged(data: bytes, position: int, tags: Mapping[int | None, tuple[str, ReadValue]], fields: Fields) -> int:
    count, position = _read_uvarint(data, position)
    for _ in range(count):
        tag, position = _read_uvarint(data, position)
        size, position = _read_uvarint(data, position)
        if tag in tags:
            name, value = tags[tag]
            fields[name] = value(data, position)[0]
        position += size
        if position > len(data):
            raise Corrupt(f"a tagged field ends after {position} bytes, found {len(data)}")
    return position


def _groups(fields: Sequence[Field]) -> list[list[Field]]:
    """Put neighbouring numbers together, other fields one by one."""
    runs = [(are_numbers, list(run)) for are_numbers, run in groupby(fields, _is_number)]
    return [group for are_numbers, run in runs for group in ([run] if are_numbers else [[item] for item in run])]


def _is_number(item: Field) -> bool:
    return not item.array and item.kind in _NUMBERS


def _packing(group: Sequence[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(_NUMBERS[str(item.kind)] for item in group))


def _numbers_reader(group: Sequence[Field]) -> Callable[[bytes, int, Fields], int]:
    packing, names = _packing(group), [item.name for item in group]
    unpack, size = packing.unpack_from, packing.size

    def read(data: bytes, position: int, fields: Fields) -> int:
        fields.update(zip(names, unpack(data, position), strict=True))
        return position + size

    return read


def _field_reader(item: Field, form: _Form) -> Callable[[bytes, int, Fields], int]:
    name, value = item.name, _value_reader(item, form)

    def read(data: bytes, position: int, fields: Fields) -> int:
        fields[name], position = value(data, position)
        return position

    return read


def _value_reader(item: Field, form: _Form) -> ReadValue:
    """Return the reader of a field with its length; `Corrupt` for a null where none may be."""
    if not item.array:
        return _element_reader(item, form)
    flexible, element = form.flexible, _element_reader(item.element(), form)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        count, position = _read_length(data, position, _INT, flexible)
        if count < 0:
            return _null(item, form), position
        if count > len(data) - position:
            raise Corrupt(f"field {item.name} announces {count} elements, {len(data) - position} bytes are left")
        values = []
        for _ in range(count):
            value, position = element(data, position)
            values.append(value)
        return values, position

    return read


def _element_reader(item: Field, form: _Form) -> ReadValue:
    kind = item.kind
    if isinstance(kind, Struct):
        read_struct = _struct_reader(kind, form)
        return _nullable_reader(item, read_struct) if item.may_be_null(form.version) else read_struct
    if kind in _NUMBERS:
        packing = _packing([item])
        return lambda data, position: (packing.unpack_from(data, position)[0], position + packing.size)
    if kind == "uuid":
        return lambda data, position: (_uuid_text(data[position : position + 16]), position + 16)
    flexible, is_text, is_view = form.flexible and item.compact, kind == "string", kind == "records"
    lengths, errors = _SHORT if is_text else _INT, form.text_errors

    def read(data: bytes, position: int) -> tuple[Any, int]:
        length, position = _read_length(data, position, lengths, flexible)
        if length < 0:
            return _null(item, form), position
        end = position + length
        if end > len(data):
            raise Corrupt(f"field {item.name} has {length} bytes, {len(data) - position} are left")
        if not is_text:
            return (memoryview(data)[position:end] if is_view else data[position:end]), end
        if length > _LONGEST_STRING:
            raise Corrupt(f"field {item.name} has {length} bytes of text: at most {_LONGEST_STRING} are allowed")
        return data[position:end].decode("utf-8", errors), end

    return read


def _nullable_reader(item: Field, read_struct: ReadValue) -> ReadValue:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        if item.tag is None:
            is_there, position = data[position] < 0x80, position + 1
        else:
            number, position = _read_uvarint(data, position)
            is_there = number > 0
        return read_struct(data, position) if is_there else (None, position)

    return read


def _read_length(data: bytes, position: int, packing: struct.Struct, flexible: bool) -> tuple[int, int]:
    if flexible:
        length, position = _read_uvarint(data, position)
        return length - 1, position
    return packing.unpack_from(data, position)[0], position + packing.size


def _null(item: Field, form: _Form) -> Any:
    if not item.may_be_null(form.version):
        raise Corrupt(f"field {item.name} is null, and must not be")
    return None


def _uuid_text(data: bytes) -> str:
    if len(data) != 16:
        raise Corrupt("an id has 16 bytes, fewer are left")
    return base64.urlsafe_b64encode(data)[:22].decode("ascii")


@cache
def _writer(message: Struct, version: int) -> WriteValue:
    return _struct_writer(message, _Form(version, message.is_flexible(version)))


def _struct_writer(schema: Struct, form: _Form) -> WriteValue:
    names = {item.name for item in schema.fields}
    steps = [
        _numbers_writer(group) if _is_number(group[0]) else _field_writer(group[0], form)
        for group in _groups(schema.untagged(form.version))
    ]
    tagged = [(uvarint(item.tag or 0), item, _value_writer(item, form)) for item in schema.tagged(form.version)]
    flexible = form.flexible

    def write(output: MessageBytes, values: Mapping[str, Any]) -> None:
        if not names.issuperset(values):
            raise BadRequest(f"{schema.name} has no field {min(values.keys() - names)!r}")
        for step in steps:
            step(output, values)
        if flexible and not tagged:
            output.small += b"\x00"
        elif flexible:
            given = [entry for entry in tagged if values.get(entry[1].name, entry[1].initial()) != entry[1].initial()]
            output.small += uvarint(len(given))
            for tag, item, value in given:
                content = MessageBytes()
                value(content, values[item.name])
                output.small += tag + uvarint(len(content.small)) + content.small

    return write


def _numbers_writer(group: Sequence[Field]) -> WriteValue:
    pack, defaults = _packing(group).pack, [(item.name, item.initial()) for item in group]

    def write(output: MessageBytes, values: Mapping[str, Any]) -> None:
        get = values.get
        try:
            output.small += pack(*[get(name, default) for name, default in defaults])
        except struct.error:
            # One by one: the one that does not fit is named.
            for item in group:
                _number_writer(item)(output, get(item.name, item.initial()))

    return write


def _number_writer(item: Field) -> WriteValue:
    pack = _packing([item]).pack

    def write(output: MessageBytes, value: Any) -> None:
        try:
            output.small += pack(value)
        except struct.error:
            _refuse(item, value)

    return write


def _refuse(item: Field, value: object) -> NoReturn:
    kind = "list" if item.array else item.kind.name if isinstance(item.kind, Struct) else item.kind
    raise BadRequest(f"field {item.name} takes a value of type {kind}, not {value!r}")


def _field_writer(item: Field, form: _Form) -> WriteValue:
    name, value = item.name, _value_writer(item, form)
    # A field without a value is null only in versions in which it may be.
    initial = item.initial if item.may_be_null(form.version) else replace(item, nullable=False).initial

    def write(output: MessageBytes, values: Mapping[str, Any]) -> None:
        value(output, values[name] if name in values else initial())

    return write


def _value_writer(item: Field, form: _Form) -> WriteValue:
    if not item.array:
        return _element_writer(item, form)
    flexible, element = form.flexible, _element_writer(item.element(), form)

    def write(output: MessageBytes, values: Any) -> None:
        if not isinstance(values, list):
            _check_null(item, form, values)
        output.small += _length(-1 if values is None else len(values), _INT, flexible)
        for value in values or ():
            element(output, value)

    return write


def _check_null(item: Field, form: _Form, value: object) -> None:
    if value is not None or not item.may_be_null(form.version):
        _refuse(item, value)


def _element_writer(item: Field, form: _Form) -> WriteValue:
    kind = item.kind
    if isinstance(kind, Struct):
        return _checked_struct_writer(item, kind, form)
    if kind in _NUMBERS:
        return _number_writer(item)
    if kind == "uuid":
        return lambda output, value: output.small.extend(_uuid_bytes(value))
    flexible, is_text = form.flexible and item.compact, kind == "string"
    if kind == "records":
        return _records_writer(flexible)
    lengths = _SHORT if is_text else _INT
    taken: Any = str if is_text else bytes
    null = _length(-1, lengths, flexible)

    def write(output: MessageBytes, value: Any) -> None:
        if not isinstance(value, taken):
            _check_null(item, form, value)
            output.small += null
            return
        data: bytes = value.encode("utf-8", "replace") if is_text else value
        if is_text and len(data) > _LONGEST_STRING:
            raise BadRequest(f"field {item.name} takes at most {_LONGEST_STRING} bytes of text, not {len(data)}")
        output.small += (uvarint(len(data) + 1) if flexible else lengths.pack(len(data))) + data

    return write


def _checked_struct_writer(item: Field, schema: Struct, form: _Form) -> WriteValue:
    write_struct, nullable = _struct_writer(schema, form), item.may_be_null(form.version)

    def write(output: MessageBytes, value: Any) -> None:
        if not isinstance(value, dict):
            _check_null(item, form, value)
            output.small += b"\xff" if item.tag is None else b"\x00"
            return
        if nullable:
            output.small += b"\x01"
        write_struct(output, value)

    return write


def _records_writer(flexible: bool) -> WriteValue:
    def write(output: MessageBytes, buffers: Sequence[Buffer] | None) -> None:
        output.small += _length(-1 if buffers is None else sum(map(len, buffers)), _INT, flexible)
        if buffers:
            output.parts += (output.small, *buffers)
            output.small = bytearray()

    return write


def _length(count: int, packing: struct.Struct, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else packing.pack(count)


def _uuid_bytes(text: str) -> bytes:
    try:
        data = base64.urlsafe_b64decode(text + "==")
    except (ValueError, TypeError):
        data = b""
    if len(data) != 16 or len(text) != 22:
        raise BadRequest(f"expected a UUID of 22 characters of URL-safe base64, not {text!r}")
    return data


def uvarint(value: int) -> bytes:
    """Return an unsigned number of variable length."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
