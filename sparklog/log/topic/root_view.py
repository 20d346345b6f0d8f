"""A root as readers see it: the `LogView` of its topics.

Snapshots are taken by `refresh` (a probe per topic when nothing changed) and kept. So bounds, sizes and plans of one
micro-batch agree, and show all or nothing of a transaction over several topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparklog.errors import NotFound
from sparklog.log.decisions.atomic_bounds import whole_ends
from sparklog.log.decisions.decision_log import settle
from sparklog.log.read.scan import sizes_of
from sparklog.log.read.time_lookup import offsets_for_timestamps
from sparklog.log.read.topic_scan import SnapshotView
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.state.view import READ_UNCOMMITTED, PartitionSize, TimestampOffset
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.storage.locks import ask_each

LOCAL_POLL_MS = 10
REMOTE_POLL_MS = 250


class RootView(SnapshotView):
    """Implements `sparklog.log.state.view.LogView` for the topics of `root`. Not safe to share between threads."""

    def __init__(self, root: Root) -> None:
        super().__init__(root.location, {})
        self._root = root
        self._topics: dict[str, Topic] = {}
        self._raw: dict[str, Snapshot] = {}

    @property
    def root(self) -> Root:
        """The root itself, for writers."""
        return self._root

    @property
    def poll_interval_ms(self) -> int:
        return LOCAL_POLL_MS if self._root.store.parallel_reads <= 1 else REMOTE_POLL_MS

    def topics(self) -> list[str]:
        return sorted(self._root.topics())

    def topic_id(self, topic: str) -> str:
        return str(self.snapshot(topic).head.topic_id)

    def refresh(self, topics: Sequence[str]) -> None:
        names = list(dict.fromkeys(topics))
        for name, (topic, snapshot) in zip(names, list(ask_each(self._root.store, self._take, names)), strict=True):
            self._topics[name], self._raw[name] = topic, snapshot
        self._snapshots, gone = settle(self._root.decisions, self._raw, self._again)
        self._ends = whole_ends(self._snapshots)
        for name in gone & set(names):
            self._root.topic(name)

    def snapshot(self, topic: str) -> Snapshot:
        """The topic as this view shows it, taken now if it was not yet."""
        if topic not in self._snapshots:
            self.refresh([topic])
        return self._snapshots[topic]

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        snapshot = self.snapshot(topic)
        newer = self._topics[topic].read_snapshot
        return offsets_for_timestamps(snapshot, targets, isolation, newer=newer)

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        return sizes_of(self.snapshot(topic))

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
