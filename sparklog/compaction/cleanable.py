"""Bounds of a cleaning pass over a partition, and the decision if one is due: Kafka's LogCleanerManager.

The log falls into three parts (docs/reference/kafka-format.md, the range of a pass):

    clean | dirty, cleanable | not cleanable yet
          first dirty        first uncleanable

Clean is what lies below the cleaner checkpoint, `Head.cleaned_through`. Not cleanable is what follows the last stable
offset, the active segment, and segments that `min.compaction.lag.ms` protects; the bound is moved down to a segment's
base, as a segment is cleaned whole or not at all.

Unsealed slices count as the active segment, even if Kafka would have rolled it already. A run seals before it cleans,
so this makes no difference there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment
from sparklog.log.state.topic_state import Head


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The clean, dirty and uncleanable parts of one partition; offsets, and bytes of whole segments before the pass.

    * `first_dirty`: where the pass begins to collect keys; `first_uncleanable`: base of the first segment it leaves
    * `clean_bytes`: segments that begin below `first_dirty`; `cleanable_bytes`: those that hold dirty offsets below
      `first_uncleanable` (one that straddles `first_dirty` counts in both, as in Kafka)
    * `ratio`: cleanable of both, 0.0 where there is nothing
    * `overdue`: the oldest dirty segment began longer than `max.compaction.lag.ms` ago
    * `chosen`: whether a pass is due
    * `segments`: the closed segments below `first_uncleanable`, clean ones included: a pass rewrites them, too
    """

    partition: int
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    ratio: float
    overdue: bool
    chosen: bool
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class CleanerOffsets:
    """The offsets of one partition that bound a pass; `cleaned_through` is the cleaner checkpoint."""

    partition: int
    cleaned_through: int
    log_start: int
    log_end: int
    last_stable: int

    @classmethod
    def of(cls, head: Head, partition: int) -> CleanerOffsets:
        return cls(
            partition,
            cleaned_through=int(head.cleaned_through[partition]),
            log_start=int(head.log_start[partition]),
            log_end=int(head.log_end[partition]),
            last_stable=int(head.last_stable()[partition]),
        )


def cleanable(
    segments: Sequence[Segment],
    offsets: CleanerOffsets,
    configs: TopicConfigs,
    now_ms: int,
    first_batch_ts: Callable[[Segment], int],
) -> Cleanable:
    """Part one partition's segments (in offset order, the active one last) and decide if a pass is due.

    `cleaned_through` counts only inside `[log_start, log_end]`; outside of it Kafka starts over at the log start.
    `first_batch_ts` returns the greatest timestamp of a segment's first batch in ms, read from the file. It is called
    only for dirty segments of a topic that sets `max.compaction.lag.ms`.
    """
    closed = _sealed_prefix(segments)
    active_base = segments[len(closed)].base if len(closed) < len(segments) else offsets.log_end
    in_log = offsets.log_start <= offsets.cleaned_through <= offsets.log_end
    first_dirty = offsets.cleaned_through if in_log else offsets.log_start
    dirty = _from_offset(closed, first_dirty)

    limits = [offsets.last_stable, active_base]
    min_lag = configs.min_compaction_lag_ms
    if min_lag > 0:
        limits += [each.base for each in dirty if each.max_ts > now_ms - min_lag][:1]
    uncleanable = max(first_dirty, min(limits))
    first_uncleanable = next((each.base for each in _from_offset(closed, uncleanable)), active_base)

    clean_bytes = sum(each.size for each in closed if each.base < first_dirty)
    cleanable_bytes = sum(each.size for each in dirty if each.base < first_uncleanable)
    total = clean_bytes + cleanable_bytes
    ratio = cleanable_bytes / total if total else 0.0
    overdue = _overdue(dirty, configs, now_ms, first_batch_ts)
    min_ratio = float(configs.text("min.cleanable.dirty.ratio"))
    return Cleanable(
        partition=offsets.partition,
        first_dirty=first_dirty,
        first_uncleanable=first_uncleanable,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=ratio,
        overdue=overdue,
        chosen=total > 0 and (ratio > min_ratio or (overdue and cleanable_bytes > 0)),
        segments=tuple(each for each in closed if each.base < first_uncleanable),
    )


def _sealed_prefix(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Return the segments before the first that is active or not sealed."""
    for i, each in enumerate(segments):
        if each.active or not each.sealed:
            return segments[:i]
    return segments


def _from_offset(closed: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """Return the closed segments from the one that contains `offset` on: a segment reaches to the base of the next."""
    for i, each in enumerate(closed):
        if each.next_base > offset:
            return closed[i:]
    return ()


def _overdue(
    dirty: Sequence[Segment], configs: TopicConfigs, now_ms: int, first_batch_ts: Callable[[Segment], int]
) -> bool:
    if "max.compaction.lag.ms" not in configs.explicit:
        return False
    oldest = now_ms - configs.max_compaction_lag_ms
    return any(0 < first_batch_ts(each) < oldest for each in dirty)
