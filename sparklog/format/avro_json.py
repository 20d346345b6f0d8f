"""Avro's JSON encoding: values in JSON are converted to values that fastavro writes.

A value must match the schema exactly. fastavro's own reader of JSON ignores unknown fields and truncates numbers, so a
misspelled field would be lost. Apache Avro's reader of JSON rejects them too. Unlike it, this module accepts a record
without a field that has a default.

| Avro            | JSON                                                                                         |
|-----------------|----------------------------------------------------------------------------------------------|
| record, map     | object                                                                                       |
| union           | null, or an object with one member, whose name is the type: {"string": "x"}                  |
| bytes, fixed    | string with one character from U+0000 to U+00FF per byte                                     |
| enum            | string                                                                                       |
| float, double   | number, "NaN", "Infinity" or "-Infinity"                                                     |
| logical types   | the value of the type that they annotate, for example the number of milliseconds since 1970 |
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparklog.common.parsing import INT32_MAX, INT64_MAX
from sparklog.errors import did_you_mean

NAMED_TYPES = ("record", "error", "enum", "fixed")
MAX_SHOWN = 60
FLOAT_MAX = 3.4028235e38
CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
INTEGERS = {"int": INT32_MAX, "long": INT64_MAX}
TITLES = {"string": "a string", "boolean": "true or false", "array": "an array", "map": "an object", "null": "null"}


class AvroJson:
    """Converts the JSON values of one schema, as fastavro parses it."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._named: dict[str, Any] = {}
        self._collect(schema)

    def value(self, found: Any) -> Any:
        """Return the value that fastavro writes. Raises `ValueError` if the JSON value does not match the schema."""
        return self._value(found, self.schema, "")

    def _collect(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch)
        elif isinstance(schema, dict):
            if schema["type"] in NAMED_TYPES:
                self._named[schema["name"]] = schema
            else:
                self._collect(schema["type"])
            for part in ("items", "values"):
                self._collect(schema.get(part))
            for field in schema.get("fields", ()):
                self._collect(field["type"])

    def _value(self, found: Any, schema: Any, path: str) -> Any:
        if isinstance(schema, list):
            return self._branch(found, schema, path)
        if isinstance(schema, str):
            if schema in self._named:
                return self._value(found, self._named[schema], path)
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, (dict, list)) or kind in self._named:
            return self._value(found, kind, path)
        return CONVERSIONS[kind](self, found, schema, path)

    def _branch(self, found: Any, branches: Sequence[Any], path: str) -> Any:
        types = {type_label(branch): branch for branch in branches}
        if found is None and "null" in types:
            return None
        if isinstance(found, dict) and len(found) == 1:
            ((name, content),) = found.items()
            if name in types and name != "null":
                return name, self._value(content, types[name], path)
        shown = ["null" if name == "null" else f'{{"{name}": ...}}' for name in types]
        raise _mismatch(f"{' or '.join(shown)} for a union", found, path)

    def _record(self, found: Any, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        name, fields = schema["name"], {field["name"]: field for field in schema["fields"]}
        if not isinstance(found, dict):
            raise _mismatch(f"an object with the fields of {name}", found, path)
        for member in found:
            if member not in fields:
                raise ValueError(f"{_join(path, member)} is not a field of {name}{did_you_mean(member, fields)}")
        record = {}
        for member, field in fields.items():
            if member in found:
                record[member] = self._value(found[member], field["type"], _join(path, member))
            elif "default" in field:
                record[member] = self._default(field["default"], field["type"], _join(path, member))
            else:
                raise ValueError(f"{_join(path, member)} is missing, and the field of {name} has no default")
        return record

    def _default(self, default: Any, schema: Any, path: str) -> Any:
        """Return the default of a field. The default of a union is a value of one of its types, without the name."""
        for branch in schema if isinstance(schema, list) else ():
            try:
                value = self._value(default, branch, path)
            except ValueError:
                continue
            return None if type_label(branch) == "null" else (type_label(branch), value)
        return self._value(default, schema, path)

    def _array(self, found: Any, schema: Mapping[str, Any], path: str) -> list[Any]:
        items = _instance(list, found, "array", path)
        return [self._value(item, schema["items"], f"{path}[{index}]") for index, item in enumerate(items)]

    def _map(self, found: Any, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        members = _instance(dict, found, "map", path)
        return {name: self._value(item, schema["values"], _join(path, name)) for name, item in members.items()}

    def _string(self, found: Any, schema: Mapping[str, Any], path: str) -> str:
        return str(_instance(str, found, "string", path))

    def _bytes(self, found: Any, schema: Mapping[str, Any], path: str) -> bytes:
        try:
            data = str(_instance(str, found, "string", path)).encode("iso-8859-1")
        except UnicodeEncodeError:
            raise _mismatch("a string with a character from U+0000 to U+00FF per byte", found, path) from None
        size = schema.get("size", len(data))
        if len(data) != size:
            raise _mismatch(f"{size} bytes of {schema['name']}", found, path)
        return data

    def _enum(self, found: Any, schema: Mapping[str, Any], path: str) -> str:
        if not isinstance(found, str) or found not in schema["symbols"]:
            raise _mismatch(f"a symbol of {schema['name']} ({', '.join(schema['symbols'])})", found, path)
        return found

    def _integer(self, found: Any, schema: Mapping[str, Any], path: str) -> int:
        maximum = INTEGERS[schema["type"]]
        if type(found) is not int or not -maximum - 1 <= found <= maximum:
            raise _mismatch(f"{'an int' if schema['type'] == 'int' else 'a long'}", found, path)
        return found

    def _float(self, found: Any, schema: Mapping[str, Any], path: str) -> float:
        kind = schema["type"]
        if isinstance(found, str) and found in CONSTANTS:
            return CONSTANTS[found]
        try:
            number = float(found) if type(found) in (int, float) else math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or (kind == "float" and abs(number) > FLOAT_MAX):
            raise _mismatch(f"a {kind}", found, path)
        return number

    def _plain(self, found: Any, schema: Mapping[str, Any], path: str) -> Any:
        kind = schema["type"]
        return _instance(bool if kind == "boolean" else type(None), found, kind, path)


CONVERSIONS: Mapping[str, Callable[[AvroJson, Any, Mapping[str, Any], str], Any]] = {
    "record": AvroJson._record, "error": AvroJson._record, "array": AvroJson._array, "map": AvroJson._map,
    "string": AvroJson._string, "bytes": AvroJson._bytes, "fixed": AvroJson._bytes, "enum": AvroJson._enum,
    "int": AvroJson._integer, "long": AvroJson._integer, "float": AvroJson._float, "double": AvroJson._float,
    "boolean": AvroJson._plain, "null": AvroJson._plain,
}  # fmt: skip


def type_label(branch: Any) -> str:
    """Return the name of a type in a union."""
    return str(branch if isinstance(branch, str) else branch.get("name", branch["type"]))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _instance(kind: type, found: Any, name: str, path: str) -> Any:
    if not isinstance(found, kind):
        raise _mismatch(TITLES[name], found, path)
    return found


def _mismatch(expected: str, found: Any, path: str) -> ValueError:
    where, text = f"{path}: " if path else "", json.dumps(found, ensure_ascii=False)
    return ValueError(f"{where}expected {expected}, found {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '…'}")
