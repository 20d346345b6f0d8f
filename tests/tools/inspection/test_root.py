"""Tables of a sparklog root: append files, sealed segments, compaction, transactions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparklog
from sparklog.compaction.run import CompactOptions
from sparklog.format.payloads import RecordFields
from sparklog.format.record_batch import Payloads
from sparklog.log.topic.root import Root, RootView
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.world import START_MS
from sparklog.tools.inspection.batches import HotKeys
from sparklog.tools.inspection.inspect import inspect_file, inspect_topic
from tests.support.compaction import compact_topic

DAY_MS = 86_400_000


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return sparklog.open(tmp_path / "root", create=True)


def records(first: int, count: int, keys: int = 10, step_ms: int = 1000) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [f"key-{n % keys}".encode() for n in numbers],
            "value": [None if n % 7 == 0 else f"value {n} ".encode() * 20 for n in numbers],
            "timestamp": pa.array([START_MS + n * step_ms for n in numbers], pa.int64()),
        }
    )


def test_slices_have_the_offsets_of_the_log(root: Root) -> None:
    topic = root.create_topic("orders")
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        topic.append(records(number * 100, 100), options=WriteOptions(codec=codec))
    found = inspect_topic(RootView(root), "orders")
    batches = found.batches
    assert batches["codec"].to_pylist() == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert batches["base_offset"].to_pylist() == [0, 100, 200, 300, 400]
    assert batches["last_offset"].to_pylist() == [99, 199, 299, 399, 499]
    assert len(set(batches["uncompressed_bytes"].to_pylist()[1:])) <= 2
    assert all(ratio > 3 for ratio in batches["ratio"].to_pylist()[1:])
    assert batches["keys_distinct"].to_pylist() == [10] * 5
    assert batches["keys_new"].to_pylist() == [10, 0, 0, 0, 0]
    assert batches["keys_latest"].to_pylist() == [0, 0, 0, 0, 10]
    assert pc.sum(batches["tombstones"]).as_py() == len(range(0, 500, 7))
    assert batches["min_timestamp"].cast(pa.int64()).to_pylist() == [START_MS + n * 100_000 for n in range(5)]
    assert set(found.files["kind"].to_pylist()) == {"append file"}
    assert found.files["records"].to_pylist() == [100] * 5
    assert pc.sum(found.files["bytes"]).as_py() == topic.describe().bytes
    newest = [START_MS + number * 100_000 + 99_000 for number in range(5)]
    written = found.files["written"].cast(pa.int64()).to_pylist()
    assert found.files["written_after_ms"].to_pylist() == [w - n for w, n in zip(written, newest, strict=True)]
    assert not len(found.gaps)
    assert not len(found.transactions)


def test_compaction_leaves_gaps_and_sealed_segments_with_indexes(root: Root) -> None:
    topic = root.create_topic(
        "state", configs={"cleanup.policy": "compact", "segment.bytes": "16384", "index.interval.bytes": "512"}
    )
    for number in range(20):
        topic.append(records(number * 50, 50), options=WriteOptions(codec="none"))
    before = inspect_topic(RootView(root), "state")
    report = compact_topic(topic, Settings(START_MS + DAY_MS), InProcess(), CompactOptions(roll=True))
    assert not report.failed
    found = inspect_topic(RootView(root), "state")
    assert pc.sum(found.batches["records"]).as_py() == pc.sum(before.batches["keys_latest"]).as_py() == 10
    assert found.batches["keys_latest"].to_pylist() == found.batches["records"].to_pylist()
    assert pc.sum(found.gaps["missing"]).as_py() == 990
    assert set(found.files["kind"].to_pylist()) == {"sealed segment"}
    assert found.files["time_index_entries"].null_count == 0


def test_compaction_creates_indexes_of_sealed_slices(root: Root) -> None:
    topic = root.create_topic("plain", configs={"index.interval.bytes": "512"})
    for number in range(20):
        topic.append(records(number * 50, 50), options=WriteOptions(codec="none"))
    before = inspect_topic(RootView(root), "plain").batches
    compact_topic(topic, Settings(START_MS + DAY_MS), InProcess(), CompactOptions(roll=True))
    found = inspect_topic(RootView(root), "plain")
    [file] = found.files.to_pylist()
    assert (file["kind"], file["records"]) == ("sealed segment", 1000)
    assert file["index_entries"] == 19
    assert file["bytes_per_entry"] == pytest.approx(file["bytes"] / 19)
    for name in ("base_offset", "last_offset", "records", "codec", "tombstones", "min_timestamp", "keys_new"):
        assert found.batches[name] == before[name], name
    path = next(Path(root.location).glob("plain/sealed/0/*/*.log"))
    assert inspect_file(path).batches["base_offset"] == before["base_offset"]


def test_transactions_have_ranges_and_outcomes(root: Root) -> None:
    topic = root.create_topic("orders")
    topic.append(records(0, 10))
    producer = sparklog.transactional(root, "job")
    with producer.begin() as transaction:
        transaction.append("orders", records(10, 10))
    for first in (20, 30):
        transaction = producer.begin()
        transaction.append("orders", records(first, 10))
        transaction.prepare()
        if first == 20:
            transaction.abort()
    found = inspect_topic(RootView(root), "orders")
    assert found.batches["outcome"].to_pylist() == ["plain", "committed", "aborted", "open"]
    assert [
        (row["transaction"], row["first_offset"], row["last_offset"], row["outcome"], row["records"])
        for row in found.transactions.to_pylist()
    ] == [("job #0", 10, 19, "committed", 10), ("job #1", 20, 29, "aborted", 10), ("job #2", 30, 39, "open", 10)]
    assert found.bounds.to_pylist()[0] | {"topic": ""} == {
        "topic": "", "partition": 0, "log_start": 0, "last_stable": 30, "log_end": 40,
    }  # fmt: skip
    # Aborted records do not count for the latest record of a key.
    assert found.batches["keys_latest"].to_pylist() == [0, 10, 0, 0]


def test_append_time_of_a_slice_is_the_time_of_its_records(root: Root) -> None:
    topic = root.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    topic.append(records(0, 10))
    [row] = inspect_topic(RootView(root), "stamped").batches.to_pylist()
    assert row["timestamp_type"] == "LogAppendTime"
    assert row["min_timestamp"] == row["max_timestamp"]
    assert row["max_timestamp"].timestamp() * 1000 == pytest.approx(topic.log.state().time_ms)
    assert row["late_records"] == 0


def test_out_of_order_timestamps_are_counted_across_batches(root: Root) -> None:
    topic = root.create_topic("late")
    topic.append(records(100, 10))
    topic.append(records(0, 10))
    first, second = inspect_topic(RootView(root), "late").batches.to_pylist()
    assert (first["late_records"], first["latest_by_ms"]) == (0, 0)
    assert (second["late_records"], second["latest_by_ms"]) == (10, 109_000)


def test_large_slice_is_read_in_windows_and_indexed_by_its_footer(root: Root) -> None:
    topic = root.create_topic("large")
    table = pa.table({"key": [b"%d" % n for n in range(3000)], "value": [bytes([n % 251]) * 1500 for n in range(3000)]})
    topic.append(table, options=WriteOptions(codec="none"))
    found = inspect_topic(RootView(root), "large")
    assert pc.sum(found.batches["records"]).as_py() == 3000
    assert pc.sum(found.batches["keys_new"]).as_py() == 3000
    assert pc.sum(found.batches["size"]).as_py() == topic.describe().bytes
    [file] = found.files.to_pylist()
    assert file["index_entries"] == len(found.index) > 2
    assert set(found.index["position"].to_pylist()) <= set(found.batches["position"].to_pylist())
    assert set(found.index["offset"].to_pylist()) <= set(found.batches["base_offset"].to_pylist())
    path = next(Path(root.location).glob("large/append/*.slices"))
    one = inspect_file(path)
    assert one.batches["records"] == found.batches["records"]
    assert one.bounds["log_end"].to_pylist() == [3000]


def test_keys_are_sorted_by_bytes_in_each_partition(root: Root) -> None:
    topic = root.create_topic("orders")
    for codec in ("none", "zstd"):
        rows = {"key": [b"small", b"small", b"large", None], "value": [b"", b"", b"x" * 500, b"y" * 900]}
        topic.append(pa.table(rows), options=WriteOptions(codec=codec))
    large, small = inspect_topic(RootView(root), "orders").keys.to_pylist()
    assert (large["topic"], large["partition"], large["key"], large["records"]) == ("orders", 0, b"large", 2)
    assert 1010 < large["bytes"] < 1040
    assert (small["key"], small["records"]) == (b"small", 4)


def test_only_the_largest_of_many_keys_are_kept() -> None:
    hot = HotKeys(max_keys=2)
    for first in range(0, 40, 2):
        data = np.frombuffer(b"h" + b"%02d" % first, np.uint8)
        body = Payloads(data, np.zeros(1, np.int64), np.full(1, 3), 0, 1, 3)
        start, end = np.array([0, 1]), np.array([100, 101 + first])
        nothing = np.zeros(2, np.int64)
        keyed, lengths = np.ones(2, np.bool_), np.array([1, 2], np.int32)
        records = RecordFields(
            nothing.astype(np.int32), nothing, nothing, nothing, end, keyed, keyed, start, lengths, np.array([2])
        )
        hot.add(body, records, np.array([0, first + 1], np.uint64), keyed)
        assert sum(map(len, hot.tables)) <= 4
    table = hot.table("orders", 3)
    assert table["key"].to_pylist() == [b"h", b"38"]
    assert table["records"].to_pylist() == [20, 1]
    assert table["bytes"].to_pylist() == [2000, 139]


def test_topic_without_records_has_empty_tables(root: Root) -> None:
    root.create_topic("empty", partitions=2)
    found = inspect_topic(RootView(root), "empty")
    assert len(found.batches) == len(found.files) == len(found.gaps) == len(found.transactions) == len(found.keys) == 0
    assert found.bounds["partition"].to_pylist() == [0, 1]
