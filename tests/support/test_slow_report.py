"""The report of a slow run counts every test once, with its seeds, and says why tests were skipped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.seeds import Seeds, seeds_of
from tests.support.slow_report import SlowReport


def phase(test: str, when: str, outcome: str, *, seeds: int = 0, why: str = "", seconds: float = 1.0) -> Any:
    longrepr = ("file.py", 3, f"Skipped: {why}") if outcome == "skipped" else None
    location = ("file.py", 1, "name")
    given = [("seeds", seeds)] if seeds else []
    return pytest.TestReport(test, location, {}, outcome, longrepr, when, (), seconds, user_properties=given)  # type: ignore[arg-type]


def test_each_test_is_counted_once_and_skips_say_why() -> None:
    report = SlowReport()
    for when in ("setup", "call", "teardown"):
        report.add(phase("tests/log/test_a.py::test_one", when, "passed", seeds=50))
    report.add(phase("tests/log/test_a.py::test_two", "setup", "passed"))
    report.add(phase("tests/log/test_a.py::test_two", "call", "failed", seeds=50))
    report.add(phase("tests/log/test_a.py::test_two", "teardown", "failed"))
    for name in ("one", "two"):
        report.add(phase(f"tests/kafka/test_b.py::test_{name}", "setup", "skipped", why="no jars"))
    *table, skipped, failed = report.lines()
    assert [line.split() for line in table] == [
        ["area", "tests", "passed", "failed", "skipped", "seeds", "seconds"],
        ["tests/kafka", "2", "0", "0", "2", "0", "2"],
        ["tests/log", "2", "1", "1", "0", "50", "6"],
        ["all", "4", "1", "1", "2", "50", "8"],
    ]
    assert len({len(line) for line in table}) == 1
    assert skipped == "skipped 2: no jars"
    assert failed == "failed: tests/log/test_a.py::test_two"


def test_a_module_that_cannot_be_collected_is_a_failure() -> None:
    report = SlowReport()
    report.add_broken_module(pytest.CollectReport("tests/log/test_a.py", "failed", "SyntaxError", []))
    assert list(report.lines())[-1] == "failed: tests/log/test_a.py"


def test_seeds_come_in_ranges_that_the_environment_can_lengthen(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = Seeds(every_run=5, slow_run=7, chunk=2, slow_chunk=4)
    monkeypatch.delenv("SPARKLOG_SEEDS", raising=False)
    assert [each.id for each in seeds.few()] == ["0-1", "2-3", "4-4"]
    assert [each.id for each in seeds.many()] == ["10000-10003", "10004-10006"]
    monkeypatch.setenv("SPARKLOG_SEEDS", "9")
    assert sum(len(each.values[0]) for each in seeds.many()) == 9
    monkeypatch.setenv("SPARKLOG_SEEDS", "")
    assert sum(len(each.values[0]) for each in seeds.many()) == 7


def test_seeds_of_a_test_are_those_of_its_parameters() -> None:
    assert seeds_of([("seeds", range(3, 8)), ("profile", "calm")]) == 5
    assert seeds_of([("seed", 4)]) == 1
    assert seeds_of([("seeds", 60)]) == 0
