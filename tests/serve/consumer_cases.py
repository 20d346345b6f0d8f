"""Members of the consumer protocol (KIP-848) step by step: the same requests for a broker and for our server.

A case is a script of requests of members of one group. Its answer has the code of each request, how the member's epoch
has changed, and the assignment. Epochs are compared with the previous epoch of the member, because a broker and our
server count them differently.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from tests.serve.broker_cases import NOT_YET, Answer, Asked, Case, code

LEAVES, RETURNS = -1, -2
"""The epochs of a member that leaves, and of a static member that will return."""
SECONDS = 20.0
UNCHANGED = {
    "instanceId": None,
    "rackId": None,
    "rebalanceTimeoutMs": -1,
    "subscribedTopicNames": None,
    "subscribedTopicRegex": None,
    "serverAssignor": None,
    "topicPartitions": None,
}


class ConsumerGroup:
    """A group with the topics `t` (6 partitions) and `u` (2 partitions), and the latest epoch of each member."""

    def __init__(self, server: Asked) -> None:
        self.server = server
        self.id = f"group{time.monotonic_ns()}"
        self.topics = {"t": server.topic(6), "u": server.topic(2)}
        rows = [{"topicId": "AAAAAAAAAAAAAAAAAAAAAA", "name": name} for name in self.topics.values()]
        answer = server.ask("Metadata", 12, {"topics": rows, "allowAutoTopicCreation": False})
        ids = {topic["name"]: topic["topicId"] for topic in answer["topics"]}
        self.ids = {key: ids[name] for key, name in self.topics.items()}
        self.epochs: dict[str, int] = {}
        server.ask("FindCoordinator", 3, {"key": self.id, "keyType": 0})

    def ask(self, name: str, version: int, fields: dict[str, Any], find: Callable[[Any], Any] = lambda a: a) -> Any:
        for _ in range(200):
            answer = self.server.ask(name, version, fields)
            if answer == "closed" or find(answer)["errorCode"] not in NOT_YET:
                break
            time.sleep(0.02)
        return answer if answer == "closed" else find(answer)

    # -- members

    def partitions(self, owned: dict[str, Collection[int]] | Collection[int]) -> list[dict[str, Any]]:
        by_topic = owned if isinstance(owned, dict) else {"t": owned} if owned else {}
        return [{"topicId": self.ids.get(key, key), "partitions": list(rows)} for key, rows in by_topic.items()]

    def join(self, member: str, *, topics: Sequence[str] | None = ("t",), version: int = 1, **fields: Any) -> Answer:
        names = None if topics is None else [self.topics.get(topic, topic) for topic in topics]
        fields = {"rebalanceTimeoutMs": 60_000, "subscribedTopicNames": names, "topicPartitions": [], **fields}
        self.epochs.setdefault(member, 0)
        return self.heartbeat(member, epoch=0, version=version, **fields)

    def heartbeat(
        self, member: str, owned: Any = None, *, epoch: int | None = None, version: int = 1, **fields: Any
    ) -> Answer:
        """Send a heartbeat. Return the code, the change of the epoch, and the partitions by topic (None: no change)."""
        known = self.epochs.get(member, 0)
        request = {**UNCHANGED, "groupId": self.id, "memberId": member, **fields}
        request["memberEpoch"] = known if epoch is None else epoch
        if owned is not None:
            request["topicPartitions"] = self.partitions(owned)
        answer = self.ask("ConsumerGroupHeartbeat", version, request)
        if answer == "closed" or answer["errorCode"]:
            return answer if answer == "closed" else code(answer)
        new = answer["memberEpoch"]
        if new >= 0:
            self.epochs[member] = new
        change = "higher" if new > known else "same" if new == known else new if new < 0 else "lower"
        return ["NONE", change, self.assigned(answer["assignment"])]

    def assigned(self, assignment: Any) -> Answer:
        if assignment is None:
            return None
        keys = {topic_id: key for key, topic_id in self.ids.items()}
        return {keys.get(row["topicId"], "?"): sorted(row["partitions"]) for row in assignment["topicPartitions"]}

    def until(self, member: str, is_over: Callable[[Any], bool], owned: Any = None) -> Answer:
        """Send heartbeats until the answer meets a condition, and return it."""
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.heartbeat(member, owned)
            if is_over(answer) or time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    # -- the group

    def commit(self, member: str, epoch: int, version: int = 9, offset: int = 5) -> Answer:
        row = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": ""}
        topics = [{"name": self.topics["t"], "partitions": [row]}]
        fields = {"groupId": self.id, "generationIdOrMemberEpoch": epoch, "memberId": member, "topics": topics}
        answer = self.ask("OffsetCommit", version, fields, lambda found: found["topics"][0]["partitions"][0])
        return answer if answer == "closed" else code(answer)

    def committed(self, member: str | None, epoch: int, version: int = 9) -> Answer:
        """Return the committed offset of partition 0, or the error code."""
        topics = [{"name": self.topics["t"], "partitionIndexes": [0]}]
        row = {"groupId": self.id, "memberId": member, "memberEpoch": epoch, "topics": topics}
        if version < 9:
            row = {"groupId": self.id, "topics": topics}
        fields = {"groups": [row], "requireStable": False}
        answer = self.ask("OffsetFetch", version, fields, lambda found: found["groups"][0])
        if answer == "closed" or answer["errorCode"]:
            return answer if answer == "closed" else code(answer)
        return answer["topics"][0]["partitions"][0]["committedOffset"]

    def described(self) -> Answer:
        """Return the state, the assignor, and of each member the partitions, the target and its type."""
        fields = {"groupIds": [self.id], "includeAuthorizedOperations": False}
        answer = self.ask("ConsumerGroupDescribe", 1, fields, lambda found: found["groups"][0])
        if answer == "closed" or answer["errorCode"]:
            return answer if answer == "closed" else code(answer)
        members = [
            [
                *(row["memberId"], row["instanceId"], row["rackId"], row["subscribedTopicRegex"], row["memberType"]),
                sorted(key for key, name in self.topics.items() if name in row["subscribedTopicNames"]),
                *(self.assigned(row["assignment"]), self.assigned(row["targetAssignment"])),
                row["memberEpoch"] == answer["groupEpoch"],
            ]
            for row in answer["members"]
        ]
        return [answer["groupState"], answer["assignorName"], sorted(members, key=lambda row: str(row[0]))]

    def listed(self, *types: str) -> Answer:
        """Return the state and the type of the group in the list of groups of these types."""
        answer = self.server.ask("ListGroups", 5, {"statesFilter": [], "typesFilter": list(types)})
        if answer == "closed":
            return answer
        return [[row["groupState"], row["groupType"]] for row in answer["groups"] if row["groupId"] == self.id]

    def deleted(self) -> Answer:
        answer = self.ask("DeleteGroups", 2, {"groupsNames": [self.id]}, lambda found: found["results"][0])
        return answer if answer == "closed" else code(answer)

    # -- members of the classic protocol

    def join_classic(self, member: str, generation_key: str = "", **fields: Any) -> Answer:
        """Join with the classic protocol. Return the code, and keep the generation."""
        topic = self.topics["t"].encode()
        metadata = struct.pack(">hih", 0, 1, len(topic)) + topic + struct.pack(">i", -1)
        request = {
            "groupId": self.id,
            "sessionTimeoutMs": 30_000,
            "rebalanceTimeoutMs": 30_000,
            "memberId": member,
            "protocolType": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
            **fields,
        }
        answer = self.ask("JoinGroup", 5, request)
        if answer == "closed" or answer["errorCode"] not in (0, 79):
            return answer if answer == "closed" else code(answer)
        if answer["errorCode"]:
            return self.join_classic(answer["memberId"], generation_key, **fields)
        self.epochs[generation_key or "classic"] = answer["generationId"]
        self.classic_id = answer["memberId"]
        self.is_leader = answer["leader"] == answer["memberId"]
        return ["NONE", answer["protocolName"]]


Script: TypeAlias = Callable[[ConsumerGroup], Answer]
SCRIPTS: dict[str, Script] = {}


def script(run: Script) -> Script:
    SCRIPTS[run.__name__.replace("_", " ")] = run
    return run


@script
def one_member(group: ConsumerGroup) -> Answer:
    steps = [group.join("a"), group.described(), group.heartbeat("a", range(6)), group.heartbeat("a")]
    full = {"rebalanceTimeoutMs": 60_000, "subscribedTopicNames": [group.topics["t"]]}
    steps += [group.heartbeat("a", range(6), **full), group.listed(), group.listed("consumer"), group.listed("classic")]
    steps += [group.deleted(), group.heartbeat("a", epoch=LEAVES), group.heartbeat("a"), group.deleted()]
    return [*steps, group.heartbeat("a"), group.described()]


@script
def two_members(group: ConsumerGroup) -> Answer:
    """Partitions move when the first member has revoked them."""
    steps = [group.join("a"), group.heartbeat("a", range(6)), group.join("b"), group.described()]
    steps += [group.heartbeat("b"), group.heartbeat("a"), group.described(), group.heartbeat("b"), group.heartbeat("a")]
    steps += [group.heartbeat("a", range(6)), group.heartbeat("b"), group.heartbeat("a", range(3)), group.described()]
    steps += [group.heartbeat("b"), group.described(), group.heartbeat("b", range(3, 6)), group.heartbeat("a")]
    steps += [group.heartbeat("b", epoch=LEAVES), group.heartbeat("a"), group.heartbeat("a", range(6))]
    return steps


@script
def three_members(group: ConsumerGroup) -> Answer:
    steps = [group.join("a"), group.heartbeat("a", range(6)), group.join("b"), group.join("c"), group.described()]
    steps += [group.heartbeat("a"), group.heartbeat("a", range(2)), group.heartbeat("b"), group.heartbeat("c")]
    steps += [group.heartbeat("a", epoch=LEAVES), group.heartbeat("b"), group.heartbeat("c"), group.described()]
    return steps


@script
def a_member_that_joins_again(group: ConsumerGroup) -> Answer:
    steps = [group.join("a"), group.heartbeat("a", range(6)), group.join("a"), group.heartbeat("a", range(6))]
    steps += [group.join("b"), group.heartbeat("a"), group.join("a"), group.heartbeat("b"), group.described()]
    return steps


@script
def repeated_heartbeats(group: ConsumerGroup) -> Answer:
    """The response with a new epoch is lost."""
    group.join("a")
    steps = [group.heartbeat("a", range(6)), group.join("b"), group.heartbeat("a")]
    before = group.epochs["a"]
    steps += [group.heartbeat("a", range(3))]
    steps += [group.heartbeat("a", range(3), epoch=before), group.heartbeat("a", [], epoch=before)]
    steps += [group.heartbeat("a", range(4), epoch=before), group.heartbeat("a", epoch=before)]
    steps += [group.heartbeat("a", {"t": range(3), "AAAAAAAAAAAAAAAAAAAAAw": [0]}, epoch=before)]
    steps += [group.heartbeat("a", range(3)), group.join("c"), group.heartbeat("a", range(3), epoch=before)]
    return steps


@script
def epochs(group: ConsumerGroup) -> Answer:
    steps = [group.heartbeat("a", epoch=1), group.heartbeat("a", epoch=LEAVES), group.join("a")]
    steps += [group.heartbeat("a", epoch=9), group.heartbeat("b", epoch=1), group.heartbeat("b", epoch=LEAVES)]
    return [*steps, group.heartbeat("a", range(6)), group.heartbeat("a", epoch=-3)]


@script
def invalid_heartbeats(group: ConsumerGroup) -> Answer:
    joins: list[dict[str, Any]] = [
        {"instanceId": ""},
        {"rackId": ""},
        {"rebalanceTimeoutMs": -1},
        {"topicPartitions": None},
        {"topicPartitions": group.partitions([0])},
        {"serverAssignor": "sticky"},
        {"serverAssignor": ""},
        {"groupId": ""},
        {"subscribedTopicRegex": "("},
        {"subscribedTopicRegex": "(?=a)"},
    ]
    steps = [group.join("x", **fields) for fields in joins]
    steps += [group.join("x", topics=None), group.join("")]
    steps += [group.join("y", topics=()), group.heartbeat("", epoch=1), group.heartbeat("y", epoch=RETURNS)]
    steps += [group.heartbeat("", epoch=LEAVES), group.heartbeat("", epoch=RETURNS, instanceId="i")]
    return steps


@script
def version_0(group: ConsumerGroup) -> Answer:
    """The server generates the member id."""
    fields = {**UNCHANGED, "groupId": group.id, "memberId": "", "memberEpoch": 0, "rebalanceTimeoutMs": 60_000}
    fields |= {"subscribedTopicNames": [group.topics["t"]], "topicPartitions": []}
    answer = group.ask("ConsumerGroupHeartbeat", 0, fields)
    member = answer["memberId"]
    group.epochs[member] = answer["memberEpoch"]
    steps = [code(answer), group.assigned(answer["assignment"]), len(member), answer["heartbeatIntervalMs"]]
    return [*steps, group.heartbeat(member, range(6), version=0), group.heartbeat(member, epoch=LEAVES, version=0)]


@script
def static_members(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.heartbeat("a", range(6), instanceId="i"), group.heartbeat("a")]
    steps += [group.join("b", instanceId="i"), group.heartbeat("b", epoch=1, instanceId="i")]
    steps += [group.heartbeat("a", epoch=RETURNS, instanceId="j"), group.heartbeat("a", epoch=RETURNS, instanceId="i")]
    steps += [group.described(), group.listed(), group.heartbeat("a", instanceId="i")]
    steps += [group.join("b", instanceId="i"), group.described(), group.heartbeat("b", range(6), instanceId="i")]
    steps += [group.heartbeat("a", epoch=1, instanceId="i"), group.heartbeat("a", epoch=1)]
    steps += [group.heartbeat("a", epoch=LEAVES, instanceId="i"), group.heartbeat("b", epoch=LEAVES, instanceId="i")]
    return [*steps, group.heartbeat("b", instanceId="i")]


@script
def a_static_member_that_joins_again(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.heartbeat("a", range(6)), group.join("a", instanceId="i")]
    steps += [group.heartbeat("a", epoch=RETURNS, instanceId="i"), group.join("a", instanceId="i")]
    return [*steps, group.heartbeat("a", range(6)), group.join("c"), group.heartbeat("a")]


@script
def a_static_member_returns_after_a_rebalance(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.heartbeat("a", range(6)), group.join("c"), group.heartbeat("c")]
    steps += [group.heartbeat("a", epoch=RETURNS, instanceId="i"), group.heartbeat("c"), group.described()]
    steps += [group.join("b", instanceId="i"), group.heartbeat("c"), group.described()]
    return steps


@script
def a_static_member_restarts_with_another_id(group: ConsumerGroup) -> Answer:
    """All members keep their partitions, although `uniform` would assign them differently with the new id."""
    one, two = {"u": [0]}, {"u": [1]}
    steps = [group.join("a", topics=["u"], instanceId="i"), group.heartbeat("a", {"u": range(2)})]
    steps += [group.join("b", topics=["u"]), group.heartbeat("a"), group.heartbeat("a", one), group.heartbeat("b")]
    steps += [group.join("c", topics=["u"]), group.heartbeat("a", one), group.heartbeat("b", two), group.heartbeat("c")]
    steps += [group.heartbeat("a", epoch=RETURNS, instanceId="i"), group.join("d", topics=["u"], instanceId="i")]
    return [*steps, group.heartbeat("b", two), group.heartbeat("c"), group.heartbeat("d", one), group.described()]


@script
def a_member_joins_with_the_instance_id_of_another_member(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.join("b"), group.heartbeat("a", range(3)), group.heartbeat("b")]
    steps += [group.join("b", instanceId="i"), group.heartbeat("b", instanceId="i"), group.heartbeat("b")]
    steps += [group.heartbeat("a", instanceId="i"), group.heartbeat("b", instanceId="j")]
    return [*steps, group.join("c", instanceId="i"), group.heartbeat("c", epoch=1, instanceId="i"), group.described()]


@script
def a_static_member_joins_with_the_instance_id_of_another_static_member(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.join("b", instanceId="j"), group.heartbeat("a", range(3))]
    steps += [group.heartbeat("b"), group.join("b", instanceId="i"), group.heartbeat("b", instanceId="i")]
    steps += [group.heartbeat("b", epoch=LEAVES, instanceId="i"), group.heartbeat("b", epoch=RETURNS, instanceId="i")]
    return [*steps, group.heartbeat("a", instanceId="i"), group.heartbeat("b", instanceId="j"), group.described()]


@script
def a_member_joins_with_the_instance_id_of_a_member_that_returns(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.join("b"), group.heartbeat("a", range(3)), group.heartbeat("b")]
    steps += [group.heartbeat("a", epoch=RETURNS, instanceId="i"), group.heartbeat("b", instanceId="i")]
    steps += [group.heartbeat("c", epoch=1, instanceId="i"), group.heartbeat("a", epoch=RETURNS, instanceId="i")]
    return [*steps, group.heartbeat("a", epoch=LEAVES, instanceId="i"), group.heartbeat("a", instanceId="i")]


@script
def a_dynamic_member_becomes_static(group: ConsumerGroup) -> Answer:
    steps = [group.join("a"), group.heartbeat("a", range(6)), group.heartbeat("a", instanceId="i")]
    steps += [group.join("a", instanceId="i"), group.described(), group.heartbeat("a", range(6), instanceId="i")]
    return [*steps, group.join("b", instanceId="i"), group.heartbeat("a", epoch=RETURNS, instanceId="i")]


@script
def a_dynamic_member_replaces_a_static_member_that_returns(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.join("b"), group.heartbeat("a", range(3)), group.heartbeat("b")]
    steps += [group.heartbeat("b", range(3, 6)), group.heartbeat("a", epoch=RETURNS, instanceId="i")]
    steps += [group.join("b", instanceId="i")[:2], group.heartbeat("a", instanceId="i"), group.heartbeat("a")]
    return [*steps, group.until("b", lambda answer: answer[2] is None, range(6)), group.described()]


@script
def a_static_member_joins_without_its_instance_id(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.heartbeat("a", range(6)), group.join("a"), group.described()]
    return [*steps, group.heartbeat("a", range(6), instanceId="i"), group.join("b", instanceId="i")]


@script
def a_static_member_that_returns_as_a_dynamic_member(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.heartbeat("a", range(6))]
    steps += [group.heartbeat("a", epoch=RETURNS, instanceId="i"), group.heartbeat("a"), group.heartbeat("a", range(6))]
    return [*steps, group.heartbeat("a", epoch=RETURNS), group.join("b", instanceId="i"), group.heartbeat("a")]


@script
def unknown_members_with_instance_ids(group: ConsumerGroup) -> Answer:
    steps = [group.heartbeat("a", epoch=1, instanceId="i"), group.heartbeat("a", epoch=LEAVES, instanceId="i")]
    steps += [group.join("a", instanceId="i"), group.heartbeat("b", epoch=1, instanceId="j")]
    steps += [group.heartbeat("b", epoch=LEAVES, instanceId="j"), group.heartbeat("b", epoch=RETURNS, instanceId="j")]
    steps += [group.heartbeat("b", epoch=LEAVES, instanceId="i"), group.heartbeat("b", epoch=RETURNS, instanceId="i")]
    steps += [group.heartbeat("b", epoch=LEAVES), group.heartbeat("a", epoch=99, instanceId="i")]
    steps += [group.heartbeat("a", epoch=RETURNS), group.join("b", instanceId="")]
    return [*steps, group.heartbeat("a", range(6)), group.heartbeat("a", epoch=LEAVES), group.join("b", instanceId="i")]


@script
def commits(group: ConsumerGroup) -> Answer:
    steps = [group.commit("a", 1), group.commit("", -1), group.committed("a", 1), group.committed(None, -1)]
    steps += [group.join("a"), group.heartbeat("a", range(6))]
    old = group.epochs["a"]
    steps += [group.commit("a", old), group.committed("a", old), group.commit("a", old, version=8)]
    steps += [group.join("b"), group.heartbeat("a"), group.commit("a", old, offset=6), group.heartbeat("a", range(3))]
    new = group.epochs["a"]
    steps += [group.commit("a", old, offset=7), group.committed("a", old), group.commit("a", new, offset=8)]
    steps += [group.committed("a", new), group.committed("a", 99), group.commit("a", 99), group.commit("x", new)]
    steps += [group.committed("x", new), group.committed(None, -1), group.committed(None, -1, version=8)]
    steps += [group.commit("", -1), group.heartbeat("b", epoch=LEAVES), group.commit("a", new, offset=9)]
    return [*steps, group.heartbeat("a", epoch=LEAVES), group.commit("a", new), group.commit("", -1, offset=10)]


@script
def commits_of_a_static_member_that_returns(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", instanceId="i"), group.heartbeat("a", range(6)), group.commit("a", group.epochs["a"])]
    old = group.epochs["a"]
    steps += [group.heartbeat("a", epoch=RETURNS, instanceId="i"), group.commit("a", old), group.committed("a", old)]
    steps += [group.heartbeat("a", range(6), epoch=old, instanceId="i")]
    steps += [group.join("b", instanceId="i"), group.commit("a", old), group.committed("a", old)]
    return [*steps, group.commit("b", group.epochs["b"], offset=6), group.committed("b", group.epochs["b"])]


@script
def commits_of_a_consumer_that_does_not_join(group: ConsumerGroup) -> Answer:
    steps = [group.commit("a", -1), group.committed(None, -1), group.commit("a", -1, version=8, offset=6)]
    steps += [group.commit("a", 1), group.committed("a", -1), group.listed(), group.join("b")]
    steps += [group.commit("a", -1), group.commit("b", -1), group.committed("a", -1)]
    return [*steps, group.heartbeat("b", epoch=LEAVES), group.commit("a", -1, offset=7), group.committed(None, -1)]


@script
def subscriptions(group: ConsumerGroup) -> Answer:
    def names(*topics: str) -> list[str]:
        return [group.topics.get(topic, topic) for topic in topics]

    steps = [group.join("a"), group.heartbeat("a", range(6), subscribedTopicNames=names("t", "u")), group.described()]
    steps += [group.heartbeat("a", {"t": range(6), "u": range(2)}), group.heartbeat("a", subscribedTopicNames=[])]
    steps += [group.heartbeat("a", []), group.heartbeat("a", subscribedTopicNames=names("u", "missing"))]
    steps += [group.heartbeat("a", {"u": range(2)}), group.heartbeat("a", subscribedTopicNames=names("u"))]
    return [*steps, group.described()]


@script
def invalid_topic_names(group: ConsumerGroup) -> Answer:
    steps = [group.join("a", topics=("t", "a#!b")), group.heartbeat("a", subscribedTopicNames=["x" * 300, "", ".."])]
    return [*steps, group.heartbeat("a", [], subscribedTopicNames=[group.topics["u"], "\u00e9"])]


@script
def regular_expressions(group: ConsumerGroup) -> Answer:
    """A broker looks for matching topics later."""
    pattern = f"({group.topics['t']}|{group.topics['u']}x)"
    steps = [group.join("a", topics=None, subscribedTopicRegex=pattern)[:2]]
    if not group.described()[2][0][6]:
        group.until("a", lambda answer: bool(answer[2]))
    steps += [group.heartbeat("a", range(6)), group.described()[2][0][6:]]
    steps += [group.heartbeat("a", subscribedTopicRegex="(")]
    steps += [group.heartbeat("a", subscribedTopicRegex="", subscribedTopicNames=[group.topics["u"]])]
    steps += [group.heartbeat("a", []), group.heartbeat("a", {"u": range(2)})]
    return steps


@script
def assignors(group: ConsumerGroup) -> Answer:
    both = ("t", "u")
    steps = [group.join("a", topics=both, serverAssignor="range"), group.join("b", topics=both), group.described()]
    steps += [group.heartbeat("a", {"t": range(6), "u": range(2)}), group.heartbeat("a", {"t": range(3), "u": [0]})]
    steps += [
        group.heartbeat("b"),
        group.join("c", topics=both, serverAssignor="uniform"),
        group.join("d", topics=both),
    ]
    return [*steps, group.described()[:2]]


@script
def a_member_that_does_not_revoke(group: ConsumerGroup) -> Answer:
    """It is removed after its rebalance timeout."""
    steps = [group.join("a", rebalanceTimeoutMs=500), group.heartbeat("a", range(6)), group.join("b")]
    steps += [group.heartbeat("a"), group.until("b", lambda answer: answer[2] is not None)]
    return [*steps, group.heartbeat("a", range(6)), group.join("a")]


@script
def more_partitions(group: ConsumerGroup) -> Answer:
    steps = [group.join("a"), group.heartbeat("a", range(6))]
    topic = {"name": group.topics["t"], "count": 8, "assignments": None}
    group.ask("CreatePartitions", 3, {"topics": [topic], "timeoutMs": 9_000}, lambda found: found["results"][0])
    return [*steps, group.until("a", lambda answer: answer[2] is not None), group.described()]


@script
def a_group_without_members(group: ConsumerGroup) -> Answer:
    steps = [group.commit("", -1), group.described(), group.listed(), group.heartbeat("a", epoch=1)]
    steps += [group.join("a"), group.listed("consumer"), group.heartbeat("a", epoch=LEAVES)]
    return steps


@script
def a_classic_group_with_another_protocol_type(group: ConsumerGroup) -> Answer:
    steps = [group.join_classic("", protocolType="connect"), group.join("a")]
    return [*steps, group.described(), group.listed()]


@script
def a_classic_member_joins(group: ConsumerGroup) -> Answer:
    steps = [group.join("a"), group.heartbeat("a", range(6)), group.join_classic(""), group.listed()]
    steps += [group.join_classic("", protocolType="connect")]
    return [*steps, group.heartbeat("a"), group.heartbeat("a", range(3))[:2]]


def _case(run: Script) -> Case:
    return lambda server: run(ConsumerGroup(server))


CONSUMER_CASES = {f"consumers: {name}": _case(run) for name, run in SCRIPTS.items()}
_THREE = {"t": [0, 1, 2]}
_REST = {"t": [3, 4, 5]}
_MEMBER = [None, "", 1, ["t"]]
DIFFERENT_STEPS: dict[str, dict[int, Answer]] = {
    # A broker fences a member that joins again while it must revoke partitions, until its session times out. The epoch
    # 0 means that the client has abandoned its partitions.
    "consumers: a member that joins again": {
        6: ["NONE", "higher", _THREE],
        7: ["NONE", "same", _REST],
        8: [
            *("Stable", "uniform"),
            [["a", None, *_MEMBER, _THREE, _THREE, True], ["b", None, *_MEMBER, _REST, _REST, True]],
        ],
    },
    # Member b has not got partition 5 yet, but owns it, because an entry assigns free partitions to their next owners.
    "consumers: repeated heartbeats": {10: ["NONE", "higher", {}]},
    # The response to a join may have been lost. Each join of a static member starts a generation.
    "consumers: a static member that joins again": {
        2: ["NONE", "same", {"t": [0, 1, 2, 3, 4, 5]}],
        4: ["NONE", "higher", {"t": [0, 1, 2, 3, 4, 5]}],
    },
    # The assignment does not change, but the other members continue with the new generation.
    "consumers: a static member restarts with another id": {
        12: ["NONE", "higher", None],
        13: ["NONE", "higher", None],
    },
    # A new instance id is a new member in the journal, so its join starts a generation.
    "consumers: a dynamic member becomes static": {3: ["NONE", "higher", {"t": [0, 1, 2, 3, 4, 5]}]},
    # A broker does not assign the partitions of the member's previous id until the next rebalance.
    "consumers: a dynamic member replaces a static member that returns": {
        6: ["NONE", "higher"],
        10: [
            *("Stable", "uniform"),
            [["b", "i", *_MEMBER, {"t": [0, 1, 2, 3, 4, 5]}, {"t": [0, 1, 2, 3, 4, 5]}, True]],
        ],
    },
    # A static member that leaves temporarily releases the partitions that it must revoke.
    "consumers: a static member returns after a rebalance": {
        5: ["NONE", "same", _REST],
        6: [
            *("Reconciling", "uniform"),
            [["a", "i", *_MEMBER, _THREE, _THREE, False], ["c", None, *_MEMBER, _REST, _REST, True]],
        ],
        8: ["NONE", "higher", None],
    },
    # An empty group has no type. Clients rejoin with this code, and fail with the code of a broker.
    "consumers: a group without members": {3: "UNKNOWN_MEMBER_ID"},
}
"""The steps in which our server differs from a broker on purpose."""
