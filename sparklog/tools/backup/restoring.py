"""Create a new root from a backup, or from an earlier or current state of a root.

1. Determine the cut and write it to `_restore.json` in the new root, together with all random values: the root id,
   commit ids, names and the time. If the process is killed, the next run with the same request writes the same bytes
   and skips existing objects.
2. Write the decisions of each transactional id and the offsets of each group as one entry that contains the complete
   state.
3. Copy and check the data files of the cut. Write a checkpoint and one commit of each topic (see `restore_point`).
4. Create `_root.json` with a new root id, which completes the root. Delete `_restore.json`.

Topic ids do not change, so streaming queries and consumer groups can resume from their offsets. If the source is a live
root, the versions are leased during the restore unless they are below the retention floor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparklog.common.times import iso_time
from sparklog.errors import BadRequest, Corrupt, NotFound, Unavailable
from sparklog.format import crc32c
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS, EXPIRE, Decisions
from sparklog.log.journal import names as naming
from sparklog.log.journal.chain import EntryChain
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.create_object import create_or_read, read_if_there
from sparklog.log.journal.documents import (
    BOOLEAN,
    TEXT,
    Document,
    Member,
    StoredDocument,
    numbers_by_text,
    objects_by_text,
    objects_of,
    whole,
)
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.state.commit_object import decode_commit, encode_commit
from sparklog.log.state.history import History
from sparklog.log.state.invariants import check_commit, check_state
from sparklog.log.state.root_defaults import DEFAULTS, ID
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.log.topic.backup_manifest import DAMAGED_JOURNAL_JSON, DamagedJournal, backup_numbers
from sparklog.log.topic.root import open_root
from sparklog.storage.store import Store
from sparklog.tools.backup.backing_up import VersionLeases, write_checkpoint
from sparklog.tools.backup.consistent_cut import Cut
from sparklog.tools.backup.copying import AT_ONCE, Copied, CopyOptions, FileCopy, Progress, copy_all, silent
from sparklog.tools.backup.repository import Repository, is_repository, reject_nested
from sparklog.tools.backup.restore_point import (
    MovedOffset,
    RestorePoint,
    decisions_of,
    files_of,
    first_commit,
    from_backups,
    from_root,
    group_of,
    limited_to_log_ends,
    restored_snapshot,
    with_own_files,
)


@dataclass(frozen=True, slots=True)
class _TopicPlan:
    """The new name of a topic, the version to restore, and the ids of the topic's commit and checkpoint tables."""

    to: str
    version: int
    commit: str
    table: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """The random values and other inputs of a restore. They are stored first, so that an interrupted restore can be
    resumed.
    """

    request: str
    backup: int | None
    root_id: str
    time_ms: int
    topics: Mapping[str, _TopicPlan]
    decisions: Mapping[str, int]
    groups: Mapping[str, int]
    exact: bool
    left_out: tuple[DamagedJournal, ...]
    defaults: int | None = None


_TOPIC_JSON = Document(
    _TopicPlan, Member("to", TEXT), Member("version", whole(0)), Member("commit", TEXT), Member("table", TEXT)
)
RESTORE_JSON = StoredDocument(
    "restore",
    _Plan,
    Member("request", TEXT),
    Member("backup", whole(1), nullable=True),
    Member("rootId", TEXT),
    Member("timeMs", whole(0)),
    Member("topics", objects_by_text(_TOPIC_JSON)),
    Member("decisions", numbers_by_text(-1)),
    Member("groups", numbers_by_text(-1)),
    Member("exact", BOOLEAN),
    Member("leftOut", objects_of(DAMAGED_JOURNAL_JSON)),
    Member("defaults", whole(0), optional=True),
)


@dataclass(frozen=True, slots=True)
class RestoredTopic:
    """A topic in a restored root, with its name and version in the source."""

    topic: str
    source: str
    version: int
    partitions: int
    log_starts: tuple[int, ...]
    log_ends: tuple[int, ...]
    time_ms: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore or of a restore plan.

    Attributes:
        backup: the number of the backup, or None if the source is a live root.
        root_id: the id of the new root; empty in a plan.
        moved: group offsets that were beyond the log end of a topic and were set to the log end.
        left_out: damaged journals that were skipped by the restore or the backup, because they do not concern the
            selected topics.
    """

    backup: int | None
    root_id: str
    topics: tuple[RestoredTopic, ...]
    decisions: int
    groups: int
    files: int
    nbytes: int
    copied: Copied
    moved: tuple[MovedOffset, ...] = ()
    left_out: tuple[DamagedJournal, ...] = ()


def _not_a_source(source: Store) -> NotFound:
    return NotFound(
        f"{source.location} is neither a backup repository (it has no {naming.REPOSITORY_KEY}) nor a root; "
        "check the path"
    )


def _requested_cut(source: Store, point: RestorePoint, env: Env) -> tuple[int | None, Cut]:
    """Return the number of the backup to restore, which is None if the source is a live root, and the requested cut."""
    if is_repository(source):
        manifest, cut = from_backups(Repository.open(source), point)
        return manifest.number, replace(cut, defaults=next((entries.number for entries in manifest.defaults), None))
    try:
        root = open_root(source, env=env)
    except NotFound:
        raise _not_a_source(source) from None
    cut = from_root(root, point)
    # The id is not used. It is generated only so that the other ids of seeded runs are the same as in earlier releases.
    env.new_id()
    defaults = root.defaults().number
    return None, replace(cut, defaults=None if defaults < 0 else defaults)


def _names(cut: Cut, point: RestorePoint, rename: Mapping[str, str]) -> dict[str, str]:
    existing = {name for name, state in cut.topics.items() if state.exists}
    missing = [name for name in point.topics or () if name not in existing]
    if missing:
        raise NotFound(f"topic '{missing[0]}' did not exist at that time; choose another time")
    if point.time_ms is not None and not existing:
        raise NotFound(f"no topic existed at {iso_time(point.time_ms)}; choose a later time")
    for name, new in rename.items():
        naming.check_topic_name(new)
        if name not in existing:
            existing_names = ", ".join(sorted(existing)) or "none"
            raise NotFound(
                f"cannot rename topic '{name}', because it does not exist; existing topics: {existing_names}"
            )
    names = {name: rename.get(name, name) for name in sorted(existing)}
    lower: dict[str, str] = {}
    for name, new in names.items():
        if new.lower() in lower:
            raise BadRequest(
                f"topics '{lower[new.lower()]}' and '{name}' would both be named '{new}'; rename one of the topics"
            )
        lower[new.lower()] = name
    return names


def plan_restore(
    source: Store, point: RestorePoint | None = None, *, rename: Mapping[str, str] | None = None, env: Env = SYSTEM
) -> Restored:
    """Return the result that `restore` would return, without writing any objects."""
    point = point or RestorePoint()
    backup, cut = _requested_cut(source, point, env)
    names = _names(cut, point, rename or {})
    snapshots = _snapshots(source, {name: cut.topics[name].version for name in names})
    moved = _moved([state for _, state in sorted(cut.groups.items())], _topic_states(snapshots, cut.exact))
    plan = _planned(backup, cut, names, "", lambda: "", lambda: 0)
    return _restored(plan, snapshots, _files(snapshots, names), Copied(), moved)


def restore(
    source: Store,
    target: Store,
    point: RestorePoint | None = None,
    *,
    rename: Mapping[str, str] | None = None,
    link: bool = False,
    at_once: int = AT_ONCE,
    progress: Progress = silent,
    env: Env = SYSTEM,
) -> Restored:
    """Create a root in `target`, which must be empty, from a backup repository or another root.

    Args:
        point: the state to restore. If None, the latest state is restored.
        rename: maps old topic names to new topic names.
        link: create hard links if source and target are on the same disk.
        at_once: the maximum number of files to copy concurrently.
        progress: called after each file.

    Raises:
        BadRequest: If the target is not empty, or has an unfinished restore with different options.
        NotFound: If the requested state does not exist. The error lists the states that exist.
        Corrupt: If a file is corrupt. The error contains the file and position.
    """
    point = point or RestorePoint()
    request = _request(source, point, rename or {})
    plan = _read_plan(target, request)
    numbers = set(backup_numbers(source))
    try:
        if plan is None:
            plan = _write_plan(source, target, point, rename or {}, request, env)
        return _RestoreRun(source, target, plan, CopyOptions(link, at_once, progress, env)).make()
    except (NotFound, Corrupt) as error:
        used = set() if plan is None or plan.backup is None else {plan.backup}
        pruned = (numbers | used) - set(backup_numbers(source))
        if not pruned:
            raise
        numbers_text = ", ".join(map(str, sorted(pruned)))
        which = f"backup {numbers_text} was" if len(pruned) == 1 else f"backups {numbers_text} were"
        raise NotFound(
            f"{which} pruned from {source.location} during the restore; empty {target.location} and restore again"
        ) from error


def _request(source: Store, point: RestorePoint, rename: Mapping[str, str]) -> str:
    """Return the request as a string. An interrupted restore can only be resumed with the same request."""
    from_backup = is_repository(source)
    if not from_backup and source.stat(naming.ROOT_KEY) is None:
        raise _not_a_source(source)
    source_id = Repository.open(source).root_id if from_backup else naming.read_root_id(source)
    values: list[object] = [source_id, from_backup, point.number, point.version, point.time_ms]
    values += [None if point.topics is None else sorted(point.topics), dict(sorted(rename.items()))]
    return json.dumps(values)


def _read_plan(target: Store, request: str) -> _Plan | None:
    data = read_if_there(target, naming.RESTORE_KEY)
    if data is None:
        if (first := naming.foreign_name(target)) is not None:
            raise BadRequest(f"{target.location} is not empty, found {first}; restore to an empty directory")
        return None
    plan = RESTORE_JSON.decode(data, naming.RESTORE_KEY)
    if plan.request != request:
        raise BadRequest(
            f"{target.location} has an unfinished restore with different options; repeat the restore with the "
            "same options, or "
            "empty the directory"
        )
    return plan


def _write_plan(
    source: Store, target: Store, point: RestorePoint, rename: Mapping[str, str], request: str, env: Env
) -> _Plan:
    from sparklog.log.journal.probe_results import ensure_probed

    reject_nested(target)
    backup, cut = _requested_cut(source, point, env)
    names = _names(cut, point, rename)
    ensure_probed(target, env.wall_ms)
    plan = _planned(backup, cut, names, request, env.new_id, env.wall_ms)
    data = RESTORE_JSON.encode(plan)
    if create_or_read(target, naming.RESTORE_KEY, data, env) not in (None, data):
        # A concurrent run has already stored a plan, so use the stored plan.
        stored = _read_plan(target, request)
        if stored is None:
            raise Unavailable(f"{naming.RESTORE_KEY} in {target.location} disappeared after it was written; try again")
        return stored
    return plan


def _planned(
    backup: int | None,
    cut: Cut,
    names: Mapping[str, str],
    request: str,
    new_id: Callable[[], str],
    wall_ms: Callable[[], int],
) -> _Plan:
    topics = {name: _TopicPlan(new, cut.topics[name].version, new_id(), new_id()) for name, new in names.items()}
    return _Plan(
        request,
        backup,
        new_id(),
        wall_ms(),
        topics,
        {name: state.number for name, state in sorted(cut.decisions.items())},
        {name: state.number for name, state in sorted(cut.groups.items()) if state.number >= 0},
        cut.exact,
        cut.left_out,
        cut.defaults,
    )


def _snapshots(store: Store, versions: Mapping[str, int]) -> dict[str, Snapshot]:
    return {name: History(store, name).at(version) for name, version in versions.items()}


def _files(snapshots: Mapping[str, Snapshot], names: Mapping[str, str]) -> list[FileCopy]:
    return [file for name, snapshot in snapshots.items() for file in files_of(names[name], snapshot)]


def _topic_states(snapshots: Mapping[str, Snapshot], exact: bool) -> dict[str, TopicState]:
    """Return the topics whose log end offsets may be lower than group offsets. This is only possible if the cut is
    `exact`.
    """
    return {name: snapshot.state for name, snapshot in snapshots.items()} if exact else {}


def _moved(groups: Iterable[GroupState], topic_states: Mapping[str, TopicState]) -> list[MovedOffset]:
    return [offset for state in groups for offset in limited_to_log_ends(state, topic_states)[1]]


def _restored(
    plan: _Plan, snapshots: Mapping[str, Snapshot], files: list[FileCopy], copied: Copied, moved: Sequence[MovedOffset]
) -> Restored:
    topics = []
    for name, snapshot in snapshots.items():
        state = snapshot.state
        starts, ends = tuple(state.log_start.tolist()), tuple(state.log_end.tolist())
        topic = plan.topics[name].to
        topics.append(RestoredTopic(topic, name, state.version, state.partitions, starts, ends, state.created_ms))
    return Restored(
        backup=plan.backup,
        root_id=plan.root_id,
        topics=tuple(topics),
        decisions=len(plan.decisions),
        groups=len(plan.groups),
        files=len(files),
        nbytes=sum(copy.file.size for copy in files),
        copied=copied,
        moved=tuple(moved),
        left_out=plan.left_out,
    )


@dataclass
class _RestoreRun:
    """A restore whose plan is stored in the target."""

    source: Store
    target: Store
    plan: _Plan
    options: CopyOptions
    copied: Copied = field(default_factory=Copied)

    def __post_init__(self) -> None:
        self.names = {name: topic.to for name, topic in self.plan.topics.items()}

    def make(self) -> Restored:
        versions = {name: topic.version for name, topic in self.plan.topics.items()}
        if self.target.stat(naming.ROOT_KEY) is not None:
            if naming.read_root_id(self.target) != self.plan.root_id:
                raise BadRequest(
                    f"another root was created in {self.target.location} before the restore was complete; restore to "
                    "an empty directory"
                )
            # The restore was already complete when the process was killed, so only the plan must be deleted.
            snapshots = _snapshots(self.source, versions)
            self.target.delete(naming.RESTORE_KEY)
            # Report the offsets that the earlier run changed, if the source still contains the group entries.
            groups = self.plan.groups.items() if self.plan.exact else ()
            states = (EntryChain(self.source, GROUPS, name).state_at(number) for name, number in groups)
            moved = _moved(filter(None, states), _topic_states(snapshots, True))
            return _restored(self.plan, snapshots, [], self.copied, moved)
        leases = self._lease(versions)
        try:
            snapshots = _snapshots(self.source, versions)
            files = _files(snapshots, self.names)
            # Copy the entries first, because leases do not protect entries, and copying the files can take days.
            self._write_defaults()
            decisions = self._write_decisions()
            moved = self._write_groups(_topic_states(snapshots, self.plan.exact))
            renew = leases.renew if leases is not None else lambda: None
            self.copied += copy_all(self.source, self.target, files, self.options, renew)
            self._write_topics(snapshots, decisions)
        finally:
            if leases is not None:
                leases.release()
        self._put(naming.ROOT_KEY, naming.ROOT_JSON.encode(naming.RootId(self.plan.root_id, self.plan.time_ms)))
        self.target.delete(naming.RESTORE_KEY)
        return _restored(self.plan, snapshots, files, self.copied, moved)

    def _lease(self, versions: Mapping[str, int]) -> VersionLeases | None:
        """Lease the versions in a live root. Versions below the retention floor are read without a lease."""
        if is_repository(self.source):
            return None
        env = self.options.env
        leases = VersionLeases(open_root(self.source, env=env), f"restore:{env.new_id()}")
        leases.acquire(versions, may_be_below=True)
        return leases

    def _write_decisions(self) -> dict[str, Decisions]:
        """Write the decisions of each id. Return the decisions of the source."""
        decisions = {name: self._entry(DECISIONS, name, number) for name, number in self.plan.decisions.items()}
        for state in decisions.values():
            self._put_entries(DECISIONS, state, lambda entry: decisions_of(entry, self.names, self.plan.groups))
        return decisions

    def _write_defaults(self) -> None:
        """Write the root defaults of the source as the first entry in the new root."""
        if self.plan.defaults is not None:
            first = replace(self._entry(DEFAULTS, ID, self.plan.defaults), number=0, prev_crc=None)
            self._put(naming.commit_key(DEFAULTS.prefix(ID), 0), DEFAULTS.table.encode(first))
            self._put(naming.defaults_copy_key(0), DEFAULTS.table.encode(first))

    def _write_groups(self, topic_states: Mapping[str, TopicState]) -> list[MovedOffset]:
        """Write the offsets of each group. Return the offsets that were set to a log end in `topic_states`."""
        ids, groups = self.plan.decisions, [self._entry(GROUPS, *group) for group in self.plan.groups.items()]

        def restored(entry: GroupState) -> GroupState:
            return group_of(limited_to_log_ends(entry, topic_states)[0], self.names, ids)

        for group in groups:
            self._put_entries(GROUPS, group, restored)
        return _moved(groups, topic_states)

    def _write_topics(self, snapshots: Mapping[str, Snapshot], decisions: Mapping[str, Decisions]) -> None:
        for name, snapshot in snapshots.items():
            plan = self.plan.topics[name]
            restored, last_of_source = self._restored_snapshot(name, snapshot)
            check_state(restored.state, restored.slices)
            commit = first_commit(restored.state, name, decisions, self.names, plan.commit, self.plan.time_ms)
            data = encode_commit(commit)
            decoded = decode_commit(data, naming.commit_key(plan.to, commit.version), commit.version)
            after = restored.state.apply(decoded)
            check_commit(restored.state, commit, after)
            self.copied += write_checkpoint(self.target, restored, plan.table, self.options.env)
            if last_of_source is not None:
                # The checkpoint and the next commit both contain the CRC of this commit.
                self._put(naming.commit_key(plan.to, restored.version), last_of_source)
            self._put(naming.commit_key(plan.to, commit.version), data)
            last = Snapshot(plan.to, self.target, after, restored.slices.apply(commit, after))
            self.copied += write_checkpoint(self.target, last, plan.table, self.options.env)

    def _restored_snapshot(self, name: str, snapshot: Snapshot) -> tuple[Snapshot, bytes | None]:
        """Return the state of a topic in the new root, and the last commit of the source if it still exists."""
        restored = restored_snapshot(snapshot, self.target, self.names)
        key = naming.commit_key(name, snapshot.version)
        data = read_if_there(self.source, key)
        if data is None or snapshot.version > 0:
            return restored, data
        # There are no earlier commits, so this commit determines the state. The commit of a clone references files of
        # the source, so encode the commit again with the clone's own files.
        data = encode_commit(with_own_files(decode_commit(data, key, 0)))
        commit = decode_commit(data, naming.commit_key(restored.topic, 0), 0)
        state = EMPTY.apply(commit)
        return Snapshot(restored.topic, self.target, state, SliceTable().apply(commit, state)), data

    def _entry(self, kind: EntryKind[E], name: str, number: int) -> E:
        entry = EntryChain(self.source, kind, name).state_at(number)
        if entry is None:
            raise NotFound(f"entry {number} of {kind.title(name)} has been deleted; restore to another directory")
        return entry

    def _put_entries(self, kind: EntryKind[E], state: E, renamed: Callable[[E], E]) -> None:
        """Write an entry and the previous entry, and a copy of each entry, because earlier entries are not restored."""
        if state.number < 0:
            return
        prefix = kind.prefix(state.id)
        # The archive of expired ids contains the exact bytes of the last entry, so the last entry must not follow a
        # changed entry.
        has_before = state.number > 0 and not (isinstance(state, Decisions) and state.op == EXPIRE)
        before = EntryChain(self.source, kind, state.id).state_at(state.number - 1) if has_before else None
        crc = state.prev_crc
        for entry in (state,) if before is None else (before, state):
            data = kind.table.encode(replace(renamed(entry), prev_crc=crc if entry is state else entry.prev_crc))
            crc = crc32c.crc32c(data)
            self._put(naming.checkpoint_key(prefix, entry.number), data)
            self._put(naming.commit_key(prefix, entry.number), data)

    def _put(self, key: str, data: bytes) -> None:
        existing = create_or_read(self.target, key, data, self.options.env)
        if existing is None:
            self.copied += Copied(1, len(data))
        elif existing != data:
            raise BadRequest(f"{self.target.location} has a different {key}; empty the directory and restore again")
