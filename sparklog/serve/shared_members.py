"""Add, update and remove clients of this server in the journal of a shared group.

The clients are ordinary members in the group's journal (`classic_member`). The server sends heartbeats for the clients,
and removes a client if it leaves or if its session times out. Several servers of a root may have clients in the same
group.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparklog.errors import SparklogError
from sparklog.groups.classic_member import ClassicMember
from sparklog.groups.group import Group
from sparklog.groups.group_journal import GroupJournal
from sparklog.groups.group_members import Partitions, by_topic
from sparklog.groups.group_state import GroupMetadata, GroupState
from sparklog.groups.membership import Membership
from sparklog.kafka.messages.message_codec import encode_versioned
from sparklog.kafka.messages.message_schema import message
from sparklog.log.journal.names import is_topic_name
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.join_details import JoinDetails

_LOG = logging.getLogger("sparklog.serve")


def join_journal(group: Group, joining: Sequence[JoinDetails], owner: GroupMetadata | None) -> list[ClassicMember]:
    """Add clients to the group in one entry. Raises `Conflict` if the members do not have a common assignor.

    Args:
        owner: the exclusive owner that the clients replace. Cooperative clients retain the partitions that they own. If
            None, the clients join the group as new members.

    Raises:
        CodeError: INCONSISTENT_GROUP_PROTOCOL if a client is not a consumer, or supports none of sparklog's assignors.
    """
    claims = Counter(partition for details in joining for partition in _owned(details)) if owner is not None else {}
    members = []
    for details in joining:
        owned = frozenset(partition for partition in _owned(details) if claims.get(partition) == 1)
        member = details.group_member(owned)
        if member is None:
            raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL)
        members.append(member)
    topics = {topic for member in members for topic in member.topics}
    return [ClassicMember(membership) for membership in group.share_as(members, partition_counts(group, topics), owner)]


def rejoin_journal(classic: ClassicMember, details: JoinDetails) -> None:
    """Process the JoinGroup request of a client that is already a member."""
    subscription = details.subscription()
    if subscription is None or not details.shared_assignors:
        raise CodeError(Code.INCONSISTENT_GROUP_PROTOCOL)
    counts = partition_counts(classic.membership.group, subscription.topics)
    classic.rejoin(subscription.topics, details.shared_assignors, subscription.owned, counts)


def leave_journal(membership: Membership) -> None:
    """Remove a member. If the request fails, the member is removed when its session times out."""
    try:
        membership.leave()
    except SparklogError as error:
        _LOG.warning(
            "group %s: cannot remove member %s, which remains until its session times out: %s",
            membership.group.id,
            membership.metadata.member_id,
            error,
        )


def refresh_membership(membership: Membership, state: GroupState) -> None:
    """Apply the latest state of the group to a member, send a heartbeat if it is due, and report new partitions of
    topics.
    """
    membership.apply(state)
    membership.heartbeat_if_due()
    topics, state = membership.member.topics, membership.state
    # Existing topics are not read again, because the server already polls these topics to serve client fetches.
    counts = partition_counts(membership.group, topics, refresh=[t for t in topics if t not in state.partitions])
    if any(count > state.partitions.get(topic, 0) for topic, count in counts.items()):
        membership.subscribe(topics, counts)


def partition_counts(
    group: GroupJournal, topics: Collection[str], *, refresh: Collection[str] | None = None
) -> Mapping[str, int]:
    """Return the number of partitions of each existing topic. As in Kafka, clients can subscribe to invalid names.

    `refresh` contains the topics to read again. If it is None, all topics are read again.
    """
    counts = {}
    for topic in filter(is_topic_name, topics):
        log = group.root.engine.log(topic)
        latest = log.refresh() if refresh is None or topic in refresh else log.current()
        if latest.topic_state.exists:
            counts[topic] = latest.topic_state.partitions
    return counts


def assignment_bytes(partitions: Partitions) -> bytes:
    """Return an assignment in the format of a SyncGroup response."""
    rows: list[Any] = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]
    return encode_versioned(message("groups", "ConsumerProtocolAssignment"), 0, {"assignedPartitions": rows})


def _owned(details: JoinDetails) -> Partitions:
    subscription = details.subscription()
    return frozenset() if subscription is None or not details.keeps_owned else subscription.owned
