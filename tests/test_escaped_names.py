"""Test topics whose names begin with one `_`, like sparklog's own directories.

Every operation supports these topics.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.log.journal.names import check_topic_name, folder_topic, key_topic, topic_folder
from sparklog.opening import TOPIC, resolve
from sparklog.serve.codes import Code
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import serving
from tests.serve.wire import Wire, batch_of
from tests.support.command_line import invoke

NAMES = ["_groups", "_root", "_schemas", "_"]
"""Two of these names are names of sparklog's own directories."""


@pytest.mark.parametrize(
    ("topic", "folder"),
    [
        ("_schemas", "%5Fschemas"),
        ("_groups", "%5Fgroups"),
        ("_", "%5F"),
        ("_5F", "%5F5F"),
        ("__consumer_offsets", "__consumer_offsets"),
        ("a_b", "a_b"),
        ("._x", "._x"),
    ],
)
def test_topic_names_and_directory_names_are_one_to_one(topic: str, folder: str) -> None:
    assert topic_folder(check_topic_name(topic)) == folder
    assert topic_folder(folder) == folder
    assert folder_topic(folder) == key_topic(f"{folder}/_log/x") == topic


@pytest.mark.parametrize("folder", ["_groups", "_x", "%5F_x", "%5f", "%5Fa%", "%5Fa b", "%", "", "a/b", "_root.json"])
def test_other_directories_are_not_topics(folder: str) -> None:
    assert folder_topic(folder) is None
    assert key_topic(f"{folder.partition('/')[0]}") is None, "a file at the top is of no topic"


def rows(root: Any, topic: str) -> list[bytes]:
    return root.topic(topic).scan().to_table()["value"].to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def root(tmp_path: Path) -> Any:
    root = sparklog.open(tmp_path / "root", create=True)
    for name in [*NAMES, "plain"]:
        topic = root.create_topic(name, configs={"inline.records.bytes": 0} if name == "_root" else {})
        for number in range(3):
            topic.append({"key": ["k"], "value": [f"{name} {number}"]})
    group = sparklog.Groups(root).group("g")
    transaction = sparklog.transactional(root, "t").begin()
    transaction.append("_schemas", {"value": ["in a transaction"]})
    transaction.append("plain", {"value": ["in a transaction"]})
    transaction.commit()
    membership = group.join("me")
    membership.commit({"_schemas": {0: 2}})
    membership.leave()
    return root


def expected(name: str) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(3)] + [b"in a transaction"] * (name == "_schemas")


def check(root: Any, names: list[str] = NAMES) -> None:
    assert set(names) <= set(root.topics())
    assert {name: rows(root, name) for name in names} == {name: expected(name) for name in names}
    report = sparklog.verify(root.location)
    assert report.sound, report
    assert not report.foreign


def test_new_process_finds_escaped_topics(root: Any) -> None:
    assert root.topics() == sorted([*NAMES, "plain"])
    folders = {path.name for path in Path(root.location).iterdir() if path.is_dir()}
    assert {topic_folder(name) for name in NAMES} | {"_groups", "_transactions"} <= folders
    check(sparklog.open(root.location))
    for path in ("_schemas", "%5Fschemas"):
        location = resolve(f"{root.location}/{path}")
        assert (location.kind, location.topic) == (TOPIC, "_schemas")


def test_older_releases_reject_transactional_ids_of_escaped_topics(root: Any) -> None:
    transaction = sparklog.transactional(root, "other").begin()
    transaction.append("plain", {"value": ["a"]})
    transaction.commit()
    features = {id_: root.engine.decisions.log(id_).refresh().write_features for id_ in ("t", "other")}
    assert features == {"t": ("escapedTopics",), "other": ()}


def test_maintenance_of_escaped_topics(root: Any) -> None:
    assert {report.topic for report in sparklog.compact(root, roll=True)} >= set(NAMES)
    check(sparklog.open(root.location))
    assert {report.topic for report in sparklog.retain(root)} >= set(NAMES)
    check(sparklog.open(root.location))
    root.delete_topic("_groups")
    assert "_groups" not in sparklog.open(root.location).topics()
    assert sparklog.Groups(root).group("g").committed()
    check(sparklog.open(root.location), [name for name in NAMES if name != "_groups"])


def test_escaped_topics_are_backed_up_restored_cloned_and_repartitioned(root: Any, tmp_path: Path) -> None:
    sparklog.backup(root, tmp_path / "backup")
    assert sparklog.open(tmp_path / "backup").topics() == root.topics()
    sparklog.restore(tmp_path / "backup", tmp_path / "restored", rename={"plain": "_plain"})
    restored = sparklog.open(tmp_path / "restored")
    check(restored)
    assert "_plain" in restored.topics()
    root.topic("_schemas").append({"value": ["later"]})
    sparklog.backup(root, tmp_path / "backup")
    sparklog.restore(tmp_path / "backup", tmp_path / "one", topics=["_root"])
    check(sparklog.open(tmp_path / "one"), ["_root"])
    sparklog.clone(root, "_root", "_cloned")
    sparklog.clone(root, "_cloned", "twice")
    root.delete_topic("_root")
    sparklog.retain(root)
    for name in ("_cloned", "twice"):
        assert rows(sparklog.open(root.location), name) == expected("_root")
    sparklog.backup(root, tmp_path / "backup")
    sparklog.repartition(root, "_groups", "_wide", partitions=3)
    assert rows(root, "_wide") == expected("_groups")
    assert sparklog.verify(root.location).sound


def test_escaped_topics_are_exported_and_imported(root: Any, tmp_path: Path) -> None:
    sparklog.export_kafka(root, ["_schemas", "_groups"], tmp_path / "kafka")
    assert (tmp_path / "kafka" / "_schemas-0").is_dir()
    imported = sparklog.open(tmp_path / "imported", create=True)
    sparklog.import_kafka(imported, tmp_path / "kafka")
    check(imported, ["_schemas", "_groups"])


def test_escaped_topics_are_verified_and_repaired(root: Any) -> None:
    sparklog.compact(root, roll=True)
    folder = Path(root.location) / "%5Fschemas"
    index = next(folder.rglob("*.index"), None) or next(folder.rglob("*.timeindex"))
    index.write_bytes(b"damaged")
    report = sparklog.verify(root.location, topics=["_schemas"])
    assert [finding.file for finding in report.findings] == [str(index.relative_to(root.location))]
    assert sparklog.repair(root.location, execute=True).sound
    check(sparklog.open(root.location))


def test_command_line_accepts_escaped_topics(root: Any) -> None:
    def run(*arguments: str) -> str:
        result = invoke(arguments)
        assert result.exit_code == 0, result.output
        return result.output

    run("topics", "create", "_connect-offsets", "--root", root.location)
    assert "_connect-offsets" in run("topics", "list", "--root", root.location).split()
    assert json.loads(run("topics", "describe", "_schemas", "--root", root.location, "--json"))
    assert "_schemas 1" in run("consume", "_schemas", "--root", root.location, "--from-beginning")


def test_kafka_clients_create_write_and_list_escaped_topics(root: Any) -> None:
    names = ["_confluent-metrics", "_transactions", "_x"]
    with serving(root.location, ServeOptions(Address("127.0.0.1", 0), writable=True)) as address:
        wire = Wire(address)
        wanted = [{"name": name, "numPartitions": 1, "replicationFactor": 1} for name in names]
        created = wire.ask("CreateTopics", 2, {"topics": wanted})
        assert [row["errorCode"] for row in created["topics"]] == [Code.NONE] * 3
        assert wire.produce("_transactions", {0: batch_of([b"a"])})[0]["errorCode"] == Code.NONE
        listed = wire.ask("Metadata", 5, {"topics": None})["topics"]
        assert {row["name"] for row in listed} == {*names, *NAMES, "plain"}
        wire.close()
    assert rows(sparklog.open(root.location), "_transactions") == [b"a"]
    assert sparklog.verify(root.location).sound


def test_consumer_subscribes_to_escaped_topics_by_pattern(root: Any) -> None:
    with sparklog.consumer(root, pattern="_(groups|schemas)", group="p", auto_offset_reset="earliest") as consumer:
        seen: list[bytes] = []
        while len(seen) < 7:
            seen += [value for batch in consumer.poll(1000) for value in batch.column("value").to_pylist()]
    assert sorted(seen) == sorted(expected("_groups") + expected("_schemas"))
