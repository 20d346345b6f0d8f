"""Vacuum one topic, existing or deleted: raise the retention floor, then delete unreferenced files.

The order of these steps makes it safe with concurrent writers and wrong clocks:

1. List the log, choose the floor, list the data files from below it, and find out which of them versions refer to.
2. If anything can be deleted, commit the floor, and drop expired leases and idle writers. From here on, no writer can
   commit an unreferenced file from below the floor.
3. Read the commits made since step 1, and keep the files that they refer to.
4. Delete data files, then checkpoint headers, their tables, and commits, oldest first. After a crash, readers start
   above the gap, and the next run deletes the rest. A commit with inline records is also a data file: it is kept
   while a version refers to it.
5. Delete temporary files of writers that died long ago.
6. Write a checkpoint if commits with unneeded inline records can only be deleted after one. The floor is committed for
   it even if nothing else changed. A topic with few commits writes few checkpoints by itself, and a deleted one none.

A wrong clock can cause readers to plan twice and writers to upload twice, but never loses a record. Two vacuums of a
topic may run concurrently.
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
from sparklog.log.state.commit import CREATE, MAINTAIN
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
"""Objects per work item: deleting them takes seconds on a network file system, far more than starting a task."""


@dataclass(frozen=True)
class DeleteWork:
    """An idempotent work item that deletes keys, in order if the store cannot delete in bulk."""

    store: Store
    topic: str
    topic_id: str
    keys: tuple[str, ...]
    op: ClassVar[str] = MAINTAIN
    partitions: ClassVar[tuple[int, ...]] = ()

    @property
    def title(self) -> str:
        return f"vacuum {self.topic}"

    @property
    def nbytes(self) -> int:
        """The number of keys, as a measure of progress; nothing is read."""
        return len(self.keys)

    @property
    def file_count(self) -> int:
        return len(self.keys)

    def run(self, progress: Progress = silent) -> WorkResult:
        """Delete the keys. `Unavailable` at the first one that the store rejects; another run deletes the rest."""
        self.store.delete_many(self.keys)
        return WorkResult((), (), ())


IDLE_MS = 90 * 24 * 3_600_000
"""A writer without a commit for this long is removed from the idempotency registry."""
IDLE_KAFKA_MS = 24 * 3_600_000
"""The same for Kafka producers, which get another id at each start: Kafka's default `producer.id.expiration.ms`."""
MAX_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class UpkeepIntent:
    """Raise the retention floor and drop expired leases and idle writers as of `now_ms`.

    Both are determined again for each state that the commit is based on.
    """

    now_ms: int
    floor: int | None = None
    needed: frozenset[str] = frozenset()
    """Leases of clones that stay in effect although they have expired."""
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        floor = self.floor if self.floor is not None and self.floor > state.floor else None
        leases = dict.fromkeys(expired_leases(state, self.now_ms, self.needed))
        expired = idle_writers(state, self.now_ms)
        if floor is None and not leases and not expired:
            return Nothing("nothing has expired", state.version)
        return Draft(MAINTAIN, holds=leases, floor=floor, expired=expired)


def idle_writers(state: TopicState, now_ms: int) -> dict[str, int]:
    """Return the writers idle for 90 days (Kafka producers: a day), with the versions of their registry entries."""
    return {
        name: entry.version
        for name, entry in state.registry.items()
        if now_ms - entry.time_ms > (IDLE_KAFKA_MS if name.startswith(KAFKA_WRITER) else IDLE_MS)
    }


@dataclass(frozen=True, slots=True)
class Removed:
    """Objects of one kind that were deleted for one reason; sizes in bytes."""

    kind: str
    reason: str
    objects: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The result of a vacuum of one topic, or with `dry_run` what it would do. The JSON output has these names."""

    topic: str
    dry_run: bool
    floor_before: int
    floor: int
    removed: tuple[Removed, ...] = ()
    held: int = 0  # data files below the retention floor that only a lease keeps
    foreign: int = 0  # objects in the data directories with other names than sparklog's; they are kept
    ended_holds: tuple[str, ...] = ()
    idle_writers: tuple[str, ...] = ()
    expired_groups: tuple[str, ...] = ()  # groups with expired offsets, or offsets of deleted topics; only for the root
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
    """A vacuum of one topic: the listed objects, and the files that must be kept."""

    topic: Topic
    settings: Settings
    store_ms: int
    history: History
    state: TopicState
    delay_ms: int
    floor: int
    needed: frozenset[str] = frozenset()
    """Leases of clones that still refer to files of this topic."""
    files: list[plan.ListedFile] = field(default_factory=list)
    """Data files whose writers had read a version below the floor."""
    foreign: int = 0
    reads_paths: bool = False
    """False if nothing that a version may refer to can be deleted, so that its paths need not be read."""
    referenced_paths: set[str] = field(default_factory=set)
    """Paths to which the version of the floor or a later one refers."""
    recent_paths: set[str] = field(default_factory=set)
    """Paths to which some version since the last floor refers; they explain deletions."""
    created: int = 0
    """The version that created the topic."""
    leased_paths: dict[int, set[str]] = field(default_factory=dict)
    """Paths to which leased versions below the floor refer, by version."""

    @property
    def cautious_now_ms(self) -> int:
        """The time for decisions that a wrong clock could make too early; never later than the store's clock."""
        return min(self.settings.now_ms, self.store_ms)

    @property
    def commit_limit_ms(self) -> int:
        """Commits younger than this are kept, by the store's clock alone."""
        return self.store_ms - plan.commit_retention_ms(self.delay_ms)

    @property
    def required_paths(self) -> set[str]:
        """Return the paths of all data files that are kept."""
        return self.referenced_paths.union(*self.leased_paths.values())

    def leased_versions(self, state: TopicState) -> list[int]:
        return sorted(v for v in leased_versions(state, self.cautious_now_ms, self.needed) if v < self.floor)

    def read_leased_paths(self, state: TopicState) -> None:
        """Read the paths of leased versions; `NotFound` or `Corrupt` if a version cannot be rebuilt."""
        for version in self.leased_versions(state):
            if version not in self.leased_paths:
                self.leased_paths[version] = self.own_paths(self.history.at(version).slices.paths())

    def own_paths(self, paths: set[str]) -> set[str]:
        return plan.own_paths(self.topic.name, paths)


def vacuum(topic: Topic, settings: Settings, *, runner: Runner | None = None, dry_run: bool = False) -> VacuumReport:
    """Vacuum a topic, which may be deleted; with `dry_run` nothing is changed.

    `settings.now_ms` determines the age of versions; the age of leases, registry entries, commits, checkpoints and
    temporary files is by the store's clock. Errors are raised before anything is deleted: `Corrupt` or `NotFound` if an
    older version cannot be rebuilt, `Unavailable` (also if a commit stays hidden for 90 s), and `Conflict`. Deletions
    that the store rejects are reported as failures.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        # Another vacuum may have deleted listed files, so list again; this one has not deleted anything yet.
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
            phases = _plan_again(run, after)
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
        ended_holds=tuple(expired_leases(state, run.cautious_now_ms, run.needed)),
        idle_writers=tuple(idle_writers(state, run.cautious_now_ms)),
        failures=(*temporary.failures, *failures),
    )


def _plan(run: _Vacuum) -> tuple[list[list[DeletionCandidate]], bool]:
    """Return the deletion candidates in phases, and whether old commits with records need another checkpoint first."""
    log_objects, pending = _choose_log_objects(run, run.state), _pending_commits(run, run.state)
    # If a topic was deleted and created again, its old commits may have records whatever the features of the new one.
    run.reads_paths = bool(run.files or any(log_objects[-1:]) or pending)
    if run.reads_paths:
        _read_paths(run)
        run.read_leased_paths(run.state)
    unreferenced_commits = (version for version in pending if commit_path(version) not in run.required_paths)
    needs_checkpoint = any(run.history.commit(version).inline for version in unreferenced_commits)
    return _phases(run, run.state, log_objects), needs_checkpoint


def _plan_again(run: _Vacuum, after: TopicState) -> list[list[DeletionCandidate]]:
    """Return the deletion candidates in phases after the floor was committed, without files of newer commits."""
    if run.reads_paths:
        _read_new_paths(run, after)
        run.read_leased_paths(after)
    return _phases(run, after, _choose_log_objects(run, after))


def _list_log(topic: Topic, settings: Settings, dry_run: bool) -> _Vacuum:
    """List the log, choose the floor, and list the data files from below it."""
    store_ms = store_clock_ms(topic.store, topic.root.env, dry_run=dry_run)
    history = History(topic.store, topic.name, topic.root.env)
    state = topic.log.refresh().topic_state
    delay_ms = delete_delay_ms(history, state, settings)
    floor = plan.floor_version(history.commits, state.version, settings.now_ms, delay_ms)
    run = _Vacuum(topic, settings, store_ms, history, state, delay_ms, floor)
    unsettled = frozenset[str]() if dry_run else plan.abandon_clones(topic, state, run.cautious_now_ms)
    run.needed = unsettled | needed_by_clones(topic, state, settings, run.cautious_now_ms)
    run.files, run.foreign = _list_data_files(topic.store, topic.name, floor)
    return run


def _phases(
    run: _Vacuum, state: TopicState, log_objects: list[list[DeletionCandidate]]
) -> list[list[DeletionCandidate]]:
    """Return the deletion candidates in order of deletion: data files first, commits last."""
    kept, reasons = run.required_paths, plan.Reasons(run.floor, state.deleted, run.created, run.recent_paths)
    # Versions may refer to records in commits, so no commit is deleted unless the paths were read.
    commits = [plan.without_records(run.topic.name, old, kept) if run.reads_paths else [] for old in log_objects[-1:]]
    return [plan.unreferenced_files(run.files, kept, reasons), *log_objects[:-1], *commits]


def _pending_commits(run: _Vacuum, state: TopicState) -> list[int]:
    """Return the old commits that may have inline records and can be deleted only after two more checkpoints."""
    if state.exists and INLINE_RECORDS not in state.read_features:
        return []
    latest = [version for version, _ in zip(run.history.checkpoints_below(state.version), range(2), strict=False)]
    oldest = latest[1] if len(latest) == 2 else 0
    commits = run.history.commits
    pending = (commits.version >= oldest) & (commits.version < run.floor) & (commits.modified_ms < run.commit_limit_ms)
    return [int(version) for version in commits.version[pending]]


def unreferenced(topic: Topic) -> tuple[int, int]:
    """Return the number and bytes of data files that neither the latest version nor a leased version refers to."""
    snapshot = topic.log.snapshot()
    files, _ = _list_data_files(topic.store, topic.name, snapshot.version)
    kept = plan.own_paths(topic.name, snapshot.slices.paths())
    versions = {lease.version for lease in snapshot.state.holds.values()}
    if versions:
        history = History(topic.store, topic.name, topic.root.env)
        kept |= plan.own_paths(topic.name, set().union(*(history.at(version).slices.paths() for version in versions)))
    sizes = [file.size for file in files if file.path not in kept]
    return len(sizes), sum(sizes)


def _list_data_files(store: Store, topic: str, floor: int) -> tuple[list[plan.ListedFile], int]:
    """List the data files from below the floor, and count the objects with other names than sparklog's."""
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
                # Names start with the read version, so all further files are younger.
                break
    return files, foreign


def _read_paths(run: _Vacuum) -> None:
    """Read the paths to which versions refer, from the last floor on."""
    history, floor, start = run.history, run.floor, min(run.state.floor, run.floor)
    if history.base_of(start) is None or not history.commits.has(start + 1, floor):
        # The version of the last floor is gone, so start at the new floor; reasons for deletion are less exact.
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
    _check_same(run, last, run.state)


def _read_new_paths(run: _Vacuum, after: TopicState) -> None:
    """Read the paths to which the commits since the listing of the log refer."""
    last = run.state
    for last, commit in run.history.walk(run.state, after.version):  # noqa: B007
        run.referenced_paths |= run.own_paths({file.path for file in commit.files})
    _check_same(run, last, after)


def _check_same(run: _Vacuum, walked: TopicState, expected: TopicState) -> None:
    """Raise `Corrupt` unless replaying checkpoints and commits leads to the state that readers see."""
    if walked.version != expected.version or walked.crc != expected.crc:
        raise Corrupt(
            f"version {walked.version} of topic '{run.topic.name}' differs from the replay of its checkpoints and "
            "commits; nothing was deleted: run sparklog verify",
            file=commit_key(run.topic.name, walked.version),
        )


def _choose_log_objects(run: _Vacuum, state: TopicState) -> list[list[DeletionCandidate]]:
    """Choose checkpoint headers, their tables (deleted later, because readers of a header need them) and commits."""
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
    """Choose slice tables without a header, or whose header is deleted.

    Only those below the latest valid checkpoint are chosen: a writer that stalled between table and header may still
    write the header, and the latest checkpoint must have its table.
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
    """Delete phase by phase in chunks, with the runner if there are many; return deleted objects and failures."""
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
    """Delete temporary files last written before `limit_ms` below `folder` (empty: directly in the root alone)."""
    deleted: list[DeletionCandidate] = []
    failures: list[SparklogError] = []
    for info in list(store.temporary_files(folder, deep=bool(folder))):
        if info.modified_ms >= limit_ms:
            continue
        try:
            if not dry_run:
                store.delete_temporary(info.key)
            deleted.append(
                DeletionCandidate(info.key, plan.TEMPORARY, info.size, "its writer has stopped writing to it")
            )
        except SparklogError as error:
            failures.append(error)
    return VacuumReport(name, dry_run, 0, 0, _summed(deleted), failures=tuple(failures))


def _summed(candidates: Sequence[DeletionCandidate]) -> tuple[Removed, ...]:
    sizes: dict[tuple[str, str], list[int]] = {}
    for candidate in candidates:
        sizes.setdefault((candidate.kind, candidate.reason), []).append(candidate.size)
    ordered = sorted(sizes.items(), key=lambda item: (plan.KINDS.index(item[0][0]), item[0][1]))
    return tuple(Removed(kind, reason, len(objects), sum(objects)) for (kind, reason), objects in ordered)
