"""Entries of a consumer group's journal, `_groups/<group>/_log`, and the steps from one state to the next.

An entry carries the whole state after it; docs/reference/format-transactions.md has its members. Offsets are tables:
per topic and topic id, parallel columns in the order of partitions. A topic that was deleted and created again has
another id: readers leave its old offsets out, and maintenance drops them.

Pending offsets are settled by the decision of their transaction. A COMMIT that names this group and the entry's number
commits them, any other decision aborts them. As in Kafka, a plain commit, a reset or a delete after a prepare takes its
partitions out of it, and so does a later prepare that is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from sparklog.errors import Fenced
from sparklog.log.journal.documents import (
    BOOLEAN,
    INT32_MAX,
    INT64_MAX,
    TEXT,
    Document,
    Fields,
    Member,
    MemberKind,
    StoredDocument,
    objects_of,
    one_of,
    whole,
    wholes,
)
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import GROUPS_FOLDER, MAX_PARTITIONS, MAX_VERSION

NO_EPOCH = -1
MAX_INT = 2**31 - 1
"""Generations, leader epochs and timeouts are 32 bit in Kafka."""

T = TypeVar("T")
Row = tuple[int, int, int, str]
"""Offset, time in ms, leader epoch, metadata of one partition."""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The member that commits, as Kafka's ConsumerGroupMetadata: a group, its generation, and the instance."""

    group: str
    generation: int
    instance: str


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset (next to read) to be committed, with what Kafka keeps beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset (next to read) of a group in one partition, and when it was committed (ms since the epoch)."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Offsets of one topic, by its id: parallel tuples in the order of partitions. `leader_epoch` -1 is none."""

    topic: str
    topic_id: str
    partition: tuple[int, ...]
    offset: tuple[int, ...]
    time_ms: tuple[int, ...]
    leader_epoch: tuple[int, ...]
    metadata: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str]:
        return self.topic, self.topic_id

    def positions(self) -> Iterator[tuple[str, int, int]]:
        return ((self.topic, *pair) for pair in zip(self.partition, self.offset, strict=True))

    def rows(self) -> dict[int, Row]:
        rows = zip(self.offset, self.time_ms, self.leader_epoch, self.metadata, strict=True)
        return dict(zip(self.partition, rows, strict=True))

    def committed(self) -> list[CommittedOffset]:
        return [
            CommittedOffset(*self.place, partition, offset, None if epoch == NO_EPOCH else epoch, metadata, time_ms)
            for partition, (offset, time_ms, epoch, metadata) in self.rows().items()
        ]


def topic_offsets(topic: str, topic_id: str, rows: Mapping[int, Row]) -> TopicOffsets:
    partitions = sorted(rows)
    offset, time_ms, epoch, metadata = zip(*(rows[partition] for partition in partitions), strict=True)
    return TopicOffsets(topic, topic_id, tuple(partitions), offset, time_ms, epoch, metadata)


def merged(base: Sequence[TopicOffsets], newer: Sequence[TopicOffsets]) -> tuple[TopicOffsets, ...]:
    """Return `base` with the partitions of `newer` replaced, in the order of topics."""
    tables = {item.place: item for item in base}
    for item in newer:
        before = tables.get(item.place)
        if before is None or before.partition == item.partition:
            tables[item.place] = item
        else:
            tables[item.place] = topic_offsets(item.topic, item.topic_id, {**before.rows(), **item.rows()})
    return tuple(tables[place] for place in sorted(tables))


def without(base: Sequence[TopicOffsets], gone: Mapping[tuple[str, str], Collection[int]]) -> tuple[TopicOffsets, ...]:
    left = []
    for item in base:
        lost = gone.get(item.place, ())
        rows = {partition: row for partition, row in item.rows().items() if partition not in lost}
        if rows:
            left.append(topic_offsets(item.topic, item.topic_id, rows))
    return tuple(left)


def _packed(values: tuple[object, ...]) -> tuple[object, ...]:
    return values[:1] if values.count(values[0]) == len(values) else values


def _unpacked(item: Fields, name: str, values: tuple[T, ...], what: str) -> tuple[T, ...]:
    n = len(item.document["partition"])
    if len(values) not in (1, n):
        raise item.bad(name, f"a list of 1 or {n} {what}")
    return values if len(values) == n else values * n


def _packed_wholes(low: int, high: int) -> MemberKind:
    return MemberKind(
        lambda item, name: _unpacked(item, name, item.integers(name, None, low, high), "whole numbers"), _packed
    )


def _check_partitions(item: Fields, offsets: TopicOffsets) -> None:
    if not offsets.partition or any(left >= right for left, right in pairwise(offsets.partition)):
        raise item.bad("partition", "partitions in order, each once")


OFFSETS_JSON = Document(
    TopicOffsets,
    Member("topic", TEXT),
    Member("topicId", TEXT),
    Member("partition", wholes(0, MAX_PARTITIONS - 1)),
    Member("offset", wholes(0, like="partition")),
    Member("timeMs", _packed_wholes(0, INT64_MAX)),
    Member("leaderEpoch", _packed_wholes(NO_EPOCH, INT32_MAX)),
    Member("metadata", MemberKind(lambda item, name: _unpacked(item, name, item.texts(name), "texts"), _packed)),
    check=_check_partitions,
)


def _in_order(item: Fields, name: str) -> tuple[TopicOffsets, ...]:
    offsets = tuple(map(OFFSETS_JSON.from_json, item.objects(name)))
    places = [item.place for item in offsets]
    if places != sorted(set(places)):
        raise item.bad(name, "in the order of topics, each once")
    return offsets


OFFSETS_BY_TOPIC = MemberKind(_in_order, lambda offsets: list(map(OFFSETS_JSON.to_json, offsets)))
"""A list of objects in the order of topics, each topic once."""


GROUP_OPS = (
    *("join", "heartbeat", "leave", "commit", "prepare", "resolve"),
    *("alter", "delete-offsets", "delete", "restore", "expire"),
)


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
class GroupState(StateEntry):
    """The newest entry of a group, and so its state: see the module."""

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


def _overtaken(pending: Sequence[Pending], gone: Mapping[tuple[str, str], Collection[int]]) -> tuple[Pending, ...]:
    """Return prepares without the partitions in `gone`, which a later entry has settled; empty ones are dropped."""
    left = (replace(item, offsets=without(item.offsets, gone)) for item in pending)
    return tuple(item for item in left if item.offsets)


# -- steps: the state after one more entry, None if there is nothing to write; number and chain come from the journal.
# A step of a member raises `Fenced` once the group has gone on without it.


def join(state: GroupState, instance: str, session_timeout_ms: int) -> GroupState:
    joined = replace(state, generation=_next_generation(state), instance=instance, deleted=False)
    return _by_member(joined, "join", session_timeout_ms=session_timeout_ms)


def heartbeat(state: GroupState, member: GroupMetadata) -> GroupState:
    check_member(state, member)
    return _by_member(state, "heartbeat")


def leave(state: GroupState, member: GroupMetadata) -> GroupState | None:
    if not is_member(state, member):
        return None
    return replace(state, op="leave", instance=None, active=None, touched=state.number + 1)


def commit(state: GroupState, member: GroupMetadata, offsets: Sequence[TopicOffsets]) -> GroupState:
    check_member(state, member)
    return _by_member(state, "commit", **_with(state, offsets))


def prepare(
    state: GroupState, member: GroupMetadata | None, txn: str, n: int, timeout_ms: int, offsets: Sequence[TopicOffsets]
) -> GroupState:
    """Hold offsets pending, until a COMMIT of transaction `n` names this entry."""
    if member is not None:
        check_member(state, member)
    generation = None if member is None else member.generation
    item = Pending(txn, n, state.number + 1, timeout_ms, generation, tuple(offsets))
    after = replace(state, deleted=False, pending=(*state.pending, item))
    return replace(after, op="prepare", touched=state.number + 1) if member is None else _by_member(after, "prepare")


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
    return replace(
        state,
        op="restore",
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
        return replace(_by_others(state, "expire", deleted=True, offsets=()), touched=state.touched)
    left = () if everything else tuple(item for item in state.offsets if item.place not in gone)
    return None if left == state.offsets else replace(state, op="expire", offsets=left)


def is_member(state: GroupState, member: GroupMetadata) -> bool:
    return state.exists and (state.generation, state.instance) == (member.generation, member.instance)


def check_member(state: GroupState, member: GroupMetadata) -> None:
    if not is_member(state, member):
        now = f"generation {state.generation}" + ("" if state.instance is None else f" ({state.instance})")
        newer = "it was deleted" if state.deleted else f"it is at {now}"
        raise Fenced(
            f"generation {member.generation} ({member.instance}) of group '{state.id}' was superseded: {newer}; stop "
            "this consumer, or join again"
        )


def _next_generation(state: GroupState) -> int:
    return 1 if state.generation >= MAX_INT else state.generation + 1


def _by_member(state: GroupState, op: str, **changes: Any) -> GroupState:
    return replace(state, op=op, active=state.number + 1, touched=state.number + 1, **changes)


def _by_others(state: GroupState, op: str, **changes: Any) -> GroupState:
    """Return the state after a step of an operator, which fences the member."""
    fenced = replace(state, generation=_next_generation(state), instance=None, active=None)
    return replace(fenced, op=op, touched=state.number + 1, **changes)


def _with(state: GroupState, offsets: Sequence[TopicOffsets]) -> dict[str, Any]:
    places = {item.place: set(item.partition) for item in offsets}
    return {"offsets": merged(state.offsets, offsets), "pending": _overtaken(state.pending, places)}


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
    if any(prepare_item.number > entry.number for prepare_item in entry.pending):
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
