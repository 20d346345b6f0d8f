"""A world of topics with consumers of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

import sparklog
from sparklog.clients.consumer.consumer import Consumer
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import open_root
from sparklog.storage.store import Store
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld


class ConsumerWorld(TopicsWorld):
    """Topics, and consumers of them."""

    def consumer(self, topics: str | Sequence[str] = "a", *, store: Store | None = None, **how: object) -> Consumer:
        how = {"auto_offset_reset": "earliest", **how}
        root = open_root(self.store if store is None else store, env=self.env())
        return sparklog.consumer(root, "g", topics=topics, **how)  # type: ignore[arg-type]

    def committed(self) -> dict[tuple[str, int], int]:
        return {world: item.offset for world, item in Groups(self.root()).group("g").committed().items()}


def append(world: ConsumerWorld, topic: str, partition: int, *values: str) -> None:
    world.topic(topic).append(rows(*values, partition=partition))


def values(batches: Iterable[pa.RecordBatch]) -> list[str]:
    return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]


def everything(consumer: Consumer) -> list[str]:
    found: list[str] = []
    while batches := consumer.poll():
        found += values(batches)
    return found


def settle(world: ConsumerWorld, *consumers: Consumer) -> list[str]:
    """Let members look at their group in turns, until each has what it is given. Return what they read meanwhile."""
    found: list[str] = []
    for _ in range(3):
        # The default heartbeat.interval.ms, after which they look.
        world.now_ms += 3_000
        for consumer in consumers:
            found += values(consumer.poll())
    return found
