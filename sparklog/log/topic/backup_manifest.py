"""The manifest of a backup: the topics, ids and groups that it has, and where each of their journals ends.

Manifests are below `_backups/` in a place of backups, next to what they name, which is under the keys that it has in a
root. docs/reference/format-backups.md says what the members mean.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from sparklog.errors import Corrupt, NotFound
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
from sparklog.log.journal.names import ROOT_MEMBERS, RootId, numbers_below
from sparklog.storage.store import Store

BACKUPS_FOLDER = "_backups"


@dataclass(frozen=True, slots=True)
class TopicBackup:
    """A topic in a backup: checkpoints `version` and `base` (-1: none); restorable from `since` to `version`."""

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
    """Entries `first` to `number` of an id; `since_ms`: time of the first if older ones are in no backup, else 0."""

    id: str
    first: int
    number: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A log of a transactional id or group that is damaged and not in the backup: its folder, whose, and the error."""

    folder: str
    id: str
    damage: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. `objects`, `nbytes`: copied by its run; `only`: the topics that were asked for, None: all."""

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
    left_out: tuple[LeftOut, ...] = ()
    defaults: tuple[EntriesBackup, ...] = ()
    """Of the root: all entries, or none where it has none."""

    def covers(self, topics: Collection[str] | None) -> bool:
        return self.only is None if topics is None else all(self.topic(name) is not None for name in topics)

    def topic(self, name: str) -> TopicBackup | None:
        return next((item for item in self.topics if item.topic == name), None)

    @property
    def total_bytes(self) -> int:
        return sum(item.nbytes for item in self.topics)

    @property
    def from_ms(self) -> int:
        """The time from which on all that is in it can be restored, up to the cut; 0: from the beginning on."""
        entries = (item.since_ms for item in (*self.decisions, *self.groups))
        topics = (item.since_ms for item in self.topics if item.base >= 0 or item.since > 0)
        return max([0, *topics, *entries])


REPOSITORY_JSON = StoredDocument("place of backups", RootId, *ROOT_MEMBERS)


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
LEFT_OUT_JSON = Document(LeftOut, Member("folder", TEXT), Member("id", TEXT), Member("damage", TEXT))
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
    Member("leftOut", objects_of(LEFT_OUT_JSON)),
    Member("defaults", objects_of(ENTRIES_JSON), optional=True),
)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A number under which there is no backup, and never will be."""

    number: int
    root_id: str
    given_up_ms: int


GIVEN_UP_JSON = StoredDocument(
    "backup", GivenUp, Member("number", whole(1)), Member("rootId", TEXT), Member("givenUpMs", whole(0))
)


def backup_key(number: int) -> str:
    return f"{BACKUPS_FOLDER}/{number:020d}.json"


def backup_numbers(store: Store) -> list[int]:
    return numbers_below(store, f"{BACKUPS_FOLDER}/0")


def read_manifest(store: Store, number: int) -> Manifest | None:
    """None: the number was given up, or its backup dropped since it was listed. `Corrupt` if it is damaged."""
    with suppress(NotFound):
        try:
            return _decoded(store, number)
        except Corrupt:
            # A bit that flipped on the way: read again before calling it damaged.
            return _decoded(store, number)
    return None


def _decoded(store: Store, number: int) -> Manifest | None:
    key = backup_key(number)
    item = MANIFEST_JSON.fields(store.get(key), key)
    if "givenUpMs" in item.document:
        GIVEN_UP_JSON.from_json(item)
        return None
    manifest = MANIFEST_JSON.from_json(item)
    if manifest.number != number:
        raise Corrupt(f"backup {number} should be here, found backup {manifest.number}", file=key)
    return manifest
