"""The output of commands and jobs: lines on stderr, tables, JSON documents, bytes on stdout, and files."""

from __future__ import annotations

import re
import sys
import threading
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any

from sparklog.common.times import iso_time
from sparklog.common.units import count, size_text
from sparklog.errors import BadRequest


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def log(line: str, now_ms: int | None = None) -> None:
    """Print a line of a job's log on stderr, prefixed with the time in UTC.

    If `now_ms` is None, the current time is printed.
    """
    from sparklog.log.journal.clocks import SYSTEM

    say(f"{iso_time(SYSTEM.wall_ms() if now_ms is None else now_ms)} {line}")


_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Matches C0 control characters except tab and newline, DEL, and C1 control characters in UTF-8."""
STANDARD_OUTPUT = "-"


def write(data: bytes) -> None:
    """Write bytes to stdout, and flush stdout. On a terminal, control characters are escaped."""
    if sys.stdout.isatty():
        data = _CONTROL.sub(lambda match: rb"\x%02x" % match[0][-1], data)
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def write_output(path: str, text: str, option: str) -> None:
    """Write a string to the file that an option specifies. `-` means stdout.

    A regular file is replaced atomically, so readers see either the old or the new contents. If several processes write
    concurrently, the last writer wins. Symbolic links are followed, and data is written directly to devices and pipes.
    Raises `BadRequest` if the file cannot be written.
    """
    if path == STANDARD_OUTPUT:
        write(text.encode())
        return
    from sparklog.storage.durable_files import write_to

    try:
        write_to(path, text)
    except OSError as error:
        raise BadRequest(f"{path!r} cannot be written: {error.strerror}; choose another {option}") from None


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Format a table. The columns in `left` are left-aligned, and the other columns are right-aligned."""
    columns = []
    for index, texts in enumerate(zip(headings, *rows, strict=True)):
        widths = list(map(_width, texts))
        widest = max(widths)
        # A wide character takes two columns.
        lengths = [widest - width + len(text) for width, text in zip(widths, texts, strict=True)]
        columns.append(list(map(str.ljust if index in left else str.rjust, texts, lengths)))
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def _width(text: str) -> int:
    """Return the width of a string on a terminal, where East Asian wide characters take two columns."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def json_value(value: object) -> Any:
    """Convert data classes and their fields to JSON values.

    Names are in camel case, and `nbytes` becomes `bytes`. `COMPUTED` of a class lists properties to include.
    """
    if is_dataclass(value):
        names = [*(field.name for field in fields(value)), *getattr(value, "COMPUTED", ())]
        return {_camel_case(name): json_value(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    return value


def _camel_case(name: str) -> str:
    first, *others = ("bytes" if name == "nbytes" else name).split("_")
    return first + "".join(word.capitalize() for word in others)


STATUS_SECONDS = 2.0
"""Time in seconds after which the status of a command is first shown."""


def on_terminal() -> bool:
    """Return True if stderr is a terminal. In this case, progress is a single updated line instead of log lines."""
    return sys.stderr.isatty()


def interrupted(error: KeyboardInterrupt) -> str:
    """Return `interrupted`, followed by the progress up to the interrupt if the error contains the progress."""
    return ": ".join(("interrupted", *map(str, error.args)))


class StatusLine:
    """Shows the progress of a command. On a terminal, the progress is a single line, which is first shown after two
    seconds.

    The progress is not shown if stderr is not a terminal, or if `quiet` is True. If the command is interrupted, the
    last line that it prints contains the latest progress.
    """

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self.is_shown = not quiet and on_terminal()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self.text = ""

    def __enter__(self) -> StatusLine:
        if self.is_shown:
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self.is_shown:
            self._thread.join()
        if isinstance(error, KeyboardInterrupt) and self.text:
            error.args = (self.text,)

    def __call__(self, text: str) -> None:
        self.text = text

    def total(self, line: str) -> None:
        """Print a summary at the end if the progress is shown."""
        if self.is_shown:
            say(line)

    def files(self, files: int, of_files: int, nbytes: int, of_nbytes: int) -> None:
        """Show the progress as `12 of 40 files, 1.2 GB of 5.1 GB`."""
        self(f"{files:,} of {count(of_files, 'file')}, {size_text(nbytes)} of {size_text(of_nbytes)}")

    def _show(self) -> None:
        seconds, wait = 0.0, STATUS_SECONDS
        while not self._ended.wait(wait):
            seconds, wait = seconds + wait, 1.0
            line = f"{self._title}: {self.text or 'started'} ({seconds:.0f} s)"
            print(f"\r{line[:79]:<79}\r", end="", file=sys.stderr, flush=True)
        if seconds:
            print(f"\r{'':79}\r", end="", file=sys.stderr, flush=True)
