"""The copy of a topic into one with another number of partitions: by key, each record once.

**Where a record goes.** One with a key to the partition of Kafka's default partitioner (murmur2), also one whose
partition was chosen by hand. One without a key to its old partition modulo the new number. The records of an old
partition are copied in their order: those of a key keep theirs, and so do those without a key of one old partition. Of
a key that is in several old partitions (chosen by hand, or because the topic has grown) no order is known.

**Exactly once.** Each commit of copied records carries, for each old partition, a writer (`KafkaWriterKey`): `batch`
is the old offset to go on from, `count` the number of records copied so far. It is refused unless it follows the
position that it began at. So a run that was killed, or two at the same time, copy nothing twice. The commit that
creates the topic has these writers too, with positions of 0: their ids name the old topic by its id.

Each new offset is a copied record's, as long as nothing else is appended: log ends are together the number of copied
records. If they are not, older records would come after newer ones of their keys, and no more is copied.

**In steps.** A step takes the same share of each old partition, and is one commit. So records stay about in the order
of time: for retention, and for groups, which have read about as much of each partition.

**Groups.** In each new partition a group goes on from the smallest offset at which there may be a record that it has
not read in the old topic. Nothing is skipped; records after that offset may be read again.

The commits of the copy are the mapping. Each says up to which old offsets it copies, and how many records it adds to
each new partition. They are read from the newest back, down to one before which a group has read everything: of a group
that has read all, that is the newest.

If a group has read some of the old records of a commit, they are read again and counted by old and new partition. If a
new partition gets records of one old partition only, as when 4 partitions become 12, the count of those that the group
has read is the exact position. If it gets records of several, their order is not known: the group continues after the
smallest count of an old partition with unread records. The commit counts as unread from its start if the old topic has
lost some of its records since then, and after `MAX_COUNTED` commits. `again` is the bound for all of this.
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
from sparklog.common.settings import whole
from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.journal.names import MAX_PARTITIONS, check_topic_name
from sparklog.log.read.read_plan import plan_parts, read_parts, stored_in
from sparklog.log.state.commit import APPEND, Commit, Writer
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
"""Stored bytes of the old topic that become one commit."""
MAX_COUNTED = 16
"""Commits of the copy whose old records are read again to place groups: at most 1 GiB."""
COLUMNS = ("key", "value", "headers", "timestamp")
PLACE = {"partition": np.int32, "offset": np.int64}
AS_THEY_ARE = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": INT64_MAX,
    "message.timestamp.after.max.ms": INT64_MAX,
}
"""Configs of the new topic for copied records alone: they keep their times."""
GROWN = "topic %s had %s partitions before: a key may be in several, and their order is not known"
_LOG = logging.getLogger("sparklog.tools")

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

CopyProgress: TypeAlias = Callable[[int, int, int], object]
"""Called with records copied so far, and with bytes done and bytes in all, as the old topic stores them."""


@dataclass(frozen=True, slots=True, eq=False)
class CopyPositions:
    """Progress by old partition, int64[partitions]: the offset after the last copied record; records so far."""

    offsets: Int64s
    records: Int64s


def writer_ids(source: TopicState) -> list[str]:
    """Return the ids of the writers that carry the positions in the partitions of a topic."""
    return [f"repartition-{source.topic_id}-{partition}" for partition in range(source.partitions)]


def copied_by(writers: Mapping[str, Writer] | Mapping[str, WriterEntry], source: TopicState) -> CopyPositions | None:
    """Return the positions that writers of a commit, or of a topic, carry; None if they copy another topic."""
    entries = [writers.get(id_) for id_ in writer_ids(source)]
    if not any(entries):
        return None
    offsets = [0 if entry is None else entry.batch for entry in entries]
    records = [0 if entry is None else entry.count for entry in entries]
    return CopyPositions(np.array(offsets, np.int64), np.array(records, np.int64))


class Copying:
    """A copy of the topic `source`, as a snapshot shows it, in the topic `name`, which is created or continued."""

    def __init__(self, root: Root, source: Snapshot, name: str, partitions: int) -> None:
        self.root, self.source, self.name, self.partitions = root, source, name, partitions
        self.log: TopicLog = root.engine.log(name)
        self.ends = source.state.last_stable()
        self._reached = source.state.log_start

    def create(self) -> bool:
        """Create the new topic, with the configs of the old one. False: it exists, and can be gone on with."""
        source = self.source.state
        writers = tuple(Writer(TXN, id_, 0, None, 0) for id_ in writer_ids(source))
        intent = CreateIntent(self.root.env.new_id(), self.partitions, source.configs, writers=writers)
        if not self.log.refresh().topic_state.exists:
            try:
                self.root.engine.create(self.name, intent)
            except Conflict:
                # Another run was faster, or the name is not allowed.
                if not self.log.refresh().topic_state.exists:
                    raise
            else:
                if earlier := source.previous_partition_counts:
                    _LOG.warning(GROWN, self.source.topic, ", ".join(map(str, earlier)))
                return True
        self.copied()
        return False

    def copied(self) -> CopyPositions:
        """Return how far the newest known state is. `Conflict` if the new topic is not such a copy."""
        state, source = self.log.state(refresh=False), self.source
        copied = copied_by(state.registry, source.state)
        if copied is None:
            raise Conflict(
                f"topic '{self.name}' exists, and is no copy that repartition made of topic '{source.topic}' (id "
                f"{source.state.topic_id}): choose another name, or delete it"
            )
        if state.partitions != self.partitions:
            existing = units.count(state.partitions, "partition")
            raise Conflict(
                f"topic '{self.name}' was created with {existing}, found {self.partitions}: continue with "
                f"{state.partitions}, or choose another name"
            )
        return copied

    def run(self, step_bytes: int, progress: CopyProgress) -> int:
        """Copy what is left, step by step; return the number of records."""
        starts = np.maximum(self._reached, self.copied().offsets)
        left = stored_in(self._selected(self._ranges(starts, self.ends)))
        nbytes = sum(part.nbytes for part in left)
        count = max(1, -(-nbytes // step_bytes))
        records = 0
        if left:
            progress(records, 0, nbytes)
        for step, ends in enumerate(self._steps(starts, left, count), 1):
            while (copied := self._step(ends)) is None:
                # Another run was faster. What it took is not taken again.
                pass
            records += copied
            progress(records, nbytes * step // count, nbytes)
        return records

    def _steps(self, starts: Int64s, left: Sequence[Stored], count: int) -> Iterator[Int64s]:
        """Yield the ends of steps: the same share of the stored bytes that are left of each partition."""
        ends = [part.at_bytes(*(part.nbytes * step // count for step in range(1, count + 1))) for part in left]
        partitions = np.flatnonzero(starts < self.ends)
        for step in range(count if left else 0):
            step_ends = starts.copy()
            step_ends[partitions] = [of_partition[step] for of_partition in ends]
            yield step_ends

    def _ranges(self, starts: Int64s, ends: Int64s) -> list[OffsetRange]:
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return [OffsetRange(self.source.topic, p, start, end) for p, (start, end) in enumerate(spans) if start < end]

    def _selected(self, ranges: list[OffsetRange]) -> RangeSlices:
        return select_ranges({self.source.topic: self.source}, ranges)

    def _step(self, ends: Int64s) -> int | None:
        """Copy up to these old offsets in one commit; return the number of records, None if another run was faster."""
        from sparklog.log.write.arrow_data import write_files

        target = self.log.append_target()
        before, registry = self.copied(), self.log.state(refresh=False).registry
        ranges = self._ranges(np.maximum(self._reached, before.offsets), ends)
        if not ranges:
            return 0
        check_alone(self, self.log.state(refresh=False).log_end, before)
        target = replace(target, configs=target.configs.changed(AS_THEY_ARE))
        after = CopyPositions(before.offsets.copy(), before.records.copy())
        records = self._rows(ranges, after)
        files = write_files(records, target, self.root.env, options=None, writer=None, copied=True)
        if files:
            rows = zip(writer_ids(self.source.state), after.offsets.tolist(), after.records.tolist(), strict=True)
            follows = {id_: entry.batch for id_, entry in registry.items()}
            writers = tuple(KafkaWriterKey(id_, offset, follows.get(id_), count) for id_, offset, count in rows)
            # What is copied must not outlive the records that it is of, nor what decided them.
            source = self.root.engine.log(self.source.topic)
            for prepare in source.current().topic_state.open:
                self.root.engine.decisions.log(prepare.txn.id).make_durable()
            source.make_durable()
            try:
                self.log.commit_append(files, target, kafka_writers=writers)
            except SequenceConflict:
                return None
        self._reached = ends
        return int((after.records - before.records).sum())

    def _rows(self, ranges: list[OffsetRange], copied: CopyPositions) -> Iterator[pa.RecordBatch]:
        """Yield the records with their new partitions, and move `copied` over them."""
        import pyarrow as pa

        from sparklog.format.arrow_numpy import fixed_array

        for batch, old, offset, new in self._placed(ranges, COLUMNS):
            np.add.at(copied.records, old, 1)
            np.maximum.at(copied.offsets, old, offset + 1)
            yield batch.select(COLUMNS).append_column("partition", fixed_array(new, pa.int32()))

    def _placed(
        self, ranges: list[OffsetRange], columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int32s, Int64s, Int32s]]:
        """Yield the records with their old partitions, old offsets and new partitions."""
        from sparklog.format.arrow_numpy import fixed_values
        from sparklog.format.key_hash import partition_for_key

        parts = plan_parts(self._selected(ranges), READ_COMMITTED)
        # What retention deletes meanwhile is in no topic then.
        for batch in read_parts([replace(part, fail_on_data_loss=False) for part in parts], (*columns, *PLACE)):
            old, offset = (fixed_values(batch.column(name), kind) for name, kind in PLACE.items())
            by_key = partition_for_key(batch.column("key"), self.partitions)
            yield batch, old, offset, np.where(by_key < 0, old % self.partitions, by_key).astype(np.int32)

    def read_again(self, step: CopyStep) -> StepRecords | None:
        """Read the old records of a commit of the copy; None if the old topic does not have all of them any more."""
        if np.any(step.after.offsets > self.ends):
            # Another run has copied more than this one knows of.
            return None
        starts = np.maximum(step.before.offsets, self.source.state.log_start)
        placed = [rows[1:] for rows in self._placed(self._ranges(starts, step.after.offsets), ("key",))]
        if not placed:
            return None
        old, offset, new = map(np.concatenate, zip(*placed, strict=True))
        counts = np.bincount(new, minlength=self.partitions)
        return StepRecords(old, offset, new) if np.array_equal(counts, step.added) else None


def check_alone(copying: Copying, log_ends: Int64s, copied: CopyPositions) -> None:
    """Raise `Conflict` if others have appended to the new topic, which ends so."""
    others = int(log_ends.sum() - copied.records.sum())
    if others:
        raise Conflict(
            f"topic '{copying.name}' has {others} records of other writers, and what is left of topic "
            f"'{copying.source.topic}' would come after newer records of its keys: copy the rest by consume and produce"
        )


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """A group of the old topic: offsets that it has in the new one now, and what was set.

    `again`: records that it reads again, at most. `problem`: why its offsets were not set.
    """

    group: str
    offsets: Mapping[int, int]
    again: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class CopyStep:
    """A commit of the copy: old positions before and after it, ends of the new partitions before it, records added."""

    before: CopyPositions
    after: CopyPositions
    ends: Int64s
    added: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class StepRecords:
    """The records of a commit of the copy: old partition, old offset and new partition, of each."""

    old: Int32s
    offset: Int64s
    new: Int32s

    def unread(self, read: Int64s, partitions: int) -> tuple[Int64s, int]:
        """Return what a group has not read that has `read` so far in the old partitions, int64[old partitions].

        The first array holds the number of records in each new partition that surely precede its first unread one; -1
        if it has none. The second value is the number of unread records.
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
class _Places:
    """By group: offsets in the new partitions, int64[groups, partitions]; records that it reads again, at most.

    `is_certain`: False where commits that tell are gone; bool[groups].
    """

    offsets: Int64s
    again: Int64s
    is_certain: npt.NDArray[np.bool_]


def set_offsets(copying: Copying) -> list[MovedGroup]:
    """Set offsets in the new topic for each group that has some in the old one; none goes back."""
    source, root = copying.source, copying.root
    groups = Groups(root)
    committed = read_each(root.store, lambda name: groups.group(name).committed(), groups.names(), None)
    names = [name for name, offsets in committed.items() if any(topic == source.topic for topic, _ in offsets)]
    if not names:
        return []
    read = np.zeros((len(names), source.state.partitions), np.int64)
    for row, name in enumerate(names):
        for (topic, partition), item in committed[name].items():
            # Of a partition that came a moment ago nothing is copied.
            if topic == source.topic and partition < source.state.partitions:
                read[row, partition] = item.offset
    places = _places(read, copying)
    moved = []
    for row, name in enumerate(names):
        before = {p: item.offset for (topic, p), item in committed[name].items() if topic == copying.name}
        moved.append(_move(groups.group(name), copying.name, before, places, row))
    return moved


def _move(group: Group, topic: str, before: Mapping[int, int], places: _Places, row: int) -> MovedGroup:
    if not places.is_certain[row]:
        problem = (
            f"the commits that copied what it has not read are no longer kept: sparklog groups reset {group.id} "
            f"--topic {topic} --to-datetime sets its offsets by time"
        )
        return MovedGroup(group.id, before, problem=problem)
    offsets = dict(enumerate(places.offsets[row].tolist()))
    further = {partition: offset for partition, offset in offsets.items() if offset > before.get(partition, -1)}
    if further:
        try:
            group.alter({topic: further})
        except Conflict as error:
            return MovedGroup(group.id, before, problem=str(error))
    return MovedGroup(group.id, {**offsets, **before, **further}, int(places.again[row]))


def _places(read: Int64s, copying: Copying) -> _Places:
    """Return where groups go on that have `read` so far in the old partitions, int64[groups, old partitions]."""
    steps, total, is_certain = _steps_back(read, copying)
    offsets, is_placed = np.tile(total, (len(read), 1)), np.zeros((len(read), len(total)), np.bool_)
    unread, counted = np.zeros(len(read), np.int64), 0
    for step in reversed(steps):
        grown = step.after.records > step.before.records
        is_unread = np.any(grown & (step.after.offsets > read), axis=1)
        is_whole = np.all(~grown | (step.before.offsets >= read), axis=1)
        unread += np.where(is_unread & is_whole, step.added.sum(), 0)
        partly_read = np.flatnonzero(is_unread & ~is_whole).tolist()
        records = None
        if partly_read and counted < MAX_COUNTED:
            records = copying.read_again(step)
            counted += 1
        for row in partly_read:
            if records is None:
                break
            first, left = records.unread(read[row], len(total))
            unread[row] += left
            is_here = (first >= 0) & ~is_placed[row]
            offsets[row, is_here] = (step.ends + first)[is_here]
            is_placed[row] |= is_here
            is_unread[row] = False
        is_here = is_unread[:, None] & (step.added > 0) & ~is_placed
        offsets = np.where(is_here, step.ends, offsets)
        is_placed |= is_here
    return _Places(offsets, (total - offsets).sum(axis=1) - unread, is_certain)


def _steps_back(read: Int64s, copying: Copying) -> tuple[list[CopyStep], Int64s, npt.NDArray[np.bool_]]:
    """Return commits of the copy, the latest first, down to one before which each group has read everything.

    Also the ends of the new partitions after the copy, and by group whether the commits go back so far.
    """
    total = ends = copying.log.state(refresh=False).log_end
    is_certain = np.zeros(len(read), np.bool_)
    after, added = copying.copied(), np.zeros_like(ends)
    steps: list[CopyStep] = []
    for commit in _commits_back(copying.log):
        before = copied_by({writer.id: writer for writer in commit.writers}, copying.source.state)
        if before is not None:
            if not steps:
                # What others have appended since is new to each group. Before it was the copy alone.
                check_alone(copying, ends, before)
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
    """Yield the commits of a topic from the newest one back, as far as they are kept."""
    state = log.state(refresh=False)
    history = History(log.store, log.topic, log.env)
    crc = state.crc
    for version in range(state.version, -1, -1):
        try:
            commit = history.commit(version)
        except NotFound:
            return
        if commit.crc != crc:
            # A stalled writer has used the number of one that was collected.
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
    """Report of a run: `records` that it copied, `total` of all runs, and the groups that it was asked to move.

    `created`: by this run. `waiting`: offsets after the first open transaction of a partition, which were not copied.
    """

    source: str
    topic: str
    partitions: int
    created: bool
    records: int
    total: int
    waiting: int
    groups: tuple[MovedGroup, ...]


@checked(root=ROOT, topic=NAME, name=NAME, partitions=NUMBER, step_bytes=whole(1), progress=FUNCTION)
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
    """Copy a topic into one with another number of partitions, by key, each record once; run again, it goes on.

    Args:
        root: an open root, or its location.
        topic: the topic to copy, up to its end of now. It stays as it is.
        name: the topic to create with the same configs, or to go on with.
        partitions: of the new topic.
        move_groups: set offsets in the new topic for the groups that have some in the old one. First stop the writers.
        progress: is called with the number of records copied, after each step.
        step_bytes: of the old topic, as stored, that become one commit.

    Returns:
        How many records were copied, now and in all; and the groups, with a `problem` where one was not moved.

    Raises:
        NotFound: there is no such topic.
        Conflict: the new topic exists and is no such copy, has other partitions, or records of other writers.
        BadRequest: a name or a number is not valid.

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
    """Do what `repartition` does, with more about its progress."""
    if check_topic_name(name) == check_topic_name(topic):
        raise BadRequest(f"expected another name than that of topic '{topic}', whose records stay where they are")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise BadRequest(f"a topic has 1 to {MAX_PARTITIONS} partitions, found {partitions!r}")
    source = root.topic(topic).log.read_snapshot()
    copying = Copying(root, source, name, partitions)
    created = copying.create()
    records = copying.run(step_bytes, progress)
    total = int(copying.copied().records.sum())
    waiting = int((source.state.log_end - copying.ends).sum())
    moved = tuple(set_offsets(copying)) if move_groups else ()
    return Repartitioned(topic, name, partitions, created, records, total, waiting, moved)
