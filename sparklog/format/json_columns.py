"""Columns of JSON values with a given Arrow type.

`json_objects` parses JSON objects with Arrow, without a Python loop. It rejects each value that does not have exactly
the type of its field. `decode_json` decodes values of all types: it parses the values in Python if Arrow cannot parse
the type, or rejects a value that JSON Schema permits, such as the integer 1.0.

| Arrow type               | JSON values                                            | accepted by `decode_json`     |
|--------------------------|--------------------------------------------------------|-------------------------------|
| struct                   | objects; other members are ignored, missing are null   | the last of members with the  |
|                          |                                                        | same name                     |
| list                     | arrays                                                 |                               |
| bool, string             | true and false, strings                                |                               |
| integers                 | numbers without a fraction                             | 1.0                           |
| floats                   | numbers, NaN                                           | not NaN                       |
| decimals                 | numbers, strings                                       |                               |
| timestamp, date          | strings that Arrow can cast; without zone: UTC         | integers; not without zone    |
| map with string keys     | cannot be parsed                                       | objects                       |
| `JSON_TEXT`              | cannot be parsed                                       | any; the column contains JSON |

Arrow's parser reads a stream of JSON objects and returns one row per object. It does not report which line an object
came from. Each value is therefore one line that begins with `{` and ends with `}`. A line with these ends that contains
part of an object cannot be continued by the next line, because a `{` cannot follow a `}`. Thus, each line contains at
least one object or is invalid, and if the parser returns as many rows as there are lines, each line is one row.

In Python, a column is built field by field, so no Arrow function converts a value that has another type: `pa.array`
would convert 1.5 to the integer 1, and true to the number 1.0.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from sparklog.format.arrow_numpy import valid_rows

JSON_TEXT = pa.json_()
"""Marks a string column that contains the JSON of values of any type."""
MAX_SHOWN_CHARACTERS = 60
MIN_PARSED_ROWS = 64
"""Number of values from which Arrow's parser is faster, because each call takes as long as many values in Python."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def loads(text: str, *, with_decimals: bool = False) -> Any:
    """Parse JSON. With `with_decimals`, a number with a fraction or an exponent is a `Decimal`.

    Raises `ValueError` if the JSON is invalid, contains NaN or an infinity, or is nested too deeply.
    """
    try:
        return (_DECIMAL_DECODER if with_decimals else _DECODER).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""`json.loads` with this option would create a decoder for each value."""
_DECIMAL_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=Decimal)


def dumps(value: Any) -> bytes:
    """Return the JSON of an Arrow value as UTF-8. Raises `ValueError` for NaN and infinities."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def decode_json(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode a column of JSON to a type, which may contain `JSON_TEXT`. Raises `ValueError` for an invalid value."""
    texts = column.cast(pa.string())
    is_parsed = len(texts) >= MIN_PARSED_ROWS and pa.types.is_struct(kind) and _is_parsed_equally(kind)
    if is_parsed and not _contains_constants(texts):
        try:
            return json_objects(texts, kind)
        except (ValueError, pa.ArrowException):
            pass  # Some value requires the conversion in Python, or is invalid.
    # A float does not have all digits of a decimal.
    exact = _contains_decimals(kind)
    return json_column([None if text is None else loads(text, with_decimals=exact) for text in texts.to_pylist()], kind)


def _contains_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_contains_decimals(kind.field(n).type) for n in range(kind.num_fields))


def _is_parsed_equally(kind: pa.DataType) -> bool:
    """Return True if Arrow's parser returns the same values of a type as `json_column`, or rejects the values."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return 0 < len(names) == len(set(names)) and all(_is_parsed_equally(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_parsed_equally(kind.value_type)
    is_plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_float64(kind)
    return bool(is_plain or kind == pa.string())


def _contains_constants(texts: pa.Array) -> bool:
    """Return True if a text contains NaN or an infinity, which Arrow's parser accepts."""
    return any(pc.any(pc.match_substring(texts, word)).as_py() for word in ("NaN", "Inf"))


def json_objects(column: pa.Array, kind: pa.StructType) -> pa.StructArray:
    """Parse a column of JSON objects with Arrow. Raises `ValueError` or `ArrowException` for an invalid value."""
    lines = column.drop_null()
    rows = _parsed(lines.cast(pa.string()), kind) if len(lines) else pa.nulls(0, kind)
    if len(lines) == len(column):
        return rows
    is_valid = valid_rows(column)
    index = pa.array(np.cumsum(is_valid) - 1, mask=~is_valid)
    return rows.take(index)


def _parsed(lines: pa.Array, kind: pa.StructType) -> pa.StructArray:
    lines = pc.ascii_trim(_without_breaks(lines), " \t")
    if not pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py():
        raise ValueError
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")
    buffer = joined[0].as_buffer()
    table = pj.read_json(
        pa.BufferReader(buffer),
        pj.ReadOptions(use_threads=False, block_size=buffer.size + 1),
        pj.ParseOptions(explicit_schema=_parsed_schema(kind), unexpected_field_behavior="ignore"),
    ).combine_chunks()
    if table.num_rows != len(lines):
        raise ValueError
    columns = [_single_chunk(table[index]).cast(field.type) for index, field in enumerate(kind)]
    if any(map(_contains_infinity, columns)):
        raise ValueError
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _contains_infinity(column: pa.Array) -> bool:
    """Return True if a column of 32-bit floats contains an infinity, as Arrow parses a number that is out of range."""
    if pa.types.is_float32(column.type):
        return bool(pc.any(pc.is_inf(column)).as_py())
    if pa.types.is_struct(column.type):
        return any(map(_contains_infinity, column.flatten()))
    return pa.types.is_list(column.type) and _contains_infinity(column.flatten())


def _single_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)


def _without_breaks(lines: pa.Array) -> pa.Array:
    """Return the values without line breaks between tokens. Other line breaks are not valid JSON."""
    has_breaks = pc.match_substring_regex(lines, "[\r\n]")
    if not pc.any(has_breaks).as_py():
        return lines
    for text in lines.filter(has_breaks).to_pylist():
        loads(text)
    return pc.replace_substring_regex(lines, "[\r\n]", " ")


@lru_cache(maxsize=64)
def _parsed_schema(kind: pa.StructType) -> pa.Schema:
    return pa.schema([pa.field(field.name, parsed_type(field.type)) for field in kind])


def parsed_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with which Arrow parses values of `kind`. Dates are parsed as strings and converted."""
    if pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(parsed_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, parsed_type(field.type)) for field in kind])
    return kind


def json_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of a type. Raises `ValueError` if a value has another type, or is out of range."""
    try:
        return _column(values, kind)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def without_markers(kind: pa.DataType) -> pa.DataType:
    """Return a type with strings instead of `JSON_TEXT`."""
    if kind == JSON_TEXT:
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_markers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, without_markers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(without_markers(kind.value_type)))
    return kind


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == JSON_TEXT:
        # JSON has no infinities, but `loads` returns an infinity for a number that is out of range.
        texts = [None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values]
        return pa.array(texts, pa.string())
    if pa.types.is_struct(kind):
        return _struct(values, kind)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        _check(values, "an object", dict)
        keys = _column([key for value in values if value is not None for key in value], kind.key_type)
        items = [item for value in values if value is not None for item in value.values()]
        return pa.MapArray.from_arrays(_offsets(values), keys, _column(items, kind.item_type))
    if pa.types.is_list(kind):
        _check(values, "an array", list)
        items = _column([item for value in values if value is not None for item in value], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), items, kind if items.type == kind.value_type else None)
    if pa.types.is_boolean(kind):
        _check(values, "true or false", bool)
    elif pa.types.is_string(kind):
        _check(values, "a string", str)
    elif pa.types.is_integer(kind):
        if _check(values, "an integer", int, float, Decimal) - {int}:
            values = [_integer(value) for value in values]
    elif pa.types.is_floating(kind):
        if _check(values, "a number", int, float, Decimal) - {float}:
            values = [None if value is None else float(value) for value in values]
        numbers = pa.array(values, kind)
        if pc.any(pc.is_inf(numbers)).as_py():
            raise ValueError(f"expected a {kind}, found a number that is out of range")
        return numbers
    elif pa.types.is_decimal(kind):
        _check(values, "a number", int, float, Decimal, str)
        values = [None if value is None else _decimal(value) for value in values]
    elif not pa.types.is_null(kind) and _check(values, f"a {kind}", str, int) == {str}:
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _struct(values: list[Any], kind: pa.DataType) -> pa.StructArray:
    kinds = _check(values, "an object", dict)
    is_null = [value is None for value in values]
    present = [{} if value is None else value for value in values] if any(is_null) or not kinds else values
    columns = [_column([value.get(field.name) for value in present], field.type) for field in kind]
    fields = [field.with_type(column.type) for field, column in zip(kind, columns, strict=True)]
    mask = pa.array(is_null, pa.bool_()) if any(is_null) else None
    if not columns:
        return pa.array([None if null else {} for null in is_null], pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _check(values: list[Any], expected: str, *kinds: type) -> set[type]:
    """Return the types of the values that are not null. Raises `ValueError` for other types than `kinds`."""
    found = set(map(type, values)) - {type(None)}
    if found - set(kinds):
        wrong = next(value for value in values if value is not None and type(value) not in kinds)
        text = json.dumps(wrong, ensure_ascii=False, default=str)[:MAX_SHOWN_CHARACTERS]
        raise ValueError(f"expected {expected}, found {text}")
    return found


def _offsets(values: list[Any]) -> pa.Array:
    """Return the offsets of lists or maps. The offset of a null is null."""
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=ends[1:])
    mask = np.array([*(value is None for value in values), False], np.bool_)
    return pa.array(ends, pa.int32(), mask=mask)


def _integer(value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    number = float(value)
    if not number.is_integer() or number != value:
        raise ValueError(f"expected an integer, found {value}")
    return int(value)


def _decimal(value: Any) -> Decimal:
    # `Decimal` also accepts underscores, spaces and digits of other scripts.
    if not NUMBER.fullmatch(str(value)):
        raise ValueError(f"expected a number, found {value!r}")
    return Decimal(str(value))
