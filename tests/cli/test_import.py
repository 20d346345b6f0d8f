"""`sparklog import`: imports a Kafka log directory into a root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sparklog as package
from sparklog.kafka.in_place import KafkaView
from tests.cli.conftest import Sparklog
from tests.kafka.logs import batch as kafka_batch
from tests.kafka.logs import segment, write_partition


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two topics with three records in each partition. One topic has two partitions."""
    place = tmp_path / "kafka"
    place.mkdir()
    for name in ("orders-0", "orders-1", "clicks-0"):
        write_partition(place, name, {0: kafka_batch(0, [b"a", b"b", b"c"])})
    return place


def test_import_continues_with_new_records(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    said = sparklog("import", log_dir, "-c", "retention.ms=-1", "--quiet")
    assert said.err == f"sparklog: created root {root}\n"
    assert [line.split() for line in said.lines] == [
        ["TOPIC", "PARTITIONS", "OFFSETS", "THERE-BEFORE", "RECORDS", "COPIED", "LINKED", "SKIPPED", "OPEN"],
        ["clicks", "1", "3", "0", "3", "85", "B", "0", "B", "0", "0"],
        ["orders", "2", "6", "0", "6", "170", "B", "0", "B", "0", "0"],
    ]
    topic = package.open(root).topic("orders")
    assert topic.log.state().configs.retention_ms == -1
    assert topic.scan().to_table()["value"].to_pylist() == [b"a", b"b", b"c"] * 2
    write_partition(log_dir, "orders-1", {3: kafka_batch(3, [b"d"])})
    again = sparklog("import", log_dir)
    assert [line.split()[:5] for line in again.lines[1:]] == [
        ["clicks", "1", "0", "3", "0"],
        ["orders", "2", "1", "6", "1"],
    ]
    assert topic.scan().to_table()["value"].to_pylist() == [b"a", b"b", b"c"] * 2 + [b"d"]


def test_import_rejects_an_existing_native_topic(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    package.open(root, create=True).create_topic("clicks")
    said = sparklog("import", log_dir, code=1)
    assert len(said.err.splitlines()) == 1
    assert "topic 'clicks' exists" in said.err
    assert package.open(root).topics() == ["clicks"]


def test_import_of_selected_topics_as_json(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    said = sparklog("import", log_dir, "--topic", "clicks", "--json")
    found = json.loads(said.out)
    (topic,) = found["topics"]
    (partition,) = topic.pop("partitions")
    assert topic == {"topic": "clicks", "kafkaTopicId": "", "created": True, "kafkaConfigs": None}
    size = segment(log_dir / "clicks-0", 0).stat().st_size
    assert partition == {
        "partition": 0,
        "logStart": 0,
        "logEnd": 3,
        "since": 0,
        "records": 3,
        "bytesCopied": size,
        "bytesLinked": 0,
        "skipped": 0,
        "openTransactions": 0,
    }
    assert package.open(root).topics() == ["clicks"]


def test_a_dry_run_changes_nothing(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    said = sparklog("import", log_dir, "--dry-run")
    assert [line.split()[:5] for line in said.lines[1:]] == [
        ["clicks", "1", "3", "0", "-"],
        ["orders", "2", "6", "0", "-"],
    ]
    assert not root.exists()


@pytest.mark.parametrize("options", [(), ("--copy",)])
def test_closed_segments_are_hard_links_unless_copy_is_given(
    log_dir: Path, root: Path, sparklog: Sparklog, options: tuple[str, ...]
) -> None:
    write_partition(log_dir, "clicks-0", {3: kafka_batch(3, [b"d"])})
    said = json.loads(sparklog("import", log_dir, "-t", "clicks", "--json", *options).out)
    (partition,) = said["topics"][0]["partitions"]
    closed, active = (segment(log_dir / "clicks-0", base).stat() for base in (0, 3))
    assert (closed.st_nlink, active.st_nlink) == (1 if options else 2, 1)
    assert partition["bytesLinked"] == (0 if options else closed.st_size)
    assert partition["bytesCopied"] == active.st_size + (closed.st_size if options else 0)
    assert package.open(root).topic("clicks").scan().to_table()["value"].to_pylist() == [b"a", b"b", b"c", b"d"]


def test_damage_is_a_one_line_error_or_skipped(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    write_partition(log_dir, "hurt-0", {0: kafka_batch(0, [b"a"]), 1: kafka_batch(1, [b"b"])})
    file = segment(log_dir / "hurt-0", 0)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    failed = sparklog("import", log_dir, "--topic", "hurt", code=1)
    assert [line.split()[1] for line in failed.err.splitlines()] == ["created", "the"]
    assert "SPARKLOG_CORRUPT" in failed.err
    skipped = sparklog("import", log_dir, "--topic", "hurt", "--corrupt-records", "skip")
    assert "hurt" in skipped.err
    assert package.open(root).topic("hurt").scan().to_table()["value"].to_pylist() == [b"b"]


def test_import_rejects_a_directory_that_is_not_a_log_directory(tmp_path: Path, sparklog: Sparklog) -> None:
    (tmp_path / "empty").mkdir()
    said = sparklog("import", tmp_path / "empty", code=1)
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("wrong", [("-t", "none"), ("-c", "none=1"), ("-c", "file.delete.delay.ms=1")])
def test_invalid_input_does_not_create_a_root(
    log_dir: Path, root: Path, sparklog: Sparklog, wrong: tuple[str, str]
) -> None:
    said = sparklog("import", log_dir, *wrong, code=1)
    assert len(said.err.splitlines()) == 1
    assert not root.exists()


def test_a_root_inside_the_log_directory_is_rejected(log_dir: Path, sparklog: Sparklog) -> None:
    """A broker does not start if its log directory contains a directory that is not a partition."""
    for place in (log_dir / "sparklog", log_dir / "orders-0" / "log"):
        said = sparklog("import", log_dir, "--root", place, code=1)
        assert "is inside the Kafka directory" in said.err
        assert len(said.err.splitlines()) == 1
        assert not place.exists()


def test_import_includes_groups_and_their_offsets(fixtures: Path, root: Path, sparklog: Sparklog) -> None:
    folder = fixtures / "transactions/data"
    said = sparklog("import", folder, "-t", "txn-a", "--quiet")
    table = [line.split() for line in said.lines]
    assert table[2] == ["GROUP", "OFFSETS", "OF-OTHER-TOPICS"]
    assert ["g-classic", "2", "2"] in table
    described = sparklog("topics", "describe", "txn-a")
    assert "producer 4 ('tx-open') in partition 0, from offset 62" in described.out
    kafkas = KafkaView(folder).topic_id("txn-a")
    assert described.lines[1] == f"Imported from the Kafka topic with id {kafkas}"
    (row,) = json.loads(sparklog("topics", "describe", "txn-a", "--json").out)
    assert (row["kafkaTopicId"], row["topicId"]) == (kafkas, package.open(root).topic("txn-a").log.state().topic_id)
    found = json.loads(sparklog("import", folder, "-t", "txn-b", "--json", "--no-groups", "--no-transactions").out)
    assert found["groups"] == []
    assert "producer 4 in partition 1, from offset 19" in sparklog("topics", "describe", "txn-b").out
    (again,) = [
        each
        for each in json.loads(sparklog("import", folder, "--dry-run", "--json").out)["groups"]
        if each["group"] == "g-classic"
    ]
    assert again == {"group": "g-classic", "offsets": 4, "leftOut": 0, "inUse": False}
