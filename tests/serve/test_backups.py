"""A backup repository that is served, and read like a root: its latest backup, read-only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from sparklog.errors import BadRequest, NotFound
from sparklog.log.topic.backup_manifest import BackupStore
from sparklog.log.topic.root import open_root
from sparklog.opening import ROOT, TOPIC, resolve
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from sparklog.serve.server import open_served
from tests.serve.clients import read_with_kafka_python
from tests.serve.wire import Wire

GROUP = "shop"


def backed_up(path: Path) -> Path:
    """Create two backups of a root. Return the path of the repository: in the latest backup, `t` has 6 records and one
    undecided record.
    """
    root = sparklog.open(path / "log", create=True)
    topic, group = root.create_topic("t", partitions=2), sparklog.Groups(root).group(GROUP)
    producer = sparklog.transactional(root, "id")
    for number in range(3):
        with producer.begin() as transaction:
            transaction.append("t", {"value": [f"{number}", f"{number}'"], "partition": [0, 1]})
        group.alter({"t": {0: number + 1}})
        if number == 2:
            later = producer.begin()
            later.append("t", {"value": ["later"], "partition": [0]})
            later.prepare()
        if number:
            sparklog.backup(root, path / "backup", keep=1)
    later.commit()
    topic.append({"value": ["late"], "partition": [0]})
    group.alter({"t": {0: 4}})
    root.create_topic("later")
    return path / "backup"


def test_the_latest_backup_is_served(serve: Callable[..., Address], tmp_path: Path) -> None:
    repository = backed_up(tmp_path)
    # Objects of a backup in progress, or of a backup that died, do not belong to any backup.
    shutil.copytree(tmp_path / "log/t", repository / "t", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "log/_groups", repository / "_groups", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "log/later", repository / "later")
    address = serve(repository)
    records = read_with_kafka_python(address, "t", 0, "read_committed")
    assert [record.value for record in records] == [b"0", b"1", b"2"]
    wire = Wire(address)
    assert [topic["name"] for topic in wire.ask("Metadata", 9, {"topics": None})["topics"]] == ["t"]
    asked = {"groupId": GROUP, "topics": [{"name": "t", "partitionIndexes": [0, 1]}]}
    rows = wire.ask("OffsetFetch", 7, asked)["topics"][0]["partitions"]
    assert [row["committedOffset"] for row in rows] == [3, -1]
    assert [row["groupId"] for row in wire.ask("ListGroups", 4, {})["groups"]] == [GROUP]
    assert wire.ask("DescribeGroups", 5, {"groups": [GROUP]})["groups"][0]["groupState"] == "Empty"
    commit = {"groupId": GROUP, "generationIdOrMemberEpoch": -1, "memberId": ""}
    commit["topics"] = [{"name": "t", "partitions": [{"partitionIndex": 0, "committedOffset": 1}]}]
    refused = Code.GROUP_AUTHORIZATION_FAILED
    assert wire.ask("OffsetCommit", 8, commit)["topics"][0]["partitions"][0]["errorCode"] == refused
    assert wire.ask("JoinGroup", 5, {"groupId": GROUP, "sessionTimeoutMs": 9_000})["errorCode"] == refused
    assert wire.ask("DeleteGroups", 1, {"groupsNames": [GROUP]})["results"][0]["errorCode"] == refused
    assert wire.ask("CreateTopics", 4, {"topics": [{"name": "x"}]})["topics"][0]["errorCode"] != Code.NONE
    wire.close()


def test_an_older_backup_is_served(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    topic = root.create_topic("t")
    for topics in (None, ["t"]):
        topic.append({"value": ["x"]})
        sparklog.backup(root, tmp_path / "backup", topics=topics)
    repository = resolve(str(tmp_path / "backup"))
    assert open_served(repository, backup=2).poll(["t"])["t"].ends[0].log_end == 2
    assert open_served(repository).poll(["t"])["t"].ends[0].log_end == 1, "the second is not of all topics"
    with pytest.raises(NotFound, match="backup 3 does not exist"):
        open_served(repository, backup=3)
    with pytest.raises(NotFound, match="backup 1 does not exist"):
        open_served(resolve(str(tmp_path / "log")), backup=1)


def test_a_clone_finds_records_in_later_commits_of_its_source(tmp_path: Path) -> None:
    """A cut may have read a topic before the commit in which a clone, read later, has its records."""
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t")
    topic.append({"value": ["x"]})
    sparklog.backup(tmp_path / "log", tmp_path / "backup")
    topic.append({"value": ["y"]})
    key = f"t/_log/{topic.log.state().version:020d}.json"
    data = (tmp_path / "log" / key).read_bytes()
    (tmp_path / "backup" / key).write_bytes(data)
    store = open_root(tmp_path / "backup").store
    assert isinstance(store, BackupStore)
    assert store.get(key, 10, 20) == data[10:30]
    assert store.stat(key) is None
    with pytest.raises(NotFound):
        store.get(key)


def test_a_backup_is_served_read_only(serve: Callable[..., Address], tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="omit --writable"):
        serve(backed_up(tmp_path), writable=True)


def test_a_backup_is_readable_as_a_root(tmp_path: Path) -> None:
    repository = backed_up(tmp_path)
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    assert resolve(str(repository)).kind == ROOT
    assert resolve(str(repository / "t")).kind == TOPIC
    root = open_root(repository)
    assert root.topics() == ["t"]
    topic = root.topic("t")
    assert sorted(topic.scan().to_table()["value"].to_pylist()) == [b"0", b"0'", b"1", b"1'", b"2", b"2'"]
    assert topic.scan(isolation_level="read_uncommitted").to_table().num_rows == 7
    assert sparklog.open_view(repository / "t").topic("t").scan().to_table().num_rows == 6
    assert {key: item.offset for key, item in sparklog.Groups(root).group(GROUP).committed().items()} == {("t", 0): 3}
    for write in (
        lambda: topic.append({"value": ["x"]}),
        lambda: root.create_topic("x"),
        lambda: sparklog.Groups(root).group(GROUP).alter({"t": {0: 0}}),
        lambda: sparklog.backup(root, tmp_path / "other"),
        lambda: root.store.delete("t/_log/00000000000000000001.json"),
    ):
        with pytest.raises(BadRequest, match="backup repository"):
            write()
    with pytest.raises(BadRequest, match="restore them to another directory"):
        sparklog.open(repository, create=True)
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before
