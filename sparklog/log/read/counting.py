"""Count records, and find their minimum and maximum timestamps, without reading data files.

Offsets are not sufficient, because markers, aborted records and compaction leave gaps. Each slice stores its number of
records. A count is an upper bound if the log start offset or the last stable offset is inside a slice with gaps, or if
Kafka's ABORT markers may abort some of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparklog.log.read.read_plan import check_isolation, visible
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import READ_COMMITTED, Bounds


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """The number of records of one partition."""

    partition: int
    records: int
    is_exact: bool  # False if the actual number may be lower
    earliest_ms: int | None  # lower bound of the records' timestamps; None if no record has a timestamp
    latest_ms: int | None  # upper bound of the records' timestamps


@dataclass(frozen=True, slots=True)
class RecordCount:
    """The number of records in each partition of a topic: see `Topic.count`."""

    partitions: tuple[PartitionCount, ...]

    @property
    def records(self) -> int:
        """The total number of records, or an upper bound if the count is not exact."""
        return sum(partition.records for partition in self.partitions)

    @property
    def is_exact(self) -> bool:
        """False if the actual number of records may be lower."""
        return all(partition.is_exact for partition in self.partitions)

    @property
    def earliest_ms(self) -> int | None:
        """Lower bound of the records' timestamps, or None if no record has a timestamp."""
        return min(
            (partition.earliest_ms for partition in self.partitions if partition.earliest_ms is not None), default=None
        )

    @property
    def latest_ms(self) -> int | None:
        """Upper bound of the records' timestamps, or None if no record has a timestamp."""
        return max(
            (partition.latest_ms for partition in self.partitions if partition.latest_ms is not None), default=None
        )


def count_of(snapshot: Snapshot, bounds: Mapping[int, Bounds], isolation: str) -> RecordCount:
    """Count the records that a scan of the snapshot returns within these bounds."""
    check_isolation(isolation)
    return RecordCount(
        tuple(
            _counted(snapshot, partition, limits.log_start, limits.end(isolation), isolation)
            for partition, limits in bounds.items()
        )
    )


def _counted(snapshot: Snapshot, partition: int, start: int, end: int, isolation: str) -> PartitionCount:
    following = snapshot.slices.select(partition, start)
    slices = visible(following[: int(following.base.searchsorted(end))], isolation)
    low, high = np.maximum(slices.base, start), np.minimum(slices.end, end)
    cut, gaps = high - low < slices.end - slices.base, slices.records < slices.end - slices.base
    records = np.minimum(slices.records, high - low)
    # The ABORT marker of a transaction may be in a slice after the range.
    has_aborted = isolation == READ_COMMITTED and bool((following.flags & int(SliceFlag.KAFKA_ABORTED)).any())
    exact = not has_aborted and not bool((cut & gaps).any())
    total, filled = int(records.sum()), records > 0
    timed = filled & (slices.min_ts >= 0)
    if not total or not timed.any():
        return PartitionCount(partition, total, exact or not total, None, None)
    return PartitionCount(partition, total, exact, int(slices.min_ts[timed].min()), int(slices.max_ts[timed].max()))
