"""Select the segments that expire. This module implements Kafka's retention rules as a pure function.

Three rules are applied one after another. Each rule is applied to the remaining segments, from the oldest segment up to
the first segment that does not expire:

| reason | a segment expires if                                                  | applies to                   |
|--------|-----------------------------------------------------------------------|------------------------------|
| start  | the next segment starts at or below the log start (delete-records)    | all topics                   |
| size   | the later segments have at least `retention.bytes`                    | topics with policy `delete`  |
| time   | its maximum timestamp is older than `retention.ms`                    | topics with policy `delete`  |

Segments above the high watermark do not expire, and an empty last segment is kept. The active segment expires like
other segments if all its records have expired; the log then starts at its end. A future timestamp keeps its segment and
all later segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment

START, SIZE, TIME = "start", "size", "time"
REASONS = {START: "below the log start offset", SIZE: "retention.bytes", TIME: "retention.ms"}


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that expires, and the reason, which is one of `REASONS`."""

    segment: Segment
    reason: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """The expiry of a partition: the segments that expire, and the new log start, which is never below the old log
    start.
    """

    partition: int
    log_start: int
    expired: tuple[Expired, ...]


def plan_expiry(
    segments: Sequence[Segment],
    *,
    partition: int,
    log_start: int,
    log_end: int,
    high_watermark: int,
    configs: TopicConfigs,
    now_ms: int,
    modified_ms: Callable[[Segment], int] | None = None,
) -> Expiry:
    """Select the segments of a partition that expire.

    `segments` are in offset order. `modified_ms` returns the modification time of the file of a segment without
    timestamps. If `modified_ms` is None, such segments do not expire by time.
    """
    remaining = deque(segments)
    expired: list[Expired] = []
    excess = 0

    def breached(segment: Segment) -> bool:
        return len(remaining) > 1 and remaining[1].base <= log_start

    def too_large(segment: Segment) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    def too_old(segment: Segment) -> bool:
        if segment.max_ts < 0 and modified_ms is None:
            return False
        time = segment.max_ts if modified_ms is None or segment.max_ts >= 0 else modified_ms(segment)
        return now_ms - time > configs.retention_ms

    def apply(reason: str, has_expired: Callable[[Segment], bool]) -> None:
        nonlocal log_start
        new_start = None
        while remaining:
            following = remaining[1].base if len(remaining) > 1 else log_end
            empty = len(remaining) == 1 and remaining[0].size == 0
            if high_watermark < following or empty or not has_expired(remaining[0]):
                break
            expired.append(Expired(remaining.popleft(), reason))
            # If no segment remains, the log starts at its end, as if a new segment had been rolled.
            new_start = following
        if new_start is not None:
            log_start = max(log_start, min(new_start, high_watermark))

    apply(START, breached)
    if configs.is_deleting:
        excess = sum(segment.size for segment in remaining) - configs.retention_bytes
        if configs.retention_bytes >= 0 and excess >= 0:
            apply(SIZE, too_large)
        if configs.retention_ms >= 0:
            apply(TIME, too_old)
    return Expiry(partition, log_start, tuple(expired))
