"""The tree of commands, the exit codes and how errors are shown.

0: done, also when the reader of a pipe left first; 1: a sparklog error, as one line on stderr that ends in its code (a
command about all topics, groups or ids goes on, with a line for each that cannot be read); 2: wrong usage, as one line;
3: `sparklog get`: the key was deleted; 130: interrupted, with one line that says what stays.
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
    leave_for_usage,
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
    "Copies": "import export backup restore clone repartition",
    "Inspection and repair": "history log-dirs dump-log report metrics verify repair doctor",
    "Servers and tests": "serve perf",
    "Jobs on Spark": "stream mirror to-delta from-delta",
}
"""Commands by what they are for, as help lists them."""
HOMES = {
    "consume": "get table offsets",
    "storage": "delete-records log-dirs history dump-log",
    "health": "verify repair doctor jobs report metrics",
    "kafka_logs": "import export",
    "backup": "restore clone repartition",
    "jobs": "compact retain stream mirror to-delta from-delta conf",
}
"""Modules of `sparklog.cli.commands` that have commands of other names than theirs."""
HOME = {name: name for names in SECTIONS.values() for name in names.split()}
HOME |= {name: module for module, names in HOMES.items() for name in names.split()}
READING = (
    *("configs docs", "conf", "consume", "doctor", "dump-log", "get", "groups list", "groups describe", "history"),
    "jobs",
    *("log-dirs", "metrics", "offsets", "report", "table", "topics list", "topics describe", "verify"),
    *("configs describe", "transactions list", "transactions describe"),
    *("groups history", "transactions history"),
)
AFTER_INTERRUPT = {
    **dict.fromkeys(READING, "nothing was changed"),
    "consume": "nothing was changed but the offsets of a --group",
    "backup": "there is no new backup; run it again: what was copied is not copied again",
    "export": "nothing was exported",
    "import": "what was committed stays; run it again to go on",
    "restore": "run it again with the same words to go on",
    "repartition": "what was copied stays; run it again with the same words to go on",
    "repair": "what was repaired stays; run it again to go on",
}
COMMITTED = "what was committed stays"


class SparklogGroup(Commands):
    """The top group: runs a command and turns what it raises into one line and an exit code."""

    after_interrupt = COMMITTED

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for names in SECTIONS.values() for name in names.split()]

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        width = max(map(len, HOME))
        for heading, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names.split()]
            rows = [(f"{name:{width}}", summary_of(command)) for name, command in commands if command]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Import the module of a command; for an unknown name all, among which click looks for a near one."""
        for module in (HOME[cmd_name],) if cmd_name in HOME else dict.fromkeys(HOME.values()):
            commands: Commands = import_module(f"sparklog.cli.commands.{module}").app
            self.commands.update({module: commands} if commands.name else commands.commands)
        return self.commands.get(cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        words = list(args[0] if args else kwargs.get("args") or sys.argv[1:])
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        first, second, *_ = (*words, "", "")
        if not first.startswith("--") and (first not in HOME or first == "transactions" or second.startswith("-")):
            from sparklog.console.kafka_words import command_words

            try:
                words = command_words(words)
            except UsageError as error:
                leave_for_usage(error)
        stays = [AFTER_INTERRUPT.get(" ".join(words[:number])) for number in (1, 2)]
        self.after_interrupt = next(filter(None, stays), COMMITTED)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names may hold what the terminal's encoding has not.
            sys.stdout.reconfigure(errors="backslashreplace")
        level = LIBRARY.level
        log_from(logging.WARNING)
        # Commands name the topics that they make themselves.
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
            # Of files outside the store: a broker's segments, what is written next to a root, a full disk.
            trace()
            file = f"{error.filename}: " if error.filename else ""
            warn(f"{file}{error.strerror or error} [{Unavailable.code}]")
            sys.exit(EXIT_ERROR)
        except UsageError as error:
            if "_SPARKLOG_COMPLETE" in os.environ:
                # A shell asks for names, and would show the line between its prompts.
                sys.exit(EXIT_OK)
            leave_for_usage(error)
        except Exit as leave:
            sys.exit(leave.exit_code)
        except (KeyboardInterrupt, Abort):
            warn("interrupted; nothing was changed")
            sys.exit(EXIT_INTERRUPTED)
        finally:
            roots.setLevel(roots_level)
            LIBRARY.setLevel(level)
        sys.exit(code if isinstance(code, int) else EXIT_OK)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, to the end or until the reader of its output leaves."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python would complain again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise Exit(EXIT_OK) from None
        except KeyboardInterrupt as error:
            warn(f"{interrupted(error)}; {self.after_interrupt}")
            raise Exit(EXIT_INTERRUPTED) from None
        return result


app = SparklogGroup(
    "sparklog",
    """Topics in Kafka's format as plain files, without brokers. No command here starts Spark, but for
    the jobs (compact, retain, stream, mirror) and doctor --spark.

    Where a command takes --root, SPARKLOG_ROOT in the environment does as well.
    """,
    epilog="Exit codes: 0 done, 1 a sparklog error (one line on stderr), 2 wrong usage, 130 interrupted; get also 3.",
)
version_option(__version__, prog_name="sparklog", message="%(prog)s %(version)s")(app)
