"""The man page and the sections of `sparklog --help` contain all commands, and the man page is valid roff."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from click import Context, Group

from sparklog.cli.app import MODULE_OF, SECTIONS
from tests.cli.conftest import Sparklog
from tests.cli.test_every_command import commands
from tests.support.command_line import command_of

MACROS = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}


def test_the_man_page_has_every_command_and_is_valid_roff(sparklog: Sparklog) -> None:
    page = sparklog("conf", "sparklog.1").out
    lines = page.splitlines()
    assert [line[4:].replace("\\-", "-") for line in lines if line.startswith(".SS ")] == [
        f"sparklog {command}" for command in in_sections()
    ]
    assert {line.split()[0] for line in lines if line.startswith(".")} == MACROS
    assert all(line and not line.startswith("'") for line in lines)
    # Options contain the character that readers can copy.
    assert ".B \\-n, \\-\\-max\\-messages N" in lines
    assert re.search(r"escapes such as \\e0 and \\ex1f", page)
    if shutil.which("groff"):
        words = ["groff", "-man", "-Tutf8", "-ww", "-z"]
        done = subprocess.run(words, input=page, capture_output=True, text=True, check=True)
        assert done.stderr == ""


def in_sections() -> list[str]:
    names = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(names) == sorted(MODULE_OF)
    return sorted(commands(), key=lambda command: names.index(command.split()[0]))


def test_help_lists_the_commands_by_purpose(sparklog: Sparklog) -> None:
    text = sparklog("--help").out
    for heading, names in SECTIONS.items():
        block = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == names.split()


def help_of(words: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the help of a command on a terminal with this number of columns. click's test runner has 80 columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    command = command_of(words)
    return Context(command, info_name=words, **command.context_settings).get_help()


@pytest.mark.parametrize("columns", [80, 140, 200])
@pytest.mark.parametrize("group", ["", "topics", "configs", "groups", "transactions", "perf"])
def test_each_summary_fits_one_line(group: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, top = help_of(group, columns, monkeypatch), command_of(group)
    assert isinstance(top, Group)
    for name in top.list_commands(Context(top, **top.context_settings)):
        command = top.get_command(Context(top, **top.context_settings), name)
        assert command is not None
        first = " ".join((command.help or "").partition("\n\n")[0].split())
        sentence = first.partition(". ")[0].removesuffix(".") + "."
        assert re.search(rf"^  {name} +{re.escape(sentence)}$", shown, re.MULTILINE), shown
    assert "..." not in shown.replace("[ARGS]...", "")


def test_help_is_as_wide_as_the_terminal_up_to_120(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, narrow, wide in ((80, 70, 80), (200, 100, 120)):
        for words in ("consume", "offsets"):
            lengths = [len(line) for line in help_of(words, columns, monkeypatch).splitlines()]
            assert narrow < max(lengths) <= wide, words
