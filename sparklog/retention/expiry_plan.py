"""Choose the segments that expire: Kafka's retention rules as a pure function.

Three rules run one after another, each over what the ones before have left, from the oldest segment to the first that
stays:

| reason | a segment expires if                                                  | applies              |
|--------|-----------------------------------------------------------------------|----------------------|
| start  | the next one begins at or below the log start (delete-records)        | always               |
| size   | what is left without it is at least `retention.bytes`                 | policy with `delete` |
| time   | its largest timestamp is more than `retention.ms` ago                 | policy with `delete` |

No rule passes the high watermark, and an empty last segment stays. The active segment goes like any other once all
of it has expired: the log then starts at its end. A timestamp from the future keeps its segment and all after it.
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
    """A segment that expires, and the rule that takes it: one of `REASONS`."""

    segment: Segment
    reason: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """The expiry of one partition: its new log start, never below the old one, and the segments that expire."""

    partition: int
    log_start: int
    gone: tuple[Expired, ...]


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
    """Choose what expires of a partition's segments, in order. `modified_ms`: their files' times (None: they stay)."""
    left = deque(segments)
    gone: list[Expired] = []
    excess = 0

    def breached(segment: Segment) -> bool:
        return len(left) > 1 and left[1].base <= log_start

    def too_large(segment: Segment) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    def too_old(segment: Segment) -> bool:
        if segment.max_ts < 0 and modified_ms is None:
            return False
        time = segment.max_ts if modified_ms is None or segment.max_ts >= 0 else modified_ms(segment)
        return now_ms - time > configs.retention_ms

    def scan(reason: str, goes: Callable[[Segment], bool]) -> None:
        nonlocal log_start
        survivor = None
        while left:
            following = left[1].base if len(left) > 1 else log_end
            empty = len(left) == 1 and left[0].size == 0
            if high_watermark < following or empty or not goes(left[0]):
                break
            gone.append(Expired(left.popleft(), reason))
            # With none left the log is rolled first: a new segment at its end is the one that survives.
            survivor = following
        if survivor is not None:
            log_start = max(log_start, min(survivor, high_watermark))

    scan(START, breached)
    if configs.is_deleting:
        excess = sum(segment.size for segment in left) - configs.retention_bytes
        if configs.retention_bytes >= 0 and excess >= 0:
            scan(SIZE, too_large)
        if configs.retention_ms >= 0:
            scan(TIME, too_old)
    return Expiry(partition, log_start, tuple(gone))
