"""Merge small appends, seal them into Kafka segments and, on compacted topics, keep the latest record of each key.

    spark-submit jobs/compact.py --root /data/log
    spark-submit jobs/compact.py --root /data/log --topic orders,clicks --properties conf/sparklog.properties
    spark-submit jobs/compact.py --root /data/log --dry-run

For every topic and cleanup.policy; docs/guides/compaction.md has schedule and cost. Appends, scans and streams go on
meanwhile, and two runs at once do no harm. Each piece of work is one Spark task and is committed as it
is finished: a run that is killed has done what it has done.

Spark is started when there is something to do; where there is no pyspark the job works in its own process.

Progress goes to stderr, a table (with --json one JSON document) to stdout; spark-submit joins the two, the document is
the last line then.

Exit codes: 0 done, also when there was nothing to do; 1 some of it failed or could not be done (the reason on stderr,
everything else is done); 2 wrong usage; 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import sparklog
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.errors import SparklogError
from sparklog.maintenance.arguments import DONE, FAILED, INTERRUPTED, Common, add_common, common
from sparklog.maintenance.progress import Narrator, say
from sparklog.maintenance.report import document, say_failures, summary
from sparklog.maintenance.spark_runner import SparkIfNeeded
from sparklog.maintenance.work import Runner, store_clock_ms


@dataclass(frozen=True)
class Compact:
    """What to do: the shared options and the job's own."""

    common: Common
    seal_only: bool = False
    roll: bool = False


def arguments(given: Sequence[str]) -> Compact:
    """Read the command line; exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="sparklog compact", description=(__doc__ or "").splitlines()[0])
    add_common(parser)
    parser.add_argument("--seal-only", action="store_true", help="only seal what is closed: neither merge nor compact")
    parser.add_argument(
        "--roll", action="store_true", help="seal the active segments, too, young and small as they are"
    )
    chosen = parser.parse_args(given)
    return Compact(common(parser, chosen), chosen.seal_only, chosen.roll)


def run(runner: Runner, compact: Compact) -> int:
    """Run to the end; the exit code."""
    chosen = compact.common
    try:
        root = sparklog.open(chosen.root)
        settings = chosen.settings_at(store_clock_ms(root.store, root.env, dry_run=chosen.dry_run))
        reports = compact_root(
            root,
            settings,
            runner,
            CompactOptions(
                topics=chosen.topics, seal_only=compact.seal_only, roll=compact.roll, dry_run=chosen.dry_run
            ),
            on_done=Narrator(),
        )
    except SparklogError as error:
        say(f"sparklog compact: {error} [{error.code}]")
        return FAILED
    failures = [failure for report in reports for failure in report.failures]
    failed = say_failures("sparklog compact", failures, root.location, len(reports))
    if chosen.as_json:
        print(json.dumps(document(reports, root=root.location, now_ms=settings.now_ms, dry_run=chosen.dry_run)))
    elif text := summary(reports, dry_run=chosen.dry_run):
        print(text)
    return FAILED if failed else DONE


def main(given: Sequence[str] | None = None) -> int:
    """Run the job with the arguments given, else those of the command line; the exit code."""
    spark = SparkIfNeeded("sparklog compact")
    try:
        return run(spark, arguments(sys.argv[1:] if given is None else given))
    except KeyboardInterrupt:
        say("sparklog compact: interrupted; what was committed stays, the next run does the rest")
        return INTERRUPTED
    finally:
        spark.close()


if __name__ == "__main__":
    sys.exit(main())
