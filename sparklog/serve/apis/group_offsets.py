"""OffsetCommit 2 to 8, OffsetFetch 1 to 7, OffsetDelete 0: offsets of groups, in the groups' journals.

`sparklog groups`, consumers of sparklog's and Spark queries with `kafka.group.id` see the same ones. A commit by no
member (generation -1) sets offsets as an operator does, while the group has no members. Left out: several groups in one
question (OffsetFetch 8), a retention of one commit's own, and leader epochs in answers.
"""

from __future__ import annotations

from typing import Any

from sparklog.errors import Conflict, NotFound
from sparklog.format.coordinators.message_schema import Fields
from sparklog.groups.group import MAX_METADATA
from sparklog.groups.group_state import OffsetAndMetadata
from sparklog.serve.apis.group_access import FAILURES, coordinator_of, group_code, with_code
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.coordinator import Coordinator, Positions
from sparklog.serve.group_members import COMPLETING
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ


async def offset_commit(request: ServedRequest) -> Fields:
    fields = request.fields
    group, positions = fields["groupId"], Positions()
    try:
        coordinator = coordinator_of(request, group)
        topics = await request.services.run(_checked, request, positions)
        if positions:
            await _commit(coordinator, fields, positions)
    except FAILURES as error:
        return _all_partitions(fields, group_code(error))
    return {"topics": topics}


def _checked(request: ServedRequest, positions: Positions) -> list[Fields]:
    """Return the answer to each partition; those that can be committed are put into `positions`."""
    topics = []
    for topic in request.fields["topics"]:
        name = topic["name"]
        bounds = request.services.log.bounds(name)
        rows = []
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
            rows.append({"partitionIndex": number, "errorCode": code})
        topics.append({"name": name, "partitions": rows})
    return topics


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


def _all_partitions(fields: Fields, code: Code) -> Fields:
    places = [(topic["name"], row["partitionIndex"]) for topic in fields["topics"] for row in topic["partitions"]]
    return {"topics": _by_topic({place: {"errorCode": code} for place in places})}


async def offset_fetch(request: ServedRequest) -> Fields:
    fields = request.fields
    try:
        coordinator = coordinator_of(request, fields["groupId"], reading=True)
        return {"topics": await coordinator.run(_offsets, coordinator, fields)}
    except FAILURES as error:
        code = group_code(error)
    # Version 1 has no place for an error but the partitions.
    rows = [(topic["name"], number) for topic in fields["topics"] or () for number in topic["partitionIndexes"]]
    none = {"committedOffset": -1, "metadata": "", "errorCode": code}
    return {"errorCode": code, "topics": _by_topic(dict.fromkeys(rows, none))}


def _offsets(coordinator: Coordinator, fields: Fields) -> list[Fields]:
    group = coordinator.group(fields["groupId"])
    committed = group.committed()
    waiting = set[tuple[str, int]]()
    if fields["requireStable"]:
        waiting = {(item[2], item[3]) for item in group.description().pending}
    places = sorted(committed)
    if fields["topics"] is not None:
        places = [(topic["name"], number) for topic in fields["topics"] for number in topic["partitionIndexes"]]
    rows: dict[tuple[str, int], Fields] = {}
    for place in places:
        item = committed.get(place)
        row: dict[str, Any] = {"committedOffset": -1, "metadata": ""}
        if item is not None:
            row = {"committedOffset": item.offset, "metadata": item.metadata}
        if place in waiting:
            row = {"committedOffset": -1, "metadata": "", "errorCode": Code.UNSTABLE_OFFSET_COMMIT}
        rows[place] = row
    return _by_topic(rows)


def _by_topic(rows: dict[tuple[str, int], Fields]) -> list[Fields]:
    topics: dict[str, list[Fields]] = {}
    for (topic, partition), row in rows.items():
        topics.setdefault(topic, []).append({"partitionIndex": partition, **row})
    return [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]


@with_code
async def offset_delete(request: ServedRequest) -> Fields:
    group, code = request.fields["groupId"], Code.NONE
    gone = {
        topic["name"]: [partition["partitionIndex"] for partition in topic["partitions"]]
        for topic in request.fields["topics"]
    }
    coordinator = coordinator_of(request, group)
    try:
        await coordinator.run(lambda: coordinator.group(group).delete_offsets(gone))
    except Conflict:
        code = Code.GROUP_SUBSCRIBED_TO_TOPIC
    except NotFound:
        return {"errorCode": Code.GROUP_ID_NOT_FOUND}
    return _all_partitions(request.fields, code)
