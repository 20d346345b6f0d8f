"""Topics by topic id: a request for a deleted topic never reaches a new topic with the same name."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.kafka.messages.message_schema import NO_UUID
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from sparklog.serve.users import hashed, read_users
from tests.kafka.logs import batch
from tests.serve.wire import Wire

UNKNOWN_ID = "AAECAwQFBgcICQoLDA0ODw"


def by_id(*topic_ids: str) -> dict[str, Any]:
    return {"topics": [{"topicId": topic_id, "name": None} for topic_id in topic_ids]}


@pytest.fixture
def root(tmp_path: Path) -> Any:
    root = sparklog.open(tmp_path / "root", create=True)
    for name in ("orders", "payments"):
        root.create_topic(name).append({"value": [name]})
    return root


def ids_of(root: Any) -> dict[str, str]:
    return {name: root.topic(name).log.state().topic_id for name in root.topics()}


def logged_in(address: Address) -> Wire:
    wire = Wire(address)
    wire.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
    assert wire.ask("SaslAuthenticate", 1, {"authBytes": b"\0anna\0pencil"})["errorCode"] == 0
    return wire


@pytest.fixture
def anna(root: Any, tmp_path: Path, serve: Callable[..., Address]) -> Wire:
    """A user who may read and write "orders", and write "audit"."""
    line = f"anna {hashed('pencil', random.Random(1))} read:orders write:orders write:audit group:shop"
    (tmp_path / "users").write_text(line)
    root.create_topic("audit")
    address = serve(root.location, writable=True, users=read_users(str(tmp_path / "users")))
    return logged_in(address)


def test_metadata_returns_topic_ids_and_accepts_them(root: Any, serve: Callable[..., Address]) -> None:
    ids, wire = ids_of(root), Wire(serve(root.location))
    for version in (10, 11, 12):
        topics = wire.ask("Metadata", version, {"topics": None})["topics"]
        assert {topic["name"]: topic["topicId"] for topic in topics} == ids
    # A server that has not polled a topic yet finds it.
    fresh = Wire(serve(root.location))
    topics = fresh.ask("Metadata", 12, by_id(ids["payments"], UNKNOWN_ID, ids["payments"]))["topics"]
    assert [(topic["name"], topic["topicId"], topic["errorCode"], len(topic["partitions"])) for topic in topics] == [
        ("payments", ids["payments"], 0, 1),
        (None, UNKNOWN_ID, Code.UNKNOWN_TOPIC_ID, 0),
    ]
    root.topic("payments").delete()
    again = root.create_topic("payments").log.state().topic_id
    topics = fresh.ask("Metadata", 12, by_id(ids["payments"], again))["topics"]
    assert [(topic["name"], topic["errorCode"]) for topic in topics] == [(None, Code.UNKNOWN_TOPIC_ID), ("payments", 0)]
    # In versions 10 and 11, null is not a name, and ids are ignored.
    nameless = wire.ask("Metadata", 11, by_id(again))["topics"]
    assert [(topic["name"], topic["errorCode"]) for topic in nameless] == [("", Code.INVALID_TOPIC)]
    for one in (wire, fresh):
        one.close()


def test_a_topic_is_deleted_by_its_id(root: Any, serve: Callable[..., Address]) -> None:
    old, wire = ids_of(root), Wire(serve(root.location, writable=True))
    root.topic("orders").delete()
    root.create_topic("orders")
    new = ids_of(root)
    topics = [*by_id(old["orders"], new["orders"], UNKNOWN_ID)["topics"], {"name": "payments", "topicId": NO_UUID}]
    topics.append({"name": "payments", "topicId": old["payments"]})
    rows = wire.ask("DeleteTopics", 6, {"topics": topics})["responses"]
    assert [(row["name"], row["topicId"], row["errorCode"]) for row in rows] == [
        (None, old["orders"], Code.UNKNOWN_TOPIC_ID),
        ("orders", new["orders"], 0),
        (None, UNKNOWN_ID, Code.UNKNOWN_TOPIC_ID),
        ("payments", NO_UUID, 0),
        ("payments", old["payments"], Code.INVALID_REQUEST),
    ]
    assert root.topics() == []
    wire.close()


def test_create_topics_returns_the_topic_id(root: Any, serve: Callable[..., Address]) -> None:
    wire = Wire(serve(root.location, writable=True))
    row = wire.ask("CreateTopics", 7, {"topics": [{"name": "new", "numPartitions": 1, "replicationFactor": 1}]})[
        "topics"
    ][0]
    assert row["topicId"] == ids_of(root)["new"]
    wire.close()


def fetched(wire: Wire, version: int, *topic_ids: str, **fields: Any) -> list[tuple[int, bool]]:
    """Return the code of each topic, and whether there are records."""
    partitions = [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}]
    topics = [{"topicId": topic_id, "partitions": partitions} for topic_id in topic_ids]
    rows = wire.ask("Fetch", version, {"maxBytes": 1000, "topics": topics, **fields})["responses"]
    assert [row["topicId"] for row in rows] == list(topic_ids)
    return [(part["errorCode"], bool(part["records"])) for row in rows for part in row["partitions"]]


def test_fetch_reads_topics_by_id(root: Any, serve: Callable[..., Address]) -> None:
    ids, unknown = ids_of(root), (Code.UNKNOWN_TOPIC_ID, False)
    wire = Wire(serve(root.location))
    for version in range(13, 19):
        asked = ids["payments"], UNKNOWN_ID, NO_UUID, ids["orders"]
        assert fetched(wire, version, *asked) == [(0, True), unknown, unknown, (0, True)]
    root.topic("payments").delete()
    new = root.create_topic("payments")
    new.append({"value": ["another"]})
    new_id = new.log.state().topic_id
    assert fetched(wire, 17, new_id, ids["payments"]) == [(0, True), unknown]
    wire.close()


@pytest.mark.parametrize("asked_first", ["orders", "copy"])
def test_a_copied_directory_has_its_own_topic_id(
    tmp_path: Path, serve: Callable[..., Address], asked_first: str
) -> None:
    """A fetch by id must never return the records of the other directory, whichever topic the server polled first."""
    directory = tmp_path / "kafka"
    for name, base in (("orders", 0), ("copy", 5)):
        folder = directory / f"{name}-0"
        folder.mkdir(parents=True)
        (folder / f"{base:020}.log").write_bytes(batch(base, [name.encode()]))
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {UNKNOWN_ID}")
    wire = Wire(serve(str(directory)))
    wire.ask("Metadata", 12, {"topics": [{"name": asked_first, "topicId": NO_UUID}]})
    assert fetched(wire, 17, UNKNOWN_ID) == [(Code.UNKNOWN_TOPIC_ID, False)]
    topics = wire.ask("Metadata", 12, {"topics": None})["topics"]
    ids = {topic["name"]: topic["topicId"] for topic in topics}
    assert len({*ids.values(), UNKNOWN_ID}) == 3
    partitions = [{"partition": 0, "fetchOffset": 5, "partitionMaxBytes": 1000}]
    asked = [{"topicId": ids[name], "partitions": partitions} for name in ("orders", "copy")]
    rows = wire.ask("Fetch", 17, {"maxBytes": 1000, "topics": asked})["responses"]
    assert [row["partitions"][0]["errorCode"] for row in rows] == [Code.OFFSET_OUT_OF_RANGE, 0]
    wire.close()


def test_a_waiting_fetch_returns_when_its_topic_is_deleted(root: Any, serve: Callable[..., Address]) -> None:
    wire, topic_id = Wire(serve(root.location)), ids_of(root)["orders"]
    partitions = [{"partition": 0, "fetchOffset": 1, "partitionMaxBytes": 1000}]
    topics = [{"topicId": topic_id, "partitions": partitions}]
    wire.send("Fetch", 17, {"maxBytes": 1000, "maxWaitMs": 30_000, "minBytes": 1, "topics": topics})
    root.topic("orders").delete()
    partition = wire.receive("Fetch", 17)["responses"][0]["partitions"][0]
    assert partition["errorCode"] == Code.UNKNOWN_TOPIC_ID
    wire.close()


def test_topic_ids_do_not_disclose_denied_topics(root: Any, anna: Wire) -> None:
    ids, denied = ids_of(root), Code.TOPIC_AUTHORIZATION_FAILED
    topics = anna.ask("Metadata", 12, by_id(ids["payments"], ids["orders"]))["topics"]
    assert [(topic["name"], topic["errorCode"]) for topic in topics] == [(None, denied), ("orders", 0)]
    expected = [(denied, False), (0, True), (denied, False), (Code.UNKNOWN_TOPIC_ID, False)]
    assert fetched(anna, 13, ids["payments"], ids["orders"], ids["audit"], UNKNOWN_ID) == expected
    rows = anna.ask("DeleteTopics", 6, by_id(ids["payments"], ids["audit"]))["responses"]
    assert [(row["name"], row["errorCode"]) for row in rows] == [(None, denied), ("audit", 0)]
    assert root.topics() == ["orders", "payments"]
    anna.close()
