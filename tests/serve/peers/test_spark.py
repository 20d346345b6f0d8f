"""Spark's Kafka connector reads and writes: batches, streams that continue after a restart, the sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.datasource.live_kafka import CONNECTOR_VERSION
from tests.kafka_tools import Missing
from tests.serve.clients import ISOLATIONS, ReadRecord
from tests.serve.peers.applications import by_topic, run_spark
from tests.serve.peers.calls import noting
from tests.serve.peers.golden import TIMED_MS, Served
from tests.serve.peers.peer import Place, by_place

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(900)]

SPARK = f"spark-connector-{CONNECTOR_VERSION}"
CANNOT = ("time-create",)
"""The connector rejects records whose timestamps exceed the range of Spark's type."""


def run(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    try:
        return run_spark(task, folder)
    except Missing as missing:
        pytest.skip(str(missing))


def test_the_connector_reads_and_writes(tmp_path: Path, golden: Served, writable: tuple[Served, Any]) -> None:
    server, root = writable
    for topic in ("in", "out"):
        root.create_topic(topic, partitions=3)
    places = [place for place in golden.expected["read_committed"] if place[0] not in CANNOT]
    assigned = by_topic(places, None)
    codecs: list[Place] = [("codec-zstd", partition) for partition in range(4)]
    task = {
        "golden": str(golden.address),
        "writable": str(server.address),
        "places": {topic: list(map(int, partitions)) for topic, partitions in assigned.items()},
        "some": {
            "subscribe": "codec-zstd",
            "startingOffsets": by_topic(codecs, 10),
            "endingOffsets": by_topic(codecs, 60),
        },
        "by_time": {
            "subscribe": "timed",
            "startingOffsetsByTimestamp": by_topic([("timed", 0)], TIMED_MS + 3_000),
            "endingOffsetsByTimestamp": by_topic([("timed", 0)], TIMED_MS + 7_000),
        },
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    with noting(SPARK, golden), noting(SPARK, server):
        result = run(task, tmp_path)
    for isolation in ISOLATIONS:
        records = by_place(result["batches"][isolation], places)
        assert {place for place in places if records[place] != golden.expected[isolation][place]} == set()
    everything = golden.expected["read_committed"]
    expected = {place: [row for row in everything[place] if 10 <= row.offset < 60] for place in codecs}
    assert by_place(result["some"], codecs) == expected
    assert [row.offset for row in by_place(result["by_time"])["timed", 0]] == [3, 4, 5, 6]
    written, copied = (by_place(result[topic]) for topic in ("in", "out"))
    assert result["steps"][0] > 1
    assert sum(map(len, written.values())) == 200
    for partition in range(3):
        assert contents(copied["out", partition]) == contents(written["in", partition])
        assert sorted(int(row.value or b"") for row in written["in", partition]) == list(range(partition, 200, 3))


def contents(records: list[ReadRecord]) -> list[tuple[Any, ...]]:
    return [(row.offset, row.key, row.value, row.headers) for row in records]
