"""Commands of `sparklog` run in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from click import Command, Context, Group
from click.testing import CliRunner, Result

from sparklog.cli.app import app


def command_of(words: str) -> Command:
    """Return the command of `topics list`."""
    command: Command | None = app
    for word in words.split():
        assert isinstance(command, Group)
        command = command.get_command(Context(command, **command.context_settings), word)
    assert command is not None
    return command


def invoke(arguments: Sequence[object], env: Mapping[str, str | None] | None = None) -> Result:
    """Run a command; arguments as a shell hands them over."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
