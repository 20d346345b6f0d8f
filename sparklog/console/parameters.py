"""Commands as functions. The parameters of a function declare the arguments and options of a click command.

    @app.add("list", "sparklog topics list --root /data/log")
    def list_(root: Annotated[str, Option("--root", help="Root directory.")]) -> Output: ...

The type of a parameter determines the kind of option: `bool` is a flag, `Literal` is a choice, and `list[str]` may be
repeated. A parameter without a default is required. A parameter whose type is a data class is replaced by the fields of
the class, which group related options.

Shells complete the names of the topics, groups and configs of the root on the command line, or of the default root. If
the names cannot be read in time, the shell does not show completions.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr, suppress
from dataclasses import is_dataclass
from functools import cached_property
from inspect import Parameter, Signature, cleandoc, signature
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Literal, get_args, get_origin

import click

from sparklog.common import parsing
from sparklog.common.settings import ValueType
from sparklog.console.locations import user_settings
from sparklog.console.option_rules import Rule, check, check_arguments
from sparklog.console.terminal import Output, log_from

SECONDS = 1.0
"""The maximum time in seconds that a completion waits for a store."""


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(list_names: Callable[[str], Iterable[str]]) -> Completer:
    """Return a click completer for names. In a comma-separated list, it completes the last name."""

    def complete(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        before, comma, last = text.rpartition(",")
        names: list[str] = []

        def read() -> None:
            with suppress(Exception):
                names.extend(list_names(context.params.get("root") or ""))

        # Do not print messages, because the shell would show them in the prompt.
        with redirect_stderr(StringIO()):
            thread = Thread(target=read, daemon=True)
            thread.start()
            thread.join(SECONDS)
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def _topics(root: str) -> Iterable[str]:
    from sparklog.opening import open_view, resolve

    location = resolve(root)
    return [location.topic] if location.topic else open_view(location, tailing=False).topics()


def _groups(root: str) -> Iterable[str]:
    from sparklog.groups.lag import Groups
    from sparklog.opening import open_log, resolve

    return Groups(open_log(resolve(root))).names()


def _configs(root: str) -> Iterable[str]:
    from sparklog.log.state.configs import CONFIGS

    return CONFIGS


COMPLETERS = {
    **dict.fromkeys(("topic", "topics", "topic_option", "topic_argument"), _completer(_topics)),
    **dict.fromkeys(("group", "groups", "group_option"), _completer(_groups)),
    **dict.fromkeys(("names", "delete_config"), _completer(_configs)),
}
"""The completers, by the Python name of the parameter."""


HELP_WIDTH = 120
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH}


_NUMBERS = {
    int: ValueType("an integer", parse=parsing.parse_integer, name="integer"),
    float: ValueType("a number", parse=parsing.number, name="float"),
}


class Option:
    """Declares that a parameter is an option.

    Args:
        names: Names in addition to `--its-name`, or to `--its-name/--no-its-name` for a flag that is on by default.
        parser: A `ValueType` or a function that parses the value.
        show_default: The text to display for a default that is not self-explanatory, or False to display no default.
        excludes: The options that must not be given together with this option, separated by spaces (see
            `sparklog.console.option_rules`).
        needs: The options, at least one of which must also be given, separated by spaces.
        why: The reason for `excludes` and `needs`, for error messages.
        may_be_blank: True if the value may be blank.
        settings: Other arguments of `click.Option`, or of `click.Path` if the type is a path.
    """

    def __init__(
        self,
        *names: str,
        parser: Any = None,
        show_default: bool | str = True,
        excludes: str = "",
        needs: str = "",
        why: str = "",
        may_be_blank: bool = False,
        **settings: Any,
    ) -> None:
        self.names = names
        self.parser = parser
        self.show_default = show_default
        self.rule = Rule(tuple(excludes.split()), tuple(needs.split()), why, may_be_blank)
        self.settings = settings

    def parameter(self, name: str, kind: Any, default: Any) -> click.Parameter:
        """Return the click parameter.

        Args:
            name: The Python name of the parameter.
            kind: The type of the parameter.
            default: The default value, or `Parameter.empty`. An empty list is converted to None only if the default is
                None.
        """
        settings = dict(self.settings)
        item = _item(kind)
        if item is Path:
            files = {word: settings.pop(word) for word in ("exists", "dir_okay") if word in settings}
            item = click.Path(path_type=Path, **files)
        elif get_origin(item) is Literal:
            item = click.Choice(get_args(item))
        chosen = self.parser or _NUMBERS.get(item, item)
        settings["type"] = _parser_of(chosen) if isinstance(chosen, ValueType) else chosen
        settings["shell_complete"] = COMPLETERS.get(name)
        is_required = default is Parameter.empty
        if get_origin(_one(kind)) is list:
            settings["callback"] = lambda context, parameter, value: list(value) or (None if default is None else [])
        elif not is_required:
            settings["default"] = default
        return self._create(name, kind, settings | {"required": is_required})

    def _create(self, name: str, kind: Any, settings: dict[str, Any]) -> click.Parameter:
        names = self.names
        if not any(name.startswith("--") for name in names):
            word = name.replace("_", "-")
            names = (f"--{word}/--no-{word}" if kind is bool and settings.get("default") else f"--{word}", *names)
        settings |= {"is_flag": True} if kind is bool else {"multiple": get_origin(_one(kind)) is list}
        return click.Option([name, *names], show_default=self.show_default, show_envvar=True, **settings)


def _parser_of(kind: ValueType) -> Callable[[Any], Any]:
    """Return a click parser that raises a usage error for invalid values."""

    def parse(value: Any) -> Any:
        try:
            return kind.parse(str(value))
        except ValueError:
            raise click.BadParameter(f"expected {kind.valid}, found {str(value)!r}") from None

    parse.__name__ = kind.name
    return parse


class Argument(Option):
    """Declares that a parameter is a positional argument. `settings` contains the arguments of `click.Argument`."""

    def _create(self, name: str, kind: Any, settings: dict[str, Any]) -> click.Parameter:
        nargs = -1 if get_origin(_one(kind)) is list else 1
        return click.Argument([name], nargs=nargs, **settings)


def _one(kind: Any) -> Any:
    """Return `T` of `T | None`."""
    members = [member for member in get_args(kind) if member is not type(None)]
    return members[0] if type(None) in get_args(kind) else kind


def _item(kind: Any) -> Any:
    """Return `T` of `list[T]`, `list[T] | None` and `T | None`."""
    one = _one(kind)
    return get_args(one)[0] if get_origin(one) is list else one


JsonOption = Annotated[bool, Option("--json", help="Print the output as JSON.")]
JsonOrOutputOption = Annotated[bool, Option("--json", excludes="--output", help="Print the output as JSON.")]
OutputOption = Annotated[
    Literal["table", "json", "csv"], Option("--output", envvar="SPARKLOG_OUTPUT", help="Output format.")
]
LOGGING = (
    ("-v", logging.INFO, "Print log messages, for example about retries, on stderr."),
    ("--debug", logging.DEBUG, "Print log messages, store requests and tracebacks on stderr."),
)


class FunctionCommand(click.Command):
    """A command that calls a function. The parameters of the function are inspected when they are first used.

    If the function returns an `Output`, the command has the options `--output` and `--json`, and prints the output.
    """

    def __init__(self, name: str, run: Callable[..., Any], **settings: Any) -> None:
        super().__init__(name, callback=self._call, context_settings=CONTEXT, **settings)
        self._run = run
        self.rules: dict[str, Rule] = {}

    @cached_property
    def _declared(self) -> Signature:
        return _signature(self._run)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            declared = list(_declarations(self._declared))
            if self._declared.return_annotation is Output:
                declared += [("output", OutputOption, "table"), ("as_json", JsonOrOutputOption, False)]
            for name, annotation, default in declared:
                kind, option = get_args(annotation)
                self.params.append(option.parameter(name, kind, default))
                self.rules[name] = option.rule
            self.params.extend(_logging_options())
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            # Read the settings once. The parsers of roots use the settings of the context.
            ctx.obj = user_settings()
            ctx.default_map = ctx.obj.defaults()
            options = self._takes_values(ctx)
            others = [word for word in args if word.startswith("--") and word.partition("=")[0] not in options]
            typed = args
            if others and not ctx.resilient_parsing:
                from sparklog.console.kafka_equivalents import remove_broker_options, translate_options

                if self._is_root_set(ctx, args):
                    args = remove_broker_options(args, options)
                args = translate_options(ctx.command_path.partition(" ")[2], args, options)
            if not ctx.resilient_parsing:
                check_arguments(self.rules, args, ctx, may_repeat=args != typed)
            rest = super().parse_args(ctx, args)
            if not ctx.resilient_parsing:
                check(self.rules, ctx)
            return rest
        except click.UsageError as error:
            # click omits the context if the value of an option is missing.
            error.ctx = error.ctx or ctx
            raise

    def _is_root_set(self, ctx: click.Context, args: list[str]) -> bool:
        """Return True if the root is set by an option, the environment or the settings file."""
        names = {"--root", "-r"} & {word.partition("=")[0] for word in args}
        takes_root = any(parameter.name == "root" for parameter in self.params)
        return takes_root and bool(names or os.environ.get("SPARKLOG_ROOT") or (ctx.default_map or {}).get("root"))

    def _takes_values(self, ctx: click.Context) -> dict[str, bool]:
        """Return the options, and whether each option always takes the next word as its value."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        names = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
        return {name: not (option.is_flag or option._flag_needs_value) for name, option in names.items()}

    def _call(self, **values: Any) -> Any:
        result = _call_with(self._run, self._declared, values)
        if not isinstance(result, Output):
            return result
        return result.show("json" if values["as_json"] else values["output"])


def _logging_options() -> Iterator[click.Parameter]:
    for name, level, text in LOGGING:

        def log(context: click.Context, parameter: click.Parameter, value: bool, level: int = level) -> None:
            if value and not context.resilient_parsing:
                log_from(level)

        yield click.Option([name], is_flag=True, expose_value=False, callback=log, help=text)


def _signature(function: Any) -> Signature:
    return signature(function, eval_str=True)


def _declarations(declared: Signature) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, annotation and default of each parameter. A data class is replaced by its fields."""
    for parameter in declared.parameters.values():
        if is_dataclass(parameter.annotation):
            yield from _declarations(_signature(parameter.annotation))
        else:
            yield parameter.name, parameter.annotation, parameter.default


def _call_with(run: Any, declared: Signature, values: Mapping[str, Any]) -> Any:
    """Call a function with the values of its parameters. Data classes are created from the values of their fields."""
    kinds = {parameter.name: parameter.annotation for parameter in declared.parameters.values()}
    arguments = {
        name: _call_with(kind, _signature(kind), values) if is_dataclass(kind) else values[name]
        for name, kind in kinds.items()
    }
    return run(**arguments)


def summary_of(command: click.Command) -> str:
    """Return the first sentence of a command's help. click would truncate the sentence to fit a line."""
    return command.get_short_help_str(len(command.help or ""))


class Commands(click.Group):
    """The commands of a module. Commands with a common name and help text form a command group of `sparklog`."""

    def __init__(self, name: str | None = None, text: str | None = None, epilog: str | None = None) -> None:
        super().__init__(name, help=text, epilog=epilog, context_settings=CONTEXT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary_of(self.commands[name])) for name in self.list_commands(ctx)])

    def add(self, name: str, *examples: str) -> Callable[[Callable[..., Output | None]], Callable[..., Output | None]]:
        """Return a decorator that adds a function as a command. The help of the command ends with the examples, one per
        line.
        """
        epilog = "\n".join(("\b\nExample:", *(f"  {line}" for line in examples)))

        def register(run: Callable[..., Output | None]) -> Callable[..., Output | None]:
            self.add_command(FunctionCommand(name, run, help=cleandoc(run.__doc__ or ""), epilog=epilog))
            return run

        return register
