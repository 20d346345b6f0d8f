"""Columns of reads and writes."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.datasource.schema import (
    MAX_MS,
    MIN_MS,
    SPARK_TYPES,
    pick,
    projection,
    read_schema,
    write_columns,
)
from sparklog.errors import BadRequest
from sparklog.log.state.record_schema import HEADERS_TYPE, RECORD_SCHEMA
from sparklog.log.state.view import COLUMNS

types = pytest.importorskip("pyspark.sql.types")

HEADERS = types.ArrayType(
    types.StructType([types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())])
)
OF = {
    "binary": types.BinaryType(),
    "string": types.StringType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "array<struct<key:string,value:binary>>": HEADERS,
}


def struct(*columns: tuple[str, str] | tuple[str, str, bool]) -> types.StructType:
    fields = [types.StructField(column[0], OF[column[1]], column[2] if len(column) > 2 else True) for column in columns]
    return types.StructType(fields)


def everything() -> types.StructType:
    return struct(*SPARK_TYPES.items())


def batch(**columns: list[object]) -> pa.RecordBatch:
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_pydict(
        {name: pa.array(v, schema.field(name).type) for name, v in columns.items()}, schema
    )


def test_the_default_schema_is_the_connectors() -> None:
    assert read_schema(False) == (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    assert read_schema(True) == read_schema(False) + ", headers array<struct<key:string,value:binary>>"


def test_arrow_types_are_those_that_spark_expects() -> None:
    pytest.importorskip("pyspark", "4.2")
    from pyspark.sql.pandas.types import to_arrow_schema

    for schema in (everything(), struct(("offset", "bigint", False), ("value", "binary"), ("topic", "string", False))):
        assert projection(schema).arrow.equals(to_arrow_schema(schema, timezone="UTC"))
    assert projection(everything()).columns == COLUMNS


def test_timestamps_become_microseconds_and_saturate() -> None:
    wanted = projection(struct(("timestamp", "timestamp")))
    times = [0, -1, 1_700_000_000_123, MAX_MS, MAX_MS + 1, (1 << 63) - 1, MIN_MS - 1, -(1 << 63)]
    column = pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    found = wanted.to_spark(pa.RecordBatch.from_arrays([column], names=["timestamp"]))
    assert found.column(0).cast(pa.int64()).to_pylist() == [
        0,
        -1000,
        1_700_000_000_123_000,
        MAX_MS * 1000,
        MAX_MS * 1000,
        MAX_MS * 1000,
        MIN_MS * 1000,
        MIN_MS * 1000,
    ]
    assert found.schema.field(0).type == pa.timestamp("us", "UTC")


def test_columns_come_in_the_order_of_the_schema() -> None:
    wanted = projection(struct(("value", "binary"), ("offset", "bigint"), ("headers", SPARK_TYPES["headers"])))
    rows = batch(offset=[7], headers=[[{"key": "h", "value": None}]], value=[b"v"], topic=["t"])
    found = wanted.to_spark(rows)
    assert found.schema.names == ["value", "offset", "headers"]
    assert found.schema.field("headers").type == HEADERS_TYPE
    assert found.to_pylist() == [{"value": b"v", "offset": 7, "headers": [{"key": "h", "value": None}]}]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (struct(("timestamptype", "int")), "column 'timestamptype' (did you mean 'timestampType'?)"),
        (struct(("value", "string")), "Column 'value' must have the type binary, but has the type string"),
        (struct(("key", "binary"), ("key", "binary")), "contains the column 'key' twice"),
        (struct(("headers", SPARK_TYPES["headers"], False)), "can contain nulls"),
        (struct(), "must contain at least one of the columns"),
    ],
)
def test_wrong_read_schemas(schema: types.StructType, expected: str) -> None:
    with pytest.raises(BadRequest) as error:
        projection(schema)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("options", "schema", "expected"),
    [
        ({"columns": "value, timestamp"}, None, ["value", "timestamp"]),
        ({"columns": "value", "includeHeaders": "true"}, None, ["value", "headers"]),
        ({"columns": "headers,value", "includeHeaders": "true"}, None, ["headers", "value"]),
        ({"columns": "value"}, struct(("value", "binary")), ["value"]),
        ({"columns": ""}, None, "contains the unknown column ''; the columns are key, value, topic"),
        ({"columns": "value,"}, None, "contains the unknown column ''; the columns are"),
        ({"columns": "value,timestamptype"}, None, "column 'timestamptype' (did you mean 'timestampType'?); the"),
        ({"columns": "value,key,value"}, None, "Option 'columns' contains 'value' twice: remove one"),
        (
            {"columns": "key,value"},
            struct(("value", "binary")),
            "(key,value) conflicts with the schema (value) of the read",
        ),
    ],
)
@pytest.mark.parametrize("read", ["reader", "streamReader"])
def test_the_option_columns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    schema: types.StructType | None,
    expected: list[str] | str,
    read: str,
) -> None:
    pytest.importorskip("pyspark", "4.2")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from sparklog.datasource.data_source import SparklogDataSource
    from sparklog.datasource.spark_workers import HIDE_TRACEBACK

    monkeypatch.setenv(HIDE_TRACEBACK, "")
    sparklog.open(tmp_path, create=True).ensure_topic("t").append(pa.table({"value": [b"v"]}))

    def columns_read() -> list[str]:
        first = {"startingOffsets": "earliest"} if read == "streamReader" else {}
        source = SparklogDataSource({"path": f"{tmp_path}/t", **first, **options})
        listed = [each.split(" ")[0] for each in str(source.schema()).split(", ")]
        reader = getattr(source, read)(schema or struct(*((name, SPARK_TYPES[name]) for name in listed)))
        bounds = ()
        if read == "streamReader":
            start = reader.initialOffset()
            bounds = (start, reader.latestOffset(start, ReadAllAvailable()))
        return [name for task in reader.partitions(*bounds) for each in reader.read(task) for name in each.schema.names]

    if isinstance(expected, list):
        assert columns_read() == expected
        return
    with pytest.raises(Exception, match=re.escape(expected)) as error:
        columns_read()
    assert "\n" not in str(error.value)


def test_write_columns() -> None:
    schema = struct(
        ("Key", "string"), ("value", "binary"), ("junk", "bigint"), ("TOPIC", "string"), ("partition", "int")
    )
    assert write_columns(schema, None) == ("key", "value", "topic", "partition")
    # The option overrides the column, regardless of its type.
    assert write_columns(struct(("value", "binary"), ("topic", "int")), "t") == ("value",)
    rows = pa.RecordBatch.from_pydict({"Key": ["k"], "value": [b"v"], "junk": [1], "TOPIC": ["t"]})
    assert {name: column.to_pylist() for name, column in pick(rows, ["topic", "key"]).items()} == {
        "topic": ["t"],
        "key": ["k"],
    }


@pytest.mark.parametrize(
    ("schema", "topic", "expected"),
    [
        (struct(("key", "string")), "t", "A column 'value' (string or binary) is required; the columns are key"),
        (struct(("value", "int")), "t", "Column 'value' must be string or binary but is int: cast the column"),
        (struct(("value", "string"), ("partition", "bigint")), "t", "Column 'partition' must be int but is bigint"),
        (
            struct(("value", "string"), ("timestamp", "bigint")),
            "t",
            "Column 'timestamp' must be timestamp but is bigint",
        ),
        (struct(("value", "string"), ("headers", "string")), "t", "Column 'headers' must be array<struct<key:string"),
        (struct(("value", "string"), ("VALUE", "string")), "t", "two columns named 'value'"),
        (struct(("value", "string")), None, "No topic: set the option 'topic'"),
    ],
)
def test_wrong_write_schemas(schema: types.StructType, topic: str | None, expected: str) -> None:
    with pytest.raises(BadRequest) as error:
        write_columns(schema, topic)
    assert expected in str(error.value)
