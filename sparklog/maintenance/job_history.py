"""Records of maintenance runs, which are stored in the root: time and host of each run, its results, and remaining
work.

At its end, a run writes an entry to the journal `_jobs/outcomes/_log`. The latest entry contains the latest runs and
one row per job and topic. Correctness does not depend on run records: a run that is killed does not write an entry, and
a run that fails to write its entry logs the error and ends normally.

Run records and leases are in separate journals for two reasons: older releases do not read run records, and a run that
renews its lease every minute would otherwise write all rows each time.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from sparklog.errors import SparklogError
from sparklog.log.journal.chain import EntryChain
from sparklog.log.journal.documents import (
    TEXT,
    TEXTS,
    Document,
    Member,
    StoredDocument,
    members,
    objects_of,
    one_of,
    texts_by_text,
    whole,
)
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import JOBS_FOLDER, is_topic_name
from sparklog.log.topic.root import Root
from sparklog.maintenance.report import RunReport, RunStatistics
from sparklog.maintenance.work_items import Settings
from sparklog.output import log

JOBS = COMPACT, RETAIN, SEAL = "compact", "retain", "seal"
"""`SEAL` is a run of `compact` with --seal-only."""
ID = "outcomes"
MAX_EQUAL_RUNS = 8
"""Maximum number of recorded runs of a job over the same topics."""
MAX_RUNS = 64
ROW_RETENTION_MS = 90 * 86_400_000
"""The time for which a row is retained if no later run has processed its topic, unless the topic is known to be
deleted.
"""
MAX_FAILURE_LENGTH = 300
R = TypeVar("R", bound=RunReport)


@dataclass(frozen=True, slots=True)
class JobRun:
    """The record of a finished run."""

    job: str
    run: str
    host: str
    process: int
    start_ms: int
    took_ms: int
    topics: tuple[str, ...] = ()  # requested topics; all topics if empty
    failed_topics: int = 0
    amounts: RunStatistics = field(default_factory=RunStatistics)
    # topic config defaults from the properties file of the run
    defaults: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""  # error that ended the run early

    def covers(self, topic: str) -> bool:
        return not self.topics or topic in self.topics


@dataclass(frozen=True, slots=True)
class TopicRun:
    """The last run of a job on a topic. An attribute of the remaining work is None if no work remains, or if the job
    does not measure this work.
    """

    job: str
    topic: str
    start_ms: int
    took_ms: int
    succeeded_ms: int  # start of the last successful run, or -1 if no run has succeeded
    failure: str = ""
    amounts: RunStatistics | None = None
    dirty_permille: int | None = None  # dirty ratio in thousandths
    unsealed_bytes: int | None = None  # number of unsealed bytes
    oldest_expired_ms: int | None = None  # timestamp of the oldest readable record that has expired


@dataclass(frozen=True, slots=True)
class JobHistory(StateEntry):
    """Run records, oldest first, and the last run of each job on each topic."""

    runs: tuple[JobRun, ...] = ()
    topics: tuple[TopicRun, ...] = ()

    def rows(self) -> dict[tuple[str, str], TopicRun]:
        """Return the rows by (job, topic)."""
        return {(row.job, row.topic): row for row in self.topics}

    def whole_run_ms(self, job: str) -> int:
        """Return the start of the last completed run over all topics, or -1 if there is none."""
        return max(
            (run.start_ms for run in self.runs if run.job == job and not (run.topics or run.failure)), default=-1
        )

    def after(self, run: JobRun, reports: Sequence[RunReport]) -> JobHistory:
        """Return the history with an additional run."""
        rows = self.rows()
        # A topic without a row was created after the last run over all topics.
        whole_ms = self.whole_run_ms(run.job)
        if not (run.topics or run.failure):
            rows = {key: row for key, row in rows.items() if key[0] != run.job or is_topic_name(key[1])}
        for report in reports:
            key = (run.job, report.topic)
            if report.deleted:
                rows = {other: row for other, row in rows.items() if other[1] != report.topic}
            else:
                rows[key] = _row(run, report, rows[key].succeeded_ms if key in rows else whole_ms)
        recent = (rows[key] for key in sorted(rows) if run.start_ms - rows[key].start_ms < ROW_RETENTION_MS)
        return replace(self, runs=_latest((*self.runs, run)), topics=tuple(recent))


def _row(run: JobRun, report: RunReport, earlier_ms: int) -> TopicRun:
    failure = report.failures[0].line()[:MAX_FAILURE_LENGTH] if report.failures else ""
    statistics, backlog = report.statistics(), report.backlog
    return TopicRun(
        run.job,
        report.topic,
        run.start_ms,
        round(report.seconds * 1000),
        earlier_ms if failure else run.start_ms,
        failure,
        None if statistics == RunStatistics() else statistics,
        None if backlog.dirty_ratio is None else round(1000 * backlog.dirty_ratio),
        backlog.unsealed_bytes,
        backlog.oldest_expired_ms,
    )


def _latest(runs: Sequence[JobRun]) -> tuple[JobRun, ...]:
    """Return the last `MAX_RUNS` runs, but at most `MAX_EQUAL_RUNS` runs of a job over the same topics. Other runs are
    not kept.
    """
    latest: list[JobRun] = []
    equal_runs: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for run in reversed(runs):
        equal_runs[run.job, run.topics] += 1
        if equal_runs[run.job, run.topics] <= MAX_EQUAL_RUNS and len(latest) < MAX_RUNS:
            latest.append(run)
    return tuple(reversed(latest))


STATISTICS_JSON = Document(
    RunStatistics, *members(whole(0), "recordsIn", "recordsOut", "bytesIn", "bytesOut", "bytesDeleted")
)
RUN_JSON = Document(
    JobRun,
    Member("job", one_of(*JOBS)),
    *members(TEXT, "run", "host"),
    *members(whole(0), "process", "startMs", "tookMs"),
    Member("topics", TEXTS, optional=True),
    Member("failedTopics", whole(0)),
    Member("defaults", texts_by_text(), optional=True),
    Member("failure", TEXT),
    inline={"amounts": STATISTICS_JSON},
)
ROW_JSON = Document(
    TopicRun,
    Member("job", one_of(*JOBS)),
    Member("topic", TEXT),
    *members(whole(0), "startMs", "tookMs"),
    Member("succeededMs", whole(-1)),
    Member("failure", TEXT),
    Member("dirtyPermille", whole(0, 1000), optional=True),
    *members(whole(0), "unsealedBytes", "oldestExpiredMs", optional=True),
    inline={"amounts": STATISTICS_JSON},
)
HISTORY_JSON = StoredDocument(
    "entry", JobHistory, *ENTRY_MEMBERS, Member("runs", objects_of(RUN_JSON)), Member("topics", objects_of(ROW_JSON))
)
JOB_HISTORY = EntryKind(
    folder=JOBS_FOLDER,
    owner="journal",
    what="run records",
    noun="run record",
    empty=JobHistory,
    table=HISTORY_JSON,
    per_checkpoint=8,
    old_entry="run record",
)


def read_job_history(root: Root) -> JobHistory:
    """Return the recorded runs of the maintenance jobs."""
    # Read only the latest entry, which is complete. Opening the journal for writes would read all entries since a
    # checkpoint.
    return EntryChain(root.store, JOB_HISTORY, ID, root.env).latest()


@dataclass
class RunRecorder(Generic[R]):
    """Runs a job and records the run in the root.

    Attributes:
        topics: the requested topics. If empty, all topics are requested.
        enabled: False for a dry run, which is not recorded.
        reports: the reports of the job after it has finished.
    """

    root: Root
    job: str
    settings: Settings
    topics: Sequence[str] = ()
    enabled: bool = True
    reports: Sequence[R] = ()

    def run(self, work: Callable[[], Sequence[R]]) -> Sequence[R]:
        """Do the work and return its reports. Record the run even if the work raises an error."""
        started = self.root.env.now()
        failure = ""
        try:
            self.reports = work()
        except SparklogError as error:
            failure = f"{error} [{error.code}]"
            raise
        except BaseException as error:
            failure = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
            raise
        finally:
            if self.enabled and self.root.store.writable:
                self._record(max(0, self.root.env.boot_ms() - started.boot_ms), failure)
        return self.reports

    def _record(self, took_ms: int, failure: str) -> None:
        root = self.root
        try:
            run = JobRun(
                self.job,
                root.env.new_id(),
                platform.node(),
                os.getpid(),
                root.engine.to_store_clock(root.env.wall_ms()) - took_ms,
                took_ms,
                tuple(self.topics),
                sum(report.failed for report in self.reports),
                sum((report.statistics() for report in self.reports), RunStatistics()),
                self.settings.defaults,
                failure[:MAX_FAILURE_LENGTH],
            )
            root.engine.entries(JOB_HISTORY, ID).write(lambda base: base.after(run, self.reports))
        except SparklogError as error:
            log(f"{self.job}: failed to record this run: {error} [{error.code}]")
