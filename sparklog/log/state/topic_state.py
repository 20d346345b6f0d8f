"""The state of a topic without its slices: all that an append needs to read.

`TopicState.apply` is a pure function of the state and the next commit. Every change of a topic, expiry included, is
recorded in a commit and never follows from a reader's clock. Log ends, the idempotency registry and open transactions
are stored here instead of being derived from slices, so that rewriting and expiring slices cannot change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt
from sparklog.log.journal.documents import (
    BOOLEAN,
    CARRIED_COMMITS,
    INLINE_RECORDS,
    TEXT,
    UINT32_MAX,
    Document,
    Fields,
    Member,
    MemberKind,
    members,
    numbers_by_partition,
    numbers_by_text,
    object_of,
    objects_by_text,
    objects_of,
    texts_by_text,
    whole,
    wholes,
)
from sparklog.log.journal.names import MAX_PARTITIONS
from sparklog.log.state.commit import (
    CREATE,
    DELETE,
    FILLING,
    MAINTAIN,
    TXN_JSON,
    VERSION_LEASE_JSON,
    Commit,
    Edit,
    Resolved,
    Txn,
    VersionLease,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.kafka_source import KAFKA_OPEN_JSON, KAFKA_SOURCE_JSON, KafkaOpen, KafkaSource
from sparklog.log.state.writer_runs import ENTRY_JSON, WriterEntry, advance

Offsets = npt.NDArray[np.int64]
NO_PARTITIONS: Offsets = np.frombuffer(b"", np.int64)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Slices that one commit appended for a transaction not resolved yet: per partition `[first, end)`."""

    txn: Txn
    version: int
    commit_id: str
    time_ms: int
    first: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True)
class TopicState:
    """State of a topic at `version`; `version` -1 is a log without commits. Arrays are per partition and not writable.

    * `crc` and the times: those of the latest commit
    * `previous_partition_counts`: the partition counts that the topic had before, ascending
    * `siblings`: for each other topic that a committed transaction wrote together with this one, the version of its
      part; a reader of both topics must not see an older version
    * `floor`: the retention floor
    """

    version: int = -1
    crc: int | None = None
    time_ms: int = 0
    topic_id: str = ""
    deleted: bool = True
    leader_epoch: int = 0
    configs: TopicConfigs = field(default_factory=TopicConfigs)
    log_start: Offsets = field(default_factory=lambda: NO_PARTITIONS)
    log_end: Offsets = field(default_factory=lambda: NO_PARTITIONS)
    first_dirty_offset: Offsets = field(default_factory=lambda: NO_PARTITIONS)
    previous_partition_counts: tuple[int, ...] = ()
    open: tuple[Prepare, ...] = ()
    kafka_open: tuple[KafkaOpen, ...] = ()
    kafka_source: KafkaSource | None = None
    registry: Mapping[str, WriterEntry] = field(default_factory=dict)
    siblings: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, VersionLease] = field(default_factory=dict)
    floor: int = 0
    clock_ms: int | None = None
    clock_since: int | None = None
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        return not self.deleted

    @property
    def made_ms(self) -> int:
        return self.time_ms if self.clock_ms is None else self.clock_ms

    @property
    def partitions(self) -> int:
        return len(self.log_end)

    @cached_property
    def _last_stable(self) -> Offsets:
        if not self.open and not self.kafka_open:
            return self.log_end
        stable = self.log_end.copy()
        for prepare in self.open:
            for partition, first in prepare.first.items():
                stable[partition] = min(stable[partition], first)
        for transaction in self.kafka_open:
            stable[transaction.partition] = min(stable[transaction.partition], transaction.first)
        # Retention may pass an open slice: the last stable offset is never below the log start.
        return _frozen(np.maximum(stable, self.log_start))

    def inline_bytes(self, configs: TopicConfigs) -> int:
        """The largest tail of a commit; 0 in a topic of an older release on which `inline.records.bytes` is not set."""
        return configs.inline_records_bytes if INLINE_RECORDS in self.write_features else 0

    @property
    def carried_commits(self) -> int:
        """Commits that one may carry; 0 in a topic of an older release on which `carried.commits` is not set."""
        return self.configs.carried_commits if CARRIED_COMMITS in self.write_features else 0

    def last_stable(self) -> Offsets:
        """Per partition, the offset below which every transaction is decided and recorded here."""
        return self._last_stable

    def settled(self, outcomes: Sequence[Resolved]) -> TopicState:
        """Return the head as if these outcomes of open transactions were recorded: what readers see before they are."""
        if not outcomes:
            return self
        prepares, siblings = _resolve(self, self.open, outcomes)
        return replace(self, open=prepares, siblings=siblings)

    def apply(self, commit: Commit) -> TopicState:
        """The head after the next commit. `Corrupt` if it does not follow this head (number, chain, topic id)."""
        self._follows(commit)
        before, changes = self, dict[str, Any]()
        if commit.op in (CREATE, DELETE):
            # Numbering, holds and the upload floor outlive a topic: its files may still be held or waited for.
            before = EMPTY if self is EMPTY else EMPTY._with({"holds": self.holds, "floor": self.floor})
            changes = {"topic_id": commit.topic_id, "deleted": commit.op == DELETE}
        if commit.op != DELETE:
            _change(before, commit, changes)
        changes |= {
            "version": commit.version,
            "crc": commit.crc,
            "time_ms": commit.time_ms,
            "clock_ms": commit.clock_ms,
            "clock_since": commit.clock_since,
            "read_features": _union(before.read_features, commit.read_features),
            "write_features": _union(before.write_features, commit.write_features),
        }
        return before._with(changes)

    def _with(self, changes: Mapping[str, Any]) -> TopicState:
        """Return the head with these attributes: `dataclasses.replace` takes four times as long, for each commit."""
        state = object.__new__(TopicState)
        attributes = state.__dict__
        attributes.update(self.__dict__)
        attributes.pop("_last_stable", None)
        attributes.update(changes)
        return state

    def _follows(self, commit: Commit) -> None:
        if commit.version != self.version + 1:
            raise Corrupt(
                f"commit {self.version + 1} should follow, found version {commit.version}; open the topic again"
            )
        if commit.prev_crc != self.crc:
            raise Corrupt(
                f"the chain of commits is broken: commit {commit.version} was made after a commit with CRC-32C "
                f"{commit.prev_crc}, commit {self.version} has {self.crc}; one of the two is not what was written, or "
                "the store does not create objects exclusively (sparklog doctor tries it)"
            )
        if commit.op == CREATE:
            fits = self.deleted and commit.topic_id != self.topic_id and commit.partitions is not None
        else:
            # A deleted topic still has files: its upload floor and holds go on being written down.
            may_go_on = self.exists or (commit.op == MAINTAIN and self.version >= 0)
            fits = may_go_on and commit.topic_id == self.topic_id
        if not fits:
            raise Corrupt(
                f"commit {commit.version} ({commit.op}, topic id {commit.topic_id}) does not fit the topic "
                f"({'deleted' if self.deleted else 'existing'}, id {self.topic_id or 'none'})"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicState):
            return NotImplemented
        features = (self.read_features, self.write_features) == (other.read_features, other.write_features)
        return features and TOPIC_STATE_JSON.to_json(self) == TOPIC_STATE_JSON.to_json(other)

    __hash__ = None  # type: ignore[assignment]


def _check_partitions(item: Fields, state: TopicState) -> None:
    n = state.partitions
    if n > MAX_PARTITIONS:
        raise item.bad("logEnd", f"at most {MAX_PARTITIONS} partitions")
    for name, offsets in (("logStart", state.log_start), ("cleanedThrough", state.first_dirty_offset)):
        if len(offsets) != n:
            raise item.bad(name, f"a list of {n} whole numbers")
    named = [partition for prepare in state.open for partition in (*prepare.first, *prepare.end)]
    named += [transaction.partition for transaction in state.kafka_open]
    named += state.kafka_source.ends if state.kafka_source else ()
    if named and max(named) >= n:
        raise item.bad("logEnd", f"a list of more than {max(named)} log ends, as others name that partition")


OFFSETS = MemberKind(lambda item, name: _frozen(np.array(item.integers(name, None, 0), np.int64)), np.ndarray.tolist)
PREPARE_JSON = Document(
    Prepare,
    Member("txn", object_of(TXN_JSON)),
    Member("version", whole(0)),
    Member("commitId", TEXT),
    Member("timeMs", whole(0)),
    *members(numbers_by_partition(MAX_PARTITIONS), "first", "end"),
)
_TEXTS = texts_by_text()
CONFIGS = MemberKind(
    lambda *item: TopicConfigs(_TEXTS.read(*item)), lambda configs: dict(sorted(configs.explicit.items()))
)
TOPIC_STATE_JSON = Document(
    TopicState,
    Member("version", whole(0)),
    Member("crc", whole(0, UINT32_MAX)),
    Member("timeMs", whole(0)),
    Member("topicId", TEXT),
    Member("deleted", BOOLEAN),
    Member("leaderEpoch", whole(0)),
    Member("configs", CONFIGS),
    *members(OFFSETS, "logStart", "logEnd"),
    Member("cleanedThrough", OFFSETS, "first_dirty_offset"),
    Member("earlierPartitions", wholes(1, MAX_PARTITIONS), "previous_partition_counts", optional=True),
    Member("open", objects_of(PREPARE_JSON)),
    Member("kafkaOpen", objects_of(KAFKA_OPEN_JSON), optional=True),
    Member("kafkaSource", object_of(KAFKA_SOURCE_JSON), optional=True),
    Member("registry", objects_by_text(ENTRY_JSON)),
    Member("siblings", numbers_by_text()),
    Member("holds", objects_by_text(VERSION_LEASE_JSON)),
    Member("floor", whole(0)),
    *members(whole(0), "clockMs", "clockSince", optional=True),
    check=_check_partitions,
)
"""The head as a checkpoint stores it, without its features: equal heads give equal objects."""
EMPTY = TopicState()


def _change(state: TopicState, commit: Commit, changes: dict[str, Any]) -> None:
    """Put in what a commit changes of an existing topic, or one just created; without what all commits change."""
    start, end = state.log_start, state.log_end
    if commit.partitions is not None:
        start, end = _longer(start, commit.partitions), _longer(end, commit.partitions)
        changes["previous_partition_counts"] = state.previous_partition_counts
        if 0 < state.partitions < commit.partitions:
            changes["previous_partition_counts"] += (state.partitions,)
    if named := [*commit.log_starts, *[edit.partition for edit in commit.edits]]:
        if max(named) >= len(end):
            raise Corrupt(f"commit {commit.version} names partition {max(named)} of a topic with {len(end)}")
        start = start.copy()
        for partition, offset in commit.log_starts.items():
            start[partition] = max(start[partition], offset)
    if named or commit.files:
        end = end.copy()
    prepares, changes["siblings"] = _resolve(state, (*state.open, *_append(commit, end)), commit.resolved)
    if named and commit.op in FILLING:
        # A log that Kafka wrote, or a clone, may end after its last record.
        for partition, offset in (*((edit.partition, edit.end) for edit in commit.edits), *commit.log_starts.items()):
            end[partition] = max(end[partition], offset)
    start.flags.writeable = end.flags.writeable = False
    changes["leader_epoch"] = commit.leader_epoch
    changes["log_start"], changes["log_end"] = start, end
    changes["open"] = _forget(prepares, start) if commit.log_starts else prepares
    if commit.partitions is not None or commit.edits:
        changes["first_dirty_offset"] = _cleaned_through(_longer(state.first_dirty_offset, len(end)), commit.edits)
    if commit.previous_partition_counts:
        changes["previous_partition_counts"] = commit.previous_partition_counts
    if commit.configs:
        merged = sorted({**state.configs.explicit, **commit.configs}.items())
        changes["configs"] = TopicConfigs({name: text for name, text in merged if text is not None})
    if state.kafka_open or commit.kafka_open or commit.kafka_ended:
        changes["kafka_open"] = _kafka_open(state, commit, start)
    if commit.kafka_source is not None:
        before = state.kafka_source
        changes["kafka_source"] = commit.kafka_source if before is None else before.after(commit.kafka_source)
    if commit.writer is not None or commit.writers or commit.expired:
        changes["registry"] = _registry(state, commit)
    if commit.holds:
        held = {**state.holds, **commit.holds}
        changes["holds"] = {name: hold for name, hold in held.items() if hold is not None}
    if commit.floor is not None:
        changes["floor"] = max(state.floor, commit.floor)


def _append(commit: Commit, end: Offsets) -> tuple[Prepare, ...]:
    """Move log ends over what the commit appends; return its slices as a prepare if a transaction holds them open."""
    if not commit.files or (commit.edits and commit.op not in FILLING):
        return ()
    first: dict[int, int] = {}
    for file in commit.files:
        for partition, base, offsets in zip(file.partition, file.base, file.offsets, strict=True):
            if partition >= len(end):
                raise Corrupt(f"commit {commit.version} appends to partition {partition} of a topic with {len(end)}")
            if base < first.setdefault(partition, base):
                first[partition] = base
            if end[partition] < base + offsets:
                end[partition] = base + offsets
    if commit.txn is None:
        return ()
    ends = {partition: int(end[partition]) for partition in first}
    return (Prepare(commit.txn, commit.version, commit.commit_id, commit.made_ms, first, ends),)


def _cleaned_through(cleaned: Offsets, edits: Sequence[Edit]) -> Offsets:
    if not edits:
        return cleaned
    cleaned = cleaned.copy()
    for edit in edits:
        if edit.first_dirty_offset is not None:
            cleaned[edit.partition] = max(cleaned[edit.partition], edit.first_dirty_offset)
    return _frozen(cleaned)


def _kafka_open(state: TopicState, commit: Commit, log_start: Offsets) -> tuple[KafkaOpen, ...]:
    transactions = state.kafka_open
    if commit.kafka_open or commit.kafka_ended:
        ended = set(commit.kafka_ended)
        if missing := ended - {transaction.ended for transaction in transactions}:
            first = min(missing)
            which = f"a transaction of producer {first.producer} in partition {first.partition}"
            raise Corrupt(f"commit {commit.version} ends {which} that is not open")
        # What an import found open before and still does goes on: the same transaction, with all that is known of it.
        again = {(transaction.ended, transaction.first) for transaction in commit.kafka_open}
        kept = (item for item in transactions if item.ended not in ended and (item.ended, item.first) not in again)
        transactions = (*kept, *commit.kafka_open)
    if commit.log_starts:
        transactions = tuple(item for item in transactions if item.end > log_start[item.partition])
    return transactions


def _registry(state: TopicState, commit: Commit) -> Mapping[str, WriterEntry]:
    registry = dict(state.registry)
    for item in commit.writers if commit.writer is None else (commit.writer, *commit.writers):
        registry[item.id] = advance(state.registry.get(item.id), item, commit.version, commit.made_ms)
    if commit.expired:
        # The commit's own writer was entered just above: an entry that it renews is not idle.
        registry = {id_: entry for id_, entry in registry.items() if commit.expired.get(id_) != entry.version}
    return registry


def _resolve(
    state: TopicState, prepares: tuple[Prepare, ...], resolved: Sequence[Resolved]
) -> tuple[tuple[Prepare, ...], Mapping[str, int]]:
    """Close what was decided; a committed transaction leaves the versions of its siblings."""
    if not resolved:
        return prepares, state.siblings
    outcomes = {(item.id, item.n): item for item in resolved}
    siblings = dict(state.siblings)
    for prepare in prepares:
        item = outcomes.get((prepare.txn.id, prepare.txn.n))
        if item is not None and prepare.version in item.committed:
            for named in (prepare.txn.siblings, item.siblings):
                for topic, version in named.items():
                    siblings[topic] = max(version, siblings.get(topic, version))
    left = tuple(prepare for prepare in prepares if (prepare.txn.id, prepare.txn.n) not in outcomes)
    return left, siblings


def _forget(prepares: tuple[Prepare, ...], log_start: Offsets) -> tuple[Prepare, ...]:
    """Drop open slices that are wholly below the log start; a prepare without slices is over."""
    left = []
    for prepare in prepares:
        end = {partition: end for partition, end in prepare.end.items() if end > log_start[partition]}
        if end:
            left.append(replace(prepare, first={partition: prepare.first[partition] for partition in end}, end=end))
    return tuple(left)


def _longer(values: Offsets, partitions: int) -> Offsets:
    """Return these values, and zeros up to so many: an array that is not written to."""
    more = partitions - len(values)
    if more <= 0:
        return values
    return _frozen(np.concatenate([values, _zeros(more)])) if len(values) else _zeros(more)


@lru_cache(maxsize=8)
def _zeros(count: int) -> Offsets:
    # What topics begin with: those of a root have few numbers of partitions.
    return _frozen(np.zeros(count, np.int64))


def _frozen(values: Offsets) -> Offsets:
    values.setflags(write=False)
    return values


@lru_cache(maxsize=64)
def _union(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*left, *right})) if right and right != left else left
