"""A report of what a run tried: `python -m pytest -p tests.support.slow_report --slow-report FILE`.

For each folder of tests: how many ran, how they ended, how many seeds they tried and how long they took. Below it, why
tests were skipped, so that nothing that could fail is left out silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.seeds import seeds_of

COLUMNS = ("area", "tests", "passed", "failed", "skipped", "seeds", "seconds")


@dataclass
class Area:
    """The tests of one folder."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """Test to "passed", "failed" or "skipped"."""
    seeds: int = 0
    seconds: float = 0.0

    def cells(self) -> tuple[int, ...]:
        ended = Counter(self.outcomes.values())
        counts = (ended["passed"], ended["failed"], ended["skipped"])
        return len(self.outcomes), *counts, self.seeds, round(self.seconds)


@dataclass
class SlowReport:
    """What ran so far, by area."""

    areas: dict[str, Area] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason to tests."""
    failed: list[str] = field(default_factory=list)

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase (setup, call or teardown) of a test."""
        test = report.nodeid
        area = self.areas.setdefault(test.partition("::")[0].rpartition("/")[0], Area())
        area.seconds += report.duration
        if report.failed:
            if area.outcomes.get(test) != "failed":
                self.failed.append(test)
            area.outcomes[test] = "failed"
        elif report.skipped:
            area.outcomes[test] = "skipped"
            self.skipped[skip_reason(report)] += 1
        elif report.when == "call":
            area.outcomes[test] = "passed"
            area.seeds += sum(value for name, value in report.user_properties if name == "seeds")

    def add_broken_module(self, report: pytest.CollectReport) -> None:
        """Count a module whose tests could not even be collected."""
        self.areas.setdefault(report.nodeid.rpartition("/")[0], Area()).outcomes[report.nodeid] = "failed"
        self.failed.append(report.nodeid)

    def lines(self) -> Iterator[str]:
        rows = [(name, *area.cells()) for name, area in sorted(self.areas.items())]
        total = ("all", *(sum(row[column] for row in rows) for column in range(1, len(COLUMNS))))
        table = [tuple(map(str, row)) for row in (COLUMNS, *rows, total)]
        widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
        for name, *numbers in table:
            right = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
            yield "  ".join([name.ljust(widths[0]), *right])
        for reason, tests in sorted(self.skipped.items()):
            yield f"skipped {tests}: {reason}"
        for test in self.failed:
            yield f"failed: {test}"


def skip_reason(report: pytest.TestReport) -> str:
    """Return the reason given, without the file and the line that gave it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class Collector:
    """Pytest's hooks around a `SlowReport`: prints it in the end, and keeps it as a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.report = SlowReport()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.report.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.report.add_broken_module(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = list(self.report.lines())
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("\n".join(lines) + "\n")
        terminalreporter.section(f"what ran ({self.file})")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow-report", metavar="FILE", help="write what ran, by folder of tests, to this file")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("slow_report")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(Path(file)), "slow-report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            seeds = seeds_of(list(item.callspec.params.items()))
            if seeds:
                item.user_properties.append(("seeds", seeds))
