"""Protobuf messages, either plain or in the wire format of a schema registry.

In the wire format, the path of the message type in the schema follows the schema id, because a schema can contain
several types. The path is a list of indexes: [1, 0] is the first type within the second type. It is written as its
length and the indexes, as zigzag varints. A single zero byte represents the path [0], the first type.

A column is decoded with the message type of the target schema, because Protobuf identifies fields by number. Fields
that this type does not have are ignored, and fields that a row does not have get their default.

| Protobuf                                  | Arrow type                                            |
|-------------------------------------------|-------------------------------------------------------|
| message, group                            | struct with the names of the schema                   |
| repeated, map                             | list, map                                             |
| enum                                      | string; the number of an unknown value                |
| optional, oneof                           | null if the field is not set                          |
| google.protobuf.Timestamp, Duration       | timestamp[us, tz=UTC], duration[us]                   |
| wrappers such as Int64Value               | the wrapped type                                      |
| Struct, Value, ListValue, recursive types | string that contains the JSON                         |

protoc of the package grpcio-tools compiles schemas, and the package protobuf encodes and decodes messages. Both are
imported on first use.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.common.lazy import install_command
from sparklog.errors import BadRequest, advice
from sparklog.format.registered import (
    PROTOBUF,
    InvalidValueError,
    RegisteredSchema,
    SchemaFormat,
    SchemaSource,
    call_library,
)

FILE_NAME = "registered_schema.proto"
COMPILE_TIMEOUT_S = 60
FIRST_TYPE = (0,)
MAX_INDEXES = 100
NOT_A_MESSAGE = "the bytes are not a message of this type"
MAX_VARINT_BYTES = 5

WELL_KNOWN = "google.protobuf."
TIMESTAMP, DURATION = WELL_KNOWN + "Timestamp", WELL_KNOWN + "Duration"
WRAPPERS = frozenset(
    f"{WELL_KNOWN}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
JSON_MESSAGES = frozenset(f"{WELL_KNOWN}{name}" for name in ("Struct", "Value", "ListValue"))

WARNING = re.compile(r"^WARNING: |^[IW]\d{4} |warning: ")
"""Lines of protoc that are not errors."""
SERIALIZED = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
"""A schema that a client registered as a serialized file descriptor in base64, as some of Confluent's clients do."""
KNOWN_FILES = {
    "confluent/meta.proto": """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
}
"""Files that schemas import without a reference, because the registry and its clients contain them."""


class ProtobufFormat(SchemaFormat):
    """Protobuf messages with the schemas of a `SchemaSource`, or with one schema."""

    schema_type, title = PROTOBUF, "Protobuf"

    def __init__(self, source: SchemaSource | None, target: RegisteredSchema | None) -> None:
        self._message = None if target is None else target.message
        super().__init__(source, target)

    def parse_schema(self, schema: RegisteredSchema) -> ProtobufSchema:
        return compile_schema(schema)

    def schema_name(self, parsed: ProtobufSchema) -> str:
        return str(parsed.type_named(self._message).full_name)

    def type_of(self, parsed: ProtobufSchema) -> pa.DataType:
        return _message_type(parsed.type_named(self._message), ())

    def decode_rows(
        self, data: bytes, rows: list[tuple[int, int] | None], schemas: list[Any], target: Any, kind: pa.DataType
    ) -> pa.Array:
        if target is None:
            return pa.nulls(len(rows), kind)
        descriptor = target.type_named(self._message)
        parse = target.message_class(descriptor).FromString

        is_first = descriptor.full_name == target.type_at(FIRST_TYPE).full_name

        def message(start: int, end: int, schema: ProtobufSchema) -> Any:
            if self.source is None:
                return parse(data[start:end])
            if is_first and schema is target and start < end and data[start] == 0:
                return parse(data[start + 1 : end])
            found, start = self._type_at(data, start, end, schema)
            if found.full_name != descriptor.full_name:
                raise InvalidValueError(
                    f"message of type {found.full_name}, expected {descriptor.full_name}: the column has the type that"
                    f" {advice(python='the subject', shell='--message')} specifies, or the first type of the schema"
                )
            return parse(data[start:end])

        pairs = zip(rows, schemas, strict=True)
        messages = call_library(
            lambda: [None if row is None else message(*row, schema) for row, schema in pairs], NOT_A_MESSAGE
        )
        column = call_library(lambda: _messages(messages, descriptor, (), target), "a field is out of range")
        return column if column.type == kind else column.cast(kind)

    def text_of(self, body: bytes, schema: ProtobufSchema) -> bytes:
        descriptor, start = schema.type_named(self._message), 0
        if self.source is not None:
            descriptor, start = self._type_at(body, 0, len(body), schema)
        parse = schema.message_class(descriptor).FromString
        message = call_library(lambda: parse(body[start:]), NOT_A_MESSAGE)
        text: str = schema.json_of(message)
        return text.encode()

    def bytes_of(self, value: Any, schema: ProtobufSchema) -> bytes:
        descriptor = schema.type_named(self._message)
        message = schema.message_class(descriptor)()
        call_library(lambda: _fill(message, value, (), schema), "the value does not match the schema")
        return self._written(message, schema)

    def bytes_of_text(self, text: str, schema: ProtobufSchema) -> bytes:
        message = schema.message_class(schema.type_named(self._message))()
        call_library(lambda: schema.parse_json(text, message), "the value does not match the schema")
        return self._written(message, schema)

    def _written(self, message: Any, schema: ProtobufSchema) -> bytes:
        body: bytes = call_library(message.SerializeToString, "a required field is missing")
        return body if self.source is None else encode_path(schema.path_of(message.DESCRIPTOR)) + body

    def _type_at(self, data: bytes, start: int, end: int, schema: ProtobufSchema) -> tuple[Any, int]:
        """Return the message type at the beginning of a framed message, and the position after it."""
        if start < end and data[start] == 0:
            return schema.type_at(FIRST_TYPE), start + 1
        path, position = decode_path(data, start, end)
        return schema.type_at(path), position


@dataclass
class ProtobufSchema:
    """A compiled schema: the descriptor of its file, and the pool of descriptors that contains it.

    The entries of maps are not types in the text of a schema, so Confluent's Java client does not count them in the
    path of a type. The clients that register serialized file descriptors count them.
    """

    file: Any
    pool: Any
    is_serialized: bool = False
    _classes: dict[str, Any] = field(default_factory=dict)

    def type_named(self, name: str | None) -> Any:
        """Return the descriptor of a message type. None is the first type of the file."""
        if name is None:
            return self.type_at(FIRST_TYPE)
        if name not in self._types:
            raise BadRequest(f"the Protobuf schema has no message type {name}; found {', '.join(self._types)}")
        return self._types[name]

    def type_at(self, path: Sequence[int]) -> Any:
        """Return the descriptor of the message type at a path. Raises `ValueError` if the path does not exist."""
        found = None
        for index in path:
            types = self._types_in(found)
            if not 0 <= index < len(types):
                raise InvalidValueError(f"the schema has no message type with the indexes {list(path)}")
            found = types[index]
        return found

    def path_of(self, descriptor: Any) -> list[int]:
        path = []
        while descriptor is not None:
            outer = descriptor.containing_type
            path.append([each.full_name for each in self._types_in(outer)].index(descriptor.full_name))
            descriptor = outer
        return path[::-1]

    @cached_property
    def _types(self) -> dict[str, Any]:
        """The message types in the file by their full names. The types in imported files have no path."""
        return {each.full_name: each for each in self._all_types_in(None)}

    def _all_types_in(self, outer: Any) -> Iterator[Any]:
        """Yield the message types in the file or in a type, and the types in these types."""
        for each in self._types_in(outer):
            yield each
            yield from self._all_types_in(each)

    def _types_in(self, outer: Any) -> list[Any]:
        # Dictionaries of descriptors are in file order.
        types = self.file.message_types_by_name.values() if outer is None else outer.nested_types
        return [each for each in types if self.is_serialized or not each.GetOptions().map_entry]

    def message_class(self, descriptor: Any) -> Any:
        name = descriptor.full_name
        if name not in self._classes:
            self._classes[name] = _protobuf("message_factory").GetMessageClass(descriptor)
        return self._classes[name]

    def json_of(self, message: Any) -> str:
        """Return a message as JSON on one line, with the defaults of fields that are not set."""
        options = {"always_print_fields_with_no_presence": True, "indent": None, "ensure_ascii": False}
        to_json = _protobuf("json_format").MessageToJson
        return str(
            call_library(
                lambda: to_json(message, descriptor_pool=self.pool, **options),
                "the message cannot be represented in JSON",
            )
        )

    def parse_json(self, text: str, message: Any) -> None:
        json_format = _protobuf("json_format")
        try:
            json_format.Parse(text, message, descriptor_pool=self.pool)
        except json_format.Error as error:
            raise ValueError(str(error)) from None


def decode_path(data: bytes, start: int, end: int) -> tuple[list[int], int]:
    """Return the indexes of a message type in a framed message, and the position after them."""
    count, position = _varint(data, start, end)
    if not 0 <= count <= MAX_INDEXES:
        raise InvalidValueError(f"{count} indexes of the message type")
    path = []
    for _ in range(count):
        index, position = _varint(data, position, end)
        path.append(index)
    return path or list(FIRST_TYPE), position


def encode_path(path: Sequence[int]) -> bytes:
    """Return the encoded indexes of a message type."""
    if tuple(path) == FIRST_TYPE:
        return b"\0"
    # Indexes are not negative, so the zigzag encoding doubles them.
    return b"".join(_encoded_varint(2 * number) for number in (len(path), *path))


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    number = 0
    for count in range(MAX_VARINT_BYTES):
        if position + count >= end:
            break
        byte = data[position + count]
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + count + 1
    raise InvalidValueError("the indexes of the message type are truncated")


def _encoded_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _protobuf(module: str) -> Any:
    """Import a module of the package protobuf."""
    try:
        return import_module(f"google.protobuf.{module}")
    except ImportError:
        raise _missing() from None


def _missing() -> BadRequest:
    return BadRequest(f"the format protobuf needs grpcio-tools and protobuf: {install_command('protobuf')}")


def compile_schema(schema: RegisteredSchema) -> ProtobufSchema:
    """Compile the text of a schema and of the files that it imports.

    Raises `BadRequest` if the schema is invalid, if it has no message type, or if an imported file is missing.
    """
    files = {**KNOWN_FILES, **dict(schema.references), FILE_NAME: schema.text}
    serialized = _protobuf("descriptor_pb2").FileDescriptorSet()
    with tempfile.TemporaryDirectory(prefix="sparklog-protobuf-") as folder:
        for name, text in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not isinstance(text, str):
                raise BadRequest(f"expected a relative path as the name of a Protobuf schema, found {name!r}")
            if SERIALIZED.fullmatch(text):
                serialized.file.append(_deserialized(name, text))
                continue
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        descriptors = _compiled(folder, serialized)
    pool = _protobuf("descriptor_pool").DescriptorPool()
    try:
        for each in _protobuf("descriptor_pb2").FileDescriptorSet.FromString(descriptors).file:
            pool.Add(each)
        file_descriptor = pool.FindFileByName(FILE_NAME)
    except (TypeError, KeyError) as error:
        raise BadRequest(f"the Protobuf schema cannot be used: {' '.join(str(error).split())[:200]}") from None
    if not file_descriptor.message_types_by_name:
        raise BadRequest("the Protobuf schema has no message type")
    return ProtobufSchema(file_descriptor, pool, bool(SERIALIZED.fullmatch(schema.text)))


def _deserialized(name: str, text: str) -> Any:
    """Return the file descriptor that the registry contains as base64 instead of as text."""
    descriptor_pb2, message = _protobuf("descriptor_pb2"), _protobuf("message")
    try:
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, message.DecodeError):
        raise BadRequest(f"expected a Protobuf schema, found {text[:40]!r}") from None
    descriptor.name = name
    return descriptor


def _compiled(folder: str, serialized: Any) -> bytes:
    """Compile `FILE_NAME` in a folder. Return a set of file descriptors in which imported files are first.

    `serialized` contains the descriptors of the files that are not in the folder.
    """
    try:
        tools = os.path.dirname(str(import_module("grpc_tools").__file__))
    except ImportError:
        raise _missing() from None
    includes = [folder, os.path.join(tools, "_proto"), *_common_types()]
    out = os.path.join(folder, "descriptors")
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{each}" for each in includes)]
    if serialized.file:
        known = Path(folder) / "serialized"
        known.write_bytes(serialized.SerializeToString())
        command.append(f"--descriptor_set_in={known}")
    command += ["--include_imports", f"--descriptor_set_out={out}", FILE_NAME]
    # A separate process, because protoc prints errors to stderr.
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    if done.returncode != 0:
        errors = [line.replace(f"{folder}/", "") for line in done.stderr.splitlines() if not WARNING.search(line)]
        reason = "; ".join(errors).replace(f"{FILE_NAME}:", "line ")
        raise BadRequest(f"expected a Protobuf schema; the schema is invalid: {reason[:300]}")
    return Path(out).read_bytes()


def _common_types() -> Iterator[str]:
    """Yield the directory that contains google/type, if the package googleapis-common-protos is installed."""
    package = import_module("google")
    for folder in package.__path__:
        if os.path.isdir(os.path.join(folder, "type")):
            yield os.path.dirname(folder)


def _message_type(descriptor: Any, inside: tuple[str, ...]) -> pa.DataType:
    name = descriptor.full_name
    if name == TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if name == DURATION:
        return pa.duration("us")
    if name in WRAPPERS:
        return _scalar_type(descriptor.fields_by_name["value"])
    if _is_json(descriptor, inside):
        return pa.string()
    inside = (*inside, name)
    return pa.struct([(each.name, _field_type(each, inside)) for each in descriptor.fields])


def _is_json(descriptor: Any, inside: tuple[str, ...]) -> bool:
    """Return True if a column contains the JSON of messages of a type."""
    return descriptor.full_name in JSON_MESSAGES or descriptor.full_name in inside


def _field_type(each: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(each):
        key, value = each.message_type.fields
        return pa.map_(_scalar_type(key), _element_type(value, inside))
    kind = _element_type(each, inside)
    return pa.list_(kind) if each.is_repeated else kind


def _element_type(each: Any, inside: tuple[str, ...]) -> pa.DataType:
    return _scalar_type(each) if each.message_type is None else _message_type(each.message_type, inside)


def _is_map(each: Any) -> bool:
    return each.message_type is not None and each.message_type.GetOptions().map_entry


def _scalar_type(each: Any) -> pa.DataType:
    kinds = {
        each.CPPTYPE_INT32: pa.int32(), each.CPPTYPE_INT64: pa.int64(), each.CPPTYPE_UINT32: pa.uint32(),
        each.CPPTYPE_UINT64: pa.uint64(), each.CPPTYPE_DOUBLE: pa.float64(), each.CPPTYPE_FLOAT: pa.float32(),
        each.CPPTYPE_BOOL: pa.bool_(), each.CPPTYPE_ENUM: pa.string(), each.CPPTYPE_STRING: pa.string(),
    }  # fmt: skip
    return pa.binary() if each.type == each.TYPE_BYTES else kinds[each.cpp_type]


def _messages(messages: list[Any], descriptor: Any, inside: tuple[str, ...], schema: ProtobufSchema) -> pa.Array:
    """Return a column of messages of one type. None is null."""
    name, kind = descriptor.full_name, _message_type(descriptor, inside)
    if name == TIMESTAMP:
        return pa.array([None if each is None else _microseconds(each) for each in messages], pa.int64()).view(kind)
    if name == DURATION:
        return pa.array([None if each is None else _microseconds(each) for each in messages], pa.int64()).cast(kind)
    if name in WRAPPERS:
        return pa.array([None if each is None else each.value for each in messages], kind)
    if _is_json(descriptor, inside):
        return pa.array([None if each is None else schema.json_of(each) for each in messages], kind)
    is_null = [each is None for each in messages]
    if any(is_null):
        empty = schema.message_class(descriptor)()
        messages = [empty if each is None else each for each in messages]
    if not kind.num_fields:
        return pa.array([None if null else {} for null in is_null], kind)
    columns = [_field(messages, each, (*inside, name), schema) for each in descriptor.fields]
    mask = pa.array(is_null, pa.bool_()) if any(is_null) else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _microseconds(each: Any) -> int:
    return int(each.seconds * 1_000_000 + each.nanos // 1000)


def _field(messages: list[Any], each: Any, inside: tuple[str, ...], schema: ProtobufSchema) -> pa.Array:
    """Return the column of a field."""
    values = list(map(attrgetter(each.name), messages))
    if each.is_repeated:
        ends = np.zeros(len(values) + 1, np.int32)
        np.cumsum(list(map(len, values)), out=ends[1:])
        offsets = pa.array(ends, pa.int32())
        if _is_map(each):
            key, item = each.message_type.fields
            pairs = [pair for value in values for pair in value.items()]
            keys = _elements([pair[0] for pair in pairs], key, inside, schema)
            return pa.MapArray.from_arrays(offsets, keys, _elements([pair[1] for pair in pairs], item, inside, schema))
        return pa.ListArray.from_arrays(
            offsets, _elements([item for value in values for item in value], each, inside, schema)
        )
    if each.has_presence:
        name = each.name
        values = [value if message.HasField(name) else None for value, message in zip(values, messages, strict=True)]
    return _elements(values, each, inside, schema)


def _elements(values: list[Any], each: Any, inside: tuple[str, ...], schema: ProtobufSchema) -> pa.Array:
    if each.message_type is not None:
        return _messages(values, each.message_type, inside, schema)
    if each.enum_type is not None:
        names = {number: value.name for number, value in each.enum_type.values_by_number.items()}
        values = [None if value is None else names.get(value, str(value)) for value in values]
    return pa.array(values, _scalar_type(each))


def _fill(message: Any, value: Any, inside: tuple[str, ...], schema: ProtobufSchema) -> None:
    """Set the fields of a message to an Arrow value."""
    descriptor = message.DESCRIPTOR
    name = descriptor.full_name
    if name in (TIMESTAMP, DURATION):
        _set_time(message, value)
    elif name in WRAPPERS:
        message.value = value
    elif _is_json(descriptor, inside):
        schema.parse_json(value, message)
    elif not isinstance(value, dict):
        raise ValueError(f"expected a struct for the message {name}, found {value!r}")
    else:
        message.SetInParent()
        for member, content in value.items():
            each = descriptor.fields_by_name.get(member)
            if each is None:
                raise ValueError(f"the message {name} has no field {member}")
            if content is not None:
                _set_field(message, each, content, (*inside, name), schema)


def _set_field(message: Any, each: Any, content: Any, inside: tuple[str, ...], schema: ProtobufSchema) -> None:
    holder = getattr(message, each.name)
    if _is_map(each):
        item = each.message_type.fields_by_name["value"]
        for key, value in dict(content).items():
            if item.message_type is not None:
                _fill(holder[key], value, inside, schema)
            else:
                holder[key] = _scalar(item, value)
    elif each.is_repeated:
        for value in content:
            if each.message_type is not None:
                _fill(holder.add(), value, inside, schema)
            else:
                holder.append(_scalar(each, value))
    elif each.message_type is not None:
        _fill(holder, content, inside, schema)
    else:
        setattr(message, each.name, _scalar(each, content))


def _scalar(each: Any, value: Any) -> Any:
    if each.enum_type is None or isinstance(value, int):
        return value
    known = each.enum_type.values_by_name.get(value)
    if known is None and not str(value).lstrip("-").isdecimal():
        raise ValueError(f"the enum {each.enum_type.full_name} has no value {value!r}")
    return int(value) if known is None else known.number


def _set_time(message: Any, value: Any) -> None:
    if isinstance(value, datetime):
        # A time without a time zone is in UTC.
        value = (value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
        message.FromDatetime(value.replace(tzinfo=None))
    elif isinstance(value, timedelta):
        message.FromTimedelta(value)
    else:
        raise ValueError(f"expected a time for {message.DESCRIPTOR.full_name}, found {value!r}")
