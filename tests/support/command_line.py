"""Commands of `sparklog` run in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import typer
from typer.testing import CliRunner

from sparklog.cli.app import app


@functools.cache
def commands_of_the_tree() -> Any:
    """Build the tree of commands, which takes longer than most commands: once is enough."""
    return typer.main.get_command(app)


def invoke(arguments: Sequence[object], env: Mapping[str, str | None] | None = None) -> Any:
    """Run a command as typer's `CliRunner` does; arguments as a shell hands them over."""
    with mock.patch("typer.testing._get_command", return_value=commands_of_the_tree()):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
