"""Timestamps of producers: the server writes the largest timestamp, and a negative timestamp means none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.wire import Wire
from tests.support.odd_batches import TIME_MS, odd_batch, record

GREATEST = -3
FAR_BELOW_0 = -7_240_509_273_709_551_616
SENT: dict[str, tuple[list[int], dict[str, Any]]] = {
    "none": ([-1], {}),
    "two-none": ([-1, -1], {}),
    "negative": ([-5], {"max_timestamp": 0}),
    "negative-and-none": ([-5, -1], {"max_timestamp": -5}),
    "none-of-sarama": ([TIME_MS, TIME_MS + 1], {"max_timestamp": -1}),
    "one-none": ([TIME_MS, -1], {}),
    "too-small": ([TIME_MS + 20, TIME_MS + 10], {"max_timestamp": TIME_MS + 10}),
    "too-great": ([TIME_MS], {"max_timestamp": TIME_MS + 10**6}),
    "far-below-0": ([FAR_BELOW_0, TIME_MS], {}),
    "append-time-bit": ([TIME_MS], {"attributes": LOG_APPEND_TIME_BIT}),
    "compressed": ([-1, TIME_MS + 5], {"max_timestamp": -1, "attributes": 4}),
    "0": ([0], {"max_timestamp": 7}),
}


def greatest(times: list[int]) -> int:
    return max(-1, *times)


@pytest.fixture
def produced(serve: Callable[..., Address], tmp_path: Path) -> tuple[Path, Wire, dict[str, list[int]]]:
    """A root with a topic per kind of batch, sent twice in separate requests, and a topic `all` with all batches."""
    root, folder = sparklog.open(tmp_path / "root", create=True), tmp_path / "root"
    times = {name: SENT[name][0] * 2 for name in SENT} | {"all": [time for name in SENT for time in SENT[name][0]]}
    for name in times:
        root.create_topic(name, configs={"retention.ms": -1})
    wire = Wire(serve(folder, writable=True))
    for name, (given, header) in SENT.items():
        batch = odd_batch(given, **header)
        for topic in (name, name, "all"):
            assert wire.produce(topic, {0: batch})[0]["errorCode"] == Code.NONE, name
    return folder, wire, times


def test_the_server_writes_the_largest_timestamp(produced: tuple[Path, Wire, dict[str, list[int]]]) -> None:
    wire = produced[1]
    for name, (sent, _) in SENT.items():
        headers = headers_of(wire, name)
        assert headers.max_timestamp.tolist() == [greatest(sent)] * 2, name
        assert not headers.is_log_append_time.any()
    assert headers_of(wire, "all").max_timestamp.tolist() == [greatest(sent) for sent, _ in SENT.values()]


def headers_of(wire: Wire, topic: str) -> Any:
    row = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}
    fields = {"maxWaitMs": 0, "maxBytes": 1 << 20, "topics": [{"topic": topic, "partitions": [row]}]}
    data = bytes(wire.ask("Fetch", 4, fields)["responses"][0]["partitions"][0]["records"])
    headers = scan_headers(data)
    assert not len(crc_failures(data, headers))
    return headers


def looked_up(wire: Wire, topic: str, time_ms: int) -> tuple[int, int]:
    """Return the timestamp and offset in a ListOffsets response."""
    rows = [{"partitionIndex": 0, "timestamp": time_ms}]
    answer = wire.ask("ListOffsets", 7, {"replicaId": -1, "topics": [{"name": topic, "partitions": rows}]})
    row = answer["topics"][0]["partitions"][0]
    assert row["errorCode"] == Code.NONE
    return row["timestamp"], row["offset"]


def assert_looked_up(wire: Wire, times: dict[str, list[int]]) -> None:
    """Compare lookups with a scan of the timestamps. A record without a timestamp is the result only if all records
    have none.
    """
    for name, known in times.items():
        latest = greatest(known)
        for asked in (0, 1, TIME_MS, TIME_MS + 6, TIME_MS + 20, TIME_MS + 21, GREATEST):
            wanted = [n for n, time in enumerate(known) if (time == latest if asked == GREATEST else time >= asked)]
            expected = (known[wanted[0]], wanted[0]) if wanted else (-1, -1)
            assert looked_up(wire, name, asked) == expected, (name, asked)


def test_every_reader_treats_a_negative_timestamp_as_none(
    produced: tuple[Path, Wire, dict[str, list[int]]], tmp_path: Path
) -> None:
    folder, wire, times = produced
    assert_looked_up(wire, times)
    assert scanned(folder) == times
    assert sparklog.verify(folder).sound
    # The topic is sealed into segments with time indexes, then served as a Kafka directory, and imported from it.
    sparklog.compact(folder, roll=True)
    assert sparklog.verify(folder).sound
    assert scanned(folder) == times
    assert_looked_up(wire, times)
    sparklog.export_kafka(folder, list(times), tmp_path / "kafka")
    view = sparklog.open_view(tmp_path / "kafka")
    assert {name: times_in(view.topic(name).scan()) for name in times} == times
    sparklog.import_kafka(tmp_path / "again", tmp_path / "kafka")
    assert sparklog.verify(tmp_path / "again").sound
    assert scanned(tmp_path / "again") == times


def scanned(folder: Path) -> dict[str, list[int]]:
    root = sparklog.open(folder)
    return {name: times_in(root.topic(name).scan()) for name in root.topics()}


def times_in(scan: Any) -> list[int]:
    return scan.to_table()["timestamp"].cast("int64").to_pylist()  # type: ignore[no-any-return]


DAY_MS = 86_400_000


def test_records_without_a_timestamp_age_from_their_append(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    sent = {"none": [[-1], [-5, -1]], "beside": [[-1], [TIME_MS], [-1]], "timed": [[TIME_MS]]}
    for name in sent:
        root.create_topic(name, configs={"retention.ms": DAY_MS})
    wire = Wire(serve(tmp_path, writable=True))
    for name, batches in sent.items():
        for times in batches:
            assert wire.produce(name, {0: odd_batch(times)})[0]["errorCode"] == Code.NONE
    sparklog.retain(tmp_path)
    # A broker uses a segment's modification time if no record in the segment has a timestamp.
    assert scanned(tmp_path) == {"none": [-1, -5, -1], "beside": [], "timed": []}
    count = root.topic("none").count()
    assert (count.records, count.earliest_ms, count.latest_ms) == (3, None, None)
    sparklog.compact(tmp_path, roll=True)
    sparklog.retain(tmp_path, now_ms=int(time.time() * 1000) + DAY_MS // 2)
    assert scanned(tmp_path)["none"] == [-1, -5, -1]
    sparklog.retain(tmp_path, now_ms=int(time.time() * 1000) + 2 * DAY_MS)
    assert scanned(tmp_path)["none"] == []


def test_cleaning_keeps_negative_timestamps(serve: Callable[..., Address], tmp_path: Path) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    topic = sparklog.open(tmp_path, create=True).create_topic("t", configs=configs)
    wire = Wire(serve(tmp_path, writable=True))
    # The second record of each batch is replaced by a later record with the same key, so the batch is rewritten.
    for times in ([TIME_MS + 5, TIME_MS, -1, -5], [-5, -1, TIME_MS + 9], [-5, -9, -5]):
        keys = [b"%d" % time for time in times]
        records = b"".join(
            record(delta, time_ms - times[0], b"x" if delta == 1 else key)
            for delta, (time_ms, key) in enumerate(zip(times, keys, strict=True))
        )
        assert wire.produce("t", {0: odd_batch(times, payload=records)})[0]["errorCode"] == Code.NONE
    sparklog.compact(tmp_path, roll=True)
    assert sparklog.verify(tmp_path).sound
    assert times_in(topic.scan()) == [TIME_MS + 5, -1, TIME_MS + 9, -9, -5]
    assert headers_of(wire, "t").max_timestamp.tolist() == [TIME_MS + 5, TIME_MS + 9, -1]
    assert looked_up(wire, "t", GREATEST) == (TIME_MS + 9, 6)


def test_a_topic_with_negative_timestamps_is_repartitioned(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("t", configs={"retention.ms": -1})
    wire = Wire(serve(tmp_path, writable=True))
    sent = [[-1], [FAR_BELOW_0, TIME_MS, -1], [-5]]
    for times in sent:
        assert wire.produce("t", {0: odd_batch(times)})[0]["errorCode"] == Code.NONE
    sparklog.repartition(root, "t", "wide", partitions=2)
    assert times_in(root.topic("wide").scan()) == [time_ms for times in sent for time_ms in times]
    assert sparklog.verify(tmp_path).sound
    assert looked_up(wire, "t", GREATEST) == (TIME_MS, 2)
