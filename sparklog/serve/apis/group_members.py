"""JoinGroup 0 to 6, SyncGroup 0 to 4, Heartbeat 0 to 4, LeaveGroup 0 to 4: members of a group.

Clients compute the assignment (the classic protocol). Left out: KIP-848's protocol, in which a broker computes it.
"""

from __future__ import annotations

from sparklog.errors import BadRequest, SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.groups.group import MAX_SESSION_TIMEOUT_MS
from sparklog.serve.apis.group_access import coordinator_of
from sparklog.serve.codes import Code, code_of
from sparklog.serve.group_members import GroupError, JoinDetails
from sparklog.serve.services import ServedRequest


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
            raise GroupError(Code.INVALID_SESSION_TIMEOUT)
        coordinator = coordinator_of(request, fields["groupId"])
        await coordinator.check_owner(fields["groupId"])
        members = coordinator.members(fields["groupId"])
        joined = await members.join(details, id_first=request.version >= 4)
    except GroupError as error:
        return {"errorCode": error.code, "generationId": -1, "memberId": error.member or details.member}
    except SparklogError as error:
        code = Code.INVALID_GROUP_ID if isinstance(error, BadRequest) else Code.COORDINATOR_NOT_AVAILABLE
        return {"errorCode": code, "generationId": -1, "memberId": details.member}
    rows = [
        {"memberId": member, "groupInstanceId": instance, "metadata": metadata}
        for member, instance, metadata in joined.members
    ]
    return {
        "generationId": joined.generation,
        "protocolName": joined.protocol,
        "leader": joined.leader,
        "memberId": joined.member,
        "members": rows,
    }


async def sync_group(request: ServedRequest) -> Fields:
    fields = request.fields
    assignments = {item["memberId"]: item["assignment"] for item in fields["assignments"]}
    who = fields["memberId"], fields["generationId"], fields["groupInstanceId"]
    try:
        members = coordinator_of(request, fields["groupId"]).members(fields["groupId"])
        return {"assignment": await members.sync(*who, assignments)}
    except GroupError as error:
        return {"errorCode": error.code}
    except SparklogError as error:
        return {"errorCode": code_of(error)}


async def heartbeat(request: ServedRequest) -> Fields:
    fields = request.fields
    try:
        members = coordinator_of(request, fields["groupId"]).members(fields["groupId"])
    except GroupError as error:
        return {"errorCode": error.code}
    return {"errorCode": members.heartbeat(fields["memberId"], fields["generationId"], fields["groupInstanceId"])}


async def leave_group(request: ServedRequest) -> Fields:
    fields = request.fields
    try:
        members = coordinator_of(request, fields["groupId"]).members(fields["groupId"])
    except GroupError as error:
        return {"errorCode": error.code}
    if request.version < 3:
        return {"errorCode": await members.leave(fields["memberId"], None)}
    rows = [
        {
            "memberId": member["memberId"],
            "groupInstanceId": member["groupInstanceId"],
            "errorCode": await members.leave(member["memberId"], member["groupInstanceId"]),
        }
        for member in fields["members"]
    ]
    return {"members": rows}
