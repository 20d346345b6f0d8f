"""Intents. An intent is a change that is validated against the latest state before each attempt to commit it.

`Intent.draft(state)` is called before the first attempt, and again whenever another writer has committed first, so that
a change is never validated against an outdated state. It returns a `Draft`, or `Nothing` if no commit is needed, or
raises an error.

| intent        | module                    | validation after concurrent commits                                    |
|---------------|---------------------------|------------------------------------------------------------------------|
| append        | `log.state.append_offsets` | new offsets; checks registry, topic id, retention floor and null keys |
| log starts    | this module               | the higher log start applies                                           |
| alter         | this module               | a conflict if the same config or the partition count changed       |
| create        | this module               | a conflict if the topic exists                                         |
| delete        | this module               | not found if deleted; a conflict if the topic was created again        |
| maintain      | this module               | the higher retention floor applies; a conflict if a lease is below it  |
| import        | this module               | a conflict if the log end of a partition has changed                   |
| rewrite       | `log.state.rewrites`      | drops edits whose inputs above the log start no longer exist           |
| abandon clone | `log.topic.cloning`       | no commit if the clone or another topic exists                         |
| clone         | `log.topic.cloning`       | a conflict if the log of this name has changed or a lease has expired  |
| end Kafka     | `log.write.kafka_markers` | no commit if all transactions ended; a conflict if some have ended     |
| take over     | `transactions.publishing` | checks the registry; no commit if the run is known                     |
| upkeep        | `retention.vacuum`        | drafted from the leases and writers in the latest state                |

Upkeep and maintain both draft MAINTAIN commits. A `MaintainIntent` lists what the caller found in one state, and is
validated against the latest state. An `UpkeepIntent` consists of rules, for example to remove expired leases, and
applies to any topic with this name.

An import adds entire partitions, or their next records, with Kafka's offsets. Only imports may leave gaps and set a log
end, because a Kafka log can end after its last record. An import therefore has an edit without inputs for each
partition. The range of the edit is the range of the imported offsets, and its `first_dirty_offset` is Kafka's cleaner
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import ClassVar, Protocol

import numpy as np

from sparklog.common import units
from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.log.journal.clocks import next_times
from sparklog.log.journal.documents import INT32_MAX, KNOWN_WRITE_FEATURES
from sparklog.log.journal.names import MAX_PARTITIONS, path_read_version
from sparklog.log.state.commit import (
    ALTER,
    CREATE,
    DELETE,
    DELETE_RECORDS,
    IMPORT,
    MAINTAIN,
    Changes,
    Commit,
    Edit,
    Op,
    TxnDecision,
    VersionLease,
    WriterBatch,
    features_of,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.kafka_source import ImportedEnd, KafkaEnded, KafkaOpen, KafkaSource
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.topic_state import TopicState

_CHANGES = tuple(change.name for change in fields(Changes))
_changes = attrgetter(*_CHANGES)
HAS_NULL_KEYS = int(SliceFlag.HAS_NULL_KEYS)


@dataclass(slots=True)
class Draft(Changes):
    """The fields of a commit that an intent determines. If a field is None, the topic's current value applies.

    `dropped` lists the edits of the intent that no longer apply.
    """

    op: Op
    topic_id: str | None = None
    leader_epoch: int | None = None
    dropped: tuple[Edit, ...] = ()

    def commit(self, state: TopicState, commit_id: str, now_ms: int, store_ms: int | None = None) -> Commit:
        """Return the commit that follows `state`.

        `now_ms` is the time of the writer's clock. `store_ms` is the time of the store's clock, or None if it equals
        `now_ms`.
        """
        check_features(state)
        features = features_of(self, self.op)
        times = next_times(state, state.version + 1, now_ms, now_ms if store_ms is None else store_ms)
        return Commit(
            version=state.version + 1,
            topic_id=state.topic_id if self.topic_id is None else self.topic_id,
            commit_id=commit_id,
            prev_crc=state.crc,
            **times,
            leader_epoch=state.leader_epoch if self.leader_epoch is None else self.leader_epoch,
            op=self.op,
            read_features=features,
            write_features=features,
            **dict(zip(_CHANGES, _changes(self), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Nothing:
    """The result of an intent for which no commit is needed. `note` contains the reason.

    `version` is the version of the earlier commit that made the same change. If there is no such commit, it is the
    topic's version.
    """

    note: str
    version: int
    skipped: bool = False
    dropped: tuple[Edit, ...] = ()


class Intent(Protocol):
    """A change to commit.

    The arguments of `draft` are the latest state, the state on which the caller based the change (`origin`) and, if
    `needs_table` is true, the slice table. An intent is `repeatable` if committing it twice has the same effect as
    committing it once.
    """

    @property
    def needs_table(self) -> bool: ...
    @property
    def repeatable(self) -> bool: ...
    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing: ...


def check_features(state: TopicState) -> None:
    """Raise `BadRequest` if the topic requires features that this release does not support for writing.

    Checkpoints need this check too, because a checkpoint would lose the fields of an unknown feature.
    """
    if not KNOWN_WRITE_FEATURES.issuperset(state.write_features):
        unknown = ", ".join(sorted(set(state.write_features) - KNOWN_WRITE_FEATURES))
        raise BadRequest(f"writing to this topic requires the sparklog features {unknown}; upgrade sparklog")


def check_topic(topic: str, state: TopicState, topic_id: str) -> None:
    """Raise `NotFound` if the topic does not exist, and `Conflict` if its topic id differs from the id that the caller
    read.
    """
    if state.deleted:
        raise NotFound(f"topic '{topic}' was deleted; create it again")
    check_topic_id(topic, state, topic_id)


def check_topic_id(topic: str, state: TopicState, topic_id: str) -> None:
    """Raise `Conflict` if the topic id differs from the id that the caller read. The topic may be deleted."""
    if state.topic_id != topic_id:
        raise Conflict(
            f"topic '{topic}' was deleted and recreated: expected topic id {topic_id}, found {state.topic_id}; "
            "refresh and retry"
        )


def check_floor(topic: str, files: Sequence[FileSlices], floor: int) -> None:
    """Raise `Conflict` if a file is based on a version below the retention floor, because the vacuum may have deleted
    the file.
    """
    for file in files:
        read_version = path_read_version(file.path)
        if read_version is None:
            raise BadRequest(f"'{file.path}' is not the path of a data file of topic '{topic}'")
        # The floor limits what the vacuum of this topic deletes. A file with an absolute path belongs to another topic.
        # A lease in that topic's log protects the file, regardless of its version.
        if read_version < floor and not file.path.startswith("/"):
            raise Conflict(
                f"{file.path} is based on version {read_version} of topic '{topic}', which is below the retention "
                f"floor {floor}, so the vacuum may have deleted the file; write the records again"
            )


@dataclass(frozen=True, slots=True)
class LogStartIntent:
    """Advance log start offsets, for retention or delete-records.

    The higher log start offset applies, so the order of commits does not matter.
    """

    topic_id: str
    log_starts: Mapping[int, int]
    op: Op = DELETE_RECORDS
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        advanced = {}
        for partition, offset in sorted(self.log_starts.items()):
            if not 0 <= partition < state.partitions:
                raise NotFound(
                    f"topic '{topic}' has partitions 0 to {state.partitions - 1}, found partition {partition}"
                )
            if not 0 <= offset <= state.log_end[partition]:
                raise NotFound(
                    f"offset {offset} of partition {partition} of topic '{topic}' is out of range: "
                    f"expected 0 to {state.log_end[partition]}"
                )
            if offset > state.log_start[partition]:
                advanced[partition] = offset
        if not advanced:
            return Nothing("no log start advances", state.version)
        return Draft(self.op, log_starts=advanced)


@dataclass(frozen=True, slots=True)
class AlterIntent:
    """Set configs and add partitions. None resets a config to its default.

    If `drop_keyless` is true, a topic with records without keys may become compacted. Compaction then drops these
    records.
    """

    topic_id: str
    configs: Mapping[str, object | None]
    partitions: int | None = None
    drop_keyless: bool = False
    repeatable: ClassVar[bool] = False

    @property
    def needs_table(self) -> bool:
        return not self.drop_keyless and self.configs.get("cleanup.policy") is not None

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        changes: dict[str, str | None] = {}
        altered = state.configs.changed(self.configs)
        for name in sorted(self.configs):
            before, now = origin.configs.explicit.get(name), state.configs.explicit.get(name)
            if before != now:
                raise Conflict(
                    f"another process changed config {name} of topic '{topic}': expected "
                    f"{before or 'the default'}, found {now or 'the default'}; refresh and retry"
                )
            if (after := altered.explicit.get(name)) != now:
                changes[name] = after
        count = self.partitions
        if count is not None:
            if state.partitions != origin.partitions:
                raise Conflict(
                    f"another process changed the partitions of topic '{topic}': expected "
                    f"{origin.partitions}, found {state.partitions}; refresh and retry"
                )
            if not state.partitions < count <= MAX_PARTITIONS:
                raise BadRequest(
                    f"topic '{topic}' has {units.count(state.partitions, 'partition')}; the number of partitions can "
                    f"only increase, up to {MAX_PARTITIONS}; found {count}"
                )
        if not changes and count is None:
            return Nothing("nothing changes", state.version)
        if self.needs_table and table is not None and altered.is_compacted and not state.configs.is_compacted:
            _check_keys(topic, table)
        return Draft(ALTER, configs=changes, partitions=count)


def _check_keys(topic: str, table: SliceTable) -> None:
    rows = table.all()
    keyless = np.flatnonzero(rows.flags & HAS_NULL_KEYS)
    if len(keyless):
        row = int(keyless[0])
        raise BadRequest(
            f"topic '{topic}' contains records without keys (in {len(keyless)} of {len(rows)} slices, first in "
            f"partition {rows.partition[row]}, offsets {rows.base[row]} to {rows.end[row]}), which compaction would "
            "drop; copy the topic with keys, or alter it with force"
        )


@dataclass(frozen=True, slots=True)
class CreateIntent:
    """Create a topic in commit 0 or in the commit after a delete. `writers` are the initial entries of its registry."""

    topic_id: str
    partitions: int
    configs: TopicConfigs
    kafka_source: KafkaSource | None = None
    writers: tuple[WriterBatch, ...] = ()
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        if state.exists:
            number = units.count(state.partitions, "partition")
            raise Conflict(f"topic '{topic}' already exists, with {number}; alter it or choose another name")
        return Draft(
            CREATE,
            topic_id=self.topic_id,
            leader_epoch=0,
            configs=self.configs.explicit,
            partitions=self.partitions,
            kafka_source=self.kafka_source,
            writers=self.writers,
        )


@dataclass(frozen=True, slots=True)
class DeleteIntent:
    """Delete a topic. If `version` is set and the topic has a later commit, a `Conflict` is raised."""

    topic_id: str
    version: int | None = None
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        if self.version is not None and state.version != self.version:
            raise Conflict(f"topic '{topic}' is in use: its version is {state.version}, expected {self.version}")
        return Draft(DELETE)


@dataclass(frozen=True, slots=True)
class MaintainIntent:
    """Record the result of maintenance. Deleted topics also need maintenance commits, because leases may protect their
    files.
    """

    topic_id: str
    leases: Mapping[str, VersionLease | None] = field(default_factory=dict)  # by name; None releases a lease
    # the retention floor, which is the minimum version on which files in later commits may be based
    floor: int | None = None
    expired: Mapping[str, int] = field(default_factory=dict)  # idle writers: for each id, the version of its last entry
    resolved: tuple[TxnDecision, ...] = ()  # decisions on open transactions
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic_id(topic, state, self.topic_id)
        floor = self.floor if self.floor is not None and self.floor > state.floor else None
        leases = self._new_leases(topic, state, state.floor if floor is None else floor)
        latest = {name: entry.version for name, entry in state.registry.items()}
        expired = {name: version for name, version in self.expired.items() if latest.get(name) == version}
        undecided = {(prepare.txn.id, prepare.txn.n) for prepare in state.open}
        resolved = tuple(item for item in self.resolved if (item.id, item.n) in undecided)
        if floor is None and not leases and not expired and not resolved:
            return Nothing("nothing changes", state.version)
        return Draft(MAINTAIN, leases=leases, floor=floor, expired=expired, resolved=resolved)

    def _new_leases(self, topic: str, state: TopicState, floor: int) -> dict[str, VersionLease | None]:
        # A version below the floor can be leased if another lease protects it, because the vacuum does not delete files
        # of versions that are leased in the latest state.
        leased = {lease.version for lease in state.leases.values()}
        for name, lease in self.leases.items():
            if lease is not None and lease.version < floor and lease.version not in leased:
                raise Conflict(
                    f"lease '{name}' requires version {lease.version} of topic '{topic}', which is below the "
                    f"retention floor {floor}; lease a later version"
                )
        return {name: lease for name, lease in self.leases.items() if state.leases.get(name) != lease}


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """Offsets `[since, log_end)` to import from a partition of a Kafka log."""

    partition: int
    log_start: int
    log_end: int
    # None if the log was not compacted, or if it was not compacted at the start of the import
    first_dirty_offset: int | None
    leader_epoch: int
    # files with base offsets, in offset order; the first slice may start below `log_start`
    files: tuple[FileSlices, ...]
    open: tuple[KafkaOpen, ...] = ()  # transactions without a marker below `log_end`
    since: int = 0
    ended: tuple[KafkaEnded, ...] = ()  # open transactions of the topic that end below `log_end`
    imported: ImportedEnd | None = None  # the position where the next import continues; None if no batch is known

    def edit(self) -> Edit:
        start = min([max(self.log_start, self.since), *(base for file in self.files for base in file.base)])
        cleaned = self.first_dirty_offset
        if cleaned is not None and not 0 <= cleaned <= self.log_end:
            # The end of the log was lost, or the checkpoint is corrupt. As in Kafka, the entire log then counts as
            # dirty. If it counted as clean, compaction could remove a tombstone before it removes the values that the
            # tombstone deletes.
            cleaned = None
        return Edit(self.partition, start, self.log_end, cleaned)

    @property
    def end(self) -> ImportedEnd:
        return self.imported or ImportedEnd(self.log_end)

    def still_open(self) -> tuple[KafkaOpen, ...]:
        """Return the open transactions that have offsets above the log start offset."""
        return tuple(transaction for transaction in self.open if transaction.end > self.log_start)

    def is_in(self, state: TopicState) -> bool:
        """Return True if a topic in this state already has these offsets."""
        if self.log_end == 0:
            return True
        end = state.kafka_source.ends.get(self.partition) if state.kafka_source else None
        if end != self.end or state.log_end[self.partition] != self.log_end:
            return False
        is_open = {transaction for transaction in state.kafka_open if transaction.partition == self.partition}
        return bool(state.log_start[self.partition] >= self.log_start) and is_open == set(self.still_open())

    def check_since(self, topic: str, state: TopicState) -> None:
        """Raise `Conflict` if the log end of the partition is not `since`, so that no record is imported twice."""
        end = int(state.log_end[self.partition])
        if end != self.since:
            expected = "an empty partition" if self.since == 0 else f"log end offset {self.since}"
            raise Conflict(
                f"cannot import into partition {self.partition} of topic '{topic}', because another process is writing "
                f"to the topic: expected {expected}, found log end offset {end}; retry, or import under another name"
            )


@dataclass(frozen=True, slots=True)
class ImportIntent:
    """Import partitions, or their next records.

    The commit increases the leader epoch. `kafka_topic_id` is empty if the id is unknown.
    """

    topic_id: str
    partitions: tuple[ImportedPartition, ...]
    kafka_topic_id: str = ""
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        for part in self.partitions:
            if part.partition >= state.partitions:
                last = state.partitions - 1
                raise Conflict(
                    f"topic '{topic}' has partitions 0 to {last}, found partition {part.partition}; refresh and retry"
                )
        missing = [part for part in self.partitions if not part.is_in(state)]
        for part in missing:
            part.check_since(topic, state)
        if not missing:
            return Nothing("there is nothing to import", state.version)
        files = tuple(file for part in missing for file in part.files)
        check_floor(topic, files, state.floor)
        return Draft(
            IMPORT,
            leader_epoch=min(max([state.leader_epoch, *(part.leader_epoch + 1 for part in missing)]), INT32_MAX),
            files=files,
            edits=tuple(part.edit() for part in missing),
            kafka_open=tuple(transaction for part in missing for transaction in part.still_open()),
            kafka_ended=tuple(ended for part in missing for ended in part.ended),
            kafka_source=KafkaSource(self.kafka_topic_id, {part.partition: part.end for part in missing}),
            log_starts={
                part.partition: part.log_start for part in missing if part.log_start > state.log_start[part.partition]
            },
        )
