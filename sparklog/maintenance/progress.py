"""Progress of maintenance: sums from each task every few seconds, and a line from the driver for each finished piece.

    2026-01-31T12:00:00.000Z compact orders-3: 1,204,224 records, 153.1 MB so far (1.20 M records/s, 152.6 MB/s)
    2026-01-31T12:00:03.000Z compact orders-3: done in 4.1 s: 5,000,000 -> 500,000 records, 630.0 MB -> 63.0 MB (...)

Lines of tasks reach the console of a local master; on a cluster they are in the executors' logs.
"""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.maintenance.work_items import Done, Work
from sparklog.output import log
from sparklog.units import rates, size_text

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
            log(
                f"{self._title}: {self.records:,} records, {size_text(self.nbytes)} so far ({speed})",
                self._env.wall_ms(),
            )


def say_outcome(work: Work, result: Done | SparklogError) -> None:
    """Print on the driver how a piece of work ended: committed, or failed."""
    if isinstance(result, SparklogError):
        log(f"{work.title}: failed: {result} [{result.code}]")
    elif not result.reports:
        log(f"{work.title}: nothing to do after all")
    else:
        reports = result.reports
        records = sum(report.records_before for report in reports)
        nbytes = sum(report.bytes_before for report in reports)
        sizes = f"{size_text(nbytes)} -> {size_text(sum(report.bytes_after for report in reports))}"
        change = f"{records:,} -> {sum(report.records_after for report in reports):,} records, {sizes}"
        seconds = sum(report.seconds for report in reports)
        log(f"{work.title}: done in {seconds:.1f} s: {change} ({rates(records, nbytes, seconds)})")
