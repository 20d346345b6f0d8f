"""Test Avro's JSON encoding: each JSON value is written without a change, or rejected with its field."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.formats import open_format

pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")

ITEM = {"type": "record", "name": "Item", "fields": [
    {"name": "sku", "type": ["null", "string"], "default": None},
    {"name": "count", "type": "int", "default": 1},
]}  # fmt: skip
ORDER = {"type": "record", "name": "shop.Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "item", "type": ["null", ITEM], "default": None},
    {"name": "more", "type": {"type": "map", "values": {"type": "array", "items": "Item"}}, "default": {}},
    {"name": "raw", "type": "bytes", "default": "\u00ff"},
    {"name": "choice", "type": ["string", "long", "null"], "default": "none"},
]}  # fmt: skip
FIXED = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
KINDS = ["null", "Item", {"type": "array", "items": "double"}, {"type": "map", "values": "long"}, ENUM, FIXED]
UNION = {"type": "record", "name": "U", "fields": [{"name": "first", "type": ITEM}, {"name": "x", "type": KINDS}]}


def parsed(schema: Any, *values: Any) -> pa.Array:
    text = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return open_format("avro", {5: schema}).parse(pa.array(text))


def test_fields_with_defaults_may_be_missing() -> None:
    text = {"id": 1, "note": None}
    shown = open_format("avro", {5: ORDER}).show(parsed(ORDER, text)).to_pylist()[0]
    defaults = {"item": None, "more": {}, "raw": "\u00ff", "choice": {"string": "none"}}
    assert json.loads(shown) == {**text, **defaults}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (ORDER, {"id": 1, "note": {"string": "x"}, "item": {"shop.Item": {"sku": {"string": "y"}, "count": 2}},
                 "more": {"a": [{"sku": None, "count": 3}], "b": []}, "raw": "a\u0000\u00ff", "choice": {"long": 7}}),
        *((UNION, {"first": {"sku": None, "count": 1}, "x": each})
          for each in (None, {"Item": {"sku": None, "count": 5}}, {"array": [1.5, "NaN", "-Infinity"]},
                       {"map": {"a": 2}}, {"E": "B"}, {"F": "\u0000\u00ff"})),
        ({"type": "long", "logicalType": "timestamp-micros"}, 253402300799999999),
        ({"type": "string", "logicalType": "uuid"}, "123e4567-e89b-12d3-a456-426614174000"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001\u0002"),
        ({"type": "float"}, "Infinity"),
        ({"type": "boolean"}, False),
        ({"type": "int"}, -(2**31)),
        (["null", "boolean"], None),
    ],
)  # fmt: skip
def test_values_are_printed_as_they_were_written(schema: Any, value: Any) -> None:
    written = parsed(schema, value)
    shown = open_format("avro", {5: schema}).show(written)
    assert json.loads(shown.to_pylist()[0]) == value
    one = pickle.loads(pickle.dumps(open_format("avro", {5: schema})))
    assert one.parse(shown).equals(written)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"id": 1, "note": None, "itm": None}, "itm is not a field of shop.Order; did you mean 'item'?"),
        (
            {"id": 1, "note": None, "item": {"shop.Item": {"skuu": {"string": "x"}}}},
            "item.skuu is not a field of shop.Item; did you mean 'sku'?",
        ),
        ({"id": 1, "note": None, "more": {"a": [{}, {"amount": 1}]}}, "more.a[1].amount is not a field of shop.Item"),
        ({"id": 1}, "note is missing, and the field of shop.Order has no default"),
        ({"id": 1, "note": "x"}, 'note: expected null or {"string": ...} for a union, found "x"'),
        ({"id": 1, "note": {"string": "x", "null": None}}, "note: expected null or"),
        ({"id": 1, "note": {"null": None}}, "note: expected null or"),
        ({"id": 1.5, "note": None}, "id: expected a long, found 1.5"),
        ({"id": True, "note": None}, "id: expected a long, found true"),
        ({"id": 2**63, "note": None}, "id: expected a long, found 9223372036854775808"),
        ({"id": 1, "note": {"string": None}}, "note: expected a string, found null"),
        ({"id": 1, "note": None, "raw": "\u0100"}, "raw: expected a string with a character from U+0000 to U+00FF"),
        ({"id": 1, "note": None, "more": {"a": {}}}, "more.a: expected an array, found {}"),
        ({"id": 1, "note": None, "more": []}, "more: expected an object, found []"),
        ([{"id": 1}], 'expected an object with the fields of shop.Order, found [{"id": 1}]'),
    ],
)
def test_other_values_are_rejected_with_their_field(value: Any, says: str) -> None:
    with pytest.raises(BadRequest) as error:
        parsed(ORDER, {"id": 1, "note": None}, value)
    assert str(error.value).startswith("row 1: expected a value of schema shop.Order, found ")
    assert f"({says}" in str(error.value)


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        ('"int"', 2**31, "expected an int, found 2147483648"),
        ('"float"', 1e300, "expected a float, found 1e+300"),
        ('"double"', 10**400, "expected a double, found 1000"),
        ('"double"', "1", 'expected a double, found "1"'),
        ('"boolean"', 1, "expected true or false, found 1"),
        ('"null"', 1, "expected null, found 1"),
        (json.dumps(ENUM), "C", 'expected a symbol of E (A, B), found "C"'),
        (json.dumps(FIXED), "abc", 'expected 2 bytes of F, found "abc"'),
    ],
)
def test_plain_values_are_rejected_with_the_expected_type(schema: str, value: Any, says: str) -> None:
    with pytest.raises(BadRequest) as error:
        open_format("avro", schema).parse(pa.array([json.dumps(value).encode()]))
    assert f"({says}" in str(error.value)


def test_deeply_nested_values_are_rejected() -> None:
    """Values of a recursive schema can be nested more deeply than Python's stack allows."""
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"], "default": None}]}
    for depth in (400, 100_000):
        with pytest.raises(BadRequest, match="nested too deeply"):
            parsed(node, b'{"n": {"N": ' * depth + b"{}" + b"}}" * depth)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (1.5, "expected int, found 1.5"),
        (2**31, "expected int, found 2147483648"),
        (True, "expected int, found True"),
    ],
)
def test_numbers_of_columns_are_not_truncated(value: Any, says: str) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    for schema, row, where in (('"int"', value, ""), (record, {"n": value}, "R.n: ")):
        with pytest.raises(BadRequest) as error:
            open_format("avro", schema).encode(pa.array([None, row]))
        assert str(error.value).startswith("row 1: ")
        assert f"({where}{says})" in str(error.value)
    assert open_format("avro", record).encode(pa.array([{"n": 7}, None])).to_pylist() == [b"\x0e", None]
