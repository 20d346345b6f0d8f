"""Avro values, either plain or in the wire format of a schema registry. In the wire format, a zero byte and the schema
id (int32) precede the Avro bytes.

The caller provides the schemas. This module never fetches schemas. Rows in the wire format may have different schemas.
They are decoded to the last schema by Avro's rules for schema resolution. fastavro encodes and decodes the values, and
is imported on first use.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import pyarrow as pa

from sparklog.common.lazy import install_command
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import bytes_array
from sparklog.format.values import ValueFormat, each_row, loads

MAGIC = 0
FRAME = struct.Struct(">bi")
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
        raise BadRequest(f"the format avro needs fastavro: {install_command('avro')}") from None


class AvroFormat(ValueFormat):
    """Avro values with schemas by id.

    `framed` is True if the values are in the wire format of a schema registry. Values are written with the last schema.
    """

    json_text = True

    def __init__(self, schemas: Mapping[int, Any], *, framed: bool) -> None:
        super().__init__("avro")
        self.framed = framed
        self.schemas = {number: _parsed(schema) for number, schema in schemas.items()}
        self.id, self.schema = list(self.schemas.items())[-1]
        title = self.schema.get("name", self.schema["type"]) if isinstance(self.schema, dict) else str(self.schema)
        self.bytes_name = (
            f"Avro of schema {title}" if not self.framed else "a schema registry header (0, schema id) and Avro"
        )
        self.text_name = f"a value of schema {title}"

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        rows = [None if cell is None else self._read(cell, resolve=True) for cell in column.to_pylist()]
        return pa.array(rows, arrow_type(self.schema) if kind is None else kind)

    def arrow_type(self) -> pa.DataType:
        return arrow_type(self.schema)

    def _encode(self, column: pa.Array) -> pa.Array:
        rows = column.to_pylist(maps_as_pydicts="strict") if _has_maps(column.type) else column.to_pylist()
        return bytes_array([None if row is None else self._write(row) for row in rows])

    def _show(self, column: pa.Array) -> pa.Array:
        return each_row(column, self._text)

    def _parse(self, column: pa.Array) -> pa.Array:
        return each_row(column, lambda text: self._write(self._value(text)))

    def _body(self, cell: bytes) -> tuple[int, io.BytesIO]:
        if not self.framed:
            return self.id, io.BytesIO(cell)
        if len(cell) < FRAME.size or cell[0] != MAGIC:
            raise ValueError("no schema registry header: to read plain Avro, omit the id")
        number = FRAME.unpack_from(cell)[1]
        if number not in self.schemas:
            raise ValueError(f"schema id {number} is unknown; known ids: {', '.join(map(str, self.schemas))}")
        return number, io.BytesIO(cell[FRAME.size :])

    def _read(self, cell: bytes, *, resolve: bool) -> Any:
        """Return the value of a row.

        If `resolve` is True, the value is converted to the last schema. Otherwise the value has its own schema, and
        records in a union have names.
        """
        number, body = self._body(cell)
        reader = self.schema if resolve and number != self.id else None
        names = {} if resolve else {"return_record_name": True, "return_record_name_override": True}
        schema = self.schemas[number]
        value = _call(lambda: fastavro().schemaless_reader(body, schema, reader, **names), "the bytes are truncated")
        if rest := len(body.read()):
            raise ValueError(f"{rest} byte{'s' if rest > 1 else ''} after the value")
        return value

    def _text(self, cell: bytes) -> bytes:
        value, line = self._read(cell, resolve=False), io.StringIO()
        schema = self.schemas[self._body(cell)[0]]
        _call(lambda: fastavro().json_writer(line, schema, [value]), "the value cannot be represented in JSON")
        return line.getvalue().encode()

    def _value(self, text: str) -> Any:
        loads(text)
        hint = 'a field is missing, or the value of a union is not written as {"string": "x"}'
        return _call(lambda: list(fastavro().json_reader(io.StringIO(text), self.schema)), hint)[0]

    def _write(self, value: Any) -> bytes:
        body = io.BytesIO()
        if self.framed:
            body.write(FRAME.pack(MAGIC, self.id))
        _call(
            lambda: fastavro().schemaless_writer(body, self.schema, value, strict_allow_default=True),
            "the value does not match the schema",
        )
        return body.getvalue()


def _call(call: Callable[[], Any], hint: str) -> Any:
    """Call fastavro. Its errors for invalid data, which have many types, are converted to `ValueError`."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{hint}: {error}" if str(error) else hint) from None
    except Exception:  # noqa: BLE001  (EOFError, KeyError, AttributeError: their text is about its code)
        raise ValueError(hint) from None


def _parsed(schema: Any) -> Any:
    try:
        return fastavro().parse_schema(schema)
    except BadRequest:
        raise
    except Exception as error:  # noqa: BLE001
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise BadRequest(f"expected an Avro schema, found {str(schema)[:80]!r}: {reason[:200]}") from None


def _has_maps(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_maps(kind.field(n).type) for n in range(kind.num_fields))


def arrow_type(schema: Any) -> pa.DataType:
    """Return the Arrow type of a schema. Raises `BadRequest` for unions of several types and for recursive types."""
    return _type(schema, {}, ())


def _type(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) > 1:
            raise BadRequest(f"an Arrow column cannot have a union of {len(kinds)} types: specify arrow_type")
        return _type(kinds[0] if kinds else "null", named, inside)
    if isinstance(schema, str):
        if schema in PLAIN_TYPES:
            return PLAIN_TYPES[schema]
        if schema in inside:
            raise BadRequest(f"an Arrow column cannot have the recursive type {schema}: specify arrow_type")
        return _type(named[schema], named, inside)
    kind, name = schema["type"], schema.get("name", "")
    named[name] = schema
    if kind in ("record", "error"):
        fields = [(field["name"], _type(field["type"], named, (*inside, name))) for field in schema["fields"]]
        return pa.struct(fields)
    if kind == "array":
        return pa.list_(_type(schema["items"], named, inside))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], named, inside))
    if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") == "uuid":
        return pa.string()
    if kind == "fixed":
        return pa.binary(schema["size"])
    return LOGICAL_TYPES.get((str(kind), str(schema.get("logicalType")))) or _type(kind, named, inside)
