"""Plan sealing, and run it: unsealed slices become Kafka segments, written by `sparklog.compaction.slices_to_segments`.

A segment is sealed when Kafka would have closed it: by the roll rule over the slice table
(`sparklog.log.state.segments`), by the clock in a quiet partition, or at once if the user rolls. A segment waits until
all of it lies below the last stable offset. Its aborted slices are dropped, which leaves a gap in the offsets.

Each segment is one edit, so a race that takes an input from one segment leaves the others. A work item covers several
partitions, because their slices lie side by side in the append files and are fetched together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparklog.compaction.slices_to_segments import SealPart, SegmentOutput, write_segments
from sparklog.errors import BadRequest
from sparklog.log.decisions.decision_log import own_whole_ends
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.read.read_plan import PlannedSlices, planned_slices
from sparklog.log.state.commit import SEAL, Edit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.segments import RollRule, Segment, due, segments_of
from sparklog.log.state.slice_table import Slices, Snapshot
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.maintenance.work_items import Done, PieceReport, Progress, Settings, silent
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.format.transaction_index import AbortedTransactions


@dataclass(frozen=True, slots=True)
class SealWork:
    """A work item that seals segments of some partitions of a topic. See `sparklog.maintenance.work_items.Work`."""

    store: Store
    topic: str
    topic_id: str
    read_version: int
    configs: TopicConfigs
    parts: tuple[SealPart, ...]
    env: Env = SYSTEM

    @property
    def op(self) -> str:
        return SEAL

    @property
    def title(self) -> str:
        first, last = self.partitions[0], self.partitions[-1]
        more = f" to {last} ({len(self.parts)} partitions)" if last != first else ""
        return f"seal {self.topic}-{first}{more}"

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(part.partition for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def run(self, progress: Progress = silent) -> Done:
        """Write the segments. `Corrupt` names a damaged slice; `Conflict`: a file was replaced meanwhile."""
        started = self.env.now()
        unique = self.env.new_id()
        files = write_segments([self._output(part, unique) for part in self.parts], progress)
        seconds, nbytes = self.env.now().elapsed_ms(started) / 1000, self.nbytes
        return Done(
            tuple(rewrite for part in self.parts for rewrite in _rewrites(part)),
            tuple(file for each in files for file in each),
            tuple(
                _report(self, part, part_files, seconds * part.nbytes / nbytes)
                for part, part_files in zip(self.parts, files, strict=True)
            ),
        )

    def _output(self, part: SealPart, unique: str) -> SegmentOutput:
        from sparklog.compaction.segment_writer import SegmentWriter

        writer = SegmentWriter(self.store, self.topic, part.partition, self.read_version, unique, self.configs)
        return SegmentOutput(self.store, self.topic, part, writer, lambda: self._aborted(part))

    def _aborted(self, part: SealPart) -> AbortedTransactions:
        """Return the aborted transactions of Kafka's producers in a partition."""
        from sparklog.compaction.producer_state import replay

        if part.history is None:
            raise BadRequest("slices with Kafka's transactions are sealed with the partition's history")
        return replay(self.store, part.history, part.log_end).aborted


def _rewrites(part: SealPart) -> list[Rewrite]:
    """Return one edit for each segment."""
    return [
        Rewrite(Edit(part.partition, int(sources.base[0]), int(sources.end[-1])), sources.inputs())
        for sources in part.segments
    ]


def _report(work: SealWork, part: SealPart, files: Sequence[FileSlices], seconds: float) -> PieceReport:
    return PieceReport(
        action=SEAL,
        topic=work.topic,
        partition=part.partition,
        records_before=sum(int(sources.records.sum()) for sources in part.segments),
        records_after=sum(sum(file.records) for file in files),
        bytes_before=part.nbytes,
        bytes_after=sum(file.size for file in files),
        seconds=seconds,
    )


WORK_BYTES = 256 << 20
WORK_SLICES = 100_000
"""A task needs some 0.7 KB of memory for each slice. A segment with more slices is not cut."""
WORK_PARTITIONS = 128
"""Each partition of a work item may have a file open."""
WORK_SEGMENTS = 500
"""Each segment is an edit, and a commit compares its edits with its files."""


def plan_sealing(
    store: Store, snapshot: Snapshot, settings: Settings, *, roll: bool = False, env: Env = SYSTEM
) -> list[SealWork]:
    """Plan the sealing of a topic, in work items of up to `WORK_BYTES`; none where no segment is closed.

    `roll` also closes the active segments, as far as they lie below the last stable offset. `env` gives tasks their
    ids and their stopwatch; `settings.now_ms` is the clock that closes quiet partitions.
    """
    head = snapshot.head
    configs = settings.configs_of(head.configs)
    rule = RollRule.of(configs, head.topic_id)
    table = snapshot.slices.all()
    # Slices that an open transaction elsewhere hides keep the mark of their transaction until they become visible.
    stable = own_whole_ends(head, table).tolist()
    packed = _Packed()
    for partition in np.unique(table.partition[~table.sealed()]).tolist():
        slices = table[table.partition_rows(partition)]
        log_end = int(head.log_end[partition])
        for segment in segments_of(slices, partition, log_end, rule):
            rows = _rows_to_seal(segment, slices, rule, settings.now_ms, stable[partition], roll)
            if rows == 0:
                continue
            chosen = slices[segment.first_row : segment.first_row + rows]
            history = None
            if (chosen.flags & int(SliceFlag.KAFKA_PRODUCERS)).any():
                history = planned_slices(snapshot.topic, partition, slices)
            packed.add(planned_slices(snapshot.topic, partition, chosen), history, log_end)
    return [
        SealWork(store, snapshot.topic, head.topic_id, head.version, configs, parts, env) for parts in packed.works()
    ]


def _rows_to_seal(segment: Segment, slices: Slices, rule: RollRule, now_ms: int, stable: int, roll: bool) -> int:
    """Count the slices of a segment to seal now, from its first on: all or none, unless the roll is forced."""
    if segment.sealed or segment.rows == 0:
        return 0
    if segment.active and roll:
        ends = slices.end[segment.first_row : segment.first_row + segment.rows]
        return int(np.searchsorted(ends, stable, "right"))
    closed = not segment.active or due(segment, rule, now_ms)
    return segment.rows if closed and segment.end <= stable else 0


class _Packed:
    """Segments packed into work items in the order they come, those of one partition together."""

    def __init__(self) -> None:
        self._works: list[list[SealPart]] = []
        self._nbytes = self._segments = self._slices = 0

    def add(self, sources: PlannedSlices, history: PlannedSlices | None, log_end: int) -> None:
        full = self._nbytes + sources.nbytes > WORK_BYTES or self._slices + len(sources) > WORK_SLICES
        many = self._segments >= WORK_SEGMENTS
        if not self._works or full or many or len(self._works[-1]) >= WORK_PARTITIONS:
            self._works.append([])
            self._nbytes = self._segments = self._slices = 0
        self._nbytes += sources.nbytes
        self._segments += 1
        self._slices += len(sources)
        parts = self._works[-1]
        if parts and parts[-1].partition == sources.partition:
            parts[-1] = parts[-1].extended(sources, history)
        else:
            parts.append(SealPart(sources.partition, (sources,), history, log_end))

    def works(self) -> Iterator[tuple[SealPart, ...]]:
        for parts in self._works:
            yield tuple(parts)
