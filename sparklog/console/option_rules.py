"""Rules for options, which are declared with the option and checked for all commands in one place.

    Option("--rate", needs="--cost", help=...)
    Option("--memory", excludes="LOCATION --backup", why="it serves an empty root", help=...)
    Option("--null-literal", may_be_blank=True, help=...)

Rules refer to options such as `--cost`, or to arguments as displayed in the help, such as `LOCATION`. The rule
`excludes` considers only values on the command line, because `SPARKLOG_ROOT` and the settings file apply to all
commands. The rule `needs` also considers the values in the environment and the settings file.

An option with a single value must not be repeated. A value that is empty, or consists of blanks and commas, is an error
unless the option may be blank. In a script, a blank value is usually an unset variable, which must not select all
topics or partitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
from click.core import ParameterSource

TYPED = (ParameterSource.COMMANDLINE,)
PRESET = (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


@dataclass(frozen=True)
class Rule:
    """The rule of an option.

    Attributes:
        excludes: The options and arguments that must not be given together with the option.
        needs: The options and arguments, at least one of which must be given together with the option.
        why: The reason, for error messages.
        may_be_blank: True if the value of the option may be blank.
    """

    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    why: str = ""
    may_be_blank: bool = False

    @property
    def reason(self) -> str:
        """The reason as the last part of an error message."""
        return f": {self.why}" if self.why else ""


def names_of(parameter: click.Parameter) -> list[str]:
    """Return the names of a parameter on the command line. The first name, such as `--topic` or `TOPIC`, is used in
    messages.
    """
    if isinstance(parameter, click.Argument):
        return [re.sub(r"[\[\].]", "", parameter.human_readable_name)]
    return sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: not name.startswith("--"))


def check_arguments(
    rules: Mapping[str, Rule], words: Sequence[str], context: click.Context, *, may_repeat: bool = False
) -> None:
    """Raise a usage error for a value that must not be blank, or an option that must not be repeated.

    `rules` contains the rules by parameter name. `may_repeat` is True if the arguments were translated, because several
    options of a Kafka tool may correspond to one option.
    """
    values, _, typed = context.command.make_parser(context).parse_args(list(words))
    for parameter in dict.fromkeys(typed):
        name, times = names_of(parameter)[0], typed.count(parameter)
        is_single = isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.multiple
        if is_single and times > 1 and not may_repeat:
            raise click.UsageError(f"expected {name} once, found it {times} times", context)
        texts = values.get(str(parameter.name))
        for text in texts if isinstance(texts, (list, tuple)) else [texts]:
            is_blank = isinstance(text, str) and not text.strip(", \t\r\n")
            if is_blank and not rules[str(parameter.name)].may_be_blank:
                advice = "" if parameter.required else f"; omit {name} instead"
                raise click.BadParameter(f"expected a value, found {text!r}{advice}", context, parameter)


def check(rules: Mapping[str, Rule], context: click.Context) -> None:
    """Raise a usage error if the command line violates the `excludes` or `needs` rule of an option."""
    parameters = [parameter for parameter in context.command.params if parameter.name in rules]
    named = {name: parameter for parameter in parameters for name in names_of(parameter)}
    typed = [parameter for parameter in parameters if _is_given(parameter, context, TYPED)]
    typed_rules = [(names_of(parameter)[0], rules[str(parameter.name)]) for parameter in typed]
    for option, rule in typed_rules:
        for name in rule.excludes:
            if name in named and _is_given(named[name], context, TYPED):
                raise click.UsageError(f"specify {option} or {name}, not both{rule.reason}", context)
    for option, rule in typed_rules:
        if rule.needs and not any(_is_given(named[name], context, (*TYPED, *PRESET)) for name in rule.needs):
            raise click.UsageError(f"{option} requires {' or '.join(rule.needs)}{rule.reason}", context)


def _is_given(parameter: click.Parameter, context: click.Context, sources: Sequence[ParameterSource]) -> bool:
    """Return True if one of the sources sets the parameter. A flag that is set to its default is not counted."""
    name = str(parameter.name)
    if context.get_parameter_source(name) not in sources:
        return False
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    return not is_flag or context.params[name] != parameter.get_default(context)
