"""Tests that start Java are marked `spark` or `java`: without the mark, starting it fails.

`make test-fast` leaves the marked ones out. Java below another process of a test is not seen.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

MARK_OF_FIXTURE = {
    "spark": "spark",
    "spark_folder": "spark",
    "kafka_tools": "java",
    "broker": "java",
    "minicluster": "java",
}
PROGRAMS = frozenset(("java", "spark-submit"))


def mark(item: pytest.Item) -> None:
    """Mark a test by the fixtures it uses, directly or through others."""
    names = getattr(item, "fixturenames", ())
    for marker in sorted({MARK_OF_FIXTURE[name] for name in names if name in MARK_OF_FIXTURE}):
        item.add_marker(marker)


class Watch:
    """Pytest's hooks that refuse to start Java in a test without the mark."""

    def __init__(self) -> None:
        self.refusing: str | None = None
        """The unmarked test that runs now."""

    def install(self) -> None:
        start = subprocess.Popen.__init__

        def checked(process: Any, args: Any, *more: Any, **named: Any) -> None:
            program = args if isinstance(args, (str, Path)) else args[0]
            if self.refusing is not None and Path(program).name in PROGRAMS:
                raise AssertionError(f"{self.refusing} starts Java: mark it `java`, or `spark`")
            start(process, args, *more, **named)

        subprocess.Popen.__init__ = checked  # type: ignore[method-assign]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.refusing = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        marked = item.get_closest_marker("spark") or item.get_closest_marker("java")
        self.refusing = None if marked else item.nodeid
