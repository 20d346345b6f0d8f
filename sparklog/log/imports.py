"""The commit of an import: whole partitions at once, at the offsets they had where they come from.

An import is the only commit that may leave gaps and that says where a log ends, because Kafka's logs can end behind
their last record: the cleaner removed it, or the segment that comes next is empty. So each partition with a log has an
edit without inputs: its range is the log's, its `cleaned_through` Kafka's cleaner checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import Conflict
from sparklog.log.commit import IMPORT, Edit
from sparklog.log.conflicts import Draft, Nothing, check_floor, check_topic
from sparklog.log.head import Head
from sparklog.log.kafka_open import KafkaOpen
from sparklog.log.slice_table import SliceTable
from sparklog.log.slices import FileSlices

__all__ = ["ImportIntent", "ImportedPartition"]

MAX_LEADER_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """A partition as it was found: offsets `[log_start, log_end)`, compacted below `cleaned_through` (None: never).

    `files` with the base of each slice, in offset order; the first may begin below the log start. `leader_epoch`: the
    last that wrote here, -1 if nobody did. `open`: transactions that no marker ends.
    """

    partition: int
    log_start: int
    log_end: int
    cleaned_through: int | None
    leader_epoch: int
    files: tuple[FileSlices, ...]
    open: tuple[KafkaOpen, ...] = ()

    def edit(self) -> Edit:
        """Its range, slices that the log start cuts included."""
        start = min([self.log_start, *(base for file in self.files for base in file.base)])
        cleaned = self.cleaned_through
        if cleaned is not None and not 0 <= cleaned <= self.log_end:
            # The log has lost its end, or the number is damaged: as in Kafka, all of it counts as dirty. Taken for
            # clean, a tombstone in it would one day go without the values that it hides.
            cleaned = None
        return Edit(self.partition, start, self.log_end, cleaned)


@dataclass(frozen=True, slots=True)
class ImportIntent:
    """Fill partitions that hold nothing. What is appended after it is of a leader epoch that comes later.

    `Conflict` if somebody has written to one of them meanwhile.
    """

    topic_id: str
    partitions: tuple[ImportedPartition, ...]
    needs_table: bool = False
    repeatable: bool = False

    def draft(self, topic: str, base: Head, origin: Head, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, base, self.topic_id)
        filled = [part for part in self.partitions if part.log_end > 0]
        for part in filled:
            if part.partition < base.partitions and base.log_end[part.partition] > 0:
                raise Conflict(
                    f"cannot import into partition {part.partition} of topic '{topic}': expected an empty one, it ends "
                    f"at {base.log_end[part.partition]}; import under another name"
                )
        if not filled:
            return Nothing("there is nothing to import", base.version)
        files = tuple(file for part in filled for file in part.files)
        check_floor(topic, files, base.floor)
        return Draft(
            IMPORT,
            leader_epoch=min(max([base.leader_epoch, *(part.leader_epoch + 1 for part in filled)]), MAX_LEADER_EPOCH),
            files=files,
            edits=tuple(part.edit() for part in filled),
            kafka_open=tuple(each for part in filled for each in part.open if each.end > part.log_start),
            log_starts={part.partition: part.log_start for part in filled if part.log_start > 0},
        )
