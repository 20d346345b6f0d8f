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
of time: for retention, and for groups, which have read about as much of each partition (see `group_offsets`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparklog.errors import Conflict
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.read.read_plan import plan_parts, read_parts, stored_in
from sparklog.log.state.commit import Writer
from sparklog.log.state.commit_intents import CreateIntent
from sparklog.log.state.range_slices import RangeSlices, select_ranges
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.topic_state import Head
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.state.writer_runs import TXN, KafkaWriterKey, SequenceConflict, WriterEntry
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root

if TYPE_CHECKING:
    import pyarrow as pa

STEP_BYTES = 64 << 20
"""Stored bytes of the old topic that become one commit."""
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

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CopyPositions:
    """Progress by old partition, int64[partitions]: the offset after the last copied record; records so far."""

    offsets: Int64s
    records: Int64s


def writer_ids(source: Head) -> list[str]:
    """Return the ids of the writers that carry the positions in the partitions of a topic."""
    return [f"repartition-{source.topic_id}-{partition}" for partition in range(source.partitions)]


def copied_by(writers: Mapping[str, Writer] | Mapping[str, WriterEntry], source: Head) -> CopyPositions | None:
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
        self.ends = source.head.last_stable()
        self._reached = source.head.log_start

    def create(self) -> bool:
        """Create the new topic, with the configs of the old one. False: it exists, and can be gone on with."""
        source = self.source.head
        writers = tuple(Writer(TXN, id_, 0, None, 0) for id_ in writer_ids(source))
        intent = CreateIntent(self.root.env.new_id(), self.partitions, source.configs, writers=writers)
        if not self.log.refresh().head.exists:
            try:
                self.root.engine.create(self.name, intent)
            except Conflict:
                # Another run was faster, or the name is not allowed.
                if not self.log.refresh().head.exists:
                    raise
            else:
                if earlier := source.earlier_partitions:
                    _LOG.warning(GROWN, self.source.topic, ", ".join(map(str, earlier)))
                return True
        self.copied()
        return False

    def copied(self) -> CopyPositions:
        """Return how far the newest known state is. `Conflict` if the new topic is not such a copy."""
        head, source = self.log.head(refresh=False), self.source
        copied = copied_by(head.registry, source.head)
        if copied is None:
            raise Conflict(
                f"topic '{self.name}' exists, and is no copy that repartition made of topic '{source.topic}' (id "
                f"{source.head.topic_id}): choose another name, or delete it"
            )
        if head.partitions != self.partitions:
            raise Conflict(
                f"topic '{self.name}' was made with {head.partitions} partitions, found {self.partitions}: go on with "
                f"{head.partitions}, or choose another name"
            )
        return copied

    def run(self, step_bytes: int, progress: Callable[[int], object]) -> int:
        """Copy what is left, step by step; return the number of records."""
        records = 0
        for ends in self._steps(step_bytes):
            while (copied := self._step(ends)) is None:
                # Another run was faster. What it took is not taken again.
                pass
            records += copied
            progress(records)
        return records

    def _steps(self, step_bytes: int) -> Iterator[Int64s]:
        """Yield the ends of steps: the same share of the stored bytes that are left of each partition."""
        starts = np.maximum(self._reached, self.copied().offsets)
        left = stored_in(self._selected(self._ranges(starts, self.ends)))
        count = max(1, -(-sum(part.nbytes for part in left) // step_bytes))
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
        from sparklog.log.write.append_writer import write_files

        target = self.log.append_target()
        before, registry = self.copied(), self.log.head(refresh=False).registry
        ranges = self._ranges(np.maximum(self._reached, before.offsets), ends)
        if not ranges:
            return 0
        check_alone(self, self.log.head(refresh=False).log_end, before)
        target = replace(target, configs=target.configs.changed(AS_THEY_ARE))
        after = CopyPositions(before.offsets.copy(), before.records.copy())
        files = write_files(self._rows(ranges, after), target, self.root.env, options=None, writer=None)
        if files:
            rows = zip(writer_ids(self.source.head), after.offsets.tolist(), after.records.tolist(), strict=True)
            follows = {id_: entry.batch for id_, entry in registry.items()}
            writers = tuple(KafkaWriterKey(id_, offset, follows.get(id_), count) for id_, offset, count in rows)
            # What is copied must not outlive the records that it is of, nor what decided them.
            source = self.root.engine.log(self.source.topic)
            for prepare in source.current().head.open:
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

        from sparklog.format.arrow_numpy import fixed_array, fixed_values
        from sparklog.format.key_hash import partition_for_key

        parts = plan_parts(self._selected(ranges), READ_COMMITTED)
        # What retention deletes meanwhile is in no topic then.
        for batch in read_parts([replace(part, fail_on_data_loss=False) for part in parts], (*COLUMNS, *PLACE)):
            old, offset = (fixed_values(batch.column(name), kind) for name, kind in PLACE.items())
            np.add.at(copied.records, old, 1)
            np.maximum.at(copied.offsets, old, offset + 1)
            by_key = partition_for_key(batch.column("key"), self.partitions)
            new = np.where(by_key < 0, old % self.partitions, by_key).astype(np.int32)
            yield batch.select(COLUMNS).append_column("partition", fixed_array(new, pa.int32()))


def check_alone(copying: Copying, log_ends: Int64s, copied: CopyPositions) -> None:
    """Raise `Conflict` if others have appended to the new topic, which ends so."""
    others = int(log_ends.sum() - copied.records.sum())
    if others:
        raise Conflict(
            f"topic '{copying.name}' has {others} records of other writers, and what is left of topic "
            f"'{copying.source.topic}' would come after newer records of its keys: copy the rest by consume and produce"
        )
