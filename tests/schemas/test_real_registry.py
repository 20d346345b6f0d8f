"""Test the client and the formats with Apicurio Registry, which has Confluent's REST API."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog as library
from sparklog import formats
from sparklog.errors import BadRequest, NotFound
from sparklog.formats import open_format
from sparklog.schemas.registry import SchemaRegistry
from tests.kafka_tools import Missing
from tests.support.command_line import invoke
from tests.support.servers import apicurio

pytestmark = [pytest.mark.slow, pytest.mark.java]

AVRO = [
    (
        "money",
        '{"type": "record", "name": "Money", "namespace": "s", "fields": [{"name": "cents", "type": "long"}]}',
        (),
    ),
    (
        "avro-value",
        '{"type": "record", "name": "Order", "namespace": "s", "fields": [{"name": "price", "type": "Money"}]}',
        [("s.Money", "money", 1)],
    ),
]
JSON = [
    ("json-money", '{"$id": "http://x/m.json", "type": "object", "properties": {"cents": {"type": "integer"}}}', ()),
    (
        "json-value",
        '{"$id": "http://x/o.json", "type": "object", "properties": {"price": {"$ref": "m.json"}}}',
        [("m.json", "json-money", 1)],
    ),
]
PROTOBUF = [
    ("proto-money", 'syntax = "proto3"; package s; message Money { int64 cents = 1; }', ()),
    (
        "proto-value",
        'syntax = "proto3"; package s; import "m.proto"; message Order { Money price = 1; }',
        [("m.proto", "proto-money", 1)],
    ),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with apicurio.running(tmp_path_factory.mktemp("apicurio") / "log") as url:
            yield url
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    ("name", "schema_type", "schemas"),
    [("avro", "AVRO", AVRO), ("json-schema", "JSON", JSON), ("protobuf", "PROTOBUF", PROTOBUF)],
)
def test_schemas_with_references(url: str, tmp_path: Path, name: str, schema_type: str, schemas: Any) -> None:
    registry = SchemaRegistry(url, cache_dir=tmp_path)
    for subject, text, references in schemas:
        registered = registry.subject(subject).register(text, schema_type, references=references)
        assert registry.subject(subject).find(text, schema_type, references=references) == registered
        assert registry.subject(subject).schema() == SchemaRegistry(url).schema(registered.id) == registered
        assert registry.subject(subject).versions() == [1]
    assert {subject for subject, *_ in schemas} <= set(registry.subjects())
    row = {"price": {"cents": 5}}
    written = formats.encode(pa.array([row]), name, registry.subject(schemas[1][0]))
    for schema in (registry, SchemaRegistry(url), SchemaRegistry(cache_dir=tmp_path).subject(schemas[1][0])):
        assert formats.decode(written, name, schema).to_pylist() == [row]
        assert json.loads(open_format(name, schema).show(written)[0].as_py())["price"]["cents"] in (5, "5")


def test_versions_and_errors(url: str) -> None:
    subject = SchemaRegistry(url).subject("versions-value")
    first = subject.register(AVRO[0][1])
    config = urllib.request.Request(f"{url}/config/versions-value", b'{"compatibility": "BACKWARD"}', method="PUT")
    config.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(config):
        pass
    item = '"fields": [{"name": "item", "type": ["null", "string"], "default": null}, '
    second = subject.register(AVRO[0][1].replace('"fields": [', item))
    assert (subject.versions(), subject.schema(1).id, subject.schema().id) == ([1, 2], first.id, second.id)
    with pytest.raises(BadRequest, match=r"rejected the request: .*ncompatible"):
        subject.register(
            AVRO[0][1].replace('"fields": [', item.replace("item", "other").replace(', "default": null', ""))
        )
    with pytest.raises(BadRequest, match="rejected the request"):
        subject.register('{"type": "recrd"}')
    with pytest.raises(NotFound, match="does not have this schema in the subject"):
        subject.find('"int"')
    for call, says in (
        (lambda: subject.schema(9), "does not contain version 9 of the subject 'versions-value'"),
        (lambda: SchemaRegistry(url).schema(9999), "does not contain schema id 9999"),
        (lambda: SchemaRegistry(url).subject("nosuch").schema(), "does not contain subject 'nosuch'"),
        (lambda: SchemaRegistry(url).subject("nosuch").versions(), "has no versions of the subject 'nosuch'"),
    ):
        with pytest.raises(NotFound, match=says):
            call()
    with pytest.raises(BadRequest, match=r"is not a schema registry: GET /schemas/ids/1 returned status 404"):
        SchemaRegistry(url.partition("/apis")[0]).schema(1)


def test_commands(url: str, tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        result = invoke(arguments, {"SPARKLOG_ROOT": str(tmp_path / "root")})
        assert result.exit_code == 0, result.stderr
        return result.stdout

    library.open(tmp_path / "root", create=True)
    schema, lines = tmp_path / "order.proto", tmp_path / "lines"
    schema.write_text(PROTOBUF[0][1])
    lines.write_text('{"cents": "5"}\n')
    words = ("--value-format", "protobuf", "--schema-registry", url)
    run("produce", "orders", *words, "--value-schema", schema, "--file", lines)
    run("produce", "orders", *words, "--file", lines)
    assert run("consume", "orders", *words) == '{"cents": "5"}\n' * 2


@pytest.mark.parametrize(
    ("name", "schema_type", "schemas"),
    [("avro", "AVRO", AVRO), ("json-schema", "JSON", JSON), ("protobuf", "PROTOBUF", PROTOBUF)],
)
def test_references_and_message_types_of_commands(
    url: str, tmp_path: Path, name: str, schema_type: str, schemas: Any
) -> None:
    def run(*arguments: object) -> str:
        result = invoke(arguments, {"SPARKLOG_ROOT": str(tmp_path / "root")})
        assert result.exit_code == 0, result.stderr
        return result.stdout

    library.open(tmp_path / "root", create=True)
    (subject, text, _), (_, order, references) = schemas
    topic, schema, lines = f"refs-{name}", tmp_path / "order", tmp_path / "lines"
    SchemaRegistry(url).subject(subject).register(text, schema_type)
    refs = json.dumps([dict(zip(("name", "subject", "version"), each, strict=True)) for each in references])
    schema.write_text(order)
    lines.write_text('{"price": {"cents": "5"}}\n' if name == "protobuf" else '{"price": {"cents": 5}}\n')
    words = ("--value-format", name, "--schema-registry", url, "--file", lines)
    run("produce", topic, *words, "--value-schema", schema, "--value-refs", refs)
    run("produce", topic, *words, "--value-schema", schema, "--value-refs", refs, "--no-auto-register")
    run("produce", topic, *words)
    assert run("consume", topic, *words[:-2]) == lines.read_text() * 3
    assert SchemaRegistry(url).subject(f"{topic}-value").versions() == [1]
    if name == "protobuf":
        schema.write_text(order.replace("message Order", "message First {} message Order"))
        run(
            "produce", "several", *words, "--value-schema", schema, "--value-refs", refs, "--value-message", "s.Order"
        )  # fmt: skip
        assert run("consume", "several", *words[:-2]) == lines.read_text()
