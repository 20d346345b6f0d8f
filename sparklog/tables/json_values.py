"""JSON values as Arrow columns with the types of a schema. Arrow parses the values, without a Python loop.

Arrow's parser reads a stream of JSON objects and returns one row per object. It does not report which line an object
came from. Each value is therefore one line that begins with `{` and ends with `}`. A line with these ends that contains
part of an object cannot be continued by the next line, because a `{` cannot follow a `}`. Thus, each line contains at
least one object or is invalid, and if the parser returns as many rows as there are lines, each line is one row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import valid_rows
from sparklog.format.values import loads, valid_step
from sparklog.tables.ddl import type_name
from sparklog.tables.option_names import option_name


class JsonColumns:
    """Converts JSON objects to a struct column with the fields of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            check_supported(field.name, field.type)
        self.schema = schema
        self.type = pa.struct(list(schema))
        self._parsed_schema = pa.schema([pa.field(field.name, parsed_type(field.type)) for field in schema])

    def decode_valid(self, column: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the values with null for each invalid row, and the reason for each invalid row."""
        values, invalid = valid_step(self._decode, column, "a JSON object")
        return values, {row: self.reason(column[row].as_py()) for row in invalid}

    def _decode(self, column: pa.Array) -> pa.StructArray:
        lines = column.drop_null()
        rows = self._struct(lines.cast(pa.string())) if len(lines) else pa.nulls(0, pa.struct(list(self.schema)))
        if len(lines) == len(column):
            return rows
        is_valid = valid_rows(column)
        index = pa.array(np.cumsum(is_valid) - 1, mask=~is_valid)
        return rows.take(index)

    def _struct(self, lines: pa.Array) -> pa.StructArray:
        lines = pc.ascii_trim(_without_breaks(lines), " \t")
        if not pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py():
            raise ValueError
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")
        buffer = joined[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(buffer),
            pj.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            pj.ParseOptions(explicit_schema=self._parsed_schema, unexpected_field_behavior="ignore"),
        ).combine_chunks()
        if table.num_rows != len(lines):
            raise ValueError
        columns = [_column(table[index]).cast(field.type) for index, field in enumerate(self.schema)]
        return pa.StructArray.from_arrays(columns, fields=list(self.schema))

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
                JsonColumns(pa.schema([field]))._decode(pa.array([value], pa.binary()))
            except (ValueError, TypeError, pa.ArrowException):
                mismatches.append(f"{field.name} {type_name(field.type)}")
        return f"the value does not match {', '.join(mismatches)}" if mismatches else "the value is not a JSON object"


def _column(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)


def _without_breaks(lines: pa.Array) -> pa.Array:
    """Return the values without line breaks between tokens. Other line breaks are not valid JSON."""
    has_breaks = pc.match_substring_regex(lines, "[\r\n]")
    if not pc.any(has_breaks).as_py():
        return lines
    for text in lines.filter(has_breaks).to_pylist():
        loads(text)
    return pc.replace_substring_regex(lines, "[\r\n]", " ")


def check_supported(name: str, kind: pa.DataType) -> None:
    """Raise `BadRequest` if Arrow cannot parse JSON as this type."""
    if pa.types.is_binary(kind) or pa.types.is_map(kind):
        raise BadRequest(
            f"{option_name('schema')}: column {name} of JSON values cannot have the type {type_name(kind)}"
        )
    for index in range(kind.num_fields):
        check_supported(name, kind.field(index).type)


def parsed_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with which Arrow parses values of `kind`. Dates are parsed as strings and converted."""
    if pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(parsed_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, parsed_type(field.type)) for field in kind])
    return kind
