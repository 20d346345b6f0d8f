"""`backup`: copy a root into a repository, from which it can be restored as it was at the backup or before.

1. Mark the run in the repository, so that no prune deletes what it relies on.
2. Take a cut of all topics, decisions and groups, and the next number (see `repository`); then hold the version of each
   topic, so that the vacuum keeps what it names. A version that fell below the upload floor meanwhile is refused: take
   a new cut.
3. Copy the entries of decisions and groups, then data files, then commits and a checkpoint of each topic's cut. What
   is there already is not read again; every byte that is copied is checked.
4. Create the manifest, unless a prune took this run for dead: from here on it is a backup. Release the holds.

Whatever it is killed at, there is a backup or there is none; the next run uses what was copied. Holds of a dead run
end by themselves after a day, its mark after six hours. Between the last backup's cut and this one's all commits are
copied, too, and the files that these versions name as far as they are still there, so that any can be restored.
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
    EntriesBackup,
    LeftOut,
    Manifest,
    TopicBackup,
    backup_key,
)
from sparklog.log.topic.inventory import (
    FilesOfVersions,
    files_of_versions,
    merged,
    named_files,
    oldest_base,
    start_at,
)
from sparklog.log.topic.root import Root
from sparklog.storage.store import Store
from sparklog.tools.backup import copying
from sparklog.tools.backup.consistent_cut import Cut, cut_now, writers_in
from sparklog.tools.backup.damaged_logs import DamagedLogs
from sparklog.tools.backup.repository import BACKUP, Mark, Repository, begun_key, newest_number, take_number

_LOG = logging.getLogger("sparklog.backup")
HOLD_MS = 86_400_000
CUTS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """A backup that is not made: versions of `topics`, files and bytes to copy, damaged logs that would be left out."""

    topics: Mapping[str, int]
    decisions: int
    groups: int
    files: int
    nbytes: int
    left_out: tuple[LeftOut, ...] = ()


@dataclass
class Holds:
    """A run's holds in the source; renewed while it runs. There are none in a source that cannot be written."""

    root: Root
    name: str
    versions: dict[str, int] = field(default_factory=dict)
    since_ms: int = 0

    def take(self, versions: Mapping[str, int], *, may_be_below: bool = False) -> None:
        """Hold versions of topics. `Conflict` if one is below the upload floor by now; or it `may_be_below`, unheld."""
        if not self.root.store.writable:
            _LOG.warning(
                "%s is read-only for this user: it is copied without leases, so a sparklog retain that runs elsewhere "
                "meanwhile may take files away; run again if one is missing",
                self.root.store.location,
            )
            return
        self.since_ms = self.root.store.now_ms()
        for name, version in versions.items():
            # The answer may be lost: what was asked for is released.
            self.versions[name] = version
            try:
                self._commit(name, VersionLease(version, self.since_ms + HOLD_MS))
            except Conflict:
                if not may_be_below:
                    raise
                del self.versions[name]

    def renew(self) -> None:
        """Renew the leases when half of their time is over."""
        if self.versions and self.root.store.now_ms() - self.since_ms > HOLD_MS // 2:
            self.take(self.versions)

    def release(self) -> None:
        """Release the holds; where that fails they end by themselves."""
        for name in self.versions:
            with suppress(SparklogError, OSError):
                self._commit(name, None)

    def _commit(self, name: str, hold: VersionLease | None) -> None:
        log = self.root.engine.log(name)
        # The cut may have read further than the root has.
        log.commit(MaintainIntent(log.refresh().topic_state.topic_id, holds={self.name: hold}))


def plan_backup(root: Root, target: Store, *, topics: Collection[str] | None = None) -> Plan:
    """Plan what `back_up` would copy now. Changes nothing."""
    _refuse_backup(root)
    cut = cut_now(root, topics)
    snapshots = (History(root.store, name, root.env).at(state.version) for name, state in cut.topics.items())
    files = merged(file for snapshot in snapshots for file in named_files(snapshot).files())
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
    """Back a root up into a repository (made if there is none). Returns the manifest of the new backup.

    `topics`: only these (None: all, and deleted ones whose data is still there); damaged logs of ids and groups that
    have nothing to do with these are left out, as the manifest says. `link`: hard links where both are on
    one disk, which protects from deletion and not from damage. Raises `Corrupt` naming the file and position of
    damaged bytes, then there is no backup; `Conflict` while a prune is at work; `BadRequest` if another root's backups
    or `target` holds anything else.
    """
    _refuse_backup(root)
    for name in topics or ():
        # Before the repository is made: a mistyped name leaves nothing behind.
        root.topic(name)
    repository = Repository.open_or_create(target, root.id, root.env)
    options = copying.CopyOptions(link, at_once, progress, root.env)
    for left in reversed(range(root.store.limits.backup_tries)):
        with Mark(repository, root.env, BACKUP) as mark:
            run = _BackupRun(root, repository, mark, options)
            try:
                return run.make(topics)
            except NotFound:
                # The vacuum or another maintenance took a commit or an entry that had just been listed: look again.
                if not left:
                    raise
            finally:
                run.release()
    raise AssertionError("unreachable")


def _refuse_backup(root: Root) -> None:
    """`BadRequest` for a backup, which is no newer state of its root."""
    if isinstance(root.store, BackupStore):
        raise BadRequest(f"{root.location} is a place of backups, expected a root: copy its folder, or restore it")


class _BackupRun:
    def __init__(self, root: Root, repository: Repository, mark: Mark, options: copying.CopyOptions) -> None:
        self.root = root
        self.repository = repository
        self.mark = mark
        self.options = options
        self.id = root.env.new_id()
        self.holds = Holds(root, f"backup:{self.id}")
        self.copied = copying.Copied()
        self.damaged = DamagedLogs(root.store, env=root.env)
        self.started_ms = 0
        self.number = 0
        self.undecided = False

    def release(self) -> None:
        """Release the holds, and the number if it is known whether the backup was published."""
        self.holds.release()
        if self.number and not self.undecided:
            with suppress(SparklogError, OSError):
                self.repository.store.delete(begun_key(self.number))
            self.number = 0

    def make(self, topics: Collection[str] | None) -> Manifest:
        before = self.repository.manifests()
        cut = self._held_cut(topics)
        self.damaged = DamagedLogs(self.root.store, strict=topics is None, env=self.root.env)
        # Entries first: those of groups may be gone when files have been copied for days, and nothing holds them.
        decisions = self._all_entries(DECISIONS, cut.decisions, [manifest.decisions for manifest in before])
        groups = self._all_entries(GROUPS, cut.groups, [manifest.groups for manifest in before])
        state = self.root.defaults()
        defaults = self._all_entries(DEFAULTS, {ID: state} if state.number >= 0 else {}, ())
        topic_files = {name: self._named(name, topic_state, before) for name, topic_state in sorted(cut.topics.items())}
        missing = self._copy_files(topic_files)
        items = tuple(self._topic(name, named, missing) for name, named in topic_files.items())
        if self.damaged.damage:
            writers = {writer for named in topic_files.values() for writer in writers_in(named.last.slices)}
            self.damaged.check({item.topic: item.topic_id for item in items}, writers, cut.groups.values())
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
                items,
                decisions,
                groups,
                None if topics is None else tuple(sorted(set(topics))),
                tuple(sorted({*cut.left_out, *self.damaged.left_out()}, key=lambda item: item.folder)),
                defaults,
            )
        )

    def _held_cut(self, topics: Collection[str] | None) -> Cut:
        for left in reversed(range(CUTS)):
            newest = newest_number(self.repository.store)
            self.started_ms = self.root.env.wall_ms()
            try:
                cut = cut_now(self.root, topics)
                if not take_number(self.repository.store, newest + 1, self.id, self.root.env):
                    location = self.repository.store.location
                    raise Conflict(f"other backups into {location} are begun all the time; try again later")
                self.number = newest + 1
                self.holds.take(cut.versions())
                return cut
            except (Conflict, Unavailable):
                # Another backup was begun meanwhile, or the cut was so slow that the vacuum has passed it, or it was
                # deleted meanwhile, or hidden by a cache for a moment.
                if not left:
                    raise
                self.release()
        raise AssertionError("unreachable")

    def _named(self, name: str, state: TopicState, before: Sequence[Manifest]) -> FilesOfVersions:
        history = History(self.root.store, name, self.root.env)
        last = next(filter(None, (manifest.topic(name) for manifest in reversed(before))), None)
        if last is not None and last.version > state.version:
            raise Corrupt(
                f"topic '{name}' is at version {state.version}, its last backup has version {last.version}: this is "
                "not the log that was backed up"
            )
        base = oldest_base(history, state.version)
        if last is not None and last.version >= base and history.commits.has(last.version + 1, state.version):
            # The state comes from the backup itself, the rest along the source's chain: they must be one log.
            begin = History(self.repository.store, name).at(last.version)
            if begin.state.crc != last.crc:
                raise Corrupt(f"version {last.version} of topic '{name}' is not what its backup says; delete the place")
        else:
            begin = start_at(history, base)
        named = files_of_versions(history, begin, state.version)
        if named.last.state.crc != state.crc:
            raise Corrupt(f"version {state.version} of topic '{name}' is not what its log leads to: run verify")
        return named

    def _copy_files(self, topic_files: Mapping[str, FilesOfVersions]) -> set[str]:
        """Copy what all these versions name; return keys of files of older versions that are gone."""
        files = merged(file for named in topic_files.values() for file in named.files.values())
        needed = {file.key for named in topic_files.values() for file in named.of_last()}
        missing: set[str] = set()

        def lost(item: copying.FileCopy) -> None:
            if item.to in needed:
                raise NotFound(f"{item.to} is missing, and the newest version names it: run verify")
            missing.add(item.to)

        def look() -> None:
            self.holds.renew()
            self.mark.check()

        # What the cut names first: it is held, and the rest is not.
        in_order = [copying.FileCopy(files[key], key) for key in sorted(files, key=lambda key: key not in needed)]
        self.copied += copying.copy_all(self.root.store, self.repository.store, in_order, self.options, look, lost)
        return missing

    def _topic(self, name: str, named: FilesOfVersions, missing: set[str]) -> TopicBackup:
        store = self.repository.store
        for version in range(named.base.version + 1, named.last.version + 1):
            self._put(commit_key(name, version), self.root.store.get(commit_key(name, version)))
        for snapshot in (named.base, named.last):
            if snapshot.version >= 0:
                self.copied += write_checkpoint(store, snapshot, self.root.env.new_id(), self.root.env)
        state = named.last.state
        since = named.since(missing & named.files.keys())
        return TopicBackup(
            name,
            state.topic_id,
            state.version,
            state.crc or 0,
            state.made_ms,
            state.deleted,
            named.base.version,
            since,
            named.times.get(since, named.base.state.made_ms),
            sum(file.size for file in named.of_last()),
        )

    def _all_entries(
        self, kind: EntryKind[E], states: Mapping[str, E], before: Sequence[Sequence[EntriesBackup]]
    ) -> tuple[EntriesBackup, ...]:
        last = {item.id: item for entries in before for item in entries}
        copied = [self._entries(kind, state, last.get(name)) for name, state in sorted(states.items())]
        return tuple(item for item in copied if item is not None)

    def _entries(self, kind: EntryKind[E], state: E, last: EntriesBackup | None) -> EntriesBackup | None:
        """Copy the entries of an id since its last backup, as far as they are there; None: damaged, and left out."""
        chain = EntryChain(self.root.store, kind, state.id, self.root.env)
        kept = chain.span()
        if not kept.first <= state.number <= kept.last:
            raise NotFound(f"{kind.title(state.id)} lost its entries while they were read; try again")
        # Always the one before the last, too: a restored log has two entries to be opened from.
        first = min(kept.first if last is None else max(kept.first, last.number), max(kept.first, state.number - 1))
        link: int | None = None
        since_ms = 0
        for number in range(first, state.number + 1):
            stored = self.damaged.read(chain.prefix, _read_entry, chain, number, link)
            if stored is None:
                return None
            data, entry = stored
            if number == first and kept.first > (0 if last is None else last.number):
                since_ms = entry.made_ms
            link = entry.crc
            self._put(commit_key(chain.prefix, number), data)
        return EntriesBackup(state.id, first, state.number, since_ms)

    def _put(self, key: str, data: bytes) -> None:
        """Create a small object; what is there already must be the same."""
        store = self.repository.store
        existing = create_or_read(store, key, data, self.root.env)
        if existing is None:
            self.copied += copying.Copied(1, len(data))
        elif data not in (existing, store.get(key)):
            # Read again, as a bit may have flipped on the way.
            raise Corrupt(f"{store.location} holds something else under this key; delete it there", file=key)

    def _publish(self, manifest: Manifest) -> Manifest:
        """Create the manifest. `Conflict` if a prune has decided meanwhile that there is no such backup."""
        key, data = backup_key(manifest.number), MANIFEST_JSON.encode(manifest)
        # Until there is an answer: it may be there, or come to be there later.
        self.undecided = True
        published = create_or_read(self.repository.store, key, data, self.root.env) in (None, data)
        self.undecided = False
        if not published:
            raise Conflict(
                f"this run stood still for too long in {self.repository.store.location}, and a prune has given backup "
                f"{manifest.number} up; run it again"
            )
        return manifest


def _read_entry(chain: EntryChain[E], number: int, link: int | None) -> tuple[bytes, E]:
    """Return an entry and its bytes; `link`: CRC-32C of the entry before, None: the first that is copied."""
    stored = chain.read(number)
    if stored is None:
        raise NotFound(f"entry {number} of {chain.kind.title(chain.id)} is no longer kept")
    if link is not None and stored[1].prev_crc != link:
        raise Corrupt(f"entry {number} does not follow the one before", file=commit_key(chain.prefix, number))
    return stored


def write_checkpoint(store: Store, snapshot: Snapshot, unique: str, env: Env) -> copying.Copied:
    """Write a checkpoint of a state, unless one that can be read is there: table first, then head."""
    key = checkpoint_key(snapshot.topic, snapshot.version)
    with suppress(NotFound):
        decode_checkpoint(store.get(key), key, snapshot.version)
        return copying.Copied()
    table_key, data, table = slice_table(snapshot, unique)
    if create_or_read(store, table_key, data, env) not in (None, data):
        raise Unavailable(f"{table_key} in {store.location} is not what was written; try again later")
    state = encode_checkpoint(Checkpoint(snapshot.state, table))
    create_or_read(store, key, state, env)
    return copying.Copied(2, table.size + len(state))
