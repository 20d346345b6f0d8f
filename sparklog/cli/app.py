"""The top-level command, its exit codes, and the output of errors.

| exit code | meaning                                                                                                 |
|-----------|---------------------------------------------------------------------------------------------------------|
| 0         | success, also if the reader of a pipe stopped early                                                     |
| 1         | a sparklog error, printed as one line that ends with the error code                                     |
| 2         | wrong usage, printed as one line                                                                        |
| 3         | `sparklog get`: the key was deleted                                                                     |
| 130       | interrupted, with a line that describes the remaining changes                                           |

If a command for all topics, groups or transactional ids cannot read an item, it prints a line with the error and
continues.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from importlib import import_module
from typing import Any, NoReturn

from click import Abort, Command, Context, HelpFormatter, UsageError, version_option
from click.exceptions import Exit

from sparklog.console.parameters import Commands, summary_of
from sparklog.console.terminal import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_OK,
    LIBRARY,
    exit_with_usage_error,
    log_from,
    trace,
    warn,
)
from sparklog.errors import SparklogError, Unavailable, advice_for_shell
from sparklog.output import interrupted
from sparklog.version import __version__

SECTIONS = {
    "Topics and records": "topics configs produce consume get table offsets delete-records",
    "Groups and transactions": "groups transactions",
    "Maintenance": "compact retain jobs conf",
    "Copies": "import export backup restore clone repartition to-iceberg",
    "Inspection and repair": "history log-dirs dump-log report metrics verify repair doctor",
    "Servers and tests": "serve perf",
    "Jobs on Spark": "stream mirror to-delta from-delta",
}
"""Commands by purpose, in the order of the help text."""
MODULES = {
    "consume": "get table offsets",
    "storage": "delete-records log-dirs history dump-log",
    "health": "verify repair doctor jobs report metrics",
    "kafka_logs": "import export",
    "backup": "restore clone repartition",
    "jobs": "compact retain stream mirror to-delta from-delta to-iceberg conf",
}
"""Modules of `sparklog.cli.commands` that contain commands with other names than the module."""
MODULE_OF = {name: name for names in SECTIONS.values() for name in names.split()}
MODULE_OF |= {name: module for module, names in MODULES.items() for name in names.split()}
READ_ONLY = (
    *("configs docs", "conf", "consume", "doctor", "dump-log", "get", "groups list", "groups describe", "history"),
    "jobs",
    *("log-dirs", "metrics", "offsets", "report", "table", "topics list", "topics describe", "verify"),
    *("configs describe", "transactions list", "transactions describe"),
    *("groups history", "transactions history"),
)
INTERRUPT_NOTES = {
    **dict.fromkeys(READ_ONLY, "nothing was changed"),
    "consume": "nothing was changed except the committed offsets of the group",
    "backup": "no backup was created; run the command again to copy the remaining files",
    "export": "nothing was exported",
    "import": "committed records remain; run the command again to continue",
    "restore": "run the command again with the same options to continue",
    "repartition": "copied records remain; run the command again with the same options to continue",
    "repair": "completed repairs remain; run the command again to continue",
}
COMMITTED = "committed changes remain"


class SparklogGroup(Commands):
    """The top-level group. It runs a command, prints an error of the command as one line, and sets the exit code."""

    interrupt_note = COMMITTED

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for names in SECTIONS.values() for name in names.split()]

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        width = max(map(len, MODULE_OF))
        for heading, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names.split()]
            rows = [(f"{name:{width}}", summary_of(command)) for name, command in commands if command]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Import the module of a command. If the name is unknown, import all modules, so that click can suggest a
        command.
        """
        for module in (MODULE_OF[cmd_name],) if cmd_name in MODULE_OF else dict.fromkeys(MODULE_OF.values()):
            commands: Commands = import_module(f"sparklog.cli.commands.{module}").app
            self.commands.update({module: commands} if commands.name else commands.commands)
        return self.commands.get(cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        words = list(args[0] if args else kwargs.get("args") or sys.argv[1:])
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        first, second, *_ = (*words, "", "")
        if not first.startswith("--") and (first not in MODULE_OF or first == "transactions" or second.startswith("-")):
            from sparklog.console.kafka_equivalents import translate_command

            try:
                words = translate_command(words)
            except UsageError as error:
                exit_with_usage_error(error)
        name = " ".join(words[:2])
        self.interrupt_note = INTERRUPT_NOTES.get(first) or INTERRUPT_NOTES.get(name) or COMMITTED
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names may contain characters that the terminal's encoding cannot represent.
            sys.stdout.reconfigure(errors="backslashreplace")
        level = LIBRARY.level
        log_from(logging.WARNING)
        # Commands print the topics that they create, so log only the roots that are created.
        roots = logging.getLogger("sparklog.created.root")
        roots_level = roots.level
        roots.setLevel(logging.INFO)
        try:
            with advice_for_shell():
                code = super().main(**{**kwargs, "args": words, "standalone_mode": False})
        except SparklogError as error:
            trace()
            warn(f"{error} [{error.code}]")
            sys.exit(EXIT_ERROR)
        except OSError as error:
            # A file outside the store failed, such as a broker's segment or an output file.
            trace()
            file = f"{error.filename}: " if error.filename else ""
            warn(f"{file}{error.strerror or error} [{Unavailable.code}]")
            sys.exit(EXIT_ERROR)
        except UsageError as error:
            if "_SPARKLOG_COMPLETE" in os.environ:
                # The shell requests completions. Do not print the error, because the shell would show it between its
                # prompts.
                sys.exit(EXIT_OK)
            exit_with_usage_error(error)
        except Exit as error:
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, Abort):
            warn("interrupted; nothing was changed")
            sys.exit(EXIT_INTERRUPTED)
        finally:
            roots.setLevel(roots_level)
            LIBRARY.setLevel(level)
        sys.exit(code if isinstance(code, int) else EXIT_OK)

    def invoke(self, ctx: Any) -> Any:
        """Run the command until it ends or until the reader of its output closes the pipe."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Otherwise, Python would report the error again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise Exit(EXIT_OK) from None
        except KeyboardInterrupt as error:
            warn(f"{interrupted(error)}; {self.interrupt_note}")
            raise Exit(EXIT_INTERRUPTED) from None
        return result


app = SparklogGroup(
    "sparklog",
    """Topics in Kafka's format as plain files, without brokers. Only the jobs (compact, retain, stream,
    mirror, to-delta, from-delta) and doctor --spark start Spark.

    Set SPARKLOG_ROOT in the environment instead of giving --root to each command.
    """,
    epilog="Exit codes: 0 success, 1 sparklog error (one line on stderr), 2 wrong usage, 130 interrupted."
    " `sparklog get` also exits with 3.",
)
version_option(__version__, prog_name="sparklog", message="%(prog)s %(version)s")(app)
