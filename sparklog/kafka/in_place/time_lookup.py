"""The first record at or after a time.

The rule: the first record in offset order, at or above the log start, whose timestamp is >= the target; markers and
aborted records count. Batches are skipped by the maxTimestamp in their headers, so that only the batch with the
answer is decoded (and one whose late records lie below the log start). Kafka looks only into the first segment that
can hold an answer and so sometimes has none where this rule has one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparklog.errors import Corrupt
from sparklog.kafka.in_place.damage import SKIP
from sparklog.kafka.in_place.partition_state import PartitionState
from sparklog.kafka.in_place.segment_file import BatchWalk, SegmentFile, Window
from sparklog.kafka.in_place.segment_state import SegmentState
from sparklog.kafka.in_place.sound_batches import sound_windows
from sparklog.log.state.view import TimestampOffset


def first_at_or_after(state: PartitionState, timestamp: int, log_start: int) -> TimestampOffset | None:
    """By the rule above, anywhere below the log's end; timestamps in ms.

    `Corrupt` if the batch that may hold the answer is damaged, unless damage is skipped.
    """
    for segment in state.segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= log_start:
            continue
        with SegmentFile(segment.name.path) as file:
            found = _in_segment(segment, file, timestamp, log_start, skipping=state.policy == SKIP)
        if found is not None:
            return found
    return None


def _in_segment(
    segment: SegmentState, file: SegmentFile, timestamp: int, log_start: int, *, skipping: bool
) -> TimestampOffset | None:
    for start, end in segment.blocks_with(timestamp):
        for window in _windows(segment, file, start, end, skipping):
            found = _in_window(file, window, end, timestamp, log_start, skipping)
            if found is not None:
                return found
            if window.start + int(window.headers.position[-1] + window.headers.size[-1]) >= end:
                break
    return None


def _windows(segment: SegmentState, file: SegmentFile, start: int, end: int, skipping: bool) -> Iterator[Window]:
    if not skipping:
        return _unbroken(file, start, end)
    return sound_windows(
        file,
        start,
        segment.name.base,
        walk=lambda at: BatchWalk(file, at, bodies=True),
        decide=lambda damage: True,
    )


def _unbroken(file: SegmentFile, start: int, end: int) -> Iterator[Window]:
    """Windows up to position `end`. `Corrupt` if something in between is no batch that can be read."""
    walk = BatchWalk(file, start, bodies=True)
    yield from walk
    if walk.end < end:
        raise Corrupt(walk.reason, file=file.path, position=walk.end)


def _in_window(
    file: SegmentFile, window: Window, end: int, timestamp: int, log_start: int, skipping: bool
) -> TimestampOffset | None:
    from sparklog.format.decode import decode

    headers = window.headers
    candidates = (
        (headers.max_timestamp >= timestamp)
        & (headers.last_offset >= log_start)
        & (headers.count > 0)
        & (window.start + headers.position < end)
    )
    for row in np.flatnonzero(candidates).tolist():
        try:
            records = decode(
                window.data,
                headers[row : row + 1],
                columns=("offset", "timestamp"),
                start_offset=log_start,
                file=file.path,
                file_position=window.start,
            )
        except Corrupt:
            if not skipping:
                raise
            continue
        late = np.flatnonzero(records.timestamp >= timestamp)
        if len(late):
            return TimestampOffset(int(records.offset[late[0]]), int(records.timestamp[late[0]]))
    return None
