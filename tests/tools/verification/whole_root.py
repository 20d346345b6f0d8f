"""A root with all types of files in all states that operation creates, with small data."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sparklog.compaction.run import CompactOptions
from sparklog.groups.lag import Groups
from sparklog.kafka.importing.run import import_log_dir
from sparklog.log.state.commit import VersionLease
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import Root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.vacuum import vacuum
from sparklog.storage.store import Store
from sparklog.testing.world import DAY_MS, World
from sparklog.transactions.producer import transactional
from tests.support.compaction import compact_topic
from tests.support.maintaining import maintain
from tests.support.small_limits import small_limits

MADE_MS = 1_704_153_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def rows(first: int, count: int, partitions: int = 2, keys: int = 5) -> pa.Table:
    """Return records with keys, values and timestamps one second apart; some have headers."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [f"key-{number % keys}".encode() for number in numbers],
            "value": [None if number % 11 == 10 else f"value {number} ".encode() * 3 for number in numbers],
            "partition": pa.array([number % partitions for number in numbers], pa.int32()),
            "timestamp": pa.array([MADE_MS + 1000 * number for number in numbers], pa.int64()),
        }
    )


class WholeRoot(World):
    """The root, its store and its clock."""

    def __init__(self, fixtures: Path, store: Store | None = None) -> None:
        super().__init__(store, now_ms=MADE_MS)
        self.fixtures = fixtures
        with small_limits(checkpoint_commits=4, checkpoint_entries=3):
            self._build()

    def _build(self) -> None:
        root = self.root()
        self._plain(root)
        self._append_time(root)
        self._compacted(root)
        self._imported(root)
        self._transactions(root)
        self._old(root)
        for name in ("latest", "txn-a", "plain"):
            clone_topic(root, name, f"{name}.clone")
        root.topic("plain.clone").append(rows(900, 9, 3))
        self.now_ms += 1000

    def settings(self) -> Settings:
        return Settings(self.now_ms + 3650 * DAY_MS)

    def _plain(self, root: Root) -> None:
        """Create append files of each codec with several slices and partitions, a lease, and null keys."""
        topic = root.create_topic("plain", partitions=3, configs={"compression.type": "producer"})
        for number, codec in enumerate(CODECS):
            topic.alter(configs={"compression.type": "uncompressed" if codec == "none" else codec})
            topic.append(rows(40 * number, 40, 3))
            self.now_ms += 1000
        maintain(topic, leases={"backup": VersionLease(topic.log.state().version)})
        topic.append(pa.table({"value": [b"no key", b"none here"], "partition": pa.array([0, 1], pa.int32())}))
        topic.delete_records({1: 20})

    def _append_time(self, root: Root) -> None:
        topic = root.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
        for number in range(3):
            topic.append(rows(10 * number, 10, 1))
            self.now_ms += 1000
        compact_topic(topic, self.settings(), InProcess(), CompactOptions(roll=True))
        topic.append(rows(30, 10, 1))

    def _compacted(self, root: Root) -> None:
        """Create merged, sealed and cleaned segments whose indexes have several entries."""
        configs = {"cleanup.policy": "compact", "segment.bytes": 8192, "index.interval.bytes": 200}
        topic = root.create_topic("latest", partitions=2, configs=configs)
        for number in range(12):
            topic.append(rows(60 * number, 60, 2, keys=300))
            self.now_ms += 1000
        compact_topic(topic, self.settings(), InProcess(), CompactOptions(roll=True))
        for number in range(12, 16):
            topic.append(rows(60 * number, 60, 2, keys=7))
        compact_topic(topic, self.settings(), InProcess())
        merged = root.create_topic("merged", partitions=2)
        for number in range(20):
            merged.append(rows(4 * number, 4, 2))
        compact_topic(merged, Settings(self.now_ms), InProcess())

    def _imported(self, root: Root) -> None:
        """Import Kafka's segments with transactions, old messages and several codecs; seal some of them."""
        import_log_dir(root, self.fixtures / "transactions" / "data")
        import_log_dir(root, self.fixtures / "segments" / "data")

    def _transactions(self, root: Root) -> None:
        """Create committed, aborted, open and decided transactions, unrecorded outcomes, and copies of entries."""
        for name in ("left", "right"):
            root.create_topic(name)
        producer = transactional(root, "job", timeout_ms=DAY_MS)
        for number in range(6):
            transaction = producer.begin()
            for name in ("left", "right"):
                transaction.append(name, rows(3 * number, 3, 1))
            if number == 3:
                transaction.abort()
            else:
                transaction.commit()
            self.now_ms += 1000
        with producer.begin() as sending:
            sending.append("left", rows(50, 3, 1))
            sending.send_offsets("billing", {"plain": {0: 5, 1: 7}})
        groups = Groups(root)
        member = groups.group("billing").join("one")
        for number in range(6):
            member.commit({"plain": {0: 10 + number}, "left": {0: number}})
            self.now_ms += 1000
        groups.group("a group/é").alter({"right": {0: 1}})
        other = transactional(root, "other job/é", timeout_ms=DAY_MS)
        undecided = other.begin()
        undecided.append("left", rows(100, 3, 1))
        undecided._prepare_topics()

    def _old(self, root: Root) -> None:
        """Create a topic after a vacuum, and a deleted topic."""
        topic = root.create_topic("old", configs={"file.delete.delay.ms": 3_600_000, "inline.records.bytes": 0})
        for number in range(10):
            topic.append(rows(5 * number, 5, 1))
            self.now_ms += DAY_MS
        compact_topic(topic, self.settings(), InProcess(), CompactOptions(roll=True))
        for number in range(10, 16):
            topic.append(rows(5 * number, 5, 1))
            self.now_ms += DAY_MS
        self.now_ms += 10 * DAY_MS
        vacuum(topic, Settings(self.now_ms))
        topic.append(rows(100, 5, 1))
        gone = root.create_topic("gone")
        gone.append(rows(0, 5, 1))
        gone.delete()
