"""Requests of admin clients: the responses equal those of a Kafka 4.1.0 broker, recorded for the same topics.

The broker had topics `t` and `u` with two partitions each, and one record of an idempotent producer in `t`. Values that
differ by design or between runs are ignored: texts, ids, times, addresses and epochs.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.serve.apis.table import APIS
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from sparklog.serve.users import hashed, read_users
from tests.serve.wire import Wire, batch_of

ANSWERS = [json.loads(line) for line in (Path(__file__).parent / "broker_answers.jsonl").read_text().splitlines()]
"""Name, version, request and response."""
NOT_COMPARED = {
    "throttleTimeMs",
    "errorMessage",
    "leaderEpoch",
    "topicAuthorizedOperations",
    "clusterAuthorizedOperations",
    "host",
    "port",
    "clusterId",
    "highWatermark",
    "logEndOffset",
    "lastFetchTimestamp",
    "lastCaughtUpTimestamp",
    "lastTimestamp",
    "producerId",
    "listeners",
}


def compared(value: Any) -> Any:
    """Return the comparable part of a response: whether topic ids exist, and lists without their order."""
    if isinstance(value, dict):
        fields = {name: item for name, item in value.items() if name not in NOT_COMPARED}
        return {name: item.strip("A") != "" if name == "topicId" else compared(item) for name, item in fields.items()}
    if isinstance(value, list):
        return sorted(map(compared, value), key=json.dumps)
    return value


@pytest.fixture
def root(tmp_path: Path) -> Any:
    root = sparklog.open(tmp_path / "root", create=True)
    for name in "tu":
        root.create_topic(name, partitions=2)
    return root


def test_responses_match_those_of_a_broker(root: Any, serve: Callable[..., Address]) -> None:
    wire = Wire(serve(root.location, writable=True))
    assert wire.produce("t", {0: batch_of([b"x"], producer=(7, 0, 0))})[0]["errorCode"] == 0
    for name, version, fields, answer in ANSWERS:
        assert compared(wire.ask(name, version, fields)) == answer, (name, version, fields)
    wire.close()


def test_describe_producers_returns_the_last_sequence(root: Any, serve: Callable[..., Address]) -> None:
    wire = Wire(serve(root.location, writable=True))
    for producer in ((2**40 + 1, 0, 0), (2**40 + 1, 3, 0), (2**40 + 2, 0, 5)):
        assert wire.produce("t", {1: batch_of([b"x", b"y"], producer=producer)})[0]["errorCode"] == 0
    partitions = wire.ask("DescribeProducers", 0, {"topics": [{"name": "t", "partitionIndexes": [0, 1]}]})["topics"][0]
    rows = [
        (row["producerId"], row["producerEpoch"], row["lastSequence"], row["currentTxnStartOffset"])
        for partition in partitions["partitions"]
        for row in partition["activeProducers"]
    ]
    assert sorted(rows) == [(2**40 + 1, 3, 1, -1), (2**40 + 2, 0, 6, -1)]
    wire.close()


def test_unsupported_changes_are_rejected_per_item(root: Any, serve: Callable[..., Address]) -> None:
    wire = Wire(serve(root.location, writable=True))
    entity = [{"entityType": "user", "entityName": "anna"}]
    quotas = {"entries": [{"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1.5}]}]}
    entries = wire.ask("AlterClientQuotas", 1, quotas)["entries"]
    assert [(entry["entity"], entry["errorCode"]) for entry in entries] == [(entity, Code.UNSUPPORTED_VERSION)]
    users = {"deletions": [{"name": "anna"}, {"name": "carl"}], "upsertions": [{"name": "anna"}]}
    results = wire.ask("AlterUserScramCredentials", 0, users)["results"]
    unsupported = Code.UNSUPPORTED_VERSION
    assert [(row["user"], row["errorCode"]) for row in results] == [("anna", unsupported), ("carl", unsupported)]
    states = wire.ask("DescribeTransactions", 0, {"transactionalIds": ["a", "b", "a"]})["transactionStates"]
    unknown = Code.TRANSACTIONAL_ID_NOT_FOUND
    assert [(row["transactionalId"], row["errorCode"]) for row in states] == [("a", unknown), ("b", unknown)]
    wire.close()


def test_all_topics_are_described_in_pages(root: Any, serve: Callable[..., Address]) -> None:
    root.create_topic("empty", partitions=3)
    wire = Wire(serve(root.location))
    for limit in (1, 2, 3, 5, 100):
        found, cursor = list[tuple[str, int]](), None
        while True:
            asked: dict[str, Any] = {"topics": [], "responsePartitionLimit": limit, "cursor": cursor}
            answer = wire.ask("DescribeTopicPartitions", 0, asked)
            page = [(topic["name"], row["partitionIndex"]) for topic in answer["topics"] for row in topic["partitions"]]
            assert len(page) <= limit
            found, cursor = found + page, answer["nextCursor"]
            if cursor is None:
                break
        assert found == [("empty", 0), ("empty", 1), ("empty", 2), ("t", 0), ("t", 1), ("u", 0), ("u", 1)]
    wire.close()


def test_a_user_sees_only_permitted_topics(root: Any, tmp_path: Path, serve: Callable[..., Address]) -> None:
    (tmp_path / "users").write_text(f"anna {hashed('pencil', random.Random(1))} read:t group:shop")
    wire = Wire(serve(root.location, writable=True, users=read_users(str(tmp_path / "users"))))
    wire.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
    assert wire.ask("SaslAuthenticate", 1, {"authBytes": b"\0anna\0pencil"})["errorCode"] == 0
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    topics = wire.ask("DescribeTopicPartitions", 0, {"topics": []})["topics"]
    assert [topic["name"] for topic in topics] == ["t"]
    names = [{"name": name} for name in ("none", "t", "u")]
    topics = wire.ask("DescribeTopicPartitions", 0, {"topics": names})["topics"]
    assert [(topic["name"], topic["errorCode"]) for topic in topics] == [("none", denied), ("t", 0), ("u", denied)]
    resources = [(2, "t"), (2, "u"), (16, "metrics"), (32, "shop"), (32, "audit")]
    asked_configs = [
        {"resourceType": kind, "resourceName": name, "configurationKeys": None} for kind, name in resources
    ]
    rows = wire.ask("DescribeConfigs", 4, {"resources": asked_configs})["results"]
    codes = [row["errorCode"] for row in rows]
    assert codes == [0, denied, 0, 0, Code.GROUP_AUTHORIZATION_FAILED]
    listed = wire.ask("ListConfigResources", 1, {"resourceTypes": [2]})["configResources"]
    assert [row["resourceName"] for row in listed] == ["t"]
    named = [{"name": name, "partitionIndexes": [0]} for name in ("t", "u", "none")]
    topics = wire.ask("DescribeProducers", 0, {"topics": named})["topics"]
    assert [topic["partitions"][0]["errorCode"] for topic in topics] == [0, denied, denied]
    elected = [{"topic": name, "partitions": [0]} for name in ("t", "u", "none")]
    rows = wire.ask("ElectLeaders", 2, {"topicPartitions": elected})["replicaElectionResults"]
    codes = [row["partitionResult"][0]["errorCode"] for row in rows]
    assert codes == [Code.ELECTION_NOT_NEEDED, denied, denied]
    moved = [{"name": name, "partitions": [{"partitionIndex": 0, "replicas": [1]}]} for name in ("t", "u", "none")]
    rows = wire.ask("AlterPartitionReassignments", 1, {"topics": moved})["responses"]
    assert [row["partitions"][0]["errorCode"] for row in rows] == [0, denied, denied]
    replaced: list[dict[str, Any]] = [{"resourceType": 2, "resourceName": name, "configs": []} for name in ("t", "u")]
    replaced.append({"resourceType": 4, "resourceName": "", "configs": []})
    rows = wire.ask("AlterConfigs", 2, {"resources": replaced})["responses"]
    assert [row["errorCode"] for row in rows] == [denied, denied, Code.CLUSTER_AUTHORIZATION_FAILED]
    wire.close()


def test_requests_of_other_clients_are_supported(
    tmp_path: Path, serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients in Go and JavaScript, and librdkafka: the first request of each API and version that they sent."""
    monkeypatch.setattr("sparklog.serve.group_members.FIRST_DELAY", 0)
    sparklog.open(tmp_path, create=True)
    address = serve(tmp_path, writable=True, auto_create=True)
    rows = [json.loads(line) for line in (Path(__file__).parent / "recorded_requests.jsonl").read_text().splitlines()]
    for client, requests in groupby(rows, itemgetter(0)):
        wire = Wire(address)
        for _, text in requests:
            frame = bytes.fromhex(text)
            key, version = struct.unpack_from(">hh", frame)
            # An unsupported version of ApiVersions gets a response of version 0.
            version = version if version <= APIS[key].max_version else 0
            wire.socket.sendall(struct.pack(">i", len(frame)) + frame)
            assert wire.receive(APIS[key].name, version) is not None, (client, APIS[key].name, version)
        wire.close()


@pytest.mark.parametrize("writable", [True, False])
def test_the_configs_of_a_server_include_its_options(root: Any, serve: Callable[..., Address], writable: bool) -> None:
    address = serve(root.location, writable=writable)
    wire = Wire(address)

    def described(name: str) -> dict[str, Any]:
        asked = {"resourceType": 4, "resourceName": name, "configurationKeys": None}
        rows = wire.ask("DescribeConfigs", 4, {"resources": [asked]})["results"][0]["configs"]
        return {row["name"]: (row["value"], row["configSource"]) for row in rows if row["readOnly"]}

    assert described("1") == {
        "advertised.listeners": (f"PLAINTEXT://{address}", 4),
        "delete.topic.enable": (str(writable).lower(), 4),
        "log.dirs": (str(root.location), 4),
        "node.id": ("1", 4),
    }
    assert described("") == {}
    wire.close()


def test_replicas_stay_in_the_only_log_directory(root: Any, serve: Callable[..., Address]) -> None:
    wire = Wire(serve(root.location))
    rows = [{"name": "t", "partitions": [0, 7]}, {"name": "none", "partitions": [0]}]
    dirs = [{"path": path, "topics": rows} for path in (str(root.location), "/other")]
    results = wire.ask("AlterReplicaLogDirs", 2, {"dirs": dirs})["results"]
    codes = [[row["errorCode"] for row in topic["partitions"]] for topic in results]
    unknown, other = Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LOG_DIR_NOT_FOUND
    assert codes == [[Code.NONE, unknown], [unknown], [other, other], [other]]
    wire.close()


def test_throttles_of_reassignments_can_be_deleted_but_not_set(root: Any, serve: Callable[..., Address]) -> None:
    wire = Wire(serve(root.location, writable=True))

    def altered(kind: int, name: str, config: str, operation: int) -> int:
        items = [{"name": config, "configOperation": operation, "value": None if operation else "1:1"}]
        resource = {"resourceType": kind, "resourceName": name, "configs": items}
        (row,) = wire.ask("IncrementalAlterConfigs", 1, {"resources": [resource]})["responses"]
        return int(row["errorCode"])

    delete, invalid = 1, (Code.INVALID_REQUEST, Code.INVALID_CONFIG)
    assert altered(4, "1", "leader.replication.throttled.rate", delete) == Code.NONE
    assert altered(4, "1", "leader.replication.throttled.rate", 0) in invalid
    assert altered(2, "t", "leader.replication.throttled.replicas", delete) == Code.NONE
    wire.close()
