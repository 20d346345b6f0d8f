"""Intents: changes that a caller wants to commit, checked against each state they are tried on.

`draft(head)` of an `Intent` is called for the first attempt and again after every lost race, so nothing is ever judged
on a state that is no longer the newest. It answers with a `Draft`, or `Nothing` if nothing is to be written, or raises.

| intent     | module                       | against commits in between                                               |
|------------|------------------------------|--------------------------------------------------------------------------|
| append     | `log.state.append_offsets`   | new offsets; registry, topic id, upload floor, null keys checked again   |
| log starts | here                         | applied as a maximum                                                     |
| alter      | here                         | a conflict if the same config or the partition count was changed         |
| create     | here                         | a conflict if the topic exists meanwhile                                 |
| delete     | here                         | not found if it is gone; a conflict if it was created again              |
| maintain   | here                         | floor as a maximum; holds not below it, or held already; entries if idle |
| import     | here                         | a conflict unless each piece begins where its log ends here              |
| rewrite    | `log.state.rewrites`         | an edit is dropped if an input is gone, unless below the log start       |
| give up    | `log.topic.cloning`          | nothing if the clone, or another topic, exists                           |
| clone      | `log.topic.cloning`          | a conflict if the name's log has moved on, or a hold has ended           |
| end Kafka  | `log.write.kafka_markers`    | nothing if all transactions have ended; a conflict if some have          |
| take over  | `transactions.publishing`    | registry checked again; nothing if the run is known                      |
| upkeep     | `retention.vacuum`           | drafted from the holds and writers of the newest state                   |

Upkeep and maintain both draft MAINTAIN. A `MaintainIntent` lists what a caller has found in one state, and is checked;
an `UpkeepIntent` has rules alone (what has expired by now), and holds for whichever topic has the name.

An import brings whole partitions, or the next piece of each, at their offsets in Kafka. It alone may leave gaps and say
where a log ends, because Kafka's logs can end after their last record. So each partition that it takes from has an edit
without inputs: its range is what is new of the log, its `first_dirty_offset` Kafka's cleaner checkpoint.
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
    Resolved,
    VersionLease,
    Writer,
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
    """The part of a commit that an intent decides; `None` takes the head's. `dropped`: edits that no longer stand."""

    op: str
    topic_id: str | None = None
    leader_epoch: int | None = None
    dropped: tuple[Edit, ...] = ()

    def commit(self, state: TopicState, commit_id: str, now_ms: int, store_ms: int | None = None) -> Commit:
        """Return the commit that follows `state`, by the writer's clock and the store's (None: the same)."""
        check_features(state)
        times = next_times(state, state.version + 1, now_ms, now_ms if store_ms is None else store_ms)
        return Commit(
            version=state.version + 1,
            topic_id=state.topic_id if self.topic_id is None else self.topic_id,
            commit_id=commit_id,
            prev_crc=state.crc,
            **times,
            leader_epoch=state.leader_epoch if self.leader_epoch is None else self.leader_epoch,
            op=self.op,
            **features_of(self, self.op),
            **dict(zip(_CHANGES, _changes(self), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Nothing:
    """No commit is needed, as `note` explains; `version`: of the commit that did the same before, or the head's."""

    note: str
    version: int
    skipped: bool = False
    dropped: tuple[Edit, ...] = ()


class Intent(Protocol):
    """A change. `origin` is the head that the caller looked at, `table` is given if `needs_table`.

    `repeatable`: tried again after it has landed, it changes nothing.
    """

    @property
    def needs_table(self) -> bool: ...
    @property
    def repeatable(self) -> bool: ...
    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing: ...


def check_features(state: TopicState) -> None:
    """Raise `BadRequest` if the log asks for features this release cannot write: a checkpoint would lose them, too."""
    if not KNOWN_WRITE_FEATURES.issuperset(state.write_features):
        unknown = ", ".join(sorted(set(state.write_features) - KNOWN_WRITE_FEATURES))
        raise BadRequest(f"this topic needs the sparklog features {unknown} to be written; upgrade sparklog")


def check_topic(topic: str, state: TopicState, topic_id: str) -> None:
    """Raise `NotFound` without a topic, `Conflict` if it is not the one the caller looked at."""
    if state.deleted:
        raise NotFound(f"topic '{topic}' was deleted; create it again")
    check_topic_id(topic, state, topic_id)


def check_topic_id(topic: str, state: TopicState, topic_id: str) -> None:
    """Raise `Conflict` if the topic, which may be deleted, is not the one the caller looked at."""
    if state.topic_id != topic_id:
        raise Conflict(
            f"topic '{topic}' was deleted and created again: expected topic id {topic_id}, found "
            f"{state.topic_id}; look again"
        )


def check_floor(topic: str, files: Sequence[FileSlices], floor: int) -> None:
    """Raise `Conflict` if a file was begun before the upload floor: the vacuum may have deleted it."""
    for file in files:
        read_version = path_read_version(file.path)
        if read_version is None:
            raise BadRequest(f"'{file.path}' is no path of a data file of topic '{topic}'")
        # The floor says what the vacuum of this topic may delete. A path from the root is another topic's file: a hold
        # in the log of that topic keeps it, whatever its version.
        if read_version < floor and not file.path.startswith("/"):
            raise Conflict(
                f"{file.path} was begun at version {read_version} of topic '{topic}', below the upload floor {floor}: "
                "the vacuum may have deleted it; upload it again"
            )


@dataclass(frozen=True, slots=True)
class LogStartIntent:
    """Move log starts (retention, delete-records): a maximum, so concurrent ones commute."""

    topic_id: str
    log_starts: Mapping[int, int]
    op: str = DELETE_RECORDS
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        moved = {}
        for partition, offset in sorted(self.log_starts.items()):
            if not 0 <= partition < state.partitions:
                raise NotFound(f"topic '{topic}' has partitions 0 to {state.partitions - 1}, found {partition}")
            if not 0 <= offset <= state.log_end[partition]:
                raise NotFound(
                    f"offset {offset} of partition {partition} of topic '{topic}' is out of range: "
                    f"expected 0 to {state.log_end[partition]}"
                )
            if offset > state.log_start[partition]:
                moved[partition] = offset
        return Draft(self.op, log_starts=moved) if moved else Nothing("no log start moves", state.version)


@dataclass(frozen=True, slots=True)
class AlterIntent:
    """Change configs (None: default), add partitions. `drop_keyless`: compact a topic that has records without keys."""

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
                    f"config {name} of topic '{topic}' was changed by another process meanwhile: expected "
                    f"{before or 'the default'}, found {now or 'the default'}; look again"
                )
            if (after := altered.explicit.get(name)) != now:
                changes[name] = after
        count = self.partitions
        if count is not None:
            if state.partitions != origin.partitions:
                raise Conflict(
                    f"partitions of topic '{topic}' were changed by another process meanwhile: expected "
                    f"{origin.partitions}, found {state.partitions}; look again"
                )
            if not state.partitions < count <= MAX_PARTITIONS:
                raise BadRequest(
                    f"topic '{topic}' has {units.count(state.partitions, 'partition')}, and their number can only grow "
                    f"(to at most {MAX_PARTITIONS}); found {count}"
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
            f"topic '{topic}' holds records without a key ({len(keyless)} of {len(rows)} slices, the first is "
            f"partition {rows.partition[row]}, offsets {rows.base[row]} to {rows.end[row]}): compaction would "
            "drop them; copy the topic with keys, or alter it with force"
        )


@dataclass(frozen=True, slots=True)
class CreateIntent:
    """Begin a topic where there is none: commit 0, or the next after a delete. `writers`: known from the start."""

    topic_id: str
    partitions: int
    configs: TopicConfigs
    kafka_source: KafkaSource | None = None
    writers: tuple[Writer, ...] = ()
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
    """End a topic. `version`: only if no commit has come since, else `Conflict`."""

    topic_id: str
    version: int | None = None
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        if self.version is not None and state.version != self.version:
            raise Conflict(f"topic '{topic}' is at version {state.version}, expected {self.version}: it is in use")
        return Draft(DELETE)


@dataclass(frozen=True, slots=True)
class MaintainIntent:
    """Maintenance to write down. It fits a deleted topic as well, whose files may still be held."""

    topic_id: str
    holds: Mapping[str, VersionLease | None] = field(default_factory=dict)  # by name; None lets go of one
    floor: int | None = None  # the upload floor, the lowest read version of files that a commit may still bring
    expired: Mapping[str, int] = field(default_factory=dict)  # idle writers by id, at the entry's version that was idle
    resolved: tuple[Resolved, ...] = ()  # outcomes of open transactions
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic_id(topic, state, self.topic_id)
        floor = self.floor if self.floor is not None and self.floor > state.floor else None
        holds = self._new_holds(topic, state, state.floor if floor is None else floor)
        newest = {name: entry.version for name, entry in state.registry.items()}
        expired = {name: version for name, version in self.expired.items() if newest.get(name) == version}
        waiting = {(prepare.txn.id, prepare.txn.n) for prepare in state.open}
        resolved = tuple(item for item in self.resolved if (item.id, item.n) in waiting)
        if floor is None and not holds and not expired and not resolved:
            return Nothing("nothing changes", state.version)
        return Draft(MAINTAIN, holds=holds, floor=floor, expired=expired, resolved=resolved)

    def _new_holds(self, topic: str, state: TopicState, floor: int) -> dict[str, VersionLease | None]:
        # What another hold keeps can be held once more: the vacuum lets go of nothing that the newest state holds.
        kept = {hold.version for hold in state.holds.values()}
        for name, hold in self.holds.items():
            if hold is not None and hold.version < floor and hold.version not in kept:
                raise Conflict(
                    f"hold '{name}' asks for version {hold.version} of topic '{topic}', below the "
                    f"upload floor {floor}; hold a newer version"
                )
        return {name: hold for name, hold in self.holds.items() if state.holds.get(name) != hold}


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """A piece of a partition as it was found: `[since, log_end)`."""

    partition: int
    log_start: int
    log_end: int
    first_dirty_offset: int | None  # compacted below it (None: never, or what was taken before is not)
    leader_epoch: int
    files: tuple[FileSlices, ...]  # with the base of each slice, in offset order; the first may begin before the log
    open: tuple[KafkaOpen, ...] = ()  # transactions that no marker up to `log_end` ends
    since: int = 0
    ended: tuple[KafkaEnded, ...] = ()  # those that were known open, and that one does
    imported: ImportedEnd | None = None  # what the next import goes on from (None: no batch is known)

    def edit(self) -> Edit:
        start = min([max(self.log_start, self.since), *(base for file in self.files for base in file.base)])
        cleaned = self.first_dirty_offset
        if cleaned is not None and not 0 <= cleaned <= self.log_end:
            # The log has lost its end, or the number is damaged: as in Kafka, all of it counts as dirty. Taken for
            # clean, a tombstone in it would one day go without the values that it hides.
            cleaned = None
        return Edit(self.partition, start, self.log_end, cleaned)

    @property
    def end(self) -> ImportedEnd:
        return self.imported or ImportedEnd(self.log_end)

    def still_open(self) -> tuple[KafkaOpen, ...]:
        """Return the open transactions of which something is above the log start."""
        return tuple(transaction for transaction in self.open if transaction.end > self.log_start)

    def landed(self, state: TopicState) -> bool:
        """True if a topic in this state has all of it."""
        if self.log_end == 0:
            return True
        end = state.kafka_source.ends.get(self.partition) if state.kafka_source else None
        if end != self.end or state.log_end[self.partition] != self.log_end:
            return False
        still = {transaction for transaction in state.kafka_open if transaction.partition == self.partition}
        return bool(state.log_start[self.partition] >= self.log_start) and still == set(self.still_open())

    def check_begin(self, topic: str, state: TopicState) -> None:
        """Raise `Conflict` unless the piece begins where its log ends here: nothing is taken twice."""
        end = int(state.log_end[self.partition])
        if end != self.since:
            expected = "an empty one, it" if self.since == 0 else f"one that ends at {self.since}, it"
            raise Conflict(
                f"cannot import into partition {self.partition} of topic '{topic}': expected {expected} ends at "
                f"{end}; another writer wrote to it, or imports the same: look again, or import under another name"
            )


@dataclass(frozen=True, slots=True)
class ImportIntent:
    """Fill partitions, or go on where they end; a later leader epoch follows. `kafka_topic_id`: empty if not known."""

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
                raise Conflict(f"topic '{topic}' has partitions 0 to {last}, found {part.partition}: look again")
        missing = [part for part in self.partitions if not part.landed(state)]
        for part in missing:
            part.check_begin(topic, state)
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
