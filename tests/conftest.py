"""Fixtures for every test, and what makes a run the same wherever and by whomever it is started."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from sparklog.common.warned import forget_warnings
from sparklog.log.state.configs import TopicConfigs
from tests.fixture_data import fixture_tree
from tests.kafka_tools import KafkaTools, Missing, find_tools
from tests.support import starting_java
from tests.support.minicluster import minicluster
from tests.support.moto_server import bucket, moto_server

__all__ = ["bucket", "minicluster", "moto_server"]

pytest_plugins = ["sparklog.testing.plugin"]

OF_TERMINALS = (
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS"),
)
"""What click and other libraries read, some of it when they are imported: help is wrapped and coloured by it."""
OF_SPARKLOG = ("SPARKLOG_ROOT", "SPARKLOG_OUTPUT")


IN_MEMORY, ROOM = "/dev/shm", 2 << 30
"""A file system in memory, as Linux has it, and how many bytes must be free there."""


def keep_files_in_memory() -> None:
    """Have tests make their folders in memory where there is room.

    A root, a topic and an append take a third of the processor's time there, and 15 waits for a disk less.
    """
    if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)


def pytest_configure(config: pytest.Config) -> None:
    """Take what a developer's shell or a CI service says about terminals and roots out of the environment.

    Hypothesis: a slow machine is no failure. The normal run tries the same examples each time, so that its outcome says
    something about the change; the slow one looks for new ones.
    """
    for name in (*OF_TERMINALS, *OF_SPARKLOG):
        os.environ.pop(name, None)
    # An empty one in place of the developer's.
    os.environ["SPARKLOG_CONFIG"] = os.devnull
    slow = "slow" in config.getoption("markexpr").replace("not slow", "")
    if not slow:
        keep_files_in_memory()
    settings.register_profile(
        "sparklog", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not slow
    )
    settings.load_profile("sparklog")
    watch = starting_java.Watch()
    watch.install()
    config.pluginmanager.register(watch)
    # The interpreter's end frees what `gc.freeze` left out: DuckDB complains of what it finds alive. pytest's cleanups
    # run before this one, and need not look through it again.
    config.add_cleanup(gc.unfreeze)


def pytest_collection() -> None:
    """Collect no garbage while thousands of tests are made, none of which is any."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave them out of later collections: with them these took a fourteenth of the time of all tests."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they are: `spark`, `java`, `property`; those with Spark go first.

    Parallel processes begin with a share of the list each and then take from the end of another's. So one process runs
    all Spark tests, with the only session, while the others run what is left.
    """
    for item in items:
        starting_java.mark(item)
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture(autouse=True)
def _forget_warnings() -> None:
    """Let each test see the warnings that a process logs once, whatever ran before it."""
    forget_warnings()


@pytest.fixture
def records_in_files() -> Iterator[None]:
    """Appends make files, also of few bytes, as with `inline.records.bytes=0`: for tests of what happens to files."""
    with mock.patch.object(TopicConfigs, "inline_records_bytes", 0):
        yield


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """What Kafka wrote and what Kafka says about it: the tree described in its own README.md and in tests/FIXTURES.md.

    Shared by all tests and runs: never write into it (`fixture_data.copied` gives a copy to damage).
    """
    return fixture_tree()


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[KafkaTools]:
    """Kafka's own DumpLogSegments; skips where there is no Java or the jars cannot be fetched."""
    try:
        tools = find_tools()
    except Missing as missing:
        pytest.skip(str(missing))
    yield tools
    tools.stop()
