"""Kafka's assignors, by the names of its protocol: they divide partitions among the members of a group.

Pure functions of the members, in the order in which the group has them, and of the topics. Racks are not regarded. The
sticky ones differ in three corners, which docs/design/differences.md names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from sparklog.errors import BadRequest
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.sticky_assignor import java_key, sticky_assignment

COOPERATIVE_STICKY = "cooperative-sticky"
ASSIGNORS = ("range", "roundrobin", "sticky", COOPERATIVE_STICKY)


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """Topics to which a member subscribes, and partitions that it has now: sticky assignors let it keep them."""

    member_id: str
    instance_id: str | None
    """`group.instance.id`: `range` and `roundrobin` put members that have one first, in its order."""
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()


def assign(
    assignor: str, members: Sequence[MemberSubscription], partitions: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Divide partitions, whose number `partitions` has for each topic that exists, among all members of a group.

    `assignor`: one of `ASSIGNORS`; `cooperative-sticky` gives what members have in the end, as `sticky` does. The
    partitions of each member come sorted. `BadRequest`: no such assignor, or two members have one id.
    """
    if assignor not in ASSIGNORS:
        raise BadRequest(f"the assignor is one of {', '.join(ASSIGNORS)}, found {assignor!r:.80}")
    topics = {member.member_id: frozenset(member.topics) for member in members}
    if len(topics) < len(members):
        raise BadRequest("two members of a group have one member id")
    subscribed = frozenset().union(*topics.values())
    counts = {topic: count for topic, count in partitions.items() if count > 0 and topic in subscribed}
    if not counts:
        return dict.fromkeys(topics, ())
    if assignor in ("sticky", "cooperative-sticky"):
        shares = sticky_assignment(topics, _owned(members, counts), counts)
    else:
        shares = {member: [] for member in topics}
        places = _range(members, counts) if assignor == "range" else _round_robin(members, counts)
        for member, partition in places:
            shares[member].append(partition)
    return {member: tuple(sorted(shares[member])) for member in topics}


def _owned(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Return what each member has of partitions that exist; one that two claim is owned by neither."""
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
        members,
        key=lambda member: (member.instance_id is None, java_key(member.instance_id or member.member_id)),
    )


def _range(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> Iterator[tuple[str, TopicPartition]]:
    """Yield who gets what: of each topic the first member has the first run of partitions, and so on."""
    ordered = _static_first(members)
    for topic, count in counts.items():
        readers = [member.member_id for member in ordered if topic in member.topics]
        size, larger = divmod(count, len(readers))
        for number in range(count):
            # The first `larger` members have one more.
            reader = max(number // (size + 1), (number - larger) // size if size else 0)
            yield readers[reader], (topic, number)


def _round_robin(
    members: Sequence[MemberSubscription], counts: Mapping[str, int]
) -> Iterator[tuple[str, TopicPartition]]:
    """Yield who gets what: one partition after the other, to the next member that subscribes to its topic."""
    turns = cycle(_static_first(members))
    for topic in sorted(counts):
        for number in range(counts[topic]):
            member = next(member for member in turns if topic in member.topics)
            yield member.member_id, (topic, number)
