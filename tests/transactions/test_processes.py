"""Real processes on a real disk, killed at random: topics agree whenever they are read, and nothing is lost."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import sparklog
from sparklog.log.read.scan import read_parts
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.topic.root import RootView

pytestmark = pytest.mark.sweep

REPOSITORY = Path(__file__).parents[2]
IDS = ("left", "right")


def read(root: Path) -> dict[str, list[str]]:
    """One read of both topics."""
    view = RootView(sparklog.open(root))
    view.refresh(["a", "b"])
    found = {}
    for name in ("a", "b"):
        ranges = [OffsetRange(name, p, own.log_start, own.last_stable) for p, own in view.bounds(name).items()]
        batches = read_parts(view.plan(ranges, READ_COMMITTED), ("value",))
        found[name] = sorted(value.decode() for batch in batches for value in batch["value"].to_pylist())
    return found


def start(root: Path, name: str, first: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.transactions.writing_process", str(root), name, str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


def test_writers_killed_at_random(tmp_path: Path) -> None:
    opened = sparklog.open(tmp_path, create=True)
    for name in ("a", "b"):
        opened.create_topic(name)
    source = random.Random(5)
    committed: set[str] = set()
    for life in range(3):
        processes = {name: start(tmp_path, name, 1000 * life) for name in IDS}
        for name, process in processes.items():
            assert process.stdout is not None
            for _ in range(source.randint(1, 12)):
                line = process.stdout.readline()
                assert line, "the writer ended by itself"
                committed.add(f"{name} {int(line)}")
                seen = read(tmp_path)
                assert seen["a"] == seen["b"]
        for name, process in processes.items():
            process.kill()
            assert process.stdout is not None
            committed.update(f"{name} {int(line)}" for line in process.stdout if line.endswith("\n"))
            process.wait()
            process.stdout.close()
    for name in IDS:
        with sparklog.transactional(tmp_path, name).begin():
            pass
    seen = read(tmp_path)
    assert seen["a"] == seen["b"]
    assert committed <= set(seen["a"])
    assert len(seen["a"]) == len(set(seen["a"]))
    for name in ("a", "b"):
        head = opened.topic(name).read_snapshot().head
        assert head.last_stable().tolist() == head.log_end.tolist()
