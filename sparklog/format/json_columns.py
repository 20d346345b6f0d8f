"""Columns of JSON values with a given Arrow type.

A column is built field by field, so no Arrow function converts a value that has another type: `pa.array` would convert
1.5 to the integer 1, and true to the number 1.0.

| Arrow type               | JSON values                                            |
|--------------------------|--------------------------------------------------------|
| struct                   | objects; other members are ignored, missing are null   |
| map with string keys     | objects                                                |
| list                     | arrays                                                 |
| bool, string             | true and false, strings                                |
| integers                 | numbers without a fraction, such as 1 and 1.0          |
| floats, decimals         | numbers; for decimals also strings                     |
| `JSON_TEXT`              | any; the column contains their JSON                    |
| other, such as timestamp | strings that Arrow can cast to the type, integers      |
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

JSON_TEXT = pa.json_()
"""Marks a string column that contains the JSON of values of any type."""
MAX_SHOWN_CHARACTERS = 60


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
        texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
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
        if float in _check(values, "an integer", int, float):
            values = [_integer(value) for value in values]
    elif pa.types.is_floating(kind):
        if int in _check(values, "a number", int, float):
            values = [None if value is None else float(value) for value in values]
    elif pa.types.is_decimal(kind):
        _check(values, "a number", int, float, str)
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
        text = json.dumps(wrong, ensure_ascii=False)[:MAX_SHOWN_CHARACTERS]
        raise ValueError(f"expected {expected}, found {text}")
    return found


def _offsets(values: list[Any]) -> pa.Array:
    """Return the offsets of lists or maps. The offset of a null is null."""
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=ends[1:])
    mask = np.array([*(value is None for value in values), False], np.bool_)
    return pa.array(ends, pa.int32(), mask=mask)


def _integer(value: Any) -> int | None:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"expected an integer, found {value}")
    return None if value is None else int(value)


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except ArithmeticError:
        raise ValueError(f"expected a number, found {value!r}") from None
