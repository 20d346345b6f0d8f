"""Members of a consumer group: what each one owns, and how partitions move between them.

There is no coordinator. The latest entry of a group lists its members, with three sets of partitions for each:

* `owned`: partitions that the member may read and commit;
* `revoked`: owned partitions that the assignor has given to others, or to none. The member stops reading them, commits
  their offsets, and gives them up with an entry;
* `awaited`: partitions that the assignor has given to the member, but another member still owns. The member owns them
  from the entry on with which the other member gives them up.

So a partition moves in two generations, as in Kafka's cooperative protocol, and never has two owners. If a member's
session times out, the next entry of another member removes it, and its commits are rejected from then on.

A member's `generation` is the one in which it joined or last gave up partitions. A commit names it. So a commit that
was prepared before the member gave up a partition is rejected even if the member owns the partition again.

**Exclusive owners.** The assignor `all` gives every partition to a single member, an exclusive owner. A Spark stream is
one: `all` is its only assignor, so it cannot be in a group with other members, but a new exclusive owner replaces it. A
server (`sparklog serve`) whose clients divide the partitions among themselves is one, too. It also lists the assignors
that all of its clients have. If one of these is an assignor of a member that joins, the member is added, but owns
nothing until the server has replaced itself by its clients, as ordinary members.

A consumer group of KIP-848 is the same structure: members, and an assignor that runs with each change of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat
from operator import itemgetter

from sparklog.errors import Conflict
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import ALL, ASSIGNORS, MemberSubscription, assign
from sparklog.log.journal.documents import INT32_MAX, TEXT, TEXTS, Document, Fields, Member, MemberKind, members, whole
from sparklog.log.journal.names import MAX_PARTITIONS

Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group; see the module."""

    id: str
    instance_id: str | None  # Kafka's `group.instance.id`, of a static member
    client_id: str
    host: str
    session_timeout_ms: int
    assignors: tuple[str, ...]  # in the order of its preference
    topics: tuple[str, ...]
    generation: int = 0
    seen: int = 0  # number of the newest entry that shows it alive
    owned: Partitions = frozenset()
    revoked: Partitions = frozenset()
    awaited: Partitions = frozenset()

    @property
    def is_exclusive(self) -> bool:
        """True if the member owns all partitions, whatever they are: `owned` is empty."""
        return ALL in self.assignors

    @property
    def is_stable(self) -> bool:
        """True if the member owns the partitions that the assignor gives it, and no others."""
        return not self.revoked and not self.awaited


def rebalanced(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> tuple[GroupMember, ...]:
    """Run the assignor and hand out free partitions. `Conflict` if the members have no assignor in common."""
    sharing = [member for member in members if not member.is_exclusive]
    if not sharing:
        return tuple(members)
    subscriptions = [MemberSubscription(m.id, m.instance_id, m.topics, tuple(sorted(m.owned))) for m in sharing]
    targets = assign(common_assignor(members), subscriptions, partitions)
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
    """Return the member without partitions. It awaits those that the assignor has given back to it meanwhile."""
    back = (member.owned - member.revoked) & partitions
    return replace(
        member,
        owned=member.owned - partitions,
        revoked=member.revoked - partitions,
        awaited=member.awaited | back,
        generation=generation,
    )


def assign_free_partitions(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
    """Return the members, in the order of ids, with the awaited partitions that no member owns."""
    ordered = sorted(members, key=lambda member: member.id)
    if any(member.is_exclusive for member in members):
        return tuple(ordered)
    owned = {partition for member in members for partition in member.owned}
    return tuple(_with_free(member, owned) for member in ordered)


def _with_free(member: GroupMember, owned: Set[TopicPartition]) -> GroupMember:
    free = member.awaited - owned
    return replace(member, owned=member.owned | free, awaited=member.awaited - free) if free else member


def common_assignor(members: Sequence[GroupMember]) -> str:
    """Return the assignor that most members prefer among the common ones, as a broker does. `Conflict`: none."""
    common = set(ASSIGNORS).intersection(*(member.assignors for member in members))
    if not common:
        names = ([name for name in member.assignors if name != ALL] for member in members)
        listed = "; ".join(sorted({", ".join(each) for each in names}))
        raise Conflict(
            f"the members of a group need one assignor in common, found {listed}; give all of them the same "
            "partition_assignment_strategy, of " + ", ".join(ASSIGNORS)
        )
    votes = Counter(next(name for name in member.assignors if name in common) for member in members)
    # Kafka breaks ties arbitrarily. Here the first of the list wins, so that every writer chooses the same.
    return max((name for name in ASSIGNORS if name in common), key=lambda name: votes[name])


def subscribed_partitions(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the number of partitions of each topic that a member subscribes to."""
    topics = {topic for member in members for topic in member.topics}
    return {topic: n for topic, n in sorted(partitions.items()) if topic in topics}


def without_members(members: Sequence[GroupMember], gone: Collection[str]) -> tuple[GroupMember, ...]:
    return tuple(member for member in members if member.id not in gone)


# -- bytes


def _read_partitions(item: Fields, name: str) -> Partitions:
    lists = Fields(item.mapping(name), item.key, f"{item.what}: {name}")
    return frozenset(
        chain.from_iterable(
            zip(repeat(topic), lists.integers(topic, None, 0, MAX_PARTITIONS - 1), strict=False)
            for topic in lists.document
        )
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, both in order."""
    topics = groupby(sorted(partitions), key=itemgetter(0))
    return {topic: [partition for _, partition in pairs] for topic, pairs in topics}


PARTITIONS_BY_TOPIC = MemberKind(_read_partitions, by_topic)
"""`{"topic": [partitions]}`"""

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
)


def _in_order(item: Fields, name: str) -> tuple[GroupMember, ...]:
    members = tuple(map(MEMBER_JSON.from_json, item.objects(name)))
    ids = [member.id for member in members]
    if ids != sorted(set(ids)):
        raise item.bad(name, "in the order of ids, each once")
    if not are_consistent(members):
        raise item.bad(name, "members that own each partition once, or one exclusive owner and members that wait")
    return members


def are_consistent(members: Sequence[GroupMember]) -> bool:
    """Return True if no partition has two owners, and no member owns a partition beside an exclusive owner."""
    owned: set[TopicPartition] = set()
    for member in members:
        if not owned.isdisjoint(member.owned) or not member.revoked <= member.owned:
            return False
        owned |= member.owned
    owners = sum(member.is_exclusive for member in members)
    return owners == 0 or (owners == 1 and not owned)


MEMBERS_BY_ID = MemberKind(_in_order, lambda members: list(map(MEMBER_JSON.to_json, members)))
"""A list of objects in the order of ids; no partition is owned twice."""
