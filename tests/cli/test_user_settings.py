"""User settings: names of roots, a default root, the output format, and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog as library
from tests.support.command_line import invoke

Run = Callable[..., str]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the settings file, which does not exist, and create two roots `one` and `two` with a topic of
    the same name.
    """
    for name in ("one", "two"):
        library.open(tmp_path / name, create=True).create_topic(name, partitions=2)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SPARKLOG_CONFIG", raising=False)
    monkeypatch.delenv("SPARKLOG_ROOT", raising=False)
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "sparklog.toml"


def shown(*words: str, code: int = 0) -> str:
    result = invoke(words)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result.stdout if not code else result.stderr


def test_settings_define_root_names_and_a_default_root(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Missing option '--root'" in shown("topics", "list", code=2)
    config.write_text(f'root = "first"\n[roots]\nfirst = "{tmp_path}/one"\nsecond = "{tmp_path}/two"\n')
    assert shown("topics", "list") == "one\n"
    assert shown("topics", "list", "--root", "second") == "two\n"
    assert shown("topics", "list", "--root", str(tmp_path / "two")) == "two\n"
    assert json.loads(shown("offsets", "two", "--json", "--root", "second"))
    assert json.loads(shown("compact", "--dry-run", "--json"))["topics"][0]["topic"] == "one"
    monkeypatch.setenv("SPARKLOG_ROOT", "second")
    assert shown("topics", "list") == "two\n"
    monkeypatch.setenv("SPARKLOG_CONFIG", "/dev/null")
    assert "second" in shown("topics", "list", code=1)


def test_settings_define_the_default_output_format(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ("--root", str(tmp_path / "one"))
    config.write_text('output = "json"\n')
    assert json.loads(shown("topics", "list", *one)) == ["one"]
    assert shown("topics", "list", "--output", "table", *one) == "one\n"
    assert shown("topics", "list", "--output", "csv", *one) == "name\none\n"
    monkeypatch.setenv("SPARKLOG_OUTPUT", "csv")
    assert shown("topics", "list", *one) == "name\none\n"


def test_tables_can_be_printed_as_csv(config: Path, tmp_path: Path) -> None:
    topic = library.open(tmp_path / "one").topic("one")
    topic.append({"value": [b"a", b"b"]})
    library.Groups(library.open(tmp_path / "one")).group('g "quoted", with a comma').alter({"one": {0: 1}})
    one = ("--root", str(tmp_path / "one"), "--output", "csv")
    (row,) = csv.DictReader(io.StringIO(shown("groups", "describe", "--all-groups", *one)))
    assert (row["group"], row["topic"], row["currentOffset"]) == ('g "quoted", with a comma', "one", "1")
    rows = list(csv.DictReader(io.StringIO(shown("history", "one", *one))))
    assert [int(row["version"]) for row in rows] == [1, 0]
    rows = list(csv.DictReader(io.StringIO(shown("offsets", "one", *one))))
    assert [row["partition"] for row in rows] == ["0", "1"]
    assert shown("transactions", "list", *one) == ""
    (made,) = csv.DictReader(io.StringIO(shown("topics", "create", "new", *one)))
    assert made["topic"] == "new"
    (doc,) = csv.DictReader(io.StringIO(shown("configs", "docs", "retention.ms", *one[2:])))
    assert (doc["name"], doc["default"]) == ("retention.ms", "604800000")


def test_csv_rows_are_the_rows_of_the_table(config: Path, tmp_path: Path) -> None:
    """Also for documents with several lists, or with nested documents."""
    library.open(tmp_path / "one").topic("one").append({"value": [b"a", b"b"]})
    one = ("--root", str(tmp_path / "one"), "--output", "csv")
    rows = list(csv.DictReader(io.StringIO(shown("log-dirs", *one))))
    assert [row["partition"] for row in rows] == ["one-0", "one-1"]
    assert sum(int(row["records"]) for row in rows) == 2
    shown("retain", *one[:2])
    rows = list(csv.DictReader(io.StringIO(shown("jobs", *one))))
    assert [(row["job"], row["topic"]) for row in rows] == [("compact", "one"), ("retain", "one")]
    (run,) = csv.DictReader(io.StringIO(shown("jobs", "--runs", *one)))
    assert run["job"] == "retain"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root = [", "is not valid TOML"),
        ("rot = 1", "expected output, root, roots, found rot"),
        ("output = 'xml'", "output must be one of table, json, csv, found 'xml'"),
        ("root = 1", "root must be a string, found 1"),
        ("roots = 1", "[roots] must contain lines of the form NAME = LOCATION"),
        ("[roots]\na = 1", "[roots] must contain lines of the form NAME = LOCATION"),
    ],
)
def test_an_invalid_settings_file_is_a_one_line_error(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    error = shown("topics", "list", code=2)
    assert message in error
    assert error.count("\n") == 1


def test_a_settings_file_given_by_path_must_exist(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARKLOG_CONFIG", str(tmp_path / "none.toml"))
    assert "given by SPARKLOG_CONFIG, does not exist" in shown("topics", "list", code=2)


def test_serve_accepts_the_name_of_a_root(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(f'[roots]\nfirst = "{tmp_path}/none"\n')
    assert f"{tmp_path}/none" in shown("serve", "first", code=1)
    monkeypatch.setenv("SPARKLOG_ROOT", "first")
    assert f"{tmp_path}/none" in shown("serve", code=1)
