"""JSON values as Arrow columns."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import BadRequest
from sparklog.tables.ddl import parse_ddl
from sparklog.tables.json_values import JsonColumns


def decode(ddl: str, *values: bytes | None) -> tuple[list[object], dict[int, str]]:
    rows, reasons = JsonColumns(parse_ddl(ddl)).decode_valid(pa.array(values, pa.binary()))
    assert len(rows) == len(values)
    return rows.to_pylist(), reasons


def test_values_have_the_types_of_the_schema() -> None:
    ddl = "i BIGINT, f FLOAT, s STRING, b BOOLEAN, t TIMESTAMP, d DATE, m DECIMAL(5,2), l ARRAY<DATE>, p STRUCT<x:INT>"
    value = (
        b'{"i": 1, "f": 1.5, "s": "\\u00e9", "b": true, "t": "2026-01-02T03:04:05.678+01:00", "d": "2026-01-02",'
        b' "m": 1.25, "l": ["2026-01-02", null], "p": {"x": 7, "y": 8}, "other": [1, "x"]}'
    )
    rows, reasons = decode(ddl, value)
    assert not reasons
    day = datetime.date(2026, 1, 2)
    time = datetime.datetime(2026, 1, 2, 2, 4, 5, 678_000, datetime.timezone.utc)
    values = {"i": 1, "f": 1.5, "s": "é", "b": True, "t": time, "d": day, "m": Decimal("1.25"), "l": [day, None]}
    assert rows == [values | {"p": {"x": 7}}]


def test_missing_fields_and_null_values_are_null() -> None:
    assert decode("a INT, b STRING", None, b"{}", b'{"a": null}', None, b'{"b":"x"}') == (
        [None, {"a": None, "b": None}, {"a": None, "b": None}, None, {"a": None, "b": "x"}],
        {},
    )


def test_line_breaks_between_tokens_are_allowed() -> None:
    assert decode("a INT, b INT", b'{"a": 1,\r\n "b":\n2}\n', b'{"a": 3}') == (
        [{"a": 1, "b": 2}, {"a": 3, "b": None}],
        {},
    )


NOT_OBJECT = "the value is not a JSON object"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", NOT_OBJECT),
        (b" ", NOT_OBJECT),
        (b"1", NOT_OBJECT),
        (b"[{}]", NOT_OBJECT),
        (b"null", NOT_OBJECT),
        (b'{"a": 1', NOT_OBJECT),
        (b'{"a": 1}}', NOT_OBJECT),
        (b'{"a": 1} {"a": 2}', NOT_OBJECT),
        (b'{"a": 1}\n{"a": 2}', NOT_OBJECT),
        (b'{"s": "x\ny"}', NOT_OBJECT),
        (b'{"a": 1, "a": 2}', "the value does not match a int"),
        (b"\xff", "the value is not UTF-8"),
        (b'{"a": "1"}', "the value does not match a int"),
        (b'{"a": 1.5, "s": 2}', "the value does not match a int, s string"),
        (b'{"a": 2147483648}', "the value does not match a int"),
    ],
)
def test_invalid_values(value: bytes, reason: str) -> None:
    rows, reasons = decode("a INT, s STRING", b'{"a": 1}', value, b'{"a": 3}')
    assert reasons == {1: reason}
    assert rows == [{"a": 1, "s": None}, None, {"a": 3, "s": None}]


def test_lines_that_complete_each_other_are_not_rows() -> None:
    values = (b'{"a":', b'{"b":1}}', b'{"a":1}{"a":2}', b'{"a":[{"x":1}', b'{"s":"}', b'{"a": 4}')
    rows, reasons = decode("a INT", *values)
    assert set(reasons) == {0, 1, 2, 3, 4}
    assert rows[5] == {"a": 4}


LINES = st.sampled_from(
    [b'{"a":', b'{"a":1}', b"{}", b'{"a":1}{"a":2}', b"}", b'{"s":"}', b'"}', b"{", b'{"a":{"a":1}', b"", b'{"a":[{}']
)


@given(st.lists(st.one_of(LINES, st.binary(max_size=8)), max_size=6))
def test_each_value_is_decoded_alone(values: list[bytes]) -> None:
    rows, reasons = decode("a INT", *values)
    for row, value in enumerate(values):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        number = parsed.get("a") if isinstance(parsed, dict) else None
        if row not in reasons:
            assert isinstance(parsed, dict)
            assert rows[row] == {"a": number}
        elif isinstance(parsed, dict):
            assert type(number) is not int
            assert number is not None


@pytest.mark.parametrize("ddl", ["a BINARY", "a MAP<STRING,INT>", "a ARRAY<BINARY>", "a STRUCT<x:BINARY>"])
def test_unsupported_types(ddl: str) -> None:
    with pytest.raises(BadRequest, match="column a of JSON values cannot have the type"):
        JsonColumns(parse_ddl(ddl))
