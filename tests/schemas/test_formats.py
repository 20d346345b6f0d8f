"""Test formats with schemas of a registry: columns, text, different schemas in a column, and invalid rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog import formats
from sparklog.errors import BadRequest, Unavailable
from sparklog.formats import open_format
from sparklog.schemas.registry import SchemaRegistry
from tests.support.servers.schema_registry import FakeRegistry

ITEM = {"name": "item", "type": ["null", "string"], "default": None}
OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], ITEM]}


def frame(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


@pytest.fixture
def avro() -> None:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")


@pytest.mark.usefixtures("avro")
def test_avro_of_a_subject(server: FakeRegistry) -> None:
    """Values are written with the latest schema, and read as the latest schema."""
    first = server.register("t-value", OLD)
    registry = SchemaRegistry(server.url)
    old = formats.encode(pa.array([{"id": 1}, None]), "avro", registry.subject("t-value"))
    assert old.to_pylist() == [frame(first, b"\2"), None]
    second = server.register("t-value", NEW)
    registry = SchemaRegistry(server.url)
    one = open_format("avro", registry.subject("t-value"))
    kind = pa.struct([("id", pa.int64()), ("item", pa.string())])
    assert one.arrow_type() == kind
    column = pa.array([*old.to_pylist(), frame(second, b"\4\2\2x")])
    decoded = one.decode(column)
    assert (decoded.type, decoded.to_pylist()) == (kind, [{"id": 1, "item": None}, None, {"id": 2, "item": "x"}])
    text = [b'{"id": 1}', None, b'{"id": 2, "item": {"string": "x"}}']
    assert one.show(column).to_pylist() == text
    assert one.parse(pa.array(text).slice(1)).to_pylist() == column.to_pylist()[1:]
    assert pickle.loads(pickle.dumps(one)).decode(column).equals(decoded)


@pytest.mark.usefixtures("avro")
def test_avro_of_a_registry_has_the_type_of_the_greatest_id(server: FakeRegistry) -> None:
    ids = [server.register("t-value", OLD), server.register("t-value", NEW)]
    registry = SchemaRegistry(server.url)
    rows = [frame(ids[1], b"\4\0"), None, frame(ids[0], b"\2")]
    expected = [{"id": 2, "item": None}, None, {"id": 1, "item": None}]
    assert formats.decode(pa.array(rows), "avro", registry).to_pylist() == expected
    chunks = pa.chunked_array([pa.array(rows[2:]), pa.array(rows[:2])])
    assert formats.decode(chunks, "avro", registry).to_pylist() == [expected[2], *expected[:2]]
    assert formats.decode(pa.array(rows[2:]), "avro", registry).to_pylist() == [{"id": 1}]
    assert formats.decode(pa.nulls(2), "avro", registry).to_pylist() == [None, None]
    assert open_format("avro", registry).arrow_type() is None
    with pytest.raises(BadRequest, match="does not determine the schema to write: specify the subject"):
        formats.encode(pa.array([{"id": 1}]), "avro", registry)


@pytest.mark.usefixtures("avro")
def test_invalid_rows_have_reasons(server: FakeRegistry) -> None:
    number = server.register("t-value", OLD)
    json_id = server.register("u-value", "{}", "JSON")
    registry = SchemaRegistry(server.url)
    rows = [
        frame(number, b"\2"),
        frame(99, b"\2"),
        frame(number, b"\2\2"),
        frame(number, b""),
        b"\0",
        b"\1" + frame(number, b"\2")[1:],
        frame(json_id, b"{}"),
        None,
    ]
    reasons = {
        1: f"(the schema registry {server.url} does not contain schema id 99)",
        2: "(1 byte after the value)",
        3: "(the bytes are truncated)",
        4: "(no schema registry header)",
        5: "(no schema registry header)",
        6: f"(schema id {json_id} has the format json-schema, not avro)",
    }
    for schema in (registry, registry.subject("t-value")):
        requests = len(server.requests)
        values, invalid = open_format("avro", schema).decode_valid(pa.array(rows))
        assert values.to_pylist() == [{"id": 1}, *[None] * 7]
        assert set(invalid) == set(reasons)
        for row, reason in reasons.items():
            assert invalid[row].startswith("expected a schema registry header (0, schema id) and Avro, found")
            assert invalid[row].endswith(reason)
        assert len(server.requests) - requests <= 4
    with pytest.raises(
        BadRequest, match=r"^row 1: expected a schema registry header.* does not contain schema id 99\)$"
    ):
        formats.decode(pa.array(rows), "avro", registry.subject("t-value"))


@pytest.mark.usefixtures("avro")
def test_unavailable_registry_is_not_an_invalid_row(server: FakeRegistry) -> None:
    server.fail = lambda request: (401, {"error_code": 401, "message": "Unauthorized"})
    for decode in (open_format("avro", SchemaRegistry(server.url)).decode_valid,):
        with pytest.raises(Unavailable, match="denied access"):
            decode(pa.array([frame(1, b"\2")]))


@pytest.mark.usefixtures("avro")
def test_avro_references(server: FakeRegistry) -> None:
    """A schema refers to named types of other subjects, with and without their namespace."""
    server.register("money", {"type": "record", "name": "Money", "namespace": "shop", "fields": [
        {"name": "cents", "type": "long"},
        {"name": "unit", "type": {"type": "enum", "name": "Unit", "symbols": ["EUR"]}},
    ]})  # fmt: skip
    server.register(
        "item",
        {"type": "record", "name": "shop.Item", "fields": [{"name": "price", "type": "Money"}]},
        references=[{"name": "shop.Money", "subject": "money", "version": 1}],
    )
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "first", "type": "Item"},
        {"name": "rest", "type": {"type": "array", "items": "shop.Item"}},
        {"name": "total", "type": ["null", "Money"]},
        {"name": "unit", "type": "shop.Unit"},
    ]}  # fmt: skip
    references = [{"name": "shop.Item", "subject": "item", "version": 1}]
    server.register("t-value", order, references=references)
    registry = SchemaRegistry(server.url)
    price = {"price": {"cents": 5, "unit": "EUR"}}
    row = {"first": price, "rest": [price], "total": price["price"], "unit": "EUR"}
    written = formats.encode(pa.array([row]), "avro", registry.subject("t-value"))
    assert written.to_pylist()[0][5:] == b"\x0a\0\2\x0a\0\0\2\x0a\0\0"
    assert formats.decode(written, "avro", registry).to_pylist() == [row]
    # A schema that consists of names only, as for topics with several types of records.
    server.register("u-value", ["null", "shop.Item"], references=references)
    two = formats.encode(pa.array([price]), "avro", registry.subject("u-value"))
    assert formats.decode(two, "avro", registry).to_pylist() == [price]


@pytest.mark.usefixtures("avro")
def test_records_are_decoded_with_the_subject_of_their_topic(server: FakeRegistry) -> None:
    ids = [server.register("t-value", OLD), server.register("t-value", NEW)]
    key = server.register("t-key", '"string"')
    registry = SchemaRegistry(server.url)
    columns: dict[str, Any] = {"topic": ["t", "t"], "partition": [0, 0], "offset": [5, 6]}
    columns |= {"key": [frame(key, b"\2k")] * 2, "value": [frame(ids[0], b"\2"), None]}
    records = pa.table(columns)
    options: dict[str, Any] = {"key": "avro", "value": "avro", "key_schema": registry, "value_schema": registry}
    rows = formats.decode_records(records, **options)
    assert rows["value"].to_pylist() == [{"id": 1, "item": None}, None]
    assert rows["key"].to_pylist() == ["k", "k"]
    # The subject of the topic does not exist, for example because the producer has another naming strategy.
    other = records.set_column(0, "topic", pa.array(["u", "u"]))
    assert formats.decode_records(other, **options)["value"].to_pylist() == [{"id": 1}, None]
    wrong = records.set_column(4, "value", pa.array([None, b"x"]))
    with pytest.raises(
        BadRequest, match=r"^value of topic t, partition 0, offset 6: expected a schema registry header"
    ):
        formats.decode_records(wrong, **options)
    encoded = formats.encode_records(rows, value="avro", value_schema=registry.subject("t-value"))
    assert encoded["value"].to_pylist() == [frame(ids[1], b"\2\0"), None]


@pytest.mark.parametrize(
    ("name", "schema_type", "schema", "good"),
    [
        ("avro", "AVRO", NEW, b"\2\2\x08book"),
        ("json-schema", "JSON", {"properties": {"id": {"type": "integer"}}}, b'{"id": 1, "x": ["\xc3\xa9", 2.5]}'),
        ("protobuf", "PROTOBUF", 'syntax = "proto3"; message A { int64 id = 1; string item = 2; }', b"\0\x08\1\x12\1x"),
    ],
)
def test_arbitrary_bytes_are_decoded_or_have_a_reason(
    server: FakeRegistry, name: str, schema_type: str, schema: Any, good: bytes
) -> None:
    """Valid values with changed bytes raise no other error, and valid rows have the value that they have alone."""
    for module in {"avro": ["fastavro"], "protobuf": ["grpc_tools"]}.get(name, []):
        pytest.importorskip(module)
    number = server.register("t-value", schema, schema_type)
    one = open_format(name, SchemaRegistry(server.url).subject("t-value"))
    random = np.random.default_rng(11)
    cells: list[bytes] = []
    for _ in range(300):
        cell = bytearray(frame(number, good))
        for position in random.integers(len(cell), size=random.integers(3)):
            cell[position] = random.integers(256)
        cells.append(bytes(cell[: random.integers(len(cell) + 1)]) if random.random() < 0.3 else bytes(cell))
    values, invalid = one.decode_valid(pa.array(cells))
    values.validate(full=True)
    assert 50 < len(invalid) < 250
    for row, cell in enumerate(cells):
        alone = pa.array([cell])
        if row in invalid:
            with pytest.raises(BadRequest) as error:
                one.decode(alone)
            assert str(error.value) == f"row 0: {invalid[row]}"
        else:
            assert one.decode(alone).to_pylist() == [values[row].as_py()]
            assert one.show(alone).null_count == 0


def test_format_must_be_the_format_of_the_subject(server: FakeRegistry) -> None:
    server.register("t-value", "{}", "JSON")
    with pytest.raises(BadRequest, match="the subject 't-value' has schemas of the format json-schema, not avro: use"):
        open_format("avro", SchemaRegistry(server.url).subject("t-value"))
