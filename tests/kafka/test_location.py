"""Test how the kind of a path is determined."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparklog.datasource.spark_workers import root_at
from sparklog.errors import BadRequest
from sparklog.opening import (
    KAFKA_DIRECTORY,
    KAFKA_PARTITION,
    NOTHING,
    ROOT,
    TOPIC,
    Location,
    missing,
    open_log,
    open_view,
    resolve,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "log"
    (found / "orders" / "_log").mkdir(parents=True)
    (found / "_root.json").write_text("{}")
    return found


def test_root_and_topic(root: Path) -> None:
    assert resolve(str(root)) == Location(ROOT, str(root), str(root))
    assert resolve(f"{root}/orders/") == Location(TOPIC, f"{root}/orders", str(root), "orders")
    assert resolve(f"file://{root}/orders") == Location(TOPIC, f"{root}/orders", str(root), "orders")


def test_topic_that_does_not_exist_yet(root: Path) -> None:
    assert resolve(f"{root}/new") == Location(TOPIC, f"{root}/new", str(root), "new")


def test_kafka_directories(fixtures: Path) -> None:
    data = fixtures / "codecs" / "data"
    assert resolve(str(data)).kind == KAFKA_DIRECTORY
    assert resolve(f"{data}/codec-none-0").kind == KAFKA_PARTITION


def test_sealed_directories_of_a_topic_are_not_kafka_partitions(root: Path) -> None:
    run = root / "orders" / "sealed" / "0" / "00000000000000000007-Abc"
    run.mkdir(parents=True)
    (run / "00000000000000000000.log").write_bytes(b"")
    assert resolve(str(root)).kind == ROOT
    assert resolve(f"{root}/orders").kind == TOPIC
    assert resolve(str(run)).kind == NOTHING


def test_path_without_a_log(tmp_path: Path) -> None:
    assert resolve(str(tmp_path / "x")).kind == NOTHING
    assert "does not exist" in missing(resolve(str(tmp_path / "x")))
    assert "neither a _root.json nor Kafka partition directories" in missing(resolve(str(tmp_path)))


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("log").path == str(tmp_path / "log")


def test_missing_path_and_file_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="Expected the path of a root"):
        resolve(None)
    (tmp_path / "f").write_text("x")
    for file in (str(tmp_path / "f"), os.devnull):
        with pytest.raises(BadRequest, match="is a file"):
            resolve(file)


def test_kafka_directory_is_rejected_with_advice_if_a_root_is_required(fixtures: Path) -> None:
    with pytest.raises(BadRequest, match="use a sparklog root; `sparklog import` imports its topics"):
        open_log(resolve(str(fixtures / "transactions" / "data")))


def test_nested_root_is_rejected(root: Path) -> None:
    for inside in (root / "orders" / "append", root / "orders" / "_log" / "checkpoints"):
        with pytest.raises(BadRequest, match=f"is inside the root {root}"):
            open_log(resolve(str(inside)), create=True)
        assert not (inside / "_root.json").exists()
    beside = root.parent / "other"
    assert open_log(resolve(str(beside)), create=True).location == str(beside)


def test_truncate_policy_is_rejected_for_a_root(tmp_path: Path) -> None:
    open_log(resolve(str(tmp_path / "log")), create=True)
    location = resolve(str(tmp_path / "log"))
    with pytest.raises(
        BadRequest, match=r"corruptRecords=truncate applies only to Kafka directories, but .*/log is a sparklog"
    ):
        open_view(location, tailing=False, corrupt_records="truncate")
    for policy in ("fail", "skip"):
        assert open_view(location, tailing=False, corrupt_records=policy).topics() == []


def test_directory_name_with_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("./s3:x").path == str(tmp_path / "s3:x")
    assert open_log(resolve(f"{tmp_path}/a:b"), create=True).location == f"{tmp_path}/a:b"
    assert resolve(f"FILE://{tmp_path}/a:b").kind == ROOT


def test_directory_with_other_files_does_not_become_a_root(tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").touch()
    location = resolve(str(tmp_path))
    for attempt in (lambda: open_log(location, create=True), lambda: root_at(location, create=True)):
        with pytest.raises(BadRequest, match=r"nor empty, found part-0.parquet: use an empty or new directory"):
            attempt()
    assert os.listdir(tmp_path) == ["part-0.parquet"]
