"""What Spark and its workers say on standard error, which the JVM inherits: sent to a file that tests can read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stderr_to(file: Path) -> Iterator[None]:
    """While a process is started: its standard error, and that of all its children, goes to `file`."""
    kept = os.dup(2)
    with file.open("ab") as to:
        os.dup2(to.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Said:
    """What was said since the test began; workers' words come through a thread of the JVM, a little later."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = file.stat().st_size if file.exists() else 0

    def __call__(self, text: str, seconds: float = 120) -> bool:
        """Whether `text` appears within `seconds`."""
        end = time.monotonic() + seconds
        while text.encode() not in self._file.read_bytes()[self._start :]:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True
