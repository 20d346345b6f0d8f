"""Handle requests about groups: members, offsets and administration.

`sparklog groups`, consumers of the root and Spark queries with `kafka.group.id` use the same offsets. A commit without
a member id (generation -1) sets the offsets of an empty group, for example when an operator resets the offsets. If a
group also has members outside this server (consumers of the root, a Spark query, clients of another server), its
description is read from the journal.

JoinGroup, SyncGroup, Heartbeat and LeaveGroup are requests of the classic protocol. Requests of the consumer protocol
(KIP-848) are in `consumer_groups`.

Retention times in offset commits and leader epochs in responses are not supported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from sparklog.errors import Conflict, NotFound
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import DEAD, Group
from sparklog.groups.group_journal import MAX_METADATA
from sparklog.groups.group_members import by_topic
from sparklog.groups.group_state import NO_EPOCH, OffsetAndMetadata
from sparklog.groups.lag import Groups
from sparklog.kafka.messages.message_schema import Fields
from sparklog.log.journal.documents import MAX_TEXT
from sparklog.log.journal.names import check_id
from sparklog.serve.authorized_operations import group_operations
from sparklog.serve.codes import FAILURES, GROUP_CODES, Code, CodeError, code_of, errors_as, failure, partition_rows
from sparklog.serve.coordinator import Coordinator, Positions
from sparklog.serve.group_members import COMPLETING, GroupMembers
from sparklog.serve.join_details import CONSUMER, JoinDetails
from sparklog.serve.peers import ranking
from sparklog.serve.served_log import MISSING
from sparklog.serve.services import ServedRequest
from sparklog.serve.shared_members import assignment_bytes
from sparklog.serve.users import GROUP, READ

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""Key types of FindCoordinator."""
GROUPS_VERSION, KEYS_VERSION = 8, 4
"""The first versions of OffsetFetch and FindCoordinator that can request several groups."""
PROTOCOL_VERSION, NOT_FOUND_VERSION = 5, 6
"""The first version of SyncGroup that contains the protocol of the group, and the first version of DescribeGroups that
returns an error if a group does not exist.
"""
CONSUMER_VERSION = 9
"""The first version of OffsetCommit that members of the consumer protocol may use."""
NO_OFFSET: Fields = {"committedOffset": -1, "metadata": ""}


def check_group(request: ServedRequest, group: str) -> None:
    """Raise `BadRequest` if the group id is invalid, and `CodeError` if the client may not use the group."""
    check_id(group, "group id")
    if not request.may(GROUP, group):
        raise CodeError(Code.GROUP_AUTHORIZATION_FAILED, "the user may not use this group")


def check_texts(request: ServedRequest, *values: str | None) -> None:
    """Raise `CodeError` if the client id or another string of a member is too long for the group's journal."""
    if any(len(value) > MAX_TEXT for value in (*values, request.client.name) if value is not None):
        raise CodeError(Code.INVALID_REQUEST, f"the maximum length of names and expressions is {MAX_TEXT} characters")


def coordinator_of(request: ServedRequest, group: str, *, reading: bool = False) -> Coordinator:
    """Return the coordinator. Raises the same exceptions as `check_group`. Also raises `CodeError` if groups do not
    have journals, or if `reading` is False and the location was read-only when the server started. If the location
    became read-only later, requests fail when they write to the journal, and clients retry.
    """
    check_group(request, group)
    coordinator = request.services.coordinator
    if coordinator is None or not (reading or request.services.has_writable_groups):
        raise CodeError(Code.GROUP_AUTHORIZATION_FAILED)
    return coordinator


def _members_of(request: ServedRequest) -> GroupMembers:
    """Return the members of the group in a request. Raises the same exceptions as `coordinator_of`."""
    group = request.fields["groupId"]
    return coordinator_of(request, group).members(group)


def _with_code(handler: Callable[..., Awaitable[Fields]]) -> Callable[..., Awaitable[Fields]]:
    """Respond to a failed request, or to a failed part of a request, with only the error code."""

    @wraps(handler)
    async def response(*arguments: Any) -> Fields:
        try:
            return await handler(*arguments)
        except FAILURES as error:
            return {"errorCode": code_of(error, GROUP_CODES)}

    return response


# -- members


async def join_group(request: ServedRequest) -> Fields:
    fields = request.fields
    details = JoinDetails(
        member=fields["memberId"],
        instance=fields["groupInstanceId"],
        client=request.client.name,
        host=request.client.peer.rpartition(":")[0],
        session_ms=fields["sessionTimeoutMs"],
        # Version 0 has one field for both timeouts.
        rebalance_ms=fields["rebalanceTimeoutMs"] if request.version >= 1 else fields["sessionTimeoutMs"],
        kind=fields["protocolType"],
        protocols=tuple((protocol["name"], protocol["metadata"]) for protocol in fields["protocols"]),
    )
    try:
        coordinator = coordinator_of(request, fields["groupId"])
        check_texts(request, details.member, details.instance)
        min_ms, max_ms = request.services.options.session_timeouts_ms
        if not min_ms <= details.session_ms <= max_ms:
            raise CodeError(Code.INVALID_SESSION_TIMEOUT)
        await coordinator.check_owner(fields["groupId"])
        members, version = coordinator.members(fields["groupId"]), request.version
        joined = await members.join(details, id_first=version >= 4, may_skip=version >= 9)
    except FAILURES as error:
        member = error.fields.get("memberId", "") if isinstance(error, CodeError) else ""
        return {"errorCode": code_of(error, GROUP_CODES), "generationId": -1, "memberId": member or details.member}
    return {
        "generationId": joined.generation,
        "protocolType": details.kind,
        "protocolName": joined.protocol,
        "leader": joined.leader,
        "skipAssignment": joined.skips_assignment,
        "memberId": joined.member,
        "members": [
            {"memberId": one.id, "groupInstanceId": one.details.instance, "metadata": one.metadata(joined.protocol)}
            for one in joined.members
        ],
    }


def _sender(request: ServedRequest) -> tuple[str, int, str | None]:
    return request.fields["memberId"], request.fields["generationId"], request.fields["groupInstanceId"]


@_with_code
async def sync_group(request: ServedRequest) -> Fields:
    members, fields = _members_of(request), request.fields
    members.checked(*_sender(request))
    if request.version >= PROTOCOL_VERSION:
        for requested, current in ((fields["protocolType"], members.kind), (fields["protocolName"], members.protocol)):
            if requested is None or (current and requested != current):
                raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL)
    assignments = {item["memberId"]: item["assignment"] for item in fields["assignments"]}
    protocol = {"protocolType": fields["protocolType"], "protocolName": fields["protocolName"]}
    return {"assignment": await members.sync(*_sender(request), assignments), **protocol}


@_with_code
async def heartbeat(request: ServedRequest) -> Fields:
    return {"errorCode": _members_of(request).heartbeat(*_sender(request))}


@_with_code
async def leave_group(request: ServedRequest) -> Fields:
    members = _members_of(request)
    if request.version < 3:
        return {"errorCode": await members.leave(request.fields["memberId"], None)}
    rows = [(row["memberId"], row["groupInstanceId"]) for row in request.fields["members"]]
    return {
        "members": [
            {"memberId": member, "groupInstanceId": instance, "errorCode": await members.leave(member, instance)}
            for member, instance in rows
        ]
    }


# -- offsets


async def offset_commit(request: ServedRequest) -> Fields:
    positions = Positions()
    try:
        coordinator = coordinator_of(request, request.fields["groupId"])
        rows = await request.services.run(checked_positions, request, positions)
        if positions:
            await _commit(coordinator, request.fields, positions, request.version)
    except FAILURES as error:
        await poll_deleted(request, error, positions)
        code = code_of(error, GROUP_CODES)
        rows = partition_rows(request.fields, lambda *_: {"errorCode": code})
    return {"topics": rows}


async def poll_deleted(request: ServedRequest, error: Exception, positions: Positions) -> None:
    """Poll the topics of offsets that could not be committed because a topic was deleted after it had been polled. When
    the client retries, only the deleted topic gets an error.
    """
    if isinstance(error, NotFound):
        await request.services.run(request.services.log.poll_each, list(positions))


def checked_positions(request: ServedRequest, positions: Positions) -> list[Fields]:
    """Return the responses for all partitions. Add the offsets that can be committed to `positions`."""
    log, numbers = request.services.log, dict[str, set[int]]()
    for topic in request.fields["topics"]:
        numbers.setdefault(topic["name"], set()).update(row["partitionIndex"] for row in topic["partitions"])
    # Another process may have added partitions after a topic was polled.
    polled = log.poll([name for name, rows in numbers.items() if not rows <= log.last_polled(name).ends.keys()])
    bounds = {name: log.last_polled(name).ends or polled.get(name, MISSING).ends for name in numbers}

    def code(topic: str, row: Fields) -> Code:
        number, metadata, epoch = row["partitionIndex"], row["committedMetadata"] or "", row["committedLeaderEpoch"]
        if not request.may(READ, topic):
            return Code.TOPIC_AUTHORIZATION_FAILED
        if number not in bounds[topic]:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if len(metadata.encode()) > MAX_METADATA:
            return Code.OFFSET_METADATA_TOO_LARGE
        if row["committedOffset"] >= 0:
            position = OffsetAndMetadata(row["committedOffset"], metadata, None if epoch < 0 else epoch)
            positions.setdefault(topic, {})[number] = position
        return Code.NONE

    return partition_rows(request.fields, lambda topic, row: {"errorCode": code(topic, row)})


async def _commit(coordinator: Coordinator, fields: Fields, positions: Positions, version: int) -> None:
    group, member, generation = fields["groupId"], fields["memberId"], fields["generationIdOrMemberEpoch"]
    if generation < 0 and await _commit_as_administrator(coordinator, group, positions):
        return
    if generation < 0 and not member:
        raise CodeError(Code.UNKNOWN_MEMBER_ID)
    client = await coordinator.consumer_client(group, member, generation)
    if client is not None:
        if version < CONSUMER_VERSION:
            raise CodeError(Code.UNSUPPORTED_VERSION)
        await coordinator.consumers(group).commit(client, generation, positions)
        return
    members = coordinator.members(group)
    if version >= CONSUMER_VERSION and not members.members:
        state = await coordinator.run(coordinator.group(group).log.refresh)
        if not state.exists:
            raise CodeError(Code.GROUP_ID_NOT_FOUND)
    sender = members.checked(member, generation, fields["groupInstanceId"])
    members.restart_session(sender)
    if members.state == COMPLETING:
        raise CodeError(Code.REBALANCE_IN_PROGRESS)
    await coordinator.commit(group, positions, sender)


async def _commit_as_administrator(coordinator: Coordinator, group: str, positions: Positions) -> bool:
    """Commit offsets for an administrator, or for a consumer that does not join its group but may have a member id.

    Return False if the group has members.
    """
    if coordinator.local_members(group) is not None:
        return False
    try:
        await coordinator.run(coordinator.group(group).alter, positions)
    except Conflict:
        return False
    return True


async def offset_fetch(request: ServedRequest) -> Fields:
    if request.version < GROUPS_VERSION:
        return await _offset_fetch(request, request.fields["groupId"], request.fields["topics"], request.fields)
    rows = []
    for requested in request.fields["groups"]:
        response = await _offset_fetch(request, requested["groupId"], requested["topics"], requested)
        if response.get("errorCode"):
            # Like a broker, return only the error code of the group.
            response["topics"] = []
        rows.append({"groupId": requested["groupId"], **response})
    return {"groups": rows}


async def _offset_fetch(request: ServedRequest, group: str, requested: list[Fields] | None, sender: Fields) -> Fields:
    """Return the committed offsets of a group for the requested topics, or for all topics if `topics` is None. `sender`
    contains the fields of the requesting member.
    """
    numbers = None if requested is None else {topic["name"]: topic["partitionIndexes"] for topic in requested}
    try:
        coordinator = coordinator_of(request, group, reading=True)
        await coordinator.consumer_client(group, sender.get("memberId") or "", sender.get("memberEpoch", -1))
        return {"topics": await coordinator.run(_offsets, request, coordinator.group(group), numbers)}
    except FAILURES as error:
        code = code_of(error, GROUP_CODES)
    # In version 1, only partitions have an error code.
    return {"errorCode": code, "topics": _offset_rows(numbers or {}, lambda _: {"errorCode": code})}


def _offsets(request: ServedRequest, group: Group, numbers: dict[str, list[int]] | None) -> list[Fields]:
    """Return the committed offsets of the partitions, by topic. If the partitions are None, return the offsets of all
    topics that the client may read.
    """
    waiting = set[TopicPartition]()
    if request.fields["requireStable"]:
        # Read the pending partitions before the offsets. If a transaction is committed between the two reads, its
        # offsets are reported as unstable.
        waiting = _pending(group)
    committed = {
        topic_partition: item
        for topic_partition, item in group.committed().items()
        if request.may(READ, topic_partition[0])
    }

    def row(topic_partition: TopicPartition) -> Fields:
        if not request.may(READ, topic_partition[0]):
            return {"errorCode": Code.TOPIC_AUTHORIZATION_FAILED}
        if topic_partition in waiting:
            return {"errorCode": Code.UNSTABLE_OFFSET_COMMIT}
        item = committed.get(topic_partition)
        if item is None:
            return {}
        epoch = NO_EPOCH if item.leader_epoch is None else item.leader_epoch
        return {"committedOffset": item.offset, "committedLeaderEpoch": epoch, "metadata": item.metadata}

    return _offset_rows(by_topic(committed) if numbers is None else numbers, row)


def _pending(group: Group) -> set[TopicPartition]:
    """Abort transactions that exceeded their timeout, and return the partitions with pending offsets. If a group does
    not have members, its transactions would otherwise remain open until maintenance runs.
    """
    pending = group.description().pending
    if pending and group.root.store.writable:
        group.resolve_pending()
        pending = group.description().pending
    return {(topic, partition) for _, _, topic, partition, _ in pending}


def _offset_rows(numbers: dict[str, list[int]], row: Callable[[TopicPartition], Fields]) -> list[Fields]:
    return [
        {"name": topic, "partitions": [{"partitionIndex": n, **NO_OFFSET, **row((topic, n))} for n in partitions]}
        for topic, partitions in numbers.items()
    ]


@_with_code
async def offset_delete(request: ServedRequest) -> Fields:
    group, code = request.fields["groupId"], Code.NONE
    topics = [topic for topic in request.fields["topics"] if request.may(READ, topic["name"])]
    partitions = {topic["name"]: [row["partitionIndex"] for row in topic["partitions"]] for topic in topics}
    coordinator = coordinator_of(request, group)
    try:
        with errors_as(NotFound, Code.GROUP_ID_NOT_FOUND):
            await coordinator.run(coordinator.group(group).delete_offsets, partitions)
    except Conflict:
        code = Code.GROUP_SUBSCRIBED_TO_TOPIC
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    rows = partition_rows(request.fields, lambda topic, _: {"errorCode": code if topic in partitions else denied})
    return {"topics": rows}


# -- entire groups


async def find_coordinator(request: ServedRequest) -> Fields:
    if request.version < KEYS_VERSION:
        return await _find_coordinator(request, request.fields["key"])
    keys = request.fields["coordinatorKeys"]
    responses = await asyncio.gather(*(_find_coordinator(request, key) for key in keys))
    return {"coordinators": [{"key": key, **response} for key, response in zip(keys, responses, strict=True)]}


async def _find_coordinator(request: ServedRequest, group: str) -> Fields:
    services, coordinator = request.services, request.services.coordinator
    try:
        if request.fields["keyType"] == TRANSACTION_KEY:
            nodes = sorted(services.peers.nodes, key=lambda node: ranking(group, node))
            node = await services.peers.first_responding(nodes)
        elif request.fields["keyType"] == GROUP_KEY:
            check_group(request, group)
            # A Kafka directory does not have groups. Do not return an error, because librdkafka requests a coordinator
            # even if it reads without a group.
            node = services.peers.own if coordinator is None else await coordinator.owner(group)
        else:
            raise CodeError(Code.INVALID_REQUEST, "share groups are not supported")
    except FAILURES as error:
        return {**failure(error, GROUP_CODES), "nodeId": -1}
    return {"nodeId": services.node_ids[node], "host": node.host, "port": node.port}


@_with_code
async def list_groups(request: ServedRequest) -> Fields:
    coordinator = request.services.coordinator
    if coordinator is None:
        return {"groups": []}
    groups = Groups(coordinator.root)
    # Omit groups that cannot be read. Requests for such a group return the error.
    descriptions = await coordinator.run(lambda: groups.descriptions(groups.names([]), []))
    groups_by_name = {
        name: ((coordinator.exclusive_members(name) or description).state, description.type)
        for name, description in descriptions.items()
    }
    states_filter, types_filter = (
        {word.lower() for word in request.fields[name]} for name in ("statesFilter", "typesFilter")
    )
    rows = [
        {"groupId": name, "protocolType": CONSUMER, "groupState": state, "groupType": group_type}
        for name, (state, group_type) in groups_by_name.items()
        if (not states_filter or state.lower() in states_filter)
        and (not types_filter or group_type in types_filter)
        and request.may(GROUP, name)
    ]
    return {"groups": rows}


async def describe_groups(request: ServedRequest) -> Fields:
    rows = [{"groupId": name, **await _described(request, name)} for name in request.fields["groups"]]
    if request.version >= NOT_FOUND_VERSION:
        not_found: Fields = {"errorCode": Code.GROUP_ID_NOT_FOUND, "groupState": DEAD}
        rows = [
            {**row, **not_found, "errorMessage": f"Group {row['groupId']} not found."}
            if row.get("groupState") == DEAD
            else row
            for row in rows
        ]
    if request.fields["includeAuthorizedOperations"]:
        rows = [{**row, "authorizedOperations": group_operations(request, row["groupId"])} for row in rows]
    return {"groups": rows}


@_with_code
async def _described(request: ServedRequest, name: str) -> Fields:
    coordinator = coordinator_of(request, name, reading=True)
    members = coordinator.exclusive_members(name)
    if members is not None:
        return _local_members(members)
    await coordinator.check_owner(name)
    description = await coordinator.run(coordinator.group(name).description)
    rows: list[Fields] = [
        {
            "memberId": member.id,
            "groupInstanceId": member.instance_id,
            "clientId": member.client_id or member.id,
            "clientHost": f"/{member.host}" if member.host else "",
            "memberAssignment": assignment_bytes(member.owned) if member.owned else b"",
        }
        for member in description.members
    ]
    protocol_type = CONSUMER if description.state != DEAD else ""
    return {"groupState": description.state, "protocolType": protocol_type, "members": rows}


def _local_members(members: GroupMembers) -> Fields:
    rows = [
        {
            "memberId": member.id,
            "groupInstanceId": member.details.instance,
            "clientId": member.details.client,
            "clientHost": f"/{member.details.host}",
            "memberMetadata": member.metadata(members.protocol),
            "memberAssignment": member.assignment,
        }
        for member in members.members.values()
    ]
    about = {"groupState": members.state, "protocolType": members.kind, "protocolData": members.protocol}
    return {**about, "members": rows}


async def delete_groups(request: ServedRequest) -> Fields:
    names = request.fields["groupsNames"]
    return {"results": [{"groupId": name, **await _deleted(request, name)} for name in names]}


@_with_code
async def _deleted(request: ServedRequest, name: str) -> Fields:
    coordinator = coordinator_of(request, name)
    if coordinator.local_members(name) is not None:
        raise CodeError(Code.NON_EMPTY_GROUP)
    with errors_as(Conflict, Code.NON_EMPTY_GROUP), errors_as(NotFound, Code.GROUP_ID_NOT_FOUND):
        await coordinator.run(coordinator.group(name).delete)
    return {}
