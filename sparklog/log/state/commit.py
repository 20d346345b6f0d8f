"""A commit: one numbered JSON object, all that ever happens to a topic.

The fields, in this order (see docs/reference/format-commits.md):

| field                        | what it is                                                                       |
|------------------------------|----------------------------------------------------------------------------------|
| format                       | 1; a reader refuses any other                                                    |
| readFeatures, writeFeatures  | what who reads, who commits after it, must understand                            |
| version                      | its number, as in its name                                                       |
| topicId                      | of the topic it was made for: a re-created name has another                      |
| commitId                     | random: tells a writer whose answer was lost that this is its own                |
| prevCrc                      | CRC-32C of the bytes of the commit before; null at 0                             |
| timeMs                       | never before its predecessor's; LogAppendTime of what it appends (or `clockMs`)  |
| leaderEpoch                  | of the batches it appends                                                        |
| writer                       | null, or {kind, id, batch, run, count, …}: the idempotency key and who holds it  |
| op                           | why it was made; `create` and `delete` begin and end a topic                     |
| files                        | slices as parallel arrays per file: appended, or the outputs of `edits`          |
| remove                       | slices that `edits` replace, as parallel arrays per file                         |
| edits                        | [{partition, start, end, cleanedThrough}]: rewritten offset ranges               |
| logStarts                    | {partition: offset}, applied as a maximum                                        |
| configs                      | {name: text, or null for the default}                                            |
| partitions                   | the new number of partitions                                                     |
| earlier_partitions           | of a clone: the numbers of partitions that its source had before                 |
| txn                          | {id, n, siblings, timeoutMs}: the appended slices are open in this transaction   |
| resolved                     | [{id, n, committed, siblings}]: outcomes; `committed` lists prepare versions     |
| kafkaOpen                    | [{partition, producer, epoch, first, end}]: Kafka's transactions, imported open  |
| kafkaEnded                   | [{partition, producer}]: those of them whose markers this commit appends         |
| kafkaSource                  | Kafka's topic, and how far this commit takes each partition of it                |
| holds                        | {id: {version, expiresMs}, or null to let go}                                    |
| floor                        | the upload floor                                                                 |
| expired                      | {writer id: version of its entry}: registry entries dropped as idle              |
| clockMs                      | when it was made, where a clock that was wrong has left `timeMs` ahead of that   |
| clockSince                   | the newest version since which the times when commits were made go on            |
| crc                          | of the bytes before it                                                           |

Fields from `files` on are left out when they are empty. An edit's inputs are the removed slices, its outputs the file
slices, of its partition that lie in `[start, end)`; edits of one commit do not overlap, so nothing needs saying twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from operator import add, gt
from typing import Any

import crc32c

from sparklog.errors import Corrupt
from sparklog.format.slice_columns import COMMIT_LISTS
from sparklog.log.journal import documents as json_fields
from sparklog.log.journal.documents import FORMAT, INT64_MAX, Fields, by_text
from sparklog.log.journal.names import MAX_VERSION, is_sealed, path_read_version
from sparklog.log.state.kafka_source import KafkaEnded, KafkaOpen, KafkaSource
from sparklog.log.state.slices import Content, FileSlices

MAX_PARTITIONS = 100_000
CREATE = "create"
DELETE = "delete"
APPEND = "append"
IMPORT = "import"
ALTER = "alter"
DELETE_RECORDS = "delete-records"
RETAIN = "retain"
MERGE = "merge"
SEAL = "seal"
COMPACT = "compact"
TAKEOVER = "takeover"
MAINTAIN = "maintain"
FILLING = (CREATE, IMPORT)
"""Ops that bring whole partitions at the offsets they have elsewhere: a clone is created with what it holds."""
OPS = (CREATE, DELETE, APPEND, IMPORT, ALTER, DELETE_RECORDS, RETAIN, MERGE, SEAL, COMPACT, TAKEOVER, MAINTAIN)

COMMIT_FIELDS = (
    *("format", "readFeatures", "writeFeatures", "version", "topicId", "commitId", "prevCrc", "timeMs", "leaderEpoch"),
    *("writer", "op", "files", "remove", "edits", "logStarts", "configs", "partitions", "earlierPartitions"),
    *("txn", "resolved", "kafkaOpen", "kafkaEnded", "kafkaSource", "holds", "floor", "expired", "clockMs"),
    *("clockSince", "crc"),
)
WRITER_FIELDS = ("kind", "id", "batch", "run", "count")
WRITER_OPTIONAL_FIELDS = ("epoch", "bytes", "layout")
FILE_FIELDS = ("path", "size", "footerLength", *(each.name for each in COMMIT_LISTS if not each.optional))
FILE_OPTIONAL_FIELDS = tuple(each.name for each in COMMIT_LISTS if each.optional)
REMOVE_FIELDS = ("path", "partition", "base", "position")
EDIT_FIELDS = ("partition", "start", "end", "cleanedThrough")
TXN_FIELDS = ("id", "n", "siblings", "timeoutMs")
RESOLVED_FIELDS = ("id", "n", "committed", "siblings")
HOLD_FIELDS = ("version", "expiresMs")
_KNOWN = frozenset(COMMIT_FIELDS)
_FILE_KNOWN = frozenset(FILE_FIELDS + FILE_OPTIONAL_FIELDS)


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer: `kind` is `stream` or `txn`, `batch` its batch id, `run` the query run, `count` records here.

    `epoch` counts the runs; `content`: of the batch. Release 0.1.0 wrote neither.
    """

    kind: str
    id: str
    batch: int
    run: str | None
    count: int
    epoch: int | None = None
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """Slices of one file that edits replace, one entry of each tuple per slice."""

    path: str
    partition: tuple[int, ...]
    base: tuple[int, ...]
    position: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """Offsets `[start, end)` of a partition are rewritten; compacted below `cleaned_through` (None: as before)."""

    partition: int
    start: int
    end: int
    cleaned_through: int | None = None


@dataclass(frozen=True, slots=True)
class Txn:
    """The transaction that holds slices open; `siblings`: versions of other topics prepared before this one."""

    id: str
    n: int
    siblings: Mapping[str, int] = field(default_factory=dict)
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A decision found: prepares of (id, n) whose versions `committed` lists are committed, all others aborted."""

    id: str
    n: int
    committed: tuple[int, ...] = ()
    siblings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hold:
    """The vacuum keeps what `version` names, until `expires_ms` (None: until let go)."""

    version: int
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a commit does to a topic; each field without a value leaves things as they are."""

    writer: Writer | None = None
    files: tuple[FileSlices, ...] = ()
    remove: tuple[Removal, ...] = ()
    edits: tuple[Edit, ...] = ()
    log_starts: Mapping[int, int] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)
    partitions: int | None = None
    earlier_partitions: tuple[int, ...] = ()
    txn: Txn | None = None
    resolved: tuple[Resolved, ...] = ()
    kafka_open: tuple[KafkaOpen, ...] = ()
    kafka_ended: tuple[KafkaEnded, ...] = ()
    kafka_source: KafkaSource | None = None
    holds: Mapping[str, Hold | None] = field(default_factory=dict)
    floor: int | None = None
    expired: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit(Changes):
    """One commit. `crc` and `nbytes` are those of its stored bytes, 0 until it has some.

    `clock_ms`: when it was made, None where that is `time_ms`; `clock_since`: see `sparklog.log.journal.clock`.
    """

    version: int
    topic_id: str
    commit_id: str
    prev_crc: int | None
    time_ms: int
    leader_epoch: int
    op: str
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()
    clock_ms: int | None = None
    clock_since: int | None = None
    crc: int = field(default=0, compare=False)
    nbytes: int = field(default=0, compare=False)

    @property
    def made_ms(self) -> int:
        """When it was made: LogAppendTime of what it appends."""
        return self.time_ms if self.clock_ms is None else self.clock_ms


def encode_commit(commit: Commit) -> bytes:
    """The bytes of a commit."""
    document: dict[str, object] = {
        "format": FORMAT,
        "readFeatures": list(commit.read_features),
        "writeFeatures": list(commit.write_features),
        "version": commit.version,
        "topicId": commit.topic_id,
        "commitId": commit.commit_id,
        "prevCrc": commit.prev_crc,
        "timeMs": commit.time_ms,
        "leaderEpoch": commit.leader_epoch,
        "writer": None if commit.writer is None else _writer_document(commit.writer),
        "op": commit.op,
    }
    optional: dict[str, object] = {
        "files": [_file_document(file) for file in commit.files],
        "remove": [{name: getattr(item, name) for name in REMOVE_FIELDS} for item in commit.remove],
        "edits": [
            {"partition": e.partition, "start": e.start, "end": e.end, "cleanedThrough": e.cleaned_through}
            for e in commit.edits
        ],
        "logStarts": by_text(commit.log_starts),
        "configs": dict(sorted(commit.configs.items())),
        "partitions": commit.partitions,
        "earlierPartitions": list(commit.earlier_partitions),
        "txn": txn_document(commit.txn) if commit.txn else None,
        "resolved": [
            {"id": r.id, "n": r.n, "committed": list(r.committed), "siblings": dict(sorted(r.siblings.items()))}
            for r in commit.resolved
        ],
        "kafkaOpen": [each.to_json() for each in commit.kafka_open],
        "kafkaEnded": [each.to_json() for each in commit.kafka_ended],
        "kafkaSource": commit.kafka_source.to_json() if commit.kafka_source else None,
        "holds": {name: hold_document(hold) for name, hold in sorted(commit.holds.items())},
        "floor": commit.floor,
        "expired": dict(sorted(commit.expired.items())),
        "clockMs": commit.clock_ms,
        "clockSince": commit.clock_since,
    }
    document.update((name, value) for name, value in optional.items() if value is not None and value not in ([], {}))
    return json_fields.encode(document)


def _writer_document(writer: Writer) -> dict[str, object]:
    return {
        **{name: getattr(writer, name) for name in WRITER_FIELDS},
        **epoch_and_content(writer.epoch, writer.content),
    }


def epoch_and_content(epoch: int | None, content: Content | None) -> dict[str, object]:
    """The members of a writer that are left out where they are not known."""
    known: dict[str, object] = {} if epoch is None else {"epoch": epoch}
    return known if content is None else {**known, "bytes": content.nbytes, "layout": content.layout}


def decode_content(item: Fields) -> Content | None:
    """The content of a batch from JSON; None where it was not written down."""
    return Content(item.integer("bytes", 0), item.text("layout")) if item.has("layout") else None


def txn_document(txn: Txn) -> dict[str, object]:
    """A transaction as JSON."""
    return {"id": txn.id, "n": txn.n, "siblings": dict(sorted(txn.siblings.items())), "timeoutMs": txn.timeout_ms}


def hold_document(hold: Hold | None) -> dict[str, object] | None:
    """A hold as JSON."""
    return None if hold is None else {"version": hold.version, "expiresMs": hold.expires_ms}


def _file_document(file: FileSlices) -> dict[str, object]:
    lists = ((each, getattr(file, each.attribute)) for each in COMMIT_LISTS)
    return {
        "path": file.path,
        "size": file.size,
        "footerLength": file.footer_length,
        **{each.name: values for each, values in lists if values or not each.optional},
    }


def decode_commit(data: bytes, key: str, version: int) -> Commit:
    """The commit in `data`, which lay under `key` as number `version`.

    `BadRequest` if it needs a newer sparklog; `Corrupt` naming `key` if it is damaged or is another version.
    """
    doc = json_fields.decode(data, key, "commit")
    doc.only(_KNOWN)
    found = doc.integer("version", 0)
    if found != version:
        raise Corrupt(f"commit {version} should lie here, found version {found}; restore it", file=key)
    op = doc.text("op")
    if op not in OPS:
        raise doc.bad("op", "one of " + ", ".join(OPS))
    return Commit(
        version=found,
        topic_id=doc.text("topicId"),
        commit_id=doc.text("commitId"),
        prev_crc=doc.optional("prevCrc", 0, 2**32 - 1),
        time_ms=doc.integer("timeMs", 0),
        leader_epoch=doc.integer("leaderEpoch", 0, 2**31 - 1),
        op=op,
        writer=_writer(doc),
        files=tuple(_file(item) for item in doc.objects("files")),
        remove=tuple(_removal(item) for item in doc.objects("remove")),
        edits=tuple(_edit(item) for item in doc.objects("edits")),
        log_starts=doc.numbers_by_partition("logStarts", MAX_PARTITIONS),
        configs=_configs(doc),
        partitions=doc.optional("partitions", 1, MAX_PARTITIONS),
        earlier_partitions=_earlier_partitions(doc),
        txn=decode_txn(doc.object("txn")) if doc.has("txn") else None,
        resolved=tuple(_resolved(item) for item in doc.objects("resolved")),
        kafka_open=tuple(KafkaOpen.from_json(item, MAX_PARTITIONS) for item in doc.objects("kafkaOpen")),
        kafka_ended=tuple(KafkaEnded.from_json(item, MAX_PARTITIONS) for item in doc.objects("kafkaEnded")),
        kafka_source=KafkaSource.from_json(doc.object("kafkaSource"), MAX_PARTITIONS)
        if doc.has("kafkaSource")
        else None,
        holds={name: decode_hold(doc, name, value) for name, value in doc.mapping("holds").items()},
        floor=doc.optional("floor", 0),
        expired=doc.numbers_by_text("expired"),
        read_features=doc.texts("readFeatures"),
        write_features=doc.texts("writeFeatures"),
        clock_ms=doc.optional("clockMs", 0),
        clock_since=doc.optional("clockSince", 0),
        crc=crc32c.crc32c(data),
        nbytes=len(data),
    )


def _earlier_partitions(doc: Fields) -> tuple[int, ...]:
    """Numbers of partitions, growing; absent is none."""
    return doc.integers("earlierPartitions", None, 1, MAX_PARTITIONS) if doc.has("earlierPartitions") else ()


def _writer(doc: Fields) -> Writer | None:
    if doc.document.get("writer") is None:
        return None
    item = doc.object("writer")
    return Writer(
        item.text("kind"),
        item.text("id"),
        item.integer("batch"),
        item.optional_text("run"),
        item.integer("count", 0),
        item.optional("epoch", 0),
        decode_content(item),
    )


def _file(item: Fields) -> FileSlices:
    item.only(_FILE_KNOWN)
    path = item.text("path")
    if path_read_version(path) is None:
        raise item.bad("path", "a path of a data file")
    size = item.integer("size", 0)
    n = len(item.integers("partition", None, 0, MAX_PARTITIONS - 1))
    footer_length = item.integer("footerLength", 0, min(size, 2**31 - 1))
    lists: dict[str, Any] = {
        each.attribute: item.integers(each.name, n, each.low, size if each.high is None else each.high)
        for each in COMMIT_LISTS
        if not each.optional or item.has(each.name)
    }
    file = FileSlices(path, size, footer_length, **lists)
    if (file.footer_length == 0) != is_sealed(path):
        raise item.bad("footerLength", "0 in a sealed segment and more in any other file")
    if not file.position and sum(file.nbytes) + file.footer_length > size:
        raise item.bad("bytes", f"at most the file's size {size} together")
    if any(map(gt, map(add, file.position, file.nbytes), repeat(size - file.footer_length))):
        raise item.bad("position", f"such that each slice ends before the footer of a file of {size} bytes")
    if any(map(gt, map(add, file.base, file.offsets), repeat(INT64_MAX))):
        raise item.bad("base", f"such that each slice ends at offset {INT64_MAX} or below")
    return file


def _removal(item: Fields) -> Removal:
    item.only(frozenset(REMOVE_FIELDS))
    partition = item.integers("partition", None, 0, MAX_PARTITIONS - 1)
    n = len(partition)
    return Removal(item.text("path"), partition, item.integers("base", n, 0), item.integers("position", n, 0))


def _edit(item: Fields) -> Edit:
    item.only(frozenset(EDIT_FIELDS))
    start = item.integer("start", 0)
    return Edit(
        item.integer("partition", 0, MAX_PARTITIONS - 1),
        start,
        item.integer("end", start),
        item.optional("cleanedThrough", 0),
    )


def decode_txn(item: Fields) -> Txn:
    """A transaction from JSON."""
    item.only(frozenset(TXN_FIELDS))
    return Txn(
        item.text("id"),
        item.integer("n", 0, MAX_VERSION),
        item.numbers_by_text("siblings"),
        item.optional("timeoutMs", 0),
    )


def _resolved(item: Fields) -> Resolved:
    item.only(frozenset(RESOLVED_FIELDS))
    return Resolved(
        item.text("id"), item.integer("n", 0), item.integers("committed", None, 0), item.numbers_by_text("siblings")
    )


def decode_hold(doc: Fields, name: str, value: object) -> Hold | None:
    """A hold from JSON."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise doc.bad("holds", f"an object with a version for '{name}'")
    item = Fields(value, doc.key, f"{doc.what}: hold {name}")
    item.only(frozenset(HOLD_FIELDS))
    return Hold(item.integer("version", 0), item.optional("expiresMs", 0))


def _configs(doc: Fields) -> dict[str, str | None]:
    values = doc.mapping("configs")
    if not all(value is None or isinstance(value, str) for value in values.values()):
        raise doc.bad("configs", "an object of texts or nulls")
    return values
