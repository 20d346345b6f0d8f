"""Snapshots of topics as readers see them: where they begin and end, what ranges of them take, and the parts to read.

Who takes the snapshots, and when, is another matter: `sparklog.log.topic.root_view` does for a whole root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from sparklog.log.decisions.atomic_bounds import whole_ends
from sparklog.log.read.scan import bounds_of, plan_parts, stored_in
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.state.stored import Stored
from sparklog.log.state.view import Bounds, OffsetRange, ReadPart


class SnapshotView:
    """Implements `sparklog.log.state.view.TakenView` for settled snapshots, by topic, of one root."""

    def __init__(self, location: str, snapshots: Mapping[str, Snapshot]) -> None:
        self._location = location
        self._snapshots = snapshots
        self._ends = whole_ends(snapshots)

    @property
    def location(self) -> str:
        return self._location

    def snapshot(self, topic: str) -> Snapshot:
        """The topic as this view shows it: for who looks into its files."""
        return self._snapshots[topic]

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        snapshot = self.snapshot(topic)
        return bounds_of(snapshot, self._ends[topic])

    def earlier_partitions(self, topic: str) -> Sequence[int]:
        return self.snapshot(topic).head.earlier_partitions

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        return [stored_in(self.snapshot(wanted.topic), wanted) for wanted in ranges]

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        parts: list[ReadPart] = []
        for topic, group in groupby(ranges, lambda wanted: wanted.topic):
            parts += plan_parts(self.snapshot(topic), list(group), isolation)
        return parts
