"""Segments. As in Kafka, sealing, retention and compaction apply to entire segments.

Segments are derived from the slice table alone. A sealed slice is a segment. Unsealed slices are divided into segments
as if each slice had been one append in Kafka. Three of Kafka's five reasons to roll are applied here: size, time, and
relative offsets beyond 31 bits. Whether an index is full is known only when the index is written. Therefore, sealing
rolls a segment if the index is full, and also if a slice is larger than a segment.

Kafka measures the age of a segment from the maximum timestamp of its first append. A merged slice consists of many
appends, which may span days. With Kafka's rule, a segment that is limited to one week could therefore span almost two
weeks. Instead, the age of a merged slice is measured from its minimum timestamp or, if it is later, from the maximum
timestamp of the previous slice, because records may arrive late.

A partition always has exactly one active segment, which is the last segment. It consists of the unsealed slices after
the last roll or, if all slices are sealed, is an empty segment at the log end. All other segments are closed, which
means that they no longer receive appends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparklog.format.segment_indexes import MAX_RELATIVE_OFFSET
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slice_table import NO_TIMESTAMP, Slices
from sparklog.log.state.slices import MERGE_TIER_MASK, SliceFlag


@dataclass(frozen=True, slots=True)
class RollRule:
    """The limits of a segment: size (bytes), time span (ms), and the maximum random reduction of the time span (ms).

    Kafka chooses a random reduction for each segment. sparklog derives the reduction from the topic id, partition and
    base offset, so that all jobs roll segments at the same offsets.
    """

    segment_bytes: int
    segment_ms: int
    jitter_ms: int = 0
    topic_id: str = ""

    @classmethod
    def of(cls, configs: TopicConfigs, topic_id: str) -> RollRule:
        """Return the rule for a topic's effective configs.

        For a compacted topic, `max.compaction.lag.ms` also limits the time span of a segment. Unlike in Kafka, this
        config also limits the jitter, because Kafka rolls a segment at every append if the jitter is larger.
        """
        segment_ms = configs.integer("segment.ms")
        if configs.is_compacted:
            segment_ms = min(segment_ms, configs.max_compaction_lag_ms)
        jitter_ms = min(configs.integer("segment.jitter.ms"), segment_ms)
        return cls(configs.segment_bytes, segment_ms, jitter_ms, topic_id)

    def lifetime_ms(self, partition: int, base: int) -> int:
        """Return the maximum time (ms) between the timestamps of a segment's first append and later appends."""
        if self.jitter_ms == 0:
            return self.segment_ms
        drawn = hashlib.blake2b(f"{self.topic_id}/{partition}/{base}".encode(), digest_size=8).digest()
        return self.segment_ms - int.from_bytes(drawn, "big") % self.jitter_ms


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a partition with offsets `[base, end)`.

    Times are in ms (-1 if unknown), and the size is in bytes.
    """

    partition: int
    base: int
    next_base: int  # base offset of the next segment (gaps are allowed), or the log end
    end: int
    first_row: int  # index of its first slice among the partition's slices
    rows: int  # number of slices; 0 for an empty active segment
    size: int
    first_ts: int  # start of the segment's time span, approximately the maximum timestamp of its first append
    max_ts: int
    sealed: bool  # True if the segment is stored as a Kafka segment file
    active: bool  # True for the last segment, which receives appends

    @property
    def span(self) -> slice:
        return slice(self.first_row, self.first_row + self.rows)


def segments_of(slices: Slices, partition: int, log_end: int, rule: RollRule) -> list[Segment]:
    """Return a partition's segments in order. The active segment is last. Aborted slices are included until they are
    removed.
    """
    slices = _without_future_append_times(slices)
    sealed = slices.sealed().tolist()
    base, end, size, max_ts = (getattr(slices, name).tolist() for name in ("base", "end", "size", "max_ts"))
    # The append times of slices without timestamps are used only if no slice of the segment has timestamps.
    record_ts = slices.record_max_ts.tolist()
    append_ts = _append_ts(slices).tolist()
    starts: list[int] = []
    filled, limit_ts, times = 0, 0, record_ts
    for row in range(len(base)):
        starts_segment = (
            not starts
            or sealed[row]
            or sealed[row - 1]
            or filled + size[row] > rule.segment_bytes
            or (append_ts[starts[-1]] > NO_TIMESTAMP and times[row] > limit_ts)
            or end[row] - 1 - base[starts[-1]] > MAX_RELATIVE_OFFSET
        )
        if starts_segment:
            starts.append(row)
            filled = 0
            limit_ts = append_ts[row] + rule.lifetime_ms(partition, base[row])
            times = record_ts if record_ts[row] > NO_TIMESTAMP else max_ts
        filled += size[row]
    bounds = [*starts, len(base)]
    segments = []
    for first, stop in pairwise(bounds):
        last = stop == len(base)
        segments.append(
            Segment(
                partition=partition,
                base=base[first],
                next_base=log_end if last else base[stop],
                end=end[stop - 1],
                first_row=first,
                rows=stop - first,
                size=sum(size[first:stop]),
                first_ts=append_ts[first],
                max_ts=max(record_ts[first:stop])
                if max(record_ts[first:stop]) > NO_TIMESTAMP
                else max(max_ts[first:stop]),
                sealed=sealed[first],
                active=last and not sealed[first],
            )
        )
    if not segments or not segments[-1].active:
        segments.append(Segment(partition, log_end, log_end, log_end, len(base), 0, 0, -1, -1, False, True))
    return segments


def _without_future_append_times(slices: Slices) -> Slices:
    """Return one partition's slices. Reduce append times that are far above a later append time to that time.

    An append time that is far in the future was set by a wrong clock. It must not prevent its segment and all later
    segments from expiring.
    """
    logged = (slices.flags & int(SliceFlag.LOG_APPEND_TIME) > 0) & (slices.max_ts > NO_TIMESTAMP)
    following = np.minimum.accumulate(np.where(logged, slices.max_ts, INT64_MAX)[::-1])[::-1]
    wrong = logged & (slices.max_ts - MAX_AHEAD_MS > following)
    if not wrong.any():
        return slices
    return replace(slices, columns={**slices.columns, "max_ts": np.where(wrong, following, slices.max_ts)})


def _append_ts(slices: Slices) -> npt.NDArray[np.int64]:
    """Return the approximate maximum timestamp of each slice's first append, for all slices of one partition. The
    result is -1 for a slice without timestamps.
    """
    before = np.append(NO_TIMESTAMP, slices.max_ts[:-1])[: len(slices)]
    first = np.minimum(np.maximum(slices.min_ts, before), slices.max_ts)
    merged = (slices.flags & MERGE_TIER_MASK > 0) & (slices.min_ts > NO_TIMESTAMP)
    return np.where(merged, first, slices.max_ts).astype(np.int64)


def is_roll_due(segment: Segment, rule: RollRule, now_ms: int) -> bool:
    """Return True if an append at this time would roll the segment because of `segment.ms`.

    Kafka checks this only when it appends. sparklog also closes the last segment of an idle partition at this time,
    because the segment would otherwise never be sealed.
    """
    if not segment.active or segment.rows == 0 or segment.first_ts <= NO_TIMESTAMP:
        return False
    return now_ms - segment.first_ts > rule.lifetime_ms(segment.partition, segment.base)
