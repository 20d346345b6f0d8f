"""Plan the sealing of a topic. The closed segments are packed into work items.

A segment is sealed when Kafka would have closed it. This is the case if the roll rule applies to the slice table
(`sparklog.log.state.segments`), or if the roll time of an idle partition has passed. A user can also request that
active segments are sealed immediately. A segment is sealed only if all of its offsets are below the last stable offset.
Each segment is one edit, so if another run rewrites an input of one segment first, the other segments are not affected.
"""

from __future__ import annotations

import numpy as np

from sparklog.compaction.seal_work import SealPart, SealWork
from sparklog.limits import Limits
from sparklog.log.decisions.decision_log import own_consistent_ends
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.planned_slices import PlannedSlices, planned_slices
from sparklog.log.state.segments import RollRule, Segment, is_roll_due, segments_of
from sparklog.log.state.slice_table import Slices, Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.maintenance.work_items import Settings
from sparklog.storage.store import Store


def plan_sealing(
    store: Store, snapshot: Snapshot, settings: Settings, *, roll: bool = False, env: Env = SYSTEM
) -> list[SealWork]:
    """Plan the sealing of a topic in work items of up to `Limits.seal_bytes`. The plan is empty if no segment is
    closed.

    If `roll` is True, the active segments are also closed, up to the last stable offset. `env` provides ids and elapsed
    times for tasks. `settings.now_ms` is the time that closes segments of idle partitions.
    """
    state = snapshot.state
    configs = settings.configs_of(snapshot.topic, state.configs)
    rule = RollRule.of(configs, state.topic_id)
    table = snapshot.slices.all()
    # Slices that are hidden by an open transaction retain the id of their own transaction until they become visible.
    stable = own_consistent_ends(state, table).tolist()
    packed = _WorkPacker(store.limits)
    for partition in np.unique(table.partition[~table.sealed()]).tolist():
        slices = table[table.partition_rows(partition)]
        log_end = int(state.log_end[partition])
        for segment in segments_of(slices, partition, log_end, rule):
            rows = _rows_to_seal(segment, slices, rule, settings.now_ms, stable[partition], roll)
            if rows == 0:
                continue
            slices_to_seal = slices[segment.first_row : segment.first_row + rows]
            history = None
            if (slices_to_seal.flags & int(SliceFlag.KAFKA_PRODUCERS)).any():
                history = planned_slices(snapshot.topic, partition, slices)
            packed.add(planned_slices(snapshot.topic, partition, slices_to_seal), history, log_end)
    topic, topic_id, version = snapshot.topic, state.topic_id, state.version
    return [SealWork(store, topic, topic_id, version, configs, tuple(parts), env) for parts in packed.works]


def _rows_to_seal(segment: Segment, slices: Slices, rule: RollRule, now_ms: int, stable: int, roll: bool) -> int:
    """Return the number of slices at the start of a segment to seal now. This is all or none, unless `roll` is set."""
    if segment.sealed or segment.rows == 0:
        return 0
    if segment.active and roll:
        return int(np.searchsorted(slices.end[segment.span], stable, "right"))
    closed = not segment.active or is_roll_due(segment, rule, now_ms)
    return segment.rows if closed and segment.end <= stable else 0


class _WorkPacker:
    """Packs segments into work items in the given order. The segments of a partition are packed together."""

    def __init__(self, limits: Limits) -> None:
        self.works: list[list[SealPart]] = []
        self._limits = limits
        self._nbytes = self._segments = self._slices = 0

    def add(self, sources: PlannedSlices, history: PlannedSlices | None, log_end: int) -> None:
        limits = self._limits
        full = self._nbytes + sources.nbytes > limits.seal_bytes or self._slices + len(sources) > limits.seal_slices
        many = self._segments >= limits.seal_segments
        if not self.works or full or many or len(self.works[-1]) >= limits.seal_partitions:
            self.works.append([])
            self._nbytes = self._segments = self._slices = 0
        self._nbytes += sources.nbytes
        self._segments += 1
        self._slices += len(sources)
        parts = self.works[-1]
        if parts and parts[-1].partition == sources.partition:
            parts[-1] = parts[-1].extended(sources, history)
        else:
            parts.append(SealPart(sources.partition, (sources,), history, log_end))
