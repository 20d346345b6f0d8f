"""The manifest of a backup: its topics, transactional ids and groups, and the end of each of their journals.

A backup repository has its manifests below `_backups/`. The objects that they reference have the same keys as in a
root. docs/reference/format-backups.md describes the fields.

A repository also contains objects of other backups and of backups in progress. If `open_root` opens a repository, it
uses a `BackupStore`, which presents one backup as a read-only root:

* `_root.json` is the repository's `_backup.json`, which has the same fields.
* The journal of a topic, a group or an id ends at the end that the manifest records. Journals that the manifest does
  not list do not exist.
* The last entry of a group or an id is also its checkpoint, because a repository may not have the first entries.
* All data files are visible, because only commits reference them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from typing import TypeVar

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.log.journal.documents import (
    BOOLEAN,
    TEXT,
    TEXTS,
    UINT32_MAX,
    Document,
    Fields,
    Member,
    StoredDocument,
    members,
    objects_of,
    whole,
)
from sparklog.log.journal.names import (
    LOG_FOLDER,
    REPOSITORY_KEY,
    ROOT_KEY,
    ROOT_MEMBERS,
    RootId,
    checkpoint_key,
    commit_key,
    entry_number,
    folder_topic,
    groups_prefix,
    numbers_below,
    topic_folder,
    transactions_prefix,
)
from sparklog.log.journal.stored_object import read_object
from sparklog.log.state.root_defaults import DEFAULTS
from sparklog.storage.store import ObjectInfo, Store, missing_object
from sparklog.storage.wrapper_store import WrapperStore

BACKUPS_FOLDER = "_backups"


@dataclass(frozen=True, slots=True)
class TopicBackup:
    """A topic in a backup. The backup contains the checkpoints `version` and `base`. `base` is -1 if there is no base
    checkpoint. `since` is the first version that can be restored.
    """

    topic: str
    topic_id: str
    version: int
    crc: int
    time_ms: int
    deleted: bool
    base: int
    since: int
    since_ms: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class EntriesBackup:
    """Entries `first` to `number` of an id.

    `since_ms` is the time of the first entry, or 0 if a backup has earlier entries.
    """

    id: str
    first: int
    number: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class DamagedJournal:
    """The directory, id and error of a damaged journal of a transactional id or group. The backup does not contain this
    journal.
    """

    folder: str
    id: str
    damage: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one backup. `objects` and `nbytes` are the numbers of objects and bytes that the backup run
    copied. `only` contains the requested topics, or None if all topics were requested.
    """

    number: int
    id: str
    root_id: str
    started_ms: int
    completed_ms: int
    objects: int
    nbytes: int
    topics: tuple[TopicBackup, ...]
    decisions: tuple[EntriesBackup, ...] = ()
    groups: tuple[EntriesBackup, ...] = ()
    only: tuple[str, ...] | None = None
    left_out: tuple[DamagedJournal, ...] = ()
    defaults: tuple[EntriesBackup, ...] = ()
    """All entries of the root defaults. Empty if there are no entries."""

    def covers(self, topics: Collection[str] | None) -> bool:
        return self.only is None if topics is None else all(self.topic(name) is not None for name in topics)

    def topic(self, name: str) -> TopicBackup | None:
        return next((item for item in self.topics if item.topic == name), None)

    def journals(self) -> dict[str, EntriesBackup]:
        """Return the journals of transactional ids, groups and root defaults, by prefix."""
        journals = {transactions_prefix(item.id): item for item in self.decisions}
        journals |= {groups_prefix(item.id): item for item in self.groups}
        return journals | {DEFAULTS.prefix(item.id): item for item in self.defaults}

    @property
    def total_bytes(self) -> int:
        return sum(item.nbytes for item in self.topics)

    @property
    def from_ms(self) -> int:
        """The earliest time to which the entire backup can be restored, or 0 if all versions can be restored."""
        entries = (item.since_ms for item in (*self.decisions, *self.groups))
        topics = (item.since_ms for item in self.topics if item.base >= 0 or item.since > 0)
        return max([0, *topics, *entries])


REPOSITORY_JSON = StoredDocument("backup repository", RootId, *ROOT_MEMBERS)


def _check_versions(item: Fields, topic: TopicBackup) -> None:
    item.integer("base", -1, topic.version)
    item.integer("since", 0, topic.version)


TOPIC_JSON = Document(
    TopicBackup,
    *members(TEXT, "topic", "topicId"),
    Member("version", whole(0)),
    Member("crc", whole(0, UINT32_MAX)),
    Member("timeMs", whole(0)),
    Member("deleted", BOOLEAN),
    Member("base", whole(-1)),
    *members(whole(0), "since", "sinceMs"),
    Member("bytes", whole(0), "nbytes"),
    check=_check_versions,
)
ENTRIES_JSON = Document(
    EntriesBackup,
    Member("id", TEXT),
    *members(whole(0), "first", "number", "sinceMs"),
    check=lambda item, entries: item.integer("first", 0, entries.number),
)
DAMAGED_JOURNAL_JSON = Document(DamagedJournal, Member("folder", TEXT), Member("id", TEXT), Member("damage", TEXT))
MANIFEST_JSON = StoredDocument(
    "backup",
    Manifest,
    Member("number", whole(1)),
    *members(TEXT, "id", "rootId"),
    *members(whole(0), "startedMs", "completedMs", "objects"),
    Member("bytes", whole(0), "nbytes"),
    Member("topics", objects_of(TOPIC_JSON)),
    *members(objects_of(ENTRIES_JSON), "decisions", "groups"),
    Member("only", TEXTS, nullable=True),
    Member("leftOut", objects_of(DAMAGED_JOURNAL_JSON)),
    Member("defaults", objects_of(ENTRIES_JSON), optional=True),
)


@dataclass(frozen=True, slots=True)
class AbandonedBackup:
    """The number of a backup that was never completed and never will be."""

    number: int
    root_id: str
    given_up_ms: int


ABANDONED_BACKUP_JSON = StoredDocument(
    "backup", AbandonedBackup, Member("number", whole(1)), Member("rootId", TEXT), Member("givenUpMs", whole(0))
)


def backup_key(number: int) -> str:
    return f"{BACKUPS_FOLDER}/{number:020d}.json"


def backup_numbers(store: Store) -> list[int]:
    return numbers_below(store, f"{BACKUPS_FOLDER}/0")


def read_manifest(store: Store, number: int) -> Manifest | None:
    """Return the manifest of a backup, or None if its number was abandoned or the backup was deleted.

    Raises `Corrupt` if it is damaged.
    """
    with suppress(NotFound):
        manifest = read_object(store, backup_key(number), _decoded, number).expect()
        return manifest if isinstance(manifest, Manifest) else None
    return None


def _decoded(data: bytes, key: str, number: int) -> Manifest | AbandonedBackup:
    item = MANIFEST_JSON.fields(data, key)
    if "givenUpMs" in item.document:
        return ABANDONED_BACKUP_JSON.from_json(item)
    manifest = MANIFEST_JSON.from_json(item)
    if manifest.number != number:
        raise Corrupt(f"expected backup {number}, found backup {manifest.number}", file=key)
    return manifest


T = TypeVar("T")
READS = ("get", "stat", "list", "list_folders", "now_ms")


def latest_backup(store: Store) -> BackupStore | None:
    """Return the latest backup of all topics, or the latest partial backup.

    None if the store is not a backup repository.

    Raises `NotFound` if no backup is complete.
    """
    if store.stat(REPOSITORY_KEY) is None:
        return None
    latest: Manifest | None = None
    for number in reversed(backup_numbers(store)):
        manifest = read_manifest(store, number)
        if manifest is not None and manifest.only is None:
            return BackupStore(store, manifest)
        latest = latest or manifest
    if latest is None:
        raise NotFound(f"{store.location} does not contain a complete backup; run sparklog backup")
    return BackupStore(store, latest)


def one_backup(store: Store, number: int) -> BackupStore:
    """Return a backup by its number. Raises `NotFound` if it does not exist."""
    manifest = read_manifest(store, number)
    if manifest is None:
        raise NotFound(
            f"backup {number} does not exist in {store.location}; `sparklog backup --list` lists all backups"
        )
    return BackupStore(store, manifest)


class BackupStore(WrapperStore):
    """Presents one backup as a read-only root (see the module docstring). `inner` is the backup repository."""

    needs_probe = False
    writable = False

    def __init__(self, inner: Store, manifest: Manifest) -> None:
        super().__init__(inner)
        entries = {prefix: item.number for prefix, item in manifest.journals().items()}
        self._ends = {topic_folder(item.topic): item.version for item in manifest.topics} | entries
        self._copies = {checkpoint_key(*entry): commit_key(*entry) for entry in entries.items()} | {
            ROOT_KEY: REPOSITORY_KEY
        }

    def request(self, verb: str, key: str, send: Callable[[], T]) -> T:
        if verb not in READS:
            raise BadRequest(
                f"{self.location} is a backup repository, which is read-only; use `sparklog restore` to create a root"
            )
        return send()

    def _has(self, key: str) -> bool:
        """Return False if the key belongs to a journal entry after the end of the journal in the backup."""
        prefix, journal, name = key.rpartition(f"/{LOG_FOLDER}/")
        number = entry_number(name) if journal else None
        return number is None or number <= self._ends.get(prefix, -1)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        # A read at a later position requests inline records, and a clone may reference inline records beyond the end of
        # the topic.
        if start == 0 and not self._has(key):
            raise missing_object(f"{key} in this backup")
        return self.inner.get(self._copies.get(key, key), start, length)

    def stat(self, key: str) -> ObjectInfo | None:
        info = self.inner.stat(self._copies.get(key, key)) if self._has(key) else None
        return None if info is None else replace(info, key=key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        copies = sorted(key for key in self._copies if key.startswith(prefix) and key > after)
        stored = (info for info in self.inner.list(prefix, after) if self._has(info.key) and info.key not in copies)
        return merge(stored, filter(None, map(self.stat, copies)), key=lambda info: info.key)

    def list_folders(self, prefix: str) -> Iterator[str]:
        for name in self.inner.list_folders(prefix):
            if prefix or name in self._ends or folder_topic(name) is None:
                yield name
