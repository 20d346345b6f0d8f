"""`sparklog import`: a Kafka log directory taken into a root from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sparklog as package
from tests.cli.conftest import Sparklog
from tests.kafka.logs import batch as kafka_batch
from tests.kafka.logs import segment, write_partition


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two topics, one of two partitions, of three records each partition."""
    place = tmp_path / "kafka"
    place.mkdir()
    for name in ("orders-0", "orders-1", "clicks-0"):
        write_partition(place, name, {0: kafka_batch(0, [b"a", b"b", b"c"])})
    return place


def test_all_topics_then_one_that_exists(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    said = sparklog("import", log_dir, "-c", "retention.ms=-1")
    assert said.lines == [
        "Imported topic clicks: 1 partitions, 3 offsets.",
        "Imported topic orders: 2 partitions, 6 offsets.",
    ]
    topic = package.open(root).topic("orders")
    assert topic.head().configs.retention_ms == -1
    assert topic.scan().to_table()["value"].to_pylist() == [b"a", b"b", b"c"] * 2
    assert "topic 'clicks' exists" in sparklog("import", log_dir, code=1).err


def test_chosen_topics_as_json(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    said = sparklog("import", log_dir, "--topic", "clicks", "--json")
    assert json.loads(said.out) == [{"topic": "clicks", "partitions": 1, "offsets": 3}]
    assert package.open(root).topics() == ["clicks"]


def test_damage_is_one_line_or_skipped(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    write_partition(log_dir, "hurt-0", {0: kafka_batch(0, [b"a"]), 1: kafka_batch(1, [b"b"])})
    file = segment(log_dir / "hurt-0", 0)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    failed = sparklog("import", log_dir, "--topic", "hurt", code=1)
    assert len(failed.err.splitlines()) == 1
    assert "SPARKLOG_CORRUPT" in failed.err
    skipped = sparklog("import", log_dir, "--topic", "hurt", "--corrupt-records", "skip")
    assert "hurt" in skipped.err
    assert package.open(root).topic("hurt").scan().to_table()["value"].to_pylist() == [b"b"]


def test_a_folder_that_is_no_log_dir(tmp_path: Path, sparklog: Sparklog) -> None:
    (tmp_path / "empty").mkdir()
    said = sparklog("import", tmp_path / "empty", code=1)
    assert len(said.err.splitlines()) == 1
