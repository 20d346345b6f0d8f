"""Import the state of Kafka's coordinators: committed offsets of groups, and states of transactions.

**Groups** (`__consumer_offsets`): the committed offsets of each group in the imported topics, with times, leader epochs
and metadata, and the group's generation. Left out are offsets past their expire timestamp (from old clients), those of
topics that were not imported or were created anew, and groups without offsets. An offset replaces an older one only, so
a second import brings groups up to date. A group that has been used in the root since is not changed: its members go on
from the offsets they committed there.

**Transactions** (`__transaction_state`): the transactional id of each open transaction, its start and timeout, and the
decision if the marker has not reached the partition yet (`sparklog.log.state.kafka_source`). A running broker may begin
the next transaction during the import. So a decision counts only if its record is the newest both before the logs are
copied and after: an id begins no transaction before all markers of the last one are written.

Consumer lag in a Kafka log directory, from the coordinators' topic `__consumer_offsets`.

Rows are those of `sparklog.groups.lag`. The members of a group are in a broker's memory, so its state is unknown. Each
broker of a cluster has some partitions of `__consumer_offsets`, and of the topics: groups are those of the coordinators
in this directory, rows those of its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.format.coordinators.coordinator_records import (
    GroupKey,
    OffsetKey,
    OffsetValue,
    OtherKey,
    Status,
    TransactionValue,
    decode_group_key,
    decode_group_value,
    decode_offset_value,
    decode_other_value,
    decode_transaction_key,
    decode_transaction_value,
)
from sparklog.groups.group import DEAD, GroupDescription
from sparklog.groups.lag import Lag
from sparklog.kafka.importing.partition import CoordinatorEntry
from sparklog.kafka.in_place.directory import kafka_layout
from sparklog.kafka.in_place.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE, Kept, newest_values
from sparklog.kafka.in_place.segment_recovery import FAIL, OnSkipped, Skipped, log_skipped
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.state.imports import ImportedPartition, ImportIntent
from sparklog.log.state.kafka_source import ABORT, COMMIT, KafkaOpen
from sparklog.log.state.view import READ_UNCOMMITTED, Bounds, OffsetRange

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic


CONSUMER_GROUP_METADATA = 3
"""The key type of a group of the new protocol (KIP-848)."""
MAX_GENERATION = 2**31 - 1
_DECIDED = {Status.PREPARE_COMMIT: COMMIT, Status.PREPARE_ABORT: ABORT}
_BEGUN = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT, Status.PREPARE_EPOCH_FENCE)


@dataclass(slots=True)
class KafkaGroup:
    """A group of the coordinator: (topic, partition) -> committed offset; `generation` 0: unknown."""

    id: str
    generation: int = 0
    offsets: dict[TopicPartition, OffsetValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedGroup:
    """The import of a group: how many `offsets` were imported, how many were `left_out` with their topics.

    `in_use`: the group has had a member in the root, and was not changed.
    """

    group: str
    offsets: int
    left_out: int
    in_use: bool = False


def kafka_groups(
    path: str, *, env: Env, now_ms: int, policy: str = FAIL, on_skipped: OnSkipped
) -> dict[str, KafkaGroup]:
    """Read the groups of the log dir at `path`, by id, without offsets that have expired by `now_ms` (ms)."""
    groups: dict[str, KafkaGroup] = {}

    def take(key: bytes, kept: Kept) -> None:
        decoded = decode_group_key(key)
        if isinstance(decoded, OffsetKey):
            value = decode_offset_value(kept.value)
            if value is not None and (value.expire_timestamp is None or value.expire_timestamp > now_ms):
                group = groups.setdefault(decoded.group, KafkaGroup(decoded.group))
                group.offsets[decoded.topic, decoded.partition] = value
        elif isinstance(decoded, GroupKey):
            classic = decode_group_value(kept.value)
            _note_generation(groups, decoded.group, 0 if classic is None else classic.generation)
        elif isinstance(decoded, OtherKey) and decoded.type == CONSUMER_GROUP_METADATA:
            fields = decode_other_value(decoded, kept.value)
            group_id, epoch = decoded.fields.get("groupId"), None if fields is None else fields.get("epoch")
            if isinstance(group_id, str) and isinstance(epoch, int):
                _note_generation(groups, group_id, epoch)

    _each(path, CONSUMER_OFFSETS, take, env, policy, on_skipped)
    return dict(sorted(groups.items()))


def _note_generation(groups: dict[str, KafkaGroup], group_id: str, generation: int) -> None:
    group = groups.setdefault(group_id, KafkaGroup(group_id))
    group.generation = min(max(group.generation, generation), MAX_GENERATION)


def import_groups(
    root: Root, groups: Mapping[str, KafkaGroup], topics: Mapping[str, tuple[str, str, int]]
) -> tuple[ImportedGroup, ...]:
    """Import the groups' offsets in `topics`: name -> (topic id, Kafka's topic id or "", partitions). Idempotent."""
    from sparklog.groups import CommittedOffset, Groups

    imported = []
    known = Groups(root)
    for group_id, each in groups.items():
        offsets = []
        for (topic, partition), value in sorted(each.offsets.items()):
            topic_id, kafka_id, count = topics.get(topic, ("", "", 0))
            same = value.topic_id is None or not kafka_id or value.topic_id == kafka_id
            if partition < count and same and value.offset >= 0:
                offsets.append(
                    CommittedOffset(
                        topic,
                        topic_id,
                        partition,
                        value.offset,
                        value.leader_epoch,
                        value.metadata,
                        max(value.commit_timestamp, 0),
                    )
                )
        if not offsets:
            continue
        group = known.group(group_id)
        # Also if its member has left or sleeps: Kafka's offsets would skip records that it has not read here.
        in_use = group.description().session_timeout_ms is not None
        if not in_use:
            group.restore(offsets, generation=each.generation)
        imported.append(ImportedGroup(group_id, len(offsets), len(each.offsets) - len(offsets), in_use))
    return tuple(imported)


def kafka_transactions(
    path: str, *, env: Env, policy: str = FAIL, on_skipped: OnSkipped
) -> dict[int, CoordinatorEntry]:
    """Read the entries of the transaction coordinators in the log dir at `path`, by producer id."""
    entries: dict[int, CoordinatorEntry] = {}

    def take(key: bytes, kept: Kept) -> None:
        owner = decode_transaction_key(key)
        value = decode_transaction_value(kept.value)
        if owner is not None and value is not None:
            # While an id moves to another producer id, the one before writes the markers.
            for producer in {value.producer_id, value.previous_producer_id} - {-1}:
                entries[producer] = _entry(owner, value, (kept.partition, kept.offset))

    _each(path, TRANSACTION_STATE, take, env, policy, on_skipped)
    return entries


def note_decisions(topic: Topic, before: Mapping[int, CoordinatorEntry], after: Mapping[int, CoordinatorEntry]) -> None:
    """Commit the decisions of the topic's open transactions that both readings of the coordinators agree on."""
    head = topic.log.head(refresh=False)
    source = head.kafka_source
    decided = {
        producer: entry
        for producer, entry in after.items()
        if entry.decided is not None and before.get(producer) == entry
    }
    parts = []
    for partition in sorted({each.partition for each in head.kafka_open}):
        before_open = [each for each in head.kafka_open if each.partition == partition]
        after_open = [_with_decision(topic.name, each, decided.get(each.producer)) for each in before_open]
        if after_open != before_open and source is not None and partition in source.ends:
            end = int(head.log_end[partition])
            parts.append(
                ImportedPartition(
                    partition=partition,
                    log_start=int(head.log_start[partition]),
                    log_end=end,
                    cleaned_through=None,
                    leader_epoch=-1,
                    files=(),
                    open=tuple(after_open),
                    since=end,
                    imported=source.ends[partition],
                )
            )
    if parts and source is not None:
        topic.log.commit(ImportIntent(head.topic_id, tuple(parts), source.topic_id), head)


def _with_decision(topic: str, open_: KafkaOpen, entry: CoordinatorEntry | None) -> KafkaOpen:
    here = entry is not None and (topic, open_.partition) in entry.partitions
    return replace(open_, decided=entry.decided) if entry is not None and here else open_


def _entry(transactional_id: str, value: TransactionValue, record: tuple[int, int]) -> CoordinatorEntry:
    begun = value.status in _BEGUN
    return CoordinatorEntry(
        transactional_id=transactional_id,
        timeout_ms=max(value.timeout_ms, 0),
        start_ms=value.start_ms if begun and value.start_ms is not None and value.start_ms >= 0 else None,
        decided=_DECIDED.get(value.status),
        partitions=frozenset(value.partitions or ()) if begun else frozenset(),
        record=record,
    )


def _each(
    path: str, topic: str, take: Callable[[bytes, Kept], None], env: Env, policy: str, on_skipped: OnSkipped
) -> None:
    """Call `take` with the newest record of each key; a record that no version of Kafka writes is damage."""
    for key, kept in newest_values(path, topic, env=env, policy=policy, on_skipped=on_skipped).items():
        try:
            take(key, kept)
        except Corrupt as error:
            if policy == FAIL:
                raise Corrupt(
                    f"the record at offset {kept.offset} of {topic}-{kept.partition} cannot be read: {error.message};"
                    " import without groups and transactions, or with corrupt_records skip",
                    offset=kept.offset,
                ) from None
            why = f"its key or value cannot be read: {error.message}"
            on_skipped(Skipped(topic, kept.partition, path, None, 0, kept.offset, kept.offset + 1, why))


UNKNOWN = "Unknown"
"""Kafka's word for an unknown state."""


def has_groups(view: KafkaView) -> bool:
    """Return True if the directory holds a coordinator's topic."""
    return kafka_layout(view.location) == "log-dir" and CONSUMER_OFFSETS in view.topics()


class KafkaGroups:
    """The groups of a directory at `now_ms` (ms since the epoch), without offsets that have expired by then.

    `failures`: damage met by `lag`. `BadRequest` for the folder of one partition, `NotFound` without a coordinator's
    topic, `Corrupt` if it is damaged.
    """

    def __init__(self, view: KafkaView, now_ms: int | None = None) -> None:
        self.location = view.location
        self.now_ms = SYSTEM.wall_ms() if now_ms is None else now_ms
        self.failures: list[SparklogError] = []
        self._view = view
        if kafka_layout(view.location) != "log-dir":
            raise BadRequest(
                f"{view.location} is one partition: groups are in {CONSUMER_OFFSETS} of the whole log directory; give "
                "that"
            )
        if not has_groups(view):
            raise NotFound(
                f"{view.location} holds no partition of {CONSUMER_OFFSETS}, where Kafka keeps consumer groups: give "
                "the log directory of a broker that does"
            )
        self._groups = kafka_groups(view.location, env=SYSTEM, now_ms=self.now_ms, on_skipped=log_skipped)

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(self._groups)

    def descriptions(self, names: Iterable[str], failures: list[SparklogError] | None = None) -> list[GroupDescription]:
        """Describe groups; their time is that of the newest offset."""
        return [self._description(name) for name in names]

    def _description(self, name: str) -> GroupDescription:
        group = self._groups.get(name)
        if group is None:
            return GroupDescription(name, DEAD, 0, None, None, 0)
        newest = max((value.commit_timestamp for value in group.offsets.values()), default=0)
        return GroupDescription(name, UNKNOWN, group.generation, None, None, max(0, newest))

    def lag(
        self, names: Iterable[str] | None = None, *, topics: Collection[str] | None = None, seconds: bool = True
    ) -> list[Lag]:
        """Return a row per committed offset of the directory's partitions, ordered by group, topic and partition.

        `names`: None is all; a group that does not exist has no rows. `topics`: only these, as the view has them
        (None: all, and the view takes a new snapshot of them). `seconds` reads the first unread record of each
        partition.
        """
        known = [self._groups[name] for name in (self.names() if names is None else names) if name in self._groups]
        if topics is None:
            topics = {topic for group in known for topic, _ in group.offsets} & set(self._view.topics())
            self._view.refresh(sorted(topics))
        bounds = {topic: self._view.bounds(topic) for topic in topics}
        return [
            self._row(group.id, topic, partition, value.offset, bounds[topic][partition], seconds)
            for group in known
            for (topic, partition), value in sorted(group.offsets.items())
            if partition in bounds.get(topic, {})
        ]

    def _row(self, group: str, topic: str, partition: int, offset: int, limits: Bounds, seconds: bool) -> Lag:
        waited = self._waited(topic, partition, offset, limits) if seconds else None
        lag = limits.log_end - offset
        return Lag(group, topic, partition, offset, limits.log_start, limits.log_end, lag, waited, None)

    def _waited(self, topic: str, partition: int, offset: int, limits: Bounds) -> float | None:
        """Return the seconds since the first record from `offset` on was written; 0 without such a record.

        None if it has no time, or is damaged; the error goes into `failures`.
        """
        try:
            written = self._first_time(topic, partition, max(offset, limits.log_start), limits.log_end)
        except Corrupt as error:
            self.failures.append(error)
            return None
        if written is None:
            return 0.0
        return max(0, self.now_ms - written) / 1000 if written >= 0 else None

    def _first_time(self, topic: str, partition: int, start: int, end: int) -> int | None:
        """Return the time (ms) of the first record in offsets `[start, end)`; None without one."""
        if start < end:
            for part in self._view.plan([OffsetRange(topic, partition, start, end)], READ_UNCOMMITTED):
                for batch in part.read(("timestamp",)):
                    if batch.num_rows:
                        return int(batch.column(0)[0].value)
        return None
