"""Look-ups by time: the first record at or after a time, the first one at or above an offset, the largest timestamp.

Kafka answers with the first record in offset order, at or above the log start and below the bound, whose timestamp is
at or after the target; records of aborted transactions and markers count. It is not the record nearest in time:
timestamps may go back. The snapshot's slice table tells the slice, its footer the window, the window the record: two
reads. In a sealed segment the `.timeindex` and the `.index` stand for the footer: three. By offset it is two in both.

The largest timestamp (Kafka's ListOffsets for MAX_TIMESTAMP, `kafka-get-offsets --time -3`) is the last time that has
an answer: it is searched for, all partitions of a topic at once. Each answer lifts the search to its own timestamp, so
that a day of milliseconds takes some thirty steps up and as many down, most of which metadata answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.append_file import INDEX_MIN_BYTES
from sparklog.log.read.fetch import Window, entrance_for_timestamp, read_offset_index, read_time_index
from sparklog.log.read.read_plan import PlannedSlice, planned_slices
from sparklog.log.read.scan import bounds_of, check_isolation, check_partition
from sparklog.log.state.slice_table import Newer, Snapshot
from sparklog.log.state.view import READ_UNCOMMITTED, LogView, TimestampOffset
from sparklog.storage.store import Store

ANY_TIME = -1
"""Kafka's "no timestamp", the least time of a record."""


def offsets_for_timestamps(
    snapshot: Snapshot, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED, *, newer: Newer
) -> dict[int, TimestampOffset | None]:
    """Return per partition of `targets` (partition -> ms) the record's offset and time, None if it has no such record.

    A file that is gone is looked for in the snapshot that `newer` takes. `NotFound` for a partition that is not there.
    """
    return _looked_up(snapshot, {partition: (target, 0) for partition, target in targets.items()}, isolation, newer)


def first_records(
    snapshot: Snapshot, offsets: Mapping[int, int], isolation: str = READ_UNCOMMITTED, *, newer: Newer
) -> dict[int, TimestampOffset | None]:
    """Return per partition of `offsets` the first record at or above that offset: its offset and time (ms), or None.

    Two requests per partition at most; `newer` and errors as for `offsets_for_timestamps`.
    """
    return _looked_up(snapshot, {partition: (ANY_TIME, low) for partition, low in offsets.items()}, isolation, newer)


def _looked_up(
    snapshot: Snapshot, wanted: Mapping[int, tuple[int, int]], isolation: str, newer: Newer
) -> dict[int, TimestampOffset | None]:
    """`wanted`: partition to (least time, least offset)."""
    from sparklog.log.read.fetch import MissingFile

    check_isolation(isolation)
    answers: dict[int, TimestampOffset | None] = {}
    bounds = bounds_of(snapshot)
    for partition, (target, low) in wanted.items():
        missed = ""
        while partition not in answers:
            limits = check_partition(snapshot.topic, partition, bounds)
            start, end = max(low, limits.log_start), limits.end(isolation)
            try:
                answers[partition] = _first(snapshot, partition, target, start, end)
            except MissingFile as missing:
                if missing.file == missed:
                    raise Corrupt("the log names a file that does not exist: restore it", file=missed) from None
                missed = missing.file
                snapshot = newer()
                bounds = bounds_of(snapshot)
    return answers


def _first(snapshot: Snapshot, partition: int, target: int, start: int, end: int) -> TimestampOffset | None:
    """Return the first record in offsets `[start, end)` with a time of at least `target`."""
    if start >= end:
        return None
    slices = snapshot.slices.select(partition, start, end)
    # A slice that the start cuts may have its late records below it: then the next candidate is looked at.
    for row in np.flatnonzero(slices.max_ts >= target).tolist():
        one = planned_slices(snapshot.topic, partition, slices[row : row + 1]).row(0)
        answer = _in_slice(snapshot.store, one, target, start)
        if answer is not None:
            return answer if answer.offset < end else None
    return None


def _in_slice(store: Store, planned: PlannedSlice, target: int, start: int) -> TimestampOffset | None:
    """Return the first record of the slice at or above offset `start` with a time of at least `target`."""
    from sparklog.log.read.fetch import check_slice, index_of, read_footer, read_window

    if planned.append_time >= max(target, 0) and planned.records == planned.end - planned.base:
        return TimestampOffset(max(start, planned.base), planned.append_time)
    if planned.size > INDEX_MIN_BYTES and not planned.footer_length:
        return _in_segment(store, planned, target, start)
    index = None
    if planned.size > INDEX_MIN_BYTES and planned.footer_length:
        index = index_of(read_footer(store, planned), planned)
    cuts = [planned.size]
    low = 0
    if index is not None:
        by_time = index.entry_for_timestamp(target) if planned.append_time < 0 else 0
        entry = max(by_time, index.entry_for_offset(start - planned.shift))
        low = int(index.position[entry])
        cuts = [*index.position[entry + 1 :].tolist(), planned.size]
    for high in cuts:
        while low < high:
            data, headers = read_window(store, planned, low, high)
            whole = len(data) == planned.size
            if whole:
                check_slice(data, planned)
            answer = _in_batches((data, headers), planned, planned.position + low, target, start, check_crc=not whole)
            if answer is not None:
                return answer
            low += len(data)
    return None


def _in_segment(store: Store, planned: PlannedSlice, target: int, start: int) -> TimestampOffset | None:
    """Do the same in a sealed segment, entered by the index files beside it."""
    from sparklog.log.read.fetch import enter_segment, read_window

    index = read_offset_index(store, planned)
    times = None if index is None or target == ANY_TIME else read_time_index(store, planned)
    entrance = entrance_for_timestamp(index, times, planned, target, start)
    low, first = enter_segment(store, planned, entrance)
    until = entrance.until
    while low < planned.size:
        window = first or read_window(store, planned, low, planned.size, until)
        first = None
        answer = _in_batches(window, planned, planned.position + low, target, start, check_crc=True)
        if answer is not None:
            return answer
        low += len(window[0])
    return None


def _in_batches(
    window: Window, planned: PlannedSlice, position: int, target: int, start: int, *, check_crc: bool
) -> TimestampOffset | None:
    from sparklog.format.decode import decode

    data, headers = window
    given = headers.is_log_append_time & (planned.append_time >= 0)
    newest = np.where(given, planned.append_time, headers.max_timestamp)
    for i in np.flatnonzero((newest >= target) & (headers.next_offset + planned.shift > start)).tolist():
        records = decode(
            data,
            headers[i : i + 1],
            columns=("offset", "timestamp"),
            offset_shift=planned.shift,
            start_offset=start,
            append_time=planned.append_time if given[i] else None,
            check_crc=check_crc,
            file=planned.file,
            file_position=position,
        )
        hit = np.flatnonzero(records.timestamp >= target)
        if len(hit):
            return TimestampOffset(int(records.offset[hit[0]]), int(records.timestamp[hit[0]]))
    return None


NO_TIME = 2**63 - 1
"""Greater than every timestamp but one; a record that carries this very one is found by the first question."""


@dataclass
class _Search:
    """Search in one partition: the best answer so far lies at `best.timestamp`; no record is at `above` or later."""

    best: TimestampOffset
    above: int
    step: int = 1

    @property
    def done(self) -> bool:
        return self.best.timestamp + 1 >= self.above

    @property
    def target(self) -> int:
        """The next time to ask for: up in growing steps, then the middle."""
        low = self.best.timestamp
        return min(low + self.step, (low + self.above) // 2)

    def tell(self, target: int, answer: TimestampOffset | None) -> None:
        """Take the answer for a target."""
        if answer is None:
            self.above = target
        else:
            self.best, self.step = answer, self.step * 2


def offsets_of_max_timestamp(
    view: LogView, topic: str, isolation: str = READ_UNCOMMITTED
) -> dict[int, TimestampOffset | None]:
    """Return per partition the first record with the largest timestamp below the isolation bound, None without one."""
    partitions = list(view.bounds(topic))
    first = view.offsets_for_timestamps(topic, dict.fromkeys(partitions, 0), isolation)
    last = view.offsets_for_timestamps(topic, dict.fromkeys(partitions, NO_TIME), isolation)
    searches = {
        partition: _Search(last[partition] or answer, NO_TIME)
        for partition, answer in first.items()
        if answer is not None
    }
    while targets := {partition: search.target for partition, search in searches.items() if not search.done}:
        answers = view.offsets_for_timestamps(topic, targets, isolation)
        for partition, target in targets.items():
            searches[partition].tell(target, answers[partition])
    return {partition: searches[partition].best if partition in searches else None for partition in partitions}
