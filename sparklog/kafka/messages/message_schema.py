"""The schemas of Kafka's messages, and the JSON that Kafka's tools print for a message.

Kafka defines the records of its internal topics and its requests with schemas. `schemas/` contains copies of the
schemas of Kafka 4.1.0, which are JSON files with comment lines:

| directory      | records of                       | files                                                          |
|----------------|----------------------------------|----------------------------------------------------------------|
| `groups`       | `__consumer_offsets`             | key and value of each type, and the messages between members   |
|                |                                  | of a consumer group (`ConsumerProtocol…`)                      |
| `shares`       | `__share_group_state` (KIP-932)  | key and value of both types                                    |
| `transactions` | `__transaction_state`            | key and value of the only type                                 |
| `control`      | control batches of KRaft's log   | values                                                         |
| `protocol`     | (requests and responses)         | headers and messages that `sparklog serve` supports            |

`message_codec` encodes and decodes the bytes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pkgutil import get_data
from typing import Any, TypeAlias

Value: TypeAlias = "int | str | bytes | list[Value] | dict[str, Value] | None"
Fields: TypeAlias = dict[str, Any]
"""The fields of a message or struct, with Kafka's names. Fields that do not exist in a version have their default
values.
"""

PACKAGE = "sparklog.kafka.messages"
NO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. Its type is a type of `message_codec` or a struct.

    * `since`, `until`: first and last version that contain the field; if `until` is None, all later versions contain
      the field
    * `compact`: True if the length is a uvarint in flexible versions
    """

    name: str
    kind: str | Struct
    array: bool = False
    since: int = 0
    until: int | None = None
    nullable: bool = False
    tag: int | None = None
    default: Value = None
    nullable_since: int = 0
    """The first version in which a nullable field may be null."""
    compact: bool = True

    def may_be_null(self, version: int) -> bool:
        return self.nullable and version >= self.nullable_since

    def is_present(self, version: int) -> bool:
        return version >= self.since and (self.until is None or version <= self.until)

    def element(self) -> Field:
        """Return the field for the elements of an array."""
        return replace(self, array=False, nullable=False)

    def initial(self) -> Value:
        if self.default is not None or (self.nullable and self.tag is None):
            return self.default
        if self.array:
            return []
        if isinstance(self.kind, Struct):
            return {field.name: field.initial() for field in self.kind.fields}
        empty: dict[str, Value] = {"string": "", "bytes": b"", "uuid": NO_UUID}
        return empty.get(self.kind, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """A message or a part of a message.

    * `highest`: the latest version in Kafka 4.1
    * `flexible`: the first flexible version
    """

    name: str
    fields: tuple[Field, ...]
    highest: int = 0
    flexible: int | None = None

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible

    def untagged(self, version: int) -> list[Field]:
        return [field for field in self.fields if field.is_present(version) and field.tag is None]

    def tagged(self, version: int) -> list[Field]:
        """Return the tagged fields of a version, sorted by tag."""
        tagged = [field for field in self.fields if field.is_present(version) and field.tag is not None]
        return sorted(tagged, key=lambda field: field.tag or 0)


@dataclass(frozen=True, slots=True)
class RecordType:
    key: Struct
    value: Struct


@cache
def record_types(directory: str) -> Mapping[int, RecordType]:
    """Return the record types in a directory of schemas, by the number at the start of a key."""
    schemas: dict[tuple[int, str], Struct] = {}
    # Import this module lazily, because the module imports zipfile, tempfile and lzma.
    from importlib import resources

    for file in (resources.files(PACKAGE) / "schemas" / directory).iterdir():
        definition = _parse(file.read_bytes())
        if "apiKey" in definition:
            schemas[definition["apiKey"], definition["type"]] = _message(definition)
    numbers = sorted({number for number, _ in schemas})
    return {
        number: RecordType(schemas[number, "coordinator-key"], schemas[number, "coordinator-value"])
        for number in numbers
    }


@cache
def message(directory: str, name: str) -> Struct:
    return _message(_parse(get_data(PACKAGE, f"schemas/{directory}/{name}.json") or b""))


def _parse(text: bytes) -> dict[str, Any]:
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
        compact=definition.get("flexibleVersions") != "none",
    )


def _default(text: Value, kind: str) -> Value:
    """Return the default value of a schema field, converted to the type of the field.

    Numbers may have a prefix such as `0x`.
    """
    if text in (None, "null") or kind == "string":
        return None if text in (None, "null") else str(text)
    if kind == "bool":
        return str(text).lower() == "true"
    return int(str(text), 0)


def _versions(text: str) -> tuple[int, int | None]:
    """Return the first and last version of a range such as `3`, `0-4` or `2+`. The last version of `2+` is None."""
    first, dash, last = text.removesuffix("+").partition("-")
    return int(first), None if text.endswith("+") else int(last if dash else first)


def json_fields(message: Struct, version: int, fields: Mapping[str, Value]) -> Fields:
    """Return the fields that Kafka's tools print.

    Tagged fields with their default value are omitted. Bytes are base64.
    """
    return {
        field.name: _json_value(field.kind, version, fields[field.name])
        for field in message.fields
        if field.is_present(version) and (field.tag is None or fields[field.name] != field.initial())
    }


def json_text(value: Value) -> str:
    r"""Return JSON in the format of Kafka's tools (Jackson).

    The JSON does not contain spaces, and only quotes, backslashes and control characters are escaped. Escapes such as
    \u001F contain uppercase letters.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return re.sub(r"\\(u....|.)", lambda escape: "\\" + escape[1][0] + escape[1][1:].upper(), text)


def _json_value(kind: str | Struct, version: int, value: Value) -> Value:
    if isinstance(value, list):
        return [_json_value(kind, version, element) for element in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return json_fields(kind, version, value) if isinstance(kind, Struct) and isinstance(value, dict) else value
