"""The tree of commands, the exit codes and how errors are shown.

| exit code | meaning                                                                     |
|-----------|-----------------------------------------------------------------------------|
| 0         | done; also when the reader of a pipe left first (`sparklog consume ... | head`) |
| 1         | a sparklog error, as one line on stderr that ends in its code; of a command |
|           | about all topics (groups, transactional ids) a line for each that cannot be |
|           | read, the others are shown                                                  |
| 2         | wrong usage, as one line on stderr                                          |
| 3         | `sparklog get`: the key was deleted                                         |
| 130       | interrupted (Ctrl-C)                                                        |
"""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from sparklog import __version__
from sparklog.cli.commands import (
    backup,
    clone,
    configs,
    consume,
    delete_records,
    doctor,
    dump_log,
    export,
    get,
    groups,
    imports,
    jobs,
    log_dirs,
    metrics,
    offsets,
    produce,
    report,
    restore,
    topics,
    transactions,
    verify,
)
from sparklog.cli.options import SHORT_HELP
from sparklog.cli.terminal import WarningLines, say
from sparklog.errors import SparklogError, Unavailable

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

# typer may bring its own copy of click: the class is found through the one name that is public in every version.
UsageError: Any = typer.BadParameter.__mro__[1]


class SparklogGroup(TyperGroup):
    """The top group: runs a command and turns what it raises into one line and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command of `args` (default: `sys.argv`); raises `SystemExit`."""
        kwargs["standalone_mode"] = False
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names may hold what the terminal's encoding has not.
            sys.stdout.reconfigure(errors="backslashreplace")
        library = logging.getLogger("sparklog")
        if not library.handlers:
            library.addHandler(WarningLines())
        try:
            code = super().main(*args, **kwargs)
        except SparklogError as error:
            say(f"{error} [{error.code}]")
            sys.exit(EXIT_ERROR)
        except OSError as error:
            # Files that are not the store's own: a broker's segments, what is written beside a root, a full disk.
            what = error.strerror or str(error)
            say(f"{error.filename}: {what} [{Unavailable.code}]" if error.filename else f"{what} [{Unavailable.code}]")
            sys.exit(EXIT_ERROR)
        except UsageError as error:
            context = error.ctx
            if context is not None and error.format_message() == context.get_help():
                # A group of commands without one: its help is what was meant, line by line.
                print(context.get_help(), file=sys.stderr)
                sys.exit(EXIT_USAGE)
            hint = f" (see '{context.command_path} --help')" if context is not None else ""
            say(f"{error.format_message()}{hint}")
            sys.exit(EXIT_USAGE)
        except typer.Exit as leave:
            sys.exit(leave.exit_code)
        except (KeyboardInterrupt, typer.Abort):
            sys.exit(EXIT_INTERRUPTED)
        sys.exit(code if isinstance(code, int) else EXIT_OK)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, to the end or until the reader of its output has seen enough."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python would complain again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(EXIT_OK) from None
        return result


def _version(wanted: bool) -> None:
    if wanted:
        print("sparklog", __version__)
        raise typer.Exit


app = typer.Typer(
    cls=SparklogGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes would cut the names of options to fit 80 columns.
    rich_markup_mode=None,
    context_settings=SHORT_HELP,
    epilog="Exit codes: 0 done, 1 a sparklog error (one line on stderr), 2 wrong usage, 130 interrupted; get also 3.",
)


@app.callback()
def sparklog(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Topics in Kafka's format as plain files, without brokers. No command here starts Spark, but for
    the jobs (compact, retain, stream, mirror) and doctor --spark.

    Where a command takes --root, SPARKLOG_ROOT in the environment does as well.
    """


app.add_typer(topics.app, name="topics")
app.add_typer(configs.app, name="configs")
app.add_typer(transactions.app, name="transactions")
app.add_typer(groups.app, name="groups")
produce.register(app)
consume.register(app)
offsets.register(app)
delete_records.register(app)
get.register(app)
log_dirs.register(app)
doctor.register(app)
dump_log.register(app)
imports.register(app)
export.register(app)
clone.register(app)
backup.register(app)
restore.register(app)
report.register(app)
metrics.register(app)
verify.register(app)
jobs.register(app)
