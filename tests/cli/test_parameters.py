"""Parameters of a function as options and arguments: accepted values, and the arguments of the function."""

# Do not use `from __future__ import annotations`, because the classes of a test are looked up in its module.
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from click.testing import CliRunner

from sparklog.console.parameters import Argument, FunctionCommand, Option
from sparklog.console.terminal import Output


@dataclass
class Pair:
    first: Annotated[str, Option(metavar="WORD", help="The first.")] = "a"
    second: Annotated[int | None, Option("--second", "-s", help="The second.", show_default="none")] = None


def words(
    names: Annotated[list[str] | None, Argument(metavar="[NAME]...", help="Names.")] = None,
    *,
    root: Annotated[str, Option("--root", envvar="PARAMETERS_ROOT", help="Where.")],
    pair: Pair,
    again: Annotated[list[str] | None, Option(help="May be repeated.")] = None,
    kind: Annotated[Literal["x", "y"], Option(help="Which.")] = "x",
    copy: Annotated[bool, Option(help="Or not.")] = True,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say.")] = False,
    file: Annotated[Path | None, Option(exists=True, dir_okay=False, help="Read it.")] = None,
) -> Output:
    """Print the values of the parameters."""
    values = [names, root, pair.first, pair.second, again, kind, copy, dry_run, file and file.name]
    return Output(values, lambda: print(*values))


def run(line: str) -> Any:
    return CliRunner(env={"PARAMETERS_ROOT": ""}).invoke(FunctionCommand("words", words, help="Say."), line.split())


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("--root r", "None r a None None x True False None"),
        ("p q --root r --again 1 --again 2 -s 7", "['p', 'q'] r a 7 ['1', '2'] x True False None"),
        ("--root r --first b --kind y --no-copy --dry-run", "None r b None None y False True None"),
        (f"--root r --file {__file__}", "None r a None None x True False test_parameters.py"),
        ("--root r --json", '[null, "r", "a", null, null, "x", true, false, null]'),
    ],
)
def test_values_have_the_types_of_the_parameters(line: str, printed: str) -> None:
    assert run(line).output == printed + "\n"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "Missing option '--root'"),
        ("--root r --kind z", "'z' is not one of 'x', 'y'"),
        ("--root r -s two", "expected an integer, found 'two'"),
        ("--root r --file /none", "'/none' does not exist"),
    ],
)
def test_invalid_values_are_usage_errors(line: str, error: str) -> None:
    result = run(line)
    assert result.exit_code == 2
    assert error in result.stderr


def test_help_lists_every_option_with_its_default() -> None:
    text = " ".join(run("--help").output.split())
    for part in (
        "[NAME]... Names.",
        "--root TEXT Where. [env var: PARAMETERS_ROOT; required]",
        "--first WORD The first. [default: a]",
        "-s, --second INTEGER The second. [default: (none)]",
        "--kind [x|y] Which. [default: x]",
        "--copy / --no-copy Or not. [default: copy]",
        "--dry-run Only say.",
        "--json Print the output as JSON.",
    ):
        assert part in text
