"""Kafka's partition assignors: `range`, `roundrobin`, `sticky`, `cooperative-sticky` and `uniform`.

An assignor is a pure function of the topics and of the members, in the order of the group. Assignors ignore racks. The
sticky assignors differ from Kafka's in three corner cases (see docs/design/differences.md).

The sticky assignors balance the number of partitions per member, and members retain as many of their partitions as
possible. As in Kafka, there are two algorithms. If all members subscribe to the same topics, the numbers of partitions
differ by at most one, and as few partitions as possible move. If the subscriptions differ, each unassigned partition is
assigned to the subscriber of its topic that has the fewest partitions. Then single partitions move from larger to
smaller members until no move improves the balance.

`uniform` is the default assignor of the consumer protocol (KIP-848), and also balances the number of partitions. If all
members subscribe to the same topics, Kafka's algorithm is used. Otherwise partitions are assigned as by `sticky`.

Two choices depend on the iteration order of Java's hash tables, as in Kafka's code. The first choice determines which
members retain one more partition than the other members. The second choice determines which of several partitions moves
back to its original owner. Member ids are added to the table in the order of `topics`, and are compared as Java
compares strings. Buckets that Java converts to trees (if a large table has nine entries in one bucket) are not
modelled. Kafka's last step, which reverts moves that did not improve the balance, is not implemented either, because
none of 100,000 random groups reached it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TypeVar

from sparklog.errors import BadRequest, shortened
from sparklog.format.checkpoint_files import TopicPartition

COOPERATIVE_STICKY = "cooperative-sticky"
ASSIGNORS = ("range", "roundrobin", "sticky", COOPERATIVE_STICKY)
UNIFORM = "uniform"
SERVER_ASSIGNORS = (UNIFORM, "range")
"""The assignors of the consumer protocol (KIP-848), in Kafka's order. The first assignor is the default."""
ALL = "all"
"""The assignor of an exclusive owner, which assigns all partitions to this member. See `group_members`."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The topics that a member subscribes to, and the partitions that it owns.

    Sticky assignors preserve owned partitions.
    """

    member_id: str
    instance_id: str | None
    """Kafka's `group.instance.id`. `range` and `roundrobin` sort static members by this id, before other members."""
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()


def assign(
    assignor: str, members: Sequence[MemberSubscription], partitions: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Divide partitions among all members of a group.

    Args:
        assignor: One of `ASSIGNORS` or `SERVER_ASSIGNORS`. `cooperative-sticky` returns the final assignment, as
            `sticky` does.
        partitions: The number of partitions of each existing topic.

    Returns:
        The sorted partitions of each member.

    Raises:
        BadRequest: If the assignor does not exist, or if two members have the same id.
    """
    if assignor not in (*ASSIGNORS, UNIFORM):
        raise BadRequest(f"the assignor must be one of {', '.join(ASSIGNORS)}, found {shortened(assignor)}")
    topics = {member.member_id: frozenset(member.topics) for member in members}
    if len(topics) < len(members):
        raise BadRequest("two members of the group have the same member id")
    subscribed = frozenset().union(*topics.values())
    counts = {topic: count for topic, count in partitions.items() if count > 0 and topic in subscribed}
    if not counts:
        return dict.fromkeys(topics, ())
    if assignor == UNIFORM and len(set(topics.values())) == 1:
        shares = _uniform_shares(topics, _owned(members, counts), counts)
    elif assignor in ("sticky", COOPERATIVE_STICKY, UNIFORM):
        shares = sticky_assignment(topics, _owned(members, counts), counts)
    else:
        shares = {member: [] for member in topics}
        assignment = _range(members, counts) if assignor == "range" else _round_robin(members, counts)
        for member, partition in assignment:
            shares[member].append(partition)
    return {member: tuple(sorted(shares[member])) for member in topics}


def _owned(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Return the existing partitions that each member owns. If two members claim a partition, neither owns it."""
    claims = Counter(partition for member in members for partition in member.owned)
    return {
        member.member_id: [
            (topic, number)
            for topic, number in member.owned
            if number < counts.get(topic, 0) and claims[topic, number] == 1
        ]
        for member in members
    }


def _static_first(members: Sequence[MemberSubscription]) -> list[MemberSubscription]:
    return sorted(
        members, key=lambda member: (member.instance_id is None, java_key(member.instance_id or member.member_id))
    )


def _range(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> Iterator[tuple[str, TopicPartition]]:
    """Yield (member, partition) pairs. Consecutive partitions of a topic are assigned to each subscriber in order."""
    ordered = _static_first(members)
    for topic, count in counts.items():
        readers = [member.member_id for member in ordered if topic in member.topics]
        size, larger = divmod(count, len(readers))
        for number in range(count):
            # One more partition is assigned to each of the first `larger` members.
            reader = max(number // (size + 1), (number - larger) // size if size else 0)
            yield readers[reader], (topic, number)


def _round_robin(
    members: Sequence[MemberSubscription], counts: Mapping[str, int]
) -> Iterator[tuple[str, TopicPartition]]:
    """Yield (member, partition) pairs. The partitions of a topic are assigned to its subscribers in turn."""
    turns = cycle(_static_first(members))
    for topic in sorted(counts):
        for number in range(counts[topic]):
            member = next(member for member in turns if topic in member.topics)
            yield member.member_id, (topic, number)


def _uniform_shares(
    members: Iterable[str], owned: Mapping[str, list[TopicPartition]], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return the assignment of `uniform` if all members have the same subscription.

    The members, in the order of Kafka's hash table, retain as many of their partitions as their quota allows. Then the
    free partitions are assigned to the members until each member has reached its quota.
    """
    ordered = _table_order({member: string_hash(member) for member in members})
    low, extra = divmod(sum(partitions.values()), len(ordered))
    quotas = {member: low + (index < extra) for index, member in enumerate(ordered)}
    before = {partition for share in owned.values() for partition in share}
    everything = ((topic, number) for topic in sorted(partitions) for number in range(partitions[topic]))
    free = [partition for partition in everything if partition not in before]
    shares = {}
    for member, quota in quotas.items():
        share = sorted(owned[member])
        shares[member] = share[:quota]
        free += share[quota:]
    next_free = iter(free)
    for member, quota in quotas.items():
        shares[member] += islice(next_free, quota - len(shares[member]))
    return shares


_Key = TypeVar("_Key")
MIN_BUCKETS = 16
MAX_STICKY_ROUNDS = 50
"""Maximum number of rounds in which moves prefer to return partitions.

For some groups, Kafka's algorithm never terminates.
"""


def sticky_assignment(
    topics: Mapping[str, AbstractSet[str]], owned: Mapping[str, Sequence[TopicPartition]], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member, unsorted.

    Args:
        topics: The topics that each member subscribes to.
        owned: The partitions that each member owns. The partitions exist, and each has at most one owner.
        partitions: The number of partitions (at least one) of each existing topic that has a subscriber.
    """
    # From here on, a member is represented by its index in the sorted list of ids.
    ids = sorted(topics, key=java_key)
    index_of = {member: index for index, member in enumerate(ids)}
    members = [index_of[member] for member in _table_order({member: string_hash(member) for member in topics})]
    shares = {member: list(owned[ids[member]]) for member in members}
    subscriptions = [topics[member] for member in ids]
    if all(subscription == subscriptions[0] for subscription in subscriptions):
        result = _even_shares(shares, partitions)
    else:
        result = _balanced_shares(shares, subscriptions, partitions)
    return {ids[member]: share for member, share in result.items()}


def java_key(text: str) -> bytes:
    """Return a sort key that orders strings by UTF-16 code units, as Java does."""
    return text.encode("utf-16-be", "surrogatepass")


def _even_shares(
    owned: Mapping[int, list[TopicPartition]], partitions: Mapping[str, int]
) -> dict[int, list[TopicPartition]]:
    """Return the assignment if all members have the same subscription. `owned` has the order of Kafka's hash table."""
    unassigned = {(topic, number) for topic, count in partitions.items() for number in range(count)}
    low, extra = divmod(len(unassigned), len(owned))
    high = low + (extra > 0)
    shares: dict[int, list[TopicPartition]] = {}
    short, ready = [], []
    # Number of members that keep `high` partitions. At the end, `extra` members have `high` partitions.
    large = 0
    for member, share in owned.items():
        size = low
        if len(share) < low:
            short.append(member)
        elif len(share) >= high and large < extra:
            size = high
            large += 1
        else:
            ready.append(member)
        shares[member] = sorted(share, key=lambda partition: partition[::-1])[:size]
        unassigned.difference_update(shares[member])
    short_queue, ready_queue = deque(sorted(short)), deque(sorted(ready))
    for partition in sorted(unassigned):
        member = (short_queue or ready_queue).popleft()
        shares[member].append(partition)
        if len(shares[member]) < low:
            short_queue.append(member)
        elif len(shares[member]) == low:
            ready_queue.append(member)
    return shares


def _balanced_shares(
    owned: Mapping[int, list[TopicPartition]], subscriptions: Sequence[AbstractSet[str]], partitions: Mapping[str, int]
) -> dict[int, list[TopicPartition]]:
    """Return the assignment if members subscribe to different topics.

    `subscriptions` contains the topics of each member.
    """
    balance = _Balance(subscriptions)
    must_revoke = False
    for member, share in owned.items():
        for partition in share:
            if partition[0] in subscriptions[member]:
                balance.assign(partition, member)
            else:
                must_revoke = True
    readers = {topic: sum(topic in subscription for subscription in subscriptions) for topic in partitions}
    ordered = [
        (topic, number)
        for topic in sorted(partitions, key=lambda topic: (readers[topic], topic))
        for number in range(partitions[topic])
    ]
    unassigned = [partition for partition in ordered if partition not in balance.owners]
    for partition in unassigned:
        balance.assign(partition, balance.smallest(partition[0]))
    # A partition cannot move if its topic has a single subscriber.
    shared = {topic for topic, count in readers.items() if count > 1}
    if not must_revoke:
        balance.spread([partition for partition in unassigned if partition[0] in shared])
    balance.spread([partition for partition in ordered if partition[0] in shared])
    shares: dict[int, list[TopicPartition]] = {member: [] for member in owned}
    for partition, member in balance.owners.items():
        shares[member].append(partition)
    return shares


class _Balance:
    """The current owners of partitions, and the original owners of moved partitions."""

    def __init__(self, subscriptions: Sequence[AbstractSet[str]]) -> None:
        self._subscriptions = subscriptions
        self.sizes = [0] * len(subscriptions)
        self._by_size = [(0, member) for member in range(len(subscriptions))]
        """Sorted (number of partitions, member) pairs."""
        self.owners: dict[TopicPartition, int] = {}
        self._origins: dict[TopicPartition, int] = {}
        """The original owner of each moved partition.

        An entry is removed if the partition moves back to its original owner.
        """
        self._moved: dict[tuple[str, int, int], _MovedPartitions] = {}
        """The moved partitions by topic, original owner and current owner."""

    def smallest(self, topic: str) -> int:
        """Return the subscriber of a topic that has the fewest partitions."""
        return next(member for _, member in self._by_size if topic in self._subscriptions[member])

    def assign(self, partition: TopicPartition, member: int) -> None:
        """Assign a partition to a member.

        If the partition has a previous owner, it is removed from the previous owner.
        """
        previous = self.owners.get(partition)
        if previous is not None:
            self._resize(previous, -1)
        self.owners[partition] = member
        self._resize(member, +1)

    def _resize(self, member: int, change: int) -> None:
        del self._by_size[bisect_left(self._by_size, (self.sizes[member], member))]
        self.sizes[member] += change
        insort(self._by_size, (self.sizes[member], member))

    def spread(self, partitions: Sequence[TopicPartition]) -> None:
        """Move partitions to smaller members until no move improves the balance."""
        rounds, has_moved = 0, True
        while has_moved:
            rounds, has_moved = rounds + 1, False
            for partition in partitions:
                size = self.sizes[self.owners[partition]]
                if size <= self._by_size[0][0] + 1:
                    continue
                target = self.smallest(partition[0])
                if size <= self.sizes[target] + 1:
                    continue
                has_moved = True
                if rounds <= MAX_STICKY_ROUNDS:
                    self._move(partition, target)
                else:
                    self.assign(partition, target)

    def _move(self, partition: TopicPartition, target: int) -> None:
        """Move a partition to `target`.

        If another partition of the topic has moved in the opposite direction before, move that partition back instead.
        """
        topic = partition[0]
        opposite = self._moved.get((topic, target, self._origins.get(partition, self.owners[partition])))
        if opposite is not None:
            partition = topic, opposite.first()
        owner = self.owners[partition]
        origin = self._origins.pop(partition, None)
        if origin is not None:
            moved = self._moved[topic, origin, owner]
            del moved.numbers[partition[1]]
            if not moved.numbers:
                del self._moved[topic, origin, owner]
        self.assign(partition, target)
        if origin != target:
            origin = owner if origin is None else origin
            self._origins[partition] = origin
            self._moved.setdefault((topic, origin, target), _MovedPartitions(topic)).add(partition[1])


class _MovedPartitions:
    """The partitions of a topic that moved from one member to another member, in the order of a Java `HashSet`."""

    __slots__ = ("_peak", "_topic_hash", "numbers")

    def __init__(self, topic: str) -> None:
        self._topic_hash = string_hash(topic)
        self.numbers: dict[int, None] = {}
        self._peak = 0

    def add(self, number: int) -> None:
        self.numbers[number] = None
        self._peak = max(self._peak, len(self.numbers))

    def first(self) -> int:
        hashes = {number: 31 * (31 + number) + self._topic_hash for number in self.numbers}
        return _table_order(hashes, self._peak)[0]


def _table_order(hashes: Mapping[_Key, int], peak: int = 0) -> list[_Key]:
    """Return keys in the order in which a Java `HashMap` iterates over them.

    Args:
        hashes: The low 32 bits of the `hashCode` of each key, in the order in which the keys were added.
        peak: The maximum number of entries that the table has had, because a table never shrinks.
    """
    buckets = MIN_BUCKETS
    while max(peak, len(hashes)) > buckets * 3 // 4:
        buckets *= 2
    return sorted(hashes, key=lambda key: (hashes[key] ^ (hashes[key] & 0xFFFFFFFF) >> 16) & (buckets - 1))


def string_hash(text: str) -> int:
    """Return the `hashCode` of a Java string as an unsigned number."""
    units = java_key(text)
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value
