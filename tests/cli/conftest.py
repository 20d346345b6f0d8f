"""Fixtures that run commands in this process, or in a separate process if a test requires one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command_line import invoke

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Sparklog = Callable[..., Outcome]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the path at which a root may be created."""
    return tmp_path / "root"


@pytest.fixture
def sparklog(root: Path) -> Sparklog:
    """Return a function that runs a command with SPARKLOG_ROOT set to `root`. The command must exit with `code`."""

    def run(*arguments: object, code: int = 0) -> Outcome:
        result = invoke(arguments, {"SPARKLOG_ROOT": str(root)})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        outcome = Outcome(result.exit_code, result.stdout, result.stderr)
        assert outcome.code == code, outcome
        return outcome

    return run


@pytest.fixture
def process(root: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Return a function that starts a command in a separate process with pipes."""

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "sparklog", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, "SPARKLOG_ROOT": str(root)},
            # A shell starts background processes with SIGINT ignored, and their child processes would inherit this.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


@pytest.fixture
def lines_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write text to a file for `produce --file`."""

    def write(text: str) -> Path:
        path = tmp_path / "input"
        path.write_bytes(text.encode())
        return path

    return write
