"""The members of a consumer group, the partitions that they own, and the movement of partitions between members. Groups
do not have a coordinator. The latest entry of a group lists its members. Each member has three sets of partitions:

* `owned`: partitions that the member may read and commit.
* `revoked`: owned partitions that the assignor has assigned to another member or to no member. The member stops reading
  them, commits their offsets, and releases them with an entry.
* `awaited`: partitions that the assignor has assigned to the member, but that another member still owns. When the other
  member has released these partitions, this member owns them.

A partition therefore moves in two generations, as in Kafka's cooperative protocol, and never has two owners. If a
member's session times out, the next entry of another member removes the member from the group. Commits of a removed
member are rejected.

The `generation` of a member is the generation in which it joined or last released partitions. A commit contains the
member's generation. A commit that was prepared before the member released a partition is therefore rejected, even if
the member owns the partition again.

**Exclusive owners.** The assignor `all` assigns every partition to a single member, the exclusive owner. A Spark stream
is an exclusive owner. `all` is its only assignor, so it cannot share the group with other members, but a new exclusive
owner can replace it. A server (`sparklog serve`) is an exclusive owner if its clients divide the partitions among
themselves. The server also lists the assignors that all of its clients support. If a new member supports one of these
assignors, the member is added to the group, but does not own partitions until the server has replaced itself with its
clients, which become ordinary members.

**Members of the consumer protocol** (KIP-848) have the field `consumer`. The group is then a consumer group in Kafka's
sense. Its assignor is one of `SERVER_ASSIGNORS` that most of these members request, also for the other members, as in
Kafka. The other members must also have a common assignor, because the members of the consumer protocol may leave first.
See `consumer_member`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat
from operator import itemgetter

from sparklog.errors import Conflict
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import ALL, ASSIGNORS, SERVER_ASSIGNORS, UNIFORM, MemberSubscription, assign
from sparklog.log.journal.documents import (
    BOOLEAN,
    INT32_MAX,
    TEXT,
    TEXTS,
    Document,
    Fields,
    Member,
    MemberKind,
    members,
    object_of,
    whole,
)
from sparklog.log.journal.names import MAX_PARTITIONS

Partitions = frozenset[TopicPartition]


SERVER_PREFIX = "serve@"
"""Prefix of the member id of a server, which is followed by its address. A server is the exclusive owner of a group
while only its clients are members of the group. It keeps these members in memory.
"""


def server_of(member_id: str | None) -> str | None:
    """Return the address of a server, or None if a member is not a server."""
    return member_id[len(SERVER_PREFIX) :] if member_id is not None and member_id.startswith(SERVER_PREFIX) else None


@dataclass(frozen=True, slots=True)
class ConsumerProtocol:
    """The additional fields of a member that uses the consumer protocol (KIP-848)."""

    topic_names: tuple[str, ...]  # the member's `topics` also contain the topics that match the regular expression
    topic_regex: str | None
    rebalance_timeout_ms: int
    rack_id: str | None = None
    previous_epoch: int = 0  # the epoch of the request with which the member's generation started
    has_left: bool = False  # True for a static member that has left with epoch -2 and will rejoin


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. The module's documentation describes `owned`, `revoked` and `awaited`."""

    id: str
    instance_id: str | None  # Kafka's `group.instance.id`; None for dynamic members
    client_id: str
    host: str
    session_timeout_ms: int
    assignors: tuple[str, ...]  # in order of preference
    topics: tuple[str, ...]
    generation: int = 0
    seen: int = 0  # number of the latest entry that counts as a heartbeat of the member
    owned: Partitions = frozenset()
    revoked: Partitions = frozenset()
    awaited: Partitions = frozenset()
    consumer: ConsumerProtocol | None = None  # None for members of other protocols

    @property
    def is_exclusive(self) -> bool:
        """True if the member owns all partitions. In this case, `owned` is empty."""
        return ALL in self.assignors

    @property
    def is_stable(self) -> bool:
        """True if the member owns exactly the partitions that the assignor has assigned to it."""
        return not self.revoked and not self.awaited

    @property
    def has_left(self) -> bool:
        """True for a static member of the consumer protocol that has left temporarily."""
        return self.consumer is not None and self.consumer.has_left

    @property
    def assigned(self) -> Partitions:
        """The partitions that a server returns to its client."""
        return self.owned - self.revoked

    @property
    def target(self) -> Partitions:
        """The partitions that the assignor has assigned to the member."""
        return self.assigned | self.awaited


def rebalanced(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> tuple[GroupMember, ...]:
    """Run the assignor and assign free partitions. Raises `Conflict` if the members have no common assignor."""
    sharing = [member for member in members if not member.is_exclusive]
    if not sharing:
        return tuple(members)
    assignor = group_assignor(members)
    subscriptions = [
        # As in Kafka, `uniform` starts from the previous result, whether or not its partitions have moved yet.
        MemberSubscription(m.id, m.instance_id, m.topics, tuple(sorted(m.target if assignor == UNIFORM else m.owned)))
        for m in sharing
    ]
    targets = assign(assignor, subscriptions, partitions)
    owners = [member for member in members if member.is_exclusive]
    return assign_free_partitions(
        [*owners, *(_with_target(member, frozenset(targets[member.id])) for member in sharing)]
    )


def _with_target(member: GroupMember, target: Partitions) -> GroupMember:
    revoked, awaited = member.owned - target, target - member.owned
    if (revoked, awaited) == (member.revoked, member.awaited):
        return member
    return replace(member, revoked=revoked, awaited=awaited)


def after_revocation(member: GroupMember, partitions: Partitions, generation: int) -> GroupMember:
    """Return the member after it has released `partitions`.

    If the assignor has assigned a released partition to the member again, the member awaits this partition.
    """
    back = (member.owned - member.revoked) & partitions
    return replace(
        member,
        owned=member.owned - partitions,
        revoked=member.revoked - partitions,
        awaited=member.awaited | back,
        generation=generation,
    )


def assign_free_partitions(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
    """Return the members, sorted by id.

    If an awaited partition is not owned by any member, it is assigned to the member that awaits the partition.
    """
    ordered = sorted(members, key=lambda member: member.id)
    if any(member.is_exclusive for member in members):
        return tuple(ordered)
    owned = {partition for member in members for partition in member.owned}
    return tuple(_with_free(member, owned) for member in ordered)


def _with_free(member: GroupMember, owned: Set[TopicPartition]) -> GroupMember:
    free = member.awaited - owned
    return replace(member, owned=member.owned | free, awaited=member.awaited - free) if free else member


def group_assignor(members: Sequence[GroupMember]) -> str:
    """Return the assignor of a group. Raises `Conflict` if members of other protocols have no common assignor."""
    consumers = [member for member in members if member.consumer is not None]
    common = common_assignor(members) if len(consumers) < len(members) else UNIFORM
    if not consumers:
        return common
    votes = Counter(member.assignors[0] for member in consumers if member.assignors)
    return max(SERVER_ASSIGNORS, key=lambda name: votes[name])


def common_assignor(members: Sequence[GroupMember]) -> str:
    """Return the common assignor that most members prefer, as a broker does.

    Members of the consumer protocol are ignored. Raises `Conflict` if the members do not have a common assignor.
    """
    members = [member for member in members if member.consumer is None]
    common = set(ASSIGNORS).intersection(*(member.assignors for member in members))
    if not common:
        names = ([name for name in member.assignors if name != ALL] for member in members)
        listed = "; ".join(sorted({", ".join(each) for each in names}))
        raise Conflict(
            f"the members of a group must have a common assignor, found {listed}; set the same "
            f"partition_assignment_strategy for all members: one or more of {', '.join(ASSIGNORS)}"
        )
    votes = Counter(next(name for name in member.assignors if name in common) for member in members)
    # Kafka breaks ties arbitrarily. sparklog selects the first assignor in `ASSIGNORS`, so that every writer selects
    # the same assignor.
    return max((name for name in ASSIGNORS if name in common), key=lambda name: votes[name])


def subscribed_partitions(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the number of partitions of each topic that at least one member subscribes to."""
    topics = {topic for member in members for topic in member.topics}
    return {topic: n for topic, n in sorted(partitions.items()) if topic in topics}


def without_members(members: Sequence[GroupMember], removed: Collection[str]) -> tuple[GroupMember, ...]:
    return tuple(member for member in members if member.id not in removed)


# -- JSON


def _read_partitions(item: Fields, name: str) -> Partitions:
    lists = Fields(item.mapping(name), item.key, f"{item.what}: {name}")
    return frozenset(
        chain.from_iterable(
            zip(repeat(topic), lists.integers(topic, None, 0, MAX_PARTITIONS - 1), strict=False)
            for topic in lists.document
        )
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the sorted partition numbers of each topic, in the order of topics."""
    topics = groupby(sorted(partitions), key=itemgetter(0))
    return {topic: [partition for _, partition in pairs] for topic, pairs in topics}


PARTITIONS_BY_TOPIC = MemberKind(_read_partitions, by_topic)
"""`{"topic": [partitions]}`"""

CONSUMER_JSON = Document(
    ConsumerProtocol,
    Member("topicNames", TEXTS),
    Member("topicRegex", TEXT, nullable=True),
    Member("rebalanceTimeoutMs", whole(0, INT32_MAX)),
    Member("rackId", TEXT, nullable=True),
    Member("previousEpoch", whole(0, INT32_MAX)),
    Member("hasLeft", BOOLEAN),
)
MEMBER_JSON = Document(
    GroupMember,
    Member("id", TEXT),
    Member("instanceId", TEXT, nullable=True),
    *members(TEXT, "clientId", "host"),
    Member("sessionTimeoutMs", whole(1, INT32_MAX)),
    *members(TEXTS, "assignors", "topics"),
    Member("generation", whole(0, INT32_MAX)),
    Member("seen", whole(0)),
    Member("owned", PARTITIONS_BY_TOPIC),
    *members(PARTITIONS_BY_TOPIC, "revoked", "awaited", optional=True),
    Member("consumer", object_of(CONSUMER_JSON), optional=True),
)


def _in_order(item: Fields, name: str) -> tuple[GroupMember, ...]:
    members = tuple(map(MEMBER_JSON.from_json, item.objects(name)))
    ids = [member.id for member in members]
    if ids != sorted(set(ids)):
        raise item.bad(name, "sorted by id without duplicates")
    if not are_consistent(members):
        raise item.bad(
            name, "a list without shared partitions, or with one exclusive owner and no other owned partitions"
        )
    return members


def are_consistent(members: Sequence[GroupMember]) -> bool:
    """Return True if no partition has two owners, and no member owns partitions in addition to an exclusive owner."""
    owned: set[TopicPartition] = set()
    for member in members:
        if not owned.isdisjoint(member.owned) or not member.revoked <= member.owned:
            return False
        owned |= member.owned
    owners = sum(member.is_exclusive for member in members)
    return owners == 0 or (owners == 1 and not owned)


MEMBERS_BY_ID = MemberKind(_in_order, lambda members: list(map(MEMBER_JSON.to_json, members)))
"""A JSON list of members, sorted by id. No partition has two owners."""
