"""Entries of a consumer group's journal, `_groups/<group>/_log`, and the steps from one state to the next.

An entry carries the whole state after it. The members that every entry begins with are in
`sparklog.log.journal.entry_log`; then

| member           | meaning                                                                                         |
|------------------|-------------------------------------------------------------------------------------------------|
| op               | join, heartbeat, leave, commit, prepare, resolve, alter, delete-offsets, delete, restore, expire |
| generation       | counts up whenever an instance joins and whenever an operator resets or deletes: a member of an |
|                  | older one is fenced                                                                             |
| instance         | the instance that joined as this generation; null: the group has no member                      |
| sessionTimeoutMs | the group is active so long after `active`; null before the first join                          |
| active           | number of the newest entry that the member wrote; null: there is no member                      |
| touched          | number of the newest entry that is not maintenance's; null before it: offsets expire by its age |
| deleted          | true: the group is gone, and this entry fences its last member                                  |
| offsets          | per topic and topic id: [{topic, topicId, partition, offset, timeMs, leaderEpoch, metadata}]    |
| pending          | prepares of transactions: [{id, n, number, timeoutMs, generation, offsets}], in their order     |

`offsets` are in `sparklog.groups.offsets`. A topic that was deleted and created again has another id: readers leave its
old offsets out, and maintenance drops them.

Pending offsets are settled by the decision of their transaction. A COMMIT that names this group and the entry's number
commits them, any other decision aborts them. As in Kafka, a plain commit, a reset or a delete after a prepare takes its
partitions out of it, and so does a later prepare that is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sparklog.errors import Fenced
from sparklog.groups.offsets import (
    MAX_INT,
    OFFSETS_BY_TOPIC,
    GroupMetadata,
    TopicOffsets,
    merged,
    topic_offsets,
    without,
)
from sparklog.log.journal.documents import (
    BOOLEAN,
    TEXT,
    Document,
    Fields,
    Member,
    StoredDocument,
    objects_of,
    one_of,
    whole,
)
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, Entry, EntryKind
from sparklog.log.journal.names import GROUPS_FOLDER, MAX_VERSION

JOIN = "join"
HEARTBEAT = "heartbeat"
LEAVE = "leave"
COMMIT = "commit"
PREPARE = "prepare"
RESOLVE = "resolve"
ALTER = "alter"
DELETE_OFFSETS = "delete-offsets"
DELETE = "delete"
RESTORE = "restore"
EXPIRE = "expire"
GROUP_OPS = (JOIN, HEARTBEAT, LEAVE, COMMIT, PREPARE, RESOLVE, ALTER, DELETE_OFFSETS, DELETE, RESTORE, EXPIRE)


@dataclass(frozen=True, slots=True)
class Pending:
    """Offsets that entry `number` prepared for transaction `n` of `txn`; `generation` None: sent by no member."""

    txn: str
    n: int
    number: int
    timeout_ms: int
    generation: int | None
    offsets: tuple[TopicOffsets, ...]


@dataclass(frozen=True, slots=True)
class GroupState(Entry):
    """The newest entry of a group, and so its state. See the module."""

    op: str = ""
    generation: int = 0
    instance: str | None = None
    session_timeout_ms: int | None = None
    active: int | None = None
    touched: int | None = None
    deleted: bool = False
    offsets: tuple[TopicOffsets, ...] = ()
    pending: tuple[Pending, ...] = ()

    @property
    def exists(self) -> bool:
        return self.number >= 0 and not self.deleted


def _places(offsets: Sequence[TopicOffsets]) -> dict[tuple[str, str], set[int]]:
    return {item.place: set(item.partition) for item in offsets}


def _overtaken(pending: Sequence[Pending], gone: Mapping[tuple[str, str], Collection[int]]) -> tuple[Pending, ...]:
    """Return prepares without the partitions in `gone`, which a later entry has settled; empty ones are dropped."""
    left = (replace(item, offsets=without(item.offsets, gone)) for item in pending)
    return tuple(item for item in left if item.offsets)


# -- steps: the state after one more entry, None if there is nothing to write; number and chain come from the journal


def join(state: GroupState, instance: str, session_timeout_ms: int) -> GroupState:
    """Make `instance` the member, as a new generation."""
    return replace(
        _by_member(state),
        op=JOIN,
        generation=_next_generation(state),
        instance=instance,
        session_timeout_ms=session_timeout_ms,
        deleted=False,
    )


def heartbeat(state: GroupState, member: GroupMetadata) -> GroupState:
    """Keep the group active. `Fenced` if this is not the member any more."""
    check_member(state, member)
    return replace(_by_member(state), op=HEARTBEAT)


def leave(state: GroupState, member: GroupMetadata) -> GroupState | None:
    """Leave the group without a member; None if this is not the member any more."""
    if not is_member(state, member):
        return None
    return replace(state, op=LEAVE, instance=None, active=None, touched=state.number + 1)


def commit(state: GroupState, member: GroupMetadata, offsets: Sequence[TopicOffsets]) -> GroupState:
    """Commit offsets of the member. `Fenced` if this is not the member any more."""
    check_member(state, member)
    return replace(
        _by_member(state),
        op=COMMIT,
        offsets=merged(state.offsets, offsets),
        pending=_overtaken(state.pending, _places(offsets)),
    )


def prepare(
    state: GroupState,
    member: GroupMetadata | None,
    transactional_id: str,
    n: int,
    timeout_ms: int,
    offsets: Sequence[TopicOffsets],
) -> GroupState:
    """Hold offsets pending, until a COMMIT of transaction `n` names this entry. `Fenced` for an older generation."""
    if member is not None:
        check_member(state, member)
    touched = replace(state, touched=state.number + 1) if member is None else _by_member(state)
    generation = None if member is None else member.generation
    item = Pending(transactional_id, n, state.number + 1, timeout_ms, generation, tuple(offsets))
    return replace(touched, op=PREPARE, deleted=False, pending=(*state.pending, item))


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
            offsets = merged(offsets, item.offsets)
            left = list(_overtaken(left, _places(item.offsets)))
    return replace(state, op=RESOLVE, offsets=offsets, pending=tuple(left))


def alter(state: GroupState, offsets: Sequence[TopicOffsets]) -> GroupState:
    """Set offsets of an operator, and fence the member."""
    return replace(
        _by_others(state),
        op=ALTER,
        deleted=False,
        offsets=merged(state.offsets, offsets),
        pending=_overtaken(state.pending, _places(offsets)),
    )


def delete_offsets(state: GroupState, gone: Mapping[str, Collection[int]]) -> GroupState | None:
    """Drop partitions of topics, under any id, and fence the member. None if there are no offsets of them."""
    pending = (item for each in state.pending for item in each.offsets)
    places = {item.place: gone[item.topic] for item in (*state.offsets, *pending) if item.topic in gone}
    left, waiting = without(state.offsets, places), _overtaken(state.pending, places)
    if left == state.offsets and waiting == state.pending:
        return None
    return replace(_by_others(state), op=DELETE_OFFSETS, offsets=left, pending=waiting)


def delete(state: GroupState) -> GroupState | None:
    """Delete the group, pending offsets included; None if it is gone."""
    return replace(_by_others(state), op=DELETE, deleted=True, offsets=(), pending=()) if state.exists else None


def restore(state: GroupState, offsets: Sequence[TopicOffsets], generation: int) -> GroupState | None:
    """Take over offsets of another root where there are none or older ones; None if that changes nothing.

    Generations go on from the higher one.
    """
    known = {item.place: item.rows() for item in state.offsets}
    newer = []
    for item in offsets:
        old = known.get(item.place, {})
        rows = {
            partition: row
            for partition, row in item.rows().items()
            if partition not in old or (old[partition][1] < row[1] and old[partition] != row)
        }
        if rows:
            newer.append(topic_offsets(item.topic, item.topic_id, rows))
    if not newer and generation <= state.generation:
        return None
    return replace(
        state,
        op=RESTORE,
        deleted=False,
        generation=max(generation, state.generation),
        # The member goes on only as its own generation.
        instance=state.instance if generation <= state.generation else None,
        active=state.active if generation <= state.generation else None,
        touched=state.number + 1,
        offsets=merged(state.offsets, newer),
    )


def expire(state: GroupState, *, everything: bool, gone: Collection[tuple[str, str]]) -> GroupState | None:
    """Drop the offsets of deleted topics, `gone` (name and id); with `everything` all, and so the group.

    Pending offsets stay, and with them their group. None if there is nothing to drop.
    """
    # Maintenance leaves `touched` alone: a group expires by the entries of its members and operators.
    if not state.exists:
        return None
    if everything and not state.pending:
        return replace(_by_others(state), op=EXPIRE, touched=state.touched, deleted=True, offsets=())
    left = () if everything else tuple(item for item in state.offsets if item.place not in gone)
    return None if left == state.offsets else replace(state, op=EXPIRE, offsets=left)


def is_member(state: GroupState, member: GroupMetadata) -> bool:
    """True if a member is the group's present generation."""
    return state.exists and (state.generation, state.instance) == (member.generation, member.instance)


def check_member(state: GroupState, member: GroupMetadata) -> None:
    """`Fenced` if the group has gone on without this member."""
    if not is_member(state, member):
        now = f"generation {state.generation}" + ("" if state.instance is None else f" ({state.instance})")
        newer = "it was deleted" if state.deleted else f"it is at {now}"
        raise Fenced(
            f"generation {member.generation} ({member.instance}) of group '{state.id}' was superseded: {newer}; stop "
            "this consumer, or join again"
        )


def _next_generation(state: GroupState) -> int:
    return 1 if state.generation >= MAX_INT else state.generation + 1


def _by_member(state: GroupState) -> GroupState:
    return replace(state, active=state.number + 1, touched=state.number + 1)


def _by_others(state: GroupState) -> GroupState:
    return replace(state, generation=_next_generation(state), instance=None, active=None, touched=state.number + 1)


# -- bytes


PENDING_JSON = Document(
    Pending,
    Member("id", TEXT, "txn"),
    Member("n", whole(0, MAX_VERSION)),
    Member("number", whole(0)),
    Member("timeoutMs", whole(1, MAX_INT)),
    Member("generation", whole(0, MAX_INT), nullable=True),
    Member("offsets", OFFSETS_BY_TOPIC),
)


def _check_numbers(item: Fields, entry: GroupState) -> None:
    for name in ("active", "touched"):
        if item.document.get(name) is not None:
            item.integer(name, 0, entry.number)
    if any(each.number > entry.number for each in entry.pending):
        raise item.bad("pending", f"of entries up to {entry.number}")


GROUP_JSON = StoredDocument(
    "entry",
    GroupState,
    *ENTRY_MEMBERS,
    Member("op", one_of(*GROUP_OPS)),
    Member("generation", whole(0, MAX_INT)),
    Member("instance", TEXT, nullable=True),
    Member("sessionTimeoutMs", whole(1, MAX_INT), nullable=True),
    Member("active", whole(0), nullable=True),
    Member("touched", whole(0), nullable=True),
    Member("deleted", BOOLEAN),
    Member("offsets", OFFSETS_BY_TOPIC),
    Member("pending", objects_of(PENDING_JSON)),
    check=_check_numbers,
)
GROUPS = EntryKind(GROUPS_FOLDER, "group", "offsets", GroupState, GROUP_JSON)
