"""FindCoordinator 0 to 3, ListGroups 0 to 5, DescribeGroups 0 to 5, DeleteGroups 0 to 2.

A group whose members are not this server's (consumers of sparklog's, a Spark query, another server) is described by its
journal. All groups are of the classic type: clients compute their assignments. Left out: coordinators of transactions,
several in one question (FindCoordinator 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparklog.errors import Conflict, NotFound
from sparklog.format.coordinators.message_codec import encode_versioned
from sparklog.format.coordinators.message_schema import Fields, message
from sparklog.groups.group import DEAD
from sparklog.groups.lag import Groups
from sparklog.serve.apis.group_access import FAILURES, check_group, coordinator_of, group_code, with_code
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.coordinator import Coordinator
from sparklog.serve.group_members import GroupMembers
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import GROUP

CONSUMER, CLASSIC = "consumer", "classic"
OF_A_GROUP = 0


async def find_coordinator(request: ServedRequest) -> Fields:
    fields = request.fields
    if fields["keyType"] != OF_A_GROUP:
        text = "transactions are not served: use sparklog.transactional"
        return {"errorCode": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "errorMessage": text, "nodeId": -1}
    coordinator = request.services.coordinator
    try:
        check_group(request, fields["key"])
        # A Kafka directory has no groups. librdkafka asks also for reads without one, which a refusal would fail.
        node = request.services.me if coordinator is None else await coordinator.owner(fields["key"])
    except FAILURES as error:
        text = "the group has no name, or is not yours" if isinstance(error, CodeError) else str(error)
        return {"errorCode": group_code(error), "errorMessage": text, "nodeId": -1}
    return {"nodeId": node.node_id, "host": node.host, "port": node.port}


@with_code
async def list_groups(request: ServedRequest) -> Fields:
    coordinator = request.services.coordinator
    if coordinator is None:
        return {"groups": []}
    states = await coordinator.run(_states, coordinator)
    for name in list(states):
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
    return {"groups": [await _described(request, name) for name in request.fields["groups"]]}


async def _described(request: ServedRequest, name: str) -> Fields:
    row: Fields = {"groupId": name, "groupState": "", "protocolType": "", "protocolData": "", "members": []}
    try:
        coordinator = coordinator_of(request, name, reading=True)
        members = coordinator.held(name)
        if members is not None:
            return row | _members(members)
        await coordinator.check_owner(name)
        description = await coordinator.run(coordinator.group(name).description)
    except FAILURES as error:
        return row | {"errorCode": group_code(error)}
    row["groupState"] = description.state
    if description.state != DEAD:
        row["protocolType"] = CONSUMER
    owned = {member.id: member.owned for member in description.members}
    if description.instance is not None:
        owned[description.instance] = ()
    row["members"] = [
        {"memberId": member, "clientId": member, "memberAssignment": _assignment(places)}
        for member, places in owned.items()
    ]
    return row


def _assignment(places: Iterable[tuple[str, int]]) -> bytes:
    """Return partitions as members of Kafka's are told of them; nothing where they are not known."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    if not topics:
        return b""
    rows: list[Any] = [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()]
    return encode_versioned(message("groups", "ConsumerProtocolAssignment"), 0, {"assignedPartitions": rows})


def _members(members: GroupMembers) -> Fields:
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
    return {"results": [await _deleted(request, name) for name in request.fields["groupsNames"]]}


async def _deleted(request: ServedRequest, name: str) -> Fields:
    code = Code.NONE
    try:
        coordinator = coordinator_of(request, name)
        if coordinator.held(name) is not None:
            raise CodeError(Code.NON_EMPTY_GROUP)
        await coordinator.run(coordinator.group(name).delete)
    except Conflict:
        code = Code.NON_EMPTY_GROUP
    except NotFound:
        code = Code.GROUP_ID_NOT_FOUND
    except FAILURES as error:
        code = group_code(error)
    return {"groupId": name, "errorCode": code}
