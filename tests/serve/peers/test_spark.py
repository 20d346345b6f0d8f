"""Spark's Kafka connector reads and writes: batches, streams that continue after a restart, the sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.datasource import spark_session
from tests.datasource.live_kafka import CONNECTOR_VERSION, connector_jars
from tests.kafka_tools import Missing
from tests.serve.clients import ISOLATIONS, ReadRecord
from tests.serve.peers.calls import noting
from tests.serve.peers.golden import TIMED_MS, Served
from tests.serve.peers.peer import HERE, Place, by_place

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(900)]

SECONDS = 600
SPARK = f"spark-connector-{CONNECTOR_VERSION}"
CANNOT = ("time-create",)
"""The connector rejects records whose timestamps exceed the range of Spark's type."""


def run(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the program in its own driver."""
    try:
        jars = ",".join(map(str, connector_jars()))
    except Missing as missing:
        pytest.skip(str(missing))
    settings = {"spark.local.dir": str(folder / "scratch"), **spark_session.SETTINGS}
    options = " ".join(f"--conf '{name}={value}'" for name, value in settings.items() if name != "spark.driver.memory")
    submit = f"--master local[2] --driver-memory 1g --jars {jars} {options} pyspark-shell"
    environment = {**os.environ, **spark_session.environment(), "PYSPARK_SUBMIT_ARGS": submit}
    (folder / "task.json").write_text(json.dumps(task))
    command = [sys.executable, HERE / "spark_program.py", folder / "task.json", folder / "result.json"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert answer.returncode == 0, answer.stderr[-5000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def by_topic(places: list[Place], value: Any) -> dict[str, dict[str, Any]]:
    offsets: dict[str, dict[str, Any]] = {}
    for topic, partition in places:
        offsets.setdefault(topic, {})[str(partition)] = value
    return offsets


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
