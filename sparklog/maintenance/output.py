"""Output of commands and jobs: lines on stderr, text tables and JSON documents.

Progress while a job runs, from each task every few seconds and from the driver for each finished piece:

    compact orders-3: 1,204,224 records, 153.1 MB so far (1.20 M records/s, 152.6 MB/s)
    compact orders-3: done in 4.1 s: 5,000,000 -> 500,000 records, 630.0 -> 63.0 MB (1.22 M records/s, 153.7 MB/s)

Lines of tasks reach the console of a local master; on a cluster they are in the executors' logs.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sparklog.errors import SparklogError
from sparklog.log.journal.env import SYSTEM, Env

if TYPE_CHECKING:
    from sparklog.maintenance.work_items import Done, Work


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def megabytes(nbytes: int) -> str:
    """Return `153.1 MB`; kilobytes below a tenth of one."""
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
    columns = []
    for number, texts in enumerate(zip(headings, *rows, strict=True)):
        width = max(map(_width, texts))
        blanks = [" " * (width - _width(text)) for text in texts]
        pairs = zip(texts, blanks, strict=True)
        columns.append([text + blank if number in left else blank + text for text, blank in pairs])
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


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
    if isinstance(result, SparklogError):
        say(f"{work.title}: failed: {result} [{result.code}]")
    elif not result.reports:
        say(f"{work.title}: nothing to do after all")
    else:
        reports = result.reports
        records, nbytes = sum(each.records_before for each in reports), sum(each.bytes_before for each in reports)
        sizes = f"{megabytes(nbytes)} -> {megabytes(sum(each.bytes_after for each in reports))}"
        change = f"{records:,} -> {sum(each.records_after for each in reports):,} records, {sizes}"
        seconds = sum(each.seconds for each in reports)
        say(f"{work.title}: done in {seconds:.1f} s: {change} ({rates(records, nbytes, seconds)})")
