"""Scans of some keys return the filtered result of a full scan, for random histories of a topic."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest
from sparklog.log.read.key_lookup import KeySet
from sparklog.log.read.topic_scan import Scan, Tail
from sparklog.log.topic.root import RootView
from sparklog.testing import CountingStore
from sparklog.testing.world import World
from sparklog.transactions.producer import transactional
from tests.support.records import by_partition
from tests.support.small_limits import small_limits

ALL_KEYS = [b"k%d" % i for i in range(40)]


@pytest.fixture
def _small_filters() -> Iterator[None]:
    with small_limits(filter_min_bytes=200):
        yield


def some_rows(rng: random.Random, partition: int | None) -> pa.Table:
    # Each append has few keys, so that many slices do not contain a given key.
    keys = rng.sample(ALL_KEYS, 4)
    n = rng.randrange(1, 12)
    values = [rng.choice([None, b"v%d" % rng.randrange(99)]) for _ in range(n)]
    table = pa.table({"key": [rng.choice(keys) for _ in range(n)], "value": pa.array(values, pa.binary())})
    if partition is not None:
        table = table.append_column("partition", pa.array([partition] * n, pa.int32()))
    return table


def history(seed: int, steps: int) -> Iterator[tuple[World, random.Random, bool]]:
    """Yield a topic after each step, and whether all records are in the partitions that Kafka's partitioner selects."""
    rng, world, placed = random.Random(seed), World(), True
    configs = rng.choice([{}, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}])
    world.root().create_topic("t", partitions=rng.randrange(1, 4), configs=configs)
    for _ in range(steps):
        topic = world.topic("t")
        step = rng.randrange(10)
        if step < 4:
            topic.append(some_rows(rng, None))
        elif step < 6:
            transaction = transactional(world.root(), "app").begin()
            transaction.append("t", some_rows(rng, None))
            transaction.commit() if rng.random() < 0.6 else transaction.abort()
        elif step < 8:
            world.now_ms += 1000
            sparklog.compact(world.root(), roll=rng.random() < 0.5)
        elif step == 8 and topic.log.read_snapshot().state.partitions < 6:
            topic.alter(partitions=topic.log.read_snapshot().state.partitions + 1)
        elif seed % 3 == 0:
            topic.append(some_rows(rng, 0))
            placed = False
        yield world, rng, placed


def expected(whole: pa.Table, keys: list[bytes]) -> dict[int, list[object]]:
    mask = [key in keys for key in whole["key"].to_pylist()]
    return by_partition(whole.filter(pa.array(mask, pa.bool_())), "offset")


def check(world: World, rng: random.Random, placed: bool) -> None:
    topic = world.topic("t")
    keys = [*rng.sample(ALL_KEYS, rng.randrange(1, 4)), b"nobody"]
    for isolation in ("read_committed", "read_uncommitted"):
        whole = topic.scan(isolation_level=isolation).to_table()
        partitions = range(topic.log.read_snapshot().state.partitions)
        scans = [topic.scan(keys=keys, partitions=list(partitions), isolation_level=isolation)]
        if placed:
            scans.append(topic.scan(keys=keys, isolation_level=isolation, threads=2))
        for scan in scans:
            assert by_partition(scan.to_table(), "offset") == expected(whole, keys)


@pytest.mark.usefixtures("_small_filters")
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))])
def test_random_histories(seed: int) -> None:
    for world, rng, placed in history(seed, 8 if seed < 2 else 16):
        check(world, rng, placed)


@pytest.mark.usefixtures("_small_filters")
def test_only_partitions_and_slices_that_may_contain_the_keys_are_read() -> None:
    world = World()
    counted = CountingStore(world.store)
    topic = world.root(counted).create_topic("t", partitions=4)
    for part in range(2):
        keys = pa.array([b"k%d" % i for i in range(1000 * part, 1000 * part + 1000)])
        topic.append(pa.table({"key": keys, "value": keys}))
        sparklog.compact(world.root(), roll=True)
    topic = world.root(counted).topic("t")

    def read(scan: Scan) -> int:
        before = counted.bytes_read
        scan.to_table()
        return counted.bytes_read - before

    whole, one = read(topic.scan()), topic.scan(keys=["k1500"], columns=["offset"])
    assert len(one.parts) == 1
    assert one.to_table().column_names == ["offset"]
    assert read(one) < whole / 6
    assert topic.scan(keys=["nobody", b"no one"]).parts == ()
    assert topic.scan(keys=[]).to_table().num_rows == 0
    assert topic.scan(keys=[b"k1", "k1", "k2"]).to_table().num_rows == 2


def test_a_tail_with_keys_returns_only_their_records() -> None:
    world = World()
    topic = world.root().create_topic("t", partitions=3)
    tail = Tail(RootView(world.root()), "t", "read_committed", keys=KeySet.of(["a"]))
    tail.open()
    tail.start_at_log_start()
    for value in (b"1", b"2"):
        topic.append(pa.table({"key": [b"a", b"b", b"c"], "value": [value] * 3}))
        tail.refresh()
        assert [batch.to_pylist() for batch in tail.poll(("value",))] == [[{"value": value}]]
        assert tail.at_end()


@pytest.mark.parametrize(("keys", "shown"), [("anna", "found 'anna'; use ['anna']"), (b"a", "found b'a'"), ([1], "1")])
def test_keys_must_be_a_list(keys: object, shown: str) -> None:
    topic = World().root().create_topic("t")
    with pytest.raises(BadRequest, match=r"(keys must be a list of|a key must be) bytes or") as error:
        topic.scan(keys=keys)  # type: ignore[arg-type]
    assert shown in str(error.value)
