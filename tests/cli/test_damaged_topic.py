"""Commands for all topics continue if a topic cannot be read. They report the topic on stderr and exit with code 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog as package
from sparklog.groups.lag import Groups
from sparklog.log.topic.engine import RootEngine
from tests.cli.conftest import REPOSITORY, Sparklog

KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"
COMMIT = "b/_log/00000000000000000001.json"


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.fixture
def damaged(root: Path, sparklog: Sparklog) -> Path:
    for name in "abc":
        sparklog("topics", "create", name)
        package.open(root).topic(name).append(pa.table({"value": [b"v"] * 3}))
    Groups(root).group("g").join("i", session_timeout_ms=1).commit({name: {0: 1} for name in "abc"})
    flip(root / COMMIT, 200)
    return root


def test_other_topics_are_shown(damaged: Path, sparklog: Sparklog) -> None:
    commands = (("topics", "list"), ("topics", "describe"), ("offsets",), ("log-dirs",), ("configs", "describe"))
    for command in commands:
        said = sparklog(*command, code=1)
        assert (said.err.count("\n"), COMMIT in said.err) == (1, True), command
        assert all(any(word in line for line in said.lines) for word in ("a", "c")), command
    listed = sparklog("topics", "list", "--json", code=1)
    assert json.loads(listed.out) == ["a", "c"]
    assert [row["topic"] for row in json.loads(sparklog("topics", "describe", "--json", code=1).out)] == ["a", "c"]
    assert sparklog("offsets", code=1).lines == ["a:0:3", "c:0:3"]
    assert sparklog("offsets", "a", "c").lines == ["a:0:3", "c:0:3"]
    assert sparklog("offsets", "a", "b", code=1).out == ""


def test_a_concurrently_deleted_topic_is_skipped(
    root: Path, sparklog: Sparklog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        sparklog("topics", "create", name)
    listed = RootEngine.topics

    def deleted_at_once(self: RootEngine, *given: Any, **wanted: Any) -> list[str]:
        names = listed(self, *given, **wanted)
        if "b" in names:
            package.open(root).delete_topic("b")
        return names

    monkeypatch.setattr(RootEngine, "topics", deleted_at_once)
    for command in (("topics", "describe"), ("offsets",), ("configs", "describe")):
        said = sparklog(*command)
        assert (said.err, any("c" in line for line in said.lines)) == ("", True), command
        sparklog("topics", "create", "b")
    folders = RootEngine.all_topics

    def deleted_after(self: RootEngine) -> list[str]:
        names = list(folders(self))
        monkeypatch.setattr(RootEngine, "all_topics", folders)
        package.open(root).delete_topic("b")
        return names

    monkeypatch.setattr(RootEngine, "topics", listed)
    monkeypatch.setattr(RootEngine, "all_topics", deleted_after)
    assert set(package.datasets(root)) == {"a", "c"}
    assert RootEngine.all_topics is folders
    sparklog("topics", "describe", "b", code=1)


def test_groups_and_transactions_are_shown_without_the_damaged_topic(damaged: Path, sparklog: Sparklog) -> None:
    with package.transactional(damaged, "job").begin() as transaction:
        transaction.append("c", pa.table({"value": [b"v"]}))
    said = sparklog("groups", "describe", "g", "--json", code=1)
    assert [(row["topic"], row["lag"]) for row in json.loads(said.out)] == [("a", 2), ("c", 3)]
    assert said.err.count(COMMIT) == 1
    said = sparklog("transactions", "list", "--json", code=1)
    assert [row["id"] for row in json.loads(said.out)] == ["job"]
    assert COMMIT in said.err


@pytest.mark.usefixtures("records_in_files")
def test_lag_of_unreadable_records_has_no_seconds(damaged: Path, sparklog: Sparklog) -> None:
    for name in "ac":
        (file,) = (damaged / name / "append").iterdir()
        flip(file, 70)
    said = sparklog("groups", "describe", "g", "--json", code=1)
    assert [(row["topic"], row["lag"], row["seconds"]) for row in json.loads(said.out)] == [
        ("a", 2, None),
        ("c", 2, None),
    ]
    assert len(said.err.splitlines()) == 3


def test_a_readable_topic_is_not_used_as_the_only_topic(root: Path, sparklog: Sparklog) -> None:
    for name in "ab":
        sparklog("topics", "create", name)
    package.open(root).topic("b").append(pa.table({"value": [b"v"]}))
    flip(root / COMMIT, 200)
    assert COMMIT in sparklog("consume", code=1).err


def test_operating_system_errors_are_one_line(tmp_path: Path, sparklog: Sparklog) -> None:
    segment = tmp_path / "kafka" / "txn-b-0" / "00000000000000000032.log"
    shutil.copytree(KAFKA, tmp_path / "kafka")
    segment.unlink()
    segment.mkdir()
    for command in (("topics", "describe"), ("offsets",), ("log-dirs",), ("consume", "txn-b"), ("metrics",)):
        said = sparklog(*command, "--root", tmp_path / "kafka", code=1)
        assert said.err == "sparklog: Is a directory [SPARKLOG_UNAVAILABLE]\n", command


def test_other_directories_in_a_root_are_ignored(damaged: Path, sparklog: Sparklog) -> None:
    path = damaged / "_groups"
    assert sparklog("topics", "list", "--root", path, code=1).out == ""
    assert sparklog("topics", "create", "t", "--root", path, code=1).out == ""


def test_other_roots_cannot_be_created_inside_a_root(root: Path, sparklog: Sparklog) -> None:
    sparklog("topics", "create", "t")
    for command in (("backup",), ("restore", root)):
        said = sparklog(*command, "--to", root / "t" / "inside", code=1)
        assert said.err.startswith(f"sparklog: The path {root}/t/inside is inside the root {root}")
        assert not (root / "t" / "inside").exists()


@pytest.mark.parametrize("partitions", ["4-2", "0-99999999999", "-1", "x"])
def test_directories_with_invalid_partition_names_are_ignored(
    root: Path, sparklog: Sparklog, tmp_path: Path, partitions: str
) -> None:
    sparklog("topics", "create", "t")
    said = sparklog("export", "t", "--to", tmp_path / "out", "--partitions", partitions, code=2)
    assert said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_damaged_groups_and_ids_do_not_hide_others(damaged: Path, sparklog: Sparklog) -> None:
    for name in ("bad", "good"):
        Groups(damaged).group(name).alter({"a": {0: 1}})
        with package.transactional(damaged, name).begin() as transaction:
            transaction.append("a", pa.table({"value": [b"v"]}))
    group, decisions = (f"{folder}/bad/_log/00000000000000000000.json" for folder in ("_groups", "_transactions"))
    flip(damaged / group, 200)
    flip(damaged / decisions, 200)
    for command in (("groups", "list"), ("groups", "list", "--state"), ("groups", "describe", "--all-groups")):
        said = sparklog(*command, code=1)
        assert (group in said.err, "bad" in said.out, "good" in said.out) == (True, False, True), command
    assert json.loads(sparklog("groups", "list", "--json", code=1).out) == ["g", "good"]
    assert [row["group"] for row in json.loads(sparklog("groups", "describe", "good", "--json").out)] == ["good"]
    assert sparklog("groups", "describe", "good", "bad", code=1).out == ""
    said = sparklog("transactions", "list", "--json", code=1)
    assert [row["id"] for row in json.loads(said.out)] == ["good"]
    assert decisions in said.err
    assert decisions in sparklog("transactions", "list", "--open", code=1).err
    said = sparklog("transactions", "describe", "good", code=1)
    assert (said.lines[0].startswith("TransactionalId: good"), group in said.err, COMMIT in said.err) == (True,) * 3
