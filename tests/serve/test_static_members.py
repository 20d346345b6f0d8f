"""A static member that rejoins (KIP-345) keeps its assignment and generation, and its previous id is fenced."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.kafka.messages.message_codec import encode_versioned
from sparklog.kafka.messages.message_schema import message
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.member_process import MemberProcess
from tests.serve.test_groups import PARTITIONS, topic_of, wait_for
from tests.serve.wire import Wire

GROUP = "g"
SETTLED_SECONDS = 2
HAS_LIBRDKAFKA = importlib.util.find_spec("confluent_kafka") is not None
LIBRDKAFKA = pytest.param("librdkafka", marks=pytest.mark.skipif(not HAS_LIBRDKAFKA, reason="needs confluent-kafka"))
JAVA = pytest.param("java", marks=pytest.mark.java)


def subscription(*topics: str, owned: int = 0) -> bytes:
    partitions = [{"topic": topic, "partitions": list(range(owned))} for topic in topics if owned]
    fields: dict[str, Any] = {"topics": list(topics), "ownedPartitions": partitions}
    return encode_versioned(message("groups", "ConsumerProtocolSubscription"), 1, fields)


class StaticMember:
    """An instance that sends requests manually. `join` starts like a process that has just started."""

    def __init__(self, address: Address, instance: str) -> None:
        self.wire = Wire(address)
        self.instance, self.member, self.generation = instance, "", -1

    def join(self, *topics: str, member: str = "", owned: int = 0, version: int = 5) -> dict[str, Any]:
        asked = {"groupId": GROUP, "sessionTimeoutMs": 20_000, "rebalanceTimeoutMs": 20_000, "protocolType": "consumer"}
        asked |= {"memberId": member, "groupInstanceId": self.instance}
        metadata = subscription(*(topics or ("t",)), owned=owned)
        asked["protocols"] = [{"name": "range", "metadata": metadata}]
        answer = self.wire.ask("JoinGroup", version, asked)
        if answer["errorCode"] == Code.NONE:
            self.member, self.generation = answer["memberId"], answer["generationId"]
        return answer

    def about(self, member: str = "") -> dict[str, Any]:
        return {
            "groupId": GROUP,
            "generationId": self.generation,
            "memberId": member or self.member,
            "groupInstanceId": self.instance,
        }

    def sync(self, assignments: dict[str, bytes] | None = None, member: str = "") -> dict[str, Any]:
        rows = [{"memberId": name, "assignment": data} for name, data in (assignments or {}).items()]
        return self.wire.ask("SyncGroup", 3, self.about(member) | {"assignments": rows})

    def heartbeat(self, member: str = "") -> int:
        return int(self.wire.ask("Heartbeat", 3, self.about(member))["errorCode"])

    def commit(self, member: str = "") -> int:
        fields = self.about(member)
        fields["generationIdOrMemberEpoch"] = fields.pop("generationId")
        fields["topics"] = [{"name": "t", "partitions": [{"partitionIndex": 0, "committedOffset": 1}]}]
        return int(self.wire.ask("OffsetCommit", 7, fields)["topics"][0]["partitions"][0]["errorCode"])

    def leave(self, member: str) -> int:
        rows = [{"memberId": member, "groupInstanceId": self.instance}]
        return int(self.wire.ask("LeaveGroup", 3, {"groupId": GROUP, "members": rows})["members"][0]["errorCode"])


def rejoin(member: StaticMember) -> dict[str, Any]:
    """Rejoin, like a client whose heartbeat reports a rebalance."""
    while member.heartbeat() != Code.REBALANCE_IN_PROGRESS:
        time.sleep(0.01)
    return member.join(member=member.member)


Two = tuple[StaticMember, StaticMember]


@pytest.fixture
def two(serve: Callable[..., Address], tmp_path: Path) -> Iterator[Two]:
    """A stable group: the leader, with the assignment `A`, and a follower with `B`."""
    topic_of(tmp_path, partitions=2, records=4)
    address = serve(tmp_path)
    a, b = StaticMember(address, "a"), StaticMember(address, "b")
    a.join()
    a.sync({a.member: b""})
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(b.join)
        rejoin(a)
        assert joining.result()["leader"] == a.member
    assert a.sync({a.member: b"A", b.member: b"B"})["assignment"] == b"A"
    assert b.sync()["assignment"] == b"B"
    yield a, b
    a.wire.close()
    b.wire.close()


def test_a_static_follower_rejoins_without_a_rebalance(two: Two) -> None:
    a, b = two
    former, generation = b.member, b.generation
    b.sync()
    answer = b.join(owned=1)
    assert answer["generationId"] == generation
    assert answer["memberId"] not in ("", former)
    assert answer["leader"] == a.member
    assert not answer["members"]
    assert b.sync()["assignment"] == b"B"
    assert a.heartbeat() == b.heartbeat() == Code.NONE
    assert b.commit() == Code.NONE
    fenced = Code.FENCED_INSTANCE_ID
    assert b.heartbeat(former) == b.commit(former) == b.sync(member=former)["errorCode"] == fenced
    assert b.leave(former) == b.join(member=former)["errorCode"] == fenced
    assert a.heartbeat() == b.heartbeat() == Code.NONE


def test_a_static_leader_rejoins_without_assigning(two: Two) -> None:
    a, b = two
    former = a.member
    answer = a.join()
    assert answer["leader"] == former, "older clients would assign if they were the leader"
    assert not answer["members"]
    assert a.sync()["assignment"] == b"A"
    assert b.heartbeat() == Code.NONE
    # It is the leader again, so the next rebalance requests the assignment from it.
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(a.join, member=a.member)
        rejoin(b)
        again = leading.result()
    assert again["leader"] == a.member
    assert {row["memberId"] for row in again["members"]} == {a.member, b.member}


def test_a_rejoining_leader_is_told_to_skip_the_assignment(two: Two) -> None:
    a, b = two
    answer = a.join(version=9)
    assert (answer["leader"], answer["skipAssignment"]) == (a.member, True)
    assert (answer["protocolType"], answer["protocolName"]) == ("consumer", "range")
    assert {row["memberId"] for row in answer["members"]} == {a.member, b.member}
    assert a.sync()["assignment"] == b"A"
    answer = b.join(version=9)
    assert (answer["leader"], answer["skipAssignment"], answer["members"]) == (a.member, False, [])
    assert b.sync()["assignment"] == b"B"
    assert a.heartbeat() == b.heartbeat() == Code.NONE


def test_a_changed_subscription_starts_a_rebalance(two: Two) -> None:
    a, b = two
    generation = b.generation
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(b.join, "t", "u")
        rejoin(a)
        assert coming.result()["generationId"] > generation


def described(wire: Wire) -> dict[str, tuple[str, bytes]]:
    """Return the id and assignment of each instance, or nothing during a rebalance."""
    group = wire.ask("DescribeGroups", 5, {"groups": [GROUP]})["groups"][0]
    if group["groupState"] != "Stable":
        return {}
    return {row["groupInstanceId"]: (row["memberId"], row["memberAssignment"]) for row in group["members"]}


@pytest.mark.slow
@pytest.mark.parametrize("client", ["kafka-python", "aiokafka", LIBRDKAFKA, JAVA])
@pytest.mark.parametrize("leads", [False, True], ids=["a follower", "the leader"])
def test_a_killed_client_rejoins(serve: Callable[..., Address], tmp_path: Path, client: str, leads: bool) -> None:
    topic = topic_of(tmp_path / "log")
    address = serve(tmp_path / "log")
    group = sparklog.Groups(tmp_path / "log").group(GROUP)
    wire = Wire(address)

    def start(name: str, instance: str) -> MemberProcess:
        return MemberProcess(name, str(address), tmp_path / f"{instance}.jsonl", session=60, instance=instance)

    names = {"gone": client, "other": "kafka-python"}
    running = {}
    try:
        for instance in ("gone", "other") if leads else ("other", "gone"):
            running[instance] = start(names[instance], instance)
            wait_for(lambda: len(described(wire)) == len(running))
            # A kafka-python leader joins twice, because it does not have the metadata of its topic at first.
            time.sleep(SETTLED_SECONDS)
        before, generation = described(wire), group.description().generation
        running["gone"].kill()
        running["gone"] = start(client, "gone")
        wait_for(lambda: described(wire).get("gone", before["gone"])[0] != before["gone"][0])
        topic.append({"value": ["late"] * PARTITIONS, "partition": list(range(PARTITIONS))})
        wait_for(lambda: sum(item.offset for item in group.committed().values()) == 240 + PARTITIONS)
        after = described(wire)
        assert after["other"] == before["other"]
        assert after["gone"][1] == before["gone"][1]
        assert group.description().generation == generation
    finally:
        for member in running.values():
            member.kill()
        wire.close()
