"""Copy a root to a backup repository. The state at the time of the backup, or an earlier state, can be restored from
it.

1. Write the mark of the run to the repository, so that a prune does not delete objects that the run requires.
2. Take a consistent cut of all topics, decisions and groups, and claim the next backup number (see `repository`). Then
   lease the version of each topic, so that the vacuum retains its files. If a version is already below the retention
   floor, take a new cut.
3. Copy the entries of decisions and groups, then the data files, then the commits and a checkpoint of each topic's
   version. Existing objects are not read again, and every copied byte is checked.
4. Unless a prune has abandoned the backup number, create the manifest, which publishes the backup. Release the leases.

If the process is killed, the backup is either complete or does not exist, and the next run reuses the copied objects.
The leases of a killed run expire after a day, and the mark of the run expires after six hours. The backup also contains
all commits since the previous backup and the existing files of these versions, so that each of these versions can be
restored.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.groups.group_state import GROUPS
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.chain import EntryChain
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.create_object import create_or_read
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.state.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint, slice_table
from sparklog.log.state.commit import VersionLease
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.history import History
from sparklog.log.state.root_defaults import DEFAULTS, ID
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.backup_manifest import (
    MANIFEST_JSON,
    BackupStore,
    DamagedJournal,
    EntriesBackup,
    Manifest,
    TopicBackup,
    backup_key,
)
from sparklog.log.topic.inventory import (
    FilesOfVersions,
    files_of_versions,
    merge_files,
    oldest_base,
    referenced_files,
    start_at,
)
from sparklog.log.topic.root import Root
from sparklog.storage.store import Store
from sparklog.tools.backup import copying
from sparklog.tools.backup.consistent_cut import Cut, cut_now, writers_in
from sparklog.tools.backup.damaged_logs import DamagedLogs
from sparklog.tools.backup.repository import BACKUP, Mark, Repository, claim_key, claim_number, latest_number

_LOG = logging.getLogger("sparklog.backup")
LEASE_MS = 86_400_000
MAX_CUTS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a backup: versions of topics, the files and bytes to copy, and damaged journals to skip."""

    topics: Mapping[str, int]
    decisions: int
    groups: int
    files: int
    nbytes: int
    left_out: tuple[DamagedJournal, ...] = ()


@dataclass
class VersionLeases:
    """The leases that a run holds and renews in the source. If the source is read-only, no leases are acquired."""

    root: Root
    name: str
    versions: dict[str, int] = field(default_factory=dict)
    since_ms: int = 0

    def acquire(self, versions: Mapping[str, int], *, may_be_below: bool = False) -> None:
        """Lease versions of topics.

        Raises `Conflict` if a version is below the retention floor. If `may_be_below` is True, such a version is not
        leased.
        """
        if not self.root.store.writable:
            _LOG.warning(
                "%s is read-only for this user and is copied without leases, so sparklog retain may delete files "
                "during the copy; if a file is missing, run the command again",
                self.root.store.location,
            )
            return
        self.since_ms = self.root.store.now_ms()
        for name, version in versions.items():
            # If the response is lost, the lease may exist, so it must be released.
            self.versions[name] = version
            try:
                self._commit(name, VersionLease(version, self.since_ms + LEASE_MS))
            except Conflict:
                if not may_be_below:
                    raise
                del self.versions[name]

    def renew(self) -> None:
        """Renew the leases after half of their duration."""
        if self.versions and self.root.store.now_ms() - self.since_ms > LEASE_MS // 2:
            self.acquire(self.versions)

    def release(self) -> None:
        """Release the leases. If a lease cannot be released, it expires."""
        for name in self.versions:
            with suppress(SparklogError, OSError):
                self._commit(name, None)

    def _commit(self, name: str, lease: VersionLease | None) -> None:
        log = self.root.engine.log(name)
        # The cut may contain later versions than the root has read.
        log.commit(MaintainIntent(log.refresh().topic_state.topic_id, leases={self.name: lease}))


def plan_backup(root: Root, target: Store, *, topics: Collection[str] | None = None) -> Plan:
    """Return the plan of a backup, without writing any objects."""
    _reject_backup(root)
    cut = cut_now(root, topics)
    snapshots = (History(root.store, name, root.env).at(state.version) for name, state in cut.topics.items())
    files = merge_files(file for snapshot in snapshots for file in referenced_files(snapshot).files())
    present = copying.listed(target, files)
    missing = [file for key, file in files.items() if key not in present]
    nbytes = sum(file.size for file in missing)
    versions = dict(sorted(cut.versions().items()))
    return Plan(versions, len(cut.decisions), len(cut.groups), len(missing), nbytes, cut.left_out)


def back_up(
    root: Root,
    target: Store,
    *,
    topics: Collection[str] | None = None,
    link: bool = False,
    at_once: int = copying.AT_ONCE,
    progress: copying.Progress = copying.silent,
) -> Manifest:
    """Back up a root to a repository. The repository is created if it does not exist.

    Args:
        topics: the topics to back up. Damaged journals of transactional ids and groups are skipped if they do not
            concern these topics. If None, all topics are backed up, including deleted topics whose data still exists.
        link: create hard links if source and repository are on the same disk. A hard link protects a file from
            deletion, but not from corruption.
        at_once: the maximum number of files to copy concurrently.
        progress: called after each file.

    Returns:
        The manifest of the new backup.

    Raises:
        Corrupt: If a file is corrupt. No backup is written, and the error contains the file and position.
        Conflict: If a prune is running.
        BadRequest: If `target` contains backups of another root, or other files.
    """
    _reject_backup(root)
    for name in topics or ():
        # Check names first, so that the repository is not created if a name is wrong.
        root.topic(name)
    repository = Repository.open_or_create(target, root.id, root.env)
    options = copying.CopyOptions(link, at_once, progress, root.env)
    for remaining in reversed(range(root.store.limits.backup_tries)):
        with Mark(repository, root.env, BACKUP) as mark:
            run = _BackupRun(root, repository, mark, options)
            try:
                return run.make(topics)
            except NotFound:
                # Maintenance has deleted a commit or an entry after it was listed, so start again.
                if not remaining:
                    raise
            finally:
                run.release()
    raise AssertionError("unreachable")


def _reject_backup(root: Root) -> None:
    """Raise `BadRequest` if the root is a backup."""
    if isinstance(root.store, BackupStore):
        message = f"{root.location} is a backup repository, expected a root; copy the directory, or restore a backup"
        raise BadRequest(message)


class _BackupRun:
    def __init__(self, root: Root, repository: Repository, mark: Mark, options: copying.CopyOptions) -> None:
        self.root = root
        self.repository = repository
        self.mark = mark
        self.options = options
        self.id = root.env.new_id()
        self.leases = VersionLeases(root, f"backup:{self.id}")
        self.copied = copying.Copied()
        self.damaged = DamagedLogs(root.store, env=root.env)
        self.started_ms = 0
        self.number = 0
        self.is_publishing = False

    def release(self) -> None:
        """Release the leases. Also release the claimed number if it is known whether the backup was published."""
        self.leases.release()
        if self.number and not self.is_publishing:
            with suppress(SparklogError, OSError):
                self.repository.store.delete(claim_key(self.number))
            self.number = 0

    def make(self, topics: Collection[str] | None) -> Manifest:
        before = self.repository.manifests()
        cut = self._leased_cut(topics)
        self.damaged = DamagedLogs(self.root.store, strict=topics is None, env=self.root.env)
        # Copy the entries first, because leases do not protect entries, and copying the files can take days.
        decisions = self._all_entries(DECISIONS, cut.decisions, [manifest.decisions for manifest in before])
        groups = self._all_entries(GROUPS, cut.groups, [manifest.groups for manifest in before])
        state = self.root.defaults()
        defaults = self._all_entries(DEFAULTS, {ID: state} if state.number >= 0 else {}, ())
        topic_files = {name: self._topic_files(name, state, before) for name, state in sorted(cut.topics.items())}
        missing = self._copy_files(topic_files)
        backups = tuple(self._topic(name, files, missing) for name, files in topic_files.items())
        if self.damaged.damage:
            writers = {writer for files in topic_files.values() for writer in writers_in(files.last.slices)}
            self.damaged.check({backup.topic: backup.topic_id for backup in backups}, writers, cut.groups.values())
        self.mark.check()
        return self._publish(
            Manifest(
                self.number,
                self.id,
                self.root.id,
                self.started_ms,
                self.root.env.wall_ms(),
                self.copied.objects,
                self.copied.nbytes,
                backups,
                decisions,
                groups,
                None if topics is None else tuple(sorted(set(topics))),
                tuple(sorted({*cut.left_out, *self.damaged.left_out()}, key=lambda skipped: skipped.folder)),
                defaults,
            )
        )

    def _leased_cut(self, topics: Collection[str] | None) -> Cut:
        for remaining in reversed(range(MAX_CUTS)):
            latest = latest_number(self.repository.store)
            self.started_ms = self.root.env.wall_ms()
            try:
                cut = cut_now(self.root, topics)
                if not claim_number(self.repository.store, latest + 1, self.id, self.root.env):
                    location = self.repository.store.location
                    raise Conflict(f"concurrent backups to {location} claimed all numbers; try again later")
                self.number = latest + 1
                self.leases.acquire(cut.versions())
                return cut
            except (Conflict, Unavailable):
                # Another backup has claimed the number, the vacuum has deleted a version of the cut, or a cache
                # temporarily hides an object.
                if not remaining:
                    raise
                self.release()
        raise AssertionError("unreachable")

    def _topic_files(self, name: str, state: TopicState, before: Sequence[Manifest]) -> FilesOfVersions:
        """Return the files of all versions since the last backup of the topic."""
        history = History(self.root.store, name, self.root.env)
        last = next(filter(None, (manifest.topic(name) for manifest in reversed(before))), None)
        if last is not None and last.version > state.version:
            raise Corrupt(
                f"topic '{name}' is at version {state.version}, but its last backup has version "
                f"{last.version}, so this "
                "is not the root that was backed up; use another repository"
            )
        base = oldest_base(history, state.version)
        if last is not None and last.version >= base and history.commits.has(last.version + 1, state.version):
            # The state comes from the backup, and later commits come from the source. Check that both belong to the
            # same log.
            start = History(self.repository.store, name).at(last.version)
            if start.state.crc != last.crc:
                raise Corrupt(
                    f"version {last.version} of topic '{name}' in {self.repository.store.location} has CRC-32C "
                    f"{start.state.crc}, but its manifest has {last.crc}; delete the repository and back up again"
                )
        else:
            start = start_at(history, base)
        files = files_of_versions(history, start, state.version)
        if files.last.state.crc != state.crc:
            raise Corrupt(
                f"version {state.version} of topic '{name}' contradicts the earlier commits; run sparklog verify"
            )
        return files

    def _copy_files(self, topic_files: Mapping[str, FilesOfVersions]) -> set[str]:
        """Copy the files of all versions. Return the keys of missing files that only earlier versions reference."""
        files = merge_files(file for each in topic_files.values() for file in each.files.values())
        needed = {file.key for each in topic_files.values() for file in each.of_last()}
        missing: set[str] = set()

        def on_missing(copy: copying.FileCopy) -> None:
            if copy.to in needed:
                raise NotFound(f"{copy.to} is missing, although the latest version references it; run sparklog verify")
            missing.add(copy.to)

        def renew() -> None:
            self.leases.renew()
            self.mark.check()

        # Copy the files of the cut first, because the leases protect only these files. Other files may be deleted
        # during the copy.
        in_order = [copying.FileCopy(files[key], key) for key in sorted(files, key=lambda key: key not in needed)]
        source, target = self.root.store, self.repository.store
        self.copied += copying.copy_all(source, target, in_order, self.options, renew, on_missing)
        return missing

    def _topic(self, name: str, files: FilesOfVersions, missing: set[str]) -> TopicBackup:
        """Copy the commits of a topic and write its checkpoints."""
        store = self.repository.store
        for version in range(files.base.version + 1, files.last.version + 1):
            self._put(commit_key(name, version), self.root.store.get(commit_key(name, version)))
        for snapshot in (files.base, files.last):
            if snapshot.version >= 0:
                self.copied += write_checkpoint(store, snapshot, self.root.env.new_id(), self.root.env)
        state = files.last.state
        since = files.since(missing & files.files.keys())
        return TopicBackup(
            name,
            state.topic_id,
            state.version,
            state.crc or 0,
            state.created_ms,
            state.deleted,
            files.base.version,
            since,
            files.times.get(since, files.base.state.created_ms),
            sum(file.size for file in files.of_last()),
        )

    def _all_entries(
        self, kind: EntryKind[E], states: Mapping[str, E], before: Sequence[Sequence[EntriesBackup]]
    ) -> tuple[EntriesBackup, ...]:
        last = {backup.id: backup for entries in before for backup in entries}
        copied = [self._entries(kind, state, last.get(name)) for name, state in sorted(states.items())]
        return tuple(backup for backup in copied if backup is not None)

    def _entries(self, kind: EntryKind[E], state: E, last: EntriesBackup | None) -> EntriesBackup | None:
        """Copy the journal entries that were written since the last backup. Return None if the journal is damaged."""
        chain = EntryChain(self.root.store, kind, state.id, self.root.env)
        span = chain.span()
        if not span.first <= state.number <= span.last:
            raise NotFound(f"entries of {kind.title(state.id)} were deleted during the backup; try again")
        # Always copy the last two entries, because a restored journal starts with two entries.
        first = min(span.first if last is None else max(span.first, last.number), max(span.first, state.number - 1))
        link: int | None = None
        since_ms = 0
        for number in range(first, state.number + 1):
            stored = self.damaged.read(chain.prefix, _read_entry, chain, number, link)
            if stored is None:
                return None
            data, entry = stored
            if number == first and span.first > (0 if last is None else last.number):
                since_ms = entry.created_ms
            link = entry.crc
            self._put(commit_key(chain.prefix, number), data)
        return EntriesBackup(state.id, first, state.number, since_ms)

    def _put(self, key: str, data: bytes) -> None:
        """Create a small object. Raises an error if the object already exists and contains different bytes."""
        store = self.repository.store
        existing = create_or_read(store, key, data, self.root.env)
        if existing is None:
            self.copied += copying.Copied(1, len(data))
        elif data not in (existing, store.get(key)):
            # The existing object has been read twice, because a bit may have been flipped during a transfer.
            raise Corrupt(
                f"the object with this key in {store.location} has different contents; delete the object "
                "in the repository",
                file=key,
            )

    def _publish(self, manifest: Manifest) -> Manifest:
        """Create the manifest. Raises `Conflict` if a prune has abandoned this backup."""
        key, data = backup_key(manifest.number), MANIFEST_JSON.encode(manifest)
        # Until the store responds, it is unknown whether the manifest exists.
        self.is_publishing = True
        published = create_or_read(self.repository.store, key, data, self.root.env) in (None, data)
        self.is_publishing = False
        if not published:
            raise Conflict(
                f"this run was paused for too long, and a prune has abandoned backup {manifest.number} in "
                f"{self.repository.store.location}; run the backup again"
            )
        return manifest


def _read_entry(chain: EntryChain[E], number: int, link: int | None) -> tuple[bytes, E]:
    """Return an entry and its bytes. `link` is the CRC-32C of the previous entry, or None if the entry is the first
    one.
    """
    stored = chain.read(number)
    if stored is None:
        raise NotFound(f"entry {number} of {chain.kind.title(chain.id)} has been deleted")
    if link is not None and stored[1].prev_crc != link:
        raise Corrupt(f"entry {number} does not follow entry {number - 1}", file=commit_key(chain.prefix, number))
    return stored


def write_checkpoint(store: Store, snapshot: Snapshot, unique: str, env: Env) -> copying.Copied:
    """Write the table and then the document of a checkpoint, unless a valid checkpoint exists."""
    key = checkpoint_key(snapshot.topic, snapshot.version)
    with suppress(NotFound):
        decode_checkpoint(store.get(key), key, snapshot.version)
        return copying.Copied()
    table_key, data, table = slice_table(snapshot, unique)
    if create_or_read(store, table_key, data, env) not in (None, data):
        raise Unavailable(
            f"the contents of {table_key} in {store.location} differ from what was written; try again later"
        )
    document = encode_checkpoint(Checkpoint(snapshot.state, table))
    create_or_read(store, key, document, env)
    return copying.Copied(2, table.size + len(document))
