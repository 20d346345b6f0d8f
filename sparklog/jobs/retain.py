"""Expire records by time, size and log start offset, like Kafka, then delete unreferenced files.

The driver only reads the logs of the topics. If more than 20,000 files of a topic must be deleted and Spark is
installed, the job starts Spark. If a topic that is specified with `--topic` does not exist, the job does not change any
topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from sparklog.common.units import count, size_text
from sparklog.jobs.common import Maintenance, job, parse, run_maintenance, spark_if_needed
from sparklog.log.topic.root import Root
from sparklog.maintenance.leases import JobLease
from sparklog.maintenance.work_items import Runner, Settings
from sparklog.output import StatusLine, log
from sparklog.retention.retain import RetainReport, progress, retain_root, summary

arguments = partial(parse, "retain", Maintenance, __doc__)


handle_errors = job("retain", after_interrupt="deleted files remain deleted, and the next run does the remaining work")


@handle_errors
def run(options: Maintenance, runner: Runner | None = None) -> int:
    busy = idle = nbytes = 0
    with StatusLine("retain") as status:

        def retain(root: Root, settings: Settings, lease: JobLease) -> list[RetainReport]:
            def show(report: RetainReport, topics: int) -> None:
                nonlocal busy, idle, nbytes
                line = progress(report)
                busy, idle = (busy, idle + 1) if line is None else (busy + 1, idle)
                nbytes += report.statistics().bytes_deleted
                status(f"{busy + idle:,} of {count(topics, 'topic')}, {size_text(nbytes)} deleted")
                if line is not None and not status.is_shown:
                    log(line)
                lease.check()

            return retain_root(
                root, settings, topics=lease.topics, runner=runner, dry_run=options.dry_run, on_done=show
            )

        code = run_maintenance("retain", options, retain, summary)
    deleted = "to delete" if options.dry_run else "deleted"
    status.total(f"retain: {count(busy + idle, 'topic')}, {size_text(nbytes)} {deleted}")
    if busy and idle and not status.is_shown:
        log(f"retain: {count(idle, 'topic')} had nothing to delete")
    return code


@handle_errors
def main(words: Sequence[str]) -> int:
    options = arguments(words)
    with closing(spark_if_needed("retain", options.settings)) as spark:
        return run(options, spark)
