"""Options that exclude or need other options: declared with an option, and checked in one place for all commands.

    Option("--rate", needs="--cost", help=...)
    Option("--memory", excludes="LOCATION --backup", why="it serves an empty root", help=...)

A name is an option such as `--cost`, or an argument as help shows it, such as `LOCATION`. Only values on the command
line exclude each other, because `SPARKLOG_ROOT` and the settings file apply to all commands. Those can also satisfy a
need.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import click
from click.core import ParameterSource

TYPED = (ParameterSource.COMMANDLINE,)
PRESET = (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


@dataclass(frozen=True)
class Rule:
    """The options that `option` excludes, and the options of which it needs one.

    `option` is a parameter name in Python; `excludes` and `needs` are names on the command line. `why` is the reason in
    the error message.
    """

    option: str
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    why: str = ""


def names_of(parameter: click.Parameter) -> list[str]:
    """Return the names of a parameter on the command line, the one to show first: `--topic`, or `TOPIC`."""
    if isinstance(parameter, click.Argument):
        return [re.sub(r"[\[\].]", "", parameter.human_readable_name)]
    return sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: not name.startswith("--"))


def check(rules: Sequence[Rule], context: click.Context) -> None:
    """Raise a usage error if the command line breaks a rule."""
    parameters = {parameter.name: parameter for parameter in context.command.params}
    named = {name: parameter for parameter in parameters.values() for name in names_of(parameter)}
    typed = [rule for rule in rules if _is_given(parameters[rule.option], context, TYPED)]
    for rule in typed:
        for name in rule.excludes:
            if name in named and _is_given(named[name], context, TYPED):
                shown = names_of(parameters[rule.option])[0]
                raise click.UsageError(f"give {shown} or {name}, not both{_reason(rule)}", context)
    for rule in typed:
        if rule.needs and not any(_is_given(named[name], context, (*TYPED, *PRESET)) for name in rule.needs):
            shown = names_of(parameters[rule.option])[0]
            raise click.UsageError(f"{shown} needs {' or '.join(rule.needs)}{_reason(rule)}", context)


def _reason(rule: Rule) -> str:
    return f": {rule.why}" if rule.why else ""


def _is_given(parameter: click.Parameter, context: click.Context, sources: Sequence[ParameterSource]) -> bool:
    """Return True if one of the sources sets a value, except a flag set to its default, which has no effect."""
    name = str(parameter.name)
    if context.get_parameter_source(name) not in sources:
        return False
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    return not is_flag or context.params[name] != parameter.get_default(context)
