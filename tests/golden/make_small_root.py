"""Make the small golden roots of releases 0.2.0 and 0.3.1. Runs on these releases alone, by what both have.

    git archive 7fb40142 | tar x -C <release>                 # 0.2.0; 0.3.1 is 96aef611
    PYTHONPATH=<release> python tests/golden/make_small_root.py <tree>
    python -m tests.fixture_archive <tree> tests/golden/root_0_2_0.tar.xz

The tree has the root (`root/`), and what that release reads in it (`expected.json`, see `facts`). Clock and ids are
seeded, but for ids of what compaction wrote. It is kept as the record of how the archives were made.
"""

# mypy: ignore-errors
# ruff: noqa: I001

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pyarrow as pa
from facts import facts
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.log.journal.env import Env
from sparklog.log.state.registry import WriterKey
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import open_root
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage.memory import MemoryStore
from sparklog.transactions.producer import transactional

try:
    from sparklog.groups.lag import Groups
except ImportError:
    from sparklog.groups.listing import Groups

START_MS = 1_704_200_000_000


class Maker:
    """The calls that make the root, on a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.env = Env(lambda: self.now_ms, lambda: self.now_ms, self.sleep, random.Random(2))
        self.store = MemoryStore(lambda: self.now_ms, "root")
        self.root = open_root(self.store, create=True, env=self.env)

    def sleep(self, seconds: float) -> None:
        self.now_ms += 1 + int(seconds * 1000)

    def rows(self, n: int, first: int = 0) -> pa.Table:
        numbers = range(first, first + n)
        return pa.table(
            {
                "key": [f"key-{number % 5}".encode() for number in numbers],
                "value": [f"value {number}".encode() for number in numbers],
                "timestamp": [self.now_ms + number for number in range(n)],
            }
        )

    def run(self) -> None:
        self.root.create_topic("events", partitions=3, configs={"retention.ms": -1})
        self.root.create_topic("state", configs={"cleanup.policy": "compact", "segment.bytes": 600})
        self.root.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
            for topic in ("events", "state", "stamped"):
                self.root.topic(topic).append(self.rows(12, 12 * number), options=WriteOptions(codec=codec))
            self.now_ms += 1000
        compact_root(self.root, Settings(self.now_ms), InProcess(), CompactOptions(topics=("state",), roll=True))
        for number in range(3):
            self.root.topic("events").append(self.rows(4, number), writer=WriterKey("query", number, "run-a"))
        clone_topic(self.root, "events", "events-clone")
        producer = transactional(self.root, "billing", instance="first")
        with producer.begin() as transaction:
            transaction.append("events", self.rows(4, 100))
            transaction.append("stamped", self.rows(2, 100))
        aborted = producer.begin()
        aborted.append("events", self.rows(4, 200))
        aborted.prepare()
        aborted.abort()
        self.root.topic("events").append(self.rows(3, 300))
        Groups(self.root).group("readers").alter({"events": {0: 2, 1: 1}})


def main() -> None:
    tree = Path(sys.argv[1])
    maker = Maker()
    maker.run()
    for key, (data, _) in maker.store.snapshot().items():
        path = tree / "root" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    expected = {"endMs": maker.now_ms, **facts(maker.root, Groups(maker.root))}
    (tree / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
