"""Progress of long commands: a line with done and total on a terminal, a summary line at the end, and no output
elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sparklog as library
from sparklog import output
from tests.cli.conftest import Sparklog

SIZE = r"[\d.]+ k?B"
"""A size in a human-readable form. The texts below require that the planned amount was completed."""
COMMANDS = {
    "backup --to {tmp}/backups": (rf"(\d+) of \1 files, ({SIZE}) of \2", ""),
    "export orders keyed --to {tmp}/kafka": (
        rf"400 records, ({SIZE}) of \1 copied, now .*",
        rf"Exported 2 topics, 4 partitions to .*: {SIZE}\.",
    ),
    "import {tmp}/kafka --root {tmp}/imported": (
        rf"400 records, ({SIZE}) of \1 copied, now orders-1",
        rf"Imported 400 records of 2 topics: {SIZE} copied\.",
    ),
    "repartition orders --to orders-5 -p 5": (rf"200 records, ({SIZE}) of \1 copied", ""),
    "compact --roll": (rf"(\d+) of \1 work items, ({SIZE}) of \2", ""),
    "retain": ("4 of 4 topics, 0 B deleted", "retain: 4 topics, 0 B deleted"),
}


@pytest.fixture
def filled(root: Path) -> None:
    opened = library.open(root, create=True)
    for name, configs in (("orders", {}), ("keyed", {"cleanup.policy": "compact"})):
        topic = opened.create_topic(name, partitions=2, configs=configs)
        for _ in range(4):
            topic.append({"key": [f"key {number % 9}" for number in range(50)], "value": ["value"] * 50})


@pytest.mark.usefixtures("filled")
def test_progress_ends_at_the_total(sparklog: Sparklog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "STATUS_SECONDS", 600)
    texts: list[str] = []
    monkeypatch.setattr(output.StatusLine, "__call__", lambda line, text: texts.append(text))
    for command, (last, total) in COMMANDS.items():
        for is_terminal in (True, False):
            monkeypatch.setattr(output, "on_terminal", lambda shown=is_terminal: shown)
            monkeypatch.setattr("sparklog.jobs.common.on_terminal", output.on_terminal)
            texts.clear()
            words = command.format(tmp=tmp_path / str(is_terminal)).split()
            (tmp_path / str(is_terminal)).mkdir(exist_ok=True)
            if words[0] == "repartition" and not is_terminal:
                words[3] = "orders-6"
            said = [
                line for line in sparklog(*words).err.splitlines() if not re.search("retention.ms|created root", line)
            ]
            if is_terminal:
                assert re.fullmatch(last, texts[-1]), (command, texts)
                assert re.fullmatch(total, "\n".join(said)), (command, said)
            elif words[0] in ("compact", "retain"):
                assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in said), "lines of the job's log"
            else:
                assert said == [], command
