"""Files that tasks write: round trips, grouping, order, codecs, limits, and rejected rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.format.append_file import TRAILER_BYTES, decode_footer, footer_length
from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import CODECS
from sparklog.log.read.read_plan import read_parts
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, OffsetRange
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import RootView
from sparklog.log.write.append_target import WriteOptions
from sparklog.log.write.append_writer import AppendWriter
from sparklog.log.write.rows import sticky_seed
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import START_MS
from tests.support.counted_root import KINDS, Bucket, CountedRoot
from tests.support.records import by_partition, check_schema, random_rows, small


@pytest.fixture(params=KINDS)
def counted_root(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path / "root")


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def headers_of(counted_root: CountedRoot, key: str) -> np.ndarray:
    """Return the codec numbers of all batches in an append file."""
    data = counted_root.inner.get(key)
    length = footer_length(data[-TRAILER_BYTES:])
    return scan_headers(data[:-length]).codec


@pytest.mark.parametrize("codec", CODECS)
def test_rows_are_read_as_written(counted_root: CountedRoot, codec: str) -> None:
    topic = counted_root.topic(4)
    table = random_rows(3000).append_column(
        "headers",
        pa.array(
            [None if i % 3 else [("h", b"%d" % i), ("h", None), ("", b"")] for i in range(3000)],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    )
    outcome = topic.append(table, options=WriteOptions(codec=codec, batch_bytes=20_000))
    assert outcome.records == 3000
    read = counted_root.reopened().scan().to_table()
    check_schema(read, COLUMNS)
    written = {row["value"]: row for row in table.to_pylist()}
    for row in read.to_pylist():
        assert {name: row[name] for name in table.column_names} == written.pop(row["value"])
        assert row["topic"] == "t"
        assert row["timestampType"] == 0
    assert not written
    assert set(headers_of(counted_root, counted_root.append_files()[0]).tolist()) == {CODECS.index(codec)}


def test_offsets_are_dense_and_order_is_kept_within_a_partition(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(5)
    for first in range(0, 4000, 1000):
        topic.append(random_rows(1000, first=first, seed=first), options=small(buffer_bytes=9_000))
    read = topic.scan().to_table()
    assert read.num_rows == 4000
    for offsets in by_partition(read, "offset").values():
        assert offsets == list(range(len(offsets)))
    for values in by_partition(read).values():
        assert values == sorted(values)
    assert len(by_partition(read)) == 5


@pytest.mark.usefixtures("records_in_files")
def test_one_file_per_task_with_a_slice_per_flush_and_partition(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(3)
    topic.append(random_rows(2000), options=small(buffer_bytes=30_000, batch_bytes=4_000))
    (key,) = counted_root.append_files()
    data = counted_root.inner.get(key)
    footer = decode_footer(data[-footer_length(data[-TRAILER_BYTES:]) :], file_size=len(data))
    flushes = len(footer.slices) // 3
    assert flushes >= 3
    assert [entry.partition for entry in footer.slices] == [0, 1, 2] * flushes
    for entry in footer.slices:
        headers = scan_headers(data[entry.position : entry.position + entry.nbytes])
        assert headers.base_offset[0] == 0
        assert headers.next_offset[-1] == entry.offsets == entry.records
        assert (headers.base_offset[1:] == headers.next_offset[:-1]).all()
        assert int(headers.max_timestamp.max()) == entry.max_ts


def test_files_end_at_their_size_limit(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(2)
    outcome = topic.append(random_rows(4000), options=small(buffer_bytes=20_000, file_bytes=60_000))
    files = counted_root.append_files()
    assert len(files) >= 4
    assert all(info.size < 62_000 for info in counted_root.inner.list("t/append/"))
    assert outcome.records == topic.scan(columns=["offset"]).to_table().num_rows == 4000
    for values in by_partition(topic.scan().to_table()).values():
        assert values == sorted(values)


@pytest.mark.usefixtures("records_in_files")
def test_a_micro_batch_creates_one_object_per_task_and_one_commit(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(16)
    view = RootView(counted_root.root)

    def micro_batch(number: int) -> None:
        """Write a batch of a running query, like driver and tasks."""
        target = topic.log.append_target()
        files: list[FileSlices] = []
        for task in range(2):
            writer = AppendWriter(target, env=counted_root.world.env(), seed=sticky_seed(number, task))
            writer.write(random_rows(500, first=task * 500, seed=task).combine_chunks().to_batches()[0])
            files += writer.finish()
        key = WriterKey(id="query", batch=number, run="r", mode="stream")
        assert topic.log.commit_append(files, target, writer=key).records == 1000

    micro_batch(0)
    view.refresh(["t"])
    for number in (1, 2):
        counted_root.store.reset()
        micro_batch(number)
        # Reads: one request before planning. Each task checks that its root is the driver's, and so does the commit,
        # which also checks that the previous commit still exists.
        counted_root.store.expect_at_most(writer=2, create=1, get_commit=2, get_root=3, now_ms=1)
        assert counted_root.store.by_kind["get", "commit"] == 2
    counted_root.store.reset()
    view.refresh(["t"])
    parts = view.plan([OffsetRange("t", p, 0, b.log_end) for p, b in view.bounds("t").items()], READ_COMMITTED)
    assert sum(batch.num_rows for batch in read_parts(parts, ["value"])) == 3000
    # One request for the state, and one read per append file.
    assert counted_root.store.by_kind["get", "append"] == 6
    counted_root.store.expect(get=6 + 1)


def test_an_append_without_rows_creates_no_file_and_no_commit(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(2)
    before = topic.log.state().version
    empty = random_rows(1).slice(0, 0)
    outcome = topic.append(empty)
    assert outcome.records == 0
    assert topic.append([]).records == 0
    assert counted_root.append_files() == []
    assert topic.log.state().version == before


@pytest.mark.parametrize("wide", [False, True])
def test_every_variant_of_a_type_is_accepted(memory: CountedRoot, wide: bool) -> None:
    topic = memory.topic(1)
    binary = pa.large_binary() if wide else pa.binary()
    text = pa.large_string() if wide else pa.string()
    item = pa.struct([pa.field("key", text, nullable=False), pa.field("value", binary, nullable=False)])
    headers = pa.large_list(item) if wide else pa.list_(pa.field("element", item, nullable=False))
    table = pa.table(
        {
            "timestamp": pa.array([1_700_000_000_123_999, None], pa.timestamp("us", tz="America/New_York")),
            "headers": pa.array([[{"key": "ä", "value": b"1"}], None], headers),
            "value": pa.array(["v", None], text),
            "key": pa.array([b"k", b""], binary),
        }
    )
    topic.append(table)
    read = topic.scan(columns=["key", "value", "headers"]).to_table().to_pylist()
    assert read == [
        {"key": b"k", "value": b"v", "headers": [{"key": "ä", "value": b"1"}]},
        {"key": b"", "value": None, "headers": None},
    ]


def test_batches_of_different_types_share_a_buffer(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    topic.append(
        [
            pa.table({"value": pa.array([b"a"], pa.binary()), "key": pa.nulls(1)}),
            pa.table({"value": pa.array(["b"], pa.large_string()), "key": pa.array(["k"])}),
            pa.table({"value": pa.array([b"cc"], pa.binary(2))}),
        ]
    )
    read = topic.scan(columns=["key", "value"]).to_table().to_pydict()
    assert read == {"key": [None, b"k", None], "value": [b"a", b"b", b"cc"]}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.timestamp("us", tz="UTC"), 1_700_000_000_000_999, 1_700_000_000_000),
        (pa.timestamp("ms", tz="Asia/Tokyo"), 1_700_000_000_001, 1_700_000_000_001),
        (pa.timestamp("us"), 999, 0),
        (pa.timestamp("ns"), 1_000_001, 1),
        (pa.timestamp("s"), 3, 3000),
        (pa.int64(), 7, 7),
    ],
)
def test_record_timestamps_are_floored_to_milliseconds(
    memory: CountedRoot, kind: pa.DataType, given: int, expected: int
) -> None:
    topic = memory.topic(1)
    topic.append(pa.table({"value": [b"a", b"b"], "timestamp": pa.array([given, None], pa.int64()).cast(kind)}))
    read = topic.scan(columns=["timestamp"]).to_table()["timestamp"].cast(pa.int64()).to_pylist()
    assert read == [expected, memory.world.now_ms]


def test_rows_without_a_timestamp_get_the_encoding_time(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    writer = AppendWriter(topic.log.append_target(), env=memory.world.env())
    writer.write(pa.record_batch({"value": [b"a"]}))
    memory.world.now_ms += 5
    (file,) = writer.finish()
    assert file.min_ts == file.max_ts == (START_MS + 5,)


REFUSED: list[tuple[str, dict[str, object], pa.Table, str]] = [
    (
        "negative time",
        {},
        pa.table({"value": ["a"], "timestamp": pa.array([-1], pa.timestamp("us"))}),
        "of 1970 or later",
    ),
    (
        "time too late",
        {"message.timestamp.after.max.ms": 1000},
        pa.table({"value": ["a"], "timestamp": [START_MS + 1001]}),
        "after.max.ms",
    ),
    (
        "time too early",
        {"message.timestamp.before.max.ms": 1000},
        pa.table({"value": ["a"], "timestamp": [START_MS - 1001]}),
        "before.max.ms",
    ),
    ("key missing", {"cleanup.policy": "compact"}, pa.table({"value": ["a", "b"], "key": ["k", None]}), "compacted"),
    ("no key column", {"cleanup.policy": "compact,delete"}, pa.table({"value": ["a"]}), "compacted"),
    ("too large", {"max.message.bytes": 1000}, pa.table({"value": [b"x" * 2000]}), "max.message.bytes"),
    ("partition", {}, pa.table({"value": ["a"], "partition": [1]}), "partitions 0 to 0, found partition 1"),
    ("no value", {}, pa.table({"key": ["a"]}), "column value"),
    ("value type", {}, pa.table({"value": [1.5]}), "value to be binary or string, found double"),
    ("key type", {}, pa.table({"value": ["a"], "key": [1]}), "key to be binary or string, found int64"),
    ("headers type", {}, pa.table({"value": ["a"], "headers": ["h"]}), "headers to be array<struct"),
    ("unknown", {}, pa.table({"value": ["a"], "offset": [1]}), "found offset"),
    (
        "null header key",
        {},
        pa.table({"value": ["a"], "headers": [[{"key": None, "value": b"v"}]]}),
        "null header key",
    ),
]


@pytest.mark.parametrize(("configs", "table", "message"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_invalid_rows_are_rejected(
    memory: CountedRoot, configs: dict[str, object], table: pa.Table, message: str
) -> None:
    topic = memory.topic(1, configs)
    before = topic.log.state().version
    with pytest.raises(BadRequest, match=message) as caught:
        topic.append(table, options=WriteOptions(codec="none"))
    assert "\n" not in str(caught.value)
    assert topic.log.state().version == before
    assert memory.append_files() == []


def test_timestamps_at_the_limits_are_accepted(memory: CountedRoot) -> None:
    topic = memory.topic(1, {"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 500})
    topic.append(pa.table({"value": ["a", "b"], "timestamp": [START_MS - 1000, START_MS + 500]}))
    assert topic.scan().to_table().num_rows == 2


def test_log_append_time_is_the_commit_time(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(2, {"message.timestamp.type": "LogAppendTime"})
    target = topic.log.append_target()
    writer = AppendWriter(target, env=counted_root.world.env(), seed=3)
    # Any record timestamp is accepted, because the commit time is used.
    writer.write(pa.record_batch({"value": ["a", "b"], "timestamp": [5, START_MS + 10**9]}))
    files = writer.finish()
    assert files[0].flags == (SliceFlag.HAS_NULL_KEYS | SliceFlag.LOG_APPEND_TIME,)
    counted_root.world.now_ms += 1234
    topic.log.commit_append(files, target)
    read = topic.scan(columns=["timestamp", "timestampType"]).to_table()
    assert read["timestamp"].cast(pa.int64()).to_pylist() == [counted_root.world.now_ms] * 2
    assert read["timestampType"].to_pylist() == [1, 1]


def test_flags_record_missing_keys(memory: CountedRoot) -> None:
    topic = memory.topic(2)
    writer = AppendWriter(topic.log.append_target(), env=memory.world.env())
    writer.write(pa.record_batch({"value": ["a", "b"], "key": [None, "k"], "partition": [0, 1]}))
    (file,) = writer.finish()
    assert file.flags == (int(SliceFlag.HAS_NULL_KEYS), 0)


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize(
    ("compression", "option", "expected"),
    [
        ("producer", "lz4", "lz4"),
        ("gzip", "lz4", "gzip"),
        ("uncompressed", "lz4", "none"),
        ("producer", "none", "none"),
    ],
)
def test_a_topic_codec_overrides_the_option(memory: CountedRoot, compression: str, option: str, expected: str) -> None:
    topic = memory.topic(1, {"compression.type": compression})
    topic.append(pa.table({"value": [b"a" * 1000]}), options=WriteOptions(codec=option))
    assert headers_of(memory, memory.append_files()[0]).tolist() == [CODECS.index(expected)]


@pytest.mark.usefixtures("records_in_files")
def test_the_default_codec_is_zstd(memory: CountedRoot) -> None:
    memory.topic(1).append(pa.table({"value": [b"a" * 1000]}))
    assert headers_of(memory, memory.append_files()[0]).tolist() == [CODECS.index("zstd")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codec": "zsdt"}, "did you mean 'zstd'"),
        ({"buffer_bytes": 0}, "buffer_bytes must be an integer from 1 to"),
        ({"buffer_bytes": 1 << 40}, "buffer_bytes must be"),
        ({"batch_bytes": 0}, "batch_bytes must be an integer of at least 1"),
    ],
)
def test_options_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        WriteOptions(**changes)  # type: ignore[arg-type]


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize(("kind", "empty"), [("local", MemoryStore), ("bucket", Bucket)])
def test_a_task_with_another_root_writes_nothing(tmp_path: Path, kind: str, empty: type[MemoryStore]) -> None:
    driver = CountedRoot(kind, tmp_path / "driver")
    target = driver.topic(1).log.append_target()
    driver.world.advance(5000)
    elsewhere = CountedRoot(kind, tmp_path / "executor", seed=7)
    cases = (
        (elsewhere.store, BadRequest, "share"),
        (empty(driver.world.clock), NotFound, "found none on this host"),
    )
    for store, error, message in cases:
        writer = AppendWriter(replace(target, store=store), env=driver.world.env())
        writer.write(pa.record_batch({"value": ["a"]}))
        with pytest.raises(error, match=message):
            writer.finish()
        writer.discard()
    assert elsewhere.append_files() == []


def test_discarding_leaves_no_unfinished_file(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    writer = AppendWriter(topic.log.append_target(), small(buffer_bytes=1000), counted_root.world.env())
    for batch in random_rows(200).to_batches(max_chunksize=20):
        writer.write(batch)
    writer.discard()
    assert counted_root.append_files() == []
    assert topic.scan().to_table().num_rows == 0


def test_an_error_in_the_middle_publishes_nothing(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)

    def batches() -> object:
        yield random_rows(100)
        yield pa.table({"value": [1]})

    with pytest.raises(SparklogError, match="value to be binary"):
        topic.append(batches(), options=small(buffer_bytes=500))  # type: ignore[arg-type]
    assert topic.scan().to_table().num_rows == 0
    assert counted_root.append_files() == []


def test_a_huge_batch_is_split_into_buffers(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    table = random_rows(5000).combine_chunks()
    topic.append(table.to_batches()[0], options=small(buffer_bytes=50_000))
    (key,) = memory.append_files()
    data = memory.inner.get(key)
    footer = decode_footer(data[-footer_length(data[-TRAILER_BYTES:]) :], file_size=len(data))
    assert len(footer.slices) >= 6
    assert max(entry.nbytes for entry in footer.slices) < 50_000
    assert topic.scan().to_table()["value"].to_pylist() == table["value"].to_pylist()


def test_sliced_batches_are_read_from_their_offset(memory: CountedRoot) -> None:
    topic = memory.topic(3)
    table = random_rows(90).combine_chunks()
    batch = table.to_batches()[0]
    topic.append([batch.slice(10, 30), batch.slice(40, 50)])
    read = topic.scan(columns=["key", "value", "timestamp"]).to_table().sort_by("value")
    assert read.to_pylist() == table.slice(10, 80).to_pylist()
