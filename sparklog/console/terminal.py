"""Output to a terminal or a pipe: tables, JSON, CSV, warnings and usage errors.

Names and metadata are written by other programs and must not control the terminal, so they are printed on one line, and
unprintable characters are escaped. `--json` prints one document on one line, with names in camel case.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import print_exc
from typing import Any, NoReturn

from click import Context, Group, NoSuchOption
from click.exceptions import Exit, NoSuchCommand

from sparklog.errors import BadRequest, SparklogError
from sparklog.output import json_value, table

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def printable(text: object) -> str:
    r"""Return the text on one line, with unprintable characters as `\n`, `\x1b`, `\u202e`."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def warn(message: object) -> None:
    print("sparklog:", printable(" ".join(str(message).split())), file=sys.stderr)


NO_BROKER = "there is no broker; specify a root or a Kafka log directory with --root PATH"
BROKER_OPTIONS = {"--bootstrap-server", "--bootstrap-servers", "--bootstrap-controller", "--broker-list"}
BROKER_OPTIONS |= {"--brokers", "--broker", "--zookeeper", "-b"}


def usage_line(error: Any) -> str:
    """Return a usage error as one line. For an unknown name, the line includes a hint."""
    option, context = getattr(error, "option_name", None), error.ctx
    message = str(error.format_message())
    if context is not None and option in BROKER_OPTIONS:
        if context.command_path.endswith(" mirror"):
            return f"{option}: specify the cluster as kafka://HOST:PORT with --from or --to"
        return f"{option}: {NO_BROKER}"
    is_group = context is not None and isinstance(context.command, Group)
    if is_group and option and (command := option.lstrip("-")) in context.command.list_commands(context):
        return f"{option} is a command: use {context.command_path} {command}"
    hint = "" if context is None else _hint(error, context, message)
    # Omit the suggestions of click, which follow the first sentence.
    return f"{error.message} {hint}".strip() if isinstance(error, (NoSuchOption, NoSuchCommand)) else message + hint


def _hint(error: Any, context: Context, message: str) -> str:
    from sparklog.console.command_hints import ARGUMENTS, command_hint, option_hint

    command = context.command_path.partition(" ")[2]
    if isinstance(error, NoSuchCommand):
        assert isinstance(context.command, Group)
        return command_hint(command, error.command_name, context.command.list_commands(context))
    if isinstance(error, NoSuchOption) and not command and error.option_name in ("--root", "-r", "--topic"):
        return f"Put the option after the command: sparklog topics list {error.option_name} ..."
    if isinstance(error, NoSuchOption):
        options = [name for item in context.command.get_params(context) for name in (*item.opts, *item.secondary_opts)]
        return option_hint(command, error.option_name, [name for name in options if name.startswith("--")])
    return f": {ARGUMENTS[command]}" if "unexpected extra argument" in message and command in ARGUMENTS else ""


def exit_with_usage_error(error: Any) -> NoReturn:
    """Print a usage error on one line, and exit with the code for usage errors."""
    context = error.ctx
    if context is not None and error.format_message() == context.get_help():
        # The command is a group without a subcommand. Print its complete help.
        print(context.get_help(), file=sys.stderr)
    else:
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        warn(f"{usage_line(error)}{hint}")
    sys.exit(EXIT_USAGE)


def warn_and_exit(failures: Sequence[SparklogError]) -> None:
    """Print a line for each topic, group or id that could not be read. If there are any, exit with code 1."""
    for message in dict.fromkeys(f"{error} [{error.code}]" for error in failures):
        warn(message)
    if failures:
        raise Exit(EXIT_ERROR)


LIBRARY = logging.getLogger("sparklog")


class LogLines(logging.Handler):
    """A logging handler that prints the log of the library on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        # Warnings that Spark or a notebook shows begin with the name of the library.
        warn(record.getMessage().removeprefix("sparklog: "))


def log_from(level: int) -> None:
    """Print the log of the library from this level on. At level DEBUG, this includes store requests and tracebacks."""
    if not LIBRARY.handlers:
        LIBRARY.addHandler(LogLines())
    # If both `-v` and `--debug` are given, `--debug` takes precedence.
    LIBRARY.setLevel(min(level, LIBRARY.level or level))


def trace() -> None:
    """Print the traceback of the current error if `--debug` is given."""
    if LIBRARY.level == logging.DEBUG:
        print_exc()


def print_lines(names: Iterable[object]) -> None:
    for name in names:
        print(printable(name))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Collection[str] = ()) -> None:
    """Print a table. None is printed as `-`. Columns whose headings are in `right` are right-aligned."""
    left = {column for column, heading in enumerate(headings) if heading not in right}
    print(table(headings, [["-" if cell is None else printable(cell) for cell in row] for row in rows], left))


def print_json(value: object) -> None:
    """Print data classes or JSON values as one line."""
    print(json.dumps(json_value(value)))


def print_csv(value: object) -> None:
    """Print a document as CSV (RFC 4180, but with LF as the line separator). Nested values are printed as JSON.

    The rows are the objects of a list, the objects of the only list in an object, or the object itself. A list of
    strings becomes the column `name`.
    """
    document = json_value(value)
    if isinstance(document, dict):
        lists = [item for item in document.values() if isinstance(item, list)]
        document = lists[0] if len(lists) == 1 else [document]
    rows = [row if isinstance(row, dict) else {"name": row} for row in document]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    if rows:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(cell) for name, cell in row.items()})


def _cell(cell: object) -> object:
    return json.dumps(cell) if isinstance(cell, (dict, list, bool)) else cell


@dataclass(frozen=True)
class Output:
    """The output of a command.

    Attributes:
        document: The document to print as JSON or CSV.
        text: A function that prints the text for people.
        failures: The errors of topics, groups or ids that were skipped.
        code: The exit code.
        after: A function that prints warnings after the output.
        rows: The rows for CSV, if they are only a part of the document.
    """

    document: object
    text: Callable[[], object]
    failures: Sequence[SparklogError] = ()
    code: int = EXIT_OK
    after: Callable[[], object] | None = None
    rows: object = None

    @classmethod
    def from_lines(
        cls, document: object, *lines: str, failures: Sequence[SparklogError] = (), code: int = EXIT_OK
    ) -> Output:
        return cls(document, lambda: sys.stdout.write("".join(f"{line}\n" for line in lines)), failures, code)

    def show(self, form: str) -> None:
        if form == "json":
            print_json(self.document)
        elif form == "csv":
            print_csv(self.document if self.rows is None else self.rows)
        else:
            self.text()
        if self.after is not None:
            self.after()
        warn_and_exit(self.failures)
        if self.code != EXIT_OK:
            raise Exit(self.code)


def read_text(file: Path, option: str) -> str:
    """Return the text of the UTF-8 file given by an option, without the byte order mark. Raises `BadRequest`."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadRequest(f"{str(file)!r} cannot be read: {error.strerror}; check {option}") from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"{str(file)!r} is not UTF-8 text: {error.reason}; check {option}") from None
