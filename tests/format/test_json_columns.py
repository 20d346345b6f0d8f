"""Test columns of JSON values: each value has the type of its column, or is rejected."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog import formats
from sparklog.errors import BadRequest
from sparklog.format.json_columns import JSON_TEXT, decode_json, json_column, json_objects, loads, without_markers

UTC = pa.timestamp("us", "UTC")
NESTED = pa.struct(
    [("a", pa.list_(pa.struct([("b", pa.int32())]))), ("m", pa.map_(pa.string(), pa.list_(pa.float64()))), ("t", UTC)]
)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int64(), [1, None, 2.0, -(2**63)], [1, None, 2, -(2**63)]),
        (pa.float32(), [1, 0.5, None], [1.0, 0.5, None]),
        (pa.float64(), [2**60 + 1], [float(2**60)]),
        (pa.bool_(), [True, None, False], [True, None, False]),
        (pa.string(), ["x", None], ["x", None]),
        (pa.null(), [None], [None]),
        (pa.decimal128(6, 2), [1, "2.50", 0.25, None], [Decimal(1), Decimal("2.50"), Decimal("0.25"), None]),
        (pa.date32(), ["2026-01-02", None], [datetime.date(2026, 1, 2), None]),
        (pa.list_(pa.int64()), [[1, 2], None, []], [[1, 2], None, []]),
        (pa.map_(pa.string(), pa.int64()), [{"k": 1}, None, {}], [[("k", 1)], None, []]),
        (pa.struct([]), [{"x": 1}, None], [{}, None]),
        (JSON_TEXT, [{"é": [1.10]}, "x", None, 1], ['{"é": [1.1]}', '"x"', None, "1"]),
        (
            NESTED,
            [{"a": [{"b": 1}, None, {}], "m": {"k": [1]}, "t": "2026-01-02T03:04:05Z", "x": 1}, {"a": None}, None],
            [
                {
                    "a": [{"b": 1}, None, {"b": None}],
                    "m": [("k", [1.0])],
                    "t": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
                },
                {"a": None, "m": None, "t": None},
                None,
            ],
        ),
    ],
)
def test_values_become_a_column(kind: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    column = json_column(values, kind)
    column.validate(full=True)
    assert (column.type, column.to_pylist()) == (without_markers(kind), expected)
    assert json_column([], kind).type == without_markers(kind)
    assert json_column([None, None], kind).null_count == 2


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (pa.int64(), 1.5, "expected an integer, found 1.5"),
        (pa.int64(), True, "expected an integer, found true"),
        (pa.int64(), 2**70, ""),
        (pa.int8(), 300, ""),
        (pa.float64(), True, "expected a number, found true"),
        (pa.float64(), 10**400, "too large"),
        (pa.bool_(), 1, "expected true or false, found 1"),
        (pa.string(), 1, "expected a string, found 1"),
        (pa.decimal128(4, 2), "x", "expected a number, found 'x'"),
        (pa.decimal128(4, 2), "1_0", "expected a number, found '1_0'"),
        (pa.decimal128(4, 2), " 1", "expected a number, found ' 1'"),
        (pa.decimal128(4, 2), "NaN", "expected a number, found 'NaN'"),
        (pa.struct([("a", pa.int64())]), [["a", 1]], 'expected an object, found [["a", 1]]'),
        (pa.list_(pa.int64()), {"a": 1}, 'expected an array, found {"a": 1}'),
        (pa.map_(pa.string(), pa.int64()), [["a", 1]], "expected an object"),
        (UTC, "yesterday", ""),
        (UTC, 1.5, "expected a timestamp[us, tz=UTC], found 1.5"),
        (pa.null(), 1, ""),
    ],
)
def test_values_of_another_type_are_rejected(kind: pa.DataType, value: Any, says: str) -> None:
    for column, of in (([value], kind), ([{"x": [value]}], pa.struct([("x", pa.list_(kind))]))):
        with pytest.raises((ValueError, TypeError, pa.ArrowException)) as error:
            json_column(column, of)
        assert says in str(error.value)


def test_json_is_decoded_to_the_given_type_or_rejected() -> None:
    rows = pa.array([b'{"n": 1}', b'{"n": 1.5}', b'{"n": 18446744073709551616}', b"[]"])
    values, invalid = formats.open_format("json").decode_valid(rows, pa.struct([("n", pa.int64())]))
    assert (values.to_pylist(), sorted(invalid)) == ([{"n": 1}, None, None, None], [1, 2, 3])
    assert invalid[1].endswith("(expected an integer, found 1.5)")
    with pytest.raises(BadRequest, match="row 0: expected JSON, found 23 bytes"):
        formats.decode(pa.array([b"123456789012345678901234"[:23]]), "json")


def test_invalid_rows_of_a_long_column() -> None:
    texts = [b'{"a": 1}'] * 1000
    bad = {0: b"x", 127: b'{"a": "1"}', 128: b'{"a": 40000}', 130: b"[]", 999: b"{"}
    for row, text in bad.items():
        texts[row] = text
    values, invalid = formats.open_format("json").decode_valid(pa.array(texts), PARSED)
    assert sorted(invalid) == sorted(bad)
    assert values.to_pylist() == [
        None if row in bad else {"a": 1, "b": None, "c": None, "d": None} for row in range(1000)
    ]


DIGITS = "1234567890.123456789012345678"


@pytest.mark.parametrize("text", [DIGITS, f"-{DIGITS}", "12345678901234567890", "0.1", "1.50", "1e2", "1E-3", '"2.25"'])
def test_decimals_are_exact(text: str) -> None:
    kinds = [("d", pa.decimal128(38, 18)), ("l", pa.list_(pa.decimal128(38, 18))), ("f", pa.float64())]
    values = decode_json(pa.array([f'{{"d": {text}, "l": [{text}], "f": 0.5}}'.encode()]), pa.struct(kinds))
    number = Decimal(text.strip('"'))
    assert values.to_pylist() == [{"d": number, "l": [number], "f": 0.5}]
    assert decode_json(pa.array([text]), kinds[0][1]).to_pylist() == [number]


def test_decimals_with_too_many_digits_are_rejected() -> None:
    kind = pa.struct([("d", pa.decimal128(38, 17)), ("n", pa.int64()), ("f", pa.float64())])
    rows = pa.array([b'{"d": 1.5, "n": 2.0, "f": 1}', f'{{"d": {DIGITS}}}'.encode(), b'{"n": 1.5}', b'{"f": "1"}'])
    values, invalid = formats.open_format("json").decode_valid(rows, kind)
    assert (values.to_pylist(), sorted(invalid)) == ([{"d": Decimal("1.5"), "n": 2, "f": 1.0}, *[None] * 3], [1, 2, 3])
    assert invalid[2].endswith("(expected an integer, found 1.5)")


PARSED = pa.struct(
    [
        ("a", pa.int16()),
        ("b", pa.float64()),
        ("c", pa.list_(pa.field("element", pa.string()))),
        ("d", pa.struct([("x", pa.bool_()), ("y", pa.uint64())])),
    ]
)
NUMBERS = (
    "0",
    "-0.0",
    "1.0",
    "1.5",
    "1e2",
    "40000",
    "18446744073709551615",
    "5e-324",
    "1e999",
    "NaN",
    "-Infinity",
    "01",
)
TEXTS = ('""', '"NaN"', '"\\u00e9"', '"\\ud800"', '"\\ud83d\\ude00"', '"x\ny"', '"é"')
LEAVES = st.sampled_from((*NUMBERS, *TEXTS, "true", "null", "{}", "[]"))
LISTS = st.lists(LEAVES, max_size=2).map(lambda items: f"[{','.join(items)}]")
OBJECTS = st.lists(st.tuples(st.sampled_from("abcdxyz"), LEAVES | LISTS), max_size=4).map(
    lambda members: "{" + ",\n".join(f'"{name}": {value}' for name, value in members) + "}"
)
MEMBERS = st.lists(st.tuples(st.sampled_from("abcdz"), LEAVES | LISTS | OBJECTS), max_size=4).map(
    lambda members: "{" + ", ".join(f'"{name}":{value}' for name, value in members) + "}"
)


@given(st.lists(st.one_of(st.none(), MEMBERS, st.sampled_from(("", "null", "{", "}", '{"a":1}{"a":2}'))), max_size=3))
def test_decoding_does_not_depend_on_the_parser(texts: list[str | None]) -> None:
    def values() -> pa.Array:
        return json_column([None if text is None else loads(text) for text in texts], PARSED)

    column = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparklog.format.json_columns.MIN_PARSED_ROWS", 0)
        try:
            expected = values()
        except (ValueError, pa.ArrowException):
            with pytest.raises((ValueError, pa.ArrowException)):
                decode_json(column, PARSED)
            return
        decoded = decode_json(column, PARSED)
    decoded.validate(full=True)
    assert (decoded.type, repr(decoded.to_pylist())) == (PARSED, repr(expected.to_pylist()))


def test_typical_objects_are_parsed_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.format.json_columns.json_column", None)
    column = pa.array([b'{"a":1,"c":["x",null],"other":{"a":2}}', None, b"{}"] * 30)
    expected = [{"a": 1, "b": None, "c": ["x", None], "d": None}, None, dict.fromkeys("abcd")] * 30
    assert decode_json(column, PARSED).to_pylist() == expected


@pytest.mark.parametrize("value", ["1.0", "1.5", "true", '"1"', "[1]", '1, "a": 2'])
def test_json_objects_rejects_all_but_integers_without_a_fraction(value: str) -> None:
    kind = pa.struct([("a", pa.int64())])
    assert json_objects(pa.array([b'{"a": 1}']), kind).to_pylist() == [{"a": 1}]
    with pytest.raises((ValueError, pa.ArrowException)):
        json_objects(pa.array([f'{{"a": {value}}}'.encode()]), kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.float64(), "1e400"), (pa.float32(), "1e39"), (pa.float32(), "-1e39"), (pa.list_(pa.float32()), "[1, 1e39]"),
     (pa.struct([("b", pa.float32())]), '{"b": 1e39}')],
)  # fmt: skip
def test_numbers_out_of_range_are_rejected_instead_of_infinities(kind: pa.DataType, value: str) -> None:
    texts, struct = pa.array([f'{{"a": {value}}}']), pa.struct([("a", kind)])
    for decode in (decode_json, json_objects):
        with pytest.raises((ValueError, pa.ArrowException)):
            decode(texts, struct)
    with pytest.raises(ValueError, match="not JSON compliant"):
        decode_json(pa.array(["1e400"]), JSON_TEXT)


def test_decimals_have_all_digits() -> None:
    kind = pa.struct([("d", pa.decimal128(20, 2)), ("i", pa.int64()), ("f", pa.float64())])
    texts = pa.array(['{"d": 123456789012345678.12, "i": 2.0, "f": 0.1}', '{"d": 1e2, "i": 3e2, "f": 5}'])
    assert decode_json(texts, kind).to_pylist() == [
        {"d": Decimal("123456789012345678.12"), "i": 2, "f": 0.1},
        {"d": Decimal("100.00"), "i": 300, "f": 5.0},
    ]
    for value in ("2.5", "1e99999999", "1e-99999999"):
        with pytest.raises(ValueError):
            decode_json(pa.array([f'{{"d": 1, "i": {value}}}']), kind)
