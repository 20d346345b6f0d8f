"""Run the snippets and commands of docs/guides/values.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import sparklog
from tests.support.command_line import invoke

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "values.md"


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_python_snippets_run_in_order(tmp_path: Path) -> None:
    plain, avro = snippets("python")
    names: dict[str, object] = {}
    exec(compile(plain.replace("/data/log", str(tmp_path)), str(GUIDE), "exec"), names)
    assert names["visits"]
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")
    exec(compile(avro, str(GUIDE), "exec"), names)
    assert names["first"]


def test_commands_print_the_documented_output(tmp_path: Path) -> None:
    (session,) = snippets("console")
    sparklog.open(tmp_path / "log", create=True).create_topic("visits")
    outputs: list[str] = []
    printed = []
    for line in session.splitlines():
        command = re.fullmatch(r"\$ (?:echo '(.*)' \| )?sparklog (.*)", line)
        if command is None:
            printed.append(line)
            continue
        words = shlex.split(command[2].replace("/data/log", str(tmp_path / "log")))
        if command[1]:
            (tmp_path / "lines").write_text(f"{command[1]}\n")
            words += ["--file", str(tmp_path / "lines")]
        result = invoke(words, {})
        assert result.exit_code == 0, result.stderr
        outputs += result.stdout.splitlines()
    assert outputs == printed
