"""The commands that run the jobs, such as `sparklog compact` and `sparklog retain`, and `sparklog conf`.

Jobs parse their own arguments. Spark starts with the defaults of this host. On a cluster, use spark-submit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated

from click import Command, Context, Group, get_current_context, pass_context
from click.exceptions import Exit

from sparklog.common.lazy import install_command
from sparklog.console.parameters import Argument, Commands
from sparklog.errors import BadRequest, NotFound
from sparklog.jobs import job_module
from sparklog.tools.inspection.notebook import NOTEBOOK
from sparklog.version import __version__

app = Commands()

HELP = {
    "compact": "Merge small files, seal segments, and compact topics by key.",
    "retain": "Delete expired records and unreferenced files.",
    "stream": "Stream a Kafka log directory or a root to a root.",
    "mirror": "Mirror topics from or to a running Kafka cluster.",
    "to-delta": "Write a topic to a Delta table, as rows or by key.",
    "from-delta": "Write the changes of a Delta table to a topic.",
    "to-iceberg": "Write a topic to an Iceberg table, as rows or by key.",
}
JOB_CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The settings of a command that passes all arguments to its job, including `--help`."""
PACKAGE = Path(__file__).parents[2]


@pass_context
def _job(context: Context) -> None:
    name = str(context.info_name)
    module, extra = job_module(name, context.args), "spark"
    packages: tuple[str, ...] = ("pyspark", "py4j")
    if name == "to-iceberg":
        extra, packages = "iceberg", ("pyiceberg", "sqlalchemy")
    elif module == "to_delta_without_spark":
        extra, packages = "deltalake", ("deltalake",)
    try:
        if extra == "spark":
            # Spark's workers must use the Python of this environment instead of the first python3 on the PATH.
            from sparklog.datasource.session import choose_pythons, workers_python

            choose_pythons({}, os.environ, workers_python())
        job = import_module(f"sparklog.jobs.{module}")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in packages:
            raise
        package = "PySpark" if extra == "spark" else packages[0]
        raise BadRequest(f"sparklog {name} requires {package}: {install_command(extra)}") from None
    raise Exit(job.main(context.args))


for job_name, text in HELP.items():
    app.command(job_name, help=text, context_settings=JOB_CONTEXT)(_job)


@app.add("conf", "sparklog conf crontab")
def conf(
    name: Annotated[
        str | None, Argument(help="Name of the file to print. If omitted, the command lists the names.")
    ] = None,
) -> None:
    """Print an example file, such as a schedule or the man page.

    The files contain settings, and schedules for cron, systemd, Kubernetes and Airflow. The man page is sparklog.1.
    Save it to a directory such as ~/.local/share/man/man1.
    """
    directory = PACKAGE / "conf"
    if not directory.is_dir():
        # sparklog runs from a checkout of the repository instead of an installed wheel.
        directory = PACKAGE.parent / "conf"
    files = {file.name: file for file in (*directory.iterdir(), NOTEBOOK) if file.is_file()}
    names = sorted((*files, PAGE))
    if name is None:
        print("\n".join(names))
    elif name == PAGE:
        commands = get_current_context().find_root().command
        assert isinstance(commands, Group)
        print(man_page(commands), end="")
    elif name in files:
        print(files[name].read_text(), end="")
    else:
        raise NotFound(f"expected one of {', '.join(names)}; found {name!r}")


PAGE = "sparklog.1"


def man_page(app: Group) -> str:
    """Return the man page of all commands in roff, with the macros of man(7)."""
    context = Context(app, info_name="sparklog", **app.context_settings)
    lines = [
        f'.TH SPARKLOG 1 "" "sparklog {__version__}" "User Commands"',
        *(".SH NAME", r"sparklog \- topics in Kafka's format as plain files, without brokers"),
        *(".SH SYNOPSIS", ".B sparklog", _text("COMMAND [OPTIONS] [ARGS]...")),
        *(".SH DESCRIPTION", *_paragraphs(app.help)),
        ".SH COMMANDS",
        *(line for command in _commands(context) for line in _command(command)),
        *(".SH EXIT STATUS", *_paragraphs(app.epilog)),
    ]
    return "\n".join(lines) + "\n"


def _commands(context: Context) -> Iterator[Context]:
    """Yield the contexts of all commands, except groups, in the order of `--help`."""
    assert isinstance(context.command, Group)
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        assert command is not None
        below = Context(command, parent=context, info_name=name)
        if isinstance(command, Group):
            yield from _commands(below)
        else:
            yield below


def _command(context: Context) -> Iterator[str]:
    command: Command = context.command
    yield f".SS {_text(context.command_path)}"
    yield from (".B", _text(command.get_usage(context).removeprefix("Usage: ")), *_paragraphs(command.help))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            yield from (".TP", f".B {_text(record[0])}", _text(record[1]))
    yield from _paragraphs(command.epilog)


def _paragraphs(text: str | None) -> Iterator[str]:
    for paragraph in (text or "").split("\n\n"):
        # In Click, \b marks a paragraph whose line breaks are preserved.
        yield from (".PP", ".nf") if paragraph.startswith("\b") else (".PP",)
        yield from map(_text, paragraph.removeprefix("\b\n").strip().splitlines())
        yield from (".fi",) if paragraph.startswith("\b") else ()


def _text(line: str) -> str:
    """Escape a line for roff."""
    escaped = " ".join(line.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
