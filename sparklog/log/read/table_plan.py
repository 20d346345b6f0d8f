"""Plan a read of a topic as a table. The table contains the latest record of each key, as of the current time, a
specified time, or specified offsets.

Like compaction, a table works partition by partition. A key has a row in each partition that contains records of the
key. A key can be in several partitions if partitions were added, or if records were written to an explicit partition.

A table as of an offset contains only records below the offset. A table as of a time contains only records before the
first record at or after the time. Below the first dirty offset, compaction has kept only the latest record of each key.
Therefore, a table as of an earlier offset would not contain all keys, so it is rejected. A table as of an offset below
the log start offset is also rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from sparklog.arguments import INT64_MAX
from sparklog.common.parsing import is_digits
from sparklog.common.settings import as_integer
from sparklog.common.times import iso_time, parse_iso_time
from sparklog.errors import BadRequest, NotFound
from sparklog.log.read.read_plan import NativeReadPart, check_partition
from sparklog.log.state.view import READ_COMMITTED, Bounds, LogView, OffsetRange, ReadPart, Stored

AsOf: TypeAlias = int | str | Mapping[int, int] | None
"""The time or the end offsets of a table. None means the current table.

A time is in ms since 1970 or in ISO 8601 (UTC by default). End offsets (exclusive) are specified by partition.
Partitions that are not specified are read as of the current time.
"""

CHUNK_BYTES = 8 << 20
CHUNK_RECORDS = 250_000
"""Maximum stored bytes and maximum number of records of a chunk. A chunk is decoded in one call."""


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """The records of one partition of a table. `cuts` contains the offsets that divide the records into chunks.
    Picklable.
    """

    part: ReadPart
    cuts: tuple[int, ...]

    @property
    def range(self) -> OffsetRange:
        return self.part.range


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The table of a topic as of a snapshot: the parts to read, and the offset ranges of the snapshot (`ranges`)."""

    topic: str
    topic_id: str
    ranges: tuple[OffsetRange, ...]
    partitions: tuple[PartitionTable, ...]
    columns: tuple[str, ...]
    threads: int


def plan_table(
    view: LogView, topic: str, as_of: AsOf = None, partitions: Collection[int] | None = None
) -> list[PartitionTable]:
    """Plan a table of these partitions of a topic, or of all partitions if `partitions` is None. Empty partitions are
    omitted. Raises the errors of `table_ranges`.
    """
    ranges = [offsets for offsets in table_ranges(view, topic, as_of, partitions) if offsets.start < offsets.end]
    cleaned = view.first_dirty_offsets(topic)
    tables = []
    for part, stored in zip(view.plan(ranges, READ_COMMITTED), view.stored(ranges), strict=True):
        if isinstance(part, NativeReadPart):
            part = replace(part, first_dirty_offset=cleaned.get(part.range.partition, 0))
        tables.append(PartitionTable(part, cuts_of(stored)))
    return tables


def table_ranges(
    view: LogView, topic: str, as_of: AsOf = None, partitions: Collection[int] | None = None
) -> list[OffsetRange]:
    """Return the offset range of each partition of a table.

    Raises:
        BadRequest: If `as_of` is not a valid time.
        NotFound: If an offset is out of range, is in an open transaction, or was compacted.
    """
    bounds = view.bounds(topic)
    numbers = sorted(bounds) if partitions is None else sorted(partitions)
    for partition in numbers:
        check_partition(topic, partition, bounds)
    ends = {partition: bounds[partition].end(READ_COMMITTED) for partition in numbers}
    if isinstance(as_of, Mapping):
        for partition, offset in as_of.items():
            ends[partition] = _checked_offset(topic, partition, offset, check_partition(topic, partition, bounds))
    elif as_of is not None:
        ends |= _ends_at(view, topic, _milliseconds(as_of), {partition: bounds[partition] for partition in numbers})
    cleaned = view.first_dirty_offsets(topic)
    for partition, end in ends.items():
        if bounds[partition].log_start < end < cleaned.get(partition, 0):
            raise NotFound(
                f"a table as of offset {end} of {topic}-{partition} would be incomplete, because compaction has "
                f"cleaned the log up to offset {cleaned[partition]}; use offset {cleaned[partition]} or later, or "
                "increase min.compaction.lag.ms to delay compaction"
            )
    return [OffsetRange(topic, partition, bounds[partition].log_start, ends[partition]) for partition in sorted(ends)]


def _checked_offset(topic: str, partition: int, value: object, bounds: Bounds) -> int:
    start, end = bounds.log_start, bounds.end(READ_COMMITTED)
    offset = as_integer(value)
    if offset is not None and start <= offset <= end:
        return offset
    if offset is not None and end < offset <= bounds.log_end:
        raise NotFound(
            f"offset {offset} of {topic}-{partition} is not stable, because a transaction that starts at offset {end} "
            f"is open; use an offset from {start} to {end}"
        )
    raise NotFound(f"offset {value!r} of {topic}-{partition} is out of range: expected {start} to {end}")


def _ends_at(view: LogView, topic: str, time_ms: int, bounds: Mapping[int, Bounds]) -> dict[int, int]:
    results = view.offsets_for_timestamps(topic, dict.fromkeys(bounds, time_ms), READ_COMMITTED)
    ends = {}
    for partition, limits in bounds.items():
        result = results[partition]
        if result is not None and 0 < limits.log_start >= result.offset:
            raise NotFound(
                f"{iso_time(time_ms)} is before the first record of {topic}-{partition} (offset {result.offset}, "
                f"{iso_time(result.timestamp)}), because earlier records were deleted; use a later time"
            )
        end = limits.end(READ_COMMITTED)
        # The lookup stops at the last stable offset of the partition. The end may be lower, because a transaction is
        # hidden in all partitions until it is visible in each of them.
        ends[partition] = end if result is None else min(result.offset, end)
    return ends


def _milliseconds(time: int | str) -> int:
    with suppress(ValueError):
        if isinstance(time, str):
            return int(time) if is_digits(time) else max(0, parse_iso_time(time.strip()))
    if (time_ms := as_integer(time)) is not None and 0 <= time_ms <= INT64_MAX:
        return time_ms
    raise BadRequest(
        f"as_of must be milliseconds, a time such as '2026-01-31T12:00' (UTC) or offsets by partition, found {time!r}"
    )


def cuts_of(stored: Stored) -> tuple[int, ...]:
    """Return the offsets that divide a range into chunks. If slices are small, each chunk starts at the start of a
    slice.
    """
    by_bytes, by_records = -(-stored.nbytes // CHUNK_BYTES), -(-stored.records // CHUNK_RECORDS)
    count = max(by_bytes, by_records)
    cuts: Sequence[int] = ()
    if by_bytes >= by_records:
        cuts = stored.at_bytes(*(stored.nbytes * i // count for i in range(1, count)))
    else:
        cuts = stored.at_records(*(stored.records * i // count for i in range(1, count)))
    positions = np.asarray(cuts, np.int64)
    if len(positions):
        row = np.clip(np.searchsorted(stored.runs.base, positions, "right") - 1, 0, None)
        positions = np.where(stored.runs.nbytes[row] <= CHUNK_BYTES, stored.runs.base[row], positions)
    inside = {int(cut) for cut in positions if stored.start < cut < stored.end}
    return (stored.start, *sorted(inside), stored.end)
