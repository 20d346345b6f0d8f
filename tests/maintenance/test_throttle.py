"""The byte rate of maintenance, with a clock that advances by sleeping."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.maintenance import throttle as module
from sparklog.maintenance.properties import settings_of
from sparklog.maintenance.throttle import UNLIMITED, Throttle, ThrottledStore, process_throttle, throttled
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from tests.support.compaction import compact_topic


@pytest.fixture(autouse=True)
def no_throttle_of_others() -> Iterator[None]:
    process_throttle.cache_clear()
    yield
    process_throttle.cache_clear()


def test_throttle_limits_the_rate() -> None:
    world = World()
    begun_ms = world.now_ms
    throttle = Throttle(1000, world.env())
    for _ in range(10):
        throttle.add(500)
    assert world.now_ms - begun_ms == pytest.approx(5000, abs=20)


def test_short_pauses_accumulate_and_idle_time_does_not() -> None:
    world = World()
    throttle = Throttle(1000, world.env())
    for _ in range(4):
        throttle.add(10)
    assert world.slept == []
    throttle.add(10)
    assert world.slept == [pytest.approx(0.05)]
    world.advance(hours=1)
    throttle.add(2000)
    assert world.slept[1:] == [pytest.approx(2.0)], "an hour without work is no credit for a burst"


def test_reads_and_writes_share_the_rate() -> None:
    world = World()
    store = ThrottledStore(MemoryStore(world.clock), Throttle(1000, world.env()))
    assert store.create("a/x", bytes(1000))
    writer = store.writer("a/append/y")
    writer.write(bytes(2000))
    writer.close()
    assert len(store.get("a/append/y", 0, 500)) == 500
    assert sum(world.slept) == pytest.approx(3.5, abs=0.01)


def test_tasks_of_a_process_share_a_throttle(tmp_path: Path) -> None:
    """A work item is pickled into each task together with its store."""
    store = throttled(LocalStore(str(tmp_path)), 500.0)
    first, second = (pickle.loads(pickle.dumps(store)) for _ in range(2))
    assert first.throttle is second.throttle is process_throttle(500.0)
    assert first.location == store.location
    plain = World().store
    assert throttled(plain, UNLIMITED) is plain


def test_compact_respects_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run takes the time of all bytes that its work items read and write, and little more."""
    world = World()
    topic = world.root().create_topic("t", configs={"cleanup.policy": "compact", "compression.type": "uncompressed"})
    for _ in range(3):
        topic.append(pa.table({"key": [str(number) for number in range(100)], "value": ["v" * 1000] * 100}))
    monkeypatch.setattr(module, "process_throttle", lambda rate: Throttle(rate, world.env()))
    settings = settings_of("log.cleaner.io.max.bytes.per.second=10000.0", "f", now_ms=world.now_ms)
    assert settings == Settings(world.now_ms, io_bytes_per_second=10_000.0)
    begun_ms = world.now_ms
    report = compact_topic(topic, settings, InProcess(), CompactOptions(roll=True))
    assert {item.action for item in report.work} == {"seal", "compact"}
    amounts = report.statistics()
    took = (world.now_ms - begun_ms) / 1000
    # Sealing reads and writes 300 kB; compaction reads them for its map, and reads them again to copy a third.
    assert took == pytest.approx((600_000 + 300_000 + 300_000 + 100_000) / 10_000, rel=0.25)
    assert amounts.records_in == 600
