"""What may reach a terminal: names and metadata come from who wrote the data, and must not move the cursor.

Group names, transactional ids and instances may be any text, a Kafka folder may have any name: they are shown on one
line, with escapes for what does not print. Records go through as they are, as Kafka's console tools print them, but
for a terminal: control characters of keys and values are shown there, not obeyed.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence

import typer

from sparklog.errors import SparklogError


_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
"""C0 without tab and newline, DEL, and C1 in UTF-8."""


def printable(text: object) -> str:
    r"""The text on one line; what does not print stands as `\n`, `\x1b`, `\u202e`."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)


def say(message: object) -> None:
    """A line on stderr."""
    print("sparklog:", printable(" ".join(str(message).split())), file=sys.stderr)


def complain(failures: Sequence[SparklogError]) -> None:
    """What hid a part of an answer that is printed, a line for each; exit code 1 if there was any."""
    for message in dict.fromkeys(f"{error} [{error.code}]" for error in failures):
        say(message)
    if failures:
        raise typer.Exit(1)


def write(data: bytes) -> None:
    """Bytes to stdout, all of them at once; on a terminal without its control characters."""
    if sys.stdout.isatty():
        data = _CONTROL.sub(lambda found: rb"\x%02x" % found[0][-1], data)
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


class WarningLines(logging.Handler):
    """Warnings of the library as lines of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line on stderr."""
        say(record.getMessage())
