"""Explain a run without running it: the dry run, with the reason for each partition.

The plans of a run are made one after another: slices that sealing would take count as sealed when merging and cleaning
are planned. The result of compaction is not estimated, only if it is due. Where Kafka's producers wrote, an open
transaction, which only the task sees, may make less of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparklog.compaction.clean_plan import keyless_by_default
from sparklog.compaction.clean_range import Cleanable, CleanerOffsets, cleanable, first_batch_timestamp
from sparklog.compaction.merge_plan import plan_merges
from sparklog.compaction.seal_plan import plan_sealing
from sparklog.log.read.planned_slices import planned_slices
from sparklog.log.state.commit import COMPACT, MERGE, SEAL
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import RollRule, Segment, segments_of
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot
from sparklog.maintenance.report import Planned
from sparklog.maintenance.work_items import Settings


def explain(snapshot: Snapshot, settings: Settings, *, seal_only: bool = False, roll: bool = False) -> list[Planned]:
    """Plan sealing, merging and cleaning per partition; on a compacted topic also the reason not to clean."""
    topic, configs = snapshot.topic, settings.configs_of(snapshot.topic, snapshot.head.configs)
    nbytes: Counter[int] = Counter()
    segments: Counter[int] = Counter()
    taken: dict[int, set[int]] = {}
    for work in plan_sealing(snapshot.store, snapshot, settings, roll=roll):
        for part in work.parts:
            nbytes[part.partition] += part.nbytes
            segments[part.partition] += len(part.segments)
            for sources in part.segments:
                taken.setdefault(part.partition, set()).update(sources.base.tolist())
    reason = "rolled" if roll else f"full ({configs.segment_bytes:,} bytes) or {configs.integer('segment.ms'):,} ms old"
    planned = [
        Planned(topic, partition, SEAL, size, f"{_many(segments[partition], 'segment')} {reason}")
        for partition, size in sorted(nbytes.items())
    ]
    if seal_only:
        return planned
    planned += _merging(snapshot, settings, taken)
    if configs.is_compacted:
        left = keyless_by_default(snapshot, settings)
        planned += [Planned(topic, partition, COMPACT, 0, f"refused: {why}") for partition, why in left.items()]
        planned += [
            _cleaning(snapshot, settings, partition, taken.get(partition, set()))
            for partition in range(snapshot.head.partitions)
            if partition not in left
        ]
    order = (SEAL, MERGE, COMPACT)
    return sorted(planned, key=lambda item: (item.partition, order.index(item.action)))


def _merging(snapshot: Snapshot, settings: Settings, taken: Mapping[int, set[int]]) -> list[Planned]:
    slices: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    nbytes: Counter[int] = Counter()
    for work in plan_merges(snapshot.store, _without(snapshot, taken), settings):
        for sources in work.sources:
            slices[sources.partition] += len(sources)
            outputs[sources.partition] += 1
            nbytes[sources.partition] += sources.nbytes
    return [
        Planned(snapshot.topic, number, MERGE, size, f"{_many(slices[number], 'slice')} into {outputs[number]:,}")
        for number, size in sorted(nbytes.items())
    ]


def _cleaning(snapshot: Snapshot, settings: Settings, partition: int, taken: set[int]) -> Planned:
    head, configs = snapshot.head, settings.configs_of(snapshot.topic, snapshot.head.configs)
    slices = snapshot.slices.select(partition)
    log_end = int(head.log_end[partition])
    segments = segments_of(slices, partition, log_end, RollRule.of(configs, head.topic_id))

    def first_batch_ts(segment: Segment) -> int:
        if segment.rows == 0 or not bool(slices.sealed()[segment.first_row]):
            return segment.first_ts
        rows = planned_slices(snapshot.topic, partition, slices[segment.first_row : segment.first_row + 1])
        return first_batch_timestamp(snapshot.store, rows.row(0))

    segments = as_sealed(segments, slices, taken, log_end)
    state = cleanable(segments, CleanerOffsets.of(head, partition), configs, settings.now_ms, first_batch_ts)
    nbytes = state.cleanable_bytes if state.chosen else 0
    return Planned(snapshot.topic, partition, COMPACT, nbytes, _why(state, configs))


def _why(state: Cleanable, configs: TopicConfigs) -> str:
    least = float(configs.text("min.cleanable.dirty.ratio"))
    if not state.clean_bytes + state.cleanable_bytes:
        return "not due: nothing sealed that may be compacted"
    if state.chosen and state.ratio <= least:
        return f"dirty ratio {state.ratio:.2f}, not above {least:.2f}, but older than max.compaction.lag.ms"
    if state.chosen:
        return f"dirty ratio {state.ratio:.2f} > {least:.2f}, from offset {state.first_dirty:,}"
    return f"not due: dirty ratio {state.ratio:.2f}, not above {least:.2f}"


def as_sealed(segments: Sequence[Segment], slices: Slices, taken: set[int], log_end: int) -> list[Segment]:
    """Return a partition's segments as if the slices with these bases were sealed."""
    sealed_segments = []
    for segment in segments:
        rows = slices.base[segment.first_row : segment.first_row + segment.rows].tolist()
        sealed = segment.sealed or (bool(rows) and taken.issuperset(rows))
        sealed_segments.append(replace(segment, sealed=sealed, active=segment.active and not sealed))
    last = sealed_segments[-1]
    if not last.active:
        sealed_segments.append(
            Segment(last.partition, log_end, log_end, log_end, len(slices), 0, 0, -1, -1, sealed=False, active=True)
        )
    return sealed_segments


def _without(snapshot: Snapshot, taken: Mapping[int, set[int]]) -> Snapshot:
    """Leave out the slices that sealing would take: per partition, their bases."""
    if not taken:
        return snapshot
    whole = snapshot.slices.all()
    keep = np.ones(len(whole), np.bool_)
    for partition, bases in taken.items():
        rows = whole.partition_rows(partition)
        keep[rows] = ~np.isin(whole.base[rows], np.array(sorted(bases)))
    return with_slices(snapshot, (whole[keep],))


def with_slices(snapshot: Snapshot, parts: Sequence[Slices]) -> Snapshot:
    """Return the snapshot with these slices of it only."""
    paths, txn_ids = snapshot.slices.texts
    return replace(snapshot, slices=SliceTable(snapshot.slices.version, tuple(parts), paths, txn_ids))


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
