"""Merge small appends, seal them into Kafka segments and, on compacted topics, keep the latest record of each key.

The job processes topics with any cleanup.policy. See docs/guides/compaction.md for schedules and costs. Appends, scans
and streams can run concurrently. Two concurrent runs are safe, because the second run skips the work of the first. Each
work item is committed when it is finished. The job starts Spark if there are at least 256 MiB or 10,000 files to
process (`spark.min.bytes` and `spark.min.files` in the properties file). If there is less work, or if pyspark is not
installed, the job works in its own process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from sparklog.common.units import count, size_text
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.console.parameters import Option
from sparklog.errors import SparklogError
from sparklog.jobs.common import Maintenance, job, parse, run_maintenance, spark_if_needed
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import SEAL
from sparklog.maintenance.leases import JobLease
from sparklog.maintenance.report import TopicReport, summary
from sparklog.maintenance.work_items import CountingRunner, Runner, Settings, Work, WorkResult, log_result
from sparklog.output import StatusLine


@dataclass
class Compact(Maintenance):
    """Options of the job: the common options of jobs, and options that limit the work of a run."""

    seal_only: Annotated[bool, Option(help="Only seal closed segments. Do not merge or compact.")] = False
    roll: Annotated[bool, Option(help="Also seal the active segments, even if they are recent and small.")] = False


arguments = partial(parse, "compact", Compact, __doc__)


handle_errors = job("compact", after_interrupt="committed work is kept, and the next run does the remaining work")


@handle_errors
def run(runner: Runner, options: Compact) -> int:
    with StatusLine("compact") as status:

        def show(items: int, of_items: int, nbytes: int, of_nbytes: int) -> None:
            status(f"{items:,} of {count(of_items, 'work item')}, {size_text(nbytes)} of {size_text(of_nbytes)}")

        def compact(root: Root, settings: Settings, lease: JobLease) -> list[TopicReport]:
            def ended(work: Work, result: WorkResult | SparklogError) -> None:
                if not status.is_shown:
                    log_result(work, result)
                lease.check()

            parts = CompactOptions(lease.topics, options.seal_only, options.roll, options.dry_run)
            return compact_root(root, settings, CountingRunner(runner, show), parts, ended)

        return run_maintenance("compact", options, compact, summary, SEAL if options.seal_only else None)


@handle_errors
def main(words: Sequence[str]) -> int:
    options = arguments(words)
    with closing(spark_if_needed("compact", options.settings)) as spark:
        return run(spark, options)
