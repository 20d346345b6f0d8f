"""A topic, the same topic in other processes, and stores that fail or run something at the worst moment."""

from __future__ import annotations

from sparklog.log.journal.names import commit_key
from sparklog.log.state.commit import Txn
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import AppendOutcome
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Fault, FaultyStore, Script
from sparklog.testing.world import World
from tests.log.topics import file_of


def setup(partitions: int = 2) -> tuple[World, MemoryStore, Root, Topic]:
    world = World()
    store = world.store
    root = world.root(store)
    return world, store, root, root.create_topic("t", partitions=partitions)


def other(world: World, store: Store) -> Topic:
    """The same topic in another process."""
    return world.root(store).topic("t")


def publish(
    topic: Topic, records: int = 3, key: WriterKey | None = None, txn: Txn | None = None, name: str = "x"
) -> AppendOutcome:
    target = topic.log.append_target(refresh=False)
    file = file_of([(0, records)], read_version=target.read_version, name=name)
    return topic.log.commit_append([file], target, writer=key, txn=txn)


def faulty(world: World, store: Store, faults: dict[str | tuple[str, int], Fault]) -> Topic:
    """The topic seen through a store that fails, opened before it begins to."""
    script: dict[str | tuple[str, int], Fault] = {}
    through = FaultyStore(store, Script(script), world.sleep)
    topic = world.root(through).topic("t")
    topic.log.append_target(refresh=False)
    through.calls.clear()
    through.decide = Script(faults)
    return topic


def topic_records(world: World, store: Store) -> int:
    return int(other(world, store).log.state().log_end[0])


def collect(store: MemoryStore, below: int) -> None:
    """What a vacuum does with commits below a checkpoint."""
    for version in range(below):
        store.delete(commit_key("t", version))
