"""Commits. A commit is one numbered object of a topic's log, and every change of a topic is a commit.

* This module defines the values: `Changes`, what a commit changes, and `Commit`, the changes with a version.
* `commit_json` defines the fields of the JSON document, and docs/reference/format-commits.md describes them.
* `commit_object` encodes and decodes the object, which consists of the document and up to two sections.

An edit replaces slices of one partition. Its inputs are the slices of the partition in `remove`, and its outputs are
the slices of the partition in `files`, with offsets in `[start, end)`. The edits of one commit do not overlap, so
slices do not have to reference their edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, get_args

from sparklog.format import crc32c
from sparklog.log.journal.documents import CARRIED_COMMITS, INLINE_RECORDS, KAFKA_WRITERS
from sparklog.log.journal.names import is_commit
from sparklog.log.state.configs import CARRIED_CONFIG, INLINE_CONFIG, definition
from sparklog.log.state.kafka_source import KafkaEnded, KafkaOpen, KafkaSource
from sparklog.log.state.slices import Content, FileSlices

CREATE: Final = "create"
DELETE: Final = "delete"
APPEND: Final = "append"
IMPORT: Final = "import"
ALTER: Final = "alter"
DELETE_RECORDS: Final = "delete-records"
RETAIN: Final = "retain"
MERGE: Final = "merge"
SEAL: Final = "seal"
COMPACT: Final = "compact"
TAKEOVER: Final = "takeover"
MAINTAIN: Final = "maintain"
Op = Literal[
    "create",
    "delete",
    "append",
    "import",
    "alter",
    "delete-records",
    "retain",
    "merge",
    "seal",
    "compact",
    "takeover",
    "maintain",
]
"""The operation of a commit."""
OPS: tuple[Op, ...] = get_args(Op)
MAX_EMBEDDED = 127
"""The maximum number of earlier commits whose documents a commit contains."""


@dataclass(frozen=True, slots=True)
class WriterBatch:
    """The batch of a writer that a commit appends. `kind` is `stream` or `txn`, and `count` is the number of records.

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
    """The open transaction that a commit's slices belong to: transaction number `n` of the transactional id `id`.

    `siblings` contains the topics that the transaction prepared before this topic, with the version of each prepare.
    """

    id: str
    n: int
    siblings: Mapping[str, int] = field(default_factory=dict)
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TxnDecision:
    """The decision on transaction number `n` of the transactional id `id`.

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
class Section:
    """The size and CRC-32C of a section after the document of a commit object. `title` is its name in error messages.

    Only the encoder needs `data`, so decoded commits do not have it.
    """

    nbytes: int
    crc: int
    data: bytes = field(default=b"", compare=False, repr=False)
    title: ClassVar[str]


@dataclass(frozen=True, slots=True)
class EmbeddedCommits(Section):
    """The compressed documents of the `commits` previous commits."""

    commits: int = field(kw_only=True)
    title: ClassVar[str] = "embedded documents"


@dataclass(frozen=True, slots=True)
class InlineRecords(Section):
    """The records in a commit object, as the bytes of an append file."""

    title: ClassVar[str] = "inline records"

    @classmethod
    def of(cls, data: bytes) -> InlineRecords:
        return cls(len(data), crc32c.crc32c(data), data)


@dataclass(slots=True, kw_only=True)
class Changes:
    """The changes that a commit makes to a topic. If a field has its default value, it does not change anything.

    Changes and commits are mutable until they are published: `Commit.embed` and `decode_commit` complete a commit
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
    * `leases`: new and renewed leases by name; None releases a lease
    * `floor`: the new retention floor
    * `expired`: the version of the registry entry of each writer that the commit removes
    """

    writer: WriterBatch | None = None
    writers: tuple[WriterBatch, ...] = ()
    files: tuple[FileSlices, ...] = ()
    inline: InlineRecords | None = None
    remove: tuple[RemovedSlices, ...] = ()
    edits: tuple[Edit, ...] = ()
    log_starts: Mapping[int, int] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)
    partitions: int | None = None
    previous_partition_counts: tuple[int, ...] = ()
    txn: Txn | None = None
    resolved: tuple[TxnDecision, ...] = ()
    kafka_open: tuple[KafkaOpen, ...] = ()
    kafka_ended: tuple[KafkaEnded, ...] = ()
    kafka_source: KafkaSource | None = None
    leases: Mapping[str, VersionLease | None] = field(default_factory=dict)
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
    op: Op
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()
    clock_ms: int | None = None  # the time of the writer's clock, or None if it is equal to `time_ms`
    clock_since: int | None = None  # the latest version at which `created_ms` decreased
    embedded: EmbeddedCommits | None = None
    # CRC-32C of the object and size of its document. A commit that was not decoded has 0.
    crc: int = field(default=0, compare=False)
    nbytes: int = field(default=0, compare=False)

    @property
    def may_copy_partitions(self) -> bool:
        """True if the commit may add entire partitions with their offsets: an import, or the creation of a clone."""
        return self.op in (CREATE, IMPORT)

    @property
    def sections(self) -> list[Section]:
        """The sections after the document, in order."""
        return list(filter(None, (self.embedded, self.inline)))

    @property
    def inline_start(self) -> int:
        """The position of the inline records in the object."""
        return self.nbytes + (0 if self.embedded is None else self.embedded.nbytes)

    @property
    def created_ms(self) -> int:
        """The commit time according to the writer's clock (ms). This is the LogAppendTime of the commit's records."""
        return self.time_ms if self.clock_ms is None else self.clock_ms

    def embed(self, embedded: EmbeddedCommits) -> None:
        """Add copies of earlier documents, and the feature `carriedCommits`, to an unpublished commit."""
        self.embedded = embedded
        self.read_features = tuple(sorted({*self.read_features, CARRIED_COMMITS}))
        self.write_features = tuple(sorted({*self.write_features, CARRIED_COMMITS}))


def features_of(changes: Changes, op: Op) -> tuple[str, ...]:
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
