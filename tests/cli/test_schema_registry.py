"""`--schema-registry`: records are printed with the schemas of a registry, and written with schemas of a subject."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from tests.cli.conftest import Sparklog
from tests.support.servers.schema_registry import FakeRegistry, running

ORDER = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"},'
    ' {"name": "item", "type": ["null", "string"], "default": null}]}'
)
OLD = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
LINE = '{"id": 1, "item": {"string": "book"}}'
LinesFile = Callable[[str], Path]


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")
    with running() as registry:
        yield registry


@pytest.fixture(autouse=True)
def topic(root: Path) -> None:
    library.open(root, create=True).create_topic("t")


def stored(root: Path) -> list[tuple[bytes | None, bytes | None]]:
    table = library.open(root).topic("t").scan().to_table()
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def avro(server: FakeRegistry) -> tuple[str, ...]:
    return ("--value-format", "avro", "--schema-registry", server.url)


def test_a_schema_file_is_registered_and_each_value_is_printed_with_its_schema(
    sparklog: Sparklog, root: Path, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry
) -> None:
    old, new = tmp_path / "old.avsc", tmp_path / "new.avsc"
    old.write_text(OLD)
    new.write_text(ORDER)
    sparklog("produce", "t", *avro(server), "--value-schema", old, "--file", lines_file('{"id": 7}\n'))
    sparklog("produce", "t", *avro(server), "--value-schema", new, "--file", lines_file(f"{LINE}\n"))
    assert stored(root) == [(None, b"\0\0\0\0\1\x0e"), (None, b"\0\0\0\0\2\x02\x02\x08book")]
    assert sparklog("consume", "t", *avro(server)).lines == ['{"id": 7}', LINE]
    printed = [json.loads(line)["value"] for line in sparklog("consume", "t", "--json", *avro(server)).lines]
    assert printed == [{"id": 7}, json.loads(LINE)]


def test_the_latest_schema_of_the_subject_is_used_without_a_file(
    sparklog: Sparklog, root: Path, lines_file: LinesFile, server: FakeRegistry
) -> None:
    server.register("t-value", OLD)
    server.register("t-value", ORDER)
    server.register("t-key", '"string"')
    both = ("--key-format", *avro(server)[1:], *avro(server)[:2])
    sparklog("produce", "t", *both, "--key-separator", ";", "--file", lines_file(f'"k";{LINE}\n'))
    assert stored(root) == [(b"\0\0\0\0\3\2k", b"\0\0\0\0\2\x02\x02\x08book")]
    assert sparklog("consume", "t", "--print-key", "--key", '"k"', *both).lines == [f'"k"\t{LINE}']
    assert sparklog("get", "t", "--key", '"k"', *both).lines == [LINE]
    assert server.requests.count("POST /subjects/t-value/versions") == 0
    failed = sparklog("produce", "u", *avro(server), "--file", lines_file(f"{LINE}\n"), code=1)
    assert f"the schema registry {server.url} does not contain subject 'u-value'" in failed.err


def test_without_auto_register_the_schema_must_be_registered(
    sparklog: Sparklog, root: Path, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry
) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(ORDER)
    words = ("produce", "t", *avro(server), "--value-schema", schema, "--no-auto-register")
    failed = sparklog(*words, "--file", lines_file(f"{LINE}\n"), code=1)
    assert "does not have this schema in the subject 't-value'" in failed.err
    assert (stored(root), server.answer("GET", "/subjects", None)) == ([], (200, []))
    server.register("t-value", OLD)
    number = server.register("t-value", ORDER)
    sparklog(*words, "--file", lines_file(f"{LINE}\n"))
    assert [value[4] for _, value in stored(root) if value] == [number]
    schema.write_text('{"type": "recrd"}')
    failed = sparklog("produce", "t", *avro(server), "--value-schema", schema, code=1)
    assert "expected an Avro schema" in failed.err


def test_no_schema_is_registered_for_a_topic_that_cannot_be_written(
    sparklog: Sparklog, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry
) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(ORDER)
    words = ("produce", "t", *avro(server), "--value-schema", schema, "--file", lines_file(f"{LINE}\n"))
    sparklog(*words, "--root", tmp_path / "nothing", code=1)
    assert server.requests == []


def test_a_cache_directory_is_read_without_the_registry(
    sparklog: Sparklog, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry
) -> None:
    server.register("t-value", ORDER)
    cache = ("--registry-cache", tmp_path / "schemas")
    sparklog("produce", "t", *avro(server), *cache, "--file", lines_file(f"{LINE}\n"))
    server.fail = lambda request: (500, b"")
    assert sparklog("consume", "t", "--value-format", "avro", *cache).lines == [LINE]
    sparklog("produce", "t", "--value-format", "avro", *cache, "--file", lines_file(f"{LINE}\n"))
    assert sparklog("consume", "t", "--value-format", "avro", *cache).lines == [LINE, LINE]


def test_credentials_are_in_a_file(
    sparklog: Sparklog, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry
) -> None:
    server.register("t-value", ORDER)
    server.authorization = "Bearer abc"
    config = tmp_path / "registry.properties"
    config.write_text("# a comment\nschema.registry.bearer.auth.token=abc\n")
    words = (*avro(server), "--registry-config", config)
    sparklog("produce", "t", *words, "--file", lines_file(f"{LINE}\n"))
    assert sparklog("consume", "t", *words).lines == [LINE]
    failed = sparklog("consume", "t", *avro(server), code=1)
    assert f"the schema registry {server.url} denied access with status 401: Unauthorized; specify cred" in failed.err
    config.write_text("basic.auth.user=a:b\n")
    failed = sparklog("consume", "t", *words, code=1)
    assert "registry.properties line 1: expected one of basic.auth.user.info, bearer.auth.token," in failed.err
    assert "found 'basic.auth.user'; did you mean 'basic.auth.user.info'?" in failed.err


def test_a_value_with_an_unknown_schema_is_one_line(sparklog: Sparklog, root: Path, server: FakeRegistry) -> None:
    library.open(root).topic("t").append(pa.table({"value": [b"\0\0\0\0\7\2"]}))
    failed = sparklog("consume", "t", *avro(server), code=1)
    place = "value of topic t, partition 0, offset 0: expected a schema registry header (0, schema id) and Avro, found"
    assert failed.err.startswith(f"sparklog: {place} 6 bytes:")
    assert failed.err.endswith(
        f"(the schema registry {server.url} does not contain schema id 7) [SPARKLOG_BAD_REQUEST]\n"
    )


REFERENCES = {
    "avro": (
        "AVRO",
        '{"type": "record", "name": "shop.Item", "fields": [{"name": "sku", "type": "string"}]}',
        '{"type": "record", "name": "shop.Order", "fields": [{"name": "item", "type": "shop.Item"}]}',
        "shop.Item",
    ),
    "json-schema": (
        "JSON",
        '{"type": "object", "properties": {"sku": {"type": "string"}}, "additionalProperties": false}',
        '{"type": "object", "properties": {"item": {"$ref": "item.json"}}, "required": ["item"]}',
        "item.json",
    ),
    "protobuf": (
        "PROTOBUF",
        'syntax = "proto3"; package shop; message Item { string sku = 1; }',
        'syntax = "proto3"; package shop; import "item.proto"; message Order { Item item = 1; }',
        "item.proto",
    ),
}


@pytest.mark.parametrize("name", list(REFERENCES))
def test_a_schema_is_registered_with_its_references(
    sparklog: Sparklog, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry, name: str
) -> None:
    schema_type, item, order, reference = REFERENCES[name]
    server.register("item", item, schema_type)
    file = tmp_path / "order"
    file.write_text(order)
    refs = [{"name": reference, "subject": "item", "version": 1}]
    words = ("--value-format", name, "--schema-registry", server.url)
    given = (*words, "--value-schema", file, "--value-refs", json.dumps(refs))
    # The misspelled field belongs to the schema that is referred to.
    failed = sparklog("produce", "t", *given, "--file", lines_file('{"item": {"skuu": "a"}}\n'), code=1)
    assert "skuu" in failed.err
    assert "line 1, value:" in failed.err
    lines = lines_file('{"item": {"sku": "a"}}\n')
    sparklog("produce", "t", *given, "--file", lines)
    sparklog("produce", "t", *given, "--no-auto-register", "--file", lines)
    sparklog("produce", "t", *words, "--file", lines)
    assert sparklog("consume", "t", *words).lines == ['{"item": {"sku": "a"}}'] * 3
    status, version = server.answer("GET", "/subjects/t-value/versions/latest", None)
    assert (status, version["version"], version["references"]) == (200, 1, refs)
    wrong = json.dumps([{**refs[0], "version": 2}])
    failed = sparklog("produce", "t", *given[:-1], wrong, "--file", lines, code=1)
    assert f"the schema registry {server.url} does not contain version 2 of the subject 'item'" in failed.err
    failed = sparklog("produce", "t", *words, "--value-schema", file, "--file", lines, code=1)
    assert failed.err.count("\n") == 1


SHOP = (
    'syntax = "proto3"; package shop; message Order { int32 id = 1; } message Refund { message Reason { string text ='
    " 1; } Reason reason = 1; }"
)


def test_the_message_type_of_protobuf_is_an_option(
    sparklog: Sparklog, root: Path, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry
) -> None:
    file = tmp_path / "shop.proto"
    file.write_text(SHOP)
    words = ("--value-format", "protobuf", "--schema-registry", server.url)
    reason, refund = lines_file('{"text": "late"}\n'), '{"reason": {"text": "late"}}'
    nested = ("--value-message", "shop.Refund.Reason")
    sparklog("produce", "t", *words, "--value-schema", file, *nested, "--file", reason)
    sparklog(
        "produce", "t", *words, "--value-message", "shop.Refund", "--key-separator", "|", "--key-format", "protobuf",
        "--key-schema", file, "--key-message", "shop.Refund", "--file", lines_file(f"{refund}|{refund}\n"),
    )  # fmt: skip
    sparklog("produce", "t", *words, "--file", lines_file('{"id": 5}\n'))
    body = b"\x0a\6\x0a\4late"
    assert stored(root) == [
        (None, b"\0\0\0\0\1\4\2\0\x0a\4late"),
        (b"\0\0\0\0\1\2\2" + body, b"\0\0\0\0\1\2\2" + body),
        (None, b"\0\0\0\0\1\0\x08\5"),
    ]
    assert sparklog("consume", "t", *words).lines == ['{"text": "late"}', refund, '{"id": 5}']
    keys = ("--key-format", "protobuf", "--key-message", "shop.Refund", "--key", refund)
    assert sparklog("get", "t", *words, *keys).lines == [refund]
    failed = sparklog("produce", "t", *words, "--value-message", "Refund", "--file", reason, code=1)
    assert "the Protobuf schema has no message type Refund; found shop.Order, shop.Refund, shop.Refund." in failed.err


def test_the_message_type_of_plain_protobuf(
    sparklog: Sparklog, root: Path, lines_file: LinesFile, tmp_path: Path, server: FakeRegistry
) -> None:
    file = tmp_path / "shop.proto"
    file.write_text(SHOP)
    lines = lines_file('{"text": "late"}\n')
    for number, schema in enumerate((file, f"7={file}")):
        words = ("--value-format", "protobuf", "--value-schema", schema, "--value-message", "shop.Refund.Reason")
        sparklog("produce", "t", *words, "--file", lines)
        assert sparklog("consume", "t", *words, "--partition", "0", "--offset", number).lines == ['{"text": "late"}']
    assert stored(root) == [(None, b"\x0a\4late"), (None, b"\0\0\0\0\7\4\2\0\x0a\4late")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "consume t --schema-registry http://h",
            "a schema registry requires --key-format or --value-format with one of avro, json-schema, protobuf",
        ),
        ("consume t --value-format json --schema-registry http://h", "a schema registry requires --key-format or"),
        ("consume t --value-format avro --schema-registry h", "expected the URL of a schema registry such as"),
        (
            "consume t --value-format avro --schema-registry http://h --value-schema x",
            "omit the schema, because the registry contains the schemas",
        ),
        (
            "produce t --value-format avro --schema-registry http://h --value-schema 7=x",
            "expected one FILE, because the registry has the id",
        ),
        (
            "consume t --value-format avro --value-schema x --value-message A",
            "'--value-message': a message type requires --value-format protobuf",
        ),
        (
            "produce t --value-format avro --schema-registry http://h --value-schema x --value-refs {}",
            """'--value-refs': expected JSON such as [{"name": "shop.Item", "subject": "item", "version": 1}]""",
        ),
        ("produce t --value-format avro --schema-registry http://h --value-refs []", "--value-refs requires --value-"),
        (
            'produce t --value-format avro --value-schema x --value-refs [{"name":"a","subject":"b","version":1}]',
            "'--value-refs': references require --schema-registry",
        ),
    ],
)
def test_invalid_options_are_one_line_errors(sparklog: Sparklog, server: FakeRegistry, words: str, says: str) -> None:
    failed = sparklog(*words.split(), code=1 if "h --" not in words and words.endswith(" h") else 2)
    assert says in failed.err
    assert failed.err.count("\n") == 1
