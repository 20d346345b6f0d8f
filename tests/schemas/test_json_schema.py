"""Test JSON values with schemas: types of columns, references, validation before writing, and errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog import formats
from sparklog.errors import BadRequest
from sparklog.format.json_schema import JsonSchema
from sparklog.formats import open_format
from sparklog.schemas.registry import SchemaRegistry
from tests.support.servers.schema_registry import FakeRegistry

ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "item": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "tags": {"type": "object", "additionalProperties": {"type": "number"}},
        "extra": {},
    },
    "required": ["id"],
}
KIND = pa.struct(
    [("id", pa.int64()), ("item", pa.string()), ("tags", pa.map_(pa.string(), pa.float64())), ("extra", pa.string())]
)


def frame(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


@pytest.fixture
def _validator() -> None:
    pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install 'sparklog[json-schema]'")


@pytest.mark.usefixtures("_validator")
def test_values_of_a_subject(server: FakeRegistry) -> None:
    number = server.register("t-value", ORDER, "JSON")
    one = open_format("json-schema", SchemaRegistry(server.url).subject("t-value"))
    texts = [b'{"id": 1, "item": "x", "tags": {"a": 1}, "extra": [1, "y"]}', None, b'{"id": 2}']
    column = pa.array([frame(number, text) if text else None for text in texts])
    decoded = one.decode(column)
    assert (one.arrow_type(), decoded.type) == (KIND, KIND)
    rows = [
        {"id": 1, "item": "x", "tags": [("a", 1.0)], "extra": '[1, "y"]'},
        None,
        {"id": 2, "item": None, "tags": None, "extra": None},
    ]
    assert decoded.to_pylist() == rows
    assert one.show(column).to_pylist() == texts
    assert one.parse(pa.array(texts)).equals(column)
    written = one.encode(decoded)
    assert [json.loads(cell[5:]) if cell else None for cell in written.to_pylist()] == [
        {"id": 1, "item": "x", "tags": {"a": 1.0}, "extra": [1, "y"]},
        None,
        {"id": 2},
    ]
    assert one.decode(written).equals(decoded)
    assert one.show(pa.array([frame(number, b'{"id":\r\n1}')])).to_pylist() == [b'{"id": 1}']


def test_rows_with_another_schema_have_the_type_of_the_target(server: FakeRegistry) -> None:
    old = server.register("t-value", {"type": "object", "properties": {"id": {"type": "integer"}}}, "JSON")
    new = server.register("t-value", ORDER, "JSON")
    rows = pa.array([frame(old, b'{"id": 1, "item": "z"}'), frame(new, b'{"id": 2}')])
    decoded = formats.decode(rows, "json-schema", SchemaRegistry(server.url))
    assert decoded.type == KIND
    assert [row["item"] for row in decoded.to_pylist()] == ["z", None]
    kind = pa.struct([("id", pa.int8())])
    assert formats.decode(rows, "json-schema", SchemaRegistry(server.url), arrow_type=kind).type == kind


def test_invalid_rows_have_reasons(server: FakeRegistry) -> None:
    number = server.register("t-value", ORDER, "JSON")
    cells = [b'{"id": 1}', b'{"id": 1.5}', b"{", b'{"id": "x"}', b"[]", b"\xff", b'{"tags": {"a": true}}']
    one = open_format("json-schema", SchemaRegistry(server.url).subject("t-value"))
    values, invalid = one.decode_valid(pa.array([*(frame(number, cell) for cell in cells), b"{}"]))
    assert values.to_pylist()[1:] == [None] * 7
    assert sorted(invalid) == [1, 2, 3, 4, 5, 6, 7]
    assert invalid[1].startswith("expected a schema registry header (0, schema id) and JSON, found 16 bytes")
    assert invalid[1].endswith("(expected an integer, found 1.5)")
    assert invalid[7].endswith("(no schema registry header)")


@pytest.mark.usefixtures("_validator")
@pytest.mark.parametrize(
    ("schema", "text", "says"),
    [
        (ORDER, '{"id": "x"}', "(/id: 'x' is not of type 'integer')"),
        (ORDER, "{}", "row 0: expected a value of schema Order, found '{}' (the value: 'id' is a required property)"),
        (
            {"type": "array", "maxItems": 1},
            "[1, 2]",
            "expected a value of schema JSON, found '[1, 2]' (the value: [1, 2]",
        ),
        (ORDER, "nope", "(Expecting value"),
        ({"type": "nope"}, "1", "expected a JSON Schema, found \"{'type': 'nope'}\": 'nope' is not valid"),
        ({"$ref": "#/x"}, "1", "expected a JSON Schema, found"),
        ("{", "1", "expected a JSON Schema as JSON; the schema is invalid"),
        ("/no/such/file", "1", "the file /no/such/file with a JSON Schema cannot be read: No such file"),
    ],
)
def test_values_are_validated_before_they_are_written(schema: Any, text: str, says: str) -> None:
    with pytest.raises(BadRequest) as error:
        open_format("json-schema", schema).parse(pa.array([text]))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_writing_without_jsonschema_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(BadRequest, match="the format json-schema requires jsonschema: "):
        open_format("json-schema", ORDER).parse(pa.array(["{}"]))


@pytest.mark.usefixtures("_validator")
def test_references_between_subjects(server: FakeRegistry) -> None:
    money = {"$id": "http://x/money.json", "type": "object", "properties": {"cents": {"$ref": "#/definitions/n"}},
             "definitions": {"n": {"type": "integer"}}}  # fmt: skip
    server.register("money", money, "JSON")
    order = {"$id": "http://x/order.json", "type": "object", "properties": {
        "by name": {"$ref": "money.json"},
        "by id": {"$ref": "http://x/money.json#/definitions/n"},
        "own": {"$ref": "#/$defs/a~1b"},
        "self": {"$ref": "#"},
    }, "$defs": {"a/b": {"type": "boolean"}}}  # fmt: skip
    server.register("t-value", order, "JSON", [{"name": "http://x/money.json", "subject": "money", "version": 1}])
    one = open_format("json-schema", SchemaRegistry(server.url).subject("t-value"))
    cents = pa.struct([("cents", pa.int64())])
    kind = pa.struct([("by name", cents), ("by id", pa.int64()), ("own", pa.bool_()), ("self", pa.string())])
    assert one.arrow_type() == kind
    row = {"by name": {"cents": 5}, "by id": 6, "own": True, "self": '{"own": false}'}
    written = one.encode(pa.array([row], kind))
    assert json.loads(written[0].as_py()[5:]) == {**row, "self": {"own": False}}
    assert one.decode(written).to_pylist() == [row]
    with pytest.raises(BadRequest, match="/by name/cents: 'x' is not of type 'integer'"):
        one.parse(pa.array(['{"by name": {"cents": "x"}}']))


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]}, pa.list_(pa.bool_())),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, pa.string()),
        ({"enum": ["A", "B"]}, pa.string()),
        ({"properties": {"a": {"type": "null"}}}, pa.struct([("a", pa.null())])),
        ({"type": "object"}, pa.string()),
        ({"type": "array"}, pa.string()),
        ({"type": "array", "items": [{"type": "integer"}]}, pa.string()),
        (True, pa.string()),
    ],
)
def test_types_of_columns(schema: Any, kind: pa.DataType) -> None:
    assert open_format("json-schema", schema).arrow_type() == kind


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "other.json"}, "the JSON Schema refers to 'other.json', which is not one of its references"),
        ({"$ref": "#/definitions/x"}, "the JSON Schema refers to '#/definitions/x', which does not exist"),
        ({"properties": [1]}, "a keyword has a value of the wrong type"),
    ],
)
def test_schemas_without_a_type_are_one_clear_error(schema: Any, says: str) -> None:
    with pytest.raises(BadRequest) as error:
        open_format("json-schema", schema).arrow_type()
    assert says in str(error.value)


def test_schema_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps(ORDER))
    assert formats.decode(pa.array([b'{"id": 1}']), "json-schema", file).to_pylist()[0]["id"] == 1
    assert JsonSchema({"type": "string"}).shape == pa.string()
