"""The fields that a client sends when it joins a group with Kafka's classic protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.errors import Corrupt
from sparklog.groups.assignors import ASSIGNORS
from sparklog.groups.group_members import GroupMember, Partitions
from sparklog.kafka.messages.message_codec import decode_prefix, split_version
from sparklog.kafka.messages.message_schema import message

CONSUMER = "consumer"
"""The protocol type of consumers. Kafka Connect and schema registries use other protocol types."""


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """The topics of a consumer, and the partitions that the consumer retains during a rebalance. If the assignor is
    eager, there are no retained partitions.
    """

    topics: tuple[str, ...]
    owned: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class JoinDetails:
    """The fields of a joining member. `protocols` contains the names and metadata of its assignors, in order of
    preference.
    """

    member: str
    instance: str | None
    client: str
    host: str
    session_ms: int
    rebalance_ms: int
    kind: str
    protocols: tuple[tuple[str, bytes], ...]
    keeps_owned: bool = True
    """If False, ignore the owned partitions in the subscription."""

    @property
    def shared_assignors(self) -> tuple[str, ...]:
        """The assignors of the client that sparklog implements, in the order of the client. The result is empty if the
        client is not a consumer.
        """
        return tuple(name for name, _ in self.protocols if name in ASSIGNORS) if self.kind == CONSUMER else ()

    def subscription(self) -> ConsumerSubscription | None:
        """Return the subscription of a consumer.

        Return None if the metadata is invalid or the client is not a consumer.
        """
        return subscription_in(self.protocols[0][1]) if self.kind == CONSUMER and self.protocols else None

    def group_member(self, owned: Partitions = frozenset()) -> GroupMember | None:
        """Return the client as a member for the group's journal.

        Return None if the client does not support sparklog's assignors.
        """
        subscription, assignors = self.subscription(), self.shared_assignors
        if subscription is None or not assignors:
            return None
        settings = self.client or "client", self.host, self.session_ms, assignors, subscription.topics
        return GroupMember(self.member, self.instance, *settings, owned=owned)


def subscription_in(metadata: bytes) -> ConsumerSubscription | None:
    """Return the subscription in a consumer's metadata, or None if the metadata is invalid."""
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
    """Return the assignors that sparklog implements and all these clients support."""
    return tuple(name for name in ASSIGNORS if all(name in one.shared_assignors for one in all_details))
