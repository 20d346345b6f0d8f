"""Finding of a check, and the machine that checks look at."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
ANSWER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check; `fix`: for `warn` and `fail` the exact command or setting that puts it right."""

    check: str
    status: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code of a program, None where it could not be started, and the text on both of its streams."""

    code: int | None
    text: str


def _run(command: Sequence[str]) -> Answer:
    """Run a program away from the current folder: Python would take modules from it that no worker has."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Answer(None, str(error))
    return Answer(done.returncode, done.stdout + done.stderr)


def _free(path: str) -> tuple[int, int]:
    """Return free and total bytes of the file system of a path."""
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


@dataclass(frozen=True, slots=True)
class Machine:
    """Calls to the operating system: environment, programs on the PATH, running one, space of a disk."""

    environ: Mapping[str, str]
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str]], Answer] = _run
    free: Callable[[str], tuple[int, int]] = _free


HERE = Machine(os.environ)
