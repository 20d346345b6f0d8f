"""Test Protobuf messages with schemas: types of columns, message types, references, JSON, and invalid rows."""

from __future__ import annotations

import base64
import datetime
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import formats
from sparklog.errors import BadRequest
from sparklog.format.protobuf import compile_schema
from sparklog.format.registered import RegisteredSchema
from sparklog.formats import open_format
from sparklog.schemas.registry import SchemaRegistry
from sparklog.testing import World
from tests.support.servers.schema_registry import FakeRegistry

REASON = "grpcio-tools is not installed: pip install 'sparklog[protobuf]'"
pytest.importorskip("grpc_tools", reason=REASON)
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason=REASON)

ORDER = """
syntax = "proto3";
package shop;
message Order {
  int64 id = 1;
  optional string item_name = 2;
  repeated int32 counts = 3;
  map<string, Money> prices = 4;
  Kind kind = 5;
  Money total = 6;
  oneof buyer { string person = 7; uint64 company = 8; }
  message Line { bool done = 1; }
  repeated Line lines = 9;
}
message Money { int64 cents = 1; }
message Refund { message Reason { string text = 1; } Reason reason = 1; }
enum Kind { NONE = 0; BOOK = 1; }
"""
MONEY = pa.struct([("cents", pa.int64())])
KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("item_name", pa.string()),
        ("counts", pa.list_(pa.int32())),
        ("prices", pa.map_(pa.string(), MONEY)),
        ("kind", pa.string()),
        ("total", MONEY),
        ("person", pa.string()),
        ("company", pa.uint64()),
        ("lines", pa.list_(pa.struct([("done", pa.bool_())]))),
    ]
)
EMPTY = {
    **dict.fromkeys(("item_name", "total", "person", "company")),
    "id": 0,
    "counts": [],
    "prices": [],
    "kind": "NONE",
    "lines": [],
}
WELL_KNOWN = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/type/date.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
message All {
  google.protobuf.Timestamp at = 1 [(confluent.field_meta) = {doc: "when"}];
  google.protobuf.Duration lasts = 2;
  google.protobuf.Int64Value maybe = 3;
  google.protobuf.Struct extra = 4;
  repeated google.protobuf.Value values = 5;
  All inner = 6;
  bytes data = 7;
  confluent.type.Decimal price = 8;
  google.type.Date day = 9;
  message Nothing {}
  Nothing nothing = 10;
}
"""
REQUIRED = 'syntax = "proto2"; message A { required int32 x = 1; optional int32 y = 2; }'


def frame(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def test_messages_of_a_subject(server: FakeRegistry) -> None:
    number = server.register("t-value", ORDER, "PROTOBUF")
    one = open_format("protobuf", SchemaRegistry(server.url).subject("t-value"))
    column = pa.array(
        [frame(number, b"\0\x08\x01\x12\x04book\x1a\x02\x01\x02\x28\x01\x42\x00"[:-2]), None, frame(number, b"\0")]
    )
    decoded = one.decode(column)
    decoded.validate(full=True)
    assert (one.arrow_type(), decoded.type) == (KIND, KIND)
    first = {**EMPTY, "id": 1, "item_name": "book", "counts": [1, 2], "kind": "BOOK"}
    assert decoded.to_pylist() == [first, None, EMPTY]
    assert one.encode(decoded).equals(column)
    shown = one.show(column).to_pylist()
    assert json.loads(shown[0]) == {
        "id": "1",
        "itemName": "book",
        "counts": [1, 2],
        "prices": {},
        "kind": "BOOK",
        "lines": [],
    }
    assert one.parse(pa.array(shown)).equals(column)
    assert pickle.loads(pickle.dumps(one)).decode(column).equals(decoded)


def test_nested_fields_round_trip(server: FakeRegistry) -> None:
    server.register("t-value", ORDER, "PROTOBUF")
    one = open_format("protobuf", SchemaRegistry(server.url).subject("t-value"))
    rows = [
        {**EMPTY, "prices": [("a", {"cents": 1}), ("b", {"cents": 0})], "total": {"cents": 0}, "company": 2**64 - 1},
        {**EMPTY, "lines": [{"done": True}, {"done": False}], "person": "anna", "kind": "7"},
    ]
    written = one.encode(pa.array(rows, KIND))
    decoded = one.decode(written)
    assert [{**row, "prices": sorted(row["prices"])} for row in decoded.to_pylist()] == rows
    text = '{"prices": {"a": {"cents": "1"}}, "kind": "BOOK", "company": "5"}'
    assert one.decode(one.parse(pa.array([text]))).to_pylist() == [
        {**EMPTY, "prices": [("a", {"cents": 1})], "kind": "BOOK", "company": 5}
    ]


def test_well_known_types() -> None:
    one = open_format("protobuf", WELL_KNOWN)
    at, lasts = (
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc),
        datetime.timedelta(seconds=-1.5),
    )
    kind = one.arrow_type()
    assert kind is not None
    assert {each.name: each.type for each in kind} == {
        "at": pa.timestamp("us", "UTC"),
        "lasts": pa.duration("us"),
        "maybe": pa.int64(),
        "extra": pa.string(),
        "values": pa.list_(pa.string()),
        "inner": pa.string(),
        "data": pa.binary(),
        "price": pa.struct([("value", pa.binary()), ("precision", pa.uint32()), ("scale", pa.int32())]),
        "day": pa.struct([("year", pa.int32()), ("month", pa.int32()), ("day", pa.int32())]),
        "nothing": pa.struct([]),
    }
    row = {
        "at": at,
        "lasts": lasts,
        "maybe": 0,
        "extra": '{"a": [1.0]}',
        "values": ['"x"', "null"],
        "inner": '{"data": "AA==", "values": [], "inner": {"values": [], "data": ""}}',
        "data": b"\xff",
        "price": {"value": b"\1", "precision": 4, "scale": 2},
        "day": {"year": 2026, "month": 1, "day": 2},
        "nothing": {},
    }
    written = one.encode(pa.array([row, None], kind))
    decoded = one.decode(written).to_pylist()
    assert json.loads(decoded[0].pop("inner")) == json.loads(row.pop("inner"))
    assert decoded == [row, None]
    assert one.decode(pa.array([b""])).to_pylist() == [{**dict.fromkeys(kind.names), "values": [], "data": b""}]


def test_message_types_of_a_schema(server: FakeRegistry) -> None:
    number = server.register("t-value", ORDER, "PROTOBUF")
    registry = SchemaRegistry(server.url)
    for message, path, row in (
        ("shop.Refund", b"\2\4", {"reason": {"text": "late"}}),
        ("shop.Refund.Reason", b"\4\4\0", {"text": "late"}),
        ("shop.Order.Line", b"\4\0\0", {"done": True}),
    ):
        one = open_format("protobuf", registry.subject("t-value", message=message))
        written = one.encode(pa.array([row]))
        assert written.to_pylist()[0].startswith(frame(number, path))
        assert one.decode(written).to_pylist() == [row]
        # Printing needs no message type, because each message contains it.
        assert json.loads(open_format("protobuf", registry).show(written)[0].as_py()) == row
        assert pickle.loads(pickle.dumps(one)).decode(written).to_pylist() == [row]
        with pytest.raises(
            BadRequest, match=rf"message of type {message}, expected shop.Order: the column has the type"
        ):
            formats.decode(written, "protobuf", registry)
    found = r"found shop.Order, shop.Order.Line, shop.Money, shop.Refund, shop.Refund.Reason$"
    # Types of imported files have no indexes in the schema.
    for message in ("shop.X", "", "google.protobuf.Timestamp"):
        with pytest.raises(BadRequest, match=rf"no message type {message}; {found}"):
            open_format("protobuf", registry.subject("t-value", message=message))
    long_path = frame(number, b"\2\0\x0a\0")
    assert formats.decode(pa.array([long_path]), "protobuf", registry).to_pylist() == [{**EMPTY, "counts": []}]


def test_rows_of_another_version_are_decoded_by_field_numbers(server: FakeRegistry) -> None:
    old = server.register("t-value", 'syntax = "proto3"; message A { int32 x = 1; string gone = 2; }', "PROTOBUF")
    new = server.register(
        "t-value", 'syntax = "proto3"; message A { int32 renamed = 1; string added = 3; }', "PROTOBUF"
    )
    registry = SchemaRegistry(server.url)
    column = pa.array([frame(old, b"\0\x08\5\x12\1z"), None, frame(new, b"\0\x08\6\x1a\1y")])
    expected = [{"renamed": 5, "added": ""}, None, {"renamed": 6, "added": "y"}]
    assert formats.decode(column, "protobuf", registry).to_pylist() == expected
    assert formats.decode(column, "protobuf", registry.subject("t-value")).to_pylist() == expected
    assert open_format("protobuf", registry).show(column).to_pylist()[0] == b'{"x": 5, "gone": "z"}'
    assert formats.decode(pa.nulls(1), "protobuf", registry).to_pylist() == [None]


def test_references_between_subjects(server: FakeRegistry) -> None:
    server.register("money", 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }', "PROTOBUF")
    middle = 'syntax = "proto3"; package shop; import "shop/money.proto"; message Item { Money price = 1; }'
    money = {"name": "shop/money.proto", "subject": "money", "version": 1}
    server.register("item", middle, "PROTOBUF", [money])
    order = 'syntax = "proto3"; import "item.proto"; message Order { repeated shop.Item items = 1; }'
    server.register("t-value", order, "PROTOBUF", [{"name": "item.proto", "subject": "item", "version": 1}])
    one = open_format("protobuf", SchemaRegistry(server.url).subject("t-value"))
    row = {"items": [{"price": {"cents": 5}}]}
    assert one.decode(one.encode(pa.array([row]))).to_pylist() == [row]
    outside = [{"name": "../x.proto", "subject": "money", "version": 1}]
    server.register("u-value", order, "PROTOBUF", outside)
    with pytest.raises(
        BadRequest, match=r"expected a relative path as the name of a Protobuf schema, found '\.\./x\.proto'"
    ):
        open_format("protobuf", SchemaRegistry(server.url).subject("u-value"))


def test_schemas_that_are_registered_as_serialized_descriptors(server: FakeRegistry) -> None:
    """confluent-kafka-python 2.16 registers descriptors in base64, and wrote these messages."""
    common = descriptor_pb2.FileDescriptorProto(name="x.proto", package="z", syntax="proto3")
    field = common.message_type.add(name="M").field.add(name="c", number=1, label=1)
    field.type = field.TYPE_INT64
    text = """syntax = "proto3"; package z; import "common.proto"; import "google/protobuf/timestamp.proto";
      message First { int32 x = 1; }
      message Order { map<string, M> prices = 1; M m = 2; google.protobuf.Timestamp t = 3;
        enum K { A = 0; B = 1; } K k = 4; message In { int32 y = 1; } }"""
    encoded = base64.b64encode(common.SerializeToString()).decode()
    server.register("common", encoded, "PROTOBUF")
    reference = {"name": "common.proto", "subject": "common", "version": 1}
    server.register("text", text, "PROTOBUF", [reference])
    of_text = SchemaRegistry(server.url).subject("text")
    descriptor = descriptor_pb2.FileDescriptorProto()
    compile_schema(of_text.schema()).file.CopyToProto(descriptor)
    server.register("t-value", base64.b64encode(descriptor.SerializeToString()).decode(), "PROTOBUF", [reference])
    registry = SchemaRegistry(server.url)
    order = {"prices": [("a", {"c": 4})], "m": {"c": 3}, "k": "B"}
    for message, written, row in (
        ("z.Order", "02020a070a016112020804120208031a0208052001", order),
        ("z.First", "000804", {"x": 4}),
        ("z.Order.In", "0402020803", {"y": 3}),
    ):
        for subject in (registry.subject("t-value", message=message), registry.subject("text", message=message)):
            one = open_format("protobuf", subject)
            cell = frame(subject.schema().id, bytes.fromhex(written))
            # The clients that register text do not count the entries of maps.
            if message == "z.Order.In" and subject.name == "text":
                cell = frame(subject.schema().id, b"\4\2\0\x08\3")
            decoded = one.decode(pa.array([cell]))
            assert {**decoded.to_pylist()[0], **row} == decoded.to_pylist()[0]
            assert one.encode(decoded).to_pylist() == [cell]
    for wrong in ("AAAA", "abc"):
        with pytest.raises(BadRequest, match=f"expected a Protobuf schema, found '{wrong}'"):
            compile_schema(RegisteredSchema(1, "PROTOBUF", wrong))


def test_invalid_rows_have_reasons(server: FakeRegistry) -> None:
    number = server.register("t-value", ORDER, "PROTOBUF")
    one = open_format("protobuf", SchemaRegistry(server.url).subject("t-value"))
    cells = {
        b"\0\x08\1": None,
        b"\0\x08": "(the bytes are not a message of this type)",
        b"\0\x12\1\xff": "(the bytes are not a message of this type",
        b"": "(the indexes of the message type are truncated)",
        b"\x80\x80\x80\x80\x80\x80": "(the indexes of the message type are truncated)",
        b"\2": "(the indexes of the message type are truncated)",
        b"\1\0": "(-1 indexes of the message type)",
        b"\2\x10": "(the schema has no message type with the indexes [8])",
        b"\2\2": "(message of type shop.Money, expected shop.Order: the column has the type that the subject specifies",
    }
    values, invalid = one.decode_valid(pa.array([frame(number, cell) for cell in cells]))
    assert [value is None for value in values.to_pylist()] == [False, *[True] * 8]
    assert sorted(invalid) == list(range(1, 9))
    for row, says in enumerate(cells.values()):
        assert says is None or says in invalid[row]
    for row in list(cells)[1:8]:
        with pytest.raises(BadRequest, match="row 0: expected a schema registry header"):
            one.show(pa.array([frame(number, row)]))
    late = open_format("protobuf", WELL_KNOWN).decode_valid(
        pa.array([b"\x0a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f"])
    )
    assert "(a field is out of range" in late[1][0]


@pytest.mark.parametrize(
    ("way", "schema", "value", "says"),
    [
        ("parse", ORDER, '{"idd": 1}', "row 0: expected a value of schema shop.Order, found '{\"idd\": 1}' ("),
        ("parse", ORDER, '{"id": "x"}', "the value does not match the schema: "),
        ("parse", ORDER, "nope", "the value does not match the schema: "),
        ("encode", ORDER, {"idd": 1}, "the value does not match the schema: the message shop.Order has no field idd"),
        ("encode", ORDER, {"kind": "X"}, "the enum shop.Kind has no value 'X'"),
        ("encode", ORDER, {"counts": [2**40]}, "the value does not match the schema: "),
        ("encode", ORDER, {"total": 5}, "expected a struct for the message shop.Money, found 5"),
        ("encode", WELL_KNOWN, {"at": 5}, "expected a time for google.protobuf.Timestamp, found 5"),
        ("encode", REQUIRED, {"y": 1}, "a required field"),
        ("parse", 'syntax = "proto3"; message A { int32 x = 1 }', "{}", 'schema is invalid: line 1:44: Expected ";".'),
        ("parse", 'syntax = "proto3"; import "x.proto"; message A {}', "{}", "x.proto: File not found."),
        ("parse", 'syntax = "proto3"; enum A { X = 0; }', "{}", "the Protobuf schema has no message type"),
        ("parse", "/no/file.proto", "{}", "the file /no/file.proto with a Protobuf schema cannot be read: No such"),
    ],
)  # fmt: skip
def test_error_of_an_invalid_value_or_schema_is_one_line(way: str, schema: str, value: Any, says: str) -> None:
    with pytest.raises(BadRequest) as error:
        getattr(open_format("protobuf", schema), way)(pa.array([value]))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_plain_messages_with_a_schema_file(tmp_path: Path) -> None:
    file = tmp_path / "order.proto"
    file.write_text(ORDER)
    assert formats.decode(pa.array([b"\x08\5"]), "protobuf", file).to_pylist() == [{**EMPTY, "id": 5}]
    framed = formats.encode(pa.array([{"id": 5}]), "protobuf", {7: file})
    assert framed.to_pylist() == [frame(7, b"\0\x08\5")]
    kind = pa.struct([("id", pa.int64())])
    small = 'syntax = "proto3"; message A { int32 id = 1; }'
    assert formats.decode(pa.array([b"\x08\5"]), "protobuf", small, arrow_type=kind).type == kind


def test_producer_writes_messages_of_a_subject(server: FakeRegistry) -> None:
    number = server.register("t-value", ORDER, "PROTOBUF")
    root = World().root()
    root.create_topic("t")
    subject = SchemaRegistry(server.url).subject("t-value", message="shop.Money")
    with sparklog.producer(root, value_serializer=("protobuf", subject)) as producer:
        producer.send("t", {"cents": 5})
    assert root.topic("t").scan().to_table()["value"].to_pylist() == [frame(number, b"\2\2\x08\5")]
    with pytest.raises(BadRequest, match=r"requires a schema: specify value_serializer=\('protobuf', schema\)"):
        sparklog.producer(root, value_serializer="protobuf")


def test_missing_packages_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_tools", "google.protobuf.descriptor_pool"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(BadRequest, match=r"the format protobuf needs grpcio-tools and protobuf: "):
                open_format("protobuf", ORDER)
