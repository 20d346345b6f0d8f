"""Read every byte of a root in Spark tasks and name what is not what was written; nothing is changed.

    spark-submit jobs/verify.py --root /data/log
    spark-submit jobs/verify.py --root /data/log --topic orders,clicks --json
    spark-submit jobs/verify.py --root /data/log --quick

What `sparklog verify` does, for roots that are too large for one process: the driver reads the logs, pieces of about
256 MB of files go to tasks. Writers and maintenance may go on meanwhile. Spark is started when there are files to read;
where there is no pyspark the job works in its own process.

Progress goes to stderr, the report (with --json one JSON document) to stdout; spark-submit joins the two, the document
is the last line then. Exit codes: 0 every byte accounted for; 1 something is damaged, or could not be read (the reason
on stderr); 2 wrong usage; 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.errors import SparklogError
from sparklog.maintenance.arguments import DONE, FAILED, INTERRUPTED, add_root_and_topics, root_and_topics
from sparklog.maintenance.progress import say
from sparklog.maintenance.report import say_failures
from sparklog.maintenance.spark_runner import SparkIfNeeded
from sparklog.maintenance.work import Runner
from sparklog.storage import open_store
from sparklog.tools.verification.findings import document, summary
from sparklog.tools.verification.run import verify_root


@dataclass(frozen=True)
class Verify:
    """What to look at; `quick`: of files only whether they are there and how long."""

    root: str
    topics: tuple[str, ...]
    quick: bool
    as_json: bool


def arguments(given: Sequence[str]) -> Verify:
    """Read the command line; exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="sparklog verify", description=(__doc__ or "").splitlines()[0])
    add_root_and_topics(parser)
    parser.add_argument("--quick", action="store_true", help="read only the logs; of files look at their sizes")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of lines")
    chosen = parser.parse_args(given)
    return Verify(*root_and_topics(parser, chosen), chosen.quick, chosen.json)


def run(runner: Runner, chosen: Verify) -> int:
    """Run to the end; the exit code."""
    try:
        store = open_store(chosen.root)
        report = verify_root(store, topics=chosen.topics, quick=chosen.quick, runner=runner, say=say)
    except SparklogError as error:
        say(f"sparklog verify: {error} [{error.code}]")
        return FAILED
    say_failures("sparklog verify", (), report.location, report.counts.topics or len(report.findings))
    print(json.dumps(document(report)) if chosen.as_json else summary(report))
    return DONE if report.sound else FAILED


def main(given: Sequence[str] | None = None) -> int:
    """Run the job with the arguments given, else those of the command line; the exit code."""
    spark = SparkIfNeeded("sparklog verify")
    try:
        return run(spark, arguments(sys.argv[1:] if given is None else given))
    except KeyboardInterrupt:
        say("sparklog verify: interrupted; nothing was changed")
        return INTERRUPTED
    finally:
        spark.close()


if __name__ == "__main__":
    sys.exit(main())
