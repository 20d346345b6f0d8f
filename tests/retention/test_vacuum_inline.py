"""Commits with inline records are data files for the vacuum, clones, backups, restores, dumps and verification."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import SparklogError
from sparklog.kafka.exporting.plan import broker_configs
from sparklog.log.journal.names import commit_path, file_key
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import RootView
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention import vacuum_plan
from sparklog.retention.retain import retain_topic
from sparklog.retention.vacuum import VacuumReport, vacuum
from sparklog.storage import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import DAY_MS, World
from sparklog.testing.wrapper_stores import CountingStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import prune
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from sparklog.tools.inspection.dump import DumpOptions, dump
from sparklog.tools.inspection.dump_source import find
from sparklog.tools.inspection.inspect import inspect_topic
from sparklog.tools.verification.run import verify_root
from tests.support.compaction import compact_topic
from tests.support.small_limits import small_limits

KEEP = {"retention.ms": -1, "inline.records.bytes": 4096}


@pytest.fixture(autouse=True)
def _checkpoints_come_often() -> Iterator[None]:
    with small_limits(checkpoint_commits=5):
        yield


@pytest.fixture
def world() -> World:
    return World()


def filled(world: World, days: int = 20, *, each: int = 2, name: str = "t") -> Topic:
    """Return a topic with a few small commits per day, and run the vacuum each day."""
    topic = world.root().create_topic(name, configs=KEEP)
    for day in range(days):
        for number in range(each):
            topic.append(pa.table({"value": [b"%d.%d" % (day, number)]}))
        world.advance(DAY_MS)
        vacuumed(world, name)
    return world.topic(name)


def vacuumed(world: World, name: str = "t") -> VacuumReport:
    return vacuum(world.topic(name), Settings(world.now_ms))


def values(topic: Topic) -> list[bytes]:
    return topic.scan(columns=["value"]).to_table()["value"].to_pylist()


@pytest.mark.parametrize("deleted", [False, True])
def test_expired_inline_records_of_an_idle_topic_are_deleted(deleted: bool) -> None:
    """The topic has too few commits for a checkpoint; the vacuum writes the two newer checkpoints that it requires."""
    world = World()
    topic = world.root().create_topic("t", configs={"retention.ms": 3 * DAY_MS, "segment.ms": DAY_MS})
    for number in range(4):
        topic.append(pa.table({"value": [b"secret %d" % number]}), options=WriteOptions(codec="none"))

    def secrets() -> int:
        return sum(world.store.get(info.key).count(b"secret") for info in world.store.list("t/"))

    def versions(days: int) -> int:
        for _ in range(days):
            world.advance(DAY_MS)
            assert not retain_topic(topic, Settings(world.now_ms)).failed
        return world.root().engine.log("t").refresh().topic_state.version

    assert secrets() == 4
    if deleted:
        topic.delete()
    with small_limits(checkpoint_commits=128):
        before = versions(20)
        assert secrets() == 0
        assert versions(40) <= before + 1
    assert verify_root(world.store).findings == ()


def kept(world: World, name: str = "t") -> set[str]:
    return {info.key for info in world.store.list(f"{name}/_log/0")}


def test_commits_are_kept_for_as_long_as_slices_reference_them(world: World) -> None:
    topic = filled(world)
    assert len(values(topic)) == 40
    paths = topic.log.snapshot().slices.paths()
    assert len(paths) == 40
    assert {file_key("t", path) for path in paths} <= kept(world)
    assert verify_root(world.store).findings == ()
    before = len(kept(world))
    compact_topic(topic, Settings(world.now_ms), InProcess())
    for _ in range(3):
        topic.append(pa.table({"value": [b"more"]}))
        world.advance(3 * DAY_MS)
        world.topic("t").log.write_checkpoint()
        vacuumed(world)
    assert len(kept(world)) < before / 2
    assert len(values(world.topic("t"))) == 43
    assert verify_root(world.store).findings == ()


def test_records_are_lost_without_the_rule(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum_plan, "without_records", lambda topic, commits, kept: commits)
    filled(world)
    # Another process has not read the commits one by one.
    with small_limits(cached_inline_commits=0), pytest.raises(SparklogError):
        values(World(CountingStore(world.store), now_ms=world.now_ms, seed=99).root().topic("t"))


def test_unreferenced_commits_between_referenced_commits_are_deleted(world: World) -> None:
    topic = world.root().create_topic("t", configs=KEEP)
    for day in range(20):
        if day % 4 == 0:
            topic.append(pa.table({"value": [b"%d" % day]}))
        topic.alter(configs={"segment.ms": 1000 + day})
        world.advance(DAY_MS)
        vacuumed(world)
    left = kept(world)
    assert file_key("t", commit_path(1)) in left
    assert file_key("t", commit_path(2)) not in left
    reopened = World(world.store, now_ms=world.now_ms, seed=99).root().topic("t")
    assert len(values(reopened)) == 5
    assert verify_root(world.store).findings == ()


def test_clone_keeps_the_commits_of_its_source(world: World) -> None:
    topic = filled(world, 3)
    root = world.root()
    topic.delete_records({0: 2})
    clone_topic(root, "t", "copy")
    copied = values(root.topic("copy"))
    assert len(copied) == 4
    assert "inlineRecords" in root.topic("copy").log.state().read_features
    topic.delete_records({0: -1})
    for _ in range(12):
        topic.append(pa.table({"value": [b"x"]}))
        world.advance(DAY_MS)
        vacuumed(world)
    assert values(World(world.store, now_ms=world.now_ms, seed=99).root().topic("copy")) == copied
    assert verify_root(world.store).findings == ()


@pytest.mark.parametrize("of", ["t", "copy"])
def test_inline_records_are_backed_up_and_restored(world: World, of: str) -> None:
    topic = filled(world)
    root = world.root()
    clone_topic(root, "t", "copy")
    root.topic("copy").append(pa.table({"value": [b"own"]}))
    place = MemoryStore(world.clock, "place")
    back_up(root, place, at_once=1)
    topic.append(pa.table({"value": [b"later"]}))
    second = back_up(root, place, at_once=1)
    assert back_up(root, place, at_once=1).objects < 40
    for number, expected in ((1, 40), (2, 41)):
        target = MemoryStore(world.clock, f"restored {number}")
        restore(place, target, RestorePoint(number=number), at_once=1, env=world.env())
        again = World(target, now_ms=world.now_ms, seed=500 + number).root()
        assert len(values(again.topic("t"))) == expected
        assert len(values(again.topic("copy"))) == 41
        assert verify_root(target).findings == ()
        again.topic(of).append(pa.table({"value": [b"goes on"]}))
        compact_topic(again.topic(of), Settings(world.now_ms), InProcess())
        assert values(again.topic(of))[-1] == b"goes on"
        # Back up the restored root, and restore that backup.
        third = MemoryStore(world.clock, f"place {number}")
        back_up(again, third, at_once=1)
        last = MemoryStore(world.clock, f"last {number}")
        restore(third, last, at_once=1, env=world.env())
        assert verify_root(last).findings == ()
    prune(place, keep=1, env=world.env())
    only = MemoryStore(world.clock, "only")
    restore(place, only, RestorePoint(number=second.number + 1), at_once=1, env=world.env())
    assert len(values(World(only, seed=900).root().topic("t"))) == 41


def test_inspection_reads_inline_records(world: World) -> None:
    filled(world, 3)
    found = inspect_topic(RootView(world.root()), "t")
    assert found.batches.num_rows == 6
    assert set(found.batches["file"].to_pylist()) == {commit_path(version) for version in _versions(world)}


def test_dump_prints_the_document_and_the_records(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), durable=False)
    topic = World(store, now_ms=time.time_ns() // 1_000_000).root().create_topic("t", configs=KEEP)
    topic.append(pa.table({"value": [b"one", b"two"]}))
    text = [line.text for line in dump(find([str(tmp_path / "t" / commit_path(1))]), DumpOptions())]
    assert any("isvalid: true" in line and "op: append" in line for line in text)
    assert any(line.startswith("baseOffset: 0 lastOffset: 1") for line in text), text


def test_export_omits_the_config() -> None:
    taken, refused = broker_configs(TopicConfigs.of({"inline.records.bytes": 4096, "retention.ms": 5}))
    assert taken == {"retention.ms": "5"}
    assert refused == {"inline.records.bytes": "not a Kafka config"}


def _versions(world: World) -> list[int]:
    paths = world.topic("t").log.snapshot().slices.paths()
    return sorted(int(path[5:25]) for path in paths)
