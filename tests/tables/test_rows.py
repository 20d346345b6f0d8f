"""Conversion of records to rows, and bad records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from sparklog import formats
from sparklog.errors import BadRequest, advice_for_shell
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.tables.option_names import option_name, option_value
from sparklog.tables.rows import (
    BAD_RECORD_SCHEMA,
    MAX_MS,
    NO_KEY,
    TOMBSTONE,
    DecodedRows,
    NewColumns,
    RowOptions,
    bad_records,
    can_cast,
    conform,
    missing_columns,
    row_decoder,
)

AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}


def records(keys: Sequence[bytes | None], values: Sequence[bytes | None], **columns: Any) -> pa.RecordBatch:
    count = len(values)
    given = {"key": keys, "value": values, "partition": [3] * count, "offset": list(range(7, 7 + count))}
    given |= {"timestamp": [1000] * count, "headers": [[]] * count, **columns}
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in given])
    return pa.RecordBatch.from_arrays([pa.array(given[item.name], item.type) for item in schema], schema=schema)


def decode(options: RowOptions, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> DecodedRows:
    decoder = row_decoder(options, "t")
    decoded = decoder.decode(records(keys, values).select(decoder.columns))
    assert decoded.rows.schema.names == decoder.schema.names
    assert all(can_cast(item.type, decoder.schema.field(item.name).type) for item in decoded.rows.schema)
    return decoded


def test_raw_rows_have_the_position_of_the_record() -> None:
    decoded = decode(RowOptions(), [None, b"k"], [b"\xff", None])
    assert decoded.rows.to_pylist()[0] | {"_timestamp": None} == {
        "key": None, "value": b"\xff", "_headers": [],
        "_topic": "t", "_partition_id": 3, "_offset": 7, "_timestamp": None
    }  # fmt: skip
    assert decoded.rows["_timestamp"].cast(pa.int64()).to_pylist() == [1_000_000] * 2
    assert (decoded.reasons, decoded.deleted) == ({}, None)


def test_rows_without_headers_and_metadata() -> None:
    decoded = decode(RowOptions(headers=False, metadata=False), [b"k"], [b"v"])
    assert decoded.rows.to_pylist() == [{"key": b"k", "value": b"v"}]


@pytest.mark.parametrize("ms", [2**63 - 1, -(2**63), -1, 0])
def test_timestamps_are_clipped(ms: int) -> None:
    decoder = row_decoder(RowOptions(), "t")
    decoded = decoder.decode(records([None], [b"v"], timestamp=[ms]).select(decoder.columns))
    assert decoded.rows["_timestamp"].cast(pa.int64()).to_pylist() == [max(-MAX_MS, min(ms, MAX_MS)) * 1000]


def test_string_rows() -> None:
    decoded = decode(RowOptions("string"), [b"k", b"\xff", None], ["é".encode(), b"v", b"\xff"])
    assert decoded.reasons == {1: "the key is not UTF-8", 2: "the value is not UTF-8"}
    rows, _, valid = decoded.valid(records([None] * 3, [None] * 3))
    assert rows.select(["key", "value"]).to_pylist() == [{"key": "k", "value": "é"}]
    assert valid["offset"].to_pylist() == [7]


def test_json_rows_with_a_key_column_that_is_not_in_the_value() -> None:
    options = RowOptions("json", schema="id BIGINT NOT NULL, name STRING", key_columns=("user",))
    decoded = decode(
        options, [b"u", None, b"\xff", b"u"], [b'{"id": 1}', b'{"id": 2, "name": "x"}', b'{"id": 3}', b"{}"]
    )
    assert decoded.rows.schema.names[:3] == ["user", "id", "name"]
    assert decoded.reasons == {2: "the key does not match user string", 3: "column id is null"}
    assert decoded.rows["user"].to_pylist()[:2] == ["u", None]


def test_key_columns_replace_the_columns_of_the_value() -> None:
    options = RowOptions("json", upsert=True, schema="id BIGINT, name STRING", key_columns=("id",))
    decoded = decode(options, [b"1", b"x", None, b"4"], [b'{"id": 9}', b"{}", b"{}", None])
    assert decoded.reasons == {1: "the key does not match id bigint", 2: NO_KEY}
    assert decoded.deleted is not None
    assert decoded.deleted.to_pylist() == [False, False, False, True]
    assert [decoded.rows["id"][row].as_py() for row in (0, 3)] == [1, 4]
    assert not row_decoder(options, "t").schema.field("id").nullable


def test_several_key_columns_are_a_json_object() -> None:
    options = RowOptions("json", upsert=True, schema="a INT, b STRING, c INT", key_columns=("b", "a"))
    keys = [b'{"a": 1, "b": "x"}', b'{"a": 1}', b"x"]
    decoded = decode(options, keys, [b'{"c": 5}'] * 3)
    assert set(decoded.reasons.values()) == {"the key is not a JSON object with b, a"}
    assert set(decoded.reasons) == {1, 2}
    assert decoded.rows.select(["a", "b", "c"]).to_pylist()[0] == {"a": 1, "b": "x", "c": 5}


def test_tombstones_are_bad_records_of_appended_values() -> None:
    assert decode(RowOptions("json", schema="a INT"), [None], [None]).reasons == {0: TOMBSTONE}


def test_avro_rows() -> None:
    options = RowOptions("avro", schema=AVRO)
    value = formats.encode(pa.array([{"id": 1, "name": "x"}]), "avro", AVRO)[0].as_py()
    decoded = decode(options, [None] * 3, [value, b"\x02", value + b"\0"])
    assert decoded.rows.select(["id", "name"]).to_pylist()[0] == {"id": 1, "name": "x"}
    assert set(decoded.reasons) == {1, 2}
    assert "1 byte after the value" in decoded.reasons[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"payload": "jsn", "schema": "a INT"}, "expected a payload of raw, .* found 'jsn'; did you mean 'json'"),
        ({"payload": "json"}, "payload='json' requires schema"),
        ({"payload": "raw", "schema": "a INT"}, "schema and key_columns cannot be used with payload='raw'"),
        ({"payload": "json", "schema": "a INT", "upsert": True}, "mode='upsert' requires key_columns"),
        ({"payload": "json", "schema": "a INT", "key_columns": ("a", "A")}, "key_columns must be distinct"),
        ({"payload": "json", "schema": "a INT, name INT", "key_columns": ("a", "nam")}, "did you mean 'name'"),
        (
            {"payload": "json", "schema": "a ARRAY<INT>", "key_columns": ("a",)},
            "text of a key cannot be converted to the column a array<int>",
        ),
        ({"payload": "json", "schema": "_offset INT"}, "would contain column _offset twice"),
        (
            {"payload": "json", "schema": "_Offset INT"},
            "would contain column _offset twice, because names",
        ),
        ({"payload": "json", "schema": "s ARRAY<STRUCT<a: INT, A: INT>>"}, r"would contain column s\.item\.A twice"),
        ({"payload": "json", "schema": "s STRUCT<b: STRUCT<a: INT, A: INT>>"}, r"would contain column s\.b\.A twice"),
        ({"payload": "avro", "schema": '"string"'}, "payload='avro' requires a record schema"),
        ({"payload": "long"}, "payload='long' requires a record schema"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        row_decoder(RowOptions(**options), "t")


@pytest.mark.parametrize("kind", ["STRING", "BIGINT"])
def test_keys_of_a_schema_registry_are_bad_records(kind: str) -> None:
    decoder = row_decoder(RowOptions("json", True, f"id {kind}, name STRING", ("id",)), "t")
    decoded = decoder.decode(records([b"\0\0\0\0\7\2a", b"1", b"\0\0\0\0\7"], [b"{}"] * 3))
    reason = "the key has the prefix of a schema registry, but it must be text"
    assert decoded.reasons == {0: reason, 2: reason}


def test_options_are_named_as_the_user_writes_them() -> None:
    assert (option_name("key_columns"), option_value("mode", "upsert")) == ("key_columns", "mode='upsert'")
    with advice_for_shell():
        assert (option_name("key_columns"), option_value("mode", "upsert")) == ("--key-columns", "--mode upsert")


def test_messages_of_commands_name_their_options() -> None:
    with advice_for_shell(), pytest.raises(BadRequest, match="--payload json requires --schema: columns such as"):
        RowOptions("json")
    with advice_for_shell(), pytest.raises(BadRequest, match="--mode upsert requires --key-columns"):
        RowOptions("json", schema="a INT", upsert=True)


def test_bad_records_are_complete() -> None:
    batch = bad_records(records([b"k"] * 3, [b"a", b"b", None]), {2: "second", 1: "first"}, "t")
    assert batch.schema == BAD_RECORD_SCHEMA
    assert [(row["offset"], row["value"], row["reason"]) for row in batch.to_pylist()] == [
        (8, b"b", "first"),
        (9, None, "second"),
    ]


@pytest.mark.parametrize(
    ("kind", "wider", "expected"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), False),
        (pa.decimal128(5, 2), pa.decimal128(7, 2), True),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), False),
        (pa.string(), pa.large_string(), True),
        (pa.binary(), pa.string(), False),
        (pa.binary(2), pa.binary(), True),
        (pa.binary(), pa.binary(2), False),
        (pa.binary(2), pa.binary(3), False),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), True),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32()), ("a", pa.int64())]), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())]), False),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), True),
    ],
)
def test_types_can_be_widened(kind: pa.DataType, wider: pa.DataType, expected: bool) -> None:
    assert can_cast(kind, wider) is expected


def test_missing_columns() -> None:
    table = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string())])
    wider = pa.schema([pa.field("a", pa.int64()), pa.field("c", pa.string(), nullable=False)])
    assert missing_columns("t", table, wider) == [pa.field("a", pa.int64()), pa.field("c", pa.string())]
    assert missing_columns("t", table, pa.schema([("a", pa.int16())])) == []
    with pytest.raises(BadRequest, match="column a of table t has the type int, but the records have the type string"):
        missing_columns("t", table, pa.schema([("a", pa.string())]))
    with pytest.raises(BadRequest, match="column z of table t must not be null, but the records do not contain it"):
        missing_columns("t", table.append(pa.field("z", pa.int32(), nullable=False)), table)


def test_rows_conform_to_the_table() -> None:
    rows = pa.RecordBatch.from_pydict({"b": ["x"], "a": pa.array([1], pa.int16())})
    schema = pa.schema(
        [pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "1"}), ("z", pa.int8()), ("b", pa.string())]
    )
    result = conform(rows, schema)
    assert result.schema.equals(schema, check_metadata=True)
    assert result.to_pylist() == [{"a": 1, "z": None, "b": "x"}]
    for other in (pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int8()), ("b", pa.string())])):
        with pytest.raises(NewColumns):
            conform(rows, other)
