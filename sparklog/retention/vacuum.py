"""Vacuum a topic, which may be deleted: raise the retention floor, and then delete unreferenced files.

The order of the steps makes a vacuum safe with concurrent writers and wrong clocks:

1. List the log, choose the floor, list the data files from below the floor, and determine which files versions
   reference.
2. If files can be deleted, commit the floor, and remove expired leases and idle writers. From now on, writers cannot
   commit unreferenced files from below the floor.
3. Read the commits that were made after step 1, and keep the files that they reference.
4. Delete data files, then checkpoint documents, their tables, and commits, the oldest commits first. After a crash,
   readers start above the gap, and the next run deletes the remaining objects. A commit with inline records is also a
   data file, which is kept for as long as a version references it.
5. Delete temporary files that have not been written for a long time.
6. Write a checkpoint if commits with unreferenced inline records can only be deleted after another checkpoint. In this
   case, the floor is committed even if nothing else has changed. Without this step, topics with few commits would
   rarely have a new checkpoint, and deleted topics never.

A wrong clock can cause readers to plan again and writers to upload again, but never causes the loss of a record. Two
vacuums of a topic may run concurrently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from sparklog.errors import Corrupt, NotFound, SparklogError
from sparklog.log.journal.documents import INLINE_RECORDS
from sparklog.log.journal.names import APPEND_FOLDER, SEALED_FOLDER, commit_key, commit_path, topic_folder
from sparklog.log.state.commit import CREATE, MAINTAIN, Op
from sparklog.log.state.commit_intents import Draft, Nothing
from sparklog.log.state.configs import MIN_DELETE_DELAY_MS
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import KAFKA_WRITER
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.report import Failure
from sparklog.maintenance.work_items import InProcess, Progress, Runner, Settings, WorkResult, silent, store_clock_ms
from sparklog.retention import vacuum_plan as plan
from sparklog.retention.vacuum_plan import (
    DeletionCandidate,
    delete_delay_ms,
    expired_leases,
    leased_versions,
    needed_by_clones,
)
from sparklog.storage.store import Store

CHUNK = 1000
"""Maximum number of objects per work item. Deleting them takes seconds on a network file system, longer than a task
start.
"""


@dataclass(frozen=True)
class DeleteWork:
    """An idempotent work item that deletes keys. If the store cannot delete in bulk, the keys are deleted in order."""

    store: Store
    topic: str
    topic_id: str
    keys: tuple[str, ...]
    op: ClassVar[Op] = MAINTAIN
    partitions: ClassVar[tuple[int, ...]] = ()

    @property
    def title(self) -> str:
        return f"vacuum {self.topic}"

    @property
    def nbytes(self) -> int:
        """The number of keys, which is used to report progress. No bytes are read."""
        return len(self.keys)

    @property
    def file_count(self) -> int:
        return len(self.keys)

    def run(self, progress: Progress = silent) -> WorkResult:
        """Delete the keys. Raises `Unavailable` at the first key that the store rejects."""
        self.store.delete_many(self.keys)
        return WorkResult((), (), ())


IDLE_MS = 90 * 24 * 3_600_000
"""The time in ms after which a writer that has not committed is removed from the idempotency registry."""
IDLE_KAFKA_MS = 24 * 3_600_000
"""The same limit for Kafka producers, which get a new id at each start. This is the default of Kafka's
`producer.id.expiration.ms`.
"""
MAX_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class UpkeepIntent:
    """Raise the retention floor and remove leases and writers that have expired as of `now_ms`.

    Expired leases and idle writers are determined again for each state that the commit is based on.
    """

    now_ms: int
    floor: int | None = None
    needed: frozenset[str] = frozenset()
    """Leases of clones that remain in effect although they have expired."""
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        floor = self.floor if self.floor is not None and self.floor > state.floor else None
        leases = dict.fromkeys(expired_leases(state, self.now_ms, self.needed))
        expired = idle_writers(state, self.now_ms)
        if floor is None and not leases and not expired:
            return Nothing("nothing has expired", state.version)
        return Draft(MAINTAIN, leases=leases, floor=floor, expired=expired)


def idle_writers(state: TopicState, now_ms: int) -> dict[str, int]:
    """Return the writers that have not committed for 90 days, or for one day if they are Kafka producers, with the
    versions of their registry entries.
    """
    return {
        name: entry.version
        for name, entry in state.registry.items()
        if now_ms - entry.time_ms > (IDLE_KAFKA_MS if name.startswith(KAFKA_WRITER) else IDLE_MS)
    }


@dataclass(frozen=True, slots=True)
class Removed:
    """The number and total size of the deleted objects of one kind that were deleted for the same reason. Sizes are in
    bytes.
    """

    kind: str
    reason: str
    objects: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The result of a vacuum of a topic, or of a dry run. The field names are part of the JSON output."""

    topic: str
    dry_run: bool
    floor_before: int
    floor: int
    removed: tuple[Removed, ...] = ()
    held: int = 0  # number of data files below the retention floor that are only kept because of leases
    foreign: int = 0  # number of objects in the data directories with unrecognized names, which are kept
    ended_leases: tuple[str, ...] = ()
    idle_writers: tuple[str, ...] = ()
    # groups with expired offsets or offsets of deleted topics; only set for the root
    expired_groups: tuple[str, ...] = ()
    failures: tuple[SparklogError, ...] = ()

    @property
    def objects(self) -> int:
        return sum(item.objects for item in self.removed)

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.removed)

    def failed(self) -> tuple[Failure, ...]:
        return tuple(Failure.of(self.topic, (), f"vacuum {self.topic}", error) for error in self.failures)


@dataclass
class _Vacuum:
    """The state of a vacuum: the listed objects, and the files that must be kept."""

    topic: Topic
    settings: Settings
    store_ms: int
    history: History
    state: TopicState
    delay_ms: int
    floor: int
    needed: frozenset[str] = frozenset()
    """Leases of clones that still reference files of this topic."""
    files: list[plan.ListedFile] = field(default_factory=list)
    """Data files whose writers read a version below the floor."""
    foreign: int = 0
    reads_paths: bool = False
    """True if objects that a version may reference can be deleted. If False, the paths in versions need not be read."""
    referenced_paths: set[str] = field(default_factory=set)
    """Paths that the version at the floor or a later version references."""
    recent_paths: set[str] = field(default_factory=set)
    """Paths that the version at the last floor or a later version references. They are used to determine the reasons of
    deletions.
    """
    created: int = 0
    """The version that created the topic."""
    leased_paths: dict[int, set[str]] = field(default_factory=dict)
    """Paths that leased versions below the floor reference, by version."""

    @property
    def cautious_now_ms(self) -> int:
        """The time for decisions that must not be made too early because of a wrong clock; at most the store's time."""
        return min(self.settings.now_ms, self.store_ms)

    @property
    def commit_limit_ms(self) -> int:
        """Commits younger than this time, according to the store's clock, are kept."""
        return self.store_ms - plan.commit_retention_ms(self.delay_ms)

    @property
    def required_paths(self) -> set[str]:
        """The paths of all data files that must be kept."""
        return self.referenced_paths.union(*self.leased_paths.values())

    def leased_versions(self, state: TopicState) -> list[int]:
        return sorted(v for v in leased_versions(state, self.cautious_now_ms, self.needed) if v < self.floor)

    def read_leased_paths(self, state: TopicState) -> None:
        """Read the paths of leased versions. Raises `NotFound` or `Corrupt` if a version cannot be rebuilt."""
        for version in self.leased_versions(state):
            if version not in self.leased_paths:
                self.leased_paths[version] = self.own_paths(self.history.at(version).slices.paths())

    def own_paths(self, paths: set[str]) -> set[str]:
        return plan.own_paths(self.topic.name, paths)


def vacuum(topic: Topic, settings: Settings, *, runner: Runner | None = None, dry_run: bool = False) -> VacuumReport:
    """Vacuum a topic, which may be deleted. If `dry_run` is True, nothing is changed.

    The age of versions is computed from `settings.now_ms`. The age of leases, registry entries, commits, checkpoints
    and temporary files is computed from the store's clock. The following errors are raised before any object is
    deleted: `Corrupt` or `NotFound` if an older version cannot be rebuilt, `Unavailable`, for example if a commit
    remains hidden for 90 s, and `Conflict`. Deletions that the store rejects are reported as failures.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        # Another vacuum may have deleted listed files, so list again. This vacuum has not deleted any files yet.
        with suppress(NotFound):
            return _vacuum(topic, settings, runner or InProcess(), dry_run)
    return _vacuum(topic, settings, runner or InProcess(), dry_run)


def _vacuum(topic: Topic, settings: Settings, runner: Runner, dry_run: bool) -> VacuumReport:
    run = _list_log(topic, settings, dry_run)
    state = run.state
    phases, needs_checkpoint = _plan(run)
    floor = max(state.floor, run.floor) if phases[0] or phases[-1] or needs_checkpoint else state.floor
    if not dry_run:
        after = topic.log.commit(UpkeepIntent(run.cautious_now_ms, floor, run.needed), state).state
        floor = after.floor
        if after.version != state.version:
            phases = _plan_after_floor(run, after)
    limit_ms, folder = run.store_ms - max(run.delay_ms, MIN_DELETE_DELAY_MS), f"{topic_folder(topic.name)}/"
    temporary = remove_temporaries(topic.store, topic.name, limit_ms, folder=folder, dry_run=dry_run)
    deleted, failures = [candidate for candidates in phases for candidate in candidates], list[SparklogError]()
    if not dry_run:
        deleted, failures = _delete(run, phases, runner)
        if needs_checkpoint and after.version not in run.history.checkpoints:
            topic.log.write_checkpoint()
    only_leased = run.required_paths - run.referenced_paths
    return VacuumReport(
        topic.name,
        dry_run,
        state.floor,
        floor,
        (*_summed(deleted), *temporary.removed),
        held=sum(file.path in only_leased for file in run.files),
        foreign=run.foreign,
        ended_leases=tuple(expired_leases(state, run.cautious_now_ms, run.needed)),
        idle_writers=tuple(idle_writers(state, run.cautious_now_ms)),
        failures=(*temporary.failures, *failures),
    )


def _plan(run: _Vacuum) -> tuple[list[list[DeletionCandidate]], bool]:
    """Return the deletion candidates in phases, and True if old commits with records can only be deleted after a
    checkpoint.
    """
    log_objects, pending = _choose_log_objects(run, run.state), _pending_commits(run, run.state)
    # If the topic was deleted and recreated, its old commits may have inline records even if the new topic has
    # none.
    run.reads_paths = bool(run.files or any(log_objects[-1:]) or pending)
    if run.reads_paths:
        _read_paths(run)
        run.read_leased_paths(run.state)
    unreferenced_commits = (version for version in pending if commit_path(version) not in run.required_paths)
    needs_checkpoint = any(run.history.commit(version).inline for version in unreferenced_commits)
    return _phases(run, run.state, log_objects), needs_checkpoint


def _plan_after_floor(run: _Vacuum, after: TopicState) -> list[list[DeletionCandidate]]:
    """Return the deletion candidates in phases after the floor was committed."""
    if run.reads_paths:
        _read_new_paths(run, after)
        run.read_leased_paths(after)
    return _phases(run, after, _choose_log_objects(run, after))


def _list_log(topic: Topic, settings: Settings, dry_run: bool) -> _Vacuum:
    """List the log, choose the floor, and list the data files from below the floor."""
    store_ms = store_clock_ms(topic.store, topic.root.env, dry_run=dry_run)
    history = History(topic.store, topic.name, topic.root.env)
    state = topic.log.refresh().topic_state
    delay_ms = delete_delay_ms(history, state, settings)
    floor = plan.floor_version(history.commits, state.version, settings.now_ms, delay_ms)
    run = _Vacuum(topic, settings, store_ms, history, state, delay_ms, floor)
    unabandoned = frozenset[str]() if dry_run else plan.abandon_clones(topic, state, run.cautious_now_ms)
    run.needed = unabandoned | needed_by_clones(topic, state, settings, run.cautious_now_ms)
    run.files, run.foreign = _list_data_files(topic.store, topic.name, floor)
    return run


def _phases(
    run: _Vacuum, state: TopicState, log_objects: list[list[DeletionCandidate]]
) -> list[list[DeletionCandidate]]:
    """Return the deletion candidates in order of deletion: data files first, commits last."""
    kept, reasons = run.required_paths, plan.Reasons(run.floor, state.deleted, run.created, run.recent_paths)
    # Versions may reference records in commits, so commits are deleted only if the paths that the versions reference
    # have been read.
    commits = [plan.without_records(run.topic.name, old, kept) if run.reads_paths else [] for old in log_objects[-1:]]
    return [plan.unreferenced_files(run.files, kept, reasons), *log_objects[:-1], *commits]


def _pending_commits(run: _Vacuum, state: TopicState) -> list[int]:
    """Return old commits that may have inline records and can only be deleted after two more checkpoints."""
    if state.exists and INLINE_RECORDS not in state.read_features:
        return []
    latest = [version for version, _ in zip(run.history.checkpoints_below(state.version), range(2), strict=False)]
    oldest = latest[1] if len(latest) == 2 else 0
    commits = run.history.commits
    pending = (commits.version >= oldest) & (commits.version < run.floor) & (commits.modified_ms < run.commit_limit_ms)
    return [int(version) for version in commits.version[pending]]


def unreferenced(topic: Topic) -> tuple[int, int]:
    """Return the number and the bytes of data files that neither the latest version nor a leased version references."""
    snapshot = topic.log.snapshot()
    files, _ = _list_data_files(topic.store, topic.name, snapshot.version)
    kept = plan.own_paths(topic.name, snapshot.slices.paths())
    versions = {lease.version for lease in snapshot.state.leases.values()}
    if versions:
        history = History(topic.store, topic.name, topic.root.env)
        kept |= plan.own_paths(topic.name, set().union(*(history.at(version).slices.paths() for version in versions)))
    sizes = [file.size for file in files if file.path not in kept]
    return len(sizes), sum(sizes)


def _list_data_files(store: Store, topic: str, floor: int) -> tuple[list[plan.ListedFile], int]:
    """List the data files from below the floor, and count the objects with unrecognized names."""
    files: list[plan.ListedFile] = []
    foreign = 0
    for folder in (APPEND_FOLDER, SEALED_FOLDER):
        for info in store.list(f"{topic_folder(topic)}/{folder}/"):
            file = plan.data_file(info)
            if file is None:
                foreign += 1
            elif file.read_version < floor:
                files.append(file)
            elif folder == APPEND_FOLDER:
                # Names start with the read version, so all remaining files are newer.
                break
    return files, foreign


def _read_paths(run: _Vacuum) -> None:
    """Read the paths that versions reference, starting at the last floor."""
    history, floor, start = run.history, run.floor, min(run.state.floor, run.floor)
    if history.base_of(start) is None or not history.commits.has(start + 1, floor):
        # The version at the last floor has been deleted, so start at the new floor. The reasons for deletions are less
        # exact.
        start = floor
    begin = history.at(start)
    last, table = begin.state, begin.slices
    run.recent_paths = run.own_paths(table.paths())
    run.referenced_paths = set(run.recent_paths) if start == floor else set()
    for last, commit in history.walk(begin.state, run.state.version):
        paths = run.own_paths({file.path for file in commit.files})
        run.recent_paths |= paths
        if commit.op == CREATE:
            run.created = commit.version
        if commit.version > floor:
            run.referenced_paths |= paths
            continue
        table = table.apply(commit, last)
        if commit.version == floor:
            run.referenced_paths |= run.own_paths(table.paths())
    _check_replay(run, last, run.state)


def _read_new_paths(run: _Vacuum, after: TopicState) -> None:
    """Read the paths in commits that were made after the log was listed."""
    last = run.state
    for last, commit in run.history.walk(run.state, after.version):  # noqa: B007
        run.referenced_paths |= run.own_paths({file.path for file in commit.files})
    _check_replay(run, last, after)


def _check_replay(run: _Vacuum, walked: TopicState, expected: TopicState) -> None:
    """Raise `Corrupt` if the replay of checkpoints and commits does not result in the state that readers see."""
    if walked.version != expected.version or walked.crc != expected.crc:
        raise Corrupt(
            f"version {walked.version} of topic '{run.topic.name}' differs from the replay of its checkpoints and "
            "commits; nothing was deleted; run sparklog verify",
            file=commit_key(run.topic.name, walked.version),
        )


def _choose_log_objects(run: _Vacuum, state: TopicState) -> list[list[DeletionCandidate]]:
    """Select checkpoint documents, their tables and commits. Tables are deleted after documents, whose readers need
    them.
    """
    history = run.history
    latest = [version for version, _ in zip(history.checkpoints_below(state.version), range(2), strict=False)]
    if len(latest) < 2:
        return []
    young = plan.first_young_version(history.commits, state.version, run.store_ms, run.store_ms - run.commit_limit_ms)
    limit = min(latest[1], young, run.floor)
    anchor = next(iter(history.checkpoints_below(limit)), -1)
    if not history.commits.has(anchor + 1, min(state.version, int(history.commits.version[-1]))):
        return []
    bases = {version: history.base_of(version) for version in run.leased_versions(state)}
    leased = [(-1 if base is None else base, version) for version, base in bases.items()]
    needed = {*latest, anchor, *(base for base in bases.values() if base is not None)}
    headers = plan.old_checkpoints(
        history.checkpoints, needed, anchor, now_ms=run.store_ms, limit_ms=run.commit_limit_ms
    )
    candidates = [
        DeletionCandidate(info.key, plan.CHECKPOINT, info.size, headers[version])
        for version, info in history.checkpoints.items()
        if version in headers
    ]
    commits = plan.old_commits(run.topic.name, history.commits, anchor, leased, run.commit_limit_ms)
    return [candidates, _old_tables(run, set(headers), latest[0]), commits]


def _old_tables(run: _Vacuum, headers: set[int], latest: int) -> list[DeletionCandidate]:
    """Select slice tables whose checkpoint document does not exist or is deleted.

    Tables are only selected below the latest valid checkpoint. A writer that was suspended after it wrote a table may
    still write the document, and the latest checkpoint must have its table.
    """
    history = run.history
    versions = [int(info.key.rsplit("/", 1)[-1][:20]) for info in history.tables]
    several = {version for version, count in Counter(versions).items() if count > 1}
    candidates = []
    for info, version in zip(history.tables, versions, strict=True):
        reason = ""
        if version in headers:
            reason = "slice table of a deleted checkpoint"
        elif info.modified_ms < run.store_ms - plan.HOUR_MS:
            if version not in history.checkpoints:
                is_unreferenced = version < latest
            else:
                is_unreferenced = version in several and history.table_of(version) not in (None, info.key)
            reason = "slice table without a checkpoint header" if is_unreferenced else ""
        if reason:
            candidates.append(DeletionCandidate(info.key, plan.CHECKPOINT, info.size, reason))
    return candidates


def _delete(
    run: _Vacuum, phases: Sequence[Sequence[DeletionCandidate]], runner: Runner
) -> tuple[list[DeletionCandidate], list[SparklogError]]:
    """Delete phase by phase in chunks. Return the deleted objects and the failures.

    If there are many chunks, `runner` deletes them.
    """
    deleted: list[DeletionCandidate] = []
    failures: list[SparklogError] = []
    for candidates in phases:
        by_key = {candidate.key: candidate for candidate in candidates}
        chunks = [tuple(by_key)[i : i + CHUNK] for i in range(0, len(by_key), CHUNK)]
        works = [DeleteWork(run.topic.store, run.topic.name, run.state.topic_id, keys) for keys in chunks]
        delete_runner: Runner = runner if len(works) > run.topic.store.limits.local_chunks else InProcess()
        for work, result in delete_runner.run(works):
            if isinstance(result, SparklogError):
                failures.append(result)
            elif isinstance(work, DeleteWork):
                deleted += [by_key[key] for key in work.keys]
    return deleted, failures


def remove_temporaries(
    store: Store, name: str, limit_ms: int, *, folder: str = "", dry_run: bool = False
) -> VacuumReport:
    """Delete temporary files below `folder` that were last written before `limit_ms`.

    If `folder` is empty, only files directly in the root are deleted.
    """
    deleted: list[DeletionCandidate] = []
    failures: list[SparklogError] = []
    for info in list(store.temporary_files(folder, deep=bool(folder))):
        if info.modified_ms >= limit_ms:
            continue
        try:
            if not dry_run:
                store.delete_temporary(info.key)
            deleted.append(DeletionCandidate(info.key, plan.TEMPORARY, info.size, "its writer has stopped"))
        except SparklogError as error:
            failures.append(error)
    return VacuumReport(name, dry_run, 0, 0, _summed(deleted), failures=tuple(failures))


def _summed(candidates: Sequence[DeletionCandidate]) -> tuple[Removed, ...]:
    sizes: dict[tuple[str, str], list[int]] = {}
    for candidate in candidates:
        sizes.setdefault((candidate.kind, candidate.reason), []).append(candidate.size)
    ordered = sorted(sizes.items(), key=lambda item: (plan.KINDS.index(item[0][0]), item[0][1]))
    return tuple(Removed(kind, reason, len(objects), sum(objects)) for (kind, reason), objects in ordered)
