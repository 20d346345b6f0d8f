"""Read every byte of a root in Spark tasks and report corruption, without changing anything.

The job is `sparklog verify` for roots that are too large for a single process. The driver reads the logs, and each task
reads about 256 MB of files. If pyspark is not installed, the job reads all files in its own process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from sparklog.console.options import QuickOption, RootOption, TopicsOption, topic_names
from sparklog.console.parameters import JsonOption
from sparklog.jobs.common import DONE, FAILED, job, parse, spark_if_needed
from sparklog.maintenance.report import print_failures
from sparklog.maintenance.work_items import Runner, Settings
from sparklog.output import StatusLine, log
from sparklog.storage import open_store
from sparklog.tools.verification.findings import document, summary
from sparklog.tools.verification.run import verify_root


@dataclass
class Verify:
    """Options of the job."""

    root: RootOption
    topic: TopicsOption = None
    quick: QuickOption = False
    as_json: JsonOption = False
    topics: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.topics = topic_names(self.topic)


arguments = partial(parse, "verify", Verify, __doc__)


handle_errors = job("verify", after_interrupt="nothing was changed")


@handle_errors
def run(runner: Runner, options: Verify) -> int:
    store = open_store(options.root)
    with StatusLine("verify") as status:

        def show(line: str) -> None:
            status(line)
            if not status.is_shown:
                log(line)

        report = verify_root(store, topics=options.topics, quick=options.quick, runner=runner, say=show)
    print_failures("sparklog verify", (), report.location, report.counts.topics or len(report.findings))
    print(json.dumps(document(report)) if options.as_json else summary(report))
    return DONE if report.sound else FAILED


@handle_errors
def main(words: Sequence[str]) -> int:
    with closing(spark_if_needed("verify", Settings(0))) as spark:
        return run(spark, arguments(words))
