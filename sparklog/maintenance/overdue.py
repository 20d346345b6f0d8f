"""Judge whether maintenance runs: for each topic and job the last run, the last success, and what is overdue.

A job is overdue on a topic in either of two ways, and by whichever is longer:

* by its schedule: no run has succeeded for longer than the interval and a half (and 45 minutes, if that is less): the
  longest of the last three between starts of runs over the topic, or a day. It counts from the root's creation on.
* by its configs: work has waited for longer than they allow (`sparklog.maintenance.report`), since it fell due or
  since the last success began, whichever was later.
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
LATE_MS = 45 * 60_000
"""How late a run may begin: with the pause of an alert a schedule that ended is named within an hour."""
NAMED = 3
"""Topics that a line names."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job on a topic. Times are ms since the epoch, by the store; None where no run was recorded."""

    job: str
    topic: str
    last_run_ms: int | None  # when it began
    last_success_ms: int | None  # when that run began
    seconds: float | None  # that the last run worked on the topic
    interval_ms: int | None  # of its schedule; None: not seen yet
    failure: str  # why the last run failed; empty: it did not
    overdue_ms: int  # for how long; 0: it is not
    why: str  # by what

    @property
    def state(self) -> str:
        """One word for tables: overdue, failed, never, ok."""
        if self.overdue_ms:
            return "overdue"
        return "failed" if self.failure else "never" if self.last_run_ms is None else "ok"


def job_states(
    outcomes: JobHistory, backlogs: Mapping[str, Backlog], created_ms: int, now_ms: int
) -> tuple[JobState, ...]:
    """Judge both jobs on each topic of `backlogs`. `created_ms`: when the root was made."""
    judged = _Judged(outcomes, outcomes.rows(), created_ms, now_ms)
    # What `retain` could not do in the root itself has a row under a name that no topic has.
    failed = [(row.job, row.topic) for row in outcomes.topics if row.failure and not is_topic_name(row.topic)]
    pairs = [*((job, topic) for topic in sorted(backlogs) for job in MONITORED_JOBS), *failed]
    return tuple(judged.state(job, topic, backlogs.get(topic, Backlog())) for job, topic in pairs)


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A problem with a job on some topics, in words."""

    job: str
    topics: tuple[str, ...]
    text: str


def job_problems(states: Sequence[JobState]) -> list[JobProblem]:
    """Return what failed and what is overdue, of each job together, the worst topic named."""
    lines = []
    for job in MONITORED_JOBS:
        mine = [state for state in states if state.job == job]
        failed = [state for state in mine if state.failure]
        if failed:
            text = f"the last run of {job} failed on {_topics(failed)}: {failed[0].failure}"
            lines.append(JobProblem(job, _names(failed), text))
        overdue = sorted((state for state in mine if state.overdue_ms), key=lambda state: -state.overdue_ms)
        if overdue:
            late = f"{job} is overdue for {duration(overdue[0].overdue_ms)} on {_topics(overdue)}: {overdue[0].why}"
            visited = any(state.last_run_ms is not None for state in mine)
            lines.append(JobProblem(job, _names(overdue), late if visited else f"{never(job)}; {late}"))
    return lines


def never(job: str) -> str:
    return f"{job} has never visited this root (no run of it is recorded)"


def _names(states: Sequence[JobState]) -> tuple[str, ...]:
    return tuple(state.topic for state in states)


def _topics(states: Sequence[JobState]) -> str:
    more = f" and {len(states) - NAMED:,} more" if len(states) > NAMED else ""
    return f"{', '.join(state.topic for state in states[:NAMED])}{more}"


@dataclass(frozen=True)
class _Judged:
    outcomes: JobHistory
    rows: Mapping[tuple[str, str], TopicRun]
    created_ms: int
    now_ms: int

    def state(self, job: str, topic: str, backlog: Backlog) -> JobState:
        # What seals alone does a part of `compact`: its runs are part of that one's schedule.
        kinds = (SEAL, COMPACT) if job == COMPACT else (job,)
        runs = [run for run in self.outcomes.runs if run.job in kinds and run.covers(topic)]
        rows = [row for kind in kinds if (row := self.rows.get((kind, topic))) is not None]
        last_row = max(rows, key=lambda row: row.start_ms, default=None)
        last_run = max(runs, key=lambda run: run.start_ms, default=None)
        success_ms = max(self._success_ms(kind, topic) for kind in kinds)
        interval_ms = _interval_ms(runs)
        late = max(self._late(job, topic, backlog, success_ms, interval_ms), default=(0, ""))
        starts = [item.start_ms for item in (last_row, last_run) if item is not None]
        return JobState(
            job,
            topic,
            last_run_ms=max(starts, default=None),
            last_success_ms=None if success_ms < 0 else success_ms,
            seconds=_seconds(last_row, last_run),
            interval_ms=interval_ms,
            failure=_failure(last_row, last_run),
            overdue_ms=late[0],
            why=late[1],
        )

    def _late(
        self, job: str, topic: str, backlog: Backlog, success_ms: int, interval_ms: int | None
    ) -> Iterator[tuple[int, str]]:
        """Yield for how long the job is overdue, and why, for each reason there is."""
        every_ms = DAY_MS if interval_ms is None else interval_ms
        late_ms = self.now_ms - self._since(success_ms) - every_ms - min(every_ms // 2, LATE_MS)
        if late_ms > 0:
            ran = f"it ran every {duration(interval_ms)}" if interval_ms else "a run a day is expected"
            since = "" if success_ms < 0 else f" for {duration(self.now_ms - success_ms)}"
            yield late_ms, f"no run has succeeded{since}, {ran}"
        for due in backlog.due:
            if due.job == job:
                done_ms = success_ms if due.sealing else self._success_ms(job, topic)
                late_ms = self.now_ms - max(due.since_ms, self._since(done_ms)) - due.allowed_ms
                if late_ms > 0:
                    yield late_ms, due.why

    def _success_ms(self, job: str, topic: str) -> int:
        row = self.rows.get((job, topic))
        return self.outcomes.whole_run_ms(job) if row is None else row.succeeded_ms

    def _since(self, success_ms: int) -> int:
        return self.created_ms if success_ms < 0 else success_ms


def _interval_ms(runs: Iterable[JobRun]) -> int | None:
    """Return the interval of a schedule. The longest of three: a run by hand in between does not make it shorter."""
    starts = sorted(run.start_ms for run in runs)[-INTERVALS - 1 :]
    return max((later - earlier for earlier, later in pairwise(starts)), default=None)


def _failure(row: TopicRun | None, run: JobRun | None) -> str:
    """Return why the last run failed: on the topic, or before its end, when it wrote no row."""
    if run is not None and run.failure and (row is None or run.start_ms > row.start_ms):
        return run.failure
    return "" if row is None else row.failure


def _seconds(row: TopicRun | None, run: JobRun | None) -> float | None:
    if row is None or (run is not None and run.failure and run.start_ms > row.start_ms):
        return None if run is None else run.took_ms / 1000
    return row.took_ms / 1000
