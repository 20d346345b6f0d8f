"""Test that limits are passed on with their store: to other handles, through wrappers, and to tasks."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.limits import DEFAULTS, Limits
from sparklog.storage.local import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import FaultyStore
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore
from tests.log.topics import append

SMALL = Limits(checkpoint_commits=3)


def test_store_has_default_limits(tmp_path: Path) -> None:
    assert LocalStore(tmp_path).limits == MemoryStore(lambda: 0).limits == DEFAULTS == Limits()


def test_root_can_be_opened_with_limits(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True, limits=SMALL)
    topic = root.create_topic("t")
    for _ in range(4):
        topic.append(pa.table({"value": [b"x"]}))
    assert topic.log.checkpoints() == [2]
    usual = sparklog.open(tmp_path).topic("t")
    for _ in range(4):
        usual.append(pa.table({"value": [b"x"]}))
    assert usual.log.checkpoints() == [2], "limits are no part of what is stored"


def test_a_world_has_limits() -> None:
    world = World(limits=SMALL)
    topic = world.root().create_topic("t")
    for _ in range(3):
        append(topic, (0, 1))
    assert world.topic("t").log.checkpoints() == [2]


def store_of(kind: str, folder: Path) -> Store:
    if kind == "disk":
        return LocalStore(folder)
    if kind == "hdfs":
        pytest.importorskip("hdfs_native")
        from sparklog.storage.hdfs_store import HdfsStore

        return HdfsStore("hdfs://host:8020/log")
    pytest.importorskip("obstore")
    from sparklog.storage.object_store import ObjectStore

    return ObjectStore("s3://bucket/log")


@pytest.mark.parametrize("kind", ["disk", "bucket", "hdfs"])
def test_task_has_the_limits_of_its_driver(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    usual = len(pickle.dumps(store))
    store.limits = SMALL
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.limits, copy.location) == (SMALL, store.location)
    assert pickle.loads(pickle.dumps(copy)).limits == SMALL
    store.limits = Limits()
    assert len(pickle.dumps(store)) == usual, "the usual ones cost nothing"
    assert pickle.loads(pickle.dumps(store)).limits == DEFAULTS


def test_store_wrappers_have_the_limits_of_the_inner_store() -> None:
    inner = MemoryStore(lambda: 0)
    outer = CountingStore(FaultyStore(inner, lambda call: None))
    outer.limits = SMALL
    assert inner.limits == SMALL == outer.limits


def test_limits_are_positive_and_documented() -> None:
    source = Path(sparklog.__file__).with_name("limits.py").read_text()
    for limit in fields(Limits):
        assert getattr(DEFAULTS, limit.name) > 0
        declared = source.index(f"    {limit.name}: ")
        assert source[declared:].split("\n")[1].strip().startswith('"""'), f"say what {limit.name} is"
