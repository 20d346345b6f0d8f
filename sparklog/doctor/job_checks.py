"""Checks of the jobs on a root: whether they run, whether their last runs have succeeded, and what is overdue."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from sparklog.common.units import ago, count, duration
from sparklog.doctor.checks import FAIL, OK, WARN, Check
from sparklog.errors import SparklogError
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.topic.root import Root
from sparklog.maintenance.overdue import MONITORED_JOBS, JobState, job_problems, never
from sparklog.maintenance.table_runs import read_table_runs
from sparklog.maintenance.work_items import Settings
from sparklog.tools.report.job_states import Running, has_jobs, read_job_status


def check_jobs(root: Root, max_age_ms: int | None = None) -> list[Check]:
    """Check each job on all topics. Return an empty list if there are no topics.

    If `max_age_ms` is given, the check fails if the last success of a job on a topic is older than this, or if the
    state of the jobs is unknown, as for a backup. Without `max_age_ms`, an empty list is returned for a backup.
    """
    if not has_jobs(root):
        if max_age_ms is None:
            return []
        return [Check("jobs", FAIL, f"{root.location} is a backup, which has no jobs", "specify a root")]
    now_ms = reading_clock_ms(root.store, root.env)
    try:
        # `check_root` reports topics that cannot be read.
        status = read_job_status(root, Settings(now_ms))
        states, running = status.states(), status.running()
    except SparklogError as error:
        fix = f"sparklog verify --root {shlex.quote(root.location)}"
        severity = WARN if max_age_ms is None else FAIL
        return [Check("jobs", severity, f"failed to read the recorded job runs: {error}", fix)]
    findings: list[Check] = []
    for job in MONITORED_JOBS:
        of_job = [state for state in states if state.job == job]
        if of_job:
            fix = f"sparklog {job} --root {shlex.quote(root.location)}, every hour (see `sparklog conf crontab`)"
            findings += _check_job(job, of_job, fix, now_ms)
            findings += _check_age(job, of_job, fix, max_age_ms, now_ms)
    for topic, backlog in status.backlogs.items():
        fix = f"sparklog delete-records --root {shlex.quote(root.location)}, and check the clocks of its producers"
        findings += [Check("retain", WARN, f"topic {topic}: {record}", fix) for record in backlog.future]
    findings += _check_table_runs(root, sorted(status.backlogs), now_ms)
    return [*findings, *_check_running(running, states, now_ms)]


def _check_job(job: str, states: Sequence[JobState], fix: str, now_ms: int) -> Iterator[Check]:
    problems = job_problems(states)
    for problem in problems:
        yield Check(job, WARN, problem.text, fix)
    if problems:
        return
    successes = [state.last_success_ms for state in states if state.last_success_ms is not None]
    if not successes:
        yield Check(job, OK, f"{never(job)}; it is not overdue yet")
        return
    interval_ms = max((state.interval_ms for state in states if state.interval_ms is not None), default=None)
    interval = "" if interval_ms is None else f", every {duration(interval_ms)}"
    oldest = f"the oldest successful run started {ago(min(successes), now_ms)}"
    yield Check(job, OK, f"succeeded on {count(len(states), 'topic')}{interval}; {oldest}")


def _check_age(job: str, states: Sequence[JobState], fix: str, max_age_ms: int | None, now_ms: int) -> Iterator[Check]:
    if max_age_ms is None:
        return
    old = [state for state in states if now_ms - (state.last_success_ms or 0) > max_age_ms]
    if old:
        oldest = min(old, key=lambda state: state.last_success_ms or 0)
        when = "never" if oldest.last_success_ms is None else ago(oldest.last_success_ms, now_ms)
        message = f"has not succeeded for {duration(max_age_ms)} on {count(len(old), 'topic')}"
        yield Check(job, FAIL, f"{message}; last success on {oldest.topic}: {when}", fix)


def _check_table_runs(root: Root, topics: Sequence[str], now_ms: int) -> Iterator[Check]:
    """Report copies of topics to tables whose last run has failed or was killed."""
    failures: list[SparklogError] = []
    recorded = read_table_runs(root, topics, failures)
    for error in failures:
        fix = f"sparklog verify --root {shlex.quote(root.location)}"
        yield Check("tables", WARN, f"failed to read the recorded table runs: {error}", fix)
    for topic, runs in recorded.items():
        for run in runs.latest():
            state = run.state_at(now_ms)
            if state in ("failed", "killed"):
                reason = f"failed: {run.failure}" if state == "failed" else "ended without a recorded result"
                what = f"the last run for topic {topic} and table {run.table}, on {run.host} (process {run.process}),"
                yield Check(run.job, WARN, f"{what} {reason}", f"fix the cause, and run sparklog {run.job} again")


def _check_running(running: Sequence[Running], states: Sequence[JobState], now_ms: int) -> Iterator[Check]:
    """Report runs that block an overdue job, and runs that have ended without a result."""
    late = {state.job for state in states if state.overdue_ms}
    for run in running:
        which = f"the run on {run.host} (process {run.process}), started {ago(run.since_ms, now_ms)},"
        if not run.alive:
            fix = "find out why it ended, for example because of memory, a restart or a signal"
            yield Check(run.job, WARN, f"{which} ended without a recorded result", fix)
        elif run.job in late:
            fix = (
                f"check why it is slow; after process {run.process} on {run.host} has ended, the next run "
                "processes its topics"
            )
            yield Check(run.job, WARN, f"{which} is still active, so other runs skip its topics", fix)
