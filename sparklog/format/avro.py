"""Avro values, either plain or in the wire format of a schema registry.

Rows that were written with another schema are decoded to the target schema by Avro's rules for schema resolution.
fastavro encodes and decodes the values, and is imported on first use.
"""

from __future__ import annotations

import io
import json
from importlib import import_module
from typing import Any

import pyarrow as pa

from sparklog.common.lazy import install_command
from sparklog.errors import BadRequest, advice, shortened
from sparklog.format.avro_json import NAMED_TYPES, AvroJson, type_label
from sparklog.format.json_columns import loads
from sparklog.format.registered import AVRO, InvalidValueError, RegisteredSchema, SchemaFormat, call_library

TRUNCATED = "the bytes are truncated"
PLAIN_TYPES = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip
LOGICAL_TYPES = {
    ("int", "date"): pa.date32(), ("int", "time-millis"): pa.time32("ms"), ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"), ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"), ("long", "local-timestamp-micros"): pa.timestamp("us"),
}  # fmt: skip


def fastavro() -> Any:
    """Import fastavro. If it is not installed, raises `BadRequest` with the command that installs it."""
    try:
        return import_module("fastavro")
    except ImportError:
        raise BadRequest(f"the format avro requires fastavro: {install_command('avro')}") from None


class AvroFormat(SchemaFormat):
    """Avro values with the schemas of a `SchemaSource`, or with one schema."""

    schema_type, title = AVRO, "Avro"
    _json: AvroJson | None = None

    def parse_schema(self, schema: RegisteredSchema) -> Any:
        """Return the schema as fastavro parses it, with the definitions of the schemas that it refers to."""
        definitions: dict[str, Any] = {}
        for _, text in schema.references:
            _collect(_loaded(text), "", definitions)
        return _parsed(_inlined(_loaded(schema.text), "", definitions, set()))

    def schema_name(self, parsed: Any) -> str:
        return str(parsed.get("name", parsed["type"]) if isinstance(parsed, dict) else parsed)

    def type_of(self, parsed: Any) -> pa.DataType:
        return arrow_type(parsed)

    def decode_rows(
        self, data: bytes, rows: list[tuple[int, int] | None], schemas: list[Any], target: Any, kind: pa.DataType
    ) -> pa.Array:
        reader = fastavro().schemaless_reader
        body = io.BytesIO(data)

        def value(start: int, end: int, schema: Any) -> Any:
            if body.tell() != start:
                body.seek(start)
            found = reader(body, schema, None if schema is target else target)
            if body.tell() != end:
                rest = end - body.tell()
                raise InvalidValueError(TRUNCATED if rest < 0 else _bytes_after(rest))
            return found

        pairs = zip(rows, schemas, strict=True)
        values = call_library(
            lambda: [None if row is None else value(*row, schema) for row, schema in pairs], TRUNCATED
        )
        return pa.array(values, kind)

    def text_of(self, body: bytes, schema: Any) -> bytes:
        stream, line = io.BytesIO(body), io.StringIO()
        # The names of records, enums and fixed types in a union are part of Avro's JSON encoding.
        value = call_library(
            lambda: fastavro().schemaless_reader(stream, schema, None, return_named_type=True), TRUNCATED
        )
        if rest := len(stream.read()):
            raise ValueError(_bytes_after(rest))
        call_library(lambda: fastavro().json_writer(line, schema, [value]), "the value cannot be represented in JSON")
        text = line.getvalue()
        if "NaN" in text or "Infinity" in text:
            # These constants are not JSON. They are written as strings, as by Java.
            text = json.dumps(json.loads(text, parse_constant=str))
        return text.encode()

    def bytes_of(self, value: Any, schema: Any) -> bytes:
        body = io.BytesIO()
        call_library(
            lambda: fastavro().schemaless_writer(body, schema, value, strict_allow_default=True),
            "the value does not match the schema",
        )
        return body.getvalue()

    def bytes_of_text(self, text: str, schema: Any) -> bytes:
        if self._json is None or self._json.schema is not schema:
            self._json = AvroJson(schema)
        try:
            value = self._json.value(loads(text))
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return self.bytes_of(value, schema)

    def _encode(self, column: pa.Array) -> pa.Array:
        _, schema = self._frame()
        encoded = super()._encode(column)
        if not _has_type(column.type, schema):
            # fastavro truncates 1.5 to an integer, and writes integers that are out of range.
            for value in column.to_pylist(maps_as_pydicts="strict"):
                if value is not None:
                    _validate(value, schema)
        return encoded


def _has_type(kind: pa.DataType, schema: Any) -> bool:
    """Return True if a column has the type of the schema, so that all its values match the schema."""
    try:
        return bool(kind == arrow_type(schema))
    except BadRequest:
        return False


def _validate(value: Any, schema: Any) -> None:
    validation = import_module("fastavro.validation")
    try:
        validation.validate(value, schema)
    except validation.ValidationError as error:
        # The last error of a union is about the type that is not null.
        wrong = error.errors[-1]
        expected = wrong.schema["type"] if isinstance(wrong.schema, dict) else wrong.schema
        where = f"{wrong.field}: " if wrong.field else ""
        raise InvalidValueError(f"{where}expected {expected}, found {shortened(wrong.datum)}") from None


def _bytes_after(rest: int) -> str:
    return f"{rest} byte{'s' if rest > 1 else ''} after the value"


def _loaded(text: Any) -> Any:
    """Return a schema as a Python object. A string is JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRequest(f"expected an Avro schema as JSON; the schema is invalid: {error}") from None


def _parsed(schema: Any) -> Any:
    try:
        return fastavro().parse_schema(schema)
    except BadRequest:
        raise
    except Exception as error:  # noqa: BLE001
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise BadRequest(f"expected an Avro schema, found {str(schema)[:80]!r}: {reason[:200]}") from None


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _inner_namespace(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of the names in it."""
    full = _full_name(str(schema["name"]), str(schema.get("namespace", namespace)))
    return full, full.rpartition(".")[0]


def _collect(schema: Any, namespace: str, definitions: dict[str, Any]) -> None:
    """Add the named types of a schema to `definitions`, with their full names."""
    if isinstance(schema, list):
        for kind in schema:
            _collect(kind, namespace, definitions)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in NAMED_TYPES:
            full, namespace = _inner_namespace(schema, namespace)
            definitions[full] = {**schema, "name": full}
        for part in ("type", "items", "values"):
            if isinstance(schema.get(part), (dict, list)):
                _collect(schema[part], namespace, definitions)
        for field in schema.get("fields", ()):
            _collect(field["type"], namespace, definitions)


def _inlined(schema: Any, namespace: str, definitions: dict[str, Any], defined: set[str]) -> Any:
    """Return a schema in which the first use of a name is replaced with its definition, and UUIDs are strings.

    `definitions` are the named types of other schemas. `defined` are the names that the schema has defined so far.
    """
    if isinstance(schema, list):
        return [_inlined(kind, namespace, definitions, defined) for kind in schema]
    if isinstance(schema, str):
        full = next((name for name in (_full_name(schema, namespace), schema) if name in definitions), None)
        if schema in PLAIN_TYPES or full is None or full in defined:
            return schema if full is None else full
        return _inlined(definitions[full], "", definitions, defined)
    if not isinstance(schema, dict):
        return schema
    copy = dict(schema)
    if copy.get("logicalType") == "uuid":
        # fastavro would return `uuid.UUID`, which Arrow cannot convert. In Java, a UUID is a string by default, too.
        del copy["logicalType"]
    if "name" in schema and schema.get("type") in NAMED_TYPES:
        full, namespace = _inner_namespace(schema, namespace)
        defined.add(full)
    for part in ("type", "items", "values"):
        if part in schema and schema["type"] not in NAMED_TYPES:
            copy[part] = _inlined(schema[part], namespace, definitions, defined)
    if isinstance(schema.get("fields"), list):
        copy["fields"] = [
            {**field, "type": _inlined(field["type"], namespace, definitions, defined)} for field in schema["fields"]
        ]
    return copy


def arrow_type(schema: Any) -> pa.DataType:
    """Return the Arrow type of a schema. Raises `BadRequest` for unions of several types and for recursive types."""
    return _type(schema, {}, ())


def _type(schema: Any, named: dict[str, Any], inside: tuple[str, ...], path: str = "") -> pa.DataType:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) > 1:
            names = ", ".join(type_label(kind) for kind in kinds)
            raise _no_column(path, f"a union of {len(kinds)} types ({names})")
        return _type(kinds[0] if kinds else "null", named, inside, path)
    if isinstance(schema, str):
        if schema in PLAIN_TYPES:
            return PLAIN_TYPES[schema]
        if schema in inside:
            raise _no_column(path, f"the recursive type {schema}")
        return _type(named[schema], named, inside, path)
    kind, name = schema["type"], schema.get("name", "")
    named[name] = schema
    if kind in ("record", "error"):
        inside, prefix = (*inside, name), f"{path}." if path else ""
        return pa.struct(
            [(field["name"], _type(field["type"], named, inside, prefix + field["name"])) for field in schema["fields"]]
        )
    if kind == "array":
        return pa.list_(_type(schema["items"], named, inside, path))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], named, inside, path))
    if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind == "fixed":
        return pa.binary(schema["size"])
    return LOGICAL_TYPES.get((str(kind), str(schema.get("logicalType")))) or _type(kind, named, inside, path)


def _no_column(path: str, kind: str) -> BadRequest:
    action = advice(python="specify arrow_type", shell="use a schema without it, or copy the values as bytes")
    return BadRequest(f"{f'field {path}: ' if path else ''}an Arrow column cannot have {kind}: {action}")
