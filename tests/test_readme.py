"""Run the snippets of the README, of the first page of docs/ and of docs/start, and check the claims beside them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sparklog
from sparklog.datasource.session import SETTINGS
from sparklog.log.state.configs import CONFIGS
from tests.datasource import spark_session

REPOSITORY = Path(__file__).parents[1]
README = REPOSITORY / "README.md"
LANDING = REPOSITORY / "docs" / "README.md"
START = REPOSITORY / "docs" / "start"
SPARK, COMMANDS, PYTHON = START / "spark.md", START / "command-line.md", START / "python.md"
RUN = (SPARK, README, LANDING, COMMANDS, PYTHON)
"""Pages whose snippets are run, in this order: the session of the first is that of the others."""
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DATA = "/data/"


def snippets(language: str, *pages: Path) -> list[str]:
    """The fenced blocks of one language, in order, of these pages or of all."""
    return [text for page in pages or RUN for name, text in FENCE.findall(page.read_text()) if name == language]


def settings(text: str) -> dict[str, str]:
    """Spark settings as `name value` lines or as `.config("name", "value")`."""
    found = re.findall(r'\.config\("(spark\.[\w.]+)", "(\w+)"\)|^(spark\.[\w.]+)\s+(\w+)$', text, re.MULTILINE)
    return {called or line: value or text for called, value, line, text in found}


def with_sparklog(folder: Path) -> dict[str, str]:
    """An environment in which `sparklog` is this checkout's."""
    command = folder / "bin" / "sparklog"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sparklog "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        **spark_session.environment(),
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
    }


def test_every_language_is_one_that_is_run() -> None:
    assert {name for page in START.iterdir() if page not in RUN for name, _ in FENCE.findall(page.read_text())} == set()
    assert {name for page in RUN for name, _ in FENCE.findall(page.read_text())} == {"sh", "python", "console"}


@pytest.mark.spark
@pytest.mark.skipif(
    not spark_session.has_java(), reason="Spark needs Java 17 or newer: there is no `java` on the PATH and no JAVA_HOME"
)
def test_the_python_snippets_run_in_order(tmp_path: Path) -> None:
    program = "\n".join(snippets("python")).replace(DATA, f"{tmp_path}/")
    assert program.count(f"{tmp_path}/") >= 5
    script = tmp_path / "readme.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env=with_sparklog(tmp_path),
        cwd=tmp_path,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "|anna| book|" in done.stdout.replace("|  ben|", "| ben|")
    assert done.stdout.splitlines()[-1].endswith("'timestampType', 'headers']")
    assert sparklog.open(tmp_path / "log").topic("clicks-copy").scan().to_table().num_rows == 2


def test_the_command_line_prints_what_it_is_said_to(tmp_path: Path) -> None:
    environment = with_sparklog(tmp_path)
    ran = 0
    for text in snippets("console"):
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            command = command.replace(DATA, f"{tmp_path}/")
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                environment[name] = value
                continue
            environment["PYTHONUNBUFFERED"] = "1"
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            done = subprocess.run(["sh", "-c", command], **pipes, text=True, env=environment, cwd=tmp_path, check=False)
            assert done.returncode == 0, done.stdout
            assert done.stdout == expected.replace(DATA, f"{tmp_path}/"), command
            ran += 1
    assert ran >= 4


def test_the_two_commands_are_there() -> None:
    commands = [line.split("#")[0].split() for text in snippets("sh", README) for line in text.splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    for command in commands:
        done = subprocess.run([*command, "-n"], capture_output=True, text=True, cwd=REPOSITORY, check=False)
        assert done.returncode == 0, done.stderr


def test_the_first_page_installs_as_the_quick_start_does() -> None:
    (command,) = snippets("sh", LANDING)
    assert f"`{command.strip()}`" in SPARK.read_text()


def test_the_two_settings_are_the_same_everywhere() -> None:
    conf = settings((REPOSITORY / "conf" / "spark-defaults.conf").read_text())
    assert len(conf) == 2
    assert conf == SETTINGS


def test_the_table_of_differences_is_what_the_code_does() -> None:
    table = (REPOSITORY / "docs" / "design" / "differences.md").read_text()
    assert "| `compression.zstd.level` | 3 | 1 |" in table
    assert CONFIGS["compression.zstd.level"].default_text == "1"
    assert "| `file.delete.delay.ms` | 1 minute | 1 day |" in table
    assert CONFIGS["file.delete.delay.ms"].default_text == str(24 * 3600 * 1000)
    assert "| `message.timestamp.after.max.ms` | 1 hour since Kafka 4.0, before that no limit | no limit |" in table
    assert CONFIGS["message.timestamp.after.max.ms"].default_text == str(2**63 - 1)
