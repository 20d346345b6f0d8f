"""`-v` and `--debug` print log messages, store requests and tracebacks."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import sparklog as library
from tests.cli.conftest import Sparklog
from tests.cli.test_every_command import IN_TURN, JOBS
from tests.support.command_line import command_of


def test_debug_logs_each_request(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True).create_topic("t")
    quiet = sparklog("topics", "list")
    shown = sparklog("topics", "list", "--debug")
    assert (quiet.err, quiet.out) == ("", shown.out)
    lines = shown.err.splitlines()
    assert any(re.fullmatch(r"sparklog: get t/_log/0{20}\.json [0-9.]+ ms [0-9]+ bytes ok", line) for line in lines)
    assert all(re.fullmatch(r"sparklog: \w+( \S+)? [0-9.]+ ms (-|[0-9]+) bytes .+", line) for line in lines)
    # Logging that one command enables is disabled for the next command in this process.
    assert sparklog("topics", "list").err == ""
    assert logging.getLogger("sparklog").level == logging.NOTSET


def test_debug_prints_the_traceback_of_an_error(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True)
    assert sparklog("offsets", "t", code=1).err.count("\n") == 1
    said = sparklog("offsets", "t", "--debug", code=1).err
    assert "Traceback (most recent call last)" in said
    assert said.splitlines()[-1].endswith("[SPARKLOG_NOT_FOUND]")


def test_verbose_prints_the_log_of_the_library(sparklog: Sparklog, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.open(root, create=True).create_topic("t")

    def topics(self: object, failures: object) -> list[str]:
        logging.getLogger("sparklog.log").info("try 1 did not succeed")
        logging.getLogger("sparklog.log").debug("a detail")
        # Spark and notebooks print such a message as it is.
        logging.getLogger("sparklog.kafka").warning("sparklog: a batch was skipped")
        return []

    monkeypatch.setattr("sparklog.log.topic.root.Root.topics", topics)
    warning = "sparklog: a batch was skipped"
    assert sparklog("topics", "list").err == f"{warning}\n"
    assert sparklog("topics", "list", "-v").err == f"sparklog: try 1 did not succeed\n{warning}\n"
    assert sparklog("topics", "list", "--debug", "-v").err.splitlines()[-2:] == ["sparklog: a detail", warning]


@pytest.mark.parametrize("command", [*IN_TURN, "serve"])
def test_every_command_accepts_verbose_and_debug(command: str) -> None:
    from click import Context

    tree = command_of(command)
    options = {name for option in tree.get_params(Context(tree, **tree.context_settings)) for name in option.opts}
    assert options >= {"-v", "--debug"}


def test_jobs_accept_verbose_and_debug(sparklog: Sparklog, root: Path) -> None:
    """Jobs parse their own arguments."""
    library.open(root, create=True).create_topic("t")
    assert set(JOBS) >= {"retain"}
    assert " get t/_log/" in sparklog("retain", "--debug").err
    assert "get t/_log" not in sparklog("retain", "-v").err
