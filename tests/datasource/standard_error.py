"""The standard error of Spark and its workers, which the JVM inherits, is redirected to a file that tests can read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stderr_to(file: Path) -> Iterator[None]:
    """Redirect the standard error of a process that is started in this block, and of its child processes, to `file`."""
    kept = os.dup(2)
    with file.open("ab") as to:
        os.dup2(to.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class StandardError:
    """The standard error since the start of the test. A thread of the JVM writes the output of workers with a short
    delay.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = file.stat().st_size if file.exists() else 0

    def shows(self, text: str, seconds: float = 120) -> bool:
        """Return True as soon as `text` appears, or False if it does not appear within `seconds`."""
        end = time.monotonic() + seconds
        while text.encode() not in self._file.read_bytes()[self._start :]:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True
