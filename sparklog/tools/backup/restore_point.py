"""The state that a restore brings back: from a backup or a live root, of a number, a version, a time, or the newest.

An error says which state can be restored instead. A time is in the first backup that was begun after it, as far back
as that backup has all files; a live root goes back as far as its vacuum has kept files.

In the restored root the state is this:

* A checkpoint of the version, and one commit after it, which is never seen as the newest elsewhere: it records what is
  decided of open transactions and moves the leader epoch on, for batches of the source that came later had the old one.
* Topic id, offsets, configs, registry and undecided transactions stay as they were.
* Records in commits become append files, which hold all bytes of the commit: its number is not the new root's.
* Holds go: they are of versions that are not here. Files of other topics, in a clone, become its own. Siblings that are
  not restored are forgotten: a topic of that name would never catch up with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparklog.common.times import iso_time
from sparklog.errors import BadRequest, Corrupt, NotFound, did_you_mean
from sparklog.groups.group_state import GROUPS, NO_EPOCH, GroupState, TopicOffsets, topic_offsets
from sparklog.log.decisions.decision import DECISIONS, Decisions, Prepared, PreparedGroup
from sparklog.log.decisions.decision_log import open_transactions
from sparklog.log.journal import names as naming
from sparklog.log.journal.chain import EntryChain, EntrySpan
from sparklog.log.journal.clocks import latest_at
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.state.commit import MAINTAIN, Commit, Resolved
from sparklog.log.state.commit_intents import Draft
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot, Texts
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.backup_manifest import EntriesBackup, Manifest, TopicBackup
from sparklog.log.topic.inventory import files_of_versions, named_files, oldest_base, start_at
from sparklog.log.topic.root import Root
from sparklog.storage.store import Store
from sparklog.tools.backup.consistent_cut import Cut, CutBounds, all_offsets, cut_between, cut_now
from sparklog.tools.backup.copying import FileCopy, listed
from sparklog.tools.backup.damaged_logs import DamagedLogs
from sparklog.tools.backup.repository import Repository


@dataclass(frozen=True, slots=True)
class Wanted:
    """The state to bring back: at most one of `number` (of a backup), `version` (of one topic) and `time_ms`.

    `topics`: only these; None: all.
    """

    topics: tuple[str, ...] | None = None
    number: int | None = None
    version: int | None = None
    time_ms: int | None = None

    def check(self) -> None:
        """`BadRequest` if more than one is given, or a version without its topic."""
        if sum(item is not None for item in (self.number, self.version, self.time_ms)) > 1:
            raise BadRequest("give one of a backup's number, a version and a time")
        if self.version is not None and (self.topics is None or len(self.topics) != 1):
            raise BadRequest("a version is one of one topic: name the topic, or give a time")


def _unknown(name: str, names: Collection[str], where: str) -> NotFound:
    return NotFound(f"there is no topic '{name}' in {where}{did_you_mean(name, names)}")


def from_backups(repository: Repository, wanted: Wanted) -> tuple[Manifest, Cut]:
    wanted.check()
    if wanted.version is not None:
        return _version_in(repository, (wanted.topics or ("",))[0], wanted.version)
    if wanted.time_ms is not None:
        return _time_in(repository, wanted.time_ms, wanted.topics)
    manifest = repository.chosen(wanted.number, wanted.topics)
    items = _items(manifest, wanted.topics)
    # The manifest is a cut: what it has of ids and groups fits as it is.
    return manifest, Cut(
        {item.topic: _head(repository.store, item.topic, item.version) for item in items},
        {item.id: _entry(repository.store, DECISIONS, item) for item in manifest.decisions},
        {item.id: _entry(repository.store, GROUPS, item) for item in manifest.groups},
        manifest.left_out,
    )


def _entry(store: Store, kind: EntryKind[E], item: EntriesBackup) -> E:
    entry = EntryChain(store, kind, item.id).state_at(item.number)
    if entry is None:
        raise NotFound(f"entry {item.number} of '{item.id}' is missing in {store.location}; take another backup")
    return entry


def _items(manifest: Manifest, topics: tuple[str, ...] | None) -> list[TopicBackup]:
    if topics is None:
        return list(manifest.topics)
    items = {item.topic: item for item in manifest.topics}
    for name in topics:
        if name not in items:
            raise _unknown(name, items, f"backup {manifest.number}")
    return [items[name] for name in topics]


def _head(store: Store, topic: str, version: int) -> TopicState:
    return start_at(History(store, topic), version).state


def _spans(store: Store, kind: EntryKind[E], items: Collection[EntriesBackup]) -> list[EntrySpan[E]]:
    return [EntrySpan(EntryChain(store, kind, item.id), item.first, item.number) for item in items]


def _version_in(repository: Repository, topic: str, version: int) -> tuple[Manifest, Cut]:
    ranges = []
    for manifest in repository.manifests():
        item = manifest.topic(topic)
        if item is None:
            continue
        ranges.append(f"{item.since} to {item.version}" if item.since < item.version else str(item.version))
        if item.since <= version <= item.version:
            return manifest, _cut(repository.store, manifest, {topic: version}, None)
    if not ranges:
        raise NotFound(f"there is no backup of topic '{topic}' in {repository.store.location}")
    raise NotFound(f"version {version} of topic '{topic}' is in no backup; there are versions {', '.join(ranges)}")


def _time_in(repository: Repository, time_ms: int, topics: tuple[str, ...] | None) -> tuple[Manifest, Cut]:
    manifests = repository.covering(topics)
    manifest = next((item for item in manifests if item.started_ms >= time_ms), None)
    if manifest is None:
        raise NotFound(
            f"the newest backup was begun at {iso_time(manifests[-1].started_ms)}, before {iso_time(time_ms)}: take "
            "another one, or give `latest`"
        )
    versions = {}
    for item in _items(manifest, topics):
        version = _version_at(repository.store, item, time_ms)
        if version is None:
            continue
        if version < item.since:
            raise NotFound(
                f"topic '{item.topic}' can be restored as of {iso_time(item.since_ms)} to "
                f"{iso_time(manifest.started_ms)} from backup {manifest.number}, and as of the backups before it; not "
                f"of {iso_time(time_ms)}"
            )
        versions[item.topic] = version
    return manifest, _cut(repository.store, manifest, versions, time_ms)


def _version_at(store: Store, item: TopicBackup, time_ms: int) -> int | None:
    history = History(store, item.topic)
    version = latest_at(history.commit, item.base + 1, item.version, time_ms)
    if version > item.base:
        return version
    if item.base < 0:
        return None
    # Made before the base, or a version that only an older backup has.
    return item.base if history.at(item.base).state.made_ms <= time_ms else -1


def _cut(store: Store, manifest: Manifest, versions: Mapping[str, int], time_ms: int | None) -> Cut:
    topics = {
        item.topic: (start_at(History(store, item.topic), item.base), versions[item.topic])
        for item in manifest.topics
        if item.topic in versions
    }
    damaged = DamagedLogs(store, damage={item.folder: Corrupt(item.damage) for item in manifest.left_out})
    decisions, groups = _spans(store, DECISIONS, manifest.decisions), _spans(store, GROUPS, manifest.groups)
    return _cut_at(store, CutBounds(topics, decisions, groups), time_ms, damaged)


def _cut_at(store: Store, bounds: CutBounds, time_ms: int | None, damaged: DamagedLogs) -> Cut:
    """The least cut at or above these versions and what ids and groups had written by `time_ms`.

    None: just these versions, with what had been written when the newest of them was committed.
    """
    if time_ms is not None:
        _check_groups(bounds, time_ms, damaged)
        return cut_between(store, bounds, time_ms, damaged, exact=False)
    newest_ms = max(_head(store, name, version).made_ms for name, (_, version) in bounds.topics.items())
    return cut_between(store, bounds, newest_ms, damaged, exact=True)


def _check_groups(bounds: CutBounds, time_ms: int, damaged: DamagedLogs) -> None:
    """`NotFound` if it is no longer known how far a group had read one of these topics by a time.

    What it had read later would drag its topics along, away from that time.
    """
    for span in bounds.groups:
        state = damaged.read(span.chain.prefix, span.first_after, time_ms)
        if state is not None and any(item.topic in bounds.topics for item in all_offsets(state)):
            since = f"as of {iso_time(state.made_ms)} and later, not of {iso_time(time_ms)}"
            raise NotFound(
                f"group '{state.id}' can be restored {since}: what its offsets were is no longer kept; choose a later "
                "time, or a version of one topic"
            )


def _topic_names(store: Store) -> list[str]:
    return list(naming.topic_names(store))


def from_root(root: Root, wanted: Wanted) -> Cut:
    """Return the cut that is wanted of a root as it is, or as it was as far as its files are still there."""
    wanted.check()
    if wanted.number is not None:
        raise BadRequest(f"{root.location} is a root and holds no backups: give a version or a time")
    store = root.store
    if wanted.topics is not None:
        names = _topic_names(store)
        for name in wanted.topics:
            if name not in names:
                raise _unknown(name, names, root.location)
    if wanted.version is None and wanted.time_ms is None:
        return cut_now(root, wanted.topics)
    states = {name: _as_of(root, name, wanted) for name in wanted.topics or _topic_names(store)}
    topics = {name: state for name, state in states.items() if state is not None}
    damaged = DamagedLogs(store, strict=wanted.topics is None, env=root.env)
    groups = [chain.span() for chain in damaged.chains(GROUPS)]
    decisions = [chain.span() for chain in damaged.chains(DECISIONS)]
    return _cut_at(store, CutBounds(topics, decisions, groups), wanted.time_ms, damaged)


def _as_of(root: Root, name: str, wanted: Wanted) -> tuple[Snapshot, int] | None:
    """The oldest state known and the version wanted; None: the topic was made later. `NotFound`: files are gone."""
    newest = root.engine.log(name).refresh().topic_state.version
    if newest < 0:
        if wanted.topics is not None:
            root.topic(name)
        return None
    history = History(root.store, name, root.env)
    oldest = oldest_base(history, newest)
    base = start_at(history, oldest)
    if wanted.version is not None:
        version = wanted.version
        if not max(oldest, 0) <= version <= newest:
            raise NotFound(f"topic '{name}' has versions {max(oldest, 0)} to {newest}, found {version}")
    else:
        try:
            version = min(history.version_at(wanted.time_ms or 0), newest)
        except NotFound:
            if oldest < 0:
                return None
            raise
    named = files_of_versions(history, base, newest)
    present = listed(root.store, named.files)
    since = named.since([key for key in named.files if key not in present])
    if version < since:
        first = named.times.get(since, 0)
        raise NotFound(
            f"files of version {version} of topic '{name}' are gone: from this root it can be restored from version "
            f"{since} ({iso_time(first)}) on; older ones from a backup"
        )
    return base, version


MAX_EPOCH = 2**31 - 1


def own_path(path: str, version: int) -> str:
    """The path of a file in the folder of its new topic; a clone's source may count higher versions."""
    if naming.is_commit(path):
        return naming.copied_path(path, version)
    if not path.startswith("/"):
        return path
    read_version = naming.path_read_version(path) or 0
    return naming.local_path(path).replace(f"{read_version:020d}-", f"{min(read_version, version):020d}-", 1)


def files_of(topic: str, snapshot: Snapshot) -> list[FileCopy]:
    return [
        FileCopy(file, naming.file_key(topic, own_path(path, snapshot.version)))
        for path, file in sorted(named_files(snapshot).by_path())
    ]


def stand_alone(snapshot: Snapshot, store: Store, names: Mapping[str, str]) -> Snapshot:
    """The state of a topic in its new root; `names` are those of all topics restored, old to new."""
    version, rows = snapshot.version, snapshot.slices.all()
    codes, inverse = np.unique(rows.file, return_inverse=True)
    own_paths = [own_path(path, version) for path in rows.paths.take(codes)]
    paths = Texts.of(own_paths)
    code_of = [paths.code(path) for path in own_paths]
    columns = dict(rows.columns)
    columns["file"] = np.array(code_of, np.int32)[inverse]
    columns["read_version"] = np.minimum(rows.read_version, version)
    part = Slices(columns, paths, rows.txn_ids)
    table = SliceTable(version, (part,) if len(part) else (), paths, rows.txn_ids)
    state = replace(snapshot.state, holds={}, siblings=_siblings(snapshot.state.siblings, names))
    return Snapshot(names[snapshot.topic], store, state, table)


def created_alone(commit: Commit) -> Commit:
    return replace(commit, files=tuple(replace(file, path=own_path(file.path, 0)) for file in commit.files))


def _siblings(siblings: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    return {names[name]: version for name, version in siblings.items() if name in names}


def first_commit(
    topic_state: TopicState,
    topic: str,
    decisions: Mapping[str, Decisions],
    names: Mapping[str, str],
    commit_id: str,
    time_ms: int,
) -> Commit:
    """The commit after the version that was restored; `topic` is its name in the source."""
    resolved: list[Resolved] = []
    for transactional_id, n in open_transactions(topic_state):
        state = decisions.get(transactional_id)
        if state is not None and state.decided(n):
            outcome = state.resolved(topic, topic_state.topic_id, n)
            resolved.append(replace(outcome, siblings=_siblings(outcome.siblings, names)))
    # Nothing is kept of what came before: the floor says so.
    epoch = min(topic_state.leader_epoch + 1, MAX_EPOCH)
    draft = Draft(MAINTAIN, leader_epoch=epoch, resolved=tuple(resolved), floor=topic_state.version)
    return draft.commit(topic_state, commit_id, time_ms)


def decisions_of(state: Decisions, names: Mapping[str, str], groups: Mapping[str, int]) -> Decisions:
    """Decisions in the restored root, of its topics (`names`: old to new) and groups (`groups`: entries restored).

    Of what is not there no outcome would ever be recorded.
    """

    def topics(items: tuple[Prepared, ...]) -> tuple[Prepared, ...]:
        return tuple(replace(item, topic=names[item.topic]) for item in items if item.topic in names)

    def restored(items: tuple[PreparedGroup, ...]) -> tuple[PreparedGroup, ...]:
        return tuple(item for item in items if item.number <= groups.get(item.group, -1))

    return replace(
        state,
        prepared=topics(state.prepared),
        prepared_groups=restored(state.prepared_groups),
        commits=tuple(
            replace(item, prepares=topics(item.prepares), groups=restored(item.groups)) for item in state.commits
        ),
    )


def group_of(state: GroupState, names: Mapping[str, str], ids: Collection[str]) -> GroupState:
    """A group in the restored root, its topics renamed; what is pending of other ids goes."""

    def renamed(items: tuple[TopicOffsets, ...]) -> tuple[TopicOffsets, ...]:
        moved = (replace(item, topic=names.get(item.topic, item.topic)) for item in items)
        return tuple(sorted(moved, key=lambda item: item.place))

    return replace(
        state,
        offsets=renamed(state.offsets),
        pending=tuple(replace(item, offsets=renamed(item.offsets)) for item in state.pending if item.txn in ids),
    )


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """An offset of a group that lay beyond the end of a restored topic (by its name in the source), and that end."""

    group: str
    topic: str
    partition: int
    was: int
    now: int


def at_the_end(state: GroupState, heads: Mapping[str, TopicState]) -> tuple[GroupState, list[MovedOffset]]:
    """Set the offsets of a group that are beyond the topics' ends to the end; return those that were moved, too.

    What was between is not there, so nothing is skipped, and what is written next is read. A consumer of Kafka that
    finds its log cut off goes on likewise (KIP-320). The leader epoch was that of a record that is not there.
    """
    moved: list[MovedOffset] = []

    def cut_off(item: TopicOffsets) -> TopicOffsets:
        topic_state = heads.get(item.topic)
        if topic_state is None or topic_state.topic_id != item.topic_id:
            return item
        rows = item.rows()
        for partition, (offset, time_ms, _, metadata) in rows.items():
            end = int(topic_state.log_end[partition]) if partition < topic_state.partitions else 0
            if offset > end:
                rows[partition] = end, time_ms, NO_EPOCH, metadata
                moved.append(MovedOffset(state.id, item.topic, partition, offset, end))
        return topic_offsets(item.topic, item.topic_id, rows)

    offsets = tuple(map(cut_off, state.offsets))
    of_group = list(moved)
    pending = tuple(replace(item, offsets=tuple(map(cut_off, item.offsets))) for item in state.pending)
    return replace(state, offsets=offsets, pending=pending), of_group
