"""The man page, and the sections of `sparklog --help`: no command is left out, and roff takes each line."""

from __future__ import annotations

import re
import shutil
import subprocess

from sparklog.cli.app import HOME, SECTIONS
from tests.cli.conftest import Sparklog
from tests.cli.test_every_command import commands

MACROS = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}


def test_the_page_has_every_command_and_roff_takes_it(sparklog: Sparklog) -> None:
    page = sparklog("conf", "sparklog.1").out
    lines = page.splitlines()
    assert [line[4:].replace("\\-", "-") for line in lines if line.startswith(".SS ")] == [
        f"sparklog {command}" for command in in_sections()
    ]
    assert {line.split()[0] for line in lines if line.startswith(".")} == MACROS
    assert all(line and not line.startswith("'") for line in lines)
    # Options are typed with the character that a reader copies.
    assert ".B \\-n, \\-\\-max\\-messages N" in lines
    assert re.search(r"Between columns; \\e0 and \\ex1f", page)
    if shutil.which("groff"):
        words = ["groff", "-man", "-Tutf8", "-ww", "-z"]
        done = subprocess.run(words, input=page, capture_output=True, text=True, check=True)
        assert done.stderr == ""


def in_sections() -> list[str]:
    names = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(names) == sorted(HOME)
    return sorted(commands(), key=lambda command: names.index(command.split()[0]))


def test_help_has_the_commands_by_what_they_are_for(sparklog: Sparklog) -> None:
    text = sparklog("--help").out
    for heading, names in SECTIONS.items():
        block = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == names.split()
