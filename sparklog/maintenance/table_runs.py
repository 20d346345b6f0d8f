"""Records of runs that copy a topic to a table, which are stored in the root.

The journal `_tables/<topic>/_log` contains the latest runs of the topic. A run writes an entry at its end. A run with
`--follow` also writes an entry at its first copy, and then every ten minutes, so a run that was killed can be detected.
The copy does not depend on these records: if an entry cannot be written, the run logs one warning and continues.

The runs are not part of the job history (`sparklog.maintenance.job_history`), because releases up to 0.14 report an
entry with another job as corrupt. These releases do not read the directory `_tables`.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sparklog.errors import SparklogError, Unavailable
from sparklog.log.journal.chain import EntryChain, ids_of
from sparklog.log.journal.documents import (
    BOOLEAN,
    TEXT,
    Document,
    Member,
    StoredDocument,
    members,
    objects_of,
    whole,
)
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, Collected, EntryKind, StateEntry, collect_entries, collect_log
from sparklog.log.journal.names import TABLES_FOLDER, id_folder
from sparklog.log.topic.backup_manifest import BackupStore
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import MAX_EQUAL_RUNS, MAX_FAILURE_LENGTH, MAX_RUNS, ROW_RETENTION_MS
from sparklog.output import log

UPDATE_MS = 600_000
"""The time between two entries of a run with `--follow`."""
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """The number of records that a run has copied or skipped, and its number of commits."""

    records: int = 0
    bad_records: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True)
class TableRun:
    """The record of a run.

    Attributes:
        job: The name of the command.
        table: The name or location of the table.
        run: A random id.
        host: The host of the run.
        process: The process id of the run.
        start_ms: The start of the run, according to the store's clock.
        took_ms: The duration of the run up to this record.
        succeeded_ms: The time of the last success of a run to this table, or -1. This is the start of the run. For a
            run with `--follow`, it is the time of its latest record.
        has_ended: False if the run was active when the record was written.
        failure: The error that ended the run early.
        copied: The numbers of records and commits of the run.
    """

    job: str
    table: str
    run: str
    host: str
    process: int
    start_ms: int
    took_ms: int
    succeeded_ms: int
    has_ended: bool
    failure: str = ""
    copied: CopiedRecords = field(default_factory=CopiedRecords)

    def state_at(self, now_ms: int) -> str:
        """Return `ok`, `failed`, `interrupted`, `running`, or `killed` if a run has ended without a record."""
        if not self.has_ended:
            return "running" if now_ms < self.start_ms + self.took_ms + 3 * UPDATE_MS else "killed"
        if self.failure:
            return INTERRUPTED if self.failure == INTERRUPTED else "failed"
        return "ok"


@dataclass(frozen=True, slots=True)
class TableRuns(StateEntry):
    """The runs of a topic, ordered by their latest records, oldest first."""

    runs: tuple[TableRun, ...] = ()

    def latest(self) -> list[TableRun]:
        """Return the latest run of each job to each table, ordered by job and table."""
        latest = {(run.job, run.table): run for run in self.runs}
        return [latest[key] for key in sorted(latest)]

    def after(self, run: TableRun) -> TableRuns:
        """Return the runs with a new record of a run."""
        others = [
            other for other in self.runs if other.run != run.run and run.start_ms - other.start_ms < ROW_RETENTION_MS
        ]
        if run.succeeded_ms < 0:
            successes = (other.succeeded_ms for other in others if (other.job, other.table) == (run.job, run.table))
            run = replace(run, succeeded_ms=max(successes, default=-1))
        runs: list[TableRun] = []
        equal_runs: Counter[tuple[str, str]] = Counter()
        for other in [run, *reversed(others)]:
            equal_runs[other.job, other.table] += 1
            if equal_runs[other.job, other.table] <= MAX_EQUAL_RUNS and len(runs) < MAX_RUNS:
                runs.append(other)
        return replace(self, runs=tuple(reversed(runs)))


COPIED_JSON = Document(CopiedRecords, *members(whole(0), "records", "badRecords", "commits"))
TABLE_RUN_JSON = Document(
    TableRun,
    *members(TEXT, "job", "table", "run", "host"),
    *members(whole(0), "process", "startMs", "tookMs"),
    Member("succeededMs", whole(-1)),
    Member("hasEnded", BOOLEAN),
    Member("failure", TEXT),
    inline={"copied": COPIED_JSON},
)
TABLE_RUNS_JSON = StoredDocument("entry", TableRuns, *ENTRY_MEMBERS, Member("runs", objects_of(TABLE_RUN_JSON)))
TABLE_RUNS = EntryKind(
    folder=TABLES_FOLDER,
    owner="table runs of topic",
    what="table runs",
    noun="table run",
    empty=TableRuns,
    table=TABLE_RUNS_JSON,
    per_checkpoint=8,
    old_entry="table run record",
)


def read_table_runs(root: Root, topics: Sequence[str], failures: list[SparklogError]) -> dict[str, TableRuns]:
    """Return the recorded runs of each topic that has any. Errors are added to `failures`."""
    folders = set(root.store.list_folders(f"{TABLES_FOLDER}/"))
    runs = {}
    for topic in topics:
        if id_folder(topic) in folders:
            try:
                runs[topic] = EntryChain(root.store, TABLE_RUNS, topic, root.env).latest()
            except SparklogError as error:
                failures.append(error)
    return runs


def collect_table_runs(root: Root, *, keep_ms: int, now_ms: int, dry_run: bool) -> Collected:
    """Delete old entries, and the journals of topics that were deleted a week ago or earlier."""
    collected = Collected()

    def collect(topic: str) -> None:
        entries = root.engine.entries(TABLE_RUNS, topic)
        if root.engine.log(topic).refresh().topic_state.exists:
            collected.add(collect_entries(entries, now_ms, keep_ms=keep_ms, dry_run=dry_run))
        else:
            collected.add(collect_log(entries, now_ms, dry_run=dry_run))

    collected.collect_each(ids_of(root.store, TABLE_RUNS, collected.failures), collect)
    return collected


class TableRunRecorder:
    """A context manager that records a run in the root when the block ends, even if it raises an error.

    Args:
        root: The root of the topic. None for a Kafka log directory, which has no records of runs.
        topic: The name of the topic.
        job: The name of the command.
        table: The name or location of the table.
        copied: Returns the number of records and commits of the run up to now.
    """

    def __init__(
        self, root: Root | None, topic: str, job: str, table: str, copied: Callable[[], CopiedRecords]
    ) -> None:
        self._root = None if root is None or isinstance(root.store, BackupStore) else root
        self._topic = topic
        self._job = job
        self._table = table
        self._copied = copied
        self._run = ""
        self._start_ms = self._started_ms = 0
        self._updated_ms: int | None = None
        self._has_warned = False

    def __enter__(self) -> TableRunRecorder:
        if self._root is not None:
            self._run, self._started_ms = self._root.env.new_id(), self._root.env.boot_ms()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, SparklogError):
            failure = f"{error} [{error.code}]"
        else:
            failure = INTERRUPTED if kind is KeyboardInterrupt else "" if kind is None else kind.__name__
        self._record(has_ended=True, failure=failure)

    def update(self) -> None:
        """Record that the run is active, unless this was recorded less than ten minutes ago."""
        if self._root is None:
            return
        now_ms = self._root.env.boot_ms()
        if self._updated_ms is None or now_ms - self._updated_ms >= UPDATE_MS:
            self._updated_ms = now_ms
            self._record(has_ended=False, failure="")

    def _record(self, *, has_ended: bool, failure: str) -> None:
        root = self._root
        if root is None:
            return
        try:
            if not root.store.writable:
                raise Unavailable("the root is read-only", is_denied=True)
            took_ms = max(0, root.env.boot_ms() - self._started_ms)
            now_ms = root.engine.to_store_clock(root.env.wall_ms())
            start_ms = now_ms - took_ms
            run = TableRun(
                self._job,
                self._table,
                self._run,
                platform.node(),
                os.getpid(),
                start_ms,
                took_ms,
                -1 if failure else start_ms if has_ended else now_ms,
                has_ended,
                failure[:MAX_FAILURE_LENGTH],
                self._copied(),
            )
            root.engine.entries(TABLE_RUNS, self._topic).write(lambda base: base.after(run))
        except SparklogError as error:
            if not self._has_warned:
                log(f"{self._job}: failed to record this run: {error} [{error.code}]")
            self._has_warned = True
            if isinstance(error, Unavailable) and error.is_denied:
                self._root = None
