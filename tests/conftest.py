"""Fixtures for every test, and what makes a run the same wherever and by whomever it is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fixture_data import fixture_tree
from tests.kafka_tools import KafkaTools, Missing, find_tools

OF_TERMINALS = (
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "_TYPER_FORCE_DISABLE_TERMINAL"),
)
"""What rich and typer read, some of it when they are imported: help is wrapped and coloured by it."""
OF_SPARKLOG = ("SPARKLOG_ROOT",)


def pytest_configure(config: pytest.Config) -> None:
    """Take what a developer's shell or a CI service says about terminals and roots out of the environment.

    Hypothesis: a slow machine is no failure. The normal run tries the same examples each time, so that its outcome says
    something about the change; the long one looks for new ones.
    """
    for name in (*OF_TERMINALS, *OF_SPARKLOG):
        os.environ.pop(name, None)
    settings.register_profile(
        "sparklog",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize="slow" not in config.getoption("markexpr").replace("not slow", ""),
    )
    settings.load_profile("sparklog")


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """What Kafka wrote and what Kafka says about it: the tree described in its own README.md and in tests/FIXTURES.md.

    Shared by all tests and runs: never write into it (`fixture_data.copied` gives a copy to damage).
    """
    return fixture_tree()


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    """Kafka's own DumpLogSegments; skips where there is no Java or the jars cannot be fetched."""
    try:
        return find_tools()
    except Missing as missing:
        pytest.skip(str(missing))
