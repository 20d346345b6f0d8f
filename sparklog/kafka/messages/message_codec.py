"""Encode and decode Kafka messages, with a compiled reader and writer for each message and version.

Readers and writers are Python functions. `message_source` generates the source of these functions when a version of a
message is first used. A message is encoded as follows:

| type           | bytes                                                             | in a flexible version         |
|----------------|-------------------------------------------------------------------|-------------------------------|
| int8 .. int64  | big-endian, two's complement; uint16 without sign                 | the same                      |
| float64        | big-endian, IEEE 754                                              | the same                      |
| bool           | one byte, 0: false                                                | the same                      |
| uuid           | 16 bytes, printed as 22 characters of URL-safe base64             | the same                      |
| string         | int16 length, then UTF-8; length -1: null                         | uvarint (length + 1), 0: null |
| bytes, records | int32 length, then the bytes; -1: null                            | uvarint (length + 1), 0: null |
| array          | int32 count, then the elements; -1: null                          | uvarint (count + 1), 0: null  |
| struct         | its fields; a nullable one begins with int8: below 0 null, else 1 | the same, then tagged fields  |
| tagged fields  | (none)                                                            | see below                     |

Tagged fields are a uvarint count and, for each field, a uvarint tag, a uvarint size and the value. Writers omit fields
that have their default value, and readers skip unknown fields. A uvarint has 7 bits per byte, lowest bits first, and at
most 5 bytes. A nullable struct in a tagged field starts with a uvarint (0 for null, otherwise 1) instead of the int8.
If the version of a message is above the highest known version, the message is decoded as the highest known version, as
Kafka clients decode the subscriptions of other members. A record with an unknown version is rejected.

The key of a coordinator record consists of the type (int16) and the fields of the key. The value consists of the
version (int16) and the fields of the value. Keys are never flexible. A null value is a tombstone.

Record batches are not copied. A reader returns views of the batches. A writer accepts buffers, and returns a list of
buffers that can be passed to a socket. Malformed bytes raise `Corrupt`, for example if the length of an array exceeds
the number of remaining bytes. Invalid values raise `BadRequest`.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.text import JAVA_ERRORS
from sparklog.kafka.messages.message_schema import Fields, Struct, Value
from sparklog.kafka.messages.message_source import NUMBERS, reader_source, writer_source

Buffer: TypeAlias = "bytes | bytearray | memoryview"
_SHORT = struct.Struct(">h")


@dataclass(slots=True)
class MessageBytes:
    """The bytes of a message. They consist of the complete `parts`, followed by the bytes in `small`. Records are
    separate parts.
    """

    small: bytearray = field(default_factory=bytearray)
    parts: list[Buffer] = field(default_factory=list)

    def finish(self) -> list[Buffer]:
        return [part for part in (*self.parts, self.small) if len(part)]


def read_message(
    message: Struct,
    version: int,
    data: bytes,
    start: int = 0,
    text_errors: str = "strict",
    max_elements: float = math.inf,
) -> tuple[Fields, int]:
    """Return the fields of the message at `start`, and the position after the message.

    `text_errors` determines how strings that are not valid UTF-8 are decoded, as in `bytes.decode`. Raises `Corrupt` if
    the bytes are malformed, or if the message contains more than `max_elements` array elements and unknown fields. The
    limit is required because a decoded element can take up to a hundred times as much memory as its encoded form.
    """
    if version < 0:
        raise Corrupt(f"expected a {message.name} of version 0 or more, found {version}")
    try:
        fields, end = _compiled(message, min(version, message.highest), "read")(data, start, text_errors, max_elements)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        name = f"{message.name} of version {version}"
        raise Corrupt(f"expected a {name}, found incomplete bytes: {error}") from None
    if end > len(data):
        raise Corrupt(f"a {message.name} of version {version} ends after {end} bytes, found {len(data)}")
    return fields, end


def write_message(message: Struct, version: int, values: Mapping[str, Any], output: MessageBytes) -> None:
    """Append a message to `output`. Missing fields are set to their default values. Raises `BadRequest` as described in
    `encode`.
    """
    try:
        _compiled(message, version, "write")(output, values)
    except struct.error:
        _check_numbers(message, version, values)
        raise


def decode(message: Struct, version: int, data: bytes) -> Fields:
    """Return the fields of a message. Strings are decoded in the same way as in Java.

    Raises `Corrupt` if the bytes are malformed, or if the message is followed by other bytes.
    """
    fields, end = decode_prefix(message, version, data)
    if end != len(data):
        raise Corrupt(f"{message.name} version {version} ends after {end} bytes, found {len(data)}")
    return fields


def decode_prefix(message: Struct, version: int, data: bytes) -> tuple[Fields, int]:
    """Return the fields and the size of a message. The message may be followed by other bytes."""
    return read_message(message, version, data, 0, JAVA_ERRORS)


def decode_value(message: Struct, value: bytes | None) -> Fields | None:
    """Return the fields of a record value, or None for a tombstone.

    Raises `Corrupt` if the bytes are malformed or the version is unknown.
    """
    if value is None:
        return None
    version, body = split_version(value, "value")
    if not 0 <= version <= message.highest:
        raise Corrupt(f"expected a {message.name} of version 0 to {message.highest}, found {version}")
    return decode(message, version, body)


def split_version(data: bytes, part: str) -> tuple[int, bytes]:
    """Return the int16 at the start of a record's key or value, and the remaining bytes."""
    if len(data) < _SHORT.size:
        raise Corrupt(f"expected a 2-byte version at the start of a record's {part}, found {data.hex() or 'no bytes'}")
    return int(_SHORT.unpack_from(data)[0]), data[_SHORT.size :]


def uvarints(data: bytes, count: int) -> tuple[tuple[int, ...], bytes]:
    """Return the first `count` uvarints, and the remaining bytes."""
    numbers, position = list[int](), 0
    for _ in range(count):
        try:
            number, position = _uvarint_at(data, position)
        except IndexError:
            raise Corrupt(f"expected {count} uvarints, found {data.hex() or 'no bytes'}") from None
        numbers.append(number)
    return tuple(numbers), data[position:]


def encode_versioned(message: Struct, version: int, values: Mapping[str, Value]) -> bytes:
    return _SHORT.pack(version) + encode(message, version, values)


def encode(message: Struct, version: int, values: Mapping[str, Value]) -> bytes:
    """Return the bytes of a message without its version number. Missing fields are set to their default values.

    Raises `BadRequest` if a field is unknown, a field is null that is not nullable, or a number is out of range.
    """
    output = MessageBytes()
    write_message(message, version, values, output)
    return b"".join(output.finish())


@cache
def _compiled(message: Struct, version: int, name: str) -> Any:
    """Return the compiled `read` or `write` function for a version of a message."""
    source = {"read": reader_source, "write": writer_source}[name](message, version)
    helpers = (_tagged_bytes, _tagged_fields, _uuid_bytes, _uuid_text, _uvarint_at, uvarint, BadRequest, Corrupt)
    names = {helper.__name__: helper for helper in (*helpers, struct.Struct, struct.pack, struct.unpack_from)}
    # This is safe because the source is generated only from the Kafka schemas in this package, and never from client
    # input.
    exec(compile(source, f"<{name} {message.name} of version {version}>", "exec"), names)
    return names[name]


def _tagged_fields(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    """Yield each tag with the position of its value, and then -1 with the position after the tagged fields."""
    count, position = _uvarint_at(data, position)
    for _ in range(count):
        tag, position = _uvarint_at(data, position)
        size, position = _uvarint_at(data, position)
        yield tag, position
        position += size
        if position > len(data):
            raise Corrupt(f"a tagged field ends after {position} bytes, found {len(data)}")
    yield -1, position


def _tagged_bytes(fields_with_tags: Sequence[tuple[int, bytes]]) -> bytes:
    fields = [uvarint(tag) + uvarint(len(content)) + content for tag, content in fields_with_tags]
    return uvarint(len(fields_with_tags)) + b"".join(fields)


def _uvarint_at(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        byte = data[position]
        position += 1
        if byte < 0x80:
            return value | byte << shift, position
        value |= (byte & 0x7F) << shift
        shift += 7
    raise Corrupt("a uvarint has more than 5 bytes")


def _uuid_text(data: bytes) -> str:
    if len(data) != 16:
        raise Corrupt(f"expected a UUID of 16 bytes, found {len(data)}")
    return base64.urlsafe_b64encode(data)[:22].decode("ascii")


def _check_numbers(schema: Struct, version: int, values: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for the first number that is out of range.

    The error raised by `struct` does not contain the number that is out of range.
    """
    for item in schema.untagged(version) + schema.tagged(version):
        value = values.get(item.name, [] if item.array else item.initial())
        for element in (value or ()) if item.array else (value,):
            if isinstance(item.kind, Struct):
                _check_numbers(item.kind, version, element or {})
            elif item.kind in NUMBERS:
                try:
                    struct.pack(">" + NUMBERS[item.kind], element)
                except struct.error:
                    text = f"field {item.name} must be of type {item.kind}, found {element!r}"
                    raise BadRequest(text) from None


def _uuid_bytes(text: str) -> bytes:
    try:
        data = base64.urlsafe_b64decode(text + "==")
    except (ValueError, TypeError):
        data = b""
    if len(data) != 16 or len(text) != 22:
        raise BadRequest(f"expected a UUID of 22 characters of URL-safe base64, found {text!r}")
    return data


def uvarint(value: int) -> bytes:
    """Return the bytes of a uvarint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
