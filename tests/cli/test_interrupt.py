"""Ctrl-C prints one line on stderr that reports which changes remain, and exits with code 130, in all commands and
jobs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from tests.cli.conftest import REPOSITORY, Sparklog
from tests.cli.test_every_command import IN_TURN, JOBS, examples
from tests.support.command_line import command_of, invoke

NOTHING, COMMITTED = "nothing was changed", "committed changes remain"
STAYS = {
    **dict.fromkeys(("history", "log-dirs", "report", "verify", "topics list", "groups describe"), NOTHING),
    **dict.fromkeys(("produce", "clone", "topics create", "groups reset", "delete-records"), COMMITTED),
    "consume": "nothing was changed except the committed offsets of the group",
    "backup": "no backup was created; run the command again to copy the remaining files",
    "export": "nothing was exported",
    "import": "committed records remain; run the command again to continue",
    "restore": "run the command again with the same options to continue",
}


def interrupt(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", [*IN_TURN, *JOBS])
def test_every_command_ends_with_one_line_and_130(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = command if command in JOBS else examples(command)[0].rpartition("sparklog ")[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_of(command), "callback", interrupt)
    result = invoke(shlex.split(line), {"SPARKLOG_ROOT": str(tmp_path)})
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.startswith("sparklog: interrupted; ")
    assert result.stderr.count("\n") == 1
    assert result.stderr[len("sparklog: interrupted; ") : -1] == STAYS.get(command, result.stderr[23:-1])


@pytest.mark.parametrize("line", ["consume t", "consume t --group g", "consume t --group g --follow", "table t"])
def test_an_interrupted_consumer_reports_its_record_count(
    sparklog: Sparklog, root: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    from sparklog.cli import printing

    topic = library.open(root, create=True).create_topic("t", partitions=2)
    topic.append(pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"], "partition": [0, 0, 1]}))
    printed = printing.write

    def write(data: bytes) -> None:
        printed(data)
        if b"2" in data:
            # The interrupt arrives as soon as the reader of the output sees the records.
            raise KeyboardInterrupt

    monkeypatch.setattr(printing, "write", write)
    # There is one batch per partition.
    monkeypatch.setattr("sparklog.log.read.decode_slices.joined", lambda batches, _: batches)
    outcome = sparklog(*line.split(), "--from-beginning" if "--follow" in line else "--print-value", code=130)
    assert outcome.err.startswith("sparklog: interrupted: processed a total of 2 messages; nothing was changed")
    assert (outcome.err.count("\n"), len(outcome.lines)) == (1, 2)


@pytest.mark.parametrize(
    ("end", "code", "again"), [(KeyboardInterrupt, 130, ["3"]), (BrokenPipeError, 0, ["1", "2", "3"])]
)
def test_an_interrupted_consumer_commits_printed_records(
    sparklog: Sparklog,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: type[BaseException],
    code: int,
    again: list[str],
) -> None:
    """Offsets are not committed if the reader of a pipe exits, because it is unknown which records it has read."""
    from sparklog.cli import printing
    from sparklog.cli.commands import consume

    library.open(root, create=True).create_topic("t").append(pa.table({"value": ["1", "2", "3"]}))
    printed = printing.write

    def write(data: bytes) -> None:
        if b"3" in data:
            raise end
        printed(data)

    monkeypatch.setattr("os.dup2", lambda *files: None)
    monkeypatch.setattr(consume, "MAX_POLL_RECORDS", 1)
    with monkeypatch.context() as patched:
        patched.setattr(printing, "write", write)
        assert sparklog("consume", "t", "--group", "g", code=code).lines == ["1", "2"]
    assert sparklog("consume", "t", "--group", "g").lines == again


def test_an_interrupted_backup_reports_its_progress(
    sparklog: Sparklog, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparklog.tools.backup import backing_up

    def back_up(*args: object, progress: Callable[..., None], **options: object) -> None:
        progress(12, 40, 1_200_000_000, 5_120_000_000)
        raise KeyboardInterrupt

    library.open(root, create=True).create_topic("t")
    monkeypatch.setattr(backing_up, "back_up", back_up)
    said = sparklog("backup", "--to", tmp_path / "backups", code=130)
    assert said.err == (
        "sparklog: interrupted: 12 of 40 files, 1.2 GB of 5.1 GB; no backup was created; run the command again "
        "to copy the remaining files\n"
    )


def test_an_interrupted_producer_reports_appended_lines(
    sparklog: Sparklog, root: Path, lines_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparklog.cli.commands import produce

    def runs(fd: int, **options: object) -> Iterator[bytes]:
        yield b"one\ntwo\n"
        raise KeyboardInterrupt

    library.open(root, create=True).create_topic("t")
    monkeypatch.setattr(produce, "line_chunks", runs)
    said = sparklog("produce", "t", "--file", lines_file("x"), code=130)
    assert said.err == "sparklog: interrupted: appended 2 records to t; committed changes remain\n"
    assert sparklog("offsets", "t").lines == ["t:0:2"]


def test_an_interrupted_import_reports_imported_records(
    sparklog: Sparklog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_into(*args: object, on_planned: None, on_progress: Callable[..., None], **options: object) -> None:
        assert on_planned is None, "the total is for a terminal: finding it out reads more"
        on_progress("t", 0, 1_000, 5_000)
        on_progress("t", 1, 500, 5_000)
        raise KeyboardInterrupt

    monkeypatch.setattr("sparklog.api.import_into", import_into)
    said = sparklog("import", "/nowhere", "--quiet", code=130)
    assert said.err == (
        "sparklog: interrupted: 1,500 records, 10.0 kB copied, now t-1; committed records remain; run the "
        "command again to continue\n"
    )


JOB_FILES = sorted(path.name for path in (REPOSITORY / "jobs").glob("*.py"))
FAULTS = {
    "missing": ("raise ModuleNotFoundError('no', name='pyspark')", 1, "has no module pyspark: pip install"),
    "interrupted": ("raise KeyboardInterrupt", 130, "interrupted; nothing was changed"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", JOB_FILES)
def test_an_import_error_of_a_job_is_one_line(name: str, fault: str, tmp_path: Path) -> None:
    statement, code, says = FAULTS[fault]
    (tmp_path / "sparklog").mkdir()
    (tmp_path / "sparklog" / "__init__.py").write_text(statement)
    done = subprocess.run(
        [sys.executable, "-S", REPOSITORY / "jobs" / name],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"sparklog {name.removesuffix('.py').replace('_', '-')}: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
