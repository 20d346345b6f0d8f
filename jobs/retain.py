"""Expire records by time, size and log start offset, as Kafka does, then delete the files that nothing names any more.

    spark-submit jobs/retain.py --root /data/log [--topic orders,clicks] [--properties conf/sparklog.properties] \
        [--dry-run] [--now-ms 1700000000000] [--json]

Record by record nothing is read: the driver looks at the log of each topic alone. Deleting many files is spread over
tasks, few are deleted by the driver, so `python jobs/retain.py` does the same without Spark, one after the other.
Deleted topics lose their files. `--dry-run` says what would go and why, and changes nothing.

Exit codes: 0 done (also when nothing was to do), 1 something failed (the reason on stderr, the rest is done), 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

import sparklog
from sparklog.errors import SparklogError
from sparklog.maintenance.arguments import DONE, FAILED, Common, add_common, common
from sparklog.maintenance.work import Done, InProcess, Runner, Work
from sparklog.retention.report import document, summary
from sparklog.retention.retain import retain_root


class SparkIfNeeded:
    """A `Runner` that starts Spark when there is work for tasks, and works here where there is no pyspark."""

    def __init__(self) -> None:
        self._started: Runner | None = None

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, Done | SparklogError]]:
        """See `Runner`."""
        if self._started is None:
            self._started = self._start()
        return self._started.run(works)

    @staticmethod
    def _start() -> Runner:
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            return InProcess()
        from sparklog.maintenance.spark_runner import SparkRunner

        return SparkRunner(SparkSession.builder.appName("sparklog retain").getOrCreate())


def arguments(given: Sequence[str]) -> Common:
    """Read the command line; exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="retain.py", description=(__doc__ or "").splitlines()[0])
    add_common(parser)
    return common(parser, parser.parse_args(given))


def run(chosen: Common, runner: Runner | None = None) -> int:
    """Run to the end; the exit code."""
    try:
        root = sparklog.open(chosen.root)
        settings = chosen.settings_at(root.store.now_ms())
        reports = retain_root(root, settings, topics=chosen.topics, runner=runner, dry_run=chosen.dry_run)
    except SparklogError as error:
        print(f"retain.py: {error} [{error.code}]", file=sys.stderr)
        return FAILED
    if chosen.as_json:
        print(json.dumps(document(reports, root=root.location, now_ms=settings.now_ms, dry_run=chosen.dry_run)))
    else:
        print(summary(reports, dry_run=chosen.dry_run))
    for report in reports:
        for failure in report.failures:
            print(f"retain.py: {failure.line()}", file=sys.stderr)
    return FAILED if any(report.failed for report in reports) else DONE


def main() -> int:
    """The whole job."""
    return run(arguments(sys.argv[1:]), SparkIfNeeded())


if __name__ == "__main__":
    sys.exit(main())
