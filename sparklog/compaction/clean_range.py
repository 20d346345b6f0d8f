"""The range of a cleaning pass over a partition, and the check whether a pass is due, as in Kafka's LogCleanerManager.

The log of a partition has three parts (see "the range of a pass" in docs/reference/kafka-format.md):

    clean | dirty, cleanable | not cleanable yet
          first dirty        first uncleanable

Offsets below the cleaner checkpoint, `TopicState.first_dirty_offset`, are clean. Records above the last stable offset,
the active segment, and segments that `min.compaction.lag.ms` protects are not cleanable yet. The boundary is rounded
down to the base offset of a segment. Unsealed slices are part of the active segment even if Kafka would have rolled it,
because a run seals before it cleans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

import numpy as np

from sparklog.errors import NotFound
from sparklog.format.batch_scan import begins_with_header, single_header
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.format.segment_indexes import MAX_RELATIVE_OFFSET
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.topic_state import TopicState
from sparklog.maintenance.work_items import Settings
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The clean, dirty and uncleanable parts of a partition. Offsets and sizes of complete segments are those before
    the pass.
    """

    partition: int
    first_dirty: int  # offset at which the pass starts to collect keys
    first_uncleanable: int  # base of the first segment that the pass does not rewrite
    clean_bytes: int  # bytes of segments that begin below `first_dirty`
    cleanable_bytes: int  # bytes of segments with dirty offsets below `first_uncleanable`
    ratio: float  # cleanable bytes divided by the sum of both sizes, or 0.0
    overdue: bool  # whether the oldest dirty segment is older than `max.compaction.lag.ms`
    is_due: bool  # whether a pass is due
    segments: tuple[Segment, ...]  # closed segments below `first_uncleanable`, including clean segments


@dataclass(frozen=True, slots=True)
class CleanerOffsets:
    """The offsets of a partition that limit a pass. `first_dirty_offset` is the cleaner checkpoint."""

    partition: int
    first_dirty_offset: int
    log_start: int
    log_end: int
    last_stable: int

    @classmethod
    def of(cls, state: TopicState, partition: int) -> CleanerOffsets:
        return cls(
            partition,
            first_dirty_offset=int(state.first_dirty_offset[partition]),
            log_start=int(state.log_start[partition]),
            log_end=int(state.log_end[partition]),
            last_stable=int(state.last_stable()[partition]),
        )


def cleanable(
    segments: Sequence[Segment],
    offsets: CleanerOffsets,
    configs: TopicConfigs,
    now_ms: int,
    first_batch_ts: Callable[[Segment], int],
) -> Cleanable:
    """Divide the segments of a partition into parts, and determine whether a pass is due. The segments are in offset
    order, and the last segment is active.

    If the first dirty offset is inside a segment, the segment is both clean and cleanable, as in Kafka. A cleaner
    checkpoint outside of `[log_start, log_end]` is ignored. As in Kafka, the pass then starts at the log start.
    `first_batch_ts` returns the largest timestamp (ms) of a segment's first batch, which it reads from the file. It is
    called only for dirty segments, and only if `max.compaction.lag.ms` is less than `now_ms`, which the built-in
    default is not.
    """
    closed = list(takewhile(lambda segment: segment.sealed and not segment.active, segments))
    active_base = segments[len(closed)].base if len(closed) < len(segments) else offsets.log_end
    in_log = offsets.log_start <= offsets.first_dirty_offset <= offsets.log_end
    first_dirty = offsets.first_dirty_offset if in_log else offsets.log_start
    dirty = _from_offset(closed, first_dirty)

    limits = [offsets.last_stable, active_base]
    min_lag = configs.min_compaction_lag_ms
    if min_lag > 0:
        limits += [segment.base for segment in dirty if segment.max_ts > now_ms - min_lag][:1]
    uncleanable = max(first_dirty, min(limits))
    first_uncleanable = next((segment.base for segment in _from_offset(closed, uncleanable)), active_base)

    clean_bytes = sum(segment.size for segment in closed if segment.base < first_dirty)
    cleanable_bytes = sum(segment.size for segment in dirty if segment.base < first_uncleanable)
    total = clean_bytes + cleanable_bytes
    ratio = cleanable_bytes / total if total else 0.0
    oldest = now_ms - configs.max_compaction_lag_ms
    overdue = oldest > 0 and any(0 < first_batch_ts(segment) < oldest for segment in dirty)
    min_ratio = float(configs.text("min.cleanable.dirty.ratio"))
    return Cleanable(
        partition=offsets.partition,
        first_dirty=first_dirty,
        first_uncleanable=first_uncleanable,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=ratio,
        overdue=overdue,
        is_due=total > 0 and (ratio > min_ratio or (overdue and cleanable_bytes > 0)),
        segments=tuple(segment for segment in closed if segment.base < first_uncleanable),
    )


def _from_offset(closed: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """Return the closed segments, starting with the segment that contains `offset`. A segment ends at the base offset
    of the next segment.
    """
    return list(dropwhile(lambda segment: segment.next_base <= offset, closed))


def group_segments(
    segments: Sequence[Segment], index_sizes: Sequence[tuple[int, int]], configs: TopicConfigs, first_uncleanable: int
) -> list[list[Segment]]:
    """Group adjacent segments, as Kafka's `Cleaner.groupSegmentsBySize` does. Each group becomes one segment.

    A group ends before a segment that would make the log larger than `segment.bytes`, an index larger than
    `segment.index.bytes`, or a relative offset larger than 31 bits (see docs/reference/kafka-format.md). The sizes are
    the sizes before the pass, so a group that loses most of its records becomes a small segment.

    Args:
        segments: The segments whose base offset is below the end offset of the pass, in offset order.
        index_sizes: The sizes in bytes of the `.index` and `.timeindex` of each segment.
        configs: The configs of the topic.
        first_uncleanable: The base offset of the segment after the last segment.
    """
    max_bytes = configs.segment_bytes
    max_index_bytes = configs.integer("segment.index.bytes")
    groups: list[list[Segment]] = []
    log = index = time_index = 0
    for i, (segment, (index_size, time_size)) in enumerate(zip(segments, index_sizes, strict=True)):
        # This upper bound can be computed without reading the segment. In rare cases, the bound ends a group earlier
        # than necessary.
        last_offset = (segments[i + 1].base if i + 1 < len(segments) else first_uncleanable) - 1
        if (
            groups
            and log + segment.size <= max_bytes
            and index + index_size <= max_index_bytes
            and time_index + time_size <= max_index_bytes
            and (segment.size == 0 or last_offset - groups[-1][0].base <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            log = index = time_index = 0
        log, index, time_index = log + segment.size, index + index_size, time_index + time_size
    return groups


def first_batch_timestamp(store: Store, source: PlannedSlice) -> int:
    """Return the largest timestamp (ms) of a segment's first batch, or -1 if it has no timestamp, or if the segment is
    missing or damaged.
    """
    try:
        data = store.get(source.file, source.position, min(HEADER_BYTES, source.size))
    except NotFound:
        return -1
    return int(single_header(data).max_timestamp[0]) if begins_with_header(data) else -1


def keyless_by_default(snapshot: Snapshot, settings: Settings) -> dict[int, str]:
    """Return the partitions with keyless records that only a default would compact. Each has a reason to reject it."""
    configs = settings.configs_of(snapshot.topic, snapshot.state.configs)
    if not configs.is_compacted or "cleanup.policy" in snapshot.state.configs.explicit:
        return {}
    rows = snapshot.slices.all()
    partitions = np.unique(rows.partition[(rows.flags & int(SliceFlag.HAS_NULL_KEYS)) != 0])
    reason = (
        f"topic '{snapshot.topic}' contains records without a key, which compaction would drop, and is compacted only "
        "because of the default log.cleanup.policy; to keep the records, set cleanup.policy=delete on the topic; to "
        "drop them, set cleanup.policy=compact with force"
    )
    return dict.fromkeys(partitions.tolist(), reason)
