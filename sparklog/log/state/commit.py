"""A commit: one numbered JSON object, the only way in which anything happens to a topic.

`COMMIT_JSON` and the tables above it are its members; docs/reference/format-commits.md says what they mean.

An edit's inputs are the removed slices, its outputs the slices of `files`, of its partition that are in `[start, end)`.
Edits of one commit do not overlap, so no slice needs to name its edit.

A commit's records may be in it (`Inline`): its object is the document, then the bytes of an append file, the **tail**.
One of `files` then has the path "" in the document, and the size of the tail. Decoded it is a file like any other: it
has the commit's own path, the size of the whole object, and positions from the start of the object.

Of an imported topic, commits and the topic's state have Kafka's part as well:

* `KafkaSource`: by Kafka's topic id, the last batch taken and the log end, the next import knows that the log it meets
  is the one it had begun, and that nothing was written here since.
* `KafkaOpen`: transactions that no marker ends in the log of Kafka. The last stable offset is where Kafka's was,
  without a look into any file, until a commit appends the marker that Kafka would have written (see
  `sparklog.log.write.kafka_markers`). Retention that passes all that Kafka wrote of a transaction forgets it, as it
  forgets open slices. A producer has at most one open transaction in a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import add, gt
from typing import Any

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import crc32c
from sparklog.format.checksums import joined_crc
from sparklog.format.slice_columns import COMMIT_LISTS
from sparklog.log.journal.documents import (
    INLINE_RECORDS,
    INT32_MAX,
    INT64_MAX,
    KAFKA_WRITERS,
    TEXT,
    TEXTS,
    UINT32_MAX,
    Document,
    Fields,
    Member,
    MemberKind,
    StoredDocument,
    document_of,
    numbers_by_partition,
    numbers_by_text,
    object_of,
    objects_by_text,
    objects_of,
    one_of,
    texts_by_text,
    whole,
    wholes,
)
from sparklog.log.journal.names import (
    MAX_PARTITIONS,
    MAX_VERSION,
    commit_path,
    is_commit,
    is_sealed,
    path_read_version,
)
from sparklog.log.state.configs import definition
from sparklog.log.state.slices import INLINE_PATH, Content, FileSlices
from sparklog.storage.store import MAX_DOCUMENT

OPS = CREATE, DELETE, APPEND, IMPORT, ALTER, DELETE_RECORDS, RETAIN, MERGE, SEAL, COMPACT, TAKEOVER, MAINTAIN = (
    "create", "delete", "append", "import", "alter", "delete-records",
    "retain", "merge", "seal", "compact", "takeover", "maintain",
)  # fmt: skip
FILLING = (CREATE, IMPORT)
"""Ops that bring whole partitions at the offsets they have elsewhere: a clone is created with what it holds."""
INLINE_CONFIG = "inline.records.bytes"
COMMIT, ABORT = DECISIONS = ("commit", "abort")
"""How a transaction that Kafka left open may have been decided."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer: `kind` is `stream` or `txn`, `count` its records. Release 0.1.0 wrote no `epoch` and no `content`."""

    kind: str
    id: str
    batch: int
    run: str | None
    count: int
    epoch: int | None = None
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class RemovedSlices:
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


@dataclass(frozen=True, slots=True)
class ImportedEnd:
    """End of an imported partition: the log end here; last offset, checksum and leader epoch of its last batch."""

    end: int
    last: int = -1
    crc: int = 0
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A topic of Kafka's: its id there, and how far each partition was taken (those of which anything was)."""

    topic_id: str
    ends: Mapping[int, ImportedEnd] = field(default_factory=dict)

    def after(self, newer: KafkaSource) -> KafkaSource:
        """Both, the newer one's ends over these; an id that was not known at first may come later."""
        return KafkaSource(newer.topic_id or self.topic_id, {**self.ends, **newer.ends})


@dataclass(frozen=True, slots=True)
class KafkaOpen:
    """One open transaction of one producer in one partition; the last four as far as Kafka's coordinator knew them.

    `decided`: the marker is missing in this partition, and the transaction can only end so.
    """

    partition: int
    producer: int
    epoch: int
    first: int
    end: int
    transactional_id: str | None = None
    timeout_ms: int | None = None
    start_ms: int | None = None
    decided: str | None = None

    def __str__(self) -> str:
        owner = "" if self.transactional_id is None else f" ('{self.transactional_id}')"
        decided = "" if self.decided is None else f", decided: {self.decided}"
        where = f"in partition {self.partition}, from {self.first}"
        return f"Kafka's open transaction of producer {self.producer}{owner} {where}{decided}"

    @property
    def ended(self) -> KafkaEnded:
        return KafkaEnded(self.partition, self.producer)


@dataclass(frozen=True, slots=True, order=True)
class KafkaEnded:
    """A transaction that a commit ends: it appends the producer's marker to the partition."""

    partition: int
    producer: int


@dataclass(frozen=True, slots=True)
class Inline:
    """The tail of a commit: its bytes and their CRC-32C. `data` goes to the encoder only; readers keep few tails."""

    nbytes: int
    crc: int
    data: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, data: bytes) -> Inline:
        return cls(len(data), crc32c.crc32c(data), data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a commit to a topic; a field without a value changes nothing."""

    writer: Writer | None = None
    writers: tuple[Writer, ...] = ()
    files: tuple[FileSlices, ...] = ()
    inline: Inline | None = None
    remove: tuple[RemovedSlices, ...] = ()
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
    """One commit. `crc` is that of its stored bytes, `nbytes` the length of its document; 0 until it has some.

    `clock_ms`: when it was made, None where that is `time_ms`; `clock_since`: see `sparklog.log.journal.clocks`.
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
        """The time of the commit (ms): LogAppendTime of the records it appends."""
        return self.time_ms if self.clock_ms is None else self.clock_ms


PARTITION = whole(0, MAX_PARTITIONS - 1)
PARTITIONS = wholes(0, MAX_PARTITIONS - 1)
CONTENT_JSON = Document(Content, Member("bytes", whole(0), "nbytes"), Member("layout", TEXT))
WRITER_JSON = Document(
    Writer,
    Member("kind", TEXT),
    Member("id", TEXT),
    Member("batch", whole()),
    Member("run", TEXT, nullable=True),
    Member("count", whole(0)),
    Member("epoch", whole(0), optional=True),
    inline={"content": CONTENT_JSON},
)

REMOVAL_JSON = Document(
    RemovedSlices,
    Member("path", TEXT),
    Member("partition", PARTITIONS),
    Member("base", wholes(0, like="partition")),
    Member("position", wholes(0, like="partition")),
)
INLINE_JSON = Document(
    Inline,
    Member("bytes", whole(1, MAX_DOCUMENT), "nbytes"),
    Member("crc", whole(0, UINT32_MAX)),
)
EDIT_JSON = Document(
    Edit,
    Member("partition", PARTITION),
    Member("start", whole(0)),
    Member("end", whole(0)),
    Member("cleanedThrough", whole(0), nullable=True),
    check=lambda item, edit: item.integer("end", edit.start),
)
TXN_JSON = Document(
    Txn,
    Member("id", TEXT),
    Member("n", whole(0, MAX_VERSION)),
    Member("siblings", numbers_by_text()),
    Member("timeoutMs", whole(0), nullable=True),
)
RESOLVED_JSON = Document(
    Resolved,
    Member("id", TEXT),
    Member("n", whole(0)),
    Member("committed", wholes(0)),
    Member("siblings", numbers_by_text()),
)
HOLD_JSON = Document(Hold, Member("version", whole(0)), Member("expiresMs", whole(0), nullable=True))
KAFKA_OPEN_JSON = Document(
    KafkaOpen,
    Member("partition", PARTITION),
    Member("producer", whole(0)),
    Member("epoch", whole(0, 2**15 - 1)),
    Member("first", whole(0)),
    Member("end", whole(1)),
    Member("transactionalId", TEXT, optional=True),
    Member("timeoutMs", whole(0), optional=True),
    Member("startMs", whole(0), optional=True),
    Member("decided", one_of(*DECISIONS), optional=True),
    check=lambda item, transaction: item.integer("end", transaction.first + 1),
)
KAFKA_ENDED_JSON = Document(KafkaEnded, Member("partition", PARTITION), Member("producer", whole(0)))


def _columns_of(source: KafkaSource) -> tuple[object, ...]:
    """The topic's id, the partitions, and a column for each field of `ImportedEnd`."""
    rows = [(partition, end.end, end.last, end.crc, end.epoch) for partition, end in sorted(source.ends.items())]
    return source.topic_id, *(zip(*rows, strict=True) if rows else [()] * 5)


def _of_columns(topic_id: str, partition: Sequence[int], **columns: Sequence[int]) -> KafkaSource:
    rows = zip(*columns.values(), strict=True)
    return KafkaSource(topic_id, {number: ImportedEnd(*row) for number, row in zip(partition, rows, strict=True)})


KAFKA_SOURCE_JSON = Document(
    _of_columns,
    Member("topicId", TEXT),
    Member("partition", PARTITIONS),
    Member("end", wholes(0, like="partition")),
    Member("last", wholes(-1, like="partition")),
    Member("crc", wholes(0, UINT32_MAX, like="partition")),
    Member("epoch", wholes(-1, INT32_MAX, like="partition")),
    parts=_columns_of,
)


def _path(item: Fields, name: str) -> str:
    path = item.text(name)
    if path != INLINE_PATH and path_read_version(path) is None:
        raise item.bad(name, "a path of a data file")
    return path


def _check_file(item: Fields, file: FileSlices) -> None:
    size = file.size
    item.integer("footerLength", 0, min(size, INT32_MAX))
    if (file.footer_length == 0) != is_sealed(file.path):
        raise item.bad("footerLength", "0 in a sealed segment and more in any other file")
    if not file.position and sum(file.nbytes) + file.footer_length > size:
        raise item.bad("bytes", f"at most the file's size {size} together")
    if any(map(gt, map(add, file.position, file.nbytes), repeat(size - file.footer_length))):
        raise item.bad("position", f"such that each slice ends before the footer of a file of {size} bytes")
    if any(map(gt, map(add, file.base, file.offsets), repeat(INT64_MAX))):
        raise item.bad("base", f"such that each slice ends at offset {INT64_MAX} or below")


FILE_JSON = Document(
    FileSlices,
    Member("path", MemberKind(_path)),
    Member("size", whole(0)),
    Member("footerLength", whole(0)),
    Member("partition", PARTITIONS),
    *(
        Member(item.name, wholes(item.low, item.high, like="partition"), item.attribute, optional=item.optional)
        for item in COMMIT_LISTS
        if item.name != "partition"
    ),
    check=_check_file,
)
COMMIT_JSON = StoredDocument(
    "commit",
    Commit,
    Member("readFeatures", TEXTS),
    Member("writeFeatures", TEXTS),
    Member("version", whole(0)),
    Member("topicId", TEXT),
    Member("commitId", TEXT),
    Member("prevCrc", whole(0, UINT32_MAX), nullable=True),
    Member("timeMs", whole(0)),
    Member("leaderEpoch", whole(0, INT32_MAX)),
    Member("writer", object_of(WRITER_JSON), nullable=True),
    Member("writers", objects_of(WRITER_JSON), optional=True),
    Member("op", one_of(*OPS)),
    Member("files", objects_of(FILE_JSON), optional=True),
    Member("inline", object_of(INLINE_JSON), optional=True),
    Member("remove", objects_of(REMOVAL_JSON), optional=True),
    Member("edits", objects_of(EDIT_JSON), optional=True),
    Member("logStarts", numbers_by_partition(MAX_PARTITIONS), optional=True),
    Member("configs", texts_by_text(nullable=True), optional=True),
    Member("partitions", whole(1, MAX_PARTITIONS), optional=True),
    Member("earlierPartitions", wholes(1, MAX_PARTITIONS), optional=True),
    Member("txn", object_of(TXN_JSON), optional=True),
    Member("resolved", objects_of(RESOLVED_JSON), optional=True),
    Member("kafkaOpen", objects_of(KAFKA_OPEN_JSON), optional=True),
    Member("kafkaEnded", objects_of(KAFKA_ENDED_JSON), optional=True),
    Member("kafkaSource", object_of(KAFKA_SOURCE_JSON), optional=True),
    Member("holds", objects_by_text(HOLD_JSON, nullable=True), optional=True),
    Member("floor", whole(0), optional=True),
    Member("expired", numbers_by_text(), optional=True),
    Member("clockMs", whole(0), optional=True),
    Member("clockSince", whole(0), optional=True),
)


def features_of(changes: Changes, op: str) -> dict[str, Any]:
    """Return the features that a commit needs: records in it, files that are commits (of a clone), the config, writers.

    With the config, and from birth where its default counts, so that software before 0.4, which takes the first commit
    with records for damage, meets the feature in a commit that it can read.
    """
    default = definition(INLINE_CONFIG).default if op == CREATE else "0"
    is_needed = (
        changes.inline is not None
        or (changes.configs.get(INLINE_CONFIG) or default) != "0"
        or any(is_commit(file.path) for file in changes.files)
    )
    features = (*((INLINE_RECORDS,) if is_needed else ()), *((KAFKA_WRITERS,) if changes.writers else ()))
    return {"read_features": features, "write_features": features}


def encode_commit(commit: Commit) -> bytes:
    """Return the bytes of a commit that was not decoded: its document, and its records if it has some."""
    document = COMMIT_JSON.encode(commit)
    if commit.inline is None:
        return document
    data = document + commit.inline.data
    if len(data) > MAX_DOCUMENT:
        raise BadRequest(
            f"a commit of {len(data)} bytes is not written, at most {MAX_DOCUMENT} are; write less at once"
        )
    return data


def decode_commit(data: bytes, key: str, version: int, *, whole: bool = True) -> Commit:
    """Return the commit in `data`; `whole`: its records are checked. `BadRequest`: too new; `Corrupt`: damaged."""
    document = document_of(data)
    item = COMMIT_JSON.fields(document, key)
    if (stored := item.integer("version", 0)) != version:
        raise Corrupt(f"commit {version} should be here, found version {stored}; restore it", file=key)
    commit = COMMIT_JSON.from_json(item, crc=crc32c.crc32c(data), nbytes=len(document))
    _check_inline(item, commit)
    if whole or commit.inline is None:
        _check_tail(commit, memoryview(data)[len(document) :], key)
    if (inline := commit.inline) is None:
        return commit
    return replace(commit, crc=joined_crc(document, inline.nbytes, inline.crc), files=_placed(commit, len(document)))


def tail_of(data: bytes) -> bytes:
    """Return the tail of a commit's bytes; empty if there is none."""
    return data[len(document_of(data)) :]


def _check_tail(commit: Commit, tail: memoryview, key: str) -> None:
    """Raise `Corrupt` unless the bytes after the document are those that it names."""
    nbytes, crc = (0, 0) if commit.inline is None else (commit.inline.nbytes, commit.inline.crc)
    if len(tail) != nbytes:
        where = f"expected {nbytes} bytes of records after the document"
        raise Corrupt(f"commit: {where}, found {len(tail)}; restore it", file=key)
    if crc32c.crc32c(tail) != crc:
        raise Corrupt("commit: the records in it do not match their CRC-32C; restore it", file=key)


def _check_inline(item: Fields, commit: Commit) -> None:
    """Raise `Corrupt` unless the document names its records as one file's."""
    nbytes = None if commit.inline is None else commit.inline.nbytes
    here = [file for file in commit.files if file.path == INLINE_PATH]
    if len(here) != (nbytes is not None):
        raise item.bad("inline", f"there with one file without a path (there are {len(here)})")
    for file in here:
        if not file.position and file.size == nbytes == sum(file.nbytes) + file.footer_length:
            continue
        raise item.bad("inline", f"as many bytes as its file of {file.size}, which its slices and its footer fill")


def _placed(commit: Commit, start: int) -> tuple[FileSlices, ...]:
    """Return the files of a commit whose tail begins at `start`, the one in it under the commit's own path."""
    path = commit_path(commit.version)
    return tuple(
        file
        if file.path != INLINE_PATH
        else replace(file, path=path, size=start + file.size, position=tuple(start + place for place in file.starts))
        for file in commit.files
    )
