"""Steps of a group: each makes the state after one more entry of the newest state, or raises.

A step returns None if there is nothing to write; the number and the chain come from the journal. Steps are pure: after
a lost race they are judged again on the newer state. A step of a member raises `Fenced` once the group has gone on
without it.

Pending offsets are settled by the decision of their transaction. A COMMIT that names this group and the entry's number
commits them, any other decision aborts them. As in Kafka, a plain commit, a reset or a delete after a prepare takes its
partitions out of it, and so does a later prepare that is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparklog.common.reached import reached
from sparklog.errors import Fenced
from sparklog.groups.group_members import (
    GroupMember,
    Partitions,
    given_up,
    handed_out,
    partitions_read,
    rebalanced,
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
from sparklog.log.journal.documents import GROUP_MEMBERS

Expired = Mapping[str, int]
"""Ids of members whose session timed out, and the entry that showed them alive for the last time."""

# -- steps of the member that owns all partitions, or of any member


def join(state: GroupState, instance: str, session_timeout_ms: int) -> GroupState:
    """Become the one member, that owns all partitions; members that share are taken out."""
    joined = replace(_without_member(state), generation=_next_generation(state), instance=instance, deleted=False)
    return replace(
        joined, op="join", session_timeout_ms=session_timeout_ms, active=state.number + 1, touched=state.number + 1
    )


def heartbeat(state: GroupState, member: GroupMetadata) -> GroupState:
    check_member(state, member)
    return _by_member(state, "heartbeat", member)


def leave(state: GroupState, member: GroupMetadata) -> GroupState | None:
    """Leave the group. What the member has prepared stays pending until its transaction is decided."""
    if not is_member(state, member):
        return None
    if state.member(member.member_id) is None:
        return replace(state, op="leave", instance=None, active=None, touched=state.number + 1)
    by_nobody = (
        replace(item, member=None, generation=None) if item.member == member.member_id else item
        for item in state.pending
    )
    left = replace(state, pending=tuple(by_nobody))
    return _rebalanced(left, "leave", without_members(state.members, [member.member_id]), {})


def commit(state: GroupState, member: GroupMetadata, offsets: Sequence[TopicOffsets]) -> GroupState:
    check_member(state, member, offsets)
    return _by_member(state, "commit", member, **_with(state, offsets))


def prepare(
    state: GroupState, member: GroupMetadata | None, txn: str, n: int, timeout_ms: int, offsets: Sequence[TopicOffsets]
) -> GroupState:
    """Hold offsets pending, until a COMMIT of transaction `n` names this entry."""
    item = Pending(txn, n, state.number + 1, timeout_ms, None, tuple(offsets))
    if member is None:
        pending = (*state.pending, item)
        return replace(state, op="prepare", deleted=False, pending=pending, touched=state.number + 1)
    check_member(state, member, offsets)
    sharing = None if state.member(member.member_id) is None else member.member_id
    pending = (*state.pending, replace(item, generation=member.generation, member=sharing))
    return _by_member(state, "prepare", member, deleted=False, pending=pending)


# -- steps of members that share partitions


def share(state: GroupState, member: GroupMember, partitions: Mapping[str, int], expired: Expired) -> GroupState:
    """Add a member (a static one in its place), and divide again. `Conflict`: no assignor is known to all."""
    joined = replace(member, generation=_next_generation(state), seen=state.number + 1)
    others = _alive(state, expired)
    same = [item for item in state.members if item.instance_id is not None and item.instance_id == member.instance_id]
    if same:
        reached("groups: a static member replaces the process before it")
        # As in Kafka: it goes on with the partitions, and the process before it is fenced.
        joined = replace(joined, owned=same[0].owned)
        others = without_members(others, [same[0].id])
    return _rebalanced(replace(state, deleted=False, instance=None), "join", (*others, joined), partitions)


def subscribe(
    state: GroupState, member: GroupMetadata, topics: Sequence[str], partitions: Mapping[str, int]
) -> GroupState | None:
    """Change a member's topics, or tell that topics have more partitions."""
    check_member(state, member)
    members = tuple(
        replace(item, topics=tuple(topics), seen=state.number + 1) if item.id == member.member_id else item
        for item in state.members
    )
    counts = partitions_read(members, {**state.partitions, **partitions})
    if counts == state.partitions and [item.topics for item in members] == [item.topics for item in state.members]:
        return None
    return _rebalanced(state, "subscribe", members, partitions)


def revoke(state: GroupState, member: GroupMetadata, partitions: Partitions) -> GroupState:
    """Give up partitions that the member no longer reads: those that wait for them own them from here on."""
    check_member(state, member)
    generation = _next_generation(state)
    members = tuple(
        given_up(item, partitions, generation) if item.id == member.member_id else item for item in state.members
    )
    after = replace(state, generation=generation, members=handed_out(members))
    return _by_member(after, "revoke", replace(member, generation=generation))


def renew(state: GroupState, member_ids: Collection[str], expired: Expired) -> GroupState:
    """Show that members are alive, and take out those that are not."""
    alive = _alive(state, {name: seen for name, seen in expired.items() if name not in member_ids})
    members = tuple(replace(item, seen=state.number + 1) if item.id in member_ids else item for item in alive)
    if len(members) < len(state.members):
        reached("groups: a heartbeat removes members whose sessions timed out")
        return _rebalanced(state, "heartbeat", members, {})
    return replace(state, op="heartbeat", members=members, active=state.number + 1, touched=state.number + 1)


def _alive(state: GroupState, expired: Expired) -> tuple[GroupMember, ...]:
    # One that has given a sign of life since it was judged is alive.
    return tuple(item for item in state.members if expired.get(item.id) != item.seen)


def _rebalanced(
    state: GroupState, op: str, members: Sequence[GroupMember], partitions: Mapping[str, int]
) -> GroupState:
    """Return the state of the next generation, with these members; none of them: an empty group."""
    counts = partitions_read(members, {**state.partitions, **partitions})
    number = state.number + 1
    after = replace(
        state,
        op=op,
        generation=_next_generation(state),
        partitions=counts,
        members=rebalanced(members, counts),
        session_timeout_ms=max((item.session_timeout_ms for item in members), default=state.session_timeout_ms),
        active=number if members else None,
        touched=number,
    )
    return _with_feature(after)


def _with_feature(state: GroupState) -> GroupState:
    """Name the feature in entries with members, and in no other: older software goes on where there are none."""
    feature = (GROUP_MEMBERS,) if state.members else ()
    read, write = (
        (*(name for name in names if name != GROUP_MEMBERS), *feature)
        for names in (state.read_features, state.write_features)
    )
    return replace(state, read_features=read, write_features=write)


def _without_member(state: GroupState) -> GroupState:
    """Return the state without any member: all of them are fenced."""
    return _with_feature(replace(state, instance=None, active=None, partitions={}, members=()))


# -- steps of operators and maintenance


def settled(state: GroupState, outcomes: Mapping[int, bool]) -> GroupState:
    """Settle prepares: number of the entry to True if it is committed. The same state if there are no outcomes."""
    if not outcomes:
        return state
    offsets, left = state.offsets, list[Pending]()
    for item in state.pending:
        outcome = outcomes.get(item.number)
        if outcome is None:
            left.append(item)
        elif outcome:
            reached("groups: pending offsets are committed")
            offsets = merged(offsets, item.offsets)
            left = list(_overtaken(left, {topic.place: set(topic.partition) for topic in item.offsets}))
    return replace(state, op="resolve", offsets=offsets, pending=tuple(left))


def alter(state: GroupState, offsets: Sequence[TopicOffsets]) -> GroupState:
    return _by_others(state, "alter", deleted=False, **_with(state, offsets))


def delete_offsets(state: GroupState, gone: Mapping[str, Collection[int]]) -> GroupState | None:
    """Drop partitions of topics, under any id, and fence the member. None if there are no offsets of them."""
    pending = (item for prepare_item in state.pending for item in prepare_item.offsets)
    places = {item.place: gone[item.topic] for item in (*state.offsets, *pending) if item.topic in gone}
    left, waiting = without(state.offsets, places), _overtaken(state.pending, places)
    if left == state.offsets and waiting == state.pending:
        return None
    return _by_others(state, "delete-offsets", offsets=left, pending=waiting)


def delete(state: GroupState) -> GroupState | None:
    return _by_others(state, "delete", deleted=True, offsets=(), pending=()) if state.exists else None


def restore(state: GroupState, offsets: Sequence[TopicOffsets], generation: int) -> GroupState | None:
    """Take over offsets of another root where there are none or older ones; generations go on from the higher one."""
    rows_before = {item.place: item.rows() for item in state.offsets}
    newer = []
    for item in offsets:
        old = rows_before.get(item.place, {})
        rows = {
            partition: row
            for partition, row in item.rows().items()
            if partition not in old or (old[partition][1] < row[1] and old[partition] != row)
        }
        if rows:
            newer.append(topic_offsets(item.topic, item.topic_id, rows))
    if not newer and generation <= state.generation:
        return None
    # Members go on only as their own generation.
    base = state if generation <= state.generation else _without_member(state)
    return replace(
        base,
        op="restore",
        deleted=False,
        generation=max(generation, state.generation),
        touched=state.number + 1,
        offsets=merged(state.offsets, newer),
    )


def expire(state: GroupState, *, everything: bool, gone: Collection[tuple[str, str]]) -> GroupState | None:
    """Drop offsets of deleted topics, `gone`, or `everything`, but pending ones. None if there is nothing to drop."""
    # Maintenance leaves `touched` alone: a group expires by the entries of its members and operators.
    if not state.exists:
        return None
    if everything and not state.pending:
        return replace(_by_others(state, "expire", deleted=True, offsets=()), touched=state.touched)
    left = () if everything else tuple(item for item in state.offsets if item.place not in gone)
    return None if left == state.offsets else replace(state, op="expire", offsets=left)


# -- who may


def is_member(state: GroupState, member: GroupMetadata) -> bool:
    sharing = state.member(member.member_id)
    if sharing is not None:
        return sharing.generation == member.generation
    return state.exists and (state.generation, state.instance) == (member.generation, member.member_id)


def check_member(state: GroupState, member: GroupMetadata, offsets: Sequence[TopicOffsets] = ()) -> None:
    """Raise `Fenced` unless the member may write this entry, which commits `offsets`."""
    if not is_member(state, member):
        reached("groups: an entry of a superseded member is refused")
        raise Fenced(
            f"generation {member.generation} ({member.member_id}) of group '{state.id}' was superseded: "
            f"{_newer(state, member)}; stop this consumer, or join again"
        )
    if not offsets:
        return
    others = {partition: item.id for item in state.members if item.id != member.member_id for partition in item.owned}
    taken = [place for item in offsets for partition in item.partition if (place := (item.topic, partition)) in others]
    if taken:
        topic, partition = taken[0]
        raise Fenced(
            f"{topic}-{partition} of group '{state.id}' is {others[taken[0]]}'s now, not {member.member_id}'s: its "
            "offsets were not committed; read the new assignment, by poll"
        )


def _newer(state: GroupState, member: GroupMetadata) -> str:
    if state.deleted:
        return "it was deleted"
    now = f"it is at generation {state.generation}"
    if state.instance is not None:
        return f"{now} ({state.instance})"
    if state.member(member.member_id) is not None:
        return f"{now}, and the member has given up partitions since"
    return f"{now}, of {len(state.members)} other members" if state.members else now


def _next_generation(state: GroupState) -> int:
    return 1 if state.generation >= MAX_INT else state.generation + 1


def _by_member(state: GroupState, op: str, member: GroupMetadata, **changes: Any) -> GroupState:
    """Return the state after a step of a member, which shows that it is alive."""
    number = state.number + 1
    members = tuple(replace(item, seen=number) if item.id == member.member_id else item for item in state.members)
    return replace(state, op=op, active=number, touched=number, members=members, **changes)


def _by_others(state: GroupState, op: str, **changes: Any) -> GroupState:
    """Return the state after a step of an operator, which fences the members."""
    fenced = replace(_without_member(state), generation=_next_generation(state))
    return replace(fenced, op=op, touched=state.number + 1, **changes)


def _with(state: GroupState, offsets: Sequence[TopicOffsets]) -> dict[str, Any]:
    places = {item.place: set(item.partition) for item in offsets}
    return {"offsets": merged(state.offsets, offsets), "pending": _overtaken(state.pending, places)}


def _overtaken(pending: Sequence[Pending], gone: Mapping[tuple[str, str], Collection[int]]) -> tuple[Pending, ...]:
    """Return prepares without the partitions in `gone`, which a later entry has settled; empty ones are dropped."""
    left = (replace(item, offsets=without(item.offsets, gone)) for item in pending)
    return tuple(item for item in left if item.offsets)
