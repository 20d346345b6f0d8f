"""`--key-format` and `--value-format`: round trips of lines and JSON lines, Avro, and one-line errors."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from tests.cli.conftest import Sparklog

SCHEMA = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"},'
    ' {"name": "item", "type": ["null", "string"]}]}'
)
LinesFile = Callable[[str], Path]


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """Write an Avro schema to a file."""
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")
    file = tmp_path / "order.avsc"
    file.write_text(SCHEMA)
    return file


@pytest.fixture(autouse=True)
def topic(root: Path) -> None:
    library.open(root, create=True).create_topic("t")


def stored(root: Path) -> list[tuple[bytes | None, bytes | None]]:
    table = library.open(root).topic("t").scan().to_table()
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("kinds", "line", "record"),
    [
        (("long", "double"), "-7:1.5", (struct.pack(">q", -7), struct.pack(">d", 1.5))),
        (("integer", "float"), "7:3.0", (struct.pack(">i", 7), struct.pack(">f", 3))),
        (("short", "hex"), "1:00ff", (b"\0\1", b"\0\xff")),
        (("base64", "json"), 'AP8=:{"a": [1.10, "é"]}', (b"\0\xff", '{"a": [1.10, "é"]}'.encode())),
        (("string", "string"), "k:v", (b"k", b"v")),
        (("long", "long"), "1:NULL", (struct.pack(">q", 1), None)),
    ],
)
def test_printed_lines_equal_the_input(
    sparklog: Sparklog,
    root: Path,
    lines_file: LinesFile,
    kinds: tuple[str, str],
    line: str,
    record: tuple[bytes, bytes],
) -> None:
    formats = ("--key-format", kinds[0], "--value-format", kinds[1])
    words = ("--key-separator", ":", "--null-marker", "NULL", "--file", lines_file(f"{line}\n"))
    sparklog("produce", "t", *words, *formats)
    assert stored(root) == [record]
    shown = ("--print-key", "--key-separator", ":", "--null-literal", "NULL")
    assert sparklog("consume", "t", *shown, *formats).out == f"{line}\n"
    key = line.partition(":")[0]
    if record[1] is not None:
        assert sparklog("get", "t", "-k", key, *formats).lines == [line.partition(":")[2]]
        assert sparklog("get", "t", "-k", key, "--print-key", *formats).lines == [line.replace(":", "\t", 1)]


def test_json_lines_contain_unconverted_values(sparklog: Sparklog, root: Path, lines_file: LinesFile) -> None:
    lines = '{"key": 1, "value": 1.5}\n\n{"key": "2", "value": null}\n{"value": "NaN"}\n'
    formats = ("--json", "--key-format", "long", "--value-format", "double")
    sparklog("produce", "t", "--file", lines_file(lines), *formats)
    records = stored(root)
    assert records[:2] == [(struct.pack(">q", 1), struct.pack(">d", 1.5)), (struct.pack(">q", 2), None)]
    printed = sparklog("consume", "t", *formats)
    shown = [json.loads(line) for line in printed.lines]
    assert [(each["key"], each["value"]) for each in shown] == [(1, 1.5), (2, None), (None, "NaN")]
    sparklog("produce", "t", "--file", lines_file(printed.out), *formats)
    assert [(key, value) for key, value in stored(root)[3:]] == records
    assert json.loads(sparklog("get", "t", "-k", "1", *formats).out)["value"] == 1.5


def test_json_values_in_json_lines(sparklog: Sparklog, root: Path, lines_file: LinesFile) -> None:
    formats = ("--json", "--value-format", "json")
    sparklog("produce", "t", "--file", lines_file('{"value": {"a": ["é"]}}\n{"value": "text"}\n'), *formats)
    assert [value for _, value in stored(root)] == ['{"a": ["é"]}'.encode(), b'"text"']
    assert [json.loads(line)["value"] for line in sparklog("consume", "t", *formats).lines] == [{"a": ["é"]}, "text"]


def test_lengths_are_lengths_of_the_stored_bytes(sparklog: Sparklog, root: Path) -> None:
    library.open(root).topic("t").append(pa.table({"key": [b"\0\1"], "value": pa.array([None], pa.binary())}))
    printed = sparklog("consume", "t", "--format", r"%k %K %s %S\n", "--key-format", "short", "--value-format", "hex")
    assert printed.out == "1 2  -1\n"


@pytest.mark.parametrize(("given", "frame"), [("{}", b""), ("7={}", b"\0\0\0\0\7")])
def test_avro_is_printed_as_json(
    sparklog: Sparklog, root: Path, lines_file: LinesFile, schema: Path, given: str, frame: bytes
) -> None:
    formats = ("--value-format", "avro", "--value-schema", given.format(schema))
    line = '{"id": 1, "item": {"string": "book"}}'
    sparklog("produce", "t", "--file", lines_file(f"{line}\n"), *formats)
    assert stored(root) == [(None, frame + b"\x02\x02\x08book")]
    printed = sparklog("consume", "t", *formats)
    assert printed.lines == [line]
    assert json.loads(sparklog("consume", "t", "--json", *formats).out)["value"] == json.loads(line)
    sparklog("produce", "t", "--json", "--file", lines_file(f'{{"value": {line}}}\n'), *formats)
    assert stored(root)[1] == stored(root)[0]
    key = ("--key-format", "avro", "--key-schema", given.format(schema))
    sparklog("produce", "t", "--key-separator", ";", "--file", lines_file(f"{line};v\n"), *key)
    assert sparklog("get", "t", "-k", line, "--print-key", *key).out == f"{line}\tv\n"


def test_an_undecodable_value_reports_its_position(sparklog: Sparklog, root: Path, lines_file: LinesFile) -> None:
    library.open(root).topic("t").append(pa.table({"value": [b"12345678", b"1234567"]}))
    for words in (("--json",), ("--print-offset",), ("--format", r"%s\n"), ("--group", "g")):
        failed = sparklog("consume", "t", "--value-format", "long", *words, code=1)
        place = "value of topic t, partition 0, offset 1: expected 8 bytes of a long, found 7 bytes: '1234567'"
        assert failed.err == f"sparklog: {place} [SPARKLOG_BAD_REQUEST]\n"
    assert sparklog("consume", "t", "--value-format", "long", "-n", 1).out == f"{int.from_bytes(b'12345678', 'big')}\n"


@pytest.mark.parametrize(
    ("lines", "words", "says"),
    [
        ("1\nx\n", "--value-format long", "line 2, value: expected a long, found 'x'"),
        ("a:1\n", "--key-format integer --key-separator :", "line 1, key: expected an integer, found 'a'"),
        (
            '\n{"value": 1}\n\n{"value": []}\n',
            "--value-format long --json",
            "line 4, value: expected a long, found '[]'",
        ),
        ('{"value": 1}\n', "--value-format hex --json", 'line 1: "value" must be a string or null, found 1'),
        ("{\n", "--value-format json", "line 1, value: expected JSON, found '{' (Expecting"),
    ],
)
def test_an_invalid_line_is_reported_and_nothing_is_written(
    sparklog: Sparklog, root: Path, lines_file: LinesFile, lines: str, words: str, says: str
) -> None:
    failed = sparklog("produce", "t", "--file", lines_file(lines), *words.split(), code=1)
    assert failed.err.startswith(f"sparklog: {says}")
    assert failed.err.count("\n") == 1
    assert stored(root) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("consume t --value-format lng", 2, "'lng' is not one of 'string', 'short',"),
        ("consume t --value-format avro", 2, "avro requires a schema: specify --value-schema FILE, or ID=FILE"),
        ("consume t --value-schema x", 2, "a schema requires --value-format avro"),
        ("get t -k 1 --key-schema x", 2, "a schema requires --key-format avro"),
        ("get t -k 1 --key-format avro", 2, "avro requires a schema: specify --key-schema FILE, or ID=FILE"),
        ("get t -k x --key-format json", 1, "the key: expected JSON, found 'x' (Expecting"),
        ("produce t --key-format long", 2, "the lines do not contain keys: specify --key-separator or --json"),
        ("consume t --value-format avro --value-schema a --value-schema b", 2, "expected one FILE, or ID=FILE with"),
        ("consume t --value-format avro --value-schema 7=a --value-schema b", 2, "found 7=a b"),
        ("consume t --value-format avro --value-schema 7=a --value-schema 7=b", 2, "found 7=a 7=b"),
        (
            "consume t --value-format avro --value-schema /no/file",
            1,
            "with an Avro schema cannot be read: No such file",
        ),
    ],
)
def test_invalid_formats_are_one_line_errors(sparklog: Sparklog, words: str, code: int, says: str) -> None:
    failed = sparklog(*words.split(), code=code)
    assert says in failed.err
    assert failed.err.count("\n") == 1
