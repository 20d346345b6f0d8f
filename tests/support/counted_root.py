"""A root on a store that counts requests: in memory, on a disk, or in memory with the ways of a bucket."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.storage.local import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore

KINDS = ("memory", "local")
KINDS_AND_BUCKET = (*KINDS, "bucket")


class Bucket(MemoryStore):
    """What costs a round trip there is asked several at once and deleted in bulk."""

    parallel_reads = 16

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)


class CountedRoot:
    """`root` lies on `store`, which counts what it asks of `inner`; `world` has the clock, which sleep leaves alone."""

    def __init__(self, kind: str, folder: Path, seed: int = 0) -> None:
        self.kind = kind
        if kind != "local":
            self.world = World(seed=seed)
            if kind == "bucket":
                self.world.store = Bucket(self.world.clock)
        else:
            store = LocalStore(str(folder), durable=False)
            # A disk stamps its files with the real time.
            self.world = World(store, now_ms=time.time_ns() // 1_000_000, seed=seed)
        self.inner: Store = self.world.store
        self.store = CountingStore(self.inner)
        self.root: Root = self.world.root(self.store)

    def topic(self, partitions: int = 1, configs: Mapping[str, object] | None = None, name: str = "t") -> Topic:
        return self.root.create_topic(name, partitions=partitions, configs=configs)

    def reopened(self, name: str = "t") -> Topic:
        """The topic as another process sees it."""
        return self.world.root(self.store).topic(name)

    def append_files(self, name: str = "t") -> list[str]:
        return [item.key for item in self.inner.list(f"{name}/append/")]
