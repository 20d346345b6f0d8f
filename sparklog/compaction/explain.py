"""Explain a run without running it: the dry run, with the reason for each partition.

The plans of a run are made one after another: slices that sealing would take count as sealed when merging and cleaning
are planned. The result of compaction is not estimated, only if it is due. Where Kafka's producers wrote, an open
transaction, which only the task sees, may make less of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sparklog.compaction.cleanable import Cleanable, CleanerOffsets, cleanable
from sparklog.compaction.cleaning import first_batch_timestamp, keyless_by_default
from sparklog.compaction.merging import plan_merges
from sparklog.compaction.sealing import plan_sealing
from sparklog.log.read.read_plan import planned_slices
from sparklog.log.state.commit import COMPACT, MERGE, SEAL
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import RollRule, Segment, segments_of
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot
from sparklog.maintenance.report import Planned
from sparklog.maintenance.work_items import Settings

_Sealed = dict[int, set[int]]
"""Per partition, bases of the slices that sealing would take."""


def explain(snapshot: Snapshot, settings: Settings, *, seal_only: bool = False, roll: bool = False) -> list[Planned]:
    """Plan sealing, merging and cleaning per partition; on a compacted topic also the reason not to clean."""
    sealing, taken = _sealing(snapshot, settings, roll)
    if seal_only:
        return sealing
    planned = [*sealing, *_merging(snapshot, settings, taken)]
    configs = settings.configs_of(snapshot.head.configs)
    if configs.is_compacted:
        left = keyless_by_default(snapshot, settings)
        planned += [
            Planned(snapshot.topic, partition, COMPACT, 0, f"refused: {why}") for partition, why in left.items()
        ]
        planned += [
            _cleaning(snapshot, settings, configs, partition, taken)
            for partition in range(snapshot.head.partitions)
            if partition not in left
        ]
    order = (SEAL, MERGE, COMPACT)
    return sorted(planned, key=lambda item: (item.partition, order.index(item.action)))


def _sealing(snapshot: Snapshot, settings: Settings, roll: bool) -> tuple[list[Planned], _Sealed]:
    configs = settings.configs_of(snapshot.head.configs)
    reason = "rolled" if roll else f"full ({configs.segment_bytes:,} bytes) or {configs.integer('segment.ms'):,} ms old"
    nbytes: dict[int, int] = {}
    segments: dict[int, int] = {}
    taken: _Sealed = {}
    for work in plan_sealing(snapshot.store, snapshot, settings, roll=roll):
        for part in work.parts:
            nbytes[part.partition] = nbytes.get(part.partition, 0) + part.nbytes
            segments[part.partition] = segments.get(part.partition, 0) + len(part.segments)
            for sources in part.segments:
                taken.setdefault(part.partition, set()).update(sources.base.tolist())
    planned = [
        Planned(snapshot.topic, partition, SEAL, size, f"{_many(segments[partition], 'segment')} {reason}")
        for partition, size in sorted(nbytes.items())
    ]
    return planned, taken


def _merging(snapshot: Snapshot, settings: Settings, taken: _Sealed) -> list[Planned]:
    slices: dict[int, int] = {}
    outputs: dict[int, int] = {}
    nbytes: dict[int, int] = {}
    for work in plan_merges(snapshot.store, _without(snapshot, taken), settings):
        for sources in work.sources:
            slices[sources.partition] = slices.get(sources.partition, 0) + len(sources)
            outputs[sources.partition] = outputs.get(sources.partition, 0) + 1
            nbytes[sources.partition] = nbytes.get(sources.partition, 0) + sources.nbytes
    return [
        Planned(
            snapshot.topic, partition, MERGE, size, f"{_many(slices[partition], 'slice')} into {outputs[partition]:,}"
        )
        for partition, size in sorted(nbytes.items())
    ]


def _cleaning(snapshot: Snapshot, settings: Settings, configs: TopicConfigs, partition: int, taken: _Sealed) -> Planned:
    head = snapshot.head
    slices = snapshot.slices.select(partition)
    log_end = int(head.log_end[partition])
    segments = segments_of(slices, partition, log_end, RollRule.of(configs, head.topic_id))

    def first_batch_ts(segment: Segment) -> int:
        if segment.rows == 0 or not bool(slices.sealed()[segment.first_row]):
            return segment.first_ts
        rows = planned_slices(snapshot.topic, partition, slices[segment.first_row : segment.first_row + 1])
        return first_batch_timestamp(snapshot.store, rows.row(0))

    state = cleanable(
        _as_sealed(segments, slices, taken.get(partition, set()), log_end),
        CleanerOffsets.of(head, partition),
        configs,
        settings.now_ms,
        first_batch_ts,
    )
    return Planned(
        snapshot.topic, partition, COMPACT, state.cleanable_bytes if state.chosen else 0, _why(state, configs)
    )


def _why(state: Cleanable, configs: TopicConfigs) -> str:
    least = float(configs.text("min.cleanable.dirty.ratio"))
    if not state.clean_bytes + state.cleanable_bytes:
        return "not due: nothing sealed that may be compacted"
    if state.chosen and state.ratio <= least:
        return f"dirty ratio {state.ratio:.2f}, not above {least:.2f}, but older than max.compaction.lag.ms"
    if state.chosen:
        return f"dirty ratio {state.ratio:.2f} > {least:.2f}, from offset {state.first_dirty:,}"
    return f"not due: dirty ratio {state.ratio:.2f}, not above {least:.2f}"


def _as_sealed(segments: Sequence[Segment], slices: Slices, taken: set[int], log_end: int) -> list[Segment]:
    """Return the segments as sealing would leave them."""
    bases = slices.base
    sealed_segments = []
    for segment in segments:
        rows = bases[segment.first_row : segment.first_row + segment.rows].tolist()
        sealed = segment.sealed or (bool(rows) and taken.issuperset(rows))
        sealed_segments.append(replace(segment, sealed=sealed, active=segment.active and not sealed))
    if not sealed_segments[-1].active:
        sealed_segments.append(
            Segment(sealed_segments[-1].partition, log_end, log_end, log_end, len(slices), 0, 0, -1, -1, False, True)
        )
    return sealed_segments


def _without(snapshot: Snapshot, taken: _Sealed) -> Snapshot:
    """The snapshot without the slices that sealing would take."""
    if not taken:
        return snapshot
    whole = snapshot.slices.all()
    keep = np.ones(len(whole), np.bool_)
    for partition, bases in taken.items():
        rows = whole.partition_rows(partition)
        keep[rows] = ~np.isin(whole.base[rows], np.array(sorted(bases)))
    paths, txn_ids = snapshot.slices.texts
    return replace(snapshot, slices=SliceTable(snapshot.slices.version, (whole[keep],), paths, txn_ids))


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
