"""Decode JSON values to the columns of a DDL schema."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.json_columns import json_objects, loads
from sparklog.format.values import valid_step
from sparklog.tables.ddl import type_name
from sparklog.tables.option_names import option_name


class JsonColumns:
    """Converts JSON objects to a struct column with the fields of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            check_supported(field.name, field.type)
        self.schema = schema
        self.type = pa.struct(list(schema))

    def decode_valid(self, column: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the values with null for each invalid row, and the reason for each invalid row."""
        values, invalid = valid_step(lambda part: json_objects(part, self.type), column, "a JSON object")
        return values, {row: self.reason(column[row].as_py()) for row in invalid}

    def reason(self, value: bytes) -> str:
        """Return the reason why a value is invalid."""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return "the value is not UTF-8"
        try:
            is_object = isinstance(loads(text), dict)
        except ValueError:
            is_object = False
        if not is_object:
            return "the value is not a JSON object"
        mismatches = []
        for field in self.schema:
            try:
                json_objects(pa.array([value], pa.binary()), pa.struct([field]))
            except (ValueError, TypeError, pa.ArrowException):
                mismatches.append(f"{field.name} {type_name(field.type)}")
        return f"the value does not match {', '.join(mismatches)}" if mismatches else "the value is not a JSON object"


def check_supported(name: str, kind: pa.DataType) -> None:
    """Raise `BadRequest` if Arrow cannot parse JSON as this type."""
    if pa.types.is_binary(kind) or pa.types.is_map(kind):
        raise BadRequest(
            f"{option_name('schema')}: column {name} of JSON values cannot have the type {type_name(kind)}"
        )
    for index in range(kind.num_fields):
        check_supported(name, kind.field(index).type)
