"""A real HDFS: Hadoop's namenode and datanodes. Slow; `test_hdfs_store.py` runs similar tests in memory."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.storage import Store, open_store
from sparklog.storage.hdfs_store import HdfsStore
from sparklog.storage.probe import probe
from sparklog.testing.store_tests import StoreTests
from sparklog.tools.verification.run import verify_root
from tests.support.minicluster import MiniCluster

pytestmark = [pytest.mark.slow]

_numbers = itertools.count()
DAY_MS = 86_400_000


@pytest.fixture
def location(minicluster: MiniCluster) -> str:
    return f"{minicluster.url}/tests/{next(_numbers)}/log"


class TestHdfs(StoreTests):
    @pytest.fixture
    def store(self, location: str) -> Store:
        return open_store(location)


def _create(location: str, key: str) -> bool:
    return open_store(location).create(key, os.urandom(100))


def test_one_of_several_processes_creates_an_object(location: str) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        for turn in range(5):
            created = list(pool.map(_create, [location] * 8, [f"race/{turn}"] * 8))
            assert created.count(True) == 1


def test_a_root_works_in_hdfs(minicluster: MiniCluster, location: str) -> None:
    probe(open_store(location))
    root = sparklog.open(location, create=True)
    topic = root.ensure_topic("orders", partitions=2, configs={"retention.ms": -1})
    for turn in range(4):
        topic.append(pa.table({"key": [b"k", b"l"], "value": [b"%d" % turn] * 2}))
    expected = sorted([b"0", b"1", b"2", b"3"] * 2)

    def values() -> list[bytes]:
        again = sparklog.open(location)
        assert again.id == root.id
        return sorted(again.topic("orders").scan().to_table().column("value").to_pylist())

    assert values() == expected
    (compacted,) = sparklog.compact(location, roll=True)
    assert not compacted.failures
    assert values() == expected
    store = open_store(location)
    assert list(store.list("orders/sealed/"))
    assert verify_root(store).sound
    # Sealed append files are deleted eventually, and so are the files of a writer that died two days ago.
    store.writer("orders/append/x.slices").write(b"x")
    (temporary,) = store.temporary_files("")
    assert isinstance(store, HdfsStore)
    long_ago = temporary.modified_ms - 2 * DAY_MS
    store._client.set_times(f"{location.removeprefix(minicluster.url)}/{temporary.key}", long_ago, long_ago)
    (retained,) = sparklog.retain(location, now_ms=store.now_ms() + 20 * DAY_MS)
    assert not retained.failures
    assert not list(store.list("orders/append/"))
    assert not list(store.temporary_files(""))
    assert values() == expected


def test_a_snapshot_can_be_read_as_a_root(minicluster: MiniCluster, location: str) -> None:
    topic = sparklog.open(location, create=True).ensure_topic("orders", partitions=1)
    topic.append(pa.table({"key": [b"k"], "value": [b"before"]}))
    path = location.removeprefix(minicluster.url)
    minicluster.tool("org.apache.hadoop.hdfs.tools.DFSAdmin", "-allowSnapshot", path)
    minicluster.tool("org.apache.hadoop.fs.FsShell", "-createSnapshot", path, "monday")
    topic.append(pa.table({"key": [b"k"], "value": [b"after"]}))
    snapshot = sparklog.open(f"{location}/.snapshot/monday").topic("orders")
    assert snapshot.scan().to_table().column("value").to_pylist() == [b"before"]
    with pytest.raises(SparklogError, match="read"):
        snapshot.append(pa.table({"key": [b"k"], "value": [b"x"]}))
    with pytest.raises(Unavailable, match="snapshots are read-only"):
        open_store(f"{location}/.snapshot/monday").create("a", b"x")


def test_permissions_quotas_and_safe_mode_are_reported_in_one_line(minicluster: MiniCluster, location: str) -> None:
    admin, shell = "org.apache.hadoop.hdfs.tools.DFSAdmin", "org.apache.hadoop.fs.FsShell"
    store = open_store(location)
    store.create("a/x", b"x")
    path = location.removeprefix(minicluster.url)

    def refused(words: str, name: str = "hdfs") -> None:
        with pytest.raises((Unavailable, BadRequest), match=words) as caught:
            open_store(location).create(f"a/{name}", b"x")
        assert "\n" not in str(caught.value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", "anna")
        refused("Permission denied: user=anna, access=WRITE")
    minicluster.tool(shell, "-chmod", "700", path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", "anna")
        with pytest.raises(Unavailable, match="Permission denied: user=anna, access=EXECUTE"):
            open_store(location).get("a/x")
    minicluster.tool(admin, "-setQuota", "3", path)
    refused("a quota is exceeded")
    minicluster.tool(admin, "-clrQuota", path)
    minicluster.tool(admin, "-safemode", "enter")
    try:
        refused("the namenode is in safe mode")
        assert store.get("a/x") == b"x"
    finally:
        minicluster.tool(admin, "-safemode", "leave")
    assert store.create("a/hdfs", b"x")
