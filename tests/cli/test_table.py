"""`sparklog table`: prints a topic as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from tests.cli.conftest import Sparklog


@pytest.fixture(autouse=True)
def _log(root: Path) -> None:
    topic = library.open(root, create=True).create_topic("t")
    topic.append(pa.table({"key": ["a", "b", None, "c"], "value": ["1", "2", "3", "4"]}))
    topic.append(pa.table({"key": ["a", "b"], "value": ["5", None]}))


def test_table_returns_the_latest_record_of_each_key(sparklog: Sparklog) -> None:
    shown = sparklog("table", "t")
    assert (shown.out, shown.err) == ("a\t5\nc\t4\n", "Processed a total of 2 messages\n")
    assert sparklog("table", "--no-print-key", "-n", 1).out == "5\n"
    assert sparklog("table", "t", "--print-offset", "--key-separator", ",").out == "Offset:4,a,5\nOffset:3,c,4\n"
    assert sparklog("table", "t", "--format", r"%k=%s\n", "--value-format", "hex").out == "a=35\nc=34\n"
    assert [json.loads(line)["key"] for line in sparklog("table", "t", "--json").out.splitlines()] == ["a", "c"]


def test_table_as_of_a_time_or_offsets(sparklog: Sparklog) -> None:
    assert sparklog("table", "t", "--as-of-offsets", '{"0":4}').out == "c\t4\nb\t2\na\t1\n"
    assert sparklog("table", "t", "--as-of", "2020-01-31T12:00:00").out == ""
    assert sparklog("table", "t", "--as-of", "9000000000000").out == "a\t5\nc\t4\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--as-of", "noon"), 2, "expected milliseconds or a time such as"),
        (("--as-of", "1", "--as-of-offsets", '{"0":1}'), 2, "specify --as-of-offsets or --as-of, not both"),
        (("--as-of-offsets", "5"), 2, "expected JSON such as {\"0\":23}, found '5'"),
        (("--as-of-offsets", '{"t":{"0":5}}'), 2, "expected JSON such as"),
        (("--as-of-offsets", '{"x":5}'), 2, "expected JSON such as"),
        (("--as-of-offsets", '{"0":7}'), 1, "offset 7 of t-0 is out of range: expected 0 to 6"),
        (("--as-of-offsets", '{"1":7}'), 1, "topic t has partitions 0 to 0, found partition 1"),
        (("--value-format", "long"), 1, "a long"),
    ],
)
def test_table_rejects_invalid_options(sparklog: Sparklog, arguments: tuple[str, ...], code: int, says: str) -> None:
    failed = sparklog("table", "t", *arguments, code=code)
    assert says in failed.err
    assert failed.out == ""
