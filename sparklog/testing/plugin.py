"""Fixtures for pytest, which finds them if sparklog is installed (see docs/guides/pytest.md).

This module is loaded by every run of pytest, so other modules are imported only when a test requests a fixture. The
entry point has the same name as the module, so that `pytest_plugins = ["sparklog.testing.plugin"]` can also be used,
for example if entry points are disabled.
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
    """A store in memory with a clock and seeded ids. Each `root()` simulates another process with the same root."""
    from sparklog.testing.world import World

    return World()


@pytest.fixture
def sparklog_clock(sparklog_world: World) -> ManualClock:
    """The clock of `sparklog_root`. It only advances when the test calls a method such as `advance(days=8)`."""
    return sparklog_world


@pytest.fixture
def sparklog_faults() -> Script:
    """The faults of the store of `sparklog_root`. For example, `fail("create:commit")` makes the next commit fail."""
    from sparklog.testing.faulty_store import Script

    return Script()


@pytest.fixture
def sparklog_requests(sparklog_world: World, sparklog_faults: Script) -> CountingStore:
    """The store of `sparklog_root`, which counts requests. Call `reset()` before and `expect(create_commit=1)` after
    the requests.
    """
    from sparklog.testing.faulty_store import FaultyStore
    from sparklog.testing.wrapper_stores import CountingStore

    return CountingStore(FaultyStore(sparklog_world.store, sparklog_faults, sparklog_world.sleep))


@pytest.fixture
def sparklog_root(sparklog_world: World, sparklog_requests: CountingStore) -> Root:
    """An empty root in memory, which only this process can open."""
    return sparklog_world.root(sparklog_requests)


@pytest.fixture
def sparklog_disk_root(tmp_path: Path) -> Root:
    """An empty root on disk with the system clock. Pass its `location` to Spark or to commands."""
    from sparklog.log.topic.root import open_root
    from sparklog.storage.local import LocalStore

    return open_root(LocalStore(str(tmp_path / "sparklog"), durable=False), create=True)


@pytest.fixture
def sparklog_records() -> RecordStream:
    """A stream of records with ten keys and the same seed in every test. Call `take(100)`, and then `latest()`."""
    from sparklog.testing.records import RecordStream

    return RecordStream()


@pytest.fixture
def kafka_server() -> Iterator[KafkaServer]:
    """A server of Kafka's protocol for an empty root in memory. Pass its `bootstrap` address to clients."""
    from sparklog.testing.kafka_server import running_kafka_server

    with running_kafka_server() as server:
        yield server
