"""Fixtures for pytest, which finds them where sparklog is installed: docs/guides/pytest.md.

Every run of pytest loads this module, so nothing else is imported before a test asks for a fixture. Its entry point has
the name of the module: `pytest_plugins = ["sparklog.testing.plugin"]` works beside it, and where entry points are off.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparklog.log.topic.root import Root
    from sparklog.testing.faulty_store import Script
    from sparklog.testing.kafka_server import KafkaServer
    from sparklog.testing.records import RecordStream
    from sparklog.testing.world import ManualClock, World
    from sparklog.testing.wrapper_stores import CountingStore


@pytest.fixture
def sparklog_world() -> World:
    """A store in memory, a clock and seeded ids: each `root()` is one more process that opens the same root."""
    from sparklog.testing.world import World

    return World()


@pytest.fixture
def sparklog_clock(sparklog_world: World) -> ManualClock:
    """The clock of `sparklog_root`, which stands still: `advance(days=8)` moves it."""
    return sparklog_world


@pytest.fixture
def sparklog_faults() -> Script:
    """Faults of the store of `sparklog_root`: `fail("create:commit")` lets its next commit fail."""
    from sparklog.testing.faulty_store import Script

    return Script()


@pytest.fixture
def sparklog_requests(sparklog_world: World, sparklog_faults: Script) -> CountingStore:
    """The requests that `sparklog_root` makes: `reset()`, then `expect(create_commit=1)`."""
    from sparklog.testing.faulty_store import FaultyStore
    from sparklog.testing.wrapper_stores import CountingStore

    return CountingStore(FaultyStore(sparklog_world.store, sparklog_faults, sparklog_world.sleep))


@pytest.fixture
def sparklog_root(sparklog_world: World, sparklog_requests: CountingStore) -> Root:
    """An empty root in memory, for this process alone."""
    return sparklog_world.root(sparklog_requests)


@pytest.fixture
def sparklog_disk_root(tmp_path: Path) -> Root:
    """An empty root on a disk by the machine's clock; its `location` is the path that Spark and commands take."""
    from sparklog.log.topic.root import open_root
    from sparklog.storage.local import LocalStore

    return open_root(LocalStore(str(tmp_path / "sparklog"), durable=False), create=True)


@pytest.fixture
def sparklog_records() -> RecordStream:
    """A stream of records with ten keys, from the same seed in every test: `take(100)`, then `latest()`."""
    from sparklog.testing.records import RecordStream

    return RecordStream()


@pytest.fixture
def kafka_server() -> Iterator[KafkaServer]:
    """A server of Kafka's protocol over an empty root in memory: clients take its `bootstrap` address."""
    from sparklog.testing.kafka_server import running_kafka_server

    with running_kafka_server() as server:
        yield server
