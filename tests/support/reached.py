"""Reports which named situations simulations reached: `python -m pytest -p tests.support.reached ...`.

`sparklog.common.reached` has the counters. Tests below a folder `simulation` count. The run lists all names with their
counts in `FILE`. With `--all-reached` it fails if a name was not reached, which takes the seeds of the slow run.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.common.reached import count_reached
from tests.support.sources import REPOSITORY, dotted_name, nodes, text

FILE = Path("build/reached.txt")
FOLDER = "simulation"


def situations() -> Iterator[tuple[str, str]]:
    """Yield the name of each situation in `sparklog/`, and the module and line where it is."""
    for file in sorted((REPOSITORY / "sparklog").rglob("*.py")):
        for node in nodes(text(file)):
            if isinstance(node, ast.Call) and dotted_name(node.func) == "reached":
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{file}:{node.lineno}: the name of a situation is a literal"
                yield str(name.value), f"{file.relative_to(REPOSITORY)}:{node.lineno}"


class ReachedReport:
    """Counts in each process, and adds up the counts of all of them in the one that reports."""

    def __init__(self, config: pytest.Config, file: Path = FILE) -> None:
        self.config = config
        self.file = file
        self.counts: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        count_reached(self.counts if FOLDER in item.path.parts else None)
        try:
            return (yield)
        finally:
            count_reached(None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.counts.update(json.loads(getattr(node, "workeroutput", {}).get("reached", "{}")))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["reached"] = json.dumps(self.counts)
            return
        places = dict(situations())
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{self.counts[name]:10,}  {name}  ({place})\n" for name, place in sorted(places.items())]
        self.file.write_text("".join(lines))
        missed = [line for line in lines if line.split()[0] == "0"]
        if missed and self.config.getoption("all_reached"):
            print(f"\nnever reached by a simulation:\n{''.join(missed)}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-reached", action="store_true", help="fail if a named situation was never reached")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ReachedReport(config), "reached")
