"""Dry runs on read-only roots, where the clock of the store cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import Unavailable
from sparklog.jobs import compact, retain
from sparklog.maintenance.work_items import InProcess
from sparklog.storage.local import LocalStore


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root with an old record on a read-only mount, because the user root may write despite the file modes."""
    topic = sparklog.open(tmp_path, create=True).create_topic("t", configs={"retention.ms": 1000})
    topic.append(pa.table({"value": [b"x"], "timestamp": pa.array([1], pa.int64())}))

    def refuse(self: LocalStore, *given: object) -> int:
        raise Unavailable("the file system is read-only")

    for name in ("now_ms", "create", "writer", "delete", "delete_temporary"):
        monkeypatch.setattr(LocalStore, name, refuse)
    return tmp_path


def test_dry_run_works_on_a_read_only_root(read_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--root", str(read_only), "--dry-run", "--json"]
    assert compact.run(InProcess(), compact.arguments(given)) == 0
    assert json.loads(capsys.readouterr().out)["topics"][0]["planned"][0]["action"] == "seal"
    assert retain.run(retain.arguments(given)) == 0
    assert json.loads(capsys.readouterr().out)["topics"][0]["expired"][0]["logStart"] == 1


def test_run_reports_that_the_root_is_read_only(read_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compact.run(InProcess(), compact.arguments(["--root", str(read_only)])) == 1
    assert retain.run(retain.arguments(["--root", str(read_only)])) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(": ", 1)[1] for line in said.err.splitlines()] == [
        "the file system is read-only [SPARKLOG_UNAVAILABLE]"
    ] * 2
