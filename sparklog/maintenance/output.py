"""Output of commands and jobs: lines on stderr, text tables and JSON documents.

Progress on stderr while a job runs: from each task every few seconds, from the driver for each finished piece.

    compact orders-3: 1,204,224 records, 153.1 MB so far (1.20 M records/s, 152.6 MB/s)
    compact orders-3: done in 4.1 s: 5,000,000 -> 500,000 records, 630.0 -> 63.0 MB (1.22 M records/s, 153.7 MB/s)

Lines of tasks reach the console of a local master; on a cluster they are in the executors' logs.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sparklog.errors import SparklogError
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.maintenance.work_items import Done, Work


def say(line: str) -> None:
    """Print one line on stderr, at once: stdout is for the report."""
    print(line, file=sys.stderr, flush=True)


def megabytes(nbytes: int) -> str:
    """Return bytes as people compare them with a disk's speed: `153.1 MB`; kilobytes below one tenth of it."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 or nbytes == 0 else f"{nbytes / 1e3:,.1f} KB"


def rates(records: int, nbytes: int, seconds: float) -> str:
    """Return `1.20 M records/s, 152.6 MB/s`; no time at all counts as a millisecond."""
    took = max(seconds, 0.001)
    return f"{records / took / 1e6:,.2f} M records/s, {nbytes / took / 1e6:,.1f} MB/s"


def count(number: int, one: str, many: str = "") -> str:
    """Return `1 topic`, `2 topics`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return columns two blanks apart, those in `left` aligned to the left, the others to the right."""
    lines = [headings, *rows]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(_aligned(text, widths[column], column in left) for column, text in enumerate(line)).rstrip()
        for line in lines
    )


def _aligned(text: str, width: int, left: bool) -> str:
    blanks = " " * (width - _width(text))
    return text + blanks if left else blanks + text


def _width(text: str) -> int:
    """Columns of a terminal: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def json_value(value: object) -> Any:
    """Return data classes, and what is in them, as JSON has them.

    Names are in camel case, and `nbytes` is `bytes`. A class names the properties to add in `COMPUTED`.
    """
    if is_dataclass(value):
        names = [*(each.name for each in fields(value)), *getattr(value, "COMPUTED", ())]
        return {_camel_case(name): json_value(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [json_value(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): json_value(each) for name, each in value.items()}
    return value


def _camel_case(name: str) -> str:
    first, *others = ("bytes" if name == "nbytes" else name).split("_")
    return first + "".join(word.capitalize() for word in others)


EVERY_MS = 5_000


class Meter:
    """A `Progress` that adds up and prints the sums every few seconds. Made in the task, for one piece of work."""

    def __init__(self, title: str, env: Env = SYSTEM) -> None:
        self._title = title
        self._env = env
        self._begun = self._printed = env.boot_ms()
        self.records = 0
        self.nbytes = 0

    def __call__(self, records: int, nbytes: int) -> None:
        self.records += records
        self.nbytes += nbytes
        now = self._env.boot_ms()
        if now - self._printed >= EVERY_MS:
            self._printed = now
            speed = rates(self.records, self.nbytes, (now - self._begun) / 1000)
            say(f"{self._title}: {self.records:,} records, {megabytes(self.nbytes)} so far ({speed})")


def say_outcome(work: Work, result: Done | SparklogError) -> None:
    """Print on the driver how a piece of work ended: committed, or failed."""
    say(f"{work.title}: {_outcome(result)}")


def _outcome(result: Done | SparklogError) -> str:
    if isinstance(result, SparklogError):
        return f"failed: {result} [{result.code}]"
    if not result.reports:
        return "nothing to do after all"
    reports = result.reports
    records, nbytes = sum(item.records_before for item in reports), sum(item.bytes_before for item in reports)
    records_after, nbytes_after = sum(item.records_after for item in reports), sum(item.bytes_after for item in reports)
    seconds = sum(item.seconds for item in reports)
    change = f"{records:,} -> {records_after:,} records, {megabytes(nbytes)} -> {megabytes(nbytes_after)}"
    return f"done in {seconds:.1f} s: {change} ({rates(records, nbytes, seconds)})"
