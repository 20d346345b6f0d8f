"""Keeps how long the slowest tests of a run took: `python -m pytest -p tests.support.durations` writes `FILE`.

The seconds of a test include its setup and teardown, unlike those of pytest's `--durations`, so a fixture that became
slow shows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

FILE = Path("build/durations.txt")
SLOWEST = 100


class Durations:
    """Adds up the phases of each test; under xdist the controller has those of all processes."""

    def __init__(self, file: Path = FILE) -> None:
        self.file = file
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        lines = [f"{seconds:8.2f}  {test}\n" for test, seconds in self.seconds.most_common(SLOWEST)]
        total = f"{sum(self.seconds.values()):8.2f}  {len(self.seconds)} tests\n"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(total + "".join(lines))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(), "durations")
