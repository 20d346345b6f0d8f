"""What the tests of transactions share: a root of topics with real records, on a clock that is moved by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from sparklog.log.journal.env import Env
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.transactions import Transaction, TransactionalProducer, transactional

START_MS = 1_700_000_000_000
TOPICS = ("a", "b", "c")
__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "START_MS", "House", "rows"]


class House:
    """A store, its clock and topics; `root()` is one more process that knows nothing yet."""

    def __init__(self, partitions: int = 1, store: Store | None = None) -> None:
        self.now_ms = START_MS
        self.processes = 0
        self.store = MemoryStore(lambda: self.now_ms) if store is None else store
        root = open_root(self.store, create=True, env=self.env())
        for name in TOPICS:
            root.create_topic(name, partitions=partitions)

    def env(self, skew_ms: int = 0) -> Env:
        self.processes += 1
        return Env(
            lambda: self.now_ms + skew_ms, lambda: self.now_ms, lambda seconds: None, random.Random(self.processes)
        )

    def root(self, store: Store | None = None, skew_ms: int = 0) -> Root:
        return open_root(self.store if store is None else store, env=self.env(skew_ms))

    def topic(self, name: str) -> Topic:
        return self.root().topic(name)

    def producer(self, name: str = "job", **how: object) -> TransactionalProducer:
        return transactional(self.root(), name, **how)  # type: ignore[arg-type]

    def values(self, name: str, isolation: str = READ_COMMITTED) -> list[str]:
        """The records of a topic, in the order of partitions and offsets, as one more process reads them."""
        table = self.topic(name).scan(isolation=isolation, columns=("value",)).to_table()
        return [value.decode() for value in table["value"].to_pylist()]

    def seen(self, isolation: str = READ_COMMITTED) -> dict[str, list[str]]:
        return {name: self.values(name, isolation) for name in TOPICS}

    def held(self, name: str) -> list[int]:
        """How far the last stable offset of each partition lies behind the log end, for readers."""
        head = self.topic(name).read_snapshot().head
        return (head.log_end - head.last_stable()).tolist()

    def hold(self, producer: TransactionalProducer, **topics: Sequence[str]) -> Transaction:
        """A transaction that has prepared rows and is not decided: its owner died there."""
        transaction = producer.begin()
        for name, values in topics.items():
            transaction.append(name, rows(*values))
        transaction._prepare_topics()
        return transaction


def rows(*values: str, partition: int | None = None) -> pa.Table:
    table = pa.table({"value": [value.encode() for value in values]})
    if partition is not None:
        table = table.append_column("partition", pa.array([partition] * len(values), pa.int32()))
    return table
