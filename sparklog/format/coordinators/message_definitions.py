"""Kafka's own message definitions as schemas: the JSON files of Kafka 4.1.0, verbatim, in `messages/`.

| folder         | records of                       | files                                                          |
|----------------|----------------------------------|----------------------------------------------------------------|
| `groups`       | `__consumer_offsets`             | key and value of every type, and what members of a consumer    |
|                |                                  | group send each other (`ConsumerProtocol…`)                    |
| `shares`       | `__share_group_state` (KIP-932)  | key and value of both types                                    |
| `transactions` | `__transaction_state`            | key and value of the only type                                 |
| `control`      | control batches of KRaft's log   | values                                                         |

Kafka's code generator reads the same files. They are JSON with lines of comments. Each file is read when it is first
needed, not on import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sparklog.format.coordinators.message_schema import Field, Struct, Value

_KEY, _VALUE = "coordinator-key", "coordinator-value"


@dataclass(frozen=True, slots=True)
class RecordType:
    """A type of record of a coordinator's topic: the schemas of its key and value."""

    number: int
    key: Struct
    value: Struct


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key of a type that Kafka 4.1 does not know: a later Kafka's, to be passed over as Kafka does."""

    type: int


@cache
def record_types(folder: str) -> Mapping[int, RecordType]:
    """Return the types of a folder's records, by the number that a key begins with."""
    schemas: dict[tuple[int, str], Struct] = {}
    for file in _folder(folder).iterdir():
        definition = _parsed(file.read_text("utf-8"))
        if "apiKey" in definition:
            schemas[definition["apiKey"], definition["type"]] = _message(definition)
    numbers = sorted({number for number, _ in schemas})
    return {number: RecordType(number, schemas[number, _KEY], schemas[number, _VALUE]) for number in numbers}


@cache
def message(folder: str, name: str) -> Struct:
    """Return the schema of one message by its name."""
    return _message(_parsed((_folder(folder) / f"{name}.json").read_text("utf-8")))


def _folder(name: str) -> Any:
    return resources.files("sparklog.format.coordinators") / "messages" / name


def _parsed(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    definition: dict[str, Any] = json.loads("\n".join(lines))
    return definition


def _message(definition: dict[str, Any]) -> Struct:
    common = {each["name"]: each for each in definition.get("commonStructs", ())}
    _, highest = _versions(definition["validVersions"])
    flexible = definition["flexibleVersions"]
    fields = _fields(definition["fields"], common)
    return Struct(definition["name"], fields, highest or 0, None if flexible == "none" else _versions(flexible)[0])


def _fields(definitions: list[dict[str, Any]], common: dict[str, dict[str, Any]]) -> tuple[Field, ...]:
    return tuple(_field(each, common) for each in definitions)


def _field(definition: dict[str, Any], common: dict[str, dict[str, Any]]) -> Field:
    name, kind = definition["name"], definition["type"]
    element = kind.removeprefix("[]")
    fields = definition.get("fields") or common.get(element, {}).get("fields")
    since, until = _versions(definition.get("versions") or definition["taggedVersions"])
    return Field(
        name[0].lower() + name[1:],
        Struct(element, _fields(fields, common)) if fields else element,
        array=element != kind,
        since=since,
        until=until,
        nullable="nullableVersions" in definition,
        tag=definition.get("tag"),
        default=_default(definition.get("default"), element),
    )


def _default(value: object, kind: str) -> Value:
    if value is None or value == "null":
        return None
    return str(value) if kind == "string" else int(str(value))


def _versions(text: str) -> tuple[int, int | None]:
    """The first and the last version of a range: `3`, `0-4`, or `2+`, whose last one is None."""
    first, dash, last = text.removesuffix("+").partition("-")
    return int(first), None if text.endswith("+") else int(last if dash else first)
