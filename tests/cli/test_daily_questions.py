"""Commands in the documentation exist and accept the displayed options. The commands of "Daily questions" work as
described.
"""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.conftest import REPOSITORY, Sparklog
from tests.cli.kafka_equivalents_page import in_sparklog_terms

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
COMMAND_LINES = (REPOSITORY / "docs" / "reference" / "command-line.md").read_text()
TABLE = COMMAND_LINES.partition("## Daily questions")[2].partition("\n## ")[0]
QUESTIONS = re.findall(r"`(sparklog [^`]+)`( \*)?", TABLE)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
IN_A_BLOCK = re.compile(r"^ *(?:\$ )?(sparklog [a-z].*)$", re.MULTILINE)
INDENTED = re.compile(r"^    (?:\$ )?(sparklog [a-z].*)$", re.MULTILINE)
INLINE = re.compile(r"`(sparklog [a-z][^`\n]*)`")


def commands_of(page: str) -> set[str]:
    """Return the commands in fenced blocks, indented blocks and inline code, but not in prose."""
    prose = FENCED.sub("", page)
    blocks = [line for block in FENCED.findall(page) for line in IN_A_BLOCK.findall(block)]
    return {*blocks, *INDENTED.findall(prose), *INLINE.findall(prose)}


COMMANDS = sorted(set().union(*(commands_of(page.read_text()) for page in PAGES)))


def help_of(sparklog: Sparklog, command: str) -> tuple[list[str], list[str], str]:
    """Return the name of a command, the given options, and the help of the command."""
    words = in_sparklog_terms(shlex.split(command.partition(" | ")[0], comments=True)[1:])
    # The second word is also part of the name if the command is a group.
    grouped = len(words) > 1 and "COMMAND [ARGS]" in sparklog(words[0], "--help").out
    path = words[:2] if grouped else words[:1]
    return path, [word for word in words if word.startswith("--")], sparklog(*path, "--help").out


def test_prose_that_starts_with_sparklog_is_not_a_command() -> None:
    page = "sparklog reads it, as `sparklog get a`.\n\n    sparklog topics list\n\n```sh\nsparklog report\n```\n"
    assert commands_of(page) == {"sparklog get a", "sparklog topics list", "sparklog report"}


def test_the_table_of_questions_exists() -> None:
    assert len(QUESTIONS) >= 12
    assert len(COMMANDS) >= 50


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_table_accept_their_options(sparklog: Sparklog, command: str) -> None:
    path, options, shown = help_of(sparklog, command)
    for option in options:
        assert re.search(rf"{option}\b", shown), f"{' '.join(path)} has no {option}"


@pytest.mark.parametrize(("command", "anywhere"), QUESTIONS, ids=[command for command, _ in QUESTIONS])
def test_marked_sections_answer_the_question(sparklog: Sparklog, command: str, anywhere: str) -> None:
    path, _, shown = help_of(sparklog, command)
    assert not anywhere or "Kafka" in shown
    assert ("--json" in shown) == (path != ["metrics"])
