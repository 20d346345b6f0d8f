"""Consumer groups: members of several clients, servers that take over groups, and sparklog consumers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import Conflict, Fenced
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.wire import Wire

SECONDS = 30
PARTITIONS = 12


def wait_for(what: Callable[[], object], seconds: float = SECONDS) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited for too long"
        time.sleep(0.02)


def topic_of(path: Path, partitions: int = PARTITIONS, records: int = 240) -> Any:
    topic = sparklog.open(path, create=True).create_topic("t", partitions=partitions)
    numbers = range(records)
    topic.append({"value": [f"{n}" for n in numbers], "partition": [n % partitions for n in numbers]})
    return topic


class Member(threading.Thread):
    """A kafka-python member in a thread. `assigned` are its partitions, and `values` are the values it has read."""

    def __init__(self, address: object, group: str = "g", **options: Any) -> None:
        super().__init__(daemon=True)
        self.address, self.group, self.options = address, group, options
        self.assigned: set[int] = set()
        self.values: list[bytes] = []
        self.leaving = threading.Event()
        self.start()

    def run(self) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaConnectionError

        consumer = KafkaConsumer(
            "t",
            bootstrap_servers=str(self.address).split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=3_000,
            heartbeat_interval_ms=200,
            auto_commit_interval_ms=100,
            **self.options,
        )
        while not self.leaving.is_set():
            # The client's own search for another server failed, because the server that it requested has just stopped.
            with suppress(KafkaConnectionError):
                for batch in consumer.poll(100).values():
                    self.values += [record.value for record in batch]
            self.assigned = {topic_partition.partition for topic_partition in consumer.assignment()}
        consumer.close()

    def leave(self) -> None:
        self.leaving.set()
        self.join(SECONDS)


class AioMember(Member):
    """An aiokafka member, like `Member`."""

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=str(self.address),
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=3_000,
            heartbeat_interval_ms=200,
            auto_commit_interval_ms=100,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        await consumer.start()
        while not self.leaving.is_set():
            for batch in (await consumer.getmany(timeout_ms=100)).values():
                self.values += [record.value for record in batch]
            self.assigned = {topic_partition.partition for topic_partition in consumer.assignment()}
        await consumer.stop()


@contextmanager
def members(*started: Member) -> Iterator[list[Member]]:
    try:
        yield list(started)
    finally:
        for member in started:
            member.leaving.set()
        for member in started:
            member.join(SECONDS)


def shares(*running: Any) -> bool:
    """Return True if each partition is assigned to exactly one of the members."""
    numbers = sorted(number for member in running for number in member.assigned)
    return numbers == list(range(PARTITIONS)) and all(member.assigned for member in running)


def test_members_of_two_clients_share_partitions_and_offsets(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    address = serve(tmp_path)
    group = sparklog.Groups(tmp_path).group("g")
    with members(Member(address), AioMember(address), Member(address)) as running:
        wait_for(lambda: shares(*running))
        wait_for(lambda: sorted(v for m in running for v in set(m.values)) == sorted(b"%d" % n for n in range(240)))
        wait_for(lambda: sum(item.offset for item in group.committed().values()) == 240)
        assert group.description().state == "Stable"
        assert group.description().instance == f"serve@{address}"
        with pytest.raises(Conflict):
            group.delete()
        running[0].leave()
        wait_for(lambda: shares(*running[1:]))
    wait_for(lambda: group.description().state == "Empty")
    with sparklog.consumer(tmp_path, "g", topics=["t"]) as consumer:
        assert not list(consumer.poll(timeout=0.1)), "offsets go on where the clients were"


def test_another_server_takes_over_a_group(tmp_path: Path) -> None:
    from sparklog.serve.options import ServeOptions
    from sparklog.serve.server import serving

    topic = topic_of(tmp_path)
    first, second = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
    both = (
        ServeOptions(listen=one, advertise=(one, other), session_timeouts_ms=(1, 60_000))
        for one, other in ((first, second), (second, first))
    )
    one, other = (serving(str(tmp_path), options) for options in both)
    group = sparklog.Groups(tmp_path).group("g")
    with other:
        with one, members(Member(f"{first},{second}"), Member(f"{second},{first}")) as running:
            wait_for(lambda: shares(*running))
            holder = group.description().instance
            wait_for(lambda: sum(item.offset for item in group.committed().values()) == 240)
            assert group.description().instance == holder, "both servers name one coordinator"
        generation = group.description().generation
        with members(Member(f"{first},{second}")) as running:
            wait_for(lambda: shares(*running))
            assert group.description().instance == f"serve@{second}"
            assert group.description().generation > generation
            topic.append({"value": ["late"], "partition": [3]})
            wait_for(lambda: running[0].values == [b"late"])


def test_a_server_is_fenced_by_a_consumer_of_the_root(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    group = sparklog.Groups(tmp_path).group("g")
    with members(Member(serve(tmp_path))) as running:
        wait_for(lambda: shares(*running))
        wait_for(lambda: sum(item.offset for item in group.committed().values()) == 240)
        taken = group.join("native")
        # The client rejoins when its commit is rejected, which fences the other member.
        wait_for(lambda: group.description().instance != "native")
        with pytest.raises(Fenced):
            taken.commit({"t": {0: 1}})
        wait_for(lambda: shares(*running))


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_operators_describe_and_change_groups(serve: Callable[..., Address], tmp_path: Path) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    topic_of(tmp_path, partitions=2)
    address = str(serve(tmp_path))
    topic_partition = TopicPartition("t", 1)
    consumer = KafkaConsumer(bootstrap_servers=address, group_id="by-hand", enable_auto_commit=False)
    consumer.assign([topic_partition])
    consumer.commit({topic_partition: OffsetAndMetadata(7, "größe", -1)})
    assert consumer.committed(topic_partition, metadata=True).metadata == "größe"
    consumer.close()
    group = sparklog.Groups(tmp_path).group("by-hand")
    assert group.committed()["t", 1].offset == 7
    assert group.committed()["t", 1].metadata == "größe"
    admin = KafkaAdminClient(bootstrap_servers=address)
    assert "by-hand" in str(admin.list_groups())
    wire = Wire(Address.of(address))
    for types, names in ((["Classic"], ["by-hand"]), (["consumer", "share"], []), ([], ["by-hand"])):
        listed = wire.ask("ListGroups", 5, {"statesFilter": [], "typesFilter": types})["groups"]
        assert [(one["groupId"], one["groupType"]) for one in listed] == [(name, "classic") for name in names]
    wire.close()
    described = admin.describe_groups(["by-hand", "none"])
    assert "Empty" in str(described)
    assert "Dead" in str(described)
    assert admin.list_group_offsets(["by-hand"]) is not None
    admin.delete_groups(["by-hand"])
    assert not sparklog.Groups(tmp_path).names()
    admin.close()


def test_several_groups_in_one_request(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path, partitions=2)
    for number, name in enumerate(("g0", "g1")):
        sparklog.Groups(tmp_path).group(name).alter({"t": {number: 10 + number}})
    address = serve(tmp_path)
    wire = Wire(address)
    for version in (4, 5, 6):
        rows = wire.ask("FindCoordinator", version, {"coordinatorKeys": ["g0", "", "g1"]})["coordinators"]
        assert [(row["key"], row["errorCode"], row["port"]) for row in rows] == [
            ("g0", Code.NONE, address.port),
            ("", Code.INVALID_GROUP_ID, 0),
            ("g1", Code.NONE, address.port),
        ]
    answer = wire.ask("FindCoordinator", 6, {"keyType": 2, "coordinatorKeys": ["g0"]})["coordinators"][0]
    assert answer["errorCode"] == Code.INVALID_REQUEST
    named = [{"name": "t", "partitionIndexes": [0, 1]}]
    asked = [{"groupId": "g0", "topics": None}, {"groupId": "", "topics": named}, {"groupId": "g1", "topics": named}]
    for version in (8, 9):
        rows = wire.ask("OffsetFetch", version, {"groups": asked})["groups"]
        assert [(row["groupId"], row["errorCode"]) for row in rows] == [
            ("g0", 0),
            ("", Code.INVALID_GROUP_ID),
            ("g1", 0),
        ]
        offsets = [[part["committedOffset"] for topic in row["topics"] for part in topic["partitions"]] for row in rows]
        assert offsets == [[10], [], [-1, 11]]
    wire.close()


def test_committed_leader_epochs_are_returned(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path, partitions=2)
    wire = Wire(serve(tmp_path))
    rows = [{"partitionIndex": n, "committedOffset": 5, "committedLeaderEpoch": n * 8 - 1} for n in range(2)]
    fields = {"groupId": "g", "generationIdOrMemberEpoch": -1, "memberId": ""}
    answer = wire.ask("OffsetCommit", 7, {**fields, "topics": [{"name": "t", "partitions": rows}]})
    assert [row["errorCode"] for row in answer["topics"][0]["partitions"]] == [0, 0]
    named = [{"name": "t", "partitionIndexes": [0, 1]}]
    for version in (4, 7):
        parts = wire.ask("OffsetFetch", version, {"groupId": "g", "topics": named})["topics"][0]["partitions"]
        assert [row["committedOffset"] for row in parts] == [5, 5]
        assert [row["committedLeaderEpoch"] for row in parts] == ([-1, -1] if version < 5 else [-1, 7])
    (group,) = wire.ask("OffsetFetch", 8, {"groups": [{"groupId": "g", "topics": named}]})["groups"]
    assert [row["committedLeaderEpoch"] for row in group["topics"][0]["partitions"]] == [-1, 7]
    wire.close()


def commit_offset(wire: Wire, *partitions: int) -> list[int]:
    """Commit offsets of partitions of topic `t` without a member, and return the codes."""
    rows = [{"partitionIndex": partition, "committedOffset": 1} for partition in partitions]
    fields = {"groupId": "g", "generationIdOrMemberEpoch": -1, "memberId": ""}
    answer = wire.ask("OffsetCommit", 8, {**fields, "topics": [{"name": "t", "partitions": rows}]})
    return [row["errorCode"] for row in answer["topics"][0]["partitions"]]


def test_offsets_of_new_partitions_are_committed(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path, partitions=1)
    wire = Wire(serve(tmp_path))
    assert commit_offset(wire, 0) == [Code.NONE]
    sparklog.open(tmp_path).topic("t").alter(partitions=2)
    assert commit_offset(wire, 1, 2) == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    wire.close()


def test_offsets_of_a_topic_that_another_process_has_deleted_are_rejected(
    serve: Callable[..., Address], tmp_path: Path
) -> None:
    topic_of(tmp_path, partitions=1)
    wire = Wire(serve(tmp_path))
    assert commit_offset(wire, 0) == [Code.NONE]
    sparklog.open(tmp_path).topic("t").delete()
    # The client looks up the coordinator and retries.
    assert commit_offset(wire, 0) == [Code.COORDINATOR_NOT_AVAILABLE]
    assert commit_offset(wire, 0) == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    wire.close()


def test_an_invalid_group_id_is_rejected(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path, partitions=1)
    wire = Wire(serve(tmp_path))
    for name in ("", "g" * 2000):
        asked = {"groupId": name, "sessionTimeoutMs": 9_000, "rebalanceTimeoutMs": 100, "protocolType": "consumer"}
        asked |= {"protocols": [{"name": "range", "metadata": b""}]}
        assert wire.ask("JoinGroup", 2, asked)["errorCode"] == Code.INVALID_GROUP_ID
        assert wire.ask("FindCoordinator", 2, {"key": name})["errorCode"] == Code.INVALID_GROUP_ID
    wire.close()


def test_a_kafka_directory_has_no_groups(serve: Callable[..., Address], fixtures: Path) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import GroupAuthorizationFailedError

    address = serve(fixtures / "transactions" / "data")
    consumer = KafkaConsumer("txn-a", bootstrap_servers=str(address), group_id="g")
    with pytest.raises(GroupAuthorizationFailedError):
        consumer.poll(5_000)
    consumer.close(autocommit=False)
    wire = Wire(address)
    # librdkafka treats an error here as a consumer error, even if partitions were assigned manually.
    assert wire.ask("FindCoordinator", 2, {"key": "g"})["errorCode"] == Code.NONE
    assert wire.ask("OffsetFetch", 5, {"groupId": "g", "topics": None})["errorCode"] == Code.GROUP_AUTHORIZATION_FAILED
    wire.close()


def test_clients_are_rejected_while_consumers_of_the_root_share_a_group(
    serve: Callable[..., Address], tmp_path: Path
) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer
    from kafka.errors import InconsistentGroupProtocolError

    topic_of(tmp_path, partitions=2)
    address = str(serve(tmp_path))
    with sparklog.consumer(tmp_path, "g", topics=["t"]) as native:
        wait_for(lambda: native.poll(timeout=0.1) is not None and len(native.assignment()) == 2)
        admin = KafkaAdminClient(bootstrap_servers=address)
        described = str(admin.describe_groups(["g"]))
        admin.close()
        assert "Stable" in described
        assert "'t'" in described
        consumer = KafkaConsumer("t", bootstrap_servers=address, group_id="g")
        with pytest.raises(InconsistentGroupProtocolError):
            consumer.poll(10_000)
        consumer.close(autocommit=False)
