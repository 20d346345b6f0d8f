"""The intent that appends files. Each slice is appended at the log end of its partition.

Offsets start at 0 in each slice that a writer creates, so that tasks do not have to coordinate. The commit records the
base offset of each slice, which is the partition's log end in the latest state. If another writer commits first, the
base offsets are assigned again. The bytes of the batches do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sparklog.errors import BadRequest, Conflict
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.state.commit import APPEND, TAKEOVER, InlineRecords, Txn
from sparklog.log.state.commit_intents import HAS_NULL_KEYS, Draft, Nothing, check_floor, check_topic
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import INLINE_PATH, FileSlices
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import KafkaWriterKey, WriterKey, decide


@dataclass(frozen=True, slots=True)
class AppendIntent:
    """Append complete files.

    At most one file is an inline file, whose bytes become the inline records of the commit.
    """

    topic_id: str
    files: tuple[FileSlices, ...]
    # the time of the request; if the epoch of a run is far ahead of this time, the run does not supersede other runs
    now_ms: int
    key: WriterKey | None = None  # identifies the batch, so that the append is idempotent
    txn: Txn | None = None  # the transaction of the slices, which are open until the transaction is decided
    kafka_writers: tuple[KafkaWriterKey, ...] = ()  # the Kafka producers of the batches in the files
    written_for: tuple[int, TopicConfigs] | None = (
        None  # the partition count and the configs that the topic must still have; not checked if None
    )
    needs_table: ClassVar[bool] = False

    @property
    def repeatable(self) -> bool:
        return self.key is not None

    @property
    def count(self) -> int:
        return sum([sum(file.records) for file in self.files])

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        writer = None
        if self.key is not None:
            entry = state.registry.get(self.key.id)
            decision = decide(entry, self.key, self.count, f"topic '{topic}'", self.now_ms)
            writer = self.key.writer(self.count, entry)
            if entry is not None and not decision.write:
                if decision.take_over:
                    return Draft(TAKEOVER, writer=writer)
                return Nothing(decision.note, entry.version, skipped=True)
        if self.written_for not in (None, (state.partitions, state.configs)):
            raise Conflict(f"the partitions or configs of topic '{topic}' have changed; write the rows again")
        files = [file for file in self.files if file.partition]
        if not files:
            return Nothing("nothing to append", state.version)
        written = [file for file in files if file.path != INLINE_PATH]
        check_floor(topic, written, state.floor)
        if state.configs.is_compacted and any(flags & HAS_NULL_KEYS for file in files for flags in file.flags):
            raise BadRequest(
                f"topic '{topic}' is compacted, so every record must have a key; found records without keys"
            )
        inline = None
        if len(written) < len(files):
            inline = InlineRecords.of(next(file.data for file in files if file.path == INLINE_PATH))
        based = assign_offsets(topic, files, state)
        writers = tuple([writer.writer(state.registry.get(writer.id), topic) for writer in self.kafka_writers])
        return Draft(APPEND, writer=writer, writers=writers, files=based, inline=inline, txn=self.txn)


def assign_offsets(topic: str, files: Sequence[FileSlices], state: TopicState) -> tuple[FileSlices, ...]:
    """Return the files with base offsets. Each slice starts at the end of the previous slice of its partition."""
    end = state.log_end.tolist()
    based = []
    for file in files:
        bases = []
        for partition, offsets in zip(file.partition, file.offsets, strict=True):
            if not 0 <= partition < len(end):
                raise BadRequest(f"topic '{topic}' has partitions 0 to {len(end) - 1}, found partition {partition}")
            check_offsets(topic, partition, end[partition], offsets)
            bases.append(end[partition])
            end[partition] += offsets
        based.append(file.with_base(tuple(bases)))
    return tuple(based)


def check_offsets(topic: str, partition: int, end: int, offsets: int) -> None:
    """Raise `BadRequest` if a partition that ends at the offset `end` cannot have this number of additional offsets."""
    if offsets > INT64_MAX - end:
        raise BadRequest(
            f"partition {partition} of topic '{topic}' ends at offset {end}; {offsets} more offsets would exceed the "
            f"maximum offset {INT64_MAX}; write to another partition or topic"
        )
