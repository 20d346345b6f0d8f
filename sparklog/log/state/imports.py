"""The commit of an import: whole partitions or the next piece of each, at the offsets they had where they come from.

An import is the only commit that may leave gaps and that says where a log ends, because Kafka's logs can end behind
their last record: the cleaner removed it, or the segment that comes next is empty. So each partition that it takes from
has an edit without inputs: its range is what is new of the log, its `cleaned_through` Kafka's cleaner checkpoint.

A piece begins where the log ends here, which is where the piece before it ended: so what is seen of a partition is
always the beginning of Kafka's, and nothing is taken twice. (See `sparklog.log.state.kafka_source`.)
"""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import Conflict
from sparklog.log.state.commit import IMPORT, Edit
from sparklog.log.state.commit_intents import Draft, Nothing, check_floor, check_topic
from sparklog.log.state.kafka_source import ImportedEnd, KafkaEnded, KafkaOpen, KafkaSource
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import Head

MAX_LEADER_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """A piece of a partition as it was found: the log begins at `log_start`, the piece lies in `[since, log_end)`.

    * `cleaned_through`: compacted below it (None: never, or what was taken before is not)
    * `leader_epoch`: the last that wrote here, -1 without one
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
        """Its range, slices that the log start cuts included."""
        start = min([max(self.log_start, self.since), *(base for file in self.files for base in file.base)])
        cleaned = self.cleaned_through
        if cleaned is not None and not 0 <= cleaned <= self.log_end:
            # The log has lost its end, or the number is damaged: as in Kafka, all of it counts as dirty. Taken for
            # clean, a tombstone in it would one day go without the values that it hides.
            cleaned = None
        return Edit(self.partition, start, self.log_end, cleaned)

    @property
    def end(self) -> ImportedEnd:
        """State that the next import goes on from."""
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

    `kafka_topic_id`: the topic's id in Kafka, empty if it is not known. `Conflict` if one of the partitions
    was written to meanwhile.
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
                raise Conflict(
                    f"topic '{topic}' has partitions 0 to {base.partitions - 1}, found {part.partition}: look again"
                )
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
            leader_epoch=min(max([base.leader_epoch, *(part.leader_epoch + 1 for part in taken)]), MAX_LEADER_EPOCH),
            files=files,
            edits=tuple(part.edit() for part in taken),
            kafka_open=tuple(each for part in taken for each in part.stands()),
            kafka_ended=tuple(each for part in taken for each in part.ended),
            kafka_source=KafkaSource(self.kafka_topic_id, {part.partition: part.end for part in taken}),
            log_starts={
                part.partition: part.log_start for part in taken if part.log_start > base.log_start[part.partition]
            },
        )
