"""Predict the work of a run on a topic. The results are the backlog, and the plan of a dry run with its reasons.

Both are computed from the slice table. If `max.compaction.lag.ms` is set, runs and dry runs read the first batch of a
segment. The backlog uses the smallest timestamp of the segment instead, so it may report a pass as due before the pass
is actually due.

Plans depend on each other. Slices that would be sealed are treated as sealed when merging and cleaning are planned. The
plan reports whether compaction is due, but does not estimate its result. If Kafka producers wrote to the partition, an
open transaction, which only the task sees, may reduce the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sparklog.common.units import count, size_text
from sparklog.compaction.clean_range import (
    Cleanable,
    CleanerOffsets,
    cleanable,
    first_batch_timestamp,
    keyless_by_default,
)
from sparklog.log.read.planned_slices import planned_slices
from sparklog.log.state.commit import COMPACT, MERGE, SEAL
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import RollRule, Segment, is_roll_due, segments_of
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot
from sparklog.maintenance.report import Backlog, Due, Planned, allowed_wait_ms
from sparklog.maintenance.work_items import Settings


def compaction_backlog(snapshot: Snapshot, settings: Settings) -> Backlog:
    """Return the pending work at the time `settings.now_ms`."""
    state, table = snapshot.state, snapshot.slices.all()
    configs = settings.configs_of(snapshot.topic, state.configs)
    rule = RollRule.of(configs, state.topic_id)
    stable = state.last_stable()
    skipped = keyless_by_default(snapshot, settings)
    closed: list[Segment] = []
    dirty: list[_Dirty] = []
    for partition in range(state.partitions):
        slices = table[table.partition_rows(partition)]
        segments = segments_of(slices, partition, int(state.log_end[partition]), rule)
        to_seal = [
            segment
            for segment in segments
            if segment.rows and not segment.sealed and segment.end <= stable[partition]
            if not segment.active or is_roll_due(segment, rule, settings.now_ms)
        ]
        closed += to_seal
        if configs.is_compacted and partition not in skipped:
            bases = {base for segment in to_seal for base in slices.base[segment.span].tolist()}
            sealed = as_sealed(segments, slices, bases, int(state.log_end[partition]))
            dirty.append(_dirty(sealed, slices, CleanerOffsets.of(state, partition), configs, settings.now_ms))
    since_ms = [_closed_ms(segment, rule, settings.now_ms) for segment in closed]
    return Backlog(
        unsealed_bytes=int(table.size[~table.sealed()].sum()),
        dirty_ratio=max((item.state.ratio for item in dirty), default=None),
        due=(*_sealing(closed, since_ms, configs), *_cleaning([item for item in dirty if item.state.is_due], configs)),
    )


class _Dirty(NamedTuple):
    """The dirty part of a partition, and the timestamp of its oldest record if the record is older than
    `max.compaction.lag.ms`.
    """

    state: Cleanable
    oldest_ms: int | None


def _dirty(
    segments: Sequence[Segment], slices: Slices, offsets: CleanerOffsets, configs: TopicConfigs, now_ms: int
) -> _Dirty:
    def first_ms(segment: Segment) -> int:
        return int(slices.min_ts[segment.first_row]) if segment.rows else segment.first_ts

    state = cleanable(segments, offsets, configs, now_ms, first_ms)
    times = [first_ms(segment) for segment in state.segments if segment.next_base > state.first_dirty]
    return _Dirty(state, min((ms for ms in times if ms > 0), default=None) if state.overdue else None)


def _closed_ms(segment: Segment, rule: RollRule, now_ms: int) -> int:
    """Return the approximate time at which a segment was closed, by its age or with its latest record, or -1 if it is
    unknown.
    """
    if segment.first_ts >= 0:
        rolled_ms = segment.first_ts + rule.lifetime_ms(segment.partition, segment.base)
        if rolled_ms <= now_ms:
            return rolled_ms
    return segment.max_ts


def _sealing(closed: Sequence[Segment], since_ms: Sequence[int], configs: TopicConfigs) -> list[Due]:
    if not closed:
        return []
    size = size_text(sum(segment.size for segment in closed))
    why = f"{count(len(closed), 'closed segment')} ({size}) to be sealed because of segment.bytes or segment.ms"
    return [Due(COMPACT, why, min(since_ms), allowed_wait_ms(configs.integer("segment.ms")), sealing=True)]


def _cleaning(due_partitions: Sequence[_Dirty], configs: TopicConfigs) -> list[Due]:
    if not due_partitions:
        return []
    oldest_ms = [item.oldest_ms for item in due_partitions if item.oldest_ms is not None]
    if oldest_ms:
        lag_ms = configs.max_compaction_lag_ms
        why = "uncompacted records older than max.compaction.lag.ms"
        return [Due(COMPACT, why, min(oldest_ms) + lag_ms, allowed_wait_ms(lag_ms))]
    min_ratio = float(configs.text("min.cleanable.dirty.ratio"))
    ratio = max(item.state.ratio for item in due_partitions)
    return [Due(COMPACT, f"dirty ratio {ratio:.2f}, above min.cleanable.dirty.ratio {min_ratio:.2f}")]


def explain(snapshot: Snapshot, settings: Settings, *, seal_only: bool = False, roll: bool = False) -> list[Planned]:
    """Return the planned sealing, merging and cleaning of each partition, or the reasons why a partition is not
    cleaned.
    """
    # Only dry runs plan work items. Commands that show the backlog import neither the work items nor pyarrow.
    from sparklog.compaction.seal_plan import plan_sealing

    topic, configs = snapshot.topic, settings.configs_of(snapshot.topic, snapshot.state.configs)
    nbytes: Counter[int] = Counter()
    segments: Counter[int] = Counter()
    sealed_bases: dict[int, set[int]] = {}
    for work in plan_sealing(snapshot.store, snapshot, settings, roll=roll):
        for part in work.parts:
            nbytes[part.partition] += part.nbytes
            segments[part.partition] += len(part.segments)
            for sources in part.segments:
                sealed_bases.setdefault(part.partition, set()).update(sources.base.tolist())
    reason = "rolled" if roll else f"full ({configs.segment_bytes:,} bytes) or {configs.integer('segment.ms'):,} ms old"
    planned = [
        Planned(topic, partition, SEAL, size, f"{count(segments[partition], 'segment')} {reason}")
        for partition, size in sorted(nbytes.items())
    ]
    if seal_only:
        return planned
    planned += _planned_merging(snapshot, settings, sealed_bases)
    if configs.is_compacted:
        rejected = keyless_by_default(snapshot, settings)
        planned += [
            Planned(topic, partition, COMPACT, 0, f"rejected: {why}", is_due=False)
            for partition, why in rejected.items()
        ]
        planned += [
            _planned_cleaning(snapshot, settings, partition, sealed_bases.get(partition, set()))
            for partition in range(snapshot.state.partitions)
            if partition not in rejected
        ]
    order = (SEAL, MERGE, COMPACT)
    return sorted(planned, key=lambda item: (item.partition, order.index(item.action)))


def _planned_merging(snapshot: Snapshot, settings: Settings, sealed_bases: Mapping[int, set[int]]) -> list[Planned]:
    from sparklog.compaction.merge_plan import plan_merges

    slices: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    nbytes: Counter[int] = Counter()
    for work in plan_merges(snapshot.store, _without(snapshot, sealed_bases), settings):
        for sources in work.sources:
            slices[sources.partition] += len(sources)
            outputs[sources.partition] += 1
            nbytes[sources.partition] += sources.nbytes
    return [
        Planned(
            snapshot.topic, partition, MERGE, size, f"{count(slices[partition], 'slice')} into {outputs[partition]:,}"
        )
        for partition, size in sorted(nbytes.items())
    ]


def _planned_cleaning(snapshot: Snapshot, settings: Settings, partition: int, sealed_bases: set[int]) -> Planned:
    topic_state, configs = snapshot.state, settings.configs_of(snapshot.topic, snapshot.state.configs)
    slices = snapshot.slices.select(partition)
    log_end = int(topic_state.log_end[partition])
    segments = segments_of(slices, partition, log_end, RollRule.of(configs, topic_state.topic_id))

    def first_batch_ts(segment: Segment) -> int:
        if segment.rows == 0 or not bool(slices.sealed()[segment.first_row]):
            return segment.first_ts
        rows = planned_slices(snapshot.topic, partition, slices[segment.first_row : segment.first_row + 1])
        return first_batch_timestamp(snapshot.store, rows.row(0))

    segments = as_sealed(segments, slices, sealed_bases, log_end)
    state = cleanable(segments, CleanerOffsets.of(topic_state, partition), configs, settings.now_ms, first_batch_ts)
    nbytes = state.cleanable_bytes if state.is_due else 0
    return Planned(snapshot.topic, partition, COMPACT, nbytes, _reason(state, configs), is_due=state.is_due)


def _reason(state: Cleanable, configs: TopicConfigs) -> str:
    min_ratio = float(configs.text("min.cleanable.dirty.ratio"))
    if not state.clean_bytes + state.cleanable_bytes:
        return "not due: no sealed segment may be compacted"
    if state.is_due and state.ratio <= min_ratio:
        return f"dirty ratio {state.ratio:.2f}, not above {min_ratio:.2f}, but older than max.compaction.lag.ms"
    if state.is_due:
        return f"dirty ratio {state.ratio:.2f} > {min_ratio:.2f}, from offset {state.first_dirty:,}"
    return f"not due: dirty ratio {state.ratio:.2f}, not above {min_ratio:.2f}"


def as_sealed(segments: Sequence[Segment], slices: Slices, sealed_bases: set[int], log_end: int) -> list[Segment]:
    """Return a partition's segments as if the slices with these base offsets were sealed."""
    sealed_segments = []
    for segment in segments:
        rows = slices.base[segment.span].tolist()
        sealed = segment.sealed or (bool(rows) and sealed_bases.issuperset(rows))
        sealed_segments.append(replace(segment, sealed=sealed, active=segment.active and not sealed))
    last = sealed_segments[-1]
    if not last.active:
        sealed_segments.append(
            Segment(last.partition, log_end, log_end, log_end, len(slices), 0, 0, -1, -1, sealed=False, active=True)
        )
    return sealed_segments


def _without(snapshot: Snapshot, sealed_bases: Mapping[int, set[int]]) -> Snapshot:
    """Return the snapshot without the slices to be sealed, which are given by their base offsets per partition."""
    if not sealed_bases:
        return snapshot
    table_rows = snapshot.slices.all()
    keep = np.ones(len(table_rows), np.bool_)
    for partition, bases in sealed_bases.items():
        rows = table_rows.partition_rows(partition)
        keep[rows] = ~np.isin(table_rows.base[rows], np.array(sorted(bases)))
    return with_slices(snapshot, (table_rows[keep],))


def with_slices(snapshot: Snapshot, parts: Sequence[Slices]) -> Snapshot:
    """Return the snapshot reduced to these slices."""
    paths, txn_ids = snapshot.slices.texts
    return replace(snapshot, slices=SliceTable(snapshot.slices.version, tuple(parts), paths, txn_ids))
