"""JoinGroup 0 to 6, SyncGroup 0 to 4, Heartbeat 0 to 4, LeaveGroup 0 to 4: members of a group.

Clients compute the assignment (the classic protocol). Left out: KIP-848's protocol, in which a broker computes it.
"""

from __future__ import annotations

from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.journal.clocks import MAX_SESSION_TIMEOUT_MS
from sparklog.serve.apis.group_access import FAILURES, coordinator_of, group_code, members_of, with_code
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.group_members import JoinDetails
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
            raise CodeError(Code.INVALID_SESSION_TIMEOUT)
        await coordinator_of(request, fields["groupId"]).check_owner(fields["groupId"])
        joined = await members_of(request).join(details, id_first=request.version >= 4)
    except FAILURES as error:
        member = error.member if isinstance(error, CodeError) else ""
        return {"errorCode": group_code(error), "generationId": -1, "memberId": member or details.member}
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


@with_code
async def sync_group(request: ServedRequest) -> Fields:
    fields = request.fields
    assignments = {item["memberId"]: item["assignment"] for item in fields["assignments"]}
    who = fields["memberId"], fields["generationId"], fields["groupInstanceId"]
    return {"assignment": await members_of(request).sync(*who, assignments)}


@with_code
async def heartbeat(request: ServedRequest) -> Fields:
    fields = request.fields
    who = fields["memberId"], fields["generationId"], fields["groupInstanceId"]
    return {"errorCode": members_of(request).heartbeat(*who)}


@with_code
async def leave_group(request: ServedRequest) -> Fields:
    members = members_of(request)
    if request.version < 3:
        return {"errorCode": await members.leave(request.fields["memberId"], None)}
    rows = [
        {
            "memberId": member["memberId"],
            "groupInstanceId": member["groupInstanceId"],
            "errorCode": await members.leave(member["memberId"], member["groupInstanceId"]),
        }
        for member in request.fields["members"]
    ]
    return {"members": rows}
