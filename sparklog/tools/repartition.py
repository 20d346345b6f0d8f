"""Copy a topic to a new topic with a different number of partitions. Each record is copied exactly once.

**Partition of a record.** The partition of a record with a key is determined by Kafka's default partitioner (murmur2),
even if its old partition was set explicitly. A record without a key is copied to its old partition modulo the new
number of partitions. The records of an old partition are copied in order, so the order of records with the same key
does not change. The order of records without a key from the same old partition does not change either. If the records
of a key are in several old partitions, because partitions were set explicitly or were added to the topic, the relative
order of these records is unknown.

**Exactly once.** Each commit of copied records contains a writer (`KafkaWriterKey`) for each old partition. The `batch`
of the writer is the next old offset to copy, and its `count` is the number of records that have been copied. The commit
is rejected unless it continues from the latest position, so records are not copied twice if runs are killed or run
concurrently. The commit that creates the topic also contains these writers, at position 0. The writer ids contain the
id of the old topic.

If no other writer has appended records, the sum of the new log end offsets is the number of copied records. Otherwise
the copy stops, because the remaining records would be appended after newer records with the same keys.

**Steps.** Each step copies the same share of each old partition in one commit. Therefore records are copied
approximately in the order of their timestamps, as retention requires. If a group has read about the same share of each
partition, it re-reads only a few records.

**Groups.** In each new partition, a group continues from the smallest offset that may contain a record that it has not
read in the old topic. The group does not skip any records, but it may read records after this offset again.

The mapping of offsets is derived from the commits of the copy. Each commit contains the end of the copied offsets of
each old partition, and the number of records that are added to each new partition. Commits are read backwards from the
latest commit, until the group has read all records before the current commit. If a group has read all records, only the
latest commit is read.

If a group has read only some of the old records of a commit, these records are read again and counted by old and new
partition. If a new partition contains records of only one old partition, for example if the number of partitions is
increased from 4 to 12, the number of records that the group has read is the exact position of the group. If a new
partition contains records of several old partitions, the relative order of these records is unknown. In this case, the
group continues after the smallest count of an old partition with unread records. If some of the old records of a commit
have been deleted, or if more than `MAX_COUNTED` commits have been read, all records of the commit are considered
unread. `again` is an upper bound that includes these records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.arguments import FUNCTION, NAME, NUMBER, checked
from sparklog.common import units
from sparklog.common.settings import int64
from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.journal.names import MAX_PARTITIONS, check_topic_name
from sparklog.log.read.read_plan import plan_parts, read_parts, stored_in
from sparklog.log.state.commit import APPEND, Commit, WriterBatch
from sparklog.log.state.commit_intents import CreateIntent
from sparklog.log.state.history import History
from sparklog.log.state.range_slices import RangeSlices, select_ranges
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.view import READ_COMMITTED, OffsetRange, Stored
from sparklog.log.state.writer_runs import TXN, KafkaWriterKey, SequenceConflict, WriterEntry
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.storage.parallel_reads import read_each
from sparklog.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa


STEP_BYTES = 64 << 20
"""Maximum number of stored bytes of the old topic per commit."""
MAX_COUNTED = 16
"""Maximum number of commits whose old records are read again to determine the positions of groups. This limits the
reads to 1 GiB.
"""
COLUMNS = ("key", "value", "headers", "timestamp")
POSITION_COLUMNS = {"partition": np.int32, "offset": np.int64}
KEEP_TIMESTAMPS = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": INT64_MAX,
    "message.timestamp.after.max.ms": INT64_MAX,
}
"""Configs of the new topic during the copy, which preserve the record timestamps."""
GROWN_MESSAGE = "topic %s had %s partitions earlier, so the relative order of records of a key may be unknown"
_LOG = logging.getLogger("sparklog.tools")

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

CopyProgress: TypeAlias = Callable[[int, int, int], object]
"""A function that is called with the number of copied records, the number of copied bytes and the total number of bytes
to copy.
"""


@dataclass(frozen=True, slots=True, eq=False)
class CopyPositions:
    """The progress of a copy: for each old partition, the offset after the last copied record, and the number of copied
    records.
    """

    offsets: Int64s
    records: Int64s


def writer_ids(source: TopicState) -> list[str]:
    """Return the ids of the writers that record the positions in the partitions of a topic."""
    return [f"repartition-{source.topic_id}-{partition}" for partition in range(source.partitions)]


def copied_by(
    writers: Mapping[str, WriterBatch] | Mapping[str, WriterEntry], source: TopicState
) -> CopyPositions | None:
    """Return the positions that are recorded by the writers of a commit or topic, or None if the writers do not copy
    `source`.
    """
    entries = [writers.get(id_) for id_ in writer_ids(source)]
    if not any(entries):
        return None
    offsets = [0 if entry is None else entry.batch for entry in entries]
    records = [0 if entry is None else entry.count for entry in entries]
    return CopyPositions(np.array(offsets, np.int64), np.array(records, np.int64))


class Copying:
    """A copy of the snapshot `source` to the topic `name`, which is created or continued."""

    def __init__(self, root: Root, source: Snapshot, name: str, partitions: int) -> None:
        self.root, self.source, self.name, self.partitions = root, source, name, partitions
        self.log: TopicLog = root.engine.log(name)
        self.ends = source.state.last_stable()
        self._start_offsets = source.state.log_start

    def create(self) -> bool:
        """Create the new topic with the configs of the old topic. Return False if the new topic exists and the copy can
        be continued.
        """
        source = self.source.state
        writers = tuple(WriterBatch(TXN, id_, 0, None, 0) for id_ in writer_ids(source))
        intent = CreateIntent(self.root.env.new_id(), self.partitions, source.configs, writers=writers)
        if not self.log.refresh().topic_state.exists:
            try:
                self.root.engine.create(self.name, intent)
            except Conflict:
                # A concurrent run has created the topic, or the name is not allowed.
                if not self.log.refresh().topic_state.exists:
                    raise
            else:
                if earlier := source.previous_partition_counts:
                    _LOG.warning(GROWN_MESSAGE, self.source.topic, ", ".join(map(str, earlier)))
                return True
        self.copied()
        return False

    def copied(self) -> CopyPositions:
        """Return the positions in the latest known state. Raises `Conflict` if the new topic is not a copy of the old
        topic.
        """
        state, source = self.log.state(refresh=False), self.source
        copied = copied_by(state.registry, source.state)
        if copied is None:
            raise Conflict(
                f"topic '{self.name}' exists, but was not created by repartitioning topic '{source.topic}' (id "
                f"{source.state.topic_id}); choose another name, or delete topic '{self.name}'"
            )
        if state.partitions != self.partitions:
            existing = units.count(state.partitions, "partition")
            raise Conflict(
                f"topic '{self.name}' was created with {existing}, not {self.partitions}; use "
                f"{state.partitions} partitions to resume the copy, or choose another name"
            )
        return copied

    def run(self, step_bytes: int, progress: CopyProgress) -> int:
        """Copy the remaining records in steps. Return the number of copied records."""
        starts = np.maximum(self._start_offsets, self.copied().offsets)
        remaining = stored_in(self._selected(self._ranges(starts, self.ends)))
        nbytes = sum(stored.nbytes for stored in remaining)
        count = max(1, -(-nbytes // step_bytes))
        records = 0
        if remaining:
            progress(records, 0, nbytes)
        for step, ends in enumerate(self._steps(starts, remaining, count), 1):
            while (copied := self._step(ends)) is None:
                # A concurrent run has committed first, so continue from the positions of this run.
                pass
            records += copied
            progress(records, nbytes * step // count, nbytes)
        return records

    def _steps(self, starts: Int64s, remaining: Sequence[Stored], count: int) -> Iterator[Int64s]:
        """Yield the end offsets of each step. A step covers the same share of the remaining bytes of each partition."""
        ends = [
            stored.at_bytes(*(stored.nbytes * step // count for step in range(1, count + 1))) for stored in remaining
        ]
        partitions = np.flatnonzero(starts < self.ends)
        for step in range(count if remaining else 0):
            step_ends = starts.copy()
            step_ends[partitions] = [of_partition[step] for of_partition in ends]
            yield step_ends

    def _ranges(self, starts: Int64s, ends: Int64s) -> list[OffsetRange]:
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return [OffsetRange(self.source.topic, p, start, end) for p, (start, end) in enumerate(spans) if start < end]

    def _selected(self, ranges: list[OffsetRange]) -> RangeSlices:
        return select_ranges({self.source.topic: self.source}, ranges)

    def _step(self, ends: Int64s) -> int | None:
        """Copy records up to the given old offsets in one commit.

        Return the number of copied records, or None if a concurrent run committed first.
        """
        from sparklog.log.write.arrow_data import write_files

        target = self.log.append_target()
        before, registry = self.copied(), self.log.state(refresh=False).registry
        ranges = self._ranges(np.maximum(self._start_offsets, before.offsets), ends)
        if not ranges:
            return 0
        reject_other_writers(self, self.log.state(refresh=False).log_end, before)
        target = replace(target, configs=target.configs.changed(KEEP_TIMESTAMPS))
        after = CopyPositions(before.offsets.copy(), before.records.copy())
        records = self._rows(ranges, after)
        files = write_files(records, target, self.root.env, options=None, writer=None, allow_negative_timestamps=True)
        if files:
            rows = zip(writer_ids(self.source.state), after.offsets.tolist(), after.records.tolist(), strict=True)
            follows = {id_: entry.batch for id_, entry in registry.items()}
            writers = tuple(KafkaWriterKey(id_, offset, follows.get(id_), count) for id_, offset, count in rows)
            # Sync the old records and their decisions first. Otherwise the copied records might survive a crash in
            # which the old records are lost.
            source = self.root.engine.log(self.source.topic)
            for prepare in source.current().topic_state.open:
                self.root.engine.decisions.log(prepare.txn.id).make_durable()
            source.make_durable()
            try:
                self.log.commit_append(files, target, kafka_writers=writers)
            except SequenceConflict:
                return None
        self._start_offsets = ends
        return int((after.records - before.records).sum())

    def _rows(self, ranges: list[OffsetRange], copied: CopyPositions) -> Iterator[pa.RecordBatch]:
        """Yield the records and their new partitions, and update `copied`."""
        import pyarrow as pa

        from sparklog.format.arrow_numpy import fixed_array

        for batch, old, offset, new in self._partitioned(ranges, COLUMNS):
            np.add.at(copied.records, old, 1)
            np.maximum.at(copied.offsets, old, offset + 1)
            yield batch.select(COLUMNS).append_column("partition", fixed_array(new, pa.int32()))

    def _partitioned(
        self, ranges: list[OffsetRange], columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int32s, Int64s, Int32s]]:
        """Yield the records with their old partitions, old offsets and new partitions."""
        from sparklog.format.arrow_numpy import fixed_values
        from sparklog.format.key_hash import partition_for_key

        parts = plan_parts(self._selected(ranges), READ_COMMITTED)
        # Records that retention deletes during the copy are not copied.
        for batch in read_parts(
            [replace(part, fail_on_data_loss=False) for part in parts], (*columns, *POSITION_COLUMNS)
        ):
            old, offset = (fixed_values(batch.column(name), kind) for name, kind in POSITION_COLUMNS.items())
            by_key = partition_for_key(batch.column("key"), self.partitions)
            yield batch, old, offset, np.where(by_key < 0, old % self.partitions, by_key).astype(np.int32)

    def read_again(self, step: CopyStep) -> StepRecords | None:
        """Read the old records of a commit again. Return None if some of the records no longer exist."""
        if np.any(step.after.offsets > self.ends):
            # A concurrent run has copied records that are not in this snapshot.
            return None
        starts = np.maximum(step.before.offsets, self.source.state.log_start)
        rows = [columns[1:] for columns in self._partitioned(self._ranges(starts, step.after.offsets), ("key",))]
        if not rows:
            return None
        old, offset, new = map(np.concatenate, zip(*rows, strict=True))
        counts = np.bincount(new, minlength=self.partitions)
        return StepRecords(old, offset, new) if np.array_equal(counts, step.added) else None


def reject_other_writers(copying: Copying, log_ends: Int64s, copied: CopyPositions) -> None:
    """Raise `Conflict` if other writers have appended to the new topic."""
    others = int(log_ends.sum() - copied.records.sum())
    if others:
        raise Conflict(
            f"topic '{copying.name}' has {others} records of other writers, so the remaining records of topic "
            f"'{copying.source.topic}' would be appended after newer records with the same keys; use consume and "
            "produce instead"
        )


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """A group of the old topic, with its offsets in the new topic.

    Attributes:
        again: the maximum number of records that the group will read again.
        problem: the reason why the offsets were not set; empty if the offsets were set.
    """

    group: str
    offsets: Mapping[int, int]
    again: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class CopyStep:
    """A commit of the copy.

    Attributes:
        before: the positions in the old partitions before the commit.
        after: the positions in the old partitions after the commit.
        ends: the log ends of the new partitions before the commit.
        added: the number of records added to each new partition.
    """

    before: CopyPositions
    after: CopyPositions
    ends: Int64s
    added: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class StepRecords:
    """The old partition, old offset and new partition of each record in a commit of the copy."""

    old: Int32s
    offset: Int64s
    new: Int32s

    def unread(self, read: Int64s, partitions: int) -> tuple[Int64s, int]:
        """Count the unread records of a group whose offsets in the old partitions are `read`.

        The first value contains, for each new partition, the number of records that certainly precede the first unread
        record, or -1 if there are no unread records. The second value is the number of unread records.
        """
        is_unread = self.offset >= read[self.old]
        # Only the order of records from the same old partition is known.
        pairs, pair = np.unique(self.old.astype(np.int64) * partitions + self.new, return_inverse=True)
        has_unread = np.bincount(pair, is_unread, len(pairs)) > 0
        read_before = np.bincount(pair, ~is_unread, len(pairs)).astype(np.int64)
        first = np.full(partitions, INT64_MAX)
        np.minimum.at(first, pairs[has_unread] % partitions, read_before[has_unread])
        return np.where(first == INT64_MAX, -1, first), int(is_unread.sum())


@dataclass(frozen=True, slots=True, eq=False)
class _NewPositions:
    """The positions of groups in the new topic.

    Attributes:
        offsets: the offsets in the new partitions, int64[groups, partitions].
        again: the maximum number of records that each group will read again.
        is_certain: False if commits that are needed have been deleted, bool[groups].
    """

    offsets: Int64s
    again: Int64s
    is_certain: npt.NDArray[np.bool_]


def set_offsets(copying: Copying) -> list[MovedGroup]:
    """Set the offsets of each group of the old topic in the new topic. Offsets never move backwards."""
    source, root = copying.source, copying.root
    groups = Groups(root)
    committed = read_each(root.store, lambda name: groups.group(name).committed(), groups.names(), None)
    names = [name for name, offsets in committed.items() if any(topic == source.topic for topic, _ in offsets)]
    if not names:
        return []
    read = np.zeros((len(names), source.state.partitions), np.int64)
    for row, name in enumerate(names):
        for (topic, partition), item in committed[name].items():
            # Records of partitions that were added after the snapshot have not been copied.
            if topic == source.topic and partition < source.state.partitions:
                read[row, partition] = item.offset
    positions = _new_positions(read, copying)
    moved = []
    for row, name in enumerate(names):
        before = {p: item.offset for (topic, p), item in committed[name].items() if topic == copying.name}
        moved.append(_move(groups.group(name), copying.name, before, positions, row))
    return moved


def _move(group: Group, topic: str, before: Mapping[int, int], positions: _NewPositions, row: int) -> MovedGroup:
    if not positions.is_certain[row]:
        problem = (
            "the commits that copied the unread records of the group have been deleted; set the offsets by time with "
            f"sparklog groups reset {group.id} --topic {topic} --to-datetime"
        )
        return MovedGroup(group.id, before, problem=problem)
    offsets = dict(enumerate(positions.offsets[row].tolist()))
    further = {partition: offset for partition, offset in offsets.items() if offset > before.get(partition, -1)}
    if further:
        try:
            group.alter({topic: further})
        except Conflict as error:
            return MovedGroup(group.id, before, problem=str(error))
    return MovedGroup(group.id, {**offsets, **before, **further}, int(positions.again[row]))


def _new_positions(read: Int64s, copying: Copying) -> _NewPositions:
    """Return the new positions of groups with the old offsets `read`, int64[groups, old partitions]."""
    steps, total, is_certain = _steps_back(read, copying)
    offsets, is_set = np.tile(total, (len(read), 1)), np.zeros((len(read), len(total)), np.bool_)
    unread, counted = np.zeros(len(read), np.int64), 0
    for step in reversed(steps):
        grown = step.after.records > step.before.records
        has_unread = np.any(grown & (step.after.offsets > read), axis=1)
        is_all_unread = np.all(~grown | (step.before.offsets >= read), axis=1)
        unread += np.where(has_unread & is_all_unread, step.added.sum(), 0)
        partly_read = np.flatnonzero(has_unread & ~is_all_unread).tolist()
        records = None
        if partly_read and counted < MAX_COUNTED:
            records = copying.read_again(step)
            counted += 1
        for row in partly_read:
            if records is None:
                break
            first, count = records.unread(read[row], len(total))
            unread[row] += count
            is_first = (first >= 0) & ~is_set[row]
            offsets[row, is_first] = (step.ends + first)[is_first]
            is_set[row] |= is_first
            has_unread[row] = False
        is_first = has_unread[:, None] & (step.added > 0) & ~is_set
        offsets = np.where(is_first, step.ends, offsets)
        is_set |= is_first
    return _NewPositions(offsets, (total - offsets).sum(axis=1) - unread, is_certain)


def _steps_back(read: Int64s, copying: Copying) -> tuple[list[CopyStep], Int64s, npt.NDArray[np.bool_]]:
    """Return the commits of the copy in descending order, back to a commit before which each group has read all
    records.

    Also return the log end offsets of the new partitions after the copy, and for each group, True if all required
    commits exist.
    """
    total = ends = copying.log.state(refresh=False).log_end
    is_certain = np.zeros(len(read), np.bool_)
    after, added = copying.copied(), np.zeros_like(ends)
    steps: list[CopyStep] = []
    for commit in _commits_back(copying.log):
        before = copied_by({writer.id: writer for writer in commit.writers}, copying.source.state)
        if before is not None:
            if not steps:
                # Other writers have appended records later, but no group has read these records. All earlier records
                # were appended by the copy.
                reject_other_writers(copying, ends, before)
                total = ends
            steps.append(CopyStep(before, after, ends, added))
            is_certain = np.all((before.records == 0) | (before.offsets <= read), axis=1)
            if is_certain.all():
                break
            after, added = before, np.zeros_like(ends)
        of_commit = _appended(commit, len(ends))
        ends, added = ends - of_commit, added + of_commit
    return steps, total, is_certain


def _commits_back(log: TopicLog) -> Iterator[Commit]:
    """Yield the existing commits of a topic in descending order, starting with the latest commit."""
    state = log.state(refresh=False)
    history = History(log.store, log.topic, log.env)
    crc = state.crc
    for version in range(state.version, -1, -1):
        try:
            commit = history.commit(version)
        except NotFound:
            return
        if commit.crc != crc:
            # A stalled writer has written a commit with the number of a deleted commit.
            return
        yield commit
        crc = commit.prev_crc


def _appended(commit: Commit, partitions: int) -> Int64s:
    """Return the number of offsets that a commit appends to each partition."""
    appended = np.zeros(partitions, np.int64)
    for file in commit.files if commit.op == APPEND else ():
        np.add.at(appended, np.array(file.partition), np.array(file.offsets))
    return appended


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """The result of a repartitioning run.

    Attributes:
        created: True if this run created the topic.
        records: the number of records that this run copied.
        total: the number of records that all runs have copied.
        waiting: the number of offsets that were not copied because of an open transaction.
        groups: the moved groups, if the caller requested to move groups.
    """

    source: str
    topic: str
    partitions: int
    created: bool
    records: int
    total: int
    waiting: int
    groups: tuple[MovedGroup, ...]


@checked(root=ROOT, topic=NAME, name=NAME, partitions=NUMBER, step_bytes=int64(1), progress=FUNCTION)
def repartition(
    root: Root | Store | str | os.PathLike[str],
    topic: str,
    name: str,
    *,
    partitions: int,
    move_groups: bool = False,
    progress: Callable[[int], object] = lambda records: None,
    step_bytes: int = STEP_BYTES,
) -> Repartitioned:
    """Copy a topic to a new topic with a different number of partitions. Each record is copied exactly once. Repeated
    calls resume the copy.

    Args:
        root: an open root, or its location.
        topic: the topic to copy, up to its current end. This topic is not changed.
        name: the topic to create with the same configs, or to continue.
        partitions: the number of partitions of the new topic.
        move_groups: set the offsets of the old topic's groups in the new topic. Stop the writers first.
        progress: called with the number of copied records after each step.
        step_bytes: the maximum number of stored bytes of the old topic per commit.

    Returns:
        The number of copied records, and the groups. If a group was not moved, its `problem` is set.

    Raises:
        NotFound: If the topic does not exist.
        Conflict: If the new topic is not a copy of the old topic, has a different number of partitions, or has records
            of other writers.
        BadRequest: If a name or a number is invalid.

    Example:
        made = sparklog.repartition("/data/log", "orders", "orders-12", partitions=12)
        print(made.records)
    """
    root = root if isinstance(root, Root) else open_root(root)

    def after_step(records: int, nbytes: int, of_nbytes: int) -> None:
        if nbytes:
            progress(records)

    return copy_topic(root, topic, name, partitions, move_groups, after_step, step_bytes)


def copy_topic(
    root: Root, topic: str, name: str, partitions: int, move_groups: bool, progress: CopyProgress, step_bytes: int
) -> Repartitioned:
    """Copy a topic like `repartition`, and report more detailed progress."""
    if check_topic_name(name) == check_topic_name(topic):
        raise BadRequest(f"topic '{topic}' cannot be copied to itself; choose another name")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise BadRequest(f"expected 1 to {MAX_PARTITIONS} partitions, found {partitions!r}")
    source = root.topic(topic).log.read_snapshot()
    copying = Copying(root, source, name, partitions)
    created = copying.create()
    records = copying.run(step_bytes, progress)
    total = int(copying.copied().records.sum())
    waiting = int((source.state.log_end - copying.ends).sum())
    moved = tuple(set_offsets(copying)) if move_groups else ()
    return Repartitioned(topic, name, partitions, created, records, total, waiting, moved)
