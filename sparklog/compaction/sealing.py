"""Plans sealing: which unsealed slices become which Kafka segments, and in which pieces of work.

Sealed is what Kafka would have closed: by the roll rule over the slice table (`sparklog.log.state.segments`), or by the
clock where a partition has gone quiet, or all of it where the user rolls. Each segment is one edit, so that a race
that takes an input from one segment leaves the others standing. A segment waits until all of it lies below the last
stable offset; its aborted slices are dropped, which leaves a gap in the offsets.

Several partitions go into one piece of work, since their slices lie side by side in the files that tasks appended
and are fetched together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparklog.compaction.seal_work import SealPart, SealWork
from sparklog.log.decisions.atomic_bounds import own_whole_ends
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.read.source_slices import SourceSlices, source_slices
from sparklog.log.state.segments import RollRule, Segment, due, segments_of
from sparklog.log.state.slice_table import Slices
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.snapshot import Snapshot
from sparklog.maintenance.work import Settings
from sparklog.storage.store import Store


WORK_BYTES = 256 << 20
WORK_SLICES = 100_000
"""A task takes some 0.7 KB for each slice, however few bytes that has; a segment that alone has more is not cut."""
WORK_PARTITIONS = 128
"""Each partition of a piece of work may have a file open."""
WORK_SEGMENTS = 500
"""Each segment is an edit, and a commit compares its edits with its files."""


def plan_sealing(
    store: Store, snapshot: Snapshot, settings: Settings, *, roll: bool = False, env: Env = SYSTEM
) -> list[SealWork]:
    """What there is to seal in a topic, as pieces of work of up to `WORK_BYTES`; none where nothing is closed.

    `roll` also closes the active segments, as far as they lie below the last stable offset. `env` gives tasks their
    ids and their stopwatch; `settings.now_ms` is the clock that closes quiet partitions.
    """
    head = snapshot.head
    configs = settings.configs_of(head.configs)
    rule = RollRule.of(configs, head.topic_id)
    table = snapshot.slices.all()
    # What a transaction open elsewhere hides from readers keeps the mark of its own transaction until they see it.
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
                history = source_slices(snapshot.topic, partition, slices)
            packed.add(source_slices(snapshot.topic, partition, chosen), history, log_end)
    return [
        SealWork(store, snapshot.topic, head.topic_id, head.version, configs, parts, env) for parts in packed.works()
    ]


def _rows_to_seal(segment: Segment, slices: Slices, rule: RollRule, now_ms: int, stable: int, roll: bool) -> int:
    """How many of a segment's slices to seal now, from its first on: all or none, but for a forced roll."""
    if segment.sealed or segment.rows == 0:
        return 0
    if segment.active and roll:
        ends = slices.end[segment.first_row : segment.first_row + segment.rows]
        return int(np.searchsorted(ends, stable, "right"))
    closed = not segment.active or due(segment, rule, now_ms)
    return segment.rows if closed and segment.end <= stable else 0


class _Packed:
    """Segments put into pieces of work in the order they come, those of one partition together."""

    def __init__(self) -> None:
        self._works: list[list[SealPart]] = []
        self._nbytes = self._segments = self._slices = 0

    def add(self, sources: SourceSlices, history: SourceSlices | None, log_end: int) -> None:
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
