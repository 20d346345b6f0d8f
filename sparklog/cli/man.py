"""The man page, made of what `--help` shows: `sparklog conf sparklog.1`."""

from __future__ import annotations

from collections.abc import Iterator

from click import Command, Context, Group

from sparklog.version import __version__

PAGE = "sparklog.1"


def man_page(app: Group) -> str:
    """Return all commands in roff, with the macros of man(7)."""
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
    """Yield the contexts of the commands that can be run, in the order of `--help`."""
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
        # Click keeps the lines of a paragraph that begins so.
        yield from (".PP", ".nf") if paragraph.startswith("\b") else (".PP",)
        yield from map(_text, paragraph.removeprefix("\b\n").strip().splitlines())
        yield from (".fi",) if paragraph.startswith("\b") else ()


def _text(line: str) -> str:
    """Return a line in which nothing is a request or an escape of roff."""
    escaped = " ".join(line.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
