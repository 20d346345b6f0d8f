"""Intents: changes that a caller wants to commit, checked against each state they are tried on.

An `Intent` gives the commit as a function of the state it is based on: `draft(base)` is called for the first attempt
and again after every lost race, so nothing is ever judged on a state that is no longer the newest. It answers with a
`Draft`, or with `Nothing` when there is nothing (left) to write, or raises.

| intent      | against commits in between                                                                          |
|-------------|-----------------------------------------------------------------------------------------------------|
| append      | new offsets; registry, topic id, upload floor, null keys on a compacted topic re-checked            |
| rewrite     | an edit stands if every input is still there or lies wholly below the log start, else it is dropped |
| log starts  | applied as a maximum                                                                                |
| alter       | a concurrent change of the same config or of the partition count is a conflict                      |
| create      | a conflict if the topic exists meanwhile                                                            |
| delete      | not found if it is gone; a conflict if it was created again                                         |
| maintain    | topic id; floor as a maximum; holds not below the floor, or held already; entries only if still idle |
| import      | a conflict unless each piece begins where its log ends here: nothing is taken twice                  |

An import brings whole partitions, or the next piece of each, at the offsets they had in Kafka. It is the only commit
that may leave gaps and that says where a log ends, because Kafka's logs can end behind their last record: the cleaner
removed it, or the next segment is empty. So each partition that it takes from has an edit without inputs: its range is
what is new of the log, its `cleaned_through` Kafka's cleaner checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.log.journal.clocks import next_times
from sparklog.log.journal.documents import INT32_MAX, INT64_MAX, KNOWN_WRITE_FEATURES
from sparklog.log.journal.names import MAX_PARTITIONS, path_read_version
from sparklog.log.state.commit import (
    ALTER,
    APPEND,
    CREATE,
    DELETE,
    DELETE_RECORDS,
    IMPORT,
    MAINTAIN,
    TAKEOVER,
    Changes,
    Commit,
    Edit,
    Hold,
    ImportedEnd,
    KafkaEnded,
    KafkaOpen,
    KafkaSource,
    Resolved,
    Txn,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.topic_state import Head
from sparklog.log.state.writer_runs import WriterKey, decide

_HAS_NULL_KEYS = int(SliceFlag.HAS_NULL_KEYS)


@dataclass(frozen=True, slots=True)
class Draft(Changes):
    """The part of a commit that an intent decides; `None` takes the base's. `dropped`: edits that no longer stand."""

    op: str
    topic_id: str | None = None
    leader_epoch: int | None = None
    dropped: tuple[Edit, ...] = ()

    def commit(self, base: Head, commit_id: str, now_ms: int, store_ms: int | None = None) -> Commit:
        """Return the commit that follows `base`, by the writer's clock and the store's (None: the same)."""
        check_features(base)
        times = next_times(base, base.version + 1, now_ms, now_ms if store_ms is None else store_ms)
        return Commit(
            version=base.version + 1,
            topic_id=base.topic_id if self.topic_id is None else self.topic_id,
            commit_id=commit_id,
            prev_crc=base.crc,
            **times,
            leader_epoch=base.leader_epoch if self.leader_epoch is None else self.leader_epoch,
            op=self.op,
            **{each.name: getattr(self, each.name) for each in fields(Changes)},
        )


@dataclass(frozen=True, slots=True)
class Nothing:
    """No commit is needed, as `note` explains; `version`: of the commit that did the same before, or the base's."""

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
    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing: ...


def check_features(base: Head) -> None:
    """Raise `BadRequest` if the log asks for features this release cannot write: a checkpoint would lose them, too."""
    unknown = sorted(set(base.write_features) - KNOWN_WRITE_FEATURES)
    if unknown:
        raise BadRequest(f"this topic needs the sparklog features {', '.join(unknown)} to be written; upgrade sparklog")


def check_topic(topic: str, base: Head, topic_id: str) -> None:
    """Raise `NotFound` without a topic, `Conflict` if it is not the one the caller looked at."""
    if base.deleted:
        raise NotFound(f"topic '{topic}' was deleted; create it again")
    check_topic_id(topic, base, topic_id)


def check_topic_id(topic: str, base: Head, topic_id: str) -> None:
    """Raise `Conflict` if the topic, which may be deleted, is not the one the caller looked at."""
    if base.topic_id != topic_id:
        raise Conflict(
            f"topic '{topic}' was deleted and created again: expected topic id {topic_id}, found "
            f"{base.topic_id}; look again"
        )


@dataclass(frozen=True, slots=True)
class AppendIntent:
    """Append whole files; `key` makes it idempotent, `txn` holds its slices open. `now_ms`: when it was asked for."""

    topic_id: str
    files: tuple[FileSlices, ...]
    key: WriterKey | None = None
    txn: Txn | None = None
    now_ms: int = 0
    needs_table: bool = False

    @property
    def repeatable(self) -> bool:
        return self.key is not None

    @property
    def count(self) -> int:
        return sum(sum(file.records) for file in self.files)

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, base, self.topic_id)
        writer = None
        if self.key is not None:
            entry = base.registry.get(self.key.id)
            verdict = decide(entry, self.key, self.count, f"topic '{topic}'", self.now_ms)
            writer = self.key.writer(self.count, entry)
            if entry is not None and not verdict.write:
                if verdict.take_over:
                    return Draft(TAKEOVER, writer=writer)
                return Nothing(verdict.note, entry.version, skipped=True)
        files = tuple(file for file in self.files if len(file))
        if not files:
            return Nothing("nothing to append", base.version)
        check_floor(topic, files, base.floor)
        if base.configs.is_compacted and any(flags & _HAS_NULL_KEYS for file in files for flags in file.flags):
            raise BadRequest(f"topic '{topic}' is compacted: every record needs a key, found records without one")
        return Draft(APPEND, writer=writer, files=assign(topic, files, base), txn=self.txn)


def check_floor(topic: str, files: Sequence[FileSlices], floor: int) -> None:
    """Raise `Conflict` if a file was begun before the upload floor: the vacuum may have deleted it."""
    for file in files:
        read_version = path_read_version(file.path)
        if read_version is None:
            raise BadRequest(f"'{file.path}' is no path of a data file of topic '{topic}'")
        if read_version < floor and not file.path.startswith("/"):
            raise Conflict(
                f"{file.path} was begun at version {read_version} of topic '{topic}', below the upload floor {floor}: "
                "the vacuum may have deleted it; upload it again"
            )


def assign(topic: str, files: Sequence[FileSlices], base: Head) -> tuple[FileSlices, ...]:
    """Give each slice the offset it starts at: log ends moved over the files in their order."""
    end = base.log_end.tolist()
    based = []
    for file in files:
        bases = []
        for partition, offsets in zip(file.partition, file.offsets, strict=True):
            if not 0 <= partition < len(end):
                raise BadRequest(f"topic '{topic}' has partitions 0 to {len(end) - 1}, found {partition}")
            if offsets > INT64_MAX - end[partition]:
                raise BadRequest(
                    f"partition {partition} of topic '{topic}' ends at offset {end[partition]}: {offsets} more do not "
                    f"fit below {INT64_MAX}, so it takes no more records; write to another partition or topic"
                )
            bases.append(end[partition])
            end[partition] += offsets
        based.append(file.based(tuple(bases)))
    return tuple(based)


@dataclass(frozen=True, slots=True)
class LogStartIntent:
    """Move log starts (retention, delete-records): a maximum, so concurrent ones commute."""

    topic_id: str
    log_starts: Mapping[int, int]
    op: str = DELETE_RECORDS
    needs_table: bool = False
    repeatable: bool = True

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, base, self.topic_id)
        moved = {}
        for partition, offset in sorted(self.log_starts.items()):
            if not 0 <= partition < base.partitions:
                raise NotFound(f"topic '{topic}' has partitions 0 to {base.partitions - 1}, found {partition}")
            if not 0 <= offset <= base.log_end[partition]:
                raise NotFound(
                    f"offset {offset} of partition {partition} of topic '{topic}' is out of range: "
                    f"expected 0 to {base.log_end[partition]}"
                )
            if offset > base.log_start[partition]:
                moved[partition] = offset
        return Draft(self.op, log_starts=moved) if moved else Nothing("no log start moves", base.version)


@dataclass(frozen=True, slots=True)
class AlterIntent:
    """Change configs (None: back to the default) and add partitions.

    Unless `drop_keyless`, a topic that holds records without a key cannot become compacted: the cleaner drops them.
    """

    topic_id: str
    configs: Mapping[str, object | None]
    partitions: int | None = None
    drop_keyless: bool = False
    repeatable: bool = False

    @property
    def needs_table(self) -> bool:
        return not self.drop_keyless and self.configs.get("cleanup.policy") is not None

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, base, self.topic_id)
        changes: dict[str, str | None] = {}
        altered = base.configs.changed(self.configs)
        for name in sorted(self.configs):
            before, now = origin.configs.explicit.get(name), base.configs.explicit.get(name)
            if before != now:
                raise Conflict(
                    f"config {name} of topic '{topic}' was changed by another process meanwhile: expected "
                    f"{before or 'the default'}, found {now or 'the default'}; look again"
                )
            if (after := altered.explicit.get(name)) != now:
                changes[name] = after
        count = self.partitions
        if count is not None:
            if base.partitions != origin.partitions:
                raise Conflict(
                    f"partitions of topic '{topic}' were changed by another process meanwhile: expected "
                    f"{origin.partitions}, found {base.partitions}; look again"
                )
            if not base.partitions < count <= MAX_PARTITIONS:
                raise BadRequest(
                    f"topic '{topic}' has {base.partitions} partitions, which can only grow (to at "
                    f"most {MAX_PARTITIONS}); found {count}"
                )
        if not changes and count is None:
            return Nothing("nothing changes", base.version)
        if self.needs_table and table is not None and altered.is_compacted and not base.configs.is_compacted:
            _check_keys(topic, table)
        return Draft(ALTER, configs=changes, partitions=count)


def _check_keys(topic: str, table: SliceTable) -> None:
    rows = table.all()
    keyless = np.flatnonzero(rows.flags & _HAS_NULL_KEYS)
    if len(keyless):
        row = int(keyless[0])
        raise BadRequest(
            f"topic '{topic}' holds records without a key ({len(keyless)} of {len(rows)} slices, the first is "
            f"partition {rows.partition[row]}, offsets {rows.base[row]} to {rows.end[row]}): compaction would "
            "drop them; copy the topic with keys, or alter it with force"
        )


@dataclass(frozen=True, slots=True)
class CreateIntent:
    """Begin a topic under a name that has none: commit 0, or the next number after a delete."""

    topic_id: str
    partitions: int
    configs: TopicConfigs
    kafka_source: KafkaSource | None = None
    needs_table: bool = False
    repeatable: bool = False

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        if base.exists:
            which = f"topic '{topic}' already exists, with {base.partitions} partitions"
            raise Conflict(f"{which}; alter it or choose another name")
        return Draft(
            CREATE,
            topic_id=self.topic_id,
            leader_epoch=0,
            configs=self.configs.explicit,
            partitions=self.partitions,
            kafka_source=self.kafka_source,
        )


@dataclass(frozen=True, slots=True)
class DeleteIntent:
    """End a topic. `version`: only if no commit has come since, else `Conflict`."""

    topic_id: str
    version: int | None = None
    needs_table: bool = False
    repeatable: bool = False

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, base, self.topic_id)
        if self.version is not None and base.version != self.version:
            raise Conflict(f"topic '{topic}' is at version {base.version}, expected {self.version}: it is in use")
        return Draft(DELETE)


@dataclass(frozen=True, slots=True)
class MaintainIntent:
    """Maintenance to write down; of holds and the floor also for a deleted topic."""

    topic_id: str
    holds: Mapping[str, Hold | None] = field(default_factory=dict)
    floor: int | None = None
    expired: Mapping[str, int] = field(default_factory=dict)
    resolved: tuple[Resolved, ...] = ()
    needs_table: bool = False
    repeatable: bool = True

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        check_topic_id(topic, base, self.topic_id)
        floor = self.floor if self.floor is not None and self.floor > base.floor else None
        lowest = base.floor if floor is None else floor
        # What another hold keeps can be held once more: the vacuum lets go of nothing that the newest state holds.
        held = {hold.version for hold in base.holds.values()}
        for name, hold in self.holds.items():
            if hold is not None and hold.version < lowest and hold.version not in held:
                raise Conflict(
                    f"hold '{name}' asks for version {hold.version} of topic '{topic}', below the "
                    f"upload floor {lowest}; hold a newer version"
                )
        holds = {name: hold for name, hold in self.holds.items() if base.holds.get(name) != hold}
        newest = {name: entry.version for name, entry in base.registry.items()}
        expired = {name: version for name, version in self.expired.items() if newest.get(name) == version}
        waiting = {(prepare.txn.id, prepare.txn.n) for prepare in base.open}
        resolved = tuple(item for item in self.resolved if (item.id, item.n) in waiting)
        if floor is None and not holds and not expired and not resolved:
            return Nothing("nothing changes", base.version)
        return Draft(MAINTAIN, holds=holds, floor=floor, expired=expired, resolved=resolved)


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """A piece of a partition as it was found: the log begins at `log_start`, the piece lies in `[since, log_end)`.

    * `cleaned_through`: compacted below it (None: never, or what was taken before is not)
    * `files`: with the base of each slice, in offset order; the first may begin below the log start
    * `open`: transactions that no marker up to `log_end` ends; `ended`: those that were known open, and that one does
    * `imported`: what the next import goes on from (None: no batch is known)
    """

    partition: int
    log_start: int
    log_end: int
    cleaned_through: int | None
    leader_epoch: int
    files: tuple[FileSlices, ...]
    open: tuple[KafkaOpen, ...] = ()
    since: int = 0
    ended: tuple[KafkaEnded, ...] = ()
    imported: ImportedEnd | None = None

    def edit(self) -> Edit:
        start = min([max(self.log_start, self.since), *(base for file in self.files for base in file.base)])
        cleaned = self.cleaned_through
        if cleaned is not None and not 0 <= cleaned <= self.log_end:
            # The log has lost its end, or the number is damaged: as in Kafka, all of it counts as dirty. Taken for
            # clean, a tombstone in it would one day go without the values that it hides.
            cleaned = None
        return Edit(self.partition, start, self.log_end, cleaned)

    @property
    def end(self) -> ImportedEnd:
        return self.imported or ImportedEnd(self.log_end)

    def stands(self) -> tuple[KafkaOpen, ...]:
        """The open transactions of which something lies above the log start."""
        return tuple(each for each in self.open if each.end > self.log_start)

    def landed(self, base: Head) -> bool:
        """True if a topic in this state has all of it."""
        if self.log_end == 0:
            return True
        known = base.kafka_source.ends.get(self.partition) if base.kafka_source else None
        if known != self.end or base.log_end[self.partition] != self.log_end:
            return False
        still = {each for each in base.kafka_open if each.partition == self.partition}
        return bool(base.log_start[self.partition] >= self.log_start) and still == set(self.stands())


@dataclass(frozen=True, slots=True)
class ImportIntent:
    """Fill partitions, or go on where they end. What is appended after it is of a leader epoch that comes later.

    `kafka_topic_id`: the topic's id in Kafka, empty if it is not known.
    """

    topic_id: str
    partitions: tuple[ImportedPartition, ...]
    kafka_topic_id: str = ""
    needs_table: bool = False
    repeatable: bool = True

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, base, self.topic_id)
        for part in self.partitions:
            if part.partition >= base.partitions:
                last = base.partitions - 1
                raise Conflict(f"topic '{topic}' has partitions 0 to {last}, found {part.partition}: look again")
        taken = [part for part in self.partitions if not part.landed(base)]
        for part in taken:
            end = int(base.log_end[part.partition])
            if end != part.since:
                expected = "an empty one, it" if part.since == 0 else f"one that ends at {part.since}, it"
                raise Conflict(
                    f"cannot import into partition {part.partition} of topic '{topic}': expected {expected} ends at "
                    f"{end}; another writer wrote to it, or imports the same: look again, or import under another name"
                )
        if not taken:
            return Nothing("there is nothing to import", base.version)
        files = tuple(file for part in taken for file in part.files)
        check_floor(topic, files, base.floor)
        return Draft(
            IMPORT,
            leader_epoch=min(max([base.leader_epoch, *(part.leader_epoch + 1 for part in taken)]), INT32_MAX),
            files=files,
            edits=tuple(part.edit() for part in taken),
            kafka_open=tuple(each for part in taken for each in part.stands()),
            kafka_ended=tuple(each for part in taken for each in part.ended),
            kafka_source=KafkaSource(self.kafka_topic_id, {part.partition: part.end for part in taken}),
            log_starts={
                part.partition: part.log_start for part in taken if part.log_start > base.log_start[part.partition]
            },
        )
