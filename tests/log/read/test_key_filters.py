"""Lookups by key skip slices whose key filters exclude the key, and read slices without valid filters."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Corrupt, SparklogError, Unavailable
from sparklog.format.key_filter import encode_filters
from sparklog.limits import Limits
from sparklog.log.journal.names import filter_path
from sparklog.log.read import key_filters
from sparklog.log.read.key_filters import key_filters_of
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.storage.fork_safety import CACHE_BYTES, RecentlyUsed
from sparklog.storage.memory import MemoryStore
from sparklog.testing import CountingStore
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.tools.verification.findings import INDEX, MISSING, Finding
from sparklog.tools.verification.run import verify_root
from tests.format.test_key_filter import plain_words, version_1
from tests.support.records import random_rows

KEYS = 3000


class FilteredWorld(World):
    """A topic of 1.5 MB, which was appended in four parts, and then merged into one slice or sealed."""

    def __init__(self, *, roll: bool, configs: dict[str, str] | None = None) -> None:
        super().__init__()
        self.counted = CountingStore(self.store)
        topic = self.root().create_topic("t", partitions=1, configs=configs or {})
        for i in range(4):
            topic.append(random_rows(750, value_bytes=500, seed=i, first=750 * i).set_column(0, "key", _keys(i)))
        sparklog.compact(self.root(), roll=roll)
        (path,) = self.root().topic("t").log.read_snapshot().slices.paths()
        self.filters = filter_path(f"t/{path}")

    def get(self, key: bytes) -> tuple[pa.RecordBatch | None, int]:
        """Return the record and the bytes read, by a process with an empty cache."""
        topic = self.root(self.counted).topic("t")
        topic.log.read_snapshot()
        before = self.counted.bytes_read
        return topic.get(key), self.counted.bytes_read - before

    def findings(self, **how: bool) -> tuple[Finding, ...]:
        return verify_root(self.store, env=self.env(), **how).findings


def _keys(part: int) -> pa.Array:
    return pa.array([b"key-%d" % i for i in range(750 * part, 750 * part + 750)], pa.binary())


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filters, "cache", RecentlyUsed(key_filters._nbytes))


@pytest.fixture(params=["merged", "sealed", "cleaned"])
def world(request: pytest.FixtureRequest) -> FilteredWorld:
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    return FilteredWorld(roll=request.param != "merged", configs=compacted if request.param == "cleaned" else None)


def test_an_absent_key_reads_the_filter_once(world: FilteredWorld) -> None:
    record, nbytes = world.get(b"nobody")
    assert record is None
    assert nbytes < 10_000
    assert world.get(b"nobody else") == (None, 0)
    record, nbytes = world.get(b"key-17")
    assert record is not None
    assert record["offset"].to_pylist() == [17]
    assert 900_000 < nbytes < 1_600_000, "one of two pieces, and the record's batch again"
    assert world.findings() == () == world.findings(quick=True)


class LargeWorld(FilteredWorld):
    """A topic of 6 MB in one slice, in batches of 100 KB. Key i has offset i."""

    def __init__(self, *, roll: bool, configs: dict[str, str] | None = None) -> None:
        World.__init__(self)
        self.counted = CountingStore(self.store)
        topic = self.root().create_topic("t", partitions=1, configs=configs or {})
        for i in range(2):
            rows = random_rows(6000, value_bytes=500, seed=i)
            keys = pa.array([b"key-%d" % n for n in range(6000 * i, 6000 * i + 6000)], pa.binary())
            topic.append(rows.set_column(0, "key", keys), options=WriteOptions(codec="none", batch_bytes=100_000))
        sparklog.compact(self.root(), roll=roll)
        (path,) = self.root().topic("t").log.read_snapshot().slices.paths()
        self.filters = filter_path(f"t/{path}")

    def scanned(self, keys: list[bytes], **how: object) -> tuple[list[int], int, int]:
        """Return the offsets of records with these keys, the requests, and the bytes read except the filters."""
        topic = self.root(self.counted).topic("t")
        scan = topic.scan(keys=keys, **how)
        gets, nbytes = self.counted.counts["get"], self.counted.bytes_read
        offsets = scan.to_table()["offset"].to_pylist()
        return offsets, self.counted.counts["get"] - gets, self.counted.bytes_read - nbytes


@pytest.mark.parametrize("roll", [False, True])
def test_only_the_matching_blocks_of_a_large_slice_are_read(roll: bool) -> None:
    world = LargeWorld(roll=roll)
    (made,) = key_filters.decode_filters(world.store.get(world.filters))
    sizes = [piece.nbytes for piece in made.pieces]
    assert len(sizes) == 7
    assert world.scanned([b"key-17"]) == ([17], 1, sizes[0])
    assert world.scanned([b"key-6000"]) == ([6000], 1, sizes[3])
    assert world.scanned([b"nobody"]) == ([], 0, 0)
    assert world.scanned([b"key-17", b"key-2500"]) == ([17, 2500], 1, sizes[0] + sizes[1]), "neighbours in one request"
    assert world.scanned([b"key-17", b"key-11900"]) == ([17, 11900], 2, sizes[0] + sizes[-1])
    every = [b"key-%d" % i for i in range(0, 12000, 100)]
    assert world.scanned(every) == (list(range(0, 12000, 100)), 1, made.nbytes)
    # Blocks outside of the range are not read.
    assert world.scanned([b"key-17", b"key-5000"], start={0: 5000}, end={0: 5001}) == ([5000], 1, sizes[2])
    assert world.scanned([b"key-17"], start={0: 18}) == ([], 1, sizes[0])
    for key, number in ((b"key-17", 17), (b"key-11999", 11999)):
        record, nbytes = world.get(key)
        assert record is not None
        assert record["offset"].to_pylist() == [number]
        assert nbytes < 1_400_000
    assert world.findings() == ()


def test_blocks_of_a_concurrently_replaced_slice_are_read_from_the_new_file() -> None:
    world = LargeWorld(roll=False)
    topic = world.root(world.counted).topic("t")
    scan = topic.scan(keys=[b"key-17", b"key-11900"])
    sparklog.compact(world.root(), roll=True)
    world.store.delete(world.filters.replace(".bloom", ".slices"))
    assert scan.to_table()["offset"].to_pylist() == [17, 11900]


def test_damage_in_a_block_is_reported_with_its_position() -> None:
    world = LargeWorld(roll=True)
    file = world.filters.replace(".bloom", ".log")
    _with(world.store, file, 3_500_000, b"damaged")
    topic = world.root(world.counted).topic("t")
    assert topic.scan(keys=[b"key-17"]).to_table().num_rows == 1
    with pytest.raises(Corrupt, match=r"CRC-32C does not match its bytes; restore the file"):
        topic.scan(keys=[b"key-6800"]).to_table()


@pytest.mark.parametrize("roll", [False, True])
def test_a_gap_between_the_batches_of_a_block_is_not_corruption(roll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block has 20 of 40 records, 21 offsets, and 52 % of the bytes, so its estimate is 21 records."""
    monkeypatch.setattr("sparklog.format.key_filter.PIECE_BYTES", 25_000)
    world = World(limits=Limits(filter_min_bytes=1))
    topic = world.root().create_topic("t")
    keys = [b"key-%02d" % n for n in range(40)]
    for i, value_bytes in enumerate((1100, 1100, 1020, 1020)):
        rows = pa.table({"key": keys[10 * i : 10 * i + 10], "value": [b"v" * value_bytes] * 10})
        topic.append(rows, options=WriteOptions(codec="none"))
        if i == 0:
            transaction = sparklog.transactional(world.root(), "job").begin()
            transaction.append("t", pa.table({"key": [b"aborted"], "value": [b"v"]}))
            transaction.prepare()
            transaction.abort()
    sparklog.compact(world.root(), roll=roll)
    (path,) = world.topic("t").log.read_snapshot().slices.paths()
    (made,) = key_filters.decode_filters(world.store.get(filter_path(f"t/{path}")))
    assert [piece.offset - made.pieces[0].offset for piece in made.pieces] == [0, 21]
    assert [record is None for record in map(world.topic("t").get, keys)] == [False] * 40
    assert world.topic("t").scan(keys=keys).to_table()["key"].to_pylist() == keys


def test_filters_of_entire_slices_from_earlier_releases_are_read(world: FilteredWorld) -> None:
    (made,) = key_filters.decode_filters(world.store.get(world.filters))
    words = plain_words([b"key-%d" % i for i in range(KEYS)], 120)
    world.store.replace(world.filters, version_1([(made.position, made.nbytes, made.crc, words)]))
    record, nbytes = world.get(b"nobody")
    assert (record, nbytes < 10_000) == (None, True)
    record, nbytes = world.get(b"key-17")
    assert record is not None
    assert nbytes > 1 << 20
    assert world.findings() == ()
    words[words.any(axis=1).argmax()] = 0
    world.store.replace(world.filters, version_1([(made.position, made.nbytes, made.crc, words)]))
    assert len(world.findings()) == 1


@pytest.mark.parametrize("offset", [0, 1 << 40])
def test_filters_with_unordered_blocks_are_ignored(world: FilteredWorld, offset: int) -> None:
    (made,) = key_filters.decode_filters(world.store.get(world.filters))
    first, second = made.pieces
    wrong = replace(made, pieces=(first, replace(second, offset=offset)))
    world.store.replace(world.filters, encode_filters([wrong]))
    record, nbytes = world.get(b"key-17")
    assert record is not None
    assert nbytes > made.nbytes
    (finding,) = world.findings()
    assert (
        finding.message == "the filter does not contain all keys of the slice, so lookups do not find the missing keys"
    )


def test_slices_without_filters_are_searched(world: FilteredWorld) -> None:
    world.topic("t").append(pa.table({"key": [b"new", b"key-3"], "value": [b"v", b"w"]}))
    for key in (b"new", b"key-3"):
        record, _ = world.get(key)
        assert record is not None
        assert record["value"][0].as_py() in (b"v", b"w")


def _with(store: MemoryStore, key: str, at: int, data: bytes) -> None:
    before = store.get(key)
    store.replace(key, before[:at] + data + before[at + len(data) :])


@pytest.mark.parametrize("at", [0, 13, 30, -1])
def test_verify_reports_a_damaged_filter_and_reads_ignore_it(world: FilteredWorld, at: int) -> None:
    data = world.store.get(world.filters)
    _with(world.store, world.filters, at % len(data), bytes([data[at] ^ 1]))
    record, nbytes = world.get(b"key-17")
    assert record is not None
    assert nbytes > 1 << 20
    assert world.get(b"nobody")[0] is None
    (finding,) = world.findings()
    assert (finding.kind, finding.file) == (INDEX, world.filters)
    assert "no records are lost" in finding.remedy


@pytest.mark.parametrize("error", [Unavailable("the device reports an I/O error"), BadRequest("no regular file")])
def test_an_unreadable_filter_does_not_fail_a_lookup(
    world: FilteredWorld, error: SparklogError, caplog: pytest.LogCaptureFixture
) -> None:

    def fail(verb: str, key: str) -> None:
        if verb == "get" and key.endswith(".bloom"):
            raise error

    world.counted.inner = HookedStore(world.store, before=fail)
    for key, number in ((b"key-17", 17), (b"key-2999", 2999)):
        record, nbytes = world.get(key)
        assert record is not None
        assert record["offset"].to_pylist() == [number]
        assert nbytes > 1 << 20
    assert world.get(b"nobody")[0] is None
    one = world.root(world.counted).topic("t").scan(keys=[b"key-17"]).to_table()
    assert one["offset"].to_pylist() == [17]
    assert [world.filters in each.getMessage() for each in caplog.records] == [True], "one warning"
    world.counted.inner = world.store
    record, nbytes = world.get(b"nobody")
    assert (record, nbytes < 10_000) == (None, True), "it is read again once it can be"


def test_a_filter_that_does_not_match_the_slice_is_ignored(world: FilteredWorld) -> None:
    other = FilteredWorld(roll=True, configs={"compression.type": "gzip"})
    world.store.replace(world.filters, other.store.get(other.filters))
    assert world.get(b"key-17")[0] is not None
    assert world.get(b"nobody")[1] > 1 << 20
    (finding,) = world.findings()
    assert finding.message == "expected a filter for the slice at byte 0, found none"


def test_verify_reports_a_missing_filter_and_reads_work_without_it(world: FilteredWorld) -> None:
    world.store.delete(world.filters)
    assert world.get(b"key-17")[0] is not None
    for how in ({}, {"quick": True}):
        (finding,) = world.findings(**how)
        assert (finding.kind, finding.file) == (MISSING, world.filters)


def test_verify_reports_a_filter_that_lacks_a_key(world: FilteredWorld) -> None:
    (made,) = key_filters.decode_filters(world.store.get(world.filters))
    first, second = made.pieces
    words = second.words.copy()
    words[words.any(axis=1).argmax()] = 0
    wrong = replace(made, pieces=(first, replace(second, words=words)))
    world.store.replace(world.filters, encode_filters([wrong]))
    (finding,) = world.findings()
    assert (
        finding.message == "the filter does not contain all keys of the slice, so lookups do not find the missing keys"
    )


def test_a_clone_reads_the_filters_of_its_source(world: FilteredWorld) -> None:
    clone_topic(world.root(), "t", "copy")
    copied: Topic = world.root(world.counted).topic("copy")
    assert world.get(b"nobody")[0] is None
    before = world.counted.bytes_read
    assert copied.get(b"nobody") is None
    assert world.counted.bytes_read - before < 10_000
    assert copied.get(b"key-9") is not None
    assert world.findings() == ()


def test_records_without_keys_and_small_slices_have_no_filter() -> None:
    world = World()
    for name, rows in (("a", random_rows(3000, value_bytes=500, keys=None)), ("b", random_rows(30))):
        topic = world.root().create_topic(name)
        topic.append(rows)
        topic.append(rows)
    sparklog.compact(world.root(), roll=True)
    assert not [info.key for info in world.store.list("") if info.key.endswith(".bloom")]
    for name in ("a", "b"):
        flags = world.topic(name).log.read_snapshot().slices.all().flags
        assert not (flags & int(SliceFlag.KEY_FILTER)).any()


def test_filters_are_written_again_by_another_merge() -> None:
    world = FilteredWorld(roll=False)
    topic = world.topic("t")
    for i in range(8):
        topic.append(pa.table({"key": _keys(i % 4), "value": _keys(i)}))
        sparklog.compact(world.root())
    sparklog.compact(world.root(), roll=True)
    assert world.get(b"nobody")[1] < 12_000
    assert world.get(b"key-1")[0] is not None
    assert world.findings() == ()


def test_the_filter_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FilteredWorld(roll=True)
    file = world.filters.replace(".bloom", ".log")
    for most, gets in ((10, 2), (CACHE_BYTES, 1)):
        monkeypatch.setattr(key_filters, "cache", RecentlyUsed(key_filters._nbytes, most))
        before = world.counted.counts["get"]
        assert len(key_filters_of(world.counted, file)) == len(key_filters_of(world.counted, file)) == 1
        assert world.counted.counts["get"] == before + gets
    before = world.counted.counts["get"]
    assert key_filters_of(world.counted, "t/none.log") == key_filters_of(world.counted, "t/none.log") == ()
    assert world.counted.counts["get"] == before + 1
