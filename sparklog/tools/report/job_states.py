"""Read the status of the jobs of a root: recorded runs, backlogs and active runs.

Reading the status requires two listings and two requests for the recorded runs, and one request for the root. If active
runs are requested, the same number of requests is required to read the leases of each job. Slice tables are taken from
snapshots that the caller has read.
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
from sparklog.retention.backlog import expiry_backlog


@dataclass(frozen=True, slots=True)
class Running:
    """A run that has a lease. If `alive` is False, the lease has expired because the run was killed or suspended."""

    job: str
    host: str
    process: int
    since_ms: int
    topics: tuple[str, ...]
    alive: bool


class JobStatus:
    """The status of the jobs of a root as of `settings.now_ms`.

    If a topic does not set a config, the default in `settings` is used. If `settings` does not contain defaults, the
    defaults of the last run of each job are used, which may have been read from a properties file. Raises
    `SparklogError` if the recorded runs cannot be read.

    Attributes:
        failures: the errors of topics that cannot be read.
    """

    def __init__(self, root: Root, settings: Settings) -> None:
        self.history: JobHistory = read_job_history(root)
        self.backlogs: dict[str, Backlog] = {}
        self.failures: list[SparklogError] = []
        self._root = root
        self._created_ms = root_created_ms(root.store)
        self._now_ms = settings.now_ms
        last_defaults = {run.job: run.defaults for run in self.history.runs}
        self._settings = {
            job: replace(settings, defaults=settings.defaults or last_defaults.get(job, settings.defaults))
            for job in MONITORED_JOBS
        }

    def add(self, snapshot: Snapshot) -> Backlog:
        """Add the backlog of a topic and return it."""
        compact, retain = (self._settings[job] for job in MONITORED_JOBS)
        backlog, expiring = compaction_backlog(snapshot, compact), expiry_backlog(snapshot, retain)
        due = (*backlog.due, *expiring.due)
        backlog = replace(backlog, oldest_expired_ms=expiring.oldest_expired_ms, due=due, future=expiring.future)
        self.backlogs[snapshot.topic] = backlog
        return backlog

    def states(self) -> tuple[JobState, ...]:
        """Return the state of each job on each added topic."""
        return job_states(self.history, self.backlogs, self._created_ms, self._now_ms)

    def running(self) -> tuple[Running, ...]:
        """Return the active runs."""
        return tuple(
            Running(job, claim.host, claim.process, claim.since_ms, claim.topics, claim.is_valid_at(self._now_ms))
            for job in MONITORED_JOBS
            for claim in read_job_leases(self._root, job)
        )


def has_jobs(root: Root) -> bool:
    """Return False for a backup that is read in place, because jobs do not run on backups."""
    return not isinstance(root.store, BackupStore)


def read_job_status(root: Root, settings: Settings, topics: Sequence[str] = ()) -> JobStatus:
    """Return the job status of these topics, or of all topics if `topics` is empty.

    Raises `NotFound` if a topic does not exist.
    """
    status = JobStatus(root, settings.of_root(root))
    for name in topics:
        root.topic(name)
    for name in topics or sorted(topic_names(root.store)):
        try:
            log = root.engine.log(name)
            if log.refresh().topic_state.exists:
                status.add(log.snapshot(refresh=False))
        except SparklogError as error:
            status.failures.append(error)
    return status
