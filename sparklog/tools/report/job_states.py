"""Gather what is known of the jobs on a root: outcomes of runs, work that waits, runs that have not ended.

A look costs two listings and two requests for the outcomes, one for the root, and the same again for each job's leases
where they are asked for. Slice tables are those of snapshots that the caller has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparklog.compaction.backlog import compaction_backlog
from sparklog.errors import SparklogError
from sparklog.log.journal.names import root_created_ms, topic_names
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.backup_manifest import BackupStore
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import JobHistory, read_job_history
from sparklog.maintenance.leases import read_job_leases
from sparklog.maintenance.overdue import MONITORED_JOBS, JobState, job_states
from sparklog.maintenance.report import Backlog
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import expiry_backlog


@dataclass(frozen=True, slots=True)
class Running:
    """A run that has not ended, by its lease. Not `alive`: its lease ran out, so it died, or sleeps."""

    job: str
    host: str
    process: int
    since_ms: int
    topics: tuple[str, ...]
    alive: bool


class JobLook:
    """A look at the jobs of a root, as of `settings.now_ms`.

    Configs that a topic does not set are those of `settings`; without any there, those of each job's last run, which
    may have had a properties file. `SparklogError` if what was recorded cannot be read.
    """

    def __init__(self, root: Root, settings: Settings) -> None:
        self.outcomes: JobHistory = read_job_history(root)
        self.backlogs: dict[str, Backlog] = {}
        self.failures: list[SparklogError] = []
        """Of topics that cannot be read."""
        self._root = root
        self._created_ms = root_created_ms(root.store)
        self._now_ms = settings.now_ms
        self._settings = {job: _with_defaults(settings, self.outcomes, job) for job in MONITORED_JOBS}

    def add(self, snapshot: Snapshot) -> Backlog:
        """Take in what waits on a topic, and return it."""
        compact, retain = (self._settings[job] for job in MONITORED_JOBS)
        backlog, expiring = compaction_backlog(snapshot, compact), expiry_backlog(snapshot, retain)
        due = (*backlog.due, *expiring.due)
        backlog = replace(backlog, oldest_expired_ms=expiring.oldest_expired_ms, due=due, future=expiring.future)
        self.backlogs[snapshot.topic] = backlog
        return backlog

    def states(self) -> tuple[JobState, ...]:
        """Return the state of each job on each topic that was taken in."""
        return job_states(self.outcomes, self.backlogs, self._created_ms, self._now_ms)

    def running(self) -> tuple[Running, ...]:
        """Return the runs that have not ended."""
        return tuple(
            Running(job, claim.host, claim.process, claim.since_ms, claim.topics, claim.is_valid_at(self._now_ms))
            for job in MONITORED_JOBS
            for claim in read_job_leases(self._root, job)
        )


def has_jobs(root: Root) -> bool:
    """Return True unless the root is a backup that is read where it is: no job visits one."""
    return not isinstance(root.store, BackupStore)


def look_at_root(root: Root, settings: Settings, topics: Sequence[str] = ()) -> JobLook:
    """Look at these topics (none: all). `NotFound` if one that is named does not exist."""
    look = JobLook(root, settings.of_root(root))
    for name in topics:
        root.topic(name)
    for name in topics or sorted(topic_names(root.store)):
        try:
            log = root.engine.log(name)
            if log.refresh().topic_state.exists:
                look.add(log.snapshot(refresh=False))
        except SparklogError as error:
            look.failures.append(error)
    return look


def _with_defaults(settings: Settings, outcomes: JobHistory, job: str) -> Settings:
    runs = [run for run in outcomes.runs if run.job == job]
    return replace(settings, defaults=runs[-1].defaults) if runs and not settings.defaults else settings
