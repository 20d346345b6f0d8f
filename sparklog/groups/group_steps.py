"""Steps of a group. Each step returns the state after one more entry, or raises an error.

A step returns None if there is nothing to write. The journal sets the number and the CRC-32C of the previous entry.
Steps are pure functions, because after a lost race they run again on the latest state. If a member was removed, its
steps raise `Fenced`.

The decision of a transaction resolves its pending offsets. A COMMIT that references this group and the number of the
entry commits them. Any other decision aborts them. As in Kafka, if offsets of a partition are committed, reset or
deleted after a prepare, the partition is removed from the prepare. A later prepare that is committed has the same
effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparklog.common.reached import reached
from sparklog.errors import Conflict, Fenced
from sparklog.groups.assignors import ALL
from sparklog.groups.group_members import (
    ConsumerProtocol,
    GroupMember,
    Partitions,
    after_revocation,
    assign_free_partitions,
    rebalanced,
    subscribed_partitions,
    without_members,
)
from sparklog.groups.group_state import (
    MAX_INT,
    GroupMetadata,
    GroupState,
    Pending,
    TopicOffsets,
    merged,
    topic_offsets,
    without,
)
from sparklog.log.journal.documents import CONSUMER_PROTOCOL, GROUP_MEMBERS, LISTED_OWNERS

Expired = Mapping[str, int]
"""The ids of members whose session timed out, with the number of each member's latest heartbeat entry."""


class EpochMismatch(Fenced):
    """The epoch in a request is not the epoch of the member, which uses the consumer protocol."""

    @classmethod
    def of(cls, group: str, member_id: str, epoch: int, expected: int) -> EpochMismatch:
        return cls(f"member {member_id} of group '{group}' has epoch {expected}; the request has epoch {epoch}")


class UnreleasedInstance(Conflict):
    """Another member has the instance id of a static member that joins, and has not left."""


# -- steps of members


def join(
    state: GroupState,
    joining: Sequence[GroupMember],
    partitions: Mapping[str, int],
    expired: Expired,
    owner: GroupMetadata | None = None,
) -> GroupState:
    """Add members, remove expired members, and run the assignor.

    A static member replaces the member that has the same instance id, and retains the partitions of this member. In the
    consumer protocol, the previous member must have left. An exclusive owner replaces the previous exclusive owner.
    `is_excluded` lists the members that cannot be in the same group.

    Args:
        owner: The exclusive owner that the joining members replace. The members are its clients, to which it has
            assigned their `owned` partitions, or its own next generation.

    Raises:
        Conflict: If the members have no common assignor.
        Fenced: If `owner` is no longer the owner, because other members may have committed the records that it read.
        UnreleasedInstance: If a member of the consumer protocol has the instance id of another member that has not
            left.
    """
    if owner is not None:
        check_member(state, owner)
    if owner is not None and not joining[0].is_exclusive:
        reached("groups: an exclusive owner is replaced by its clients")
    others = _others(state, joining, expired, owner)
    static = {item.instance_id: item for item in state.members if item.instance_id is not None}
    generation, number = _next_generation(state), state.number + 1
    members = list(others)
    for member in joining:
        before = None if member.instance_id is None else static.get(member.instance_id)
        if before is not None:
            if is_unreleased(before, member) and expired.get(before.id) != before.seen:
                raise UnreleasedInstance(
                    f"member {member.id} with instance id {member.instance_id} cannot join group '{state.id}', because "
                    f"member {before.id} has this instance id; stop this member, or set another group.instance.id"
                )
            reached("groups: a static member replaces the previous member")
            member = replace(member, owned=before.owned, revoked=before.revoked, awaited=before.awaited)
        members.append(replace(member, generation=generation, seen=number))
    # Pending offsets of a replaced member stay pending without a member, so they are aborted.
    remaining = _without_senders(state, {item.id for item in state.members} - {item.id for item in others})
    return _with_members(replace(remaining, deleted=False), "join", members, partitions)


def is_unreleased(before: GroupMember, member: GroupMember) -> bool:
    """Return True if a static member still has an instance id with which another member joins."""
    return before.consumer is not None and member.consumer is not None and not before.has_left


def is_excluded(state: GroupState, member: GroupMember, expired: Expired) -> bool:
    """Return True if the member cannot join because one member is an exclusive owner that does not share the group.

    An owner with other assignors may join other members only if it replaces an earlier owner, because the other members
    then do not own partitions.
    """
    others = _others(state, [member], expired, None)
    if member.is_exclusive:
        return bool(others) and (member.assignors == (ALL,) or state.owner is None)
    return any(item.assignors == (ALL,) for item in others)


def _others(
    state: GroupState, joining: Sequence[GroupMember], expired: Expired, owner: GroupMetadata | None
) -> tuple[GroupMember, ...]:
    """Return the members that remain in the group when others join."""
    ids = {item.id for item in joining}
    instances = {item.instance_id for item in joining if item.instance_id is not None}
    replaces_owner = owner is not None or any(item.is_exclusive for item in joining)
    return tuple(
        item
        for item in _alive(state, expired)
        if item.id not in ids and item.instance_id not in instances and not (replaces_owner and item.is_exclusive)
    )


def heartbeat(
    state: GroupState, member: GroupMetadata, member_ids: Collection[str] = (), expired: Expired | None = None
) -> GroupState:
    """Record heartbeats of a member and of other members of its process, and remove expired members."""
    check_member(state, member)
    alive_ids = {member.member_id, *member_ids}
    alive = _alive(state, {name: seen for name, seen in (expired or {}).items() if name not in alive_ids})
    members = tuple(replace(item, seen=state.number + 1) if item.id in alive_ids else item for item in alive)
    if len(members) < len(state.members):
        reached("groups: a heartbeat removes members whose sessions timed out")
        removed = {item.id for item in state.members} - {item.id for item in members}
        return _with_members(_without_senders(state, removed), "heartbeat", members, {})
    return replace(state, op="heartbeat", members=members, active=state.number + 1, touched=state.number + 1)


def leave(state: GroupState, member: GroupMetadata) -> GroupState | None:
    """Leave the group. Pending offsets of the member stay pending until their transaction is decided."""
    if not is_member(state, member):
        return None
    pending = (
        replace(item, member=None, generation=None) if item.member == member.member_id else item
        for item in state.pending
    )
    remaining = replace(state, pending=tuple(pending))
    return _with_members(remaining, "leave", without_members(state.members, [member.member_id]), {})


def leave_temporarily(state: GroupState, member: GroupMetadata) -> GroupState | None:
    """Record that a static member of the consumer protocol will rejoin within its session timeout.

    Before the timeout, the partitions of the member are not assigned to other members, except the partitions that it
    must revoke.
    """
    if not is_member(state, member):
        return None
    item = state.member(member.member_id)
    assert item is not None
    assert item.consumer is not None
    left = after_revocation(item, item.revoked, item.generation)
    left = replace(left, consumer=replace(item.consumer, has_left=True))
    members = assign_free_partitions([left if other is item else other for other in state.members])
    return _by_member(replace(state, members=members), "leave", member)


def move(state: GroupState, member_id: str, epoch: int, owned: Partitions | None) -> GroupState:
    """Continue a member of the consumer protocol in another process. Its previous process is fenced.

    Args:
        epoch: The epoch of the client's request.
        owned: The partitions in the client's request.

    Raises:
        Fenced: If the member was removed from the group.
        EpochMismatch: If the epoch is not the epoch of the member. As in Kafka, the previous epoch is accepted if the
            client lists only partitions that it owns, because the response with the new epoch may have been lost.
    """
    item = state.member(member_id)
    if item is None or item.consumer is None:
        raise Fenced(f"member {member_id} was removed from group '{state.id}'; join again")
    is_previous = epoch == item.consumer.previous_epoch and owned is not None and owned <= item.owned
    is_current = item.generation <= epoch <= state.generation
    if epoch != 0 and (item.has_left or not (is_current or is_previous)):
        raise EpochMismatch.of(state.id, member_id, epoch, item.generation)
    reached("groups: a member of the consumer protocol moves to another server")
    generation = _next_generation(state)
    moved = replace(item, generation=generation, consumer=replace(item.consumer, previous_epoch=epoch, has_left=False))
    after = replace(
        state, generation=generation, members=tuple(moved if other is item else other for other in state.members)
    )
    return _by_member(after, "join", GroupMetadata(state.id, generation, member_id))


def commit(state: GroupState, member: GroupMetadata, offsets: Sequence[TopicOffsets]) -> GroupState:
    check_member(state, member, offsets)
    return _by_member(state, "commit", member, **_with(state, offsets))


def prepare(
    state: GroupState, member: GroupMetadata | None, txn: str, n: int, timeout_ms: int, offsets: Sequence[TopicOffsets]
) -> GroupState:
    """Add pending offsets. They are committed if the COMMIT of transaction `n` references this entry."""
    item = Pending(txn, n, state.number + 1, timeout_ms, None, tuple(offsets))
    if member is None:
        pending = (*state.pending, item)
        return replace(state, op="prepare", deleted=False, pending=pending, touched=state.number + 1)
    check_member(state, member, offsets)
    pending = (*state.pending, replace(item, generation=member.generation, member=member.member_id))
    return _by_member(state, "prepare", member, deleted=False, pending=pending)


def subscribe(
    state: GroupState,
    member: GroupMetadata,
    topics: Sequence[str],
    partitions: Mapping[str, int],
    assignors: Sequence[str] | None = None,
    consumer: ConsumerProtocol | None = None,
) -> GroupState | None:
    """Change the topics and settings of a member, or the numbers of partitions. Return None if nothing changes."""
    check_member(state, member)
    item = state.member(member.member_id)
    assert item is not None
    changed = replace(
        item,
        topics=tuple(topics),
        assignors=item.assignors if assignors is None else tuple(assignors),
        consumer=item.consumer if consumer is None else consumer,
    )
    seen = replace(changed, seen=state.number + 1)
    members = [seen if other is item else other for other in state.members]
    if changed == item and subscribed_partitions(members, {**state.partitions, **partitions}) == state.partitions:
        return None
    return _with_members(state, "subscribe", members, partitions)


def revoke(state: GroupState, member: GroupMetadata, partitions: Partitions, epoch: int | None = None) -> GroupState:
    """Release partitions that the member no longer reads. With this entry, the released partitions are owned by the
    members that await them.

    Args:
        epoch: The epoch of the request of a member of the consumer protocol.
    """
    check_member(state, member)
    item = state.member(member.member_id)
    assert item is not None
    generation = _next_generation(state)
    if item.consumer is not None:
        # As in Kafka, a member that has revoked all partitions continues with the epoch of the assignment. Every
        # assignment starts a generation, so this epoch is higher than the member's generation.
        if partitions >= item.revoked and item.generation < state.generation:
            generation = state.generation
        item = replace(item, consumer=replace(item.consumer, previous_epoch=epoch or 0))
    released = after_revocation(item, partitions, generation)
    members = [released if other.id == item.id else other for other in state.members]
    after = replace(state, generation=generation, members=assign_free_partitions(members))
    return _by_member(after, "revoke", replace(member, generation=generation))


def _alive(state: GroupState, expired: Expired) -> tuple[GroupMember, ...]:
    # If a member sent a heartbeat after the expired session was read, the member is alive.
    return tuple(item for item in state.members if expired.get(item.id) != item.seen)


def _without_senders(state: GroupState, removed: Collection[str]) -> GroupState:
    """Return the state with the pending offsets of removed members marked to be aborted."""
    pending = (replace(item, member=None) if item.member in removed else item for item in state.pending)
    return replace(state, pending=tuple(pending))


def _with_members(
    state: GroupState, op: str, members: Sequence[GroupMember], partitions: Mapping[str, int]
) -> GroupState:
    """Return the state of the next generation, with these members.

    The assignor runs unless the members, their subscriptions and the topics are unchanged. If the group becomes empty,
    its generation does not change.
    """
    counts = subscribed_partitions(members, {**state.partitions, **partitions})
    number = state.number + 1
    # As in Kafka, all members keep their partitions if a static member restarts. The assignor could move partitions,
    # because its result depends on the member ids.
    keeps = counts == state.partitions and set(map(_subscription, members)) == set(map(_subscription, state.members))
    after = replace(
        state,
        op=op,
        generation=_next_generation(state) if members else state.generation,
        partitions=counts,
        members=assign_free_partitions(members) if keeps else rebalanced(members, counts),
        session_timeout_ms=max((item.session_timeout_ms for item in members), default=state.session_timeout_ms),
        active=number if members else None,
        touched=number,
    )
    return _with_features(after)


def _subscription(member: GroupMember) -> tuple[object, ...]:
    """Return the assignor's input and result for a member. A static member is identified by its instance id."""
    identity = (member.instance_id, member.id if member.instance_id is None else None)
    return identity, member.consumer is None, member.assignors, member.topics, member.target


def _with_features(state: GroupState) -> GroupState:
    """Set the features that the members in the entry require. Older releases support all other entries."""
    needed: tuple[str, ...] = (GROUP_MEMBERS,) if state.listed_members else ()
    if any(item.is_exclusive for item in state.listed_members):
        needed = (*needed, LISTED_OWNERS)
    if any(item.consumer is not None for item in state.listed_members):
        needed = (*needed, CONSUMER_PROTOCOL)
    read, write = (
        (*(name for name in names if name not in (GROUP_MEMBERS, LISTED_OWNERS, CONSUMER_PROTOCOL)), *needed)
        for names in (state.read_features, state.write_features)
    )
    return replace(state, read_features=read, write_features=write)


def _without_member(state: GroupState) -> GroupState:
    """Return the state without members. All members are fenced."""
    fenced = _without_senders(state, {item.id for item in state.members})
    return _with_features(replace(fenced, active=None, partitions={}, members=()))


# -- steps of administrators and maintenance


def resolved(state: GroupState, outcomes: Mapping[int, bool]) -> GroupState:
    """Resolve prepares by entry number. If an outcome is True, the offsets are committed. If `outcomes` is empty,
    return the state unchanged.
    """
    if not outcomes:
        return state
    offsets, remaining = state.offsets, list[Pending]()
    for item in state.pending:
        outcome = outcomes.get(item.number)
        if outcome is None:
            remaining.append(item)
        elif outcome:
            reached("groups: pending offsets are committed")
            offsets = merged(offsets, item.offsets)
            remaining = list(
                _without_resolved(remaining, {topic.topic_and_id: set(topic.partition) for topic in item.offsets})
            )
    return replace(state, op="resolve", offsets=offsets, pending=tuple(remaining))


def alter(state: GroupState, offsets: Sequence[TopicOffsets]) -> GroupState:
    return _by_others(state, "alter", deleted=False, **_with(state, offsets))


def delete_offsets(state: GroupState, partitions: Mapping[str, Collection[int]]) -> GroupState | None:
    """Delete the offsets of partitions, for all ids of a topic, and fence the members.

    Return None if no offsets are stored for these partitions.
    """
    pending = (item for prepare_item in state.pending for item in prepare_item.offsets)
    partitions_by_topic = {
        item.topic_and_id: partitions[item.topic] for item in (*state.offsets, *pending) if item.topic in partitions
    }
    remaining = without(state.offsets, partitions_by_topic)
    unresolved = _without_resolved(state.pending, partitions_by_topic)
    if remaining == state.offsets and unresolved == state.pending:
        return None
    return _by_others(state, "delete-offsets", offsets=remaining, pending=unresolved)


def delete(state: GroupState) -> GroupState | None:
    return _by_others(state, "delete", deleted=True, offsets=(), pending=()) if state.exists else None


def restore(state: GroupState, offsets: Sequence[TopicOffsets], generation: int) -> GroupState | None:
    """Import offsets of another root if they are missing in this root or newer, and continue from the higher
    generation.
    """
    rows_before = {item.topic_and_id: item.rows() for item in state.offsets}
    newer = []
    for item in offsets:
        old = rows_before.get(item.topic_and_id, {})
        rows = {
            partition: row
            for partition, row in item.rows().items()
            if partition not in old or (old[partition][1] < row[1] and old[partition] != row)
        }
        if rows:
            newer.append(topic_offsets(item.topic, item.topic_id, rows))
    if not newer and generation <= state.generation:
        return None
    # If the generation increases, the members must join again.
    base = state if generation <= state.generation else _without_member(state)
    return replace(
        base,
        op="restore",
        deleted=False,
        generation=max(generation, state.generation),
        touched=state.number + 1,
        offsets=merged(state.offsets, newer),
    )


def expire(state: GroupState, *, everything: bool, deleted: Collection[tuple[str, str]]) -> GroupState | None:
    """Delete the offsets of deleted topics (`deleted`), or all offsets (`everything`), except pending offsets.

    Return None if there is nothing to delete.
    """
    # Maintenance does not change `touched`, because a group expires based on the entries of its members and
    # administrators.
    if not state.exists:
        return None
    if everything and not state.pending:
        return replace(_by_others(state, "expire", deleted=True, offsets=()), touched=state.touched)
    remaining = () if everything else tuple(item for item in state.offsets if item.topic_and_id not in deleted)
    return None if remaining == state.offsets else replace(state, op="expire", offsets=remaining)


# -- permissions of members


def is_member(state: GroupState, member: GroupMetadata) -> bool:
    """Return True if the member may write entries.

    As in Kafka, commits of a static member are rejected from the time it leaves temporarily until it joins again.
    """
    item = state.member(member.member_id)
    return item is not None and item.generation == member.generation and not item.has_left


def check_member(state: GroupState, member: GroupMetadata, offsets: Sequence[TopicOffsets] = ()) -> None:
    """Raise `Fenced` if the member may not write this entry, which commits `offsets`."""
    if not is_member(state, member):
        reached("groups: an entry of a superseded member is rejected")
        raise Fenced(
            f"generation {member.generation} ({member.member_id}) of group '{state.id}' was superseded: "
            f"{_newer(state, member)}; stop this consumer, or join again"
        )
    if not offsets:
        return
    others = {partition: item.id for item in state.members if item.id != member.member_id for partition in item.owned}
    positions = ((item.topic, partition) for item in offsets for partition in item.partition)
    lost = [position for position in positions if position in others]
    if lost:
        topic, partition = lost[0]
        raise Fenced(
            f"member {member.member_id} of group '{state.id}' no longer owns {topic}-{partition}, which member "
            f"{others[lost[0]]} owns now: its offsets were not committed; call poll to get the new assignment"
        )


def _newer(state: GroupState, member: GroupMetadata) -> str:
    if state.deleted:
        return "the group was deleted"
    now = f"the group is at generation {state.generation}"
    if state.owner is not None:
        return f"{now} ({state.owner.id})"
    item = state.member(member.member_id)
    if item is not None:
        event = "left temporarily" if item.has_left else "released partitions"
        return f"{now}, and the member has {event} since then"
    return f"{now} with {len(state.members)} other members" if state.members else now


def _next_generation(state: GroupState) -> int:
    return 1 if state.generation >= MAX_INT else state.generation + 1


def _by_member(state: GroupState, op: str, member: GroupMetadata, **changes: Any) -> GroupState:
    """Return the state after a step of a member. The step counts as a heartbeat."""
    number = state.number + 1
    members = tuple(replace(item, seen=number) if item.id == member.member_id else item for item in state.members)
    return replace(state, op=op, active=number, touched=number, members=members, **changes)


def _by_others(state: GroupState, op: str, **changes: Any) -> GroupState:
    """Return the state after a step of an administrator, which fences the members."""
    changed = replace(state, op=op, touched=state.number + 1, **changes)
    return replace(_without_member(changed), generation=_next_generation(state))


def _with(state: GroupState, offsets: Sequence[TopicOffsets]) -> dict[str, Any]:
    partitions_by_topic = {item.topic_and_id: set(item.partition) for item in offsets}
    return {"offsets": merged(state.offsets, offsets), "pending": _without_resolved(state.pending, partitions_by_topic)}


def _without_resolved(
    pending: Sequence[Pending], partitions: Mapping[tuple[str, str], Collection[int]]
) -> tuple[Pending, ...]:
    """Return the prepares without `partitions`, which a later entry has resolved.

    Empty prepares are removed.
    """
    remaining = (replace(item, offsets=without(item.offsets, partitions)) for item in pending)
    return tuple(item for item in remaining if item.offsets)
