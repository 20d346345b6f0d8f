"""Reads of a remote store: several ranges are in flight, and the records have the same order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparklog.errors import Corrupt, SparklogError
from sparklog.limits import Limits
from sparklog.log.journal.names import transactions_prefix
from sparklog.log.read.planned_slices import planned_slices
from sparklog.log.read.read_ahead import ReadAhead, Request
from sparklog.log.read.read_plan import NativeReadPart, read_parts
from sparklog.log.read.slice_files import opened_slice, read_windows
from sparklog.log.topic.topic import Topic
from sparklog.storage.store import Store
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import WrapperStore
from sparklog.transactions.producer import transactional
from tests.log.rewriting import rewrite
from tests.support.counted_root import CountedRoot
from tests.support.name_caching_store import NameCachingStore
from tests.support.records import random_rows, small

WINDOW = 64 << 10


def with_windows(kind: str, folder: Path) -> CountedRoot:
    counted_root = CountedRoot(kind, folder)
    counted_root.store.limits = Limits(span_bytes=WINDOW)
    return counted_root


@pytest.fixture(params=[1, 16], ids=["in turn", "at once"])
def counted_root(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return with_windows("memory" if request.param == 1 else "bucket", tmp_path)


@pytest.fixture
def bucket(tmp_path: Path) -> CountedRoot:
    return with_windows("bucket", tmp_path)


def filled(counted_root: CountedRoot) -> Topic:
    """Return a topic with two partitions: ten small files, one with large slices, and a few small ones."""
    topic = counted_root.topic(2)
    for number in range(10):
        topic.append(random_rows(100, first=number * 100, seed=number))
    topic.append(random_rows(4000, first=1000, value_bytes=200, seed=50), options=small(batch_bytes=9_000))
    for number in range(3):
        topic.append(random_rows(100, first=5000 + number * 100, seed=60 + number))
    return topic


def reads(counted_root: CountedRoot) -> int:
    return sum(verb == "get" and "/append/" in key for verb, key in counted_root.store.keys)


def test_read_ahead_returns_the_written_records(counted_root: CountedRoot) -> None:
    topic = filled(counted_root)
    read = topic.scan().to_table()
    assert read["offset"].to_pylist()[:3] == [0, 1, 2]
    assert Counter(read["value"].to_pylist()).most_common(1)[0][1] == 1
    assert len(read) == 5300
    for partition in (0, 1):
        offsets = read.filter(pc.equal(read["partition"], partition))["offset"].to_pylist()
        assert offsets == list(range(len(offsets)))
    for start, end in ((5, 300), (700, 701), (550, 2100), (2400, 2600)):
        part = topic.scan(partitions=[0], start=start, end=end).to_table()
        assert part["offset"].to_pylist() == list(range(start, end))


@pytest.mark.usefixtures("records_in_files")
def test_each_byte_of_a_slice_is_read_once_in_large_ranges(bucket: CountedRoot) -> None:
    topic = filled(bucket)
    scan = topic.scan()
    bucket.store.reset()
    assert len(scan.to_table()) == 5300
    slices = topic.log.snapshot(refresh=False).slices.all()
    assert bucket.store.bytes_read == int(slices.size.sum())
    # Large slices are read in windows. Adjacent small slices are read together. After the large slices, partitions are
    # read one after the other.
    large = slices.size[slices.size > WINDOW].tolist()
    assert len(large) == 2
    assert reads(bucket) == sum(-(-size // WINDOW) for size in large) + 10 + 2 * 3


class Gathering(WrapperStore):
    """Respond to reads of data only if `together` reads or `most` bytes are in flight, and record these reads."""

    def __init__(self, inner: Store, together: int) -> None:
        super().__init__(inner)
        self.barrier = threading.Barrier(together, timeout=60)
        self.lock = threading.Lock()
        self.under_way: list[int] = []
        self.most = 0

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if "/append/" not in key or length is None:
            return self.inner.get(key, start, length)
        with self.lock:
            self.under_way.append(length)
            self.most = max(self.most, sum(self.under_way))
        self.barrier.wait()
        with self.lock:
            self.under_way.remove(length)
        return self.inner.get(key, start, length)


def test_ranges_are_requested_in_parallel(bucket: CountedRoot) -> None:
    topic = bucket.topic(1)
    for number in range(12):
        topic.append(random_rows(50, first=number * 50))
    # If reads were sequential, the barrier would break.
    store = Gathering(bucket.inner, together=12)
    assert len(bucket.world.root(store).topic("t").scan().to_table()) == 600
    limit = store.most // 3
    bucket.store.limits = Limits(span_bytes=WINDOW, ahead_bytes=limit)
    few = Gathering(bucket.inner, together=4)
    assert len(bucket.world.root(few).topic("t").scan().to_table()) == 600
    assert few.most <= limit + store.most // 12 + 100


def test_a_reader_of_few_records_reads_few_bytes(bucket: CountedRoot) -> None:
    bucket.store.limits = Limits(span_bytes=WINDOW, first_ahead_bytes=WINDOW // 2)
    topic = bucket.topic(1)
    topic.append(random_rows(8000, value_bytes=200), options=small(batch_bytes=9_000))
    scan = topic.scan(batch_bytes=20_000)
    bucket.store.reset()
    batches = iter(scan)
    next(batches)
    assert reads(bucket) == 1
    for _ in batches:
        pass
    assert reads(bucket) > 20


def test_a_store_without_parallel_reads_is_read_on_demand(tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    topic = counted_root.topic(1)
    for number in range(6):
        topic.append(random_rows(300, first=number * 300, value_bytes=2000))
    scan = topic.scan(batch_bytes=100_000)
    counted_root.store.reset()
    batches = iter(scan)
    next(batches)
    first = reads(counted_root)
    assert first <= 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sparklog-read")]
    assert sum(batch.num_rows for batch in batches) < 1800
    assert reads(counted_root) == 6


@pytest.mark.usefixtures("records_in_files")
def test_concurrently_replaced_files_are_read_from_their_new_files(counted_root: CountedRoot) -> None:
    topic = filled(counted_root)
    expected = topic.scan(partitions=[0]).to_table()
    batches = iter(topic.scan(partitions=[0], batch_bytes=2_000))
    read = [next(batches)]
    rewrite(counted_root, topic, "append/00000000000000000099-rewritten.slices")
    read += batches
    assert pa.Table.from_batches(read)["offset"].to_pylist() == expected["offset"].to_pylist()
    assert pa.Table.from_batches(read)["value"].to_pylist() == expected["value"].to_pylist()


@pytest.mark.usefixtures("records_in_files")
def test_the_error_reports_a_file_that_stays_missing(counted_root: CountedRoot) -> None:
    topic = filled(counted_root)
    gone = counted_root.append_files()[12]
    counted_root.inner.delete(gone)
    with pytest.raises(Corrupt, match="the log references a file that does not exist") as caught:
        topic.scan().to_table()
    assert caught.value.file == gone


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("read", [lambda topic: topic.scan().to_table(), lambda topic: topic.offset_for_timestamp(0)])
def test_reads_wait_for_a_file_that_a_name_cache_hides(read: Callable[[Topic], object]) -> None:
    world = World()
    world.root().create_topic("t").append({"value": ["a"]})
    (key,) = (info.key for info in world.store.list("t/append/"))
    data = world.store.get(key)
    store = NameCachingStore(world.store, lambda: time.monotonic_ns() // 1_000_000, name_ms=100)
    topic = world.root(store).topic("t")
    world.store.delete(key)
    assert store.stat(key) is None
    world.store.create(key, data)
    assert read(topic)


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("remembered", [("t/append", "t/_log"), ("t/append", f"{transactions_prefix('id')}/_log")])
def test_replanning_on_another_host_returns_all_records(remembered: tuple[str, ...]) -> None:
    world = World()
    root = world.root()
    root.create_topic("t").append({"value": ["a"]})
    transaction = transactional(root, "id").begin()
    transaction.append("t", {"value": ["b"]})
    other = NameCachingStore(world.store, lambda: time.monotonic_ns() // 1_000_000, folder_ms=500)
    for folder in remembered:
        list(other.list(f"{folder}/"))
    transaction.commit()
    parts = root.topic("t").scan().parts
    # The file of the second record is hidden there, and so is the entry that shows that the record is committed.
    batches = read_parts([replace(part, store=other) for part in parts if isinstance(part, NativeReadPart)], ("value",))
    assert [value for batch in batches for value in batch["value"].to_pylist()] == [b"a", b"b"]


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("at", [0, 9, 17, 200])
def test_damage_in_a_window_is_reported(counted_root: CountedRoot, at: int) -> None:
    topic = filled(counted_root)
    key = counted_root.append_files()[10]
    from sparklog.format.batch_scan import scan_headers

    headers = scan_headers(counted_root.inner.get(key), whole=False)
    position = int(headers.position[20])
    data = bytearray(counted_root.inner.get(key))
    data[position + at] ^= 0x20
    counted_root.inner.replace(key, bytes(data))  # type: ignore[attr-defined]
    with pytest.raises(Corrupt) as caught:
        topic.scan(partitions=[0]).to_table()
    assert caught.value.file == key


def test_maintenance_reads_large_slices_in_windows(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    topic.append(random_rows(3000, value_bytes=200), options=small(batch_bytes=9_000))
    slices = topic.log.snapshot().slices
    row = planned_slices("t", 0, slices.select(0)).row(0)
    counted_root.store.reset()
    windows = [bytes(window.data) for window in read_windows(counted_root.store, row)]
    assert b"".join(windows) == counted_root.inner.get(row.file, row.position, row.size)
    begun = -(-row.size // WINDOW)
    assert begun > 9
    # In each window, the rest of a batch is read again.
    assert begun <= reads(counted_root) <= begun * (1 if counted_root.kind == "bucket" else 2)
    assert (counted_root.store.bytes_read == row.size) == (counted_root.kind == "bucket")


def test_searching_a_slice_keeps_few_bytes_in_memory(bucket: CountedRoot) -> None:
    topic = bucket.topic(1)
    topic.append(random_rows(3000, value_bytes=200), options=small(batch_bytes=9_000))
    row = planned_slices("t", 0, topic.log.snapshot().slices.select(0)).row(0)
    data = bucket.inner.get(row.file)
    bucket.store.reset()
    with opened_slice(bucket.store, row) as file:
        for position in range(row.position, row.position + row.size, 1000):
            length = min(1000, row.position + row.size - position)
            assert bytes(file.read(position, 1000)) == data[position : position + length]
            assert len(file._data) <= 2 * WINDOW
    assert bucket.store.bytes_read == row.size


def test_a_batch_larger_than_a_range_is_read(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    table = pa.table({"value": [b"a" * 100, b"b" * 3 * WINDOW, b"c" * 100, b"d" * 2 * WINDOW]})
    topic.append(table, options=small(batch_bytes=1000))
    assert topic.scan(columns=["value"]).to_table() == table


def test_stopping_early_leaves_no_request_in_flight(bucket: CountedRoot) -> None:
    topic = filled(bucket)
    batches = iter(topic.scan(batch_bytes=2_000))
    next(batches)
    before = reads(bucket)
    batches.close()  # type: ignore[attr-defined]
    assert reads(bucket) <= before + 16
    with pytest.raises(StopIteration):
        next(batches)


def test_a_failed_request_raises_when_it_is_consumed(bucket: CountedRoot) -> None:
    """Not before the previous pieces have been returned."""

    def read(request: Request) -> bytes:
        if request.start == 3:
            raise SparklogError("the fourth")
        return b"%d" % request.start

    requests = [Request(bucket.inner, "file", number, 1) for number in range(6)]
    ahead = ReadAhead(16, read, lambda: False)
    ahead.add(requests)

    def taken() -> Iterator[Any]:
        for request in requests:
            yield ahead.consume(request)

    answers = taken()
    assert [next(answers) for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(SparklogError, match="the fourth"):
        next(answers)
    ahead.drop(requests)
    ahead.close()
