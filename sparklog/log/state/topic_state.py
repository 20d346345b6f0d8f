"""The state of a topic without its slices. An append does not need to read anything else.

`TopicState.apply` is a pure function of the state and the next commit. Every change of a topic, including expiry, is
recorded in a commit and never depends on a reader's clock. Log ends, the idempotency registry and open transactions are
stored in the state and are not derived from slices, so that rewriting and expiring slices cannot change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from sparklog.log.state.commit import CREATE, DELETE, MAINTAIN, Commit, Txn, TxnDecision, VersionLease
from sparklog.log.state.commit_json import TXN_JSON, VERSION_LEASE_JSON
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.kafka_source import KAFKA_OPEN_JSON, KAFKA_SOURCE_JSON, KafkaOpen, KafkaSource
from sparklog.log.state.writer_runs import ENTRY_JSON, WriterEntry, advance

Offsets = npt.NDArray[np.int64]
NO_PARTITIONS: Offsets = np.frombuffer(b"", np.int64)


@dataclass(frozen=True, slots=True)
class Prepare:
    """The slices that one commit appended to an open transaction: offsets `[first, end)` of each partition."""

    txn: Txn
    version: int
    commit_id: str
    time_ms: int
    first: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True)
class TopicState:
    """The state of a topic at `version`, which is -1 before the first commit.

    Arrays have one value per partition, and are read-only.

    * `crc` and the times: the values of the latest commit
    * `previous_partition_counts`: earlier partition counts of the topic, ascending
    * `siblings`: the other topics of committed transactions, each with the version of its prepare; if a reader reads
      both topics, it must not see an older version of the other topic
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
    leases: Mapping[str, VersionLease] = field(default_factory=dict)
    floor: int = 0
    clock_ms: int | None = None
    clock_since: int | None = None
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        return not self.deleted

    @property
    def created_ms(self) -> int:
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
        # Retention may have removed an open slice, so the last stable offset is at least the log start.
        return _frozen(np.maximum(stable, self.log_start))

    def inline_bytes(self, configs: TopicConfigs) -> int:
        """Return the maximum size of inline records, or 0 if an older release created the topic without this config."""
        return configs.inline_records_bytes if INLINE_RECORDS in self.write_features else 0

    @property
    def carried_commits(self) -> int:
        """The maximum number of embedded commits, or 0 if an older release created the topic without this config."""
        return self.configs.carried_commits if CARRIED_COMMITS in self.write_features else 0

    def last_stable(self) -> Offsets:
        """Return the last stable offset of each partition. This state contains the decisions on all transactions below
        this offset.
        """
        return self._last_stable

    def with_decisions(self, decisions: Sequence[TxnDecision]) -> TopicState:
        """Return the state as if a commit had recorded these decisions.

        Readers use this method to apply decisions that have not been recorded yet.
        """
        if not decisions:
            return self
        prepares, siblings = _resolve(self, self.open, decisions)
        return replace(self, open=prepares, siblings=siblings)

    def apply(self, commit: Commit) -> TopicState:
        """Return the state after the next commit.

        Raises:
            Corrupt: If the commit's number, previous CRC-32C or topic id does not follow this state
        """
        self._check_follows(commit)
        before, changes = self, dict[str, Any]()
        if commit.op in (CREATE, DELETE):
            # Version numbers, leases and the retention floor outlive a topic, because a lease may still need its files.
            before = EMPTY if self is EMPTY else EMPTY._with({"leases": self.leases, "floor": self.floor})
            changes = {"topic_id": commit.topic_id, "deleted": commit.op == DELETE}
        if commit.op != DELETE:
            changes |= _change(before, commit)
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
        """Return a copy with these attributes. This method is called for each commit, and `dataclasses.replace` takes
        four times as long.
        """
        state = object.__new__(TopicState)
        attributes = state.__dict__
        attributes.update(self.__dict__)
        attributes.pop("_last_stable", None)
        attributes.update(changes)
        return state

    def _check_follows(self, commit: Commit) -> None:
        if commit.version != self.version + 1:
            raise Corrupt(
                f"expected commit {self.version + 1} next, found commit {commit.version}; open the topic again"
            )
        if commit.prev_crc != self.crc:
            raise Corrupt(
                f"the chain of commits is broken: commit {commit.version} follows a commit with CRC-32C "
                f"{commit.prev_crc}, but commit {self.version} has {self.crc}; one of them is corrupt, or the store "
                "does not create objects exclusively (`sparklog doctor` tests this)"
            )
        if commit.op == CREATE:
            fits = self.deleted and commit.topic_id != self.topic_id and commit.partitions is not None
        else:
            # A deleted topic still has files, so maintenance still records its retention floor and leases.
            is_allowed = self.exists or (commit.op == MAINTAIN and self.version >= 0)
            fits = is_allowed and commit.topic_id == self.topic_id
        if not fits:
            raise Corrupt(
                f"commit {commit.version} ({commit.op}, topic id {commit.topic_id}) does not match the topic "
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
            raise item.bad(name, f"a list of {n} integers")
    referenced = [partition for prepare in state.open for partition in (*prepare.first, *prepare.end)]
    referenced += [transaction.partition for transaction in state.kafka_open]
    referenced += state.kafka_source.ends if state.kafka_source else ()
    if referenced and max(referenced) >= n:
        raise item.bad(
            "logEnd", f"a list of more than {max(referenced)} log ends, because other fields refer to this partition"
        )


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
    Member("holds", objects_by_text(VERSION_LEASE_JSON), "leases"),
    Member("floor", whole(0)),
    *members(whole(0), "clockMs", "clockSince", optional=True),
    check=_check_partitions,
)
"""The fields of the state in a checkpoint, without its features. The JSON objects of equal states are equal."""
EMPTY = TopicState()


def _change(state: TopicState, commit: Commit) -> dict[str, Any]:
    """Return the fields of an existing or new topic after a commit.

    The result does not contain the fields that `apply` changes even if the topic is deleted.
    """
    log_start, log_end = _log_offsets(state, commit)
    prepares, siblings = _resolve(state, (*state.open, *_prepare(commit, log_end)), commit.resolved)
    return {name: update(state, commit) for name, update in _UPDATES.items()} | {
        "log_start": log_start,
        "log_end": log_end,
        "open": _above(prepares, log_start) if commit.log_starts else prepares,
        "siblings": siblings,
        "kafka_open": _kafka_open(state, commit, log_start),
    }


def _log_offsets(state: TopicState, commit: Commit) -> tuple[Offsets, Offsets]:
    """Return the log start and log end offsets after a commit."""
    start, end = state.log_start, state.log_end
    if commit.partitions is not None:
        start, end = _longer(start, commit.partitions), _longer(end, commit.partitions)
    if commit.log_starts or commit.edits:
        last = max([*commit.log_starts, *[edit.partition for edit in commit.edits]])
        if last >= len(end):
            raise Corrupt(f"commit {commit.version} changes partition {last} of a topic with {len(end)} partitions")
    if commit.log_starts:
        start = start.copy()
        for partition, offset in commit.log_starts.items():
            start[partition] = max(start[partition], offset)
    if _has_appends(commit):
        end = end.copy()
        for file in commit.files:
            for partition, base, offsets in zip(file.partition, file.base, file.offsets, strict=True):
                if partition >= len(end):
                    which = f"partition {partition} of a topic with {len(end)} partitions"
                    raise Corrupt(f"commit {commit.version} appends to {which}")
                if end[partition] < base + offsets:
                    end[partition] = base + offsets
    if commit.may_copy_partitions and (commit.edits or commit.log_starts):
        # In a clone, or in a log that Kafka has written, the log end offset may be greater than the offset after the
        # last record.
        end = end.copy()
        for partition, offset in (*((edit.partition, edit.end) for edit in commit.edits), *commit.log_starts.items()):
            end[partition] = max(end[partition], offset)
    return _frozen(start), _frozen(end)


def _has_appends(commit: Commit) -> bool:
    return bool(commit.files) and (not commit.edits or commit.may_copy_partitions)


def _prepare(commit: Commit, log_end: Offsets) -> tuple[Prepare, ...]:
    """Return the prepare of a commit that appends slices to an open transaction."""
    if commit.txn is None or not _has_appends(commit):
        return ()
    first: dict[int, int] = {}
    for file in commit.files:
        for partition, base in zip(file.partition, file.base, strict=True):
            first[partition] = min(base, first.get(partition, base))
    end = {partition: int(log_end[partition]) for partition in first}
    return (Prepare(commit.txn, commit.version, commit.commit_id, commit.created_ms, first, end),)


def _kafka_open(state: TopicState, commit: Commit, log_start: Offsets) -> tuple[KafkaOpen, ...]:
    transactions = state.kafka_open
    if commit.kafka_open or commit.kafka_ended:
        ended = set(commit.kafka_ended)
        if missing := ended - {transaction.ended for transaction in transactions}:
            first = min(missing)
            which = f"a transaction of producer {first.producer} in partition {first.partition}"
            raise Corrupt(f"commit {commit.version} ends {which} that is not open")
        # An import lists a transaction again if it is still open. The new entry replaces the old one.
        again = {(transaction.ended, transaction.first) for transaction in commit.kafka_open}
        others = (item for item in transactions if item.ended not in ended and (item.ended, item.first) not in again)
        transactions = (*others, *commit.kafka_open)
    if commit.log_starts:
        transactions = tuple(item for item in transactions if item.end > log_start[item.partition])
    return transactions


def _first_dirty_offset(state: TopicState, commit: Commit) -> Offsets:
    offsets = state.first_dirty_offset
    if commit.partitions is not None:
        offsets = _longer(offsets, commit.partitions)
    if not commit.edits:
        return offsets
    offsets = offsets.copy()
    for edit in commit.edits:
        if edit.first_dirty_offset is not None:
            offsets[edit.partition] = max(offsets[edit.partition], edit.first_dirty_offset)
    return _frozen(offsets)


def _previous_partition_counts(state: TopicState, commit: Commit) -> tuple[int, ...]:
    if commit.previous_partition_counts:
        return commit.previous_partition_counts
    if commit.partitions is not None and 0 < state.partitions < commit.partitions:
        return (*state.previous_partition_counts, state.partitions)
    return state.previous_partition_counts


def _configs(state: TopicState, commit: Commit) -> TopicConfigs:
    if not commit.configs:
        return state.configs
    merged = sorted({**state.configs.explicit, **commit.configs}.items())
    return TopicConfigs({name: text for name, text in merged if text is not None})


def _kafka_source(state: TopicState, commit: Commit) -> KafkaSource | None:
    if commit.kafka_source is None or state.kafka_source is None:
        return commit.kafka_source or state.kafka_source
    return state.kafka_source.after(commit.kafka_source)


def _registry(state: TopicState, commit: Commit) -> Mapping[str, WriterEntry]:
    if commit.writer is None and not commit.writers and not commit.expired:
        return state.registry
    registry = dict(state.registry)
    for item in commit.writers if commit.writer is None else (commit.writer, *commit.writers):
        registry[item.id] = advance(state.registry.get(item.id), item, commit.version, commit.created_ms)
    if commit.expired:
        # The loop above has renewed the entries of the commit's own writers, so they are not idle.
        registry = {id_: entry for id_, entry in registry.items() if commit.expired.get(id_) != entry.version}
    return registry


def _leases(state: TopicState, commit: Commit) -> Mapping[str, VersionLease]:
    if not commit.leases:
        return state.leases
    return {name: lease for name, lease in {**state.leases, **commit.leases}.items() if lease is not None}


def _floor(state: TopicState, commit: Commit) -> int:
    return state.floor if commit.floor is None else max(state.floor, commit.floor)


_UPDATES: Mapping[str, Callable[[TopicState, Commit], object]] = {
    "leader_epoch": lambda state, commit: commit.leader_epoch,
    "previous_partition_counts": _previous_partition_counts,
    "first_dirty_offset": _first_dirty_offset,
    "configs": _configs,
    "kafka_source": _kafka_source,
    "registry": _registry,
    "leases": _leases,
    "floor": _floor,
}
"""Functions that return the value of a field after a commit to an existing topic. Fields that depend on other fields
are not included.
"""


def _resolve(
    state: TopicState, prepares: tuple[Prepare, ...], resolved: Sequence[TxnDecision]
) -> tuple[tuple[Prepare, ...], Mapping[str, int]]:
    """Remove decided prepares. If a transaction is committed, add the versions of its other topics to the siblings."""
    if not resolved:
        return prepares, state.siblings
    outcomes = {(item.id, item.n): item for item in resolved}
    siblings = dict(state.siblings)
    for prepare in prepares:
        item = outcomes.get((prepare.txn.id, prepare.txn.n))
        if item is not None and prepare.version in item.committed:
            for versions in (prepare.txn.siblings, item.siblings):
                for topic, version in versions.items():
                    siblings[topic] = max(version, siblings.get(topic, version))
    undecided = tuple(prepare for prepare in prepares if (prepare.txn.id, prepare.txn.n) not in outcomes)
    return undecided, siblings


def _above(prepares: tuple[Prepare, ...], log_start: Offsets) -> tuple[Prepare, ...]:
    """Remove slices that are entirely below the log start from the prepares. Empty prepares are dropped."""
    remaining = []
    for prepare in prepares:
        end = {partition: end for partition, end in prepare.end.items() if end > log_start[partition]}
        if end:
            remaining.append(
                replace(prepare, first={partition: prepare.first[partition] for partition in end}, end=end)
            )
    return tuple(remaining)


def _longer(values: Offsets, partitions: int) -> Offsets:
    """Append zeros, so that there is one value per partition. The result is read-only."""
    more = partitions - len(values)
    if more <= 0:
        return values
    return _frozen(np.concatenate([values, _zeros(more)])) if len(values) else _zeros(more)


@lru_cache(maxsize=8)
def _zeros(count: int) -> Offsets:
    # New topics start with these arrays. The arrays are cached by length, because most topics of a root have the same
    # few partition counts.
    return _frozen(np.zeros(count, np.int64))


def _frozen(values: Offsets) -> Offsets:
    values.setflags(write=False)
    return values


@lru_cache(maxsize=64)
def _union(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*left, *right})) if right and right != left else left
