"""The table "Daily questions" of docs/reference/command-line.md: its commands and options exist, and work as marked."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.conftest import REPOSITORY, Sparklog

GUIDE = (REPOSITORY / "docs" / "reference" / "command-line.md").read_text()
TABLE = GUIDE.partition("## Daily questions")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"`(sparklog [^`]+)`( \*)?", TABLE)


def test_the_table_is_there() -> None:
    assert len(COMMANDS) >= 12


@pytest.mark.parametrize(("command", "anywhere"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_the_command_takes_these_options(sparklog: Sparklog, command: str, anywhere: str) -> None:
    words = shlex.split(command)[1:]
    # Of a group of commands the second word is one, too.
    path = words[:2] if "COMMAND [ARGS]" in sparklog(words[0], "--help").out else words[:1]
    shown = sparklog(*path, "--help").out
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option}\b", shown), f"{' '.join(path)} has no {option}"
    assert not anywhere or "Kafka" in shown
    assert ("--json" in shown) == (path != ["metrics"])
