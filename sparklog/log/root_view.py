"""A sparklog root as readers see it: `LogView` over native topics.

Snapshots are taken by `refresh` (a probe per topic when nothing changed) and kept, so that bounds, sizes and plans of
one micro-batch agree with one another: of a transaction over several topics they show all or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from sparklog.errors import NotFound
from sparklog.log.all_or_none import whole_ends
from sparklog.log.decision_logs import settle
from sparklog.log.head import Offsets
from sparklog.log.lookup import offsets_for_timestamps
from sparklog.log.root import Root
from sparklog.log.scan import bounds_of, plan_parts, sizes_of, stored_bytes
from sparklog.log.snapshot import Snapshot
from sparklog.log.topic import Topic
from sparklog.log.view import READ_UNCOMMITTED, Bounds, OffsetRange, PartitionSize, ReadPart, TimestampOffset

__all__ = ["RootView"]

LOCAL_POLL_MS = 10
REMOTE_POLL_MS = 250
OPEN_AT_ONCE = 32


class RootView:
    """Implements `sparklog.log.view.LogView` for the topics of `root`. Not safe to share between threads."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._topics: dict[str, Topic] = {}
        self._raw: dict[str, Snapshot] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._ends: dict[str, Offsets] = {}

    @property
    def root(self) -> Root:
        """The root itself, for writers."""
        return self._root

    @property
    def location(self) -> str:
        return self._root.location

    @property
    def poll_interval_ms(self) -> int:
        return REMOTE_POLL_MS if self._is_remote else LOCAL_POLL_MS

    @property
    def _is_remote(self) -> bool:
        return "://" in self._root.location and not self._root.location.startswith("file://")

    def topics(self) -> list[str]:
        return sorted(self._root.topics())

    def topic_id(self, topic: str) -> str:
        return str(self._snapshot(topic).head.topic_id)

    def refresh(self, topics: Sequence[str]) -> None:
        names = list(dict.fromkeys(topics))
        if len(names) > 1 and self._is_remote:
            with ThreadPoolExecutor(min(OPEN_AT_ONCE, len(names))) as pool:
                found = list(pool.map(self._take, names))
        else:
            found = [self._take(name) for name in names]
        for name, (topic, snapshot) in zip(names, found, strict=True):
            self._topics[name], self._raw[name] = topic, snapshot
        self._snapshots, gone = settle(self._root.decisions, self._raw, self._again)
        self._ends = whole_ends(self._snapshots)
        for name in gone & set(names):
            self._root.topic(name)

    def snapshot(self, topic: str) -> Snapshot:
        """The topic as this view shows it: for who looks into its files."""
        return self._snapshot(topic)

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        snapshot = self._snapshot(topic)
        return bounds_of(snapshot, self._ends.get(topic))

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        snapshot = self._snapshot(topic)
        return offsets_for_timestamps(self._topics[topic], snapshot, targets, isolation)

    def nbytes(self, ranges: Sequence[OffsetRange]) -> list[int]:
        return [stored_bytes(self._snapshot(wanted.topic), wanted) for wanted in ranges]

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        return sizes_of(self._snapshot(topic))

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        parts: list[ReadPart] = []
        for topic, group in groupby(ranges, lambda wanted: wanted.topic):
            parts += plan_parts(self._root.store, topic, self._snapshot(topic), list(group), isolation)
        return parts

    def _again(self, name: str) -> Snapshot:
        self._topics[name], snapshot = self._take(name)
        return snapshot

    def _take(self, name: str) -> tuple[Topic, Snapshot]:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._root.topic(name)
        try:
            return topic, topic.snapshot()
        except NotFound:
            # Deleted, perhaps created again: the name is opened afresh, and says so itself if it is gone.
            topic = self._root.topic(name)
            return topic, topic.snapshot()

    def _snapshot(self, topic: str) -> Snapshot:
        if topic not in self._snapshots:
            self.refresh([topic])
        return self._snapshots[topic]
