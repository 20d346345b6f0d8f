"""Commands of `sparklog` run in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from click.testing import CliRunner, Result

from sparklog.cli.app import app


def invoke(arguments: Sequence[object], env: Mapping[str, str | None] | None = None) -> Result:
    """Run a command; arguments as a shell hands them over."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
