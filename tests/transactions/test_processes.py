"""Processes on a disk are killed at random. Topics are always consistent, and no transaction is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sparklog
from sparklog.log.read.read_plan import read_parts
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.topic.root import RootView

pytestmark = pytest.mark.sweep

REPOSITORY = Path(__file__).parents[2]
IDS = ("left", "right")
AHEAD = 8
"""Number of transactions that a writer may write ahead of the test, so that some are in progress when it is killed."""


def read(root: Path) -> dict[str, list[str]]:
    """Read both topics."""
    view = RootView(sparklog.open(root))
    view.refresh(["a", "b"])
    found = {}
    for name in ("a", "b"):
        ranges = [OffsetRange(name, p, own.log_start, own.last_stable) for p, own in view.bounds(name).items()]
        batches = read_parts(view.plan(ranges, READ_COMMITTED), ("value",))
        found[name] = sorted(value.decode() for batch in batches for value in batch["value"].to_pylist())
    return found


class Writer:
    """A process that writes as many transactions as it is allowed to, regardless of the speed of the host."""

    def __init__(self, root: Path, name: str, first: int) -> None:
        command = [sys.executable, "-m", "tests.transactions.writing_process", str(root), name, str(first)]
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )

    def allow(self, transactions: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n" * transactions)
        self._process.stdin.flush()

    def next_committed(self) -> str:
        """Wait for the next committed transaction of the process, and return its value."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the writer ended by itself"
        return f"{self._name} {int(line)}"

    def kill(self) -> set[str]:
        """Kill the process, and return the values that it had committed and that have not been read yet."""
        self._process.kill()
        rest, _ = self._process.communicate()
        return {f"{self._name} {int(line)}" for line in rest.splitlines(keepends=True) if line.endswith("\n")}


@pytest.mark.parametrize("lives", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_writers_killed_at_random(tmp_path: Path, lives: int) -> None:
    opened = sparklog.open(tmp_path, create=True)
    for name in ("a", "b"):
        opened.create_topic(name)
    source = random.Random(5)
    committed: set[str] = set()
    for life in range(lives):
        writers = [Writer(tmp_path, name, 1000 * life) for name in IDS]
        for writer in writers:
            writer.allow(AHEAD)
        for writer in writers:
            for _ in range(source.randint(1, 12)):
                committed.add(writer.next_committed())
                writer.allow(1)
                seen = read(tmp_path)
                assert seen["a"] == seen["b"]
        for writer in writers:
            writer.allow(AHEAD)
            time.sleep(source.uniform(0, 0.03))
            committed |= writer.kill()
    for name in IDS:
        with sparklog.transactional(tmp_path, name).begin():
            pass
    seen = read(tmp_path)
    assert seen["a"] == seen["b"]
    assert committed <= set(seen["a"])
    assert len(seen["a"]) == len(set(seen["a"]))
    for name in ("a", "b"):
        state = opened.topic(name).log.read_snapshot().state
        assert state.last_stable().tolist() == state.log_end.tolist()
