"""Segments, the unit of Kafka's rules for sealing, retention and compaction, from the slice table alone.

A sealed slice is a segment. Unsealed slices are cut into segments where Kafka would have rolled if each slice had
been one append. Of its five reasons three are known here: the size, the time, and relative offsets beyond 31 bits.
Whether an index is full is known only where it is written, so sealing rolls once more for that, and inside a slice
that alone is larger than a segment.

Kafka counts a segment's time from the greatest timestamp of its first append. A merged slice is many appends, maybe
over days: counted so, a segment that should span a week would span nearly two. So time counts from its smallest one,
but, as records may come late, not from before the newest record of the slice before it.

A partition always has exactly one active segment, the last one: the unsealed slices after the last roll, or, where
everything is sealed, an empty segment at the log end. All others are closed: nothing is appended to them any more.
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
from sparklog.log.state.slice_table import Slices
from sparklog.log.state.slices import MERGE_TIER_MASK, SliceFlag

NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class RollRule:
    """The limits that end a segment: size (bytes), time span (ms), and the bound of the random part of that span.

    Kafka draws that part for each segment; here it follows from topic id, partition and base offset, so that every
    run of every job cuts a partition at the same offsets.
    """

    segment_bytes: int
    segment_ms: int
    jitter_ms: int = 0
    topic_id: str = ""

    @classmethod
    def of(cls, configs: TopicConfigs, topic_id: str) -> RollRule:
        """From a topic's effective configs. On a compacted topic `max.compaction.lag.ms` also bounds a segment's time.

        The jitter is bounded by that, too: Kafka lets it exceed the bound, and then rolls at every append.
        """
        segment_ms = configs.integer("segment.ms")
        if configs.is_compacted:
            segment_ms = min(segment_ms, configs.max_compaction_lag_ms)
        jitter_ms = min(configs.integer("segment.jitter.ms"), segment_ms)
        return cls(configs.segment_bytes, segment_ms, jitter_ms, topic_id)

    def lifetime_ms(self, partition: int, base: int) -> int:
        """Return how much later than a segment's first append another one may be stamped and still go into it (ms)."""
        if self.jitter_ms == 0:
            return self.segment_ms
        drawn = hashlib.blake2b(f"{self.topic_id}/{partition}/{base}".encode(), digest_size=8).digest()
        return self.segment_ms - int.from_bytes(drawn, "big") % self.jitter_ms


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a partition; offsets `[base, end)`, times in ms (-1: none), sizes in bytes."""

    partition: int
    base: int
    next_base: int  # of the segment that follows (a gap is legal); the log end for the last one
    end: int
    first_row: int  # of the partition's slices that it is made of
    rows: int  # none in an empty active segment
    size: int
    first_ts: int  # what time rolling counts from, about the greatest timestamp of its first append
    max_ts: int
    sealed: bool  # one file of Kafka's own form
    active: bool  # the last one, which appends still go into

    @property
    def span(self) -> slice:
        return slice(self.first_row, self.first_row + self.rows)


def segments_of(slices: Slices, partition: int, log_end: int, rule: RollRule) -> list[Segment]:
    """Return a partition's segments in order, the active one last; aborted slices count until they are dropped."""
    slices = _settled(slices)
    sealed = slices.sealed().tolist()
    base, end, size, max_ts = (getattr(slices, name).tolist() for name in ("base", "end", "size", "max_ts"))
    # `max_ts` of a slice without timestamps is the time of its append, which counts only if no slice has timestamps.
    real_ts = np.where(slices.min_ts >= 0, slices.max_ts, NO_TIMESTAMP).tolist()
    append_ts = _append_ts(slices).tolist()
    starts: list[int] = []
    filled, limit_ts, times = 0, 0, real_ts
    for row in range(len(base)):
        fresh = (
            not starts
            or sealed[row]
            or sealed[row - 1]
            or filled + size[row] > rule.segment_bytes
            or (append_ts[starts[-1]] > NO_TIMESTAMP and times[row] > limit_ts)
            or end[row] - 1 - base[starts[-1]] > MAX_RELATIVE_OFFSET
        )
        if fresh:
            starts.append(row)
            filled = 0
            limit_ts = append_ts[row] + rule.lifetime_ms(partition, base[row])
            times = real_ts if real_ts[row] > NO_TIMESTAMP else max_ts
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
                max_ts=max(real_ts[first:stop] if max(real_ts[first:stop]) > NO_TIMESTAMP else max_ts[first:stop]),
                sealed=sealed[first],
                active=last and not sealed[first],
            )
        )
    if not segments or not segments[-1].active:
        segments.append(Segment(partition, log_end, log_end, log_end, len(base), 0, 0, -1, -1, False, True))
    return segments


def _settled(slices: Slices) -> Slices:
    """Return the slices of one partition with append times as if no clock had been far ahead.

    One that is far above what follows was given by a wrong clock, and must not keep its segment, and all after it,
    until that time has come.
    """
    logged = (slices.flags & int(SliceFlag.LOG_APPEND_TIME) > 0) & (slices.max_ts > NO_TIMESTAMP)
    following = np.minimum.accumulate(np.where(logged, slices.max_ts, INT64_MAX)[::-1])[::-1]
    wrong = logged & (slices.max_ts - MAX_AHEAD_MS > following)
    if not wrong.any():
        return slices
    return replace(slices, columns={**slices.columns, "max_ts": np.where(wrong, following, slices.max_ts)})


def _append_ts(slices: Slices) -> npt.NDArray[np.int64]:
    """Return about the greatest timestamp of each slice's first append, for all slices of one partition; -1: none."""
    before = np.append(NO_TIMESTAMP, slices.max_ts[:-1])[: len(slices)]
    first = np.minimum(np.maximum(slices.min_ts, before), slices.max_ts)
    merged = (slices.flags & MERGE_TIER_MASK > 0) & (slices.min_ts > NO_TIMESTAMP)
    return np.where(merged, first, slices.max_ts).astype(np.int64)


def due(segment: Segment, rule: RollRule, now_ms: int) -> bool:
    """True if an append that arrived now, stamped with the clock, would roll this segment (`segment.ms`).

    Kafka looks only when something is appended; here the clock also closes a quiet partition's last records, or they
    would never be sealed.
    """
    if not segment.active or segment.rows == 0 or segment.first_ts <= NO_TIMESTAMP:
        return False
    return now_ms - segment.first_ts > rule.lifetime_ms(segment.partition, segment.base)
