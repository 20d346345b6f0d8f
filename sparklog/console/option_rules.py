"""Rules for what is typed, declared with an option and checked in one place for all commands.

    Option("--rate", needs="--cost", help=...)
    Option("--memory", excludes="LOCATION --backup", why="it serves an empty root", help=...)
    Option("--null-literal", may_be_blank=True, help=...)

A name is an option such as `--cost`, or an argument as help shows it, such as `LOCATION`. Only values on the command
line exclude each other, because `SPARKLOG_ROOT` and the settings file apply to all commands. Those can also satisfy a
need.

An option that takes one value is given once. An empty value, or one of blanks and commas, is an error unless the option
declares that it may be blank: in a script it is a variable that is not set, and must not select everything.
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
    the error message. `may_be_blank`: an empty value is a value.
    """

    option: str
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    why: str = ""
    may_be_blank: bool = False


def names_of(parameter: click.Parameter) -> list[str]:
    """Return the names of a parameter on the command line, the one to show first: `--topic`, or `TOPIC`."""
    if isinstance(parameter, click.Argument):
        return [re.sub(r"[\[\].]", "", parameter.human_readable_name)]
    return sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: not name.startswith("--"))


def check_words(
    rules: Sequence[Rule], words: Sequence[str], context: click.Context, *, may_repeat: bool = False
) -> None:
    """Raise a usage error if a value is blank and must not be, or an option that takes one value is repeated.

    `may_repeat`: the words are not the user's, as several options of a Kafka tool may mean one of these.
    """
    values, _, typed = context.command.make_parser(context).parse_args(list(words))
    may_be_blank = {rule.option for rule in rules if rule.may_be_blank}
    for parameter in dict.fromkeys(typed):
        name, times = names_of(parameter)[0], typed.count(parameter)
        takes_one = isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.multiple
        if takes_one and times > 1 and not may_repeat:
            raise click.UsageError(f"give {name} once, found it {times} times", context)
        texts = values.get(str(parameter.name))
        for text in texts if isinstance(texts, (list, tuple)) else [texts]:
            if parameter.name not in may_be_blank and isinstance(text, str) and not text.strip(", \t\r\n"):
                advice = "" if parameter.required else f"; leave {name} out if none is meant"
                raise click.BadParameter(f"expected a value, found {text!r}{advice}", context, parameter)


def check(rules: Sequence[Rule], context: click.Context) -> None:
    """Raise a usage error if the command line breaks a rule about other options."""
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
