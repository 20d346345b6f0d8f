"""Groups: their members, their offsets, and what operators ask about them.

| requests                                                | what they are about                              |
|---------------------------------------------------------|--------------------------------------------------|
| JoinGroup 0 to 6, SyncGroup, Heartbeat, LeaveGroup 0 to 4 | members, whose clients compute the assignment  |
| OffsetCommit 2 to 8, OffsetFetch 1 to 7, OffsetDelete 0 | offsets, in the groups' journals                 |
| FindCoordinator 0 to 3, ListGroups, DescribeGroups 0 to 5, DeleteGroups 0 to 2 | whole groups              |

`sparklog groups`, consumers of sparklog's and Spark queries with `kafka.group.id` see the same offsets. A commit by no
member (generation -1) sets offsets as an operator does, while the group has no members. A group whose members are not
this server's (consumers of sparklog's, a Spark query, another server) is described by its journal.

Left out: KIP-848's protocol, in which a broker computes the assignment; several groups in one question (OffsetFetch 8,
FindCoordinator 4); a retention of one commit's own; leader epochs in answers; coordinators of transactions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, TypeAlias

from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.format.coordinators.message_codec import encode_versioned
from sparklog.format.coordinators.message_schema import Fields, message
from sparklog.groups.group import DEAD, MAX_METADATA
from sparklog.groups.group_state import OffsetAndMetadata
from sparklog.groups.lag import Groups
from sparklog.log.journal.clocks import MAX_SESSION_TIMEOUT_MS
from sparklog.serve.codes import FAILURES, LONGEST_MESSAGE, Code, CodeError
from sparklog.serve.coordinator import Coordinator, Positions
from sparklog.serve.group_members import COMPLETING, GroupMembers, JoinDetails
from sparklog.serve.served_log import SeenTopic
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import GROUP, READ

CONSUMER, CLASSIC = "consumer", "classic"
OF_A_GROUP = 0
NO_OFFSET: Fields = {"committedOffset": -1, "metadata": ""}
Place: TypeAlias = TopicPartition


def _check_group(request: ServedRequest, group: str) -> None:
    """Raise `CodeError` for a group without a name, and for one that the client may not use."""
    if not group:
        raise CodeError(Code.INVALID_GROUP_ID)
    if not request.may(GROUP, group):
        raise CodeError(Code.GROUP_AUTHORIZATION_FAILED)


def _coordinator_of(request: ServedRequest, group: str, *, reading: bool = False) -> Coordinator:
    """Return the coordinator. `CodeError` as `_check_group`, and where groups have no journal.

    The same where they have one that cannot be written, except for `reading`.
    """
    _check_group(request, group)
    coordinator = request.services.coordinator
    if coordinator is None or not (reading or coordinator.root.store.writable):
        raise CodeError(Code.GROUP_AUTHORIZATION_FAILED)
    return coordinator


def _members_of(request: ServedRequest) -> GroupMembers:
    """Return the members of the group that a request names. Raises as `_coordinator_of`."""
    group = request.fields["groupId"]
    return _coordinator_of(request, group).members(group)


def _code(error: Exception) -> Code:
    """Return the code for one of `FAILURES`: what the store could not do is tried again."""
    if isinstance(error, CodeError):
        return error.code
    return Code.INVALID_GROUP_ID if isinstance(error, BadRequest) else Code.COORDINATOR_NOT_AVAILABLE


def _with_code(handler: Callable[[ServedRequest], Awaitable[Fields]]) -> Callable[[ServedRequest], Awaitable[Fields]]:
    """Answer a request that fails with the code alone."""

    @wraps(handler)
    async def answer(request: ServedRequest) -> Fields:
        try:
            return await handler(request)
        except FAILURES as error:
            return {"errorCode": _code(error)}

    return answer


# -- members


async def join_group(request: ServedRequest) -> Fields:
    fields = request.fields
    details = JoinDetails(
        member=fields["memberId"],
        instance=fields["groupInstanceId"],
        client=request.client.name,
        host=request.client.peer.rpartition(":")[0],
        session_ms=fields["sessionTimeoutMs"],
        # Version 0 knows one timeout for both.
        rebalance_ms=fields["rebalanceTimeoutMs"] if request.version >= 1 else fields["sessionTimeoutMs"],
        kind=fields["protocolType"],
        protocols=tuple((protocol["name"], protocol["metadata"]) for protocol in fields["protocols"]),
    )
    try:
        if not 1 <= details.session_ms <= MAX_SESSION_TIMEOUT_MS:
            raise CodeError(Code.INVALID_SESSION_TIMEOUT)
        await _coordinator_of(request, fields["groupId"]).check_owner(fields["groupId"])
        joined = await _members_of(request).join(details, id_first=request.version >= 4)
    except FAILURES as error:
        member = error.fields.get("memberId", "") if isinstance(error, CodeError) else ""
        return {"errorCode": _code(error), "generationId": -1, "memberId": member or details.member}
    return {
        "generationId": joined.generation,
        "protocolName": joined.protocol,
        "leader": joined.leader,
        "memberId": joined.member,
        "members": [
            {"memberId": member, "groupInstanceId": instance, "metadata": metadata}
            for member, instance, metadata in joined.members
        ],
    }


def _sender(request: ServedRequest) -> tuple[str, int, str | None]:
    return request.fields["memberId"], request.fields["generationId"], request.fields["groupInstanceId"]


@_with_code
async def sync_group(request: ServedRequest) -> Fields:
    assignments = {item["memberId"]: item["assignment"] for item in request.fields["assignments"]}
    return {"assignment": await _members_of(request).sync(*_sender(request), assignments)}


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
        coordinator = _coordinator_of(request, request.fields["groupId"])
        codes = await request.services.run(_checked, request, positions)
        if positions:
            await _commit(coordinator, request.fields, positions)
    except FAILURES as error:
        return _all_partitions(request, _code(error))
    return _by_topic({place: {"errorCode": code} for place, code in codes.items()})


def _checked(request: ServedRequest, positions: Positions) -> dict[Place, Code]:
    """Return the answer to each partition; those that can be committed are put into `positions`."""
    log, codes = request.services.log, dict[Place, Code]()
    for topic in request.fields["topics"]:
        name = topic["name"]
        bounds = log.seen(name).ends or log.look([name]).get(name, SeenTopic()).ends
        for partition in topic["partitions"]:
            number, metadata = partition["partitionIndex"], partition["committedMetadata"] or ""
            code = Code.NONE
            if not request.may(READ, name):
                code = Code.TOPIC_AUTHORIZATION_FAILED
            elif number not in bounds:
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata.encode()) > MAX_METADATA:
                code = Code.OFFSET_METADATA_TOO_LARGE
            elif partition["committedOffset"] >= 0:
                epoch = partition["committedLeaderEpoch"]
                place = OffsetAndMetadata(partition["committedOffset"], metadata, None if epoch < 0 else epoch)
                positions.setdefault(name, {})[number] = place
            codes[name, number] = code
    return codes


async def _commit(coordinator: Coordinator, fields: Fields, positions: Positions) -> None:
    group, member, generation = fields["groupId"], fields["memberId"], fields["generationIdOrMemberEpoch"]
    if generation < 0 and not member:
        if coordinator.held(group) is not None:
            raise CodeError(Code.UNKNOWN_MEMBER_ID)
        try:
            await coordinator.run(coordinator.group(group).alter, positions)
        except Conflict:
            raise CodeError(Code.UNKNOWN_MEMBER_ID) from None
        return
    members = coordinator.members(group)
    members.touch(members.checked(member, generation, fields["groupInstanceId"]))
    if members.state == COMPLETING:
        raise CodeError(Code.REBALANCE_IN_PROGRESS)
    await coordinator.commit(group, positions)


async def offset_fetch(request: ServedRequest) -> Fields:
    fields = request.fields
    try:
        coordinator = _coordinator_of(request, fields["groupId"], reading=True)
        committed: Fields = await coordinator.run(_offsets, coordinator, fields)
        return committed
    except FAILURES as error:
        code = _code(error)
    # Version 1 has no place for an error but the partitions.
    rows = {place: {**NO_OFFSET, "errorCode": code} for place in _asked_places(fields)}
    return {"errorCode": code, **_by_topic(rows)}


def _asked_places(fields: Fields) -> list[Place]:
    return [(topic["name"], number) for topic in fields["topics"] or () for number in topic["partitionIndexes"]]


def _offsets(coordinator: Coordinator, fields: Fields) -> Fields:
    group = coordinator.group(fields["groupId"])
    committed, waiting = group.committed(), set[Place]()
    if fields["requireStable"]:
        waiting = {(item[2], item[3]) for item in group.description().pending}
    rows: dict[Place, Fields] = {}
    for place in sorted(committed) if fields["topics"] is None else _asked_places(fields):
        item = committed.get(place)
        rows[place] = NO_OFFSET
        if place in waiting:
            rows[place] = {**NO_OFFSET, "errorCode": Code.UNSTABLE_OFFSET_COMMIT}
        elif item is not None:
            rows[place] = {"committedOffset": item.offset, "metadata": item.metadata}
    return _by_topic(rows)


def _all_partitions(request: ServedRequest, code: Code) -> Fields:
    topics = request.fields["topics"]
    places = [(topic["name"], row["partitionIndex"]) for topic in topics for row in topic["partitions"]]
    return _by_topic({place: {"errorCode": code} for place in places})


def _by_topic(rows: dict[Place, Fields]) -> Fields:
    topics: dict[str, list[Fields]] = {}
    for (topic, partition), row in rows.items():
        topics.setdefault(topic, []).append({"partitionIndex": partition, **row})
    return {"topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]}


@_with_code
async def offset_delete(request: ServedRequest) -> Fields:
    group, code = request.fields["groupId"], Code.NONE
    topics = request.fields["topics"]
    places = {topic["name"]: [row["partitionIndex"] for row in topic["partitions"]] for topic in topics}
    coordinator = _coordinator_of(request, group)
    try:
        await coordinator.run(lambda: coordinator.group(group).delete_offsets(places))
    except Conflict:
        code = Code.GROUP_SUBSCRIBED_TO_TOPIC
    except NotFound:
        return {"errorCode": Code.GROUP_ID_NOT_FOUND}
    return _all_partitions(request, code)


# -- whole groups


async def find_coordinator(request: ServedRequest) -> Fields:
    fields = request.fields
    if fields["keyType"] != OF_A_GROUP:
        text = "transactions are not served: use sparklog.transactional"
        return {"errorCode": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "errorMessage": text, "nodeId": -1}
    coordinator = request.services.coordinator
    try:
        _check_group(request, fields["key"])
        # A Kafka directory has no groups. librdkafka asks also for reads without one, which a refusal would fail.
        node = request.services.nodes[0] if coordinator is None else await coordinator.owner(fields["key"])
    except FAILURES as error:
        text = "the group has no name, or is not yours" if isinstance(error, CodeError) else str(error)
        return {"errorCode": _code(error), "errorMessage": text[:LONGEST_MESSAGE], "nodeId": -1}
    return {"nodeId": node.node_id, "host": node.host, "port": node.port}


@_with_code
async def list_groups(request: ServedRequest) -> Fields:
    coordinator = request.services.coordinator
    if coordinator is None:
        return {"groups": []}
    states = await coordinator.run(_states, coordinator)
    for name in states:
        members = coordinator.held(name)
        states[name] = states[name] if members is None else members.state
    wanted, types = ({word.lower() for word in request.fields[name]} for name in ("statesFilter", "typesFilter"))
    rows = [
        {"groupId": name, "protocolType": CONSUMER, "groupState": state, "groupType": CLASSIC}
        for name, state in states.items()
        if (not wanted or state.lower() in wanted) and request.may(GROUP, name)
    ]
    return {"groups": rows if not types or CLASSIC in types else []}


def _states(coordinator: Coordinator) -> dict[str, str]:
    groups = Groups(coordinator.root)
    # A group that cannot be read is left out: questions about it name the error.
    descriptions = groups.descriptions(groups.names([]), [])
    return {name: description.state for name, description in descriptions.items()}


async def describe_groups(request: ServedRequest) -> Fields:
    return {"groups": [{"groupId": name, **await _described(request, name)} for name in request.fields["groups"]]}


async def _described(request: ServedRequest, name: str) -> Fields:
    try:
        coordinator = _coordinator_of(request, name, reading=True)
        members = coordinator.held(name)
        if members is not None:
            return _members_here(members)
        await coordinator.check_owner(name)
        description = await coordinator.run(coordinator.group(name).description)
    except FAILURES as error:
        return {"errorCode": _code(error)}
    owned = {member.id: member.owned for member in description.members}
    if description.instance is not None:
        owned[description.instance] = ()
    rows = [
        {"memberId": member, "clientId": member, "memberAssignment": _assignment(places)}
        for member, places in owned.items()
    ]
    protocol_type = CONSUMER if description.state != DEAD else ""
    return {"groupState": description.state, "protocolType": protocol_type, "members": rows}


def _assignment(places: Iterable[Place]) -> bytes:
    """Return partitions as members of Kafka's are told of them; nothing where they are not known."""
    topics: dict[str, list[Any]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    if not topics:
        return b""
    rows: list[Any] = [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()]
    return encode_versioned(message("groups", "ConsumerProtocolAssignment"), 0, {"assignedPartitions": rows})


def _members_here(members: GroupMembers) -> Fields:
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
    return {
        "groupState": members.state,
        "protocolType": members.kind,
        "protocolData": members.protocol,
        "members": rows,
    }


async def delete_groups(request: ServedRequest) -> Fields:
    names = request.fields["groupsNames"]
    return {"results": [{"groupId": name, "errorCode": await _deleted(request, name)} for name in names]}


async def _deleted(request: ServedRequest, name: str) -> Code:
    try:
        coordinator = _coordinator_of(request, name)
        if coordinator.held(name) is not None:
            return Code.NON_EMPTY_GROUP
        await coordinator.run(coordinator.group(name).delete)
    except Conflict:
        return Code.NON_EMPTY_GROUP
    except NotFound:
        return Code.GROUP_ID_NOT_FOUND
    except FAILURES as error:
        return _code(error)
    return Code.NONE
