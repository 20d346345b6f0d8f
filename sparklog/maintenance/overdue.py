"""Monitor the maintenance jobs: the last run, the last success and overdue work by topic and job.

A job is overdue on a topic for one of two reasons. If both apply, the longer delay is reported.

* Schedule: no run has succeeded for the interval of the schedule plus half of it, or plus 45 minutes if this is
  shorter. The interval is the longest of the last three intervals between the starts of runs over the topic, or a day
  if there are not enough runs. The delay starts at the creation of the root or later.
* Configs: work has been pending for longer than the configs allow (see `sparklog.maintenance.report`). The delay starts
  when the work fell due or at the start of the last success, whichever is later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparklog.common.units import HOUR_MS, duration
from sparklog.log.journal.names import is_topic_name
from sparklog.maintenance.job_history import COMPACT, RETAIN, SEAL, JobHistory, JobRun, TopicRun
from sparklog.maintenance.report import Backlog

MONITORED_JOBS = COMPACT, RETAIN
DAY_MS = 24 * HOUR_MS
INTERVALS = 3
MAX_DELAY_MS = 45 * 60_000
"""Maximum delay of a scheduled run. Together with the delay of an alert, a stopped schedule is reported within an hour.
"""
MAX_LISTED_TOPICS = 3


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job on a topic. Times are in ms since the epoch according to the store's clock, or None if no run
    was recorded.
    """

    job: str
    topic: str
    last_run_ms: int | None  # start of the last run over the topic
    last_success_ms: int | None  # start of the last successful run over the topic
    seconds: float | None  # time that the last run spent on the topic
    interval_ms: int | None  # observed interval between runs, or None if there are not enough runs
    failure: str  # error of the last run; empty if the run succeeded
    overdue_ms: int  # delay; 0 if the job is not overdue
    why: str  # reason for the delay
    visited: bool  # False if no run has processed the topic, for example because the topic is newer than the last run

    @property
    def state(self) -> str:
        """The state for tables: overdue, failed, never (no run is recorded), new (no run has processed the topic) or
        ok.
        """
        if self.overdue_ms:
            return "overdue"
        if self.failure:
            return "failed"
        if self.last_run_ms is None:
            return "never"
        return "ok" if self.visited else "new"


def job_states(
    history: JobHistory, backlogs: Mapping[str, Backlog], created_ms: int, now_ms: int
) -> tuple[JobState, ...]:
    """Return the state of both jobs on each topic in `backlogs`. `created_ms` is the creation time of the root."""
    states = _JobStates(history, history.rows(), created_ms, now_ms)
    # If `retain` failed to delete files of the root, the row of this failure has a name that is not a valid topic name.
    failed = [(row.job, row.topic) for row in history.topics if row.failure and not is_topic_name(row.topic)]
    pairs = [*((job, topic) for topic in sorted(backlogs) for job in MONITORED_JOBS), *failed]
    return tuple(states.state(job, topic, backlogs.get(topic, Backlog())) for job, topic in pairs)


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A problem of a job on one or more topics, as text."""

    job: str
    topics: tuple[str, ...]
    text: str


def job_problems(states: Sequence[JobState]) -> list[JobProblem]:
    """Return one problem for the failures and one for the delays of each job. The longest delay is reported first."""
    problems = []
    for job in MONITORED_JOBS:
        of_job = [state for state in states if state.job == job]
        failed = [state for state in of_job if state.failure]
        if failed:
            text = f"the last run of {job} failed on {_topics(failed)}: {failed[0].failure}"
            problems.append(JobProblem(job, _names(failed), text))
        overdue = sorted((state for state in of_job if state.overdue_ms), key=lambda state: -state.overdue_ms)
        if overdue:
            late = f"{job} is overdue for {duration(overdue[0].overdue_ms)} on {_topics(overdue)}: {overdue[0].why}"
            has_run = any(state.last_run_ms is not None for state in of_job)
            problems.append(JobProblem(job, _names(overdue), late if has_run else f"{never(job)}; {late}"))
    return problems


def never(job: str) -> str:
    return f"{job} has never run on this root (no run is recorded)"


def _names(states: Sequence[JobState]) -> tuple[str, ...]:
    return tuple(state.topic for state in states)


def _topics(states: Sequence[JobState]) -> str:
    more = f" and {len(states) - MAX_LISTED_TOPICS:,} more" if len(states) > MAX_LISTED_TOPICS else ""
    return f"{', '.join(state.topic for state in states[:MAX_LISTED_TOPICS])}{more}"


@dataclass(frozen=True)
class _JobStates:
    history: JobHistory
    rows: Mapping[tuple[str, str], TopicRun]
    created_ms: int
    now_ms: int

    def state(self, job: str, topic: str, backlog: Backlog) -> JobState:
        # A run that only seals does part of the work of `compact` and counts for the schedule of `compact`.
        kinds = (SEAL, COMPACT) if job == COMPACT else (job,)
        runs = [run for run in self.history.runs if run.job in kinds and run.covers(topic)]
        rows = [row for kind in kinds if (row := self.rows.get((kind, topic))) is not None]
        last_row = max(rows, key=lambda row: row.start_ms, default=None)
        last_run = max(runs, key=lambda run: run.start_ms, default=None)
        success_ms = max(self._success_ms(kind, topic) for kind in kinds)
        interval_ms = _interval_ms(runs)
        overdue_ms, why = max(self._delays(job, topic, backlog, success_ms, interval_ms), default=(0, ""))
        starts = [item.start_ms for item in (last_row, last_run) if item is not None]
        failure, seconds = _last_result(last_row, last_run)
        return JobState(
            job,
            topic,
            last_run_ms=max(starts, default=None),
            last_success_ms=None if success_ms < 0 else success_ms,
            seconds=seconds,
            interval_ms=interval_ms,
            failure=failure,
            overdue_ms=overdue_ms,
            why=why,
            visited=last_row is not None,
        )

    def _delays(
        self, job: str, topic: str, backlog: Backlog, success_ms: int, interval_ms: int | None
    ) -> Iterator[tuple[int, str]]:
        """Yield the delays of the job with their reasons."""
        every_ms = DAY_MS if interval_ms is None else interval_ms
        late_ms = self.now_ms - self._since(success_ms) - every_ms - min(every_ms // 2, MAX_DELAY_MS)
        if late_ms > 0:
            schedule = (
                (f"although it ran every {duration(interval_ms)}")
                if interval_ms
                else "although a daily run is expected"
            )
            since = "" if success_ms < 0 else f" for {duration(self.now_ms - success_ms)}"
            yield late_ms, f"no run has succeeded{since}, {schedule}"
        for due in backlog.due:
            if due.job == job:
                done_ms = success_ms if due.sealing else self._success_ms(job, topic)
                late_ms = self.now_ms - max(due.since_ms, self._since(done_ms)) - due.allowed_ms
                if late_ms > 0:
                    yield late_ms, due.why

    def _success_ms(self, job: str, topic: str) -> int:
        row = self.rows.get((job, topic))
        return self.history.whole_run_ms(job) if row is None else row.succeeded_ms

    def _since(self, success_ms: int) -> int:
        return self.created_ms if success_ms < 0 else success_ms


def _interval_ms(runs: Iterable[JobRun]) -> int | None:
    """Return the longest of the last three intervals, so that manual runs do not shorten the interval."""
    starts = sorted(run.start_ms for run in runs)[-INTERVALS - 1 :]
    return max((later - earlier for earlier, later in pairwise(starts)), default=None)


def _last_result(row: TopicRun | None, run: JobRun | None) -> tuple[str, float | None]:
    """Return the failure and the duration in seconds of the last run.

    If the run ended before it wrote a row for the topic, return the failure and duration of the entire run.
    """
    if run is not None and run.failure and (row is None or run.start_ms > row.start_ms):
        return run.failure, run.took_ms / 1000
    if row is not None:
        return row.failure, row.took_ms / 1000
    return "", None if run is None else run.took_ms / 1000
