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
    ],
)
def test_invalid_options_are_one_line_errors(sparklog: Sparklog, server: FakeRegistry, words: str, says: str) -> None:
    failed = sparklog(*words.split(), code=1 if "h --" not in words and words.endswith(" h") else 2)
    assert says in failed.err
    assert failed.err.count("\n") == 1
