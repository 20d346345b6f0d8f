"""Scans: ranges, projections, requests, joined batches, large slices, damaged slices, and missing files."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.limits import Limits
from sparklog.log.read.decode_slices import _contiguous
from sparklog.log.read.read_plan import NativeReadPart, plan_parts, read_parts
from sparklog.log.state.range_slices import select_ranges
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.log.write.append_writer import AppendWriter
from sparklog.storage.memory import MemoryStore
from sparklog.testing.faulty_store import Fault, FaultKind, FaultyStore, Script
from sparklog.transactions.producer import transactional
from tests.support.counted_root import KINDS_AND_BUCKET, CountedRoot
from tests.support.records import by_partition, check_schema, random_rows, small
from tests.support.seeds import examples


@pytest.fixture(params=KINDS_AND_BUCKET)
def counted_root(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path / "root")


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def gets(counted_root: CountedRoot) -> int:
    """Return the number of reads of append files since the last reset."""
    return sum(verb == "get" and "/append/" in key for verb, key in counted_root.store.keys)


def part_of(topic: Topic, partition: int, start: int, end: int, isolation: str = READ_COMMITTED) -> NativeReadPart:
    snapshot = topic.log.snapshot()
    selected = select_ranges({topic.name: snapshot}, [OffsetRange(topic.name, partition, start, end)])
    (part,) = plan_parts(selected, isolation)
    return part


def test_every_range_gives_exactly_its_offsets(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    for first in range(0, 500, 100):
        topic.append(random_rows(100, first=first), options=small(batch_bytes=1500, buffer_bytes=2500))
    values = topic.scan(columns=["value"]).to_table()["value"].to_pylist()
    source = random.Random(5)
    for _ in range(40):
        start = source.randrange(500)
        end = source.randrange(start, 501)
        read = topic.scan(start=start, end=end, columns=["value", "offset"]).to_table()
        assert read["offset"].to_pylist() == list(range(start, end))
        assert read["value"].to_pylist() == values[start:end]


@pytest.mark.parametrize(
    "columns",
    [["offset"], ["value"], ["headers", "key"], ["timestampType", "topic", "partition", "offset"], list(COLUMNS[::-1])],
)
def test_columns_are_returned_in_the_requested_order(counted_root: CountedRoot, columns: Sequence[str]) -> None:
    topic = counted_root.topic(2)
    topic.append(random_rows(300), options=small(batch_bytes=2000))
    whole = topic.scan().to_table()
    read = topic.scan(columns=columns).to_table()
    check_schema(read, tuple(columns))
    assert read == whole.select(columns)


def test_a_projection_that_needs_no_records_does_not_decode_them(
    memory: CountedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = memory.topic(3)
    topic.append(random_rows(300), options=WriteOptions(codec="zstd"))
    expected = topic.scan().to_table().select(["topic", "partition", "offset", "timestampType"])

    def refuse(*args: object, **kwargs: object) -> object:
        raise AssertionError("decoded")

    from sparklog.log.read import decode_slices

    monkeypatch.setattr(decode_slices, "decode", refuse)
    assert topic.scan(columns=["topic", "partition", "offset", "timestampType"]).to_table() == expected


@pytest.mark.parametrize(("columns", "message"), [(["offsets"], "found offsets"), (["key", "key"], "distinct")])
def test_wrong_columns_are_rejected(memory: CountedRoot, columns: list[str], message: str) -> None:
    topic = memory.topic(1)
    with pytest.raises(BadRequest, match=message):
        topic.scan(columns=columns)


def test_scan_positions_by_name_offset_and_partition(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(pa.table({"value": [b"%d" % i for i in range(20)], "partition": [i % 2 for i in range(20)]}))
    assert topic.scan(start="latest").to_table().num_rows == 0
    assert topic.scan(partitions=[1], start=4, end=6).ranges == [OffsetRange("t", 1, 4, 6)]
    scan = topic.scan(start={0: 7, 1: "latest"}, end={0: 9})
    assert scan.ranges == [OffsetRange("t", 0, 7, 9)]
    assert topic.scan(end="earliest").to_table().num_rows == 0
    with pytest.raises(BadRequest, match="start <= end"):
        topic.scan(start=3, end=2)
    with pytest.raises(BadRequest, match="'first'"):
        topic.scan(start="first")
    with pytest.raises(BadRequest, match="isolation"):
        topic.scan(isolation_level="serializable")


BOUNDS = "is out of range: expected 3 to 10, earliest or latest"


@pytest.mark.parametrize(
    ("asked", "error", "expected"),
    [
        ({"start": 10**9}, NotFound, f"start=1000000000 of t-0 {BOUNDS}"),
        ({"start": {0: 11}}, NotFound, f"start=11 of t-0 {BOUNDS}"),
        ({"start": 2}, NotFound, f"start=2 of t-0 {BOUNDS}"),
        ({"end": 11}, NotFound, f"end=11 of t-0 {BOUNDS}"),
        ({"end": 2}, NotFound, f"end=2 of t-0 {BOUNDS}"),
        ({"start": 11, "end": 11}, NotFound, f"start=11 of t-0 {BOUNDS}"),
        ({"start": 6, "end": 4}, BadRequest, "expected start <= end for partition 0, found 6 and 4"),
        ({"start": -1}, BadRequest, "start must be earliest, latest or a non-negative offset, found -1"),
        ({"start": True}, BadRequest, "start must be earliest, latest or a non-negative offset, found True"),
        ({"start": 1.0}, BadRequest, "start must be earliest, latest or a non-negative offset, found 1.0"),
        ({"end": -2}, BadRequest, "end must be earliest, latest or a non-negative offset, found -2"),
        ({"partitions": [9]}, NotFound, "topic t has partitions 0 to 1, found partition 9"),
        ({"partitions": [-1]}, NotFound, "topic t has partitions 0 to 1, found partition -1"),
        ({"partitions": ["0"]}, BadRequest, "partitions must be a list of integers or None, found ['0']"),
        ({"start": {9: 0}}, NotFound, "topic t has partitions 0 to 1, found partition 9"),
        ({"end": {9: 0}}, NotFound, "topic t has partitions 0 to 1, found partition 9"),
        ({"batch_bytes": 0}, BadRequest, "batch_bytes must be an integer of at least 1, found 0"),
    ],
)
def test_a_scan_out_of_bounds_is_an_error(
    memory: CountedRoot, asked: dict[str, Any], error: type[Exception], expected: str
) -> None:
    topic = memory.topic(2)
    topic.append(pa.table({"value": [b"%d" % i for i in range(20)], "partition": [i % 2 for i in range(20)]}))
    topic.delete_records({0: 3})
    with pytest.raises(error) as raised:
        topic.scan(**asked)
    assert str(raised.value) == expected


def test_a_scan_from_the_log_end_is_empty_even_after_an_open_transaction(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(pa.table({"value": [b"a", b"b"], "partition": [0, 1]}))
    transactional(memory.root, "open").begin().append("t", pa.table({"value": [b"c"], "partition": [0]}))
    for start in (1, np.int64(1), {0: 1, 1: 1}, "latest"):
        assert topic.scan(start=start).to_table().num_rows == 0
    assert topic.scan(start=1, end=1).to_table().num_rows == 0


def test_a_scan_can_be_iterated_again_and_read_as_a_stream(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(random_rows(50))
    scan = topic.scan()
    assert scan.to_table() == scan.to_table() == scan.to_reader().read_all()


def test_many_tiny_slices_return_few_batches(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for i in range(300):
        topic.append(pa.table({"value": [b"v%d" % i]}), options=small())
    batches = list(topic.scan())
    assert len(batches) == 1
    assert batches[0]["value"].to_pylist() == [b"v%d" % i for i in range(300)]
    assert batches[0]["offset"].to_pylist() == list(range(300))


def test_large_results_are_returned_in_batches_of_the_requested_size(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    # The compression ratio is 1:50, so the stored size is a poor estimate.
    topic.append(pa.table({"value": [b"%06d" % (i // 100) + bytes(500) for i in range(20_000)]}))
    batches = list(topic.scan(batch_bytes=1 << 20))
    sizes = [batch.nbytes for batch in batches]
    assert sum(batch.num_rows for batch in batches) == 20_000
    assert max(sizes) <= 2 << 20
    assert min(sizes[:-1]) >= 1 << 19


def test_compressible_records_after_incompressible_ones_stay_within_the_memory_limit(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    noise = random.Random(1).randbytes(200_000)
    plain = [noise[i : i + 1000] for i in range(0, len(noise), 1000)]
    topic.append(pa.table({"value": plain + [bytes(100_000)] * 600}), options=WriteOptions(batch_bytes=100_000))
    sizes = [batch.nbytes for batch in topic.scan(columns=["value"], batch_bytes=1 << 20)]
    assert max(sizes) <= 2 << 20
    assert sum(sizes) > 60_000_000


@pytest.mark.usefixtures("records_in_files")
def test_adjacent_partitions_are_fetched_in_one_request(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(8)
    for first in range(5):
        topic.append(random_rows(80, first=first * 80, seed=first), options=small())
    scan = topic.scan()
    counted_root.store.reset()
    read = scan.to_table()
    assert gets(counted_root) == 5
    assert read.num_rows == 400
    for offsets in by_partition(read, "offset").values():
        assert offsets == list(range(len(offsets)))
    counted_root.store.reset()
    some = topic.scan(partitions=[2, 3, 4]).to_table()
    assert gets(counted_root) == 5
    assert by_partition(some) == {p: v for p, v in by_partition(read).items() if p in (2, 3, 4)}


def test_slices_of_one_request_are_decoded_without_a_copy() -> None:
    whole = bytes(range(256))
    views = [memoryview(whole)[low:high] for low, high in ((10, 20), (20, 21), (21, 90))]
    together = _contiguous(views)
    assert together == whole[10:90]
    assert together.obj is not None
    assert np.shares_memory(np.frombuffer(together, np.uint8), np.frombuffer(whole, np.uint8))
    assert _contiguous([views[0], views[2]]) == whole[10:20] + whole[21:90]
    assert _contiguous([views[0], memoryview(bytes(whole))[20:30], memoryview(b"x")]) == whole[10:30] + b"x"


def test_parts_of_several_topics_are_read_together(memory: CountedRoot) -> None:
    first, second = memory.topic(2, name="a"), memory.topic(3, name="b")
    first.append(random_rows(40))
    second.append(random_rows(60))
    view = RootView(memory.root)
    view.refresh(["a", "b"])
    wanted = [
        OffsetRange(topic, partition, bounds.log_start, bounds.log_end)
        for topic in ("a", "b")
        for partition, bounds in view.bounds(topic).items()
    ]
    parts = view.plan(wanted, READ_COMMITTED)
    (batch,) = read_parts(parts, ["topic", "partition", "offset", "value"])
    read = pa.Table.from_batches([batch])
    for topic in (first, second):
        own = read.filter(pa.compute.equal(read["topic"], topic.name))
        assert by_partition(own) == by_partition(topic.scan().to_table())
    assert sum(part.records for part in parts) == 100


def test_parts_can_be_pickled(tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path)
    topic = counted_root.topic(2)
    topic.append(random_rows(100))
    end = int(topic.log.state().log_end[0])
    part = replace(part_of(topic, 0, 3, end), store=counted_root.inner)
    again = pickle.loads(pickle.dumps(part))
    assert again.range == part.range
    assert (again.records, again.nbytes) == (part.records, part.nbytes)
    assert list(again.read(["value"])) == list(part.read(["value"]))
    assert len(pickle.dumps(part)) < 3000


@pytest.fixture
def large(memory: CountedRoot) -> Topic:
    """Return a topic with a slice of 3 MiB, which is read in windows of 256 KiB."""
    memory.store.limits = Limits(span_bytes=256 << 10)
    topic = memory.topic(1)
    topic.append(random_rows(3000, value_bytes=1000), options=small(batch_bytes=20_000))
    return topic


def test_a_large_slice_is_read_in_windows(memory: CountedRoot, large: Topic) -> None:
    memory.store.reset()
    read = large.scan().to_table()
    assert read["offset"].to_pylist() == list(range(3000))
    assert gets(memory) >= 12
    assert max(len(memory.inner.get(key)) for key in memory.append_files()) > 3_000_000


def test_starting_inside_a_large_slice_reads_its_index_and_one_window(memory: CountedRoot, large: Topic) -> None:
    for offset in (0, 1, 1500, 2998, 2999):
        memory.store.reset()
        record = large.record_at(0, offset)
        assert record["offset"].to_pylist() == [offset]
        assert gets(memory) <= 2
        assert memory.store.bytes_read < 600_000
    for start, end in ((700, 701), (0, 5), (2990, 3000), (400, 2100)):
        assert large.scan(start=start, end=end).to_table()["offset"].to_pylist() == list(range(start, end))


def test_a_batch_larger_than_a_window_is_read(memory: CountedRoot) -> None:
    memory.store.limits = Limits(span_bytes=10_000)
    topic = memory.topic(1)
    table = pa.table({"value": [b"a" * 100, b"b" * 60_000, b"c" * 100, b"d" * 60_000]})
    topic.append(table, options=small(batch_bytes=1000))
    assert topic.scan(columns=["value"]).to_table() == table


def damaged(counted_root: CountedRoot, at: int, flip: int = 1) -> str:
    """Flip a byte of the only append file, and return its key."""
    assert isinstance(counted_root.inner, MemoryStore)
    (key,) = counted_root.append_files()
    data = bytearray(counted_root.inner.get(key))
    data[at] ^= flip
    counted_root.inner.replace(key, bytes(data))
    return key


@pytest.mark.usefixtures("records_in_files")
def test_damage_in_a_slice_is_reported_with_file_position_and_offset(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(100), options=small(batch_bytes=1000))
    from sparklog.format.batch_scan import scan_headers

    (key,) = memory.append_files()
    headers = scan_headers(memory.inner.get(key), whole=False)
    third, offset = int(headers.position[3]), int(headers.base_offset[3])
    damaged(memory, third + 100)
    for read in (lambda: topic.scan().to_table(), lambda: topic.scan(start=offset + 1).to_table()):
        with pytest.raises(Corrupt) as caught:
            read()
        assert (caught.value.file, caught.value.position, caught.value.offset) == (key, third, offset)


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("at", [0, 7, 9, 11, 16, 17, 30])
def test_damage_anywhere_in_a_header_is_detected(memory: CountedRoot, at: int) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(100), options=small(batch_bytes=1000))
    key = damaged(memory, at)
    with pytest.raises(Corrupt) as caught:
        topic.scan().to_table()
    assert caught.value.file == key


@pytest.mark.parametrize("at", [0, 7, 9, 11, 16, 17, 30, 80])
def test_damage_in_a_window_of_a_large_slice_is_detected(memory: CountedRoot, large: Topic, at: int) -> None:
    from sparklog.format.batch_scan import scan_headers

    (key,) = memory.append_files()
    headers = scan_headers(memory.inner.get(key), whole=False)
    batch = len(headers) // 2
    damaged(memory, int(headers.position[batch]) + at, 0x40)
    for scan in (large.scan(), large.scan(start=int(headers.base_offset[batch]) - 1)):
        with pytest.raises(Corrupt) as caught:
            scan.to_table()
        assert caught.value.file == key


@pytest.mark.usefixtures("records_in_files")
def test_a_truncated_file_is_corrupt(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(100), options=small())
    assert isinstance(memory.inner, MemoryStore)
    (key,) = memory.append_files()
    memory.inner.replace(key, memory.inner.get(key)[:1000])
    with pytest.raises(Corrupt, match="truncated") as caught:
        topic.scan().to_table()
    assert caught.value.file == key


def test_a_damaged_footer_does_not_hide_records(memory: CountedRoot, large: Topic) -> None:
    """The footer is only needed to start reading in the middle of a slice."""
    (key,) = memory.append_files()
    damaged(memory, len(memory.inner.get(key)) - 30)
    assert large.scan().to_table().num_rows == 3000
    assert large.record_at(0, 1500)["offset"].to_pylist() == [1500]
    assert large.offset_for_timestamp(0)[0] is not None


def moved(counted_root: CountedRoot, topic: Topic) -> None:
    """Move the slices of the topic to another file, like a merge, and delete the old file."""
    from sparklog.log.journal.names import append_path
    from tests.log.rewriting import rewrite

    rewrite(counted_root, topic, append_path(topic.log.state().version, counted_root.world.env().new_id()))


def test_a_rewritten_file_is_read_from_its_new_file(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(3)
    topic.append(random_rows(200), options=small(batch_bytes=1000, buffer_bytes=3000))
    topic.append(random_rows(200, first=200), options=small())
    expected = by_partition(topic.scan().to_table())
    scan = topic.scan()
    moved(counted_root, topic)
    assert by_partition(scan.to_table()) == expected
    part = scan.parts[1]
    assert pa.Table.from_batches(list(part.read(["value"])))["value"].to_pylist() == expected[1]


def test_a_rewrite_during_a_read_does_not_change_the_result(memory: CountedRoot, large: Topic) -> None:
    expected = large.scan().to_table()
    reading = iter(large.scan(batch_bytes=100_000))
    first = next(reading)
    moved(memory, large)
    assert pa.Table.from_batches([first, *reading]).equals(expected)


@pytest.mark.usefixtures("records_in_files")
def test_only_a_log_start_above_the_planned_offsets_is_data_loss(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(100), options=small())
    topic.append(random_rows(100, first=100), options=small())
    part = part_of(topic, 0, 0, 200)
    old, new = memory.append_files()
    topic.delete_records({0: 100})
    memory.inner.delete(old)
    with pytest.raises(NotFound, match="starts at offset 100"):
        list(part.read(["offset"]))
    left = pa.Table.from_batches(list(replace(part, fail_on_data_loss=False).read(["offset"])))
    assert left["offset"].to_pylist() == list(range(100, 200))
    del new


@pytest.mark.usefixtures("records_in_files")
def test_a_missing_file_that_the_log_references_is_corrupt(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(10), options=small())
    scan = topic.scan()
    (key,) = memory.append_files()
    memory.inner.delete(key)
    with pytest.raises(Corrupt, match="does not exist") as caught:
        scan.to_table()
    assert caught.value.file == key


@pytest.mark.usefixtures("records_in_files")
def test_a_file_that_is_hidden_once_is_requested_again(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(10), options=small())
    scan = topic.scan()
    memory.store.inner = FaultyStore(memory.inner, Script({("get:append", 0): Fault(FaultKind.ABSENT)}))
    memory.store.reset()
    assert scan.to_table().num_rows == 10
    # The plan does not change. Only the file is read, twice.
    assert [verb for verb, _ in memory.store.keys] == ["get"] * gets(memory)
    assert gets(memory) == 2


@pytest.mark.usefixtures("records_in_files")
def test_reading_a_recreated_topic_is_an_error(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(10), options=small())
    scan = topic.scan()
    (key,) = memory.append_files()
    topic.delete()
    memory.topic(1)
    memory.inner.delete(key)
    with pytest.raises(NotFound, match="recreated"):
        scan.to_table()


def test_reads_of_open_and_aborted_slices_depend_on_the_isolation_level(memory: CountedRoot) -> None:
    from tests.log.rewriting import prepared, resolve

    topic = memory.topic(1)
    values = {}
    for i, txn in enumerate((None, 1, None, 2)):
        values[i] = random_rows(5, first=i * 5)
        if txn is None:
            topic.append(values[i], options=small())
        else:
            prepared(memory, topic, values[i], "app", txn)
    view = RootView(memory.root)
    view.refresh(["t"])
    assert (view.bounds("t")[0].last_stable, view.bounds("t")[0].log_end) == (5, 20)
    assert topic.scan().to_table()["offset"].to_pylist() == list(range(5))
    assert topic.scan(isolation_level=READ_UNCOMMITTED).to_table()["offset"].to_pylist() == list(range(20))
    with pytest.raises(NotFound, match="offsets 0 to 5"):
        part_of(topic, 0, 0, 6)
    resolve(memory, topic, "app", 1, committed=False)
    resolve(memory, topic, "app", 2, committed=True)
    assert topic.scan().to_table()["offset"].to_pylist() == [*range(5), *range(10, 20)]
    assert topic.scan(isolation_level=READ_UNCOMMITTED).to_table()["offset"].to_pylist() == list(range(20))
    with pytest.raises(NotFound, match="offset 7 of t-0 does not contain a record"):
        topic.record_at(0, 7)
    assert topic.record_at(0, 7, READ_UNCOMMITTED)["offset"].to_pylist() == [7]


@given(
    sizes=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), min_size=1, max_size=5),
    codec=st.sampled_from(["none", "lz4", "zstd"]),
    batch_bytes=st.integers(80, 2000),
    buffer_bytes=st.integers(50, 5000),
    file_bytes=st.integers(100, 5000),
    partitions=st.integers(1, 5),
    data=st.data(),
)
@examples(20, 60)
def test_any_written_records_are_read_back(
    sizes: list[list[int]],
    codec: str,
    batch_bytes: int,
    buffer_bytes: int,
    file_bytes: int,
    partitions: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    counted_root = CountedRoot("memory", Path("unused"))
    topic = counted_root.topic(partitions)
    model: dict[int, list[bytes | None]] = {partition: [] for partition in range(partitions)}
    number = 0
    options = WriteOptions(codec, None, batch_bytes, buffer_bytes, file_bytes)
    for lengths in sizes:
        values = [None if size == 13 else b"%d " % (number + i) + bytes(size) for i, size in enumerate(lengths)]
        where = data.draw(st.lists(st.integers(0, partitions - 1), min_size=len(lengths), max_size=len(lengths)))
        for value, partition in zip(values, where, strict=True):
            model[partition].append(value)
        topic.append(pa.table({"value": pa.array(values, pa.binary()), "partition": where}), options=options)
        number += len(lengths)
    assert by_partition(topic.scan().to_table()) == {p: v for p, v in model.items() if v}
    partition = data.draw(st.integers(0, partitions - 1))
    start = data.draw(st.integers(0, len(model[partition])))
    end = data.draw(st.integers(start, len(model[partition])))
    some = topic.scan(partitions=[partition], start=start, end=end, batch_bytes=300)
    assert some.to_table()["value"].to_pylist() == model[partition][start:end]


@pytest.mark.usefixtures("records_in_files")
def test_the_view_reads_from_its_snapshot(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    topic.append(random_rows(100), options=small())
    view = RootView(memory.root)
    view.refresh(["t"])
    before = view.bounds("t")
    topic.append(random_rows(100), options=small())
    assert view.bounds("t") == before
    view.refresh(["t"])
    after = view.bounds("t")
    assert sum(bounds.log_end for bounds in after.values()) == 200
    ranges = [OffsetRange("t", p, 0, bounds.log_end) for p, bounds in after.items()]
    stored = sum(info.size for info in memory.inner.list("t/append/"))
    assert 0.9 * stored < sum(each.nbytes for each in view.stored(ranges)) < stored
    half = [replace(wanted, end=wanted.end // 2) for wanted in ranges]
    assert 0.4 * stored < sum(each.nbytes for each in view.stored(half)) < 0.6 * stored
    assert view.topics() == ["t"]
    assert view.poll_interval_ms == 10
    assert view.topic_id("t") == topic.log.state().topic_id
    assert [part.range for part in view.plan([*ranges, OffsetRange("t", 0, 5, 5)], READ_COMMITTED)] == ranges


def test_an_idle_refresh_makes_one_request_per_topic(memory: CountedRoot) -> None:
    for name in ("a", "b"):
        memory.topic(1, name=name).append(random_rows(5))
    view = RootView(memory.root)
    view.refresh(["a", "b"])
    memory.store.reset()
    view.refresh(["a", "b"])
    assert dict(memory.store.counts) == {"get": 2}


def test_a_recreated_topic_has_a_new_id(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    view = RootView(memory.root)
    view.refresh(["t"])
    before = view.topic_id("t")
    topic.delete()
    with pytest.raises(NotFound):
        view.refresh(["t"])
    memory.topic(1)
    view.refresh(["t"])
    assert view.topic_id("t") != before


def test_files_of_two_tasks_in_one_commit_are_read(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    target = topic.log.append_target()
    files = []
    for task in range(2):
        writer = AppendWriter(target, small(buffer_bytes=1500), memory.world.env(), seed=task)
        for batch in random_rows(100, first=task * 100).to_batches(max_chunksize=10):
            writer.write(batch)
        files += writer.finish()
    topic.log.commit_append(files, target)
    read = topic.scan().to_table()
    assert sorted(v for values in by_partition(read).values() for v in values) == sorted(
        random_rows(100)["value"].to_pylist() + random_rows(100, first=100)["value"].to_pylist()
    )
    for values in by_partition(read).values():
        for task in range(2):
            own = [v for v in values if int(v[:8]) // 100 == task]
            assert own == sorted(own)
