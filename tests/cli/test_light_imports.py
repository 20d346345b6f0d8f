"""Commands over little data load neither numba nor pandas: each would cost a third of a second of CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("numba", "llvmlite", "pandas", "pyspark", "rich", "jinja2")
ARRAYS = ("pyarrow", "numpy")
"""Not loaded by a command that opens no root."""
PROGRAM = """
import json, os, sys, tempfile
os.environ.pop("SPARKLOG_ROOT", None)
from sparklog.cli import main

seen = set()
for words, text in json.load(sys.stdin):
    sys.argv = ["sparklog", *words]
    lines = tempfile.TemporaryFile()
    lines.write(text.encode())
    lines.seek(0)
    os.dup2(lines.fileno(), 0)
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    loaded = set(sys.modules) - seen
    seen |= loaded
    print(json.dumps(sorted(name for name in loaded if "." not in name)), file=sys.stderr)
"""
TABLES = {"rich"}
COMMANDS: dict[str, tuple[str, set[str]]] = {
    "topics list": ("", set()),
    "topics list --json": ("", set()),
    "topics describe orders": ("", TABLES),
    "consume orders --max-messages 1": ("", set()),
    "consume orders --print-key --print-timestamp --print-headers --print-offset --print-partition": ("", set()),
    "consume orders --json": ("", set()),
    "produce orders": ("hello\n", set()),
    "produce orders --partition 1 --key-separator : --headers --null-marker N": ("a:b,c:N\tk:v\n\tk:N\n", set()),
    "produce orders --json": ('{"key": null, "value": "v", "headers": [["h", "x"]], "timestamp": 1}\n', set()),
    "get orders --key a": ("", set()),
    "offsets orders": ("", set()),
    "offsets orders --time 5": ("", set()),
    "groups list": ("", set()),
    "configs describe orders": ("", TABLES),
    "transactions list": ("", set()),
    "log-dirs": ("", TABLES),
    "delete-records --topic orders --partition 0 --offset 0": ("", set()),
    "metrics": ("", set()),
    "verify": ("", set()),
    "repair": ("", set()),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = {"key": [b"a", None], "value": [b"1", None], "headers": pa.array([[("h", b"v"), ("n", None)], None], kind)}
    sparklog.open(tmp_path / "root", create=True).create_topic("orders", partitions=2).append(pa.table(rows))
    return tmp_path / "root"


def loaded_by(commands: dict[str, str]) -> dict[str, set[str]]:
    """Run these commands (words to standard input) in one process; what each of them loaded beyond those before it."""
    given = json.dumps([(command.split(), text) for command, text in commands.items()])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=REPOSITORY, input=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lists = [line for line in done.stderr.splitlines() if line.startswith("[")]
    return {command: set(json.loads(line)) for command, line in zip(commands, lists, strict=True)}


def test_help_loads_no_arrays_either() -> None:
    (version, help_text) = loaded_by({"--version": "", "topics --help": ""}).values()
    assert not version & {*HEAVY, *ARRAYS}
    assert not help_text & {*HEAVY, *ARRAYS} - TABLES


def test_commands_load_what_they_need(root: Path) -> None:
    """Those that print no tables go first: what one has loaded is not seen again in the next."""
    in_turn = sorted(COMMANDS.items(), key=lambda item: bool(item[1][1]))
    loaded = loaded_by({f"{command} --root {root}": text for command, (text, _) in in_turn})
    for (command, (_, allowed)), found in zip(in_turn, loaded.values(), strict=True):
        assert found & set(HEAVY) <= allowed, command
