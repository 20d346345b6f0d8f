"""Checks of the jobs on a root: do they run, did their last runs do all, and is anything overdue?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from sparklog.common.units import ago, count, duration
from sparklog.doctor.checks import FAIL, OK, WARN, Check
from sparklog.errors import SparklogError
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.topic.root import Root
from sparklog.maintenance.overdue import MONITORED_JOBS, JobState, job_problems, never
from sparklog.maintenance.work_items import Settings
from sparklog.tools.report.job_states import Running, has_jobs, read_job_status


def check_jobs(root: Root, max_age_ms: int | None = None) -> list[Check]:
    """Check each job on all topics; nothing where there are none, and of a backup.

    `max_age_ms`: a topic on which a job has not succeeded for longer is a failure, not a warning.
    """
    if not has_jobs(root):
        return []
    now_ms = reading_clock_ms(root.store, root.env)
    try:
        # `check_root` names topics that cannot be read.
        look = read_job_status(root, Settings(now_ms))
        states, running = look.states(), look.running()
    except SparklogError as error:
        fix = f"sparklog verify --root {shlex.quote(root.location)}"
        return [Check("jobs", WARN, f"what the jobs have recorded cannot be read: {error}", fix)]
    findings: list[Check] = []
    for job in MONITORED_JOBS:
        mine = [state for state in states if state.job == job]
        if mine:
            fix = f"sparklog {job} --root {shlex.quote(root.location)}, every hour (see `sparklog conf crontab`)"
            findings += _check_job(job, mine, fix, now_ms)
            findings += _check_age(job, mine, fix, max_age_ms, now_ms)
    for topic, backlog in look.backlogs.items():
        fix = f"sparklog delete-records --root {shlex.quote(root.location)}, and the clocks of its producers"
        findings += [Check("retain", WARN, f"topic {topic}: {record}", fix) for record in backlog.future]
    return [*findings, *_check_running(running, states, now_ms)]


def _check_job(job: str, states: Sequence[JobState], fix: str, now_ms: int) -> Iterator[Check]:
    wrong = job_problems(states)
    for trouble in wrong:
        yield Check(job, WARN, trouble.text, fix)
    if wrong:
        return
    successes = [state.last_success_ms for state in states if state.last_success_ms is not None]
    if not successes:
        yield Check(job, OK, f"{never(job)}; it is not overdue yet")
        return
    interval_ms = max((state.interval_ms for state in states if state.interval_ms is not None), default=None)
    often = "" if interval_ms is None else f", every {duration(interval_ms)}"
    message = (
        f"succeeded on {count(len(states), 'topic')}{often}; the oldest success began {ago(min(successes), now_ms)}"
    )
    yield Check(job, OK, message)


def _check_age(job: str, states: Sequence[JobState], fix: str, max_age_ms: int | None, now_ms: int) -> Iterator[Check]:
    if max_age_ms is None:
        return
    old = [state for state in states if now_ms - (state.last_success_ms or 0) > max_age_ms]
    if old:
        oldest = min(old, key=lambda state: state.last_success_ms or 0)
        when = "never" if oldest.last_success_ms is None else ago(oldest.last_success_ms, now_ms)
        limit = f"for longer than {duration(max_age_ms)} on {count(len(old), 'topic')}"
        yield Check(job, FAIL, f"has not succeeded {limit}; on {oldest.topic} {when}", fix)


def _check_running(running: Sequence[Running], states: Sequence[JobState], now_ms: int) -> Iterator[Check]:
    """Name the runs that keep an overdue job from its work, and those that died."""
    late = {state.job for state in states if state.overdue_ms}
    for run in running:
        where = f"the run on {run.host} (process {run.process}), begun {ago(run.since_ms, now_ms)},"
        if not run.alive:
            yield Check(
                run.job, WARN, f"{where} ended without an outcome", "look why it died: memory, a restart, a signal"
            )
        elif run.job in late:
            fix = f"look what it waits for; once process {run.process} on {run.host} has ended, the next run takes over"
            yield Check(run.job, WARN, f"{where} still works, and other runs leave its topics alone", fix)
