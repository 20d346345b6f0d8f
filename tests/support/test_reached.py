"""Situations have names of their own, and the report tells which of them no simulation reached."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.common.reached import reached as count
from tests.support.reached import ReachedReport, situations

NAME, OTHER = "journal: a writer waits after losing several races", "transactions: an idle id expires"


def test_each_situation_has_one_place_and_says_whose_it_is() -> None:
    names = [name for name, _ in situations()]
    assert not [name for name, times in Counter(names).items() if times > 1]
    assert {name.partition(": ")[0] for name in names} <= {"groups", "journal", "log", "maintenance", "transactions"}


def run(report: ReachedReport, folder: str) -> None:
    """Run a test that reaches a situation."""
    calls = report.pytest_runtest_call(SimpleNamespace(path=Path("tests", folder, "test_it.py")))  # type: ignore[arg-type]
    next(calls)
    count(NAME)
    with pytest.raises(StopIteration):
        next(calls)
    count(OTHER)


@pytest.mark.parametrize("all_reached", [False, True])
def test_simulations_count_and_the_report_names_what_none_reached(tmp_path: Path, all_reached: bool) -> None:
    config: Any = SimpleNamespace(getoption=lambda name: all_reached)
    report = ReachedReport(config, tmp_path / "build" / "reached.txt")
    run(report, "simulation")
    run(report, "elsewhere")
    assert report.counts == {NAME: 1}
    report.pytest_testnodedown(SimpleNamespace(workeroutput={"reached": json.dumps({NAME: 4})}))
    session: Any = SimpleNamespace(exitstatus=0)
    report.pytest_sessionfinish(session)
    lines = [line.split("  ") for line in report.file.read_text().splitlines()]
    assert {words[-2]: int(words[-3]) for words in lines} == {name: 5 * (name == NAME) for name, _ in situations()}
    assert session.exitstatus == int(all_reached)


def test_a_process_hands_its_counts_to_the_one_that_reports(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(workeroutput={})
    report = ReachedReport(config, tmp_path / "reached.txt")
    run(report, "simulation")
    report.pytest_sessionfinish(SimpleNamespace(exitstatus=0))  # type: ignore[arg-type]
    assert json.loads(config.workeroutput["reached"]) == {NAME: 1}
    assert not report.file.exists()
