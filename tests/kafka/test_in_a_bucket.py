"""Test that a Kafka directory in a bucket is read like the same directory on a disk, with few requests."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from sparklog.errors import Corrupt, NotFound, SparklogError
from sparklog.kafka.in_place import KafkaView, kafka_layout
from sparklog.kafka.in_place.directory import bucket_layout, parse_topic_partition
from sparklog.kafka.in_place.files import FilePath, StorePath, store_path
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE
from sparklog.limits import Limits
from sparklog.log.journal.clocks import Env
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from tests.fixture_data import fixture_tree
from tests.kafka.buckets import Bucket, counted, put, upload
from tests.kafka.logs import FIRST, SECOND, append_to, batch, end_of, offsets, read, segment, write_partition


def log_dirs() -> list[str]:
    tree = fixture_tree()
    folders = {file.parent.parent for file in tree.rglob("*.log")}
    return sorted(str(folder.relative_to(tree)) for folder in folders)


def every_answer(path: FilePath | Path, policy: str = FAIL) -> Iterator[object]:
    """Yield the results of a view as text without its location: records, bounds, errors and skipped damage."""
    base = str(path)
    left_out: list[Skipped] = []
    view = KafkaView(path, corrupt_records=policy, on_skipped=left_out.append)

    def answer(ask: Callable[[], object]) -> str:
        try:
            return repr(ask()).replace(base, "")
        except SparklogError as error:
            return f"{type(error).__name__}: {error}".replace(base, "")

    yield view.topics()
    for topic in view.topics():
        yield answer(lambda topic=topic: view.bounds(topic))
        yield answer(lambda topic=topic: view.partition_sizes(topic))
        for number, bounds in view.bounds(topic).items():
            whole = OffsetRange(topic, number, bounds.log_start, bounds.log_end)
            yield answer(lambda topic=topic, number=number: view.offsets_for_timestamps(topic, {number: 10**12}))
            yield repr(view.stored([whole]))
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
                end = bounds.end(isolation)
                yield answer(lambda whole=whole, isolation=isolation, end=end: records(view, whole, end, isolation))
    yield sorted(str(each).replace(base, "") for each in left_out)


def records(view: KafkaView, whole: OffsetRange, end: int, isolation: str) -> object:
    middle = (whole.start + end) // 2
    ranges = [OffsetRange(whole.topic, whole.partition, *ends) for ends in ((whole.start, end), (middle, end))]
    parts = view.plan(ranges, isolation)
    return [crc32c(each.serialize()) for part in parts for each in part.read(COLUMNS)]


# Two stages of each kind. The slow run tests all 137 stages.
USUAL = {"segments/data", "transactions/data", "legacy/builder-mixed/data", "compaction/transactions/pass-3"}
USUAL |= {"retention/delete-records/start-moved", "preallocated-running/data", "timestamps/data"}
USUAL |= {f"damaged/{name}/data" for name in ("bit-flipped", "segment-missing", "length-field-huge", "zeros-appended")}
STAGES = [pytest.param(name, marks=[] if name in USUAL else pytest.mark.slow) for name in log_dirs()]


@pytest.mark.parametrize("name", STAGES)
def test_fixtures_in_a_bucket_match_those_on_a_disk(fixtures: Path, name: str) -> None:
    folder = fixtures / name
    path = upload(folder, Bucket("fixtures"))
    assert bucket_layout(path) == kafka_layout(path) == kafka_layout(folder) == "log-dir"
    for policy in (FAIL, SKIP, TRUNCATE) if name.startswith("damaged/") else (FAIL,):
        for here, in_place in itertools.zip_longest(every_answer(path, policy), every_answer(folder, policy)):
            assert here == in_place


def test_partition_uses_log_start_of_parent_directory(fixtures: Path) -> None:
    path = upload(fixtures / "retention/delete-records/start-moved", Bucket("one"))
    single = KafkaView(path.child("expiring-0"))
    assert single.topics() == ["expiring"]
    assert single.bounds("expiring") == KafkaView(path).bounds("expiring")
    assert single.bounds("expiring")[0].log_start == 132


def test_parts_can_be_read_in_another_process(fixtures: Path) -> None:
    path = upload(fixtures / "segments/data", Bucket("pickled"))
    view = KafkaView(path)
    end = view.bounds("seg-small")[0].log_end
    (part,) = view.plan([OffsetRange("seg-small", 0, 5, end)], READ_COMMITTED)
    other = pickle.loads(pickle.dumps(part))
    assert other.partition_dir.files is not part.partition_dir.files
    assert read(view, "seg-small", start=5) == read(KafkaView(fixtures / "segments/data"), "seg-small", start=5)


# ---------------------------------------------------------------- requests


def test_opening_and_reading_take_few_requests(fixtures: Path) -> None:
    """A refresh takes one listing, and one request for each file that is read. Unchanged files take no request."""
    store, path = counted(upload(fixtures / "segments/data", Bucket("requests")))
    logs = len(list((fixtures / "segments/data").glob("*/*.log")))
    folders = len(list((fixtures / "segments/data").glob("*/partition.metadata")))
    assert bucket_layout(path) == "log-dir"
    assert dict(store.counts) == {"list": 1}
    view = KafkaView(path)
    topics = view.topics()
    assert dict(store.counts) == {"list": 2}
    view.refresh(topics)
    assert dict(store.counts) == {"list": 3, "get": logs + folders}
    view.refresh(topics)
    assert dict(store.counts) == {"list": 4, "get": logs + folders}, "a look at what has not changed is a listing"
    store.counts.clear()
    end = view.bounds("seg-small")[0].log_end
    small = len(list((fixtures / "segments/data/seg-small-0").glob("*.log")))
    (part,) = view.plan([OffsetRange("seg-small", 0, 0, end)], READ_COMMITTED)
    assert sum(batch.num_rows for batch in part.read(["offset"])) == end
    assert dict(store.counts) == {"get": small}
    store.counts.clear()
    (part,) = view.plan([OffsetRange("seg-small", 0, end - 1, end)], READ_COMMITTED)
    assert sum(batch.num_rows for batch in part.read(["offset"])) == 1
    assert dict(store.counts) == {"get": 2}, "the index and the segment"


@pytest.mark.parametrize("parallel", [1, 4])
def test_each_range_of_a_long_file_is_requested_once(monkeypatch: pytest.MonkeyPatch, parallel: int) -> None:
    bucket = Bucket("long")
    bucket.limits = Limits(range_bytes=1000)
    monkeypatch.setattr(bucket, "parallel_reads", parallel, raising=False)
    content = bytes(index % 251 for index in range(10_500))
    put(bucket, "kafka/x", content)
    store, path = counted(store_path(bucket, "kafka/x"))
    assert list(path.parent.directories()) == []
    file = path.open()
    pieces = [file.read(at, 300) for at in range(0, 10_500, 300)]
    assert b"".join(pieces) == content
    assert store.counts["get"] == 11
    assert file.read(10_400, 300) == content[10_400:]
    assert file.read(10_500, 1) == b""
    assert store.counts["get"] == 11, "the end is still held"
    assert file.read(3_500, 2_000) == content[3_500:5_500]
    file.close()


# ---------------------------------------------------------------- a copy that changes


def test_tailing_reader_follows_a_growing_copy(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {0: FIRST})
    bucket = Bucket("grows")
    path = upload(tmp_path, bucket)
    view = KafkaView(path, tailing=True)
    assert (end_of(view), view.poll_interval_ms) == (3, 1000)
    append_to(segment(folder, 0), SECOND)
    bucket.now += 60_000
    put(bucket, "kafka/t-0/00000000000000000000.log", segment(folder, 0).read_bytes())
    assert end_of(view) == 6
    put(bucket, "kafka/t-0/00000000000000000006.log", batch(6, [b"g"]))
    put(bucket, "kafka/u-0/00000000000000000000.log", FIRST)
    assert end_of(view) == 7
    assert view.topics() == ["t", "u"]
    assert offsets(read(view, "t")) == list(range(7))


def test_files_replaced_after_the_plan_are_found_again(tmp_path: Path) -> None:
    bucket = Bucket("replaced")
    write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND, 6: batch(6, [b"g"])})
    view = KafkaView(upload(tmp_path, bucket))
    assert end_of(view) == 7
    (part,) = view.plan([OffsetRange("t", 0, 0, 7)], READ_UNCOMMITTED)
    bucket.delete("kafka/t-0/00000000000000000003.log")
    put(bucket, "kafka/t-0/00000000000000000000.log", FIRST + SECOND)
    assert sum(each.num_rows for each in part.read(["offset"])) == 7
    for name in ("0", "6"):
        bucket.delete(f"kafka/t-0/{name:0>20}.log")
    with pytest.raises(NotFound, match="directory memory:replaced/kafka/t-0 no longer exists"):
        list(part.read(["offset"]))
    with pytest.raises(NotFound, match="directory memory:replaced/kafka does not exist: check"):
        view.refresh(["t"])


def test_offsets_of_a_shorter_file_are_found_again(tmp_path: Path) -> None:
    bucket = Bucket("shorter")
    write_partition(tmp_path, "t-0", {0: FIRST + SECOND, 6: batch(6, [b"g"])})
    view = KafkaView(upload(tmp_path, bucket))
    assert end_of(view) == 7
    (part,) = view.plan([OffsetRange("t", 0, 0, 7)], READ_UNCOMMITTED)
    bucket.now += 60_000
    put(bucket, "kafka/t-0/00000000000000000000.log", SECOND)
    assert [row for each in part.read(["offset"]) for row in each.column(0).to_pylist()] == [3, 4, 5, 6]
    assert end_of(view) == 7
    assert offsets(read(view, "t")) == [3, 4, 5, 6]


def test_file_replaced_during_a_read_is_not_reported_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket("within")
    bucket.limits = Limits(range_bytes=len(FIRST))
    write_partition(tmp_path, "t-0", {0: FIRST + SECOND})
    view = KafkaView(upload(tmp_path, bucket))
    assert end_of(view) == 6
    (part,) = view.plan([OffsetRange("t", 0, 0, 6)], READ_UNCOMMITTED)
    content = bytearray(FIRST + SECOND)
    content[-1] ^= 1
    bucket.replace("kafka/t-0/00000000000000000000.log", bytes(content))
    with pytest.raises(Corrupt, match="CRC-32C"):
        list(part.read(["offset"]))
    # The file has the same size, but its batches have other positions.
    bucket.now += 60_000
    put(bucket, "kafka/t-0/00000000000000000000.log", SECOND + batch(6, [b"g" * 200]))
    rows = [row for each in part.read(["offset"]) for row in each.column(0).to_pylist()]
    assert rows == [3, 4, 5]


def test_copied_swap_is_not_awaited(tmp_path: Path, env: Env, waits: list[float]) -> None:
    """The copy of a running broker's directory is read in the state that Kafka's next start would create."""
    folder = write_partition(tmp_path, "t-0", {0: FIRST, 3: SECOND, 6: batch(6, [b"g"])})
    segment(folder, 0).with_suffix(".log.swap").write_bytes(FIRST + SECOND)
    segment(folder, 3).rename(segment(folder, 3).with_suffix(".log.deleted"))
    path = upload(tmp_path, Bucket("swap"))
    for view in (KafkaView(path, env=env), KafkaView(path, tailing=True, env=env)):
        assert (end_of(view), waits) == (7, [])
        assert offsets(read(view, "t")) == list(range(7))


@pytest.mark.parametrize(
    ("keys", "layout", "lists"),
    [
        (["t-0/00000000000000000000.log"], "log-dir", 1),
        (["t-0/00000000000000000000.log.swap", "meta.properties"], "log-dir", 1),
        (["00000000000000000007.index", "00000000000000000007.log"], "partition", 1),
        (["00000000000000000007.log", "-t-0/00000000000000000000.log"], "partition", 1),
        (["t-0/00000000000000000000.index"], None, 2),
        (["t-0/below/00000000000000000000.log", "t/00000000000000000000.log"], None, 2),
        (["orders/_log/00000000000000000000.json"], None, 1),
        ([], None, 1),
        # The object that the Amazon console creates for a directory.
        (["t-0", "t-0/00000000000000000000.log"], "log-dir", 1),
        ([f"a/{number:05}" for number in range(1500)] + ["t-0/00000000000000000000.log"], "log-dir", 2),
        ([f"2026-01-{number}/x" for number in range(1500)], None, 11),
    ],
)
def test_layout_takes_few_requests(keys: list[str], layout: str | None, lists: int) -> None:
    bucket = Bucket("layouts")
    for key in keys:
        put(bucket, f"some/where/{key}", b"")
    store, path = counted(store_path(bucket, "some/where"))
    assert bucket_layout(path) == layout
    assert store.counts["list"] == lists
    assert store.counts["list_folders"] <= 1
    if layout is not None:
        assert kafka_layout(path) == layout


def test_paths_in_a_store() -> None:
    path = store_path(Bucket("paths"), "/kafka/t-7/")
    assert (str(path), path.name, str(path.parent)) == ("memory:paths/kafka/t-7", "t-7", "memory:paths/kafka")
    assert parse_topic_partition(path) == ("t", 7)
    assert str(path.child("x")) == "memory:paths/kafka/t-7/x"
    whole = StorePath("", path.files)
    assert (str(whole), str(whole.child("x")), whole.child("x").key) == ("memory:paths", "memory:paths/x", "x")
    with pytest.raises(FileNotFoundError):
        whole.child("x").names()
    with pytest.raises(FileNotFoundError):
        whole.child("x").open()
    assert not whole.child("x").exists()
    assert whole.child("x").data() is None
    assert not whole.is_directory()
