"""Test that the page of Kafka's APIs lists every request of the protocol, and only commands and calls that exist."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path

import pytest

import sparklog
from sparklog.cli.app import MODULE_OF
from tests.support.command_line import command_of

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "kafka-apis.md").read_text()
REQUESTS = {name: int(number) for name, number in re.findall(r"`([A-Z]\w+)` \((\d+)\)", PAGE)}
"""The requests on the page, with their numbers."""


def test_every_request_is_listed_once() -> None:
    assert sorted(REQUESTS.values()) == [*range(4), *range(8, 93)]


def test_request_numbers_match_the_protocol() -> None:
    kafka = pytest.importorskip("kafka", reason="its schemas are those of Kafka")
    for file in Path(kafka.__file__).parent.rglob("schemas/resources/*Request.json"):
        schema = json.loads(re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.MULTILINE))
        if schema.get("type") == "request":
            assert REQUESTS[schema["name"].removesuffix("Request")] == schema["apiKey"]


def test_each_row_has_one_of_four_values() -> None:
    tables = PAGE.partition("\n## ")[2]
    rows = [line.split(" | ") for line in tables.split("\n") if line.startswith("| ") and " | sparklog | " not in line]
    assert {row[1] for row in rows} == {"yes", "other", "no", "none needed"}


def test_commands_and_calls_exist() -> None:
    for command in re.findall(r"`sparklog ([\w-]+)(?: (\w[\w-]*))?", PAGE):
        assert command[0] in MODULE_OF
        below = getattr(command_of(command[0]), "commands", None)
        assert below is None or not command[1] or command[1] in below, command
    for name in re.findall(r"`((?:Topic|Root|Consumer|Producer|Transaction)\.\w+)|`sparklog\.(\w+)", PAGE):
        attrgetter(name[0] or name[1])(sparklog)
