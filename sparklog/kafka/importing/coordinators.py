"""Read what Kafka's coordinators keep in compacted topics of their own, import it, and compute consumer lag from it.

The newest record of a key counts, one without a value deletes it. Records of transactions (offsets that a producer
sends with what it writes) count from their COMMIT marker on, those of other writers at once, also after a transaction
that is open: so this is no read with read_committed, which ends at the first open one. A record that was written
earlier never replaces one that was written later, whenever its marker comes.

**Groups** (`__consumer_offsets`): the committed offsets of each group in the imported topics, with times, leader epochs
and metadata, and the group's generation. Left out are offsets past their expire timestamp (from old clients), those of
topics that were not imported or were created again, and groups without offsets. An offset replaces an older one only,
so a second import brings groups up to date. A group that has been used in the root since is not changed: its members go
on from the offsets they committed there.

**Transactions** (`__transaction_state`): the transactional id of each open transaction, its start and timeout, and the
decision if the marker has not reached the partition yet (`sparklog.log.state.commit`). A running broker may begin
the next transaction during the import. So a decision counts only if its record is the newest both before the logs are
copied and after: an id begins no transaction before all markers of the last one are written.

**Consumer lag**: rows are those of `sparklog.groups.lag`. The members of a group are in a broker's memory, so its state
is unknown. Each broker of a cluster has some partitions of `__consumer_offsets`, and of the topics: groups are those of
the coordinators in this directory, rows those of its logs.
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
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS, TRANSACTION_STATE, SegmentName, settled_segments
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


class Kept(NamedTuple):
    """The value of a key and where its record is."""

    value: bytes
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log dir to read Kafka's own topics in; `policy`, `on_skipped`: what damage does, see `segment_recovery`."""

    path: FilePath
    env: Env
    policy: str = recovery.FAIL
    on_skipped: OnSkipped = recovery.log_skipped


@dataclass(slots=True)
class LogReading(ABC):
    """A reading of the sound batches of one of Kafka's own partitions, which derived classes `add` up."""

    log_dir: LogDir
    topic: str
    partition: int
    cut: bool = False

    def load(self, names: tuple[SegmentName, ...]) -> None:
        for name, after in zip(names, [*names[1:], None], strict=True):
            if self.cut:
                return
            try:
                with SegmentFile(name.path) as file:
                    for window in self._windows(file, name, after):
                        self.add(window)
            except FileNotFoundError:
                raise Unavailable(f"{name.path} is gone: Kafka's cleaner was at work; try again") from None

    @abstractmethod
    def add(self, window: Window) -> None:
        """Take the records of a window."""

    def _windows(self, file: SegmentFile, name: SegmentName, after: SegmentName | None) -> Iterator[Window]:
        last, policy = after is None, self.log_dir.policy
        for found in checked_batches(file, 0, name.base, limit=None if after is None else after.base):
            if isinstance(found, Window):
                yield found
            elif policy == recovery.SKIP and not (last and found.stop == "zeros"):
                self._skipped(found, found.until, found.next_offset)
            elif last and found.unwritten:
                return
            elif policy != recovery.TRUNCATE:
                raise Corrupt(found.reason, file=file.path, position=found.position, offset=found.offset)
            else:
                self.cut = True
                self._skipped(found, file.size, None)
                return

    def _skipped(self, damage: Damage, until: int, end: int | None) -> None:
        place = self.topic, self.partition, damage.file.path, damage.position, until - damage.position, damage.offset
        self.log_dir.on_skipped(Skipped(*place, end, damage.reason))


@dataclass(slots=True)
class _Loading(LogReading):
    values: dict[bytes, tuple[int, bytes | None]] = field(default_factory=dict)
    pending: dict[int, dict[bytes, tuple[int, bytes | None]]] = field(default_factory=dict)
    """By producer id: what its open transaction has written."""

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
                # Of a marker that the cleaner has emptied, the records are gone as well.
                if headers.count[row]:
                    self._end(producer, int(control.control_types(window.data, headers[row : row + 1])[0]))
                continue
            target = self.pending.setdefault(producer, {}) if headers.is_transactional[row] else self.values
            for i in range(start, end):
                if keys[i] is not None:
                    target[keys[i]] = (offsets[i], values[i])
            start = end

    def _end(self, producer: int, kind: int) -> None:
        written = self.pending.pop(producer, {}) if kind in (control.COMMIT, control.ABORT) else {}
        for key, item in written.items() if kind == control.COMMIT else ():
            if key not in self.values or self.values[key][0] < item[0]:
                self.values[key] = item


CONSUMER_GROUP_METADATA = 3
"""The key type of a group of the new protocol (KIP-848)."""
MAX_GENERATION = 2**31 - 1
_DECIDED = {coded.Status.PREPARE_COMMIT: COMMIT, coded.Status.PREPARE_ABORT: ABORT}
BEGUN = (
    coded.Status.ONGOING,
    coded.Status.PREPARE_COMMIT,
    coded.Status.PREPARE_ABORT,
    coded.Status.PREPARE_EPOCH_FENCE,
)


@dataclass(slots=True)
class KafkaGroup:
    """A group of the coordinator: (topic, partition) -> committed offset; `generation` 0: unknown."""

    id: str
    generation: int = 0
    offsets: dict[TopicPartition, coded.OffsetValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedGroup:
    """The import of a group: how many `offsets` were imported, how many were `left_out` with their topics.

    `in_use`: the group has had a member in the root, and was not changed.
    """

    group: str
    offsets: int
    left_out: int
    in_use: bool = False


def kafka_groups(log_dir: LogDir, now_ms: int) -> dict[str, KafkaGroup]:
    """Read the groups of a log dir, by id, without offsets that have expired by `now_ms` (ms)."""
    groups: dict[str, KafkaGroup] = {}

    def take(key: bytes, kept: Kept) -> None:
        decoded = coded.decode_group_key(key)
        if isinstance(decoded, coded.OffsetKey):
            value = coded.decode_offset_value(kept.value)
            if value is not None and (value.expire_timestamp is None or value.expire_timestamp > now_ms):
                group = groups.setdefault(decoded.group, KafkaGroup(decoded.group))
                group.offsets[decoded.topic, decoded.partition] = value
        elif isinstance(decoded, coded.GroupKey):
            classic = coded.decode_group_value(kept.value)
            _note_generation(groups, decoded.group, 0 if classic is None else classic.generation)
        elif isinstance(decoded, coded.OtherKey) and decoded.type == CONSUMER_GROUP_METADATA:
            fields = coded.decode_other_value(decoded, kept.value)
            group_id, epoch = decoded.fields.get("groupId"), None if fields is None else fields.get("epoch")
            if isinstance(group_id, str) and isinstance(epoch, int):
                _note_generation(groups, group_id, epoch)

    read_newest(log_dir, CONSUMER_OFFSETS, take)
    return dict(sorted(groups.items()))


def _note_generation(groups: dict[str, KafkaGroup], group_id: str, generation: int) -> None:
    group = groups.setdefault(group_id, KafkaGroup(group_id))
    group.generation = min(max(group.generation, generation), MAX_GENERATION)


class GroupTopic(NamedTuple):
    """A topic that offsets are imported of: its id here and in Kafka ("": unknown), and how many partitions it has."""

    topic_id: str
    kafka_id: str
    partitions: int


def import_groups(
    root: Root, groups: Mapping[str, KafkaGroup], topics: Mapping[str, GroupTopic]
) -> tuple[ImportedGroup, ...]:
    """Import the groups' offsets in `topics`, by name. Idempotent."""
    from sparklog.groups.group_state import CommittedOffset
    from sparklog.groups.lag import Groups

    imported = []
    opened = Groups(root)
    for group_id, kafka_group in groups.items():
        offsets = []
        for (name, partition), value in sorted(kafka_group.offsets.items()):
            topic = topics.get(name, GroupTopic("", "", 0))
            same = value.topic_id is None or not topic.kafka_id or value.topic_id == topic.kafka_id
            if partition < topic.partitions and same and value.offset >= 0:
                committed = value.offset, value.leader_epoch, value.metadata, max(value.commit_timestamp, 0)
                offsets.append(CommittedOffset(name, topic.topic_id, partition, *committed))
        if not offsets:
            continue
        group = opened.group(group_id)
        # Also if its member has left or sleeps: Kafka's offsets would skip records that it has not read here.
        in_use = group.description().session_timeout_ms is not None
        if not in_use:
            group.restore(offsets, generation=kafka_group.generation)
        imported.append(ImportedGroup(group_id, len(offsets), len(kafka_group.offsets) - len(offsets), in_use))
    return tuple(imported)


def kafka_transactions(log_dir: LogDir) -> dict[int, CoordinatorEntry]:
    """Read the entries of the transaction coordinators in a log dir, by producer id."""
    entries: dict[int, CoordinatorEntry] = {}

    def take(key: bytes, kept: Kept) -> None:
        owner = coded.decode_transaction_key(key)
        value = coded.decode_transaction_value(kept.value)
        if owner is not None and value is not None:
            begun = value.status in BEGUN
            entry = CoordinatorEntry(
                transactional_id=owner,
                timeout_ms=max(value.timeout_ms, 0),
                start_ms=value.start_ms if begun and value.start_ms is not None and value.start_ms >= 0 else None,
                decided=_DECIDED.get(value.status),
                partitions=frozenset(value.partitions or ()) if begun else frozenset(),
                record=(kept.partition, kept.offset),
            )
            # While an id moves to another producer id, the one before writes the markers.
            for producer in {value.producer_id, value.previous_producer_id} - {-1}:
                entries[producer] = entry

    read_newest(log_dir, TRANSACTION_STATE, take)
    return entries


def note_decisions(topic: Topic, before: Mapping[int, CoordinatorEntry], after: Mapping[int, CoordinatorEntry]) -> None:
    """Commit the decisions of the topic's open transactions that both readings of the coordinators agree on."""
    state = topic.log.state(refresh=False)
    source = state.kafka_source
    decided = {
        producer: entry
        for producer, entry in after.items()
        if entry.decided is not None and before.get(producer) == entry
    }
    parts = []
    for partition in sorted({transaction.partition for transaction in state.kafka_open}):
        before_open = [transaction for transaction in state.kafka_open if transaction.partition == partition]
        after_open = []
        for transaction in before_open:
            entry = decided.get(transaction.producer)
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


def read_newest(log_dir: LogDir, topic: str, take: Callable[[bytes, Kept], None]) -> None:
    """Call `take` with the newest record of each key in the partitions of one of Kafka's own topics.

    A record that no version of Kafka writes counts as damage.
    """
    newest: dict[bytes, Kept] = {}
    for (name, number), folder in sorted(directory.partition_folders(log_dir.path).items()):
        if name == topic:
            loading = _Loading(log_dir, topic, number)
            loading.load(settled_segments(folder, env=log_dir.env))
            for key, (offset, value) in loading.values.items():
                if value is not None:
                    newest[key] = Kept(value, number, offset)
    for key, kept in newest.items():
        try:
            take(key, kept)
        except Corrupt as error:
            if log_dir.policy == recovery.FAIL:
                raise Corrupt(
                    f"the record at offset {kept.offset} of {topic}-{kept.partition} cannot be read: {error.message};"
                    " import without groups and transactions, or with corrupt_records skip",
                    offset=kept.offset,
                ) from None
            why = f"its key or value cannot be read: {error.message}"
            file, offset = str(log_dir.path), kept.offset
            log_dir.on_skipped(Skipped(topic, kept.partition, file, None, 0, offset, offset + 1, why))


UNKNOWN = "Unknown"
"""Kafka's word for an unknown state."""


def has_groups(view: KafkaView) -> bool:
    return view.layout == "log-dir" and CONSUMER_OFFSETS in view.topics()


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
        if view.layout != "log-dir":
            raise BadRequest(
                f"{view.location} is one partition: groups are in {CONSUMER_OFFSETS} of the whole log directory; give "
                "that"
            )
        if not has_groups(view):
            raise NotFound(
                f"{view.location} holds no partition of {CONSUMER_OFFSETS}, where Kafka keeps consumer groups: give "
                "the log directory of a broker that does"
            )
        self._groups = kafka_groups(LogDir(view.place, SYSTEM), self.now_ms)

    def names(self) -> list[str]:
        return sorted(self._groups)

    def descriptions(self, names: Iterable[str], failures: list[SparklogError] | None = None) -> list[GroupDescription]:
        """Describe groups; their time is that of the newest offset."""
        described = []
        for name in names:
            group = self._groups.get(name, KafkaGroup(name))
            newest = max((value.commit_timestamp for value in group.offsets.values()), default=0)
            state = UNKNOWN if name in self._groups else DEAD
            described.append(GroupDescription(name, state, group.generation, None, None, max(0, newest)))
        return described

    def lag(
        self, names: Iterable[str] | None = None, *, topics: Collection[str] | None = None, seconds: bool = True
    ) -> list[Lag]:
        """Return a row per committed offset of the directory's partitions, ordered by group, topic and partition.

        `names`: None is all; a group that does not exist has no rows. `topics`: only these, as the view has them
        (None: all, and the view takes a new snapshot of them). `seconds` reads the first unread record of each
        partition.
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
                    waited = self._read_waiting_time(topic, partition, offset, limits) if seconds else None
                    start, end = limits.log_start, limits.log_end
                    rows.append(Lag(group.id, topic, partition, offset, start, end, end - offset, waited, None))
        return rows

    def _read_waiting_time(self, topic: str, partition: int, offset: int, limits: Bounds) -> float | None:
        """Return the seconds since the first record from `offset` on was written; 0 without such a record.

        None if it has no time, or is damaged; the error goes into `failures`.
        """
        unread = OffsetRange(topic, partition, max(offset, limits.log_start), limits.log_end)
        try:
            written = self._view.first_time(unread)
        except Corrupt as error:
            self.failures.append(error)
            return None
        if written is None:
            return 0.0
        return max(0, self.now_ms - written) / 1000 if written >= 0 else None
