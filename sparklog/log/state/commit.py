"""Commits. A commit is one numbered JSON object, and every change of a topic is a commit.

`COMMIT_JSON` and the tables above it define the fields, and docs/reference/format-commits.md describes them.

An edit replaces slices of one partition. Its inputs are the slices of the partition in `remove`, and its outputs are
the slices of the partition in `files`, with offsets in `[start, end)`. The edits of one commit do not overlap, so
slices do not have to reference their edits.

A commit object has up to three sections, without gaps:

1. the document: canonical JSON in one line
2. copies of the documents of earlier commits (`EmbeddedCommits`); see `sparklog.log.state.embedded_commits`
3. the inline records (`InlineRecords`): the bytes of an append file

If there are inline records, one of the `files` has the path "", and the positions of its slices are relative to section
3. `decode_commit` converts this file to a regular file, which has the path of the commit, the size of the entire
object, and positions relative to the start of the object.

Most attributes have the names of their fields. The following names differ, because the fields were named first:

| field               | attribute                           | meaning                                              |
|---------------------|-------------------------------------|------------------------------------------------------|
| `carried`           | `Commit.embedded`                   | copies of earlier commits                            |
| `earlierPartitions` | `Changes.previous_partition_counts` | partition counts before this commit                  |
| `cleanedThrough`    | `Edit.first_dirty_offset`           | where cleaning continues                             |
| `bytes`             | `nbytes`                            | a size                                               |

`Changes.holds` are leases (`VersionLease`), and `Txn.n` is the number of a transaction of its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from operator import add, gt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import crc32c
from sparklog.format.checksums import appended_crc
from sparklog.format.slice_columns import COMMIT_LISTS
from sparklog.log.journal.documents import (
    CARRIED_COMMITS,
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
    members,
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
from sparklog.log.journal.names import MAX_PARTITIONS, MAX_VERSION, commit_path, is_commit, is_sealed, path_read_version
from sparklog.log.state.configs import definition
from sparklog.log.state.kafka_source import (
    KAFKA_ENDED_JSON,
    KAFKA_OPEN_JSON,
    KAFKA_SOURCE_JSON,
    PARTITION,
    PARTITIONS,
    KafkaEnded,
    KafkaOpen,
    KafkaSource,
)
from sparklog.log.state.slices import INLINE_PATH, Content, FileSlices
from sparklog.storage.store import MAX_DOCUMENT

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
OPS = (CREATE, DELETE, APPEND, IMPORT, ALTER, DELETE_RECORDS, RETAIN, MERGE, SEAL, COMPACT, TAKEOVER, MAINTAIN)
COPYING_OPS = (CREATE, IMPORT)
"""Operations that add entire partitions and copy their offsets: `create` (of a clone) and `import`."""
INLINE_CONFIG = "inline.records.bytes"
CARRIED_CONFIG = "carried.commits"
MAX_EMBEDDED = 127
"""The maximum number of earlier commits whose documents a commit contains."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer's batch. `kind` is `stream` or `txn`, and `count` is the number of records.

    Commits of release 0.1.0 do not have `epoch` and `content`.
    """

    kind: str
    id: str
    batch: int
    run: str | None
    count: int
    epoch: int | None = None
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class RemovedSlices:
    """Slices of one file that edits replace. Each tuple has one value per slice."""

    path: str
    partition: tuple[int, ...]
    base: tuple[int, ...]
    position: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """A rewrite of offsets `[start, end)` of a partition.

    `first_dirty_offset` is the partition's first dirty offset after the edit. If it is None, the first dirty offset
    does not change.
    """

    partition: int
    start: int
    end: int
    first_dirty_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Txn:
    """The open transaction that a commit's slices belong to.

    `siblings` contains the topics that the transaction prepared before this topic, with the version of each prepare.
    """

    id: str
    n: int
    siblings: Mapping[str, int] = field(default_factory=dict)
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The decision on transaction (id, n).

    Its prepares at the versions in `committed` are committed, and all others are aborted.
    """

    id: str
    n: int
    committed: tuple[int, ...] = ()
    siblings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VersionLease:
    """A lease of `version`. The vacuum keeps the files of this version until `expires_ms`, or until the lease is
    released if `expires_ms` is None.
    """

    version: int
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class InlineRecords:
    """The size and CRC-32C of the records in a commit object.

    Only the encoder needs `data`, so decoded commits do not have it.
    """

    nbytes: int
    crc: int
    data: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, data: bytes) -> InlineRecords:
        return cls(len(data), crc32c.crc32c(data), data)


@dataclass(frozen=True, slots=True)
class EmbeddedCommits:
    """The compressed documents of the `commits` previous commits, with their size and CRC-32C.

    Only the encoder needs `data`, so decoded commits do not have it.
    """

    commits: int
    nbytes: int
    crc: int
    data: bytes = field(default=b"", compare=False, repr=False)


@dataclass(slots=True, kw_only=True)
class Changes:
    """The changes that a commit makes to a topic. If a field has its default value, it does not change anything.

    Changes and commits are mutable until they are published: `embed_commits` and `decode_commit` complete a commit
    before other code uses it, and the commit does not change afterwards. They are not frozen, because creating a frozen
    object takes three times as long, and a read of a thousand topics creates thousands of commits.

    * `writer`: the batch that the commit appends; `writers`: the appended batches of Kafka producers
    * `files`, `inline`: the added slices, and the records that the commit object contains
    * `remove`, `edits`: the slices that the added slices replace
    * `log_starts`: the new log start offset by partition
    * `configs`: the new values by config; None resets a config to its default
    * `partitions`, `previous_partition_counts`: the new partition count, and earlier counts
    * `txn`: the open transaction of the added slices; `resolved`: decisions on transactions
    * `kafka_open`, `kafka_ended`, `kafka_source`: the state of an import from Kafka
    * `holds`: new and renewed leases by name; None releases a lease
    * `floor`: the new retention floor
    * `expired`: the version of the registry entry of each writer that the commit removes
    """

    writer: Writer | None = None
    writers: tuple[Writer, ...] = ()
    files: tuple[FileSlices, ...] = ()
    inline: InlineRecords | None = None
    remove: tuple[RemovedSlices, ...] = ()
    edits: tuple[Edit, ...] = ()
    log_starts: Mapping[int, int] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)
    partitions: int | None = None
    previous_partition_counts: tuple[int, ...] = ()
    txn: Txn | None = None
    resolved: tuple[Resolved, ...] = ()
    kafka_open: tuple[KafkaOpen, ...] = ()
    kafka_ended: tuple[KafkaEnded, ...] = ()
    kafka_source: KafkaSource | None = None
    holds: Mapping[str, VersionLease | None] = field(default_factory=dict)
    floor: int | None = None
    expired: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Commit(Changes):
    """A commit. See `Changes` for when a commit may be changed."""

    version: int
    topic_id: str
    commit_id: str
    prev_crc: int | None
    time_ms: int  # the commit time, which never decreases; see `sparklog.log.journal.clocks`
    leader_epoch: int
    op: str
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()
    clock_ms: int | None = None  # the time of the writer's clock, or None if it is equal to `time_ms`
    clock_since: int | None = None  # the latest version at which `created_ms` decreased
    embedded: EmbeddedCommits | None = None
    # CRC-32C of the stored object, or 0 if the commit has not been encoded yet
    crc: int = field(default=0, compare=False)
    nbytes: int = field(default=0, compare=False)  # size of the document

    @property
    def inline_start(self) -> int:
        """The position of the inline records in the object."""
        return self.nbytes + (0 if self.embedded is None else self.embedded.nbytes)

    @property
    def created_ms(self) -> int:
        """The commit time according to the writer's clock (ms). This is the LogAppendTime of the commit's records."""
        return self.time_ms if self.clock_ms is None else self.clock_ms


CONTENT_JSON = Document(Content, Member("bytes", whole(0), "nbytes"), Member("layout", TEXT))
WRITER_JSON = Document(
    Writer,
    *members(TEXT, "kind", "id"),
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
    *members(wholes(0, like="partition"), "base", "position"),
)
INLINE_JSON = Document(
    InlineRecords, Member("bytes", whole(1, MAX_DOCUMENT), "nbytes"), Member("crc", whole(0, UINT32_MAX))
)
EMBEDDED_JSON = Document(
    EmbeddedCommits,
    Member("commits", whole(1, MAX_EMBEDDED)),
    Member("bytes", whole(1, MAX_DOCUMENT), "nbytes"),
    Member("crc", whole(0, UINT32_MAX)),
)
EDIT_JSON = Document(
    Edit,
    Member("partition", PARTITION),
    *members(whole(0), "start", "end"),
    Member("cleanedThrough", whole(0), "first_dirty_offset", nullable=True),
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
VERSION_LEASE_JSON = Document(VersionLease, Member("version", whole(0)), Member("expiresMs", whole(0), nullable=True))


def _path(item: Fields, name: str) -> str:
    if item.document.get(name) == INLINE_PATH:
        return INLINE_PATH
    path = item.text(name)
    if path_read_version(path) is None:
        raise item.bad(name, "the path of a data file")
    return path


def _check_file(item: Fields, file: FileSlices) -> None:
    size = file.size
    if file.footer_length > min(size, INT32_MAX):
        item.integer("footerLength", 0, min(size, INT32_MAX))
    if (file.footer_length == 0) != is_sealed(file.path):
        raise item.bad("footerLength", "0 in a sealed segment and positive in any other file")
    if not file.position and sum(file.nbytes) + file.footer_length > size:
        raise item.bad("bytes", f"at most the file's size {size} in total")
    if file.position and any(map(gt, map(add, file.position, file.nbytes), repeat(size - file.footer_length))):
        raise item.bad("position", f"such that each slice ends before the footer of a file of {size} bytes")
    if any(map(gt, map(add, file.base, file.offsets), repeat(INT64_MAX))):
        raise item.bad("base", f"such that each slice ends at offset {INT64_MAX} or below")


FILE_JSON = Document(
    FileSlices,
    Member("path", MemberKind(_path)),
    *members(whole(0), "size", "footerLength"),
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
    *members(TEXTS, "readFeatures", "writeFeatures"),
    Member("version", whole(0)),
    *members(TEXT, "topicId", "commitId"),
    Member("prevCrc", whole(0, UINT32_MAX), nullable=True),
    Member("timeMs", whole(0)),
    Member("leaderEpoch", whole(0, INT32_MAX)),
    Member("writer", object_of(WRITER_JSON), nullable=True),
    Member("writers", objects_of(WRITER_JSON), optional=True),
    Member("op", one_of(*OPS)),
    Member("files", objects_of(FILE_JSON), optional=True),
    Member("carried", object_of(EMBEDDED_JSON), "embedded", optional=True),
    Member("inline", object_of(INLINE_JSON), optional=True),
    Member("remove", objects_of(REMOVAL_JSON), optional=True),
    Member("edits", objects_of(EDIT_JSON), optional=True),
    Member("logStarts", numbers_by_partition(MAX_PARTITIONS), optional=True),
    Member("configs", texts_by_text(nullable=True), optional=True),
    Member("partitions", whole(1, MAX_PARTITIONS), optional=True),
    Member("earlierPartitions", wholes(1, MAX_PARTITIONS), "previous_partition_counts", optional=True),
    Member("txn", object_of(TXN_JSON), optional=True),
    Member("resolved", objects_of(RESOLVED_JSON), optional=True),
    Member("kafkaOpen", objects_of(KAFKA_OPEN_JSON), optional=True),
    Member("kafkaEnded", objects_of(KAFKA_ENDED_JSON), optional=True),
    Member("kafkaSource", object_of(KAFKA_SOURCE_JSON), optional=True),
    Member("holds", objects_by_text(VERSION_LEASE_JSON, nullable=True), optional=True),
    Member("floor", whole(0), optional=True),
    Member("expired", numbers_by_text(), optional=True),
    *members(whole(0), "clockMs", "clockSince", optional=True),
)


def features_of(changes: Changes, op: str) -> tuple[str, ...]:
    """Return the features that a release must support to read or write the topic after these changes.

    A commit requires the feature of a config as soon as it sets the config, resets the config to its default, or
    creates a topic for which the default applies. Otherwise, an older release could not read the first commit with
    inline records or embedded documents, and would report it as corrupt. If an earlier commit, which the older release
    can read, already requires the feature, the older release reports the missing feature.
    """

    def is_set(config: str) -> bool:
        value = changes.configs.get(config)
        if value is None and (op == CREATE or config in changes.configs):
            value = definition(config).default_text
        return value is not None and value != "0"

    features = list[str]()
    if is_set(CARRIED_CONFIG):
        features.append(CARRIED_COMMITS)
    if changes.inline is not None or is_set(INLINE_CONFIG) or any(is_commit(file.path) for file in changes.files):
        features.append(INLINE_RECORDS)
    if changes.writers:
        features.append(KAFKA_WRITERS)
    return tuple(features)


def embed_commits(commit: Commit, embedded: EmbeddedCommits) -> None:
    """Add copies of earlier documents, and the feature `carriedCommits`, to an unpublished commit."""
    commit.embedded = embedded
    commit.read_features = tuple(sorted({*commit.read_features, CARRIED_COMMITS}))
    commit.write_features = tuple(sorted({*commit.write_features, CARRIED_COMMITS}))


def encode_commit(commit: Commit) -> bytes:
    """Return the bytes of a new commit: its document, the embedded documents and the inline records."""
    parts = [part.data for part in (commit.embedded, commit.inline) if part is not None]
    data = b"".join([COMMIT_JSON.encode(commit), *parts])
    if len(data) > MAX_DOCUMENT:
        raise BadRequest(
            f"the commit size {len(data)} exceeds the maximum {MAX_DOCUMENT}; write fewer records or changes at a time"
        )
    return data


def decode_commit(data: bytes, key: str, version: int, *, check_sections: bool = True) -> Commit:
    """Decode the commit in `data`.

    Args:
        data: The bytes of the object, or only of its document
        key: The object's key, for error messages
        version: The version that the commit must have
        check_sections: Whether to also check the sections after the document

    Raises:
        BadRequest: If a newer release wrote the commit
        Corrupt: If the commit is damaged
    """
    document = document_of(data)
    item = COMMIT_JSON.fields(document, key)
    if (stored := item.integer("version", 0)) != version:
        raise Corrupt(f"expected commit {version}, found commit {stored}; restore the object", file=key)
    attributes = COMMIT_JSON.attributes(item)
    embedded, inline, files = attributes.get("embedded"), attributes.get("inline"), attributes.get("files", ())
    _check_inline(item, files, inline)
    parts = [part for part in (embedded, inline) if part is not None]
    nbytes, crc = len(document), crc32c.crc32c(document)
    if check_sections or not parts:
        _check_parts(parts, memoryview(data)[nbytes:], key)
    for part in parts:
        crc = appended_crc(crc, part.nbytes, part.crc)
    if inline is not None:
        start = nbytes + (0 if embedded is None else embedded.nbytes)
        _locate_inline_file(files, commit_path(version), start)
    return Commit(**attributes, crc=crc, nbytes=nbytes)


def has_inline_records(data: bytes) -> bool:
    """Return True if a commit object contains inline records. The object may be damaged, or may not be a commit."""
    # The pattern does not match inside a JSON string, because the quotes in a string are escaped.
    return b'"inline":{' in document_of(data)


def _check_parts(parts: Sequence[EmbeddedCommits | InlineRecords], rest: memoryview, key: str) -> None:
    """Raise `Corrupt` if the sections after the document do not have the sizes and CRC-32Cs in the document."""
    if len(rest) != (expected := sum(part.nbytes for part in parts)):
        raise Corrupt(
            f"commit: expected {expected} bytes after the document, found {len(rest)}; restore the commit", file=key
        )
    for part in parts:
        if crc32c.crc32c(rest[: part.nbytes]) != part.crc:
            what = "inline records" if isinstance(part, InlineRecords) else "embedded documents"
            raise Corrupt(f"commit: the {what} do not match their CRC-32C; restore the commit", file=key)
        rest = rest[part.nbytes :]


def _check_inline(item: Fields, files: Sequence[FileSlices], inline: InlineRecords | None) -> None:
    """Raise `Corrupt` unless the commit has inline records and one inline file, or neither."""
    inline_files = [file for file in files if file.path == INLINE_PATH]
    if len(inline_files) != (inline is not None):
        raise item.bad(
            "inline", f"present if and only if there is one file without a path (there are {len(inline_files)})"
        )
    if inline is None:
        return
    (file,) = inline_files
    if file.position or not file.size == inline.nbytes == sum(file.nbytes) + file.footer_length:
        raise item.bad("inline", f"as large as its file ({file.size} bytes), without gaps between slices and footer")


def _locate_inline_file(files: Sequence[FileSlices], path: str, start: int) -> None:
    """Set the path, size and positions of the inline file of a decoded commit.

    `start` is the position of the inline records in the object, and `path` is the path of the commit.
    """
    for file in files:
        if file.path == INLINE_PATH:
            # There are no gaps between the slices, because `_check_inline` has checked that the slices fill the file.
            file.position = tuple(accumulate(file.nbytes, initial=start))[: len(file)]
            file.path, file.size = path, start + file.size
