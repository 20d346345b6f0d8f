"""Progress on stderr while a job runs: from each task every few seconds, from the driver for each finished piece.

    compact orders-3: 1,204,224 records, 153.1 MB so far (1.20 M records/s, 152.6 MB/s)
    compact orders-3: done in 4.1 s: 5,000,000 -> 500,000 records, 630.0 -> 63.0 MB (1.22 M records/s, 153.7 MB/s)

Lines of tasks reach the console of a local master; on a cluster they are in the executors' logs.
"""

from __future__ import annotations

import sys

from sparklog.errors import SparklogError
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.maintenance.work import Done, PieceReport, Progress, Work, silent

EVERY_MS = 5_000


def say(line: str) -> None:
    """One line on stderr, at once: stdout is for the report."""
    print(line, file=sys.stderr, flush=True)


def megabytes(nbytes: int) -> str:
    """Bytes as people compare them with a disk's speed: `153.1 MB`; kilobytes below one tenth of it."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 or nbytes == 0 else f"{nbytes / 1e3:,.1f} KB"


def rates(records: int, nbytes: int, seconds: float) -> str:
    """`1.20 M records/s, 152.6 MB/s`; no time at all counts as a millisecond."""
    took = max(seconds, 0.001)
    return f"{records / took / 1e6:,.2f} M records/s, {nbytes / took / 1e6:,.1f} MB/s"


class Meter:
    """A `Progress` that adds up and says so every few seconds. Made in the task, for one piece of work."""

    def __init__(self, title: str, env: Env = SYSTEM, every_ms: int = EVERY_MS) -> None:
        self._title = title
        self._env = env
        self._every_ms = every_ms
        self._begun = self._said = env.boot_ms()
        self.records = 0
        self.nbytes = 0

    def __call__(self, records: int, nbytes: int) -> None:
        self.records += records
        self.nbytes += nbytes
        now = self._env.boot_ms()
        if now - self._said >= self._every_ms:
            self._said = now
            speed = rates(self.records, self.nbytes, (now - self._begun) / 1000)
            say(f"{self._title}: {self.records:,} records, {megabytes(self.nbytes)} so far ({speed})")


class Narrator:
    """Says on the driver what became of each piece; `quiet` says nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def progress(self, work: Work) -> Progress:
        """What a piece that runs in this process reports to."""
        return silent if self.quiet else Meter(work.title)

    def __call__(self, work: Work, result: Done | SparklogError) -> None:
        """A piece is finished: committed, or it failed."""
        if not self.quiet:
            say(f"{work.title}: {_outcome(result)}")


def _outcome(result: Done | SparklogError) -> str:
    if isinstance(result, SparklogError):
        return f"failed: {result} [{result.code}]"
    if not result.reports:
        return "nothing to do after all"
    before, after, seconds = _total(result.reports)
    speed = rates(before[0], before[1], seconds)
    change = f"{before[0]:,} -> {after[0]:,} records, {megabytes(before[1])} -> {megabytes(after[1])}"
    return f"done in {seconds:.1f} s: {change} ({speed})"


def _total(reports: tuple[PieceReport, ...]) -> tuple[tuple[int, int], tuple[int, int], float]:
    before = sum(item.records_before for item in reports), sum(item.bytes_before for item in reports)
    after = sum(item.records_after for item in reports), sum(item.bytes_after for item in reports)
    return before, after, sum(item.seconds for item in reports)
