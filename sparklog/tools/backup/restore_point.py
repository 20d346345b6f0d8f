"""Determine the state to restore from a backup or a live root. The state is specified by a backup number, a version or
a time. The default is the latest state.

If the requested state cannot be restored, the error lists the states that can be restored. The state at a time is
restored from the first backup that started after this time, if the backup has all files. A live root can be restored to
any version whose files the vacuum has not deleted.

A restored topic differs from the source as follows:

* The topic has a checkpoint of the version and one new commit. The commit records the decided outcomes of open
  transactions and increments the leader epoch, because later batches of the source have the old epoch.
* The topic id, offsets, configs, idempotency registry and undecided transactions are unchanged.
* Inline records of a commit are stored in an append file that contains the entire commit, because the commit may have a
  different number in the new root.
* Leases are removed, because their versions do not exist in the new root. Files of other topics that a clone references
  are copied to the restored topic. Participants that are not restored are removed, because a new topic with the same
  name would never reach the recorded versions.
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
from sparklog.log.state.commit import MAINTAIN, Commit, TxnDecision
from sparklog.log.state.commit_intents import Draft
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot, Texts
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.backup_manifest import EntriesBackup, Manifest, TopicBackup
from sparklog.log.topic.inventory import files_of_versions, oldest_base, referenced_files, start_at
from sparklog.log.topic.root import Root
from sparklog.storage.store import Store
from sparklog.tools.backup.consistent_cut import Cut, CutBounds, all_offsets, cut_between, cut_now
from sparklog.tools.backup.copying import FileCopy, listed
from sparklog.tools.backup.damaged_logs import DamagedLogs
from sparklog.tools.backup.repository import Repository


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The state to restore: the latest state, or the state of a backup number, a topic version or a time.

    `topics` are the topics to restore, or None for all topics.
    """

    topics: tuple[str, ...] | None = None
    number: int | None = None
    version: int | None = None
    time_ms: int | None = None

    def check(self) -> None:
        """Raise `BadRequest` if more than one value is given, or if a version is given without exactly one topic."""
        if sum(value is not None for value in (self.number, self.version, self.time_ms)) > 1:
            raise BadRequest("expected only one of a backup number, a version and a time")
        if self.version is not None and (self.topics is None or len(self.topics) != 1):
            raise BadRequest("a version requires exactly one topic; use a time to restore several topics")


def _unknown(name: str, names: Collection[str], where: str) -> NotFound:
    return NotFound(f"topic '{name}' does not exist in {where}{did_you_mean(name, names)}")


def from_backups(repository: Repository, point: RestorePoint) -> tuple[Manifest, Cut]:
    point.check()
    if point.version is not None:
        return _version_in(repository, (point.topics or ("",))[0], point.version)
    if point.time_ms is not None:
        return _time_in(repository, point.time_ms, point.topics)
    manifest = repository.find(point.number, point.topics)
    topics = _topic_backups(manifest, point.topics)
    # A manifest is a consistent cut, so the decision and group entries in the manifest can be used unchanged.
    return manifest, Cut(
        {topic.topic: _topic_state(repository.store, topic.topic, topic.version) for topic in topics},
        {entries.id: _entry(repository.store, DECISIONS, entries) for entries in manifest.decisions},
        {entries.id: _entry(repository.store, GROUPS, entries) for entries in manifest.groups},
        manifest.left_out,
    )


def _entry(store: Store, kind: EntryKind[E], entries: EntriesBackup) -> E:
    entry = EntryChain(store, kind, entries.id).state_at(entries.number)
    if entry is None:
        raise NotFound(
            f"entry {entries.number} of '{entries.id}' is missing in {store.location}; restore another backup"
        )
    return entry


def _topic_backups(manifest: Manifest, topics: tuple[str, ...] | None) -> list[TopicBackup]:
    if topics is None:
        return list(manifest.topics)
    by_name = {topic.topic: topic for topic in manifest.topics}
    for name in topics:
        if name not in by_name:
            raise _unknown(name, by_name, f"backup {manifest.number}")
    return [by_name[name] for name in topics]


def _topic_state(store: Store, topic: str, version: int) -> TopicState:
    return start_at(History(store, topic), version).state


def _spans(store: Store, kind: EntryKind[E], backups: Collection[EntriesBackup]) -> list[EntrySpan[E]]:
    return [EntrySpan(EntryChain(store, kind, backup.id), backup.first, backup.number) for backup in backups]


def _version_in(repository: Repository, topic: str, version: int) -> tuple[Manifest, Cut]:
    ranges = []
    for manifest in repository.manifests():
        backup = manifest.topic(topic)
        if backup is None:
            continue
        has_range = backup.since < backup.version
        ranges.append(f"{backup.since} to {backup.version}" if has_range else str(backup.version))
        if backup.since <= version <= backup.version:
            return manifest, _cut(repository.store, manifest, {topic: version}, None)
    if not ranges:
        raise NotFound(f"{repository.store.location} has no backup of topic '{topic}'")
    raise NotFound(
        f"version {version} of topic '{topic}' is not in any backup; available versions: {', '.join(ranges)}"
    )


def _time_in(repository: Repository, time_ms: int, topics: tuple[str, ...] | None) -> tuple[Manifest, Cut]:
    manifests = repository.covering(topics)
    manifest = next((manifest for manifest in manifests if manifest.started_ms >= time_ms), None)
    if manifest is None:
        raise NotFound(
            f"the latest backup started at {iso_time(manifests[-1].started_ms)}, before {iso_time(time_ms)}; make "
            "another backup first, or restore `latest`"
        )
    versions = {}
    for backup in _topic_backups(manifest, topics):
        version = _version_at(repository.store, backup, time_ms)
        if version is None:
            continue
        if version < backup.since:
            raise NotFound(
                f"topic '{backup.topic}' cannot be restored as of {iso_time(time_ms)}: backup {manifest.number} covers "
                f"{iso_time(backup.since_ms)} to {iso_time(manifest.started_ms)}; to restore an earlier state, use the "
                "time of an earlier backup"
            )
        versions[backup.topic] = version
    return manifest, _cut(repository.store, manifest, versions, time_ms)


def _version_at(store: Store, backup: TopicBackup, time_ms: int) -> int | None:
    """Return the version of a topic at a time. Returns -1 if the backup does not contain the version, and None if the
    topic did not exist at the time.
    """
    history = History(store, backup.topic)
    version = latest_at(history.commit, backup.base + 1, backup.version, time_ms)
    if version > backup.base:
        return version
    if backup.base < 0:
        return None
    return backup.base if history.at(backup.base).state.created_ms <= time_ms else -1


def _cut(store: Store, manifest: Manifest, versions: Mapping[str, int], time_ms: int | None) -> Cut:
    topics = {
        backup.topic: (start_at(History(store, backup.topic), backup.base), versions[backup.topic])
        for backup in manifest.topics
        if backup.topic in versions
    }
    damaged = DamagedLogs(store, damage={skipped.folder: Corrupt(skipped.damage) for skipped in manifest.left_out})
    decisions, groups = _spans(store, DECISIONS, manifest.decisions), _spans(store, GROUPS, manifest.groups)
    return _cut_at(store, CutBounds(topics, decisions, groups), time_ms, damaged)


def _cut_at(store: Store, bounds: CutBounds, time_ms: int | None, damaged: DamagedLogs) -> Cut:
    """Return the smallest cut at or above these versions, with the decision and group entries at `time_ms`. If
    `time_ms` is None, return exactly these versions, with the decision and group entries at the time of the latest
    commit.
    """
    if time_ms is not None:
        _check_groups(bounds, time_ms, damaged)
        return cut_between(store, bounds, time_ms, damaged, exact=False)
    latest_ms = max(_topic_state(store, name, version).created_ms for name, (_, version) in bounds.topics.items())
    return cut_between(store, bounds, latest_ms, damaged, exact=True)


def _check_groups(bounds: CutBounds, time_ms: int, damaged: DamagedLogs) -> None:
    """Raise `NotFound` if the offsets that a group had committed in these topics at a time are no longer stored.

    If later offsets were used, the cut would require later versions of the topics.
    """
    for span in bounds.groups:
        state = damaged.read(span.chain.prefix, span.first_after, time_ms)
        if state is not None and any(offsets.topic in bounds.topics for offsets in all_offsets(state)):
            raise NotFound(
                f"the offsets of group '{state.id}' are known only from {iso_time(state.created_ms)} on, not as of "
                f"{iso_time(time_ms)}; choose a later time, or a version of one topic"
            )


def _topic_names(store: Store) -> list[str]:
    return list(naming.topic_names(store))


def from_root(root: Root, point: RestorePoint) -> Cut:
    """Return the requested cut of a live root. An earlier state can be requested if all of its files exist."""
    point.check()
    if point.number is not None:
        raise BadRequest(f"{root.location} is a root and has no numbered backups; use a version or a time")
    store = root.store
    if point.topics is not None:
        names = _topic_names(store)
        for name in point.topics:
            if name not in names:
                raise _unknown(name, names, root.location)
    if point.version is None and point.time_ms is None:
        return cut_now(root, point.topics)
    states = {name: _as_of(root, name, point) for name in point.topics or _topic_names(store)}
    topics = {name: state for name, state in states.items() if state is not None}
    damaged = DamagedLogs(store, strict=point.topics is None, env=root.env)
    groups = [chain.span() for chain in damaged.chains(GROUPS)]
    decisions = [chain.span() for chain in damaged.chains(DECISIONS)]
    return _cut_at(store, CutBounds(topics, decisions, groups), point.time_ms, damaged)


def _as_of(root: Root, name: str, point: RestorePoint) -> tuple[Snapshot, int] | None:
    """Return the oldest known state and the requested version, or None if the topic was created later.

    Raises `NotFound` if files of the version have been deleted.
    """
    latest = root.engine.log(name).refresh().topic_state.version
    if latest < 0:
        if point.topics is not None:
            root.topic(name)
        return None
    history = History(root.store, name, root.env)
    oldest = oldest_base(history, latest)
    base = start_at(history, oldest)
    if point.version is not None:
        version = point.version
        if not max(oldest, 0) <= version <= latest:
            raise NotFound(f"topic '{name}' has versions {max(oldest, 0)} to {latest}, but not version {version}")
    else:
        try:
            version = min(history.version_at(point.time_ms or 0), latest)
        except NotFound:
            if oldest < 0:
                return None
            raise
    files = files_of_versions(history, base, latest)
    present = listed(root.store, files.files)
    since = files.since([key for key in files.files if key not in present])
    if version < since:
        raise NotFound(
            f"the vacuum has deleted files of version {version} of topic '{name}'; choose version {since} "
            f"({iso_time(files.times.get(since, 0))}) or later, or restore from a backup"
        )
    return base, version


MAX_EPOCH = 2**31 - 1


def own_path(path: str, version: int) -> str:
    """Return the path of a file in the directory of the restored topic. The read version in the file name is limited to
    `version`, because the file may belong to the source of a clone, which may have higher versions.
    """
    if naming.is_commit(path):
        return naming.copied_path(path, version)
    if not path.startswith("/"):
        return path
    read_version = naming.path_read_version(path) or 0
    return naming.local_path(path).replace(f"{read_version:020d}-", f"{min(read_version, version):020d}-", 1)


def files_of(topic: str, snapshot: Snapshot) -> list[FileCopy]:
    """Return the files of a snapshot to copy to the topic named `topic`."""
    return [
        FileCopy(file, naming.file_key(topic, own_path(path, snapshot.version)))
        for path, file in sorted(referenced_files(snapshot).by_path())
    ]


def restored_snapshot(snapshot: Snapshot, store: Store, names: Mapping[str, str]) -> Snapshot:
    """Return the state of a topic in the new root. `names` maps the old name of each restored topic to its new name."""
    version, rows = snapshot.version, snapshot.slices.all()
    codes, inverse = np.unique(rows.file, return_inverse=True)
    own_paths = [own_path(path, version) for path in rows.paths.at(codes)]
    paths = Texts.of(own_paths)
    code_of = [paths.code(path) for path in own_paths]
    columns = dict(rows.columns)
    columns["file"] = np.array(code_of, np.int32)[inverse]
    columns["read_version"] = np.minimum(rows.read_version, version)
    slices = Slices(columns, paths, rows.txn_ids)
    table = SliceTable(version, (slices,) if len(slices) else (), paths, rows.txn_ids)
    state = replace(snapshot.state, leases={}, siblings=_siblings(snapshot.state.siblings, names))
    return Snapshot(names[snapshot.topic], store, state, table)


def with_own_files(commit: Commit) -> Commit:
    """Return the first commit of a clone, in which the files of the source are replaced with the clone's own files."""
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
    """Return the commit after the restored version. `topic` is the name in the source."""
    resolved: list[TxnDecision] = []
    for transactional_id, n in open_transactions(topic_state):
        state = decisions.get(transactional_id)
        if state is not None and state.is_decided(n):
            outcome = state.resolved(topic, topic_state.topic_id, n)
            resolved.append(replace(outcome, siblings=_siblings(outcome.siblings, names)))
    # Earlier versions do not exist in the new root, so the retention floor is the restored version.
    epoch = min(topic_state.leader_epoch + 1, MAX_EPOCH)
    draft = Draft(MAINTAIN, leader_epoch=epoch, resolved=tuple(resolved), floor=topic_state.version)
    return draft.commit(topic_state, commit_id, time_ms)


def decisions_of(state: Decisions, names: Mapping[str, str], groups: Mapping[str, int]) -> Decisions:
    """Return the decisions for the restored root, limited to restored topics and groups.

    Other topics and groups are removed, because they would never record an outcome.

    Args:
        names: maps the old name of each restored topic to its new name.
        groups: the number of the restored entry of each group.
    """

    def topics(prepares: tuple[Prepared, ...]) -> tuple[Prepared, ...]:
        return tuple(replace(prepare, topic=names[prepare.topic]) for prepare in prepares if prepare.topic in names)

    def restored(prepares: tuple[PreparedGroup, ...]) -> tuple[PreparedGroup, ...]:
        return tuple(prepare for prepare in prepares if prepare.number <= groups.get(prepare.group, -1))

    return replace(
        state,
        prepared=topics(state.prepared),
        prepared_groups=restored(state.prepared_groups),
        commits=tuple(
            replace(commit, prepares=topics(commit.prepares), groups=restored(commit.groups))
            for commit in state.commits
        ),
    )


def group_of(state: GroupState, names: Mapping[str, str], ids: Collection[str]) -> GroupState:
    """Return a group for the restored root, with renamed topics and only the pending offsets of restored ids."""

    def renamed(offsets: tuple[TopicOffsets, ...]) -> tuple[TopicOffsets, ...]:
        new = (replace(each, topic=names.get(each.topic, each.topic)) for each in offsets)
        return tuple(sorted(new, key=lambda each: each.topic_and_id))

    pending = (replace(each, offsets=renamed(each.offsets)) for each in state.pending if each.txn in ids)
    return replace(state, offsets=renamed(state.offsets), pending=tuple(pending))


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """An offset of a group that was beyond the log end of a restored topic and was set to the log end.

    `topic` is the name in the source.
    """

    group: str
    topic: str
    partition: int
    was: int
    now: int


def limited_to_log_ends(
    state: GroupState, topic_states: Mapping[str, TopicState]
) -> tuple[GroupState, list[MovedOffset]]:
    """Set group offsets that are beyond the log end of a topic to the log end. Return the group and these offsets.

    The records between the log end and the group offset do not exist, so the group does not skip any records. A Kafka
    consumer does the same after log truncation (KIP-320). The leader epoch is removed, because it belongs to a missing
    record.
    """
    moved: list[MovedOffset] = []

    def truncated(offsets: TopicOffsets) -> TopicOffsets:
        topic_state = topic_states.get(offsets.topic)
        if topic_state is None or topic_state.topic_id != offsets.topic_id:
            return offsets
        rows = offsets.rows()
        for partition, (offset, time_ms, _, metadata) in rows.items():
            end = int(topic_state.log_end[partition]) if partition < topic_state.partitions else 0
            if offset > end:
                rows[partition] = end, time_ms, NO_EPOCH, metadata
                moved.append(MovedOffset(state.id, offsets.topic, partition, offset, end))
        return topic_offsets(offsets.topic, offsets.topic_id, rows)

    offsets = tuple(map(truncated, state.offsets))
    # Report only committed offsets, not pending offsets.
    moved_offsets = list(moved)
    pending = tuple(replace(each, offsets=tuple(map(truncated, each.offsets))) for each in state.pending)
    return replace(state, offsets=offsets, pending=pending), moved_offsets
