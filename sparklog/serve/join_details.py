"""What a client sends when it joins a group by Kafka's classic protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.errors import Corrupt
from sparklog.groups.assignors import ASSIGNORS
from sparklog.groups.group_members import GroupMember, Partitions
from sparklog.kafka.messages.message_codec import decode_prefix, split_version
from sparklog.kafka.messages.message_schema import message

CONSUMER = "consumer"
"""The protocol type of consumers. Others are those of Kafka Connect, schema registries, and so on."""


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """A consumer's topics, and the partitions that it reads on while it joins: with eager assignors none."""

    topics: tuple[str, ...]
    owned: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class JoinDetails:
    """Details that a member joins with. `protocols`: name and metadata of each assignor, the preferred one first."""

    member: str
    instance: str | None
    client: str
    host: str
    session_ms: int
    rebalance_ms: int
    kind: str
    protocols: tuple[tuple[str, bytes], ...]
    keeps_owned: bool = True
    """False: partitions that the subscription lists as owned do not count."""

    @property
    def shared_assignors(self) -> tuple[str, ...]:
        """The client's assignors that sparklog runs, too, in its order. Empty for other protocol types."""
        return tuple(name for name, _ in self.protocols if name in ASSIGNORS) if self.kind == CONSUMER else ()

    def subscription(self) -> ConsumerSubscription | None:
        """Return the subscription of a consumer; None if it cannot be read."""
        return subscription_in(self.protocols[0][1]) if self.kind == CONSUMER and self.protocols else None

    def group_member(self, owned: Partitions = frozenset()) -> GroupMember | None:
        """Return the client as a member of the group's journal; None if its protocol does not allow it."""
        subscription, assignors = self.subscription(), self.shared_assignors
        if subscription is None or not assignors:
            return None
        settings = self.client or "client", self.host, self.session_ms, assignors, subscription.topics
        return GroupMember(self.member, self.instance, *settings, owned=owned)


def subscription_in(metadata: bytes) -> ConsumerSubscription | None:
    """Return the subscription in a consumer's metadata; None if it cannot be read."""
    try:
        version, body = split_version(metadata, "subscription")
        fields = decode_prefix(message("groups", "ConsumerProtocolSubscription"), version, body)[0]
    except Corrupt:
        return None
    owned = (
        (row["topic"], partition) for row in fields.get("ownedPartitions") or () for partition in row["partitions"]
    )
    return ConsumerSubscription(tuple(sorted(fields["topics"])), frozenset(owned))


def common_assignors(all_details: Sequence[JoinDetails]) -> set[str]:
    return set.intersection(*({name for name, _ in details.protocols} for details in all_details))


def shareable_assignors(all_details: Sequence[JoinDetails]) -> tuple[str, ...]:
    """Return the assignors by which members of the journal can join these clients."""
    return tuple(name for name in ASSIGNORS if all(name in one.shared_assignors for one in all_details))
