"""What the tests of appending, scanning and looking up share: stores, clocks, tables and a plain model of a topic."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparklog.log.journal.env import Env
from sparklog.log.state.view import RECORD_SCHEMA
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_writer import WriteOptions
from sparklog.storage.counting import CountingStore
from sparklog.storage.local import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store

START_MS = 1_700_000_000_000
KINDS = ("memory", "local")


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def env(self, seed: int = 1) -> Env:
        return Env(self, self, lambda seconds: None, random.Random(seed))


class Place:
    """A root on a counting store: `root`, `store` (counting), `inner`, `clock`."""

    def __init__(self, kind: str, folder: Path, seed: int = 1) -> None:
        self.clock = Clock()
        self.inner: Store
        if kind == "memory":
            self.inner = MemoryStore(self.clock)
        else:
            import time

            self.clock.now_ms = time.time_ns() // 1_000_000
            self.inner = LocalStore(str(folder), durable=False)
        self.store = CountingStore(self.inner)
        self.root: Root = open_root(self.store, create=True, env=self.clock.env(seed))

    def topic(self, partitions: int = 1, configs: Mapping[str, object] | None = None, name: str = "t") -> Topic:
        return self.root.create_topic(name, partitions=partitions, configs=configs)

    def reopened(self, name: str = "t") -> Topic:
        """The topic as another process sees it."""
        return open_root(self.store, env=self.clock.env(2)).topic(name)

    def append_files(self, name: str = "t") -> list[str]:
        return [item.key for item in self.inner.list(f"{name}/append/")]


def rows(
    n: int, *, keys: int | None = 50, value_bytes: int = 40, seed: int = 0, first: int = 0, times: bool = True
) -> pa.Table:
    """`n` rows whose values are distinct and random enough not to be compressed away; `keys` None: all keys null."""
    rng = random.Random(seed)
    body = rng.randbytes(n * value_bytes)
    values = [b"%08d-" % (first + i) + body[i * value_bytes : (i + 1) * value_bytes] for i in range(n)]
    key = [None if keys is None else b"k%d" % rng.randrange(keys) for _ in range(n)]
    columns = {"key": pa.array(key, pa.binary()), "value": pa.array(values, pa.binary())}
    if times:
        columns["timestamp"] = pa.array(np.arange(n, dtype=np.int64) + START_MS + first, pa.timestamp("ms", tz="UTC"))
    return pa.table(columns)


def by_partition(table: pa.Table, column: str = "value") -> dict[int, list[object]]:
    """Column values of each partition, in the order they were read."""
    found: dict[int, list[object]] = {}
    for partition, value in zip(table["partition"].to_pylist(), table[column].to_pylist(), strict=True):
        found.setdefault(partition, []).append(value)
    return found


def small(codec: str = "none", **changes: int) -> WriteOptions:
    """Options that make small batches, buffers or files."""
    return WriteOptions(codec=codec, **changes)


def check_schema(table: pa.Table, columns: tuple[str, ...]) -> None:
    assert table.schema == pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    table.validate(full=True)
