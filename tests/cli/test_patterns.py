"""Topics selected by a pattern are changed only with --execute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sparklog as library
from tests.cli.conftest import Sparklog

DONE = "Nothing was changed; add --execute to make the changes."


@pytest.fixture
def log(root: Path) -> Path:
    opened = library.open(root, create=True)
    for name in ("test-a", "test-b", "a-test-c", "orders"):
        opened.create_topic(name)
    return root


def names(log: Path) -> list[str]:
    return library.open(log).topics()


@pytest.mark.usefixtures("log")
def test_a_pattern_must_match_full_topic_names(sparklog: Sparklog, log: Path) -> None:
    lines = ["Would delete topic test-a.", "Would delete topic test-b.", DONE]
    assert sparklog("topics", "delete", "--pattern", "test-.*").lines == lines
    assert sparklog("topics", "delete", "--pattern", "test-.*", "--dry-run").lines == lines
    assert len(names(log)) == 4
    out = sparklog("topics", "delete", "--pattern", "test-.*", "--execute", "--json").out
    assert json.loads(out) == {"pattern": "test-.*", "executed": True, "topics": ["test-a", "test-b"]}
    assert names(log) == ["a-test-c", "orders"]
    assert "no topic" in sparklog("topics", "delete", "--pattern", "test-.*", "--execute", code=1).err
    assert sparklog("topics", "delete", "--pattern", "test-.*", "--if-exists").code == 0


def test_a_single_topic_is_deleted_immediately_unless_dry_run(sparklog: Sparklog, log: Path) -> None:
    assert sparklog("topics", "delete", "orders", "--dry-run").lines == ["Would delete topic orders."]
    sparklog("topics", "delete", "gone", "--dry-run", code=1)
    assert "orders" in names(log)
    assert sparklog("topics", "delete", "orders").lines == ["Deleted topic orders."]


def test_configs_are_altered_by_a_pattern(sparklog: Sparklog, log: Path) -> None:
    words = ("configs", "alter", "--pattern", "test-.", "--add-config", "segment.ms=7")
    lines = sparklog(*words).lines
    assert lines[1::2] == ["Would change the config of topic test-a.", "Would change the config of topic test-b."]
    assert lines[-1] == DONE
    done = json.loads(sparklog(*words, "--execute", "--json").out)
    assert [(item["topic"], item["dryRun"], item["changes"][0]["after"]) for item in done] == [
        ("test-a", False, "7"),
        ("test-b", False, "7"),
    ]
    heads = {name: library.open(log).topic(name).log.state().configs.text("segment.ms") for name in names(log)}
    assert heads["test-a"] == heads["test-b"] == "7" != heads["orders"] == heads["a-test-c"]


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "delete", "orders", "--pattern", "x.*"),
        ("topics", "delete", "orders", "--execute"),
        ("topics", "delete", "--pattern", "[", "--execute"),
        ("topics", "delete", "--pattern", "x.*", "--execute", "--dry-run"),
        ("topics", "delete"),
        ("configs", "alter", "--pattern", "(", "--add-config", "segment.ms=7"),
    ],
)
def test_usage(sparklog: Sparklog, log: Path, words: tuple[str, ...]) -> None:
    sparklog(*words, code=2)
    assert len(names(log)) == 4
