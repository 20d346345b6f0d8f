"""Members of the consumer protocol (KIP-848): timeouts, restarts, several servers, and members of other protocols."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.serve.codes import Code
from sparklog.serve.consumer_members import LEAVE_EPOCH, LEAVE_TEMPORARILY_EPOCH
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import serving
from tests.serve.consumer_cases import UNCHANGED
from tests.serve.test_shared_groups import (
    PARTITIONS,
    KafkaMember,
    NativeMember,
    append,
    members,
    read_exactly,
    share_all,
    topic_of,
    wait_for,
)
from tests.serve.wire import Wire


class Client:
    """A client that sends single heartbeats for one member."""

    def __init__(self, address: Address, member: str = "a", group: str = "g") -> None:
        self.wire = Wire(address)
        self.member, self.group, self.epoch, self.topic_id = member, group, 0, ""
        self.assigned: set[int] = set()

    def send(self, epoch: int | None = None, owned: set[int] | None = None, **fields: Any) -> Any:
        sent = self.epoch if epoch is None else epoch
        request = {**UNCHANGED, "groupId": self.group, "memberId": self.member, "memberEpoch": sent, **fields}
        if sent == 0:
            request = {"rebalanceTimeoutMs": 60_000, **request, "topicPartitions": []}
            request["rebalanceTimeoutMs"] = fields.get("rebalanceTimeoutMs", 60_000)
            request["subscribedTopicNames"] = fields.get("subscribedTopicNames", ["t"])
        elif owned is not None:
            rows = [{"topicId": self.topic_id, "partitions": sorted(owned)}] if owned else []
            request["topicPartitions"] = rows
        answer = self.wire.ask("ConsumerGroupHeartbeat", 1, request)
        if not answer["errorCode"]:
            self.epoch = answer["memberEpoch"]
            if answer["assignment"] is not None:
                self.assigned = set()
                for row in answer["assignment"]["topicPartitions"]:
                    self.topic_id, self.assigned = row["topicId"], set(row["partitions"])
        return answer

    def commit(self, offset: int, version: int = 9, topic: str = "t") -> Code:
        row = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": ""}
        fields = {"groupId": self.group, "generationIdOrMemberEpoch": self.epoch, "memberId": self.member}
        answer = self.wire.ask("OffsetCommit", version, {**fields, "topics": [{"name": topic, "partitions": [row]}]})
        return Code(answer["topics"][0]["partitions"][0]["errorCode"])


class HeartbeatMember(threading.Thread):
    """A member that sends heartbeats and revokes partitions, but does not read records."""

    def __init__(self, address: Address, member: str) -> None:
        super().__init__(daemon=True)
        self.client = Client(address, member)
        self.values: list[bytes] = []
        self.assigned: set[int] = set()
        self.leaving = threading.Event()
        self.start()

    def run(self) -> None:
        reported: set[int] = set()
        while not self.leaving.is_set():
            answer = self.client.send(owned=self.assigned if self.assigned != reported else None)
            reported = set(self.assigned)
            assert answer["errorCode"] == 0, answer
            self.assigned = set(self.client.assigned)
            time.sleep(0.05)
        self.client.send(LEAVE_EPOCH)
        self.assigned = set()
        self.client.wire.close()


def test_clients_change_the_protocol_one_by_one(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    address = serve(tmp_path)
    group = sparklog.Groups(tmp_path).group("g")
    with members(KafkaMember(address), KafkaMember(address, cooperative=False)) as running:
        wait_for(lambda: share_all(*running))
        assert group.description().type == "classic"
        running.append(HeartbeatMember(address, "a"))
        wait_for(lambda: share_all(*running))
        assert group.description().type == "consumer"
        running[0].leaving.set()
        running.append(HeartbeatMember(address, "b"))
        wait_for(lambda: share_all(*running[1:]))
        running[1].leaving.set()
        wait_for(lambda: share_all(*running[2:]))
        assert {item.id for item in group.description().members} == {"a", "b"}
        # Back to the classic protocol.
        running.append(KafkaMember(address))
        wait_for(lambda: share_all(*running[2:]))
        running[2].leaving.set()
        running[3].leaving.set()
        wait_for(lambda: share_all(running[4]))
        assert group.description().type == "classic"


@pytest.mark.parametrize("assignors", [["range"], ["cooperative-sticky"]], ids=str)
def test_members_of_three_protocols_share_a_group(
    serve: Callable[..., Address], tmp_path: Path, assignors: list[str]
) -> None:
    topic = topic_of(tmp_path)
    address = serve(tmp_path)
    cooperative = assignors == ["cooperative-sticky"]
    with members(NativeMember(tmp_path, assignors), KafkaMember(address, cooperative=cooperative)) as running:
        wait_for(lambda: share_all(*running))
        consumer = HeartbeatMember(address, "a")
        running.append(consumer)
        wait_for(lambda: share_all(*running))
        consumer.leaving.set()
        wait_for(lambda: share_all(*running[:2]))
        append(topic, 240)
        read_exactly(running[:2], 480)
    assert sparklog.Groups(tmp_path).group("g").description().state == "Empty"


def test_a_silent_member_is_removed(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    one, two = (Client(serve(tmp_path, consumer_session_ms=500, consumer_heartbeat_ms=100)) for _ in range(2))
    two.wire, two.member = Wire(Address(*one.wire.socket.getpeername())), "b"
    one.send()
    assert one.assigned == set(range(PARTITIONS))
    two.send()
    wait_for(lambda: two.send()["errorCode"] == 0 and two.assigned == set(range(PARTITIONS)))
    assert one.send()["errorCode"] == Code.UNKNOWN_MEMBER_ID


def test_a_member_continues_after_the_server_has_restarted(tmp_path: Path) -> None:
    topic_of(tmp_path)
    options = ServeOptions(listen=Address("127.0.0.1", 0))
    with serving(str(tmp_path), options) as first:
        client = Client(first)
        client.send()
        assert client.commit(5) == Code.NONE
        client.wire.close()
    with serving(str(tmp_path), options) as second:
        client.wire = Wire(second)
        # The server does not know the client's epoch before its first heartbeat.
        assert client.commit(6) == Code.COORDINATOR_LOAD_IN_PROGRESS
        before = client.epoch
        answer = client.send(owned=client.assigned, rebalanceTimeoutMs=60_000, subscribedTopicNames=["t"])
        assert answer["errorCode"] == 0
        assert client.assigned == set(range(PARTITIONS))
        assert client.epoch > before
        assert client.commit(7) == Code.NONE
        # The response is lost, and the client repeats its request.
        client.epoch = before
        assert client.commit(8) == Code.STALE_MEMBER_EPOCH
        assert client.send(owned=client.assigned)["errorCode"] == 0
        assert client.commit(9) == Code.NONE
        client.wire.close()
    committed = sparklog.Groups(tmp_path).group("g").committed()
    assert {place: item.offset for place, item in committed.items()} == {("t", 0): 9}


def test_a_member_that_moved_to_another_server_is_fenced_on_the_first(tmp_path: Path) -> None:
    topic_of(tmp_path)
    options = ServeOptions(listen=Address("127.0.0.1", 0), consumer_session_ms=1_000, consumer_heartbeat_ms=100)
    with serving(str(tmp_path), options) as one, serving(str(tmp_path), options) as two:
        first, second = Client(one), Client(two)
        first.send()
        second.epoch, second.topic_id = first.epoch, first.topic_id
        assert second.send(owned=first.assigned)["errorCode"] == 0
        assert second.commit(7) == Code.NONE
        assert first.commit(3) == Code.STALE_MEMBER_EPOCH
        # The session with the first server times out, and the member remains.
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            assert second.send()["errorCode"] == 0
            time.sleep(0.1)
        assert second.commit(8) == Code.NONE


def test_a_member_leaves_at_a_server_that_does_not_know_its_latest_heartbeat(tmp_path: Path) -> None:
    topic_of(tmp_path)
    options = ServeOptions(listen=Address("127.0.0.1", 0))
    with serving(str(tmp_path), options) as one, serving(str(tmp_path), options) as two:
        first, second = Client(one), Client(two)
        first.send(instanceId="i")
        second.epoch, second.topic_id = first.epoch, first.topic_id
        assert second.send(owned=first.assigned, instanceId="i")["errorCode"] == 0
        assert first.send(LEAVE_TEMPORARILY_EPOCH, instanceId="i")["errorCode"] == 0
        group = sparklog.Groups(tmp_path).group("g")
        assert [item.has_left for item in group.description().members] == [True]
        assert second.commit(3) == Code.STALE_MEMBER_EPOCH
        assert second.send(0, instanceId="i")["errorCode"] == 0
        assert first.send(LEAVE_EPOCH, instanceId="i")["errorCode"] == 0
        assert group.description().members == ()
        for client in (first, second):
            client.wire.close()


def test_a_member_that_returns_to_its_first_server_continues(tmp_path: Path) -> None:
    topic_of(tmp_path)
    options = ServeOptions(listen=Address("127.0.0.1", 0))
    with serving(str(tmp_path), options) as one, serving(str(tmp_path), options) as two:
        first, second = Client(one), Client(two)
        first.send()
        second.epoch, second.topic_id = first.epoch, first.topic_id
        assert second.send(owned=first.assigned)["errorCode"] == 0
        first.epoch = second.epoch
        # The first server knows that its member was fenced, and does not know the latest epoch.
        wait_for(lambda: first.commit(5) == Code.COORDINATOR_LOAD_IN_PROGRESS)
        assert first.send(owned=first.assigned)["errorCode"] == 0
        assert first.epoch > second.epoch
        assert first.commit(5) == Code.NONE
        for client in (first, second):
            client.wire.close()


def test_a_member_that_moves_to_another_server_cannot_take_an_instance_id_in_use(tmp_path: Path) -> None:
    topic_of(tmp_path)
    options = ServeOptions(listen=Address("127.0.0.1", 0))
    with serving(str(tmp_path), options) as one, serving(str(tmp_path), options) as two:
        static, member, moved = Client(one, "a"), Client(one, "b"), Client(two, "b")
        assert static.send(instanceId="i")["errorCode"] == 0
        assert member.send()["errorCode"] == 0
        assert moved.send(0, instanceId="i")["errorCode"] == Code.UNRELEASED_INSTANCE_ID
        assert {item.id: item.instance_id for item in sparklog.Groups(tmp_path).group("g").description().members} == {
            "a": "i",
            "b": None,
        }
        assert moved.send(0, instanceId="j")["errorCode"] == 0
        assert moved.send(instanceId="j")["errorCode"] == 0
        for client in (static, member, moved):
            client.wire.close()


def test_a_topic_that_is_created_again_gets_its_new_id(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    client = Client(serve(tmp_path, writable=True))
    client.send()
    before = client.topic_id
    root = sparklog.open(tmp_path)
    root.delete_topic("t")
    root.create_topic("t", partitions=PARTITIONS)

    def has_new_id() -> bool:
        client.wire.ask("Metadata", 9, {"topics": [{"name": "t"}]})
        client.send()
        return client.topic_id != before

    wait_for(has_new_id)
    assert client.assigned == set(range(PARTITIONS))


@pytest.mark.parametrize("name", ["memberId", "instanceId", "rackId", "subscribedTopicRegex"])
def test_texts_that_the_journal_cannot_store_are_rejected(
    serve: Callable[..., Address], tmp_path: Path, name: str
) -> None:
    topic_of(tmp_path)
    client = Client(serve(tmp_path))
    assert client.send(**{name: "x" * 4097})["errorCode"] == Code.INVALID_REQUEST
    assert client.send(**{name: "x" * 4096})["errorCode"] == 0
    assert sparklog.Groups(tmp_path).group("g").description().type == "consumer"


def test_a_joining_client_of_the_classic_protocol_has_short_names(
    serve: Callable[..., Address], tmp_path: Path
) -> None:
    topic_of(tmp_path)
    client = Client(serve(tmp_path))
    client.send()
    request = {"groupId": "g", "sessionTimeoutMs": 10_000, "rebalanceTimeoutMs": 10_000, "protocolType": "consumer"}
    request["protocols"] = [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}]
    request |= {"memberId": "", "groupInstanceId": "x" * 4097}
    assert client.wire.ask("JoinGroup", 5, request)["errorCode"] == Code.INVALID_REQUEST


def test_a_consumer_that_does_not_join_commits_while_the_group_has_no_members(
    serve: Callable[..., Address], tmp_path: Path
) -> None:
    """A consumer of the new protocol has a member id, even if it assigns its own partitions and is not a member."""
    topic_of(tmp_path)
    address = serve(tmp_path)
    alone, member = Client(address, "alone"), Client(address, "member")
    alone.epoch = -1
    assert alone.commit(5) == Code.NONE
    assert alone.commit(6, version=8) == Code.NONE
    member.send()
    assert alone.commit(7) == Code.UNKNOWN_MEMBER_ID
    member.send(LEAVE_EPOCH)
    assert alone.commit(8) == Code.NONE
    committed = sparklog.Groups(tmp_path).group("g").committed()
    assert {place: item.offset for place, item in committed.items()} == {("t", 0): 8}


@pytest.mark.parametrize("name", ["a#!b", "x" * 300, "", ".."])
def test_a_subscription_may_contain_invalid_topic_names(
    serve: Callable[..., Address], tmp_path: Path, name: str
) -> None:
    topic_of(tmp_path)
    client = Client(serve(tmp_path))
    assert client.send(subscribedTopicNames=["t", name])["errorCode"] == 0
    assert client.assigned == set(range(PARTITIONS))


def test_offsets_of_a_transaction_need_the_epoch_of_the_member(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    client = Client(serve(tmp_path, writable=True))
    client.send()
    producer = client.wire.ask(
        "InitProducerId",
        4,
        {"transactionalId": "x", "transactionTimeoutMs": 60_000, "producerId": -1, "producerEpoch": -1},
    )
    ids = {"transactionalId": "x", "producerId": producer["producerId"], "producerEpoch": producer["producerEpoch"]}
    assert client.wire.ask("AddOffsetsToTxn", 3, {**ids, "groupId": "g"})["errorCode"] == 0

    def send(member: str, epoch: int) -> Code:
        row = {"partitionIndex": 0, "committedOffset": 7, "committedMetadata": ""}
        fields = {**ids, "groupId": "g", "memberId": member, "generationId": epoch}
        answer = client.wire.ask("TxnOffsetCommit", 3, {**fields, "topics": [{"name": "t", "partitions": [row]}]})
        return Code(answer["topics"][0]["partitions"][0]["errorCode"])

    assert send("a", client.epoch + 1) == Code.ILLEGAL_GENERATION
    assert send("b", client.epoch) == Code.UNKNOWN_MEMBER_ID
    assert send("a", client.epoch) == Code.NONE
    assert client.wire.ask("EndTxn", 3, {**ids, "committed": True})["errorCode"] == 0
    wait_for(lambda: [item.offset for item in sparklog.Groups(tmp_path).group("g").committed().values()] == [7])


def test_group_configs_are_options_of_the_server(serve: Callable[..., Address], tmp_path: Path) -> None:
    topic_of(tmp_path)
    client = Client(serve(tmp_path, consumer_session_ms=7_000, consumer_heartbeat_ms=900))
    assert client.send()["heartbeatIntervalMs"] == 900
    asked = [{"resourceType": 32, "resourceName": "g", "configurationKeys": None}]
    (row,) = client.wire.ask("DescribeConfigs", 4, {"resources": asked, "includeSynonyms": False})["results"]
    assert {config["name"]: config["value"] for config in row["configs"]} == {
        "consumer.heartbeat.interval.ms": "900",
        "consumer.session.timeout.ms": "7000",
    }
