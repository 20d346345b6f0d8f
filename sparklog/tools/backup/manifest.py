"""What a backup says of itself: a numbered object that makes it one, and the object that makes a place one of backups.

`_backup.json` (created once):

| member       | meaning                                                                  |
|--------------|--------------------------------------------------------------------------|
| format       | 1                                                                        |
| readFeatures | features a reader must know                                              |
| rootId       | of the root whose backups lie here: those of another one are refused     |
| createdMs    | when, ms since the epoch                                                 |

`_backups/<number>.json`, created last of all objects of a backup:

| member       | meaning                                                                              |
|--------------|--------------------------------------------------------------------------------------|
| format, readFeatures | as above                                                                     |
| number       | the number in its name, from 1                                                       |
| id           | random: of the run that made it                                                      |
| rootId       | as above                                                                             |
| startedMs    | before the cut was taken: whatever was acknowledged before is in it                  |
| completedMs  | when all of it lay here                                                              |
| objects, bytes | what this run has copied                                                           |
| topics       | see below                                                                            |
| decisions    | transactional ids: [{id, first, number, sinceMs}]                                    |
| groups       | consumer groups: the same                                                            |
| only         | the topics that were asked for; null: all, and so all ids and groups                 |
| leftOut      | [{folder, id, damage}]: logs of ids and groups that were left out, and why           |

A topic of `topics`:

| member    | meaning                                                                                              |
|-----------|------------------------------------------------------------------------------------------------------|
| topic     | its name                                                                                             |
| topicId   | its id                                                                                               |
| version   | the cut: a checkpoint of this version lies in the backup                                             |
| crc       | CRC-32C of that version's commit: the source's log must go on from it                                |
| timeMs    | time of that commit                                                                                  |
| deleted   | the topic was deleted by then                                                                        |
| base      | a checkpoint of this version lies here as well, and all commits after it; -1: the beginning          |
| since     | every version from here to `version` can be restored: all files that they name were still there      |
| sinceMs   | time of that version's commit                                                                        |
| bytes     | of the files that `version` names                                                                    |

`first` of an id: entries from here to `number` lie in the backup. `sinceMs`: time of entry `first`, if there were some
before it that no backup has any more; else 0.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparklog.errors import Corrupt
from sparklog.log.journal import documents as json_fields
from sparklog.log.journal.documents import FORMAT, Fields

PLACE_FIELDS = ("format", "readFeatures", "rootId", "createdMs", "crc")
MANIFEST_FIELDS = (
    *("format", "readFeatures", "number", "id", "rootId", "startedMs", "completedMs", "objects", "bytes"),
    *("topics", "decisions", "groups", "only", "leftOut", "crc"),
)
TOPIC_FIELDS = (
    *("topic", "topicId", "version", "crc", "timeMs", "deleted", "base", "since", "sinceMs", "bytes"),
)  # fmt: skip
ENTRIES_FIELDS = ("id", "first", "number", "sinceMs")
LEFT_OUT_FIELDS = ("folder", "id", "damage")


@dataclass(frozen=True, slots=True)
class TopicBackup:
    """One topic in a backup; see the module."""

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

    @property
    def from_its_beginning(self) -> bool:
        """Whether there is no version that cannot be restored."""
        return self.base < 0 and self.since <= 0


@dataclass(frozen=True, slots=True)
class EntriesBackup:
    """The entries `first` to `number` of one id; `since_ms`: see the module."""

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
    """One backup; see the module."""

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

    def covers(self, topics: Collection[str] | None) -> bool:
        """Whether it has these topics; None: all that the root had."""
        return self.only is None if topics is None else all(self.topic(name) is not None for name in topics)

    def topic(self, name: str) -> TopicBackup | None:
        """One topic of it."""
        return next((item for item in self.topics if item.topic == name), None)

    @property
    def total_bytes(self) -> int:
        """Bytes of the files that the cut names."""
        return sum(item.nbytes for item in self.topics)

    @property
    def from_ms(self) -> int:
        """The time from which on all that is in it can be restored, up to the cut; 0: from the beginning on."""
        entries = (item.since_ms for item in (*self.decisions, *self.groups))
        return max([0, *(item.since_ms for item in self.topics if not item.from_its_beginning), *entries])


def encode_manifest(found: Manifest) -> bytes:
    """The bytes of a manifest."""
    return json_fields.encode(
        {
            "format": FORMAT,
            "readFeatures": [],
            "number": found.number,
            "id": found.id,
            "rootId": found.root_id,
            "startedMs": found.started_ms,
            "completedMs": found.completed_ms,
            "objects": found.objects,
            "bytes": found.nbytes,
            "topics": [
                {
                    "topic": item.topic,
                    "topicId": item.topic_id,
                    "version": item.version,
                    "crc": item.crc,
                    "timeMs": item.time_ms,
                    "deleted": item.deleted,
                    "base": item.base,
                    "since": item.since,
                    "sinceMs": item.since_ms,
                    "bytes": item.nbytes,
                }
                for item in found.topics
            ],
            "decisions": [_entries_document(item) for item in found.decisions],
            "groups": [_entries_document(item) for item in found.groups],
            "only": None if found.only is None else list(found.only),
            "leftOut": left_out_document(found.left_out),
        }
    )


def _entries_document(item: EntriesBackup) -> dict[str, object]:
    return {"id": item.id, "first": item.first, "number": item.number, "sinceMs": item.since_ms}


def left_out_document(items: Collection[LeftOut]) -> list[dict[str, str]]:
    """What was left out, as JSON."""
    return [{"folder": item.folder, "id": item.id, "damage": item.damage} for item in items]


def decode_left_out(doc: Fields) -> tuple[LeftOut, ...]:
    """From the member `leftOut` of an object."""
    items = doc.objects("leftOut")
    for item in items:
        item.only(frozenset(LEFT_OUT_FIELDS))
    return tuple(LeftOut(item.text("folder"), item.text("id"), item.text("damage")) for item in items)


def decode_manifest(data: bytes, key: str, number: int) -> Manifest:
    """From bytes. `BadRequest` if it needs a newer sparklog, `Corrupt` naming `key` if it is damaged."""
    doc = json_fields.decode(data, key, "backup")
    doc.only(frozenset(MANIFEST_FIELDS))
    if doc.integer("number", 1) != number:
        raise Corrupt(f"backup {number} should lie here, found backup {doc.integer('number', 1)}", file=key)
    return Manifest(
        number,
        doc.text("id"),
        doc.text("rootId"),
        doc.integer("startedMs", 0),
        doc.integer("completedMs", 0),
        doc.integer("objects", 0),
        doc.integer("bytes", 0),
        tuple(_topic(item) for item in doc.objects("topics")),
        tuple(_entries(item) for item in doc.objects("decisions")),
        tuple(_entries(item) for item in doc.objects("groups")),
        None if doc.document.get("only") is None else doc.texts("only"),
        decode_left_out(doc),
    )


def _topic(item: Fields) -> TopicBackup:
    item.only(frozenset(TOPIC_FIELDS))
    version = item.integer("version", 0)
    return TopicBackup(
        item.text("topic"),
        item.text("topicId"),
        version,
        item.integer("crc", 0, 2**32 - 1),
        item.integer("timeMs", 0),
        item.boolean("deleted"),
        item.integer("base", -1, version),
        item.integer("since", 0, version),
        item.integer("sinceMs", 0),
        item.integer("bytes", 0),
    )


def _entries(item: Fields) -> EntriesBackup:
    item.only(frozenset(ENTRIES_FIELDS))
    number = item.integer("number", 0)
    return EntriesBackup(item.text("id"), item.integer("first", 0, number), number, item.integer("sinceMs", 0))
