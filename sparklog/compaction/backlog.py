"""Work that waits for `compact` on a topic: closed segments to seal, a log that is dirty enough to be compacted.

From the slice table alone. Where `max.compaction.lag.ms` counts, a segment's smallest time stands for that of its first
batch, which a run reads: so a pass may seem due somewhat earlier than a run does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparklog.compaction.clean_plan import keyless_by_default
from sparklog.compaction.clean_range import Cleanable, CleanerOffsets, cleanable
from sparklog.compaction.explain import as_sealed
from sparklog.log.state.commit import COMPACT
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import RollRule, Segment, due, segments_of
from sparklog.log.state.slice_table import Slices, Snapshot
from sparklog.maintenance.report import Backlog, Due, allowed_wait_ms
from sparklog.maintenance.work_items import Settings
from sparklog.units import count, size_text


def compaction_backlog(snapshot: Snapshot, settings: Settings) -> Backlog:
    """Return what waits as of `settings.now_ms`."""
    head, table = snapshot.head, snapshot.slices.all()
    configs = settings.configs_of(snapshot.topic, head.configs)
    rule = RollRule.of(configs, head.topic_id)
    stable = head.last_stable()
    skipped = keyless_by_default(snapshot, settings)
    closed: list[Segment] = []
    dirty: list[_Dirty] = []
    for partition in range(head.partitions):
        slices = table[table.partition_rows(partition)]
        segments = segments_of(slices, partition, int(head.log_end[partition]), rule)
        to_seal = [
            segment
            for segment in segments
            if segment.rows and not segment.sealed and segment.end <= stable[partition]
            if not segment.active or due(segment, rule, settings.now_ms)
        ]
        closed += to_seal
        if configs.is_compacted and partition not in skipped:
            bases = {base for segment in to_seal for base in slices.base[_rows(segment)].tolist()}
            sealed = as_sealed(segments, slices, bases, int(head.log_end[partition]))
            dirty.append(_dirty(sealed, slices, CleanerOffsets.of(head, partition), configs, settings.now_ms))
    since_ms = [_closed_ms(segment, rule, settings.now_ms) for segment in closed]
    return Backlog(
        unsealed_bytes=int(table.size[~table.sealed()].sum()),
        dirty_ratio=max((item.state.ratio for item in dirty), default=None),
        due=(*_sealing(closed, since_ms, configs), *_cleaning([item for item in dirty if item.state.chosen], configs)),
    )


class _Dirty(NamedTuple):
    """The dirty part of a partition, and the time of its oldest record where `max.compaction.lag.ms` has passed."""

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


def _rows(segment: Segment) -> slice:
    return slice(segment.first_row, segment.first_row + segment.rows)


def _closed_ms(segment: Segment, rule: RollRule, now_ms: int) -> int:
    """Return about when a segment was closed: by its age, else with its newest record; -1: not known."""
    if segment.first_ts >= 0:
        rolled_ms = segment.first_ts + rule.lifetime_ms(segment.partition, segment.base)
        if rolled_ms <= now_ms:
            return rolled_ms
    return segment.max_ts


def _sealing(closed: Sequence[Segment], since_ms: Sequence[int], configs: TopicConfigs) -> list[Due]:
    if not closed:
        return []
    size = size_text(sum(segment.size for segment in closed))
    why = f"{count(len(closed), 'closed segment')} ({size}) not sealed, by segment.bytes or segment.ms"
    return [Due(COMPACT, why, min(since_ms), allowed_wait_ms(configs.integer("segment.ms")), sealing=True)]


def _cleaning(chosen: Sequence[_Dirty], configs: TopicConfigs) -> list[Due]:
    if not chosen:
        return []
    oldest_ms = [item.oldest_ms for item in chosen if item.oldest_ms is not None]
    if oldest_ms:
        lag_ms = configs.max_compaction_lag_ms
        why = "records not compacted, older than max.compaction.lag.ms"
        return [Due(COMPACT, why, min(oldest_ms) + lag_ms, allowed_wait_ms(lag_ms))]
    least = float(configs.text("min.cleanable.dirty.ratio"))
    ratio = max(item.state.ratio for item in chosen)
    return [Due(COMPACT, f"dirty ratio {ratio:.2f}, above min.cleanable.dirty.ratio {least:.2f}")]
