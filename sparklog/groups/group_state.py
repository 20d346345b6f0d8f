"""Entries of a consumer group's journal, `_groups/<group>/_log`: the state of the group, and its JSON format.

An entry contains the complete state after the entry. docs/reference/format-transactions.md describes its fields.
Offsets are tables: parallel columns for each topic and topic id, in the order of partitions. If a topic was deleted and
created again, its id is different. Readers ignore the offsets of the old id, and maintenance deletes them.

An exclusive owner without other assignors is stored in the field `instance`, so that releases without group members can
read the entry. `_group_state` converts the field to a member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import ALL
from sparklog.groups.group_members import MEMBERS_BY_ID, GroupMember
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
    members,
    numbers_by_text,
    objects_of,
    one_of,
    whole,
    wholes,
)
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import GROUPS_FOLDER, MAX_PARTITIONS, MAX_VERSION

NO_EPOCH = -1
MAX_INT = 2**31 - 1
"""Maximum generation, leader epoch and timeout, which have 32 bits in Kafka."""

T = TypeVar("T")
Row = tuple[int, int, int, str]
"""Offset, time in ms, leader epoch and metadata of one partition."""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The group, generation and member id of a commit, as in Kafka."""

    group: str
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset to commit (the next offset to read), with its metadata and leader epoch."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group in one partition (the next offset to read), and the commit time in ms."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Offsets of one topic: parallel tuples in the order of partitions.

    If `leader_epoch` is -1, the leader epoch is unknown.
    """

    topic: str
    topic_id: str
    partition: tuple[int, ...]
    offset: tuple[int, ...]
    time_ms: tuple[int, ...]
    leader_epoch: tuple[int, ...]
    metadata: tuple[str, ...]

    @property
    def topic_and_id(self) -> tuple[str, str]:
        return self.topic, self.topic_id

    def positions(self) -> Iterator[tuple[str, int, int]]:
        return ((self.topic, *pair) for pair in zip(self.partition, self.offset, strict=True))

    def rows(self) -> dict[int, Row]:
        rows = zip(self.offset, self.time_ms, self.leader_epoch, self.metadata, strict=True)
        return dict(zip(self.partition, rows, strict=True))

    def committed(self) -> list[CommittedOffset]:
        return [
            CommittedOffset(
                *self.topic_and_id, partition, offset, None if epoch == NO_EPOCH else epoch, metadata, time_ms
            )
            for partition, (offset, time_ms, epoch, metadata) in self.rows().items()
        ]


def topic_offsets(topic: str, topic_id: str, rows: Mapping[int, Row]) -> TopicOffsets:
    partitions = sorted(rows)
    offset, time_ms, epoch, metadata = zip(*(rows[partition] for partition in partitions), strict=True)
    return TopicOffsets(topic, topic_id, tuple(partitions), offset, time_ms, epoch, metadata)


def merged(base: Sequence[TopicOffsets], newer: Sequence[TopicOffsets]) -> tuple[TopicOffsets, ...]:
    """Return `base` with the offsets of `newer` added or replaced, sorted by topic."""
    tables = {item.topic_and_id: item for item in base}
    for item in newer:
        before = tables.get(item.topic_and_id)
        if before is None or before.partition == item.partition:
            tables[item.topic_and_id] = item
        else:
            tables[item.topic_and_id] = topic_offsets(item.topic, item.topic_id, {**before.rows(), **item.rows()})
    return tuple(tables[topic_and_id] for topic_and_id in sorted(tables))


def without(
    base: Sequence[TopicOffsets], removed: Mapping[tuple[str, str], Collection[int]]
) -> tuple[TopicOffsets, ...]:
    remaining = []
    for item in base:
        partitions = removed.get(item.topic_and_id, ())
        rows = {partition: row for partition, row in item.rows().items() if partition not in partitions}
        if rows:
            remaining.append(topic_offsets(item.topic, item.topic_id, rows))
    return tuple(remaining)


def _collapsed(values: tuple[object, ...]) -> tuple[object, ...]:
    return values[:1] if values.count(values[0]) == len(values) else values


def _expanded(item: Fields, name: str, values: tuple[T, ...], what: str) -> tuple[T, ...]:
    n = len(item.document["partition"])
    if len(values) not in (1, n):
        raise item.bad(name, f"a list of 1 or {n} {what}")
    return values if len(values) == n else values * n


def _collapsed_integers(low: int, high: int) -> MemberKind:
    return MemberKind(
        lambda item, name: _expanded(item, name, item.integers(name, None, low, high), "integers"), _collapsed
    )


def _check_partitions(item: Fields, offsets: TopicOffsets) -> None:
    if not offsets.partition or any(left >= right for left, right in pairwise(offsets.partition)):
        raise item.bad("partition", "sorted partitions without duplicates")


OFFSETS_JSON = Document(
    TopicOffsets,
    *members(TEXT, "topic", "topicId"),
    Member("partition", wholes(0, MAX_PARTITIONS - 1)),
    Member("offset", wholes(0, like="partition")),
    Member("timeMs", _collapsed_integers(0, INT64_MAX)),
    Member("leaderEpoch", _collapsed_integers(NO_EPOCH, INT32_MAX)),
    Member("metadata", MemberKind(lambda item, name: _expanded(item, name, item.texts(name), "texts"), _collapsed)),
    check=_check_partitions,
)


def _in_order(item: Fields, name: str) -> tuple[TopicOffsets, ...]:
    offsets = tuple(map(OFFSETS_JSON.from_json, item.objects(name)))
    topics = [item.topic_and_id for item in offsets]
    if topics != sorted(set(topics)):
        raise item.bad(name, "sorted by topic without duplicates")
    return offsets


OFFSETS_BY_TOPIC = MemberKind(_in_order, lambda offsets: list(map(OFFSETS_JSON.to_json, offsets)))
"""A JSON list of topics with their offsets, sorted by topic. Each topic occurs once."""


GROUP_OPS = (
    *("join", "subscribe", "heartbeat", "revoke", "leave", "commit", "prepare", "resolve"),
    *("alter", "delete-offsets", "delete", "restore", "expire"),
)


@dataclass(frozen=True, slots=True)
class Pending:
    """The offsets that entry `number` prepared for transaction `n` of `txn`."""

    txn: str
    n: int
    number: int
    timeout_ms: int
    generation: int | None  # generation of the member; None if no member sent the offsets, or if the member has left
    offsets: tuple[TopicOffsets, ...]
    # id of the member; None if the member was removed or replaced, in which case `generation` may still be set
    member: str | None = None

    def has_any(self, partitions: Collection[TopicPartition]) -> bool:
        return any((item.topic, number) in partitions for item in self.offsets for number in item.partition)


@dataclass(frozen=True, slots=True)
class GroupState(StateEntry):
    """The latest entry of a group, which is the group's state."""

    op: str = ""
    generation: int = 0
    session_timeout_ms: int | None = None
    active: int | None = None
    touched: int | None = None
    deleted: bool = False
    offsets: tuple[TopicOffsets, ...] = ()
    pending: tuple[Pending, ...] = ()
    # number of partitions of the topics that `members` subscribe to
    partitions: Mapping[str, int] = field(default_factory=dict)
    members: tuple[GroupMember, ...] = ()

    @property
    def exists(self) -> bool:
        return self.number >= 0 and not self.deleted

    @property
    def owner(self) -> GroupMember | None:
        """The exclusive owner, or None if the group does not have an exclusive owner."""
        return next((member for member in self.members if member.is_exclusive), None)

    @property
    def instance(self) -> str | None:
        """The id of the exclusive owner, if it is stored in the field `instance`."""
        return self.members[0].id if len(self.members) == 1 and self.members[0].assignors == (ALL,) else None

    @property
    def listed_members(self) -> tuple[GroupMember, ...]:
        """The members that are stored in the field `members`."""
        return self.members if self.instance is None else ()

    @property
    def stored_pending(self) -> tuple[Pending, ...]:
        """The pending offsets in their stored form.

        If the owner is stored in the field `instance`, its pending offsets are identified by their generation.
        """
        if self.instance is None:
            return self.pending
        return tuple(replace(item, member=None) if item.member == self.instance else item for item in self.pending)

    def member(self, member_id: str | None) -> GroupMember | None:
        return next((member for member in self.members if member.id == member_id), None)

    def is_superseded(self, pending: Pending) -> bool:
        """Return True if the offsets must be aborted, because the member that prepared them was removed or replaced."""
        return pending.generation is not None and pending.member is None


# -- JSON


PENDING_JSON = Document(
    Pending,
    Member("id", TEXT, "txn"),
    Member("n", whole(0, MAX_VERSION)),
    Member("number", whole(0)),
    Member("timeoutMs", whole(1, MAX_INT)),
    Member("generation", whole(0, MAX_INT), nullable=True),
    Member("offsets", OFFSETS_BY_TOPIC),
    Member("member", TEXT, optional=True),
)


def _check_numbers(item: Fields, entry: GroupState) -> None:
    for name in ("active", "touched"):
        if item.document.get(name) is not None:
            item.integer(name, 0, entry.number)
    if entry.instance is not None and (entry.active is None or entry.session_timeout_ms is None):
        raise item.bad("instance", "null if there is no active entry or no session timeout")
    if any(prepare_item.number > entry.number for prepare_item in entry.pending):
        raise item.bad("pending", f"pending offsets of entries up to {entry.number}")
    if any(member.seen > entry.number for member in entry.members):
        raise item.bad("members", f"members whose latest heartbeat is in an entry up to {entry.number}")


def _group_state(
    *,
    instance: str | None,
    listed_members: tuple[GroupMember, ...] = (),
    stored_pending: tuple[Pending, ...],
    **attributes: Any,
) -> GroupState:
    """Return the state that an entry contains."""
    state = GroupState(members=listed_members, **attributes)
    if instance is not None:
        timeout_ms, seen = state.session_timeout_ms or 1, state.active or 0
        owner = GroupMember(instance, None, "", "", timeout_ms, (ALL,), (), state.generation, seen)
        state = replace(state, members=(owner,))
    return replace(state, pending=tuple(_pending(state, item) for item in stored_pending))


def _pending(state: GroupState, item: Pending) -> Pending:
    """Return stored pending offsets with the member that sent them."""
    if item.member is not None:
        return item if state.member(item.member) is not None else replace(item, member=None)
    if item.generation != state.generation:
        return item
    if state.instance is not None:
        return replace(item, member=state.instance)
    # The owner of this generation has left. Earlier releases did not clear its generation.
    return item if state.members else replace(item, generation=None)


GROUP_JSON = StoredDocument(
    "entry",
    _group_state,
    *ENTRY_MEMBERS,
    Member("op", one_of(*GROUP_OPS)),
    Member("generation", whole(0, MAX_INT)),
    Member("instance", TEXT, nullable=True),
    Member("sessionTimeoutMs", whole(1, MAX_INT), nullable=True),
    *members(whole(0), "active", "touched", nullable=True),
    Member("deleted", BOOLEAN),
    Member("offsets", OFFSETS_BY_TOPIC),
    Member("pending", objects_of(PENDING_JSON), "stored_pending"),
    Member("partitions", numbers_by_text(), optional=True),
    Member("members", MEMBERS_BY_ID, "listed_members", optional=True),
    check=_check_numbers,
)
GROUPS = EntryKind(
    folder=GROUPS_FOLDER,
    owner="group",
    what="offsets",
    noun="group",
    empty=GroupState,
    table=GROUP_JSON,
    old_entry="group entry",
)
