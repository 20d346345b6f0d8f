"""Expire records by time, size and log start offset, as Kafka does, then delete the files that nothing names any more.

    spark-submit jobs/retain.py --root /data/log [--topic orders,clicks] [--properties conf/sparklog.properties] \
        [--dry-run] [--now-ms 1700000000000] [--json]

Record by record nothing is read: the driver looks at the log of each topic alone. Where more than 20,000 files of a
topic go at once Spark is started, if it is there, and they are spread over tasks; fewer the driver deletes itself.
Deleted topics lose their files. `--dry-run` says what would go and why, and changes nothing.

Progress goes to stderr, tables (with --json one JSON document) to stdout; spark-submit joins the two, the document is
the last line then. Exit codes: 0 done, also when there was nothing to do; 1 something failed (the reason on stderr, the
rest is done, but nothing at all if a topic that was named does not exist); 2 wrong usage; 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import sparklog
from sparklog.errors import SparklogError
from sparklog.maintenance.arguments import DONE, FAILED, INTERRUPTED, Common, add_common, common
from sparklog.maintenance.progress import say
from sparklog.maintenance.report import say_failures
from sparklog.maintenance.spark_runner import SparkIfNeeded
from sparklog.maintenance.work import Runner, store_clock_ms
from sparklog.retention.report import document, progress, summary
from sparklog.retention.retain import retain_root


def arguments(given: Sequence[str]) -> Common:
    """Read the command line; exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="sparklog retain", description=(__doc__ or "").splitlines()[0])
    add_common(parser)
    return common(parser, parser.parse_args(given))


def run(chosen: Common, runner: Runner | None = None) -> int:
    """Run to the end; the exit code."""
    try:
        root = sparklog.open(chosen.root)
        settings = chosen.settings_at(store_clock_ms(root.store, root.env, dry_run=chosen.dry_run))
        reports = retain_root(
            root,
            settings,
            topics=chosen.topics,
            runner=runner,
            dry_run=chosen.dry_run,
            on_done=lambda report: say(progress(report)),
        )
    except SparklogError as error:
        say(f"sparklog retain: {error} [{error.code}]")
        return FAILED
    failures = [failure for report in reports for failure in report.failures]
    failed = say_failures("sparklog retain", failures, root.location, len(reports))
    if chosen.as_json:
        print(json.dumps(document(reports, root=root.location, now_ms=settings.now_ms, dry_run=chosen.dry_run)))
    elif reports:
        print(summary(reports, dry_run=chosen.dry_run))
    return FAILED if failed else DONE


def main(given: Sequence[str] | None = None) -> int:
    """Run the job with the arguments given, else those of the command line; the exit code."""
    spark = SparkIfNeeded("sparklog retain")
    try:
        return run(arguments(sys.argv[1:] if given is None else given), spark)
    except KeyboardInterrupt:
        say("sparklog retain: interrupted; what went is gone, the next run does the rest")
        return INTERRUPTED
    finally:
        spark.close()


if __name__ == "__main__":
    sys.exit(main())
