"""Read the internal topics of Kafka's coordinators, import groups and transactions, and compute consumer lag.

These topics are compacted: the latest record of a key is its state, and a record without a value deletes the key. A
producer can commit offsets in a transaction. These records are applied when the COMMIT marker of the transaction is
read. Other records are applied immediately, even if they are after the start of an open transaction. In contrast, a
read_committed consumer stops at the first open transaction. A record never replaces a record with a higher offset, even
if its transaction is committed later.

**Groups** (`__consumer_offsets`): an import reads the generation of each group and its committed offsets in the
imported topics, with their timestamps, leader epochs and metadata. Expired offsets (only old clients set an expiry),
offsets of topics that were not imported or were recreated, and groups without offsets are skipped. An imported offset
replaces an existing offset only if the imported offset is newer, so repeating the import updates the groups. If a group
has been used in the root, the import does not change the group, because its members continue from the offsets that they
committed in the root.

**Transactions** (`__transaction_state`): an import reads the transactional id, the start and the timeout of each open
transaction. It also reads the decision, if the marker has not been written to the partition yet (see
`sparklog.log.state.commit`). A running broker may start the next transaction during the import. A transactional id can
start a transaction only after all markers of its previous transaction are written. Therefore a decision is used only if
its record is the latest record of the transactional id both before and after the logs are copied.

**Consumer lag**: the lag has the same columns as in `sparklog.groups.lag`. The state of a group is unknown, because
only a running broker has the members of the group. Each broker of a cluster stores some partitions of
`__consumer_offsets` and of the other topics. Therefore the lag includes only the groups and partitions that are stored
in this directory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.format import control
from sparklog.format.batch_walk import Damage, Window, checked_batches
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import DEAD, GroupDescription
from sparklog.groups.lag import Lag
from sparklog.kafka.importing.partition import CoordinatorEntry
from sparklog.kafka.in_place import directory
from sparklog.kafka.in_place import segment_recovery as recovery
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS, TRANSACTION_STATE, SegmentName, list_segments
from sparklog.kafka.in_place.files import FilePath
from sparklog.kafka.in_place.segment_file import SegmentFile
from sparklog.kafka.in_place.view import KafkaView
from sparklog.kafka.messages import coordinator_records as coded
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.state.commit_intents import ImportedPartition, ImportIntent
from sparklog.log.state.kafka_source import ABORT, COMMIT
from sparklog.log.state.view import Bounds, OffsetRange

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic


class StoredValue(NamedTuple):
    """The latest value of a key, with the partition and offset of the record."""

    value: bytes
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory with Kafka's internal topics. See `segment_recovery` for `policy` and `on_skipped`."""

    path: FilePath
    env: Env
    policy: str = recovery.FAIL
    on_skipped: OnSkipped = recovery.log_skipped


@dataclass(slots=True)
class LogReading(ABC):
    """Reads the valid batches of a partition of an internal topic. Subclasses implement `add`."""

    log_dir: LogDir
    topic: str
    partition: int
    truncated: bool = False

    def load(self, names: tuple[SegmentName, ...]) -> None:
        for name, after in zip(names, [*names[1:], None], strict=True):
            if self.truncated:
                return
            try:
                with SegmentFile(name.path) as file:
                    for window in self._windows(file, name, after):
                        self.add(window)
            except FileNotFoundError:
                raise Unavailable(f"{name.path} was replaced by Kafka's cleaner: retry") from None

    @abstractmethod
    def add(self, window: Window) -> None:
        """Process the records of a window."""

    def _windows(self, file: SegmentFile, name: SegmentName, after: SegmentName | None) -> Iterator[Window]:
        last, policy = after is None, self.log_dir.policy
        for found in checked_batches(file, 0, name.base, limit=None if after is None else after.base):
            if isinstance(found, Window):
                yield found
            elif policy == recovery.SKIP and not (last and found.stop == "zeros"):
                self._report_skipped(found, found.until, found.next_offset)
            elif last and found.is_incomplete_end:
                return
            elif policy != recovery.TRUNCATE:
                raise Corrupt(found.reason, file=file.path, position=found.position, offset=found.offset)
            else:
                self.truncated = True
                self._report_skipped(found, file.size, None)
                return

    def _report_skipped(self, damage: Damage, until: int, end: int | None) -> None:
        source = self.topic, self.partition, damage.file.path, damage.position, until - damage.position, damage.offset
        self.log_dir.on_skipped(Skipped(*source, end, damage.reason))


@dataclass(slots=True)
class _LatestValues(LogReading):
    values: dict[bytes, tuple[int, bytes | None]] = field(default_factory=dict)
    pending: dict[int, dict[bytes, tuple[int, bytes | None]]] = field(default_factory=dict)
    """The records of the open transaction of each producer id."""

    def add(self, window: Window) -> None:
        headers = window.headers
        markers = headers.is_control
        records = window.decode(("key", "value"), ~markers & (headers.count > 0))
        if records.key is None or records.value is None:
            return
        keys, values, offsets = records.key.to_pylist(), records.value.to_pylist(), records.offset.tolist()
        ends = np.searchsorted(records.offset, headers.next_offset).tolist()
        start = 0
        for row, end in enumerate(ends):
            producer = int(headers.producer_id[row])
            if markers[row]:
                # If the cleaner has removed the record of a marker, the cleaner has also removed the records of the
                # transaction.
                if headers.count[row]:
                    self._end(producer, int(control.control_types(window.data, headers[row : row + 1])[0]))
                continue
            target = self.pending.setdefault(producer, {}) if headers.is_transactional[row] else self.values
            for index in range(start, end):
                if keys[index] is not None:
                    target[keys[index]] = (offsets[index], values[index])
            start = end

    def _end(self, producer: int, kind: int) -> None:
        records = self.pending.pop(producer, {}) if kind in (control.COMMIT, control.ABORT) else {}
        for key, record in records.items() if kind == control.COMMIT else ():
            if key not in self.values or self.values[key][0] < record[0]:
                self.values[key] = record


CONSUMER_GROUP_METADATA = 3
"""The key type of a group of the new protocol (KIP-848)."""
MAX_GENERATION = 2**31 - 1
_DECIDED = {coded.Status.PREPARE_COMMIT: COMMIT, coded.Status.PREPARE_ABORT: ABORT}
OPEN_STATUSES = (
    coded.Status.ONGOING,
    coded.Status.PREPARE_COMMIT,
    coded.Status.PREPARE_ABORT,
    coded.Status.PREPARE_EPOCH_FENCE,
)


@dataclass(slots=True)
class KafkaGroup:
    """A group with its committed offsets by (topic, partition). `generation` is 0 if the generation is unknown."""

    id: str
    generation: int = 0
    offsets: dict[TopicPartition, coded.OffsetValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedGroup:
    """The result of importing a group.

    * `offsets`: number of imported offsets
    * `left_out`: number of offsets that were skipped because their topics were not imported or were recreated
    * `in_use`: True if the group was not changed, because it has had a member in the root
    """

    group: str
    offsets: int
    left_out: int
    in_use: bool = False


def kafka_groups(log_dir: LogDir, now_ms: int) -> dict[str, KafkaGroup]:
    """Return the groups of a log directory by id, without offsets that have expired at `now_ms`."""
    groups: dict[str, KafkaGroup] = {}

    def add(key: bytes, stored: StoredValue) -> None:
        decoded = coded.decode_group_key(key)
        if isinstance(decoded, coded.OffsetKey):
            value = coded.decode_offset_value(stored.value)
            if value is not None and (value.expire_timestamp is None or value.expire_timestamp > now_ms):
                group = groups.setdefault(decoded.group, KafkaGroup(decoded.group))
                group.offsets[decoded.topic, decoded.partition] = value
        elif isinstance(decoded, coded.GroupKey):
            classic = coded.decode_group_value(stored.value)
            _note_generation(groups, decoded.group, 0 if classic is None else classic.generation)
        elif isinstance(decoded, coded.OtherKey) and decoded.type == CONSUMER_GROUP_METADATA:
            fields = coded.decode_other_value(decoded, stored.value)
            group_id, epoch = decoded.fields.get("groupId"), None if fields is None else fields.get("epoch")
            if isinstance(group_id, str) and isinstance(epoch, int):
                _note_generation(groups, group_id, epoch)

    read_latest(log_dir, CONSUMER_OFFSETS, add)
    return dict(sorted(groups.items()))


def _note_generation(groups: dict[str, KafkaGroup], group_id: str, generation: int) -> None:
    group = groups.setdefault(group_id, KafkaGroup(group_id))
    group.generation = min(max(group.generation, generation), MAX_GENERATION)


class GroupTopic(NamedTuple):
    """The id of an imported topic in the root, its id in Kafka (empty if the id is unknown) and its number of
    partitions.
    """

    topic_id: str
    kafka_id: str
    partitions: int


def import_groups(
    root: Root, groups: Mapping[str, KafkaGroup], topics: Mapping[str, GroupTopic]
) -> tuple[ImportedGroup, ...]:
    """Import the committed offsets of groups in `topics` (by name). The import can be repeated."""
    from sparklog.groups.group_state import CommittedOffset
    from sparklog.groups.lag import Groups

    imported = []
    groups_of_root = Groups(root)
    for group_id, kafka_group in groups.items():
        offsets = []
        for (name, partition), value in sorted(kafka_group.offsets.items()):
            topic = topics.get(name, GroupTopic("", "", 0))
            is_same = value.topic_id is None or not topic.kafka_id or value.topic_id == topic.kafka_id
            if partition < topic.partitions and is_same and value.offset >= 0:
                committed = value.offset, value.leader_epoch, value.metadata, max(value.commit_timestamp, 0)
                offsets.append(CommittedOffset(name, topic.topic_id, partition, *committed))
        if not offsets:
            continue
        group = groups_of_root.group(group_id)
        # Do not change the group even if its member has left or is idle. If the group continued from the offsets in
        # Kafka, it would skip records that the member has not read in the root.
        in_use = group.description().session_timeout_ms is not None
        if not in_use:
            group.restore(offsets, generation=kafka_group.generation)
        imported.append(ImportedGroup(group_id, len(offsets), len(kafka_group.offsets) - len(offsets), in_use))
    return tuple(imported)


def kafka_transactions(log_dir: LogDir) -> dict[int, CoordinatorEntry]:
    """Return the transaction coordinator entries of a log directory, by producer id."""
    entries: dict[int, CoordinatorEntry] = {}

    def add(key: bytes, stored: StoredValue) -> None:
        owner = coded.decode_transaction_key(key)
        value = coded.decode_transaction_value(stored.value)
        if owner is not None and value is not None:
            is_open = value.status in OPEN_STATUSES
            entry = CoordinatorEntry(
                transactional_id=owner,
                timeout_ms=max(value.timeout_ms, 0),
                start_ms=value.start_ms if is_open and value.start_ms is not None and value.start_ms >= 0 else None,
                decided=_DECIDED.get(value.status),
                partitions=frozenset(value.partitions or ()) if is_open else frozenset(),
                record=(stored.partition, stored.offset),
            )
            # While a transactional id changes to another producer id, the markers are written with the previous
            # producer id.
            for producer in {value.producer_id, value.previous_producer_id} - {-1}:
                entries[producer] = entry

    read_latest(log_dir, TRANSACTION_STATE, add)
    return entries


def commit_decisions(
    topic: Topic, before: Mapping[int, CoordinatorEntry], after: Mapping[int, CoordinatorEntry]
) -> None:
    """Commit the decisions about open transactions that are the same before and after the copy of the logs."""
    state = topic.log.state(refresh=False)
    source = state.kafka_source
    decisions = {
        producer: entry
        for producer, entry in after.items()
        if entry.decided is not None and before.get(producer) == entry
    }
    parts = []
    for partition in sorted({transaction.partition for transaction in state.kafka_open}):
        before_open = [transaction for transaction in state.kafka_open if transaction.partition == partition]
        after_open = []
        for transaction in before_open:
            entry = decisions.get(transaction.producer)
            if entry is not None and (topic.name, partition) in entry.partitions:
                transaction = replace(transaction, decided=entry.decided)
            after_open.append(transaction)
        if after_open != before_open and source is not None and partition in source.ends:
            end = int(state.log_end[partition])
            parts.append(
                ImportedPartition(
                    partition=partition,
                    log_start=int(state.log_start[partition]),
                    log_end=end,
                    first_dirty_offset=None,
                    leader_epoch=-1,
                    files=(),
                    open=tuple(after_open),
                    since=end,
                    imported=source.ends[partition],
                )
            )
    if parts and source is not None:
        topic.log.commit(ImportIntent(state.topic_id, tuple(parts), source.topic_id), state)


def read_latest(log_dir: LogDir, topic: str, add: Callable[[bytes, StoredValue], None]) -> None:
    """Call `add` with the latest value of each key in the partitions of an internal topic.

    If a record cannot be decoded, it is handled like a damaged batch.
    """
    values: dict[bytes, StoredValue] = {}
    for (name, number), partition_dir in sorted(directory.partition_dirs(log_dir.path).items()):
        if name == topic:
            latest = _LatestValues(log_dir, topic, number)
            latest.load(list_segments(partition_dir, env=log_dir.env))
            for key, (offset, value) in latest.values.items():
                if value is not None:
                    values[key] = StoredValue(value, number, offset)
    for key, stored in values.items():
        try:
            add(key, stored)
        except Corrupt as error:
            if log_dir.policy == recovery.FAIL:
                raise Corrupt(
                    f"cannot decode the record at offset {stored.offset} of {topic}-{stored.partition}: {error.message}"
                    "; import without groups and transactions, or with corrupt_records=skip",
                    offset=stored.offset,
                ) from None
            why = f"the key or value of the record cannot be decoded: {error.message}"
            file, offset = str(log_dir.path), stored.offset
            log_dir.on_skipped(Skipped(topic, stored.partition, file, None, 0, offset, offset + 1, why))


UNKNOWN = "Unknown"
"""Kafka's name for an unknown group state."""


def has_groups(view: KafkaView) -> bool:
    return view.layout == "log-dir" and CONSUMER_OFFSETS in view.topics()


class KafkaGroups:
    """The groups of a log directory at `now_ms` (ms since the epoch), without expired offsets.

    `lag` adds the errors for damaged files to `failures`.

    Raises `BadRequest` if the path is a partition directory, `NotFound` if `__consumer_offsets` does not exist, and
    `Corrupt` if `__consumer_offsets` is damaged.
    """

    def __init__(self, view: KafkaView, now_ms: int | None = None) -> None:
        self.location = view.location
        self.now_ms = SYSTEM.wall_ms() if now_ms is None else now_ms
        self.failures: list[SparklogError] = []
        self._view = view
        if view.layout != "log-dir":
            raise BadRequest(
                f"{view.location} is a partition directory: open its log directory, which contains {CONSUMER_OFFSETS}"
            )
        if not has_groups(view):
            raise NotFound(
                f"{view.location} has no partition of {CONSUMER_OFFSETS}, where Kafka stores consumer groups: open the"
                " log directory of a broker that has a partition of this topic"
            )
        self._groups = kafka_groups(LogDir(view.path, SYSTEM), self.now_ms)

    def names(self) -> list[str]:
        return sorted(self._groups)

    def descriptions(self, names: Iterable[str], failures: list[SparklogError] | None = None) -> list[GroupDescription]:
        """Return the descriptions of groups. The timestamp of a group is the commit timestamp of its latest committed
        offset.
        """
        descriptions = []
        for name in names:
            group = self._groups.get(name, KafkaGroup(name))
            latest = max((value.commit_timestamp for value in group.offsets.values()), default=0)
            state = UNKNOWN if name in self._groups else DEAD
            descriptions.append(GroupDescription(name, state, group.generation, None, None, max(0, latest)))
        return descriptions

    def lag(
        self, names: Iterable[str] | None = None, *, topics: Collection[str] | None = None, seconds: bool = True
    ) -> list[Lag]:
        """Return a row per committed offset in the partitions of the directory, sorted by group, topic and partition.

        Args:
            names: the groups to return. If None, all groups are returned. Unknown groups are ignored.
            topics: the topics, as of the view's latest snapshot. If None, a new snapshot of all topics is taken.
            seconds: True to read the first unread record of each partition in order to compute the lag in seconds.
        """
        groups = [self._groups[name] for name in (self.names() if names is None else names) if name in self._groups]
        if topics is None:
            topics = {topic for group in groups for topic, _ in group.offsets} & set(self._view.topics())
            self._view.refresh(sorted(topics))
        bounds = {topic: self._view.bounds(topic) for topic in topics}
        rows = []
        for group in groups:
            for (topic, partition), value in sorted(group.offsets.items()):
                limits, offset = bounds.get(topic, {}).get(partition), value.offset
                if limits is not None:
                    waiting_seconds = self._read_waiting_time(topic, partition, offset, limits) if seconds else None
                    start, end = limits.log_start, limits.log_end
                    rows.append(
                        Lag(group.id, topic, partition, offset, start, end, end - offset, waiting_seconds, None)
                    )
        return rows

    def _read_waiting_time(self, topic: str, partition: int, offset: int, limits: Bounds) -> float | None:
        """Return the number of seconds since the first record at or above `offset` was written, or 0 if no record has
        been written there.

        Returns None if the record does not have a timestamp or is damaged. If the record is damaged, the error is added
        to `failures`.
        """
        unread = OffsetRange(topic, partition, max(offset, limits.log_start), limits.log_end)
        try:
            written_ms = self._view.first_time(unread)
        except Corrupt as error:
            self.failures.append(error)
            return None
        if written_ms is None:
            return 0.0
        return max(0, self.now_ms - written_ms) / 1000 if written_ms >= 0 else None
