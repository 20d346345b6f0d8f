"""Test which directories are Kafka directories, and which of their subdirectories are partitions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, NotFound
from sparklog.kafka.in_place import KafkaView, directory, kafka_layout
from sparklog.kafka.in_place.directory import parse_topic_partition, partition_dirs
from sparklog.kafka.in_place.files import file_path
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from tests.kafka.logs import batch, write_partition

LOG = batch(0, [b"a"])


def test_layout_depends_on_the_files_in_the_directory(tmp_path: Path) -> None:
    write_partition(tmp_path / "logs", "orders-0", {0: LOG})
    write_partition(tmp_path, "sealed-run", {})
    (tmp_path / "file").write_bytes(b"")
    assert kafka_layout(tmp_path / "logs") == "log-dir"
    assert kafka_layout(tmp_path / "logs/orders-0") == "partition"
    assert kafka_layout(tmp_path / "sealed-run") is None
    assert kafka_layout(tmp_path) is None, "partition folders are looked for one level down only"
    assert kafka_layout(tmp_path / "file") is None
    assert kafka_layout(tmp_path / "missing") is None


def test_only_partition_dirs_are_listed(tmp_path: Path) -> None:
    for name in ("a.b-c_d-12", "t-0", "t--1", "x" * 249 + "-0"):
        write_partition(tmp_path, name, {0: LOG})
    for name in (
        "t-1.0123456789abcdef0123456789abcdef-delete",
        "t-2.0123456789abcdef0123456789abcdef-future",
        "t-3.0123456789abcdef0123456789abcdef-stray",
        "t",
        "t-x",
        "with space-0",
        "x" * 250 + "-0",
    ):
        write_partition(tmp_path, name, {0: LOG})
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "other-0").mkdir()
    (tmp_path / "other-0" / "42.log").write_bytes(LOG)
    assert set(partition_dirs(file_path(tmp_path))) == {("a.b-c_d", 12), ("t", 0), ("t-", 1), ("x" * 249, 0)}


def test_names_are_split_at_the_last_dash() -> None:
    assert parse_topic_partition(file_path("/data/kafka/a-b-7")) == ("a-b", 7)
    assert parse_topic_partition(file_path("/data/kafka/copy")) == ("copy", 0)


def test_partition_dir_with_another_name_is_partition_0(tmp_path: Path) -> None:
    view = KafkaView(write_partition(tmp_path, "copy of orders", {0: LOG}))
    assert view.topics() == ["copy of orders"]
    assert view.bounds("copy of orders")[0].log_end == 1


def test_files_next_to_a_copied_partition_are_ignored_if_invalid(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "orders-0", {0: LOG})
    (tmp_path / "log-start-offset-checkpoint").write_text("mine")
    assert KafkaView(folder).bounds("orders")[0].log_end == 1


def test_directory_that_is_not_a_kafka_directory_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"is not a Kafka directory: expected partition directories such as orders-0"):
        KafkaView(tmp_path)


def test_unknown_name_suggests_similar_names(tmp_path: Path) -> None:
    write_partition(tmp_path, "orders-0", {0: LOG})
    view = KafkaView(tmp_path)
    with pytest.raises(NotFound, match=r"topic 'order' does not exist .*; did you mean 'orders'\?"):
        view.bounds("order")
    with pytest.raises(NotFound, match=r"topic 'xyz' does not exist .*; existing topics: orders$"):
        view.bounds("xyz")
    with pytest.raises(NotFound, match=r"topic orders in .* has no partition 3; its partitions are \[0\]"):
        view.plan([OffsetRange("orders", 3, 0, 1)], READ_COMMITTED)
    with pytest.raises(BadRequest, match="unknown isolation level 'strict'"):
        view.plan([OffsetRange("orders", 0, 0, 1)], "strict")
    (part,) = view.plan([OffsetRange("orders", 0, 0, 1)], READ_COMMITTED)
    with pytest.raises(BadRequest, match=r"expected distinct columns of .* found keys"):
        next(part.read(["keys"]))


def test_unknown_name_suggests_nothing_without_topics(tmp_path: Path) -> None:
    write_partition(tmp_path, "orders-0", {0: LOG})
    view = KafkaView(tmp_path)
    shutil.rmtree(tmp_path / "orders-0")
    with pytest.raises(NotFound, match=r"topic 'orders' does not exist in [^;]*$"):
        view.refresh(["orders"])


def test_topic_without_metadata_has_a_stable_id(tmp_path: Path) -> None:
    write_partition(tmp_path, "orders-0", {0: LOG})
    write_partition(tmp_path, "other-0", {0: LOG})
    first = KafkaView(tmp_path).topic_id("orders")
    assert len(first) == 22
    assert KafkaView(tmp_path).topic_id("orders") == first
    assert KafkaView(tmp_path / "orders-0").topic_id("orders") == first
    assert KafkaView(tmp_path).topic_id("other") != first
    (tmp_path / "orders-0/partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
    assert KafkaView(tmp_path).topic_id("orders") == first, "an id of zeros is none"


SHARED_ID = "AAECAwQFBgcICQoLDA0ODw"


def test_topics_with_the_same_id_get_unique_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, topic_id in (("orders", SHARED_ID), ("copy", SHARED_ID), ("other", "AAAAAAAAAAAAAAAAAAAAAQ")):
        (write_partition(tmp_path, f"{name}-0", {0: LOG}) / "partition.metadata").write_text(
            f"version: 0\ntopic_id: {topic_id}"
        )
    reads, view = [], KafkaView(tmp_path)
    real = directory.kafka_topic_id
    monkeypatch.setattr(directory, "kafka_topic_id", lambda folder: reads.append(str(folder)) or real(folder))
    ids = {name: view.unique_topic_id(name) for name in ("orders", "copy", "other")}
    assert ids["other"] == view.topic_id("other")
    assert len({*ids.values(), view.topic_id("orders")}) == 4
    # After all topics were read once, a call for one topic reads only its own file.
    reads.clear()
    assert view.unique_topic_id("copy") == ids["copy"] == KafkaView(tmp_path).unique_topic_id("copy")
    assert len(reads) == 1 + 3 + 1
    write_partition(tmp_path, "new-0", {0: LOG})
    reads.clear()
    assert view.unique_topic_id("other") == ids["other"]
    assert len(reads) == 4 + 1, "a topic has come"


def test_planning_does_not_load_kernels(fixtures: Path) -> None:
    program = (
        "import sys; from sparklog.kafka.in_place import KafkaView; from sparklog.log.state.view import OffsetRange;"
        f"view = KafkaView({str(fixtures / 'transactions/data')!r}); bounds = view.bounds('txn-b')[0];"
        "view.plan([OffsetRange('txn-b', 0, 0, bounds.last_stable)], 'read_committed');"
        "print([name for name in ('numba', 'pandas', 'pyspark', 'zstandard') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
