"""The file of the slowest tests has the seconds of all phases, slowest first."""

from __future__ import annotations

from pathlib import Path

from _pytest.reports import TestReport

from tests.support.durations import SLOWEST, Durations


def report(test: str, when: str, seconds: float) -> TestReport:
    return TestReport(test, ("", None, ""), {}, "passed", None, when, duration=seconds)  # type: ignore[arg-type]


def test_phases_add_up_and_the_slowest_come_first(tmp_path: Path) -> None:
    durations = Durations(tmp_path / "build" / "durations.txt")
    durations.pytest_runtest_logreport(report("a.py::quick", "call", 0.5))
    for when, seconds in (("setup", 2.0), ("call", 0.25), ("teardown", 0.25)):
        durations.pytest_runtest_logreport(report("a.py::slow", when, seconds))
    for number in range(SLOWEST):
        durations.pytest_runtest_logreport(report(f"b.py::test[{number}]", "call", 0.0))
    durations.pytest_sessionfinish()
    total, *tests = durations.file.read_text().splitlines()
    assert total.split() == ["3.00", "102", "tests"]
    assert [line.split() for line in tests[:2]] == [["2.50", "a.py::slow"], ["0.50", "a.py::quick"]]
    assert len(tests) == SLOWEST
