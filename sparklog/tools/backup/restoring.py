"""`restore`: make a new root of a backup, or of a root as it was.

1. Choose the cut and write it down in the new root, as `_restore.json`, with all that is random: root id, commit ids,
   names, time. Whatever this is killed at, the next run with the same request does the same, byte for byte, and skips
   what it finds.
2. Write decisions and groups, each as one entry that says everything.
3. Copy the data files of the cut, every byte checked, and write of each topic a checkpoint and one commit (see
   `restored`).
4. Create `_root.json`: from here on it is a root, another one than its source. Remove `_restore.json`.

Topic ids stay: streaming queries and consumer groups go on where they were. A live root is held meanwhile, as for a
backup, where the versions are not older than what the vacuum keeps.
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
from sparklog.log.state.commit import decode_commit, encode_commit
from sparklog.log.state.history import History
from sparklog.log.state.invariants import check_commit, check_state
from sparklog.log.state.root_defaults import DEFAULTS, ID
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.log.topic.backup_manifest import LEFT_OUT_JSON, LeftOut, backup_numbers
from sparklog.log.topic.root import open_root
from sparklog.storage.store import Store
from sparklog.tools.backup.backing_up import Holds, write_checkpoint
from sparklog.tools.backup.consistent_cut import Cut
from sparklog.tools.backup.copying import AT_ONCE, Copied, CopyOptions, FileCopy, Progress, copy_all, silent
from sparklog.tools.backup.repository import Repository, is_repository, refuse_inside
from sparklog.tools.backup.restore_point import (
    MovedOffset,
    Wanted,
    at_the_end,
    created_alone,
    decisions_of,
    files_of,
    first_commit,
    from_backups,
    from_root,
    group_of,
    stand_alone,
)


@dataclass(frozen=True, slots=True)
class _TopicPlan:
    """The name and version of a topic to restore; the ids of its commit and of its checkpoints' tables."""

    to: str
    version: int
    commit: str
    table: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """The part of a restore that is random or may change meanwhile, written down first; see the module."""

    request: str
    backup: int | None
    root_id: str
    time_ms: int
    topics: Mapping[str, _TopicPlan]
    decisions: Mapping[str, int]
    groups: Mapping[str, int]
    exact: bool
    left_out: tuple[LeftOut, ...]
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
    Member("leftOut", objects_of(LEFT_OUT_JSON)),
    Member("defaults", whole(0), optional=True),
)


@dataclass(frozen=True, slots=True)
class RestoredTopic:
    """A topic of a restored root: what it was called, and the version of the source that it shows."""

    topic: str
    source: str
    version: int
    partitions: int
    log_starts: tuple[int, ...]
    log_ends: tuple[int, ...]
    time_ms: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of a restore, or of a plan of one.

    `backup`: its number, None: from a live root; `root_id`: empty in a plan.
    `moved`: offsets of groups that lay beyond the end of a topic and are set to it; `left_out`: damaged logs of ids and
    groups that have nothing to do with the topics that were chosen, here or in the backup.
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
    left_out: tuple[LeftOut, ...] = ()


def _neither(source: Store) -> NotFound:
    return NotFound(
        f"{source.location} is neither a place of backups (it has no {naming.PLACE_KEY}) nor a root; check the path"
    )


def _chosen(source: Store, wanted: Wanted, env: Env) -> tuple[int | None, Cut]:
    """Return the number of the backup to restore (None: from a live root), and the cut that is wanted of it."""
    if is_repository(source):
        manifest, cut = from_backups(Repository.open(source), wanted)
        return manifest.number, replace(cut, defaults=next((item.number for item in manifest.defaults), None))
    try:
        root = open_root(source, env=env)
    except NotFound:
        raise _neither(source) from None
    cut = from_root(root, wanted)
    # Drawn and not used, so that seeded runs write the same ids as before.
    env.new_id()
    defaults = root.defaults().number
    return None, replace(cut, defaults=None if defaults < 0 else defaults)


def _names(cut: Cut, wanted: Wanted, rename: Mapping[str, str]) -> dict[str, str]:
    existing = {name for name, state in cut.topics.items() if state.exists}
    missing = [name for name in wanted.topics or () if name not in existing]
    if missing:
        raise NotFound(f"topic '{missing[0]}' did not exist then; choose another time")
    if wanted.time_ms is not None and not existing:
        raise NotFound(f"there was no topic at {iso_time(wanted.time_ms)}; choose a later time")
    for name, new in rename.items():
        naming.check_topic_name(new)
        if name not in existing:
            names_there = ", ".join(sorted(existing)) or "none"
            raise NotFound(f"there is no topic '{name}' to be renamed; there are {names_there}")
    names = {name: rename.get(name, name) for name in sorted(existing)}
    lower: dict[str, str] = {}
    for name, new in names.items():
        if new.lower() in lower:
            raise BadRequest(f"topics '{lower[new.lower()]}' and '{name}' would both be called '{new}'; rename one")
        lower[new.lower()] = name
    return names


def plan_restore(
    source: Store, wanted: Wanted | None = None, *, rename: Mapping[str, str] | None = None, env: Env = SYSTEM
) -> Restored:
    """Plan what `restore` would bring back. Changes nothing."""
    wanted = wanted or Wanted()
    backup, cut = _chosen(source, wanted, env)
    names = _names(cut, wanted, rename or {})
    snapshots = _snapshots(source, {name: cut.topics[name].version for name in names})
    moved = _moved([state for _, state in sorted(cut.groups.items())], _heads(snapshots, cut.exact))
    plan = _planned(backup, cut, names, "", lambda: "", lambda: 0)
    return _restored(plan, snapshots, _files(snapshots, names), Copied(), moved)


def restore(
    source: Store,
    target: Store,
    wanted: Wanted | None = None,
    *,
    rename: Mapping[str, str] | None = None,
    link: bool = False,
    at_once: int = AT_ONCE,
    progress: Progress = silent,
    env: Env = SYSTEM,
) -> Restored:
    """Make `target`, which must be empty, a root with what is `wanted` of a repository, or of a root.

    `rename`: topic to another name. `BadRequest` if the target holds anything, or another restore is unfinished there;
    `NotFound` if what is wanted is not there, saying what is; `Corrupt` naming the file and position of damaged bytes.
    """
    wanted = wanted or Wanted()
    request = _request(source, wanted, rename or {})
    plan = _read_plan(target, request)
    numbers = set(backup_numbers(source))
    try:
        if plan is None:
            plan = _write_plan(source, target, wanted, rename or {}, request, env)
        return _RestoreRun(source, target, plan, CopyOptions(link, at_once, progress, env)).make()
    except (NotFound, Corrupt) as error:
        used = set() if plan is None or plan.backup is None else {plan.backup}
        gone = (numbers | used) - set(backup_numbers(source))
        if not gone:
            raise
        numbers_gone = ", ".join(map(str, sorted(gone)))
        raise NotFound(
            f"backups were dropped from {source.location} before one was restored ({numbers_gone}); empty "
            f"{target.location} and restore again"
        ) from error


def _request(source: Store, wanted: Wanted, rename: Mapping[str, str]) -> str:
    """Return the request as text: a run that was killed goes on with the same."""
    place = is_repository(source)
    if not place and source.stat(naming.ROOT_KEY) is None:
        raise _neither(source)
    source_id = Repository.open(source).root_id if place else naming.read_root_id(source)
    parts: list[object] = [source_id, place, wanted.number, wanted.version, wanted.time_ms]
    parts += [None if wanted.topics is None else sorted(wanted.topics), dict(sorted(rename.items()))]
    return json.dumps(parts)


def _read_plan(target: Store, request: str) -> _Plan | None:
    data = read_if_there(target, naming.RESTORE_KEY)
    if data is None:
        if (first := naming.foreign_name(target)) is not None:
            raise BadRequest(f"{target.location} is not empty, found {first}: restore into an empty folder")
        return None
    plan = RESTORE_JSON.decode(data, naming.RESTORE_KEY)
    if plan.request != request:
        location = target.location
        raise BadRequest(f"another restore is unfinished in {location}: ask for the same again, or empty the folder")
    return plan


def _write_plan(
    source: Store, target: Store, wanted: Wanted, rename: Mapping[str, str], request: str, env: Env
) -> _Plan:
    from sparklog.log.journal.probe_results import ensure_probed

    refuse_inside(target)
    backup, cut = _chosen(source, wanted, env)
    names = _names(cut, wanted, rename)
    ensure_probed(target, env.wall_ms)
    plan = _planned(backup, cut, names, request, env.new_id, env.wall_ms)
    data = RESTORE_JSON.encode(plan)
    if create_or_read(target, naming.RESTORE_KEY, data, env) not in (None, data):
        # Another run was first: what is there counts.
        stored = _read_plan(target, request)
        if stored is None:
            raise Unavailable(f"{naming.RESTORE_KEY} was not written as it should; try again")
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


def _heads(snapshots: Mapping[str, Snapshot], exact: bool) -> dict[str, TopicState]:
    """Return the topics whose ends groups may be beyond: those of a cut that is `exact`."""
    return {name: snapshot.state for name, snapshot in snapshots.items()} if exact else {}


def _moved(groups: Iterable[GroupState], heads: Mapping[str, TopicState]) -> list[MovedOffset]:
    return [item for state in groups for item in at_the_end(state, heads)[1]]


def _restored(
    plan: _Plan, snapshots: Mapping[str, Snapshot], files: list[FileCopy], copied: Copied, moved: Sequence[MovedOffset]
) -> Restored:
    topics = []
    for name, snapshot in snapshots.items():
        state = snapshot.state
        starts, ends = tuple(state.log_start.tolist()), tuple(state.log_end.tolist())
        topic = plan.topics[name].to
        topics.append(RestoredTopic(topic, name, state.version, state.partitions, starts, ends, state.made_ms))
    nbytes = sum(item.file.size for item in files)
    numbers = len(plan.decisions), len(plan.groups), len(files), nbytes
    return Restored(plan.backup, plan.root_id, tuple(topics), *numbers, copied, tuple(moved), plan.left_out)


@dataclass
class _RestoreRun:
    """The rest of a restore that is written down."""

    source: Store
    target: Store
    plan: _Plan
    options: CopyOptions
    copied: Copied = field(default_factory=Copied)

    def __post_init__(self) -> None:
        self.names = {name: item.to for name, item in self.plan.topics.items()}

    def make(self) -> Restored:
        versions = {name: item.version for name, item in self.plan.topics.items()}
        if self.target.stat(naming.ROOT_KEY) is not None:
            if naming.read_root_id(self.target) != self.plan.root_id:
                raise BadRequest(
                    f"{self.target.location} became another root before the restore was finished: restore into an "
                    "empty folder"
                )
            # Killed after it was done: only the plan is left.
            snapshots = _snapshots(self.source, versions)
            self.target.delete(naming.RESTORE_KEY)
            # Offsets that the earlier run has set to the ends of topics, as far as the source still has them.
            groups = self.plan.groups.items() if self.plan.exact else ()
            states = (EntryChain(self.source, GROUPS, name).state_at(number) for name, number in groups)
            moved = _moved(filter(None, states), _heads(snapshots, True))
            return _restored(self.plan, snapshots, [], self.copied, moved)
        holds = self._hold(versions)
        try:
            snapshots = _snapshots(self.source, versions)
            files = _files(snapshots, self.names)
            # Entries first: nothing holds them while files are copied, maybe for days.
            self._write_defaults()
            decisions = self._write_decisions()
            moved = self._write_groups(_heads(snapshots, self.plan.exact))
            look = holds.renew if holds is not None else lambda: None
            self.copied += copy_all(self.source, self.target, files, self.options, look)
            self._write_topics(snapshots, decisions)
        finally:
            if holds is not None:
                holds.release()
        self._put(naming.ROOT_KEY, naming.ROOT_JSON.encode(naming.RootId(self.plan.root_id, self.plan.time_ms)))
        self.target.delete(naming.RESTORE_KEY)
        return _restored(self.plan, snapshots, files, self.copied, moved)

    def _hold(self, versions: Mapping[str, int]) -> Holds | None:
        """Hold the versions in a live root against its vacuum; older ones are read as long as they are there."""
        if is_repository(self.source):
            return None
        env = self.options.env
        holds = Holds(open_root(self.source, env=env), f"restore:{env.new_id()}")
        holds.take(versions, may_be_below=True)
        return holds

    def _write_decisions(self) -> dict[str, Decisions]:
        """Write the decisions of each id; return those of the source."""
        decisions = {name: self._entry(DECISIONS, name, number) for name, number in self.plan.decisions.items()}
        for state in decisions.values():
            self._put_entries(DECISIONS, state, lambda entry: decisions_of(entry, self.names, self.plan.groups))
        return decisions

    def _write_defaults(self) -> None:
        """Write the defaults of the source as the first entry of the root's own."""
        if self.plan.defaults is not None:
            first = replace(self._entry(DEFAULTS, ID, self.plan.defaults), number=0, prev_crc=None)
            self._put(naming.commit_key(DEFAULTS.prefix(ID), 0), DEFAULTS.table.encode(first))
            self._put(naming.defaults_copy_key(0), DEFAULTS.table.encode(first))

    def _write_groups(self, heads: Mapping[str, TopicState]) -> list[MovedOffset]:
        """Write the offsets of each group; return those that were set to the end of a topic (`heads`)."""
        ids, groups = self.plan.decisions, [self._entry(GROUPS, *group) for group in self.plan.groups.items()]
        for group in groups:
            self._put_entries(GROUPS, group, lambda entry: group_of(at_the_end(entry, heads)[0], self.names, ids))
        return _moved(groups, heads)

    def _write_topics(self, snapshots: Mapping[str, Snapshot], decisions: Mapping[str, Decisions]) -> None:
        for name, snapshot in snapshots.items():
            item = self.plan.topics[name]
            alone, last_of_source = self._stand_alone(name, snapshot)
            check_state(alone.state, alone.slices)
            commit = first_commit(alone.state, name, decisions, self.names, item.commit, self.plan.time_ms)
            data = encode_commit(commit)
            after = alone.state.apply(decode_commit(data, naming.commit_key(item.to, commit.version), commit.version))
            check_commit(alone.state, commit, after)
            self.copied += write_checkpoint(self.target, alone, item.table, self.options.env)
            if last_of_source is not None:
                # Its checkpoint and the next commit both name its CRC.
                self._put(naming.commit_key(item.to, alone.version), last_of_source)
            self._put(naming.commit_key(item.to, commit.version), data)
            last = Snapshot(item.to, self.target, after, alone.slices.apply(commit, after))
            self.copied += write_checkpoint(self.target, last, item.table, self.options.env)

    def _stand_alone(self, name: str, snapshot: Snapshot) -> tuple[Snapshot, bytes | None]:
        """Return the state of a topic in its new root, and the commit that made it, if that is still there."""
        alone = stand_alone(snapshot, self.target, self.names)
        key = naming.commit_key(name, snapshot.version)
        data = read_if_there(self.source, key)
        if data is None or snapshot.version > 0:
            return alone, data
        # Nothing comes before it, so the state is what it says, and that of a clone names files of others.
        data = encode_commit(created_alone(decode_commit(data, key, 0)))
        commit = decode_commit(data, naming.commit_key(alone.topic, 0), 0)
        state = EMPTY.apply(commit)
        return Snapshot(alone.topic, self.target, state, SliceTable().apply(commit, state)), data

    def _entry(self, kind: EntryKind[E], name: str, number: int) -> E:
        entry = EntryChain(self.source, kind, name).state_at(number)
        if entry is None:
            raise NotFound(f"entry {number} of {kind.title(name)} is no longer there; restore into another folder")
        return entry

    def _put_entries(self, kind: EntryKind[E], state: E, renamed: Callable[[E], E]) -> None:
        """Write an entry and the one before it, and copies of both as checkpoints: what came before is not here."""
        if state.number < 0:
            return
        prefix = kind.prefix(state.id)
        # Of an expired id a register has the last entry, byte by byte: so it must not follow one that was renamed.
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
            raise BadRequest(f"{self.target.location} holds another {key}: empty the folder and restore again")
