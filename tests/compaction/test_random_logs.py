"""Random logs that Kafka's classes wrote are cleaned and expired pass by pass. sparklog's passes have the same results.

`RandomLogs.java` creates the logs in one JVM, in the layout of the compaction fixtures: formats v0, v1 and v2, codecs,
producers, transactions, tombstones, records without keys, leader epochs, small maps, retention, and log starts that
move to any offset between two passes. Two properties are as after a broker restart, because a log directory alone
determines them (docs/design/differences.md): segments below the log start are deleted, and producers are derived from
the batches.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sparklog.format.batch_scan import scan_headers
from sparklog.format.decode import decode
from tests.compaction.fixture_stages import Pass, passes_between, read_stages
from tests.compaction.test_fixture_passes import HEADER_FIELDS, cleaned_once, expired, imported, segments
from tests.kafka_tools import Missing, find_java, kafka_jars
from tests.support.counted_root import CountedRoot

pytestmark = [pytest.mark.slow, pytest.mark.java]

RECORD_FIELDS = ("offset", "timestamp", "key", "value")
SEEDS = range(300)
GENERATOR = Path(__file__).with_name("RandomLogs.java")


@pytest.fixture(scope="module")
def random_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for each seed, in the layout of a fixture."""
    try:
        java, jars = find_java(), kafka_jars()
    except Missing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("random-logs")
    options = (
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
    )
    answer = subprocess.run(
        [java, *options, "-cp", f"{jars}{os.sep}*", str(GENERATOR), str(folder), str(SEEDS[0]), str(SEEDS[-1])],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if "module jdk.compiler" in answer.stderr:
        pytest.skip("the generator is run from its source: that takes a JDK")
    assert answer.returncode == 0, answer.stderr[-2000:]
    return folder


@dataclass(frozen=True)
class Left:
    """The batches with offsets at or after the log start, and their contents."""

    headers: list[tuple[int, ...]]
    plain: list[bytes]
    """Uncompressed batches."""
    records: list[tuple[object, ...]]

    @classmethod
    def of(cls, segments: Sequence[bytes], log_start: int) -> Left:
        left = cls([], [], [])
        for data in segments:
            headers = scan_headers(data)
            rows = np.flatnonzero(headers.next_offset > log_start)
            if not len(rows):
                continue
            headers = headers[rows]
            left.headers.extend(zip(*(getattr(headers, name).tolist() for name in HEADER_FIELDS), strict=True))
            spans = zip(headers.position.tolist(), headers.size.tolist(), headers.codec.tolist(), strict=True)
            left.plain.extend(data[at : at + size] for at, size, codec in spans if not codec)
            cells = decode(data, headers, columns=RECORD_FIELDS)
            columns = (cells.offset.tolist(), cells.timestamp.tolist(), cells.key.to_pylist(), cells.value.to_pylist())
            left.records.extend(zip(*columns, strict=True))
        return left


def assert_as_kafka(each: Pass, counted_root: CountedRoot) -> bool:
    """Assert that a pass has the same result as Kafka's pass. Return whether the pass was due."""
    topic, told, after = imported(counted_root, each.before), each.after.cleaner, each.after
    done = cleaned_once(topic, each)
    assert (done is not None) == told["chosen"]
    if done is not None:
        assert topic.log.state().first_dirty_offset.tolist() == [told["endOffset"]]
    expired(topic, each)
    state = topic.log.state()
    assert state.log_end.tolist() == [after.log_end]
    # Kafka also moves the log start past segments without batches, which do not exist in a root.
    mine = Left.of([each.data for each in segments(topic)], int(state.log_start[0]))
    kafkas = Left.of([file.data for file in after.files], after.log_start)
    assert mine.headers == kafkas.headers
    assert mine.records == kafkas.records
    assert mine.plain == kafkas.plain
    return done is not None


@pytest.mark.parametrize("seed", SEEDS)
def test_passes_over_random_logs_are_kafkas(random_logs: Path, tmp_path: Path, seed: int) -> None:
    passes = passes_between(read_stages(random_logs / str(seed)))
    assert len(passes) == 3
    for each in passes:
        assert_as_kafka(each, CountedRoot("memory", tmp_path))


def test_random_logs_hold_what_logs_can_hold(random_logs: Path) -> None:
    every = [stage for seed in SEEDS for stage in read_stages(random_logs / str(seed))]
    headers = [file.headers for stage in every for file in stage.files]
    assert {int(codec) for each in headers for codec in each.codec} == set(range(5))
    assert sum(bool(each.is_legacy.any()) for each in headers) > 100
    assert sum(int(each.is_control.sum()) for each in headers) > 1000
    assert sum(int(each.has_delete_horizon.sum()) for each in headers) > 1000
    assert sum(stage.log_start > 0 for stage in every) > 100
    assert sum(bool(stage.cleaner.get("chosen")) for stage in every) > 300
