"""Clients with `group.protocol=consumer` (KIP-848): alone, with each other, and with members of other protocols."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import sparklog
from sparklog.serve.codes import Code
from sparklog.serve.consumer_members import LEAVE_EPOCH
from tests.serve.peers.golden import Served
from tests.serve.peers.peer import Peer, Place
from tests.serve.peers.test_reading_and_writing import values_of
from tests.serve.test_consumer_groups import Client

CONSUMER = {"group.protocol": "consumer"}
JAVA = pytest.param("java", marks=pytest.mark.java)


def topic_with(root: Any, name: str, first: int = 0) -> Any:
    log = root.create_topic(name, partitions=6)
    append(log, first)
    return log


def append(log: Any, first: int) -> None:
    numbers = range(first, first + 600)
    log.append({"value": [f"{n}" for n in numbers], "partition": [n % 6 for n in numbers]})


@pytest.mark.parametrize("name", [JAVA, "librdkafka-2.16.0"])
def test_a_member_resumes_where_another_client_stopped(
    start_peer: Callable[[str], Peer], writable: tuple[Served, Any], name: str
) -> None:
    peer, (server, root) = start_peer(name), writable
    topic = f"consumer-{peer.name}"
    log = topic_with(root, topic)
    assert values_of(peer.join(server.address, topic, topic, 600, **CONSUMER)) == list(range(600))
    append(log, 600)
    assert values_of(peer.join(server.address, topic, topic, 600, **CONSUMER)) == list(range(600, 1200))
    assert sum(item.offset for item in sparklog.Groups(root).group(topic).committed().values()) == 1200


@pytest.mark.java
def test_members_of_all_protocols_share_a_group(
    start_peer: Callable[[str], Peer], java: Peer, writable: tuple[Served, Any]
) -> None:
    server, root = writable
    log = topic_with(root, "all-protocols")
    peers = [java, start_peer("librdkafka-2.16.0"), start_peer("kafka-python")]
    options: list[dict[str, Any]] = [CONSUMER, CONSUMER, {}]

    def member(number: int) -> dict[Place, Any]:
        return peers[number].join(server.address, "all-protocols", "all-protocols", 10_000, 12, **options[number])

    group, kinds, read = sparklog.Groups(root).group("all-protocols"), set[str](), list[int]()
    with ThreadPoolExecutor(3) as threads:
        reading = [threads.submit(member, number) for number in range(3)]
        with sparklog.consumer(
            root,
            "all-protocols",
            topics="all-protocols",
            auto_offset_reset="earliest",
            partition_assignment_strategy=["range", "cooperative-sticky"],
        ) as native:
            is_appended = False
            while not all(item.done() for item in reading):
                for batch in native.poll(timeout=0.1):
                    read += map(int, batch.column("value").to_pylist())
                members = group.description().members
                kinds |= {"consumer" if item.consumer else "other" for item in members if item.owned}
                if len(members) == 4 and not is_appended:
                    append(log, 600)
                    is_appended = True
        assert is_appended
        assert kinds == {"consumer", "other"}
    everything = {value for item in reading for value in values_of(item.result())} | set(read)
    assert everything == set(range(1200))


@pytest.mark.java
def test_kafkas_tool_describes_members_with_epochs(java: Peer, writable: tuple[Served, Any]) -> None:
    server, root = writable
    topic_with(root, "described")
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

    def groups(*arguments: str) -> list[list[str]]:
        printed = java.tool(tool, "--bootstrap-server", str(server.address), *arguments)
        return [line.split() for line in printed.splitlines() if line.strip()]

    client = Client(server.address, "m", "described")
    client.send(subscribedTopicNames=["described"])
    assert client.commit(5, topic="described") == Code.NONE
    describe = ("--describe", "--group", "described", "--verbose")
    offsets = groups(*describe)
    assert {"GROUP", "TOPIC", "CURRENT-OFFSET", "CONSUMER-ID"} <= set(offsets[0])
    assert {row[1] for row in offsets[1:]} == {"described"}
    assert len(offsets) == 7
    members = groups(*describe, "--members")
    assert [members[1][members[0].index(name)] for name in ("GROUP", "CONSUMER-ID")] == ["described", "m"]
    assert {"CURRENT-EPOCH", "TARGET-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-ASSIGNMENT"} <= set(members[0])
    (header, state) = groups(*describe, "--state")
    assert {"Stable", "uniform"} <= set(state), (header, state)
    assert ["described", "Consumer"] in groups("--list", "--type", "consumer")
    client.send(LEAVE_EPOCH)
    assert ["described", "Empty"] in groups("--list", "--state")
    assert "successful" in " ".join(groups("--delete", "--group", "described")[-1])
