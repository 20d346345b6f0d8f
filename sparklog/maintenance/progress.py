"""Progress on stderr while a job runs: from each task every few seconds, from the driver for each finished piece.

    compact orders-3: 1,204,224 records, 153.1 MB so far (1.20 M records/s, 152.6 MB/s)
    compact orders-3: done in 4.1 s: 5,000,000 -> 500,000 records, 630.0 -> 63.0 MB (1.22 M records/s, 153.7 MB/s)

Lines of tasks reach the console of a local master; on a cluster they are in the executors' logs.
"""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.maintenance.output import megabytes, rates, say
from sparklog.maintenance.work_items import Done, Work

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
