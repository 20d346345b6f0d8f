"""`sparklog clone`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Sparklog

LinesFile = Callable[[str], Path]


def consumed(sparklog: Sparklog, topic: str) -> list[str]:
    return sparklog("consume", topic, "--from-beginning").lines


def test_clone_prints_the_cloned_version(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "orders")
    sparklog("produce", "orders", "--file", lines_file("a\nb\n"))
    sparklog("produce", "orders", "--file", lines_file("c\n"))
    said = sparklog("clone", "orders", "before", "--as-of", 1).out
    assert said.startswith("Cloned topic orders at version 1 as before: 1 partition, 2 offsets, 1 file (")
    assert consumed(sparklog, "before") == ["a", "b"]
    shown = json.loads(sparklog("clone", "orders", "now", "--json").out)
    assert (shown["version"], shown["logEnds"], shown["dryRun"]) == (3, [3], False)
    assert consumed(sparklog, "now") == ["a", "b", "c"]
    assert "Would clone" in sparklog("clone", "orders", "not", "--dry-run").out
    assert sparklog("topics", "list").lines == ["before", "now", "orders"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("orders", "orders"), 1, "'orders' already exists"),
        (("ordres", "copy"), 1, "did you mean 'orders'"),
        (("orders", "a/b"), 1, "a/b"),
        (("orders", "copy", "--as-of", "77"), 1, "versions up to 0, found 77"),
        (("orders", "copy", "--as-of", "2001-01-01"), 1, "topic 'orders' has no version at"),
        (("orders", "copy", "--as-of", "tuesday"), 2, "--as-of"),
        (("orders",), 2, "NEW-NAME"),
    ],
)
def test_invalid_input_is_a_one_line_error(
    sparklog: Sparklog, arguments: tuple[str, ...], code: int, says: str
) -> None:
    sparklog("topics", "create", "orders")
    outcome = sparklog("clone", *arguments, code=code)
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert sparklog("topics", "list").lines == ["orders"]
