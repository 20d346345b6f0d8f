"""Members of a group that share its partitions: what each owns, and how partitions move between them.

There is no coordinator. The newest entry of the group has its members, and for each three sets of partitions:

* `owned`: what it may read and commit;
* `revoked`: what it owns and the assignor has given to others, or to none. The member stops reading it, commits, and
  gives it up by an entry;
* `awaited`: what the assignor has given to it and another one still owns. It owns that from the other one's entry on.

So a partition moves in two generations, as by Kafka's cooperative protocol: no two members ever own it. A member whose
session has timed out is taken out by the next entry of another one; from then on its commits are refused.

A member's `generation` is the one in which it joined or last gave up partitions. A commit names it: one prepared before
the member gave up a partition, and got it back, is refused as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat
from operator import itemgetter

from sparklog.errors import Conflict
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import ASSIGNORS, MemberSubscription, assign
from sparklog.log.journal.documents import INT32_MAX, TEXT, TEXTS, Document, Fields, Member, MemberKind, members, whole
from sparklog.log.journal.names import MAX_PARTITIONS

Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member that shares the group's partitions; see the module."""

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
    def is_settled(self) -> bool:
        """True if it owns all that it was given, and nothing else."""
        return not self.revoked and not self.awaited


def rebalanced(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> tuple[GroupMember, ...]:
    """Give members new targets, by their assignor; hand out what is free. `Conflict`: no assignor is known to all."""
    if not members:
        return ()
    subscriptions = [MemberSubscription(m.id, m.instance_id, m.topics, tuple(sorted(m.owned))) for m in members]
    targets = assign(common_assignor(members), subscriptions, partitions)
    return handed_out([_with_target(member, frozenset(targets[member.id])) for member in members])


def _with_target(member: GroupMember, target: Partitions) -> GroupMember:
    revoked, awaited = member.owned - target, target - member.owned
    if (revoked, awaited) == (member.revoked, member.awaited):
        return member
    return replace(member, revoked=revoked, awaited=awaited)


def given_up(member: GroupMember, partitions: Partitions, generation: int) -> GroupMember:
    """Return a member that no longer owns partitions; any that were given back to it meanwhile it awaits again."""
    back = (member.owned - member.revoked) & partitions
    return replace(
        member,
        owned=member.owned - partitions,
        revoked=member.revoked - partitions,
        awaited=member.awaited | back,
        generation=generation,
    )


def handed_out(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
    """Return members that own what they await and no other one owns; in the order of ids."""
    taken = {partition for member in members for partition in member.owned}
    return tuple(_with_free(member, taken) for member in sorted(members, key=lambda member: member.id))


def _with_free(member: GroupMember, taken: Set[TopicPartition]) -> GroupMember:
    free = member.awaited - taken
    return replace(member, owned=member.owned | free, awaited=member.awaited - free) if free else member


def common_assignor(members: Sequence[GroupMember]) -> str:
    """Return the assignor, as a broker does: each votes for its first that all know. `Conflict`: there is none."""
    common = set(ASSIGNORS).intersection(*(member.assignors for member in members))
    if not common:
        listed = "; ".join(sorted({", ".join(member.assignors) for member in members}))
        raise Conflict(
            f"the members of a group need one assignor in common, found {listed}; give all of them the same "
            "partition_assignment_strategy, of " + ", ".join(ASSIGNORS)
        )
    votes = Counter(next(name for name in member.assignors if name in common) for member in members)
    # Of two with as many votes Kafka takes either: the first of the list, so that every writer takes the same.
    return max((name for name in ASSIGNORS if name in common), key=lambda name: votes[name])


def partitions_read(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of partitions of the topics that some member subscribes to."""
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
    owned: set[TopicPartition] = set()
    for member in members:
        if not owned.isdisjoint(member.owned) or not member.revoked <= member.owned:
            raise item.bad(name, "of members that own each partition once")
        owned |= member.owned
    return members


MEMBERS_BY_ID = MemberKind(_in_order, lambda members: list(map(MEMBER_JSON.to_json, members)))
"""A list of objects in the order of ids; no partition is owned twice."""
