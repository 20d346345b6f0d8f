"""Requests of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.

The assignment is computed by the server instead of a client. The members are stored in the group's journal, so a group
may also have members of the classic protocol, consumers of the root and clients of other servers. The module `groups`
handles OffsetCommit and OffsetFetch requests of members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from sparklog.groups.assignors import SERVER_ASSIGNORS
from sparklog.groups.group import CONSUMER, RECONCILING, STABLE, GroupDescription
from sparklog.groups.group_members import GroupMember, Partitions, by_topic, group_assignor
from sparklog.kafka.messages.message_schema import Fields
from sparklog.serve.apis.groups import check_texts, coordinator_of
from sparklog.serve.authorized_operations import group_operations
from sparklog.serve.codes import CONSUMER_GROUP_CODES, FAILURES, Code, CodeError, code_of
from sparklog.serve.consumer_members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_TEMPORARILY_EPOCH,
    ConsumerMembers,
    GroupHeartbeat,
)
from sparklog.serve.name_patterns import matching_names
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ

CLIENT_ID_VERSION = 1
"""The first version of ConsumerGroupHeartbeat in which the client chooses the member id."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
UNKNOWN_TOPIC = ""
"""The name that is used for topics with unknown ids. The partitions of these topics are not owned by any member."""


async def consumer_group_heartbeat(request: ServedRequest) -> Fields:
    fields = request.fields
    try:
        _check_fields(request)
        coordinator = coordinator_of(request, fields["groupId"])
        member, epoch = fields["memberId"], fields["memberEpoch"]
        if epoch in (LEAVE_EPOCH, LEAVE_TEMPORARILY_EPOCH):
            await coordinator.consumers(fields["groupId"]).leave(member, fields["instanceId"], epoch)
            return {"memberId": member, "memberEpoch": epoch}
        denied = [topic for topic in fields["subscribedTopicNames"] or () if not request.may(READ, topic)]
        if denied:
            raise CodeError(Code.TOPIC_AUTHORIZATION_FAILED, f"the user may not read topic {denied[0]!r}")
        heartbeat = await _heartbeat(request, member or coordinator.root.env.new_id())
        client = await coordinator.heartbeat(fields["groupId"], heartbeat)
        assert client.member is not None
        assignment = await _assignment(request, client.member.assigned)
    except FAILURES as error:
        return {"errorCode": code_of(error, CONSUMER_GROUP_CODES), "errorMessage": str(error)}
    response: Fields = {
        "memberId": client.id,
        "memberEpoch": client.member.epoch,
        "heartbeatIntervalMs": request.services.options.consumer_heartbeat_ms,
    }
    if heartbeat.is_full or assignment != client.assignment:
        response["assignment"] = {"topicPartitions": assignment}
        client.assignment = assignment
    return response


def _check_fields(request: ServedRequest) -> None:
    """Raise `CodeError` if the fields of a heartbeat are not valid. The checks are the same as in a broker."""
    fields = request.fields
    epoch, assignor = fields["memberEpoch"], fields["serverAssignor"]
    check_texts(request, fields["memberId"], fields["instanceId"], fields["rackId"], fields["subscribedTopicRegex"])
    if request.version >= CLIENT_ID_VERSION or epoch != JOIN_EPOCH:
        _require(fields["memberId"].strip(), "MemberId can't be empty.")
    _require(fields["groupId"].strip(), "GroupId can't be empty.")
    for name, value in (("InstanceId", fields["instanceId"]), ("RackId", fields["rackId"])):
        _require(value is None or value.strip(), f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        _require(fields["rebalanceTimeoutMs"] != -1, "RebalanceTimeoutMs must be provided in first request.")
        _require(fields["topicPartitions"] == [], "TopicPartitions must be empty when (re-)joining.")
        has_topics = fields["subscribedTopicNames"] is not None or fields["subscribedTopicRegex"] is not None
        _require(has_topics, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVE_TEMPORARILY_EPOCH:
        _require(fields["instanceId"] is not None, "InstanceId can't be null.")
    else:
        _require(epoch >= LEAVE_EPOCH, "MemberEpoch is invalid.")
    if assignor is not None and assignor not in SERVER_ASSIGNORS:
        listed = ", ".join(SERVER_ASSIGNORS)
        text = f"ServerAssignor {assignor} is not supported. Supported assignors: {listed}."
        raise CodeError(Code.UNSUPPORTED_ASSIGNOR, text)
    if fields["subscribedTopicRegex"]:
        _check_pattern(fields["subscribedTopicRegex"])


def _require(condition: object, text: str) -> None:
    if not condition:
        raise CodeError(Code.INVALID_REQUEST, text)


def _check_pattern(pattern: str) -> None:
    try:
        matching_names(pattern, ())
    except ValueError as error:
        text = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}."
        raise CodeError(Code.INVALID_REGULAR_EXPRESSION, text) from None


async def _heartbeat(request: ServedRequest, member: str) -> GroupHeartbeat:
    fields, log = request.fields, request.services.log
    names, timeout_ms = fields["subscribedTopicNames"], fields["rebalanceTimeoutMs"]

    def matching(pattern: str) -> Collection[str]:
        return matching_names(pattern, [name for name in log.topics() if request.may(READ, name)])

    return GroupHeartbeat(
        member=member,
        epoch=fields["memberEpoch"],
        instance=fields["instanceId"],
        rack=fields["rackId"],
        rebalance_ms=None if timeout_ms < 0 else timeout_ms,
        topics=None if names is None else tuple(names),
        regex=fields["subscribedTopicRegex"],
        assignor=fields["serverAssignor"],
        owned=await _owned(request),
        client=request.client.name,
        host=request.client.peer.rpartition(":")[0],
        matching=matching,
    )


async def _owned(request: ServedRequest) -> Partitions | None:
    rows, log = request.fields["topicPartitions"], request.services.log
    if rows is None:
        return None
    ids = [row["topicId"] for row in rows]
    if any(log.name_of(topic_id) is None for topic_id in ids):
        await request.services.run(log.names_of, ids)
    return frozenset((log.name_of(row["topicId"]) or UNKNOWN_TOPIC, n) for row in rows for n in row["partitions"])


async def _assignment(request: ServedRequest, partitions: Partitions) -> list[Fields]:
    """Return partitions with topic ids. Partitions of deleted topics are omitted."""
    lists = by_topic(partitions)
    ids = await _topic_ids(request.services.log, request, lists)
    return [{"topicId": ids[name], "partitions": numbers} for name, numbers in lists.items() if name in ids]


async def _topic_ids(log: ServedLog, request: ServedRequest, topics: Collection[str]) -> dict[str, str]:
    unknown = [name for name in topics if not log.last_polled(name).topic_id]
    if unknown:
        await request.services.run(log.poll_each, unknown)
    ids = {name: log.last_polled(name).topic_id for name in topics}
    return {name: topic_id for name, topic_id in ids.items() if topic_id}


# -- descriptions


async def consumer_group_describe(request: ServedRequest) -> Fields:
    names = request.fields["groupIds"]
    rows = await asyncio.gather(*(_described(request, name) for name in names))
    return {"groups": [{"groupId": name, **row} for name, row in zip(names, rows, strict=True)]}


async def _described(request: ServedRequest, name: str) -> Fields:
    try:
        coordinator = coordinator_of(request, name, reading=True)
        group = coordinator.group(name)
        state = await coordinator.run(group.log.refresh)
        description = await coordinator.run(group.description)
        if not state.exists:
            raise CodeError(Code.GROUP_ID_NOT_FOUND, f"Group {name} not found.")
        if description.type != CONSUMER:
            raise CodeError(Code.GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group.")
        row = await _description_row(request, description, coordinator.consumers(name))
    except FAILURES as error:
        return {"errorCode": code_of(error), "errorMessage": str(error)}
    if request.fields["includeAuthorizedOperations"]:
        row["authorizedOperations"] = group_operations(request, name)
    return row


async def _description_row(request: ServedRequest, description: GroupDescription, local: ConsumerMembers) -> Fields:
    topics = {topic for member in description.members for topic, _ in member.target | member.owned}
    topics |= {topic for client in local.clients.values() if client.member for topic, _ in client.member.assigned}
    ids = await _topic_ids(request.services.log, request, topics)

    def assignment(partitions: Partitions) -> Fields:
        return {
            "topicPartitions": [
                {"topicId": ids[topic], "topicName": topic, "partitions": numbers}
                for topic, numbers in by_topic(partitions).items()
                if topic in ids and request.may(READ, topic)
            ]
        }

    def row(member: GroupMember) -> Fields:
        client, consumer = local.clients.get(member.id), member.consumer
        epoch = description.generation if not member.revoked else member.generation
        assigned = member.assigned
        if client is not None and client.member is not None:
            # The partitions that the client has received. Other changes are returned in the response to its next
            # heartbeat.
            epoch, assigned = client.member.epoch, client.member.assigned
        if member.has_left:
            epoch = LEAVE_TEMPORARILY_EPOCH
        return {
            "memberId": member.id,
            "instanceId": member.instance_id,
            "rackId": consumer.rack_id if consumer is not None else None,
            "memberEpoch": epoch,
            "clientId": member.client_id,
            "clientHost": f"/{member.host}",
            "subscribedTopicNames": sorted(member.topics if consumer is None else consumer.topic_names),
            "subscribedTopicRegex": (consumer.topic_regex if consumer is not None else None) or "",
            "assignment": assignment(assigned),
            "targetAssignment": assignment(member.target),
            "memberType": CLASSIC_MEMBER if consumer is None else CONSUMER_MEMBER,
        }

    members = [row(member) for member in description.members]
    is_stable = all(
        row["memberEpoch"] == description.generation and row["assignment"] == row["targetAssignment"] for row in members
    )
    return {
        "groupState": STABLE if is_stable else RECONCILING,
        "groupEpoch": description.generation,
        "assignmentEpoch": description.generation,
        "assignorName": group_assignor(description.members),
        "members": members,
    }
