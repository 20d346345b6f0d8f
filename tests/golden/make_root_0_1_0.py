"""Make the golden root of release 0.1.0. Runs on commit ee17441 alone: its imports are those of that release.

    git worktree add --detach <release> ee17441
    PYTHONPATH=<release> python tests/golden/make_root_0_1_0.py <fixtures>/transactions/data <tree>
    python -m tests.fixture_archive <tree> tests/golden/root_0_1_0.tar.xz

`<fixtures>` is the unpacked `tests/fixtures.tar.xz`. The tree has the root (`root/`), a place with two backups of it
(`backups/`), and what that release reads in it (`expected.json`, see `facts`). Clock and ids are seeded: the same tree
comes out again. It is kept as the record of how the archive was made, and is not to follow any renaming. Linters look
for its imports in today's code: the order of imports that they want changes with it.
"""

# ruff: noqa: I001

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from facts import facts
from sparklog.backup.backing_up import back_up
from sparklog.compaction.run import compact_root
from sparklog.groups.lag import Groups
from sparklog.groups.group_state import OffsetAndMetadata
from sparklog.kafka.importing import import_log_dir
from sparklog.log.append_writer import WriteOptions
from sparklog.log.cloning import clone_topic
from sparklog.log.env import Env
from sparklog.log.registry import WriterKey
from sparklog.log.root import open_root
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root
from sparklog.storage.memory import MemoryStore
from sparklog.transactions.producer import transactional

START_MS = 1_704_200_000_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class SeededRunner:
    """Runs work in this thread, with ids of an environment that is given."""

    def __init__(self, env: Env) -> None:
        self.env = env

    def run(self, works: Sequence[object]) -> Iterator[tuple[object, object]]:
        for work in works:
            yield work, (replace(work, env=self.env) if hasattr(work, "env") else work).run()


class Maker:
    """The calls that make the root, on a clock that is moved by hand."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self.now_ms = START_MS
        self.env = Env(lambda: self.now_ms, lambda: self.now_ms, self.sleep, random.Random(1))
        self.store = MemoryStore(lambda: self.now_ms, "root")
        self.backups = MemoryStore(lambda: self.now_ms, "backups")
        self.root = open_root(self.store, create=True, env=self.env)
        self.runner = SeededRunner(self.env)

    def sleep(self, seconds: float) -> None:
        self.now_ms += 1 + int(seconds * 1000)

    def settings(self) -> Settings:
        return Settings(now_ms=self.now_ms)

    def run(self) -> None:
        for step in (
            self.create, self.append, self.write_idempotently, self.maintain, self.append_more, self.import_kafka,
            self.write_transactions, self.commit_offsets, self.clone, self.back_up, self.append_often, self.back_up,
        ):  # fmt: skip
            step()
            self.now_ms += 60_000

    def rows(self, n: int, first: int = 0, *, keys: int = 0, **columns: object) -> pa.Table:
        numbers = range(first, first + n)
        table: dict[str, object] = {"value": [f"value {number}".encode() for number in numbers]}
        if keys:
            table["key"] = [f"key-{number % keys}".encode() for number in numbers]
        table["timestamp"] = [self.now_ms + 1000 * at for at in range(n)]
        return pa.table({**table, **columns})

    def create(self) -> None:
        self.root.create_topic("events", partitions=3, configs={"retention.ms": -1})
        self.root.create_topic("orders", partitions=2, configs={"segment.bytes": 900, "index.interval.bytes": 200})
        self.root.create_topic("payments", configs={"message.timestamp.type": "LogAppendTime"})
        compacted = {"cleanup.policy": "compact", "segment.bytes": 900, "min.cleanable.dirty.ratio": 0.01}
        self.root.create_topic("state", configs={**compacted, "delete.retention.ms": HOUR_MS})
        self.root.create_topic("both", configs={"cleanup.policy": "compact,delete", "retention.bytes": 100_000})
        self.root.create_topic("short", configs={"retention.ms": 3 * HOUR_MS, "segment.bytes": 500})
        self.root.create_topic("gone", partitions=2)
        self.root.create_topic("empty", configs={"compression.type": "gzip"})

    def append(self) -> None:
        events = self.root.topic("events")
        for at, codec in enumerate(CODECS):
            headers = pa.array(
                [[{"key": codec, "value": b"1"}, {"key": "empty", "value": None}], [], None, []], HEADERS
            )
            rows = self.rows(4, 10 * at, keys=3 * (at % 2), headers=headers)
            events.append(rows, options=WriteOptions(codec=codec, batch_bytes=100))
            self.root.topic("orders").append(self.rows(20, 20 * at, keys=7), options=WriteOptions(codec=codec))
            self.root.topic("state").append(self.rows(12, 12 * at, keys=5), options=WriteOptions(codec=codec))
            self.root.topic("both").append(self.rows(5, 12 * at, keys=2), options=WriteOptions(codec=codec))
            self.root.topic("short").append(self.rows(12, 12 * at), options=WriteOptions(codec=codec))
            self.now_ms += 1000
        nulls = pa.table({"key": pa.array([b"a", None], pa.binary()), "value": pa.array([None, b""], pa.binary())})
        events.append(nulls)
        events.append(self.rows(2, 99, partition=pa.array([2, 0], pa.int32())))
        values = pa.array([None, None], pa.binary())
        self.root.topic("state").append(pa.table({"key": [b"key-1", b"key-9"], "value": values}))
        self.root.topic("payments").append(self.rows(4))
        self.root.topic("gone").append(self.rows(4, keys=2))
        self.root.delete_topic("gone")
        self.root.create_topic("gone", partitions=1).append(self.rows(1))

    def write_idempotently(self) -> None:
        events = self.root.topic("events")
        for batch, run in ((0, "run-a"), (1, "run-a"), (1, "run-b"), (2, "run-b")):
            events.append(self.rows(3, 10 * batch), writer=WriterKey("query", batch, run))
        for batch in (4, 7, 5):
            events.append(self.rows(2, batch), writer=WriterKey("job", batch, mode="txn"))

    def maintain(self) -> None:
        """Seal, merge and compact twice, expire, delete records."""
        for _ in range(2):
            compact_root(self.root, self.settings(), self.runner, topics=["events"])
            compact_root(
                self.root, self.settings(), self.runner, topics=["orders", "state", "both", "short"], roll=True
            )
            self.root.topic("state").append(self.rows(7, 40, keys=3))
            self.root.topic("orders").append(self.rows(7, 200, keys=3))
            self.now_ms += 2 * HOUR_MS
        self.root.topic("short").append(self.rows(9, 300))
        for report in retain_root(self.root, self.settings(), runner=self.runner):
            assert not report.failures
        self.root.topic("orders").delete_records({0: 3, 1: 11})
        self.root.topic("events").delete_records({2: 1})

    def append_more(self) -> None:
        self.root.topic("events").alter(configs={"segment.ms": DAY_MS}, partitions=4)
        self.root.topic("events").append(self.rows(8, 500, keys=8))
        self.root.topic("short").append(self.rows(5, 400))

    def import_kafka(self) -> None:
        import_log_dir(self.root, self.log_dir, configs={"retention.ms": -1})

    def write_transactions(self) -> None:
        """Committed, aborted, forgotten with its offsets, and one that jobs share."""
        producer = transactional(self.root, "billing", instance="first")
        with producer.begin() as transaction:
            transaction.append("orders", self.rows(4, 1000, keys=3))
            transaction.append("payments", self.rows(2, 1000))
            transaction.send_offsets("billing", {"events": {0: 3, 2: OffsetAndMetadata(1, "by hand", 0)}})
        aborted = producer.begin()
        aborted.append("orders", self.rows(4, 1100, keys=3))
        aborted.prepare()
        aborted.abort()
        shared = transactional(self.root, "shared").begin()
        part = transactional(self.root, "shared").join(shared.n, "part-1")
        part.append("orders", self.rows(2, 1200, keys=2))
        part.prepare()
        shared.append("payments", self.rows(2, 1210))
        shared.commit()
        forgotten = transactional(self.root, "forgotten", timeout_ms=2 * HOUR_MS).begin()
        forgotten.append("payments", self.rows(1, 1300))
        forgotten.send_offsets("late", {"events": {1: 1}})
        forgotten.prepare()
        self.root.topic("payments").append(self.rows(1, 1400))

    def commit_offsets(self) -> None:
        group = Groups(self.root).group("readers")
        member = group.join("one")
        member.commit({"events": {0: 1, 1: 2}, "orders": {0: OffsetAndMetadata(5, "note", 2)}})
        member.leave()
        member = group.join("two", session_timeout_ms=10_000)
        for offset in range(70):
            member.commit({"state": {0: offset}, "events": {1: 3}})
        Groups(self.root).group("by-hand").alter({"orders": {0: 4, 1: 12}})
        Groups(self.root).group("to-delete").alter({"orders": {0: 4}})
        Groups(self.root).group("to-delete").delete()

    def clone(self) -> None:
        clone_topic(self.root, "orders", "orders-clone")
        clone_topic(self.root, "events", "events-then", version=4)
        self.root.topic("orders-clone").append(self.rows(3, keys=3))

    def back_up(self) -> None:
        back_up(self.root, self.backups, at_once=1)

    def append_often(self) -> None:
        """More commits than lie between two checkpoints."""
        for number in range(130):
            self.root.topic("both").append(self.rows(1, number, keys=9), options=WriteOptions(codec="none"))


def main() -> None:
    tree = Path(sys.argv[2])
    maker = Maker(sys.argv[1])
    maker.run()
    for name, store in (("root", maker.store), ("backups", maker.backups)):
        for key, (data, _) in store.snapshot().items():
            path = tree / name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    expected = {"endMs": maker.now_ms, **facts(maker.root, Groups(maker.root))}
    (tree / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
