"""What may reach a terminal: names and metadata come from who wrote the data, and must not move the cursor.

Group names, transactional ids and instances may be any text, a Kafka folder may have any name: they are shown on one
line, with escapes for what does not print. Records go through as they are, as Kafka's console tools print them, but
for a terminal: control characters of keys and values are shown there, not obeyed.

Tables on stdout: aligned columns, as wide as they are where nobody watches.

Progress of copies: a line on stderr every few seconds.

`--json`: one document on one line, its names in camel case, as in Kafka's documents and in sparklog's files.

Text files that options name: they lie with the caller, like the command line itself, not in a store.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sparklog.errors import BadRequest, SparklogError

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


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Collection[str] = ()) -> None:
    """Print the rows below their headings, without lines; columns named in `right` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row))
    # A pipe has no width: the table must not be cut to 80 columns there.
    width = None if sys.stdout.isatty() else 1000
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


if TYPE_CHECKING:
    from sparklog.tools.backup.copying import Progress


EVERY_SECONDS = 5.0


def copy_progress(what: str) -> Progress:
    """What a backup or a restore tells its progress to; `what` was done to the files, in lines such as

    backed up 12 of 40 files, 1,204 of 5,120 MB, 138 MB/s
    """
    begun = last = time.monotonic()

    def show(files: int, of_files: int, nbytes: int, of_nbytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY_SECONDS:
            last = now
            size = f"{nbytes / 1e6:,.0f} of {of_nbytes / 1e6:,.0f} MB"
            rate = nbytes / 1e6 / (now - begun)
            print(f"{what} {files} of {of_files} files, {size}, {rate:,.0f} MB/s", file=sys.stderr)

    return show


def named(value: object, **more: object) -> dict[str, object]:
    """A data class as an object of JSON, with `more` in it."""
    from sparklog.tools.report.facts import document

    found = document(value)
    assert isinstance(found, dict)
    return {**found, **more}


def print_json(value: object) -> None:
    """Print data classes, or what JSON has anyway, as one line."""
    from sparklog.tools.report.facts import document

    print(json.dumps(document(value)))


def read_text(file: Path, option: str) -> str:
    """The text of a UTF-8 file, a byte order mark left out. `BadRequest`, naming `option`, if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{file} cannot be read: {error}; check {option}") from None
