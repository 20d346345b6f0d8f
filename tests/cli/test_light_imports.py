"""Commands over little data load neither numba nor pandas: each would cost a third of a second of CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("numba", "llvmlite", "pandas", "pyspark", "rich", "jinja2")
PROGRAM = f"""
import atexit, sys
atexit.register(lambda: print("HEAVY", *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr))
from sparklog.cli import main
main()
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
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = {"key": [b"a", None], "value": [b"1", None], "headers": pa.array([[("h", b"v"), ("n", None)], None], kind)}
    sparklog.open(tmp_path / "root", create=True).create_topic("orders", partitions=2).append(pa.table(rows))
    return tmp_path / "root"


OFTEN = {
    "topics list",
    "consume orders --max-messages 1",
    "consume orders --print-key --print-timestamp --print-headers --print-offset --print-partition",
    "produce orders",
    "produce orders --json",
    "get orders --key a",
    "verify",
}


@pytest.mark.parametrize(
    "command", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_a_command_loads_what_it_needs(root: Path, command: str) -> None:
    text, allowed = COMMANDS[command]
    words = [*command.split(), "--root", str(root)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=REPOSITORY, input=text, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()[-1].split()[1:]) <= allowed, done.stderr
