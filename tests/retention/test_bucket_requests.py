"""Requests of maintenance in a bucket: deletes in bulk, and prunes that leave all kept backups complete."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import BadRequest, Unavailable
from sparklog.groups.collecting import collect_groups
from sparklog.groups.group import Group
from sparklog.log.journal.names import foreign_name
from sparklog.log.topic.root import open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.vacuum import DeleteWork, vacuum
from sparklog.testing.world import DAY_MS, World
from sparklog.testing.wrapper_stores import CountingStore, WrapperStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import Repository, needed_keys, prune
from tests.support.compaction import compact_topic
from tests.support.counted_root import Bucket, CountedRoot
from tests.support.records import rows


@pytest.fixture
def bucket(tmp_path: Path) -> CountedRoot:
    return CountedRoot("bucket", tmp_path)


def test_bulk_delete_uses_one_request_per_1000_keys() -> None:
    inner = Bucket(lambda: 0)
    store = CountingStore(CountingStore(inner))
    keys = tuple(f"t/append/{number}" for number in range(2500))
    for key in keys:
        inner.create(key, b"x")
    DeleteWork(store, "t", "id", keys).run()
    assert store.counts == {"delete_many": 3}
    assert not list(inner.list(""))
    single = CountingStore(World().store)
    DeleteWork(single, "t", "id", keys[:5]).run()
    assert single.counts == {"delete": 5}


@pytest.mark.usefixtures("records_in_files")
def test_vacuum_deletes_in_bulk_and_lists_each_directory_once(bucket: CountedRoot) -> None:
    topic = bucket.topic(2)
    for number in range(140):
        topic.append(rows("x", partition=number % 2))
    world = bucket.world
    report = compact_topic(topic, Settings(now_ms=world.now_ms), InProcess(), CompactOptions())
    assert not report.failures
    world.now_ms += 2 * DAY_MS
    bucket.store.reset()
    vacuumed = vacuum(bucket.reopened(), Settings(now_ms=world.now_ms))
    assert vacuumed.objects >= 140
    counts = bucket.store.counts
    # Data files, documents of checkpoints and tables of checkpoints are deleted in this order.
    assert counts["delete"] == 0
    assert 1 <= counts["delete_many"] <= 3
    # Listings of commits, checkpoints and both kinds of data; the first two are repeated to open the topic.
    assert counts["list"] <= 6
    # Of 141 commits, the last of the first 128 contains the others, and so do four of the later ones.
    assert bucket.store.by_kind["get", "commit"] <= 24


def test_old_group_entries_are_deleted_in_bulk(bucket: CountedRoot) -> None:
    bucket.topic(1).append(rows(*"x" * 300))
    member = Group(bucket.root, "g").join("m")
    for offset in range(150):
        member.commit({"t": {0: offset}})
    bucket.world.now_ms += 8 * DAY_MS
    member.commit({"t": {0: 200}})
    bucket.store.reset()
    done = collect_groups(bucket.root, retention_ms=7 * DAY_MS, now_ms=bucket.world.now_ms)
    assert done.objects > 60
    assert bucket.store.counts["delete_many"] == 1
    assert bucket.store.counts["delete"] == 0


def pruned_world() -> tuple[World, Bucket]:
    world, target = World(), Bucket(lambda: world.now_ms)
    topic = world.root().create_topic("t")
    for _ in range(4):
        topic.append(rows("x"))
        back_up(world.root(), target)
        world.now_ms += DAY_MS
    return world, target


def test_prune_deletes_in_bulk() -> None:
    world, target = pruned_world()
    store = CountingStore(target)
    pruned = prune(store, keep=1, env=world.env())
    assert len(pruned.dropped) == 3
    bulk = [key for verb, key in store.keys if verb == "delete_many"]
    assert bulk[0].startswith("_backups/")
    assert len(bulk) <= 2


class HalfDone(WrapperStore):
    """A store whose bulk deletes remove the second half of the keys and fail."""

    def delete_many(self, keys: Iterable[str]) -> None:
        names = list(keys)
        for key in names[len(names) // 2 :]:
            self.inner.delete(key)
        raise Unavailable("half of it is done; try again")


def test_interrupted_prune_leaves_only_complete_backups() -> None:
    world, target = pruned_world()
    with pytest.raises(Unavailable):
        prune(HalfDone(target), keep=1, env=world.env())
    repository = Repository.open(target)
    left = {info.key for info in target.list("")}
    assert len(repository.manifests()) == 2
    for manifest in repository.manifests():
        # A file of rows may have a key filter.
        assert {key for key in needed_keys(target, manifest) if not key.endswith(".bloom")} <= left
    world.now_ms += DAY_MS
    assert len(prune(target, keep=1, env=world.env()).dropped) == 1


def test_creating_a_root_does_not_list_all_keys() -> None:
    world = World()
    inner = Bucket(world.clock)
    for number in range(3000):
        inner.create(f"_checkpoints/query/state/{number}", b"x")
        inner.create(f"stream/state/{number}", b"x")
    inner.create("stream/metadata", b"x")
    inner.create("stream/offsets/0", b"x")
    store = CountingStore(inner)
    assert foreign_name(store) is None
    # One key per directory, the two objects of the query, and nothing else.
    assert store.counts == {"list": 4, "stat": 1}
    open_root(store, create=True, env=world.env())
    inner.create("zoo/1.parquet", b"x")
    assert foreign_name(inner) == "_root.json"
    other = Bucket(world.clock)
    other.create("_checkpoints/query/metadata", b"x")
    other.create("zoo/1.parquet", b"x")
    with pytest.raises(BadRequest, match=r"nor empty, found zoo/1\.parquet"):
        open_root(other, create=True, env=world.env())
