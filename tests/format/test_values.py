"""Test values that are not strings: the layouts of Kafka's serializers, round trips of columns, and errors of invalid
rows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog import formats
from sparklog.errors import BadRequest
from sparklog.formats import open_format

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "marks", "type": {"type": "map", "values": "int"}, "default": {}},
    ],
}
OLD_ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
ORDERS = [{"id": 1, "item": "book", "marks": [("a", 1)]}, None, {"id": 2, "item": None, "marks": []}]
RECURSIVE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
LOGICAL = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "list", "type": {"type": "array", "items": "float"}},
        {"name": "again", "type": "Hash"},
    ],
}


@pytest.fixture
def avro() -> None:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        # Bytes written by the serializers of kafka-clients 4.1.0.
        ("short", -2, "fffe"),
        ("integer", -123456789, "f8a432eb"),
        ("long", 1234567890123456789, "112210f47de98115"),
        ("float", -1.5, "bfc00000"),
        ("double", 3.141592653589793, "400921fb54442d18"),
        ("string", "é", "c3a9"),
    ],
)
def test_layouts_match_kafkas_serializers(name: str, value: object, written: str) -> None:
    assert formats.encode(pa.array([value]), name).to_pylist() == [bytes.fromhex(written)]
    assert formats.decode(pa.array([bytes.fromhex(written)]), name).to_pylist() == [value]


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("short", [1, None, -(2**15)], [b"1", None, b"-32768"]),
        ("integer", [None, 2**31 - 1, 0], [None, b"2147483647", b"0"]),
        ("long", [2**63 - 1, None, -1], [b"9223372036854775807", None, b"-1"]),
        ("float", [1.5, None, 3.0], [b"1.5", None, b"3.0"]),
        ("double", [0.1, -math.inf, None], [b"0.1", b"-Infinity", None]),
        ("string", ["", None, "é"], [b"", None, "é".encode()]),
        ("hex", ["00ff", "", None], [b"00ff", b"", None]),
        ("base64", ["AP8=", None, ""], [b"AP8=", None, b""]),
        ("json", [{"a": 1}, None, {"a": 2}], [b'{"a": 1}', None, b'{"a": 2}']),
    ],
)
def test_columns_round_trip(name: str, values: list[Any], text: list[bytes | None]) -> None:
    """Columns are converted as values and as text, including slices of other columns and chunked columns."""
    one, column = open_format(name), pa.array(values)
    written = formats.encode(column, name)
    assert written.type == pa.binary()
    assert formats.decode(written, name).to_pylist() == values
    assert one.show(written).to_pylist() == text
    assert one.parse(pa.array(text, pa.binary())).equals(written)
    assert formats.decode(written.slice(1), name).to_pylist() == values[1:]
    assert formats.encode(column.slice(1), name).to_pylist() == written.to_pylist()[1:]
    chunks = pa.chunked_array([written.slice(0, 1), written.slice(1), written.slice(0, 0)])
    assert formats.decode(chunks, name).to_pylist() == values
    assert formats.decode(written.slice(0, 0), name).to_pylist() == []
    assert formats.encode(pa.chunked_array([], column.type), name).to_pylist() == []


def test_null_rows_may_have_bytes() -> None:
    bits, offsets = pa.py_buffer(bytes([0b101])), pa.py_buffer(np.array([0, 2, 5, 7], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 3, [bits, offsets, pa.py_buffer(b"\0\1xyz\0\2")])
    assert formats.decode(column, "short").to_pylist() == [1, None, 2]
    assert formats.decode(column.slice(1), "short").to_pylist() == [None, 2]
    for name in ("short", "hex", "json"):
        nulls = formats.encode(pa.nulls(2), name)
        assert nulls.to_pylist() == formats.decode(nulls, name).to_pylist() == [None, None]
        assert len(formats.encode(pa.array([], pa.int64()), name)) == len(formats.decode(pa.nulls(0), name)) == 0


def test_alternative_spellings_are_parsed() -> None:
    for name, text, written in (
        ("hex", "0xFF", b"\xff"),
        ("base64", "_-8=", b"\xff\xef"),
        ("double", "1e3", b"\x40\x8f\x40\0\0\0\0\0"),
        ("json", '{"a":\n1}', b'{"a":\n1}'),
    ):
        assert open_format(name).parse(pa.array([text])).to_pylist() == [written]
    assert open_format("json").show(pa.array([b'{"a":\r\n1}'])).to_pylist() == [b'{"a": 1}']
    assert formats.decode(pa.array([b"1"]), "json", arrow_type=pa.float64()).to_pylist() == [1.0]
    numbers = formats.encode(pa.chunked_array([["1"], ["2"]]), "integer")
    assert formats.decode(numbers, "integer", arrow_type=pa.int64()).to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("way", "name", "rows", "says"),
    [
        ("decode", "long", [b"12345678", b"1234567"], "row 1: expected 8 bytes of a long, found 7 bytes: '1234567'"),
        ("decode", "integer", [b""], "row 0: expected 4 bytes of an integer, found 0 bytes"),
        ("decode", "string", [b"a", None, b"\xff"], "row 2: expected a string in UTF-8, found 1 byte: 0xff"),
        ("decode", "json", [b"1", b"{"], "row 1: expected JSON, found 1 byte: '{' (Expecting"),
        ("decode", "json", [b"NaN"], "row 0: expected JSON, found 3 bytes: 'NaN' (NaN is not valid JSON)"),
        ("show", "json", [b"[" * 100_000], f"expected JSON, found 100000 bytes: '{'[' * 40}'… (nested too deeply)"),
        ("decode", "json", [b"1", b'"x"'], "row 0 and later rows: expected JSON, all of the same type: Could not"),
        ("decode", "lnog", [b""], "found 'lnog'; did you mean 'long'?"),
        ("encode", "integer", [1, 2**31], "row 1: expected an integer, found 2147483648"),
        ("encode", "long", [1.5], "row 0: expected a long, found 1.5"),
        ("encode", "long", [[1]], "row 0: expected a long, found [1]"),
        ("encode", "json", [b"\xff"], "row 0: expected JSON, found 1 byte: 0xff (Object of type bytes"),
        ("encode", "json", [math.nan], "row 0: expected JSON, found nan (Out of range float"),
        ("parse", "long", ["7", "x" * 100], f"row 1: expected a long, found '{'x' * 79}…"),
        ("parse", "hex", ["0x1"], "row 0: expected hexadecimal digits, two per byte, found '0x1'"),
        ("parse", "base64", ["AP8=", "a"], "row 1: expected base64, found 'a'"),
        ("parse", "double", [b"\xff"], "row 0: expected a string in UTF-8, found 1 byte: 0xff"),
    ],
)
def test_error_of_invalid_row_is_one_line(way: str, name: str, rows: list[Any], says: str) -> None:
    with pytest.raises(BadRequest) as error:
        getattr(open_format(name), way)(pa.array(rows))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("avro")
@pytest.mark.parametrize(
    ("name", "schema", "rows", "values", "says"),
    [
        (
            "long",
            None,
            [b"\0" * 8, b"", None, b"123"],
            [0, None, None, None],
            "8 bytes of a long, found 3 bytes: '123'",
        ),
        ("string", None, [b"a", b"", None, b"\xff"], ["a", "", None, None], "a string in UTF-8, found 1 byte: 0xff"),
        ("json", None, [b'{"a": 1}', None, b"{", b"nope"], [{"a": 1}, None, None, None], "JSON, found 4 bytes: 'nope'"),
        ("hex", None, [b"a", b"\xff"], ["61", "ff"], None),
        ("avro", '"int"', [b"\2", None, b"", b"\4z"], [1, None, None, None], "Avro of schema int, found 2 bytes"),
    ],
)
def test_valid_rows_are_decoded_and_invalid_rows_have_reasons(
    name: str, schema: Any, rows: list[Any], values: list[Any], says: str | None
) -> None:
    """Invalid rows of columns, of slices, and of chunked columns are null and have the reason of `decode`."""
    one, column = open_format(name, schema), pa.array(rows, pa.binary())
    expected = {row for row, cell in enumerate(rows) if cell is not None and values[row] is None}
    chunks = pa.chunked_array([column.slice(0, 1), column.slice(1), column.slice(0, 0)])
    kind = one.arrow_type() or pa.struct([("a", pa.int64())])
    for found, reasons in (
        one.decode_valid(column),
        one.decode_valid(chunks),
        one.decode_valid(pa.array([b"?", *rows], pa.binary()).slice(1), kind),
    ):
        assert (found.type, found.to_pylist(), set(reasons)) == (kind, values, expected)
        if says is not None:
            assert reasons[len(rows) - 1].startswith(f"expected {says}")
    for row, reason in one.decode_valid(column)[1].items():
        with pytest.raises(BadRequest) as error:
            one.decode(column.slice(row, 1))
        assert str(error.value) == f"row 0: {reason}"


def test_errors_that_do_not_depend_on_a_row_are_raised() -> None:
    with pytest.raises(BadRequest, match="row 0 and later rows: expected JSON, all of the same type"):
        open_format("json").decode_valid(pa.array([b"1", b'"x"', b"{"]))
    values, reasons = open_format("json").decode_valid(pa.array([b"1", b'"x"', b"{"]), pa.int64())
    assert (values.to_pylist(), sorted(reasons)) == ([1, None, None], [1, 2])


def test_arrow_type_is_the_type_of_decoded_values() -> None:
    for name, cell in (("string", b"a"), ("short", b"12"), ("double", b"12345678"), ("hex", b"a"), ("base64", b"a")):
        assert formats.decode(pa.array([cell]), name).type == open_format(name).arrow_type()


def test_error_reports_topic_partition_and_offset() -> None:
    values = pa.chunked_array([[b"12345678"], [None, b"xxx"]])
    columns = {"topic": ["t"] * 3, "partition": [1] * 3, "offset": [5, 6, 7], "key": [b"k"] * 3, "value": values}
    table = pa.table(columns)
    with pytest.raises(BadRequest, match=r"^value of topic t, partition 1, offset 7: expected 8 bytes of a long"):
        formats.decode_records(table, key="string", value="long")
    with pytest.raises(BadRequest, match=r"^value of row 2: expected 8 bytes of a long"):
        formats.decode_records(table.select(["value"]), value="long")
    with pytest.raises(BadRequest, match=r"^key of row 0: expected a short"):
        formats.encode_records(table, key="short")
    with pytest.raises(BadRequest, match=r"^expected a column key, found value$"):
        formats.decode_records(table.select(["value"]), key="long")
    with pytest.raises(BadRequest, match=r"^key_schema requires key='avro' or "):
        formats.decode_records(table, key_schema="x")
    batch = table.slice(0, 1).combine_chunks().to_batches()[0]
    assert formats.decode_records(batch, value="long").to_pylist()[0]["value"] == int.from_bytes(b"12345678", "big")


@pytest.mark.usefixtures("avro")
@pytest.mark.parametrize(("schema", "frame"), [(ORDER, b""), ({7: OLD_ORDER, 8: ORDER}, b"\0\0\0\0\x08")])
def test_avro_plain_and_framed(schema: Any, frame: bytes) -> None:
    kind = pa.struct([("id", pa.int64()), ("item", pa.string()), ("marks", pa.map_(pa.string(), pa.int32()))])
    written = formats.encode(pa.array(ORDERS, kind), "avro", schema)
    assert written.to_pylist() == [frame + b"\x02\x02\x08book\x02\x02a\x02\x00", None, frame + b"\x04\x00\x00"]
    read = formats.decode(written, "avro", schema)
    assert (read.type, read.to_pylist()) == (kind, ORDERS)
    one = open_format("avro", schema)
    text = [b'{"id": 1, "item": {"string": "book"}, "marks": {"a": 1}}', None, b'{"id": 2, "item": null, "marks": {}}']
    assert one.show(written).to_pylist() == text
    assert one.parse(pa.array(text)).equals(written)


@pytest.mark.usefixtures("avro")
def test_values_of_older_schema_are_converted_to_the_last(tmp_path: Path) -> None:
    old = formats.encode(pa.array([{"id": 5}]), "avro", {7: OLD_ORDER})
    assert formats.decode(old, "avro", {7: OLD_ORDER, 8: ORDER}).to_pylist() == [{"id": 5, "item": None, "marks": []}]
    assert open_format("avro", {7: OLD_ORDER, 8: ORDER}).show(old).to_pylist() == [b'{"id": 5}']
    file = tmp_path / "int.avsc"
    file.write_text('"int"')
    for schema in (file, str(file), '"int"', {"type": "int"}):
        assert formats.decode(pa.array([b"\x02"]), "avro", schema).to_pylist() == [1]


@pytest.mark.usefixtures("avro")
def test_arrow_types_of_avro_schemas() -> None:
    text = '{"day": 1, "at": 1700000000123, "price": "}", "kind": "B", "hash": "ab", "list": [1.5], "again": "cd"}'
    one = open_format("avro", LOGICAL)
    read = one.decode(one.parse(pa.array([text])))
    row = read.to_pylist()[0]
    assert (str(row["day"]), str(row["price"]), row["kind"], row["hash"]) == ("1970-01-02", "1.25", "B", b"ab")
    assert read.field("at").cast(pa.int64()).to_pylist() == [1700000000123]
    assert one.encode(read).equals(one.parse(pa.array([text])))


@pytest.mark.usefixtures("avro")
def test_uuids_of_avro_are_strings_or_bytes() -> None:
    fields = [
        {"name": "text", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "more", "type": {"type": "array", "items": ["null", {"type": "string", "logicalType": "uuid"}]}},
        {"name": "data", "type": {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}},
    ]
    one = open_format("avro", {"type": "record", "name": "R", "fields": fields})
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    rows = [{"text": uuid, "more": [uuid, None], "data": bytes(range(16))}]
    read = one.decode(one.encode(pa.array(rows)))
    assert (read.type, read.to_pylist()) == (
        pa.struct([("text", pa.string()), ("more", pa.list_(pa.string())), ("data", pa.binary(16))]), rows,
    )  # fmt: skip
    text = one.show(one.encode(read))
    assert one.parse(text).equals(one.encode(read))


@pytest.mark.usefixtures("avro")
@pytest.mark.parametrize(
    ("way", "schema", "row", "says"),
    [
        ("decode", ORDER, b"\x02", "expected Avro of schema Order, found 1 byte: 0x02 (the bytes are truncated)"),
        ("decode", ORDER, b"\x02\0\0zz", "(2 bytes after the value)"),
        ("show", {8: ORDER}, b"\0\0\0\0\x07\x02", "(schema id 7 is unknown; known ids: 8)"),
        (
            "show",
            {8: ORDER},
            b"{}",
            "expected a schema registry header (0, schema id) and Avro, found 2 bytes: '{}' (no schema registry",
        ),
        ("decode", {7: '"string"', 8: ORDER}, b"\0\0\0\0\x07\x02a", "expected a schema registry header"),
        (
            "parse",
            ORDER,
            '{"id": 1, "item": "x", "marks": {}}',
            """(item: expected null or {"string": ...} for a union, found "x")""",
        ),
        (
            "parse",
            ORDER,
            '{"id": "x"}',
            'expected a value of schema Order, found \'{"id": "x"}\' (id: expected a long, found "x")',
        ),
        ("parse", ORDER, "nope", "found 'nope' (Expecting value"),
        ("encode", ORDER, {"idd": 1}, "record contains more fields than the schema specifies: idd)"),
        ("decode", {"type": "recrd"}, b"", "expected an Avro schema, found \"{'type': 'recrd'}\": UnknownType"),
        ("decode", "/no/such/file", b"", "file /no/such/file with an Avro schema cannot be read: No such file"),
        ("decode", "{", b"", "expected an Avro schema as JSON; the schema is invalid: Expecting"),
        ("decode", RECURSIVE, b"\0", "field next: an Arrow column cannot have the recursive type Node: specify"),
        ("decode", ["int", "string"], b"\0\2", "column cannot have a union of 2 types (int, string): specify arrow"),
    ],
)
def test_error_of_invalid_avro_is_one_line(way: str, schema: Any, row: Any, says: str) -> None:
    with pytest.raises(BadRequest) as error:
        getattr(open_format("avro", schema), way)(pa.array([row]))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("avro")
def test_arbitrary_bytes_raise_only_bad_request() -> None:
    """Random bytes, and valid bytes with one changed byte, are decoded or rejected."""
    chance = np.random.default_rng(7)
    good = b"\x02\x02\x08book\x02\x02a\x02\x00"
    one, refused = open_format("avro", ORDER), 0
    for _ in range(300):
        cell = bytearray(good)
        cell[chance.integers(len(cell))] = chance.integers(256)
        try:
            one.show(pa.array([bytes(cell)]))
        except BadRequest:
            refused += 1
    assert 100 < refused < 300


def test_schema_requires_a_format_with_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, schema, says in (
        ("avro", None, "the format avro requires a schema"),
        ("long", '"long"', "json-schema and protobuf have schemas: omit the schema for the format long"),
    ):
        with pytest.raises(BadRequest, match=says):
            formats.decode(pa.array([b""]), name, schema)
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with pytest.raises(BadRequest, match=r'requires fastavro: python -m pip install "fastavro'):
        formats.decode(pa.array([b""]), "avro", '"long"')
