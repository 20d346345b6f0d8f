"""Kafka clients and `sparklog.consumer` in one group, with one server and with two."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import Conflict
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.wire import Wire

PARTITIONS, RECORDS, SECONDS = 6, 240, 40.0
ASSIGNORS = ["cooperative-sticky", "range"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "still waiting"
        time.sleep(0.05)


class KafkaMember(threading.Thread):
    """A kafka-python consumer."""

    def __init__(self, servers: object, *, cooperative: bool = False) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.cooperative = cooperative
        self.values: list[bytes] = []
        self.assigned: set[int] = set()
        self.leaving, self.dying = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        assignor = CooperativeStickyAssignor if self.cooperative else RangePartitionAssignor
        consumer = KafkaConsumer(
            "t",
            bootstrap_servers=str(self.servers).split(","),
            group_id="g",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            heartbeat_interval_ms=200,
            session_timeout_ms=6_000,
            # On a busy host, kafka-python may assign partitions before it has received any metadata.
            metadata_max_age_ms=1_000,
            partition_assignment_strategy=[assignor],
        )
        while not self.leaving.is_set():
            for batch in consumer.poll(timeout_ms=100).values():
                self.values += [record.value for record in batch]
            self.assigned = {topic_partition.partition for topic_partition in consumer.assignment()}
        self.assigned = set()
        if not self.dying.is_set():
            consumer.close()
        else:
            consumer._client.close()


class NativeMember(threading.Thread):
    """A `sparklog.consumer`. It is cooperative if the group allows it."""

    def __init__(self, root: Path, assignors: list[str] | None = None) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.assignors = assignors or ASSIGNORS
        self.values: list[bytes] = []
        self.assigned: set[int] = set()
        self.leaving, self.dying = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        consumer = sparklog.consumer(
            self.root,
            "g",
            topics="t",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            heartbeat_interval_ms=100,
            session_timeout_ms=6_000,
            partition_assignment_strategy=self.assignors,
        )
        while not self.leaving.is_set():
            for batch in consumer.poll(timeout=0.1):
                self.values += batch.column("value").to_pylist()
            self.assigned = {partition for _, partition in consumer.assignment()}
        self.assigned = set()
        if not self.dying.is_set():
            consumer.close()
        else:
            consumer._member.stop()


@contextmanager
def members(*started: Any) -> Iterator[list[Any]]:
    running = list(started)
    try:
        yield running
    finally:
        for member in running:
            member.leaving.set()
        for member in running:
            member.join(SECONDS)


def topic_of(root: Path) -> sparklog.Topic:
    topic = sparklog.open(root, create=True).create_topic("t", partitions=PARTITIONS)
    append(topic, 0)
    return topic


def append(topic: sparklog.Topic, first: int) -> None:
    numbers = range(first, first + RECORDS)
    topic.append({"value": [b"%d" % n for n in numbers], "partition": [n % PARTITIONS for n in numbers]})


def share_all(*running: Any) -> bool:
    """Return True if each partition is assigned to exactly one member, and each member has partitions."""
    numbers = sorted(number for member in running for number in member.assigned)
    return numbers == list(range(PARTITIONS)) and all(member.assigned for member in running)


def read_exactly(running: list[Any], until: int) -> None:
    """Wait until all records were read, and check that none was read twice."""
    wanted = sorted(b"%d" % n for n in range(until))
    wait_for(lambda: len({value for member in running for value in member.values}) == until)
    assert sorted(value for member in running for value in member.values) == wanted


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
def test_clients_and_consumers_of_the_root_share_a_group(
    serve: Callable[..., Address], tmp_path: Path, cooperative: bool
) -> None:
    topic = topic_of(tmp_path)
    address = serve(tmp_path)
    group = sparklog.Groups(tmp_path).group("g")
    client = partial(KafkaMember, address, cooperative=cooperative)
    with members(client(), client()) as running:
        wait_for(lambda: share_all(*running))
        read_exactly(running, RECORDS)
        owner = group.description().members
        assert [(item.id, item.client_id) for item in owner] == [(f"serve@{address}", f"serve@{address}")]
        wait_for(lambda: sum(item.offset for item in group.committed().values()) == RECORDS)
        # A consumer of the root joins, so the clients become members in the journal.
        running.append(NativeMember(tmp_path))
        wait_for(lambda: share_all(*running))
        described = group.description()
        assert (described.instance, len(described.members)) == (None, 3)
        append(topic, RECORDS)
        read_exactly(running, 2 * RECORDS)
        wire = Wire(address)
        (row,) = wire.ask("DescribeGroups", 5, {"groups": ["g"]})["groups"]
        assert {item["memberId"] for item in row["members"]} == {item.id for item in described.members}
        assert all(item["memberAssignment"] for item in row["members"])
        wire.close()
        # A client that joins becomes a member in the journal immediately, and a client that leaves releases its
        # partitions immediately.
        running.append(client())
        wait_for(lambda: share_all(*running))
        running[0].leaving.set()
        wait_for(lambda: share_all(*running[1:]))
        append(topic, 2 * RECORDS)
        read_exactly(running, 3 * RECORDS)
        # The last consumer of the root leaves. The clients continue.
        running[2].leaving.set()
        wait_for(lambda: share_all(running[1], running[3]))
        append(topic, 3 * RECORDS)
        read_exactly(running, 4 * RECORDS)
    wait_for(lambda: group.description().state == "Empty")
    assert sum(item.offset for item in group.committed().values()) == 4 * RECORDS


def test_members_of_both_kinds_that_die_are_replaced(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    address = serve(tmp_path)
    group = sparklog.Groups(tmp_path).group("g")
    with members(NativeMember(tmp_path)) as running:
        wait_for(lambda: share_all(*running))
        # Clients that join a group of consumers of the root are members in the journal from the start.
        running += [KafkaMember(address), KafkaMember(address), NativeMember(tmp_path)]
        wait_for(lambda: share_all(*running))
        assert len(group.description().members) == 4
        read_exactly(running, RECORDS)
        for dying in (running[1], running[3]):
            wait_for(lambda: sum(item.offset for item in group.committed().values()) == len(seen(running)))
            dying.dying.set()
            dying.leaving.set()
            alive = [member for member in running if not member.leaving.is_set()]
            wait_for(partial(share_all, *alive))
            append(topic, len(seen(running)))
            wait_for(lambda: len(seen(running)) % RECORDS == 0 and len(seen(running)) > RECORDS)
        read_exactly(running, 3 * RECORDS)


def seen(running: list[Any]) -> set[bytes]:
    return {value for member in running for value in member.values}


def test_clients_of_two_servers_share_a_group(tmp_path: Path) -> None:
    from sparklog.serve.options import ServeOptions
    from sparklog.serve.server import serving

    topic = topic_of(tmp_path)
    options = ServeOptions(listen=Address("127.0.0.1", 0), session_timeouts_ms=(1, 60_000))
    one, two = serving(str(tmp_path), options), serving(str(tmp_path), options)
    with one as first, two as second, members(NativeMember(tmp_path)) as running:
        wait_for(lambda: share_all(*running))
        running += [KafkaMember(first), KafkaMember(second)]
        wait_for(lambda: share_all(*running))
        append(topic, RECORDS)
        read_exactly(running, 2 * RECORDS)
        # Without the consumer of the root, the clients of both servers also continue.
        running[0].leaving.set()
        wait_for(lambda: share_all(*running[1:]))
        append(topic, 2 * RECORDS)
        read_exactly(running, 3 * RECORDS)


def test_members_with_incompatible_protocols_get_one_clear_error(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    address = serve(tmp_path)
    with members(KafkaMember(address)) as running:
        wait_for(lambda: share_all(*running))
        with pytest.raises(Conflict, match="a common assignor, found range; sticky"):
            sparklog.consumer(tmp_path, "g", topics="t", partition_assignment_strategy=["sticky"])
    native = sparklog.consumer(tmp_path, "g", topics="t")
    wire = Wire(address)
    request = {"groupId": "g", "sessionTimeoutMs": 10_000, "rebalanceTimeoutMs": 10_000, "memberId": ""}
    for kind, name in (("connect", "range"), ("consumer", "stream"), ("consumer", "range")):
        request |= {
            "protocolType": kind,
            "protocols": [{"name": name, "metadata": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}],
        }
        assert wire.ask("JoinGroup", 3, request)["errorCode"] == Code.INCONSISTENT_GROUP_PROTOCOL, (kind, name)
    wire.close()
    native.close()
