"""Look up records by timestamp. The result is the first record at or after a time or an offset, or the record with the
maximum timestamp.

As in Kafka, the result is the first record, in offset order, whose timestamp is at or after the target, between the log
start offset and the end of the isolation level. Records of aborted transactions and markers are included. Timestamps
may decrease. The slice table contains the maximum timestamp of each slice, and the footer contains the index of the
slice, so a lookup takes two reads. A sealed segment has a `.timeindex` and an `.index` instead of a footer, so a lookup
takes three reads.

The maximum timestamp (Kafka's ListOffsets with MAX_TIMESTAMP) is the latest target with a result. All partitions of a
topic are searched together. A range of a day in milliseconds takes about thirty steps up and thirty steps down, most of
which only need metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.batch_walk import Window
from sparklog.format.crc32c import crc32c
from sparklog.log.read.damaged_slices import skipped, valid_batches
from sparklog.log.read.planned_slices import PlannedSlice, planned_ranges, planned_slices
from sparklog.log.read.read_plan import NativeReadPart, bounds_of, check_isolation, check_partition, read_parts
from sparklog.log.read.segment_seek import read_offset_index, read_time_index, seek_position_for_timestamp
from sparklog.log.read.skipped import OnSkipped
from sparklog.log.read.slice_files import (
    MissingFile,
    MissingFiles,
    SliceFile,
    StoredSlice,
    index_of,
    read_range,
    seek_in_segment,
    valid_footer,
    whole_batches,
)
from sparklog.log.state.slice_table import ReadLatest, Snapshot
from sparklog.log.state.view import READ_UNCOMMITTED, LogView, OffsetRange, TimestampOffset
from sparklog.storage.store import Store

SMALL_BYTES = 16 << 10
"""Maximum size of a slice that is decoded entirely to find one record."""
MAX_SINGLE_LOOKUPS = 16
"""Maximum number of records to look up separately, without loading pyarrow. Computing a group's lag requires few
lookups.
"""
ANY_TIME = -1
"""Kafka's "no timestamp" value, which is the minimum timestamp of a record."""


def offsets_for_timestamps(
    snapshot: Snapshot,
    targets: Mapping[int, int],
    isolation: str = READ_UNCOMMITTED,
    *,
    newer: ReadLatest,
    on_skipped: OnSkipped | None = None,
) -> dict[int, TimestampOffset | None]:
    """Return, for each partition, the first record whose timestamp is at or after the target (ms), or None if there is
    no such record.
    """
    targets_by_partition = {partition: (target, 0) for partition, target in targets.items()}
    return _lookup(snapshot, targets_by_partition, isolation, newer, on_skipped)


def first_records(
    snapshot: Snapshot, offsets: Mapping[int, int], *, newer: ReadLatest
) -> dict[int, TimestampOffset | None]:
    """Return, for each partition, the offset and timestamp (ms) of the first record at or above an offset, or None if
    there is no record.
    """
    many = offsets if len(offsets) > MAX_SINGLE_LOOKUPS else {}
    results: dict[int, TimestampOffset | None] = {**_first_in_small_slices(snapshot, many)}
    rest = {partition: (ANY_TIME, low) for partition, low in offsets.items() if partition not in results}
    return {**results, **_lookup(snapshot, rest, READ_UNCOMMITTED, newer)}


def _first_in_small_slices(snapshot: Snapshot, offsets: Mapping[int, int]) -> dict[int, TimestampOffset]:
    """Return the first records that are in small slices. These slices are read and decoded together.

    If there is a gap before a record, the record is not returned, because the gap may be a transaction marker. A marker
    counts as a record but is not returned by reads.
    """
    if not offsets:
        return {}
    # Arrow's own functions would load `pyarrow.compute` and pandas.
    from sparklog.format.arrow_numpy import fixed_values

    state = snapshot.state
    requested = np.array(list(offsets.items()), np.int64)
    requested = requested[(requested[:, 0] >= 0) & (requested[:, 0] < state.partitions)]
    partitions, low = requested.T
    starts = np.full(state.partitions, -1, np.int64)
    starts[partitions] = np.maximum(low, state.log_start[partitions])
    rows, cuts = snapshot.slices.select_each(partitions, starts[partitions], state.log_end[partitions])
    firsts = cuts[:-1][cuts[:-1] < cuts[1:]]
    rows = rows[firsts[rows.size[firsts] <= SMALL_BYTES]]
    slices = zip(rows.partition.tolist(), rows.base.tolist(), rows.end.tolist(), strict=True)
    ranges = [OffsetRange(snapshot.topic, *bounds) for bounds in slices]
    planned = planned_ranges([(offsets.topic, offsets.partition) for offsets in ranges], rows, range(len(rows) + 1))
    starts[rows.partition] = np.maximum(starts[rows.partition], rows.base)
    parts = [
        NativeReadPart(snapshot.store, snapshot.state.topic_id, offsets, READ_UNCOMMITTED, slices, False)
        for offsets, slices in zip(ranges, planned, strict=True)
    ]
    results: dict[int, TimestampOffset] = {}
    for batch in read_parts(parts, ("partition", "offset", "timestamp")):
        types = np.int32, np.int64, np.int64
        partition, offset, time = map(fixed_values, batch.columns, types)
        first = np.flatnonzero(starts[partition] == offset)
        records = map(TimestampOffset, offset[first].tolist(), time[first].tolist())
        results.update(zip(partition[first].tolist(), records, strict=True))
    return results


def _lookup(
    snapshot: Snapshot,
    targets: Mapping[int, tuple[int, int]],
    isolation: str,
    newer: ReadLatest,
    on_skipped: OnSkipped | None = None,
) -> dict[int, TimestampOffset | None]:
    """Look up records. `targets` contains the minimum timestamp and the minimum offset of each partition."""
    check_isolation(isolation)
    results: dict[int, TimestampOffset | None] = {}
    bounds = bounds_of(snapshot) if targets else {}
    for partition, (target, low) in targets.items():
        missed = MissingFiles()
        while partition not in results:
            limits = check_partition(snapshot.topic, partition, bounds)
            start, end = max(low, limits.log_start), limits.end(isolation)
            try:
                results[partition] = _first(snapshot, partition, target, (start, end), on_skipped)
            except MissingFile as missing:
                missed.note(snapshot.store, partition, missing.file)
                snapshot = newer()
                bounds = bounds_of(snapshot)
    return results


def _first(
    snapshot: Snapshot, partition: int, target: int, span: tuple[int, int], on_skipped: OnSkipped | None
) -> TimestampOffset | None:
    start, end = span
    if start >= end:
        return None
    slices = snapshot.slices.select(partition, start, end)
    # If the matching records of the first slice are below the start offset, continue with the next slice.
    for row in np.flatnonzero(slices.max_ts >= target).tolist():
        one = planned_slices(snapshot.topic, partition, slices[row : row + 1]).row(0)
        result = _in_slice(snapshot.store, one, target, start, on_skipped)
        if result is not None:
            return result if result.offset < end else None
    return None


def _in_slice(
    store: Store, planned: PlannedSlice, target: int, start: int, on_skipped: OnSkipped | None
) -> TimestampOffset | None:
    """Return the first record of the slice at or above offset `start` with a timestamp of at least `target`.

    A corrupt batch before the record may contain an earlier match. In this case, `Corrupt` is raised, unless corrupt
    batches are skipped.
    """
    if planned.append_time >= max(target, 0) and planned.records == planned.end - planned.base:
        return TimestampOffset(max(start, planned.base), planned.append_time)
    for window in _windows(store, planned, target, start, on_skipped):
        result = _in_batches(window, planned, target, start, on_skipped)
        if result is not None:
            return result
    return None


def _windows(
    store: Store, planned: PlannedSlice, target: int, start: int, on_skipped: OnSkipped | None
) -> Iterator[Window]:
    """Yield windows of valid batches that may contain the record."""
    begin = low = planned.position
    if planned.size <= store.limits.index_min_bytes:
        data = read_range(store, planned.file, planned.position, planned.size)
        file = SliceFile(planned, data)
        if crc32c(data) == planned.crc:
            yield from whole_batches(file, low)
            return
    elif not planned.footer_length:
        offsets = read_offset_index(store, planned)
        times = None if offsets is None or target == ANY_TIME else read_time_index(store, planned)
        seek = seek_position_for_timestamp(offsets, times, planned, target, start)
        file = StoredSlice(store, planned, window_ends=[begin + seek.until])
        low = seek_in_segment(file, seek)
    else:
        footer = valid_footer(store, planned)
        index = None if footer is None else index_of(footer, planned)
        file = StoredSlice(store, planned, window_ends=() if index is None else (begin + index.position).tolist())
        if index is not None:
            by_time = index.entry_for_timestamp(target) if planned.append_time < 0 else 0
            low = begin + int(index.position[max(by_time, index.entry_for_offset(start - planned.shift))])
    yield from valid_batches(file, start, planned.end, low=low, on_skipped=on_skipped)


def _in_batches(
    window: Window, planned: PlannedSlice, target: int, start: int, on_skipped: OnSkipped | None
) -> TimestampOffset | None:
    headers = window.headers
    has_append_time = headers.is_log_append_time & (planned.append_time >= 0)
    max_timestamps = np.where(has_append_time, planned.append_time, headers.max_timestamp)
    for i in np.flatnonzero((max_timestamps >= target) & (headers.next_offset + planned.shift > start)).tolist():
        try:
            records = window.select(slice(i, i + 1)).decode(
                ("offset", "timestamp"),
                offset_shift=planned.shift,
                start_offset=start,
                append_time=planned.append_time if has_append_time[i] else None,
            )
        except Corrupt as error:
            if on_skipped is None:
                raise
            header, first = headers.row(i), int(headers.base_offset[i]) + planned.shift
            position, end = window.start + int(headers.position[i]), int(headers.next_offset[i]) + planned.shift
            on_skipped(skipped(planned, position, header.size, first, end, error.message))
            continue
        hit = np.flatnonzero(records.timestamp >= target)
        if len(hit):
            return TimestampOffset(int(records.offset[hit[0]]), int(records.timestamp[hit[0]]))
    return None


MAX_TIMESTAMP = 2**63 - 1
"""The maximum value of a timestamp. A record with this timestamp is found by the first lookup."""


def offsets_of_max_timestamp(
    view: LogView, topic: str, isolation: str = READ_UNCOMMITTED
) -> dict[int, TimestampOffset | None]:
    """Return the first readable record with the maximum timestamp in each partition, or None if it is empty."""
    partitions = list(view.bounds(topic))
    first = view.offsets_for_timestamps(topic, dict.fromkeys(partitions, 0), isolation)
    last = view.offsets_for_timestamps(topic, dict.fromkeys(partitions, MAX_TIMESTAMP), isolation)
    best = {partition: last[partition] or result for partition, result in first.items() if result is not None}
    above, step = dict.fromkeys(best, MAX_TIMESTAMP), dict.fromkeys(best, 1)
    # No record has a timestamp at or above `above`. Starting at the best result, increase the timestamp in growing
    # steps, and then bisect.
    while targets := {
        partition: min(low + step[partition], (low + above[partition]) // 2)
        for partition, result in best.items()
        if (low := result.timestamp) + 1 < above[partition]
    }:
        results = view.offsets_for_timestamps(topic, targets, isolation)
        for partition, target in targets.items():
            later = results[partition]
            if later is None:
                above[partition] = target
            else:
                best[partition], step[partition] = later, step[partition] * 2
    return {partition: best.get(partition) for partition in partitions}
