"""Root defaults with a server: described with sources and synonyms, altered, and used for new topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.log.state.configs import CONFIGS
from sparklog.log.topic.defaults import DefaultsLog
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.test_producing import connected
from tests.serve.wire import Wire

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND = 0, 1, 2
ROOT, BUILT_IN = 3, 5


def described(wire: Wire, kind: int, name: str, *keys: str) -> dict[str, Any]:
    resource = {"resourceType": kind, "resourceName": name, "configurationKeys": list(keys) or None}
    answer = wire.ask("DescribeConfigs", 1, {"resources": [resource], "includeSynonyms": True})
    assert answer["results"][0]["errorCode"] == Code.NONE
    return {row["name"]: row for row in answer["results"][0]["configs"]}


def altered(wire: Wire, name: str, *items: tuple[str, int, str | None], kind: int = BROKER, dry: bool = False) -> int:
    configs = [{"name": name, "configOperation": operation, "value": value} for name, operation, value in items]
    resources = [{"resourceType": kind, "resourceName": name, "configs": configs}]
    answer = wire.ask("IncrementalAlterConfigs", 0, {"resources": resources, "validateOnly": dry})
    return int(answer["responses"][0]["errorCode"])


def created(wire: Wire, name: str) -> int:
    topics = [{"name": name, "numPartitions": -1, "replicationFactor": -1}]
    return int(wire.ask("CreateTopics", 5, {"topics": topics})["topics"][0]["numPartitions"])


def asked(wire: Wire, name: str, allow: bool = True) -> int:
    topics = wire.ask("Metadata", 4, {"topics": [{"name": name}], "allowAutoTopicCreation": allow})["topics"]
    return int(topics[0]["errorCode"])


def test_defaults_are_read_once_for_all_topics_of_a_request(
    serve: Callable[..., Address], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, reads = sparklog.open(tmp_path, create=True), list[str]()
    for name in "abc":
        root.create_topic(name)
    look = DefaultsLog._has_first_entry

    def counted(self: DefaultsLog) -> bool:
        reads.append(self.id)
        return look(self)

    monkeypatch.setattr(DefaultsLog, "_has_first_entry", counted)
    with connected(serve(tmp_path)) as (wire,):
        resources = [{"resourceType": TOPIC, "resourceName": name, "configurationKeys": None} for name in "abc"]
        answer = wire.ask("DescribeConfigs", 1, {"resources": resources, "includeSynonyms": True})
        assert [len(row["configs"]) for row in answer["results"]] == [len(CONFIGS)] * 3
    assert reads == ["defaults"]


def test_configs_have_the_sources_and_synonyms_of_a_broker(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("t", configs={"segment.bytes": 1000})
    with connected(serve(tmp_path)) as (wire,):
        root.alter_defaults({"log.retention.hours": 72, "log.segment.bytes": 2000, "num.partitions": 4})
        rows = described(wire, TOPIC, "t", "retention.ms", "segment.bytes", "segment.ms")
        assert rows["retention.ms"]["value"] == "259200000"
        sources = {
            name: [(item["name"], item["value"], item["source"]) for item in row["synonyms"]]
            for name, row in rows.items()
        }
        assert sources == {
            "retention.ms": [("log.retention.hours", "72", ROOT), ("log.retention.hours", "168", BUILT_IN)],
            "segment.bytes": [
                ("segment.bytes", "1000", 1),
                ("log.segment.bytes", "2000", ROOT),
                ("log.segment.bytes", "1073741824", BUILT_IN),
            ],
            "segment.ms": [("log.roll.hours", "168", BUILT_IN)],
        }
        assert {name: row["configSource"] for name, row in rows.items()} == {
            "retention.ms": ROOT,
            "segment.bytes": 1,
            "segment.ms": BUILT_IN,
        }
        everyones = described(wire, BROKER, "")
        assert {name: row["value"] for name, row in everyones.items()} == root.defaults().configs
        one = described(wire, BROKER, "0", "num.partitions", "compression.type")
        assert {name: (row["value"], row["configSource"]) for name, row in one.items()} == {
            "num.partitions": ("4", ROOT),
            "compression.type": ("producer", BUILT_IN),
        }


def test_alter_configs_replaces_all_configs_that_were_set(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    topic = root.create_topic("t", configs={"segment.bytes": 1000, "retention.ms": 5})
    root.alter_defaults({"log.segment.bytes": 2000})
    with connected(serve(tmp_path, writable=True)) as (wire,):

        def replaced(kind: int, name: str, version: int = 0, dry: bool = False, **configs: str | None) -> int:
            items = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
            resource = {"resourceType": kind, "resourceName": name, "configs": items}
            answer = wire.ask("AlterConfigs", version, {"resources": [resource], "validateOnly": dry})
            return int(answer["responses"][0]["errorCode"])

        assert replaced(TOPIC, "t", dry=True, retention_ms="7") == Code.NONE
        assert replaced(TOPIC, "t", retention_ms="words") == Code.INVALID_CONFIG
        assert replaced(TOPIC, "t", retention_ms=None) == Code.INVALID_REQUEST
        assert replaced(TOPIC, "none", retention_ms="7") == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert topic.log.state().configs.explicit == {"segment.bytes": "1000", "retention.ms": "5"}
        for version in range(3):
            assert replaced(TOPIC, "t", version, retention_ms=str(version)) == Code.NONE
            assert topic.log.state().configs.explicit == {"retention.ms": str(version)}
        assert replaced(TOPIC, "t") == Code.NONE
        assert topic.log.state().configs.explicit == {}
        assert replaced(BROKER, "", num_partitions="3") == Code.NONE
        assert root.defaults().configs == {"num.partitions": "3"}
    with connected(serve(tmp_path)) as (wire,):
        assert replaced(TOPIC, "t") == Code.TOPIC_AUTHORIZATION_FAILED
        assert replaced(BROKER, "") == Code.CLUSTER_AUTHORIZATION_FAILED


def test_the_defaults_of_all_brokers_are_those_of_the_root(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    with connected(serve(tmp_path, writable=True)) as (wire,):
        assert created(wire, "before") == 1
        assert altered(wire, "", ("num.partitions", SET, "3"), dry=True) == Code.NONE
        assert root.defaults().number == -1
        assert altered(wire, "", ("num.partitions", SET, "3"), ("log.cleanup.policy", APPEND, "compact")) == Code.NONE
        assert root.defaults().configs == {"log.cleanup.policy": "delete,compact", "num.partitions": "3"}
        assert created(wire, "after") == 3
        assert altered(wire, "", ("num.partitions", DELETE, None)) == Code.NONE
        assert created(wire, "last") == 1
        assert altered(wire, "", ("num.partitions", SET, "0")) == Code.INVALID_CONFIG
        assert altered(wire, "", ("no.such", SET, "0")) == Code.INVALID_CONFIG
        assert altered(wire, "", ("num.partitions", APPEND, "0")) == Code.INVALID_CONFIG
        assert altered(wire, "", ("num.partitions", SET, None)) == Code.INVALID_REQUEST
        assert altered(wire, "", ("log.cleanup.policy", APPEND, None)) == Code.INVALID_REQUEST
        assert altered(wire, "", ("num.partitions", 4, "3")) == Code.INVALID_REQUEST
        assert altered(wire, "0", ("num.partitions", SET, "3")) == Code.INVALID_REQUEST
        assert altered(wire, "g", ("num.partitions", SET, "3"), kind=GROUP) == Code.INVALID_REQUEST


def test_a_read_only_server_rejects_defaults(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    with connected(serve(tmp_path)) as (wire,):
        assert altered(wire, "", ("num.partitions", SET, "3")) == Code.CLUSTER_AUTHORIZATION_FAILED
        root.alter_defaults({"auto.create.topics.enable": True})
        assert asked(wire, "t") == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert root.topics() == []


def test_requested_topics_are_created_if_the_root_default_allows_it(
    serve: Callable[..., Address], tmp_path: Path
) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    with connected(serve(tmp_path / "root", writable=True)) as (wire,):
        assert asked(wire, "t") == Code.UNKNOWN_TOPIC_OR_PARTITION
    root.alter_defaults({"auto.create.topics.enable": True, "num.partitions": 2})
    root.alter_defaults({"auto.create.topics.enable": False}, pattern="private.*")
    with connected(serve(tmp_path / "root", writable=True)) as (wire,):
        assert asked(wire, "t", allow=False) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert asked(wire, "private.t") == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert asked(wire, "t") == Code.NONE
    assert root.topics() == ["t"]
    assert len(root.topic("t").bounds()) == 2


def test_the_root_default_overrides_the_servers_auto_creation(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.alter_defaults({"auto.create.topics.enable": False})
    with connected(serve(tmp_path, writable=True, auto_create=True)) as (wire,):
        assert asked(wire, "t") == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_whose_name_differs_only_in_case_is_unknown(serve: Callable[..., Address], tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("orders")
    with connected(serve(tmp_path, writable=True, auto_create=True)) as (wire,):
        assert asked(wire, "Orders") == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert asked(wire, "visits") == Code.NONE
    assert root.topics() == ["orders", "visits"]


def test_create_topics_returns_the_specific_error(serve: Callable[..., Address], tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True)
    soon = [{"name": "file.delete.delay.ms", "value": "1000"}]
    topics = [{"name": "a", "numPartitions": 1 << 30}, {"name": "b", "numPartitions": 1, "configs": soon}]
    topics = [{"replicationFactor": 1, **topic} for topic in topics]
    with connected(serve(tmp_path, writable=True)) as (wire,):
        codes = [row["errorCode"] for row in wire.ask("CreateTopics", 5, {"topics": topics})["topics"]]
    assert codes == [Code.INVALID_PARTITIONS, Code.INVALID_CONFIG]
