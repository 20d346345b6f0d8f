"""Requests of clients that a broker accepts although a part of them is wrong or has no meaning."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.limits import GROUP_SESSION_TIMEOUTS_MS
from sparklog.serve.apis.table import APIS
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.wire import Wire
from tests.support.odd_batches import odd_batch, record

NOW, DAY_MS = int(time.time() * 1000), 86_400_000


def test_bytes_after_the_end_of_a_request_are_ignored(serve: Callable[..., Address], tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    wire = Wire(serve(tmp_path))
    # librdkafka 2.2 to 2.16: four bytes for the length of the topic array, of which null (varint 0) uses one.
    all_topics = b"\0" + b"\0\0\0" + b"\0" + b"\0\0\0"
    wire.send_raw("Metadata", 9, all_topics)
    assert [topic["name"] for topic in wire.receive("Metadata", 9)["topics"]] == ["t"]
    for name, version in (("ApiVersions", 0), ("ListGroups", 0)):
        wire.send_raw(name, version, b"abc")
        assert wire.receive(name, version)["errorCode"] == Code.NONE
    wire.close()


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [
        (-1, -1, Code.NONE),  # kafka-go's Client.Fetch
        (0, -1, Code.NONE),
        (0, 0, Code.NONE),
        (7, -1, Code.NONE),
        (7, 0, Code.NONE),
        (0, 1, Code.FETCH_SESSION_ID_NOT_FOUND),
        (7, 3, Code.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_a_fetch_depends_only_on_its_session_epoch(
    serve: Callable[..., Address], tmp_path: Path, session_id: int, epoch: int, code: Code
) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t").append({"value": ["a"]})
    rows = [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}]
    fields: dict[str, Any] = {"maxWaitMs": 0, "maxBytes": 1 << 20, "topics": [{"topic": "t", "partitions": rows}]}
    wire = Wire(serve(tmp_path))
    answer = wire.ask("Fetch", 11, fields | {"sessionId": session_id, "sessionEpoch": epoch})
    wire.close()
    assert answer["errorCode"] == code
    assert [topic["topic"] for topic in answer["responses"]] == (["t"] if code == Code.NONE else [])


@pytest.fixture
def wire(serve: Callable[..., Address], tmp_path: Path) -> Wire:
    sparklog.open(tmp_path, create=True)
    return Wire(serve(tmp_path, writable=True, session_timeouts_ms=GROUP_SESSION_TIMEOUTS_MS))


def topic_row(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": [], **fields}


def created(wire: Wire, *rows: dict[str, Any], version: int = 6, **fields: Any) -> list[dict[str, Any]]:
    asked = {"topics": list(rows), "timeoutMs": 1000, **fields}
    return wire.ask("CreateTopics", version, asked)["topics"]  # type: ignore[no-any-return]


def assigned(*nodes: list[int], first: int = 0) -> dict[str, Any]:
    rows = [{"partitionIndex": number, "brokerIds": ids} for number, ids in enumerate(nodes, first)]
    return {"assignments": rows, "numPartitions": -1, "replicationFactor": -1}


def test_topics_are_validated_like_on_a_broker(wire: Wire) -> None:
    assert [row["errorCode"] for row in created(wire, topic_row("a_b.c"))] == [Code.NONE]
    cases: list[tuple[str, dict[str, Any], Code]] = [
        ("a.b_c", {}, Code.INVALID_TOPIC),
        ("a_b.c", {}, Code.TOPIC_ALREADY_EXISTS),
        ("a_b_d", {}, Code.NONE),
        ("nulls", {"configs": [{"name": "retention.ms", "value": None}]}, Code.INVALID_CONFIG),
        ("replicas-3", {"replicationFactor": 3}, Code.INVALID_REPLICATION_FACTOR),
        ("replicas-0", {"replicationFactor": 0}, Code.INVALID_REPLICATION_FACTOR),
        ("replicas-default", {"replicationFactor": -1}, Code.NONE),
        ("partitions-0", {"numPartitions": 0}, Code.INVALID_PARTITIONS),
        ("assigned", assigned([1], [1]), Code.NONE),
        ("assigned-and-counted", {**assigned([1]), "numPartitions": 1}, Code.INVALID_REQUEST),
        ("assigned-and-replicated", {**assigned([1]), "replicationFactor": 1}, Code.INVALID_REQUEST),
        ("assigned-nobody", assigned([]), Code.INVALID_REPLICA_ASSIGNMENT),
        ("assigned-twice", assigned([1, 1]), Code.INVALID_REPLICA_ASSIGNMENT),
        ("assigned-unknown", assigned([1], [99]), Code.INVALID_REPLICA_ASSIGNMENT),
        ("assigned-from-1", assigned([1], first=1), Code.INVALID_REPLICA_ASSIGNMENT),
    ]
    for name, fields, code in cases:
        for only_check in (True, False):
            (row,) = created(wire, topic_row(name, **fields), validateOnly=only_check)
            assert (row["name"], row["errorCode"]) == (name, code), name
    twice = created(wire, topic_row("twice"), topic_row("once"), topic_row("twice"))
    assert [(row["name"], row["errorCode"]) for row in twice] == [("once", Code.NONE), ("twice", Code.INVALID_REQUEST)]
    topics = {row["name"]: len(row["partitions"]) for row in wire.ask("Metadata", 7, {"topics": None})["topics"]}
    assert topics == {"a_b.c": 1, "a_b_d": 1, "replicas-default": 1, "assigned": 2, "once": 1}
    for count, assignments, error in ((3, [[1], [1]], 0), (4, [[1], [1]], 39), (4, [[99]], 39), (4, None, 0)):
        rows = None if assignments is None else [{"brokerIds": nodes} for nodes in assignments]
        asked = {"topics": [{"name": "once", "count": count, "assignments": rows}], "timeoutMs": 1000}
        assert wire.ask("CreatePartitions", 1, asked)["results"][0]["errorCode"] == error, (count, assignments)


def test_create_topics_returns_the_configs_of_describe_configs(wire: Wire) -> None:
    configs = [{"name": "retention.ms", "value": "77"}]
    (checked,) = created(wire, topic_row("t", configs=configs, numPartitions=2), validateOnly=True)
    (row,) = created(wire, topic_row("t", configs=configs, numPartitions=2))
    resources = [{"resourceType": 2, "resourceName": "t", "configurationKeys": None}]
    described = wire.ask("DescribeConfigs", 4, {"resources": resources})["results"][0]["configs"]
    expected = {item["name"]: (item["value"], item["configSource"]) for item in described}
    for answer in (checked, row):
        assert (answer["numPartitions"], answer["replicationFactor"]) == (2, 1)
        assert {item["name"]: (item["value"], item["configSource"]) for item in answer["configs"]} == expected
    assert expected["retention.ms"] == ("77", 1)


@pytest.mark.parametrize(
    ("group", "session_ms", "code"),
    [
        ("", 0, Code.INVALID_GROUP_ID),
        ("g", 1, Code.INVALID_SESSION_TIMEOUT),
        ("g", 5_999, Code.INVALID_SESSION_TIMEOUT),
        ("g", 6_000, Code.MEMBER_ID_REQUIRED),
        ("g", 1_800_000, Code.MEMBER_ID_REQUIRED),
        ("g", 1_800_001, Code.INVALID_SESSION_TIMEOUT),
    ],
)
def test_session_timeouts_have_a_brokers_limits(wire: Wire, group: str, session_ms: int, code: Code) -> None:
    protocols = [{"name": "range", "metadata": b""}]
    asked = {"groupId": group, "sessionTimeoutMs": session_ms, "rebalanceTimeoutMs": 1000, "protocolType": "consumer"}
    assert wire.ask("JoinGroup", 5, {**asked, "protocols": protocols})["errorCode"] == code


ALL_TOPIC, ALL_CLUSTER = 0b110111111000, 0b1111110100000
READ_TOPIC, READ_CLUSTER, UNTOLD = 0b10100001000, 0b10100000000, -(2**31)


@pytest.mark.parametrize(
    ("writable", "topic", "cluster"), [(True, ALL_TOPIC, ALL_CLUSTER), (False, READ_TOPIC, READ_CLUSTER)]
)
def test_a_client_can_request_its_authorized_operations(
    serve: Callable[..., Address], tmp_path: Path, writable: bool, topic: int, cluster: int
) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    wire = Wire(serve(tmp_path, writable=writable))
    tells = {"includeClusterAuthorizedOperations": True, "includeTopicAuthorizedOperations": True}
    for told, cluster_bits, topic_bits in ((tells, cluster, topic), ({}, UNTOLD, UNTOLD)):
        answer = wire.ask("Metadata", 8, {"topics": [{"name": "t"}], **told})
        assert answer["clusterAuthorizedOperations"] == cluster_bits
        assert answer["topics"][0]["topicAuthorizedOperations"] == topic_bits
        described = wire.ask("DescribeCluster", 0, {name: told[name] for name in told if "Cluster" in name})
        assert described["clusterAuthorizedOperations"] == cluster_bits
    groups = wire.ask("DescribeGroups", 3, {"groups": ["g"], "includeAuthorizedOperations": True})["groups"]
    assert groups[0]["authorizedOperations"] == 0b110101001000
    wire.close()


@pytest.mark.parametrize(
    ("times", "keys", "code", "wrong"),
    [
        ([NOW, NOW, NOW], [b"k", None, None], Code.INVALID_RECORD, [1, 2]),
        ([NOW, NOW - DAY_MS, -1], [b"k", b"k", b"k"], Code.INVALID_TIMESTAMP, [1]),
        ([NOW + DAY_MS, NOW, -5], [b"k", None, b"k"], Code.INVALID_TIMESTAMP, [0, 1, 2]),
        ([NOW, -1], [b"k", b"k"], Code.NONE, []),
    ],
    ids=["no-keys", "old", "old-ahead-and-no-key", "fine"],
)
@pytest.mark.parametrize("codec", [0, 4])
def test_a_produce_response_lists_the_invalid_records(
    serve: Callable[..., Address], tmp_path: Path, codec: int, times: list[int], keys: list[bytes | None],
    code: Code, wrong: list[int],
) -> None:  # fmt: skip
    limits = dict.fromkeys(("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), DAY_MS // 2)
    topic = sparklog.open(tmp_path, create=True).create_topic("t", configs={"cleanup.policy": "compact", **limits})
    records = [record(n, time_ms - times[0], key) for n, (time_ms, key) in enumerate(zip(times, keys, strict=True))]
    wire = Wire(serve(tmp_path, writable=True))
    batch = odd_batch(times, payload=b"".join(records), attributes=codec)
    (answer,) = wire.produce("t", {0: batch}, version=8)
    wire.close()
    assert answer["errorCode"] == code
    assert [row["batchIndex"] for row in answer["recordErrors"]] == wrong
    assert all(row["batchIndexErrorMessage"] for row in answer["recordErrors"])
    assert topic.count().records == (0 if wrong else len(times))


def test_each_server_can_coordinate_a_transactional_id(wire: Wire) -> None:
    answer = wire.ask("FindCoordinator", 3, {"key": "id", "keyType": 1})
    assert (answer["errorCode"], answer["nodeId"]) == (0, 1)


def test_versions_of_produce_are_listed_from_0_like_by_a_broker(wire: Wire) -> None:
    asked = {"clientSoftwareName": "test", "clientSoftwareVersion": "1"}
    listed = {row["apiKey"]: row for row in wire.ask("ApiVersions", 4, asked)["apiKeys"]}
    assert listed[0]["minVersion"] == 0
    assert {key: row["minVersion"] for key, row in listed.items() if key} == {
        key: api.min_version for key, api in APIS.items() if key
    }
    wire.send_raw("Produce", 2, b"")
    assert wire.socket.recv(1) == b""


def test_share_groups_are_rejected(wire: Wire) -> None:
    answer = wire.ask("FindCoordinator", 6, {"coordinatorKeys": ["g"], "keyType": 2})
    assert answer["coordinators"][0]["errorCode"] == Code.INVALID_REQUEST
