"""Column types in DDL."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.tables.ddl import MAX_DEPTH, NAMES, TYPES, parse_ddl, type_name


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    assert parse_ddl(f"a {name.upper()}") == pa.schema([pa.field("a", TYPES[name])])


def test_columns_with_nested_types() -> None:
    text = "id BIGINT NOT NULL, `a ``b` array<STRING> , p struct<x: Double, y: decimal(10, 2)>,m MAP<STRING,INT>,d dec"
    assert parse_ddl(text) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("a `b", pa.list_(pa.string())),
            pa.field("p", pa.struct([("x", pa.float64()), ("y", pa.decimal128(10, 2))])),
            pa.field("m", pa.map_(pa.string(), pa.int32())),
            pa.field("d", pa.decimal128(10, 0)),
        ]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a column name, found the end"),
        ("id", "expected a type, found the end"),
        ("id BIGINT name STRING", "expected a comma or the end, found 'name'"),
        ("id BIGNT", "expected a type such as BIGINT, DOUBLE, STRING or TIMESTAMP, found 'BIGNT'"),
        ("id BIGINT,", "expected a column name, found the end"),
        ("a array<string", "expected '>', found the end"),
        ("a struct<x int>", "expected ':', found 'int'"),
        ("a decimal(x)", "expected a number, found 'x'"),
        ("a decimal(40)", "must have at most 38 digits"),
        ("a decimal(2,3)", "must have at most 38 digits"),
        ("id BIGINT; DROP", "must be a list of columns such as 'id BIGINT, name STRING'"),
        ("id INT, ID INT", "contains column id more than once"),
        (f"a {'array<' * (MAX_DEPTH + 1)}", f"nested more than {MAX_DEPTH} levels"),
    ],
)
def test_invalid_ddl(text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse_ddl(text)


def test_type_names_are_valid_ddl() -> None:
    nested = pa.struct([("x", pa.list_(pa.decimal128(5, 2))), ("y", pa.string())])
    for kind in (*NAMES, nested):
        assert parse_ddl(f"a {type_name(kind)}").field("a").type == kind
