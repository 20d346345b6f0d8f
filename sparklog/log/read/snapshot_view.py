"""A view of fixed snapshots; `sparklog.log.topic.root.RootView` reads the snapshots of a root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sparklog.log.decisions.decision_log import consistent_ends
from sparklog.log.read.read_plan import bounds_of, plan_parts, sizes_of, stored_in
from sparklog.log.read.skipped import OnSkipped
from sparklog.log.state.range_slices import RangeSlices, select_ranges
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.view import (
    READ_UNCOMMITTED,
    Bounds,
    OffsetRange,
    PartitionSize,
    ReadPart,
    Stored,
    TimestampOffset,
)


class SnapshotView:
    """Implement `PinnedView` for settled snapshots by topic; `newer` takes one where a file is gone.

    `on_skipped` is called with corrupt ranges that reads skip; None: reads raise `Corrupt`.
    """

    def __init__(
        self,
        location: str,
        snapshots: Mapping[str, Snapshot],
        newer: Callable[[str], Snapshot],
        on_skipped: OnSkipped | None = None,
    ) -> None:
        self._on_skipped = on_skipped
        self.location = location
        self.snapshots = snapshots
        self._newer = newer
        self._ends = consistent_ends(snapshots)
        self._bounds: dict[str, Mapping[int, Bounds]] = {}
        self._measured: RangeSlices | None = None
        """The slices that `stored` has selected, because a plan of the same ranges usually follows."""

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        bounds = self._bounds.get(topic)
        if bounds is None:
            bounds = self._bounds[topic] = bounds_of(self.snapshots[topic], self._ends[topic])
        return bounds

    def previous_partition_counts(self, topic: str) -> Sequence[int]:
        return self.snapshots[topic].state.previous_partition_counts

    def first_dirty_offsets(self, topic: str) -> Mapping[int, int]:
        return dict(enumerate(self.snapshots[topic].state.first_dirty_offset.tolist()))

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        self._measured = select_ranges(self.snapshots, ranges)
        return stored_in(self._measured)

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        selected, self._measured = self._measured, None
        if selected is None or selected.ranges != tuple(ranges):
            selected = select_ranges(self.snapshots, ranges)
        return [*plan_parts(selected, isolation, self._on_skipped)]

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        from sparklog.log.read.time_lookup import offsets_for_timestamps

        return offsets_for_timestamps(
            self.snapshots[topic],
            targets,
            isolation,
            newer=partial(self._newer, topic),
            on_skipped=self._on_skipped,
        )

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        return sizes_of(self.snapshots[topic])
