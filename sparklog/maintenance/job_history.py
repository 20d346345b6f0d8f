"""JobHistory of the runs of maintenance, kept in the root: who ran when, what it did, what failed, what it left.

A run writes one entry at its end, after all that it committed, into the journal `_jobs/outcomes/_log`. The newest entry
has the newest runs, and one row for each job and topic. Nothing rests on it: a run that dies writes none, and one that
cannot write says so and ends as it would have.

It is a journal of its own, not that of the leases: older releases do not look at it, and a run that renews its lease
each minute does not write all rows again.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from sparklog.errors import SparklogError
from sparklog.log.journal.chain import EntryChain
from sparklog.log.journal.clocks import ClockReading
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
"""`SEAL`: a run of `compact` with --seal-only, which leaves the rest of its work to another."""
ID = "outcomes"
ALIKE_KEPT = 8
"""Runs of one job over the same topics."""
RUNS_KEPT = 64
ROW_KEPT_MS = 90 * 86_400_000
"""Of a topic that no run has met since, and that is not known to be deleted."""
MAX_FAILURE = 300
R = TypeVar("R", bound=RunReport)


@dataclass(frozen=True, slots=True)
class JobRun:
    """A run that has ended."""

    job: str
    run: str
    host: str
    process: int
    start_ms: int
    took_ms: int
    topics: tuple[str, ...] = ()  # those it was asked for (none: all)
    failed_topics: int = 0
    amounts: RunStatistics = field(default_factory=RunStatistics)
    defaults: Mapping[str, str] = field(default_factory=dict)  # of its properties file, for topics that do not set them
    failure: str = ""  # what ended it before its end

    def covers(self, topic: str) -> bool:
        return not self.topics or topic in self.topics


@dataclass(frozen=True, slots=True)
class TopicRun:
    """The last run of a job over one topic. What it left is None where it is nothing or the job does not look at it."""

    job: str
    topic: str
    start_ms: int
    took_ms: int
    succeeded_ms: int  # when the last run began that did not fail; -1: none
    failure: str = ""
    amounts: RunStatistics | None = None
    dirty_permille: int | None = None  # the dirty ratio
    unsealed_bytes: int | None = None  # left not sealed
    oldest_expired_ms: int | None = None  # of the oldest record that has expired and can still be read


@dataclass(frozen=True, slots=True)
class JobHistory(StateEntry):
    """Runs, the oldest first, and the last outcome of each job and topic."""

    runs: tuple[JobRun, ...] = ()
    topics: tuple[TopicRun, ...] = ()

    def rows(self) -> dict[tuple[str, str], TopicRun]:
        """Return the last outcomes by job and topic."""
        return {(row.job, row.topic): row for row in self.topics}

    def whole_run_ms(self, job: str) -> int:
        """Return when the last run over all topics began that came to its end; -1: none did."""
        return max(
            (run.start_ms for run in self.runs if run.job == job and not (run.topics or run.failure)), default=-1
        )

    def after(self, run: JobRun, reports: Sequence[RunReport]) -> JobHistory:
        """Return the state after one more run."""
        rows = self.rows()
        # A topic that no run has met is younger than the last run over all topics.
        whole_ms = self.whole_run_ms(run.job)
        if not (run.topics or run.failure):
            rows = {key: row for key, row in rows.items() if key[0] != run.job or is_topic_name(key[1])}
        for report in reports:
            key = (run.job, report.topic)
            if report.deleted:
                rows = {other: row for other, row in rows.items() if other[1] != report.topic}
            else:
                rows[key] = _row(run, report, rows[key].succeeded_ms if key in rows else whole_ms)
        kept = (rows[key] for key in sorted(rows) if run.start_ms - rows[key].start_ms < ROW_KEPT_MS)
        return replace(self, runs=_newest((*self.runs, run)), topics=tuple(kept))


def _row(run: JobRun, report: RunReport, earlier_ms: int) -> TopicRun:
    failure = report.failures[0].line()[:MAX_FAILURE] if report.failures else ""
    amounts, left = report.amounts(), report.left
    return TopicRun(
        run.job,
        report.topic,
        run.start_ms,
        round(report.seconds * 1000),
        earlier_ms if failure else run.start_ms,
        failure,
        None if amounts == RunStatistics() else amounts,
        None if left.dirty_ratio is None else round(1000 * left.dirty_ratio),
        left.unsealed_bytes,
        left.oldest_expired_ms,
    )


def _newest(runs: Sequence[JobRun]) -> tuple[JobRun, ...]:
    kept: list[JobRun] = []
    alike: dict[tuple[str, tuple[str, ...]], int] = {}
    for run in reversed(runs):
        key = (run.job, run.topics)
        alike[key] = alike.get(key, 0) + 1
        if alike[key] <= ALIKE_KEPT and len(kept) < RUNS_KEPT:
            kept.append(run)
    return tuple(reversed(kept))


AMOUNTS_JSON = Document(
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
    inline={"amounts": AMOUNTS_JSON},
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
    inline={"amounts": AMOUNTS_JSON},
)
HISTORY_JSON = StoredDocument(
    "entry", JobHistory, *ENTRY_MEMBERS, Member("runs", objects_of(RUN_JSON)), Member("topics", objects_of(ROW_JSON))
)
JOB_HISTORY = EntryKind(
    folder=JOBS_FOLDER,
    owner="journal",
    what="outcomes",
    noun="outcome",
    empty=JobHistory,
    table=HISTORY_JSON,
    per_checkpoint=8,
    old_entry="outcome of a job",
)


def read_job_history(root: Root) -> JobHistory:
    """Return what the runs of maintenance have recorded; without runs if none has."""
    # The newest entry has all of it: a journal that is opened to be written reads every entry since a checkpoint.
    return EntryChain(root.store, JOB_HISTORY, ID, root.env).latest()


@dataclass
class RunRecorder(Generic[R]):
    """The run of a job over topics (none: all), and its reports once the work is done; not `wanted`: of a dry run."""

    root: Root
    job: str
    settings: Settings
    topics: Sequence[str] = ()
    wanted: bool = True
    reports: Sequence[R] = ()

    def run(self, work: Callable[[], Sequence[R]]) -> Sequence[R]:
        """Do the work and record its outcome, also where it raises; return its reports."""
        begun = self.root.env.now()
        failure = ""
        try:
            self.reports = work()
        except BaseException as error:
            failure = f"{error} [{error.code}]" if isinstance(error, SparklogError) else _cause(error)
            raise
        finally:
            self._record(begun, failure)
        return self.reports

    def _record(self, begun: ClockReading, failure: str) -> None:
        root = self.root
        if not (self.wanted and root.store.writable):
            return
        took_ms = max(0, root.env.boot_ms() - begun.boot_ms)
        try:
            run = JobRun(
                self.job,
                root.env.new_id(),
                platform.node(),
                os.getpid(),
                root.engine.by_store_clock(root.env.wall_ms()) - took_ms,
                took_ms,
                tuple(self.topics),
                sum(report.failed for report in self.reports),
                sum((report.amounts() for report in self.reports), RunStatistics()),
                self.settings.defaults,
                failure[:MAX_FAILURE],
            )
            root.engine.entries(JOB_HISTORY, ID).write(lambda base: base.after(run, self.reports))
        except SparklogError as error:
            log(f"{self.job}: the outcome of this run is not recorded: {error} [{error.code}]")


def _cause(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
