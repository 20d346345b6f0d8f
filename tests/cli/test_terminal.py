"""Output on a terminal: no control characters, names on one line, one style of JSON, and help where it is useful."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as package
from sparklog.groups.lag import Groups
from tests.cli.conftest import REPOSITORY, Sparklog

KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"
HOSTILE = ("evil\nname", "esc\x1b[31mred", "\x9b31m", "over\u202eride", ":smile:", "[bold]x[/bold]", 'quo"te\\')
SHOWN = ("evil\\nname", "esc\\x1b[31mred", "\\x9b31m", "over\\u202eride", ":smile:", "[bold]x[/bold]", 'quo"te\\')


@pytest.fixture
def hostile(root: Path, sparklog: Sparklog) -> Path:
    sparklog("topics", "create", "t")
    for name in HOSTILE:
        Groups(root).group(name).join(f"on {name}", session_timeout_ms=600_000).commit({"t": {0: 0}})
        package.transactional(root, name).begin()
    return root


COMMANDS = (
    ("groups", "list"),
    ("groups", "list", "--state"),
    ("groups", "describe", "--all-groups"),
    ("groups", "describe", "--all-groups", "--state"),
    ("transactions", "list"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_names_are_printed_on_one_line_without_control_characters(
    hostile: Path, sparklog: Sparklog, command: tuple[str, ...]
) -> None:
    said = sparklog(*command)
    for name in SHOWN:
        assert sum(line.startswith(name) for line in said.lines) == 1, name
    assert all(line.isprintable() for line in (said.out + said.err).split("\n"))


def test_hostile_names_are_escaped_in_messages(hostile: Path, sparklog: Sparklog) -> None:
    assert sparklog("groups", "delete", "gone\x1b[2J\n", code=1).err.startswith("sparklog: group 'gone\\x1b[2J\\n'")
    assert sparklog("transactions", "describe", "evil\nname").out.startswith("TransactionalId: evil\\nname\t")
    assert json.loads(sparklog("groups", "list", "--json").out) == sorted(HOSTILE)


def test_control_characters_of_records_are_escaped_on_a_terminal(sparklog: Sparklog, root: Path) -> None:
    sparklog("topics", "create", "t")
    package.open(root).topic("t").append(pa.table({"key": [b"k\x1b[31m"], "value": ["a\tb\x07\x9bc é".encode()]}))
    arguments = [sys.executable, "-m", "sparklog", "consume", "t", "--print-key", "--root", str(root)]
    watched, terminal = pty.openpty()
    subprocess.run(arguments, stdout=terminal, stderr=subprocess.DEVNULL, cwd=REPOSITORY, check=True, timeout=300)
    os.close(terminal)
    shown = b""
    while not shown.endswith(b"\n"):
        # The kernel may deliver the output later and in pieces.
        shown += os.read(watched, 1000)
    assert shown.decode() == "k\\x1b[31m\ta\tb\\x07\\x9bc é\r\n"
    os.close(watched)
    # A file or a pipe gets the original bytes.
    piped = subprocess.run(arguments, capture_output=True, cwd=REPOSITORY, check=True, timeout=300)
    assert piped.stdout == "k\x1b[31m\ta\tb\x07\x9bc é\n".encode()


def test_a_name_that_the_encoding_cannot_represent_is_escaped(hostile: Path) -> None:
    Groups(hostile).group("ünï").join("i").commit({"t": {0: 0}})
    arguments = [sys.executable, "-m", "sparklog", "groups", "list", "--root", str(hostile)]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(arguments, capture_output=True, cwd=REPOSITORY, env=env, check=True, timeout=300)
    assert b"\\xfcn\\xef\n" in done.stdout


def test_tables_are_not_truncated_without_a_terminal(
    sparklog: Sparklog, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The width of the terminal does not apply to a pipe."""
    name = "t" * 100
    sparklog("topics", "create", name)
    package.open(root).topic(name).append(pa.table({"value": [b"v"] * 4}))
    Groups(root).group(name).join("i", session_timeout_ms=1).commit({name: {0: 1}})
    monkeypatch.setenv("COLUMNS", "20")
    for *command, last in (
        ("topics", "describe", name, "BYTES"),
        ("groups", "describe", name, "CONSUMER-ID"),
        ("log-dirs", "SLICES"),
        ("export", name, "--to", tmp_path / "exported", "LINKED"),
        ("backup", "--to", tmp_path / "place", "copied"),
        ("backup", "--to", tmp_path / "place", "--list", "COPIED"),
        ("restore", tmp_path / "place", "--to", tmp_path / "restored", "OFFSETS"),
        ("import", KAFKA, "--topic", "txn-a", "OPEN"),
    ):
        said = sparklog(*command).out
        assert "…" not in said, said
        assert last in said, said


@pytest.mark.parametrize("group", ["topics", "configs", "groups", "transactions"])
def test_a_command_group_without_a_subcommand_prints_its_help(sparklog: Sparklog, group: str) -> None:
    said = sparklog(group, code=2)
    assert (said.out, said.err.splitlines()) == ("", sparklog(group, "--help").out.splitlines())


def _names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            # The keys below these are names of configs and topics.
            yield from () if name in ("configs", "topics") and isinstance(each, dict) else _names(each)
    elif isinstance(value, list):
        for each in value:
            yield from _names(each)


def test_names_in_json_are_in_camel_case(sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    at = tmp_path / "backups"
    sparklog("topics", "create", "t", "--partitions", 2, "-c", "retention.ms=5", "--json")
    package.open(root).topic("t").append(pa.table({"value": [b"v"] * 4}))
    Groups(root).group("g").join("i", session_timeout_ms=1).commit({"t": {0: 1}})
    commands = (
        ("topics", "describe"),
        ("configs", "describe"),
        ("configs", "alter", "t", "--add-config", "retention.ms=6"),
        ("configs", "docs"),
        ("groups", "describe", "g"),
        ("groups", "describe", "g", "--state"),
        ("groups", "reset", "g", "--to-latest"),
        ("groups", "delete", "g", "--dry-run"),
        ("transactions", "list"),
        ("offsets",),
        ("delete-records", "--topic", "t", "--partition", 0, "--offset", 0),
        ("log-dirs",),
        ("import", KAFKA, "--topic", "txn-a", "--quiet"),
        ("export", "t", "--to", tmp_path / "exported", "--groups", "all"),
        ("clone", "t", "u"),
        ("backup", "--to", at, "--dry-run"),
        ("backup", "--to", at, "--keep", 3),
        ("backup", "--to", at, "--list"),
        ("backup", "--to", at, "--prune", "--keep", 3),
        ("restore", at, "--to", tmp_path / "restored"),
        ("report",),
        ("verify",),
        ("topics", "alter", "u", "--partitions", 3),
        ("topics", "delete", "u"),
    )
    for command in commands:
        said = sparklog(*command, "--json").out
        assert said.count("\n") == 1, command
        assert [name for name in _names(json.loads(said)) if "_" in name or name == "nbytes"] == [], command


def test_create_reports_whether_the_topic_existed(sparklog: Sparklog, root: Path) -> None:
    maybe = ("topics", "create", "t", "--if-not-exists")
    assert sparklog(*maybe).out == f"Created topic t with 1 partition in {root}.\n"
    assert sparklog(*maybe).out == "Topic t already exists.\n"
    assert json.loads(sparklog(*maybe, "--json").out) == {"topic": "t", "created": False}
    assert json.loads(sparklog("topics", "delete", "t", "--json").out) == {"topic": "t", "deleted": True}
    assert json.loads(sparklog("topics", "delete", "t", "--if-exists", "--json").out) == {
        "topic": "t",
        "deleted": False,
    }
