"""Vacuum one topic, existing or deleted: raise the upload floor, then delete unreferenced files.

The order makes it safe against concurrent writers and wrong clocks:

1. List the log, choose the floor, list the data files begun below it, and find the versions that still name them.
2. Commit the floor, expired holds and idle writers, if anything is to go. From here on no writer can commit a file
   that was begun below the floor and is not named already.
3. Read the commits made meanwhile, and keep the files they name.
4. Delete data files, then heads of checkpoints, their tables, and commits from the oldest on. After a crash readers
   start above the gap, and the next run deletes the rest. A commit with records in it is a data file as well: it stays
   as long as a version names it that keeps other data files.
5. Delete temporary files of writers that died long ago.
6. Write a checkpoint, and the floor for a number of its own, if commits have records that no version needs any more and
   wait for it: a topic that gets few commits writes few checkpoints by itself, and a deleted one none.

A wrong clock costs readers a second plan and writers a second upload, never a record. Two vacuums may run at once.
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
from sparklog.log.state.configs import LEAST_DELETE_DELAY_MS
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
    ended_holds,
    held_versions,
    needed_by_clones,
)
from sparklog.storage.store import Store

CHUNK = 1000
"""Objects of one work item: some seconds on a network file system, far more than a task costs."""


@dataclass(frozen=True)
class DeleteWork:
    """A work item that deletes keys, in their order on a store that does not delete in bulk. Idempotent."""

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
        """The number of keys, for progress: nothing is read."""
        return len(self.keys)

    @property
    def file_count(self) -> int:
        return len(self.keys)

    def run(self, progress: Progress = silent) -> WorkResult:
        """Delete the keys. `Unavailable` at the first one that the store refuses; another run deletes the rest."""
        self.store.delete_many(self.keys)
        return WorkResult((), (), ())


IDLE_MS = 90 * 24 * 3_600_000
"""A writer without a commit for this long is forgotten."""
IDLE_KAFKA_MS = 24 * 3_600_000
"""The same for a producer of Kafka's: its default of `producer.id.expiration.ms`. Each start of one is another id."""
TRIES = 4


@dataclass(frozen=True, slots=True)
class UpkeepIntent:
    """Raise the upload floor and drop expired holds and idle writers as of `now_ms`, judged again on each state."""

    now_ms: int
    floor: int | None = None
    needed: frozenset[str] = frozenset()
    """Holds of clones that stay even if they have expired."""
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        floor = self.floor if self.floor is not None and self.floor > state.floor else None
        holds = dict.fromkeys(ended_holds(state, self.now_ms, self.needed))
        expired = idle_writers(state, self.now_ms)
        if floor is None and not holds and not expired:
            return Nothing("nothing has run out", state.version)
        return Draft(MAINTAIN, holds=holds, floor=floor, expired=expired)


def idle_writers(state: TopicState, now_ms: int) -> dict[str, int]:
    """Return the writers idle for 90 days, with the versions of their registry entries; of Kafka's producers a day."""
    return {
        name: entry.version
        for name, entry in state.registry.items()
        if now_ms - entry.time_ms > (IDLE_KAFKA_MS if name.startswith(KAFKA_WRITER) else IDLE_MS)
    }


@dataclass(frozen=True, slots=True)
class Removed:
    """Objects of one kind deleted for one reason; sizes in bytes."""

    kind: str
    reason: str
    objects: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The vacuum of one topic; with `dry_run` what it would do."""

    topic: str
    dry_run: bool
    floor_before: int
    floor: int
    removed: tuple[Removed, ...] = ()
    held: int = 0  # data files below the upload floor that only a hold keeps
    foreign: int = 0  # objects in the data folders whose names are not sparklog's; they stay
    ended_holds: tuple[str, ...] = ()
    idle_writers: tuple[str, ...] = ()
    expired_groups: tuple[str, ...] = ()  # with expired offsets, or offsets of deleted topics; of the root only
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
    """A vacuum of one topic: what it has listed, and the files that must stay."""

    topic: Topic
    settings: Settings
    store_ms: int
    history: History
    state: TopicState
    delay_ms: int
    floor: int
    needed: frozenset[str] = frozenset()
    """Holds of clones that still name files of this topic."""
    files: list[plan.ListedFile] = field(default_factory=list)
    """Data files begun below the floor."""
    foreign: int = 0
    reads_names: bool = False
    """False: nothing can go that a version may name."""
    named: set[str] = field(default_factory=set)
    """Paths that the version of the floor names, or a later one."""
    recently_named: set[str] = field(default_factory=set)
    """Paths that a version since the last floor names: for the reasons of deletions."""
    created: int = 0
    """Version that created the topic."""
    held: dict[int, set[str]] = field(default_factory=dict)
    """Paths that held versions below the floor name, by version."""

    @property
    def careful_ms(self) -> int:
        """The time for decisions that a wrong clock would make too early: never later than the store's clock."""
        return min(self.settings.now_ms, self.store_ms)

    @property
    def kept_since_ms(self) -> int:
        """Commits younger than this stay, by the store's clock alone."""
        return self.store_ms - plan.kept_commits_ms(self.delay_ms)

    @property
    def kept(self) -> set[str]:
        """Return the paths of all data files that stay."""
        return self.named.union(*self.held.values())

    def hold_versions(self, state: TopicState) -> list[int]:
        return sorted(v for v in held_versions(state, self.careful_ms, self.needed) if v < self.floor)

    def hold(self, state: TopicState) -> None:
        """Read the paths that held versions name; `NotFound` or `Corrupt` if a version cannot be rebuilt."""
        for version in self.hold_versions(state):
            if version not in self.held:
                self.held[version] = self.own_paths(self.history.at(version).slices.paths())

    def own_paths(self, paths: set[str]) -> set[str]:
        return plan.own_paths(self.topic.name, paths)


def vacuum(topic: Topic, settings: Settings, *, runner: Runner | None = None, dry_run: bool = False) -> VacuumReport:
    """Vacuum a topic, also a deleted one; with `dry_run` nothing is changed.

    `settings.now_ms` decides how old a version is; holds, registry entries, commits, checkpoints and temporary files go
    by the store's clock. Raises before anything is deleted: `Corrupt` or `NotFound` if an older version cannot be
    rebuilt, `Unavailable` (also if a commit stays hidden for 90 s), `Conflict`. Deletions that the store refuses are
    reported as failures.
    """
    for _ in range(TRIES - 1):
        # Another vacuum may have deleted listed files: list again. Nothing was deleted here so far.
        with suppress(NotFound):
            return _vacuum(topic, settings, runner or InProcess(), dry_run)
    return _vacuum(topic, settings, runner or InProcess(), dry_run)


def _vacuum(topic: Topic, settings: Settings, runner: Runner, dry_run: bool) -> VacuumReport:
    run = _listed(topic, settings, dry_run)
    state, of_log, waiting = run.state, _choose_of_log(run, run.state), _waiting_commits(run, run.state)
    # Commits of a topic that was deleted may have records, too: the features of the new one do not tell.
    run.reads_names = bool(run.files or any(of_log[-1:]) or waiting)
    if run.reads_names:
        _read_named(run)
        run.hold(state)
    phases = _phases(run, state, of_log)
    # Records in old commits that no version needs any more.
    unnamed_commits = (version for version in waiting if commit_path(version) not in run.kept)
    has_records = any(run.history.commit(version).inline for version in unnamed_commits)
    floor = max(state.floor, run.floor) if phases[0] or phases[-1] or has_records else state.floor
    if not dry_run:
        after = topic.log.commit(UpkeepIntent(run.careful_ms, floor, run.needed), state).state
        if after.version != state.version:
            if run.reads_names:
                _read_named_since(run, after)
                run.hold(after)
            phases = _phases(run, after, _choose_of_log(run, after))
        floor = after.floor
    limit_ms, folder = run.store_ms - max(run.delay_ms, LEAST_DELETE_DELAY_MS), f"{topic_folder(topic.name)}/"
    temporary = remove_temporaries(topic.store, topic.name, limit_ms, folder=folder, dry_run=dry_run)
    deleted, failures = [victim for victims in phases for victim in victims], list[SparklogError]()
    if not dry_run:
        deleted, failures = _delete(run, phases, runner)
        if has_records and after.version not in run.history.checkpoints:
            topic.log.write_checkpoint()
    only_held = run.kept - run.named
    return VacuumReport(
        topic.name,
        dry_run,
        state.floor,
        floor,
        (*_summed(deleted), *temporary.removed),
        held=sum(file.path in only_held for file in run.files),
        foreign=run.foreign,
        ended_holds=tuple(ended_holds(state, run.careful_ms, run.needed)),
        idle_writers=tuple(idle_writers(state, run.careful_ms)),
        failures=(*temporary.failures, *failures),
    )


def _listed(topic: Topic, settings: Settings, dry_run: bool) -> _Vacuum:
    """List the log, choose the floor, and list the data files begun below it."""
    store_ms = store_clock_ms(topic.store, topic.root.env, dry_run=dry_run)
    history = History(topic.store, topic.name, topic.root.env)
    state = topic.log.refresh().topic_state
    delay_ms = delete_delay_ms(history, state, settings)
    floor = plan.floor_version(history.commits, state.version, settings.now_ms, delay_ms)
    run = _Vacuum(topic, settings, store_ms, history, state, delay_ms, floor)
    stay = frozenset[str]() if dry_run else plan.give_up_clones(topic, state, run.careful_ms)
    run.needed = stay | needed_by_clones(topic, state, settings, run.careful_ms)
    run.files, run.foreign = _list_data_files(topic.store, topic.name, floor)
    return run


def _phases(run: _Vacuum, state: TopicState, of_log: list[list[DeletionCandidate]]) -> list[list[DeletionCandidate]]:
    """Return what is deleted, in the order in which it is deleted: data files first, commits last."""
    kept, reasons = run.kept, plan.Reasons(run.floor, state.deleted, run.created, run.recently_named)
    # A commit may have records that a version names, which is not known if no names were read.
    commits = [plan.without_records(run.topic.name, old, kept) if run.reads_names else [] for old in of_log[-1:]]
    return [plan.unnamed(run.files, kept, reasons), *of_log[:-1], *commits]


def _waiting_commits(run: _Vacuum, state: TopicState) -> list[int]:
    """Return the old commits that only two newer checkpoints would let go, and that may have records."""
    if state.exists and INLINE_RECORDS not in state.read_features:
        return []
    newest = [version for version, _ in zip(run.history.sound_below(state.version), range(2), strict=False)]
    lowest = newest[1] if len(newest) == 2 else 0
    commits = run.history.commits
    waiting = (commits.version >= lowest) & (commits.version < run.floor) & (commits.modified_ms < run.kept_since_ms)
    return [int(version) for version in commits.version[waiting]]


def unreferenced(topic: Topic) -> tuple[int, int]:
    """Return number and bytes of the data files that neither the newest version nor a hold names."""
    snapshot = topic.log.snapshot()
    files, _ = _list_data_files(topic.store, topic.name, snapshot.version)
    kept = plan.own_paths(topic.name, snapshot.slices.paths())
    versions = {hold.version for hold in snapshot.state.holds.values()}
    if versions:
        history = History(topic.store, topic.name, topic.root.env)
        kept |= plan.own_paths(topic.name, set().union(*(history.at(version).slices.paths() for version in versions)))
    sizes = [file.size for file in files if file.path not in kept]
    return len(sizes), sum(sizes)


def _list_data_files(store: Store, topic: str, floor: int) -> tuple[list[plan.ListedFile], int]:
    """List the data files begun below the floor; count the objects whose names are not sparklog's."""
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
                # Names begin with the read version: all that follow are younger.
                break
    return files, foreign


def _read_named(run: _Vacuum) -> None:
    """Read the paths that versions name, from the last floor on."""
    history, floor, start = run.history, run.floor, min(run.state.floor, run.floor)
    if history.base_of(start) is None or not history.commits.has(start + 1, floor):
        # The last floor is no longer kept: start at the new one, and reasons for deletion are less exact.
        start = floor
    begin = history.at(start)
    last, table = begin.state, begin.slices
    run.recently_named = run.own_paths(table.paths())
    run.named = set(run.recently_named) if start == floor else set()
    for last, commit in history.walk(begin.state, run.state.version):
        paths = run.own_paths({file.path for file in commit.files})
        run.recently_named |= paths
        if commit.op == CREATE:
            run.created = commit.version
        if commit.version > floor:
            run.named |= paths
            continue
        table = table.apply(commit, last)
        if commit.version == floor:
            run.named |= run.own_paths(table.paths())
    _check_same(run, last, run.state)


def _read_named_since(run: _Vacuum, after: TopicState) -> None:
    """Read the paths that commits name which were made since the log was listed."""
    last = run.state
    for last, commit in run.history.walk(run.state, after.version):  # noqa: B007
        run.named |= run.own_paths({file.path for file in commit.files})
    _check_same(run, last, after)


def _check_same(run: _Vacuum, walked: TopicState, expected: TopicState) -> None:
    """Raise `Corrupt` unless the walk over checkpoints and commits ended at the state that readers see."""
    if walked.version != expected.version or walked.crc != expected.crc:
        raise Corrupt(
            f"version {walked.version} of topic '{run.topic.name}' is not what its checkpoints and commits lead to; "
            "nothing was deleted: run verify",
            file=commit_key(run.topic.name, walked.version),
        )


def _choose_of_log(run: _Vacuum, state: TopicState) -> list[list[DeletionCandidate]]:
    """Choose heads of checkpoints, their tables (later, as a reader that lists a head must find them) and commits."""
    history = run.history
    newest = [version for version, _ in zip(history.sound_below(state.version), range(2), strict=False)]
    if len(newest) < 2:
        return []
    young = plan.oldest_young(history.commits, state.version, run.store_ms, run.store_ms - run.kept_since_ms)
    limit = min(newest[1], young, run.floor)
    anchor = next(iter(history.sound_below(limit)), -1)
    if not history.commits.has(anchor + 1, min(state.version, int(history.commits.version[-1]))):
        return []
    bases = {version: history.base_of(version) for version in run.hold_versions(state)}
    held = [(-1 if base is None else base, version) for version, base in bases.items()]
    needed = {*newest, anchor, *(base for base in bases.values() if base is not None)}
    heads = plan.old_checkpoints(history.checkpoints, needed, anchor, now_ms=run.store_ms, limit_ms=run.kept_since_ms)
    victims = [
        DeletionCandidate(info.key, plan.CHECKPOINT, info.size, heads[version])
        for version, info in history.checkpoints.items()
        if version in heads
    ]
    commits = plan.old_commits(run.topic.name, history.commits, anchor, held, run.kept_since_ms)
    return [victims, _old_tables(run, set(heads), newest[0]), commits]


def _old_tables(run: _Vacuum, heads: set[int], newest: int) -> list[DeletionCandidate]:
    """Choose slice tables that no head names, or only heads that are deleted.

    Only below the newest sound checkpoint: a writer that stalled between table and head may still write the head, and
    one without a table must never be the newest.
    """
    history = run.history
    versions = [int(info.key.rsplit("/", 1)[-1][:20]) for info in history.tables]
    several = {version for version, count in Counter(versions).items() if count > 1}
    victims = []
    for info, version in zip(history.tables, versions, strict=True):
        reason = ""
        if version in heads:
            reason = "slice table of a checkpoint that goes"
        elif info.modified_ms < run.store_ms - plan.HOUR_MS:
            if version not in history.checkpoints:
                orphan = version < newest
            else:
                orphan = version in several and history.table_of(version) not in (None, info.key)
            reason = "slice table that no checkpoint names" if orphan else ""
        if reason:
            victims.append(DeletionCandidate(info.key, plan.CHECKPOINT, info.size, reason))
    return victims


def _delete(
    run: _Vacuum, phases: Sequence[Sequence[DeletionCandidate]], runner: Runner
) -> tuple[list[DeletionCandidate], list[SparklogError]]:
    """Delete phase by phase, in chunks, on the runner if there are many; return the deleted objects and failures."""
    gone: list[DeletionCandidate] = []
    failures: list[SparklogError] = []
    for victims in phases:
        by_key = {victim.key: victim for victim in victims}
        chunks = [tuple(by_key)[i : i + CHUNK] for i in range(0, len(by_key), CHUNK)]
        works = [DeleteWork(run.topic.store, run.topic.name, run.state.topic_id, keys) for keys in chunks]
        delete_runner: Runner = runner if len(works) > run.topic.store.limits.local_chunks else InProcess()
        for work, result in delete_runner.run(works):
            if isinstance(result, SparklogError):
                failures.append(result)
            elif isinstance(work, DeleteWork):
                gone += [by_key[key] for key in work.keys]
    return gone, failures


def remove_temporaries(
    store: Store, name: str, limit_ms: int, *, folder: str = "", dry_run: bool = False
) -> VacuumReport:
    """Delete temporary files last written before `limit_ms` below `folder`; "": in the root's folder itself only."""
    gone: list[DeletionCandidate] = []
    failures: list[SparklogError] = []
    for info in list(store.temporary_files(folder, deep=bool(folder))):
        if info.modified_ms >= limit_ms:
            continue
        try:
            if not dry_run:
                store.delete_temporary(info.key)
            gone.append(
                DeletionCandidate(info.key, plan.TEMPORARY, info.size, "its writer has been silent for too long")
            )
        except SparklogError as error:
            failures.append(error)
    return VacuumReport(name, dry_run, 0, 0, _summed(gone), failures=tuple(failures))


def _summed(victims: Sequence[DeletionCandidate]) -> tuple[Removed, ...]:
    sizes: dict[tuple[str, str], list[int]] = {}
    for victim in victims:
        sizes.setdefault((victim.kind, victim.reason), []).append(victim.size)
    ordered = sorted(sizes.items(), key=lambda item: (plan.KINDS.index(item[0][0]), item[0][1]))
    return tuple(Removed(kind, reason, len(objects), sum(objects)) for (kind, reason), objects in ordered)
